/* SPDX-License-Identifier: Apache-2.0 */
/* Pins: a pinned block is in no eviction queue until its pin ends. Pins may take half of the budget. */
#include "kvstore_priv.h"

/* End the pin and put the block back into the eviction queue. Under the shard's lock. */
static void pin_end(struct kvstore *s, struct kvstore_block *b)
{
	kvstore_unpin(s, b);
	if (!kvstore_block_in_ram(b))
		return;
	(void)pthread_mutex_lock(&s->evict_lock);
	if (!evict_has(&b->use))
		evict_add(&s->evict, &b->use, (uint32_t)pages_footprint(b->size));
	(void)pthread_mutex_unlock(&s->evict_lock);
}

/* Under the shard's lock. */
static CGN_RC block_pin(struct kvstore *s, struct kvstore_block *b, uint64_t until, struct cgn_err *err)
{
	struct kvstore_extra *x = kvstore_extra_ensure(s, b);
	uint64_t bytes = pages_footprint(b->size), most = pages_bytes(s->pages) / 2;
	if (x == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory to pin a block");
	(void)pthread_mutex_lock(&s->pins_lock);
	uint64_t others = s->pinned_bytes - (b->pinned ? bytes : 0);
	bool fits = others + bytes <= most;
	if (fits) {
		s->pinned_bytes = others + bytes;
		s->n_pins += !b->pinned;
		x->pinned_until = until;
		cgn_list_drop(&x->pin);
		cgn_list_push(&s->pins, &x->pin);
	}
	(void)pthread_mutex_unlock(&s->pins_lock);
	if (!fits)
		return CGN_FAIL(err, OVERLOADED,
			"%llu bytes are pinned: no room for %llu more, half of the tier is %llu",
			(unsigned long long)others, (unsigned long long)bytes, (unsigned long long)most);
	b->pinned = 1;
	(void)pthread_mutex_lock(&s->evict_lock);
	evict_drop(&s->evict, &b->use);
	(void)pthread_mutex_unlock(&s->evict_lock);
	return CGN_OK;
}

CGN_RC kvstore_pin(struct kvstore *s, const struct block_key *k, uint64_t until_unix_ms, struct cgn_err *err)
{
	CGN_LIVE(s, KVSTORE_TAG);
	uint64_t hash = kvstore_hash(s, k);
	struct kvstore_shard *sh = kvstore_shard_of(s, hash);
	struct kvstore_block *gone = NULL;
	cgn_rc rc = CGN_OK;
	(void)kvstore_unpin_due(s, 64); /* makes room for the new pin */
	(void)pthread_mutex_lock(&sh->lock);
	struct kvstore_block *b = kvstore_find_live(s, sh, k, hash, &gone);
	if (b == NULL)
		rc = CGN_FAIL(err, NOT_FOUND, "there is no such block");
	else if (until_unix_ms > 0)
		rc = block_pin(s, b, until_unix_ms, err);
	else if (b->pinned)
		pin_end(s, b);
	(void)pthread_mutex_unlock(&sh->lock);
	kvstore_block_unref(&gone);
	return rc;
}

/* Return the next block whose pin is over, with a reference; NULL: none of the next |*at_most| pins is. Each
 * pin that was looked at moves to the end of the list. */
static struct kvstore_block *pins_next_due(struct kvstore *s, size_t *at_most)
{
	uint64_t now = s->wall_ms();
	struct kvstore_block *due = NULL;
	(void)pthread_mutex_lock(&s->pins_lock);
	*at_most = *at_most < s->n_pins ? *at_most : s->n_pins;
	for (; due == NULL && *at_most > 0; (*at_most)--) {
		struct cgn_link *l = s->pins.next;
		struct kvstore_extra *x = CGN_CONTAINER(l, struct kvstore_extra, pin);
		cgn_list_drop(l);
		cgn_list_push(&s->pins, l);
		if (x->pinned_until > now)
			continue;
		due = x->block;
		kvstore_block_ref(due); /* the pin is in the list, so the index has a reference */
	}
	(void)pthread_mutex_unlock(&s->pins_lock);
	return due;
}

bool kvstore_unpin_due(struct kvstore *s, size_t at_most)
{
	bool any = false;
	for (struct kvstore_block *b = NULL; (b = pins_next_due(s, &at_most)) != NULL;
		kvstore_block_unref(&b)) {
		struct kvstore_shard *sh = kvstore_shard_of(s, kvstore_hash(s, &b->key));
		(void)pthread_mutex_lock(&sh->lock);
		if (b->linked && b->pinned && kvstore_block_pinned_extra(b)->pinned_until <= s->wall_ms()) {
			pin_end(s, b);
			any = true;
		}
		(void)pthread_mutex_unlock(&sh->lock);
	}
	return any;
}
