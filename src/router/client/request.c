/* SPDX-License-Identifier: Apache-2.0 */
/* request: how one comes to life, what drives it, and its client's side. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "router/request/gateway.h"

/* heads are at most 32 KiB, and stand here once as theirs and once as ours */
#define ARENA_LIMIT ((size_t)192 * 1024)
#define WORK_LIMIT  ((size_t)512 * 1024) /* 4096 digests, the answer's head, keys of tools */
#define ID_MAX      128

#define TO(state) 1U << GW_##state
static const struct {
	enum gw_step (*run)(struct gw_req *r);
	unsigned exits;
} state_rows[GW_STATE_COUNT] = {
#define STATE(id, handler, exits, why) {handler, exits},
#include "router/request/gw_states.def"
#undef STATE
};
#undef TO

void gw_goto(struct gw_req *r, enum gw_state next)
{
	CGN_LIVE(r, GW_REQ_TAG);
	CGN_MUST(state_rows[r->state].exits & 1U << next);
	r->state = next;
}

enum gw_step gw_park(struct gw_req *r, enum gw_wait what, cgn_nsec delay)
{
	r->armed = what;
	r->timer_fired = false;
	cgn_timer_cancel(&r->timer);
	if (delay > 0)
		cgn_timer_set(&r->timer, delay);
	return STEP_PARK;
}

/* A callback may come while a handler runs (an answer that ends its exchange at once): it is seen when the
 * handler returns. */
void gw_wake(struct gw_req *r)
{
	CGN_LIVE(r, GW_REQ_TAG);
	r->event = true;
	if (r->waking)
		return;
	r->waking = true;
	enum gw_step s = STEP_AGAIN;
	while (s == STEP_AGAIN || (s == STEP_PARK && r->event)) {
		if (r->x == NULL && r->state != GW_FINISH)
			gw_goto(r, GW_FINISH); /* a client that went ends it in every state */
		r->event = false;
		r->armed = WAIT_NONE;
		s = state_rows[r->state].run(r);
	}
	if (s == STEP_END)
		return;
	CGN_MUST(r->armed != WAIT_NONE); /* parked with nothing to wake it is a hang */
	r->waking = false;
}

static void on_timer(struct cgn_timer *t)
{
	struct gw_req *r = CGN_CONTAINER(t, struct gw_req, timer);
	r->timer_fired = true;
	gw_wake(r);
}

/* ---- what came in ---- */

static bool id_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c <= ' ' || c > '~' || c == '"' || c == '\\' || c == ',' || c == ';')
			return false;
	}
	return s.n > 0 && s.n <= ID_MAX;
}

static bool id_take(struct gw_req *r, struct cgn_str given)
{
	if (id_is_ok(given)) {
		r->id = cgn_arena_str(&r->arena, given);
		return r->id.p != NULL;
	}
	uint64_t a = mix_splitmix(&r->w->ids), b = mix_splitmix(&r->w->ids);
	r->id = cgn_str_of(cgn_arena_fmt(&r->arena, "req-%016llx%08x", (unsigned long long)a,
		(unsigned)(b & 0xffffffffU)));
	return r->id.p != NULL;
}

/* What an engine gets to see of the client's head. Its keys and cookies, and whatever else it says about
 * itself, stay here; so does an X-Cgn-Subject that only this house may state. */
static bool is_forwarded(struct cgn_str name)
{
	static const char *const names[] = {"content-type", "accept", "traceparent", "tracestate"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_is(name, names[i]))
			return true;
	return cgn_str_starts(name, "anthropic-") || cgn_str_starts(name, "openai-");
}

static bool headers_take(struct gw_req *r, const struct http_head *h)
{
	r->headers = cgn_arena_get(&r->arena, (h->n_fields + 1) * sizeof *r->headers);
	if (r->headers == NULL)
		return false;
	for (size_t i = 0; i < h->n_fields && r->n_headers < PROTO_MAX_HEADERS - 1; i++) {
		if (!is_forwarded(h->fields[i].name))
			continue;
		struct proto_header *to = &r->headers[r->n_headers++];
		to->name = cgn_arena_str(&r->arena, h->fields[i].name);
		to->value = cgn_arena_str(&r->arena, h->fields[i].value);
		if (to->name.p == NULL || to->value.p == NULL)
			return false;
	}
	r->headers[r->n_headers++] = (struct proto_header){CGN_STR("x-request-id"), r->id};
	return true;
}

static bool field_take(struct gw_req *r, const struct http_head *h, const char *name, struct cgn_str *out)
{
	struct cgn_str v = http_head_get(h, name);
	*out = v.n > 0 ? cgn_arena_str(&r->arena, v) : (struct cgn_str){NULL, 0};
	return v.n == 0 || out->p != NULL;
}

static bool head_take(struct gw_req *r, const struct http_head *h)
{
	r->content_length = h->content_length;
	struct cgn_str coding = http_head_get(h, "content-encoding");
	r->encoded = coding.n > 0 && !cgn_str_eq_nocase(coding, CGN_STR("identity"));
	r->method = cgn_arena_str(&r->arena, h->method);
	r->path = cgn_arena_str(&r->arena, h->path);
	r->peer = cgn_arena_str(&r->arena, http_exchange_peer(r->x));
	r->explain = cgn_str_is(http_head_get(h, "x-cgn-explain"), "1");
	return r->method.p != NULL && r->path.p != NULL && r->peer.p != NULL &&
		id_take(r, http_head_get(h, "x-request-id")) && headers_take(r, h) &&
		field_take(r, h, "x-cgn-node", &r->pin) && gw_session_take(r, h) &&
		field_take(r, h, "x-cgn-resume", &r->resume_asked) &&
		field_take(r, h, "x-cgn-priority", &r->priority_text) &&
		field_take(r, h, "x-cgn-deadline-ms", &r->deadline_text) &&
		field_take(r, h, "authorization", &r->authorization) &&
		field_take(r, h, "x-api-key", &r->api_key);
}

static void req_release(struct cgn_grave *g)
{
	struct gw_req *r = CGN_CONTAINER(g, struct gw_req, grave);
	free(r);
}

/* After this turn, so that callbacks that are already under way do not meet reused memory. */
static void req_bury(struct gw_req *r)
{
	gw_resume_drop(r);
	gw_body_drop(r);
	usage_tail_fini(&r->tail);
	cgn_arena_fini(&r->work);
	cgn_arena_fini(&r->arena);
	r->tag = 0;
	cgn_loop_bury(r->w->loop, &r->grave, req_release);
}

enum gw_step gw_finish(struct gw_req *r)
{
	gw_tokens_end(r);
	gw_queue_end(r);
	gw_try_end(r);
	cgn_timer_cancel(&r->timer);
	gw_account(r);
	req_bury(r);
	return STEP_END;
}

/* ---- http ---- */

static void on_request(struct http_exchange *x, const struct http_head *h, void *server_user)
{
	struct gw_worker *w = server_user;
	struct gw_req *r = calloc(1, sizeof *r);
	if (r == NULL) {
		http_exchange_abort(x, CGN_NO_MEMORY);
		return;
	}
	r->tag = GW_REQ_TAG;
	r->w = w;
	r->x = x;
	r->started = cgn_loop_now(w->loop);
	cgn_arena_init(&r->arena, ARENA_LIMIT);
	cgn_arena_init(&r->work, WORK_LIMIT);
	cgn_timer_init(&r->timer, w->loop, on_timer);
	http_exchange_user(x, r);
	r->state = GW_AUTH;
	if (!head_take(r, h))
		r->body_bad = CGN_NO_MEMORY;
	gw_wake(r);
}

/* Booked as memory grows and not as lengths are claimed: a claim costs nobody anything. */
static enum cgn_code body_add(struct gw_req *r, const uint8_t *p, size_t n)
{
	_Atomic uint64_t *used = &r->w->shared->body_bytes;
	const struct gw_rules *rules = r->w->rules;
	if (n > rules->max_body || r->body.n > rules->max_body - n)
		return CGN_TOO_LARGE;
	if (atomic_load_explicit(used, memory_order_relaxed) + n > rules->max_inflight_body)
		return CGN_OVERLOADED;
	if (r->body.cap == 0 && r->content_length > 0 && r->content_length <= 65536)
		(void)cgn_buf_room(&r->body, (size_t)r->content_length);
	cgn_buf_add(&r->body, p, n);
	if (r->body.bad)
		return CGN_NO_MEMORY;
	if (r->body.cap > r->body_booked) {
		atomic_fetch_add_explicit(used, r->body.cap - r->body_booked, memory_order_relaxed);
		r->body_booked = r->body.cap;
	}
	return CGN_FINE;
}

void gw_body_drop(struct gw_req *r)
{
	if (r->body_booked > 0)
		atomic_fetch_sub_explicit(&r->w->shared->body_bytes, r->body_booked, memory_order_relaxed);
	r->body_booked = 0;
	cgn_buf_fini(&r->body);
}

static void on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	if (r->state != GW_BODY || r->body_bad != CGN_FINE)
		return; /* refused already: what still comes is thrown away */
	r->body_bad = body_add(r, p, n);
	if (r->body_bad != CGN_FINE)
		gw_wake(r);
}

static void on_body_end(struct http_exchange *x, void *user)
{
	(void)x;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	r->body_done = true;
	if (r->state == GW_BODY)
		gw_wake(r);
}

static void on_drain(struct http_exchange *x, void *user)
{
	(void)x;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	if (!r->paused)
		return;
	r->paused = false;
	r->last_byte = cgn_loop_now(r->w->loop); /* the engine was not the silent one */
	if (r->t.call != NULL)
		grpc_resume(r->t.call);
}

static void on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	struct gw_req *r = user;
	if (r == NULL)
		return; /* there was no memory for it */
	CGN_LIVE(r, GW_REQ_TAG);
	r->x = NULL;
	r->client_why = *why;
	gw_wake(r);
}

const struct http_server_ops gw_http_ops = {
	.on_request = on_request,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drain = on_drain,
	.on_close = on_close,
};
