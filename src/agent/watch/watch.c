/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/watch/watch.h"

#include <stdlib.h>

#include "agent/watch/backlog.h"
#include "base/log/log.h"
#include "base/pb/pb.h"
#include "base/unlikely/unlikely.h"

#define SEND_INTERVAL (20 * CGN_MSEC) /* Between two reports of a load that changes */
#define SEND_BEAT     CGN_SEC         /* Longest time between two reports of a load */
/* Between two reports of the holdings. The first change after a pause is reported at once: the next turn of a
 * conversation may come as soon as its last answer has ended. */
#define BLOCKS_INTERVAL (10 * CGN_MSEC)
#define DIRECT_MOST     (1U << 20)    /* A larger number of requests that a router tells is cut */
#define CHECK_INTERVAL  (2 * CGN_SEC) /* Between two checks of a watcher's knowledge, while blocks change */

#define WATCHER_TAG 0xa9e17005U

struct watcher {
	uint32_t tag;
	struct watch *all;
	struct grpc_call *call;
	struct cgn_link link;
	uint64_t seq;
	uint64_t router;         /* Router whose share the watcher is told; 0: none */
	struct share_row direct; /* Requests that the router has straight at the engine */
	uint64_t heard;          /* DirectLoad.heard, as last told */
	uint64_t whole_us;       /* DirectLoad.whole_us, as last told */
	bool has_told;           /* A DirectLoad came on this call */
	cgn_nsec told_at;        /* Last report of the load */
	struct watch_backlog backlog;
	bool begun, finished, node_due, load_due, reset_due, source_due, check_due;
	bool changed; /* Some digest changed since the last check */
	Cognitora__V1__Load told;
	struct cgn_grave grave;
};

/* ---- due reports ---- */

static void watcher_end(struct watcher *w, enum cgn_code code, const char *sentence)
{
	if (w->finished)
		return;
	w->finished = true;
	w->backlog.n = 0;
	grpc_finish(w->call, code, sentence);
}

static void watcher_touch(struct watcher *w, uint64_t digest)
{
	if (!w->begun || w->finished)
		return;
	w->changed = true;
	size_t behind = watch_backlog_add(&w->backlog, digest);
	if (behind > 0)
		cgn_log_limited(WARN, "agent.watcher_slow", F_STRN("peer", grpc_peer(w->call)),
			F_U64("behind", behind), F_STR("then", "whole ranges are told once it takes them"));
}

static bool load_differs(const Cognitora__V1__Load *a, const Cognitora__V1__Load *b)
{
	/* The compiler warns of floats that are compared for equality. */
	return a->inflight != b->inflight || a->yours != b->yours || a->queued_tokens != b->queued_tokens ||
		a->yours_queued_tokens != b->yours_queued_tokens || a->decoding != b->decoding ||
		a->yours_decoding != b->yours_decoding || a->foreign != b->foreign ||
		a->wholes != b->wholes || a->yours_wholes != b->yours_wholes || a->running != b->running ||
		a->waiting != b->waiting || a->stalled != b->stalled ||
		a->requests_total != b->requests_total || a->kv_usage < b->kv_usage ||
		a->kv_usage > b->kv_usage || a->power_headroom < b->power_headroom ||
		a->power_headroom > b->power_headroom;
}

static bool watcher_blocks_due(struct watcher *w)
{
	return !watch_backlog_is_empty(&w->backlog);
}

static bool watcher_is_due(struct watcher *w)
{
	return w->node_due || w->load_due || w->reset_due || w->source_due || w->check_due ||
		watcher_blocks_due(w);
}

/* ---- sending ---- */
static bool watcher_send_event(struct watcher *w, const struct proto_residency *r,
	const struct proto_check *check)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	float watts[ENERGY_KNOTS + 1];
	Cognitora__V1__Energy energy;
	bool counted = w->load_due && w->all->ops->energy(w->all->user, &energy, watts);
	const struct proto_event ev = {.seq = w->seq + 1,
		.node = w->node_due ? w->all->node : NULL,
		.load = w->load_due ? &w->told : NULL,
		.energy = counted ? &energy : NULL,
		.residency = r,
		.check = check,
		.beat_ms = w->load_due ? (uint32_t)(SEND_BEAT / CGN_MSEC) : 0,
		.sent_unix_ms = cgn_clock_wall_ms()};
	proto_watch_event(&ev, &b);
	if (b.bad)
		return false;
	const struct iovec iov = {b.p, b.n};
	w->seq++;
	w->node_due = w->load_due = false;
	grpc_send(w->call, &iov, 1);
	return true;
}

/* Send the batch. A range longer than a chunk takes several events, of which the first resets the range. */
static bool watcher_send_batch(struct watcher *w, const struct watch_batch *b)
{
	struct proto_residency r = {.source = w->all->ops->source(w->all->user),
		.stale_ms = w->all->ops->stale_ms(w->all->user)};
	size_t at = 0;
	do {
		r.reset = w->reset_due || (at == 0 && b->n_ranges > 0);
		r.ranges = b->ranges;
		r.n_ranges = at == 0 ? b->n_ranges : 0;
		r.blocks = b->n > 0 ? b->digests + at : NULL;
		r.tiers = b->off_gpu ? b->tiers + at : NULL;
		r.n_blocks = b->n - at < 2 * WATCH_CHUNK_DIGESTS ? b->n - at : 2 * WATCH_CHUNK_DIGESTS;
		if (!watcher_send_event(w, &r, NULL))
			return false;
		at += r.n_blocks;
		w->reset_due = w->source_due = false;
	} while (at < b->n);
	return true;
}

static bool watcher_send_check(struct watcher *w)
{
	const struct holdings *h = w->all->holdings;
	const struct proto_check check = {.sums = holdings_sums(h), .blocks = holdings_count(h)};
	w->check_due = w->changed = false;
	return watcher_send_event(w, NULL, &check);
}

static bool watcher_send_some(struct watcher *w, struct watch_batch *b)
{
	if (w->reset_due || w->source_due || watcher_blocks_due(w)) {
		watch_batch_gather(b, &w->backlog);
		return !b->bad && watcher_send_batch(w, b);
	}
	return w->check_due ? watcher_send_check(w) : watcher_send_event(w, NULL, NULL);
}

static void watcher_flush(struct watcher *w)
{
	Cognitora__V1__Load now;
	if (!w->begun || w->finished || grpc_over_mark(w->call))
		return;
	w->all->ops->load(w->all->user, w->router, &now);
	w->load_due = w->load_due || w->seq == 0 || load_differs(&now, &w->told) ||
		unlikely_way(UNLIKELY_load_told);
	if (w->load_due) {
		w->told = now;
		w->told_at = cgn_loop_now(w->all->loop);
	}
	struct watch_batch b = {.holdings = w->all->holdings};
	bool ok = true;
	while (ok && watcher_is_due(w) && !grpc_over_mark(w->call))
		ok = watcher_send_some(w, &b);
	watch_batch_fini(&b);
	if (!ok)
		watcher_end(w, CGN_NO_MEMORY, "no memory for an event");
}

static void watch_flush_all(struct watch *all)
{
	all->sent_at = cgn_loop_now(all->loop);
	cgn_list_each_safe (it, &all->watchers)
		watcher_flush(CGN_CONTAINER(it, struct watcher, link));
}

static void on_send_timer(struct cgn_timer *t)
{
	struct watch *all = CGN_CONTAINER(t, struct watch, send_timer);
	watch_flush_all(all);
}

/* The age of a silent source grows without any event, so it is sent with each check. */
static void on_check_timer(struct cgn_timer *t)
{
	struct watch *all = CGN_CONTAINER(t, struct watch, check_timer);
	bool stale = all->ops->stale_ms(all->user) > 0;
	cgn_list_each (it, &all->watchers) {
		struct watcher *w = CGN_CONTAINER(it, struct watcher, link);
		w->check_due |= w->changed || unlikely_way(UNLIKELY_check_told);
		w->source_due |= stale;
	}
	watch_flush_all(all);
	if (!cgn_list_empty(&all->watchers))
		cgn_timer_set(t, CHECK_INTERVAL);
}

/* The timer runs at half of SEND_BEAT, so that a load sent just after a beat is repeated in time. */
static void on_beat_timer(struct cgn_timer *t)
{
	struct watch *all = CGN_CONTAINER(t, struct watch, beat_timer);
	cgn_nsec now = cgn_loop_now(all->loop);
	cgn_list_each_safe (it, &all->watchers) {
		struct watcher *w = CGN_CONTAINER(it, struct watcher, link);
		w->load_due = w->load_due || cgn_since(now, w->told_at) >= SEND_BEAT / 2;
		watcher_flush(w);
	}
	if (!cgn_list_empty(&all->watchers))
		cgn_timer_set(t, SEND_BEAT / 2);
}

void watch_init(struct watch *all, struct cgn_loop *l, const struct watch_ops *ops, void *user)
{
	all->loop = l;
	all->ops = ops;
	all->user = user;
	cgn_list_init(&all->watchers);
	cgn_timer_init(&all->send_timer, l, on_send_timer);
	cgn_timer_init(&all->check_timer, l, on_check_timer);
	cgn_timer_init(&all->beat_timer, l, on_beat_timer);
}

void watch_fini(struct watch *all)
{
	cgn_timer_cancel(&all->send_timer);
	cgn_timer_cancel(&all->check_timer);
	cgn_timer_cancel(&all->beat_timer);
}

/* Send to the watchers at |due|, or earlier when that is planned already. */
static void watch_send_at(struct watch *all, cgn_nsec due)
{
	cgn_nsec now = cgn_loop_now(all->loop);
	if (cgn_list_empty(&all->watchers) || (all->send_timer.at != 0 && all->send_timer.at <= due))
		return;
	cgn_timer_set(&all->send_timer, due > now ? due - now : 0);
}

void watch_load_changed(struct watch *all)
{
	watch_send_at(all, all->sent_at + SEND_INTERVAL);
}

void watch_energy_changed(struct watch *all)
{
	cgn_list_each (it, &all->watchers)
		CGN_CONTAINER(it, struct watcher, link)->load_due = true;
	watch_load_changed(all);
}

void watch_node_changed(struct watch *all, const Cognitora__V1__Node *node)
{
	all->node = node;
	cgn_list_each (it, &all->watchers)
		CGN_CONTAINER(it, struct watcher, link)->node_due = true;
	watch_flush_all(all);
}

void watch_source_changed(struct watch *all)
{
	cgn_list_each (it, &all->watchers)
		CGN_CONTAINER(it, struct watcher, link)->source_due = true;
	watch_load_changed(all);
}

void watch_digest_changed(struct watch *all, uint64_t digest)
{
	cgn_list_each (it, &all->watchers)
		watcher_touch(CGN_CONTAINER(it, struct watcher, link), digest);
	watch_send_at(all, all->sent_at + BLOCKS_INTERVAL);
}

void watch_end_all(struct watch *all, const char *sentence)
{
	cgn_list_each_safe (it, &all->watchers)
		watcher_end(CGN_CONTAINER(it, struct watcher, link), CGN_UNAVAILABLE, sentence);
}

/* ---- the call ---- */
static void watcher_begin(struct watcher *w, uint64_t router)
{
	struct watch *all = w->all;
	w->router = router;
	w->begun = w->node_due = w->reset_due = w->check_due = true;
	for (unsigned r = 0; r < BLOCK_RANGES; r++)
		watch_backlog_range_due(&w->backlog, r);
	cgn_log_limited(INFO, "agent.watched", F_STRN("peer", grpc_peer(w->call)),
		F_U64("blocks", holdings_count(all->holdings)), F_U64("watchers", all->n_watchers));
	if (all->check_timer.at == 0)
		cgn_timer_set(&all->check_timer, CHECK_INTERVAL);
	if (all->beat_timer.at == 0)
		cgn_timer_set(&all->beat_timer, SEND_BEAT / 2);
	watcher_flush(w);
}

/* ---- requests straight at the engine ---- */

struct share_row watch_direct(const struct watch *all, uint64_t router)
{
	struct share_row sum = {.router = router};
	cgn_list_each (it, &all->watchers) {
		const struct watcher *w = CGN_CONTAINER(it, struct watcher, link);
		if (router != 0 && w->router != router)
			continue;
		sum.inflight += w->direct.inflight;
		sum.decoding += w->direct.decoding;
		sum.queued_tokens += w->direct.queued_tokens;
		sum.wholes += w->direct.wholes;
	}
	sum.whole_us = router == 0 ? all->direct_whole_us : 0;
	return sum;
}

static uint32_t most_of(uint64_t told, uint32_t most)
{
	return told < most ? (uint32_t)told : most;
}

/* Take the router's numbers. An earlier call of the same router may not have ended yet: that one has older
 * numbers. */
static void watcher_told(struct watcher *w, const Cognitora__V1__DirectLoad *told)
{
	bool heard = told->heard != w->heard;
	cgn_list_each (it, &w->all->watchers) {
		struct watcher *other = CGN_CONTAINER(it, struct watcher, link);
		if (other->router == w->router)
			other->direct = (struct share_row){0};
	}
	w->heard = told->heard;
	w->direct.inflight = most_of(told->inflight, DIRECT_MOST);
	w->direct.decoding = most_of(told->decoding, w->direct.inflight);
	w->direct.queued_tokens = most_of(told->queued_tokens, UINT32_MAX);
	w->direct.wholes = most_of(told->wholes, w->direct.inflight - w->direct.decoding);
	if (w->has_told && told->whole_us > w->whole_us) /* The sum of an earlier call is not this one's. */
		w->all->direct_whole_us += most_of(told->whole_us - w->whole_us, UINT32_MAX);
	w->whole_us = told->whole_us;
	w->has_told = true;
	w->all->ops->direct_changed(w->all->user, heard);
}

static CGN_RC watcher_repair(struct watcher *w, const Cognitora__V1__WatchRequest *rq, struct cgn_err *err)
{
	for (size_t i = 0; i < rq->n_repair; i++) {
		if (rq->repair[i] >= BLOCK_RANGES)
			return CGN_FAIL(err, INVALID, "WatchRequest.repair: there is no range %u",
				rq->repair[i]);
		watch_backlog_resend(&w->backlog, rq->repair[i]);
	}
	cgn_log_limited(INFO, "agent.repair_asked", F_STRN("peer", grpc_peer(w->call)),
		F_U64("ranges", rq->n_repair));
	w->check_due = true;
	watcher_flush(w);
	return CGN_OK;
}

static void on_call_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct watcher *w = user;
	struct cgn_err err = {0};
	CGN_ON_EXIT(pb_free) Cognitora__V1__WatchRequest *rq = NULL;
	(void)c;
	CGN_LIVE(w, WATCHER_TAG);
	if (w->finished)
		return;
	cgn_rc rc = pb_unpack(&cognitora__v1__watch_request__descriptor, (struct cgn_str){(const char *)p, n},
		&rq, &err);
	if (cgn_ok(rc) && rq->wanted != NULL)
		w->all->ops->wanted_told(w->all->user, rq->wanted);
	for (size_t i = 0; cgn_ok(rc) && w->begun && i < rq->n_pauses; i++)
		w->all->ops->pause_told(w->all->user, rq->pauses[i]);
	if (cgn_ok(rc) && w->begun && rq->n_repair == 0 && rq->direct != NULL)
		watcher_told(w, rq->direct);
	else if (cgn_ok(rc) && w->begun && rq->n_repair == 0 && (rq->wanted != NULL || rq->n_pauses > 0))
		return;
	else if (cgn_ok(rc) && w->begun)
		rc = watcher_repair(w, rq, &err);
	else if (cgn_ok(rc))
		watcher_begin(w, rq->router);
	if (!cgn_ok(rc))
		watcher_end(w, err.code, err.msg);
}

static void on_call_half_close(struct grpc_call *c, void *user)
{
	struct watcher *w = user;
	(void)c;
	CGN_LIVE(w, WATCHER_TAG);
	if (!w->begun)
		watcher_end(w, CGN_INVALID, "Watch needs a request message");
}

static void on_call_drain(struct grpc_call *c, void *user)
{
	struct watcher *w = user;
	(void)c;
	CGN_LIVE(w, WATCHER_TAG);
	watcher_flush(w);
}

static void watcher_release(struct cgn_grave *g)
{
	struct watcher *w = CGN_CONTAINER(g, struct watcher, grave);
	watch_backlog_fini(&w->backlog);
	w->tag = 0;
	free(w);
}

static void on_call_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct watcher *w = user;
	(void)c;
	(void)why;
	CGN_LIVE(w, WATCHER_TAG);
	w->finished = true;
	cgn_list_drop(&w->link);
	w->all->n_watchers--;
	if (w->direct.inflight > 0)
		w->all->ops->direct_changed(w->all->user, false);
	cgn_loop_bury(w->all->loop, &w->grave, watcher_release);
}

static const struct grpc_call_ops ops = {.on_message = on_call_message,
	.on_half_close = on_call_half_close,
	.on_drain = on_call_drain,
	.on_close = on_call_close};

void watch_open(struct watch *all, struct grpc_call *c)
{
	if (all->n_watchers == WATCH_MAX_WATCHERS) {
		grpc_refuse(c, CGN_OVERLOADED, "this agent has as many watchers as it takes");
		return;
	}
	struct watcher *w = CGN_NEW(struct watcher);
	*w = (struct watcher){.tag = WATCHER_TAG, .all = all, .call = c};
	cgn_list_push(&all->watchers, &w->link);
	all->n_watchers++;
	grpc_call_take(c, &ops, w);
}
