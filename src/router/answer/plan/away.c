/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/plan/away.h"

#include "base/log/log.h"
#include "policy/route/peer/beat.h"
#include "policy/route/peer/worth.h"
#include "router/answer/answer/resume.h"
#include "router/answer/plan/queue.h"
#include "router/request/account/account.h"
#include "router/request/account/explain.h"
#include "router/request/admission/admission.h"
#include "router/request/attempt/verdict.h"
#include "router/request/bid/bid.h"
#include "router/request/cascade/cascade.h"
#include "router/request/limit/budgets.h"
#include "router/request/limit/limit.h"
#include "router/shared/peers/peers.h"
#include "router/shared/worker/breaker.h"

#define REST_KEY  (60 * CGN_SEC)  /* after an error about the key, the account or the model's name */
#define REST_MOST (600 * CGN_SEC) /* a peer may ask for */

static void away_count(const struct gw_req *r, const struct gw_peer *p, const char *outcome)
{
	metric_add(METRIC_OF(r->w->shared->telemetry, AWAY, p->name, outcome), 1);
}

bool gw_away_is_on(const struct gw_req *r)
{
	return r->attempt.peer != NULL;
}

/* ---- the decision ---- */

/* An answer that its engine stores can be continued there alone, so a request for one stays. */
static bool continues_nowhere(const struct gw_req *r)
{
	return !cgn_str_starts(r->client.target, "/v1/responses") ||
		(r->prompt.facts.unstored && r->prompt.facts.previous.raw.p == NULL);
}

/* Is the request one whose answer can be given elsewhere, from its beginning or from where it broke off? */
static bool is_asked_elsewhere(const struct gw_req *r, const struct plan_leg *leg)
{
	bool begins = leg->edit == LEG_AS_SENT && !r->answer.head_sent && r->client.pin.n == 0;
	return (begins || leg->target.resuming) && leg->role == LEG_WHOLE;
}

/* May |leg| of the request be sent elsewhere? */
static bool may_leave(struct gw_req *r, const struct plan_leg *leg)
{
	if (r->client.from.peer != NULL && r->client.from.hops >= r->w->rules->away_hops)
		return false;
	return r->w->shared->peers != NULL && !r->client.stays && !r->client.retry_off && !r->identity.own &&
		r->selecting == NULL && !r->client.subset_told && r->client.route->kind == GW_RELAY &&
		!r->plan.home.known && r->plan.ticket == NULL && is_asked_elsewhere(r, leg) &&
		!gw_cascade_is_held(r) && !r->prompt.form && continues_nowhere(r);
}

/* Return the mean power of a prompt on the nodes that are ready for the model; 0: unknown. */
static double prompt_watts(const struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	double sum = 0, known = 0;
	for (size_t i = 0; m != NULL && i < m->n_ready; i++) {
		const double watts = energy_prompt_watts(r->w->shared->choice.energy, m->ready[i]->slot);
		sum += watts;
		known += watts > 0;
	}
	return known > 0 ? sum / known : 0;
}

/* Return the cost of the request if it stays; nothing is known where costs do not count. */
static struct peer_cost cost_here(const struct gw_req *r, const struct peer_stay *stay)
{
	const struct peer_rules *rules = &r->w->rules->away;
	const struct gw_price *price = rules->price > 0 ? gw_rules_price(r->w->rules, r->prompt.model) : NULL;
	const double watts = rules->energy > 0 && stay->known ? prompt_watts(r) : 0;
	struct peer_cost c = {.priced = price != NULL, .powered = watts > 0};
	if (price != NULL)
		c.price = ((double)price->input * (double)r->plan.prompt_tokens +
				  (double)price->output * (double)limit_answer_estimate(r)) /
			(double)BUDGET_PRICE_SCALE;
	c.joules = watts * (double)stay->prefill / (double)CGN_SEC;
	return c;
}

static struct peer_stay stay_of(struct gw_req *r, const struct chooser_pick_result *p)
{
	const size_t bucket = admission_bucket(r->prompt.model);
	const struct gw_admission *g = r->w->shared->admission;
	const bool waits = gw_queue_must_wait(r, p->verdict);
	gw_queue_predict(r, p);
	const struct admission_forecast *f = &r->plan.ttft;
	cgn_nsec queue =
		waits ? atomic_load_explicit(&g->wait_ms[bucket], memory_order_relaxed) * CGN_MSEC : 0;
	struct peer_stay stay = peer_stay_of(p->verdict, f, waits, queue);
	stay.cost = cost_here(r, &stay);
	return stay;
}

/* May this request leave for the peer? Fail closed: the model and the tenant must both be named. */
static struct gw_peer_model *model_permitted(const struct gw_req *r, const struct gw_peer *p)
{
	struct cgn_str own = gw_identity_tenant(&r->identity);
	if (p->url == NULL || p == r->client.from.peer || r->client.priority < p->min_priority ||
		!gw_peer_has_route(p, r->client.target) || !gw_peer_takes_tenant(p, own) ||
		(r->answer.head_sent && !gw_resume_fits(r, p->resume)))
		return NULL;
	return gw_peer_model(p, r->prompt.model);
}

static uint64_t price_expected(const struct gw_req *r, const struct gw_peer *p)
{
	return gw_peer_price(p, r->plan.prompt_tokens, limit_answer_estimate(r));
}

/* Is the peer there, and has it asked for no pause? */
static bool peer_is_open(const struct gw_peer *p, const struct gw_peer_model *m, cgn_nsec now)
{
	return atomic_load_explicit(&m->rest_until, memory_order_relaxed) <= now &&
		!atomic_load_explicit(&p->lost, memory_order_relaxed) &&
		atomic_load_explicit(&p->rest_until, memory_order_relaxed) <= now;
}

/* Is the bid one that the request may take? Count why it is not, if it is worth it. */
static bool bid_is_open(struct gw_req *r, const struct peer_stay *stay, const struct gw_bid *b)
{
	const uint32_t open = atomic_load_explicit(&b->peer->open, memory_order_relaxed);
	const enum peer_door door =
		peer_bid_door(&b->told, stay, &r->w->rules->away, open, b->peer->max_concurrent);
	if (door == PEER_DOOR_FULL)
		away_count(r, b->peer, "full");
	if (door == PEER_DOOR_BUSY)
		away_count(r, b->peer, "busy");
	return door == PEER_DOOR_OPEN;
}

/* Ask the peers that may have the request. */
static struct gw_bids *bids_take(struct gw_req *r, const struct peer_stay *stay)
{
	const struct gw_peers *peers = r->w->shared->peers;
	struct gw_bids *bids = r->plan.away.bids;
	if (bids == NULL)
		bids = r->plan.away.bids =
			cgn_arena_get(&r->arena, sizeof *bids + peers->n * sizeof bids->v[0]);
	if (bids == NULL)
		return NULL;
	bids->n = 0;
	for (size_t i = 0; i < peers->n; i++) {
		struct gw_peer *p = &peers->v[i];
		struct gw_peer_model *m = model_permitted(r, p);
		if (m == NULL || (r->plan.away.tried & 1U << i) != 0 ||
			!peer_is_open(p, m, cgn_loop_now(r->w->loop)))
			continue;
		struct gw_bid *b = &bids->v[bids->n++];
		*b = gw_bid_of(r, p, m, limit_answer_estimate(r));
		b->open = bid_is_open(r, stay, b);
	}
	return bids;
}

/* Return the best bid of a peer that the request was not tried with; NULL: none. */
static const struct gw_bid *bid_best(const struct gw_req *r, const struct gw_bids *bids,
	const struct peer_cost *here)
{
	const struct gw_bid *best = NULL;
	for (size_t i = 0; bids != NULL && i < bids->n; i++) {
		const struct gw_bid *b = &bids->v[i];
		if (b->open && (r->plan.away.tried & 1U << (b->peer->slot - ROUTE_MAX_NODES)) == 0 &&
			(best == NULL || peer_bid_beats(&b->told, &best->told, &r->w->rules->away, here)))
			best = b;
	}
	return best;
}

/* Reserve the expected cost of the request. */
static bool budget_take(struct gw_req *r, struct gw_peer *p)
{
	struct budget_amounts want = {.v = {[BUDGET_MONEY] = price_expected(r, p)}};
	struct budget_answer answer;
	r->plan.away.held = (struct budget_held){0};
	if (p->budgets.n == 0 || want.v[BUDGET_MONEY] == 0)
		return true;
	if (gw_budgets_reserve(r->w->shared->budgets, p->account, &p->budgets, &want, &answer,
		    &r->plan.away.held))
		return true;
	away_count(r, p, "budget");
	return false;
}

bool gw_away_continues(struct gw_req *r, const struct plan_leg *leg)
{
	const struct gw_peers *peers = r->w->shared->peers;
	if (!leg->target.resuming || !may_leave(r, leg))
		return false;
	for (size_t i = 0; i < peers->n; i++) {
		const struct gw_peer *p = &peers->v[i];
		const struct gw_peer_model *m = model_permitted(r, p);
		if (m != NULL && p != r->attempt.peer && (r->plan.away.tried & 1U << i) == 0 &&
			peer_is_open(p, m, cgn_loop_now(r->w->loop)))
			return true;
	}
	return false;
}

/* The body is the client's, or for an answer that broke off the one that continues it there. */
static bool body_fits(struct gw_req *r, const struct gw_peer *p)
{
	return !r->answer.head_sent || gw_resume_send_as(r, p->resume);
}

bool gw_away_send(struct gw_req *r, cgn_nsec began)
{
	if (!may_leave(r, plan_leg(&r->plan.legs)))
		return false;
	struct chooser_ask ask = gw_choose_ask(r, plan_leg(&r->plan.legs));
	const struct chooser_pick_result here = chooser_pick(r->w->chooser, &ask);
	const struct peer_stay stay = stay_of(r, &here);
	/* Most requests need not wait, and ask no peer. */
	if (!peer_may_be_worth(&stay, &r->w->rules->away))
		return false;
	enum breaker_gate gate = BREAKER_SHUT;
	const struct gw_bid *pick;
	const struct gw_bids *bids = bids_take(r, &stay);
	while ((pick = bid_best(r, bids, &stay.cost)) != NULL) {
		gate = gw_breaker_claim_at(r->w, pick->peer->slot, pick->peer->node);
		if (gate != BREAKER_SHUT && body_fits(r, pick->peer) && budget_take(r, pick->peer))
			break;
		gw_breaker_unclaim(r->w, pick->peer->slot, pick->peer->node, gate);
		r->plan.away.tried |= 1U << (pick->peer->slot - ROUTE_MAX_NODES);
	}
	if (pick == NULL)
		return false;
	r->plan.away.peer = pick->peer;
	r->plan.away.forecast =
		pick->told.source == PEER_BID_SUMMARY ? pick->told.forecast : (struct peer_forecast){0};
	r->plan.away.shown = (struct peer_shown){0};
	gw_explain_pick(r, &ask, &here, cgn_since(cgn_clock_now(), began));
	gw_leg_leave(r, pick->peer, pick->model, gate);
	gw_goto(r, GW_DISPATCH);
	return true;
}

/* ---- the answer ---- */

bool gw_away_refuses(const struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	const struct view_model *here = view_model_find(r->w->view, r->prompt.model);
	if (!gw_away_is_on(r) || !a->head_seen || opening_status(a->status) == STATUS_JUDGED)
		return false;
	/* A client gets a peer's error only if it is about the request itself, and no node here can
	 * decide. */
	bool about_request = a->status == 400 || a->status == 413 || a->status == 422;
	return !about_request || (here != NULL && here->n_ready > 0);
}

/* Let the peer rest, or its model alone. Returns for how long. */
static cgn_nsec peer_rest(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	uint64_t seconds = 0;
	for (size_t i = 0; i < a->n_headers; i++)
		if (cgn_str_eq_nocase(a->headers[i].name, CGN_STR("retry-after")))
			(void)cgn_str_u64(cgn_str_trim(a->headers[i].value), &seconds);
	cgn_nsec rest = seconds < REST_MOST / CGN_SEC ? seconds * CGN_SEC : REST_MOST;
	bool own_name = a->status == 508 && r->client.from.peer == NULL;
	bool busy = a->status == 429 || a->status == 503 || a->status == 529;
	if ((a->status >= 401 && a->status <= 404) || own_name)
		rest = REST_KEY;
	else if (!busy)
		return 0;
	else if (rest < PEER_REST_LEAST)
		rest = PEER_REST_LEAST;
	atomic_store_explicit(a->status == 404 ? &a->peer_model->rest_until : &a->peer->rest_until,
		cgn_loop_now(r->w->loop) + rest, memory_order_relaxed);
	return rest;
}

enum gw_step gw_away_return(struct gw_req *r, const char *outcome)
{
	struct gw_attempt *a = &r->attempt;
	struct gw_peer *p = a->peer;
	const cgn_nsec rest = a->head_seen ? peer_rest(r) : 0;
	const enum breaker_failure how = a->head_seen ? gw_attempt_status_failure(a) : BREAKER_FAILURES;
	cgn_log_limited(WARN, "gateway.peer_failed", F_STRN("id", r->client.id), F_STR("peer", p->name),
		F_STR("outcome", outcome), F_I64("status", a->status), F_STR("why", a->call.why.msg),
		F_DUR("rest", rest), F_STR("then", "the request goes on here"));
	if (a->head_seen && opening_status(a->status) == STATUS_NOTHING)
		gw_verdict_bad(a, BREAKER_RESET); /* No other node tells whether the request did it */
	else if (how != BREAKER_FAILURES)
		gw_verdict_bad(a, how);
	r->plan.away.tried |= 1U << (p->slot - ROUTE_MAX_NODES);
	gw_away_settle(r, outcome);
	gw_leg_close(r);
	plan_withdraw(&r->plan.legs);
	/* The failure of a peer says nothing of the nodes that are asked now. */
	*a = (struct gw_attempt){.turn = a->turn, .used = gw_attempt_joules(a)};
	gw_goto(r, GW_ROUTE);
	return STEP_AGAIN;
}

void gw_away_begun(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	if (!gw_away_is_on(r) || a->status >= 300)
		return;
	gw_bid_begun(r);
	/* Only a stream tells its time to first token. */
	if (!a->events)
		return;
	cgn_nsec before = atomic_load_explicit(&a->peer->ttft, memory_order_relaxed);
	atomic_store_explicit(&a->peer->ttft,
		peer_ttft_learn(before, cgn_since(cgn_loop_now(r->w->loop), a->sent_at)),
		memory_order_relaxed);
}

void gw_away_settle(struct gw_req *r, const char *outcome)
{
	struct gw_away *away = &r->plan.away;
	struct budget_amounts spent = {0};
	if (away->peer == NULL)
		return;
	if (strcmp(outcome, "answered") == 0)
		gw_bid_settle(r);
	const struct gw_used used = r->answer.head_sent ? gw_used_of(r) : (struct gw_used){0};
	spent.v[BUDGET_MONEY] = used.money;
	away->money += used.money;
	away_count(r, away->peer, outcome);
	gw_money_add(r->w, METRIC_OF(r->w->shared->telemetry, AWAY_MONEY, away->peer->name), used.money);
	if (away->peer->budgets.n > 0)
		gw_budgets_return(r->w->shared->budgets, away->peer->account, &away->held, &spent);
	away->held = (struct budget_held){0};
	if (strcmp(outcome, "cut") == 0)
		away->tried |= 1U << (away->peer->slot - ROUTE_MAX_NODES);
	away->peer = NULL;
}
