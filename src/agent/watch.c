/* SPDX-License-Identifier: Apache-2.0 */
/* Agent.Watch: each watcher has its own list of digests whose state it has yet to learn. A snapshot is such a list with all of them in it,
 * so one mechanism serves both, and a watcher that lags learns the latest state once it catches up. */
#include <stdlib.h>

#include "agent/agent.h"
#include "base/codec/pb.h"
#include "base/log/log.h"

#define WATCHER_TAG   0xa9e17005U
#define CHUNK_DIGESTS ((size_t)16384)  /* per event: 128 KiB */
#define MAX_BACKLOG   ((size_t)131072) /* changes beyond a snapshot that a watcher may be behind: 1 MiB */

struct watcher {
	uint32_t tag;
	struct agent *agent;
	struct grpc_call *call;
	struct cgn_link link;
	uint64_t seq;
	uint64_t *touched; /* digests to tell about; doubles do no harm */
	size_t n, cap, max;
	bool begun, finished, node_due, load_due, reset_due;
	Cognitora__V1__Load told;
	struct cgn_grave grave;
};

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
	if (cap > w->max)
		cap = w->max;
	if (cap <= w->n)
		return false;
	uint64_t *more = realloc(w->touched, cap * sizeof *more);
	if (more == NULL)
		return false;
	w->touched = more;
	w->cap = cap;
	return true;
}

static void touch(void *user, uint64_t digest)
{
	struct watcher *w = user;
	if (w->finished)
		return;
	if (w->n == w->cap && !grow(w)) {
		cgn_log(WARN, "agent.watcher_slow", F_STRN("peer", grpc_peer(w->call)),
			F_U64("behind", w->n));
		end(w, CGN_OVERLOADED, "the watcher takes too little: call again for a snapshot");
		return;
	}
	w->touched[w->n++] = digest;
}

static bool load_differs(const Cognitora__V1__Load *a, const Cognitora__V1__Load *b)
{
	/* Written so that no two floats are compared for equality. */
	return a->inflight != b->inflight || a->running != b->running || a->waiting != b->waiting ||
	       a->requests_total != b->requests_total || a->kv_usage < b->kv_usage ||
	       a->kv_usage > b->kv_usage || a->power_headroom < b->power_headroom ||
	       a->power_headroom > b->power_headroom;
}

/* ---- telling ---- */
/* The newest changes first; what was touched twice is told twice, with one truth. */
static size_t fill(struct watcher *w, struct proto_residency *r, uint64_t *digests)
{
	size_t n = w->n < CHUNK_DIGESTS ? w->n : CHUNK_DIGESTS, stored = 0, removed = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t d = w->touched[w->n - n + i];
		if (agent_resident(w->agent, d))
			digests[stored++] = d;
		else
			digests[n - ++removed] = d;
	}
	*r = (struct proto_residency){
		.reset = w->reset_due,
		.stored = digests,
		.n_stored = stored,
		.removed = digests + n - removed,
		.n_removed = removed,
		.source = "sent",
	};
	return n;
}

static bool send_event(struct watcher *w, uint64_t *digests)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct proto_residency r;
	size_t n = fill(w, &r, digests);
	bool has_residency = n > 0 || w->reset_due;
	proto_watch_event(w->seq + 1, w->node_due ? w->agent->node : NULL, w->load_due ? &w->told : NULL,
		has_residency ? &r : NULL, cgn_clock_wall_ms(), &b);
	if (b.bad)
		return false;
	const struct iovec iov = {b.p, b.n};
	w->seq++;
	w->n -= n;
	w->node_due = w->load_due = w->reset_due = false;
	grpc_send(w->call, &iov, 1);
	return true;
}

static void flush(struct watcher *w)
{
	Cognitora__V1__Load now;
	if (!w->begun || w->finished || grpc_over_mark(w->call))
		return;
	agent_load(w->agent, &now);
	if (w->seq == 0 || load_differs(&now, &w->told)) {
		w->told = now;
		w->load_due = true;
	}
	if (w->n == 0 && !w->node_due && !w->load_due && !w->reset_due)
		return;
	uint64_t *digests = malloc(CHUNK_DIGESTS * sizeof *digests);
	bool ok = digests != NULL;
	while (ok && (w->n > 0 || w->node_due || w->load_due || w->reset_due) && !grpc_over_mark(w->call))
		ok = send_event(w, digests);
	free(digests);
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

void watch_init(struct agent *a)
{
	cgn_list_init(&a->watchers);
	cgn_timer_init(&a->watch_timer, a->loop, on_tick);
}

void watch_load_changed(struct agent *a)
{
	cgn_nsec now = cgn_loop_now(a->loop), due = a->watch_last + WATCH_INTERVAL;
	if (a->watch_timer.at != 0 || cgn_list_empty(&a->watchers))
		return;
	cgn_timer_set(&a->watch_timer, due > now ? due - now : 0);
}

void watch_node_changed(struct agent *a)
{
	cgn_list_each (it, &a->watchers)
		CGN_CONTAINER(it, struct watcher, link)->node_due = true;
	flush_all(a);
}

void watch_digest_changed(void *agent, uint64_t digest)
{
	struct agent *a = agent;
	CGN_LIVE(a, AGENT_TAG);
	cgn_list_each (it, &a->watchers)
		touch(CGN_CONTAINER(it, struct watcher, link), digest);
	watch_load_changed(a);
}

void watch_end_all(struct agent *a, const char *sentence)
{
	cgn_list_each_safe (it, &a->watchers)
		end(CGN_CONTAINER(it, struct watcher, link), CGN_UNAVAILABLE, sentence);
}

/* ---- the call ---- */
static void begin(struct watcher *w)
{
	struct agent *a = w->agent;
	w->begun = w->node_due = w->reset_due = true;
	w->max = MAX_BACKLOG + a->n_engines * RESIDENCY_MAX;
	for (size_t i = 0; i < a->n_engines; i++)
		residency_each(a->engines[i].resident, touch, w);
	cgn_log(INFO, "agent.watched", F_STRN("peer", grpc_peer(w->call)), F_U64("blocks", w->n),
		F_U64("watchers", a->n_watchers));
	flush(w);
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
	if (w->begun) {
		end(w, CGN_INVALID, "Watch takes one request message");
		return;
	}
	if (!cgn_ok(pb_unpack(&cognitora__v1__watch_request__descriptor, (struct cgn_str){(const char *)p, n},
		    &rq, &err))) {
		end(w, err.code, err.msg);
		return;
	}
	begin(w);
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

static const struct grpc_call_ops ops = {
	.on_message = on_message, .on_half_close = on_half_close, .on_drain = on_drain, .on_close = on_close};

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
