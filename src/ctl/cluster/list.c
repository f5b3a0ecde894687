/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/cluster/list.h"

#include <stdio.h>
#include <time.h>

static void time_cell(struct ctl_table *t, struct json_val v)
{
	uint64_t ms = 0;
	char text[32] = "-";
	struct tm parts;
	if (json_u64(v, &ms)) {
		time_t s = (time_t)(ms / 1000);
		if (gmtime_r(&s, &parts) != NULL)
			(void)strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
	}
	ctl_table_cell(t, "%s", text);
}

static void list_cell(struct ctl_table *t, struct json_val row, const struct ctl_list_column *c)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val v;
	double number;
	bool has = json_get(row, c->key, &v);
	if (has && strcmp(c->key, "at_unix_ms") == 0) {
		time_cell(t, v);
		return;
	}
	if (has && v.type == JSON_STRING)
		json_str_to(v, &text);
	else if (has && json_f64(v, &number))
		cgn_buf_fmt(&text, "%.4g", number);
	ctl_table_cell(t, "%s", text.n > 0 ? cgn_buf_z(&text) : "-");
}

CGN_RC ctl_list_show(struct json_val doc, const char *key, const struct ctl_list_column *columns, size_t n,
	struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_val list, row;
	if (!json_get(doc, key, &list))
		return CGN_FAIL(err, BAD_GATEWAY, "the router's answer has no \"%s\"", key);
	for (size_t i = 0; i < n; i++)
		ctl_table_column(&t, columns[i].header, columns[i].right);
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &row))
		for (size_t i = 0; i < n; i++)
			list_cell(&t, row, &columns[i]);
	return ctl_table_print(&t, false, err);
}

CGN_RC ctl_text_show(const struct ctl_args *a, const char *text,
	cgn_rc (*show)(struct cgn_str text, struct cgn_err *err), struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	if (!a->json)
		return show(cgn_str_of(text), err);
	cgn_buf_fmt(&out, "%s\n", text);
	return ctl_print(&out, err);
}
