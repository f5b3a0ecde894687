/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/plan/refused.h"

#include "base/log/log.h"
#include "router/request/attempt/direct.h"
#include "router/request/attempt/verdict.h"

#define LOOK_TIME  (500 * CGN_MSEC)
#define LOOK_AGAIN (5 * CGN_SEC) /* After a request of the worker waited and found none */

static struct gw_misfit_kind kind_of(const struct gw_req *r, const struct plan_leg *leg)
{
	return (struct gw_misfit_kind){leg->model, r->client.target};
}

/* An answer that its engine stored is known there alone, so that 404 says nothing of another node. */
static bool may_be_elsewhere(const struct gw_req *r, int status)
{
	enum gw_route_kind kind = r->client.route->kind;
	if (kind == GW_STORED || kind == GW_ABOUT || opening_status(status) != STATUS_NODE)
		return false;
	return status != 404 || r->prompt.facts.previous.raw.p == NULL;
}

enum breaker_failure gw_refused_how(const struct gw_req *r, const struct gw_attempt *a)
{
	enum breaker_failure how = gw_attempt_status_failure(a);
	if (how != BREAKER_FAILURES || a->peer != NULL || plan_is_held(&r->plan.legs))
		return how;
	return may_be_elsewhere(r, a->status) ? BREAKER_REFUSED : BREAKER_FAILURES;
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

void gw_refused_suspect(struct gw_req *r, const struct gw_attempt *a)
{
	struct gw_plan *p = &r->plan;
	if (p->n_suspects == CGN_COUNT(p->suspects))
		return;
	p->suspects[p->n_suspects++] = (struct gw_suspect){.slot = a->call.slot,
		.status = a->status,
		.node = a->ticket.node,
		.id = a->call.node_id};
	if (is_setting(a->status))
		gw_misfit_doubt(r->w->shared->misfits, a->call.slot);
}

static void suspect_blame(struct gw_req *r, const struct gw_suspect *s, const struct gw_misfit_kind *k)
{
	struct gw_worker *w = r->w;
	gw_verdict_refused(w, s->slot, s->node, s->id);
	if (!is_setting(s->status))
		return;
	gw_misfit_blame(w->shared->misfits, s, k, &w->rules->breaker, cgn_loop_now(w->loop), gw_random(w));
	gw_direct_avoid(w, s->slot);
	cgn_log_limited(WARN, "gateway.misconfigured", F_STRN("id", r->client.id), F_STR("node", s->id),
		F_I64("status", s->status), F_STRN("model", k->model), F_STRN("path", k->path),
		F_STR("answered", r->attempt.call.node_id),
		F_STR("then", "its list of models is read again; it counts as a failure"));
}

void gw_refused_settle(struct gw_req *r)
{
	const struct gw_misfit_kind k = kind_of(r, plan_leg(&r->plan.legs));
	const struct gw_attempt *a = &r->attempt;
	if (a->peer != NULL)
		return;
	gw_misfit_clear(r->w->shared->misfits, a->call.slot, a->ticket.node, &k);
	for (size_t i = 0; i < r->plan.n_suspects; i++)
		suspect_blame(r, &r->plan.suspects[i], &k);
	r->plan.n_suspects = 0;
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
