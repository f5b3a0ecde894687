/* SPDX-License-Identifier: Apache-2.0 */
/* The sweep: removes expired blocks and ends pins that are over, in bounded steps. */
#include "kvstore_priv.h"

#define SWEEP_BUCKETS 256U /* buckets in one visit */
#define SWEEP_BATCH   64   /* blocks removed in one visit */
#define SWEEP_VISITS  4    /* visits that may find little before the sweep of a shard ends */
#define SWEEP_BATCHES 64   /* full batches of one shard: 262,144 blocks of all shards */

/* Unlink expired blocks of the next buckets; the caller gives up their references. Under the shard's lock. */
static size_t sweep_collect(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block **gone)
{
	size_t n = 0;
	for (uint32_t i = 0; i < SWEEP_BUCKETS && n < SWEEP_BATCH; i++) {
		struct kvstore_block *next = NULL;
		sh->sweep_at = sh->sweep_at < sh->n_buckets ? sh->sweep_at : 0;
		for (struct kvstore_block *b = kvstore_block_at(s, kvstore_index_bucket(sh, sh->sweep_at));
			b != NULL && n < SWEEP_BATCH; b = next) {
			next = kvstore_block_at(s, b->next);
			if (!kvstore_block_expired(s, b))
				continue;
			kvstore_unlink(s, sh, b, kvstore_hash(s, &b->key));
			gone[n++] = b;
		}
		sh->sweep_at += n < SWEEP_BATCH;
	}
	return n;
}

/* Visit a shard a few times, and more often while the visits find much. Ends after one round over the shard,
 * or after SWEEP_BATCHES full batches. */
static void sweep_shard(struct kvstore *s, struct kvstore_shard *sh)
{
	struct kvstore_block *gone[SWEEP_BATCH];
	uint32_t poor = 0, visits = 0, most = 1, full = 0;
	for (size_t n = 0; poor < SWEEP_VISITS && visits < most && full < SWEEP_BATCHES;
		visits += n < SWEEP_BATCH, full += n == SWEEP_BATCH) {
		(void)pthread_mutex_lock(&sh->lock);
		n = sh->n_expiring > 0 ? sweep_collect(s, sh, gone) : 0;
		most = sh->n_expiring > 0 ? sh->n_buckets / SWEEP_BUCKETS + 1 : 0;
		(void)pthread_mutex_unlock(&sh->lock);
		for (size_t i = 0; i < n; i++)
			kvstore_block_unref(&gone[i]);
		poor += n < SWEEP_BATCH / 4;
	}
}

void kvstore_tick(struct kvstore *s)
{
	CGN_LIVE(s, KVSTORE_TAG);
	for (size_t i = 0; i < KVSTORE_SHARDS; i++)
		sweep_shard(s, &s->shard[i]);
	(void)kvstore_unpin_due(s, 4096);
}
