/* SPDX-License-Identifier: Apache-2.0 */
/* A segment: buckets of four slots, each block in one of its two buckets, the first if there is room. When both are full, entries that could
 * also lie elsewhere are moved on (the shortest chain of moves, found breadth first), which fills the table to nine tenths. Then it is rebuilt
 * 1.2 times as large: it is a thousandth of the index, so nothing ever stops for long. Readers: see struct segment, and match.c. */
#include <string.h>

#include "policy/kvindex/kvindex_priv.h"

#define PATHS 170 /* buckets looked at for a hole: 2 + 8 + 32 + 128 */

/* ---- tables ---- */

static uint64_t load(_Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static struct table *table_new(struct kvindex *ix, uint32_t n_buckets)
{
	size_t bytes = sizeof(struct table) + n_buckets * (sizeof(struct bucket) + WAYS);
	struct table *t = (void *)scrap_new(ix, SCRAP_TABLE, (bytes + 63) & ~(size_t)63);
	if (t != NULL)
		t->n_buckets = n_buckets;
	return t;
}

static size_t age_at(const struct table *t, const struct slot *slot)
{
	return (size_t)(slot - t->buckets[0].slots);
}

static void put(struct table *t, struct slot *slot, uint64_t digest, uint64_t who, uint8_t age)
{
	atomic_store_explicit(&slot->key, digest, memory_order_release);
	atomic_store_explicit(&ages_of(t, t->n_buckets)[age_at(t, slot)], age, memory_order_relaxed);
	atomic_store_explicit(&slot->who, who, memory_order_release);
}

static struct slot *hole_in(struct bucket *b)
{
	for (unsigned w = 0; w < WAYS; w++)
		if (load(&b->slots[w].who) == 0)
			return &b->slots[w];
	return NULL;
}

static uint32_t other_bucket(const struct kvindex *ix, const struct table *t, uint64_t digest, uint32_t bucket)
{
	uint64_t x = spread(ix->seed, digest);
	uint32_t first = first_bucket(x, t->n_buckets);
	return bucket != first ? first : second_bucket(x, t->n_buckets);
}

/* ---- a hole for a block ---- */

struct path {
	uint32_t bucket;
	int16_t from; /* the path that led here, by moving the entry at |way| of its bucket; -1: a bucket of the new block */
	uint8_t way;
};

static bool visited(const struct path *paths, int i, uint32_t bucket)
{
	for (; i >= 0; i = paths[i].from)
		if (paths[i].bucket == bucket)
			return true;
	return false;
}

static void move(struct table *t, struct segment *s, struct slot *from, struct slot *to)
{
	uint8_t age = atomic_load_explicit(&ages_of(t, t->n_buckets)[age_at(t, from)], memory_order_relaxed);
	put(t, to, load(&from->key), load(&from->who), age);
	if (s != NULL)
		segment_bump(s);
	atomic_store_explicit(&from->who, 0, memory_order_release);
}

static struct slot *follow(struct table *t, struct segment *s, const struct path *paths, int i, struct slot *hole)
{
	for (; paths[i].from >= 0; i = paths[i].from) {
		struct slot *from = &t->buckets[paths[paths[i].from].bucket].slots[paths[i].way];
		move(t, s, from, hole);
		hole = from;
	}
	return hole;
}

/* A hole in a bucket of |digest|; NULL when no short chain of moves makes one. |s| NULL: no reader sees |t| yet. */
static struct slot *find_hole(const struct kvindex *ix, struct table *t, struct segment *s, uint64_t digest)
{
	uint64_t x = spread(ix->seed, digest);
	struct path paths[PATHS];
	struct slot *hole = hole_in(&t->buckets[first_bucket(x, t->n_buckets)]);
	int n = 2;
	if (hole != NULL)
		return hole;
	paths[0] = (struct path){.bucket = first_bucket(x, t->n_buckets), .from = -1};
	paths[1] = (struct path){.bucket = second_bucket(x, t->n_buckets), .from = -1};
	for (int i = 1; i < n; i++) {
		hole = hole_in(&t->buckets[paths[i].bucket]);
		if (hole != NULL)
			return follow(t, s, paths, i, hole);
		for (int k = i == 1 ? 0 : i; k <= i; k++) /* the first is known to be full */
			for (uint8_t w = 0; w < WAYS && n < PATHS; w++) {
				uint32_t next = other_bucket(ix, t, load(&t->buckets[paths[k].bucket].slots[w].key), paths[k].bucket);
				if (!visited(paths, k, next))
					paths[n++] = (struct path){.bucket = next, .from = (int16_t)k, .way = w};
			}
	}
	return NULL;
}

/* ---- sizes ---- */

static void publish(struct segment *s, struct table *t)
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
		if (load(&slot->who) == 0)
			continue;
		hole = find_hole(ix, to, NULL, load(&slot->key));
		if (hole == NULL)
			return false;
		put(to, hole, load(&slot->key), load(&slot->who), atomic_load_explicit(&ages_of(from, from->n_buckets)[i], memory_order_relaxed));
	}
	return true;
}

static bool rebuild(struct kvindex *ix, struct segment *s, uint32_t n_buckets)
{
	struct table *old = segment_table(s), *t = NULL;
	for (unsigned tries = 0; tries < 4; tries++, n_buckets += n_buckets / 16 + 1) {
		t = table_new(ix, n_buckets);
		if (t == NULL)
			return false;
		if (old == NULL || copy_into(ix, t, old))
			break;
		scrap_free(ix, &t->scrap);
		t = NULL;
	}
	if (t == NULL)
		return false;
	publish(s, t);
	if (old != NULL)
		scrap_retire(ix, &old->scrap);
	return true;
}

static bool grow(struct kvindex *ix, struct segment *s)
{
	struct table *t = segment_table(s);
	uint32_t n = t != NULL ? t->n_buckets : 0;
	return rebuild(ix, s, n + n / 5 + 1);
}

void segment_fit(struct kvindex *ix, struct segment *s)
{
	struct table *t = segment_table(s);
	if (t != NULL && t->n_buckets > 4 && s->used * 5 < t->n_buckets * WAYS * 3)
		(void)rebuild(ix, s, s->used * 5 / (WAYS * 4) + 1); /* to four fifths; without memory for it the large one will do */
}

/* ---- the clock of ages ---- */

static uint8_t now_of(struct kvindex *ix)
{
	return atomic_load_explicit(&ix->clock, memory_order_relaxed);
}

/* The clock turns once in 256 steps of a sixty-fourth of the blocks: ages are kept from looking young again. */
static void hold_ages(struct kvindex *ix, struct segment *s)
{
	struct table *t = segment_table(s);
	uint8_t now = now_of(ix), oldest = (uint8_t)(now - 180);
	for (uint32_t i = 0; t != NULL && i < t->n_buckets * WAYS; i++) {
		_Atomic uint8_t *age = &ages_of(t, t->n_buckets)[i];
		if ((uint8_t)(now - atomic_load_explicit(age, memory_order_relaxed)) > 180)
			atomic_store_explicit(age, oldest, memory_order_relaxed);
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
	atomic_store_explicit(&s->gen, atomic_load_explicit(&s->gen, memory_order_relaxed) + 1, memory_order_release);
}

void segment_remove_next(struct kvindex *ix, struct segment *s, struct slot *slot)
{
	atomic_store_explicit(&slot->who, 0, memory_order_release);
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
		if (load(&b->slots[w].key) == digest && load(&b->slots[w].who) != 0)
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
		atomic_store_explicit(&ages_of(t, n)[age_at(t, slot)], now_of(ix), memory_order_relaxed);
	return slot;
}

/* ---- shedding ---- */

static void drop(struct kvindex *ix, struct segment *s, struct slot *slot)
{
	uint64_t digest = load(&slot->key), who = load(&slot->who);
	unsigned n = holders_list(who, ix->listed);
	for (unsigned i = 0; i < n; i++) {
		unsigned lane = ix->listed[i] >> 4;
		if (ix->states[lane] != LANE_LIVE)
			continue;
		lane_account(ix, lane, digest, ix->listed[i] & KV_TIER_MASK, 0);
		lane_mark_shed(ix, lane, digest);
	}
	segment_remove_next(ix, s, slot);
	if (who_is_set(who))
		scrap_retire(ix, who_set(who));
	ix->shed_blocks++;
}

/* Exact to a step of the clock; what readers touch meanwhile may be spared. */
static void drop_oldest(struct kvindex *ix, struct segment *s, struct table *t, uint32_t want)
{
	uint32_t by_age[256] = {0}, older = 0;
	uint8_t now = now_of(ix);
	unsigned cut = 255;
	_Atomic uint8_t *ages = ages_of(t, t->n_buckets);
	for (uint32_t i = 0; i < t->n_buckets * WAYS; i++)
		if (load(&t->buckets[i / WAYS].slots[i % WAYS].who) != 0)
			by_age[(uint8_t)(now - atomic_load_explicit(&ages[i], memory_order_relaxed))]++;
	while (older + by_age[cut] < want)
		older += by_age[cut--];
	segment_bump(s);
	for (uint32_t i = 0, of_cut = want - older; i < t->n_buckets * WAYS && want > 0; i++) {
		struct slot *slot = &t->buckets[i / WAYS].slots[i % WAYS];
		unsigned age = (uint8_t)(now - atomic_load_explicit(&ages[i], memory_order_relaxed));
		if (load(&slot->who) == 0 || age < cut || (age == cut && of_cut == 0))
			continue;
		of_cut -= age == cut;
		want--;
		drop(ix, s, slot);
	}
}

bool segment_shed(struct kvindex *ix, struct segment *s)
{
	struct table *t = segment_table(s);
	if (t == NULL || s->used == 0)
		return false;
	drop_oldest(ix, s, t, s->used / 16 + 1);
	return true;
}

/* Both buckets of |digest| are full though the table is not: chance does not do that, somebody chose the digests. Their own neighbours go. */
static void drop_neighbour(struct kvindex *ix, struct segment *s, struct table *t, uint64_t digest)
{
	struct bucket *b = &t->buckets[first_bucket(spread(ix->seed, digest), t->n_buckets)];
	struct slot *oldest = &b->slots[0];
	uint8_t now = now_of(ix), age = 0;
	for (unsigned w = 0; w < WAYS; w++) {
		uint8_t a = (uint8_t)(now - atomic_load_explicit(&ages_of(t, t->n_buckets)[age_at(t, &b->slots[w])], memory_order_relaxed));
		if (a > age) {
			age = a;
			oldest = &b->slots[w];
		}
	}
	segment_bump(s);
	drop(ix, s, oldest);
}

bool segment_insert(struct kvindex *ix, uint64_t digest, uint64_t who)
{
	struct segment *s = segment_of(ix, digest);
	note_birth(ix);
	for (unsigned tries = 0; tries < 4; tries++) {
		struct table *t = segment_table(s);
		bool full = t == NULL || (s->used + 1) * 10 > t->n_buckets * WAYS * 9;
		struct slot *hole = full ? NULL : find_hole(ix, t, s, digest);
		if (hole != NULL) {
			put(t, hole, digest, who, now_of(ix));
			s->used++;
			ix->blocks++;
			return true;
		}
		if (t != NULL && t->n_buckets > 16 && s->used < t->n_buckets * WAYS / 2)
			drop_neighbour(ix, s, t, digest);
		else if (!grow(ix, s) && !segment_shed(ix, s))
			return false;
	}
	return false;
}
