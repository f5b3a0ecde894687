/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a block under its key: link, unlink, demote, promote, expire. */
#include "ssd_priv.h"

static void ram_enter(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b)
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

static void ram_leave(struct kvstore_shard *sh, struct kvstore_block *b)
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
		ram_enter(s, sh, b);
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
		ram_leave(sh, b);
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

void kvstore_demote(struct kvstore *s, struct kvstore_shard *sh, struct kvstore_block *b)
{
	struct pages_place at = kvstore_block_place(b);
	struct kvstore_extra *x = kvstore_block_extra(b);
	CGN_MUST(b->linked && b->place != 0 && kvstore_block_in_ram(b));
	ram_leave(sh, b);
	(void)pthread_mutex_lock(&s->evict_lock);
	/* A block that was unpinned after it was chosen is in a queue again. */
	evict_drop(&s->evict, &b->use);
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
	/* |b| keeps its own extra, which has its name and its pin; of |from| it takes the runs of pages.
	 * Without an extra it takes the whole one. */
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
	ram_enter(s, sh, b);
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

CGN_RC kvstore_take(struct kvstore *s, const struct block_key *k, struct kvstore_block **out,
	struct cgn_err *err)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	bool held = b != NULL, here = held && kvstore_block_in_ram(b);
	if (here)
		kvstore_unlink(s, sh, b, hash);
	sh->hits += here;
	sh->misses += !held;
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	if (!here)
		return CGN_FAIL_AS(err, held ? CGN_UNAVAILABLE : CGN_NOT_FOUND, "%s",
			held ? "the value is not in RAM" : "the key has no value");
	/* Outside the lock, for a sum takes long: no other thread finds the block any more. */
	*out = b;
	if (kvstore_block_sum(b) == b->checksum)
		return CGN_OK;
	kvstore_drop_corrupt(s, out, true);
	return CGN_FAIL(err, NOT_FOUND, "the value in RAM was damaged");
}

bool kvstore_expire(struct kvstore *s, const struct block_key *k, uint64_t from, uint64_t unix_ms)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	bool does = b != NULL && (from == KVSTORE_ANY_EXPIRY || kvstore_ms_get(b->expires) == from);
	if (does) {
		sh->n_expiring -= kvstore_ms_get(b->expires) != 0;
		b->expires = kvstore_ms_of(unix_ms);
		sh->n_expiring += unix_ms != 0;
		if (s->ssd != NULL && b->place != 0)
			kvstore_ssd_expires(s, b);
	}
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	return does;
}

void kvstore_unpin(struct kvstore *s, struct kvstore_block *b)
{
	if (!b->pinned)
		return;
	struct kvstore_extra *x = kvstore_block_pinned_extra(b);
	b->pinned = 0;
	(void)pthread_mutex_lock(&s->pins_lock);
	cgn_list_drop(&x->pin);
	s->pinned_bytes -= pages_footprint(b->size);
	s->n_pins--;
	(void)pthread_mutex_unlock(&s->pins_lock);
}

void kvstore_drop_corrupt(struct kvstore *s, struct kvstore_block **take, bool hit)
{
	struct kvstore_block *b = *take, *gone = NULL;
	uint64_t hash = kvstore_hash(s, &b->key);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	(void)pthread_mutex_lock(&sh->lock);
	if (b->linked) {
		kvstore_unlink(s, sh, b, hash);
		gone = b;
	}
	/* |hit|: the look-up was counted as one, and is a miss now. */
	sh->hits -= hit;
	sh->misses += hit;
	(void)pthread_mutex_unlock(&sh->lock);
	atomic_fetch_add(&s->corrupt, 1);
	kvstore_block_unref(&gone);
	kvstore_block_unref(take);
}
