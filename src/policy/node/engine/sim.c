/* SPDX-License-Identifier: Apache-2.0 */
/* sim: cgn-sim, the engine emulator of this repository, which behaves like vLLM. */
#include "policy/node/engine/engine_priv.h"

/* Routes of the gateway that the emulator does not have. */
static const char *const sim_lacks[] = {"/v1/messages/count_tokens", "/v1/audio/speech",
	"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/generations", "/v1/images/edits",
	"/v1/images/variations", "/v1/moderations", NULL};

static CGN_RC sim_launch(const struct engine_launch_ask *ask, struct engine_launch *out, struct cgn_err *err)
{
	(void)err;
	engine_arg_pair(out, "--listen", ask->url->addr);
	engine_arg_pair(out, "--model", ask->engine->model);
	engine_arg_extra(out, ask->engine);
	return CGN_OK;
}

static const struct engine_resume sim_resumes[] = {
	{.name = "sim",
		.shape = ENGINE_RESUME_CONTINUE,
		.events = ENGINE_EVENTS_ARE_TOKENS,
		.text_default = 16},
};

/* All that compute a prompt. */
static const char *const sim_natives[] = {"/rerank", "/score", "/apply-template", NULL};

static const char *const sim_salts[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
	"/v1/messages", "/v1/embeddings", NULL};

const struct engine_ops engine_sim = {
	.kind = ENGINE_SIM,
	.read_at = "cgn-sim of this repository",
	.binary = "cgn-sim",
	.launch = sim_launch,
	.ready_path = "/health",
	.check_every = 2 * CGN_SEC,
	.readiness = engine_readiness_plain,
	.sources = {{"/metrics", engine_read_vllm}},
	.lacks = sim_lacks,
	.natives = sim_natives,
	.salts = sim_salts,
	.tokens = &engine_tokens_vllm,
	.resumes = sim_resumes,
	.n_resumes = CGN_COUNT(sim_resumes),
};
