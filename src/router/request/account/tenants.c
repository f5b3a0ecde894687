/* SPDX-License-Identifier: Apache-2.0 */
/* tenants: metrics of each tenant's usage. A worker keeps the cells of the tenants that it served last, so
 * that the registry's lock is taken rarely. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "router/request/account/account.h"
#include "router/request/account/underway.h"
#include "router/request/account/usage.h"

#define GW_MODEL_LABEL 256 /* Longer names of models are cut. */
#define TENANT_CELLS   256 /* A power of two; 28 KiB. */

struct gw_tenant_use {
	char name[AUTH_TENANT_MAX + 1];
	struct metric_cell *money, *requests, *prompt, *cached, *completion; /* NULL: the place is free. */
};

/* Return the tenant's cells. Another tenant that had the place loses it, and takes it again when it comes. */
static const struct gw_tenant_use *tenant_cells(struct gw_worker *w, struct cgn_str name)
{
	if (w->tenants == NULL)
		w->tenants = CGN_NEW_ARRAY(struct gw_tenant_use, TENANT_CELLS);
	struct gw_tenant_use *t = &w->tenants[mix_fnv1a(MIX_FNV1A, name.p, name.n) & (TENANT_CELLS - 1)];
	if (t->requests != NULL && cgn_str_is(name, t->name))
		return t;
	(void)cgn_str_copyz(t->name, sizeof t->name, name);
	t->money = METRIC_OF(w->shared->telemetry, TENANT_MONEY, t->name);
	t->requests = METRIC_OF(w->shared->telemetry, TENANT_REQUESTS, t->name);
	t->prompt = METRIC_OF(w->shared->telemetry, TENANT_TOKENS, t->name, "prompt");
	t->cached = METRIC_OF(w->shared->telemetry, TENANT_TOKENS, t->name, "cached");
	t->completion = METRIC_OF(w->shared->telemetry, TENANT_TOKENS, t->name, "completion");
	return t;
}

void gw_money_add(struct gw_worker *w, struct metric_cell *to, uint64_t amount)
{
	const double parts = (double)BUDGET_MONEY_SCALE / 1e6;
	metric_add(to, (uint64_t)((double)amount / parts + gw_random(w)));
}

static void usage_add(const struct gw_req *r, const struct gw_used *used)
{
	const struct billing_names names = {gw_identity_label(&r->identity),
		cgn_str_of(r->identity.key_id != NULL ? r->identity.key_id : "-"), r->prompt.model};
	const struct billing_amounts more = {used->requests, used->estimated, used->input, used->cached,
		used->output, used->money, used->joules};
	if (used->requests > 0 && r->w->shared->usage != NULL)
		gw_usage_add(r->w->shared->usage, &names, &more, gw_underway_place(r));
}

void gw_tenant_count(struct gw_req *r)
{
	if (r->identity.tenant.n == 0 || r->prompt.model.n == 0 || r->identity.own)
		return;
	const struct gw_tenant_use *t = tenant_cells(r->w, gw_identity_label(&r->identity));
	const struct gw_used used = gw_used_of(r), all = gw_used_all(r);
	metric_add(t->requests, 1);
	metric_add(t->prompt, all.input);
	metric_add(t->cached, all.cached);
	metric_add(t->completion, all.output);
	metric_add(r->w->prompt_tokens, all.input);
	metric_add(r->w->completion_tokens, all.output);
	gw_money_add(r->w, t->money, all.money);
	usage_add(r, &used);
}

/* Add |joules| so that the sums are right although a counter counts whole ones. */
static void joules_add(struct gw_req *r, const char *tenant, const char *phase, double joules)
{
	char model[GW_MODEL_LABEL];
	(void)cgn_str_copyz(model, sizeof model, r->prompt.model);
	uint64_t whole = (uint64_t)(joules + gw_random(r->w));
	if (whole > 0)
		metric_add(METRIC_OF(r->w->shared->telemetry, JOULES, model, tenant, phase), whole);
}

void gw_joules_count(struct gw_req *r, const struct chooser_energy *e)
{
	char tenant[AUTH_TENANT_MAX + 1] = "-";
	if (!e->counted || r->prompt.model.n == 0)
		return;
	(void)cgn_str_copyz(tenant, sizeof tenant, gw_identity_label(&r->identity));
	joules_add(r, tenant, "prefill", e->prefill_j);
	joules_add(r, tenant, "decode", e->decode_j);
}
