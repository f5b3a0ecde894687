/* SPDX-License-Identifier: Apache-2.0 */
/* openai_compat: a hosted service with OpenAI's API, or an engine that is not managed here. */
#include "policy/node/engine/engine_priv.h"

static CGN_RC compat_launch(const struct engine_launch_ask *ask, struct engine_launch *out,
	struct cgn_err *err)
{
	(void)out;
	return CGN_FAIL(err, INVALID,
		"engine.managed = true does not go with kind \"openai_compat\" (%s): start it yourself, or use llama_cpp or sim",
		ask->engine->url);
}

/* No health route is common to these services, so the model list is asked: an answer, or 404 or 405, is
 * up. */
static enum engine_readiness compat_readiness(int status)
{
	if (status == 503 || status == 429)
		return ENGINE_READINESS_LOADING;
	if ((status >= 200 && status < 300) || status == 404 || status == 405)
		return ENGINE_READINESS_UP;
	return ENGINE_READINESS_DOWN;
}

/* The API does not reveal which engine answers, so engine.resume says it. */
static const struct engine_resume compat_resumes[] = {
	{.name = "continue", .shape = ENGINE_RESUME_CONTINUE, .text_default = 16},
	{.name = "prefill", .shape = ENGINE_RESUME_PREFILL, .text_default = 16},
};

/* No kv_offload: an engine that is not managed may have any connector, and the agent only names it to routers. */
const struct engine_ops engine_openai_compat = {
	.kind = ENGINE_OPENAI_COMPAT,
	.read_at = "OpenAI API reference, 2026-11; metrics of vLLM 0.26",
	.launch = compat_launch,
	.ready_path = "/v1/models",
	.check_every = 15 * CGN_SEC,
	.readiness = compat_readiness,
	.sources = {{"/metrics", engine_read_vllm}},
	.loaded = {{"/api/ps", engine_loaded_ollama}, {"/system", engine_loaded_localai}},
	.tokens = &engine_tokens_maybe,
	.resumes = compat_resumes,
	.n_resumes = CGN_COUNT(compat_resumes),
};
