/* SPDX-License-Identifier: Apache-2.0 */
/* Removals while the disk takes no writes. They are repeated later, so no removed value is back after a
 * restart. The sequence number spares values that were put since. */
#include "joint/kv/kvdisk/kvdisk_priv.h"

#include <stdlib.h>

static void removal_push(struct kvdisk *d, struct removal o)
{
	(void)pthread_mutex_lock(&d->removals.lock);
	if (d->removals.list == NULL)
		d->removals.list = CGN_NEW_ARRAY(struct removal, KVDISK_REMOVALS);
	if (d->removals.n < KVDISK_REMOVALS)
		d->removals.list[d->removals.n++] = o;
	else
		atomic_fetch_add(&d->counts.failed, 1);
	(void)pthread_mutex_unlock(&d->removals.lock);
}

void removal_add(struct kvdisk *d, const struct block_key *k, uint64_t seq)
{
	removal_push(d, (struct removal){.key = *k, .seq = seq});
}

void removal_add_place(struct kvdisk *d, kvdisk_place at)
{
	removal_push(d, (struct removal){.at = at});
}

static void removal_do(struct kvdisk *d, const struct removal *o)
{
	if (db_stuck(d->index) || db_stuck(d->small))
		removal_push(d, *o);
	else if (o->seq == 0)
		log_unwrite(d, o->at);
	else
		(void)entry_remove_before(d, &o->key, o->seq);
}

void removal_repeat(struct kvdisk *d)
{
	if (db_stuck(d->index) || db_stuck(d->small))
		return;
	(void)pthread_mutex_lock(&d->removals.lock);
	struct removal *list = d->removals.list;
	size_t n = d->removals.n;
	d->removals.list = NULL;
	d->removals.n = 0;
	(void)pthread_mutex_unlock(&d->removals.lock);
	for (size_t i = 0; i < n; i++)
		removal_do(d, &list[i]);
	free(list);
}
