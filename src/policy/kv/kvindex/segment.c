/* SPDX-License-Identifier: Apache-2.0 */
/* A segment is a cuckoo hash table: buckets of four slots, each block in one of its two buckets, the first if
 * it has room. When both are full, entries move to their other bucket along the shortest chain, found breadth
 * first, which fills the table to nine tenths. Then the table is rebuilt 1.25 times as large. It is a
 * thousandth of the index, so no rebuild takes long. Readers: see struct segment and match.c. */
#include <string.h>

#include "policy/kv/kvindex/segment_priv.h"

#define PATHS 170 /* Buckets examined for a hole: 2 + 8 + 32 + 128. */

/* ---- tables ---- */

static uint64_t load_relaxed(_Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static struct table *table_new(struct kvindex *ix, uint32_t n_buckets)
{
	struct table *t =
		(void *)epoch_new(ix, EPOCH_TABLE, sizeof(struct table) + n_buckets * sizeof(struct bucket));
	if (t != NULL)
		t->n_buckets = n_buckets;
	return t;
}

static void slot_fill(struct slot *slot, uint64_t key, uint64_t holders)
{
	atomic_store_explicit(&slot->key, key, memory_order_release);
	atomic_store_explicit(&slot->holders, holders, memory_order_release);
}

static struct slot *hole_in(struct bucket *b)
{
	for (unsigned w = 0; w < WAYS; w++)
		if (load_relaxed(&b->slots[w].holders) == 0)
			return &b->slots[w];
	return NULL;
}

static uint32_t other_bucket(const struct kvindex *ix, uint32_t n_buckets, uint64_t key, uint32_t bucket)
{
	uint64_t x = spread(ix->seed, key);
	uint32_t first = first_bucket(x, n_buckets);
	return bucket != first ? first : second_bucket(x, n_buckets);
}

/* ---- finding a hole ---- */

struct path {
	uint32_t bucket;
	/* Index of the path whose bucket's entry at |way| moves here; -1: a bucket of the new block. */
	int16_t from;
	uint8_t way;
};

static bool path_visits(const struct path *paths, int i, uint32_t bucket)
{
	for (; i >= 0; i = paths[i].from)
		if (paths[i].bucket == bucket)
			return true;
	return false;
}

static void slot_move(struct segment *s, struct slot *from, struct slot *to)
{
	slot_fill(to, load_relaxed(&from->key), load_relaxed(&from->holders));
	if (s != NULL)
		segment_bump(s);
	atomic_store_explicit(&from->holders, 0, memory_order_release);
}

static struct slot *path_follow(struct table *t, struct segment *s, const struct path *paths, int i,
	struct slot *hole)
{
	for (; paths[i].from >= 0; i = paths[i].from) {
		struct slot *from = &t->buckets[paths[paths[i].from].bucket].slots[paths[i].way];
		slot_move(s, from, hole);
		hole = from;
	}
	return hole;
}

/* Return a hole in a bucket of |key|, or NULL when no short chain of moves makes one. |s| NULL: no reader
 * sees |t| yet. The size is an argument because reading it from the table's head would cost a cache line. */
static struct slot *find_hole(const struct kvindex *ix, struct table *t, uint32_t n_buckets,
	struct segment *s, uint64_t key)
{
	uint64_t x = spread(ix->seed, key);
	struct path paths[PATHS];
	struct slot *hole = hole_in(&t->buckets[first_bucket(x, n_buckets)]);
	int n = 2;
	if (hole != NULL)
		return hole;
	paths[0] = (struct path){.bucket = first_bucket(x, n_buckets), .from = -1};
	paths[1] = (struct path){.bucket = second_bucket(x, n_buckets), .from = -1};
	for (int i = 1; i < n; i++) {
		hole = hole_in(&t->buckets[paths[i].bucket]);
		if (hole != NULL)
			return path_follow(t, s, paths, i, hole);
		for (int k = i == 1 ? 0 : i; k <= i; k++) /* The first bucket is known to be full. */
			for (uint8_t w = 0; w < WAYS && n < PATHS; w++) {
				uint32_t next = other_bucket(ix, n_buckets,
					load_relaxed(&t->buckets[paths[k].bucket].slots[w].key),
					paths[k].bucket);
				if (path_visits(paths, k, next))
					continue;
				paths[n++] = (struct path){.bucket = next, .from = (int16_t)k, .way = w};
				/* Fetch all buckets at once instead of one miss after the other. */
				__builtin_prefetch(&t->buckets[next]);
			}
	}
	return NULL;
}

/* ---- sizes ---- */

static void table_publish(struct segment *s, struct table *t)
{
	uint32_t other = 1 - atomic_load_explicit(&s->cur, memory_order_relaxed);
	segment_bump(s);
	atomic_store_explicit(&s->at[other].table, t, memory_order_release);
	atomic_store_explicit(&s->at[other].n_buckets, t->n_buckets, memory_order_release);
	atomic_store_explicit(&s->cur, other, memory_order_release);
}

static bool copy_into(const struct kvindex *ix, struct table *to, struct table *from)
{
	for (uint32_t i = 0; i < from->n_buckets * WAYS; i++) {
		struct slot *slot = &from->buckets[i / WAYS].slots[i % WAYS], *hole;
		if (load_relaxed(&slot->holders) == 0)
			continue;
		hole = find_hole(ix, to, to->n_buckets, NULL, load_relaxed(&slot->key));
		if (hole == NULL)
			return false;
		slot_fill(hole, load_relaxed(&slot->key), load_relaxed(&slot->holders));
	}
	return true;
}

static bool table_rebuild(struct kvindex *ix, struct segment *s, uint32_t n_buckets)
{
	struct table *old = segment_table(s), *t = NULL;
	for (unsigned tries = 0; tries < 4; tries++, n_buckets += n_buckets / 16 + 1) {
		t = table_new(ix, n_buckets);
		if (t == NULL)
			return false;
		if (old == NULL || copy_into(ix, t, old))
			break;
		epoch_free(ix, &t->head);
		t = NULL;
	}
	if (t == NULL)
		return false;
	table_publish(s, t);
	if (old != NULL)
		epoch_retire(ix, &old->head);
	return true;
}

static bool table_grow(struct kvindex *ix, struct segment *s)
{
	struct table *t = segment_table(s);
	uint32_t n = t != NULL ? t->n_buckets : 0;
	return table_rebuild(ix, s, n + n / 4 + 1);
}

void segment_fit(struct kvindex *ix, struct segment *s)
{
	uint32_t n = segment_buckets(s);
	/* Shrink to four fifths full. If there is no memory for the smaller table, the larger one stays. */
	if (n > 4 && s->used * 5 < n * WAYS * 3)
		(void)table_rebuild(ix, s, s->used * 5 / (WAYS * 4) + 1);
}

/* ---- the clock of ages ---- */

static uint8_t now_of(struct kvindex *ix)
{
	return atomic_load_explicit(&ix->clock, memory_order_relaxed);
}

/* The clock wraps after 256 steps, each a sixty-fourth of the blocks. Cap the ages so that old entries do not
 * look young again. */
static void hold_ages(struct kvindex *ix, struct segment *s)
{
	struct table *t = segment_table(s);
	uint8_t now = now_of(ix);
	for (uint32_t i = 0; t != NULL && i < t->n_buckets * WAYS; i++) {
		struct slot *slot = &t->buckets[i / WAYS].slots[i % WAYS];
		uint64_t key = load_relaxed(&slot->key);
		if ((uint8_t)(now - key_age(key)) > 180)
			slot_touch(slot, key, (uint8_t)(now - 180));
	}
}

static void note_birth(struct kvindex *ix)
{
	if (++ix->births < 4 || ix->births < ix->blocks / SEGMENTS)
		return;
	ix->births = 0;
	hold_ages(ix, &ix->segments[ix->steps % SEGMENTS]);
	if (++ix->steps % (SEGMENTS / 64) == 0)
		atomic_store_explicit(&ix->clock, (uint8_t)(now_of(ix) + 1), memory_order_relaxed);
}

/* ---- slots ---- */

void segment_bump(struct segment *s)
{
	atomic_store_explicit(&s->gen, atomic_load_explicit(&s->gen, memory_order_relaxed) + 1,
		memory_order_release);
}

void segment_remove_next(struct kvindex *ix, struct segment *s, struct slot *slot)
{
	atomic_store_explicit(&slot->holders, 0, memory_order_release);
	s->used--;
	ix->blocks--;
}

void segment_remove(struct kvindex *ix, struct segment *s, struct slot *slot)
{
	segment_bump(s);
	segment_remove_next(ix, s, slot);
}

static struct slot *in_bucket(struct bucket *b, uint64_t digest)
{
	for (unsigned w = 0; w < WAYS; w++)
		if (key_is(load_relaxed(&b->slots[w].key), digest) && load_relaxed(&b->slots[w].holders) != 0)
			return &b->slots[w];
	return NULL;
}

struct slot *segment_find(struct kvindex *ix, uint64_t digest, bool touch)
{
	struct table *t = segment_table(segment_of(ix, digest));
	uint32_t n = segment_buckets(segment_of(ix, digest));
	uint64_t x = spread(ix->seed, digest);
	struct slot *slot = t != NULL ? in_bucket(&t->buckets[first_bucket(x, n)], digest) : NULL;
	if (slot == NULL && t != NULL)
		slot = in_bucket(&t->buckets[second_bucket(x, n)], digest);
	if (slot != NULL && touch)
		slot_touch(slot, load_relaxed(&slot->key), now_of(ix));
	return slot;
}

/* ---- shedding ---- */

static void slot_shed(struct kvindex *ix, struct segment *s, struct slot *slot)
{
	uint64_t digest = key_digest(ix, s, load_relaxed(&slot->key)), holders = load_relaxed(&slot->holders);
	unsigned n = holders_list(holders, ix->listed);
	for (unsigned i = 0; i < n; i++) {
		unsigned node = ix->listed[i] >> 4;
		if (ix->states[node] != NODE_LIVE)
			continue;
		node_account(ix, node, digest, ix->listed[i] & BLOCK_TIER_MASK, 0);
		node_mark_shed(ix, node, digest);
	}
	segment_remove_next(ix, s, slot);
	if (holders_is_set(holders))
		epoch_retire(ix, holders_set(holders));
	ix->shed_blocks++;
}

/* Exact to a step of the clock. Blocks that readers touch meanwhile may be spared. */
static void slots_shed_oldest(struct kvindex *ix, struct segment *s, struct table *t, uint32_t want)
{
	uint32_t by_age[256] = {0}, older = 0;
	uint8_t now = now_of(ix);
	unsigned cut = 255;
	for (uint32_t i = 0; i < t->n_buckets * WAYS; i++) {
		struct slot *slot = &t->buckets[i / WAYS].slots[i % WAYS];
		if (load_relaxed(&slot->holders) != 0)
			by_age[(uint8_t)(now - key_age(load_relaxed(&slot->key)))]++;
	}
	while (older + by_age[cut] < want)
		older += by_age[cut--];
	segment_bump(s);
	for (uint32_t i = 0, of_cut = want - older; i < t->n_buckets * WAYS && want > 0; i++) {
		struct slot *slot = &t->buckets[i / WAYS].slots[i % WAYS];
		unsigned age = (uint8_t)(now - key_age(load_relaxed(&slot->key)));
		if (load_relaxed(&slot->holders) == 0 || age < cut || (age == cut && of_cut == 0))
			continue;
		of_cut -= age == cut;
		want--;
		slot_shed(ix, s, slot);
	}
}

bool segment_shed(struct kvindex *ix, struct segment *s)
{
	struct table *t = segment_table(s);
	if (t == NULL || s->used == 0)
		return false;
	slots_shed_oldest(ix, s, t, s->used / 16 + 1);
	return true;
}

/* Both buckets of |digest| are full though the table is not, which does not happen by chance: a client chose
 * the digests. Shed a block of the digest's own bucket. */
static void neighbour_shed(struct kvindex *ix, struct segment *s, struct table *t, uint64_t digest)
{
	struct bucket *b = &t->buckets[first_bucket(spread(ix->seed, digest), t->n_buckets)];
	struct slot *oldest = &b->slots[0];
	uint8_t now = now_of(ix), age = 0;
	for (unsigned w = 0; w < WAYS; w++) {
		uint8_t a = (uint8_t)(now - key_age(load_relaxed(&b->slots[w].key)));
		if (a > age) {
			age = a;
			oldest = &b->slots[w];
		}
	}
	segment_bump(s);
	slot_shed(ix, s, oldest);
}

bool segment_insert(struct kvindex *ix, uint64_t digest, uint64_t holders)
{
	struct segment *s = segment_of(ix, digest);
	note_birth(ix);
	for (unsigned tries = 0; tries < 4; tries++) {
		struct table *t = segment_table(s);
		uint32_t n_buckets = segment_buckets(s);
		bool full = t == NULL || (s->used + 1) * 10 > n_buckets * WAYS * 9;
		struct slot *hole = full ? NULL : find_hole(ix, t, n_buckets, s, digest);
		if (hole != NULL) {
			slot_fill(hole, key_of(digest, now_of(ix)), holders);
			s->used++;
			ix->blocks++;
			return true;
		}
		if (t != NULL && n_buckets > 16 && s->used < n_buckets * WAYS / 2)
			neighbour_shed(ix, s, t, digest);
		else if (!table_grow(ix, s) && !segment_shed(ix, s))
			return false;
	}
	return false;
}
