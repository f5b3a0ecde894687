/* SPDX-License-Identifier: Apache-2.0 */
/* watch: keeps one Agent.Watch call open for each member. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/pb/pb.h"
#include "router/control/control/watch.h"
#include "router/request/admission/admission.h"
#include "router/shared/misfit/misfit.h"

#define WATCH_TAG   0x64a7c401U
#define RETRY_FIRST (100 * CGN_MSEC)
#define RETRY_LAST  (2 * CGN_SEC)

static void call_open(struct router_watch *w);

static struct cluster_node *watch_node(const struct router_watch *w)
{
	struct cluster_node *n = w->r->members.cluster->by_slot[w->slot];
	CGN_MUST(n != NULL); /* A watch is closed with its node. */
	return n;
}

static void watch_retry(struct router_watch *w)
{
	cgn_timer_set(&w->retry, cgn_backoff_next(&w->backoff));
}

static void on_retry(struct cgn_timer *t)
{
	call_open(CGN_CONTAINER(t, struct router_watch, retry));
}

static void watch_lost(struct router_watch *w, const char *why)
{
	struct cluster_orders o;
	struct cluster_node *n = watch_node(w);
	if (n->heard || w->backoff.failures == 0)
		cgn_log_limited(WARN, "router.watch_lost", F_STR("node", n->info->id),
			F_STR("address", w->address), F_STR("why", why));
	(void)cgn_str_copyz(w->lost, sizeof w->lost, cgn_str_of(why));
	router_residency_lost(w);
	energy_board_clear(w->r->shared.choice.energy, w->slot);
	cluster_watch_lost(w->r->members.cluster, n, &o);
	watch_retry(w);
	router_orders_apply(w->r, &o);
}

/* With static membership the agent tells the node's id. Two addresses with one id would be one node in logs, metrics
 * and answers: the one that answered first has the id for as long as it answers. */
static bool id_is_taken(const struct router_watch *w, const char *id, struct cgn_err *err)
{
	const struct cluster_node *other = cluster_find(w->r->members.cluster, id);
	if (other == NULL || other->slot == w->slot || !other->heard || strcmp(other->info->id, id) != 0)
		return false;
	(void)CGN_FAIL(err, CONFLICT,
		"node id \"%s\" is taken by the agent at %s: set another agent.node_id at %s", id,
		other->address, w->address);
	return true;
}

void router_watch_reason(const struct router *r, const struct cluster_node *n, char *out, size_t cap)
{
	const struct router_watch *w = r->members.watches[n->slot];
	size_t at = 0;
	out[0] = '\0';
	if (!n->heard) {
		if (n->state != NODE_READY)
			(void)cgn_str_copyz(out, cap, cgn_str_of(w != NULL ? w->lost : ""));
		return;
	}
	for (size_t i = 0; i < n->info->n_engines && at < cap; i++)
		if (!n->info->engines[i]->ready && n->info->engines[i]->trouble[0] != '\0')
			at += (size_t)snprintf(out + at, cap - at, "%sengine %.64s: %.500s",
				at > 0 ? "; " : "", n->info->engines[i]->name, n->info->engines[i]->trouble);
	if (w != NULL && w->blocks_differ[0] != '\0' && at < cap)
		at += (size_t)snprintf(out + at, cap - at, "%sits KV events are not used: %s",
			at > 0 ? "; " : "", w->blocks_differ);
	char misfit[GW_MISFIT_TEXT];
	gw_misfit_text(r->shared.misfits, n->slot, route_hash(n->info->id, strlen(n->info->id)),
		cgn_loop_now(r->loop), misfit);
	if (misfit[0] != '\0' && at < cap)
		(void)snprintf(out + at, cap - at, "%s%s", at > 0 ? "; " : "", misfit);
}

const char *router_watch_origin(const struct router *r, const struct cluster_node *n)
{
	const struct router_watch *w = r->members.watches[n->slot];
	return w != NULL && w->engine != NULL ? engine_node_origin(w->engine) : "";
}

static uint64_t excess_of(uint64_t all, uint64_t part)
{
	return all > part ? all - part : 0;
}

/* Return the load that the agent counts, less that of this router. */
static struct energy_load load_of_others(const Cognitora__V1__Load *l)
{
	if (l == NULL)
		return (struct energy_load){0};
	uint64_t all = excess_of(l->inflight, l->yours), streams = excess_of(l->decoding, l->yours_decoding);
	uint64_t prompts = excess_of(all, streams), wholes = excess_of(l->wholes, l->yours_wholes);
	return (struct energy_load){.streams = (uint32_t)streams,
		.prompts = (uint32_t)prompts,
		.prompt_tokens = excess_of(l->queued_tokens, l->yours_queued_tokens),
		.wholes = (uint32_t)(wholes < prompts ? wholes : prompts)};
}

static bool is_watts(float w)
{
	return w >= 0 && w < 1e6F;
}

static void measured_take(struct energy_board *b, uint32_t slot, const Cognitora__V1__Energy *e, cgn_nsec now)
{
	const struct energy_measured m = {.node_w = (double)e->node_watts,
		.extra_w = (double)e->extra_watts,
		.counted_w = (double)e->counted_watts,
		.short_w = (double)e->short_watts};
	bool any = e->node_watts > 0 || e->counted_watts > 0;
	if (any && is_watts(e->node_watts) && is_watts(e->extra_watts) && is_watts(e->counted_watts) &&
		is_watts(e->short_watts))
		energy_board_measured(b, slot, &m, now);
}

/* Return the curve that the agent tells. One of before does not say what of it was measured. */
static struct energy_curve curve_of(const Cognitora__V1__Energy *e)
{
	struct energy_curve c = {.prefill = e->watts[ENERGY_KNOTS]};
	memcpy(c.decode, e->watts, sizeof c.decode);
	c.most = e->most_streams > 0 && e->most_streams < 1e6F ? e->most_streams : 0;
	c.measured = e->most_streams > 0 ? e->measured : ENERGY_MEASURED_ALONE | ENERGY_MEASURED_PREFILL;
	return c;
}

/* Take the agent's report of its node's energy; nonsense counts as unknown. */
static void energy_take(const struct router_watch *w, const Cognitora__V1__Energy *e,
	const Cognitora__V1__Load *load)
{
	struct energy_board *b = w->r->shared.choice.energy;
	cgn_nsec now = cgn_loop_now(w->r->loop);
	bool sound = e->n_watts == ENERGY_KNOTS + 1 && e->stream_joules >= 0 && e->stream_joules < 1e15 &&
		e->token_joules >= 0 && e->token_joules < 1e15 && e->scale > 0 && e->scale < 1e3F &&
		e->pace >= 0 && e->pace < 1e3F && e->prompt_s >= 0 && e->prompt_s < 1e6F;
	for (size_t i = 0; sound && i < e->n_watts; i++)
		sound = e->watts[i] > 0 && e->watts[i] < 1e6F;
	if (!sound)
		energy_board_clear(b, w->slot);
	const struct energy_curve c = sound ? curve_of(e) : (struct energy_curve){.prefill = 0};
	energy_board_set(b, w->slot, &c, e->hot ? ENERGY_HOT : 0);
	measured_take(b, w->slot, e, now);
	if (!sound)
		return;
	struct energy_report report = {.sums = {e->stream_joules, e->token_joules, now},
		.scale = (double)e->scale,
		.pace = (double)(e->pace > 0 ? e->pace : e->scale),
		.others = load_of_others(load)};
	report.others.prompt_s =
		(double)e->prompt_s; /* The sum of all routers: energy_board_sums leaves ours out. */
	energy_board_sums(b, w->slot, &report);
}

/* The engine answers no check and brings no byte to any client: end the requests that run there, except those that still bring
 * data. */
static void engine_give_up(const struct router_watch *w)
{
	pulse_stop(&w->r->members.cluster->stats[w->slot].pulse, cgn_loop_now(w->r->loop));
	router_breaker_step(w->r, watch_node(w), BREAKER_TRIP, BREAKER_FOR_STALL);
}

/* Take an event that makes sense. */
static void event_take(struct router_watch *w, const Cognitora__V1__WatchEvent *ev)
{
	struct cluster_orders o;
	cluster_watch_event(w->r->members.cluster, watch_node(w), ev, cgn_loop_now(w->r->loop), &o);
	if (o.watch == WATCH_KEEP)
		cgn_backoff_reset(&w->backoff);
	if (o.stalled)
		engine_give_up(w);
	if (ev->energy != NULL && o.watch == WATCH_KEEP)
		energy_take(w, ev->energy, ev->load);
	if (o.forget)
		router_residency_reset(w); /* Reset before the blocks of the same event are applied. */
	o.forget = false;
	if (ev->residency != NULL && o.watch == WATCH_KEEP)
		router_residency_apply(w, ev->residency);
	if (ev->check != NULL && o.watch == WATCH_KEEP)
		router_residency_compare(w, ev->check);
	router_orders_apply(w->r, &o);
	gw_admission_serve(w->r->shared.admission); /* Requests of other routers may have ended. */
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	(void)c;
	struct router_watch *w = user;
	struct cgn_err err;
	CGN_LIVE(w, WATCH_TAG);
	CGN_ON_EXIT(pb_free) Cognitora__V1__WatchEvent *ev = NULL;
	if (!cgn_ok(pb_unpack(&cognitora__v1__watch_event__descriptor, (struct cgn_str){(const char *)p, n},
		    &ev, &err)) ||
		!cgn_ok(proto_residency_check(ev->residency, ev->check, &err))) {
		grpc_cancel(&w->call);
		watch_lost(w, err.msg);
		return;
	}
	if (ev->node != NULL && id_is_taken(w, ev->node->id, &err)) {
		grpc_cancel(&w->call);
		watch_lost(w, err.msg);
		return;
	}
	w->lost[0] = '\0';
	for (size_t i = 0; ev->node != NULL && i < ev->node->n_engines; i++)
		if (ev->node->engines[i]->direct != NULL)
			router_direct_begin(w);
	event_take(w, ev);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	struct router_watch *w = user;
	CGN_LIVE(w, WATCH_TAG);
	w->call = NULL;
	watch_lost(w, why->code == CGN_FINE ? "the agent ended it" : why->msg);
}

static const struct grpc_call_ops watch_ops = {.on_message = on_message, .on_close = on_close};

/* ---- engines without an agent ---- */

static void on_engine_event(void *user, const Cognitora__V1__WatchEvent *ev)
{
	struct router_watch *w = user;
	CGN_LIVE(w, WATCH_TAG);
	event_take(w, ev);
}

static void on_engine_stalled(void *user)
{
	struct router_watch *w = user;
	CGN_LIVE(w, WATCH_TAG);
	engine_give_up(w);
}

static const struct engine_node_ops engine_ops = {.event = on_engine_event, .stalled = on_engine_stalled};

/* ---- the call ---- */

static void call_open(struct router_watch *w)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct cgn_err err;
	Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	w->opened_at = cgn_loop_now(w->r->loop);
	if (w->engine != NULL) {
		engine_node_repeat(w->engine);
		return;
	}
	w->told = (struct router_direct_told){.heard = 0};
	rq.router_id = w->r->id;
	rq.router = w->r->shared.instance;
	rq.wanted = w->r->wanted.doc;
	pb_pack(&rq, &b);
	if (b.bad ||
		!cgn_ok(grpc_call_start(w->channel, PROTO_AGENT_WATCH, 0, &watch_ops, w, &w->call, &err))) {
		w->call = NULL;
		watch_retry(w);
		return;
	}
	const struct iovec iov = {b.p, b.n};
	grpc_send(w->call, &iov, 1); /* Left open: repairs are requested on this call. */
}

static CGN_RC channel_open(struct router_watch *w, struct cgn_err *err)
{
	struct grpc_channel_cfg cfg = {.addr = w->address,
		.tls = w->r->shared.agent_tls,
		.server_name = w->r->shared.agent_name,
		.follow = true};
	return grpc_channel_new(w->r->loop, &cfg, &w->channel, err);
}

void router_watch_open(struct router *r, const struct cluster_node *n)
{
	struct cgn_err err;
	CGN_MUST(r->members.watches[n->slot] == NULL);
	struct router_watch *w = CGN_NEW(struct router_watch);
	*w = (struct router_watch){.tag = WATCH_TAG,
		.r = r,
		.slot = n->slot,
		.backoff = {.first = RETRY_FIRST, .last = RETRY_LAST}};
	cgn_timer_init(&w->retry, r->loop, on_retry);
	w->shown = NODE_STATE_COUNT;
	router_outliers_reset(w);
	w->address = cgn_str_dupz(cgn_str_of(n->address));
	r->members.watches[n->slot] = w;
	w->engine = n->door != NULL ? r->members.coming : NULL;
	if (w->engine != NULL) {
		router_residency_open(w);
		router_direct_begin(w);
		w->opened_at = cgn_loop_now(r->loop);
		engine_node_start(w->engine, &engine_ops, w);
		return;
	}
	if (!cgn_ok(channel_open(w, &err))) {
		cgn_log_limited(ERROR, "router.watch_failed", F_STR("node", n->info->id),
			F_STR("why", err.msg));
		return; /* The node stays a member that is never ready. */
	}
	router_residency_open(w);
	call_open(w);
}

static void watch_hang_up(struct router_watch *w)
{
	cgn_timer_cancel(&w->retry);
	if (w->call != NULL)
		grpc_cancel(&w->call);
}

void router_watch_restart(struct router *r, const struct cluster_node *n)
{
	struct router_watch *w = r->members.watches[n->slot];
	struct cluster_orders o;
	if (w == NULL)
		return;
	CGN_LIVE(w, WATCH_TAG);
	if (w->address != NULL && strcmp(w->address, n->address) == 0) {
		watch_hang_up(w);
		router_residency_lost(w);
		cluster_watch_lost(r->members.cluster, watch_node(w), &o);
		if (o.publish)
			cgn_loop_defer(r->loop, &r->published.hook);
		watch_retry(w);
		return;
	}
	router_watch_close(r, n->slot);
	router_watch_open(r, n);
}

static void watch_release(struct cgn_grave *g)
{
	struct router_watch *w = CGN_CONTAINER(g, struct router_watch, grave);
	if (w->channel != NULL)
		grpc_channel_free(&w->channel);
	free(w->address);
	free(w->shown_id);
	free(w);
}

void router_watch_close(struct router *r, uint16_t slot)
{
	struct router_watch *w = r->members.watches[slot];
	if (w == NULL)
		return;
	CGN_LIVE(w, WATCH_TAG);
	watch_hang_up(w);
	if (w->engine != NULL)
		engine_node_stop(w->engine);
	energy_board_clear(r->shared.choice.energy, slot);
	r->members.watches[slot] = NULL;
	w->tag = 0;
	cgn_loop_bury(r->loop, &w->grave, watch_release); /* The caller may be a callback of this watch. */
}
