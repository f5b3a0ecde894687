/* SPDX-License-Identifier: Apache-2.0 */
/* Removals while the index takes no writes. They are repeated later, so no removed value is back after a
 * restart. The sequence number spares values that were put since. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <stdlib.h>

void removal_add(struct kvdisk *d, const struct block_key *k, uint64_t seq)
{
	(void)pthread_mutex_lock(&d->removals.lock);
	if (d->removals.list == NULL)
		d->removals.list = CGN_NEW_ARRAY(struct removal, KVDISK_REMOVALS);
	if (d->removals.n < KVDISK_REMOVALS)
		d->removals.list[d->removals.n++] = (struct removal){*k, seq};
	else
		atomic_fetch_add(&d->counts.failed, 1);
	(void)pthread_mutex_unlock(&d->removals.lock);
}

static bool removal_take(struct kvdisk *d, struct removal *out)
{
	(void)pthread_mutex_lock(&d->removals.lock);
	bool any = d->removals.n > 0;
	if (any)
		*out = d->removals.list[--d->removals.n];
	(void)pthread_mutex_unlock(&d->removals.lock);
	return any;
}

void removal_repeat(struct kvdisk *d)
{
	struct removal o;
	while (!db_stuck(d->index) && !db_stuck(d->small) && removal_take(d, &o))
		(void)entry_remove_before(d, &o.key, o.seq);
}
