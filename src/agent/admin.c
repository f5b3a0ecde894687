/* SPDX-License-Identifier: Apache-2.0 */
/* The admin port's /engines, and the program itself. */
#include "agent/agent.h"
#include "agent/run.h"
#include "base/json/json.h"

static void put_load(struct json_out *o, const struct engine_load *l)
{
	json_key(o, "load");
	json_open(o, '{');
	json_key(o, "running");
	json_put_u64(o, l->running);
	json_key(o, "waiting");
	json_put_u64(o, l->waiting);
	json_key(o, "kv_usage");
	json_put_f64(o, l->kv_usage);
	json_key(o, "slots");
	json_put_u64(o, l->slots);
	json_key(o, "kv_blocks_total");
	json_put_u64(o, l->kv_blocks_total);
	json_key(o, "kv_block_tokens");
	json_put_u64(o, l->kv_block_tokens);
	json_close(o, '}');
}

static void put_engine(struct json_out *o, const struct engine *e)
{
	json_open(o, '{');
	json_key(o, "name");
	json_put_z(o, e->name);
	json_key(o, "kind");
	json_put_z(o, config_enum_text(e->ops->kind));
	json_key(o, "address");
	json_put_z(o, e->url.addr);
	json_key(o, "managed");
	json_put_bool(o, e->sup.cfg.managed);
	json_key(o, "state");
	json_put_z(o, supervise_state_name(e->sup.state));
	json_key(o, "ready");
	json_put_bool(o, engine_is_ready(e));
	json_key(o, "trouble");
	json_put_z(o, e->trouble);
	json_key(o, "pid");
	json_put_u64(o, e->proc != NULL ? (uint64_t)proc_pid(e->proc) : 0);
	json_key(o, "restarts");
	json_put_u64(o, e->sup.restarts);
	json_key(o, "inflight");
	json_put_u64(o, e->inflight);
	json_key(o, "resident_blocks");
	json_put_u64(o, residency_count(e->resident));
	json_key(o, "residency");
	json_put_z(o, e->residency_text);
	json_key(o, "kv_events");
	feed_put(e, o);
	json_key(o, "models");
	json_open(o, '[');
	for (size_t i = 0; i < e->n_models; i++)
		json_put_z(o, e->models[i]);
	json_close(o, ']');
	put_load(o, &e->load);
	json_close(o, '}');
}

void agent_admin_engines(
	void *agent, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	struct json_out o = json_out_to(&r->body);
	(void)h;
	(void)body;
	CGN_LIVE(a, AGENT_TAG);
	json_open(&o, '{');
	json_key(&o, "node");
	json_put_z(&o, a->node_id);
	json_key(&o, "address");
	json_put_z(&o, a->address);
	json_key(&o, "draining");
	json_put_bool(&o, a->draining);
	json_key(&o, "inflight");
	json_put_u64(&o, a->share.all.inflight);
	json_key(&o, "requests_total");
	json_put_u64(&o, a->requests_total);
	json_key(&o, "watchers");
	json_put_u64(&o, a->n_watchers);
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
