/* SPDX-License-Identifier: Apache-2.0 */
/* bench fit: finds the engine model of nodes from the requests in a router's access log. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "bench/common/report.h"
#include "bench/common/traces.h"
#include "io/os/disk/disk.h"
#include "lab/fit/fit.h"
#include "policy/who/auth/auth.h"

#define MAX_FILE  ((size_t)4 << 30)
#define MAX_TERMS ((size_t)1 << 20)
#define MAX_NODES 256
#define MS        1e6

struct fitting {
	struct fit_cfg cfg;
	const char *model, *node;        /* NULL: any. */
	struct cgn_buf requests;         /* Elements are struct fit_request. */
	struct cgn_str nodes[MAX_NODES]; /* Raw, in the text of the log. */
	uint64_t lines, passed;          /* Lines of answered prompts; those of them that a fit cannot use. */
};

/* ---- the log ---- */

enum field {
	F_EVENT,
	F_OUTCOME,
	F_TIME,
	F_NODE,
	F_MODEL,
	F_STATUS,
	F_TTFT,
	F_TOTAL,
	F_QUEUED,
	F_PROMPT,
	F_ANSWER,
	F_CACHED,
	F_STREAM,
	F_TRIES,
	F_DISAGG,
	F_FIELDS
};
static const char *const fields[F_FIELDS] = {[F_EVENT] = "event",
	[F_OUTCOME] = "outcome",
	[F_TIME] = "time",
	[F_NODE] = "node",
	[F_MODEL] = "model",
	[F_STATUS] = "status",
	[F_TTFT] = "ttft_ms",
	[F_TOTAL] = "total_ms",
	[F_QUEUED] = "queued_ms",
	[F_PROMPT] = "prompt_tokens",
	[F_ANSWER] = "completion_tokens",
	[F_CACHED] = "cached_tokens",
	[F_STREAM] = "stream",
	[F_TRIES] = "tries",
	[F_DISAGG] = "disagg"};

/* Return the text of a string without its quotes; log lines escape nothing in the fields that are read here. */
static struct cgn_str text_of(struct json_val v)
{
	return v.type == JSON_STRING && v.raw.n >= 2 ? (struct cgn_str){v.raw.p + 1, v.raw.n - 2}
						     : (struct cgn_str){NULL, 0};
}

static double number_of(struct json_val v)
{
	double n = 0;
	return v.raw.p != NULL && json_f64(v, &n) && n > 0 ? n : 0;
}

static uint32_t tokens_of(struct json_val v)
{
	double n = number_of(v);
	return n < TRACE_MAX_TOKENS ? (uint32_t)n : TRACE_MAX_TOKENS;
}

/* Read a time such as 2026-11-29T15:31:40.045Z as nanoseconds since 1970. */
static bool time_read(struct cgn_str s, cgn_nsec *out)
{
	char second[] = "YYYY-MM-DDTHH:MM:SSZ";
	uint64_t unix_s = 0, ms = 0;
	if (s.n != sizeof second - 1 + 4 || s.p[19] != '.' ||
		!cgn_str_u64((struct cgn_str){s.p + 20, 3}, &ms))
		return false;
	memcpy(second, s.p, 19);
	if (!auth_time_parse(cgn_str_of(second), &unix_s))
		return false;
	*out = unix_s * CGN_SEC + ms * CGN_MSEC;
	return true;
}

static bool node_number(struct fitting *f, struct cgn_str name, uint32_t *out)
{
	for (*out = 0; *out < f->cfg.nodes; ++*out)
		if (cgn_str_eq(f->nodes[*out], name))
			return true;
	if (f->cfg.nodes == MAX_NODES)
		return false;
	f->nodes[f->cfg.nodes++] = name;
	return true;
}

static bool is_wanted(const struct fitting *f, const struct json_val *v)
{
	return cgn_str_is(text_of(v[F_EVENT]), "gateway.request") && tokens_of(v[F_PROMPT]) > 0 &&
		(f->model == NULL || cgn_str_is(text_of(v[F_MODEL]), f->model)) &&
		(f->node == NULL || cgn_str_is(text_of(v[F_NODE]), f->node));
}

/* Return true if one node computed all of the answer, and the log says so. */
static bool request_read(struct fitting *f, const struct json_val *v, struct fit_request *out)
{
	cgn_nsec ended = 0, queued = (cgn_nsec)(number_of(v[F_QUEUED]) * MS),
		 total = (cgn_nsec)(number_of(v[F_TOTAL]) * MS),
		 first = (cgn_nsec)(number_of(v[F_TTFT]) * MS);
	*out = (struct fit_request){.prompt = tokens_of(v[F_PROMPT]),
		.answer = tokens_of(v[F_ANSWER]),
		.cached = tokens_of(v[F_CACHED])};
	if (!cgn_str_is(text_of(v[F_OUTCOME]), "ok") || number_of(v[F_STATUS]) != 200 ||
		number_of(v[F_TRIES]) > 1 || text_of(v[F_DISAGG]).n > 0 || out->answer == 0 ||
		total <= queued || !time_read(text_of(v[F_TIME]), &ended) || ended <= total ||
		!node_number(f, text_of(v[F_NODE]), &out->node))
		return false;
	out->came = ended - total + queued;
	out->ended = total - queued;
	out->first = json_bool(v[F_STREAM], false) && first > queued && first <= total ? first - queued : 0;
	out->cached = out->cached < out->prompt ? out->cached : out->prompt - 1;
	return true;
}

static void line_read(struct fitting *f, struct cgn_str line)
{
	struct json_val root, v[F_FIELDS];
	struct fit_request q;
	if (!cgn_ok(json_parse(line, &root, NULL, NULL)))
		return; /* The log may be cut, or have lines of other programs. */
	json_pick(root, fields, F_FIELDS, v);
	if (!is_wanted(f, v))
		return;
	f->lines++;
	if (request_read(f, v, &q))
		cgn_buf_add(&f->requests, &q, sizeof q);
	else
		f->passed++;
}

static int came_compare(const void *a, const void *b)
{
	const struct fit_request *x = a, *y = b;
	return (x->came > y->came) - (x->came < y->came);
}

/* Read the log, and keep the last |limit| requests in the order in which they came. */
static CGN_RC log_read(struct fitting *f, struct cgn_str text, const char *path, size_t limit,
	const struct fit_request **out, size_t *n, struct cgn_err *err)
{
	while (text.n > 0)
		line_read(f, cgn_str_split(&text, '\n'));
	if (f->requests.bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the requests of %s", path);
	struct fit_request *q = (struct fit_request *)(void *)f->requests.p;
	*n = f->requests.n / sizeof *q;
	if (*n < FIT_LEAST)
		return CGN_FAIL(err, INVALID,
			"%s has %zu requests that a fit can use, of %" PRIu64
			" answered ones; it needs %d (lines of router.access_log with one try, tokens and status 200)",
			path, *n, f->lines, FIT_LEAST);
	qsort(q, *n, sizeof *q, came_compare);
	*out = *n > limit ? q + (*n - limit) : q;
	*n = *n > limit ? limit : *n;
	return CGN_OK;
}

/* ---- report ---- */

/* Return the value of the term's flag; of the delay, milliseconds. */
static double flag_value(const struct fit_result *r, enum fit_term_id t)
{
	double ns = r->terms[t].ns;
	switch (t) {
	case FIT_TOKEN:
		return 1e9 / ns;
	case FIT_STEP:
	case FIT_DELAY:
		return ns * 1e-6;
	case FIT_SEQUENCE:
		return ns / r->terms[FIT_STEP].ns;
	case FIT_CONTEXT:
	case FIT_PAIR:
	case FIT_TERMS:
		break;
	}
	return ns;
}

static const char *const flags[FIT_TERMS] = {
#define TERM(id, label, flag, help) flag,
#include "lab/fit/terms.def"
#undef TERM
};
static const char *const helps[FIT_TERMS] = {
#define TERM(id, label, flag, help) help,
#include "lab/fit/terms.def"
#undef TERM
};

static void number_or_null(struct json_out *o, const char *key, bool known, double v)
{
	if (known) {
		json_key_f64(o, key, v);
		return;
	}
	json_key(o, key);
	json_put_null(o);
}

static void times_json(struct json_out *o, const struct fit_times *t)
{
	const struct {
		const char *name;
		double ns;
	} rows[] = {{"ttft_p50_ms", t->ttft_measured[0]}, {"ttft_p99_ms", t->ttft_measured[1]},
		{"itl_p50_ms", t->itl_measured[0]}, {"itl_p99_ms", t->itl_measured[1]},
		{"model_ttft_p50_ms", t->ttft_model[0]}, {"model_ttft_p99_ms", t->ttft_model[1]},
		{"model_itl_p50_ms", t->itl_model[0]}, {"model_itl_p99_ms", t->itl_model[1]}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		json_key_f64(o, rows[i].name, rows[i].ns / MS);
}

static CGN_RC report_json(const struct fitting *f, const struct fit_result *r, size_t n, struct cgn_err *err)
{
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "fit");
	json_key_u64(o, "requests", n);
	json_key_u64(o, "passed_over", f->passed);
	json_key_u64(o, "nodes", f->cfg.nodes);
	json_key_bool(o, "overlap", r->overlaps);
	json_key_f64(o, "alone_ttft_error", r->first_error);
	json_key_f64(o, "decode_error", r->decode_error);
	times_json(o, &r->times);
	json_key_open(o, "results", '[');
	for (enum fit_term_id t = 0; t < FIT_TERMS; t++) {
		json_open(o, '{');
		json_key_z(o, "term", fit_term_labels[t]);
		const bool known = r->terms[t].known;
		number_or_null(o, "ns", known, r->terms[t].ns);
		number_or_null(o, "error", known, r->terms[t].error);
		json_key_bool(o, "known", known);
		json_key_f64(o, "share", r->terms[t].share);
		json_key_z(o, "flag", flags[t]);
		number_or_null(o, "value", known, flag_value(r, t));
		json_close(o, '}');
	}
	return report_end(&doc, err);
}

static void row_put(const struct fit_result *r, enum fit_term_id t, struct ctl_table *table)
{
	const struct fit_term *term = &r->terms[t];
	char ns[32] = "unknown", error[32] = "";
	if (term->known) {
		(void)snprintf(ns, sizeof ns, "%.4g", term->ns);
		(void)snprintf(error, sizeof error, "%.1f %%", 100 * term->error);
	}
	CTL_CELL(table, "TERM", "%s", fit_term_labels[t]);
	CTL_CELL(table, "NANOSECONDS", "%s", ns);
	CTL_CELL_RIGHT(table, "ERROR", "%s", error);
	CTL_CELL(table, "OF THE TIME", "%.1f %%", 100 * term->share);
	CTL_CELL(table, "MEANING", "%s", helps[t]);
}

/* Name the terms that are unknown, with their flags. */
static void unknown_print(const struct fit_result *r)
{
	const char *before = "unknown:";
	for (enum fit_term_id t = 0; t < FIT_TERMS; t++) {
		if (r->terms[t].known)
			continue;
		(void)printf("%s %s%s%s%s", before, fit_term_labels[t], flags[t][0] != '\0' ? " (" : "",
			flags[t], flags[t][0] != '\0' ? ")" : "");
		before = ",";
	}
	if (before[0] == ',')
		(void)printf(
			"; these requests do not tell this, and the other terms were found without it. Without a flag, cgn-sim and bench replay take their default\n");
}

static void flags_print(const struct fit_result *r)
{
	if (!r->terms[FIT_TOKEN].known || !r->terms[FIT_STEP].known) {
		(void)printf(
			"no flags: these requests do not tell the time of a prompt token and of a step; take a log with prompts of several lengths, some of them while the engine is idle\n");
		return;
	}
	(void)printf("flags of cgn-sim and bench replay:");
	for (enum fit_term_id t = 0; t < FIT_TERMS; t++)
		if (flags[t][0] != '\0' && r->terms[t].known)
			(void)printf(" %s %.5g", flags[t], flag_value(r, t));
	(void)printf("%s\n", r->overlaps ? " --overlap" : "");
	unknown_print(r);
}

static void times_print(const char *name, const double measured[2], const double model[2])
{
	(void)printf(
		"%s p50, p99: %.1f, %.1f ms measured; %.1f, %.1f ms when the model plays these requests (%+.0f, %+.0f %%)\n",
		name, measured[0] / MS, measured[1] / MS, model[0] / MS, model[1] / MS,
		100 * (model[0] / measured[0] - 1), 100 * (model[1] / measured[1] - 1));
}

static void times_table(const struct fit_times *t)
{
	times_print("TTFT", t->ttft_measured, t->ttft_model);
	times_print("ITL", t->itl_measured, t->itl_model);
}

static CGN_RC report_table(const struct fitting *f, const struct fit_result *r, size_t n, struct cgn_err *err)
{
	struct ctl_table table = {0};
	(void)printf("%zu requests of %u nodes; %" PRIu64 " lines passed over\n", n, f->cfg.nodes, f->passed);
	for (enum fit_term_id t = 0; t < FIT_TERMS; t++)
		row_put(r, t, &table);
	CGN_TRY(ctl_table_print(&table, false, err));
	(void)printf(
		"median error: %.1f %% to the first token of a prompt that is computed alone, %.1f %% from the first token to the last\n",
		100 * r->first_error, 100 * r->decode_error);
	times_table(&r->times);
	flags_print(r);
	return CGN_OK;
}

/* ---- the terms of another log ---- */

/* Take one of "results". */
static bool term_take(struct json_val row, struct fit_result *out)
{
	struct json_val name, ns;
	double v = 0;
	if (!json_get(row, "term", &name) || !json_get(row, "ns", &ns))
		return false;
	for (int t = 0; t < FIT_TERMS; t++) {
		if (!cgn_str_is(text_of(name), fit_term_labels[t]))
			continue;
		out->terms[t].known = json_f64(ns, &v) && v > 0;
		out->terms[t].ns = out->terms[t].known ? v : 0;
	}
	return true;
}

/* Read the terms from the output of bench fit -o json. */
static CGN_RC terms_read(const char *path, struct fit_result *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val root, rows, row;
	*out = (struct fit_result){.overlaps = false};
	CGN_TRY(disk_read_file(path, MAX_TERMS, &text, err));
	CGN_TRY(json_parse(cgn_buf_view(&text), &root, NULL, err));
	if (!json_get(root, "results", &rows) || rows.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "%s is not what bench fit -o json prints", path);
	out->overlaps = json_get(root, "overlap", &row) && json_bool(row, false);
	struct json_iter it = json_iter_of(rows);
	while (json_next_elem(&it, &row))
		if (!term_take(row, out))
			return CGN_FAIL(err, INVALID, "%s is not what bench fit -o json prints", path);
	if (!out->terms[FIT_TOKEN].known || !out->terms[FIT_STEP].known)
		return CGN_FAIL(err, INVALID, "%s does not tell the time of a prompt token and of a step",
			path);
	return CGN_OK;
}

static CGN_RC terms_judge(const struct ctl_args *a, const struct fitting *f, const char *path,
	const struct fit_request *requests, size_t n, struct cgn_err *err)
{
	struct fit_result terms;
	struct fit_times times;
	struct report_doc doc;
	CGN_TRY(terms_read(path, &terms, err));
	CGN_TRY(fit_play(requests, n, &f->cfg, &terms, &times, err));
	if (!a->json) {
		(void)printf("%zu requests of %u nodes; %" PRIu64 " lines passed over\n", n, f->cfg.nodes,
			f->passed);
		times_table(&times);
		return CGN_OK;
	}
	struct json_out *o = report_begin(&doc, "fit");
	json_key_u64(o, "requests", n);
	json_key_u64(o, "passed_over", f->passed);
	json_key_u64(o, "nodes", f->cfg.nodes);
	times_json(o, &times);
	json_key_open(o, "results", '[');
	return report_end(&doc, err);
}

static CGN_RC run_fit(const struct ctl_args *a, struct fitting *f, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const struct fit_request *requests = NULL;
	struct fit_result result;
	const char *terms = ctl_flag(a, "--terms");
	uint64_t limit = 0;
	size_t n = 0;
	if (a->n_words != 1)
		return CGN_FAIL(err, INVALID, "bench fit takes one access log");
	CGN_TRY(ctl_flag_u64(a, "--limit", FIT_LEAST, FIT_MOST, &limit, err));
	CGN_TRY(ctl_flag_u32(a, "--max-batch", 1, 1000000, &f->cfg.max_batch, err));
	CGN_TRY(ctl_flag_u32(a, "--step-tokens", 1, TRACE_MAX_TOKENS, &f->cfg.step_tokens, err));
	if (f->cfg.step_tokens < f->cfg.max_batch)
		return CGN_FAIL(err, INVALID, "--step-tokens %u is less than --max-batch %u",
			f->cfg.step_tokens, f->cfg.max_batch);
	CGN_TRY(disk_read_file(a->words[0], MAX_FILE, &text, err));
	CGN_TRY(log_read(f, cgn_buf_view(&text), a->words[0], (size_t)limit, &requests, &n, err));
	if (terms != NULL)
		return terms_judge(a, f, terms, requests, n, err);
	CGN_TRY(fit_run(requests, n, &f->cfg, &result, err));
	return (a->json ? report_json : report_table)(f, &result, n, err);
}

CGN_RC ctl_bench_fit(const struct ctl_args *a, struct cgn_err *err)
{
	struct fitting *f = CGN_NEW(struct fitting);
	f->model = ctl_flag(a, "--model");
	f->node = ctl_flag(a, "--node");
	cgn_rc rc = run_fit(a, f, err);
	cgn_buf_fini(&f->requests);
	free(f);
	return rc;
}
