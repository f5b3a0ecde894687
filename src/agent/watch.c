/* SPDX-License-Identifier: Apache-2.0 */
/* Agent.Watch: each watcher has a list of digests whose state it has yet to learn, and a set of ranges that
 * it must be told from their beginning. A snapshot is all ranges, a repair some, and a list that grows too
 * long becomes the ranges it lies in: so a watcher costs a bounded amount of memory however much is held and
 * however slow it is, and once it catches up it knows the latest state. */
#include <stdlib.h>

#include "agent/agent.h"
#include "base/log/log.h"
#include "base/pb/pb.h"

#define WATCHER_TAG   0xa9e17005U
#define CHUNK_DIGESTS ((size_t)32768)  /* per event: 256 KiB, and as many masks where they are needed */
#define MAX_BACKLOG   ((size_t)131072) /* changes that a watcher may be behind: 1 MiB */

/* Ranges as bits. */
struct ranges {
	uint64_t bit[BLOCK_RANGES / 64];
};

struct watcher {
	uint32_t tag;
	struct agent *agent;
	struct grpc_call *call;
	struct cgn_link link;
	uint64_t seq;
	uint64_t router; /* whose share it is told; 0: nobody's */
	cgn_nsec told_at;
	uint64_t *touched; /* digests to tell about; doubles do no harm */
	size_t n, cap;
	struct ranges due;   /* to be told from the beginning */
	struct ranges known; /* something of them was told, which must be forgotten first */
	unsigned next_range; /* none below is due */
	bool begun, finished, node_due, load_due, reset_due, source_due, check_due;
	bool changed; /* since the last check */
	Cognitora__V1__Load told;
	struct cgn_grave grave;
};

/* One event's blocks while they are gathered. Grows to the chunk, or to one range if that is longer. */
struct batch {
	const struct holdings *holdings;
	uint64_t *digests;
	uint8_t *tiers;
	size_t n, cap;
	uint32_t ranges[BLOCK_RANGES];
	size_t n_ranges;
	bool off_gpu, bad;
};

/* ---- ranges ---- */
static bool range_in(const struct ranges *s, unsigned r)
{
	return (s->bit[r / 64] >> r % 64 & 1) != 0;
}

static void range_put(struct ranges *s, unsigned r, bool in)
{
	uint64_t bit = UINT64_C(1) << r % 64;
	s->bit[r / 64] = in ? s->bit[r / 64] | bit : s->bit[r / 64] & ~bit;
}

static void range_due(struct watcher *w, unsigned r)
{
	range_put(&w->due, r, true);
	if (r < w->next_range)
		w->next_range = r;
}

/* The next range that is due, or BLOCK_RANGES. */
static unsigned range_next(struct watcher *w)
{
	while (w->next_range < BLOCK_RANGES && !range_in(&w->due, w->next_range))
		w->next_range++;
	return w->next_range;
}

/* ---- what is due ---- */
static void end(struct watcher *w, enum cgn_code code, const char *sentence)
{
	if (w->finished)
		return;
	w->finished = true;
	w->n = 0;
	grpc_finish(w->call, code, sentence);
}

static bool grow(struct watcher *w)
{
	size_t cap = w->cap > 0 ? 2 * w->cap : 256;
	if (w->cap == MAX_BACKLOG)
		return false;
	uint64_t *more = realloc(w->touched, cap * sizeof *more);
	if (more == NULL)
		return false;
	w->touched = more;
	w->cap = cap;
	return true;
}

/* More changes than are kept one by one: the ranges they lie in will be told instead. */
static void fall_behind(struct watcher *w)
{
	cgn_log(WARN, "agent.watcher_slow", F_STRN("peer", grpc_peer(w->call)), F_U64("behind", w->n),
		F_STR("then", "whole ranges are told once it takes them"));
	for (size_t i = 0; i < w->n; i++)
		range_due(w, block_range(w->touched[i]));
	w->n = 0;
}

static void touch(struct watcher *w, uint64_t digest)
{
	if (!w->begun || w->finished)
		return;
	w->changed = true;
	if (range_in(&w->due, block_range(digest)))
		return; /* it will be told with its range */
	if (w->n == w->cap && !grow(w)) {
		fall_behind(w);
		range_due(w, block_range(digest));
		return;
	}
	w->touched[w->n++] = digest;
}

static bool load_differs(const Cognitora__V1__Load *a, const Cognitora__V1__Load *b)
{
	/* Written so that no two floats are compared for equality. */
	return a->inflight != b->inflight || a->yours != b->yours || a->queued_tokens != b->queued_tokens ||
		a->yours_queued_tokens != b->yours_queued_tokens || a->decoding != b->decoding ||
		a->yours_decoding != b->yours_decoding || a->foreign != b->foreign ||
		a->running != b->running || a->waiting != b->waiting ||
		a->requests_total != b->requests_total || a->kv_usage < b->kv_usage ||
		a->kv_usage > b->kv_usage || a->power_headroom < b->power_headroom ||
		a->power_headroom > b->power_headroom;
}

static bool blocks_due(struct watcher *w)
{
	return w->n > 0 || range_next(w) < BLOCK_RANGES;
}

static bool anything_due(struct watcher *w)
{
	return w->node_due || w->load_due || w->reset_due || w->source_due || w->check_due || blocks_due(w);
}

/* ---- gathering ---- */
static bool batch_grow(struct batch *b)
{
	size_t cap = b->cap > 0 ? 2 * b->cap : CHUNK_DIGESTS;
	uint64_t *digests = realloc(b->digests, cap * sizeof *digests);
	if (digests != NULL)
		b->digests = digests;
	uint8_t *tiers = realloc(b->tiers, cap);
	if (tiers != NULL)
		b->tiers = tiers;
	if (digests == NULL || tiers == NULL)
		return false;
	b->cap = cap;
	return true;
}

static void batch_add(void *user, uint64_t digest, unsigned tiers)
{
	struct batch *b = user;
	if (b->n == b->cap && !batch_grow(b)) {
		b->bad = true;
		return;
	}
	b->digests[b->n] = digest;
	b->tiers[b->n++] = (uint8_t)tiers;
	b->off_gpu |= tiers != BLOCK_TIER_BIT(BLOCK_GPU);
}

/* The newest changes first; what was touched twice is told twice, with one truth. */
static void gather_touched(struct watcher *w, struct batch *b)
{
	while (w->n > 0 && b->n < CHUNK_DIGESTS) {
		uint64_t d = w->touched[--w->n];
		batch_add(b, d, holdings_tiers(b->holdings, d));
		range_put(&w->known, block_range(d), true);
	}
}

static void gather_ranges(struct watcher *w, struct batch *b)
{
	for (unsigned r; b->n < CHUNK_DIGESTS && (r = range_next(w)) < BLOCK_RANGES;) {
		if (range_in(&w->known, r))
			b->ranges[b->n_ranges++] = r;
		holdings_each(b->holdings, r, batch_add, b);
		range_put(&w->due, r, false);
		range_put(&w->known, r, true);
	}
}

/* Either changes or ranges: a range that is told anew must not be followed by its forgetting. */
static void gather(struct watcher *w, struct batch *b)
{
	b->n = b->n_ranges = 0;
	b->off_gpu = false;
	if (w->n > 0)
		gather_touched(w, b);
	else
		gather_ranges(w, b);
}

/* ---- telling ---- */
static bool send_event(struct watcher *w, const struct proto_residency *r, const struct proto_check *check)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	const struct proto_event ev = {.seq = w->seq + 1,
		.node = w->node_due ? w->agent->node : NULL,
		.load = w->load_due ? &w->told : NULL,
		.residency = r,
		.check = check,
		.beat_ms = w->load_due ? (uint32_t)(WATCH_BEAT / CGN_MSEC) : 0,
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

/* All that was gathered; a range longer than a chunk takes several events, of which the first forgets. */
static bool send_batch(struct watcher *w, const struct batch *b)
{
	struct proto_residency r = {.source = agent_source(w->agent), .stale_ms = agent_stale_ms(w->agent)};
	size_t at = 0;
	do {
		r.reset = w->reset_due || (at == 0 && b->n_ranges > 0);
		r.ranges = b->ranges;
		r.n_ranges = at == 0 ? b->n_ranges : 0;
		r.blocks = b->digests + at;
		r.tiers = b->off_gpu ? b->tiers + at : NULL;
		r.n_blocks = b->n - at < 2 * CHUNK_DIGESTS ? b->n - at : 2 * CHUNK_DIGESTS;
		if (!send_event(w, &r, NULL))
			return false;
		at += r.n_blocks;
		w->reset_due = w->source_due = false;
	} while (at < b->n);
	return true;
}

static bool send_check(struct watcher *w)
{
	const struct holdings *h = w->agent->holdings;
	const struct proto_check check = {.sums = holdings_sums(h), .blocks = holdings_count(h)};
	w->check_due = w->changed = false;
	return send_event(w, NULL, &check);
}

static bool send_some(struct watcher *w, struct batch *b)
{
	if (w->reset_due || w->source_due || blocks_due(w)) {
		gather(w, b);
		return !b->bad && send_batch(w, b);
	}
	return w->check_due ? send_check(w) : send_event(w, NULL, NULL);
}

static void flush(struct watcher *w)
{
	Cognitora__V1__Load now;
	if (!w->begun || w->finished || grpc_over_mark(w->call))
		return;
	agent_load(w->agent, w->router, &now);
	w->load_due = w->load_due || w->seq == 0 || load_differs(&now, &w->told);
	if (w->load_due) {
		w->told = now;
		w->told_at = cgn_loop_now(w->agent->loop);
	}
	struct batch b = {.holdings = w->agent->holdings};
	bool ok = true;
	while (ok && anything_due(w) && !grpc_over_mark(w->call))
		ok = send_some(w, &b);
	free(b.digests);
	free(b.tiers);
	if (!ok)
		end(w, CGN_NO_MEMORY, "no memory for an event");
}

static void flush_all(struct agent *a)
{
	a->watch_last = cgn_loop_now(a->loop);
	cgn_list_each_safe (it, &a->watchers)
		flush(CGN_CONTAINER(it, struct watcher, link));
}

static void on_tick(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, watch_timer);
	CGN_LIVE(a, AGENT_TAG);
	flush_all(a);
}

/* What a source has not heard for long gets older without any event of its own. */
static void on_check(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, check_timer);
	CGN_LIVE(a, AGENT_TAG);
	bool stale = agent_stale_ms(a) > 0;
	cgn_list_each (it, &a->watchers) {
		struct watcher *w = CGN_CONTAINER(it, struct watcher, link);
		w->check_due |= w->changed;
		w->source_due |= stale;
	}
	flush_all(a);
	if (!cgn_list_empty(&a->watchers))
		cgn_timer_set(t, WATCH_CHECK_INTERVAL);
}

/* Twice as often as promised: a load told just before a beat is repeated at the next one. */
static void on_beat(struct cgn_timer *t)
{
	struct agent *a = CGN_CONTAINER(t, struct agent, beat_timer);
	CGN_LIVE(a, AGENT_TAG);
	cgn_nsec now = cgn_loop_now(a->loop);
	cgn_list_each_safe (it, &a->watchers) {
		struct watcher *w = CGN_CONTAINER(it, struct watcher, link);
		w->load_due = w->load_due || now - w->told_at >= WATCH_BEAT / 2;
		flush(w);
	}
	if (!cgn_list_empty(&a->watchers))
		cgn_timer_set(t, WATCH_BEAT / 2);
}

void watch_init(struct agent *a)
{
	cgn_list_init(&a->watchers);
	cgn_timer_init(&a->watch_timer, a->loop, on_tick);
	cgn_timer_init(&a->check_timer, a->loop, on_check);
	cgn_timer_init(&a->beat_timer, a->loop, on_beat);
}

void watch_fini(struct agent *a)
{
	cgn_timer_cancel(&a->watch_timer);
	cgn_timer_cancel(&a->check_timer);
	cgn_timer_cancel(&a->beat_timer);
}

/* Tell the watchers at |due|, or before if that is planned already. */
static void tell_at(struct agent *a, cgn_nsec due)
{
	cgn_nsec now = cgn_loop_now(a->loop);
	if (cgn_list_empty(&a->watchers) || (a->watch_timer.at != 0 && a->watch_timer.at <= due))
		return;
	cgn_timer_set(&a->watch_timer, due > now ? due - now : 0);
}

void watch_load_changed(struct agent *a)
{
	tell_at(a, a->watch_last + WATCH_INTERVAL);
}

void watch_node_changed(struct agent *a)
{
	cgn_list_each (it, &a->watchers)
		CGN_CONTAINER(it, struct watcher, link)->node_due = true;
	flush_all(a);
}

void watch_source_changed(struct agent *a)
{
	cgn_list_each (it, &a->watchers)
		CGN_CONTAINER(it, struct watcher, link)->source_due = true;
	watch_load_changed(a);
}

void watch_digest_changed(struct agent *a, uint64_t digest)
{
	CGN_LIVE(a, AGENT_TAG);
	cgn_list_each (it, &a->watchers)
		touch(CGN_CONTAINER(it, struct watcher, link), digest);
	tell_at(a, cgn_loop_now(a->loop) + WATCH_BLOCKS_DELAY);
}

void watch_end_all(struct agent *a, const char *sentence)
{
	cgn_list_each_safe (it, &a->watchers)
		end(CGN_CONTAINER(it, struct watcher, link), CGN_UNAVAILABLE, sentence);
}

/* ---- the call ---- */
static void begin(struct watcher *w, uint64_t router)
{
	struct agent *a = w->agent;
	w->router = router;
	w->begun = w->node_due = w->reset_due = w->check_due = true;
	for (unsigned r = 0; r < BLOCK_RANGES; r++)
		range_due(w, r);
	cgn_log(INFO, "agent.watched", F_STRN("peer", grpc_peer(w->call)),
		F_U64("blocks", holdings_count(a->holdings)), F_U64("watchers", a->n_watchers));
	if (a->check_timer.at == 0)
		cgn_timer_set(&a->check_timer, WATCH_CHECK_INTERVAL);
	if (a->beat_timer.at == 0)
		cgn_timer_set(&a->beat_timer, WATCH_BEAT / 2);
	flush(w);
}

static CGN_RC repair(struct watcher *w, const Cognitora__V1__WatchRequest *rq, struct cgn_err *err)
{
	for (size_t i = 0; i < rq->n_repair; i++) {
		if (rq->repair[i] >= BLOCK_RANGES)
			return CGN_FAIL(err, INVALID, "WatchRequest.repair: there is no range %u",
				rq->repair[i]);
		range_due(w, rq->repair[i]);
		range_put(&w->known, rq->repair[i], true);
	}
	cgn_log(INFO, "agent.repair_asked", F_STRN("peer", grpc_peer(w->call)),
		F_U64("ranges", rq->n_repair));
	w->check_due = true;
	flush(w);
	return CGN_OK;
}

static void on_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
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
	if (cgn_ok(rc) && w->begun)
		rc = repair(w, rq, &err);
	else if (cgn_ok(rc))
		begin(w, rq->router);
	if (!cgn_ok(rc))
		end(w, err.code, err.msg);
}

static void on_half_close(struct grpc_call *c, void *user)
{
	struct watcher *w = user;
	(void)c;
	CGN_LIVE(w, WATCHER_TAG);
	if (!w->begun)
		end(w, CGN_INVALID, "Watch needs a request message");
}

static void on_drain(struct grpc_call *c, void *user)
{
	struct watcher *w = user;
	(void)c;
	CGN_LIVE(w, WATCHER_TAG);
	flush(w);
}

static void released(struct cgn_grave *g)
{
	struct watcher *w = CGN_CONTAINER(g, struct watcher, grave);
	free(w->touched);
	w->tag = 0;
	free(w);
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct watcher *w = user;
	(void)c;
	(void)why;
	CGN_LIVE(w, WATCHER_TAG);
	w->finished = true;
	cgn_list_drop(&w->link);
	w->agent->n_watchers--;
	cgn_loop_bury(w->agent->loop, &w->grave, released);
}

static const struct grpc_call_ops ops = {.on_message = on_message,
	.on_half_close = on_half_close,
	.on_drain = on_drain,
	.on_close = on_close};

void watch_on_call(struct grpc_call *c, void *agent)
{
	struct agent *a = agent;
	struct watcher *w = a->n_watchers < AGENT_MAX_WATCHERS ? calloc(1, sizeof *w) : NULL;
	if (w == NULL) {
		agent_refuse_call(c, CGN_OVERLOADED, "this agent has as many watchers as it takes");
		return;
	}
	*w = (struct watcher){.tag = WATCHER_TAG, .agent = a, .call = c};
	cgn_list_push(&a->watchers, &w->link);
	a->n_watchers++;
	grpc_call_take(c, &ops, w);
}
