/* SPDX-License-Identifier: Apache-2.0 */
#include "io/wire/webask/webask.h"
#include "base/weburl/weburl.h"

#include <stdlib.h>

#define WEBASK_TAG 0xa9e17003U

struct webask {
	uint32_t tag;
	struct cgn_loop *loop;
	struct http_call *call;
	struct cgn_timer timeout;
	struct cgn_buf body;
	int status;
	webask_done *done;
	void *user;
	struct cgn_grave grave;
};

static void fetch_release(struct cgn_grave *g)
{
	struct webask *f = CGN_CONTAINER(g, struct webask, grave);
	cgn_buf_fini(&f->body);
	f->tag = 0;
	free(f);
}

static void fetch_retire(struct webask *f)
{
	cgn_timer_cancel(&f->timeout);
	if (f->call != NULL)
		http_call_cancel(&f->call);
	cgn_loop_bury(f->loop, &f->grave, fetch_release);
}

static void fetch_finish(struct webask *f, const struct cgn_err *err, bool refused, bool stale)
{
	const struct webask_answer r = {.err = err,
		.refused = refused,
		.stale = stale,
		.status = f->status,
		.body = cgn_buf_view(&f->body)};
	webask_done *done = f->done;
	if (done == NULL)
		return;
	f->done = NULL;
	done(f->user, &r);
	fetch_retire(f);
}

static void fetch_fail(struct webask *f, enum cgn_code code, const char *sentence)
{
	struct cgn_err err = {0};
	(void)CGN_FAIL_AS(&err, code, "%s", sentence);
	fetch_finish(f, &err, false, false);
}

static void fetch_on_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct webask *f = user;
	(void)c;
	CGN_LIVE(f, WEBASK_TAG);
	f->status = h->status;
}

static void fetch_on_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct webask *f = user;
	(void)c;
	CGN_LIVE(f, WEBASK_TAG);
	cgn_buf_add(&f->body, p, n);
	if (f->body.bad)
		fetch_fail(f, CGN_TOO_LARGE, "the engine's answer is too long");
}

static void fetch_on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct webask *f = user;
	const struct cgn_err fine = {0};
	(void)c;
	(void)trailers;
	(void)n;
	CGN_LIVE(f, WEBASK_TAG);
	f->call = NULL;
	fetch_finish(f, &fine, false, false);
}

static void fetch_on_fail(struct http_call *c, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	struct webask *f = user;
	(void)c;
	CGN_LIVE(f, WEBASK_TAG);
	f->call = NULL;
	/* A lack of time or memory on our side does not show that the engine's port is closed. */
	bool ours = why->code == CGN_DEADLINE || why->code == CGN_NO_MEMORY;
	fetch_finish(f, why, stage == HTTP_FAIL_CONNECT && !ours, stage == HTTP_FAIL_STALE);
}

static void fetch_on_timeout(struct cgn_timer *t)
{
	struct webask *f = CGN_CONTAINER(t, struct webask, timeout);
	CGN_LIVE(f, WEBASK_TAG);
	fetch_fail(f, CGN_DEADLINE, "the engine did not answer in time");
}

static const struct http_call_ops fetch_http_ops = {.on_head = fetch_on_head,
	.on_body = fetch_on_body,
	.on_end = fetch_on_end,
	.on_fail = fetch_on_fail};

static CGN_RC fetch_send(struct webask *f, const struct webask_endpoint *endpoint,
	const struct webask_question *ask, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 1024};
	size_t n = 2;
	struct http_field fields[3 + WEBASK_FIELDS] = {
		{CGN_STR("accept"), CGN_STR("*/*")},
		{CGN_STR("content-type"), cgn_str_of(ask->type != NULL ? ask->type : "application/json")},
	};
	CGN_MUST(ask->n_fields <= WEBASK_FIELDS);
	if (endpoint->authorization != NULL)
		fields[n++] =
			(struct http_field){CGN_STR("authorization"), cgn_str_of(endpoint->authorization)};
	for (size_t i = 0; i < ask->n_fields; i++)
		fields[n++] = ask->fields[i];
	union {
		const char *in;
		void *out;
	} json = {.in = ask->json.p};
	const struct iovec body = {json.out, ask->json.n};
	weburl_path(endpoint->url, cgn_str_of(ask->path), &path);
	const struct http_request rq = {
		.method = ask->json.p != NULL ? "POST" : "GET",
		.path = cgn_buf_z(&path),
		.fields = fields,
		.n_fields = n,
		.body_len = (int64_t)ask->json.n,
		.body = ask->json.n > 0 ? &body : NULL,
		.n_body = ask->json.n > 0,
	};
	return http_call_start(endpoint->client, &rq, &fetch_http_ops, f, &f->call, err);
}

CGN_RC webask_start(struct cgn_loop *l, const struct webask_endpoint *endpoint,
	const struct webask_question *ask, webask_done *done, void *user, struct webask **out,
	struct cgn_err *err)
{
	struct webask *f = CGN_NEW(struct webask);
	*f = (struct webask){.tag = WEBASK_TAG,
		.loop = l,
		.body = {.limit = ask->max_bytes},
		.done = done,
		.user = user};
	cgn_rc rc = fetch_send(f, endpoint, ask, err);
	if (!cgn_ok(rc)) {
		free(f);
		return rc;
	}
	cgn_timer_init(&f->timeout, l, fetch_on_timeout);
	cgn_timer_set(&f->timeout, ask->timeout);
	*out = f;
	return CGN_OK;
}

void webask_cancel(struct webask **take)
{
	struct webask *f = CGN_TAKE(take);
	if (f == NULL || f->done == NULL)
		return;
	CGN_LIVE(f, WEBASK_TAG);
	f->done = NULL;
	fetch_retire(f);
}

bool webask_is_ok(const struct webask_answer *r)
{
	return r->err->code == CGN_FINE && r->status == 200;
}
