/* SPDX-License-Identifier: Apache-2.0 */
/* What a key means: how a block comes to be it, and ceases to. */
#include "kvstore_priv.h"

void kv_link(struct kvstore *s, struct kv_shard *sh, struct kv_block *b, uint64_t hash)
{
	kv_index_add(s, sh, b, hash);
	b->linked = 1;
	b->tiers = KV_TIER_BIT(KV_RAM);
	sh->n_ram++;
	sh->ram_value_bytes += b->size;
	sh->n_expiring += kv_ms_get(b->expires) != 0;
	(void)pthread_mutex_lock(&s->evict_lock);
	evict_add(&s->evict, &b->use, (uint32_t)pages_footprint(b->size));
	(void)pthread_mutex_unlock(&s->evict_lock);
	kv_note(s, b, b->tiers);
}

void kv_unlink(struct kvstore *s, struct kv_shard *sh, struct kv_block *b, uint64_t hash)
{
	kv_index_drop(s, sh, b, hash);
	b->linked = 0;
	b->tiers = 0;
	sh->n_ram--;
	sh->ram_value_bytes -= b->size;
	sh->n_expiring -= kv_ms_get(b->expires) != 0;
	kv_unpin(s, b);
	(void)pthread_mutex_lock(&s->evict_lock);
	evict_drop(&s->evict, &b->use);
	(void)pthread_mutex_unlock(&s->evict_lock);
	kv_note(s, b, 0);
}

struct kv_block *kv_find_live(struct kvstore *s, struct kv_shard *sh, const struct kv_key *k, uint64_t hash, struct kv_block **gone)
{
	struct kv_block *b = kv_index_find(s, sh, k, hash);
	*gone = NULL;
	if (b == NULL || !kv_block_expired(s, b))
		return b;
	kv_unlink(s, sh, b, hash);
	*gone = b;
	return NULL;
}

bool kvstore_lookup(struct kvstore *s, const struct kv_key *k, struct kv_info *out)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kv_hash(s, k);
	struct kv_shard *sh = kv_shard_of(s, hash);
	struct kv_block *gone = NULL;
	*out = (struct kv_info){0};
	(void)pthread_mutex_lock(&sh->lock);
	const struct kv_block *b = kv_find_live(s, sh, k, hash, &gone);
	if (b != NULL)
		kv_block_tell(s, b, out);
	(void)pthread_mutex_unlock(&sh->lock);
	kv_block_unref(&gone);
	return b != NULL;
}

bool kvstore_remove(struct kvstore *s, const struct kv_key *k)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kv_hash(s, k);
	struct kv_shard *sh = kv_shard_of(s, hash);
	struct kv_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kv_block *b = kv_find_live(s, sh, k, hash, &gone);
	if (b != NULL)
		kv_unlink(s, sh, b, hash);
	(void)pthread_mutex_unlock(&sh->lock);
	bool was = b != NULL;
	kv_block_unref(&gone);
	kv_block_unref(&b);
	return was;
}

bool kvstore_expire(struct kvstore *s, const struct kv_key *k, uint64_t unix_ms)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kv_hash(s, k);
	struct kv_shard *sh = kv_shard_of(s, hash);
	struct kv_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kv_block *b = kv_find_live(s, sh, k, hash, &gone);
	if (b != NULL) {
		sh->n_expiring -= kv_ms_get(b->expires) != 0;
		b->expires = kv_ms_of(unix_ms);
		sh->n_expiring += unix_ms != 0;
	}
	(void)pthread_mutex_unlock(&sh->lock);
	kv_block_unref(&gone);
	return b != NULL;
}

/* ---- the sweep ---- */
#define SWEEP_BUCKETS 256U
#define SWEEP_BATCH   64
#define SWEEP_VISITS  4

/* Under the shard's lock. */
static size_t collect_expired(struct kvstore *s, struct kv_shard *sh, struct kv_block **gone)
{
	size_t n = 0;
	for (uint32_t i = 0; i < SWEEP_BUCKETS && n < SWEEP_BATCH; i++) {
		struct kv_block *next = NULL;
		sh->sweep_at = sh->sweep_at < sh->n_buckets ? sh->sweep_at : 0;
		for (struct kv_block *b = kv_block_at(s, kv_index_bucket(sh, sh->sweep_at)); b != NULL && n < SWEEP_BATCH; b = next) {
			next = kv_block_at(s, b->next);
			if (!kv_block_expired(s, b))
				continue;
			kv_unlink(s, sh, b, kv_hash(s, &b->key));
			gone[n++] = b;
		}
		sh->sweep_at += n < SWEEP_BATCH;
	}
	return n;
}

/* A few visits, and more while they find much; no more than a whole round. */
static void sweep(struct kvstore *s, struct kv_shard *sh)
{
	struct kv_block *gone[SWEEP_BATCH];
	uint32_t poor = 0, visits = 0, most = 1;
	for (size_t n = 0; poor < SWEEP_VISITS && visits < most; visits += n < SWEEP_BATCH) {
		(void)pthread_mutex_lock(&sh->lock);
		n = sh->n_expiring > 0 ? collect_expired(s, sh, gone) : 0;
		most = sh->n_expiring > 0 ? sh->n_buckets / SWEEP_BUCKETS + 1 : 0;
		(void)pthread_mutex_unlock(&sh->lock);
		for (size_t i = 0; i < n; i++)
			kv_block_unref(&gone[i]);
		poor += n < SWEEP_BATCH / 4;
	}
}

void kvstore_tick(struct kvstore *s)
{
	CGN_LIVE(s, KVSTORE_TAG);
	for (size_t i = 0; i < KV_SHARDS; i++)
		sweep(s, &s->shard[i]);
	(void)kv_unpin_due(s, 4096);
}
