/* SPDX-License-Identifier: Apache-2.0 */
/* usage: the usage of tenants, from a router's admin port. */
#include <string.h>

#include "ctl/cluster/list.h"
#include "policy/who/billing/billing.h"

#define MAX_TIME 64

/* A time as the router reads it: letters, digits, '-', ':' only. */
static CGN_RC query_add(struct cgn_buf *path, const char *key, const char *value, struct cgn_err *err)
{
	if (value == NULL)
		return CGN_OK;
	for (const char *p = value; *p != '\0'; p++)
		if (strchr("0123456789-:TZ", *p) == NULL || strlen(value) > MAX_TIME)
			return CGN_FAIL(err, INVALID,
				"--%s is a time in UTC, such as 2026-11-23 or 2026-11-23T13:00Z", key);
	cgn_buf_fmt(path, "&%s=%s", key, value);
	return CGN_OK;
}

static CGN_RC usage_path(const struct ctl_args *a, struct cgn_buf *path, struct cgn_err *err)
{
	enum billing_by by;
	enum billing_step step;
	if (!billing_by_find(cgn_str_of(ctl_flag(a, "--by")), &by))
		return CGN_FAIL(err, INVALID, "--by is one of tenant, key, model, all");
	if (!billing_step_find(cgn_str_of(ctl_flag(a, "--step")), &step))
		return CGN_FAIL(err, INVALID, "--step is one of all, hour, day");
	cgn_buf_fmt(path, "/usage?by=%s&step=%s", ctl_flag(a, "--by"), ctl_flag(a, "--step"));
	if (ctl_switch(a, "--csv"))
		cgn_buf_putz(path, "&format=csv");
	CGN_TRY(query_add(path, "from", ctl_flag(a, "--from"), err));
	return query_add(path, "to", ctl_flag(a, "--to"), err);
}

static const struct ctl_list_column amounts[] = {{"requests", "REQUESTS", CTL_LIST_AS_IS},
	{"estimated", "ESTIMATED", CTL_LIST_AS_IS}, {"input_tokens", "INPUT", CTL_LIST_AS_IS},
	{"cached_tokens", "CACHED", CTL_LIST_AS_IS}, {"output_tokens", "OUTPUT", CTL_LIST_AS_IS},
	{"money", "MONEY", CTL_LIST_AS_IS}, {"joules", "JOULES", CTL_LIST_AS_IS}};

static CGN_RC usage_show(const struct ctl_args *a, struct json_val doc, struct cgn_err *err)
{
	const char *by = ctl_flag(a, "--by");
	struct ctl_list_column columns[CGN_COUNT(amounts) + 2];
	size_t n = 0;
	if (strcmp(ctl_flag(a, "--step"), "all") != 0)
		columns[n++] = (struct ctl_list_column){"time", "TIME", CTL_LIST_TEXT};
	if (strcmp(by, "all") != 0)
		columns[n++] = (struct ctl_list_column){by,
			strcmp(by, "key") == 0             ? "KEY"
				: strcmp(by, "model") == 0 ? "MODEL"
							   : "TENANT",
			CTL_LIST_TEXT};
	memcpy(columns + n, amounts, sizeof amounts);
	return ctl_list_show(doc, "usage", columns, n + CGN_COUNT(amounts), err);
}

CGN_RC ctl_usage(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {0};
	struct cgn_buf out = {0};
	struct json_val doc = {.raw = {NULL, 0}};
	if (a->json && ctl_switch(a, "--csv"))
		return CGN_FAIL(err, INVALID, "--csv and -o json exclude each other");
	CGN_TRY(usage_path(a, &path, err));
	cgn_rc rc = ctl_admin_get(a, cgn_buf_z(&path), &out, err);
	if (cgn_ok(rc) && (a->json || ctl_switch(a, "--csv")))
		return ctl_print(&out, err);
	if (cgn_ok(rc))
		rc = json_parse(cgn_buf_view(&out), &doc, NULL, err);
	if (cgn_ok(rc))
		rc = usage_show(a, doc, err);
	cgn_buf_fini(&out);
	return rc;
}
