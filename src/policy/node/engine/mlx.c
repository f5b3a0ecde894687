/* SPDX-License-Identifier: Apache-2.0 */
/* mlx: mlx_lm.server of MLX LM, for Apple's GPUs. */
#include "policy/node/engine/engine_priv.h"

static CGN_RC mlx_launch(const struct engine_launch_ask *ask, struct engine_launch *out, struct cgn_err *err)
{
	const struct config_engine *e = ask->engine;
	CGN_TRY(engine_weights_check(e, err));
	engine_arg_pair(out, "--model", engine_weights(e));
	engine_arg_pair(out, "--host", ask->url->host);
	engine_arg_u64(out, "--port", ask->url->port);
	engine_arg_extra(out, e);
	return CGN_OK;
}

static const char *const mlx_lacks[] = {"/v1/embeddings", "/v1/score", "/v1/rerank", "/v1/messages",
	"/v1/messages/count_tokens", "/v1/responses", "/v1/audio/speech", "/v1/audio/transcriptions",
	"/v1/audio/translations", "/v1/images/generations", "/v1/images/edits", "/v1/images/variations",
	"/v1/moderations", NULL};

/* No resume: a final assistant message is not continued. */
const struct engine_ops engine_mlx = {
	.kind = ENGINE_MLX,
	.read_at = "MLX LM 0.28, its source",
	.binary = "mlx_lm.server",
	.launch = mlx_launch,
	.ready_path = "/health",
	.check_every = 2 * CGN_SEC,
	.readiness = engine_readiness_plain,
	.lacks = mlx_lacks,
	.natives = engine_no_natives,
	.no_logprobs = "it gives ids in place of tokens, in a shape of its own",
};
