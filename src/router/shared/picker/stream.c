/* SPDX-License-Identifier: Apache-2.0 */
/* stream: one request of a proxy: its head and its body come, an endpoint goes back, then the engine's answer passes. */
#include <stdlib.h>

#include "base/apierror/apierror.h"
#include "base/json/json.h"
#include "base/log/log.h"
#include "router/shared/picker/picker_priv.h"

#define ENDPOINTS_MAX 200
#define TAKES_MODES   "the proxy's request_body_mode is to be FULL_DUPLEX_STREAMED or BUFFERED"

/* ---- to the proxy ---- */

static void message_send(struct picker_stream *s, struct cgn_buf *b)
{
	const struct iovec iov = {b->p, b->n};
	if (s->grpc == NULL)
		return;
	if (b->bad)
		grpc_finish(s->grpc, CGN_NO_MEMORY, "out of memory");
	else
		grpc_send(s->grpc, &iov, 1);
}

static void body_drop(struct picker_stream *s)
{
	s->owner->bodies -= s->body.n;
	cgn_buf_fini(&s->body);
}

static void outcome_count(struct picker_stream *s, const char *outcome)
{
	metric_add(METRIC_OF(s->owner->cfg.telemetry, PICKS, outcome), 1);
}

/* Let the proxy answer its client with |status| and the document |json|. */
static void refuse_with(struct picker_stream *s, int status, struct cgn_str json)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	extproc_put_refusal(status, json, s->retry_after, "cognitora_refused", &b);
	s->stage = PICKER_OVER;
	body_drop(s);
	outcome_count(s, status == 429 ? "shed" : status < 500 ? "refused" : "no_endpoint");
	message_send(s, &b);
}

static void request_refuse(struct picker_stream *s, int status, const char *code, const char *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf json = {0};
	const struct apierror e = {.type = status < 500 ? "invalid_request_error" : "server_error",
		.code = code,
		.message = message,
		.shape = apierror_shape_of(s->path)};
	apierror_put(&json, &e);
	refuse_with(s, status, cgn_buf_view(&json));
}

/* ---- the gateway's answer ---- */

/* Return the status that the extension asks for: 429 for a request that is dropped because of load, 503 when
 * there is no endpoint. */
static int status_for(const struct picker_stream *s)
{
	static const char *const shed[] = {"overloaded", "queue_full", "queue_timeout", "power_budget",
		"slo_unmeetable", "would_wait"};
	struct json_val whole, error;
	struct cgn_arena a;
	int status = s->status;
	cgn_arena_init(&a, 4096);
	if (status == 503 && cgn_ok(json_parse(cgn_buf_view(&s->reply), &whole, NULL, NULL)) &&
		json_get(whole, "error", &error)) {
		struct cgn_str code = json_get_str(error, "code", &a);
		for (size_t i = 0; i < CGN_COUNT(shed); i++)
			if (cgn_str_is(code, shed[i]))
				status = 429;
	}
	cgn_arena_fini(&a);
	return status;
}

/* An endpoint of a worker, without its "http://". */
static struct cgn_str endpoint_of(struct json_val v, struct cgn_arena *a)
{
	struct cgn_str url = json_get_str(v, "endpoint", a);
	const size_t lead = sizeof "http://" - 1;
	return url.n > lead ? (struct cgn_str){url.p + lead, url.n - lead} : (struct cgn_str){NULL, 0};
}

/* Write the endpoints of a selection, first the one that is reserved. */
static void endpoints_write(struct json_val selection, struct cgn_arena *a, struct cgn_buf *out)
{
	struct json_val more, one;
	cgn_buf_str(out, endpoint_of(selection, a));
	if (!json_get(selection, "fallbacks", &more) || more.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(more);
	while (json_next_elem(&it, &one)) {
		cgn_buf_putz(out, ",");
		cgn_buf_str(out, json_str(one, a));
	}
}

/* A request without a body: any endpoint will do, in turn. */
static void endpoint_turn(struct picker_stream *s, struct json_val workers, struct cgn_arena *a,
	struct cgn_buf *out)
{
	struct json_val one;
	size_t n = 0;
	struct json_iter it = json_iter_of(workers), again = it;
	while (json_next_elem(&it, &one))
		n += s->subset.n == 0 || selection_lists(cgn_buf_view(&s->subset), endpoint_of(one, a));
	size_t want = n > 0 ? s->owner->turn++ % n : 0;
	while (n > 0 && json_next_elem(&again, &one)) {
		struct cgn_str e = endpoint_of(one, a);
		if ((s->subset.n == 0 || selection_lists(cgn_buf_view(&s->subset), e)) && want-- == 0) {
			cgn_buf_str(out, e);
			return;
		}
	}
}

/* Change the name of the model in the body, where the engine has another one. False: out of memory. */
static bool body_rewrite(struct picker_stream *s, struct json_val selection, struct cgn_arena *a)
{
	struct json_val change;
	if (!json_get(selection, "rewrite", &change))
		return true;
	uint64_t at = json_get_u64(change, "at", 0), length = json_get_u64(change, "length", 0);
	struct cgn_str by = json_get_str(change, "with", a);
	struct cgn_buf b = {0};
	if (by.p == NULL || at > s->body.n || length > s->body.n - at)
		return false;
	cgn_buf_add(&b, s->body.p, at);
	cgn_buf_str(&b, by);
	cgn_buf_add(&b, s->body.p + at + length, s->body.n - at - length);
	if (b.bad) {
		cgn_buf_fini(&b);
		return false;
	}
	body_drop(s);
	s->body = b;
	s->owner->bodies += b.n;
	return true;
}

static void pieces_send(struct picker_stream *s, enum extproc_kind kind, struct cgn_str bytes, bool last)
{
	do {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		size_t n = bytes.n < EXTPROC_PIECE ? bytes.n : EXTPROC_PIECE;
		extproc_put_piece(kind, (struct cgn_str){bytes.p, n}, last && n == bytes.n, &b);
		message_send(s, &b);
		bytes = (struct cgn_str){bytes.p + n, bytes.n - n};
	} while (bytes.n > 0);
}

/* Send the endpoints, and the body if the proxy waits for it. */
static void pick_send(struct picker_stream *s, const char *endpoints, bool changed)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	const struct extproc_pick pick = {endpoints, changed ? (int64_t)s->body.n : -1};
	struct cgn_str body = cgn_buf_view(&s->body);
	s->stage = PICKER_SENT;
	outcome_count(s, "picked");
	if (s->request_mode == EXTPROC_DUPLEX || s->bodiless) {
		extproc_put_head(EXTPROC_REQUEST_HEAD, &pick, &b);
		message_send(s, &b);
		if (!s->bodiless)
			pieces_send(s, EXTPROC_REQUEST_BODY, body, !s->trailers);
	} else {
		extproc_put_body(EXTPROC_REQUEST_BODY, &pick, changed ? body : (struct cgn_str){NULL, 0}, &b);
		message_send(s, &b);
	}
	if (s->trailers && s->request_mode == EXTPROC_DUPLEX) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf t = {0};
		extproc_put_trailers(EXTPROC_REQUEST_TRAILERS, &t);
		message_send(s, &t);
	}
	body_drop(s);
}

static void selection_take(struct picker_stream *s, struct json_val v, struct cgn_arena *a)
{
	char endpoints[ENDPOINTS_MAX];
	struct cgn_buf b = cgn_buf_over(endpoints, sizeof endpoints);
	size_t before = s->body.n;
	bool fine = true;
	if (s->bodiless)
		endpoint_turn(s, v, a, &b);
	else {
		endpoints_write(v, a, &b);
		fine = body_rewrite(s, v, a);
	}
	struct cgn_str all = cgn_buf_view(&b), first = cgn_str_split(&all, ',');
	if (!fine || b.bad)
		request_refuse(s, 500, "no_memory", "the picker is out of memory");
	else if (b.n == 0)
		request_refuse(s, 503, "no_node",
			"no node that is ready lets others ask its engine (agent.direct)");
	else {
		(void)cgn_str_copyz(s->first, sizeof s->first, first);
		struct json_val change;
		pick_send(s, cgn_buf_z(&b), s->body.n != before || json_get(v, "rewrite", &change));
	}
}

void picker_asked(struct picker_stream *s, const char *why)
{
	struct json_val v;
	struct cgn_arena a;
	CGN_LIVE(s, PICKER_STREAM_TAG);
	if (s->stage != PICKER_ASKING)
		return;
	if (why != NULL) {
		cgn_log_limited(WARN, "picker.no_gateway", F_STR("why", why),
			F_STR("then", "the client gets 503"));
		s->retry_after = 1;
		request_refuse(s, 503, "no_node", "the router's gateway gave no answer");
		return;
	}
	if (s->status != 200) {
		s->id[0] = '\0'; /* Nothing is reserved. */
		refuse_with(s, status_for(s), cgn_buf_view(&s->reply));
		return;
	}
	cgn_arena_init(&a, 65536);
	if (cgn_ok(json_parse(cgn_buf_view(&s->reply), &v, NULL, NULL)))
		selection_take(s, v, &a);
	else
		request_refuse(s, 500, "internal_error", "the gateway's answer is not JSON");
	cgn_arena_fini(&a);
	cgn_buf_fini(&s->reply);
}

static void gateway_ask(struct picker_stream *s)
{
	struct cgn_err err;
	s->stage = PICKER_ASKING;
	if (cgn_ok(picker_ask(s, &err)))
		return;
	s->retry_after = 1;
	request_refuse(s, cgn_code_http(err.code), "overloaded", err.msg);
}

/* ---- the request ---- */

static void request_head(struct picker_stream *s, const struct extproc_message *m)
{
	struct cgn_err err;
	s->request_mode = m->request_mode;
	s->answer_mode = m->answer_mode;
	s->bodiless = m->last;
	s->stage = PICKER_BODY;
	if (!cgn_ok(picker_fields_take(s, m, &err)))
		request_refuse(s, 431, "headers_too_large", err.msg);
	else if (m->last)
		gateway_ask(s);
	else if (m->request_mode == EXTPROC_WHOLE) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		extproc_put_head(EXTPROC_REQUEST_HEAD, NULL, &b);
		message_send(s, &b);
	} else if (m->request_mode != EXTPROC_DUPLEX)
		request_refuse(s, 500, "picker_mode", TAKES_MODES);
}

static void request_body(struct picker_stream *s, const struct extproc_message *m)
{
	struct picker *p = s->owner;
	if (m->body.n > p->cfg.max_body || s->body.n > p->cfg.max_body - m->body.n)
		request_refuse(s, 413, "request_too_large", "the body is larger than router.max_body");
	else if (p->bodies + m->body.n > p->cfg.max_inflight) {
		s->retry_after = 1;
		request_refuse(s, 429, "overloaded",
			"too many request bodies are in memory (router.max_inflight_body)");
	} else {
		p->bodies += m->body.n;
		cgn_buf_add(&s->body, m->body.p, m->body.n);
		if (s->body.bad) {
			p->bodies -= m->body.n;
			request_refuse(s, 500, "no_memory", "the picker is out of memory");
		} else if (m->last || s->request_mode == EXTPROC_WHOLE)
			gateway_ask(s);
	}
}

static void request_take(struct picker_stream *s, const struct extproc_message *m)
{
	if (m->kind == EXTPROC_REQUEST_HEAD && s->stage == PICKER_HEAD_DUE)
		request_head(s, m);
	else if (m->kind == EXTPROC_REQUEST_BODY && s->stage == PICKER_BODY)
		request_body(s, m);
	else if (m->kind == EXTPROC_REQUEST_TRAILERS && s->stage == PICKER_BODY) {
		s->trailers = true;
		gateway_ask(s);
	} else if (m->kind == EXTPROC_REQUEST_TRAILERS && s->stage == PICKER_SENT) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		extproc_put_trailers(m->kind, &b);
		message_send(s, &b);
	} else
		grpc_finish(s->grpc, CGN_INVALID, "this message is not due in this stream");
}

/* ---- the engine's answer ---- */

static void answer_over(struct picker_stream *s)
{
	s->stage = PICKER_OVER;
	picker_tell_end(s);
}

static void answer_head(struct picker_stream *s, const struct extproc_message *m)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct cgn_str status = extproc_field(m, ":status"), served = extproc_served(m);
	s->failed = status.n != 3 || status.p[0] == '5';
	/* Another endpoint serves it: the reserved one does not have the load. */
	if (served.n > 0 && s->first[0] != '\0' && !cgn_str_is(served, s->first)) {
		s->failed = true;
		outcome_count(s, "other_endpoint");
		picker_tell_end(s);
	}
	if (s->answer_mode == EXTPROC_NO_BODY && !m->last)
		picker_tell_begun(s); /* The head comes with the first token, and nothing else is seen. */
	extproc_put_head(m->kind, NULL, &b);
	message_send(s, &b);
	if (m->last)
		answer_over(s);
}

static void answer_body(struct picker_stream *s, const struct extproc_message *m)
{
	picker_tell_begun(s);
	usagescan_feed(&s->told, m->body);
	if (s->answer_mode == EXTPROC_DUPLEX)
		pieces_send(s, m->kind, m->body, m->last);
	else {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		extproc_put_body(m->kind, NULL, (struct cgn_str){NULL, 0}, &b);
		message_send(s, &b);
	}
	if (m->last)
		answer_over(s);
}

static void answer_take(struct picker_stream *s, const struct extproc_message *m)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	switch (m->kind) {
	case EXTPROC_ANSWER_HEAD:
		answer_head(s, m);
		return;
	case EXTPROC_ANSWER_BODY:
		answer_body(s, m);
		return;
	case EXTPROC_ANSWER_TRAILERS:
		extproc_put_trailers(m->kind, &b);
		message_send(s, &b);
		answer_over(s);
		return;
	case EXTPROC_REQUEST_HEAD:
	case EXTPROC_REQUEST_BODY:
	case EXTPROC_REQUEST_TRAILERS:
		break;
	}
}

/* ---- callbacks ---- */

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct picker_stream *s = user;
	struct extproc_message m;
	struct cgn_err err;
	CGN_LIVE(s, PICKER_STREAM_TAG);
	if (!cgn_ok(extproc_read((struct cgn_str){(const char *)p, n}, &m, &err)))
		grpc_finish(c, CGN_INVALID, err.msg);
	else if (m.observes)
		grpc_finish(c, CGN_UNSUPPORTED, "an endpoint picker needs observability_mode off");
	else if (m.kind >= EXTPROC_ANSWER_HEAD && s->stage == PICKER_SENT)
		answer_take(s, &m);
	else if (m.kind >= EXTPROC_ANSWER_HEAD && s->stage == PICKER_OVER && m.kind != EXTPROC_ANSWER_HEAD)
		grpc_finish(c, CGN_INVALID, "the answer has ended");
	else if (s->stage != PICKER_OVER)
		request_take(s, &m);
	extproc_fini(&m);
	if (s->grpc != NULL && grpc_over_mark(c))
		grpc_pause(c);
}

static void on_drain(struct grpc_call *c, void *user)
{
	(void)user;
	grpc_resume(c);
}

static void on_half_close(struct grpc_call *c, void *user)
{
	(void)user;
	grpc_finish(c, CGN_FINE, NULL);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct picker_stream *s = user;
	(void)c;
	(void)why;
	CGN_LIVE(s, PICKER_STREAM_TAG);
	s->grpc = NULL;
	if (s->call != NULL)
		http_call_cancel(&s->call);
	s->failed = s->failed || s->stage == PICKER_ASKING || (s->stage == PICKER_SENT && !s->begun);
	picker_tell_end(s);
	body_drop(s);
	cgn_list_drop(&s->link);
	cgn_buf_fini(&s->subset);
	cgn_buf_fini(&s->reply);
	cgn_arena_fini(&s->arena);
	s->tag = 0;
	free(s);
}

static const struct grpc_call_ops stream_ops = {.on_message = on_message,
	.on_half_close = on_half_close,
	.on_drain = on_drain,
	.on_close = on_close};

void picker_on_call(struct grpc_call *c, void *server_user)
{
	struct picker *p = server_user;
	struct picker_stream *s = CGN_NEW(struct picker_stream);
	CGN_LIVE(p, PICKER_TAG);
	*s = (struct picker_stream){.tag = PICKER_STREAM_TAG, .owner = p, .grpc = c};
	cgn_arena_init(&s->arena, PICKER_HEAD);
	cgn_list_init(&s->link);
	cgn_list_push(&p->streams, &s->link);
	grpc_call_take(c, &stream_ops, s);
}
