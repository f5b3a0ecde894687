/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/control/scaler/scaler_priv.h"
#include "router/metrics.h"
#include "router/request/admission/admission.h"

#define TICK        CGN_SEC
#define EXPECT_FOR  (3 * TICK)
#define FORGET_TIME (3600 * CGN_SEC) /* A group without a node is forgotten after this time. */

/* ---- groups ---- */

struct scaler_group *scaler_group_find(struct scaler *s, const char *model, int role)
{
	struct scaler_group *spare = NULL;
	for (size_t i = 0; i < SCALER_GROUPS; i++) {
		struct scaler_group *g = &s->groups[i];
		if (g->model[0] == '\0')
			spare = spare != NULL ? spare : g;
		else if (g->role == role && strcmp(g->model, model) == 0)
			return g;
	}
	if (spare == NULL || strlen(model) > WANTED_MAX_NAME)
		return NULL;
	struct cgn_str shown = gw_rules_name_of(s->r->published.rules, cgn_str_of(model));
	*spare = (struct scaler_group){.role = role};
	(void)cgn_str_copyz(spare->model, sizeof spare->model, cgn_str_of(model));
	(void)cgn_str_copyz(spare->shown, sizeof spare->shown, shown);
	return spare;
}

/* Find the groups of all nodes; an engine lists its own model first. */
static void groups_find(struct scaler *s, cgn_nsec now)
{
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *n = s->r->members.cluster->by_slot[i];
		for (size_t e = 0; n != NULL && n->heard && e < n->info->n_engines; e++) {
			const Cognitora__V1__Engine *engine = n->info->engines[e];
			struct scaler_group *g = engine->n_models > 0
				? scaler_group_find(s, engine->models[0], (int)n->info->role)
				: NULL;
			if (g != NULL)
				g->seen = now;
		}
	}
	for (size_t i = 0; i < SCALER_GROUPS; i++)
		if (s->groups[i].model[0] != '\0' && s->groups[i].job.state == SCALER_JOB_NONE &&
			cgn_since(now, s->groups[i].seen) > FORGET_TIME)
			s->groups[i] = (struct scaler_group){.role = 0};
}

struct autoscale_cfg scaler_group_cfg(const struct scaler *s, const struct scaler_group *g, uint32_t all)
{
	const struct config *cfg = s->r->cfg;
	const struct config_model *m = config_model_find(cfg, g->shown);
	struct config_replicas l = {cfg->router.autoscaler.min_replicas, cfg->router.autoscaler.max_replicas};
	if (m != NULL && m->replicas != NULL)
		(void)config_replicas_read(cgn_str_of(m->replicas), &l); /* Checked with the configuration. */
	if (scaler_has_target(s))
		l.least = l.least > 0 ? l.least : 1; /* A model without a node is unknown. */
	else
		l.most = l.most > 0 && l.most < all ? l.most : all;
	return (struct autoscale_cfg){.least = l.least < l.most ? l.least : l.most,
		.most = l.most,
		.target = cfg->router.autoscaler.target_load,
		.ttft = cfg->router.autoscaler.ttft,
		.itl = cfg->router.autoscaler.itl,
		.up_window = cfg->router.autoscaler.up_window,
		.down_window = cfg->router.autoscaler.down_window,
		.idle = cfg->router.autoscaler.idle,
		.up_step = cfg->router.autoscaler.up_step,
		.down_step = cfg->router.autoscaler.down_step};
}

/* ---- decisions ---- */

static void group_report(const struct scaler *s, const struct scaler_group *g)
{
	struct telemetry *t = s->r->shared.telemetry;
	const char *role = scaler_role_text(g->role);
	metric_set(METRIC_OF(t, AUTOSCALER_REPLICAS, g->shown, role, "ready"), g->signals.ready);
	metric_set(METRIC_OF(t, AUTOSCALER_REPLICAS, g->shown, role, "coming"), g->signals.coming);
	metric_set(METRIC_OF(t, AUTOSCALER_REPLICAS, g->shown, role, "wanted"), g->decision.want);
	metric_set(METRIC_OF(t, AUTOSCALER_LOAD, g->shown, role), g->state.level);
	metric_set(METRIC_OF(t, AUTOSCALER_FORECAST, g->shown, role), g->decision.forecast);
	metric_set(METRIC_OF(t, AUTOSCALER_WAKE, g->shown, role),
		(double)scaler_wake_time(s, g) / (double)CGN_SEC);
}

/* Note whether a request wakes a node of the group. The view tells it. */
static void wakes_set(struct scaler *s, struct scaler_group *g, bool wakes)
{
	if (g->wakes != wakes)
		cgn_loop_defer(s->r->loop, &s->r->published.hook);
	g->wakes = wakes;
}

/* True if a request for |model|, the router's name, wakes a node: one rests, or one comes. |s| may be NULL. */
static bool scaler_wakes(const struct scaler *s, struct cgn_str model)
{
	for (size_t i = 0; s != NULL && i < SCALER_GROUPS; i++)
		if (s->groups[i].wakes && cgn_str_is(model, s->groups[i].shown))
			return true;
	return false;
}

/* Where a replica comes or can be woken, requests wait for it while none is there. */
static void wake_expect(struct scaler *s, struct scaler_group *g, const struct scaler_nodes *nodes,
	cgn_nsec now)
{
	bool rests = nodes->n_resting > 0 || g->decision.action == AUTOSCALE_DOWN;
	bool wakes = nodes->answers && s->r->cfg->router.autoscaler.mode == CONFIG_SCALE_ON &&
		(nodes->first_at > 0 || rests);
	wakes_set(s, g, wakes);
	if (!wakes)
		return;
	cgn_nsec at = nodes->first_at > 0 ? nodes->first_at : now + scaler_wake_time(s, g);
	gw_admission_expect(s->r->shared.admission, cgn_str_of(g->shown), at, now + EXPECT_FOR);
}

/* Another router that leads cannot see what waits here for a model without replicas: any router wakes the first one. */
static bool group_decides(const struct scaler *s, const struct scaler_group *g)
{
	return state_leader_is(s->leader) ||
		(g->signals.waiting > 0 && g->signals.ready + g->signals.coming == 0);
}

static void group_step(struct scaler *s, struct scaler_group *g, cgn_nsec now)
{
	struct scaler_nodes nodes;
	scaler_group_look(s, g, now, &nodes);
	scaler_season_note(s, g);
	g->decision.action = AUTOSCALE_STAY;
	bool may = scaler_job_step(g, now) && now >= g->resumes_at && !s->pending;
	if (nodes.all > 0 && may && group_decides(s, g)) {
		const struct autoscale_cfg cfg = scaler_group_cfg(s, g, nodes.all);
		autoscale_step(&g->state, &cfg, &g->signals, now, &g->decision);
		group_report(s, g);
	}
	wake_expect(s, g, &nodes, now);
	if (g->decision.action == AUTOSCALE_STAY || g->job.state == SCALER_JOB_DRAINS) {
		if (g->decision.action == AUTOSCALE_UP)
			scaler_job_undo(g);
		return;
	}
	struct scaler_event e = {.at_ms = cgn_clock_wall_ms(),
		.role = g->role,
		.decision = g->decision,
		.have = g->signals.ready + g->signals.coming};
	(void)cgn_str_copyz(e.model, sizeof e.model, cgn_str_of(g->shown));
	scaler_carry_out(s, g, &nodes, now, &e);
	scaler_event_note(s, g, &e);
}

/* Hold the leader's lease, or stand by for it, while the autoscaler is on. */
static bool leader_follow(struct scaler *s)
{
	struct cgn_err err;
	if (!s->r->cfg->router.autoscaler.enabled)
		state_leader_close(&s->leader);
	else if (s->leader == NULL &&
		!cgn_ok(state_leader_open(s->r->loop, s->r->cfg, s->r->id, &s->leader, &err)))
		cgn_log_limited(ERROR, "router.scaler_leaderless", F_STR("why", err.msg),
			F_STR("then", "nothing is scaled; it is tried again"));
	return s->leader != NULL;
}

static void on_scaler_tick(struct cgn_timer *t)
{
	struct scaler *s = CGN_CONTAINER(t, struct scaler, timer);
	cgn_nsec now = cgn_loop_now(s->r->loop);
	CGN_LIVE(s, SCALER_TAG);
	cgn_timer_set(t, TICK);
	scaler_cordons_step(s);
	bool follows = leader_follow(s);
	for (size_t i = 0; !follows && i < SCALER_GROUPS; i++) {
		scaler_job_undo(&s->groups[i]);
		wakes_set(s, &s->groups[i], false);
	}
	if (!follows || s->r->members.knowledge != STATE_HEARD)
		return;
	groups_find(s, now);
	for (size_t i = 0; i < SCALER_GROUPS; i++)
		if (s->groups[i].model[0] != '\0')
			group_step(s, &s->groups[i], now);
	scaler_seasons_write(s);
	scaler_leavers_step(s, now);
	scaler_nodes_note(s, now);
}

struct scaler *router_scaler_open(struct router *r)
{
	struct scaler *s = CGN_NEW(struct scaler);
	s->tag = SCALER_TAG;
	s->r = r;
	cgn_timer_init(&s->timer, r->loop, on_scaler_tick);
	cgn_timer_set(&s->timer, TICK);
	r->model_wakes = scaler_wakes;
	return s;
}

void router_scaler_reload(struct scaler *s)
{
	for (size_t i = 0; s != NULL && i < SCALER_GROUPS; i++)
		s->groups[i].resumes_at = 0;
}

void router_scaler_close(struct scaler **take)
{
	struct scaler *s = CGN_TAKE_LIVE(take, SCALER_TAG);
	if (s == NULL)
		return;
	cgn_timer_cancel(&s->timer);
	scaler_jobs_close(s);
	scaler_seasons_close(s);
	scaler_cordons_close(s);
	state_leader_close(&s->leader);
	s->tag = 0;
	free(s);
}
