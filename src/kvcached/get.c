/* SPDX-License-Identifier: Apache-2.0 */
/* What every port asks the store by, and how much of it clients may keep from going. */
#include <stdlib.h>

#include "kvcached/kvcached.h"

struct kvd_read {
	struct kv_read *read;
	kv_read_done done;
	void *user;
};

static void on_read(void *user, struct kv_block **take, const struct cgn_err *why)
{
	struct kvd_read *r = user;
	kv_read_done done = r->done;
	user = r->user;
	free(r);
	done(user, take, why);
}

CGN_RC kvd_get(struct kvcached *d, struct cgn_loop *l, const struct kv_key *k, bool peers, kv_read_done done, void *user,
	struct kvd_read **out, struct cgn_err *err)
{
	struct kvd_read *r = calloc(1, sizeof *r);
	(void)peers;
	CGN_LIVE(d, KVD_TAG);
	if (r == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a read");
	*r = (struct kvd_read){.done = done, .user = user};
	cgn_rc rc = kvstore_get(d->store, l, k, on_read, r, &r->read, err);
	if (!cgn_ok(rc)) {
		free(r);
		return rc;
	}
	*out = r;
	return CGN_OK;
}

void kvd_read_cancel(struct kvd_read **take)
{
	if (*take != NULL)
		kv_read_cancel(&(*take)->read);
	free(*take);
	*take = NULL;
}

bool kvd_lookup(struct kvcached *d, const struct kv_key *k, bool peers, struct kv_info *out)
{
	(void)peers;
	CGN_LIVE(d, KVD_TAG);
	return kvstore_lookup(d->store, k, out);
}

uint64_t kvd_pin_until(uint64_t for_ms)
{
	uint64_t now = cgn_clock_wall_ms();
	if (for_ms == 0)
		return 0;
	return for_ms < UINT64_MAX - now ? now + for_ms : UINT64_MAX;
}

bool kvd_hold(struct kvcached *d, uint64_t bytes)
{
	CGN_LIVE(d, KVD_TAG);
	if (atomic_fetch_add(&d->held, bytes) + bytes <= d->held_max)
		return true;
	atomic_fetch_sub(&d->held, bytes);
	return false;
}

void kvd_unhold(struct kvcached *d, uint64_t bytes)
{
	CGN_MUST(atomic_fetch_sub(&d->held, bytes) >= bytes);
}
