/* SPDX-License-Identifier: Apache-2.0 */
/* feed: a snapshot by scanning, then the ring of changes from the number that it had when the scan began. A
 * change during the scan is reported twice, the second time as it is now. A watcher that falls behind the
 * ring gets a new snapshot. */
#include "kvcached/feed/feed.h"

#define SCAN_STEP 128 /* a scan may return the rest of a bucket in addition */
#define SCANS     16  /* scans without a result per call */

static void feed_add(void *user, const struct block_key *k, const struct block_info *info,
	struct cgn_str name)
{
	struct feed_step *out = user;
	(void)name;
	CGN_MUST(out->n < FEED_BATCH);
	out->changes[out->n++] = (struct block_change){.key = *k, .tiers = info->tiers, .size = info->size};
}

static void feed_begin(struct feed_cursor *f, struct feed_step *out)
{
	f->at = kvstore_changes_end(f->store);
	f->cursor = 0;
	f->scanned = f->synced = false;
	out->reset = f->begun = true;
}

bool feed_next(struct feed_cursor *f, struct feed_step *out)
{
	out->n = 0;
	out->reset = out->synced = false;
	if (!f->begun)
		feed_begin(f, out);
	if (f->scanned && !kvstore_changes(f->store, &f->at, out->changes, FEED_BATCH, &out->n)) {
		out->n = 0;
		feed_begin(f, out);
	}
	for (unsigned i = 0; i < SCANS && !f->scanned && out->n == 0; i++) {
		kvstore_scan(f->store, &f->cursor, SCAN_STEP, feed_add, out);
		f->scanned = f->cursor == 0;
	}
	out->synced = f->scanned && !f->synced;
	f->synced = f->scanned;
	return out->n > 0 || out->reset || out->synced;
}
