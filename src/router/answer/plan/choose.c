/* SPDX-License-Identifier: Apache-2.0 */
/* choose: the chooser's question for a leg. */
#include "router/answer/answer/resume.h"
#include "router/answer/plan/legs.h"
#include "router/answer/plan/queue.h"
#include "router/answer/plan/refused.h"
#include "router/answer/selection/selection.h"
#include "router/request/account/arms.h"
#include "router/request/isolate/isolate.h"

/* Make room in plan.excluded for the nodes that were tried, and for those of |m| twice. False: out of memory. */
static bool excluded_room(struct gw_req *r, const struct view_model *m)
{
	struct gw_plan *p = &r->plan;
	size_t cap = PLAN_MAX_ATTEMPTS + 2 * m->n_ready;
	if (p->excluded_cap >= cap)
		return true;
	uint16_t *v = cgn_arena_get(&r->arena, cap * sizeof *v);
	if (v == NULL)
		return false;
	p->excluded = v;
	p->excluded_cap = cap;
	return true;
}

/* Add the ready nodes whose engines lack the path to the |n| slots in plan.tried, unless all lack it: then a node
 * says so. Only for the paths that engines often lack. Returns the slots of both. */
static const uint16_t *lacking_add(struct gw_req *r, const struct plan_leg *leg, size_t *n)
{
	const struct view_model *m = view_model_find(r->w->view, leg->model);
	struct gw_plan *p = &r->plan;
	if (!gw_route_may_lack(r->client.route->kind, r->client.target) || m == NULL)
		return p->tried;
	if (!excluded_room(r, m))
		return p->tried; /* the node says itself what its engine lacks */
	size_t tried = *n;
	memcpy(p->excluded, p->tried, tried * sizeof *p->tried);
	for (size_t i = 0; i < m->n_ready; i++)
		if (view_lacks(m, i, r->client.target))
			p->excluded[(*n)++] = m->ready[i]->slot;
	if (*n == tried + m->n_ready)
		*n = tried;
	return p->excluded;
}

/* Add the nodes that refuse such requests to the |n| slots |excluded|. */
static const uint16_t *refusing_add(struct gw_req *r, const struct plan_leg *leg, const uint16_t *excluded,
	size_t *n)
{
	const struct view_model *m = view_model_find(r->w->view, leg->model);
	if (m == NULL || !gw_misfits_any(r->w->shared->misfits) || !excluded_room(r, m))
		return excluded;
	if (excluded != r->plan.excluded)
		memcpy(r->plan.excluded, excluded, *n * sizeof *excluded);
	*n = gw_refused_add(r, leg, r->plan.excluded, *n, r->plan.excluded_cap);
	return r->plan.excluded;
}

static const uint16_t *excluded_of(struct gw_req *r, const struct plan_leg *leg, size_t *n)
{
	*n = 0;
	if (leg->target.resuming)
		return gw_resume_excluded(r, n);
	if (leg->target.untried)
		*n = plan_tried(&r->plan.legs, r->plan.tried);
	const uint16_t *excluded = refusing_add(r, leg, lacking_add(r, leg, n), n);
	const struct view_model *m = view_model_find(r->w->view, leg->model);
	return r->selecting != NULL && m != NULL ? gw_select_excluded(r, m, excluded, n) : excluded;
}

/* Return the node that stored the answer which the request continues; NULL: there is none, it is not ready for the
 * model, or it was tried. */
static const struct view_node *home_of(const struct gw_req *r, const struct view_model *m)
{
	const struct answerhome *h = &r->plan.home;
	if (!h->known || m == NULL || plan_attempts(&r->plan.legs) > 0)
		return NULL;
	for (size_t i = 0; i < m->n_ready; i++)
		if (answerhome_is(h, m->ready[i]->slot, m->ready[i]->node_id_hash))
			return m->ready[i];
	return NULL;
}

/* Tenants that send equal ids have different sessions. 0: the request is of none. */
static uint64_t session_hash(const struct gw_req *r)
{
	const struct session_name name = {.tenant = r->identity.tenant, .id = r->client.session.id};
	return name.id.n > 0 ? session_route_hash(&name) : 0;
}

struct chooser_ask gw_choose_ask(struct gw_req *r, const struct plan_leg *leg)
{
	size_t n_excluded;
	const uint16_t *excluded = excluded_of(r, leg, &n_excluded);
	const struct gw_worker *w = r->w;
	const struct gw_prompt *p = &r->prompt;
	/* X-Cgn-Node names the node that is to answer. Where that node died in its answer, any node may go on. */
	bool is_pinned = r->client.pin.n > 0 && !leg->target.resuming, prefill = leg->role == LEG_PREFILL;
	const struct view_model *model = view_model_find(w->view, leg->model);
	const struct view_node *pin = is_pinned ? view_node_find(w->view, r->client.pin) : home_of(r, model);
	bool none = (is_pinned && pin == NULL) || gw_isolation_leaks(r, model);
	struct chooser_ask ask = {
		.rules = &w->rules->route,
		.model = none ? NULL : model,
		.chain = p->chain.short_digests,
		.blocks = p->chain.n,
		.length = p->chain.length,
		.block_tokens = p->block_tokens,
		.prompt_tokens = p->tokens,
		.answer_tokens = p->answer_limit,
		.answer_hint = p->facts.hints.answer,
		.whole = !p->stream && !prefill,
		.embeds = r->client.route->scope == AUTH_EMBED || prefill,
		.prefill = prefill,
		.continues = leg->target.continues,
		.handoff = leg->role == LEG_DECODE ? r->plan.split.handoff : 0,
		.from = leg->role == LEG_DECODE ? r->plan.split.from : (struct chooser_source){0},
		.session = session_hash(r),
		.pin = pin != NULL ? pin->slot : CHOOSER_NO_PIN,
		.excluded = excluded,
		.n_excluded = n_excluded,
		.now = cgn_loop_now(w->loop),
	};
	gw_arms_follow(r, &ask);
	return ask;
}

bool gw_can_send(struct gw_req *r, const struct plan_leg *leg)
{
	struct chooser_ask ask = gw_choose_ask(r, leg);
	enum route_verdict v = chooser_pick(r->w->chooser, &ask).verdict;
	if (v != ROUTE_PICKED && leg->role == LEG_DECODE) { /* a node that computes everything will do */
		struct plan_leg whole = *leg;
		whole.role = LEG_WHOLE;
		ask = gw_choose_ask(r, &whole);
		v = chooser_pick(r->w->chooser, &ask).verdict;
	}
	/* An answer that is at hand, however bad, is not kept from the client for a place in a queue. There is no
	 * such answer where another one broke off. */
	bool waits = !r->attempt.head_seen || leg->target.resuming;
	return v == ROUTE_PICKED || (waits && gw_queue_must_wait(r, v));
}
