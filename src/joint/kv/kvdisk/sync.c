/* SPDX-License-Identifier: Apache-2.0 */
/* sync: the order in which values, names of files and the index are made safe from a power cut. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "joint/kv/kvdisk/kvdisk_priv.h"

/* Make the names of new slab files safe, before the index that tells what lies in them. */
static CGN_RC sync_names(struct kvdisk *d)
{
	struct cgn_err why;
	if (!atomic_exchange(&d->named, false) || cgn_ok(dir_sync(d->dir, &why)))
		return CGN_OK;
	atomic_store(&d->named, true);
	health_refused(d, why.msg);
	return CGN_RC_OF(CGN_STORAGE);
}

CGN_RC sync_all(struct kvdisk *d, struct cgn_err *err)
{
	struct file *f = NULL;
	(void)pthread_mutex_lock(&d->files_lock);
	if (d->writing[false] != NULL) {
		f = d->writing[false];
		atomic_fetch_add(&f->refs, 1);
	}
	(void)pthread_mutex_unlock(&d->files_lock);
	if (f != NULL && fdatasync(f->fd) != 0) {
		char why[KVDISK_WHY];
		(void)snprintf(why, sizeof why, "cannot sync slab-%08x: %s", f->id, strerror(errno));
		health_refused(d, why);
	}
	file_unref(d, &f);
	CGN_TRY(sync_names(d));
	CGN_TRY(db_sync(d->small, err));
	return db_sync(d->index, err);
}
