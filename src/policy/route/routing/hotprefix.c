/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/hotprefix.h"

#include "base/mix/mix.h"

#include <stdatomic.h>
#include <stdlib.h>

#define HOTPREFIX_TAG 0x4ea70001U
#define MIN_BYTES     ((size_t)4096)
#define WAYS          8
#define COUNT_BITS    24
#define COUNT_MAX     ((UINT64_C(1) << COUNT_BITS) - 1)

struct hotprefix {
	uint32_t tag;
	uint64_t mask;           /* Mask of bucket numbers. */
	_Atomic uint64_t *words; /* WAYS per bucket. */
};

static uint64_t key_of(uint64_t digest)
{
	return mix_stafford(digest);
}

static uint64_t load_relaxed(const _Atomic uint64_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

static _Atomic uint64_t *bucket_of(const struct hotprefix *h, uint64_t key)
{
	return &h->words[(key & h->mask) * WAYS];
}

static bool is_of(uint64_t word, uint64_t key)
{
	return (word & COUNT_MAX) != 0 && (word ^ key) >> COUNT_BITS == 0;
}

struct hotprefix *hotprefix_new(size_t bytes)
{
	size_t want = MIN_BYTES;
	while (want <= bytes / 2)
		want *= 2;
	struct hotprefix *h = CGN_NEW(struct hotprefix);
	h->words = CGN_NEW_ARRAY(_Atomic uint64_t, want / sizeof *h->words);
	h->tag = HOTPREFIX_TAG;
	h->mask = want / (WAYS * sizeof *h->words) - 1;
	return h;
}

void hotprefix_free(struct hotprefix **take)
{
	struct hotprefix *h = CGN_TAKE_LIVE(take, HOTPREFIX_TAG);
	if (h == NULL)
		return;
	h->tag = 0;
	free(h->words);
	free(h);
}

/* Add |by| to the entry's count as long as the entry is |key|'s. */
static bool count_change(_Atomic uint64_t *at, uint64_t key, uint64_t by)
{
	uint64_t word = load_relaxed(at);
	while (is_of(word, key) && ((word & COUNT_MAX) < COUNT_MAX || by != 1))
		if (atomic_compare_exchange_weak_explicit(at, &word, word + by, memory_order_relaxed,
			    memory_order_relaxed))
			return true;
	return false;
}

bool hotprefix_add(struct hotprefix *h, uint64_t digest)
{
	CGN_LIVE(h, HOTPREFIX_TAG);
	uint64_t key = key_of(digest);
	_Atomic uint64_t *b = bucket_of(h, key);
	for (size_t i = 0; i < WAYS; i++)
		if (count_change(&b[i], key, 1))
			return true;
	for (size_t i = 0; i < WAYS; i++) {
		uint64_t word = load_relaxed(&b[i]);
		if ((word & COUNT_MAX) == 0 &&
			atomic_compare_exchange_strong_explicit(&b[i], &word,
				key >> COUNT_BITS << COUNT_BITS | 1, memory_order_relaxed,
				memory_order_relaxed))
			return true;
	}
	return false;
}

void hotprefix_drop(struct hotprefix *h, uint64_t digest)
{
	CGN_LIVE(h, HOTPREFIX_TAG);
	uint64_t key = key_of(digest);
	_Atomic uint64_t *b = bucket_of(h, key);
	for (size_t i = 0; i < WAYS; i++)
		if (count_change(&b[i], key, (uint64_t)-1))
			return;
}

/* Two requests that came first at once may have made an entry each, so the entries are summed. */
uint32_t hotprefix_count(const struct hotprefix *h, uint64_t digest)
{
	CGN_LIVE(h, HOTPREFIX_TAG);
	uint64_t key = key_of(digest), sum = 0;
	const _Atomic uint64_t *b = bucket_of(h, key);
	for (size_t i = 0; i < WAYS; i++) {
		uint64_t word = load_relaxed(&b[i]);
		sum += is_of(word, key) ? word & COUNT_MAX : 0;
	}
	return (uint32_t)sum;
}

size_t hotprefix_bytes(const struct hotprefix *h)
{
	CGN_LIVE(h, HOTPREFIX_TAG);
	return (h->mask + 1) * WAYS * sizeof *h->words + sizeof *h;
}
