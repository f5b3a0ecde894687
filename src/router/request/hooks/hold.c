/* SPDX-License-Identifier: Apache-2.0 */
/* hold: an engine's answer on its way to the client, held back until the external check of answers has allowed it. The
 * check is asked about the answer from its beginning: once, when it is whole, or each time a stream has grown by
 * hooks.after_window. */
#include "base/apierror/apierror.h"
#include "base/sse/sse.h"
#include "policy/who/auth/auth.h"
#include "router/request/attempt/attempt.h"
#include "router/request/hooks/hooks_priv.h"

#define PIECE ((size_t)64 * 1024) /* Bytes that are given to the exchange at a time. */

/* ---- taking the answer ---- */

/* Errors of engines, numbers (embeddings, scores) and counts of tokens are not text of a model. */
bool gw_hold_applies(const struct gw_req *r, int status)
{
	return r->w->rules->hooks.url[GW_HOOK_AFTER] != NULL && !r->identity.own && status >= 200 &&
		status < 300 && r->client.route->scope == AUTH_CHAT && r->client.route->kind != GW_COUNT;
}

static bool fields_keep(struct gw_hold *h, const struct http_field *fields, size_t n)
{
	h->fields = cgn_arena_get(&h->arena, (n + 1) * sizeof *h->fields);
	for (size_t i = 0; h->fields != NULL && i < n; i++) {
		h->fields[i] = (struct http_field){cgn_arena_str(&h->arena, fields[i].name),
			cgn_arena_str(&h->arena, fields[i].value)};
		if (h->fields[i].name.p == NULL || h->fields[i].value.p == NULL)
			return false;
		if (cgn_str_eq_nocase(h->fields[i].name, CGN_STR("content-type")))
			h->type = h->fields[i].value;
	}
	h->n_fields = n;
	return h->fields != NULL;
}

void gw_out_head(struct gw_req *r, int status, const struct http_field *fields, size_t n, int64_t length)
{
	if (!gw_hold_applies(r, status)) {
		http_exchange_head(r->client.x, status, fields, n, length);
		return;
	}
	const struct gw_hook_rules *rules = &r->w->rules->hooks;
	struct gw_hold *h = &gw_hooking_of(r)->hold;
	*h = (struct gw_hold){.on = true,
		.status = status,
		.length = length,
		.client = gw_hook_client_ref(r->w->hooks[GW_HOOK_AFTER]),
		.timeout = rules->timeout,
		.max = rules->max_body,
		.window = rules->window,
		.pass = rules->pass};
	cgn_arena_init(&h->arena, 2 * GW_HEAD_ARENA);
	if (!fields_keep(h, fields, n))
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
}

bool gw_hold_is_on(const struct gw_req *r)
{
	return r->hook != NULL && r->hook->hold.on;
}

static void hold_refuse(struct gw_req *r, const struct gw_refusal *how, const char *message,
	const char *outcome)
{
	struct gw_hold *h = &r->hook->hold;
	gw_ask_cancel(r);
	h->refused = true;
	h->refusal = *how;
	h->message = message;
	h->outcome = outcome;
}

/* The rest of the answer cannot be checked: |outcome| for the metric, |why| for the log. */
static void hold_fail(struct gw_req *r, const struct gw_refusal *how, const char *outcome, const char *why)
{
	struct gw_hold *h = &r->hook->hold;
	gw_ask_cancel(r);
	gw_ask_fail(r, GW_HOOK_AFTER, outcome, why);
	r->hook->ask.answered = false;
	h->lifted = h->pass;
	if (h->pass)
		return;
	gw_ask_audit(r, GW_HOOK_AFTER, "hook_failed");
	hold_refuse(r, how, why, "hook_failed");
}

/* Drop the sent bytes: they are not needed any more once nothing is checked. */
static void hold_shrink(struct gw_req *r)
{
	struct gw_hold *h = &r->hook->hold;
	cgn_buf_eat(&h->bytes, h->sent);
	h->sent = 0;
	h->allowed = h->bytes.n;
}

void gw_out_body(struct gw_req *r, struct cgn_str bytes)
{
	static const struct gw_refusal large = {502, "server_error", "answer_too_large", .by = GW_BY_HOOK},
				       memory = {503, "server_error", "overloaded", .retry_after = 1};
	if (!gw_hold_is_on(r)) {
		const struct iovec iov = {(void *)(uintptr_t)bytes.p, bytes.n};
		http_exchange_body(r->client.x, &iov, 1);
		return;
	}
	struct gw_hold *h = &r->hook->hold;
	if (h->refused)
		return;
	if (!h->lifted && bytes.n > h->max - h->bytes.n)
		hold_fail(r, &large, "too_large",
			"the answer is larger than what is checked (hooks.max_body)");
	if (!h->lifted && !h->refused && !gw_hook_book(r, &h->booked, h->bytes.n + bytes.n))
		hold_fail(r, &memory, "no_memory",
			"too many bodies are in memory to check the answer (router.max_inflight_body)");
	if (h->refused)
		return;
	cgn_buf_add(&h->bytes, bytes.p, bytes.n);
	if (h->bytes.bad)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
	else if (h->lifted)
		h->allowed = h->bytes.n;
}

void gw_out_end(struct gw_req *r, const struct http_field *trailers, size_t n)
{
	if (!gw_hold_is_on(r)) {
		http_exchange_end(r->client.x, trailers, n);
		return;
	}
	struct gw_hold *h = &r->hook->hold;
	h->ended = true;
	if (n > 0) /* The strings of the trailer live as long as the request. */
		h->trailer = trailers[0];
	h->n_trailers = n > 0;
}

/* ---- asking ---- */

static enum hook_body hold_form(const struct gw_hold *h)
{
	if (cgn_str_starts(h->type, "text/event-stream"))
		return HOOK_EVENTS;
	if (cgn_str_starts(h->type, "application/x-ndjson"))
		return HOOK_LINES;
	return cgn_str_starts(h->type, "application/json") ? HOOK_JSON : HOOK_BYTES;
}

/* Return the end of the last whole event, or line, before |i|; at least the end of the allowed bytes. */
static size_t border_before(const struct gw_hold *h, size_t i)
{
	const char *p = h->bytes.p;
	if (hold_form(h) != HOOK_LINES) {
		size_t end = sse_border((struct cgn_str){p, i}, h->allowed);
		return end > 0 ? end : h->allowed;
	}
	while (i > h->allowed && p[i - 1] != '\n')
		i--;
	return i;
}

/* Return the bytes that may be asked about before the answer is whole. The last event waits: it may be the
 * mark of the answer's end, which a client that gets a refusal must not have. */
static size_t hold_border(const struct gw_hold *h)
{
	size_t last = border_before(h, h->bytes.n);
	return last > h->allowed ? border_before(h, last - 1) : last;
}

/* Return how much of the answer is to be asked about now; 0: nothing. */
static size_t hold_due(const struct gw_hooking *k)
{
	const struct gw_hold *h = &k->hold;
	enum hook_body form = hold_form(h);
	if (h->refused || h->lifted || gw_ask_is_open(k) || k->ask.answered)
		return 0;
	if (h->ended)
		return h->told ? 0 : h->bytes.n;
	if (h->window == 0 || h->bytes.n - h->allowed < h->window ||
		(form != HOOK_EVENTS && form != HOOK_LINES))
		return 0;
	size_t to = hold_border(h);
	return to - h->allowed >= h->window ? to : 0;
}

static bool hold_can_send(const struct gw_req *r)
{
	const struct gw_hold *h = &r->hook->hold;
	return h->sent < h->allowed && !http_exchange_over_mark(r->client.x);
}

bool gw_hold_is_due(const struct gw_req *r)
{
	if (!gw_hold_is_on(r) || r->client.x == NULL)
		return false;
	const struct gw_hooking *k = r->hook;
	return k->hold.refused || k->ask.answered || hold_can_send(r) || hold_due(k) > 0;
}

static void hold_ask(struct gw_req *r, size_t to)
{
	struct gw_hold *h = &r->hook->hold;
	const char *roles[IDENTITY_MAX_ROLES];
	struct hook_question q = {.hook = gw_hook_text(GW_HOOK_AFTER),
		.status = h->status,
		.type = h->type,
		.complete = h->ended,
		.form = hold_form(h),
		.body = {h->bytes.p, to}};
	h->asked = to;
	h->told = h->ended;
	gw_ask_fill(r, &q, roles);
	gw_ask_start(r, GW_HOOK_AFTER, h->client, h->timeout, h->max, &q);
}

static void verdict_apply(struct gw_req *r)
{
	static const struct gw_refusal unavailable = {503, "server_error", "hook_unavailable",
		.by = GW_BY_HOOK, .retry_after = 1};
	struct gw_hold *h = &r->hook->hold;
	const struct hook_verdict *v = &r->hook->ask.verdict;
	if (!r->hook->ask.answered)
		return;
	r->hook->ask.answered = false;
	if (v->decision == HOOK_ALLOWED || (v->decision == HOOK_FAILED && h->pass)) {
		h->allowed = h->asked;
	} else if (v->decision == HOOK_REFUSED) {
		gw_ask_audit(r, GW_HOOK_AFTER, v->code);
		hold_refuse(r,
			&(struct gw_refusal){v->status,
				v->status == 403 ? "permission_error" : "invalid_request_error", v->code,
				.by = GW_BY_HOOK, .retry_after = v->status == 429, .noted = true},
			v->message, v->code);
	} else {
		gw_ask_audit(r, GW_HOOK_AFTER, "hook_failed");
		hold_refuse(r, &unavailable, "the check of answers gives no decision at the moment",
			"hook_failed");
	}
}

/* ---- sending ---- */

static void head_out(struct gw_req *r)
{
	struct gw_hold *h = &r->hook->hold;
	if (h->head_out)
		return;
	h->head_out = true;
	r->answer.first_byte = cgn_loop_now(r->w->loop); /* The client's. */
	http_exchange_head(r->client.x, h->status, h->fields, h->n_fields, h->length);
}

static void piece_out(struct gw_req *r)
{
	struct gw_hold *h = &r->hook->hold;
	size_t left = h->allowed - h->sent, n = left < PIECE ? left : PIECE;
	const struct iovec iov = {h->bytes.p + h->sent, n};
	head_out(r);
	http_exchange_body(r->client.x, &iov, 1);
	h->sent += n;
}

static void hold_pump(struct gw_req *r)
{
	struct gw_hold *h = &r->hook->hold;
	while (r->client.x != NULL && hold_can_send(r))
		piece_out(r);
	if (h->lifted)
		hold_shrink(r);
	if (r->client.x == NULL || h->closed || !h->ended || h->sent < h->bytes.n || gw_ask_is_open(r->hook))
		return;
	h->closed = true;
	head_out(r);
	http_exchange_end(r->client.x, &h->trailer, h->n_trailers);
}

bool gw_hold_step(struct gw_req *r)
{
	size_t to = 0;
	if (!gw_hold_is_on(r) || r->client.x == NULL)
		return true;
	do {
		verdict_apply(r);
		to = hold_due(r->hook);
		if (to > 0)
			hold_ask(r, to);
	} while (r->hook->ask.answered);
	if (r->hook->hold.refused)
		return false;
	hold_pump(r);
	return true;
}

/* ---- refusing ---- */

void gw_hold_cut(struct gw_req *r, const char *why)
{
	static const struct gw_refusal died = {502, "server_error", "engine_failed", .by = GW_BY_ENGINE};
	if (!r->hook->hold.refused)
		hold_refuse(r, &died, why, "cut");
}

/* The client has a part of the answer: end a stream with the error, and cut anything else. */
static void refusal_append(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct gw_hold *h = &r->hook->hold;
	enum hook_body form = hold_form(h);
	r->answer.outcome = h->outcome;
	h->closed = true;
	while (h->sent < h->allowed)
		piece_out(r);
	if (form == HOOK_EVENTS)
		gw_refusal_event(r, &h->refusal, h->message, &(struct cgn_str){h->bytes.p, h->allowed}, &b);
	else {
		apierror_put(&b,
			&(struct apierror){h->message, h->refusal.type, .code = h->refusal.code,
				.status = h->refusal.status, .shape = apierror_shape_of(r->client.path),
				.request_id = r->client.id});
		cgn_buf_char(&b, '\n');
	}
	if (b.bad || (form != HOOK_EVENTS && form != HOOK_LINES)) {
		http_exchange_abort(r->client.x, CGN_BAD_GATEWAY);
		return;
	}
	const struct iovec iov = {b.p, b.n};
	http_exchange_body(r->client.x, &iov, 1);
	http_exchange_end(r->client.x, NULL, 0);
}

/* Leave GW_CHECK with the error instead of the answer, or behind the part of the answer that was allowed. */
static enum gw_step check_refuse(struct gw_req *r)
{
	struct gw_hold *h = &r->hook->hold;
	h->on = false;
	if (!h->head_out) {
		r->answer.head_sent = false;
		return gw_refuse(r, &h->refusal, "%s", h->message);
	}
	refusal_append(r);
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}

enum gw_step gw_check(struct gw_req *r)
{
	if (!gw_hold_step(r))
		return check_refuse(r);
	if (r->client.x != NULL && !r->hook->hold.closed)
		return gw_park(r, gw_ask_is_open(r->hook) ? WAIT_HOOK : WAIT_CLIENT, 0);
	r->hook->hold.on = false;
	cgn_buf_fini(&r->hook->hold.bytes);
	(void)gw_hook_book(r, &r->hook->hold.booked, 0);
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}
