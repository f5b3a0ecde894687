/* SPDX-License-Identifier: Apache-2.0 */
/* budgets: files and metrics of budgets and usage, once a second. */
#include "router/limit/budgets.h"

#include "router/account/usage.h"
#include "router/control/router.h"

void router_budgets_report(struct router *r)
{
	const struct gw_rules *rules = r->published.rules;
	struct budget_account a;
	char name[BUDGET_NAME_MAX + 1];
	metric_set(METRIC_ONE(r->shared.telemetry, BUDGET_UNCOUNTED),
		(double)gw_budgets_tick(r->shared.budgets));
	gw_usage_tick(r->shared.usage);
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
