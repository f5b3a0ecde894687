/* SPDX-License-Identifier: Apache-2.0 */
/* What a key means: how a block comes to be it, and ceases to. */
#include "kvstore_priv.h"

static void into_ram(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b)
{
	b->tiers |= BLOCK_TIER_BIT(BLOCK_RAM);
	sh->n_ram++;
	sh->ram_value_bytes += b->size;
	if (b->pinned)
		return;
	(void)pthread_mutex_lock(&s->evict_lock);
	evict_add(&s->evict, &b->use, (uint32_t)pages_footprint(b->size));
	(void)pthread_mutex_unlock(&s->evict_lock);
}

static void out_of_ram(struct kvstore_shard *sh, struct kvstore_block *b)
{
	b->tiers &= (uint8_t)~BLOCK_TIER_BIT(BLOCK_RAM) & BLOCK_TIER_MASK;
	sh->n_ram--;
	sh->ram_value_bytes -= b->size;
}

void kvstore_link(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash)
{
	kvstore_index_add(s, sh, b, hash);
	b->linked = 1;
	sh->n_expiring += kvstore_ms_get(b->expires) != 0;
	if (kvstore_block_in_ram(b))
		into_ram(s, sh, b);
	if (b->place != 0) {
		b->tiers |= BLOCK_TIER_BIT(BLOCK_SSD);
		sh->n_ssd++;
		sh->ssd_value_bytes += b->size;
	}
	kvstore_changes_add(s, b, b->tiers);
	if (s->ssd != NULL)
		kvstore_ssd_on_link(s, b);
}

void kvstore_unlink(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b, uint64_t hash)
{
	kvstore_index_drop(s, sh, b, hash);
	b->linked = 0;
	if (b->tiers & BLOCK_TIER_BIT(BLOCK_RAM))
		out_of_ram(sh, b);
	if (b->tiers & BLOCK_TIER_BIT(BLOCK_SSD)) {
		sh->n_ssd--;
		sh->ssd_value_bytes -= b->size;
		if (s->ssd != NULL && b->place != 0)
			kvstore_ssd_forget(s, b);
	}
	b->tiers = 0;
	sh->n_expiring -= kvstore_ms_get(b->expires) != 0;
	kvstore_unpin(s, b);
	(void)pthread_mutex_lock(&s->evict_lock);
	evict_drop(&s->evict, &b->use);
	(void)pthread_mutex_unlock(&s->evict_lock);
	kvstore_changes_add(s, b, 0);
}

void kvstore_extra_drop(struct kvstore *s, struct kvstore_block *b)
{
	struct kvstore_extra *x = kvstore_block_extra(b);
	if (x == NULL || x->name != NULL || x->runs != NULL || b->pinned)
		return;
	atomic_store_explicit(&b->extra, KVSTORE_NONE, memory_order_release);
	kvstore_cell_give(s, x);
}

void kvstore_demote(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b)
{
	struct pages_place at = kvstore_block_place(b);
	struct kvstore_extra *x = kvstore_block_extra(b);
	CGN_MUST(b->linked && b->place != 0 && kvstore_block_in_ram(b));
	out_of_ram(sh, b);
	(void)pthread_mutex_lock(&s->evict_lock);
	evict_drop(&s->evict, &b->use); /* who was unpinned since he was chosen stands there again */
	(void)pthread_mutex_unlock(&s->evict_lock);
	if (at.runs != NULL)
		atomic_fetch_sub(&s->aside_bytes, sizeof *at.runs + at.runs->n * sizeof at.runs->run[0]);
	(void)pthread_mutex_lock(&s->ground);
	pages_give(s->pages, b->size, &at);
	if (x != NULL)
		x->runs = NULL;
	b->page = b->tail_page = KVSTORE_NO_PAGE;
	kvstore_extra_drop(s, b);
	(void)pthread_mutex_unlock(&s->ground);
	kvstore_changes_add(s, b, b->tiers);
	atomic_fetch_add(&s->turn, 1);
}

void kvstore_promote(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b,
	struct kvstore_block *from)
{
	struct kvstore_extra *x = kvstore_block_extra(b), *fx = kvstore_block_extra(from);
	CGN_MUST(b->linked && !kvstore_block_in_ram(b) && b->size == from->size);
	if (fx != NULL && x == NULL) {
		fx->block = b;
		atomic_store_explicit(&b->extra, kvstore_cell_id(fx), memory_order_release);
		atomic_store_explicit(&from->extra, KVSTORE_NONE, memory_order_release);
	} else if (fx != NULL) {
		x->runs = fx->runs;
		fx->runs = NULL;
	}
	b->page = from->page;
	b->tail_page = from->tail_page;
	b->slot = from->slot;
	from->page = from->tail_page = KVSTORE_NO_PAGE;
	b->reread = 1;
	into_ram(s, sh, b);
	kvstore_changes_add(s, b, b->tiers);
}

struct kvstore_block *kvstore_find_live(struct kvstore *s, struct kvstore_shard *sh,
	const struct block_key *k, uint64_t hash, struct kvstore_block **gone)
{
	struct kvstore_block *b = kvstore_index_find(s, sh, k, hash);
	*gone = NULL;
	if (b == NULL || !kvstore_block_expired(s, b))
		return b;
	kvstore_unlink(s, sh, b, hash);
	*gone = b;
	return NULL;
}

bool kvstore_lookup(struct kvstore *s, const struct block_key *k, struct block_info *out)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	*out = (struct block_info){0};
	(void)pthread_mutex_lock(&sh->lock);
	const struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	if (b != NULL)
		kvstore_block_describe(s, b, out);
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	return b != NULL;
}

bool kvstore_remove(struct kvstore *s, const struct block_key *k)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	if (b != NULL)
		kvstore_unlink(s, sh, b, hash);
	(void)pthread_mutex_unlock(&sh->lock);
	bool was = b != NULL;
	kvstore_block_unref(&gone);
	kvstore_block_unref(&b);
	return was;
}

bool kvstore_expire(struct kvstore *s, const struct block_key *k, uint64_t unix_ms)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	if (b != NULL) {
		sh->n_expiring -= kvstore_ms_get(b->expires) != 0;
		b->expires = kvstore_ms_of(unix_ms);
		sh->n_expiring += unix_ms != 0;
		if (s->ssd != NULL && b->place != 0)
			kvstore_ssd_expires(s, b);
	}
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	return b != NULL;
}

/* ---- the sweep ---- */
#define SWEEP_BUCKETS 256U
#define SWEEP_BATCH   64
#define SWEEP_VISITS  4
#define SWEEP_BATCHES 64 /* that are full, of a shard: 262,144 blocks in all */

/* Under the shard's lock. */
static size_t collect_expired(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block **gone)
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

/* A few visits, and more while they find much; no more than a whole round, nor than so many blocks. */
static void sweep(struct kvstore *s, struct kvstore_shard *sh)
{
	struct kvstore_block *gone[SWEEP_BATCH];
	uint32_t poor = 0, visits = 0, most = 1, full = 0;
	for (size_t n = 0; poor < SWEEP_VISITS && visits < most && full < SWEEP_BATCHES;
		visits += n < SWEEP_BATCH, full += n == SWEEP_BATCH) {
		(void)pthread_mutex_lock(&sh->lock);
		n = sh->n_expiring > 0 ? collect_expired(s, sh, gone) : 0;
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
		sweep(s, &s->shard[i]);
	(void)kvstore_unpin_due(s, 4096);
}
