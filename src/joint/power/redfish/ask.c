/* SPDX-License-Identifier: Apache-2.0 */
/* ask: one request to the BMC and its answer, within bounds. */
#include <string.h>

#include "base/codec/codec.h"
#include "redfish_priv.h"

static void ask_finish(struct redfish_bmc *b, const struct cgn_err *err)
{
	struct redfish_request *q = &b->request;
	redfish_on_answer *done = q->done;
	cgn_timer_cancel(&q->timeout);
	if (q->call != NULL)
		http_call_cancel(&q->call);
	q->done = NULL;
	q->answer.err = err;
	q->answer.body = cgn_buf_view(&q->body);
	done(b, &q->answer);
}

static void ask_on_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct redfish_bmc *b = user;
	struct redfish_answer *a = &b->request.answer;
	(void)c;
	CGN_LIVE(b, REDFISH_BMC_TAG);
	a->status = h->status;
	(void)cgn_str_copyz(a->location, sizeof a->location, http_head_get(h, "location"));
	if (!cgn_str_copyz(a->token, sizeof a->token, http_head_get(h, "x-auth-token")))
		a->token[0] = '\0'; /* Half a token is none */
}

static void ask_on_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct redfish_bmc *b = user;
	struct cgn_err err = {0};
	(void)c;
	CGN_LIVE(b, REDFISH_BMC_TAG);
	cgn_buf_add(&b->request.body, p, n);
	if (!b->request.body.bad)
		return;
	(void)CGN_FAIL(&err, TOO_LARGE, "the document is longer than %zu bytes", REDFISH_MAX_DOCUMENT);
	ask_finish(b, &err);
}

static void ask_on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct redfish_bmc *b = user;
	const struct cgn_err fine = {0};
	(void)c;
	(void)trailers;
	(void)n;
	CGN_LIVE(b, REDFISH_BMC_TAG);
	b->request.call = NULL;
	ask_finish(b, &fine);
}

static void ask_on_fail(struct http_call *c, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	struct redfish_bmc *b = user;
	(void)c;
	(void)stage;
	CGN_LIVE(b, REDFISH_BMC_TAG);
	b->request.call = NULL;
	ask_finish(b, why);
}

static void ask_on_timeout(struct cgn_timer *t)
{
	struct redfish_bmc *b = CGN_CONTAINER(t, struct redfish_bmc, request.timeout);
	struct cgn_err err = {0};
	CGN_LIVE(b, REDFISH_BMC_TAG);
	(void)CGN_FAIL(&err, DEADLINE, "the answer was not whole within %g s",
		(double)b->timeout * 2 / (double)CGN_SEC);
	ask_finish(b, &err);
}

static const struct http_call_ops ask_ops = {.on_head = ask_on_head,
	.on_body = ask_on_body,
	.on_end = ask_on_end,
	.on_fail = ask_on_fail};

/* Append the Authorization or X-Auth-Token field to |fields|; the text lies in |room|. */
static size_t put_credentials(const struct redfish_bmc *b, struct http_field *fields, size_t n,
	struct cgn_buf *room)
{
	if (b->session.auth == REDFISH_BY_SESSION && b->session.token[0] != '\0') {
		fields[n++] = (struct http_field){CGN_STR("x-auth-token"), cgn_str_of(b->session.token)};
	} else if (b->session.auth == REDFISH_BY_BASIC) {
		char plain[600];
		int len = snprintf(plain, sizeof plain, "%s:%s", b->user, b->session.password);
		cgn_buf_putz(room, "Basic ");
		base64_put(room,
			(struct cgn_str){plain, len < (int)sizeof plain ? (size_t)len : sizeof plain - 1});
		explicit_bzero(plain, sizeof plain);
		if (!room->bad)
			fields[n++] = (struct http_field){CGN_STR("authorization"), cgn_buf_view(room)};
	}
	return n;
}

void redfish_ask_init(struct redfish_bmc *b)
{
	cgn_timer_init(&b->request.timeout, b->loop, ask_on_timeout);
}

void redfish_ask(struct redfish_bmc *b, const char *method, const char *path, struct cgn_str json,
	redfish_on_answer *done)
{
	char text[900];
	struct cgn_buf room = cgn_buf_over(text, sizeof text);
	struct http_field fields[5] = {{CGN_STR("accept"), CGN_STR("application/json")},
		{CGN_STR("odata-version"), CGN_STR("4.0")},
		{CGN_STR("content-type"), CGN_STR("application/json")}};
	union {
		const char *in;
		void *out;
	} body = {.in = json.p};
	const struct iovec iov = {body.out, json.n};
	struct redfish_request *q = &b->request;
	struct cgn_err err = {0};
	CGN_MUST(q->call == NULL);
	cgn_buf_fini(&q->body);
	q->body = (struct cgn_buf){.limit = REDFISH_MAX_DOCUMENT};
	q->answer = (struct redfish_answer){.status = 0};
	q->done = done;
	const struct http_request rq = {.method = method,
		.path = path,
		.fields = fields,
		.n_fields = put_credentials(b, fields, json.p != NULL ? 3 : 2, &room),
		.body_len = (int64_t)json.n,
		.head_timeout = b->timeout,
		.idle_timeout = b->timeout,
		.body = json.n > 0 ? &iov : NULL,
		.n_body = json.n > 0};
	b->seen.requests++;
	cgn_rc rc = http_call_start(b->client, &rq, &ask_ops, b, &q->call, &err);
	explicit_bzero(text, sizeof text);
	if (!cgn_ok(rc)) {
		ask_finish(b, &err);
		return;
	}
	cgn_timer_set(&q->timeout, 2 * b->timeout);
}

void redfish_ask_cancel(struct redfish_bmc *b)
{
	cgn_timer_cancel(&b->request.timeout);
	if (b->request.call != NULL)
		http_call_cancel(&b->request.call);
	b->request.done = NULL;
}

bool redfish_location(const struct redfish_bmc *b, const char *text, char out[REDFISH_PATH_BYTES])
{
	char origin[320];
	int n = snprintf(origin, sizeof origin, "%s://%s/", b->url.tls ? "https" : "http", b->url.authority);
	struct cgn_str s = cgn_str_of(text);
	if (n > 1 && cgn_str_starts(s, origin)) {
		s.p += n - 1;
		s.n -= (size_t)n - 1;
	}
	return redfish_path(s, out);
}
