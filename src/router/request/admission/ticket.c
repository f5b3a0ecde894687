/* SPDX-License-Identifier: Apache-2.0 */
/* ticket: reference counts. */
#include <stdlib.h>

#include "router/request/admission/admission.h"

static void admission_unref(struct gw_admission *g)
{
	if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
		return;
	g->tag = 0;
	free(g);
}

void gw_admission_unref(struct gw_admission **take)
{
	struct gw_admission *g = CGN_TAKE(take);
	if (g != NULL)
		admission_unref(g);
}

struct quota_holder gw_ticket_holder(const struct gw_ticket *t)
{
	struct cgn_str model = t->policy.model;
	return (struct quota_holder){QUOTA_REQUESTS, t->policy.item.tenant, route_hash(model.p, model.n)};
}

void gw_ticket_ref(struct gw_ticket *t)
{
	atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
}

void gw_ticket_unref(struct gw_ticket *t)
{
	CGN_LIVE(t, GW_TICKET_TAG);
	if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
		return;
	/* Once admission is closed, the router stops: workers and quotas may be gone. */
	if (t->placed && t->admission->policy != NULL) {
		const struct quota_holder h = gw_ticket_holder(t);
		gw_quotas_give(t->admission->quotas, &h, 1);
	}
	admission_unref(t->admission);
	t->tag = 0;
	free(t);
}
