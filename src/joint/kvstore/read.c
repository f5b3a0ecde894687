/* SPDX-License-Identifier: Apache-2.0 */
/* Reads: a value out of RAM, at once or on a loop. */
#include "kvstore_priv.h"

#include <stdlib.h>

struct kv_read {
	struct cgn_post post;
	struct kvstore *store;
	struct kv_key key;
	kv_read_done done; /* NULL: cancelled */
	void *user;
};

/* It is not what was put: nobody gets it any more. */
static void condemn(struct kvstore *s, struct kv_block **take)
{
	struct kv_block *b = *take, *gone = NULL;
	uint64_t hash = kv_hash(s, &b->key);
	struct kv_shard *sh = kv_shard_of(s, hash);
	(void)pthread_mutex_lock(&sh->lock);
	if (b->linked) {
		kv_unlink(s, sh, b, hash);
		gone = b;
	}
	sh->hits--;
	sh->misses++;
	(void)pthread_mutex_unlock(&sh->lock);
	atomic_fetch_add(&s->corrupt, 1);
	kv_block_unref(&gone);
	kv_block_unref(take);
}

static struct kv_block *find(struct kvstore *s, const struct kv_key *k)
{
	uint64_t hash = kv_hash(s, k);
	struct kv_shard *sh = kv_shard_of(s, hash);
	struct kv_block *gone = NULL;
	(void)pthread_mutex_lock(&sh->lock);
	struct kv_block *b = kv_find_live(s, sh, k, hash, &gone);
	if (b != NULL)
		kv_block_ref(b);
	sh->hits += b != NULL;
	sh->misses += b == NULL;
	(void)pthread_mutex_unlock(&sh->lock);
	kv_block_unref(&gone);
	return b;
}

struct kv_block *kvstore_get_ram(struct kvstore *s, const struct kv_key *k, bool verify)
{
	CGN_LIVE(s, KVSTORE_TAG);
	cgn_nsec began = cgn_clock_now();
	struct kv_block *b = find(s, k);
	struct metric_cell *seconds = b != NULL ? s->seconds_hit : s->seconds_miss;
	if (b != NULL)
		evict_touch(&b->use);
	if (b != NULL && verify && kv_block_sum(b) != b->checksum) {
		condemn(s, &b);
		seconds = s->seconds_corrupt;
	}
	metric_observe(seconds, cgn_clock_now() - began);
	return b;
}

static void read_now(struct cgn_loop *l, struct cgn_post *p)
{
	struct kv_read *r = CGN_CONTAINER(p, struct kv_read, post);
	struct cgn_err err = {0};
	(void)l;
	if (r->done != NULL) {
		struct kv_block *b = kvstore_get_ram(r->store, &r->key, true);
		if (b == NULL)
			(void)CGN_FAIL(&err, NOT_FOUND, "no tier holds the block");
		r->done(r->user, &b, &err);
		kv_block_unref(&b);
	}
	free(r);
}

CGN_RC kvstore_get(struct kvstore *s, struct cgn_loop *l, const struct kv_key *k, kv_read_done done, void *user, struct kv_read **out,
	struct cgn_err *err)
{
	CGN_LIVE(s, KVSTORE_TAG);
	struct kv_read *r = calloc(1, sizeof *r);
	if (r == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a read");
	*r = (struct kv_read){.store = s, .key = *k, .done = done, .user = user};
	*out = r;
	cgn_loop_post(l, &r->post, read_now);
	return CGN_OK;
}

void kv_read_cancel(struct kv_read **take)
{
	if (*take != NULL)
		(*take)->done = NULL;
	*take = NULL;
}
