/* SPDX-License-Identifier: Apache-2.0 */
/* The owner of kvdisk, as the store plays it: values found, progress, worth, moves, losses. kvdisk calls these
 * functions under locks of its own; each takes the lock of one shard. */
#include "ssd_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/log/log.h"

/* Return the block that lies at |at|, or NULL. Under the shard's lock. */
static struct kvstore_block *owner_block_at(struct kvstore *s, struct kvstore_shard *sh,
	const struct block_key *k, kvdisk_place at)
{
	struct kvstore_block *b = kvstore_index_find(s, sh, k, kvstore_hash(s, k));
	return b != NULL && b->place == at ? b : NULL;
}

static enum kvdisk_worth owner_worth(void *user, const struct block_key *k, kvdisk_place at)
{
	struct kvstore *s = user;
	struct kvstore_shard *sh = kvstore_shard_lock(s, k);
	struct kvstore_block *b = owner_block_at(s, sh, k, at);
	enum kvdisk_worth worth = KVDISK_DROP;
	if (b != NULL && !kvstore_block_expired(s, b)) {
		bool hot = kvstore_block_in_ram(b) && (evict_worth(&b->use) & EVICT_USED) != 0;
		worth = b->pinned ? KVDISK_PINNED : b->reread || hot ? KVDISK_CARRY : KVDISK_DROP;
		b->reread = 0;
	}
	(void)pthread_mutex_unlock(&sh->lock);
	return worth;
}

static void owner_on_moved(void *user, const struct block_key *k, kvdisk_place from, kvdisk_place to)
{
	struct kvstore *s = user;
	struct kvstore_shard *sh = kvstore_shard_lock(s, k);
	struct kvstore_block *b = owner_block_at(s, sh, k, from);
	if (b != NULL)
		b->place = to;
	(void)pthread_mutex_unlock(&sh->lock);
}

void kvstore_ssd_lost(struct kvstore *s, const struct block_key *k, kvdisk_place at)
{
	struct kvstore_shard *sh = kvstore_shard_lock(s, k);
	struct kvstore_block *b = owner_block_at(s, sh, k, at), *gone = NULL;
	if (b != NULL) {
		b->place = 0;
		atomic_fetch_sub(&s->ssd->blocks, 1);
	}
	if (b != NULL && kvstore_block_in_ram(b)) {
		b->tiers &= (uint8_t)~BLOCK_TIER_BIT(BLOCK_SSD) & BLOCK_TIER_MASK;
		sh->n_ssd--;
		sh->ssd_value_bytes -= b->size;
		kvstore_changes_add(s, b, b->tiers);
	} else if (b != NULL) {
		kvstore_unlink(s, sh, b, kvstore_hash(s, k));
		gone = b;
	}
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
}

static void owner_on_gone(void *user, const struct block_key *k, kvdisk_place at)
{
	kvstore_ssd_lost(user, k, at);
}

static CGN_RC owner_describe(struct kvstore *s, struct kvstore_block *b, const struct kvdisk_entry *e)
{
	b->key = e->key;
	b->checksum = e->checksum;
	b->place = e->place;
	b->size = (uint32_t)e->size;
	b->tokens = e->meta.tokens;
	b->created = kvstore_ms_of(e->meta.created_unix_ms);
	b->expires = kvstore_ms_of(e->meta.expires_unix_ms);
	b->page = b->tail_page = KVSTORE_NO_PAGE;
	struct kvstore_extra *x = kvstore_block_extra(b);
	if (x != NULL) {
		x->name = malloc(e->meta.name.n);
		if (x->name == NULL)
			return CGN_RC_OF(CGN_NO_MEMORY);
		memcpy(x->name, e->meta.name.p, e->meta.name.n);
		x->n_name = e->meta.name.n;
		atomic_fetch_add(&s->aside_bytes, x->n_name);
	}
	return kvstore_label_take(s, e->meta.model, e->meta.tenant, &b->label, NULL);
}

static struct kvstore_block *owner_new_entry(struct kvstore *s, bool named)
{
	(void)pthread_mutex_lock(&s->ground);
	union kvstore_cell *b = kvstore_cell_take(s), *x = b != NULL && named ? kvstore_cell_take(s) : NULL;
	if (b != NULL && named && x == NULL) {
		kvstore_cell_give(s, b);
		b = NULL;
	}
	if (b != NULL) {
		b->block.page = b->block.tail_page = KVSTORE_NO_PAGE;
		atomic_init(&b->block.refs, 1);
		if (x != NULL)
			(void)kvstore_extra_init(x, &b->block);
		atomic_init(&b->block.extra, x != NULL ? kvstore_cell_id(x) : KVSTORE_NONE);
	}
	(void)pthread_mutex_unlock(&s->ground);
	return b != NULL ? &b->block : NULL;
}

static bool owner_on_found(void *user, const struct kvdisk_entry *e)
{
	struct kvstore *s = user;
	struct kvstore_ssd *q = s->ssd;
	struct kvstore_block *b =
		atomic_load(&q->blocks) < q->most_blocks ? owner_new_entry(s, e->meta.name.n > 0) : NULL;
	if (b == NULL || !cgn_ok(owner_describe(s, b, e))) {
		atomic_fetch_add(&q->index_full, 1);
		kvstore_block_unref(&b);
		return false;
	}
	uint64_t hash = kvstore_hash(s, &b->key);
	struct kvstore_shard *sh = kvstore_shard_lock(s, &b->key);
	struct kvstore_block *was = kvstore_index_find(s, sh, &b->key, hash);
	if (was != NULL) { /* kvdisk found the value again after it rebuilt its index. */
		was->place = 0;
		kvstore_unlink(s, sh, was, hash);
	} else {
		atomic_fetch_add(&q->blocks, 1);
	}
	kvstore_link(s, sh, b, hash);
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&was);
	return true;
}

static void owner_on_progress(void *user, const char *what, uint64_t done, uint64_t total)
{
	(void)user;
	(void)total;
	cgn_log(INFO, "kvstore.ssd_boot", F_STR("what", what), F_U64("blocks", done));
}

static bool owner_goes_on(void *user)
{
	const struct kvstore_ssd *q = ((struct kvstore *)user)->ssd;
	return q->goes_on == NULL || q->goes_on(q->goes_on_user);
}

static void owner_on_aside(void *user, const char *from, const char *to, const char *why)
{
	(void)user;
	cgn_log(WARN, "kvstore.ssd_file_aside", F_STR("file", from), F_STR("why", why),
		F_STR("renamed_to", to),
		F_STR("then", "the store goes on without it; it counts against kv.ssd until you remove it"));
}

const struct kvdisk_owner kvstore_ssd_owner = {.found = owner_on_found,
	.progress = owner_on_progress,
	.goes_on = owner_goes_on,
	.worth = owner_worth,
	.moved = owner_on_moved,
	.aside = owner_on_aside,
	.gone = owner_on_gone};
