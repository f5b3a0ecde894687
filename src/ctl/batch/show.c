/* SPDX-License-Identifier: Apache-2.0 */
/* show: lists batches, shows one, and waits for its end. */
#include "ctl/batch/show.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/core/utc.h"
#include "joint/ctl/line/progress.h"

#define WORD_MAX  96
#define FAULT_MAX 1024
#define MISSES    60 /* Questions in a row without an answer after which a wait ends. */

struct counts {
	uint64_t total, completed, failed;
};

void batch_member(struct json_val object, const char *key, char *out, size_t cap)
{
	char room[FAULT_MAX];
	struct cgn_buf text = cgn_buf_over(room, sizeof room);
	struct json_val v;
	out[0] = '\0';
	if (json_get(object, key, &v) && v.type == JSON_STRING)
		json_str_to(v, &text);
	(void)cgn_str_copyz(out, cap, cgn_buf_view(&text));
}

static struct counts counts_of(struct json_val b)
{
	struct json_val v;
	if (!json_get(b, "request_counts", &v))
		return (struct counts){0, 0, 0};
	return (struct counts){json_get_u64(v, "total", 0), json_get_u64(v, "completed", 0),
		json_get_u64(v, "failed", 0)};
}

/* Write Unix seconds as UTC; "-" for none. */
static void time_text(struct json_val b, const char *key, char out[32])
{
	int64_t s = (int64_t)json_get_u64(b, key, 0);
	if (s <= 0 || !cgn_utc_text(s, "%Y-%m-%d %H:%M:%S", out, 32))
		(void)strcpy(out, "-");
}

/* ---- a batch ---- */

static bool id_is_plain(const char *id)
{
	return id[0] != '\0' && strlen(id) < WORD_MAX &&
		strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(id);
}

CGN_RC batch_fetch(struct ctl_gateway *g, const char *id, struct cgn_buf *text, struct json_val *out,
	struct cgn_err *err)
{
	char path[WORD_MAX + 32], found[WORD_MAX];
	if (!id_is_plain(id))
		return CGN_FAIL(err, INVALID,
			"'%.100s' is not the id of a batch; cgn-ctl batch ls lists them", id);
	(void)snprintf(path, sizeof path, "/v1/batches/%s", id);
	CGN_TRY(ctl_gateway_ask(g, "GET", path, (struct cgn_str){NULL, 0}, text, err));
	bool whole = cgn_ok(json_parse(cgn_buf_view(text), out, NULL, NULL));
	if (whole)
		batch_member(*out, "id", found, sizeof found);
	return whole && strcmp(found, id) == 0
		? CGN_OK
		: CGN_FAIL(err, BAD_GATEWAY, "the answer to GET %s is not a batch", path);
}

static void faults_text(struct json_val b, struct cgn_buf *out)
{
	struct json_val errors, data, one;
	if (!json_get(b, "errors", &errors) || !json_get(errors, "data", &data) || data.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(data);
	while (json_next_elem(&it, &one)) {
		char code[WORD_MAX], message[FAULT_MAX];
		uint64_t line = json_get_u64(one, "line", 0);
		batch_member(one, "code", code, sizeof code);
		batch_member(one, "message", message, sizeof message);
		cgn_buf_putz(out, "fault      ");
		if (line > 0)
			cgn_buf_fmt(out, "line %llu: ", (unsigned long long)line);
		cgn_buf_fmt(out, "%s (%s)\n", ctl_shown(message), ctl_shown(code));
	}
}

/* Say why no line is sent now. */
static void waiting_text(struct json_val b, struct cgn_buf *out)
{
	struct json_val v;
	char what[WORD_MAX], until[32];
	if (!json_get(b, "waiting", &v) || v.type != JSON_OBJECT)
		return;
	batch_member(v, "for", what, sizeof what);
	time_text(v, "until", until);
	cgn_buf_fmt(out, "waits for  %s, until %s UTC at the latest\n", ctl_shown(what), until);
}

static void batch_text(struct json_val b, struct cgn_buf *out)
{
	static const struct {
		const char *key, *title;
	} rows[] = {{"endpoint", "endpoint"}, {"input_file_id", "input"}, {"output_file_id", "output"},
		{"error_file_id", "errors"}};
	char word[FAULT_MAX], created[32], expires[32];
	struct counts n = counts_of(b);
	batch_member(b, "id", word, sizeof word);
	cgn_buf_fmt(out, "batch      %s\n", ctl_shown(word));
	batch_member(b, "status", word, sizeof word);
	cgn_buf_fmt(out, "status     %s: %llu of %llu lines, %llu failed\n", ctl_shown(word),
		(unsigned long long)(n.completed + n.failed), (unsigned long long)n.total,
		(unsigned long long)n.failed);
	waiting_text(b, out);
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		batch_member(b, rows[i].key, word, sizeof word);
		cgn_buf_fmt(out, "%-10s %s\n", rows[i].title, word[0] != '\0' ? ctl_shown(word) : "-");
	}
	time_text(b, "created_at", created);
	time_text(b, "expires_at", expires);
	cgn_buf_fmt(out, "created    %s UTC\nends by    %s UTC\n", created, expires);
	faults_text(b, out);
}

CGN_RC batch_print(const struct ctl_args *a, struct json_val b, struct cgn_buf *text, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	if (a->json) {
		cgn_buf_char(text, '\n');
		return ctl_print(text, err);
	}
	batch_text(b, &out);
	cgn_buf_fini(text);
	return ctl_print(&out, err);
}

CGN_RC ctl_batch_show(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_gateway_close) struct ctl_gateway *g = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val b = {.raw = {NULL, 0}};
	CGN_TRY(ctl_gateway_open(a, &g, err));
	CGN_TRY(batch_fetch(g, a->words[0], &text, &b, err));
	return batch_print(a, b, &text, err);
}

/* ---- the wait ---- */

static bool status_is_over(const char *status)
{
	static const char *const over[] = {"completed", "failed", "expired", "cancelled"};
	for (size_t i = 0; i < CGN_COUNT(over); i++)
		if (strcmp(status, over[i]) == 0)
			return true;
	return false;
}

/* Show how far the batch is: as a bar on a terminal; elsewhere as a line, when it differs from |last|. */
static CGN_RC progress_show(const struct ctl_args *a, struct json_val b, const char *status, char last[200],
	struct cgn_err *err)
{
	struct counts n = counts_of(b);
	uint64_t done = n.completed + n.failed;
	struct cgn_buf out = {0};
	char now[200];
	(void)snprintf(now, sizeof now, "%s: %llu of %llu lines, %llu failed", status,
		(unsigned long long)done, (unsigned long long)n.total, (unsigned long long)n.failed);
	ctl_progress("%s %s", ctl_bar(n.total > 0 ? (double)done / (double)n.total : 0).text, ctl_shown(now));
	if (ctl_progress_shown() || strcmp(now, last) == 0)
		return CGN_OK;
	(void)strcpy(last, now);
	if (a->json)
		cgn_buf_fmt(&out, "%.*s\n", CGN_STR_ARG(b.raw));
	else
		cgn_buf_fmt(&out, "%s\n", ctl_shown(now));
	cgn_rc rc = ctl_print(&out, err);
	(void)fflush(stdout);
	return rc;
}

static void wait_sleep(cgn_nsec every)
{
	struct timespec left = {(time_t)(every / CGN_SEC), (long)(every % CGN_SEC)};
	while (nanosleep(&left, &left) != 0)
		;
}

/* Ask once. |*misses| counts the questions without an answer: a router may be restarting. */
static CGN_RC wait_ask(struct ctl_gateway *g, const char *id, struct cgn_buf *text, struct json_val *b,
	unsigned *misses, struct cgn_err *err)
{
	text->n = 0;
	cgn_rc rc = batch_fetch(g, id, text, b, err);
	bool silent = rc.code == CGN_UNAVAILABLE || rc.code == CGN_DEADLINE;
	*misses = silent ? *misses + 1 : 0;
	if (!silent || *misses >= MISSES)
		return rc;
	if (*misses == 1)
		(void)fprintf(stderr, "cgn-ctl: %s; waiting for it\n", ctl_shown(err->msg));
	b->raw = (struct cgn_str){NULL, 0};
	return CGN_OK;
}

CGN_RC batch_wait(const struct ctl_args *a, struct ctl_gateway *g, const char *id, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val b = {.raw = {NULL, 0}};
	char status[WORD_MAX] = "", last[200] = "";
	unsigned misses = 0;
	cgn_nsec every = 0;
	CGN_TRY(ctl_flag_duration(a, "--every", &every, err));
	if (every < 10 * CGN_MSEC)
		return CGN_FAIL(err, INVALID, "--every takes at least 10ms");
	for (;;) {
		CGN_TRY(wait_ask(g, id, &text, &b, &misses, err));
		if (b.raw.p != NULL) {
			batch_member(b, "status", status, sizeof status);
			if (status_is_over(status))
				break;
			CGN_TRY(progress_show(a, b, status, last, err));
		}
		wait_sleep(every);
	}
	ctl_progress_end();
	CGN_TRY(batch_print(a, b, &text, err));
	return strcmp(status, "completed") == 0 ? CGN_OK
						: CGN_FAIL(err, CONFLICT, "the batch %s is %s", id, status);
}

CGN_RC ctl_batch_watch(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_gateway_close) struct ctl_gateway *g = NULL;
	CGN_TRY(ctl_gateway_open(a, &g, err));
	return batch_wait(a, g, a->words[0], err);
}

/* ---- the list ---- */

static void word_cell(struct ctl_table *t, const struct json_val *b, const char *header, const char *key,
	bool wide)
{
	char word[WORD_MAX] = "";
	if (!t->heading)
		batch_member(*b, key, word, sizeof word);
	if (wide)
		CTL_CELL_WIDE(t, header, "%s", word[0] != '\0' ? word : "-");
	else
		CTL_CELL(t, header, "%s", word);
}

static void time_cell(struct ctl_table *t, const struct json_val *b, const char *header, const char *key)
{
	char at[32] = "";
	if (!t->heading)
		time_text(*b, key, at);
	CTL_CELL(t, header, "%s", at);
}

static void list_row(struct ctl_table *t, const void *of)
{
	const struct json_val *b = of;
	struct counts n = t->heading ? (struct counts){0} : counts_of(*b);
	word_cell(t, b, "BATCH", "id", false);
	word_cell(t, b, "STATUS", "status", false);
	CTL_CELL(t, "LINES", "%llu", (unsigned long long)n.total);
	CTL_CELL(t, "COMPLETED", "%llu", (unsigned long long)n.completed);
	CTL_CELL(t, "FAILED", "%llu", (unsigned long long)n.failed);
	time_cell(t, b, "CREATED (UTC)", "created_at");
	time_cell(t, b, "ENDS BY (UTC)", "expires_at");
	word_cell(t, b, "ENDPOINT", "endpoint", true);
	word_cell(t, b, "INPUT", "input_file_id", true);
	word_cell(t, b, "OUTPUT", "output_file_id", true);
	word_cell(t, b, "ERRORS", "error_file_id", true);
}

static CGN_RC list_print(struct json_val list, struct cgn_err *err, bool wide)
{
	struct ctl_table t = {.wide = wide};
	struct json_val data, one;
	ctl_table_head(&t, list_row);
	if (json_get(list, "data", &data) && data.type == JSON_ARRAY) {
		struct json_iter it = json_iter_of(data);
		while (json_next_elem(&it, &one))
			list_row(&t, &one);
	}
	CGN_TRY(ctl_table_print(&t, false, err));
	char last[WORD_MAX];
	batch_member(list, "last_id", last, sizeof last);
	if (json_get_bool(list, "has_more", false))
		(void)fprintf(stderr, "older batches follow: --after %s\n", ctl_shown(last));
	return CGN_OK;
}

CGN_RC ctl_batch_ls(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_gateway_close) struct ctl_gateway *g = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val list = {.raw = {NULL, 0}};
	const char *after = ctl_flag(a, "--after");
	uint64_t limit = 0;
	char path[200];
	CGN_TRY(ctl_flag_u64(a, "--limit", 1, 100, &limit, err));
	if (after != NULL && !id_is_plain(after))
		return CGN_FAIL(err, INVALID, "--after takes the id of a batch, not '%.100s'", after);
	(void)snprintf(path, sizeof path, "/v1/batches?limit=%u%s%s", (unsigned)limit,
		after != NULL ? "&after=" : "", after != NULL ? after : "");
	CGN_TRY(ctl_gateway_open(a, &g, err));
	CGN_TRY(ctl_gateway_ask(g, "GET", path, (struct cgn_str){NULL, 0}, &text, err));
	if (!cgn_ok(json_parse(cgn_buf_view(&text), &list, NULL, NULL)) || list.type != JSON_OBJECT)
		return CGN_FAIL(err, BAD_GATEWAY, "the answer to GET %s is not a list of batches", path);
	if (!a->json)
		return list_print(list, err, a->wide);
	cgn_buf_char(&text, '\n');
	return ctl_print(&text, err);
}
