/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "router/control/scaler/scaler_priv.h"
#include "router/metrics.h"

void scaler_event_note(struct scaler *s, struct scaler_group *g, const struct scaler_event *e)
{
	const struct autoscale_decision *d = &e->decision;
	bool carried_out = !e->shadow && e->done;
	if (g->told && g->told_action == d->action && g->told_want == d->want && !carried_out)
		return;
	g->told = true;
	g->told_action = d->action;
	g->told_want = d->want;
	s->events[s->n_events++ % SCALER_EVENTS] = *e;
	metric_add(METRIC_OF(s->r->shared.telemetry, AUTOSCALER_DECISIONS, e->model,
			   scaler_role_text(e->role), autoscale_action_text(d->action)),
		1);
	cgn_log(INFO, "router.scale", F_STR("model", e->model), F_STR("role", scaler_role_text(e->role)),
		F_STR("action", autoscale_action_text(d->action)), F_U64("by", d->by), F_U64("want", d->want),
		F_U64("have", e->have), F_STR("nodes", e->nodes), F_STR("why", d->why),
		F_STR("then", e->then));
}

char *scaler_event_then(struct scaler *s, uint64_t event)
{
	return event < s->n_events && s->n_events - event <= SCALER_EVENTS
		? s->events[event % SCALER_EVENTS].then
		: NULL;
}

/* ---- /autoscaler ---- */

static void event_put(struct json_out *j, const struct scaler_event *e)
{
	json_open(j, '{');
	json_key_u64(j, "at_unix_ms", e->at_ms);
	json_key_z(j, "model", e->model);
	json_key_z(j, "role", scaler_role_text(e->role));
	json_key_z(j, "action", autoscale_action_text(e->decision.action));
	json_key_u64(j, "by", e->decision.by);
	json_key_u64(j, "have", e->have);
	json_key_u64(j, "want", e->decision.want);
	json_key_z(j, "nodes", e->nodes);
	json_key_z(j, "why", e->decision.why);
	json_key_z(j, "then", e->then);
	json_close(j, '}');
}

static void group_put(struct json_out *j, const struct scaler *s, const struct scaler_group *g)
{
	json_open(j, '{');
	json_key_z(j, "model", g->shown);
	json_key_z(j, "role", scaler_role_text(g->role));
	json_key_u64(j, "ready", g->signals.ready);
	json_key_u64(j, "coming", g->signals.coming);
	json_key_u64(j, "want", g->decision.want);
	json_key_f64(j, "load", g->state.level);
	json_key_f64(j, "forecast", g->decision.forecast);
	json_key_f64(j, "expected", g->signals.expected);
	json_key_u64(j, "inflight", g->signals.inflight);
	json_key_u64(j, "waiting", g->signals.waiting);
	json_key_f64(j, "ttft_p90_ms", (double)g->signals.ttft * 1e-6);
	json_key_f64(j, "itl_p90_ms", (double)g->signals.itl * 1e-6);
	json_key_f64(j, "wake_seconds", (double)scaler_wake_time(s, g) * 1e-9);
	json_key_z(j, "why", g->decision.why);
	json_close(j, '}');
}

void router_scaler_json(const struct scaler *s, struct json_out *j)
{
	const bool enabled = s != NULL && s->r->cfg->router.autoscaler.enabled;
	json_open(j, '{');
	json_key_z(j, "mode", enabled ? config_enum_text(s->r->cfg->router.autoscaler.mode) : "off");
	json_key_z(j, "target", enabled ? config_enum_text(s->r->cfg->router.autoscaler.target) : "");
	json_key_bool(j, "leads", enabled && s->leader != NULL && state_leader_is(s->leader));
	json_key_open(j, "models", '[');
	for (size_t i = 0; enabled && i < SCALER_GROUPS; i++)
		if (s->groups[i].model[0] != '\0')
			group_put(j, s, &s->groups[i]);
	json_close(j, ']');
	json_key_open(j, "decisions", '[');
	for (uint64_t k = s != NULL ? s->n_events : 0, n = 0; k > 0 && n < SCALER_EVENTS; k--, n++)
		event_put(j, &s->events[(k - 1) % SCALER_EVENTS]);
	json_close(j, ']');
	json_close(j, '}');
}
