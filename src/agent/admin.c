/* SPDX-License-Identifier: Apache-2.0 */
/* The admin port's /engines, and the program itself. */
#include "agent/agent.h"
#include "agent/run.h"
#include "agent/slotmgr.h"
#include "base/json/json.h"

static void put_load(struct json_out *o, const struct engine_load *l)
{
	json_key(o, "load");
	json_open(o, '{');
	json_key_u64(o, "running", l->running);
	json_key_u64(o, "waiting", l->waiting);
	json_key_f64(o, "kv_usage", l->kv_usage);
	json_key_u64(o, "slots", l->slots);
	json_key_u64(o, "kv_blocks_total", l->kv_blocks_total);
	json_key_u64(o, "kv_block_tokens", l->kv_block_tokens);
	json_close(o, '}');
}

static void put_engine(struct json_out *o, const struct engine *e)
{
	json_open(o, '{');
	json_key_z(o, "name", e->name);
	json_key_z(o, "kind", config_enum_text(e->ops->kind));
	json_key_z(o, "address", e->url.addr);
	json_key(o, "managed");
	json_put_bool(o, e->sup.cfg.managed);
	json_key_z(o, "state", supervise_state_name(e->sup.state));
	json_key(o, "ready");
	json_put_bool(o, engine_is_ready(e));
	json_key_z(o, "trouble", e->trouble);
	json_key_u64(o, "pid", e->proc != NULL ? (uint64_t)proc_pid(e->proc) : 0);
	json_key_u64(o, "restarts", e->sup.restarts);
	json_key_u64(o, "inflight", e->inflight);
	json_key_u64(o, "resident_blocks", residency_count(e->resident));
	json_key_z(o, "residency", e->residency_text);
	json_key(o, "kv_events");
	feed_put(e, o);
	json_key(o, "kept_slots");
	slotmgr_report(e, o);
	json_key(o, "models");
	json_open(o, '[');
	for (size_t i = 0; i < e->n_models; i++)
		json_put_z(o, e->models[i]);
	json_close(o, ']');
	put_load(o, &e->load);
	json_close(o, '}');
}

void agent_admin_engines(void *agent, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	struct json_out o = json_out_to(&r->body);
	(void)h;
	(void)body;
	CGN_LIVE(a, AGENT_TAG);
	json_open(&o, '{');
	json_key_z(&o, "node", a->node_id);
	json_key_z(&o, "address", a->address);
	json_key(&o, "draining");
	json_put_bool(&o, a->draining);
	json_key_u64(&o, "inflight", a->share.all.inflight);
	json_key_u64(&o, "requests_total", a->requests_total);
	json_key_u64(&o, "watchers", a->n_watchers);
	json_key(&o, "engines");
	json_open(&o, '[');
	for (size_t i = 0; i < a->n_engines; i++)
		put_engine(&o, &a->engines[i]);
	json_close(&o, ']');
	json_close(&o, '}');
}

bool agent_admin_ready(void *agent, struct cgn_buf *why)
{
	const struct agent *a = agent;
	CGN_LIVE(a, AGENT_TAG);
	if (agent_is_ready(a))
		return true;
	for (size_t i = 0; i < a->n_engines; i++) {
		const struct engine *e = &a->engines[i];
		cgn_buf_fmt(why, "%sengine %s is %s", i > 0 ? "; " : "", e->name,
			supervise_state_name(e->sup.state));
		if (e->trouble[0] != '\0')
			cgn_buf_fmt(why, " (%s)", e->trouble);
	}
	return false;
}
