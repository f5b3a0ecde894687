/* SPDX-License-Identifier: Apache-2.0 */
/* ask: one line of a batch as a request to this router's own gateway. */
#include <stdlib.h>

#include "base/json/json.h"
#include "io/wire/http/client.h"
#include "policy/answer/opening/opening.h"
#include "policy/who/claims/kept.h"
#include "router/answer/batch/runner_priv.h"
#include "router/request/request/answer.h"

#define CONNECT_HOLD (CGN_SEC)      /* After a call that did not reach the gateway. */
#define BUSY_HOLD    (CGN_SEC)      /* After a refusal that says nothing of the time. */
#define LEARN_SHARE  0.05           /* Share of a new line in the average time of lines. */
#define HOLD_MAX     (60 * CGN_SEC) /* Longest wait that is taken from Retry-After. */

static void call_free(struct batch_call *c)
{
	struct batch_runner *w = c->run->owner;
	cgn_list_drop(&c->link);
	w->n_calls--;
	c->run->asked--;
	cgn_buf_fini(&c->answer);
	free(c);
}

/* Ask the line again, and none of the batch before |hold| from now on. */
static void line_again(struct batch_call *c, cgn_nsec hold)
{
	struct batch_run *run = c->run;
	cgn_nsec until = cgn_loop_now(run->owner->loop) + hold;
	run->lines[c->line].state = LINE_WAITS;
	if (c->line < run->cursor)
		run->cursor = c->line;
	if (hold > 0 && until > run->hold_until)
		run->hold_until = until;
}

/* An engine may say behind a 200 that it failed. */
static enum opening_says answer_says(const struct batch_call *c)
{
	struct opening o;
	if (c->status / 100 != 2)
		return OPENING_ANSWER;
	opening_init(&o, OPENING_JSON, opening_answers(cgn_str_of(c->run->b.endpoint)),
		CGN_STR("application/json"));
	(void)opening_feed(&o, cgn_buf_view(&c->answer));
	return opening_end(&o);
}

static void line_end(struct batch_call *c, const char *code, const char *message)
{
	const struct batch_answer a = {.batch_id = c->run->b.id,
		.custom_id = c->custom_id,
		.line = c->line,
		.status = code == NULL ? c->status : 0,
		.request_id = cgn_str_of(c->request_id),
		.body = cgn_buf_view(&c->answer),
		.code = code,
		.message = message};
	batch_journal_add(c->run, c->line, &a,
		code != NULL || c->status / 100 != 2 || answer_says(c) != OPENING_ANSWER);
}

/* The gateway refuses the creator: the batch ends. */
static void run_stop(struct batch_call *c)
{
	struct batch_run *run = c->run;
	struct json_val v, error;
	struct cgn_arena a;
	char text[220];
	cgn_arena_init(&a, 4096);
	struct cgn_str why = {NULL, 0};
	if (cgn_ok(json_parse(cgn_buf_view(&c->answer), &v, NULL, NULL)) && json_get(v, "error", &error))
		why = json_get_str(error, "message", &a);
	(void)snprintf(text, sizeof text, "the %s that made the batch is refused: %.*s",
		run->b.by_token ? "caller" : "key", (int)(why.n < 160 ? why.n : 160), why.n > 0 ? why.p : "");
	cgn_arena_fini(&a);
	line_again(c, 0);
	if (!run->stopped)
		batch_fault_add(&run->b, run->b.by_token ? "caller_refused" : "key_refused", 0, text);
	run->stopped = true;
}

static void time_learn(const struct batch_call *c)
{
	struct batch_runner *w = c->run->owner;
	double took = (double)cgn_since(cgn_loop_now(w->loop), c->asked_at) / (double)CGN_SEC;
	w->line_s = w->line_s > 0 ? w->line_s + LEARN_SHARE * (took - w->line_s) : took;
}

static cgn_nsec hold_of(const struct batch_call *c)
{
	cgn_nsec hold = c->retry_after > 0 ? c->retry_after * CGN_SEC : BUSY_HOLD;
	return hold < HOLD_MAX ? hold : HOLD_MAX;
}

/* The line failed: ask the others first, whose engines may do better. */
static void line_later(struct batch_call *c)
{
	c->run->lines[c->line].state = LINE_LATER;
	c->run->later++;
	batch_journal_tried(c->run, c->line);
}

/* Return true for a failure of an engine, or of the way to it. 401 and 403 of an engine are its own key, not the
 * creator's. */
static bool has_failed(const struct batch_call *c)
{
	bool foreign = c->by[0] == '\0' || strcmp(c->by, GW_BY_ENGINE) == 0;
	return c->status >= 500 || answer_says(c) >= OPENING_ERROR ||
		(foreign && (c->status == 401 || c->status == 403));
}

/* The whole answer is here. Only a refusal of the creator's key is about all lines; any other one is about this line,
 * or about the time. */
static void answer_judge(struct batch_call *c)
{
	struct run_line *line = &c->run->lines[c->line];
	bool busy = c->status == 503 || (c->status == 429 && (c->retry_after > 0 || !c->never));
	if (c->answer.bad)
		line_end(c, "answer_too_large", "the answer has more than 32 MiB");
	else if (strcmp(c->by, GW_BY_KEY) == 0 && (c->status == 401 || c->status == 403))
		run_stop(c);
	else if (busy)
		line_again(c, hold_of(c)); /* The line waits as long as the batch may. */
	else if (has_failed(c) && ++line->tries < BATCH_TRIES)
		line_later(c);
	else {
		time_learn(c);
		line_end(c, NULL, NULL);
	}
}

static void on_head(struct http_call *call, void *user, const struct http_head *h)
{
	struct batch_call *c = user;
	uint64_t seconds = 0;
	(void)call;
	c->status = h->status;
	(void)cgn_str_copyz(c->by, sizeof c->by, http_head_get(h, "x-cgn-refused-by"));
	(void)cgn_str_copyz(c->request_id, sizeof c->request_id, http_head_get(h, "x-request-id"));
	c->never = cgn_str_is(http_head_get(h, "x-should-retry"), "false");
	if (cgn_str_u64(http_head_get(h, "retry-after"), &seconds))
		c->retry_after = seconds < 86400 ? (unsigned)seconds : 86400;
}

static void on_body(struct http_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	cgn_buf_add(&((struct batch_call *)user)->answer, p, n);
}

static void on_end(struct http_call *call, void *user, const struct http_field *trailers, size_t n)
{
	struct batch_call *c = user;
	struct batch_runner *w = c->run->owner;
	(void)call;
	(void)trailers;
	(void)n;
	answer_judge(c);
	call_free(c);
	batch_runner_fill(w);
}

static void on_fail(struct http_call *call, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct batch_call *c = user;
	struct run_line *line = &c->run->lines[c->line];
	(void)call;
	(void)why;
	/* A connection that was closed before it was used says nothing of the line. */
	bool cut = stage == HTTP_FAIL_HEAD || stage == HTTP_FAIL_BODY;
	if (cut && ++line->tries >= BATCH_TRIES)
		line_end(c, "answer_cut", "the answer broke off each time that the line was asked");
	else if (cut)
		line_later(c);
	else
		line_again(c, stage == HTTP_FAIL_STALE ? 0 : CONNECT_HOLD);
	call_free(c);
}

static const struct http_call_ops call_ops = {
	.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail,
};

static CGN_RC call_start(struct batch_call *c, struct cgn_str body, struct cgn_err *err)
{
	const struct batch_run *run = c->run;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bearer = {0};
	char id[BATCH_ID_MAX + 24];
	(void)snprintf(id, sizeof id, "%s-%zu", run->b.id, c->line + 1);
	cgn_buf_fmt(&bearer, "Bearer %s", run->owner->cfg.shared->batch_pass);
	if (run->b.by_token)
		claims_kept_field(cgn_str_of(run->b.holder), &bearer);
	else
		cgn_buf_putz(&bearer, run->b.key);
	const struct http_field fields[] = {{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("x-cgn-priority"), CGN_STR("0")}, {CGN_STR("x-cgn-retry"), CGN_STR("unbegun")},
		{CGN_STR("x-request-id"), cgn_str_of(id)}, {CGN_STR("authorization"), cgn_buf_view(&bearer)}};
	const struct iovec iov = {(void *)(uintptr_t)body.p, body.n}; /* Only read. */
	const struct http_request rq = {.method = "POST",
		.path = run->b.endpoint,
		.fields = fields,
		.n_fields = CGN_COUNT(fields) - (run->b.key[0] == '\0'),
		.body_len = (int64_t)body.n,
		.body = &iov,
		.n_body = 1};
	return http_call_start(run->owner->client, &rq, &call_ops, c, &c->call, err);
}

void batch_ask(struct batch_run *run, size_t i)
{
	struct batch_runner *w = run->owner;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct batch_line line;
	struct cgn_err err;
	struct batch_call *c = CGN_NEW(struct batch_call);
	*c = (struct batch_call){.run = run,
		.line = i,
		.asked_at = cgn_loop_now(w->loop),
		.answer = {.limit = BATCH_ANSWER_MAX}};
	cgn_list_push(&w->calls, &c->link);
	w->n_calls++;
	run->asked++;
	run->lines[i].state = LINE_ASKED;
	cgn_rc rc = batch_input_line(run, i, &text, &line, &err);
	if (cgn_ok(rc)) {
		(void)memcpy(c->custom_id, line.custom_id, sizeof c->custom_id);
		rc = call_start(c, line.body, &err);
	}
	if (!cgn_ok(rc)) {
		line_again(c, CONNECT_HOLD);
		call_free(c);
	}
}

void batch_ask_cancel(struct batch_runner *w, const struct batch_run *run)
{
	cgn_list_each_safe (it, &w->calls) {
		struct batch_call *c = CGN_CONTAINER(it, struct batch_call, link);
		if (run != NULL && c->run != run)
			continue;
		http_call_cancel(&c->call);
		line_again(c, 0);
		call_free(c);
	}
}
