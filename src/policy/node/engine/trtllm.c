/* SPDX-License-Identifier: Apache-2.0 */
/* trtllm: TensorRT-LLM's trtllm-serve. What its command line lacks is in a YAML file; JSON is YAML. */
#include "policy/node/engine/engine_priv.h"

static void put_cache(const struct config_engine *e, struct json_out *o)
{
	json_key_open(o, "kv_cache_config", '{');
	json_key_bool(o, "enable_block_reuse", true);
	if (e->memory_fraction > 0)
		json_key_f64(o, "free_gpu_memory_fraction", e->memory_fraction);
	if (e->kv_offload == OFFLOAD_NATIVE)
		json_key_u64(o, "host_cache_size", engine_offload_ram(e));
	json_close(o, '}');
}

static void put_connector(struct json_out *o)
{
	json_key_open(o, "kv_connector_config", '{');
	json_key_z(o, "connector_module", "kvbm.trtllm_integration.connector");
	json_key_z(o, "connector_scheduler_class", "DynamoKVBMConnectorLeader");
	json_key_z(o, "connector_worker_class", "DynamoKVBMConnectorWorker");
	json_close(o, '}');
}

static void trtllm_options(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	const struct config_engine *e = ask->engine;
	struct cgn_buf text = {0};
	struct json_out o = json_out_to(&text);
	json_open(&o, '{');
	put_cache(e, &o);
	if (ask->cfg->agent.role != ROLE_BOTH || e->kv_offload == OFFLOAD_NIXL) {
		json_key_open(&o, "cache_transceiver_config", '{');
		json_key_z(&o, "backend", "NIXL");
		json_close(&o, '}');
	}
	if (ask->cfg->agent.role == ROLE_PREFILL)
		json_key_bool(&o, "disable_overlap_scheduler", true); /* context-only servers need it */
	if (e->kv_offload == OFFLOAD_KVBM)
		put_connector(&o);
	json_key_bool(&o, "enable_iter_perf_stats", true); /* /metrics */
	json_close(&o, '}');
	cgn_buf_char(&text, '\n');
	const char *path = engine_file_put(out, ask->prefix, ".trtllm.yaml", &text);
	cgn_buf_fini(&text);
	engine_arg_pair(out, "--extra_llm_api_options", path);
}

static CGN_RC trtllm_launch(const struct engine_launch_ask *ask, struct engine_launch *out,
	struct cgn_err *err)
{
	const struct config_engine *e = ask->engine;
	CGN_TRY(engine_weights_check(e, err));
	engine_arg(out, "serve");
	engine_arg(out, engine_weights(e));
	engine_arg_pair(out, "--host", ask->url->host);
	engine_arg_u64(out, "--port", ask->url->port);
	engine_arg_u64(out, "--tp_size", engine_tp(ask));
	if (e->pp > 1)
		engine_arg_u64(out, "--pp_size", e->pp);
	if (e->n_ctx > 0)
		engine_arg_u64(out, "--max_seq_len", e->n_ctx);
	trtllm_options(ask, out);
	if (e->kv_offload == OFFLOAD_KVBM)
		engine_env(out,
			cgn_arena_fmt(out->arena, "DYN_KVBM_CPU_CACHE_GB=%llu",
				(unsigned long long)(engine_offload_ram(e) >> 30)));
	engine_arg_extra(out, e);
	return CGN_OK;
}

/* The answer is a list: one object for each iteration since the last question. The last one counts. */
static void trtllm_read(struct cgn_str text, struct engine_load *into)
{
	struct json_val doc, one, last = {0}, cache;
	bool some = false;
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(doc); json_next_elem(&it, &one);) {
		last = one;
		some = true;
	}
	if (!some || last.type != JSON_OBJECT)
		return;
	uint64_t active = json_get_u64(last, "numActiveRequests", 0),
		 queued = json_get_u64(last, "numQueuedRequests", 0);
	into->running = active <= ENGINE_REQUESTS_MOST ? (uint32_t)active : 0;
	into->waiting = queued <= ENGINE_REQUESTS_MOST ? (uint32_t)queued : 0;
	into->made = (double)json_get_u64(last, "iter", 0);
	if (!json_get(last, "kvCacheStats", &cache) || cache.type != JSON_OBJECT)
		return;
	uint64_t most = json_get_u64(cache, "maxNumBlocks", 0),
		 used = json_get_u64(cache, "usedNumBlocks", 0);
	into->kv_blocks_total = most;
	into->kv_block_tokens = (uint32_t)json_get_u64(cache, "tokensPerBlock", 0);
	if (most > 0 && used <= most)
		into->kv_usage = (double)used / (double)most;
}

/* /v1/completions refuses a salt. */
static const char *const trtllm_salts[] = {"/v1/chat/completions", NULL};

/* Between the nodes NIXL. */
#define TRTLLM_OFFLOADS \
	(ENGINE_OFFLOAD(OFFLOAD_NIXL) | ENGINE_OFFLOAD(OFFLOAD_KVBM) | ENGINE_OFFLOAD(OFFLOAD_NATIVE))

/* No resume: neither continue_final_message nor a final assistant message is continued. */
const struct engine_ops engine_trtllm = {
	.kind = ENGINE_TRTLLM,
	.read_at = "TensorRT-LLM 1.1, documentation and source",
	.binary = "trtllm-serve",
	.offloads = TRTLLM_OFFLOADS,
	.offloads_apart = TRTLLM_OFFLOADS,
	.launch = trtllm_launch,
	.ready_path = "/health",
	.check_every = 2 * CGN_SEC,
	.readiness = engine_readiness_plain,
	.sources = {{"/metrics", trtllm_read}},
	.natives = engine_no_natives,
	.salts = trtllm_salts,
};
