/* SPDX-License-Identifier: Apache-2.0 */
/* budget: budgets of tenants, and their currency. */
#include "policy/config/config.h"
#include "policy/who/budget/budget.h"

static cgn_rc check_budgets(const struct config *c, const struct config_tenant *t, struct cgn_err *err)
{
	struct budget_set set = {0};
	struct cgn_err why;
	for (size_t i = 0; i < t->budgets.n; i++)
		if (!cgn_ok(budget_set_add(&set, cgn_str_of(t->budgets.v[i]), &why)))
			return CGN_FAIL(err, INVALID, "tenants.\"%.64s\".budgets: %s", t->name, why.msg);
	const char *money = budget_set_currency(&set);
	if (money != NULL && strcmp(money, c->router.currency) != 0)
		return CGN_FAIL(err, INVALID,
			"tenants.\"%.64s\".budgets: a budget in %s, but router.currency is %.8s", t->name,
			money, c->router.currency);
	return CGN_OK;
}

CGN_RC budget_check_config(const struct config *c, struct cgn_err *err)
{
	const char *p = c->router.currency;
	while (*p >= 'A' && *p <= 'Z')
		p++;
	if (*p != '\0')
		return CGN_FAIL(err, INVALID,
			"%s: router.currency is \"%.8s\", must be three capitals, such as EUR",
			config_origin(c, "router.currency"), c->router.currency);
	for (size_t i = 0; i < c->n_tenants; i++)
		CGN_TRY(check_budgets(c, &c->tenants[i], err));
	return CGN_OK;
}
