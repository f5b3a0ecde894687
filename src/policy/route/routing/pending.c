/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/pending.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "policy/route/routing/routing.h"

#define PENDING_TAG 0x9e4d0001U
#define MIN_BYTES   ((size_t)4096)
#define WAYS        8
#define NUMBER_BITS 24
#define NUMBER_MASK ((1U << NUMBER_BITS) - 1)
#define END_BITS    28
#define END_MASK    ((UINT64_C(1) << END_BITS) - 1)
#define AHEAD       16 /* Blocks ahead of the current one whose buckets are prefetched. */
#define MOST_STARTS 32 /* Different held lengths considered per prompt, at most. */

struct pending {
	uint32_t tag;
	_Atomic uint32_t next;   /* Number of the next booking. */
	uint64_t mask;           /* Mask of bucket numbers. */
	_Atomic uint64_t *words; /* WAYS per bucket. */
	_Atomic uint64_t *ring;  /* PENDING_BOOKINGS entries. */
};

static uint64_t key_of(uint64_t digest)
{
	uint64_t h = (digest ^ digest >> 29) * 0x9fb21c651e98df25ULL;
	h = (h ^ h >> 32) * 0x81dadef4bc2dd44dULL;
	return h ^ h >> 31;
}

static uint64_t load_relaxed(const _Atomic uint64_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

static _Atomic uint64_t *bucket_of(const struct pending *p, uint64_t key)
{
	return &p->words[(key & p->mask) * WAYS];
}

static uint64_t ms_of(cgn_nsec now)
{
	return (uint64_t)(now / CGN_MSEC) & END_MASK;
}

static uint64_t booking_word(uint32_t number, uint16_t slot, cgn_nsec now, cgn_nsec life)
{
	uint64_t end = (ms_of(now) + (uint64_t)(life / CGN_MSEC)) & END_MASK;
	return (uint64_t)number << 40 | (uint64_t)slot << END_BITS | end;
}

static uint16_t booking_slot(uint64_t word)
{
	return (uint16_t)(word >> END_BITS & 0xfff);
}

/* Return true when |word| is still the booking |number| and its time is not over. */
static bool is_live(uint64_t word, uint32_t number, cgn_nsec now)
{
	uint64_t left = ((word & END_MASK) - ms_of(now)) & END_MASK;
	return word >> 40 == number && left > 0 && left <= (uint64_t)(PENDING_LONGEST / CGN_MSEC);
}

static _Atomic uint64_t *booking_at(const struct pending *p, uint32_t number)
{
	return &p->ring[number % PENDING_BOOKINGS];
}

struct pending *pending_new(size_t bytes)
{
	size_t want = MIN_BYTES;
	while (want <= bytes / 2)
		want *= 2;
	struct pending *p = CGN_NEW(struct pending);
	p->words = CGN_NEW_LINES(_Atomic uint64_t, want / sizeof *p->words); /* A bucket is a cache line. */
	p->ring = CGN_NEW_ARRAY(_Atomic uint64_t, PENDING_BOOKINGS);
	p->tag = PENDING_TAG;
	atomic_init(&p->next, 1);
	p->mask = want / (WAYS * sizeof *p->words) - 1;
	return p;
}

void pending_free(struct pending **take)
{
	struct pending *p = CGN_TAKE_LIVE(take, PENDING_TAG);
	if (p == NULL)
		return;
	p->tag = 0;
	free(p->words);
	free(p->ring);
	free(p);
}

/* Return the number of bookings since |number|. An empty word has the greatest age. */
static uint32_t age_of(uint64_t word, uint32_t number)
{
	return word == 0 ? NUMBER_MASK : (number - (uint32_t)word) & NUMBER_MASK;
}

static void block_add(struct pending *p, uint64_t key, uint32_t number)
{
	_Atomic uint64_t *b = bucket_of(p, key);
	uint32_t most = age_of(load_relaxed(&b[0]), number);
	size_t oldest = 0;
	for (size_t i = 1; i < WAYS; i++) {
		uint32_t age = age_of(load_relaxed(&b[i]), number);
		oldest = age > most ? i : oldest;
		most = age > most ? age : most;
	}
	atomic_store_explicit(&b[oldest], key >> NUMBER_BITS << NUMBER_BITS | number, memory_order_relaxed);
}

uint32_t pending_add(struct pending *p, const uint64_t *chain, size_t n, uint32_t held, uint16_t slot,
	cgn_nsec now, cgn_nsec life)
{
	CGN_LIVE(p, PENDING_TAG);
	uint32_t number = 0;
	while (number == 0)
		number = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed) & NUMBER_MASK;
	life = life < PENDING_LONGEST ? life : PENDING_LONGEST;
	atomic_store_explicit(booking_at(p, number), booking_word(number, slot, now, life),
		memory_order_relaxed);
	n = n < ROUTE_MAX_BLOCKS ? n : ROUTE_MAX_BLOCKS;
	for (size_t i = held, fetched = held; i < n; i++) {
		for (; fetched < n && fetched <= i + AHEAD; fetched++)
			__builtin_prefetch((const void *)(uintptr_t)bucket_of(p, key_of(chain[fetched])), 1);
		block_add(p, key_of(chain[i]), number);
	}
	return number;
}

void pending_drop(struct pending *p, uint32_t booking)
{
	CGN_LIVE(p, PENDING_TAG);
	_Atomic uint64_t *at = booking_at(p, booking);
	uint64_t word = load_relaxed(at);
	if (word >> 40 == booking)
		(void)atomic_compare_exchange_strong_explicit(at, &word, 0, memory_order_relaxed,
			memory_order_relaxed);
}

void pending_limit(struct pending *p, uint32_t booking, cgn_nsec now, cgn_nsec life)
{
	CGN_LIVE(p, PENDING_TAG);
	_Atomic uint64_t *at = booking_at(p, booking);
	uint64_t word = load_relaxed(at);
	life = life < PENDING_LONGEST ? life : PENDING_LONGEST;
	if (is_live(word, booking, now))
		(void)atomic_compare_exchange_strong_explicit(at, &word,
			booking_word(booking, booking_slot(word), now, life), memory_order_relaxed,
			memory_order_relaxed);
}

static struct route_cand *cand_at(struct route_cand *cands, size_t n, uint16_t slot)
{
	for (size_t lo = 0, hi = n; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;
		if (cands[mid].slot == slot)
			return &cands[mid];
		if (slot < cands[mid].slot)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

/* Count this block for every candidate that holds exactly the blocks before |at| and has it pending. Return
 * true if there is any. */
static bool block_match(const struct pending *p, uint64_t digest, uint32_t at, struct route_cand *cands,
	size_t n_cands, cgn_nsec now)
{
	uint64_t key = key_of(digest);
	const _Atomic uint64_t *b = bucket_of(p, key);
	bool any = false;
	for (size_t i = 0; i < WAYS; i++) {
		uint64_t word = load_relaxed(&b[i]);
		uint32_t number = (uint32_t)word & NUMBER_MASK;
		if (word == 0 || (word ^ key) >> NUMBER_BITS != 0)
			continue;
		uint64_t booking = load_relaxed(booking_at(p, number));
		struct route_cand *c =
			is_live(booking, number, now) ? cand_at(cands, n_cands, booking_slot(booking)) : NULL;
		if (c == NULL || !c->fed || c->held != at)
			continue;
		c->held++;
		c->by_tier[BLOCK_GPU]++;
		any = true;
	}
	return any;
}

/* Collect the lengths below |n| that candidates hold, ascending: pending blocks may begin there. */
static size_t starts_find(const struct route_cand *cands, size_t n_cands, size_t n, uint32_t out[MOST_STARTS])
{
	uint64_t has[ROUTE_MAX_BLOCKS / 64] = {0};
	size_t found = 0;
	for (size_t i = 0; i < n_cands; i++)
		if (cands[i].fed && cands[i].held < n)
			has[cands[i].held / 64] |= UINT64_C(1) << cands[i].held % 64;
	for (uint32_t w = 0; w * 64 < n; w++)
		for (uint64_t bits = has[w]; bits != 0 && found < MOST_STARTS; bits &= bits - 1)
			out[found++] = w * 64 + (uint32_t)__builtin_ctzll(bits);
	return found;
}

void pending_match(const struct pending *p, const uint64_t *chain, size_t n, struct route_cand *cands,
	size_t n_cands, cgn_nsec now)
{
	CGN_LIVE(p, PENDING_TAG);
	uint32_t starts[MOST_STARTS];
	n = n < ROUTE_MAX_BLOCKS ? n : ROUTE_MAX_BLOCKS;
	size_t n_starts = starts_find(cands, n_cands, n, starts);
	for (size_t k = 0; k < n_starts; k++)
		__builtin_prefetch((const void *)(uintptr_t)bucket_of(p, key_of(chain[starts[k]])));
	for (size_t k = 0; k < n_starts; k++)
		for (uint32_t i = starts[k]; i < n && block_match(p, chain[i], i, cands, n_cands, now); i++)
			;
}

size_t pending_bytes(const struct pending *p)
{
	CGN_LIVE(p, PENDING_TAG);
	return (p->mask + 1) * WAYS * sizeof *p->words + PENDING_BOOKINGS * sizeof *p->ring + sizeof *p;
}
