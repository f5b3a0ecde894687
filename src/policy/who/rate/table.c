/* SPDX-License-Identifier: Apache-2.0 */
/* table: buckets by key. The key of a place changes rarely, by one thread at a time in its set (the latch).
 * Its time changes all the time, by compare-and-swap. A thread that changes a key first takes the time away
 * (TABLE_MOVING), so that no charge made meanwhile is lost. A thread that charged a bucket reads the key
 * again, so that no charge stays with another key. */
#include <stdatomic.h>
#include <stdlib.h>

#include "policy/who/rate/rate.h"

#define TABLE_TAG    0x11a17ab1U
#define TABLE_MOVING UINT64_MAX /* A time that no bucket has. */
#define MAX_BUCKET   ((size_t)1 << 28)

struct place {
	_Atomic uint64_t key; /* 0: free. */
	_Atomic uint64_t full_at;
};
struct place_set {
	struct place places[RATE_WAYS];
};
struct rate_table {
	uint32_t tag;
	uint64_t mask; /* Number of sets, less one. */
	struct place_set *sets;
	_Atomic bool *latches; /* A latch for each set. */
	_Atomic uint64_t forgotten;
};

struct rate_table *rate_table_new(size_t n_buckets)
{
	size_t n_sets = 1;
	while (n_sets * RATE_WAYS < n_buckets && n_sets * RATE_WAYS < MAX_BUCKET)
		n_sets *= 2;
	struct rate_table *t = CGN_NEW(struct rate_table);
	t->tag = TABLE_TAG;
	t->mask = n_sets - 1;
	t->sets = CGN_NEW_ARRAY(struct place_set, n_sets);
	t->latches = CGN_NEW_ARRAY(_Atomic bool, n_sets);
	return t;
}

void rate_table_free(struct rate_table **take)
{
	struct rate_table *t = CGN_TAKE_LIVE(take, TABLE_TAG);
	if (t == NULL)
		return;
	t->tag = 0;
	free(t->latches);
	free(t->sets);
	free(t);
}

static struct place *place_find(struct place_set *s, uint64_t key)
{
	for (size_t i = 0; i < RATE_WAYS; i++)
		if (atomic_load_explicit(&s->places[i].key, memory_order_acquire) == key)
			return &s->places[i];
	return NULL;
}

/* Return a free place, or the one that is full first. */
static struct place *place_victim(struct place_set *s, uint64_t *full_at)
{
	struct place *best = NULL;
	*full_at = TABLE_MOVING;
	for (size_t i = 0; i < RATE_WAYS; i++) {
		struct place *p = &s->places[i];
		bool empty = atomic_load_explicit(&p->key, memory_order_relaxed) == 0;
		uint64_t at = empty ? 0 : atomic_load_explicit(&p->full_at, memory_order_relaxed);
		if (best == NULL || at < *full_at) {
			best = p;
			*full_at = at;
		}
	}
	return best;
}

/* Return the place of |key|, made if there is none. The latch is held for some loads and three stores, and
 * only where a bucket is new. */
static struct place *place_claim(struct rate_table *t, struct place_set *s, uint64_t key, cgn_nsec now)
{
	_Atomic bool *latch = &t->latches[s - t->sets];
	uint64_t full_at;
	while (atomic_exchange_explicit(latch, true, memory_order_acquire))
		; /* Another thread makes a bucket in this set. */
	struct place *p = place_find(s, key);
	while (p == NULL) {
		p = place_victim(s, &full_at);
		if (!atomic_compare_exchange_strong(&p->full_at, &full_at, TABLE_MOVING)) {
			p = NULL; /* The owner of the place was quicker. */
			continue;
		}
		if (full_at > now)
			atomic_fetch_add_explicit(&t->forgotten, 1, memory_order_relaxed);
		atomic_store(&p->key, key);
		atomic_store(&p->full_at, 0);
	}
	atomic_store_explicit(latch, false, memory_order_release);
	return p;
}

static struct place_set *key_set(struct rate_table *t, uint64_t key)
{
	CGN_LIVE(t, TABLE_TAG);
	CGN_MUST(key != 0);
	return &t->sets[key & t->mask];
}

/* Settle the place that was charged. Once another key has it, there is nothing to refund. */
static void place_settle(struct place *p, const struct rate *r, cgn_nsec now, uint64_t reserved,
	uint64_t used)
{
	uint64_t old = atomic_load(&p->full_at), new;
	do {
		if (old == TABLE_MOVING)
			return;
		new = old;
		rate_settle(r, &new, now, reserved, used);
	} while (!atomic_compare_exchange_weak(&p->full_at, &old, new));
}

/* Take |n| from |p|. False: the place belongs to another key, and nothing was taken. */
static bool place_take(struct place *p, uint64_t key, const struct rate *r, cgn_nsec now, uint64_t n,
	struct rate_answer *out)
{
	uint64_t old = atomic_load(&p->full_at), new;
	do {
		if (old == TABLE_MOVING)
			return false;
		new = old;
		*out = rate_take(r, &new, now, n);
	} while (out->granted && !atomic_compare_exchange_weak(&p->full_at, &old, new));
	bool ours = atomic_load(&p->key) == key;
	if (out->granted && !ours)
		place_settle(p, r, now, n, 0);
	return ours;
}

struct rate_answer rate_table_take(struct rate_table *t, uint64_t key, const struct rate *r, cgn_nsec now,
	uint64_t n)
{
	struct place_set *s = key_set(t, key);
	struct rate_answer a;
	for (;;) {
		struct place *p = place_find(s, key);
		if (p == NULL)
			p = place_claim(t, s, key, now);
		if (place_take(p, key, r, now, n, &a))
			return a;
	}
}

void rate_table_settle(struct rate_table *t, uint64_t key, const struct rate *r, cgn_nsec now,
	uint64_t reserved, uint64_t used)
{
	struct place_set *s = key_set(t, key);
	struct place *p = place_find(s, key);
	if (reserved == used)
		return;
	if (p == NULL && used > reserved)
		p = place_claim(t, s, key, now); /* The bucket was forgotten because it was full. */
	if (p != NULL)
		place_settle(p, r, now, reserved, used);
}

uint64_t rate_table_forgotten(const struct rate_table *t)
{
	CGN_LIVE(t, TABLE_TAG);
	return atomic_load_explicit(&t->forgotten, memory_order_relaxed);
}
