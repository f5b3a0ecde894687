/* SPDX-License-Identifier: Apache-2.0 */
/* exchange: the life of a request, from its head to its end, and the callbacks of its exchange. */
#include <stdlib.h>

#include "router/answer/answer/ollama.h"
#include "router/answer/answer/resume.h"
#include "router/answer/client/client_priv.h"
#include "router/answer/files/files.h"
#include "router/answer/plan/away.h"
#include "router/answer/plan/handoff.h"
#include "router/answer/plan/place.h"
#include "router/answer/plan/queue.h"
#include "router/answer/plan/refused.h"
#include "router/answer/quote/quote.h"
#include "router/answer/selection/selection.h"
#include "router/request/account/account.h"
#include "router/request/account/sessions.h"
#include "router/request/account/underway.h"
#include "router/request/cascade/cascade.h"
#include "router/request/hooks/hooks.h"
#include "router/request/limit/limit.h"
#include "router/request/limit/shares.h"
#include "router/request/tokens/tokens.h"

/* A head is at most 32 KiB, and is kept twice, as the client's and as the engine's. The held part of the chain is
 * kept once per leg until the answer ends. */
#define ARENA_LIMIT \
	((size_t)(192 * 1024) + PLAN_LEGS(PLAN_MAX_ATTEMPTS) * ROUTE_MAX_BLOCKS * sizeof(uint64_t))
/* Two chains: of tokens, and of bytes if the tokens do not come. */
#define WORK_LIMIT (2 * (ROUTE_MAX_BLOCKS + 2) * sizeof(uint64_t))

static void req_free_buried(struct cgn_grave *g)
{
	struct gw_req *r = CGN_CONTAINER(g, struct gw_req, grave);
	free(r);
}

/* Free the request after this turn: callbacks that are under way must not meet reused memory. */
static void req_bury(struct gw_req *r)
{
	gw_tokens_end(r);
	gw_resume_drop(r);
	gw_session_drop(r);
	gw_handoff_drop(r);
	gw_cascade_drop(r);
	gw_ollama_drop(r);
	gw_body_decode_drop(r);
	gw_body_drop(r);
	usage_tail_fini(&r->answer.tail);
	coding_close(&r->answer.decoder);
	cgn_buf_fini(&r->answer.held);
	cgn_buf_fini(&r->answer.part);
	cgn_buf_fini(&r->answer.lead);
	cgn_buf_fini(&r->answer.refusal_text);
	cgn_arena_fini(&r->scratch);
	cgn_arena_fini(&r->head);
	cgn_arena_fini(&r->arena);
	r->tag = 0;
	cgn_loop_bury(r->w->loop, &r->grave, req_free_buried);
}

enum gw_step gw_finish(struct gw_req *r)
{
	if (!r->body_job.busy)
		gw_tokens_end(r);
	gw_queue_end(r);
	gw_refused_over(r);
	gw_place_give(r); /* before the end of the leg, which lets others go */
	gw_leg_close(r);
	cgn_timer_cancel(&r->timer);
	cgn_timer_cancel(&r->keepalive);
	gw_underway_stop(r);
	gw_account_usage(r);
	gw_quote_learn(r);
	gw_limit_settle(r);
	gw_away_settle(r, r->answer.outcome != NULL ? "cut" : "answered");
	gw_account_end(r);
	gw_underway_end(r);
	gw_hook_end(r);
	gw_files_end(r);
	gw_select_end(r);
	if (r->body_job.busy)
		r->body_job.orphaned = req_bury; /* the pool still reads the body */
	else
		req_bury(r);
	return STEP_END;
}

/* ---- callbacks of the exchange ---- */

static void request_begin(struct gw_worker *w, struct gw_peer *from, struct http_exchange *x,
	const struct http_head *h)
{
	struct gw_req *r = CGN_NEW(struct gw_req);
	r->tag = GW_REQ_TAG;
	r->w = w;
	r->client.x = x;
	r->client.from.peer = from;
	r->client.started = cgn_loop_now(w->loop);
	cgn_arena_init(&r->arena, ARENA_LIMIT);
	cgn_arena_init(&r->scratch, WORK_LIMIT);
	cgn_arena_init(&r->head, GW_HEAD_ARENA);
	http_exchange_user(x, r);
	gw_req_start(r, gw_states);
	if (!gw_head_take(r, h))
		r->body.bad = CGN_NO_MEMORY;
	gw_wake(r);
}

static void on_request(struct http_exchange *x, const struct http_head *h, void *server_user)
{
	request_begin(server_user, NULL, x, h);
}

static void on_arrival(struct http_exchange *x, const struct http_head *h, void *server_user)
{
	const struct gw_gate *g = server_user;
	request_begin(g->w, g->peer, x, h);
}

/* Count the booked bytes in the tenant's share. False: it has its share. */
static bool body_share(struct gw_req *r)
{
	const struct gw_quota_taker who = gw_share_taker(r, QUOTA_BODIES, 0);
	struct gw_quotas *q = r->w->shared->quotas;
	struct gw_body *b = &r->body;
	if (b->booked < b->shared)
		gw_quotas_give(q, &who.holder, b->shared - b->booked);
	else if (!gw_quotas_take(q, &who, b->booked - b->shared, r->w->rules->max_inflight_body, &b->told))
		return false;
	b->shared = b->booked;
	return true;
}

static enum cgn_code body_add(struct gw_req *r, const uint8_t *p, size_t n)
{
	const struct gw_body_bound bound = gw_body_bound(r);
	if (r->body.bytes.cap == 0 && r->body.length > 0 && r->body.length <= 65536)
		(void)cgn_buf_room(&r->body.bytes, (size_t)r->body.length);
	enum cgn_code code =
		gw_body_append(&bound, &r->body.bytes, &r->body.booked, (struct cgn_str){(const char *)p, n});
	return code != CGN_FINE || body_share(r) ? code : CGN_OVERLOADED;
}

static void on_body(struct http_exchange *x, void *user, const uint8_t *p, size_t n)
{
	(void)x;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	/* An upload also goes on while shared limits are asked. */
	if (r->state == GW_FILES || (r->state == GW_LIMIT && r->filing != NULL))
		gw_files_body(r, (struct cgn_str){(const char *)p, n});
	if (r->state != GW_BODY || r->body.bad != CGN_FINE)
		return; /* refused already: drop what still comes */
	r->body.bad = body_add(r, p, n);
	if (r->body.bad != CGN_FINE)
		gw_wake(r);
}

static void on_body_end(struct http_exchange *x, void *user)
{
	(void)x;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	const struct gw_body_bound bound = gw_body_bound(r);
	r->body.done = true;
	gw_body_fit(&bound, &r->body.bytes, &r->body.booked);
	if (r->body.shared > r->body.booked)
		(void)body_share(r);
	if (r->state == GW_BODY || r->state == GW_FILES)
		gw_wake(r);
}

static void on_drain(struct http_exchange *x, void *user)
{
	(void)x;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	if (r->answer.paused) {
		r->answer.paused = false;
		/* the client was silent, not the engine */
		r->answer.last_byte = r->attempt.last_byte = cgn_loop_now(r->w->loop);
		gw_call_resume(&r->attempt.call);
	}
	if (r->tag != GW_REQ_TAG)
		return;
	if (r->state == GW_FILES || ((r->state == GW_STREAM || r->state == GW_CHECK) && gw_hold_is_due(r)))
		gw_wake(r);
}

static void on_close(struct http_exchange *x, void *user, const struct cgn_err *why)
{
	(void)x;
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	r->client.x = NULL;
	r->client.why = *why;
	gw_wake(r);
}

const struct http_server_ops gw_http_ops = {
	.on_request = on_request,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drain = on_drain,
	.on_close = on_close,
};

const struct http_server_ops gw_gate_ops = {
	.on_request = on_arrival,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drain = on_drain,
	.on_close = on_close,
};
