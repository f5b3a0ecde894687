/* SPDX-License-Identifier: Apache-2.0 */
/* session: the sessions of agents, from a router's admin port. */
#include "base/codec/codec.h"
#include "ctl/cluster/list.h"

static const struct ctl_list_column session_columns[] = {{"id", "SESSION", CTL_LIST_TEXT},
	{"tenant", "TENANT", CTL_LIST_TEXT}, {"from", "FROM", CTL_LIST_TEXT},
	{"state", "STATE", CTL_LIST_TEXT}, {"tool", "TOOL", CTL_LIST_TEXT}, {"model", "MODEL", CTL_LIST_TEXT},
	{"node", "NODE", CTL_LIST_TEXT}, {"kv", "KV", CTL_LIST_TEXT}, {"turns", "TURNS", CTL_LIST_WHOLE},
	{"prompt_tokens", "PROMPT", CTL_LIST_WHOLE}, {"cached_tokens", "CACHED", CTL_LIST_WHOLE},
	{"completion_tokens", "ANSWERS", CTL_LIST_WHOLE}, {"tool_calls", "CALLS", CTL_LIST_WHOLE},
	{"tool_ms", "IN TOOLS MS", CTL_LIST_WHOLE}, {"idle_ms", "IDLE MS", CTL_LIST_WHOLE}};
static const struct ctl_list_column tool_columns[] = {{"name", "TOOL", CTL_LIST_TEXT},
	{"samples", "SAMPLES", CTL_LIST_WHOLE}, {"p50_ms", "P50 MS", CTL_LIST_WHOLE},
	{"p90_ms", "P90 MS", CTL_LIST_WHOLE}};

static CGN_RC sessions_show(struct json_val doc, bool tools, struct cgn_err *err)
{
	return tools ? ctl_list_show(doc, "tools", tool_columns, CGN_COUNT(tool_columns), err)
		     : ctl_list_show(doc, "sessions", session_columns, CGN_COUNT(session_columns), err);
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
