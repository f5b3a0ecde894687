/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/record.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/mix/mix.h"
#include "base/unlikely/unlikely.h"
#include "policy/route/routing/routing.h"

#define RECORD_TAG 0x5ec04d01U
#define MIN_BYTES  ((size_t)65536)
#define LINE       64
#define NO_LIMIT   UINT16_MAX
/* A node's capacity in units of age: the aim is 1/64 of the age's range, and the most 1/8, so that eviction comes long
 * before wrapping. */
#define UNITS_AIM      1024
#define UNITS_LEAST    64
#define UNITS_MOST     8192
#define TELL_AFTER     16
#define LEAP           8 /* Blocks. */
#define YOUNG          4 /* An entry is young for 1/YOUNG of its life. */
#define PREFETCH_AHEAD 24
/* Blocks of a group's walk prefetched during the previous walk, at least and at most. */
#define PREFETCH_FIRST 4
#define PREFETCH_MOST  64

/* An entry, from the top: fingerprint 28 · slot 12 · generation 8 · age 16. Generation 0 is an empty
 * entry. */
struct bucket {
	_Alignas(LINE) _Atomic uint64_t way[ROUTE_GROUP];
};

/* The state of a slot. Its age is the number of new blocks sent to it, in units of 2^shift. The difference to
 * an entry's age tells how much was stored since, by which an LRU cache evicts. */
struct slot_row {
	_Atomic uint64_t sent;
	_Atomic int64_t live;
	_Atomic uint32_t generation; /* 1..255. */
	_Atomic uint32_t ageing;     /* shift << 16 | limit in units. */
};

struct route_record {
	uint32_t tag;
	uint32_t default_ageing;
	uint64_t mask;
	struct bucket *buckets;
	struct slot_row slot[ROUTE_MAX_NODES];
};

static uint64_t load_entry(const _Atomic uint64_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

static uint32_t load_u32(const _Atomic uint32_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

static uint64_t key_of(uint64_t digest, unsigned group)
{
	return mix_stafford(digest ^ group * MIX_GOLDEN);
}

static uint64_t print_of(uint64_t key)
{
	return key >> 36;
}

static uint16_t entry_slot(uint64_t e)
{
	return (uint16_t)(e >> 24 & 0xfff);
}

static uint32_t entry_generation(uint64_t e)
{
	return (uint32_t)(e >> 16 & 0xff);
}

static uint64_t entry_of(uint64_t key, uint16_t slot, uint32_t generation, uint16_t age)
{
	return print_of(key) << 36 | (uint64_t)slot << 24 | (uint64_t)generation << 16 | age;
}

static uint16_t age_now(const struct slot_row *s)
{
	return (uint16_t)(load_entry(&s->sent) >> (load_u32(&s->ageing) >> 16));
}

static uint16_t units_since(const struct route_record *r, uint64_t e)
{
	return (uint16_t)(age_now(&r->slot[entry_slot(e)]) - (uint16_t)e);
}

/* Return true when |e| still counts: the node's generation is unchanged and its cache was not filled
 * since. */
static bool entry_is_fresh(const struct route_record *r, uint64_t e)
{
	const struct slot_row *s = &r->slot[entry_slot(e)];
	return entry_generation(e) == load_u32(&s->generation) &&
		units_since(r, e) <= (load_u32(&s->ageing) & 0xffff);
}

static bool entry_is_for(uint64_t e, uint64_t key, uint16_t slot)
{
	return e >> 36 == print_of(key) && entry_slot(e) == slot && entry_generation(e) != 0;
}

CGN_RC route_record_new(size_t bytes, struct route_record **out, struct cgn_err *err)
{
	size_t want = MIN_BYTES;
	while (want <= bytes / 2)
		want *= 2;
	struct route_record *r = CGN_NEW(struct route_record);
	/* A calloc of megabytes gives fresh zero pages, which cost nothing until written. One extra line for
	 * alignment. */
	char *raw = calloc(1, want + LINE);
	if (raw == NULL) {
		free(r);
		return CGN_FAIL(err, NO_MEMORY, "prefix record: no %zu bytes (router.record_size)", want);
	}
	size_t pad = LINE - (uintptr_t)raw % LINE;
	raw[pad - 1] = (char)pad;
	r->buckets = (struct bucket *)(void *)(raw + pad);
	r->mask = want / LINE - 1;
	unsigned shift = 0;
	while ((want / sizeof(uint64_t)) >> shift > 16384)
		shift++;
	r->default_ageing = shift << 16 | NO_LIMIT;
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		atomic_init(&r->slot[i].generation, 1);
		atomic_init(&r->slot[i].ageing, r->default_ageing);
	}
	r->tag = RECORD_TAG;
	*out = r;
	return CGN_OK;
}

void route_record_free(struct route_record **take)
{
	struct route_record *r = CGN_TAKE_LIVE(take, RECORD_TAG);
	if (r == NULL)
		return;
	r->tag = 0;
	char *base = (char *)r->buckets;
	free(base - base[-1]);
	free(r);
}

static struct bucket *bucket_of(const struct route_record *r, uint64_t key)
{
	return &r->buckets[key & r->mask];
}

/* Return the way to overwrite: an empty or dead one, else the one whose node was sent most since. */
static unsigned victim_of(const struct route_record *r, const struct bucket *b)
{
	unsigned worst = 0;
	uint64_t worst_blocks = 0;
	for (unsigned w = 0; w < ROUTE_GROUP; w++) {
		uint64_t e = load_entry(&b->way[w]);
		if (entry_generation(e) == 0 || !entry_is_fresh(r, e))
			return w;
		uint64_t blocks = (uint64_t)units_since(r, e)
			<< (load_u32(&r->slot[entry_slot(e)].ageing) >> 16);
		if (blocks > worst_blocks) {
			worst = w;
			worst_blocks = blocks;
		}
	}
	return worst;
}

/* Not an exchange: when two workers write the same way at once, one block is dropped and |live| is off by
 * one. */
static void entry_replace(struct route_record *r, _Atomic uint64_t *way, uint64_t e)
{
	uint64_t old = load_entry(way);
	struct slot_row *was = &r->slot[entry_slot(old)];
	atomic_store_explicit(way, e, memory_order_relaxed);
	if (entry_generation(old) != 0 && entry_generation(old) == load_u32(&was->generation))
		atomic_fetch_sub_explicit(&was->live, 1, memory_order_relaxed);
}

static _Atomic uint64_t *entry_find(struct bucket *b, uint64_t key, uint16_t slot)
{
	for (unsigned w = 0; w < ROUTE_GROUP; w++)
		if (entry_is_for(load_entry(&b->way[w]), key, slot))
			return &b->way[w];
	return NULL;
}

/* A prompt being added. */
struct adding {
	uint16_t slot;
	uint32_t generation;
	uint64_t fresh; /* New blocks for the node that are not yet in its row. */
	int64_t live;
};

/* Update the row only now and then, because it is a locked write. Ages lag by so many blocks and are never
 * ahead. */
static void sent_flush(struct route_record *r, struct adding *a)
{
	atomic_fetch_add_explicit(&r->slot[a->slot].sent, a->fresh, memory_order_relaxed);
	atomic_fetch_add_explicit(&r->slot[a->slot].live, a->live, memory_order_relaxed);
	a->fresh = 0;
	a->live = 0;
}

static void entry_put(struct route_record *r, uint64_t key, struct adding *a)
{
	struct bucket *b = bucket_of(r, key);
	uint64_t e = entry_of(key, a->slot, a->generation, age_now(&r->slot[a->slot]));
	_Atomic uint64_t *way = entry_find(b, key, a->slot);
	bool known = way != NULL && entry_is_fresh(r, load_entry(way));
	if (known && load_entry(way) == e)
		return; /* The entry is fresh: leave the cache line clean for the other cores. */
	if (way == NULL)
		way = &b->way[victim_of(r, b)];
	entry_replace(r, way, e);
	a->live++;
	a->fresh += !known;
	if (a->live == TELL_AFTER)
		sent_flush(r, a);
}

/* Return the steps of a walk: the first block, and every LEAP-th from there. */
static size_t steps_of(size_t n)
{
	return (n + LEAP - 1) / LEAP;
}

/* Return the index after the last block of a step. */
static size_t step_end(size_t step, size_t n)
{
	return step * LEAP + 1 < n ? step * LEAP + 1 : n;
}

static void bucket_prefetch(const struct route_record *r, const uint64_t *chain, size_t from, size_t to,
	unsigned group)
{
	for (; from < to; from++)
		__builtin_prefetch(bucket_of(r, key_of(chain[from * LEAP], group)));
}

/* Return true when the block was recorded so recently that neither it nor the blocks before it need a
 * refresh. */
static bool is_young(const struct route_record *r, uint64_t key, uint16_t slot)
{
	_Atomic uint64_t *way = entry_find(bucket_of(r, key), key, slot);
	uint64_t e = way != NULL ? load_entry(way) : 0;
	return e != 0 && entry_is_fresh(r, e) &&
		units_since(r, e) <= (load_u32(&r->slot[slot].ageing) & 0xffff) / YOUNG;
}

void route_record_add(struct route_record *r, const uint64_t *chain, size_t n, uint16_t slot)
{
	CGN_LIVE(r, RECORD_TAG);
	CGN_MUST(slot < ROUTE_MAX_NODES);
	struct adding a = {.slot = slot, .generation = load_u32(&r->slot[slot].generation)};
	unsigned group = slot / ROUTE_GROUP;
	n = n < ROUTE_MAX_BLOCKS ? n : ROUTE_MAX_BLOCKS;
	size_t i = 0, steps = steps_of(n);
	for (size_t step = 0, fetched = 0; i < n; step++) { /* Skip the steps that are known. */
		size_t end = step + PREFETCH_AHEAD < steps ? step + PREFETCH_AHEAD : steps,
		       next = step_end(step, n);
		bucket_prefetch(r, chain, fetched, end, group);
		fetched = end > fetched ? end : fetched;
		if (!is_young(r, key_of(chain[next - 1], group), slot))
			break;
		i = next;
	}
	for (size_t fetched = i; i < n; i++) {
		for (; fetched < n && fetched <= i + PREFETCH_AHEAD; fetched++)
			__builtin_prefetch(bucket_of(r, key_of(chain[fetched], group)), 1);
		entry_put(r, key_of(chain[i], group), &a);
	}
	sent_flush(r, &a);
}

void route_record_drop(struct route_record *r, const uint64_t *chain, size_t n, uint16_t slot)
{
	CGN_LIVE(r, RECORD_TAG);
	CGN_MUST(slot < ROUTE_MAX_NODES);
	for (size_t i = 0; i < n; i++) {
		uint64_t key = key_of(chain[i], slot / ROUTE_GROUP);
		_Atomic uint64_t *way = entry_find(bucket_of(r, key), key, slot);
		if (way != NULL)
			entry_replace(r, way, 0);
	}
}

/* Return the nodes of the group (bits of |among|) that hold the block. */
static unsigned bucket_holders(const struct route_record *r, uint64_t key, unsigned group, unsigned among)
{
	const struct bucket *b = bucket_of(r, key);
	unsigned hit = 0;
	for (unsigned w = 0; w < ROUTE_GROUP; w++) {
		uint64_t e = load_entry(&b->way[w]);
		if (e >> 36 == print_of(key) && entry_slot(e) / ROUTE_GROUP == group && entry_is_fresh(r, e))
			hit |= 1U << entry_slot(e) % ROUTE_GROUP;
	}
	return hit & among;
}

/* Candidates of one group on their way down a chain. */
struct walk {
	const struct route_record *r;
	const uint64_t *chain;
	struct route_cand *const *by_bit; /* [ROUTE_GROUP] */
	unsigned group, on;               /* on: candidates that held every block so far. */
};

static unsigned holders_at(const struct walk *w, size_t i)
{
	return bucket_holders(w->r, key_of(w->chain[i], w->group), w->group, w->on);
}

/* Walk block by block; a candidate that misses a block leaves with the depth it reached. */
static void walk_blocks(struct walk *w, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		__builtin_prefetch(bucket_of(w->r, key_of(w->chain[i], w->group)));
	for (size_t i = from; i < to && w->on != 0; i++) {
		unsigned hit = holders_at(w, i);
		for (unsigned left = w->on & ~hit; left != 0; left &= left - 1)
			w->by_bit[__builtin_ctz(left)]->held = (uint32_t)i;
		w->on = hit;
	}
}

/* Walk down the chain once for the candidates of one group that are |on|. Where all of them hold the end of a
 * step, they count as holding the blocks before it, because a prefix is recorded as a whole. Return the steps
 * taken. The first |fetched| are already prefetched. */
static size_t match_group(const struct route_record *r, const uint64_t *chain, size_t n,
	struct route_cand *const by_bit[ROUTE_GROUP], unsigned group, unsigned on, size_t fetched)
{
	struct walk w = {r, chain, by_bit, group, on};
	size_t step = 0, steps = steps_of(n);
	for (size_t i = 0; i < n && w.on != 0; step++) {
		/* Most walks end soon: the prefetch distance grows with each step found. */
		size_t end = step + (step < PREFETCH_AHEAD ? step : PREFETCH_AHEAD) + PREFETCH_FIRST;
		end = end < steps ? end : steps;
		bucket_prefetch(r, chain, fetched, end, group);
		fetched = end > fetched ? end : fetched;
		size_t next = step_end(step, n);
		if (next < i + LEAP || holders_at(&w, next - 1) != w.on)
			walk_blocks(&w, i, next);
		i = next;
	}
	for (; w.on != 0; w.on &= w.on - 1)
		by_bit[__builtin_ctz(w.on)]->held = (uint32_t)n;
	return step;
}

static unsigned group_of(const struct route_cand *c)
{
	return c->slot / ROUTE_GROUP;
}

/* Return how many steps of a chain of |n| to prefetch before a group's walk, when the previous walk went
 * |deep|. */
static size_t fetch_first(size_t deep, size_t n)
{
	n = steps_of(n);
	size_t want = deep < PREFETCH_FIRST ? PREFETCH_FIRST : deep < PREFETCH_MOST ? deep : PREFETCH_MOST;
	return want < n ? want : n;
}

/* Return the next candidate from |i| on that the record is asked for. */
static size_t next_asked(const struct route_cand *cands, size_t n, size_t i)
{
	while (i < n && cands[i].fed && !cands[i].fed_lately)
		i++;
	return i;
}

void route_record_match(const struct route_record *r, const uint64_t *chain, size_t n,
	struct route_cand *cands, size_t n_cands)
{
	CGN_LIVE(r, RECORD_TAG);
	n = n < ROUTE_MAX_BLOCKS ? n : ROUTE_MAX_BLOCKS;
	n = unlikely_way(UNLIKELY_record_half) ? n / 2 : n;
	size_t i = next_asked(cands, n_cands, 0), here = fetch_first(0, n), next = here;
	if (i < n_cands)
		bucket_prefetch(r, chain, 0, here, group_of(&cands[i]));
	while (i < n_cands) {
		struct route_cand *by_bit[ROUTE_GROUP];
		unsigned group = group_of(&cands[i]), on = 0;
		for (; i < n_cands && group_of(&cands[i]) == group; i = next_asked(cands, n_cands, i + 1)) {
			CGN_MUST(i == 0 || cands[i].slot > cands[i - 1].slot);
			by_bit[cands[i].slot % ROUTE_GROUP] = &cands[i];
			on |= 1U << cands[i].slot % ROUTE_GROUP;
		}
		if (i < n_cands)
			bucket_prefetch(r, chain, 0, next,
				group_of(&cands[i])); /* Prefetch while the current group is walked. */
		size_t deep = match_group(r, chain, n, by_bit, group, on, here);
		/* Groups usually hold the same beginning of a prompt: its system part. */
		here = next;
		next = fetch_first(deep, n);
	}
}

void route_record_forget(struct route_record *r, uint16_t slot)
{
	CGN_LIVE(r, RECORD_TAG);
	CGN_MUST(slot < ROUTE_MAX_NODES);
	struct slot_row *s = &r->slot[slot];
	/* After 255 generations, old entries could count again: a wrong prediction, nothing worse. */
	uint32_t next = load_u32(&s->generation) % 255 + 1;
	atomic_store_explicit(&s->generation, next, memory_order_relaxed);
	atomic_store_explicit(&s->live, 0, memory_order_relaxed);
	atomic_store_explicit(&s->ageing, r->default_ageing, memory_order_relaxed);
}

void route_record_capacity(struct route_record *r, uint16_t slot, uint64_t blocks)
{
	CGN_LIVE(r, RECORD_TAG);
	CGN_MUST(slot < ROUTE_MAX_NODES);
	uint32_t was = load_u32(&r->slot[slot].ageing);
	unsigned shift = was >> 16;
	/* The ages of entries are in this unit: with another one they would all be wrong. It stays while it will do. */
	if ((was & 0xffff) == NO_LIMIT || blocks >> shift < UNITS_LEAST || blocks >> shift > UNITS_MOST)
		for (shift = 0; blocks >> shift > UNITS_AIM;)
			shift++;
	uint32_t ageing = blocks == 0 ? r->default_ageing : shift << 16 | (uint32_t)(blocks >> shift);
	atomic_store_explicit(&r->slot[slot].ageing, ageing, memory_order_relaxed);
}

uint64_t route_record_blocks_of(const struct route_record *r, uint16_t slot)
{
	CGN_MUST(slot < ROUTE_MAX_NODES);
	int64_t n = atomic_load_explicit(&r->slot[slot].live, memory_order_relaxed);
	return n > 0 ? (uint64_t)n : 0; /* Racing writers may leave the count slightly off. */
}

uint64_t route_record_blocks(const struct route_record *r)
{
	CGN_LIVE(r, RECORD_TAG);
	uint64_t sum = 0;
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++)
		sum += route_record_blocks_of(r, i);
	return sum;
}

size_t route_record_bytes(const struct route_record *r)
{
	CGN_LIVE(r, RECORD_TAG);
	return (size_t)(r->mask + 1) * LINE + sizeof *r;
}
