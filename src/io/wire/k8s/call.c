/* SPDX-License-Identifier: Apache-2.0 */
/* call: one request to the API server, and its answer as JSON. */
#include <stdlib.h>

#include "io/wire/k8s/k8s_priv.h"

#define K8S_CALL_TAG 0x6b385002U
#define IDLE_TIMEOUT (30 * CGN_SEC)

struct k8s_call {
	uint32_t tag;
	struct k8s *k;
	struct http_call *http;
	k8s_done_fn *done;
	void *user;
	int status;
	struct cgn_buf body;
};

static enum cgn_code status_code(int status)
{
	switch (status) {
	case 401:
		return CGN_UNAUTHENTICATED;
	case 403:
		return CGN_FORBIDDEN;
	case 404:
		return CGN_NOT_FOUND;
	case 409:
		return CGN_CONFLICT;
	case 413:
		return CGN_TOO_LARGE;
	case 429:
		return CGN_OVERLOADED;
	default:
		return status >= 500 ? CGN_UNAVAILABLE : CGN_INVALID;
	}
}

void k8s_status_err(int status, struct cgn_str body, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	enum cgn_code code = status_code(status);
	struct json_val v, message;
	if (cgn_ok(json_parse(body, &v, NULL, NULL)) && json_get(v, "message", &message) &&
		message.type == JSON_STRING)
		json_str_to(message, &text);
	if (status == 422 && strstr(cgn_buf_z(&text), " is invalid:") == NULL)
		code = CGN_CONFLICT; /* Not the object is invalid: a test of the patch failed. */
	if (text.n > 0)
		(void)CGN_FAIL_AS(err, code, "%.300s (status %d)", cgn_buf_z(&text), status);
	else
		(void)CGN_FAIL_AS(err, code, "the Kubernetes API answered with status %d", status);
}

void k8s_call_err(const struct k8s *k, const struct cgn_err *why, struct cgn_err *err)
{
	(void)CGN_FAIL_AS(err, why->code, "the Kubernetes API at %.60s: %.250s", k->access.address, why->msg);
}

static void call_free(struct k8s_call *c)
{
	c->k->users--;
	c->tag = 0;
	cgn_buf_fini(&c->body);
	free(c);
}

static void call_finish(struct k8s_call *c, int status, const struct cgn_err *why)
{
	struct cgn_err err = *why;
	struct k8s_answer a = {.err = &err, .status = status, .object = {JSON_NULL, CGN_STR("null")}};
	c->http = NULL;
	if (err.code == CGN_FINE && c->body.bad)
		(void)CGN_FAIL(&err, TOO_LARGE, "an answer of the Kubernetes API is over %zu MiB",
			K8S_MAX_ANSWER >> 20);
	if (err.code == CGN_FINE && status >= 300)
		k8s_status_err(status, cgn_buf_view(&c->body), &err);
	else if (err.code == CGN_FINE && c->body.n > 0)
		(void)cgn_ok(json_parse(cgn_buf_view(&c->body), &a.object, NULL, &err));
	c->done(c->user, &a);
	call_free(c);
}

static void on_head(struct http_call *h, void *user, const struct http_head *head)
{
	struct k8s_call *c = user;
	(void)h;
	CGN_LIVE(c, K8S_CALL_TAG);
	c->status = head->status;
}

static void on_body(struct http_call *h, void *user, const uint8_t *p, size_t n)
{
	struct k8s_call *c = user;
	(void)h;
	CGN_LIVE(c, K8S_CALL_TAG);
	/* Above its limit the buffer turns bad, which call_finish reports. */
	cgn_buf_add(&c->body, p, n);
}

static void on_end(struct http_call *h, void *user, const struct http_field *trailers, size_t n)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	struct k8s_call *c = user;
	(void)h;
	(void)trailers;
	(void)n;
	CGN_LIVE(c, K8S_CALL_TAG);
	call_finish(c, c->status, &fine);
}

static void on_fail(struct http_call *h, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct k8s_call *c = user;
	struct cgn_err err;
	(void)h;
	CGN_LIVE(c, K8S_CALL_TAG);
	if (stage == HTTP_FAIL_CONNECT)
		k8s_unreachable(c->k);
	k8s_call_err(c->k, why, &err);
	call_finish(c, 0, &err);
}

static const struct http_call_ops call_ops = {.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail};

CGN_RC k8s_call_start(struct k8s *k, const struct k8s_request *rq, k8s_done_fn *done, void *user,
	struct k8s_call **out, struct cgn_err *err)
{
	struct k8s_call *c = CGN_NEW(struct k8s_call);
	CGN_LIVE(k, K8S_TAG);
	*c = (struct k8s_call){.tag = K8S_CALL_TAG,
		.k = k,
		.done = done,
		.user = user,
		.body = {.limit = K8S_MAX_ANSWER}};
	k->users++;
	cgn_rc rc = k8s_start(k, rq, IDLE_TIMEOUT, &call_ops, c, &c->http, err);
	if (!cgn_ok(rc)) {
		call_free(c);
		return rc;
	}
	*out = c;
	return CGN_OK;
}

void k8s_call_drop(struct k8s_call **take)
{
	struct k8s_call *c = CGN_TAKE_LIVE(take, K8S_CALL_TAG);
	if (c == NULL)
		return;
	http_call_cancel(&c->http);
	call_free(c);
}
