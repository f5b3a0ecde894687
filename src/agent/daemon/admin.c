/* SPDX-License-Identifier: Apache-2.0 */
/* admin: /engines, /gpus, /clocks, /power and /readyz of the admin port. */
#include "agent/daemon/agent.h"

bool agent_engines_fill(void *agent, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	Cognitora__V1__Engines *to = message;
	(void)r;
	CGN_LIVE(a, AGENT_TAG);
	to->node = pb_text(a->node_id);
	to->address = pb_text(a->address);
	to->draining = a->drain.on;
	to->inflight = a->relays.share.all.inflight;
	to->requests_total = a->relays.requests_total;
	to->watchers = a->watch.n_watchers;
	for (size_t i = 0; i < a->n_engines; i++)
		engine_report_fill(&a->engines[i], t, PB_ADD(t, to, engines, engine_report));
	return true;
}

bool agent_gpus_fill(void *agent, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	(void)r;
	CGN_LIVE(a, AGENT_TAG);
	gpus_fill(&a->gpus, t, message);
	return true;
}

bool agent_clocks_fill(void *agent, struct pb_tree *t, void *message, struct svc_admin_reply *r)
{
	const struct agent *a = agent;
	(void)r;
	CGN_LIVE(a, AGENT_TAG);
	node_clocks_fill(&a->clocks, &a->gpus, t, message);
	return true;
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
