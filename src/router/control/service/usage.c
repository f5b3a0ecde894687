/* SPDX-License-Identifier: Apache-2.0 */
/* usage: /usage and /tenants of the admin port. */
#include "router/request/account/usage.h"

#include <stdlib.h>

#include "base/codec/codec.h"
#include "router/answer/batch/batches.h"
#include "router/control/service/documents.h"
#include "router/request/limit/budgets.h"
#include "router/shared/filestore/filestore.h"
#include "router/shared/quotas/quotas.h"

#define HOLDERS_MOST 512 /* Tenants that are shown because they hold something. */
#define HOUR_S       3600

/* ---- /usage ---- */

static bool time_get(const struct http_head *h, const char *key, uint64_t *hour,
	struct svc_admin_reply *reply)
{
	char text[64];
	struct cgn_str raw = http_query_get(h->path, key);
	if (raw.n == 0)
		return true;
	if (raw.n < sizeof text && billing_time((struct cgn_str){text, percent_get(text, raw)}, hour))
		return true;
	svc_admin_error(reply, 400, "bad_time",
		"from and to are times in UTC, such as 2026-11-23 or 2026-11-23T13:00Z, or seconds since 1970");
	return false;
}

/* The words of the query are checked (parameters.def); an absent one changes nothing. */
static bool query_get(const struct http_head *h, struct billing_query *q, bool *csv,
	struct svc_admin_reply *reply)
{
	struct cgn_str by = http_query_get(h->path, "by"), step = http_query_get(h->path, "step");
	if (!time_get(h, "from", &q->from, reply) || !time_get(h, "to", &q->to, reply))
		return false;
	*csv = cgn_str_is(http_query_get(h->path, "format"), "csv");
	if (by.n > 0)
		(void)billing_by_find(by, &q->by);
	if (step.n > 0)
		(void)billing_step_find(step, &q->step);
	return true;
}

bool router_fill_usage(const struct document_query *d, Cognitora__V1__Usage *to)
{
	CGN_ON_EXIT(billing_report_free) struct billing_report *report = NULL;
	uint64_t now = cgn_clock_wall_ms() / 1000 / HOUR_S;
	struct billing_query q = {now - now % 24, now + 1, BILLING_BY_TENANT, BILLING_STEP_ALL,
		d->r->published.rules->price.currency};
	struct cgn_err err;
	bool csv = false;
	if (!query_get(d->h, &q, &csv, d->reply))
		return false;
	if (!cgn_ok(gw_usage_report(d->r->shared.usage, &q, &report, &err))) {
		svc_admin_error(d->reply, err.code == CGN_TOO_LARGE ? 400 : 503, "no_report", err.msg);
		return false;
	}
	if (!csv) {
		billing_report_fill(report, d->t, to);
		return true;
	}
	d->reply->content_type = "text/csv; charset=utf-8";
	billing_report_csv(report, &d->reply->body);
	return false;
}

/* ---- /tenants ---- */

static double amount_of(enum budget_unit unit, uint64_t amount)
{
	static const double scales[BUDGET_UNITS] = {1, 1, (double)BUDGET_MONEY_SCALE,
		(double)BUDGET_JOULE_SCALE};
	return (double)amount / scales[unit];
}

static void budget_fill(const struct budget *b, const struct budget_account *a, struct pb_tree *t,
	Cognitora__V1__TenantBudget *to)
{
	const struct budget_spell *spell = &a->spells[b->window][0];
	uint64_t spent = spell->spent.v[b->unit];
	char text[BUDGET_TEXT_MAX];
	budget_text(b, text);
	to->budget = pb_tree_text(t, cgn_str_of(text));
	to->unit = pb_text(budget_unit_text(b));
	to->window = pb_text(budget_window_text(b->window));
	to->limit = amount_of(b->unit, b->limit);
	to->spent = amount_of(b->unit, spent);
	to->left = amount_of(b->unit, spent < b->limit ? b->limit - spent : 0);
	to->resets_at = budget_window_end(b->window, spell->number);
}

/* Return the rate in |period_s|; 0: no limit. */
static double rate_of(const struct rate *rate, double period_s)
{
	return rate_is_set(rate) ? (double)rate->units * period_s * (double)CGN_SEC / (double)rate->period
				 : 0;
}

static void share_fill(enum quota_kind kind, const struct quota_told *told, struct pb_tree *t,
	Cognitora__V1__Tenant *to)
{
	Cognitora__V1__TenantShare *s = PB_ADD(t, to, shares, tenant_share);
	s->share = pb_text(quota_name(kind));
	s->held = told->held;
	s->limit = told->limit;
}

static struct quota_told share_of(struct router *r, enum quota_kind kind, struct cgn_str tenant)
{
	if (kind == QUOTA_FILES && r->shared.files != NULL)
		return filestore_share(r->shared.files, tenant);
	if (kind == QUOTA_BATCHES && r->shared.batches != NULL)
		return batches_share(r->shared.batches, tenant);
	return gw_quotas_of(r->shared.quotas, kind, tenant);
}

/* Sessions are of people, and of an admin port. */
static void shares_fill(struct router *r, struct cgn_str tenant, struct pb_tree *t, Cognitora__V1__Tenant *to)
{
	for (enum quota_kind kind = 0; kind < QUOTA_KINDS; kind++) {
		const struct quota_told told = share_of(r, kind, tenant);
		if (kind != QUOTA_SESSIONS)
			share_fill(kind, &told, t, to);
	}
}

static void tenant_fill(struct router *r, const struct gw_tenant *tenant, struct pb_tree *t,
	Cognitora__V1__Tenant *to)
{
	char name[BUDGET_NAME_MAX + 1];
	struct budget_account a;
	(void)snprintf(name, sizeof name, "t:%.*s", CGN_STR_ARG(tenant->name));
	(void)gw_budgets_get(r->shared.budgets, cgn_str_of(name), &a);
	to->name = pb_tree_text(t, tenant->name);
	to->weight = tenant->weight;
	to->max_priority = tenant->max_priority;
	to->rps = rate_of(&tenant->rates.requests, 1);
	to->tokens_per_minute = rate_of(&tenant->rates.tokens, 60);
	for (size_t i = 0; i < tenant->budgets.n; i++)
		budget_fill(&tenant->budgets.v[i], &a, t, PB_ADD(t, to, budgets, tenant_budget));
	shares_fill(r, tenant->name, t, to);
}

bool router_fill_tenants(const struct document_query *q, Cognitora__V1__Tenants *to)
{
	struct router *r = q->r;
	const struct gw_rules *rules = r->published.rules;
	struct quota_name_of *holders = CGN_NEW_ARRAY(struct quota_name_of, HOLDERS_MOST);
	to->currency = pb_text(rules->price.currency);
	to->shared = r->store.set;
	for (size_t i = 0; i < rules->n_tenants; i++)
		tenant_fill(r, &rules->tenants[i], q->t, PB_ADD(q->t, to, tenants, tenant));
	const size_t n = gw_quotas_tenants(r->shared.quotas, holders, HOLDERS_MOST);
	for (size_t i = 0; i < n; i++) {
		const struct gw_tenant *row = gw_rules_tenant(rules, cgn_str_of(holders[i].name));
		struct gw_tenant other = *row;
		other.name = cgn_str_of(holders[i].name);
		if (!cgn_str_eq(row->name, other.name))
			tenant_fill(r, &other, q->t, PB_ADD(q->t, to, tenants, tenant));
	}
	free(holders);
	return true;
}
