/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/request/handoff.h"

/* Copy a string member; false when it is missing, empty or too long. */
static bool text_take(struct json_val object, const char *key, char *out, size_t size)
{
	struct json_val v;
	if (!json_get(object, key, &v) || v.type != JSON_STRING || v.raw.n <= 2)
		return false;
	return cgn_str_copyz(out, size, (struct cgn_str){v.raw.p + 1, v.raw.n - 2});
}

static bool port_take(struct json_val v, unsigned *out)
{
	uint64_t n = 0;
	bool fits = json_u64(v, &n) && n > 0 && n <= UINT16_MAX;
	*out = (unsigned)n;
	return fits;
}

static bool member_port(struct json_val object, const char *key, unsigned *out)
{
	struct json_val v;
	return json_get(object, key, &v) && port_take(v, out);
}

/* Split "host:port", or "[v6]:port". */
static bool address_split(struct cgn_str s, struct sim_handoff_ask *out)
{
	uint64_t port = 0;
	size_t at = s.n;
	while (at > 0 && s.p[at - 1] != ':')
		at--;
	if (at < 2 || !cgn_str_u64((struct cgn_str){s.p + at, s.n - at}, &port) || port == 0 ||
		port > UINT16_MAX)
		return false;
	struct cgn_str host = {s.p, at - 1};
	if (host.p[0] == '[' && host.n > 2)
		host = (struct cgn_str){host.p + 1, host.n - 2};
	out->port = (unsigned)port;
	return cgn_str_copyz(out->host, sizeof out->host, host);
}

/* ---- vLLM ---- */

static bool nixl_read(struct json_val p, struct sim_handoff_ask *out)
{
	bool gives = json_get_bool(p, "do_remote_decode", false),
	     takes = json_get_bool(p, "do_remote_prefill", false);
	if (gives == takes)
		return false;
	out->what = gives ? SIM_HANDOFF_GIVES : SIM_HANDOFF_TAKES;
	return gives ||
		(text_take(p, "remote_request_id", out->id, sizeof out->id) &&
			text_take(p, "remote_engine_id", out->engine, sizeof out->engine) &&
			text_take(p, "remote_host", out->host, sizeof out->host) &&
			member_port(p, "remote_port", &out->port));
}

static bool mooncake_read(struct json_val p, struct sim_handoff_ask *out)
{
	char at[HANDOFF_HOST_MAX + 32];
	bool gives = json_get_bool(p, "do_remote_decode", false),
	     takes = json_get_bool(p, "do_remote_prefill", false);
	out->what = gives ? SIM_HANDOFF_GIVES : SIM_HANDOFF_TAKES;
	if (gives == takes || !text_take(p, "transfer_id", out->id, sizeof out->id))
		return false;
	return gives ||
		(text_take(p, "remote_engine_id", out->engine, sizeof out->engine) &&
			text_take(p, "remote_bootstrap_addr", at, sizeof at) &&
			strncmp(at, "http://", 7) == 0 && address_split(cgn_str_of(at + 7), out));
}

static bool p2p_read(struct json_val p, struct sim_handoff_ask *out)
{
	struct json_val end;
	bool gives = json_get(p, "remote_decoder", &end),
	     takes = !gives && json_get(p, "remote_prefiller", &end);
	out->what = gives ? SIM_HANDOFF_GIVES : SIM_HANDOFF_TAKES;
	if ((!gives && !takes) || !text_take(end, "kv_request_id", out->id, sizeof out->id))
		return false;
	return gives ||
		(text_take(end, "remote_host", out->host, sizeof out->host) &&
			member_port(end, "remote_port", &out->port));
}

static bool vllm_read(const struct sim_cfg *cfg, const struct sim_fields *root, struct sim_handoff_ask *out,
	struct sim_refusal *no)
{
	struct json_val p;
	if (!sim_field(root, SIM_KEY_KV_TRANSFER, &p) || p.type == JSON_NULL)
		return true;
	bool fits = cfg->handoff.kind == HANDOFF_NIXL ? nixl_read(p, out)
		: cfg->handoff.kind == HANDOFF_P2P    ? p2p_read(p, out)
						      : mooncake_read(p, out);
	return fits ||
		sim_refuse(no, 400, "invalid_value", "kv_transfer_params",
			"kv_transfer_params are not those of %s", handoff_ops_of(cfg->handoff.kind)->name);
}

/* ---- SGLang ---- */

/* Return the first element of a list, as batches have it; another value as it is. */
static struct json_val first_of(struct json_val v)
{
	struct json_iter it;
	struct json_val elem;
	if (v.type != JSON_ARRAY)
		return v;
	it = json_iter_of(v);
	return json_next_elem(&it, &elem) ? elem : v;
}

static bool sglang_read(const struct sim_cfg *cfg, const struct sim_fields *root, struct sim_handoff_ask *out,
	struct sim_refusal *no)
{
	struct json_val room, host, port, n;
	uint64_t number = 0, answers = 0;
	if (cfg->handoff.role == SIM_ROLE_BOTH)
		return true;
	if (!sim_field(root, SIM_KEY_BOOTSTRAP_ROOM, &room) || !json_u64(first_of(room), &number))
		return sim_refuse(no, 400, "missing", "bootstrap_room",
			"a disaggregated request needs a bootstrap_room");
	if (sim_field(root, SIM_KEY_N, &n) && json_u64(n, &answers) && answers > 1)
		return sim_refuse(no, 400, "invalid_value", "n",
			"SGLang would wait for ever: all answers have the same bootstrap_room");
	(void)snprintf(out->id, sizeof out->id, "%llu", (unsigned long long)number);
	out->what = cfg->handoff.role == SIM_ROLE_PREFILL ? SIM_HANDOFF_GIVES : SIM_HANDOFF_TAKES;
	if (!sim_field(root, SIM_KEY_BOOTSTRAP_HOST, &host) ||
		!sim_field(root, SIM_KEY_BOOTSTRAP_PORT, &port) || !port_take(first_of(port), &out->port))
		return sim_refuse(no, 400, "missing", "bootstrap_host",
			"a disaggregated request needs bootstrap_host and bootstrap_port");
	host = first_of(host);
	return (host.type == JSON_STRING && host.raw.n > 2 &&
		       cgn_str_copyz(out->host, sizeof out->host,
			       (struct cgn_str){host.raw.p + 1, host.raw.n - 2})) ||
		sim_refuse(no, 400, "invalid_value", "bootstrap_host", "bootstrap_host is not a host");
}

/* ---- TensorRT-LLM ---- */

static bool trtllm_read(const struct sim_fields *root, struct sim_handoff_ask *out, struct sim_refusal *no)
{
	struct json_val p, id;
	char type[32], state[HANDOFF_HOST_MAX + HANDOFF_ENGINE_MAX + 32];
	uint64_t number = 0;
	if (!sim_field(root, SIM_KEY_DISAGGREGATED, &p) || p.type == JSON_NULL)
		return true;
	bool known = text_take(p, "request_type", type, sizeof type),
	     gives = known && strcmp(type, "context_only") == 0,
	     takes = known && strcmp(type, "generation_only") == 0;
	out->what = gives ? SIM_HANDOFF_GIVES : SIM_HANDOFF_TAKES;
	bool fits = (gives || takes) && json_get(p, gives ? "disagg_request_id" : "ctx_request_id", &id) &&
		json_u64(id, &number);
	(void)snprintf(out->id, sizeof out->id, "%llu", (unsigned long long)number);
	if (fits && takes) {
		fits = text_take(p, "encoded_opaque_state", state, sizeof state);
		struct cgn_str rest = cgn_str_of(fits ? state : ""), at = cgn_str_split(&rest, '/');
		fits = fits && address_split(at, out) && cgn_str_copyz(out->engine, sizeof out->engine, rest);
	}
	return fits ||
		sim_refuse(no, 400, "invalid_value", "disaggregated_params",
			"disaggregated_params need a request_type, and ids and state of its context request");
}

bool sim_handoff_ask_read(const struct sim_cfg *cfg, const struct sim_fields *root,
	struct sim_handoff_ask *out, struct sim_refusal *no)
{
	*out = (struct sim_handoff_ask){.what = SIM_HANDOFF_NOTHING};
	if (cfg->handoff.kind == HANDOFF_NONE)
		return true;
	if (cfg->handoff.kind == HANDOFF_SGLANG)
		return sglang_read(cfg, root, out, no);
	return cfg->handoff.kind == HANDOFF_TRTLLM ? trtllm_read(root, out, no)
						   : vllm_read(cfg, root, out, no);
}

void sim_handoff_params_put(const struct sim_cfg *cfg, const struct sim_handoff_ask *ask,
	const struct sim_handoff_self *self, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	if (cfg->handoff.kind == HANDOFF_TRTLLM) {
		cgn_buf_fmt(out,
			"{\"request_type\":\"context_only\",\"first_gen_tokens\":[1],\"ctx_request_id\":%s,\"encoded_opaque_state\":\"%s:%u/%s\"}",
			ask->id, self->host, self->port, self->engine);
		return;
	}
	if (cfg->handoff.kind != HANDOFF_NIXL)
		return;
	json_open(&o, '{');
	json_key_bool(&o, "do_remote_prefill", true);
	json_key_bool(&o, "do_remote_decode", false);
	json_key_open(&o, "remote_block_ids", '[');
	json_open(&o, '[');
	for (uint32_t i = 0; i < self->blocks; i++)
		json_put_u64(&o, i);
	json_close(&o, ']');
	json_close(&o, ']');
	json_key_z(&o, "remote_engine_id", self->engine);
	json_key_z(&o, "remote_request_id", ask->id);
	json_key_z(&o, "remote_host", self->host);
	json_key_u64(&o, "remote_port", self->port);
	json_key_u64(&o, "tp_size", 1);
	json_close(&o, '}');
}
