/* SPDX-License-Identifier: Apache-2.0 */
/* Agent.Generate: one request to one engine, and its bytes back as they come. */
#include <stdlib.h>

#include "agent/agent.h"
#include "agent/slotmgr.h"
#include "base/log/log.h"

#define RELAY_TAG   0xa9e17004U
#define ARENA_BYTES ((size_t)1024 * 1024) /* headers and chain: both are bounded by policy/proto */

struct relay {
	uint32_t tag;
	struct agent *agent;
	struct engine *engine; /* NULL until picked */
	struct grpc_call *call;
	struct http_call *http;
	struct cgn_link link; /* of the engine's relays */
	struct cgn_arena arena;
	char *message; /* the request; kept until the engine answers, for a second try */
	struct proto_generate rq;
	struct share_ticket share;
	char id[65]; /* beginning of the request's id, for the log */
	cgn_nsec began;
	struct slot_placement place; /* in a slot of the engine */
	struct usage_tail tail;
	int status;
	bool asked, retried, head_sent, finished, failed;
	struct cgn_grave grave;
};

/* ---- end ---- */
static void forget_request(struct relay *r)
{
	free(r->message);
	r->message = NULL;
	cgn_arena_reset(&r->arena);
	r->rq = (struct proto_generate){0};
}

static void released(struct cgn_grave *g)
{
	struct relay *r = CGN_CONTAINER(g, struct relay, grave);
	forget_request(r);
	cgn_arena_fini(&r->arena);
	usage_tail_fini(&r->tail);
	r->tag = 0;
	free(r);
}

static void leave_engine(struct relay *r, bool cancelled)
{
	struct engine *e = r->engine;
	if (e == NULL)
		return;
	slotmgr_answer_end(&r->place, (struct cgn_str){NULL, 0});
	r->engine = NULL;
	cgn_list_drop(&r->link);
	e->inflight--;
	share_leave(&r->agent->share, &r->share);
	metric_observe(e->m_seconds, cgn_clock_now() - r->began);
	metric_add(r->failed ? e->m_error : cancelled ? e->m_cancelled : e->m_ok, 1);
	agent_request_done(r->agent);
}

static void finish(struct relay *r, enum cgn_code code, const char *sentence)
{
	if (r->finished)
		return;
	r->finished = true;
	r->failed = code != CGN_FINE;
	if (r->failed)
		cgn_log(WARN, "agent.relay_failed", F_STR("request", r->id),
			F_STR("code", cgn_code_name(code)), F_STR("why", sentence),
			F_BOOL("head_sent", r->head_sent));
	grpc_finish(r->call, code, sentence);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct relay *r = user;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	if (r->http != NULL)
		http_call_cancel(
			&r->http); /* the engine sees its connection close and stops working for nobody */
	leave_engine(r, why->code != CGN_FINE);
	cgn_loop_bury(r->agent->loop, &r->grave, released);
}

/* ---- the engine's answer ---- */
static bool is_prefill(const struct relay *r)
{
	return r->place.leg == COGNITORA__V1__LEG__LEG_PREFILL;
}

static bool is_hop_by_hop(struct cgn_str name)
{
	static const char *const names[] = {"connection", "keep-alive", "proxy-authenticate",
		"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(names[i])))
			return true;
	return false;
}

static void send_head(struct relay *r, int status, const struct proto_header *headers, size_t n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	proto_chunk_head(status, headers, n, cgn_str_of(r->engine->name), &b);
	if (b.bad) {
		finish(r, CGN_NO_MEMORY, "no memory for the head of the answer");
		return;
	}
	const struct iovec iov = {b.p, b.n};
	r->head_sent = true;
	grpc_send(r->call, &iov, 1);
}

static void send_data(struct relay *r, const void *p, size_t n)
{
	uint8_t lead[PROTO_CHUNK_LEAD];
	union { /* iovec has no const */
		const void *in;
		void *out;
	} data = {.in = p};
	const struct iovec iov[] = {{lead, proto_chunk_lead(lead, n)}, {data.out, n}};
	grpc_send(r->call, iov, 2);
}

static void on_head(struct http_call *c, void *user, const struct http_head *h)
{
	struct relay *r = user;
	struct proto_header headers[PROTO_MAX_HEADERS];
	size_t n = 0;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	engine_heard(r->engine);
	for (size_t i = 0; i < h->n_fields && n < CGN_COUNT(headers); i++)
		if (!is_hop_by_hop(h->fields[i].name))
			headers[n++] = (struct proto_header){h->fields[i].name, h->fields[i].value};
	if (h->status == 200 && r->rq.facts.n_chain > 0)
		engine_blocks_seen(r->engine, r->rq.facts.block_tokens);
	if (h->status == 200)
		engine_residency_sent(r->engine, r->rq.facts.chain, r->rq.facts.n_chain);
	r->status = h->status;
	if (h->status == 200)
		slotmgr_prefilled(&r->place);
	if (!is_prefill(r) || h->status != 200)
		send_head(r, h->status, headers, n);
	forget_request(r);
}

static void on_body(struct http_call *c, void *user, const uint8_t *p, size_t n)
{
	struct relay *r = user;
	CGN_LIVE(r, RELAY_TAG);
	engine_heard(r->engine);
	if (!r->share.begun) {
		share_begun(&r->agent->share, &r->share);
		watch_load_changed(r->agent);
	}
	if (r->place.keep != NULL)
		usage_tail_add(&r->tail, p, n);
	if (is_prefill(r) && r->status == 200)
		return;
	send_data(r, p, n);
	if (grpc_over_mark(r->call))
		http_call_pause(c);
}

static void on_drain(struct grpc_call *c, void *user)
{
	struct relay *r = user;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	if (r->http != NULL)
		http_call_resume(r->http);
}

/* The head is what the router waits for. */
static void on_stored(struct slot_placement *p, bool ok)
{
	struct relay *r = CGN_CONTAINER(p, struct relay, place);
	CGN_LIVE(r, RELAY_TAG);
	if (!ok) {
		finish(r, CGN_UNAVAILABLE,
			"the prompt is computed, and its state could not be put into the node's store");
		return;
	}
	send_head(r, 200, NULL, 0);
	finish(r, CGN_FINE, NULL);
}

static void on_end(struct http_call *c, void *user, const struct http_field *trailers, size_t n)
{
	struct relay *r = user;
	(void)c;
	(void)trailers;
	(void)n;
	CGN_LIVE(r, RELAY_TAG);
	r->http = NULL;
	if (is_prefill(r) && r->status == 200) {
		slotmgr_store(&r->place, usage_tail_view(&r->tail), on_stored);
		return;
	}
	slotmgr_answer_end(&r->place, usage_tail_view(&r->tail));
	finish(r, CGN_FINE, NULL);
}

static bool ask_engine(struct relay *r, struct cgn_err *err);

static void on_fail(struct http_call *c, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	static const char *const what[] = {
		[HTTP_FAIL_CONNECT] = "can't be reached",
		[HTTP_FAIL_STALE] = "closed the connection before it answered",
		[HTTP_FAIL_HEAD] = "closed the connection before it answered",
		[HTTP_FAIL_BODY] = "ended in the middle of its answer",
	};
	struct relay *r = user;
	struct cgn_err err = {0};
	char sentence[512];
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	r->http = NULL;
	if (stage == HTTP_FAIL_STALE && !r->retried && !r->head_sent) {
		r->retried = true;
		if (ask_engine(r, &err))
			return;
		why = &err;
	}
	(void)snprintf(sentence, sizeof sentence, "engine %s %s: %.300s", r->engine->name, what[stage],
		why->msg);
	engine_check_soon(r->engine);
	finish(r, why->code == CGN_OVERLOADED ? CGN_OVERLOADED : CGN_UNAVAILABLE, sentence);
}

static const struct http_call_ops engine_ops_http = {.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail};

void relay_end_all(struct engine *e, const char *sentence)
{
	cgn_list_each_safe (l, &e->relays) {
		struct relay *r = CGN_CONTAINER(l, struct relay, link);
		CGN_LIVE(r, RELAY_TAG);
		if (r->http != NULL)
			http_call_cancel(&r->http);
		finish(r, CGN_DEADLINE, sentence);
	}
}

/* ---- the request to the engine ---- */
/* The engine's key is ours to give, its compression would not be verbatim, and framing is io/http's. */
static bool is_ours(struct cgn_str name)
{
	return is_hop_by_hop(name) || cgn_str_eq_nocase(name, CGN_STR("host")) ||
		cgn_str_eq_nocase(name, CGN_STR("content-length")) ||
		cgn_str_eq_nocase(name, CGN_STR("authorization")) ||
		cgn_str_eq_nocase(name, CGN_STR("accept-encoding")) ||
		cgn_str_eq_nocase(name, CGN_STR("expect"));
}

static size_t engine_fields(const struct relay *r, struct http_field *out)
{
	bool has_id = false;
	size_t n = 0;
	for (size_t i = 0; i < r->rq.n_headers; i++) {
		const struct proto_header *h = &r->rq.headers[i];
		if (is_ours(h->name))
			continue;
		has_id = has_id || cgn_str_eq_nocase(h->name, CGN_STR("x-request-id"));
		out[n++] = (struct http_field){h->name, h->value};
	}
	if (!has_id && r->rq.request_id.n > 0)
		out[n++] = (struct http_field){CGN_STR("x-request-id"), r->rq.request_id};
	if (r->engine->authorization != NULL)
		out[n++] =
			(struct http_field){CGN_STR("authorization"), cgn_str_of(r->engine->authorization)};
	return n;
}

/* The body's pieces: as it came, or with a slot put in, or (in |own|) as a prompt alone. */
static size_t body_pieces(const struct relay *r, char insert[SLOT_BODY_INSERT], struct cgn_buf *own,
	struct iovec out[3])
{
	union { /* iovec has no const */
		const char *in;
		void *out;
	} body = {.in = r->rq.body.p};
	const struct slot_placement *p = &r->place;
	if (p->slot == SLOTS_NONE) {
		out[0] = (struct iovec){body.out, r->rq.body.n};
		return r->rq.body.n > 0 ? 1 : 0;
	}
	if (is_prefill(r)) {
		slot_body_prefill(r->rq.path, r->rq.body, p->slot, own);
		out[0] = (struct iovec){own->p, own->n};
		return 1;
	}
	out[0] = (struct iovec){body.out, p->at.at};
	out[1] = (struct iovec){insert, slot_body_insert(&p->at, p->slot, insert)};
	out[2] = (struct iovec){(char *)body.out + p->at.at, r->rq.body.n - p->at.at};
	return 3;
}

static bool ask_engine(struct relay *r, struct cgn_err *err)
{
	struct http_field fields[PROTO_MAX_HEADERS + 2];
	char method[16];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.limit = 65536};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf own = {0};
	char insert[SLOT_BODY_INSERT];
	struct iovec iov[3];
	size_t n = body_pieces(r, insert, &own, iov), bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	(void)cgn_str_copyz(method, sizeof method, r->rq.method);
	engine_url_path(&r->engine->url, r->rq.path, &path);
	const struct http_request rq = {
		.method = method,
		.path = cgn_buf_z(&path),
		.fields = fields,
		.n_fields = engine_fields(r, fields),
		.body_len = (int64_t)bytes,
		.body = iov,
		.n_body = n,
	};
	if (path.bad || own.bad) {
		(void)CGN_FAIL(err, NO_MEMORY, "no memory for the request");
		return false;
	}
	return cgn_ok(http_call_start(r->engine->client, &rq, &engine_ops_http, r, &r->http, err));
}

/* ---- what a router may ask ---- */
static bool is_token(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (!alnum && (c == '\0' || strchr("!#$%&'*+-.^_`|~", c) == NULL))
			return false;
	}
	return s.n > 0;
}

static bool is_plain(struct cgn_str s, char least)
{
	for (size_t i = 0; i < s.n; i++)
		if ((s.p[i] >= 0 && s.p[i] < least && s.p[i] != '\t') || s.p[i] == 0x7f)
			return false;
	return true;
}

/* A router is trusted, and still nothing it says may become a second request on the engine's connection. */
static CGN_RC check(const struct proto_generate *rq, struct cgn_err *err)
{
	if (!is_token(rq->method) || rq->method.n > 15)
		return CGN_FAIL(err, INVALID, "GenerateRequest.method is no HTTP method");
	if (rq->path.n == 0 || rq->path.p[0] != '/' || !is_plain(rq->path, '!') ||
		memchr(rq->path.p, '\t', rq->path.n) != NULL)
		return CGN_FAIL(err, INVALID, "GenerateRequest.path is no path");
	if (!is_plain(rq->request_id, ' '))
		return CGN_FAIL(err, INVALID, "GenerateRequest.request_id has control characters");
	for (size_t i = 0; i < rq->n_headers; i++)
		if (!is_token(rq->headers[i].name) || !is_plain(rq->headers[i].value, ' '))
			return CGN_FAIL(err, INVALID, "GenerateRequest.headers[%zu] is no HTTP field", i);
	return CGN_OK;
}

static void answer_lacking(struct relay *r)
{
	char body[512];
	const struct proto_header json = {CGN_STR("content-type"), CGN_STR("application/json")};
	struct cgn_str rest = r->rq.path, path = cgn_str_split(&rest, '?');
	/* The path is one of engine_lacks, so it needs no escapes. */
	int n = snprintf(body, sizeof body,
		"{\"error\":{\"message\":\"engine %s (%s) has no route %.*s\",\"type\":\"not_supported_error\",\"param\":null,"
		"\"code\":\"not_supported\"}}",
		r->engine->name, config_enum_text(r->engine->ops->kind), CGN_STR_ARG(path));
	send_head(r, 501, &json, 1);
	send_data(r, body, (size_t)n);
	finish(r, CGN_FINE, NULL);
}

/* What a router is told that can't have a prompt computed alone here. */
static void answer_unstorable(struct relay *r)
{
	static const char body[] =
		"{\"error\":{\"message\":\"this node can't put the state of a prompt into a store\",\"type\":\"not_supported_error\","
		"\"param\":null,\"code\":\"not_supported\"}}";
	const struct proto_header json = {CGN_STR("content-type"), CGN_STR("application/json")};
	send_head(r, 501, &json, 1);
	send_data(r, body, sizeof body - 1);
	finish(r, CGN_FINE, NULL);
}

/* It has a slot, or goes as it came. */
static void on_placed(struct slot_placement *p)
{
	struct relay *r = CGN_CONTAINER(p, struct relay, place);
	struct cgn_err err = {0};
	CGN_LIVE(r, RELAY_TAG);
	if (r->finished)
		return;
	if (is_prefill(r) && p->slot == SLOTS_NONE)
		answer_unstorable(r);
	else if (!ask_engine(r, &err))
		finish(r, err.code, err.msg);
}

/* False: it is a prompt alone, and can't be one here. */
static bool place(struct relay *r)
{
	const struct proto_facts *f = &r->rq.facts;
	if (f->leg == COGNITORA__V1__LEG__LEG_PREFILL && (!slotmgr_can_store(r->engine) || f->n_chain == 0))
		return false;
	r->place = (struct slot_placement){.id = r->id,
		.path = r->rq.path,
		.body = r->rq.body,
		.chain = f->chain,
		.n = f->n_chain,
		.block_tokens = f->block_tokens,
		.leg = (int)f->leg,
		.go = on_placed};
	slotmgr_place(r->engine, &r->place);
	return true;
}

static void take_engine(struct relay *r, struct engine *e)
{
	r->engine = e;
	cgn_list_push(&e->relays, &r->link);
	e->inflight++;
	share_peak_note(&e->peak, e->inflight);
	share_enter(&r->agent->share, r->rq.facts.router, r->rq.facts.new_tokens, &r->share);
	r->agent->requests_total++;
	watch_load_changed(r->agent);
}

static CGN_RC admit(struct relay *r, struct cgn_err *err)
{
	struct agent *a = r->agent;
	if (a->draining)
		return CGN_FAIL(err, UNAVAILABLE, "node %s is draining", a->node_id);
	uint32_t inflight = a->share.all.inflight;
	if (inflight >= a->max_inflight)
		return CGN_FAIL(err, OVERLOADED,
			"node %s has %u requests in flight, as many as agent.max_inflight allows", a->node_id,
			inflight);
	CGN_TRY(check(&r->rq, err));
	struct engine *e = agent_pick(a, r->rq.facts.engine, r->rq.facts.model, err);
	if (e == NULL)
		return CGN_RC_OF(err->code);
	take_engine(r, e);
	return CGN_OK;
}

static CGN_RC read_request(struct relay *r, const uint8_t *p, size_t n, struct cgn_err *err)
{
	if (r->asked)
		return CGN_FAIL(err, INVALID, "Generate takes one request message");
	r->asked = true;
	r->message = malloc(n > 0 ? n : 1);
	if (r->message == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a request of %zu bytes", n);
	memcpy(r->message, p, n);
	CGN_TRY(proto_generate_read((struct cgn_str){r->message, n}, &r->arena, &r->rq, err));
	(void)cgn_str_copyz(r->id, sizeof r->id, r->rq.request_id);
	return CGN_OK;
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct relay *r = user;
	struct cgn_err err = {0};
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	if (r->finished)
		return;
	if (!cgn_ok(read_request(r, p, n, &err)) || !cgn_ok(admit(r, &err))) {
		finish(r, err.code, err.msg);
		return;
	}
	if (engine_lacks(r->engine->ops, r->rq.path)) {
		answer_lacking(r);
		return;
	}
	if (!place(r))
		answer_unstorable(r);
}

static void on_half_close(struct grpc_call *c, void *user)
{
	struct relay *r = user;
	(void)c;
	CGN_LIVE(r, RELAY_TAG);
	if (!r->asked)
		finish(r, CGN_INVALID, "Generate needs a request message");
}

static const struct grpc_call_ops ops = {.on_message = on_message,
	.on_half_close = on_half_close,
	.on_drain = on_drain,
	.on_close = on_close};

void relay_on_call(struct grpc_call *c, void *agent)
{
	struct agent *a = agent;
	struct relay *r = calloc(1, sizeof *r);
	if (r == NULL) {
		agent_refuse_call(c, CGN_NO_MEMORY, "no memory for a call");
		return;
	}
	*r = (struct relay){.tag = RELAY_TAG, .agent = a, .call = c, .began = cgn_clock_now()};
	cgn_list_init(&r->link);
	cgn_arena_init(&r->arena, ARENA_BYTES);
	grpc_call_take(c, &ops, r);
}
