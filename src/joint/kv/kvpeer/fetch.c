/* SPDX-License-Identifier: Apache-2.0 */
/* fetch: the callers that wait for a block. All callers of a block share one get. */
#include <stdlib.h>

#include "joint/kv/kvpeer/get_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define LONGEST (30 * CGN_SEC)

/* ---- askers ---- */

static const char *fetch_outcome(enum cgn_code code)
{
	static const char *const names[CGN_CODE_COUNT] = {[CGN_FINE] = "hit",
		[CGN_NOT_FOUND] = "miss",
		[CGN_OVERLOADED] = "busy",
		[CGN_DEADLINE] = "late",
		[CGN_CANCELLED] = "cancelled",
		[CGN_STORAGE] = "corrupt"};
	return names[code] != NULL ? names[code] : "failed";
}

static void fetch_free(struct kvpeer_fetch *f)
{
	cgn_list_drop(&f->link);
	cgn_timer_cancel(&f->timer);
	f->kp->n_askers--;
	f->tag = 0;
	free(f);
}

/* |f| and |g| may be freed by |done|, so |done| runs last. */
void kvpeer_fetch_end(struct kvpeer_fetch *f, struct kvstore_block *block, const struct cgn_err *why)
{
	struct kvpeer_get *g = f->g;
	kvpeer_fetch_done done = f->done;
	void *user = f->user;
	metric_observe(METRIC_OF(f->kp->telemetry, KV_PEER_FETCH,
			       fetch_outcome(block != NULL ? CGN_FINE : why->code)),
		cgn_since(cgn_clock_now(), f->began));
	if (block != NULL)
		kvstore_block_ref(block);
	fetch_free(f);
	if (g != NULL && cgn_list_empty(&g->askers))
		kvpeer_get_close(g);
	done(user, &block, why);
}

static void fetch_leave(struct kvpeer_fetch *f)
{
	struct kvpeer_get *g = f->g;
	fetch_free(f);
	if (g != NULL && cgn_list_empty(&g->askers))
		kvpeer_get_close(g);
}

/* ---- public calls ---- */

static void fetch_on_deadline(struct cgn_timer *timer)
{
	struct kvpeer_fetch *f = CGN_CONTAINER(timer, struct kvpeer_fetch, timer);
	struct cgn_err err;
	CGN_LIVE(f, KVPEER_FETCH_TAG);
	(void)CGN_FAIL(&err, DEADLINE, "no peer sent it within %llu ms",
		(unsigned long long)((f->deadline - f->began) / CGN_MSEC));
	kvpeer_fetch_end(f, NULL, &err);
}

static struct kvpeer_fetch *fetch_new(struct kvpeer_get *g, const struct kvpeer_ask *ask,
	kvpeer_fetch_done done, void *user)
{
	struct kvpeer_fetch *f = CGN_NEW(struct kvpeer_fetch);
	cgn_nsec longest = ask->budget_ms > 0 && ask->budget_ms * CGN_MSEC < LONGEST
		? ask->budget_ms * CGN_MSEC
		: LONGEST;
	*f = (struct kvpeer_fetch){.tag = KVPEER_FETCH_TAG,
		.kp = g->kp,
		.g = g,
		.done = done,
		.user = user,
		.began = cgn_loop_now(g->kp->loop)};
	f->deadline = f->began + longest;
	cgn_timer_init(&f->timer, g->kp->loop, fetch_on_deadline);
	cgn_timer_set(&f->timer, longest);
	cgn_list_push(&g->askers, &f->link);
	g->n_asked++;
	g->kp->n_askers++;
	return f;
}

static CGN_RC fetch_check(const struct kvpeer *kp, const struct kvpeer_get *g, struct cgn_err *err)
{
	if (kp->draining)
		return CGN_FAIL(err, UNAVAILABLE, "the store is stopping");
	if (kp->n_askers >= KVPEER_MAX_ASKERS || (g == NULL && kp->n_gets >= KVPEER_MAX_FETCHES))
		return CGN_FAIL(err, OVERLOADED, "%zu blocks are being fetched for %zu callers", kp->n_gets,
			kp->n_askers);
	return CGN_OK;
}

CGN_RC kvpeer_fetch(struct kvpeer *kp, const struct block_key *k, const struct kvpeer_ask *ask,
	kvpeer_fetch_done done, void *user, struct kvpeer_fetch **out, struct cgn_err *err)
{
	CGN_LIVE(kp, KVPEER_TAG);
	struct kvpeer_get *g = kvpeer_get_find(kp, k);
	bool fresh = g == NULL;
	CGN_TRY(fetch_check(kp, g, err));
	if (fresh)
		g = kvpeer_get_new(kp, k, ask);
	else
		g->sites |= ask->sites;
	struct kvpeer_fetch *f = fetch_new(g, ask, done, user);
	if (fresh && !kvpeer_attempt_next(g)) {
		struct cgn_err why = g->why;
		metric_observe(METRIC_OF(kp->telemetry, KV_PEER_FETCH, fetch_outcome(why.code)), 0);
		fetch_leave(f);
		return CGN_FAIL_AS(err, why.code, "%s", why.msg);
	}
	*out = f;
	return CGN_OK;
}

void kvpeer_fetch_cancel(struct kvpeer_fetch **take)
{
	struct kvpeer_fetch *f = CGN_TAKE_LIVE(take, KVPEER_FETCH_TAG);
	if (f == NULL)
		return;
	metric_observe(METRIC_OF(f->kp->telemetry, KV_PEER_FETCH, fetch_outcome(CGN_CANCELLED)),
		cgn_since(cgn_clock_now(), f->began));
	fetch_leave(f);
}

void kvpeer_gets_end(struct kvpeer *kp)
{
	struct cgn_err err;
	(void)CGN_FAIL(&err, CANCELLED, "the store is stopping");
	for (size_t b = 0; b < KVPEER_FETCH_BUCKETS; b++)
		while (!cgn_list_empty(&kp->gets[b]))
			kvpeer_get_finish(CGN_CONTAINER(cgn_list_first(&kp->gets[b]), struct kvpeer_get,
						  link),
				NULL, &err);
}
