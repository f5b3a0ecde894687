/* SPDX-License-Identifier: Apache-2.0 */
/* feed: a snapshot by scanning, then the store's ring of changes, from where it ended when the scan began:
 * what changed meanwhile is told twice, the last time as it is. Who falls behind the ring begins anew. */
#include "kvcached/daemon/kvcached.h"

#define SCAN_STEP 128 /* a scan may give the rest of a chain beyond it */
#define SCANS     16  /* as many that find nothing, in a call */

static void add(void *user, const struct block_key *k, const struct block_info *info, struct cgn_str name)
{
	struct feed_step *out = user;
	(void)name;
	CGN_MUST(out->n < FEED_BATCH);
	out->changes[out->n++] = (struct block_change){.key = *k, .tiers = info->tiers, .size = info->size};
}

static void begin(struct feed_cursor *f, struct feed_step *out)
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
		begin(f, out);
	if (f->scanned && !kvstore_changes(f->store, &f->at, out->changes, FEED_BATCH, &out->n)) {
		out->n = 0;
		begin(f, out);
	}
	for (unsigned i = 0; i < SCANS && !f->scanned && out->n == 0; i++) {
		kvstore_scan(f->store, &f->cursor, SCAN_STEP, add, out);
		f->scanned = f->cursor == 0;
	}
	out->synced = f->scanned && !f->synced;
	f->synced = f->scanned;
	return out->n > 0 || out->reset || out->synced;
}
