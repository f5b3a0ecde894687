/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/plan/refused.h"

#include <limits.h>

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "router/request/attempt/direct.h"
#include "router/request/attempt/verdict.h"

#define LOOK_TIME   (500 * CGN_MSEC)
#define LOOK_AGAIN  (5 * CGN_SEC) /* After a request of the worker waited and found none */
#define SOURCE_MOST 4 /* Failures of one source that count, where failures in a row open no breaker */
#define MARK_TAIL   ((size_t)256) /* Bytes at the end of a body that tell requests apart */

static struct gw_misfit_kind kind_of(const struct gw_req *r, const struct plan_leg *leg)
{
	return (struct gw_misfit_kind){leg->model, r->client.target};
}

/* No engine writes a page: 400 with one is a proxy's word, such as that it wants HTTPS. */
static bool is_refusal(const struct gw_attempt *a)
{
	return opening_status(a->status) == STATUS_NODE || (a->status == 400 && a->opening.page);
}

/* An answer that its engine stored is known there alone, so that 404 says nothing of another node. */
static bool may_be_elsewhere(const struct gw_req *r, const struct gw_attempt *a)
{
	enum gw_route_kind kind = r->client.route->kind;
	if (kind == GW_STORED || kind == GW_ABOUT || !is_refusal(a))
		return false;
	return a->status != 404 || r->prompt.facts.previous.raw.p == NULL;
}

enum breaker_failure gw_refused_how(const struct gw_req *r, const struct gw_attempt *a)
{
	enum breaker_failure how = gw_attempt_status_failure(a);
	if (how != BREAKER_FAILURES || a->peer != NULL || plan_is_held(&r->plan.legs))
		return how;
	return may_be_elsewhere(r, a) ? BREAKER_REFUSED : BREAKER_FAILURES;
}

static bool is_tried(const struct gw_req *r, uint16_t slot)
{
	bool tried = slot == r->attempt.call.slot;
	for (size_t i = 0; i < r->plan.n_suspects; i++)
		tried = tried || r->plan.suspects[i].slot == slot;
	return tried;
}

/* Doubt the lists of all engines. False: there is none that was not tried. */
static bool lists_doubt(struct gw_req *r)
{
	struct gw_worker *w = r->w;
	size_t n = 0;
	for (size_t i = 0; i < w->view->n_nodes; i++) {
		const struct view_node *node = &w->view->nodes[i];
		if (node->state != NODE_READY || node->direct.door == NULL)
			continue;
		gw_misfit_doubt(w->shared->misfits, node->slot);
		n += !is_tried(r, node->slot);
	}
	return n > 0;
}

bool gw_refused_looks(struct gw_req *r, const struct gw_attempt *a)
{
	struct gw_worker *w = r->w;
	const struct view_model *m = view_model_find(w->view, plan_leg(&r->plan.legs)->model);
	cgn_nsec now = cgn_loop_now(w->loop);
	if (a->status != 404 || r->client.pin.n > 0 || r->plan.home.known)
		return false;
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (!is_tried(r, m->ready[i]->slot))
			return false; /* The plan goes on there. */
	bool tired = w->looked_at != 0 && cgn_since(now, w->looked_at) < LOOK_AGAIN;
	if (r->plan.looked_at == 0 && !tired)
		r->plan.looked_at = now;
	if (r->plan.looked_at == 0)
		return false;
	/* A list that was read just before is not read again at once: it is doubted until it is. */
	if (cgn_since(now, r->plan.looked_at) < LOOK_TIME)
		return lists_doubt(r);
	w->looked_at = now;
	return false;
}

/* Return true for a status that shows the node's settings to be wrong, rather than one answer. */
static bool is_setting(int status)
{
	enum opening_status says = opening_status(status);
	return says == STATUS_NODE || says == STATUS_NOTHING;
}

/* ---- blame ---- */

/* Return true for a failure that the request may have caused: a node that can't be reached fails by itself, but an engine that got the
 * request and hung up may have died of it. */
static bool is_doubtful(const struct gw_attempt *a, enum breaker_failure how)
{
	bool answers =
		how == BREAKER_STATUS || how == BREAKER_ERROR || how == BREAKER_REFUSED || how == BREAKER_CUT;
	bool hung_up = how == BREAKER_RESET || (how == BREAKER_CONNECT && gw_attempt_died(a));
	return a->peer == NULL && (answers || hung_up);
}

void gw_refused_mark(struct gw_req *r)
{
	const struct cgn_buf *body = &r->body.bytes;
	const struct prefix_chain *chain = &r->prompt.chain;
	if (r->plan.mark != 0 || body->n == 0)
		return;
	size_t tail = body->n < MARK_TAIL ? body->n : MARK_TAIL;
	uint64_t h = mix_fnv1a(MIX_FNV1A ^ body->n, body->p + body->n - tail, tail);
	if (chain->n > 0)
		h ^= mix64(chain->short_digests[chain->n - 1]);
	r->plan.mark = h | 1;
}

/* Return the hash of what the request has in common with those that may fail alike: the tenant, and the model. */
static uint64_t source_of(struct gw_req *r)
{
	struct cgn_str tenant = gw_identity_tenant(&r->identity), model = plan_leg(&r->plan.legs)->model;
	uint64_t h = mix_fnv1a(mix_fnv1a(MIX_FNV1A, tenant.p, tenant.n), "", 1);
	return mix64(mix_fnv1a(h, model.p, model.n)) | 1;
}

void gw_refused_take(struct gw_req *r, struct gw_attempt *a, enum breaker_failure how)
{
	struct gw_plan *p = &r->plan;
	if (a->w == NULL || a->judged || how == BREAKER_FAILURES)
		return;
	if (!is_doubtful(a, how)) {
		gw_verdict_bad(a, how);
		return;
	}
	gw_refused_mark(r);
	gw_verdict_none(a);
	if (is_setting(a->status))
		gw_misfit_doubt(r->w->shared->misfits, a->call.slot);
	if (p->n_suspects < CGN_COUNT(p->suspects))
		p->suspects[p->n_suspects++] = (struct gw_suspect){.slot = a->call.slot,
			.status = a->status,
			.how = how,
			.node = a->ticket.node,
			.id = a->call.node_id};
}

static void misfit_blame(struct gw_req *r, const struct gw_suspect *s)
{
	struct gw_worker *w = r->w;
	const struct gw_misfit_kind k = kind_of(r, plan_leg(&r->plan.legs));
	gw_misfit_blame(w->shared->misfits, s, &k, &w->rules->breaker, cgn_loop_now(w->loop), gw_random(w));
	gw_direct_avoid(w, s->slot);
	cgn_log_limited(WARN, "gateway.misconfigured", F_STRN("id", r->client.id), F_STR("node", s->id),
		F_I64("status", s->status), F_STRN("model", k.model), F_STRN("path", k.path),
		F_STR("answered", r->attempt.call.node_id),
		F_STR("then", "its list of models is read again; it counts as a failure"));
}

/* A peer may have what no node here has, so that its answer says nothing against a refusal. */
static void suspect_blame(struct gw_req *r, const struct gw_suspect *s)
{
	if (s->how == BREAKER_REFUSED && r->attempt.peer != NULL)
		return;
	gw_verdict_witnessed(r->w, s->slot, s->node, s->id);
	if (is_setting(s->status))
		misfit_blame(r, s);
}

void gw_refused_begun(struct gw_req *r)
{
	struct gw_plan *p = &r->plan;
	const struct gw_misfit_kind k = kind_of(r, plan_leg(&p->legs));
	const struct gw_attempt *a = &r->attempt;
	if (a->peer == NULL)
		gw_misfit_clear(r->w->shared->misfits, a->call.slot, a->ticket.node, &k);
	for (size_t i = 0; i < p->n_suspects; i++)
		suspect_blame(r, &p->suspects[i]);
	p->n_suspects = 0;
}

void gw_refused_answered(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	if (!gw_attempt_is_error(a))
		gw_misfit_answered(r->w->shared->misfits, source_of(r), a->peer == NULL ? a->ticket.node : 0,
			cgn_loop_now(r->w->loop));
}

void gw_refused_forget(struct gw_req *r)
{
	r->plan.n_suspects = 0;
}

static void poison_log(const struct gw_req *r, size_t n)
{
	const struct gw_suspect *s = r->plan.suspects;
	cgn_log_limited(WARN, "gateway.fails_everywhere", F_STRN("id", r->client.id),
		F_STRN("model", r->prompt.model), F_STRN("tenant", gw_identity_tenant(&r->identity)),
		F_U64("nodes", n), F_STR("first", s[0].id), F_STR("second", s[1].id),
		F_STR("how", breaker_failure_text(s[1].how)),
		F_STR("then", "the request is taken for the cause; it counts against no node"));
}

/* Return how many failures of one source may count: of many in a row those of a single client open no breaker, where another
 * node could show that they are the client's doing. */
static unsigned failures_most(struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, plan_leg(&r->plan.legs)->model);
	uint32_t failures = r->w->rules->breaker.failures;
	if (m == NULL || m->n_ready < 2)
		return UINT_MAX;
	return failures == 0 ? SOURCE_MOST : failures > 1 ? failures - 1 : 1;
}

void gw_refused_over(struct gw_req *r)
{
	struct gw_plan *p = &r->plan;
	const struct gw_suspect *s = p->suspects;
	size_t n = p->n_suspects, failed = 0;
	bool counts = false;
	p->n_suspects = 0;
	/* A refusal that no node contradicts is the client's doing. */
	for (size_t i = 0; i < n; i++) {
		if (s[i].how == BREAKER_REFUSED)
			continue;
		failed++;
		counts = gw_misfit_unjudged(r->w->shared->misfits,
			&(struct witness_failure){.source = source_of(r),
				.request = p->mark,
				.node = s[i].node,
				.now = cgn_loop_now(r->w->loop),
				.most = failures_most(r)});
	}
	if (n == 1 && counts)
		gw_verdict_witnessed(r->w, s->slot, s->node, s->id);
	else if (n > 1 && failed > 0)
		poison_log(r, n);
}

void gw_refused_cut(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	if (a->call.why.code == CGN_DEADLINE)
		gw_verdict_stalled(a);
	else if (a->call.why.code != CGN_FINE && gw_attempt_failure(a) == BREAKER_OURS)
		gw_verdict_none(a);
	else
		gw_refused_take(r, a, BREAKER_CUT);
	gw_refused_over(r);
}

size_t gw_refused_add(const struct gw_req *r, const struct plan_leg *leg, uint16_t *slots, size_t n,
	size_t cap)
{
	const struct view_model *m = view_model_find(r->w->view, leg->model);
	const struct gw_misfit_kind k = kind_of(r, leg);
	if (m == NULL || r->client.pin.n > 0 || r->plan.home.known)
		return n;
	return gw_misfits_add(r->w->shared->misfits, m, &k, cgn_loop_now(r->w->loop), slots, n, cap);
}
