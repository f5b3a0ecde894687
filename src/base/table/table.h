/* SPDX-License-Identifier: Apache-2.0 */
/* table: numbers by hash. The caller has the keys in an array, and puts the index of each under the key's hash.
 *
 * Open addressing with linear probing, 8 bytes a slot, at most three quarters full; removing a number moves
 * its followers back, so there are no tombstones. A slot keeps 32 bits of the hash: growing needs no keys, and
 * a search compares few. Any 64 bits serve as a hash: the table spreads them. The hash of a key that a peer
 * chooses has a seed (digest_keyed, XXH3), or the peer picks keys that all meet in one place.
 *
 * Some tables stay as they are, for a reason each: policy/kv/kvindex, policy/kv/holdings and the records of
 * policy/route/routing have the key in the slot, because they have millions of them; policy/who/limit is
 * changed by threads without a lock; policy/who/auth has tags of 9 bits, so that its test can make keys meet;
 * the index of joint/kv/kvstore grows by one bucket at a time; policy/text/tokenizer's merges are one cache
 * line a look-up; policy/text/template and policy/node/engine's models have their memory from an arena. Objects
 * that come and go one by one, with a memory of their own, are in lists by hash (base/core/list.h). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mix/mix.h"

#define TABLE_NONE UINT32_MAX
#define TABLE_MOST ((size_t)1 << 30)

/* Zeroed memory is an empty table. */
struct table {
	uint64_t *slots; /* High half: of the hash. Low half: the number plus one, or 0 in a free slot. */
	uint32_t mask, shift, n;
};

void table_fini(struct table *t);
/* Make room for |n| numbers in all, at most TABLE_MOST. False: out of memory, and nothing changed. Call it where a peer
 * or a file chooses how many there are. */
bool table_reserve(struct table *t, size_t n);
/* Put |number|, below TABLE_NONE, under |hash|, where other numbers may be too, and this one more than once. The
 * table doubles when it has no room; without memory for that the program ends. */
void table_put(struct table *t, uint64_t hash, uint32_t number);
/* Remove |number|, which is there under |hash|. */
void table_drop(struct table *t, uint64_t hash, uint32_t number);
/* Replace |from|, which is there under |hash|, by |to|. */
void table_replace(struct table *t, uint64_t hash, uint32_t from, uint32_t to);
void table_clear(struct table *t); /* Keeps the memory. */
size_t table_bytes(const struct table *t);

/* ---- searching ---- */

struct table_at {
	const struct table *table;
	uint32_t tag, slot, number;
};

/* Go to the next number under the same hash; TABLE_NONE: there is no other. */
static inline void table_next(struct table_at *at)
{
	const struct table *t = at->table;
	for (uint64_t slot; (slot = t->slots[at->slot]) != 0;) {
		at->slot = (at->slot + 1) & t->mask;
		if (slot >> 32 != at->tag)
			continue;
		at->number = (uint32_t)slot - 1;
		return;
	}
	at->number = TABLE_NONE;
}

static inline struct table_at table_first(const struct table *t, uint64_t hash)
{
	struct table_at at = {.table = t, .number = TABLE_NONE};
	if (t->n == 0)
		return at;
	at.tag = (uint32_t)(mix_golden(hash) >> 32);
	at.slot = at.tag >> t->shift;
	table_next(&at);
	return at;
}

/* Walk the numbers under |hash|. A few of other hashes may be among them: the caller compares the keys. The
 * table must not change meanwhile. */
#define table_each(at, t, hash) \
	for (struct table_at at = table_first((t), (hash)); at.number != TABLE_NONE; table_next(&at))

/* Find the number whose key, |key| itself the hash, is equal: the key of number i lies |i| * |stride| bytes behind
 * |keys|. TABLE_NONE: there is none. */
static inline uint32_t table_find(const struct table *t, uint64_t key, const uint64_t *keys, size_t stride)
{
	table_each (at, t, key)
		if (*(const uint64_t *)(const void *)((const char *)keys + at.number * stride) == key)
			return at.number;
	return TABLE_NONE;
}
