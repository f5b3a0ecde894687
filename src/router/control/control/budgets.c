/* SPDX-License-Identifier: Apache-2.0 */
/* budgets: files and metrics of budgets and usage, once a second. */
#include "router/control/control/budgets.h"

#include "router/control/control/peers.h"
#include "router/request/limit/budgets.h"

#include "router/control/control/router.h"
#include "router/request/account/sessions.h"
#include "router/request/account/usage.h"
#include "router/shared/age/age.h"
#include "router/shared/quotas/quotas.h"

static void budgets_show(struct router *r)
{
	const struct gw_rules *rules = r->published.rules;
	struct budget_account a;
	char name[BUDGET_NAME_MAX + 1];
	for (size_t i = 0; i < rules->n_tenants; i++) {
		const struct gw_tenant *t = &rules->tenants[i];
		if (t->budgets.n == 0)
			continue;
		(void)snprintf(name, sizeof name, "t:%.*s", CGN_STR_ARG(t->name));
		(void)gw_budgets_get(r->shared.budgets, cgn_str_of(name), &a);
		for (size_t k = 0; k < t->budgets.n; k++) {
			const struct budget *b = &t->budgets.v[k];
			metric_set(METRIC_OF(r->shared.telemetry, BUDGET_SPENT, name + 2,
					   b->unit == BUDGET_MONEY ? "money" : budget_unit_text(b),
					   budget_window_text(b->window)),
				(double)a.spells[b->window][0].spent.v[b->unit] / (double)b->limit);
		}
	}
}

void router_budgets_report(struct router *r)
{
	metric_set(METRIC_ONE(r->shared.telemetry, BUDGET_UNCOUNTED),
		(double)gw_budgets_tick(r->shared.budgets));
	gw_age_tick(r->shared.age);
	gw_usage_tick(r->shared.usage);
	budgets_show(r);
	gw_quotas_report(r->shared.quotas);
	router_peers_report(r);
	if (r->shared.sessions != NULL)
		gw_sessions_report(r->shared.sessions, r->shared.telemetry, cgn_loop_now(r->loop));
}

/* Has |now| a budget of each unit and window that |before| has one of? */
static bool set_has_all(const struct budget_set *now, const struct budget_set *before)
{
	for (size_t i = 0; i < before->n; i++) {
		size_t k = 0;
		while (k < now->n &&
			(now->v[k].unit != before->v[i].unit || now->v[k].window != before->v[i].window))
			k++;
		if (k == now->n)
			return false;
	}
	return true;
}

void router_budgets_changed(struct router *r, const struct gw_rules *before)
{
	char name[BUDGET_NAME_MAX + 1];
	if (before == NULL)
		return;
	for (size_t i = 0; i < before->n_tenants; i++) {
		const struct gw_tenant *t = &before->tenants[i];
		const struct gw_tenant *now = gw_rules_tenant(r->published.rules, t->name);
		bool same = cgn_str_eq(now->name, t->name); /* False: |now| is the row for all others. */
		if (same ? set_has_all(&now->budgets, &t->budgets) : t->budgets.n == 0)
			continue;
		(void)snprintf(name, sizeof name, "%.*s", CGN_STR_ARG(t->name));
		metric_forget(r->shared.telemetry, METRIC_BUDGET_SPENT, "tenant", name);
	}
	budgets_show(r); /* The tenant's other budgets are shown on. */
}
