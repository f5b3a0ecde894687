/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a shard: linear hashing (Litwin, 1980) over chains of cells. It grows by one bucket when there
 * are more blocks than buckets, so that no put waits for a table to be made anew; it never shrinks.
 *
 * Keys come from clients, so the hash has a secret seed: nobody can make long chains. */
#include "kvstore_priv.h"

#include <stdlib.h>
#include <xxhash.h>

uint64_t kvstore_hash(const struct kvstore *s, const struct block_key *k)
{
	static_assert(sizeof *k == DIGEST_BYTES + sizeof k->segment, "a key has no holes");
	return XXH3_64bits_withSeed(k, sizeof *k, s->seed);
}

static uint32_t reverse(uint32_t v)
{
	v = (v >> 1 & 0x55555555U) | (v & 0x55555555U) << 1;
	v = (v >> 2 & 0x33333333U) | (v & 0x33333333U) << 2;
	v = (v >> 4 & 0x0f0f0f0fU) | (v & 0x0f0f0f0fU) << 4;
	return __builtin_bswap32(v);
}

/* ---- buckets ---- */
static uint32_t segment_of(uint32_t i)
{
	return i < KVSTORE_SEGMENT_0 ? 0 : (uint32_t)(32 - __builtin_clz(i / KVSTORE_SEGMENT_0));
}

static uint32_t *bucket(const struct kvstore_shard *sh, uint32_t i)
{
	uint32_t seg = segment_of(i);
	return &sh->segment[seg][seg == 0 ? i : i - (KVSTORE_SEGMENT_0 << (seg - 1))];
}

uint32_t kvstore_index_bucket(const struct kvstore_shard *sh, uint32_t i)
{
	return *bucket(sh, i);
}

/* The low bits of the hash choose a bucket: as many as all the buckets need, or one less where that bucket is
 * not split yet. */
static uint32_t bits_of(const struct kvstore_shard *sh, uint32_t h)
{
	uint32_t bits = 31 - (uint32_t)__builtin_clz(sh->n_buckets), low = h & ((1U << bits) - 1);
	return (low | 1U << bits) < sh->n_buckets ? bits + 1 : bits;
}

static uint32_t number_of(const struct kvstore_shard *sh, uint64_t hash)
{
	uint32_t h = (uint32_t)hash;
	return h & (uint32_t)(((uint64_t)1 << bits_of(sh, h)) - 1);
}

/* ---- the order of a scan: by the hash with its bits reversed, in which a bucket is a range, and a split
 * cuts the range in two ---- */
uint32_t kvstore_index_place_of(uint64_t hash)
{
	return reverse((uint32_t)hash);
}

uint32_t kvstore_index_place(const struct kvstore_shard *sh, uint32_t place, uint32_t *last)
{
	uint32_t h = reverse(place);
	*last = place | (uint32_t)(((uint64_t)1 << (32 - bits_of(sh, h))) - 1);
	return number_of(sh, h);
}

/* ---- blocks ---- */
CGN_RC kvstore_shard_init(struct kvstore_shard *sh, struct cgn_err *err)
{
	(void)pthread_mutex_init(&sh->lock, NULL);
	sh->segment[0] = calloc(KVSTORE_SEGMENT_0, sizeof **sh->segment);
	if (sh->segment[0] == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the index of blocks");
	sh->n_buckets = KVSTORE_SEGMENT_0;
	return CGN_OK;
}

void kvstore_shard_fini(struct kvstore_shard *sh)
{
	for (size_t i = 0; i < CGN_COUNT(sh->segment); i++)
		free(sh->segment[i]);
	(void)pthread_mutex_destroy(&sh->lock);
}

uint64_t kvstore_shard_bytes(const struct kvstore_shard *sh)
{
	return (uint64_t)sh->n_buckets * sizeof **sh->segment;
}

struct kvstore_block *kvstore_index_find(struct kvstore *s, struct kvstore_shard *sh,
	const struct block_key *k, uint64_t hash)
{
	struct kvstore_block *b = kvstore_block_at(s, *bucket(sh, number_of(sh, hash)));
	while (b != NULL && memcmp(&b->key, k, sizeof *k) != 0)
		b = kvstore_block_at(s, b->next);
	return b;
}

/* The next bucket, and to it the blocks of the one that it splits off. Without memory the chains just get
 * longer. */
static void grow(struct kvstore *s, struct kvstore_shard *sh)
{
	uint32_t fresh = sh->n_buckets, seg = segment_of(fresh);
	if (seg == CGN_COUNT(sh->segment))
		return;
	if (sh->segment[seg] == NULL)
		sh->segment[seg] = calloc((size_t)KVSTORE_SEGMENT_0 << (seg - 1), sizeof **sh->segment);
	if (sh->segment[seg] == NULL)
		return;
	uint32_t *from = bucket(sh, fresh & ~(1U << (31 - __builtin_clz(fresh)))), *to = bucket(sh, fresh);
	sh->n_buckets++;
	while (*from != KVSTORE_NONE) {
		struct kvstore_block *b = kvstore_block_at(s, *from);
		if (number_of(sh, kvstore_hash(s, &b->key)) == fresh) {
			*to = *from;
			*from = b->next;
			b->next = KVSTORE_NONE;
			to = &b->next;
		} else {
			from = &b->next;
		}
	}
}

void kvstore_index_add(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash)
{
	if (sh->n_blocks++ >= sh->n_buckets)
		grow(s, sh);
	uint32_t *at = bucket(sh, number_of(sh, hash));
	b->next = *at;
	*at = kvstore_cell_id(b);
}

void kvstore_index_drop(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash)
{
	uint32_t *at = bucket(sh, number_of(sh, hash)), id = kvstore_cell_id(b);
	while (*at != id) {
		CGN_MUST(*at != KVSTORE_NONE);
		at = &kvstore_block_at(s, *at)->next;
	}
	*at = b->next;
	b->next = KVSTORE_NONE;
	sh->n_blocks--;
}
