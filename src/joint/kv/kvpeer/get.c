/* SPDX-License-Identifier: Apache-2.0 */
/* get: one block that is being fetched, from its first attempt to its commit into the store. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/kv/kvpeer/get_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define ON_THE_POOL ((uint64_t)1 << 20) /* larger values are committed, and so summed, on the pool */

static void get_move(struct kvpeer_get *g, enum get_state to)
{
	static const unsigned exits[] = {
#define TO(state)           1U << GET_##state
#define GET(id, exits, why) [GET_##id] = (exits),
#include "joint/kv/kvpeer/states.def"
#undef TO
	};
	CGN_MUST((exits[g->state] & 1U << to) != 0);
	g->state = to;
}

static struct cgn_link *get_bucket(struct kvpeer *kp, const struct block_key *k)
{
	return &kp->gets[kvframe_short(k) % KVPEER_FETCH_BUCKETS];
}

struct kvpeer_get *kvpeer_get_find(struct kvpeer *kp, const struct block_key *k)
{
	struct cgn_link *b = get_bucket(kp, k);
	cgn_list_each (it, b) {
		struct kvpeer_get *g = CGN_CONTAINER(it, struct kvpeer_get, link);
		if (block_key_eq(&g->key, k))
			return g;
	}
	return NULL;
}

struct kvpeer_get *kvpeer_get_new(struct kvpeer *kp, const struct block_key *k, const struct kvpeer_ask *ask)
{
	struct kvpeer_get *g = CGN_NEW(struct kvpeer_get);
	*g = (struct kvpeer_get){.tag = KVPEER_GET_TAG,
		.kp = kp,
		.key = *k,
		.sites = ask->sites,
		.priority = ask->priority < QUIC_PRIORITIES ? ask->priority : 7};
	g->cost = (struct kvfetch_ask){.tokens = ask->tokens,
		.ms_per_token = ask->ms_per_token,
		.budget_ms = ask->budget_ms};
	(void)CGN_FAIL(&g->why, NOT_FOUND, "no peer has it");
	cgn_list_init(&g->askers);
	cgn_timer_init(&g->timer, kp->loop, kvpeer_attempt_on_patience);
	cgn_list_push(get_bucket(kp, k), &g->link);
	kp->n_gets++;
	return g;
}

static void get_free(struct kvpeer_get *g)
{
	cgn_timer_cancel(&g->timer);
	if (g->read != NULL)
		kvstore_read_cancel(&g->read);
	if (g->writer != NULL)
		kvstore_writer_abort(&g->writer);
	g->tag = 0;
	free(g);
}

/* A get whose job is on the pool is freed when the job is done. */
void kvpeer_get_close(struct kvpeer_get *g)
{
	cgn_list_drop(&g->link);
	if (g->state != GET_DONE) {
		g->kp->n_gets--;
		get_move(g, GET_DONE);
	}
	kvpeer_attempts_end(g);
	cgn_timer_cancel(&g->timer);
	if (!g->on_pool)
		get_free(g);
}

/* Each asker gets a reference of its own to |block|. */
void kvpeer_get_finish(struct kvpeer_get *g, struct kvstore_block *block, const struct cgn_err *why)
{
	struct cgn_link askers, *l;
	struct cgn_err said = *why;
	cgn_list_init(&askers);
	while ((l = cgn_list_first(&g->askers)) != NULL) {
		cgn_list_drop(l);
		cgn_list_push(&askers, l);
		CGN_CONTAINER(l, struct kvpeer_fetch, link)->g = NULL;
	}
	kvpeer_get_close(g);
	while ((l = cgn_list_first(&askers)) != NULL)
		kvpeer_fetch_end(CGN_CONTAINER(l, struct kvpeer_fetch, link), block, &said);
	kvstore_block_unref(&block);
}

static unsigned get_ghost(struct kvpeer_get *g, uint32_t *mark)
{
	uint64_t h = kvframe_short(&g->key);
	*mark = (uint32_t)(h >> 32) | 1U;
	return (unsigned)(h % KVPEER_GHOSTS);
}

/* Return how many callers want the block, the last remembered fetch included. */
static unsigned get_demand(struct kvpeer_get *g)
{
	uint32_t mark;
	unsigned at = get_ghost(g, &mark), before = g->kp->ghosts[at] == mark ? 1 : 0;
	g->kp->ghosts[at] = mark;
	return g->n_asked + before;
}

static void get_on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct kvpeer_get *g = user;
	struct kvstore_block *block = CGN_TAKE(take);
	CGN_LIVE(g, KVPEER_GET_TAG);
	g->read = NULL;
	kvpeer_get_finish(g, block, why);
}

/* Another writer put the block meanwhile, so the value of the store counts. */
static void get_read_back(struct kvpeer_get *g)
{
	get_move(g, GET_READING);
	g->read = kvstore_get(g->kp->store, g->kp->loop, &g->key, get_on_read, g);
}

static void get_committed(struct kvpeer_get *g, const struct cgn_err *why)
{
	struct kvpeer *kp = g->kp;
	if (why->code == CGN_CONFLICT) {
		get_read_back(g);
		return;
	}
	struct kvstore_block *block =
		why->code == CGN_FINE ? kvstore_get_ram(kp->store, &g->key, false) : NULL;
	struct cgn_err err = *why;
	if (block == NULL && why->code == CGN_FINE)
		(void)CGN_FAIL(&err, OVERLOADED, "no room: the block was evicted from the RAM tier at once");
	if (block != NULL && !g->keep)
		(void)kvstore_remove(kp->store, &g->key); /* holders read it to the end */
	kvpeer_get_finish(g, block, &err);
}

/* Penalize every peer whose bytes are in the value. */
static void get_blame_peers(struct kvpeer_get *g)
{
	cgn_list_each (it, &g->kp->peers) {
		struct kvpeer_peer *p = CGN_CONTAINER(it, struct kvpeer_peer, link);
		struct kvpeer_asked *a = kvpeer_get_asked(g, p->instance);
		if (a == NULL || !a->brought)
			continue;
		a->brought = false;
		p->corrupt++;
		p->failures++;
		p->busy_until = cgn_loop_now(g->kp->loop) + kvfetch_rest(0, p->failures);
		cgn_log_limited(ERROR, "kvpeer.corrupt", F_STR("peer", p->id), F_U64("bytes", g->size),
			F_STR("then", "it is dropped, and fetched from another"));
	}
}

/* The value does not match its checksum: fetch all of it again, from other peers. */
static void get_on_corrupt(struct kvpeer_get *g)
{
	metric_add(METRIC_ONE(g->kp->telemetry, KV_PEER_CORRUPT), 1);
	get_blame_peers(g);
	g->got = g->size = 0;
	get_move(g, GET_FETCHING);
	(void)CGN_FAIL(&g->why, STORAGE, "the value does not match its checksum");
	if (!kvpeer_attempt_next(g))
		kvpeer_get_finish(g, NULL, &g->why);
}

static void get_on_committed(struct kvpeer_get *g, const struct cgn_err *why)
{
	if (why->code == CGN_INVALID)
		get_on_corrupt(g);
	else
		get_committed(g, why);
}

static void commit_work(void *arg)
{
	struct kvpeer_get *g = arg;
	if (cgn_ok(kvstore_writer_commit(&g->writer, &g->checksum, KVSTORE_IF_ABSENT, &g->committed)))
		g->committed.code = CGN_FINE;
}

static void commit_done(void *arg)
{
	struct kvpeer_get *g = arg;
	CGN_LIVE(g, KVPEER_GET_TAG);
	g->on_pool = false;
	if (g->state == GET_DONE) {
		get_free(g);
		return;
	}
	get_on_committed(g, &g->committed);
}

void kvpeer_get_complete(struct kvpeer_get *g)
{
	struct kvpeer_attempt *t = g->active;
	if (t != NULL) {
		cgn_nsec spent = cgn_since(cgn_clock_now(), t->first_at);
		t->peer->fetched++;
		t->peer->failures = 0;
		kvfetch_path_rate(&t->peer->path, g->size - t->begun_at, (double)spent / (double)CGN_MSEC);
	}
	for (size_t i = 0; i < CGN_COUNT(g->attempts); i++)
		if (&g->attempts[i] != t)
			kvpeer_attempt_spare(&g->attempts[i]);
	kvpeer_attempts_end(g);
	cgn_timer_cancel(&g->timer);
	g->keep = kvfetch_keep(g->kp->ram_budget, g->used_before, g->size, get_demand(g));
	get_move(g, GET_COMMITTING);
	g->on_pool = g->size > ON_THE_POOL;
	if (g->on_pool) {
		cgn_loop_work(g->kp->loop, commit_work, commit_done, g);
	} else {
		commit_work(g);
		get_on_committed(g, &g->committed);
	}
}
