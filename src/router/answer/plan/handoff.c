/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/plan/handoff.h"
#include "router/request/trace/trace.h"

#include <stdlib.h>

#include "base/log/log.h"
#include "policy/node/handoff/cached.h"
#include "router/answer/answer/relay.h"
#include "router/answer/plan/queue.h"
#include "router/answer/plan/refused.h"
#include "router/request/account/explain.h"
#include "router/request/attempt/opening.h"
#include "router/request/attempt/verdict.h"
#include "router/request/isolate/isolate.h"
#include "router/shared/worker/breaker.h"

#define GW_HANDOFF_TAG 0x64a40ff0U
/* An engine that computed a prompt answers about when the prompt was taken over. */
#define BESIDE_WAIT CGN_SEC
/* An engine that misses its partner says so before or after the partner's agent does. */
#define SUSPECT_WAIT (100 * CGN_MSEC)

struct gw_handoff {
	uint32_t tag;
	const struct handoff_ops *ops;
	struct handoff_end prefill; /* strings in the request's arena */
	uint16_t slot;              /* the prefill node's */
	const char *node;           /* the prefill node's id, in the arena */
	uint64_t number;
	struct cgn_buf answer; /* the prefill leg's */
	struct cgn_str params; /* for the decode leg; in the arena */
	cgn_nsec computed_at;  /* end of the prefill leg */
	bool sent;    /* a decode leg was sent: the engine that computed keeps nothing for another one */
	bool counted; /* |usage| was read */
	struct usage usage; /* the prefill leg's */
	/* ---- at once ---- */
	struct cgn_arena head;
	cgn_nsec suspected_at;  /* the decode leg answered with an error; 0: it did not */
	cgn_nsec called_bad_at; /* the prefill leg's engine called the request bad; 0: it did not */
	bool begun, over;       /* the prefill leg was sent; it has ended well */
	const char *failed;     /* why it can't be sent; NULL: it can */
};

/* Count the outcome of the prefill leg that ran beside the decode leg. */
static void disagg_count(struct gw_req *r, const char *outcome)
{
	r->plan.disagg = outcome;
	metric_add(METRIC_OF(r->w->shared->telemetry, DISAGG, outcome), 1);
}

static void outcome_count(const struct gw_req *r, const char *outcome)
{
	metric_add(METRIC_OF(r->w->shared->telemetry, HANDOFFS, r->plan.handoff->ops->name, outcome), 1);
}

/* ---- open ---- */

static struct json_val client_body(const struct gw_req *r, const struct plan_leg *leg)
{
	struct json_val v = r->prompt.facts.json;
	/* The body that continues an answer is made for the node, after it was read. */
	if (leg->edit == LEG_CONTINUES && !cgn_ok(json_parse(cgn_buf_view(&r->body.bytes), &v, NULL, NULL)))
		v = r->prompt.facts.json;
	return v;
}

static bool end_copy(struct gw_req *r, const struct handoff_end *from, struct handoff_end *to)
{
	struct cgn_str *ids = cgn_arena_get(&r->arena, (from->n_engine_ids + 1) * sizeof *ids);
	*to = *from;
	to->host = cgn_arena_str(&r->arena, from->host);
	to->terms = cgn_arena_str(&r->arena, from->terms);
	to->engine_ids = ids;
	for (size_t i = 0; ids != NULL && i < from->n_engine_ids; i++) {
		ids[i] = cgn_arena_str(&r->arena, from->engine_ids[i]);
		if (ids[i].p == NULL)
			return false;
	}
	return ids != NULL && to->host.p != NULL && to->terms.p != NULL;
}

/* Begin a new try, whatever the last one left. */
static bool try_begin(struct gw_req *r, const struct handoff_end *end, const struct view_node *node)
{
	struct gw_handoff *h = r->plan.handoff;
	if (h == NULL) {
		h = r->plan.handoff = CGN_NEW(struct gw_handoff);
		h->tag = GW_HANDOFF_TAG;
		cgn_arena_init(&h->head, GW_HEAD_ARENA);
	}
	CGN_LIVE(h, GW_HANDOFF_TAG);
	cgn_buf_fini(&h->answer);
	cgn_arena_reset(&h->head);
	h->ops = handoff_ops_of(end->kind);
	h->slot = node->slot;
	h->node = cgn_arena_strz(&r->arena, cgn_str_of(node->id));
	cgn_random(&h->number, sizeof h->number);
	h->number &= UINT64_C(0x7fffffffffefffff);
	h->params = (struct cgn_str){NULL, 0};
	h->sent = h->counted = h->begun = h->over = false;
	h->failed = NULL;
	h->suspected_at = h->called_bad_at = 0;
	h->usage = (struct usage){.has_prompt = false};
	return h->node != NULL && end_copy(r, end, &h->prefill);
}

/* Return true if bodies of two further legs fit into router.max_inflight_body. */
static bool bodies_fit(const struct gw_req *r)
{
	uint64_t used = atomic_load_explicit(&r->w->shared->body_bytes, memory_order_relaxed);
	return used + 2 * r->body.bytes.n <= r->w->rules->max_inflight_body;
}

bool gw_handoff_open(struct gw_req *r, const char **why)
{
	const struct plan_leg *leg = plan_leg(&r->plan.legs);
	const struct view_model *m = view_model_find(r->w->view, leg->model);
	const struct view_node *node = view_node_at(r->w->view, r->plan.split.prefill);
	const struct handoff_end *end = m != NULL && node != NULL ? view_handoff(m, node->slot) : NULL;
	*why = "no_pair";
	if (end == NULL)
		return false;
	const struct handoff_ops *ops = handoff_ops_of(end->kind);
	if (!ops->edits)
		return true;
	*why = r->prompt.form
		? "route"
		: handoff_refusal(ops, r->client.target, client_body(r, leg), r->prompt.several);
	if (*why != NULL)
		return false;
	*why = "no_memory";
	if (!bodies_fit(r) || !try_begin(r, end, node))
		return false;
	r->plan.pairs++;
	return true;
}

bool gw_handoff_is_at_once(const struct gw_req *r)
{
	const struct gw_handoff *h = r->plan.handoff;
	return h != NULL && h->ops->order == HANDOFF_AT_ONCE;
}

void gw_handoff_drop(struct gw_req *r)
{
	struct gw_handoff *h = r->plan.handoff;
	r->plan.handoff = NULL;
	if (h == NULL)
		return;
	CGN_LIVE(h, GW_HANDOFF_TAG);
	cgn_buf_fini(&h->answer);
	cgn_arena_fini(&h->head);
	h->tag = 0;
	free(h);
}

/* ---- bodies ---- */

/* Write the body of a leg into |out|. |model|: the engine's name for the model, as JSON. */
static bool body_write(struct gw_req *r, const struct plan_leg *leg, enum handoff_leg which,
	struct cgn_str model, struct cgn_buf *out)
{
	const struct gw_handoff *h = r->plan.handoff;
	const struct handoff_job job = {.path = r->client.target,
		.body = client_body(r, leg),
		.model = model,
		.prefill = &h->prefill,
		.id = r->client.name,
		.number = h->number,
		.now_ms = cgn_clock_wall_ms(),
		.rank = h->prefill.n_engine_ids > 0 ? (unsigned)(h->number % h->prefill.n_engine_ids) : 0,
		.params = h->params};
	uint64_t before = out->cap;
	cgn_buf_fini(out);
	handoff_body(&job, which, out);
	r->body.booked += out->cap - before;
	atomic_fetch_add_explicit(&r->w->shared->body_bytes, out->cap - before, memory_order_relaxed);
	return !out->bad;
}

/* Name the rank that computes the prompt, where engines have several. */
static void rank_add(struct gw_req *r, struct proto_generate *g)
{
	const struct handoff_end *end = &r->plan.handoff->prefill;
	struct proto_header *f = NULL;
	if (end->n_engine_ids > 1)
		f = cgn_arena_get(&r->arena, (g->n_headers + 1) * sizeof *f);
	const char *rank = f != NULL
		? cgn_arena_fmt(&r->arena, "%u", (unsigned)(r->plan.handoff->number % end->n_engine_ids))
		: NULL;
	if (rank == NULL || g->n_headers >= PROTO_MAX_HEADERS)
		return;
	memcpy(f, g->headers, g->n_headers * sizeof *f);
	f[g->n_headers] = (struct proto_header){CGN_STR("x-data-parallel-rank"), cgn_str_of(rank)};
	g->headers = f;
	g->n_headers++;
}

static void body_give(struct proto_generate *g, const struct cgn_buf *body)
{
	g->body = cgn_buf_view(body);
	g->swap = (struct proto_swap){.at = 0};
	g->facts.leg = COGNITORA__V1__LEG__LEG_WHOLE; /* the engines hand over, the agents relay */
}

/* The client is to see how many tokens of the prompt the prefill leg found cached. */
static void cached_prepare(struct gw_req *r)
{
	const struct gw_handoff *h = r->plan.handoff;
	if (r->answer.head_sent)
		return; /* a resumed answer keeps its filter */
	struct cached_filter *f = cgn_arena_get(&r->arena, sizeof *f);
	r->answer.cached = f;
	if (f == NULL)
		return; /* no memory: the client sees the decode leg's number */
	cached_filter_init(f, false);
	f->known = h->counted;
	f->waits = h->ops->order == HANDOFF_AT_ONCE;
	f->cached = h->usage.cached_tokens;
}

void gw_handoff_write(struct gw_req *r, struct proto_generate *g, struct cgn_str model)
{
	struct gw_handoff *h = r->plan.handoff;
	struct plan_leg *leg = plan_leg(&r->plan.legs);
	r->plan.handed = false;
	if (!r->answer.head_sent)
		r->answer.cached = NULL;
	if (h == NULL || leg->role == LEG_WHOLE)
		return;
	CGN_LIVE(h, GW_HANDOFF_TAG);
	bool prefill = leg->role == LEG_PREFILL;
	if (!body_write(r, leg, prefill ? HANDOFF_PREFILL : HANDOFF_DECODE, model, &r->body.leg)) {
		if (!prefill)
			leg->role = LEG_WHOLE;
		return;
	}
	body_give(g, &r->body.leg);
	if (prefill) {
		rank_add(r, g);
		return;
	}
	h->sent = r->plan.handed = true;
	cached_prepare(r);
	outcome_count(r, "sent");
}

/* ---- the prefill leg's answer ---- */

void gw_handoff_data(struct gw_req *r, struct cgn_str data)
{
	struct gw_handoff *h = r->plan.handoff;
	if (h == NULL)
		return;
	h->answer.limit = GW_PREFILL_ANSWER;
	cgn_buf_str(&h->answer, data);
}

static void usage_take(struct gw_req *r)
{
	struct gw_handoff *h = r->plan.handoff;
	struct cgn_str text = cgn_buf_view(&h->answer);
	h->counted = !h->answer.bad && usagescan_usage(text, &h->usage) && h->usage.has_cached;
	if (r->answer.cached != NULL) {
		r->answer.cached->cached = h->usage.cached_tokens;
		r->answer.cached->known = h->counted;
	}
}

bool gw_handoff_computed(struct gw_req *r, const char **why)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf params = {0};
	struct gw_handoff *h = r->plan.handoff;
	struct cgn_err err = {0};
	if (h == NULL)
		return true;
	CGN_LIVE(h, GW_HANDOFF_TAG);
	h->computed_at = cgn_loop_now(r->w->loop);
	usage_take(r);
	bool fine = !h->answer.bad &&
		cgn_ok(handoff_params_read(h->ops->kind, cgn_buf_view(&h->answer), &params, &err));
	h->params = cgn_arena_str(&r->arena, cgn_buf_view(&params));
	if (!fine || h->params.p == NULL) {
		*why = cgn_arena_strz(&r->arena, cgn_str_of(err.msg));
		if (*why == NULL || err.msg[0] == '\0')
			*why = "the prefill leg's answer is too large, or memory is short";
		outcome_count(r, "no_parameters");
	}
	cgn_buf_fini(&h->answer);
	return fine && h->params.p != NULL;
}

/* ---- before the decode leg ---- */

/* Return true if a node that was not tried can take the prompt over. */
static bool has_taker(const struct gw_req *r)
{
	const struct view_model *m = view_model_find(r->w->view, r->prompt.model);
	for (size_t i = 0; m != NULL && i < m->n_ready; i++)
		if (m->handoff[i] != NULL && m->handoff[i]->fingerprint == r->plan.split.handoff &&
			m->ready[i]->role != COGNITORA__V1__ROLE__ROLE_PREFILL &&
			!plan_has_tried(&r->plan.legs, m->ready[i]->slot))
			return true;
	return false;
}

static bool has_partner(const struct gw_req *r)
{
	const struct gw_handoff *h = r->plan.handoff;
	const struct view_node *node = view_node_at(r->w->view, h->slot);
	return node != NULL && node->state == NODE_READY && strcmp(node->id, h->node) == 0;
}

/* Return why the decode leg finds nothing to take over, as a label; NULL: it does. A node that refused the leg as full
 * has not touched it. */
static const char *lost_reason(const struct gw_req *r)
{
	const struct gw_handoff *h = r->plan.handoff;
	bool untouched = plan_attempts(&r->plan.legs) > 0 && gw_attempt_failure(&r->attempt) == BREAKER_FULL;
	if (h->sent && (!untouched || h->ops->order == HANDOFF_AT_ONCE))
		return "used";
	if (h->ops->order == HANDOFF_AT_ONCE)
		return has_partner(r) ? NULL : "no_pair";
	if (h->ops->lease_ms > 0 &&
		cgn_since(cgn_loop_now(r->w->loop), h->computed_at) >= h->ops->lease_ms * CGN_MSEC)
		return "expired";
	return has_taker(r) ? NULL : "no_pair";
}

void gw_handoff_settle(struct gw_req *r)
{
	struct gw_handoff *h = r->plan.handoff;
	struct plan_leg *leg = plan_leg(&r->plan.legs);
	if (h == NULL || leg->role != LEG_DECODE || leg->state != LEG_PLANNED)
		return;
	CGN_LIVE(h, GW_HANDOFF_TAG);
	const char *why = lost_reason(r);
	if (why == NULL)
		return;
	bool again = h->ops->order == HANDOFF_AT_ONCE && r->plan.pairs < GW_PREFILLS_MAX;
	leg->role = LEG_WHOLE;
	if (again)
		r->plan.legs.staged = false;
	outcome_count(r, why);
	cgn_log_limited(INFO, "gateway.handoff_lost", F_STRN("id", r->client.id), F_STR("kind", h->ops->name),
		F_STR("prefill_node", h->node), F_STR("why", why),
		F_STR("then",
			again ? "the request is decided on again" : "one node computes prompt and answer"));
}

bool gw_handoff_may_repeat(struct gw_req *r, uint16_t slot)
{
	struct gw_plan *p = &r->plan;
	if (p->n_prefill_failed < GW_PREFILLS_MAX)
		p->prefill_failed[p->n_prefill_failed++] = slot;
	return !r->client.retry_off && p->legs.deaths < PLAN_DEATHS &&
		p->n_prefill_failed < GW_PREFILLS_MAX && p->pairs < GW_PREFILLS_MAX &&
		retry_budget_take(&r->w->budget, cgn_loop_now(r->w->loop));
}

/* ---- the leg beside ---- */

static void beside_done(struct gw_req *r)
{
	struct gw_handoff *h = r->plan.handoff;
	struct gw_attempt *a = &r->beside;
	cgn_nsec now = cgn_loop_now(r->w->loop);
	h->over = true;
	disagg_count(r, "prefilled");
	usage_take(r);
	chooser_begun(r->w->chooser, &a->ticket, now);
	chooser_moving(&r->attempt.ticket, now);
	gw_verdict_begun(a);
	gw_verdict_fine(a, true);
	metric_observe(METRIC_ONE(r->w->shared->telemetry, DISAGG_SECONDS), cgn_since(now, a->sent_at));
	r->plan.beside_node = h->node;
	r->plan.beside_took = cgn_since(now, a->sent_at);
	if (gw_attempt_end(a))
		gw_queue_room(r->w);
	gw_relay_release(r);
	if (r->state == GW_STREAM)
		gw_wake(r);
}

bool gw_beside_is_suspected(struct gw_req *r)
{
	struct gw_handoff *h = r->plan.handoff;
	cgn_nsec now = cgn_loop_now(r->w->loop);
	if (h == NULL || !h->begun || h->over)
		return false;
	if (h->suspected_at == 0)
		h->suspected_at = now;
	return cgn_since(now, h->suspected_at) < SUSPECT_WAIT;
}

bool gw_beside_is_awaited(struct gw_req *r)
{
	cgn_nsec waited = cgn_since(cgn_loop_now(r->w->loop), r->attempt.last_byte);
	bool open = gw_call_is_open(&r->beside.call) && r->beside.call.why.code == CGN_FINE;
	if (r->answer.held.n > 0 && open && waited < BESIDE_WAIT)
		return true;
	gw_relay_release(r);
	return false;
}

static void on_beside_event(void *user)
{
	struct gw_req *r = user;
	struct gw_attempt *a = &r->beside;
	CGN_LIVE(r, GW_REQ_TAG);
	bool fine = gw_opening_says(a) <= OPENING_REFUSAL && gw_attempt_status_failure(a) == BREAKER_FAILURES;
	if (a->call.closed && a->call.why.code == CGN_FINE && a->head_seen && a->status == 200 && fine)
		beside_done(r);
	else if (r->state == GW_DISPATCH || r->state == GW_STREAM)
		gw_wake(r);
}

static void on_beside_data(void *user, struct cgn_str data)
{
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	gw_opening_read(&r->beside, data);
	gw_handoff_data(r, data);
}

static const struct gw_attempt_ops beside_ops = {.on_event = on_beside_event, .on_data = on_beside_data};

static struct proto_generate beside_message(struct gw_req *r, const struct plan_leg *leg,
	const struct view_name *served, uint32_t new_tokens)
{
	gw_trace_leg(r, GW_TRACE_BESIDE);
	struct proto_generate g = {.request_id = r->client.name,
		.method = r->client.method,
		.path = r->client.target,
		.headers = r->client.headers,
		.n_headers = r->client.n_headers,
		.facts = {.model = served->text,
			.blocks_total = (uint32_t)r->prompt.chain.n,
			.blocks_predicted = leg->held,
			.chain = r->prompt.chain.short_digests,
			.n_chain = r->prompt.chain.n,
			.attempt = 1,
			.block_tokens = r->prompt.block_tokens,
			.router = r->w->shared->instance,
			.new_tokens = new_tokens,
			.tenant = gw_identity_tenant(&r->identity)}};
	body_give(&g, &r->body.beside);
	rank_add(r, &g);
	return g;
}

void gw_beside_send(struct gw_req *r)
{
	struct gw_handoff *h = r->plan.handoff;
	struct gw_worker *w = r->w;
	cgn_nsec began = cgn_clock_now();
	struct plan_leg leg = {.role = LEG_PREFILL,
		.model = plan_leg(&r->plan.legs)->model,
		.bytes = LEG_DROP,
		.edit = plan_leg(&r->plan.legs)->edit};
	struct chooser_ask ask = gw_choose_ask(r, &leg);
	ask.pin = h->slot;
	CGN_LIVE(h, GW_HANDOFF_TAG);
	struct chooser_pick_result p = chooser_pick(w->chooser, &ask);
	h->begun = true;
	if (p.verdict != ROUTE_PICKED || !has_partner(r)) {
		h->failed = "the prefill node is gone, or full";
		return;
	}
	const struct view_node *node = view_node_at(w->view, h->slot);
	const struct view_name *served = view_served_name(ask.model, h->slot);
	leg.held = p.cands[p.index].held;
	if (!body_write(r, &leg, HANDOFF_PREFILL, gw_isolation_name(r, ask.model, h->slot, served->json),
		    &r->body.beside)) {
		h->failed = "no memory for the prefill leg";
		return;
	}
	struct gw_attempt_cfg cfg = {.w = w,
		.arena = &r->arena,
		.head = &h->head,
		.ops = &beside_ops,
		.user = r,
		.gate = gw_breaker_claim(w, node),
		.route = OPENING_MEDIA};
	chooser_book(w->chooser, &ask, &p, &cfg.ticket);
	gw_explain_pick(r, &ask, &p, cgn_since(cgn_clock_now(), began));
	struct proto_generate g = beside_message(r, &leg, served, cfg.ticket.new_tokens);
	gw_attempt_start(&r->beside, &cfg, node, &g);
}

/* Return why the prefill leg can't end well any more; NULL: it can, or has. */
static const char *beside_failure(const struct gw_req *r, enum breaker_failure *how)
{
	const struct gw_handoff *h = r->plan.handoff;
	const struct gw_attempt *a = &r->beside;
	*how = BREAKER_FAILURES;
	if (h->failed != NULL)
		return h->failed;
	if (a->head_seen && (a->status != 200 || gw_attempt_status_failure(a) != BREAKER_FAILURES)) {
		*how = gw_refused_how(r, a);
		return "the engine answered with an error";
	}
	if (a->call.closed || a->call.why.code != CGN_FINE) {
		*how = gw_attempt_failure(a);
		return a->call.why.code != CGN_FINE ? a->call.why.msg : "the call ended without an answer";
	}
	if (gw_attempt_node_stalled(a, a->sent_at)) {
		*how = BREAKER_STALL;
		return "the node is stalled";
	}
	return has_partner(r) ? NULL : "the node left the cluster";
}

/* Return true if the decode leg answers well, whatever becomes of its partner. Held bytes of an error do not
 * count as an answer: it may be the partner's fault. */
static bool answer_is_there(struct gw_attempt *a)
{
	return a->opening.bytes.p != NULL && gw_opening_says(a) == OPENING_ANSWER &&
		gw_attempt_status_failure(a) == BREAKER_FAILURES;
}

static bool calls_bad(const struct gw_req *r, const struct gw_attempt *a)
{
	return a->head_seen && a->status / 100 == 4 && gw_refused_how(r, a) == BREAKER_FAILURES;
}

/* An engine that calls the request bad is mostly right, and its partner says the same a moment later: that is the
 * client's answer. Return true if the partner has said so, or still may. */
static bool is_called_bad(struct gw_req *r)
{
	struct gw_handoff *h = r->plan.handoff;
	cgn_nsec now = cgn_loop_now(r->w->loop);
	if (h->failed != NULL || !calls_bad(r, &r->beside))
		return false;
	if (h->called_bad_at == 0)
		h->called_bad_at = now;
	return calls_bad(r, &r->attempt) || cgn_since(now, h->called_bad_at) < SUSPECT_WAIT;
}

bool gw_beside_has_failed(struct gw_req *r, struct gw_leg_report *report)
{
	struct gw_handoff *h = r->plan.handoff;
	enum breaker_failure how = BREAKER_FAILURES;
	if (h == NULL || !h->begun || h->over || answer_is_there(&r->attempt))
		return false;
	CGN_LIVE(h, GW_HANDOFF_TAG);
	const char *why = beside_failure(r, &how);
	if (why == NULL || is_called_bad(r))
		return false;
	cgn_log_limited(INFO, "gateway.prefill_failed", F_STRN("id", r->client.id), F_STR("node", h->node),
		F_I64("status", r->beside.status), F_STR("why", why),
		F_STR("then", "the decode leg is cancelled, and the request is decided on again"));
	const char *told = cgn_arena_strz(&r->arena, cgn_str_of(why)); /* the attempt ends */
	if (r->beside.w != NULL && gw_attempt_died(&r->beside))
		plan_died(&r->plan.legs);
	if (r->beside.w != NULL && how == BREAKER_FAILURES)
		gw_verdict_none(&r->beside);
	else if (r->beside.w != NULL)
		gw_refused_take(r, &r->beside, how);
	gw_verdict_none(&r->attempt);
	(void)gw_handoff_may_repeat(r, h->slot);
	outcome_count(r, "prefill_failed");
	disagg_count(r, "failed");
	h->over = true;
	plan_leg(&r->plan.legs)->slot = PLAN_NO_SLOT; /* the decode node did nothing wrong */
	*report = (struct gw_leg_report){.outcome = {.end = LEG_END_FAILED, .how = BREAKER_RESET},
		.code = CGN_UNAVAILABLE,
		.why = told != NULL ? told : "the prefill leg failed"};
	return true;
}
