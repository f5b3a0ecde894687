/* SPDX-License-Identifier: Apache-2.0 */
/* tenant: tenants and their budgets, from a router's admin port. */

#include "base/core/utc.h"
#include "base/json/json.h"
#include "ctl/ctl.h"

#define NAME_MAX_BYTES 128

static void tenant_head(struct ctl_table *t)
{
	ctl_table_column(t, "TENANT", false);
	ctl_table_column(t, "WEIGHT", true);
	ctl_table_column(t, "BUDGET", false);
	ctl_table_column(t, "SPENT", true);
	ctl_table_column(t, "LEFT", true);
	ctl_table_column(t, "RESETS", false);
}

static void reset_cell(struct ctl_table *t, uint64_t unix_s)
{
	char text[40];
	(void)cgn_utc_text((int64_t)unix_s, "%Y-%m-%d %H:%M UTC", text, sizeof text);
	ctl_table_cell(t, "%s", text);
}

static void budget_row(struct ctl_table *t, const char *name, struct json_val tenant, struct json_val budget)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val v;
	ctl_table_cell(t, "%s", name);
	ctl_table_cell(t, "%llu", (unsigned long long)json_get_u64(tenant, "weight", 1));
	if (json_get(budget, "budget", &v) && v.type == JSON_STRING)
		json_str_to(v, &text);
	ctl_table_cell(t, "%s", cgn_buf_z(&text));
	ctl_table_cell(t, "%.12g", json_get_f64(budget, "spent", 0));
	ctl_table_cell(t, "%.12g", json_get_f64(budget, "left", 0));
	reset_cell(t, json_get_u64(budget, "resets_at", 0));
}

static void bare_row(struct ctl_table *t, const char *name, struct json_val tenant)
{
	ctl_table_cell(t, "%s", name);
	ctl_table_cell(t, "%llu", (unsigned long long)json_get_u64(tenant, "weight", 1));
	for (unsigned i = 0; i < 4; i++)
		ctl_table_cell(t, "-");
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
			budget_row(t, cgn_buf_z(&name), tenant, budget);
	if (n == 0)
		bare_row(t, cgn_buf_z(&name), tenant);
	return true;
}

static CGN_RC tenants_show(struct cgn_str text, const char *only, bool json, struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_val doc, list, tenant;
	bool any = false;
	CGN_TRY(json_parse(text, &doc, NULL, err));
	if (!json_get(doc, "tenants", &list) || list.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "the router's answer has no list of tenants");
	tenant_head(&t);
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &tenant);) {
		bool shown = tenant_rows(&t, tenant, only);
		any = any || shown;
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
	return CGN_FAIL(err, NOT_FOUND, "the configuration of the router has no tenant \"%.64s\"", only);
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
