/* SPDX-License-Identifier: Apache-2.0 */
/* keepalive: comments in a silent stream. */
#include "router/answer/answer/keepalive.h"

#include "base/apierror/apierror.h"
#include "router/answer/answer/relay.h"
#include "router/request/hooks/hooks.h"
#include "router/request/limit/limit.h"

#define COMMENT ": keep-alive\n\n"

/* ---- the error at the end of a stream whose head went early ---- */

/* Return the string member |key| of |error| in the request's arena, or |otherwise|. */
static const char *member_of(struct gw_req *r, struct json_val error, const char *key, const char *otherwise)
{
	struct cgn_str s = error.type == JSON_OBJECT ? json_get_str(error, key, &r->arena) : CGN_STR("");
	const char *z = s.n > 0 && s.n < 100 ? cgn_arena_strz(&r->arena, s) : NULL;
	return z != NULL ? z : otherwise;
}

/* Send the error event of |how|. |body|: an error in the JSON of some API; without one the message is |otherwise|. */
static void error_tell(struct gw_req *r, struct gw_refusal how, struct cgn_str body, const char *otherwise)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = GW_HELD_MAX}, event = {0};
	struct json_val root, error;
	if (cgn_ok(json_parse(body, &root, NULL, NULL)) && apierror_find(root, &error)) {
		apierror_text(error, &text);
		how.type = member_of(r, error, "type", how.type);
		how.code = member_of(r, error, "code", how.code);
	}
	bool found = text.n > 0 && !text.bad;
	gw_refusal_event(r, &how, found ? cgn_buf_z(&text) : otherwise, NULL, &event);
	if (event.bad) {
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
		return;
	}
	const struct iovec iov = {event.p, event.n};
	http_exchange_body(r->client.x, &iov, 1);
	r->answer.bytes_out += event.n;
}

void gw_keepalive_refuse(struct gw_req *r, const struct gw_refusal *how, struct cgn_str body)
{
	r->answer.status = how->status;
	r->answer.head_sent = true;
	error_tell(r, *how, body, "the request was refused");
	gw_relay_close(r);
	gw_body_drop(r);
}

void gw_keepalive_keep(struct gw_req *r, struct cgn_str data)
{
	r->answer.whole.limit = GW_HELD_MAX;
	cgn_buf_str(&r->answer.whole, data);
}

void gw_keepalive_unfit(struct gw_req *r)
{
	int status = r->answer.status;
	bool failed = status >= 400;
	char text[100];
	const struct gw_refusal how = {.status = failed ? status : 502,
		.type = apierror_type(failed ? status : 502),
		.code = "engine_failed"};
	(void)snprintf(text, sizeof text,
		failed ? "the engine answered %d" : "the engine answered %d, and no event stream", status);
	r->answer.status = how.status;
	error_tell(r, how, r->answer.whole.bad ? CGN_STR("") : cgn_buf_view(&r->answer.whole), text);
	cgn_buf_fini(&r->answer.whole);
}

/* ---- comments ---- */

/* True if the client expects events, whatever the engine will say, and needs nothing that only the head of the engine's answer
 * tells. */
static bool head_may_go(const struct gw_req *r)
{
	enum gw_state s = r->state;
	return (s == GW_QUEUE || s == GW_PREFILL || s == GW_DISPATCH || s == GW_GATE) && r->prompt.stream &&
		r->client.route->kind == GW_RELAY && !r->client.quote_asked && !r->client.explain_asked &&
		!gw_hold_applies(r, 200);
}

static void head_go(struct gw_req *r)
{
	struct http_field f[4 + GW_LIMIT_FIELDS] = {{CGN_STR("content-type"), CGN_STR("text/event-stream")},
		{CGN_STR("x-request-id"), r->client.id}};
	size_t n = 2;
	if (r->client.set_cookie.n > 0)
		f[n++] = (struct http_field){CGN_STR("set-cookie"), r->client.set_cookie};
	if (r->client.if_available)
		f[n++] = GW_PREFERENCE_APPLIED;
	n += gw_limit_fields(r, f + n);
	r->answer.early = true;
	http_exchange_head(r->client.x, 200, f, n, -1);
}

static bool may_comment(const struct gw_req *r)
{
	const struct gw_answer *a = &r->answer;
	if (r->state == GW_ANSWER || r->state == GW_CHECK || r->state == GW_FINISH || a->unfit || a->refused)
		return false;
	if (!a->head_sent)
		return a->early || head_may_go(r);
	return a->comments && !a->torn && !gw_hold_is_on(r) && !http_exchange_over_mark(r->client.x);
}

static void comment_send(struct gw_req *r)
{
	const struct iovec iov = {(void *)(uintptr_t)COMMENT, sizeof COMMENT - 1};
	if (!r->answer.head_sent && !r->answer.early)
		head_go(r);
	http_exchange_body(r->client.x, &iov, 1);
	r->answer.commented_at = cgn_loop_now(r->w->loop);
}

static void on_keepalive(struct cgn_timer *t)
{
	struct gw_req *r = CGN_CONTAINER(t, struct gw_req, keepalive);
	CGN_LIVE(r, GW_REQ_TAG);
	const struct gw_answer *a = &r->answer;
	cgn_nsec every = r->w->rules->sse_keepalive, now = cgn_loop_now(r->w->loop);
	cgn_nsec last = a->last_byte > a->commented_at ? a->last_byte : a->commented_at;
	cgn_nsec silent = cgn_since(now, last);
	if (r->client.x == NULL || every == 0)
		return;
	if (silent >= every && may_comment(r))
		comment_send(r);
	cgn_timer_set(t, silent >= every ? every : every - silent);
}

void gw_keepalive_begin(struct gw_req *r)
{
	cgn_nsec every = r->w->rules->sse_keepalive;
	/* Ollama's clients read lines of JSON, and know no comments. */
	bool streams = r->prompt.stream && r->answer.ollama == NULL && r->selecting == NULL &&
		!r->identity.own && r->client.from.peer == NULL;
	if (every == 0 || !streams || r->keepalive.at != 0)
		return;
	cgn_timer_init(&r->keepalive, r->w->loop, on_keepalive);
	cgn_timer_set(&r->keepalive, every);
}

void gw_keepalive_head(struct gw_req *r, bool encoded)
{
	const struct gw_attempt *a = &r->attempt;
	struct gw_answer *to = &r->answer;
	to->comments = a->events && !encoded;
	to->unfit = to->early && (a->status != 200 || !to->comments || gw_hold_applies(r, a->status));
}
