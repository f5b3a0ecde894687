/* SPDX-License-Identifier: Apache-2.0 */
/* target: orders to a program or a webhook that add and remove nodes. Nodes that are to go are cordoned first, and the
 * order follows when their last request has ended. */
#include <stdarg.h>

#include "base/crypto/crypto.h"
#include "base/log/log.h"
#include "router/control/scaler/scaler_priv.h"
#include "router/metrics.h"

#define QUIET_TIME \
	(3 * CGN_SEC) /* Nodes are without requests for so long before they are removed: other routers tell theirs late. */
#define FAILED_PAUSE (60 * CGN_SEC)  /* After an order that failed, the group decides nothing. */
#define LEAVE_MOST   (300 * CGN_SEC) /* A removed node that is still there takes requests again. */
#define WAKES_MOST \
	3 /* A replica that is not there after so many times the usual and a minute does not come. */
#define BACKOFF_LAST (300 * CGN_SEC)

bool scaler_has_target(const struct scaler *s)
{
	return s->r->cfg->router.autoscaler.target != CONFIG_SCALE_AGENTS;
}

static const char *target_text(const struct scaler *s)
{
	return config_enum_text(s->r->cfg->router.autoscaler.target);
}

__attribute__((format(printf, 2, 3))) static void job_tell(struct scaler_job *j, const char *fmt, ...)
{
	char *then = scaler_event_then(j->s, j->event);
	va_list ap;
	va_start(ap, fmt);
	if (then != NULL)
		(void)vsnprintf(then, SCALER_THEN, fmt, ap);
	va_end(ap);
}

/* ---- cordons ---- */

static const struct cluster_node *node_find(const struct scaler *s, const char *id)
{
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *n = s->r->members.cluster->by_slot[i];
		if (n != NULL && strcmp(n->info->id, id) == 0)
			return n;
	}
	return NULL;
}

static void victims_cordon(struct scaler_job *j, bool on)
{
	for (size_t i = 0; i < j->order.n_nodes; i++)
		scaler_cordon(j->s, j->victim[i], on);
}

/* Return true when the nodes have taken no request for QUIET_TIME. */
static bool victims_are_quiet(struct scaler_job *j, cgn_nsec now)
{
	bool quiet = true;
	for (size_t i = 0; i < j->order.n_nodes; i++) {
		const struct cluster_node *n = node_find(j->s, j->victim[i]);
		quiet = quiet &&
			(n == NULL ||
				(n->cordoned &&
					node_stats_requests(&j->s->r->shared.choice.stats[n->slot]) == 0));
	}
	j->quiet_at = !quiet ? 0 : j->quiet_at > 0 ? j->quiet_at : now;
	return quiet && cgn_since(now, j->quiet_at) >= QUIET_TIME;
}

/* ---- nodes that a target has removed ---- */

static void leaver_add(struct scaler *s, const char *id, cgn_nsec now)
{
	for (size_t i = 0; i < SCALER_LEAVING; i++)
		if (s->leaving[i].node[0] == '\0') {
			const struct cluster_node *n = node_find(s, id);
			(void)cgn_str_copyz(s->leaving[i].node, sizeof s->leaving[i].node, cgn_str_of(id));
			s->leaving[i].started = n != NULL ? n->info->started_unix_ms : 0;
			s->leaving[i].until = now + LEAVE_MOST;
			return;
		}
	scaler_cordon(s, id, false); /* No room: the cordon would stay for ever. */
}

void scaler_leavers_step(struct scaler *s, cgn_nsec now)
{
	for (size_t i = 0; i < SCALER_LEAVING; i++) {
		struct scaler_leaver *l = &s->leaving[i];
		const struct cluster_node *n = l->node[0] != '\0' ? node_find(s, l->node) : NULL;
		bool there = n != NULL && n->info->started_unix_ms == l->started;
		if (l->node[0] == '\0' || (there && now < l->until))
			continue;
		if (there)
			cgn_log(WARN, "router.scale_not_removed", F_STR("node", l->node),
				F_STR("target", target_text(s)),
				F_STR("why",
					"the target said that it removed the node, which is still there"),
				F_STR("then", "it takes requests again"));
		scaler_cordon(s, l->node, false);
		l->node[0] = '\0';
	}
}

/* ---- attempts ---- */

static void attempt_count(const struct scaler_job *j, const char *outcome)
{
	metric_add(METRIC_OF(j->s->r->shared.telemetry, AUTOSCALER_CALLS, target_text(j->s), outcome), 1);
}

static void job_end(struct scaler_job *j)
{
	cgn_timer_cancel(&j->timer);
	j->state = SCALER_JOB_NONE;
}

static void job_done(struct scaler_job *j, const char *why, cgn_nsec now)
{
	attempt_count(j, "done");
	job_tell(j, "%s", why);
	cgn_log(INFO, "router.scale_done", F_STR("model", j->g->shown), F_STR("id", j->id),
		F_STR("why", why));
	for (size_t i = 0; i < j->order.n_nodes; i++)
		leaver_add(j->s, j->victim[i], now);
	j->g->asked = j->order.up ? j->order.replicas : 0;
	j->g->asked_at = now;
	job_end(j);
}

static void job_fail(struct scaler_job *j, const char *why, cgn_nsec now)
{
	attempt_count(j, "failed");
	job_tell(j, "failed after %u attempt%s: %s%s", j->attempts, j->attempts == 1 ? "" : "s", why,
		j->order.n_nodes > 0 ? "; the nodes take requests again" : "");
	cgn_log(WARN, "router.scale_failed", F_STR("model", j->g->shown), F_STR("id", j->id),
		F_STR("target", target_text(j->s)), F_U64("attempts", j->attempts), F_STR("why", why),
		F_STR("then", "decided again after a minute, or when the configuration is read again"));
	victims_cordon(j, false);
	j->g->resumes_at = now + FAILED_PAUSE;
	job_end(j);
}

static void job_again(struct scaler_job *j, const char *why)
{
	cgn_nsec pause = cgn_backoff_next(&j->backoff);
	uint32_t most = j->s->r->cfg->router.autoscaler.target_attempts;
	attempt_count(j, "again");
	job_tell(j, "attempt %u of %u failed: %s; the next one follows in %.1f s", j->attempts, most, why,
		(double)pause / (double)CGN_SEC);
	cgn_log_limited(WARN, "router.scale_attempt_failed", F_STR("model", j->g->shown), F_STR("id", j->id),
		F_U64("attempt", j->attempts), F_STR("why", why), F_DUR("next_in", pause));
	j->state = SCALER_JOB_PAUSES;
	cgn_timer_set(&j->timer, pause);
}

static void attempt_ended(struct scaler_job *j, enum autoscale_outcome outcome, const char *why)
{
	cgn_nsec now = cgn_loop_now(j->s->r->loop);
	if (outcome == AUTOSCALE_DONE)
		job_done(j, why, now);
	else if (outcome == AUTOSCALE_REFUSED ||
		j->attempts >= j->s->r->cfg->router.autoscaler.target_attempts)
		job_fail(j, why, now);
	else
		job_again(j, why);
}

static void on_attempt_done(void *user, enum autoscale_outcome outcome, const char *why)
{
	struct scaler_job *j = user;
	CGN_LIVE(j->s, SCALER_TAG);
	j->call = NULL;
	attempt_ended(j, outcome, why);
}

static void attempt_start(struct scaler_job *j)
{
	enum autoscale_outcome outcome;
	struct cgn_err err;
	j->attempts++;
	j->state = SCALER_JOB_CALLS;
	job_tell(j, "attempt %u of %u runs", j->attempts, j->s->r->cfg->router.autoscaler.target_attempts);
	if (!scaler_has_target(j->s)) /* The settings changed meanwhile. */
		attempt_ended(j, AUTOSCALE_REFUSED, "router.autoscaler.target is agents now");
	else if (!cgn_ok(scalecall_start(j->s->r->loop, j->s->r->cfg, &j->order, on_attempt_done, j, &j->call,
			 &outcome, &err)))
		attempt_ended(j, outcome, err.msg);
}

static void on_job_timer(struct cgn_timer *t)
{
	struct scaler_job *j = CGN_CONTAINER(t, struct scaler_job, timer);
	CGN_LIVE(j->s, SCALER_TAG);
	attempt_start(j);
}

/* ---- orders ---- */

static void order_fill(struct scaler_job *j, const struct scaler_event *e)
{
	const struct autoscale_decision *d = &j->g->decision;
	bool up = d->action == AUTOSCALE_UP;
	uint32_t n = (uint32_t)j->order.n_nodes;
	const struct sha256 router = crypto_sha256(cgn_str_of(j->s->r->id));
	uint32_t who;
	memcpy(&who, router.b, sizeof who);
	(void)snprintf(j->id, sizeof j->id, "%08x-%llx-%zx", who, (unsigned long long)e->at_ms,
		(size_t)(j->g - j->s->groups));
	(void)cgn_str_copyz(j->reason, sizeof j->reason, cgn_str_of(d->why));
	j->order = (struct autoscale_order){.id = j->id,
		.cluster = j->s->r->cfg->cluster.name,
		.model = j->g->shown,
		.role = scaler_role_text(j->g->role),
		.up = up,
		.have = e->have,
		.replicas = up ? e->have + d->by : e->have - n,
		.nodes = j->names,
		.n_nodes = n,
		.why = j->reason,
		.at_unix_ms = e->at_ms};
}

static void victims_choose(struct scaler_job *j, struct scaler_nodes *nodes, cgn_nsec now)
{
	const struct cluster_node *list[SCALER_VICTIMS];
	uint32_t by = j->g->decision.by < SCALER_VICTIMS ? j->g->decision.by : SCALER_VICTIMS;
	size_t n =
		j->g->decision.action == AUTOSCALE_DOWN ? scaler_rests_choose(j->s, nodes, by, now, list) : 0;
	for (size_t i = 0; i < n; i++) {
		(void)cgn_str_copyz(j->victim[i], sizeof j->victim[i], cgn_str_of(list[i]->info->id));
		j->names[i] = j->victim[i];
	}
	j->order.n_nodes = n;
}

static void victims_say(const struct scaler_job *j, struct scaler_event *e)
{
	struct cgn_buf text = cgn_buf_over(e->nodes, sizeof e->nodes);
	for (size_t i = 0; i < j->order.n_nodes; i++)
		cgn_buf_fmt(&text, i > 0 ? ", %s" : "%s", j->victim[i]);
	(void)cgn_buf_z(&text);
}

void scaler_job_begin(struct scaler *s, struct scaler_group *g, struct scaler_nodes *nodes, cgn_nsec now,
	struct scaler_event *e)
{
	struct scaler_job *j = &g->job;
	bool up = g->decision.action == AUTOSCALE_UP;
	CGN_MUST(j->state == SCALER_JOB_NONE);
	*j = (struct scaler_job){.s = s,
		.g = g,
		.event = s->n_events, /* scaler_event_note gives this number to |e|. */
		.backoff = {.first = s->r->cfg->router.autoscaler.target_backoff, .last = BACKOFF_LAST}};
	cgn_timer_init(&j->timer, s->r->loop, on_job_timer);
	victims_choose(j, nodes, now);
	if (!up && j->order.n_nodes == 0) {
		(void)snprintf(e->then, sizeof e->then,
			"nothing: an operator spoke about all its nodes (cgn-ctl model)");
		return;
	}
	e->done = true;
	victims_say(j, e);
	order_fill(j, e);
	if (up) {
		j->state = SCALER_JOB_PAUSES;
		cgn_timer_set(&j->timer, 0);
		(void)snprintf(e->then, sizeof e->then, "the order follows");
		return;
	}
	j->state = SCALER_JOB_DRAINS;
	victims_cordon(j, true);
	(void)snprintf(e->then, sizeof e->then,
		"cordoned: new requests go elsewhere; the order follows when those that run have ended");
}

bool scaler_job_step(struct scaler_group *g, cgn_nsec now)
{
	struct scaler_job *j = &g->job;
	if (j->state == SCALER_JOB_DRAINS && !state_leader_is(j->s->leader))
		scaler_job_undo(g); /* Another router decides now. */
	if (j->state == SCALER_JOB_DRAINS && victims_are_quiet(j, now))
		attempt_start(j);
	return j->state == SCALER_JOB_NONE || j->state == SCALER_JOB_DRAINS;
}

void scaler_job_undo(struct scaler_group *g)
{
	struct scaler_job *j = &g->job;
	if (j->state != SCALER_JOB_DRAINS)
		return;
	victims_cordon(j, false);
	job_tell(j, "given up before the order: the nodes take requests again");
	job_end(j);
}

void scaler_target_look(struct scaler *s, struct scaler_group *g, cgn_nsec now, struct scaler_nodes *out)
{
	cgn_nsec wake = scaler_wake_time(s, g), since = cgn_since(now, g->asked_at);
	if (g->asked > 0 && g->signals.ready >= g->asked) {
		scaler_wake_note(g, since);
		g->asked = 0;
	}
	if (g->asked == 0 || since >= WAKES_MOST * wake + 60 * CGN_SEC)
		return;
	g->signals.coming = g->asked - g->signals.ready;
	out->first_at = now + wake - (since < wake ? since : wake);
}

void scaler_jobs_close(struct scaler *s)
{
	for (size_t i = 0; i < SCALER_GROUPS; i++) {
		struct scaler_job *j = &s->groups[i].job;
		if (j->state == SCALER_JOB_NONE)
			continue;
		/* The state backend is closed by now: the cordons stay. */
		for (size_t v = 0; v < j->order.n_nodes; v++)
			cgn_log(WARN, "router.scale_left_cordoned", F_STR("node", j->victim[v]),
				F_STR("then",
					"the next start of this router lets it take requests again; so does cgn-ctl cluster uncordon"));
		cgn_timer_cancel(&j->timer);
		scalecall_cancel(&j->call);
		j->state = SCALER_JOB_NONE;
	}
}
