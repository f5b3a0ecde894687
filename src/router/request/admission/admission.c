/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/admission/admission.h"

#include "policy/answer/plan/plan.h"

#include <stdlib.h>

_Static_assert(ADMISSION_MAX_EXCLUDED >= PLAN_MAX_ATTEMPTS,
	"a ticket names each node that failed its request");

static cgn_nsec loop_now(const struct gw_admission *g)
{
	return cgn_loop_now(g->loop);
}

static struct gw_ticket *ticket_of(struct admission_ticket *t)
{
	return CGN_CONTAINER(t, struct gw_ticket, policy);
}

/* ---- decisions of policy/route/admission ---- */

static void on_verdict(void *user, struct admission_ticket *pt)
{
	struct gw_admission *g = user;
	struct gw_ticket *t = ticket_of(pt);
	if (pt->verdict == ADMISSION_ADMITTED && !t->has_place && !t->placed) {
		const struct quota_holder h = gw_ticket_holder(t);
		gw_quotas_add(g->quotas, &h);
		t->placed = true;
	}
	cgn_loop_post(t->w->loop, &t->answer, t->on_verdict); /* The queue's reference goes along. */
}

static void on_change(void *user, const char *model, int by, cgn_nsec wait)
{
	struct gw_admission *g = user;
	cgn_nsec ms = wait / CGN_MSEC;
	if (by != 0)
		metric_shift(METRIC_OF(g->telemetry, QUEUE_DEPTH, model), by);
	atomic_store_explicit(&g->wait_ms[admission_bucket(cgn_str_of(model))],
		ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX, memory_order_relaxed);
	if (g->poll.at == 0 && admission_waiting(g->policy) > 0)
		cgn_timer_set(&g->poll, ADMISSION_POLL_INTERVAL);
}

static bool tenant_may(void *user, struct cgn_str model, struct cgn_str tenant, uint64_t free)
{
	struct gw_admission *g = user;
	struct quota_told told;
	const struct gw_quota_taker who = {{QUOTA_REQUESTS, tenant, route_hash(model.p, model.n)},
		cgn_str_is(tenant, AUTH_NO_TENANT)};
	return gw_quotas_may(g->quotas, &who, free, &told);
}

static const struct admission_ops admission_ops = {.on_verdict = on_verdict,
	.may = tenant_may,
	.on_change = on_change};

static void on_poll(struct cgn_timer *timer)
{
	struct gw_admission *g = CGN_CONTAINER(timer, struct gw_admission, poll);
	CGN_LIVE(g, GW_ADMISSION_TAG);
	admission_poll(g->policy, loop_now(g));
}

/* ---- posts of workers ---- */

void gw_admission_on_enter(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, ask);
	struct gw_admission *g = t->admission;
	CGN_LIVE(t, GW_TICKET_TAG);
	if (g->policy == NULL) {
		gw_ticket_unref(t); /* The worker has ended too. */
		return;
	}
	gw_ticket_ref(t); /* The worker may drop an answered ticket before admission_enter returns. */
	admission_enter(g->policy, &t->policy, loop_now(g));
	gw_ticket_unref(t);
}

void gw_admission_on_leave(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, leave);
	CGN_LIVE(t, GW_TICKET_TAG);
	if (t->admission->policy != NULL &&
		admission_leave(t->admission->policy, &t->policy, loop_now(t->admission)))
		gw_ticket_unref(t); /* The queue's reference. */
	gw_ticket_unref(t);
}

void gw_admission_on_settle(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_ticket *t = CGN_CONTAINER(p, struct gw_ticket, settle);
	CGN_LIVE(t, GW_TICKET_TAG);
	if (t->admission->policy != NULL)
		admission_settle(t->admission->policy, t->policy.slot, loop_now(t->admission));
	gw_ticket_unref(t);
}

void gw_admission_on_room(struct cgn_loop *loop, struct cgn_post *p)
{
	(void)loop;
	struct gw_admission *g = CGN_CONTAINER(p, struct gw_admission, room);
	CGN_LIVE(g, GW_ADMISSION_TAG);
	/* Cleared before serving: a request that ends from now on posts again. */
	atomic_store(&g->room_posted, false);
	if (g->policy != NULL)
		admission_serve(g->policy, loop_now(g));
	gw_admission_unref(&g);
}

/* ---- calls of the control loop ---- */

static struct admission_rules admission_rules_of(const struct gw_rules *rules)
{
	return (struct admission_rules){rules->queue.policy, rules->queue.most, rules->route.max_inflight,
		rules->queue.node_wait, rules->route.disagg.enabled};
}

struct gw_admission *gw_admission_open(struct cgn_loop *loop, const struct gw_shared *shared,
	const struct gw_rules *rules, const struct node_stats *stats, const struct cluster_view *view,
	cgn_nsec now)
{
	const struct admission_rules r = admission_rules_of(rules);
	struct gw_admission *g = CGN_NEW(struct gw_admission);
	g->policy = admission_new(&r, stats, &admission_ops, g, now);
	g->tag = GW_ADMISSION_TAG;
	atomic_init(&g->refs, 1);
	g->loop = loop;
	g->telemetry = shared->telemetry;
	g->quotas = shared->quotas;
	cgn_timer_init(&g->poll, loop, on_poll);
	admission_view_set(g->policy, view, now);
	return g;
}

void gw_admission_close(struct gw_admission **take)
{
	struct gw_admission *g = *take;
	if (g == NULL)
		return;
	CGN_LIVE(g, GW_ADMISSION_TAG);
	cgn_timer_cancel(&g->poll);
	for (struct admission_ticket *t; (t = admission_pull(g->policy)) != NULL;)
		gw_ticket_unref(ticket_of(t)); /* The queue's reference. */
	admission_free(&g->policy);
	gw_admission_unref(take);
}

void gw_admission_view_set(struct gw_admission *g, const struct cluster_view *view)
{
	if (g != NULL)
		admission_view_set(g->policy, view, loop_now(g));
}

void gw_admission_tune(struct gw_admission *g, const struct gw_rules *rules)
{
	if (g == NULL)
		return;
	const struct admission_rules r = admission_rules_of(rules);
	admission_tune(g->policy, &r, loop_now(g));
}

void gw_admission_expect(struct gw_admission *g, struct cgn_str model, cgn_nsec ready_at, cgn_nsec until)
{
	if (g != NULL)
		admission_expect(g->policy, model, ready_at, until);
}

void gw_admission_serve(struct gw_admission *g)
{
	if (g != NULL)
		admission_serve(g->policy, loop_now(g));
}

void gw_admission_drain(struct gw_admission *g, cgn_nsec grace)
{
	if (g != NULL)
		admission_drain(g->policy, loop_now(g) + grace + 1);
}

size_t gw_admission_depth(const struct gw_admission *g, struct cgn_str model)
{
	return g != NULL ? admission_depth(g->policy, model) : 0;
}

/* ---- /queue ---- */

struct queue_listing {
	struct pb_tree *t;
	Cognitora__V1__Queues *to;
	Cognitora__V1__Queue *queue; /* Takes the shares. */
	cgn_nsec now;
};

static void share_fill(void *user, const struct queue_share *s)
{
	const struct queue_listing *l = user;
	Cognitora__V1__QueueShare *to = PB_ADD(l->t, l->queue, tenants, queue_share);
	to->tenant = pb_tree_text(l->t, s->tenant);
	to->priority = s->priority;
	to->requests = s->items;
	to->tokens = s->tokens;
	to->oldest_ms = cgn_since(l->now, s->oldest) / CGN_MSEC;
}

static void queue_fill(void *user, const struct admission_status *s)
{
	struct queue_listing *l = user;
	Cognitora__V1__Queue *to = l->queue = PB_ADD(l->t, l->to, queues, queue);
	to->model = pb_tree_text(l->t, cgn_str_of(s->model));
	to->role = pb_text(admission_role_text(s->role));
	to->requests = s->requests;
	to->retries = s->retries;
	to->tokens = s->tokens;
	to->wait_ms = s->wait / CGN_MSEC;
	queue_each(s->order, share_fill, l);
}

void gw_admission_fill(const struct gw_admission *g, struct pb_tree *t, Cognitora__V1__Queues *to)
{
	struct queue_listing l = {.t = t, .to = to, .now = g != NULL ? loop_now(g) : 0};
	if (g != NULL)
		admission_each(g->policy, l.now, queue_fill, &l);
}
