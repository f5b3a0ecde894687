/* SPDX-License-Identifier: Apache-2.0 */
/* explain: shows routing decisions. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cognitora/v1/control.pb-c.h"
#include "ctl/cluster/list.h"

#define TEXT_LIMIT ((size_t)1 << 20) /* Bytes of strings in one answer. */

static CGN_RC ask_explain(const struct ctl_args *a, struct cgn_buf *out, struct cgn_err *err)
{
	char id[160] = "", session[160] = "";
	const char *wanted = ctl_flag(a, "--session");
	uint64_t last = 0;
	Cognitora__V1__ExplainRequest rq = COGNITORA__V1__EXPLAIN_REQUEST__INIT;
	if (a->n_words > 0 &&
		(a->words[0][0] == '\0' || !cgn_str_copyz(id, sizeof id, cgn_str_of(a->words[0]))))
		return CGN_FAIL(err, INVALID, "the request id is empty or too long");
	if (wanted != NULL && (a->n_words > 0 || !cgn_str_copyz(session, sizeof session, cgn_str_of(wanted))))
		return CGN_FAIL(err, INVALID,
			"--session takes the id of a session; a request id cannot be given with it");
	CGN_TRY(ctl_flag_u64(a, "--last", 1, 100, &last, err));
	rq.id = id;
	rq.session = session;
	rq.last = (uint32_t)last;
	return ctl_document_get(a, "Explain", &rq, PROTO_DOCUMENT_EXPLAIN, out, err);
}

/* ---- values ---- */

struct view {
	struct cgn_arena arena; /* Holds strings. */
	bool colour;
};

static struct json_val member_of(struct json_val v, const char *key)
{
	struct json_val m = {.type = JSON_NULL};
	if (v.type != JSON_OBJECT || !json_get(v, key, &m))
		m = (struct json_val){.type = JSON_NULL};
	return m;
}

/* Return a string in the form for a terminal; "" when it is missing. */
static const char *text_of(struct view *w, struct json_val v, const char *key)
{
	struct json_val m = member_of(v, key);
	return ctl_shown(m.type == JSON_STRING ? cgn_arena_strz(&w->arena, json_str(m, &w->arena)) : NULL);
}

/* Return a number as written; "-" when it is missing. */
static const char *number_of(struct view *w, struct json_val v, const char *key)
{
	struct json_val m = member_of(v, key);
	const char *z = m.type == JSON_NUMBER ? cgn_arena_strz(&w->arena, m.raw) : NULL;
	return z != NULL ? z : "-";
}

static double real_of(struct json_val v, const char *key)
{
	return v.type == JSON_OBJECT ? json_get_f64(v, key, 0) : 0;
}

static struct json_iter members_of(struct json_val v, const char *key)
{
	static const char none[] = "[]";
	struct json_val m = member_of(v, key);
	return json_iter_of(m.type == JSON_ARRAY ? m : (struct json_val){JSON_ARRAY, {none, 2}});
}

/* ---- a decision ---- */

static const struct {
	const char *header, *group, *name;
} columns[] = {
	{"SCORE", NULL, "score"},
	{"HELD", NULL, "held_blocks"},
	{"GPU", "held_by_tier", "gpu"},
	{"RAM", "held_by_tier", "ram"},
	{"SSD", "held_by_tier", "ssd"},
	{"REMOTE", "held_by_tier", "remote"},
	{"INFLIGHT", NULL, "inflight"},
	{"OTHERS", NULL, "others"},
	{"DECODING", NULL, "decoding"},
	{"QUEUED", NULL, "queued_tokens"},
	{"KV", "terms", "kv"},
	{"LOAD", "terms", "load"},
	{"POWER", "terms", "power"},
	{"CAPACITY", "terms", "capacity"},
	{"QUEUE MS", "predicted_ms", "queue"},
	{"LOAD MS", "predicted_ms", "load"},
	{"PREFILL MS", "predicted_ms", "prefill"},
	{"FETCH MS", "predicted_ms", "fetch"},
	{"SLOWDOWN MS", "predicted_ms", "slowdown"},
	{"EVICT MS", "predicted_ms", "evict"},
	{"JOULES", NULL, "joules"},
};

static void put_cell(struct ctl_table *t, struct view *w, struct json_val cand, size_t column)
{
	struct json_val from = columns[column].group != NULL ? member_of(cand, columns[column].group) : cand;
	struct json_val m = member_of(from, columns[column].name);
	double v = 0;
	uint64_t whole;
	if (json_u64(m, &whole) || !json_f64(m, &v))
		ctl_table_cell(t, "%s", number_of(w, from, columns[column].name));
	else
		ctl_table_cell(t, "%.*f", v < 10 && v > -10 ? 3 : 1, v);
}

static CGN_RC put_candidates(struct view *w, struct json_val decision, struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_iter it = members_of(decision, "candidates");
	struct json_val cand;
	ctl_table_column(&t, "NODE", false);
	ctl_table_column(&t, "WHY", false);
	for (size_t i = 0; i < CGN_COUNT(columns); i++)
		ctl_table_column(&t, columns[i].header, true);
	while (json_next_elem(&it, &cand)) {
		const char *why = text_of(w, cand, "why");
		bool known = strcmp(why, "tried") != 0 && strcmp(why, "breaker") != 0 &&
			strcmp(why, "role") != 0 && strcmp(why, "handoff") != 0;
		ctl_table_cell(&t, "%s", text_of(w, cand, "node"));
		ctl_table_cell(&t, "%s", why);
		for (size_t i = 0; i < CGN_COUNT(columns); i++)
			if (known)
				put_cell(&t, w, cand, i);
			else
				ctl_table_cell(&t, "-");
	}
	return t.cells > 0 ? ctl_table_print(&t, false, err) : CGN_OK;
}

static const char *colour_code(const struct view *w, const char *code)
{
	return w->colour ? code : "";
}

static void put_verdict(struct view *w, struct json_val d, struct cgn_buf *out)
{
	const char *node = text_of(w, d, "node"), *how = text_of(w, d, "verdict"),
		   *unit = text_of(w, d, "unit"), *over = text_of(w, d, "over");
	double margin = real_of(d, "margin");
	if (strcmp(how, "picked") != 0)
		cgn_buf_fmt(out, "%sno node%s: %s", colour_code(w, "\033[31m"), colour_code(w, "\033[0m"),
			strcmp(how, "all_full") == 0 ? "every node has all the requests that it may have"
						     : "no node was left");
	else
		cgn_buf_fmt(out, "%s%s%s", colour_code(w, "\033[1;32m"), node, colour_code(w, "\033[0m"));
	if (over[0] != '\0' && margin == 0)
		cgn_buf_fmt(out, ", no better than %s", over);
	else if (over[0] != '\0' && margin > 0)
		cgn_buf_fmt(out, ", by %g %s before %s", margin, unit, over);
	else if (over[0] != '\0')
		cgn_buf_fmt(out, ", although %s is better by %g %s: too little to count, or left to chance",
			over, -margin, unit);
	else if (strcmp(unit, "turn") == 0)
		cgn_buf_putz(out, ", by turn or chance");
	cgn_buf_char(out, '\n');
}

static void decision_lines(struct view *w, struct json_val d, struct cgn_buf *out)
{
	if (real_of(d, "try") == 0)
		cgn_buf_putz(out, "\n  the prompt alone");
	else
		cgn_buf_fmt(out, "\n  try %s", number_of(w, d, "try"));
	cgn_buf_fmt(out, ", policy %s: ", text_of(w, d, "policy"));
	put_verdict(w, d, out);
	cgn_buf_fmt(out,
		"  %s blocks of %s %s, %s of them held by every candidate; %s tokens; decided in %s us\n",
		number_of(w, d, "blocks"),
		real_of(d, "block_tokens") > 0 ? number_of(w, d, "block_tokens") : "",
		real_of(d, "block_tokens") > 0 ? "tokens" : "bytes", number_of(w, d, "common_blocks"),
		real_of(d, "prompt_tokens") > 0 ? number_of(w, d, "prompt_tokens") : "?",
		number_of(w, d, "took_us"));
}

static void shadow_line(struct view *w, struct json_val s, struct cgn_buf *out)
{
	double believed = real_of(s, "believed_ms");
	bool agrees = json_get_bool(s, "agrees", false);
	cgn_buf_fmt(out, "  %s would have chosen %s", text_of(w, s, "policy"),
		agrees ? "the same" : text_of(w, s, "node"));
	if (!agrees)
		cgn_buf_fmt(out, " (holds %s blocks), %g ms %s as the router believes",
			number_of(w, s, "held_blocks"), believed < 0 ? -believed : believed,
			believed < 0 ? "dearer" : "cheaper");
	cgn_buf_char(out, '\n');
}

/* Append "812.3 ms (a to b)", or "not possible". */
static void shape_words(struct view *w, struct json_val s, const char *key, const char *first,
	const char *second, struct cgn_buf *out)
{
	struct json_val shape = member_of(s, key);
	if (member_of(shape, "cost_ms").type != JSON_NUMBER) {
		cgn_buf_putz(out, "not possible");
		return;
	}
	cgn_buf_fmt(out, "%s ms (%s", number_of(w, shape, "cost_ms"), text_of(w, shape, first));
	if (second != NULL)
		cgn_buf_fmt(out, " to %s", text_of(w, shape, second));
	cgn_buf_char(out, ')');
}

static const char *split_chosen(const char *shape)
{
	return strcmp(shape, "pair") == 0     ? "a prefill node computes the prompt, a decode node answers"
		: strcmp(shape, "whole") == 0 ? "one node computes the prompt and answers"
					      : "a prefill node computes the prompt and answers";
}

static const char *split_reason(const char *by)
{
	return strcmp(by, "cost") == 0      ? "the lowest predicted cost"
		: strcmp(by, "tokens") == 0 ? "router.disagg.colocate_below_tokens"
					    : "no pair of nodes with room and equal hand-offs";
}

static void split_lines(struct view *w, struct json_val s, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "  %s: %s\n    two nodes ", split_chosen(text_of(w, s, "chosen")),
		split_reason(text_of(w, s, "by")));
	shape_words(w, s, "pair", "prefill", "decode", out);
	if (member_of(member_of(s, "pair"), "cost_ms").type == JSON_NUMBER)
		cgn_buf_fmt(out, ", of that %s ms to move %s tokens", number_of(w, s, "transfer_ms"),
			number_of(w, s, "moved_tokens"));
	cgn_buf_putz(out, "; one node ");
	shape_words(w, s, "whole", "node", NULL, out);
	cgn_buf_putz(out, "; a prefill node alone ");
	shape_words(w, s, "continues", "node", NULL, out);
	cgn_buf_char(out, '\n');
}

static void peer_line(struct view *w, struct json_val p, struct cgn_buf *out)
{
	const char *by = text_of(w, p, "by");
	cgn_buf_fmt(out, "  peer %s%s: first byte after %s ms ", text_of(w, p, "peer"),
		json_get_bool(p, "left", false) ? ", which got it" : "", number_of(w, p, "ttft_ms"));
	cgn_buf_fmt(out, "%s; holds %s blocks",
		strcmp(by, "summary") == 0           ? "by its summary"
			: strcmp(by, "stale") == 0   ? "as measured: its summary is too old"
			: strcmp(by, "demoted") == 0 ? "as measured: its summary was wrong too often"
			: strcmp(by, "full") == 0    ? "as measured, but by its summary it has no room"
						     : "as measured",
		number_of(w, p, "held_blocks"));
	if (member_of(p, "price").type == JSON_NUMBER)
		cgn_buf_fmt(out, "; price %.4g", json_get_f64(p, "price", 0));
	if (member_of(p, "joules").type == JSON_NUMBER)
		cgn_buf_fmt(out, "; %s J", number_of(w, p, "joules"));
	cgn_buf_char(out, '\n');
}

static CGN_RC put_decision(struct view *w, struct json_val d, struct cgn_err *err)
{
	struct cgn_buf head = {0}, tail = {0};
	struct json_iter it = members_of(d, "shadows"), peers = members_of(d, "peers");
	struct json_val s;
	decision_lines(w, d, &head);
	while (json_next_elem(&peers, &s))
		peer_line(w, s, &head);
	if (member_of(d, "split").type == JSON_OBJECT)
		split_lines(w, member_of(d, "split"), &head);
	CGN_TRY(ctl_print(&head, err));
	CGN_TRY(put_candidates(w, d, err));
	if (real_of(d, "candidates_not_kept") > 0)
		cgn_buf_fmt(&tail, "  and %s more that were not kept\n",
			number_of(w, d, "candidates_not_kept"));
	while (json_next_elem(&it, &s))
		shadow_line(w, s, &tail);
	return ctl_print(&tail, err);
}

/* ---- a request ---- */

static void end_lines(struct view *w, struct json_val rq, struct cgn_buf *out)
{
	struct json_val end = member_of(rq, "end"), cached = member_of(rq, "cached_tokens"),
			first = member_of(rq, "ttft_ms");
	if (end.type != JSON_OBJECT) {
		cgn_buf_putz(out, "\n  it is not over yet, or its end is not on record\n");
		return;
	}
	cgn_buf_fmt(out, "\n  %s %s after %s ms, %s %s", number_of(w, end, "status"),
		text_of(w, end, "outcome"), number_of(w, end, "total_ms"), number_of(w, end, "tries"),
		real_of(end, "tries") > 1 ? "tries" : "try");
	if (text_of(w, end, "session")[0] != '\0')
		cgn_buf_fmt(out, "; turn %s of session %s", number_of(w, end, "turn"),
			text_of(w, end, "session"));
	if (member_of(end, "prompt_tokens").type == JSON_NUMBER)
		cgn_buf_fmt(out, "; %s tokens in, %s out", number_of(w, end, "prompt_tokens"),
			number_of(w, end, "completion_tokens"));
	cgn_buf_fmt(out, "\n  cached tokens: predicted %s, actual %s\n", number_of(w, cached, "predicted"),
		number_of(w, cached, "actual"));
	cgn_buf_fmt(out, "  TTFT: %s ms, of it %s ms at the node that answered, predicted %s ms\n",
		number_of(w, first, "actual"), number_of(w, first, "node_actual"),
		number_of(w, first, "node_predicted"));
}

static CGN_RC put_request(struct view *w, struct json_val rq, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_iter it = members_of(rq, "tries");
	struct json_val d;
	size_t n = 0;
	cgn_buf_fmt(&out, "%s%s%s  %s  %s\n", colour_code(w, "\033[1m"), text_of(w, rq, "id"),
		colour_code(w, "\033[0m"), text_of(w, rq, "at"), text_of(w, rq, "model"));
	CGN_TRY(ctl_print(&out, err));
	for (; json_next_elem(&it, &d); n++)
		CGN_TRY(put_decision(w, d, err));
	if (n == 0)
		cgn_buf_putz(&out,
			"\n  no decision of it is on record: it was refused before, or the record has forgotten it\n");
	end_lines(w, rq, &out);
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

static CGN_RC requests_print(struct view *w, struct json_val doc, struct cgn_err *err)
{
	struct json_iter it = members_of(doc, "requests");
	struct json_val rq;
	while (json_next_elem(&it, &rq))
		CGN_TRY(put_request(w, rq, err));
	return CGN_OK;
}

/* ---- the list ---- */

/* A request of the list, and its last decision. */
struct listed {
	struct view *w;
	struct json_val rq, end, cached, first, last;
	double tries; /* Before the end the decisions so far, among them one to wait. */
};

static void list_row(struct ctl_table *t, const void *of)
{
	const struct listed *l = of;
	CTL_CELL(t, "AT", "%s", text_of(l->w, l->rq, "at"));
	CTL_CELL(t, "ID", "%s", text_of(l->w, l->rq, "id"));
	CTL_CELL(t, "MODEL", "%s", text_of(l->w, l->rq, "model"));
	CTL_CELL(t, "NODE", "%s", text_of(l->w, l->last, "node"));
	CTL_CELL(t, "POLICY", "%s", text_of(l->w, l->last, "policy"));
	CTL_CELL(t, "TRIES", "%.0f", l->tries);
	CTL_CELL_RIGHT(t, "MARGIN", "%s", number_of(l->w, l->last, "margin"));
	CTL_CELL_RIGHT(t, "STATUS", "%s",
		l->end.type == JSON_OBJECT ? number_of(l->w, l->end, "status") : "in flight");
	CTL_CELL_RIGHT(t, "SESSION", "%s",
		text_of(l->w, l->end, "session")[0] != '\0' ? text_of(l->w, l->end, "session") : "-");
	CTL_CELL_RIGHT(t, "TURN", "%s", number_of(l->w, l->end, "turn"));
	CTL_CELL_RIGHT(t, "CACHED PREDICTED", "%s", number_of(l->w, l->cached, "predicted"));
	CTL_CELL_RIGHT(t, "CACHED", "%s", number_of(l->w, l->cached, "actual"));
	CTL_CELL_RIGHT(t, "NODE MS PREDICTED", "%s", number_of(l->w, l->first, "node_predicted"));
	CTL_CELL_RIGHT(t, "NODE MS", "%s", number_of(l->w, l->first, "node_actual"));
	CTL_CELL_RIGHT(t, "TTFT MS", "%s", number_of(l->w, l->first, "actual"));
}

static CGN_RC list_print(struct view *w, struct json_val doc, struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_iter it = members_of(doc, "requests");
	struct json_val rq, next;
	ctl_table_head(&t, list_row);
	while (json_next_elem(&it, &rq)) {
		struct listed l = {.w = w,
			.rq = rq,
			.end = member_of(rq, "end"),
			.cached = member_of(rq, "cached_tokens"),
			.first = member_of(rq, "ttft_ms"),
			.last = {.type = JSON_NULL}};
		struct json_iter tries = members_of(rq, "tries");
		for (; json_next_elem(&tries, &next); l.tries++)
			l.last = next;
		if (l.end.type == JSON_OBJECT)
			l.tries = real_of(l.end, "tries");
		list_row(&t, &l);
	}
	return ctl_table_print(&t, false, err);
}

static CGN_RC print_answer(const struct ctl_args *a, struct cgn_str json, struct cgn_err *err)
{
	struct view w = {.colour = ctl_is_terminal(STDOUT_FILENO)};
	struct json_val doc;
	cgn_arena_init(&w.arena, TEXT_LIMIT);
	cgn_rc rc = json_parse(json, &doc, NULL, err);
	if (cgn_ok(rc))
		rc = a->n_words > 0 ? requests_print(&w, doc, err) : list_print(&w, doc, err);
	cgn_arena_fini(&w.arena);
	return rc;
}

CGN_RC ctl_explain(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	CGN_TRY(ask_explain(a, &out, err));
	cgn_buf_char(&out, '\n');
	return a->json ? ctl_print(&out, err) : print_answer(a, cgn_buf_view(&out), err);
}
