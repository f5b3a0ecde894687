/* SPDX-License-Identifier: Apache-2.0 */
/* What was removed while the index took no write: to be done when it does again, so that nothing that was
 * removed is back after a restart. By key and sequence: what was put since is another value. */
#include "joint/kvdisk/kvdisk_priv.h"

#include <stdlib.h>

void owed_add(struct kvdisk *d, const struct block_key *k, uint64_t seq)
{
	(void)pthread_mutex_lock(&d->owed_lock);
	if (d->owed == NULL)
		d->owed = calloc(KVDISK_OWED, sizeof *d->owed);
	if (d->owed != NULL && d->n_owed < KVDISK_OWED)
		d->owed[d->n_owed++] = (struct owed){*k, seq};
	else
		atomic_fetch_add(&d->failed, 1);
	(void)pthread_mutex_unlock(&d->owed_lock);
}

static bool take(struct kvdisk *d, struct owed *out)
{
	(void)pthread_mutex_lock(&d->owed_lock);
	bool any = d->n_owed > 0;
	if (any)
		*out = d->owed[--d->n_owed];
	(void)pthread_mutex_unlock(&d->owed_lock);
	return any;
}

void owed_pay(struct kvdisk *d)
{
	struct owed o;
	while (!db_stuck(d->index) && !db_stuck(d->small) && take(d, &o))
		(void)remove_before(d, &o.key, o.seq);
}
