/* SPDX-License-Identifier: Apache-2.0 */
/* session: the sessions of agents, from a router's admin port. */
#include "base/codec/codec.h"
#include "base/json/json.h"
#include "ctl/ctl.h"

struct column {
	const char *header, *key;
	bool number;
};
static const struct column session_columns[] = {{"SESSION", "id", false}, {"TENANT", "tenant", false},
	{"FROM", "from", false}, {"STATE", "state", false}, {"TOOL", "tool", false},
	{"MODEL", "model", false}, {"NODE", "node", false}, {"KV", "kv", false}, {"TURNS", "turns", true},
	{"PROMPT", "prompt_tokens", true}, {"CACHED", "cached_tokens", true},
	{"ANSWERS", "completion_tokens", true}, {"CALLS", "tool_calls", true},
	{"IN TOOLS MS", "tool_ms", true}, {"IDLE MS", "idle_ms", true}};
static const struct column tool_columns[] = {{"TOOL", "name", false}, {"SAMPLES", "samples", true},
	{"P50 MS", "p50_ms", true}, {"P90 MS", "p90_ms", true}};

static void value_cell(struct ctl_table *t, struct json_val row, const struct column *c)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val v;
	double number = 0;
	if (json_get(row, c->key, &v) && v.type == JSON_STRING)
		json_str_to(v, &text);
	else if (c->number && json_get(row, c->key, &v) && json_f64(v, &number))
		cgn_buf_fmt(&text, "%.0f", number);
	ctl_table_cell(t, "%s", text.n > 0 ? cgn_buf_z(&text) : "-");
}

static CGN_RC rows_show(struct json_val list, const struct column *columns, size_t n, struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_val row;
	struct json_iter it = json_iter_of(list);
	for (size_t i = 0; i < n; i++)
		ctl_table_column(&t, columns[i].header, columns[i].number);
	while (json_next_elem(&it, &row))
		for (size_t i = 0; i < n; i++)
			value_cell(&t, row, &columns[i]);
	return ctl_table_print(&t, false, err);
}

static CGN_RC sessions_show(struct json_val doc, bool tools, struct cgn_err *err)
{
	struct json_val list;
	const char *key = tools ? "tools" : "sessions";
	if (!json_get(doc, key, &list) || list.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "the router's answer has no \"%s\"", key);
	return tools ? rows_show(list, tool_columns, CGN_COUNT(tool_columns), err)
		     : rows_show(list, session_columns, CGN_COUNT(session_columns), err);
}

static CGN_RC path_make(const struct ctl_args *a, struct cgn_buf *out, struct cgn_err *err)
{
	static const char *const words[] = {"sort", "state", "tenant", "model", "node"};
	uint64_t last = 0, skip = 0;
	CGN_TRY(ctl_flag_u64(a, "--last", 1, 1000, &last, err));
	CGN_TRY(ctl_flag_u64(a, "--skip", 0, 65536, &skip, err));
	cgn_buf_fmt(out, "/sessions?last=%llu&skip=%llu", (unsigned long long)last, (unsigned long long)skip);
	for (size_t i = 0; i < CGN_COUNT(words); i++) {
		char flag[16];
		(void)snprintf(flag, sizeof flag, "--%s", words[i]);
		const char *value = ctl_flag(a, flag);
		if (value == NULL)
			continue;
		cgn_buf_fmt(out, "&%s=", words[i]);
		percent_put(out, cgn_str_of(value));
	}
	return out->bad ? CGN_FAIL(err, NO_MEMORY, "out of memory") : CGN_OK;
}

/* Say on standard error which part of the sessions the page is. */
static void page_tell(const struct ctl_args *a, struct json_val doc)
{
	struct json_val list, row;
	uint64_t matched = json_get_u64(doc, "matched", 0), skip = 0, n = 0;
	struct cgn_err err;
	if (!json_get(doc, "sessions", &list) || !cgn_ok(ctl_flag_u64(a, "--skip", 0, 65536, &skip, &err)))
		return;
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &row))
		n++;
	if (skip + n < matched)
		(void)fprintf(stderr, "%llu of %llu sessions; --skip %llu shows the next ones\n",
			(unsigned long long)n, (unsigned long long)matched, (unsigned long long)(skip + n));
}

CGN_RC ctl_session_ls(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {0};
	struct cgn_buf out = {0};
	struct json_val doc = {.raw = {NULL, 0}};
	CGN_TRY(path_make(a, &path, err));
	cgn_rc rc = ctl_admin_get(a, cgn_buf_z(&path), &out, err);
	if (cgn_ok(rc) && a->json)
		return ctl_print(&out, err);
	if (cgn_ok(rc))
		rc = json_parse(cgn_buf_view(&out), &doc, NULL, err);
	if (cgn_ok(rc))
		rc = sessions_show(doc, ctl_switch(a, "--tools"), err);
	if (cgn_ok(rc) && !ctl_switch(a, "--tools"))
		page_tell(a, doc);
	cgn_buf_fini(&out);
	return rc;
}
