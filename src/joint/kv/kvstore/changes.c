/* SPDX-License-Identifier: Apache-2.0 */
/* Changes: a ring of the last changes, in the order in which they happened. */
#include "kvstore_priv.h"

void kvstore_changes_add(struct kvstore *s, const struct kvstore_block *b, unsigned tiers)
{
	(void)pthread_mutex_lock(&s->changes_lock);
	s->changes[s->change_end++ % KVSTORE_CHANGES] =
		(struct block_change){b->key, tiers, b->size, kvstore_label_leave(s, b->label)};
	(void)pthread_mutex_unlock(&s->changes_lock);
}

bool kvstore_changes(struct kvstore *s, uint64_t *at, struct block_change *out, size_t cap, size_t *n)
{
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->changes_lock);
	bool kept = *at <= s->change_end && s->change_end - *at <= KVSTORE_CHANGES;
	for (*n = 0; kept && *n < cap && *at < s->change_end; (*n)++)
		out[*n] = s->changes[(*at)++ % KVSTORE_CHANGES];
	(void)pthread_mutex_unlock(&s->changes_lock);
	return kept;
}

uint64_t kvstore_changes_end(struct kvstore *s)
{
	CGN_LIVE(s, KVSTORE_TAG);
	(void)pthread_mutex_lock(&s->changes_lock);
	uint64_t end = s->change_end;
	(void)pthread_mutex_unlock(&s->changes_lock);
	return end;
}
