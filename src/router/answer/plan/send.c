/* SPDX-License-Identifier: Apache-2.0 */
/* send: the current leg on its way to a node. */
#include "router/answer/answer/relay.h"
#include "router/answer/answer/resume.h"
#include "router/answer/plan/gate.h"
#include "router/answer/plan/handoff.h"
#include "router/answer/plan/legs.h"
#include "router/answer/plan/queue.h"
#include "router/request/account/explain.h"
#include "router/request/account/underway.h"
#include "router/request/attempt/opening.h"
#include "router/request/attempt/peercall.h"
#include "router/request/cascade/cascade.h"
#include "router/request/hooks/hooks.h"
#include "router/request/isolate/isolate.h"
#include "router/request/permit/permit.h"
#include "router/request/streamusage/streamusage.h"
#include "router/request/trace/trace.h"
#include "router/shared/peers/peers.h"

#define HOP_FIELDS 5 /* at most, of a request to another cluster */

/* ---- callbacks of the attempt ---- */

static void on_event(void *user)
{
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	if (!r->answer.head_sent && r->attempt.head_seen)
		r->answer.event_stream = r->attempt.events;
	gw_wake(r);
}

/* Bytes that passed before they were understood are judged when they are. */
static void opening_go_on(struct gw_req *r, struct cgn_str data)
{
	if (r->attempt.opening.reader.says == OPENING_MORE)
		gw_opening_read(&r->attempt, data);
}

static void stream_relay(struct gw_req *r, struct cgn_str data)
{
	opening_go_on(r, data);
	gw_relay(r, data);
	if (gw_hold_is_due(r) || gw_resume_differs(r))
		gw_wake(r);
}

/* Take bytes of an answer that is not relayed yet. */
static void opening_take(struct gw_req *r, struct cgn_str data)
{
	uint32_t turn = r->attempt.turn;
	if (gw_opening_data(&r->attempt, data))
		gw_wake(r);
	/* A request that is gone is memory until the turn ends. */
	if (r->tag != GW_REQ_TAG || r->attempt.turn != turn)
		return;
	if (r->state == GW_DISPATCH)
		gw_opening_keep(&r->attempt);
	else
		gw_opening_drop(&r->attempt);
}

static void on_data(void *user, struct cgn_str data)
{
	struct gw_req *r = user;
	CGN_LIVE(r, GW_REQ_TAG);
	if (r->state == GW_GATE) {
		opening_go_on(r, data);
		gw_gate_data(r, data);
		return;
	}
	if (r->state == GW_STREAM) {
		stream_relay(r, data);
		return;
	}
	if (r->state == GW_PREFILL) {
		gw_opening_read(&r->attempt, data);
		gw_handoff_data(r, data);
		return;
	}
	opening_take(r, data);
}

static const struct gw_attempt_ops attempt_ops = {.on_event = on_event, .on_data = on_data};

/* ---- the prediction ---- */

/* Keep the prediction, for the comparison at the end of the request. The chain goes with the first byte; the
 * part that the node is believed to hold, without events that say so, is kept to be corrected. */
static void prediction_keep(struct gw_req *r, const struct route_cand *c, const struct view_node *node)
{
	size_t n = r->prompt.chain.n;
	struct gw_prediction *p = &r->plan.prediction;
	bool fed = c->fed && !c->fed_bytes;
	*p = (struct gw_prediction){.node = c->node_id_hash, .fed = fed, .kv_block = node->kv_block};
	if (n == 0)
		return;
	p->length = r->prompt.chain.length > 0 ? r->prompt.chain.length : (double)n;
	p->last = r->prompt.chain.short_digests[n - 1];
	if (fed || c->held == 0)
		return;
	p->tail = prompttail_get(r->w->shared->tails, r->prompt.chain.short_digests[c->held - 1],
		c->node_id_hash);
	uint64_t *copy = cgn_arena_get(&r->arena, c->held * sizeof *copy);
	if (copy != NULL)
		memcpy(copy, r->prompt.chain.short_digests, c->held * sizeof *copy);
	p->chain = copy;
}

/* ---- sending ---- */

static Cognitora__V1__Leg wire_role(enum leg_role role)
{
	static const Cognitora__V1__Leg roles[] = {
		[LEG_WHOLE] = COGNITORA__V1__LEG__LEG_WHOLE,
		[LEG_PREFILL] = COGNITORA__V1__LEG__LEG_PREFILL,
		[LEG_DECODE] = COGNITORA__V1__LEG__LEG_DECODE,
	};
	return roles[role];
}

/* Name the model as the node's engine does: in the facts, and in the body in the place of the client's name, with the
 * salt and the question for usage behind it where the engine takes them. Return such a name for a body that is written
 * again, too. */
static struct cgn_str model_name(struct gw_req *r, const struct view_model *m, uint16_t slot,
	struct proto_generate *g)
{
	const struct view_name *served = view_served_name(m, slot);
	g->facts.model = served->text;
	/* a name that JSON has to escape, or that the engine wants after its base model's, can't stand in a form */
	bool plain = served->json.n == served->text.n + 2;
	bool other = !plain || !cgn_str_eq(served->text, r->prompt.asked);
	bool stored = r->client.route->kind == GW_STORED; /* no name in the request, but one in the answer */
	r->plan.renamed = (r->prompt.name_n > 0 || stored) && other && (plain || !r->prompt.form);
	struct cgn_str own = {r->body.bytes.p + r->prompt.name_at, r->prompt.name_n};
	struct cgn_str by = !r->plan.renamed ? own : r->prompt.form ? served->text : served->json;
	const struct engine_ops *kind = view_kind(m, slot);
	struct cgn_str sent = gw_streamusage_name(r, slot, kind, gw_isolation_name(r, m, slot, by));
	if (r->prompt.name_n > 0 && (r->plan.renamed || sent.n != by.n))
		g->swap = (struct proto_swap){r->prompt.name_at, r->prompt.name_n, sent};
	return gw_streamusage_name(r, slot, kind, gw_isolation_name(r, m, slot, served->json));
}

/* The answer to a HEAD is that to a GET without its body, which io/wire/http leaves out; engines refuse HEAD. */
static struct cgn_str engine_method(const struct gw_req *r)
{
	return cgn_str_is(r->client.method, "HEAD") ? CGN_STR("GET") : r->client.method;
}

/* Set the kinds of answer that the current leg may get. An engine that only computes a prompt may answer by
 * its status alone. */
static void opening_set(struct gw_req *r, struct gw_attempt_cfg *cfg)
{
	enum gw_route_kind kind = r->client.route->kind;
	bool prefill = plan_leg(&r->plan.legs)->role == LEG_PREFILL;
	bool json = kind == GW_RELAY || kind == GW_OLLAMA || kind == GW_COUNT;
	cfg->route = prefill || kind == GW_MEDIA || kind == GW_NATIVE ? OPENING_MEDIA
		: json                                                ? OPENING_JSON
								      : OPENING_WHATEVER;
	cfg->answers = prefill || cfg->route == OPENING_WHATEVER ? 0 : opening_answers(r->client.target);
}

static void attempt_start(struct gw_req *r, const struct view_model *model, const struct view_node *node,
	const struct gw_attempt_cfg *cfg)
{
	struct plan_leg *leg = plan_leg(&r->plan.legs);
	gw_trace_leg(r, r->plan.legs.n - 1);
	uint32_t attempts = plan_attempts(&r->plan.legs);
	struct proto_generate g = {
		.request_id = r->client.name,
		.method = engine_method(r),
		.path = r->client.target,
		.headers = r->client.headers,
		.n_headers = r->client.n_headers,
		.facts =
			{
				.blocks_total = leg->blocks,
				.blocks_predicted = leg->held,
				.chain = r->prompt.chain.short_digests,
				.n_chain = r->prompt.chain.n,
				.attempt = attempts > 0 ? attempts : 1,
				.stream = r->prompt.stream,
				.block_tokens = r->prompt.block_tokens,
				.router = r->w->shared->instance,
				.new_tokens = cfg->ticket.new_tokens,
				.prompt_us = cfg->ticket.prompt_us,
				.leg = wire_role(leg->role),
				.keep_alive = r->prompt.keep_alive,
				.keep_bounded = !gw_permit_change(r, r->prompt.model),
				.tenant = gw_identity_tenant(&r->identity),
				.once = cfg->once,
			},
		.body = cgn_buf_view(&r->body.bytes),
	};
	struct cgn_str name = model_name(r, model, node->slot, &g);
	gw_handoff_write(r, &g, name);
	gw_cascade_write(r, &g);
	cgn_arena_reset(&r->head); /* an earlier leg's head is used up */
	gw_underway_begin(r);
	gw_attempt_start(&r->attempt, cfg, node, &g);
	leg->node = r->attempt.call.node_id;
}

void gw_leg_send(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	enum breaker_gate gate, cgn_nsec began)
{
	struct gw_worker *w = r->w;
	const struct route_cand *c = &p->cands[p->index];
	const struct view_node *node = view_node_at(w->view, c->slot);
	struct gw_attempt_cfg cfg =
		{.w = w, .arena = &r->arena, .head = &r->head, .ops = &attempt_ops, .user = r, .gate = gate};
	CGN_MUST(node != NULL);
	opening_set(r, &cfg);
	cfg.once = r->client.once;
	chooser_book(w->chooser, ask, p, &cfg.ticket);
	gw_queue_end(r);
	plan_sent(&r->plan.legs, c->slot, c->held, (uint32_t)r->prompt.chain.n, cgn_loop_now(w->loop));
	if (plan_leg(&r->plan.legs)->bytes != LEG_DROP) {
		prediction_keep(r, c, node);
		r->plan.pick_took = cgn_since(cgn_clock_now(), began);
		metric_observe(w->pick_seconds, r->plan.pick_took);
		r->plan.backed_off = false;
		w->sent++;
	}
	gw_explain_pick(r, ask, p, cgn_since(cgn_clock_now(), began));
	attempt_start(r, ask->model, node, &cfg);
}

/* Tell another cluster whose request it is, how long it may take, and which clusters it has left. False: out of memory. */
static bool hops_write(struct gw_req *r, struct proto_generate *g)
{
	const struct gw_arrival *from = &r->client.from;
	const char *own = r->w->shared->peers->cluster;
	cgn_nsec spent = cgn_since(cgn_loop_now(r->w->loop), r->client.started),
		 budget = r->client.first_byte_budget;
	struct proto_header *h = cgn_arena_get(&r->arena, (g->n_headers + HOP_FIELDS) * sizeof *h);
	const char *via =
		from->via.n > 0 ? cgn_arena_fmt(&r->arena, "%.*s, %s", CGN_STR_ARG(from->via), own) : own;
	const char *priority = cgn_arena_fmt(&r->arena, "%u", r->client.priority);
	const char *left = cgn_arena_fmt(&r->arena, "%llu",
		(unsigned long long)(budget > spent + CGN_MSEC ? (budget - spent) / CGN_MSEC : 1));
	size_t n = g->n_headers;
	if (h == NULL || via == NULL || priority == NULL || left == NULL)
		return false;
	memcpy(h, g->headers, n * sizeof *h);
	for (size_t i = 0; i < n; i++) /* A cluster names the request at its engines itself. */
		if (cgn_str_is(h[i].name, "x-request-id"))
			h[i].value = r->client.id;
	h[n++] = (struct proto_header){CGN_STR("x-cgn-via"), cgn_str_of(via)};
	h[n++] = (struct proto_header){CGN_STR("x-cgn-tenant"), r->identity.tenant};
	h[n++] = (struct proto_header){CGN_STR("x-cgn-priority"), cgn_str_of(priority)};
	if (budget > 0)
		h[n++] = (struct proto_header){CGN_STR("x-cgn-deadline-ms"), cgn_str_of(left)};
	if (r->client.session.id.n > 0)
		h[n++] = (struct proto_header){CGN_STR("x-cgn-session"), r->client.session.id};
	g->headers = h;
	g->n_headers = n;
	return true;
}

void gw_leg_leave(struct gw_req *r, struct gw_peer *peer, struct gw_peer_model *model, enum breaker_gate gate)
{
	struct gw_worker *w = r->w;
	struct gw_attempt_cfg cfg =
		{.w = w, .arena = &r->arena, .head = &r->head, .ops = &attempt_ops, .user = r, .gate = gate};
	struct proto_generate g = {
		.request_id = r->client.name,
		.method = r->client.method,
		.path = r->client.target,
		.headers = r->client.headers,
		.n_headers = r->client.n_headers,
		.body = cgn_buf_view(&r->body.bytes),
	};
	opening_set(r, &cfg);
	bool told = !gw_peer_is_cluster(peer) || hops_write(r, &g);
	r->plan.renamed = !cgn_str_eq(model->theirs, r->prompt.asked);
	struct cgn_str own = {r->body.bytes.p + r->prompt.name_at, r->prompt.name_n};
	struct cgn_str by = r->plan.renamed ? model->json : own;
	struct cgn_str sent = gw_streamusage_name(r, peer->slot, NULL, by);
	if (r->plan.renamed || sent.n != by.n)
		g.swap = (struct proto_swap){r->prompt.name_at, r->prompt.name_n, sent};
	r->plan.prediction = (struct gw_prediction){0};
	plan_sent(&r->plan.legs, peer->slot, 0, (uint32_t)r->prompt.chain.n, cgn_loop_now(w->loop));
	gw_trace_leg(r, r->plan.legs.n - 1);
	cgn_arena_reset(&r->head); /* an earlier leg's head is used up */
	gw_underway_begin(r);
	gw_peercall_start(&r->attempt, &cfg, peer, model, told ? &g : NULL);
	plan_leg(&r->plan.legs)->node = peer->node;
}

void gw_leg_close(struct gw_req *r)
{
	bool room = gw_attempt_end(&r->attempt);
	if (gw_attempt_end(&r->beside) || room)
		gw_queue_room(r->w);
}
