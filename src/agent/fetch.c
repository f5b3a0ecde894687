/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "agent/agent.h"

#define FETCH_TAG 0xa9e17003U

struct fetch {
	uint32_t tag;
	struct cgn_loop *loop;
	struct http_call *call;
	struct cgn_timer deadline;
	struct cgn_buf body;
	int status;
	void (*done)(void *user, const struct fetch_result *r);
	void *user;
	struct cgn_grave grave;
};

static void released(struct cgn_grave *g)
{
	struct fetch *f = CGN_CONTAINER(g, struct fetch, grave);
	cgn_buf_fini(&f->body);
	f->tag = 0;
	free(f);
}

static void retire(struct fetch *f)
{
	cgn_timer_cancel(&f->deadline);
	if (f->call != NULL)
		http_call_cancel(&f->call);
	cgn_loop_bury(f->loop, &f->grave, released);
}

static void finish(struct fetch *f, const struct cgn_err *err, bool refused)
{
	const struct fetch_result r = {.err = err,
		.refused = refused,
		.status = f->status,
		.body = cgn_buf_view(&f->body)};
	void (*done)(void *, const struct fetch_result *) = f->done;
	if (done == NULL)
		return;
	f->done = NULL;
	done(f->user, &r);
	retire(f);
}

static void fail(struct fetch *f, enum cgn_code code, const char *sentence)
{
	struct cgn_err err = {0};
	(void)CGN_FAIL_AS(&err, code, "%s", sentence);
	finish(f, &err, false);
}

static void on_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct fetch *f = user;
	(void)c;
	CGN_LIVE(f, FETCH_TAG);
	f->status = h->status;
}

static void on_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct fetch *f = user;
	(void)c;
	CGN_LIVE(f, FETCH_TAG);
	cgn_buf_add(&f->body, p, n);
	if (f->body.bad)
		fail(f, CGN_TOO_LARGE, "its answer is too long");
}

static void on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct fetch *f = user;
	const struct cgn_err fine = {0};
	(void)c;
	(void)trailers;
	(void)n;
	CGN_LIVE(f, FETCH_TAG);
	f->call = NULL;
	finish(f, &fine, false);
}

static void on_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct fetch *f = user;
	(void)c;
	CGN_LIVE(f, FETCH_TAG);
	f->call = NULL;
	finish(f, why, stage == HTTP_FAIL_CONNECT && why->code != CGN_DEADLINE);
}

static void on_deadline(struct cgn_timer *t)
{
	struct fetch *f = CGN_CONTAINER(t, struct fetch, deadline);
	CGN_LIVE(f, FETCH_TAG);
	fail(f, CGN_DEADLINE, "it did not answer in time");
}

static const struct http_call_ops ops = {.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail};

static CGN_RC start_call(struct fetch *f, const struct fetch_ask *ask, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 1024};
	const struct http_field fields[] = {
		{CGN_STR("accept"), CGN_STR("*/*")},
		{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("authorization"), cgn_str_of(ask->authorization)},
	};
	union {
		const char *in;
		void *out;
	} json = {.in = ask->json.p};
	const struct iovec body = {json.out, ask->json.n};
	engine_url_path(ask->url, cgn_str_of(ask->path), &path);
	const struct http_request rq = {
		.method = ask->json.p != NULL ? "POST" : "GET",
		.path = cgn_buf_z(&path),
		.fields = fields,
		.n_fields = ask->authorization != NULL ? 3 : 2,
		.body_len = (int64_t)ask->json.n,
		.body = ask->json.n > 0 ? &body : NULL,
		.n_body = ask->json.n > 0,
	};
	return http_call_start(ask->client, &rq, &ops, f, &f->call, err);
}

CGN_RC fetch_start(struct cgn_loop *l, const struct fetch_ask *ask,
	void (*done)(void *user, const struct fetch_result *r), void *user, struct fetch **out,
	struct cgn_err *err)
{
	struct fetch *f = calloc(1, sizeof *f);
	if (f == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory to ask %s", ask->path);
	*f = (struct fetch){.tag = FETCH_TAG,
		.loop = l,
		.body = {.limit = ask->max_bytes},
		.done = done,
		.user = user};
	cgn_rc rc = start_call(f, ask, err);
	if (!cgn_ok(rc)) {
		free(f);
		return rc;
	}
	cgn_timer_init(&f->deadline, l, on_deadline);
	cgn_timer_set(&f->deadline, ask->timeout);
	*out = f;
	return CGN_OK;
}

void fetch_cancel(struct fetch **take)
{
	struct fetch *f = *take;
	*take = NULL;
	if (f == NULL || f->done == NULL)
		return;
	CGN_LIVE(f, FETCH_TAG);
	f->done = NULL;
	retire(f);
}
