/* SPDX-License-Identifier: Apache-2.0 */
/* vllm: the command line of `vllm serve`, and what the engine is asked for. */
#include "policy/node/engine/change.h"
#include "policy/node/engine/engine_priv.h"

#define SIDE_CHANNEL_PORT 5600
#define MOONCAKE_PORT     8998

/* ---- connectors ---- */

static void put_connector(struct json_out *o, const char *name, const char *role)
{
	json_key_z(o, "kv_connector", name);
	json_key_z(o, "kv_role", role);
}

static void put_native_extra(struct json_out *o, const struct config_engine *e)
{
	json_key_open(o, "kv_connector_extra_config", '{');
	json_key_u64(o, "cpu_bytes_to_use", engine_offload_ram(e));
	json_close(o, '}');
}

/* The members of the connector that keeps blocks on this node. */
static void put_offload(struct json_out *o, const struct config_engine *e)
{
	switch (e->kv_offload) {
	case OFFLOAD_LMCACHE:
		put_connector(o, "LMCacheConnectorV1", "kv_both");
		break;
	case OFFLOAD_KVBM:
		put_connector(o, "DynamoConnector", "kv_both");
		json_key_z(o, "kv_connector_module_path", "kvbm.vllm_integration.connector");
		break;
	case OFFLOAD_FLEXKV:
		put_connector(o, "FlexKVConnectorV1", "kv_both");
		break;
	case OFFLOAD_NATIVE:
		put_connector(o, "OffloadingConnector", "kv_both");
		put_native_extra(o, e);
		break;
	case OFFLOAD_MOONCAKE:
		put_connector(o, "MooncakeStoreConnector", "kv_both");
		break;
	}
}

/* NIXL ignores kv_role, and a node of either role may also give and take; kv_role must be there. A block that cannot
 * be fetched is computed: the request is served. */
static void put_nixl(struct json_out *o)
{
	put_connector(o, "NixlConnector", "kv_both");
}

/* On a prefill node, |put_offload| and NIXL side by side. KVBM has a class of its own for that. */
static void put_stacked(struct json_out *o, const struct config_engine *e)
{
	bool kvbm = e->kv_offload == OFFLOAD_KVBM;
	put_connector(o, kvbm ? "PdConnector" : "MultiConnector", "kv_both");
	if (kvbm)
		json_key_z(o, "kv_connector_module_path", "kvbm.vllm_integration.connector");
	json_key_open(o, "kv_connector_extra_config", '{');
	json_key_open(o, "connectors", '[');
	json_open(o, '{');
	put_offload(o, e);
	json_close(o, '}');
	json_open(o, '{');
	put_nixl(o);
	json_close(o, '}');
	json_close(o, ']');
	json_close(o, '}');
}

static void put_transfer(struct json_out *o, const struct config_engine *e, int role)
{
	bool mooncake = e->kv_offload == OFFLOAD_MOONCAKE;
	bool keeps = e->kv_offload != OFFLOAD_NONE && e->kv_offload != OFFLOAD_NIXL;
	if (role == ROLE_BOTH && keeps)
		put_offload(o, e);
	else if (mooncake)
		put_connector(o, "MooncakeConnector", role == ROLE_PREFILL ? "kv_producer" : "kv_consumer");
	else if (role == ROLE_PREFILL && keeps)
		put_stacked(o, e);
	else
		put_nixl(o);
	if (!mooncake && (role != ROLE_BOTH || e->kv_offload == OFFLOAD_NIXL))
		json_key_z(o, "kv_load_failure_policy", "recompute");
}

static void transfer_arg(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	struct cgn_buf text = {0};
	struct json_out o = json_out_to(&text);
	json_open(&o, '{');
	put_transfer(&o, ask->engine, ask->cfg->agent.role);
	json_close(&o, '}');
	out->bad |= text.bad;
	engine_arg_pair(out, "--kv-transfer-config", cgn_buf_z(&text));
	cgn_buf_fini(&text);
}

/* ---- environment ---- */

static void lmcache_env(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	const struct config_engine *e = ask->engine;
	engine_env(out, "LMCACHE_LOCAL_CPU=True");
	engine_env(out,
		cgn_arena_fmt(out->arena, "LMCACHE_MAX_LOCAL_CPU_SIZE=%.3g",
			(double)engine_offload_ram(e) / (double)(1U << 30)));
	if (e->kv_offload_url == NULL)
		return;
	engine_env(out, cgn_arena_fmt(out->arena, "LMCACHE_REMOTE_URL=%s", e->kv_offload_url));
	engine_env(out, "LMCACHE_REMOTE_SERDE=naive");
}

static void mooncake_env(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	struct cgn_buf text = {0};
	struct json_out o = json_out_to(&text);
	json_open(&o, '{');
	json_key_z(&o, "metadata_server", "P2PHANDSHAKE");
	json_key_z(&o, "master_server_address", ask->engine->kv_offload_url);
	json_key_u64(&o, "global_segment_size", engine_offload_ram(ask->engine));
	json_key_u64(&o, "local_buffer_size", (uint64_t)1 << 30);
	json_key_z(&o, "protocol", "tcp");
	json_key_z(&o, "device_name", "");
	json_close(&o, '}');
	const char *path = engine_file_put(out, ask->prefix, ".mooncake.json", &text);
	cgn_buf_fini(&text);
	engine_env(out, cgn_arena_fmt(out->arena, "MOONCAKE_CONFIG_PATH=%s", path != NULL ? path : ""));
}

static void vllm_env(const struct engine_launch_ask *ask, struct engine_launch *out)
{
	const struct config_engine *e = ask->engine;
	int role = ask->cfg->agent.role;
	bool apart = role != ROLE_BOTH, mooncake = e->kv_offload == OFFLOAD_MOONCAKE;
	if ((apart && !mooncake) || e->kv_offload == OFFLOAD_NIXL) {
		engine_env(out, cgn_arena_fmt(out->arena, "VLLM_NIXL_SIDE_CHANNEL_HOST=%s", ask->host));
		engine_env(out,
			cgn_arena_fmt(out->arena, "VLLM_NIXL_SIDE_CHANNEL_PORT=%u",
				e->handoff_port > 0 ? e->handoff_port : SIDE_CHANNEL_PORT));
	}
	if (apart && mooncake)
		engine_env(out,
			cgn_arena_fmt(out->arena, "VLLM_MOONCAKE_BOOTSTRAP_PORT=%u",
				e->handoff_port > 0 ? e->handoff_port : MOONCAKE_PORT));
	if (role == ROLE_DECODE)
		return; /* Only NIXL or Mooncake's hand-off: it keeps nothing. */
	if (e->kv_offload == OFFLOAD_LMCACHE)
		lmcache_env(ask, out);
	if (e->kv_offload == OFFLOAD_KVBM)
		engine_env(out,
			cgn_arena_fmt(out->arena, "DYN_KVBM_CPU_CACHE_GB=%llu",
				(unsigned long long)(engine_offload_ram(e) >> 30)));
	if (mooncake && !apart)
		mooncake_env(ask, out);
}

/* ---- the command line ---- */

static const struct engine_size_flags vllm_size_flags = {.tp = "--tensor-parallel-size",
	.pp = "--pipeline-parallel-size",
	.dp = "--data-parallel-size",
	.context = "--max-model-len",
	.memory = "--gpu-memory-utilization"};

static CGN_RC vllm_launch(const struct engine_launch_ask *ask, struct engine_launch *out, struct cgn_err *err)
{
	const struct config_engine *e = ask->engine;
	CGN_TRY(engine_weights_check(e, err));
	engine_arg(out, "serve");
	engine_arg(out, engine_weights(e));
	engine_arg_pair(out, "--served-model-name", e->model);
	engine_arg_pair(out, "--host", ask->url->host);
	engine_arg_u64(out, "--port", ask->url->port);
	engine_arg_sizes(ask, &vllm_size_flags, out);
	if (ask->cfg->agent.role != ROLE_BOTH || e->kv_offload != OFFLOAD_NONE)
		transfer_arg(ask, out);
	CGN_TRY(engine_arg_events(ask, true, out, err));
	engine_arg(out, "--enable-prompt-tokens-details"); /* usage has the cached tokens */
	engine_arg_loras(e, "--lora-modules", out);
	vllm_env(ask, out);
	engine_arg_extra(out, e);
	return CGN_OK;
}

static const struct engine_resume vllm_resumes[] = {
	{.name = "vllm", .shape = ENGINE_RESUME_CONTINUE, .text_default = 16},
};

static const char *const vllm_changes[ENGINE_CHANGES] = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter",
	"/sleep?level=1", "/wake_up"};

static const char *const vllm_lacks[] = {"/v1/images/generations", "/v1/images/edits",
	"/v1/images/variations", "/v1/moderations", "/v1/audio/speech", NULL};

static const char *const vllm_natives[] = {"/rerank", "/v2/rerank", "/score", "/pooling", "/classify",
	"/v1/chat/completions/batch", NULL};

/* Read in the protocols of vLLM 0.32 and 0.33; older ones ignore the salt of /v1/messages and of pooling. */
static const char *const vllm_salts[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
	"/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/score", NULL};

/* Each is stacked with NIXL between the nodes, except mooncake. */
#define VLLM_OFFLOADS                                                                                    \
	(ENGINE_OFFLOAD(OFFLOAD_NIXL) | ENGINE_OFFLOAD(OFFLOAD_LMCACHE) | ENGINE_OFFLOAD(OFFLOAD_KVBM) | \
		ENGINE_OFFLOAD(OFFLOAD_FLEXKV) | ENGINE_OFFLOAD(OFFLOAD_MOONCAKE) |                      \
		ENGINE_OFFLOAD(OFFLOAD_NATIVE))

const struct engine_ops engine_vllm = {
	.kind = ENGINE_VLLM,
	.read_at = "vLLM 0.33 (its parser), 0.32 (asked, on a CPU)",
	.binary = "vllm",
	.offloads = VLLM_OFFLOADS,
	.offloads_apart = VLLM_OFFLOADS,
	.launch = vllm_launch,
	.ready_path = "/health",
	.check_every = 2 * CGN_SEC,
	.readiness = engine_readiness_plain,
	.sources = {{"/metrics", engine_read_vllm}},
	.lacks = vllm_lacks,
	.natives = vllm_natives,
	.salts = vllm_salts,
	.tokens = &engine_tokens_vllm,
	.resumes = vllm_resumes,
	.n_resumes = CGN_COUNT(vllm_resumes),
	.publishes = true,
	.changes = vllm_changes,
};
