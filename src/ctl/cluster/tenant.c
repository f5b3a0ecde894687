/* SPDX-License-Identifier: Apache-2.0 */
/* tenant: tenants and their budgets, from a router's admin port. */

#include "base/core/utc.h"
#include "base/json/json.h"
#include "ctl/ctl.h"

#define NAME_MAX_BYTES 128

/* A tenant, and one of its budgets; the type of |budget| is JSON_NULL where the tenant has none. */
struct tenant_listed {
	const char *name;
	struct json_val tenant, budget;
};

/* Append the name of the budget or share. */
static void name_put(struct json_val of, const char *member, struct cgn_buf *out)
{
	struct json_val v;
	if (json_get(of, member, &v) && v.type == JSON_STRING)
		json_str_to(v, out);
}

static void tenant_row(struct ctl_table *t, const void *of)
{
	const struct tenant_listed *l = of;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf budget = {0};
	char resets[40] = "-";
	bool any = !t->heading && l->budget.type == JSON_OBJECT;
	if (any) {
		name_put(l->budget, "budget", &budget);
		(void)cgn_utc_text((int64_t)json_get_u64(l->budget, "resets_at", 0), "%Y-%m-%d %H:%M UTC",
			resets, sizeof resets);
	}
	CTL_CELL(t, "TENANT", "%s", l->name);
	CTL_CELL(t, "WEIGHT", "%llu", (unsigned long long)json_get_u64(l->tenant, "weight", 1));
	CTL_CELL(t, "BUDGET", "%s", any ? cgn_buf_z(&budget) : "-");
	CTL_CELL(t, "SPENT", any ? "%.12g" : "-", json_get_f64(l->budget, "spent", 0));
	CTL_CELL(t, "LEFT", any ? "%.12g" : "-", json_get_f64(l->budget, "left", 0));
	CTL_CELL(t, "RESETS", "%s", resets);
}

/* Add the tenant's budgets, one in a row. Returns false if it is not |only| (NULL: any). */
static bool tenant_rows(struct ctl_table *t, struct json_val tenant, const char *only)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf name = {.limit = NAME_MAX_BYTES};
	struct json_val v, budget;
	if (json_get(tenant, "name", &v) && v.type == JSON_STRING)
		json_str_to(v, &name);
	if (only != NULL && !cgn_str_is(cgn_buf_view(&name), only))
		return false;
	size_t n = 0;
	if (json_get(tenant, "budgets", &v) && v.type == JSON_ARRAY)
		for (struct json_iter it = json_iter_of(v); json_next_elem(&it, &budget); n++)
			tenant_row(t, &(struct tenant_listed){cgn_buf_z(&name), tenant, budget});
	if (n == 0)
		tenant_row(t, &(struct tenant_listed){cgn_buf_z(&name), tenant, {.type = JSON_NULL}});
	return true;
}

static void share_row(struct ctl_table *t, const void *of)
{
	const struct json_val *share = of;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf name = {0};
	char limit[24] = "-";
	uint64_t most = t->heading ? 0 : json_get_u64(*share, "limit", 0);
	if (!t->heading)
		name_put(*share, "share", &name);
	if (most > 0)
		(void)snprintf(limit, sizeof limit, "%llu", (unsigned long long)most);
	CTL_CELL(t, "SHARE", "%s", cgn_buf_z(&name));
	CTL_CELL(t, "HELD", "%llu", t->heading ? 0ULL : (unsigned long long)json_get_u64(*share, "held", 0));
	CTL_CELL(t, "LIMIT", "%s", limit);
}

/* Make a table of what the tenant holds of what all tenants share. */
static void shares_list(struct ctl_table *t, struct json_val tenant)
{
	struct json_val list, share;
	ctl_table_head(t, share_row);
	if (!json_get(tenant, "shares", &list) || list.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &share);)
		share_row(t, &share);
}

static CGN_RC tenant_print(struct ctl_table *budgets, struct json_val tenant, struct cgn_err *err)
{
	struct ctl_table shares = {0};
	struct cgn_buf line = {0};
	CGN_TRY(ctl_table_print(budgets, false, err));
	cgn_buf_char(&line, '\n');
	CGN_TRY(ctl_print(&line, err));
	shares_list(&shares, tenant);
	return ctl_table_print(&shares, false, err);
}

static CGN_RC tenants_show(struct cgn_str text, const char *only, bool json, struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_val doc, list, tenant;
	bool any = false;
	CGN_TRY(json_parse(text, &doc, NULL, err));
	if (!json_get(doc, "tenants", &list) || list.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "the router's answer has no list of tenants");
	ctl_table_head(&t, tenant_row);
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &tenant);) {
		bool shown = tenant_rows(&t, tenant, only);
		any = any || shown;
		if (shown && only != NULL && !json)
			return tenant_print(&t, tenant, err);
		if (!shown || only == NULL || !json)
			continue;
		struct cgn_buf one = {0};
		cgn_buf_str(&one, tenant.raw);
		cgn_buf_char(&one, '\n');
		cgn_buf_fini(&t.text);
		return ctl_print(&one, err);
	}
	if (any || only == NULL)
		return ctl_table_print(&t, false, err);
	cgn_buf_fini(&t.text);
	return CGN_FAIL(err, NOT_FOUND,
		"the router's configuration has no tenant \"%.64s\", and none of that name holds anything",
		only);
}

static CGN_RC tenants_get(const struct ctl_args *a, const char *only, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	cgn_rc rc = ctl_admin_get(a, "/tenants", &out, err);
	if (cgn_ok(rc) && a->json && only == NULL)
		return ctl_print(&out, err);
	if (cgn_ok(rc))
		rc = tenants_show(cgn_buf_view(&out), only, a->json, err);
	cgn_buf_fini(&out);
	return rc;
}

CGN_RC ctl_tenant_ls(const struct ctl_args *a, struct cgn_err *err)
{
	return tenants_get(a, NULL, err);
}

CGN_RC ctl_tenant_show(const struct ctl_args *a, struct cgn_err *err)
{
	return tenants_get(a, a->words[0], err);
}
