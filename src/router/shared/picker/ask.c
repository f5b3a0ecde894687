/* SPDX-License-Identifier: Apache-2.0 */
/* ask: the picker's requests to the router's own gateway. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "router/shared/picker/picker_priv.h"

#define REPLY_MAX ((size_t)256 * 1024)
#define PATH_MOST 4096

/* ---- the head ---- */

/* Headers of the Gateway API Inference Extension and of llm-d that say what ours say (both read in November 2026). */
static const struct {
	const char *theirs, *ours;
} renamed[] = {
	{"x-gateway-inference-fairness-id", "x-cgn-session"},
	{"x-llm-d-inference-fairness-id", "x-cgn-session"},
	{"x-llm-d-slo-ttft-ms", "x-cgn-deadline-ms"},
};
#define OBJECTIVE "x-gateway-inference-objective"

static bool is_kept(struct cgn_str name)
{
	static const char *const dropped[] = {"host", "content-length", "accept-encoding", "expect",
		"x-cgn-node", "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset"};
	for (size_t i = 0; i < CGN_COUNT(dropped); i++)
		if (cgn_str_is(name, dropped[i]))
			return false;
	return name.n > 0 && name.p[0] != ':' && !http_name_is_hop(name) && !cgn_str_starts(name, "x-envoy-");
}

static bool is_identity(struct cgn_str name)
{
	return cgn_str_is(name, "authorization") || cgn_str_is(name, "x-api-key");
}

/* Return the priority of the objective |name|; p NULL: none is set. */
static struct cgn_str priority_of(const struct picker *p, struct cgn_str name)
{
	for (size_t i = 0; i < p->cfg.n_objectives; i++) {
		struct cgn_str rest = cgn_str_of(p->cfg.objectives[i]), key = cgn_str_split(&rest, '=');
		if (cgn_str_eq(cgn_str_trim(key), name))
			return cgn_str_trim(rest);
	}
	return (struct cgn_str){NULL, 0};
}

static struct http_field field_translate(const struct picker *p, struct cgn_str name, struct cgn_str value)
{
	if (cgn_str_is(name, OBJECTIVE))
		return (struct http_field){CGN_STR("x-cgn-priority"), priority_of(p, value)};
	for (size_t i = 0; i < CGN_COUNT(renamed); i++)
		if (cgn_str_is(name, renamed[i].theirs))
			return (struct http_field){cgn_str_of(renamed[i].ours), value};
	return (struct http_field){name, value};
}

static CGN_RC field_add(struct picker_stream *s, struct http_field f, struct cgn_err *err)
{
	if (f.value.p == NULL)
		return CGN_OK;
	if (s->n_fields == PICKER_FIELDS)
		return CGN_FAIL(err, TOO_LARGE, "the request has more than %d header fields", PICKER_FIELDS);
	struct http_field kept = {cgn_arena_str(&s->arena, f.name), cgn_arena_str(&s->arena, f.value)};
	if (kept.name.p == NULL || kept.value.p == NULL)
		return CGN_FAIL(err, TOO_LARGE, "the request's head is longer than %zu bytes", PICKER_HEAD);
	s->fields[s->n_fields++] = kept;
	return CGN_OK;
}

CGN_RC picker_fields_take(struct picker_stream *s, const struct extproc_message *m, struct cgn_err *err)
{
	size_t n = extproc_fields(m);
	for (size_t i = 0; i < n; i++)
		if (is_identity(extproc_field_name(m, i)))
			CGN_TRY(field_add(s,
				(struct http_field){extproc_field_name(m, i), extproc_field_value(m, i)},
				err));
	s->n_identity = s->n_fields;
	for (size_t i = 0; i < n; i++) {
		struct cgn_str name = extproc_field_name(m, i);
		if (is_kept(name) && !is_identity(name))
			CGN_TRY(field_add(s, field_translate(s->owner, name, extproc_field_value(m, i)),
				err));
	}
	if (extproc_subset(m, &s->subset))
		CGN_TRY(field_add(s,
			(struct http_field){CGN_STR("x-gateway-destination-endpoint-subset"),
				cgn_str_of(cgn_buf_z(&s->subset))},
			err));
	s->path = cgn_arena_str(&s->arena, extproc_field(m, ":path"));
	return s->path.p != NULL ? CGN_OK : CGN_FAIL(err, INVALID, "the request's head has no :path");
}

/* ---- the endpoint ---- */

static void on_head(struct http_call *call, void *user, const struct http_head *h)
{
	struct picker_stream *s = user;
	uint64_t seconds = 0;
	(void)call;
	s->status = h->status;
	if (cgn_str_u64(http_head_get(h, "retry-after"), &seconds))
		s->retry_after = seconds < 86400 ? (unsigned)seconds : 86400;
}

static void on_body(struct http_call *call, void *user, const uint8_t *p, size_t n)
{
	struct picker_stream *s = user;
	(void)call;
	cgn_buf_add(&s->reply, p, n);
}

static void on_end(struct http_call *call, void *user, const struct http_field *trailers, size_t n)
{
	struct picker_stream *s = user;
	(void)call;
	(void)trailers;
	(void)n;
	s->call = NULL;
	picker_asked(s, s->reply.bad ? "the gateway's answer is too long" : NULL);
}

static void on_fail(struct http_call *call, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct picker_stream *s = user;
	(void)call;
	(void)stage;
	s->call = NULL;
	picker_asked(s, why->msg);
}

static const struct http_call_ops ask_ops = {.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail};

static void id_make(struct picker_stream *s)
{
	(void)snprintf(s->id, sizeof s->id, "pick-%016llx-%llx", (unsigned long long)s->owner->instance,
		(unsigned long long)++s->owner->numbers);
}

static CGN_RC bodiless_ask(struct picker_stream *s, struct cgn_err *err)
{
	const struct http_request rq = {.method = "GET",
		.path = "/workers",
		.fields = s->fields,
		.n_fields = s->n_fields};
	return http_call_start(s->owner->gateway, &rq, &ask_ops, s, &s->call, err);
}

CGN_RC picker_ask(struct picker_stream *s, struct cgn_err *err)
{
	char path[PATH_MOST], escaped[PATH_MOST / 2];
	struct cgn_str rest = s->path, bare = cgn_str_split(&rest, '?');
	s->reply = (struct cgn_buf){.limit = REPLY_MAX};
	if (s->bodiless)
		return bodiless_ask(s, err);
	struct cgn_buf b = cgn_buf_over(escaped, sizeof escaped);
	percent_put(&b, bare);
	if (b.bad)
		return CGN_FAIL(err, TOO_LARGE, "the request's path is too long");
	id_make(s);
	(void)snprintf(path, sizeof path, "/select_and_reserve?selection_id=%s&for=%.*s", s->id,
		CGN_STR_ARG(cgn_buf_view(&b)));
	const struct iovec iov = {s->body.p, s->body.n};
	const struct http_request rq = {.method = "POST",
		.path = path,
		.fields = s->fields,
		.n_fields = s->n_fields,
		.body_len = (int64_t)s->body.n,
		.body = &iov,
		.n_body = s->body.n > 0 ? 1 : 0};
	return http_call_start(s->owner->gateway, &rq, &ask_ops, s, &s->call, err);
}

/* ---- how it goes on ---- */

static void told_head(struct http_call *call, void *user, const struct http_head *h)
{
	(void)call;
	(void)user;
	(void)h;
}

static void told_body(struct http_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	(void)user;
	(void)p;
	(void)n;
}

static void told_end(struct http_call *call, void *user, const struct http_field *trailers, size_t n)
{
	(void)call;
	(void)user;
	(void)trailers;
	(void)n;
}

/* The lease ends what could not be told. */
static void told_fail(struct http_call *call, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	(void)call;
	(void)user;
	(void)stage;
	(void)why;
}

static const struct http_call_ops told_ops = {.on_head = told_head,
	.on_body = told_body,
	.on_end = told_end,
	.on_fail = told_fail};

static void report_send(struct picker_stream *s, const char *method, const char *what)
{
	struct cgn_err err;
	struct http_call *call = NULL;
	char path[200];
	(void)snprintf(path, sizeof path, "/reservations/%s%s", s->id, what);
	const struct http_request rq = {.method = method,
		.path = path,
		.fields = s->fields,
		.n_fields = s->n_identity};
	(void)!cgn_ok(http_call_start(s->owner->gateway, &rq, &told_ops, NULL, &call, &err));
}

void picker_tell_begun(struct picker_stream *s)
{
	if (s->id[0] == '\0' || s->begun)
		return;
	s->begun = true;
	report_send(s, "POST", "/prefill_complete");
}

void picker_tell_end(struct picker_stream *s)
{
	char what[64];
	if (s->id[0] == '\0')
		return;
	const struct usage *u = &s->told.usage;
	(void)snprintf(what, sizeof what, "?outcome=%s&completion_tokens=%llu", s->failed ? "failed" : "done",
		(unsigned long long)(u->has_completion ? u->completion_tokens : 0));
	report_send(s, "DELETE", what);
	s->id[0] = '\0';
}

/* ---- health ---- */

static void ready_head(struct http_call *call, void *user, const struct http_head *h)
{
	struct picker *p = user;
	(void)call;
	grpc_server_serving(p->server, h->status == 200);
}

static void ready_end(struct http_call *call, void *user, const struct http_field *trailers, size_t n)
{
	(void)call;
	(void)trailers;
	(void)n;
	((struct picker *)user)->ready_call = NULL;
}

static void ready_fail(struct http_call *call, void *user, enum http_fail_stage stage,
	const struct cgn_err *why)
{
	struct picker *p = user;
	(void)call;
	(void)stage;
	(void)why;
	p->ready_call = NULL;
	grpc_server_serving(p->server, false);
}

static const struct http_call_ops ready_ops = {.on_head = ready_head,
	.on_body = told_body,
	.on_end = ready_end,
	.on_fail = ready_fail};

void picker_ready_ask(struct picker *p)
{
	struct cgn_err err;
	const struct http_request rq = {.method = "GET", .path = "/readyz", .head_timeout = CGN_SEC};
	if (p->ready_call == NULL &&
		!cgn_ok(http_call_start(p->gateway, &rq, &ready_ops, p, &p->ready_call, &err)))
		grpc_server_serving(p->server, false);
}
