/* SPDX-License-Identifier: Apache-2.0 */
/* sglang: SGLang's server. */
#include "policy/node/engine/change.h"
#include "policy/node/engine/engine_priv.h"
#include "policy/node/engine/prom.h"

#define BOOTSTRAP_PORT 8998

/* ---- the command line ---- */

static void sglang_program(const struct config_engine *e, struct engine_launch *out)
{
	if (engine_program_is(e, "sglang")) {
		engine_arg(out, "serve");
		return;
	}
	engine_arg(out, "-m");
	engine_arg(out, "sglang.launch_server");
}

static const struct engine_size_flags sglang_size_flags = {.tp = "--tp-size",
	.pp = "--pp-size",
	.dp = "--dp-size",
	.context = "--context-length",
	.memory = "--mem-fraction-static"};

/* The class is in deploy/sglang; SGLang finds it by its PYTHONPATH. */
static void sglang_kvcached(const struct config_engine *e, struct engine_launch *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_out o = json_out_to(&text);
	json_open(&o, '{');
	json_key_z(&o, "backend_name", "cognitora");
	json_key_z(&o, "module_path", "cognitora_hicache");
	json_key_z(&o, "class_name", "CognitoraHiCache");
	json_close(&o, '}');
	engine_arg_pair(out, "--hicache-storage-backend", "dynamic");
	engine_arg_pair(out, "--hicache-storage-backend-extra-config", cgn_buf_z(&text));
	if (e->kv_offload_url != NULL) /* Not an argument: it may have a password, and all users see those. */
		engine_env(out, cgn_arena_fmt(out->arena, "CGN_HICACHE_URL=%s", e->kv_offload_url));
}

/* A decode node has no radix cache, so the hierarchical cache is for the other roles. */
static void sglang_hicache(const struct config_engine *e, struct engine_launch *out)
{
	engine_arg(out, "--enable-hierarchical-cache");
	if (e->kv_offload_ram > 0)
		engine_arg_u64(out, "--hicache-size", e->kv_offload_ram >> 30);
	else
		engine_arg_pair(out, "--hicache-ratio", "2");
	engine_arg_pair(out, "--hicache-write-policy", "write_through");
	if (e->hicache_storage_backend == HICACHE_KVCACHED)
		sglang_kvcached(e, out);
	else if (e->hicache_storage_backend != HICACHE_NONE)
		engine_arg_pair(out, "--hicache-storage-backend",
			config_enum_text(e->hicache_storage_backend));
}

static void sglang_roles(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	const struct config_engine *e = ask->engine;
	if (ask->cfg->agent.role == ROLE_BOTH)
		return;
	engine_arg_pair(out, "--disaggregation-mode", config_enum_text(ask->cfg->agent.role));
	engine_arg_pair(out, "--disaggregation-transfer-backend",
		e->kv_offload == OFFLOAD_MOONCAKE ? "mooncake" : "nixl");
	engine_arg_u64(out, "--disaggregation-bootstrap-port",
		e->handoff_port > 0 ? e->handoff_port : BOOTSTRAP_PORT);
}

static CGN_RC sglang_launch(const struct engine_launch_ask *ask, struct engine_launch *out,
	struct cgn_err *err)
{
	const struct config_engine *e = ask->engine;
	CGN_TRY(engine_weights_check(e, err));
	if (e->kv_offload_ram > 0 && e->kv_offload_ram < (uint64_t)1 << 30)
		return CGN_FAIL(err, INVALID,
			"engine.kv_offload_ram must be at least 1GiB: SGLang counts host memory in GiB");
	sglang_program(e, out);
	engine_arg_pair(out, "--model-path", engine_weights(e));
	engine_arg_pair(out, "--served-model-name", e->model);
	engine_arg_pair(out, "--host", ask->url->host);
	engine_arg_u64(out, "--port", ask->url->port);
	engine_arg_sizes(ask, &sglang_size_flags, out);
	engine_arg(out, "--enable-metrics");
	engine_arg(out, "--enable-cache-report"); /* usage has the cached tokens */
	if (e->kv_offload == OFFLOAD_HICACHE && ask->cfg->agent.role != ROLE_DECODE)
		sglang_hicache(e, out);
	sglang_roles(ask, out);
	CGN_TRY(engine_arg_events(ask, false, out, err));
	engine_arg_loras(e, "--lora-paths", out);
	engine_arg_extra(out, e);
	return CGN_OK;
}

/* ---- load ---- */

static void sglang_read(struct cgn_str text, struct engine_load *into)
{
	double v = 0;
	engine_read_requests(text, "sglang:num_running_reqs", &into->running);
	engine_read_requests(text, "sglang:num_queue_reqs", &into->waiting);
	if (prom_max(text, "sglang:token_usage", &v) && v >= 0 && v <= 1)
		into->kv_usage = v;
	if (prom_sum(text, "sglang:max_total_num_tokens", &v) && v >= 1 && v < (double)UINT32_MAX) {
		into->kv_blocks_total = (uint64_t)v;
		into->kv_block_tokens = 1;
	}
	(void)prom_sum(text, "sglang:prompt_tokens_total", &into->work);
	engine_read_made(text, "sglang:generation_tokens_total", NULL, into);
}

static const struct engine_resume sglang_resumes[] = {
	{.name = "sglang", .shape = ENGINE_RESUME_CONTINUE, .text_default = 16},
};

static const char *const sglang_changes[ENGINE_CHANGES] = {"/load_lora_adapter", "/unload_lora_adapter",
	"/release_memory_occupation", "/resume_memory_occupation"};

/* /v1/messages and /v1/embeddings know no salt. */
static const char *const sglang_natives[] = {"/generate", "/encode", "/classify", "/rerank", "/score", NULL};

static const char *const sglang_salts[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses", NULL};

const struct engine_ops engine_sglang = {
	.kind = ENGINE_SGLANG,
	.read_at = "SGLang 0.5.23 (its parser, its server on a CPU)",
	.binary = "python3",
	.offloads = ENGINE_OFFLOAD(OFFLOAD_HICACHE),
	/* Between the nodes NIXL, or Mooncake. */
	.offloads_apart = ENGINE_OFFLOAD(OFFLOAD_NIXL) | ENGINE_OFFLOAD(OFFLOAD_HICACHE) |
		ENGINE_OFFLOAD(OFFLOAD_MOONCAKE),
	.launch = sglang_launch,
	.ready_path = "/health",
	.check_every = 2 * CGN_SEC,
	.readiness = engine_readiness_plain,
	.sources = {{"/metrics", sglang_read}},
	.natives = sglang_natives,
	.salts = sglang_salts,
	.tokens = &engine_tokens_maybe,
	.adapter_after_base = true,
	.resumes = sglang_resumes,
	.n_resumes = CGN_COUNT(sglang_resumes),
	.publishes = true,
	.changes = sglang_changes,
};
