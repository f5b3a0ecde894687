/* SPDX-License-Identifier: Apache-2.0 */
/* Anything that speaks OpenAI's API: a hosted service, or an engine that somebody else runs. */
#include "policy/engine/engine_priv.h"

static CGN_RC argv(const struct config_engine *e, const struct engine_url *u, struct engine_argv *out,
	struct cgn_err *err)
{
	(void)u;
	(void)out;
	return CGN_FAIL(err, INVALID,
		"engine.managed = true does not go with kind \"openai_compat\" (%s): start it yourself, or use llama_cpp or sim",
		e->url);
}

/* There is no common health route, so the model list is asked: whoever answers it, or says that he has none,
 * is up. */
static enum engine_readiness health(int status)
{
	if (status == 503 || status == 429)
		return ENGINE_READINESS_LOADING;
	if ((status >= 200 && status < 300) || status == 404 || status == 405)
		return ENGINE_READINESS_UP;
	return ENGINE_READINESS_DOWN;
}

/* Which of them it is can't be seen from outside. */
static const char *resume(const struct config_engine *e)
{
	return e->resume == RESUME_NONE ? "" : config_enum_text(e->resume);
}

const struct engine_ops engine_openai_compat = {
	.kind = ENGINE_OPENAI_COMPAT,
	.read_at = "OpenAI API reference, 2026-11; metrics of vLLM 0.26",
	.argv = argv,
	.ready_path = "/v1/models",
	.check_every = 15 * CGN_SEC,
	.health = health,
	.sources = {{"/metrics", engine_read_vllm}},
	.tokens = &engine_tokens_maybe,
	.resume = resume,
};
