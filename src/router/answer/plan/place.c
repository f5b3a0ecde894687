/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/plan/place.h"

#include "router/answer/plan/legs.h"
#include "router/request/admission/admission.h"
#include "router/request/limit/shares.h"

static struct gw_quota_taker taker_of(const struct gw_req *r)
{
	return gw_share_taker(r, QUOTA_REQUESTS, route_hash(r->prompt.model.p, r->prompt.model.n));
}

static uint64_t free_of(const struct gw_req *r, const struct chooser_pick_result *p)
{
	uint64_t free = 0;
	for (size_t i = 0; i < p->n; i++) {
		const struct route_cand *c = &p->cands[i];
		free += route_room(r->w->rules->route.max_inflight, c->width, c->inflight, c->others);
	}
	return free > 0 ? free : 1; /* A node that was named takes one more. */
}

bool gw_place_take(struct gw_req *r, const struct chooser_pick_result *p)
{
	const struct gw_quota_taker who = taker_of(r);
	struct quota_told told;
	if (r->plan.place != 0 || r->identity.own)
		return true;
	if (!gw_quotas_take_free(r->w->shared->quotas, &who, free_of(r, p), &told))
		return false;
	r->plan.place = who.holder.of;
	return true;
}

void gw_place_admitted(struct gw_req *r)
{
	struct gw_ticket *t = r->plan.ticket;
	if (!t->placed)
		return;
	t->placed = false;
	r->plan.place = gw_ticket_holder(t).of;
}

void gw_place_give(struct gw_req *r)
{
	const struct quota_holder h = {QUOTA_REQUESTS, gw_identity_label(&r->identity), r->plan.place};
	if (r->plan.place != 0)
		gw_quotas_give(r->w->shared->quotas, &h, 1);
	r->plan.place = 0;
}

bool gw_place_lacks(struct gw_req *r, struct quota_told *told)
{
	const struct gw_quota_taker who = taker_of(r);
	if (r->plan.place != 0 || r->identity.own)
		return false;
	const struct chooser_ask ask = gw_choose_ask(r, plan_leg(&r->plan.legs));
	const struct chooser_pick_result p = chooser_pick(r->w->chooser, &ask);
	return !gw_quotas_may(r->w->shared->quotas, &who, free_of(r, &p), told) && told->share;
}

enum gw_step gw_place_refuse(struct gw_req *r, const struct quota_told *told, unsigned retry_after)
{
	const struct gw_quota_taker who = taker_of(r);
	return gw_share_refuse(r, &who.holder, told, retry_after);
}
