/* SPDX-License-Identifier: Apache-2.0 */
/* Scans. A cursor is a shard and a place in scan order. Both stay valid when the index grows and when a value
 * is replaced. A scan reports whole buckets, and a bucket that is too full for one visit in parts. */
#include "kvstore_priv.h"

#define AT_ONCE 64
/* Buckets that a scan visits in addition to two for each requested key. An index that was emptied keeps its
 * buckets. */
#define IDLE 1024

struct visit {
	struct kvstore_block *seen[AT_ONCE];
	size_t n;
	uint32_t last; /* last place of this visit */
};

/* Collect the blocks from |place| to v->last of a bucket, each with a reference. Under the shard's lock.
 * Returns false when there are too many. */
static bool scan_collect(struct kvstore *s, uint32_t first, uint32_t place, struct visit *v)
{
	v->n = 0;
	for (struct kvstore_block *b = kvstore_block_at(s, first); b != NULL;
		b = kvstore_block_at(s, b->next)) {
		uint32_t at = kvstore_index_place_of(kvstore_hash(s, &b->key));
		if (at < place || at > v->last || kvstore_block_expired(s, b))
			continue;
		if (v->n == AT_ONCE)
			return false;
		v->seen[v->n++] = b;
	}
	for (size_t i = 0; i < v->n; i++)
		kvstore_block_ref(v->seen[i]);
	return true;
}

static void scan_visit(struct kvstore *s, struct kvstore_shard *sh, uint32_t place, struct visit *v)
{
	(void)pthread_mutex_lock(&sh->lock);
	uint32_t first = kvstore_index_bucket(sh, kvstore_index_place(sh, place, &v->last));
	while (!scan_collect(s, first, place, v)) {
		/* 64 keys with the same 32 bits of a seeded hash do not happen */
		CGN_MUST(v->last > place);
		v->last = place + (v->last - place) / 2;
	}
	(void)pthread_mutex_unlock(&sh->lock);
}

void kvstore_scan(struct kvstore *s, uint64_t *cursor, size_t count,
	void (*fn)(void *user, const struct block_key *k, const struct block_info *info, struct cgn_str name),
	void *user)
{
	CGN_LIVE(s, KVSTORE_TAG);
	size_t most = count < SIZE_MAX / 4 ? 2 * count + IDLE : SIZE_MAX;
	for (size_t told = 0, looked = 0; told < count && looked < most && *cursor >> 32 < KVSTORE_SHARDS;
		looked++) {
		struct visit v;
		scan_visit(s, &s->shard[*cursor >> 32], (uint32_t)*cursor, &v);
		*cursor = (*cursor >> 32 << 32 | v.last) + 1;
		for (size_t i = 0; i < v.n; i++) {
			struct block_info info = kvstore_block_info(v.seen[i]);
			if (info.tiers != 0) {
				fn(user, &v.seen[i]->key, &info, kvstore_block_name(v.seen[i]));
				told++;
			}
			kvstore_block_unref(&v.seen[i]);
		}
	}
	if (*cursor >> 32 >= KVSTORE_SHARDS)
		*cursor = 0;
}
