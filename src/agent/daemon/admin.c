/* SPDX-License-Identifier: Apache-2.0 */
/* admin: /engines, /gpus, /clocks, /power and /readyz of the admin port. */
#include "agent/daemon/agent.h"
#include "base/json/json.h"

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
	json_key_bool(&o, "draining", a->draining);
	json_key_u64(&o, "inflight", a->relays.share.all.inflight);
	json_key_u64(&o, "requests_total", a->relays.requests_total);
	json_key_u64(&o, "watchers", a->watch.n_watchers);
	json_key_open(&o, "engines", '[');
	for (size_t i = 0; i < a->n_engines; i++)
		engine_report(&a->engines[i], &o);
	json_close(&o, ']');
	json_close(&o, '}');
}

void agent_admin_gpus(void *agent, const struct http_head *h, struct cgn_str body, struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	struct json_out o = json_out_to(&r->body);
	(void)h;
	(void)body;
	CGN_LIVE(a, AGENT_TAG);
	gpus_report(&a->gpus, &o);
}

void agent_admin_clocks(void *agent, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	struct json_out o = json_out_to(&r->body);
	(void)h;
	(void)body;
	CGN_LIVE(a, AGENT_TAG);
	node_clocks_report(&a->clocks, &a->gpus, &o);
}

bool agent_power_fill(void *agent, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	(void)r;
	CGN_LIVE(a, AGENT_TAG);
	node_power_fill(a->node_power, t, message);
	return true;
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
			supervise_state_name(e->process.sup.state));
		if (e->health.trouble[0] != '\0')
			cgn_buf_fmt(why, " (%s)", e->health.trouble);
	}
	return false;
}
