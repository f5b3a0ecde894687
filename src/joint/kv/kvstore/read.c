/* SPDX-License-Identifier: Apache-2.0 */
/* Reads: from RAM at once, or from any tier with a callback on a loop. */
#include "ssd_priv.h"

#include <stdlib.h>

/* |again|: the same caller already got a miss for this key from RAM, so a miss is not counted again. */
static struct kvstore_block *ram_find(struct kvstore *s, const struct block_key *k, bool again,
	bool *elsewhere)
{
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	*elsewhere = b != NULL && !kvstore_block_in_ram(b);
	if (*elsewhere)
		b = NULL;
	if (b != NULL)
		kvstore_block_ref(b);
	if (b != NULL && s->ssd != NULL)
		kvstore_ssd_on_use(s, b);
	sh->hits += b != NULL;
	sh->misses += b == NULL && !*elsewhere && !again;
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	return b;
}

static struct kvstore_block *ram_get(struct kvstore *s, const struct block_key *k, bool verify, bool again,
	bool *elsewhere)
{
	cgn_nsec began = cgn_clock_now();
	struct kvstore_block *b = ram_find(s, k, again, elsewhere);
	struct metric_cell *seconds = b != NULL ? s->seconds_hit : s->seconds_miss;
	if (b != NULL)
		evict_touch(&b->use);
	if (b != NULL && verify && kvstore_block_sum(b) != b->checksum) {
		kvstore_drop_corrupt(s, &b, true);
		seconds = s->seconds_corrupt;
	}
	if (seconds != s->seconds_miss || !again)
		metric_observe(seconds, cgn_since(cgn_clock_now(), began));
	return b;
}

struct kvstore_block *kvstore_get_ram(struct kvstore *s, const struct block_key *k, bool verify)
{
	bool elsewhere;
	CGN_LIVE(s, KVSTORE_TAG);
	return ram_get(s, k, verify, false, &elsewhere);
}

static void read_start(struct cgn_loop *l, struct cgn_post *p)
{
	struct kvstore_read *r = CGN_CONTAINER(p, struct kvstore_read, post);
	bool elsewhere = false;
	(void)l;
	if (r->done != NULL)
		r->block = ram_get(r->store, &r->key, true, true, &elsewhere);
	if (r->done != NULL && r->block == NULL && elsewhere) {
		kvstore_fetch(r->store->ssd->fetches, r);
		return;
	}
	if (r->block == NULL)
		(void)CGN_FAIL(&r->err, NOT_FOUND, "no tier holds the block");
	kvstore_read_finish(r);
}

struct kvstore_read *kvstore_get(struct kvstore *s, struct cgn_loop *l, const struct block_key *k,
	kvstore_read_done done, void *user)
{
	CGN_LIVE(s, KVSTORE_TAG);
	struct kvstore_read *r = CGN_NEW(struct kvstore_read);
	*r = (struct kvstore_read){.store = s, .loop = l, .key = *k, .done = done, .user = user};
	cgn_loop_post(l, &r->post, read_start);
	return r;
}

void kvstore_read_cancel(struct kvstore_read **take)
{
	if (*take != NULL)
		(*take)->done = NULL;
	*take = NULL;
}
