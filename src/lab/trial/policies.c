/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/trial/trial_priv.h"

enum { SMALL, MAIN };

static uint64_t hash_of(struct evict_node *n)
{
	return CGN_CONTAINER(n, struct trial_block, node)->digest;
}

void trial_shard_init(struct trial_shard *s, uint32_t blocks)
{
	*s = (struct trial_shard){.blocks = blocks};
	cgn_list_init(&s->ring[SMALL]);
	cgn_list_init(&s->ring[MAIN]);
	evict_init(&s->evict, &(struct evict_cfg){.bytes = (uint64_t)blocks << 16, .hash_of = hash_of});
}

void trial_shard_fini(struct trial_shard *s)
{
	evict_fini(&s->evict);
}

/* ---- evict: the block store's policy ---- */

static void evict_touch_block(struct trial_shard *s, struct trial_block *b)
{
	(void)s;
	evict_touch(&b->node);
}

static struct trial_block *evict_add_block(struct trial_shard *s, struct trial_block *b)
{
	struct evict_node *out =
		evict_count(&s->evict) >= s->blocks ? evict_victim(&s->evict, NULL, NULL) : NULL;
	evict_add(&s->evict, &b->node, 1U << 16);
	return out != NULL ? CGN_CONTAINER(out, struct trial_block, node) : NULL;
}
const struct trial_ops trial_evict = {evict_touch_block, evict_add_block};

/* ---- LRU and FIFO: a single ring ---- */

static struct trial_block *take_first(struct trial_shard *s, int ring)
{
	struct cgn_link *l = cgn_list_first(&s->ring[ring]);
	CGN_MUST(l != NULL);
	cgn_list_drop(l);
	s->n[ring]--;
	return CGN_CONTAINER(l, struct trial_block, link);
}

static void put_last(struct trial_shard *s, int ring, struct trial_block *b)
{
	cgn_list_push(&s->ring[ring], &b->link);
	s->n[ring]++;
	b->queue = (uint8_t)ring;
}

static void lru_touch(struct trial_shard *s, struct trial_block *b)
{
	cgn_list_drop(&b->link);
	cgn_list_push(&s->ring[MAIN], &b->link);
}

static void fifo_touch(struct trial_shard *s, struct trial_block *b)
{
	(void)s;
	(void)b;
}

static struct trial_block *ring_add(struct trial_shard *s, struct trial_block *b)
{
	struct trial_block *out = s->n[MAIN] >= s->blocks ? take_first(s, MAIN) : NULL;
	put_last(s, MAIN, b);
	return out;
}
const struct trial_ops trial_lru = {lru_touch, ring_add};
const struct trial_ops trial_fifo = {fifo_touch, ring_add};

/* ---- S3-FIFO as published ---- */

static void s3_touch(struct trial_shard *s, struct trial_block *b)
{
	(void)s;
	b->uses = b->uses < 3 ? b->uses + 1 : 3;
}

static struct trial_block *s3_victim(struct trial_shard *s)
{
	for (;;) {
		bool small = s->n[MAIN] == 0 || s->n[SMALL] > s->blocks / 10;
		struct trial_block *b = take_first(s, small ? SMALL : MAIN);
		if (small && b->uses < 2) {
			b->left = ++s->left;
			return b;
		}
		if (!small && b->uses == 0) {
			b->left = 0;
			return b;
		}
		b->uses = small ? 0 : b->uses - 1;
		put_last(s, MAIN, b);
	}
}

static struct trial_block *s3_add(struct trial_shard *s, struct trial_block *b)
{
	bool ghost = b->left != 0 && s->left - b->left < (uint64_t)s->blocks * 9 / 10;
	struct trial_block *out = s->n[SMALL] + s->n[MAIN] >= s->blocks ? s3_victim(s) : NULL;
	b->uses = 0;
	put_last(s, ghost ? MAIN : SMALL, b);
	return out;
}
const struct trial_ops trial_s3_fifo = {s3_touch, s3_add};
