/* SPDX-License-Identifier: Apache-2.0 */
/* explain: how a request was decided, for people. The router tells it as JSON, which is what -o json
 * prints. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/pb/pb.h"
#include "cognitora/v1/control.pb-c.h"
#include "ctl/client.h"

#define DEFAULT_TIMEOUT (10 * CGN_SEC)
#define TEXT_LIMIT      ((size_t)1 << 20) /* strings of one answer */

static CGN_RC ask_explain(const struct ctl_args *a, Cognitora__V1__ExplainResponse **out, struct cgn_err *err)
{
	char id[160] = "";
	uint64_t last = 0;
	Cognitora__V1__ExplainRequest rq = COGNITORA__V1__EXPLAIN_REQUEST__INIT;
	struct ctl_call call = {.method = "Explain",
		.answer = &cognitora__v1__explain_response__descriptor,
		.request = &rq,
		.first = out};
	if (a->n_words > 0 &&
		(a->words[0][0] == '\0' || !cgn_str_copyz(id, sizeof id, cgn_str_of(a->words[0]))))
		return CGN_FAIL(err, INVALID, "that is no request's id");
	CGN_TRY(ctl_flag_u64(a, "--last", 1, 100, &last, err));
	CGN_TRY(ctl_timeout(a, DEFAULT_TIMEOUT, &call.timeout, err));
	rq.id = id;
	rq.last = (uint32_t)last;
	return ctl_client_call(a, CTL_ROUTER, &call, err);
}

/* ---- what stands in it ---- */

struct view {
	struct cgn_arena arena; /* of strings */
	bool colour;
};

static struct json_val member(struct json_val v, const char *key)
{
	struct json_val m = {.type = JSON_NULL};
	if (v.type != JSON_OBJECT || !json_get(v, key, &m))
		m = (struct json_val){.type = JSON_NULL};
	return m;
}

static const char *text(struct view *w, struct json_val v, const char *key)
{
	struct json_val m = member(v, key);
	const char *z = m.type == JSON_STRING ? cgn_arena_strz(&w->arena, json_str(m, &w->arena)) : NULL;
	return z != NULL ? z : "";
}

/* A number as it stands there; "-" when there is none. */
static const char *number(struct view *w, struct json_val v, const char *key)
{
	struct json_val m = member(v, key);
	const char *z = m.type == JSON_NUMBER ? cgn_arena_strz(&w->arena, m.raw) : NULL;
	return z != NULL ? z : "-";
}

static double real(struct json_val v, const char *key)
{
	return v.type == JSON_OBJECT ? json_get_f64(v, key, 0) : 0;
}

static struct json_iter each(struct json_val v, const char *key)
{
	static const char none[] = "[]";
	struct json_val m = member(v, key);
	return json_iter_of(m.type == JSON_ARRAY ? m : (struct json_val){JSON_ARRAY, {none, 2}});
}

/* ---- one decision ---- */

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
	{"PREFILL MS", "predicted_ms", "prefill"},
	{"FETCH MS", "predicted_ms", "fetch"},
	{"SLOWDOWN MS", "predicted_ms", "slowdown"},
};

static void cell(struct ctl_table *t, struct view *w, struct json_val cand, size_t column)
{
	struct json_val from = columns[column].group != NULL ? member(cand, columns[column].group) : cand;
	struct json_val m = member(from, columns[column].name);
	double v = 0;
	uint64_t whole;
	if (json_u64(m, &whole) || !json_f64(m, &v))
		ctl_table_cell(t, "%s", number(w, from, columns[column].name));
	else
		ctl_table_cell(t, "%.*f", v < 10 && v > -10 ? 3 : 1, v);
}

static CGN_RC candidates(struct view *w, struct json_val decision, struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct json_iter it = each(decision, "candidates");
	struct json_val cand;
	ctl_table_column(&t, "NODE", false);
	ctl_table_column(&t, "WHY", false);
	for (size_t i = 0; i < CGN_COUNT(columns); i++)
		ctl_table_column(&t, columns[i].header, true);
	while (json_next_elem(&it, &cand)) {
		const char *why = text(w, cand, "why");
		bool known =
			strcmp(why, "tried") != 0 && strcmp(why, "breaker") != 0 && strcmp(why, "role") != 0;
		ctl_table_cell(&t, "%s", text(w, cand, "node"));
		ctl_table_cell(&t, "%s", why);
		for (size_t i = 0; i < CGN_COUNT(columns); i++)
			if (known)
				cell(&t, w, cand, i);
			else
				ctl_table_cell(&t, "-");
	}
	return t.cells > 0 ? ctl_table_print(&t, false, err) : CGN_OK;
}

static const char *on(const struct view *w, const char *code)
{
	return w->colour ? code : "";
}

static void verdict(struct view *w, struct json_val d, struct cgn_buf *out)
{
	const char *node = text(w, d, "node"), *how = text(w, d, "verdict"), *unit = text(w, d, "unit"),
		   *over = text(w, d, "over");
	double margin = real(d, "margin");
	if (strcmp(how, "picked") != 0)
		cgn_buf_fmt(out, "%snobody%s: %s", on(w, "\033[31m"), on(w, "\033[0m"),
			strcmp(how, "all_full") == 0 ? "every node has all the requests that it may have"
						     : "no node was left");
	else
		cgn_buf_fmt(out, "%s%s%s", on(w, "\033[1;32m"), node, on(w, "\033[0m"));
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
	if (real(d, "try") == 0)
		cgn_buf_putz(out, "\n  the prompt alone");
	else
		cgn_buf_fmt(out, "\n  try %s", number(w, d, "try"));
	cgn_buf_fmt(out, ", policy %s: ", text(w, d, "policy"));
	verdict(w, d, out);
	cgn_buf_fmt(out,
		"  %s blocks of %s %s, %s of them held by every candidate; %s tokens; decided in %s us\n",
		number(w, d, "blocks"), real(d, "block_tokens") > 0 ? number(w, d, "block_tokens") : "",
		real(d, "block_tokens") > 0 ? "tokens" : "bytes", number(w, d, "common_blocks"),
		real(d, "prompt_tokens") > 0 ? number(w, d, "prompt_tokens") : "?", number(w, d, "took_us"));
}

static void shadow_line(struct view *w, struct json_val s, struct cgn_buf *out)
{
	double regret = real(s, "regret_ms");
	bool agrees = json_get_bool(s, "agrees", false);
	cgn_buf_fmt(out, "  %s would have chosen %s", text(w, s, "policy"),
		agrees ? "the same" : text(w, s, "node"));
	if (!agrees)
		cgn_buf_fmt(out, " (holds %s blocks), %g ms %s as predicted", number(w, s, "held_blocks"),
			regret < 0 ? -regret : regret, regret < 0 ? "dearer" : "cheaper");
	cgn_buf_char(out, '\n');
}

static CGN_RC decision(struct view *w, struct json_val d, struct cgn_err *err)
{
	struct cgn_buf head = {0}, tail = {0};
	struct json_iter it = each(d, "shadows");
	struct json_val s;
	decision_lines(w, d, &head);
	CGN_TRY(ctl_print(&head, err));
	CGN_TRY(candidates(w, d, err));
	if (real(d, "candidates_not_kept") > 0)
		cgn_buf_fmt(&tail, "  and %s more that were not kept\n", number(w, d, "candidates_not_kept"));
	while (json_next_elem(&it, &s))
		shadow_line(w, s, &tail);
	return ctl_print(&tail, err);
}

/* ---- a request ---- */

static void end_lines(struct view *w, struct json_val rq, struct cgn_buf *out)
{
	struct json_val end = member(rq, "end"), cached = member(rq, "cached_tokens"),
			first = member(rq, "ttft_ms");
	if (end.type != JSON_OBJECT) {
		cgn_buf_putz(out, "\n  it is not over yet, or its end is not on record\n");
		return;
	}
	cgn_buf_fmt(out, "\n  %s %s after %s ms, %s %s", number(w, end, "status"), text(w, end, "outcome"),
		number(w, end, "total_ms"), number(w, end, "tries"),
		real(end, "tries") > 1 ? "tries" : "try");
	if (member(end, "prompt_tokens").type == JSON_NUMBER)
		cgn_buf_fmt(out, "; %s tokens in, %s out", number(w, end, "prompt_tokens"),
			number(w, end, "completion_tokens"));
	cgn_buf_fmt(out, "\n  cached tokens: predicted %s, actual %s\n", number(w, cached, "predicted"),
		number(w, cached, "actual"));
	cgn_buf_fmt(out, "  ms to the first byte: predicted %s, actual %s; %s with queue and retries\n",
		number(w, first, "predicted"), number(w, first, "actual"),
		number(w, first, "with_queue_and_retries"));
}

static CGN_RC request(struct view *w, struct json_val rq, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	struct json_iter it = each(rq, "tries");
	struct json_val d;
	size_t n = 0;
	cgn_buf_fmt(&out, "%s%s%s  %s  %s\n", on(w, "\033[1m"), text(w, rq, "id"), on(w, "\033[0m"),
		text(w, rq, "at"), text(w, rq, "model"));
	CGN_TRY(ctl_print(&out, err));
	for (; json_next_elem(&it, &d); n++)
		CGN_TRY(decision(w, d, err));
	if (n == 0)
		cgn_buf_putz(&out,
			"\n  no decision of it is on record: it was refused before, or the record has forgotten it\n");
	end_lines(w, rq, &out);
	cgn_buf_char(&out, '\n');
	return ctl_print(&out, err);
}

static CGN_RC requests_print(struct view *w, struct json_val doc, struct cgn_err *err)
{
	struct json_iter it = each(doc, "requests");
	struct json_val rq;
	while (json_next_elem(&it, &rq))
		CGN_TRY(request(w, rq, err));
	return CGN_OK;
}

/* ---- the last ones ---- */

static void list_row(struct view *w, struct json_val rq, struct ctl_table *t)
{
	struct json_val end = member(rq, "end"), cached = member(rq, "cached_tokens"),
			first = member(rq, "ttft_ms"), d = {.type = JSON_NULL}, next;
	struct json_iter it = each(rq, "tries");
	unsigned tries = 0;
	for (; json_next_elem(&it, &next); tries++)
		d = next;
	ctl_table_cell(t, "%s", text(w, rq, "at"));
	ctl_table_cell(t, "%s", text(w, rq, "id"));
	ctl_table_cell(t, "%s", text(w, rq, "model"));
	ctl_table_cell(t, "%s", text(w, d, "node"));
	ctl_table_cell(t, "%s", text(w, d, "policy"));
	ctl_table_cell(t, "%u", tries);
	ctl_table_cell(t, "%s", number(w, d, "margin"));
	ctl_table_cell(t, "%s", end.type == JSON_OBJECT ? number(w, end, "status") : "in flight");
	ctl_table_cell(t, "%s", number(w, cached, "predicted"));
	ctl_table_cell(t, "%s", number(w, cached, "actual"));
	ctl_table_cell(t, "%s", number(w, first, "predicted"));
	ctl_table_cell(t, "%s", number(w, first, "actual"));
}

static CGN_RC list_print(struct view *w, struct json_val doc, struct cgn_err *err)
{
	static const char *const headers[] = {"AT", "ID", "MODEL", "NODE", "POLICY", "TRIES", "MARGIN",
		"STATUS", "CACHED PREDICTED", "CACHED", "TTFT MS PREDICTED", "TTFT MS"};
	struct ctl_table t = {0};
	struct json_iter it = each(doc, "requests");
	struct json_val rq;
	for (size_t i = 0; i < CGN_COUNT(headers); i++)
		ctl_table_column(&t, headers[i], i > 4);
	while (json_next_elem(&it, &rq))
		list_row(w, rq, &t);
	return ctl_table_print(&t, false, err);
}

static CGN_RC print(const struct ctl_args *a, const char *json, struct cgn_err *err)
{
	struct view w = {.colour = ctl_is_terminal(STDOUT_FILENO)};
	struct json_val doc;
	cgn_arena_init(&w.arena, TEXT_LIMIT);
	cgn_rc rc = json_parse(cgn_str_of(json), &doc, NULL, err);
	if (cgn_ok(rc))
		rc = a->n_words > 0 ? requests_print(&w, doc, err) : list_print(&w, doc, err);
	cgn_arena_fini(&w.arena);
	return rc;
}

CGN_RC ctl_explain(const struct ctl_args *a, struct cgn_err *err)
{
	Cognitora__V1__ExplainResponse *rs = NULL;
	CGN_TRY(ask_explain(a, &rs, err));
	struct cgn_buf out = {0};
	cgn_buf_fmt(&out, "%s\n", rs->json);
	cgn_rc rc = a->json ? ctl_print(&out, err) : print(a, rs->json, err);
	cgn_buf_fini(&out);
	pb_free(&rs);
	return rc;
}
