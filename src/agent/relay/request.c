/* SPDX-License-Identifier: Apache-2.0 */
/* request: what the engine is sent. */
#include "agent/relay/relay_priv.h"

bool relay_is_prefill(const struct relay *r)
{
	return r->placement.leg == COGNITORA__V1__LEG__LEG_PREFILL;
}

size_t relay_request_body(struct relay *r, struct iovec out[3])
{
	union { /* iovec has no const */
		const char *in;
		void *out;
	} body = {.in = r->rq.body.p};
	const struct slot_placement *p = &r->placement;
	if (p->slot == SLOTS_NONE) {
		out[0] = (struct iovec){body.out, r->rq.body.n};
		return r->rq.body.n > 0 ? 1 : 0;
	}
	if (relay_is_prefill(r)) {
		if (r->own.n == 0) {
			slot_body_prefill(r->rq.path, r->rq.body, p->slot, &r->own);
			grpc_budget_add(r->all->budget, r->own.n);
			r->booked += r->own.n;
		}
		out[0] = (struct iovec){r->own.p, r->own.n};
		return 1;
	}
	out[0] = (struct iovec){body.out, p->at.at};
	out[1] = (struct iovec){r->insert, slot_body_insert(&p->at, p->slot, r->insert)};
	out[2] = (struct iovec){(char *)body.out + p->at.at, r->rq.body.n - p->at.at};
	return 3;
}
