/* SPDX-License-Identifier: Apache-2.0 */
/* usage: /usage and /tenants of the admin port. */
#include "router/request/account/usage.h"
#include "base/codec/codec.h"
#include "router/control/service/service_priv.h"
#include "router/request/limit/budgets.h"

#define HOUR_S 3600

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

static bool query_get(const struct http_head *h, struct billing_query *q, bool *csv,
	struct svc_admin_reply *reply)
{
	struct cgn_str by = http_query_get(h->path, "by"), step = http_query_get(h->path, "step"),
		       format = http_query_get(h->path, "format");
	if (!time_get(h, "from", &q->from, reply) || !time_get(h, "to", &q->to, reply))
		return false;
	*csv = cgn_str_is(format, "csv");
	if (by.n > 0 && !billing_by_find(by, &q->by)) {
		svc_admin_error(reply, 400, "bad_by", "by is one of tenant, key, model, all");
		return false;
	}
	if (step.n > 0 && !billing_step_find(step, &q->step)) {
		svc_admin_error(reply, 400, "bad_step", "step is one of hour, day, all");
		return false;
	}
	if (format.n > 0 && !*csv && !cgn_str_is(format, "json")) {
		svc_admin_error(reply, 400, "bad_format", "format is csv or json");
		return false;
	}
	return true;
}

void router_admin_usage(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	uint64_t now = cgn_clock_wall_ms() / 1000 / HOUR_S;
	struct billing_query q = {now - now % 24, now + 1, BILLING_BY_TENANT, BILLING_STEP_ALL,
		r->published.rules->currency};
	struct cgn_err err;
	bool csv = false;
	if (!query_get(h, &q, &csv, reply))
		return;
	if (csv)
		reply->content_type = "text/csv; charset=utf-8";
	if (!cgn_ok(gw_usage_report(r->shared.usage, &q, csv, &reply->body, &err)))
		svc_admin_error(reply, err.code == CGN_TOO_LARGE ? 400 : 503, "no_report", err.msg);
}

/* ---- /tenants ---- */

static void amount_put(struct json_out *j, const char *key, enum budget_unit unit, uint64_t amount)
{
	static const double scales[BUDGET_UNITS] = {1, 1, (double)BUDGET_MONEY_SCALE,
		(double)BUDGET_JOULE_SCALE};
	json_key_f64(j, key, (double)amount / scales[unit]);
}

static void budget_put(struct json_out *j, const struct budget *b, const struct budget_account *a)
{
	const struct budget_spell *spell = &a->spells[b->window][0];
	uint64_t spent = spell->spent.v[b->unit];
	char text[BUDGET_TEXT_MAX];
	budget_text(b, text);
	json_open(j, '{');
	json_key_z(j, "budget", text);
	json_key_z(j, "unit", budget_unit_text(b));
	json_key_z(j, "window", budget_window_text(b->window));
	amount_put(j, "limit", b->unit, b->limit);
	amount_put(j, "spent", b->unit, spent);
	amount_put(j, "left", b->unit, spent < b->limit ? b->limit - spent : 0);
	json_key_u64(j, "resets_at", budget_window_end(b->window, spell->number));
	json_close(j, '}');
}

static void rate_put(struct json_out *j, const char *key, const struct limit_rate *rate, double period_s)
{
	json_key(j, key);
	if (limit_is_set(rate))
		json_put_f64(j, (double)rate->units * period_s * (double)CGN_SEC / (double)rate->period);
	else
		json_put_null(j);
}

static void tenant_put(struct json_out *j, struct router *r, const struct gw_tenant *t)
{
	char name[BUDGET_NAME_MAX + 1];
	struct budget_account a;
	(void)snprintf(name, sizeof name, "t:%.*s", CGN_STR_ARG(t->name));
	(void)gw_budgets_get(r->shared.budgets, cgn_str_of(name), &a);
	json_open(j, '{');
	json_key_str(j, "name", t->name);
	json_key_u64(j, "weight", t->weight);
	json_key_u64(j, "max_priority", t->max_priority);
	rate_put(j, "rps", &t->rates.requests, 1);
	rate_put(j, "tokens_per_minute", &t->rates.tokens, 60);
	json_key_open(j, "budgets", '[');
	for (size_t i = 0; i < t->budgets.n; i++)
		budget_put(j, &t->budgets.v[i], &a);
	json_close(j, ']');
	json_close(j, '}');
}

void router_admin_tenants(void *state, const struct http_head *h, struct cgn_str body,
	struct svc_admin_reply *reply)
{
	(void)h;
	(void)body;
	struct router *r = state;
	CGN_LIVE(r, ROUTER_TAG);
	const struct gw_rules *rules = r->published.rules;
	struct json_out j = json_out_to(&reply->body);
	json_open(&j, '{');
	json_key_z(&j, "currency", rules->currency);
	json_key_bool(&j, "shared", r->store.set);
	json_key_open(&j, "tenants", '[');
	for (size_t i = 0; i < rules->n_tenants; i++)
		tenant_put(&j, r, &rules->tenants[i]);
	json_close(&j, ']');
	json_close(&j, '}');
}
