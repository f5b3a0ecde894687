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

static void event_fill(struct pb_tree *t, const struct scaler_event *e, Cognitora__V1__ScaleResponse *to)
{
	Cognitora__V1__ScaleDecision *d = PB_ADD(t, to, decisions, scale_decision);
	d->at_unix_ms = e->at_ms;
	d->model = pb_text(e->model);
	d->role = pb_text(scaler_role_text(e->role));
	d->action = pb_text(autoscale_action_text(e->decision.action));
	d->by = e->decision.by;
	d->have = e->have;
	d->want = e->decision.want;
	d->nodes = pb_text(e->nodes);
	d->why = pb_text(e->decision.why);
	d->then = pb_text(e->then);
}

static void group_fill(struct pb_tree *t, const struct scaler *s, const struct scaler_group *g,
	Cognitora__V1__ScaleResponse *to)
{
	Cognitora__V1__ScaleModel *m = PB_ADD(t, to, models, scale_model);
	m->model = pb_text(g->shown);
	m->role = pb_text(scaler_role_text(g->role));
	m->ready = g->signals.ready;
	m->coming = g->signals.coming;
	m->want = g->decision.want;
	m->load = g->state.level;
	m->forecast = g->decision.forecast;
	m->expected = g->signals.expected;
	m->inflight = g->signals.inflight;
	m->waiting = g->signals.waiting;
	m->ttft_p90_ms = (double)g->signals.ttft * 1e-6;
	m->itl_p90_ms = (double)g->signals.itl * 1e-6;
	m->wake_seconds = (double)scaler_wake_time(s, g) * 1e-9;
	m->why = pb_text(g->decision.why);
}

void router_scaler_fill(const struct scaler *s, struct pb_tree *t, Cognitora__V1__ScaleResponse *to)
{
	const bool enabled = s != NULL && s->r->cfg->router.autoscaler.enabled;
	to->mode = pb_text(enabled ? config_enum_text(s->r->cfg->router.autoscaler.mode) : "off");
	to->target = pb_text(enabled ? config_enum_text(s->r->cfg->router.autoscaler.target) : "");
	to->leads = enabled && s->leader != NULL && state_leader_is(s->leader);
	for (size_t i = 0; enabled && i < SCALER_GROUPS; i++)
		if (s->groups[i].model[0] != '\0')
			group_fill(t, s, &s->groups[i], to);
	for (uint64_t k = s != NULL ? s->n_events : 0, n = 0; k > 0 && n < SCALER_EVENTS; k--, n++)
		event_fill(t, &s->events[(k - 1) % SCALER_EVENTS], to);
}
