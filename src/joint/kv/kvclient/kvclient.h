/* SPDX-License-Identifier: Apache-2.0 */
/* kvclient: a client of the node's block store, cgn-kvcached. Values are not copied: the store shares its
 * memory by descriptor, and leases the place of the value. Speaks policy/kv/kvbulk over a Unix socket of
 * packets, `<kv.uds>.bulk`.
 *
 * The client connects by itself, and reconnects with backoff (50 ms to 2 s); then calls in flight end with
 * CGN_UNAVAILABLE. All functions and callbacks run on the loop; callbacks are never inline. Bounds:
 * KVCLIENT_MAX_CALLS calls in flight, 8 MiB of messages that the socket did not take yet. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/os/loop/loop.h"
#include "policy/kv/block/block.h"

#define KVCLIENT_MAX_CALLS 1024
#define KVCLIENT_MAX_KEYS  4096 /* per call */

struct kvclient;
struct kvclient_cfg {
	const char *uds;  /* kv.uds; copied */
	cgn_nsec timeout; /* timeout of a call; 0: 10 s */
	/* Called when the client becomes ready, and when it is not ready any more or not yet, with |why|. May
	 * be NULL. */
	void (*on_state)(void *user, bool ready, const struct cgn_err *why);
	void *user;
};
struct kvclient *kvclient_new(struct cgn_loop *l, const struct kvclient_cfg *cfg);
/* Free the client. Calls in flight get no callback. Leases stay readable until they are released. */
void kvclient_free(struct kvclient **take);
bool kvclient_ready(const struct kvclient *c);

/* ---- calls ---- */
/* Every call runs |done| once, unless it fails at once with CGN_UNAVAILABLE (not ready), CGN_OVERLOADED (too
 * many in flight), CGN_INVALID or CGN_NO_MEMORY (for a value). |*out| (|out| may be NULL) is valid until |done|
 * runs; after kvclient_call_cancel |done| does not run. */
struct kvclient_call;
struct kvclient_lease;
struct kvclient_answer { /* borrowed for the time of |done| */
	/* code CGN_FINE, CGN_UNAVAILABLE, CGN_DEADLINE, or the store's error */
	const struct cgn_err *err;
	const struct block_info *infos; /* lookup: one per key, in order; put: the block's */
	size_t n;
	uint32_t removed;             /* by a remove */
	struct kvclient_lease *lease; /* get: owned by |done| */
};
typedef void kvclient_done_fn(void *user, const struct kvclient_answer *a);
void kvclient_call_cancel(struct kvclient_call **take); /* NULL-safe */

/* Look up blocks; tiers 0 means not held. |n|: at most KVCLIENT_MAX_KEYS. |peers|: blocks that only peers
 * have count too (BLOCK_REMOTE). |tenant|: for whom; empty: not known, so that stores of other sites do not count. */
CGN_RC kvclient_lookup(struct kvclient *c, const struct block_key *keys, size_t n, bool peers,
	struct cgn_str tenant, kvclient_done_fn *done, void *user, struct kvclient_call **out,
	struct cgn_err *err);
/* Read a value from any tier, and from a peer unless |worth_ms| is 0. |worth_ms|: the cost of not having the
 * value; a peer is asked only if it is faster (KVCLIENT_WHATEVER: not known). |tenant|: as for kvclient_lookup; at most
 * BLOCK_MAX_TENANT bytes, copied. CGN_NOT_FOUND; CGN_OVERLOADED:
 * too much is leased already. The checksum is compared before |done|, above 1 MiB on the pool. */
#define KVCLIENT_HERE_ONLY 0U
#define KVCLIENT_WHATEVER  UINT32_MAX
CGN_RC kvclient_get(struct kvclient *c, const struct block_key *key, uint32_t worth_ms, struct cgn_str tenant,
	kvclient_done_fn *done, void *user, struct kvclient_call **out, struct cgn_err *err);
/* ---- series: the pieces of a large value, each under its own key ---- */
/* A series hands out the pieces in order, and requests up to KVCLIENT_SERIES_AHEAD - 1 pieces ahead, so it
 * holds at most that many leases of BLOCK_MAX_BYTES each. A piece that could not be had ahead of its turn is
 * requested again in its turn. When there is no room for the current piece, the pieces ahead are given back,
 * and the series continues piece by piece. Free the series before its client. */
#define KVCLIENT_SERIES_AHEAD 4
struct kvclient_series;
struct kvclient_series_cfg {
	size_t n; /* at least 1 */
	void (*key)(void *user, size_t i, struct block_key *out);
	uint32_t worth_ms;     /* per piece, as for kvclient_get */
	struct cgn_str tenant; /* as for kvclient_get; borrowed as long as the series */
	/* Gets the next piece, as for kvclient_get; never inline; may free the series. */
	kvclient_done_fn *done;
	void *user;
};
/* Start a series. The first piece is handed out when it arrives, each other one after kvclient_series_next.
 * Fails as kvclient_get. */
CGN_RC kvclient_series_new(struct kvclient *c, const struct kvclient_series_cfg *cfg,
	struct kvclient_series **out, struct cgn_err *err);
void kvclient_series_next(struct kvclient_series *s); /* call after each piece but the last */
void kvclient_series_free(
	struct kvclient_series **take); /* NULL-safe; gives back the pieces that were not handed out */

/* The bytes of a value: pieces of memory, or a part of a regular file such as a memfd. */
struct kvclient_source {
	/* NULL: use |fd|. Copied before kvclient_put returns; from 1 MiB on a descriptor is faster. */
	const struct iovec *iov;
	size_t n_iov;
	int fd; /* borrowed by kvclient_put; the file must not change before |done| */
	uint64_t offset, length;
	const uint64_t *checksum; /* XXH3-64; NULL: computed here for pieces, by the store for a file */
};
/* Store a value. meta.tenant empty, or a store of version 1: it never goes to another site. CGN_CONFLICT: |only_if_absent|, and the key has a value. meta.created_unix_ms 0: the store's
 * time. */
CGN_RC kvclient_put(struct kvclient *c, const struct block_key *key, const struct block_meta *meta,
	const struct kvclient_source *from, bool only_if_absent, kvclient_done_fn *done, void *user,
	struct kvclient_call **out, struct cgn_err *err);
CGN_RC kvclient_remove(struct kvclient *c, const struct block_key *keys, size_t n, kvclient_done_fn *done,
	void *user, struct kvclient_call **out, struct cgn_err *err);

/* ---- leases ---- */
/* The bytes of a lease do not change until the store's lease timeout (kv.lease_timeout, 30 s), or until the
 * daemon is lost. Then the lease is stale: it is readable, but its bytes may change. Compare the checksum
 * after reading, or get the value again. */
const struct iovec *kvclient_lease_iov(const struct kvclient_lease *l, size_t *n);
const struct block_info *kvclient_lease_info(const struct kvclient_lease *l);
bool kvclient_lease_is_stale(const struct kvclient_lease *l);
void kvclient_lease_release(struct kvclient_lease **take); /* NULL-safe; before or after kvclient_free */

/* ---- holdings of the store ---- */
/* Receives a snapshot of what the store holds, then changes. |reset|: forget everything reported before (at
 * first, after a reconnect, or when this watcher was too slow). |synced|: the snapshot is complete. The watch
 * continues through reconnects until the client is freed. */
typedef void kvclient_watch_fn(void *user, bool reset, const struct block_change *changes, size_t n,
	bool synced);
/* a client has one watcher; NULL ends the watch */
void kvclient_watch(struct kvclient *c, kvclient_watch_fn *on_changes, void *user);
