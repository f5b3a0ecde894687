/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-sim, our engine emulator: looks like vLLM from outside. */
#include "policy/engine/engine_priv.h"

static CGN_RC argv(const struct config_engine *e, const struct engine_url *u, struct engine_argv *out,
	struct cgn_err *err)
{
	engine_arg_pair(out, "--listen", u->addr);
	engine_arg_pair(out, "--model", e->model);
	engine_arg_extra(out, e);
	return engine_argv_done(out, err);
}

static const char *resume(const struct config_engine *e)
{
	(void)e;
	return "sim";
}

const struct engine_ops engine_sim = {
	.kind = ENGINE_SIM,
	.read_at = "cgn-sim of this repository",
	.binary = "cgn-sim",
	.argv = argv,
	.ready_path = "/health",
	.check_every = 2 * CGN_SEC,
	.health = engine_readiness_plain,
	.sources = {{"/metrics", engine_read_vllm}},
	.tokens = &engine_tokens_vllm,
	.resume = resume,
};
