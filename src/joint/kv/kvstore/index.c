/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a shard: linear hashing (Litwin, 1980) over chains of cells. The index grows by one bucket
 * when there are more blocks than buckets, so no put waits for a rebuilt table. It never shrinks.
 *
 * Clients choose the keys, so the hash has a secret seed: no client can build long chains. */
#include "kvstore_priv.h"

#include <stdlib.h>
#include <xxhash.h>

uint64_t kvstore_hash(const struct kvstore *s, const struct block_key *k)
{
	static_assert(sizeof *k == DIGEST_BYTES + sizeof k->segment, "a key has no holes");
	return XXH3_64bits_withSeed(k, sizeof *k, s->seed);
}

static uint32_t bits_reverse(uint32_t v)
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

static uint32_t *bucket_at(const struct kvstore_shard *sh, uint32_t i)
{
	uint32_t seg = segment_of(i);
	return &sh->segment[seg][seg == 0 ? i : i - (KVSTORE_SEGMENT_0 << (seg - 1))];
}

uint32_t kvstore_index_bucket(const struct kvstore_shard *sh, uint32_t i)
{
	return *bucket_at(sh, i);
}

/* The low bits of the hash choose the bucket: as many bits as the number of buckets needs, or one bit less
 * where the bucket is not split yet. */
static uint32_t bucket_bits(const struct kvstore_shard *sh, uint32_t h)
{
	uint32_t bits = 31 - (uint32_t)__builtin_clz(sh->n_buckets), low = h & ((1U << bits) - 1);
	return (low | 1U << bits) < sh->n_buckets ? bits + 1 : bits;
}

static uint32_t bucket_number(const struct kvstore_shard *sh, uint64_t hash)
{
	uint32_t h = (uint32_t)hash;
	return h & (uint32_t)(((uint64_t)1 << bucket_bits(sh, h)) - 1);
}

/* ---- scan order: by the hash with its bits reversed. In this order a bucket is a range, and a split cuts
 * the range in two ---- */
uint32_t kvstore_index_place_of(uint64_t hash)
{
	return bits_reverse((uint32_t)hash);
}

uint32_t kvstore_index_place(const struct kvstore_shard *sh, uint32_t place, uint32_t *last)
{
	uint32_t h = bits_reverse(place);
	*last = place | (uint32_t)(((uint64_t)1 << (32 - bucket_bits(sh, h))) - 1);
	return bucket_number(sh, h);
}

/* ---- blocks ---- */
void kvstore_shard_init(struct kvstore_shard *sh)
{
	(void)pthread_mutex_init(&sh->lock, NULL);
	sh->segment[0] = CGN_NEW_ARRAY(uint32_t, KVSTORE_SEGMENT_0);
	sh->n_buckets = KVSTORE_SEGMENT_0;
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
	struct kvstore_block *b = kvstore_block_at(s, *bucket_at(sh, bucket_number(sh, hash)));
	while (b != NULL && memcmp(&b->key, k, sizeof *k) != 0)
		b = kvstore_block_at(s, b->next);
	return b;
}

/* Add a bucket, and move to it the blocks of the bucket that it splits. Without memory the chains get
 * longer. */
static void index_grow(struct kvstore *s, struct kvstore_shard *sh)
{
	uint32_t fresh = sh->n_buckets, seg = segment_of(fresh);
	if (seg == CGN_COUNT(sh->segment))
		return;
	if (sh->segment[seg] == NULL)
		sh->segment[seg] = calloc((size_t)KVSTORE_SEGMENT_0 << (seg - 1), sizeof **sh->segment);
	if (sh->segment[seg] == NULL)
		return;
	uint32_t *from = bucket_at(sh, fresh & ~(1U << (31 - __builtin_clz(fresh)))),
		 *to = bucket_at(sh, fresh);
	sh->n_buckets++;
	while (*from != KVSTORE_NONE) {
		struct kvstore_block *b = kvstore_block_at(s, *from);
		if (bucket_number(sh, kvstore_hash(s, &b->key)) == fresh) {
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
		index_grow(s, sh);
	uint32_t *at = bucket_at(sh, bucket_number(sh, hash));
	b->next = *at;
	*at = kvstore_cell_id(b);
}

void kvstore_index_drop(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash)
{
	uint32_t *at = bucket_at(sh, bucket_number(sh, hash)), id = kvstore_cell_id(b);
	while (*at != id) {
		CGN_MUST(*at != KVSTORE_NONE);
		at = &kvstore_block_at(s, *at)->next;
	}
	*at = b->next;
	b->next = KVSTORE_NONE;
	sh->n_blocks--;
}
