/* SPDX-License-Identifier: Apache-2.0 */
/* kvclient: the block store of this node, cgn-kvcached, for a program beside it. A value that is read is not
 * copied: the store hands over the memory that it lies in, by descriptor, and lends the place. Speaks
 * policy/kvbulk over a Unix socket of packets, `<kv.uds>.bulk`.
 *
 * Connects by itself, and again with backoff (50 ms to 2 s) when the daemon goes: calls under way then end
 * with CGN_UNAVAILABLE. Everything is called, and calls back, on the loop; never inline. Bounds:
 * KVCLIENT_MAX_CALLS calls under way, 8 MiB of messages that the socket did not take yet. */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "base/core/err.h"
#include "io/loop/loop.h"
#include "policy/block/block.h"

#define KVCLIENT_MAX_CALLS 1024
#define KVCLIENT_MAX_KEYS  4096 /* of one call */

struct kvclient;
struct kvclient_cfg {
	const char *uds;  /* kv.uds; copied */
	cgn_nsec timeout; /* of a call; 0: 10 s */
	/* It can be called, or (|why|) can't any more or not yet: once at each change. May be NULL. */
	void (*on_state)(void *user, bool ready, const struct cgn_err *why);
	void *user;
};
CGN_RC kvclient_new(struct cgn_loop *l, const struct kvclient_cfg *cfg, struct kvclient **out,
	struct cgn_err *err);
/* Calls under way are forgotten: nothing is called back any more. Leases stay readable until they are
 * released. */
void kvclient_free(struct kvclient **take);
bool kvclient_ready(const struct kvclient *c);

/* ---- calls ---- */
/* All of them: |done| once, unless the call fails at once: CGN_UNAVAILABLE (not ready), CGN_OVERLOADED (too
 * much under way), CGN_INVALID, CGN_NO_MEMORY. |*out| (|out| may be NULL) is the call until |done| is called,
 * for kvclient_call_cancel: then |done| is not called. */
struct kvclient_call;
struct kvclient_lease;
struct kvclient_answer {                /* borrowed for the call of done */
	const struct cgn_err *err;      /* CGN_FINE; CGN_UNAVAILABLE, CGN_DEADLINE, or what the store says */
	const struct block_info *infos; /* of lookup: one a key, in order; of put: the block's */
	size_t n;
	uint32_t removed;             /* of remove */
	struct kvclient_lease *lease; /* of get: whoever is called owns it */
};
typedef void kvclient_done_fn(void *user, const struct kvclient_answer *a);
void kvclient_call_cancel(struct kvclient_call **take); /* NULL-safe */

/* Where blocks lie; not held: tiers 0. |n| up to KVCLIENT_MAX_KEYS. |peers|: also say which ones peers have
 * (BLOCK_REMOTE). */
CGN_RC kvclient_lookup(struct kvclient *c, const struct block_key *keys, size_t n, bool peers,
	kvclient_done_fn *done, void *user, struct kvclient_call **out, struct cgn_err *err);
/* A value, from whichever tier, and from a peer when |worth_ms| is not 0: that is what not having it costs,
 * and a peer is asked only if it will be faster (KVCLIENT_WHATEVER: not known). CGN_NOT_FOUND;
 * CGN_OVERLOADED: too much is lent already. Its checksum was compared before |done| (above 1 MiB on the
 * pool). */
#define KVCLIENT_HERE_ONLY 0U
#define KVCLIENT_WHATEVER  UINT32_MAX
CGN_RC kvclient_get(struct kvclient *c, const struct block_key *key, uint32_t worth_ms,
	kvclient_done_fn *done, void *user, struct kvclient_call **out, struct cgn_err *err);
/* ---- the pieces of a large value, each under a key of its own ---- */
/* They are told one after the other, in their order, while up to KVCLIENT_SERIES_AHEAD - 1 that follow are on their
 * way or lie ready: so many leases are held at once, of BLOCK_MAX_BYTES bytes each at most. One that could not
 * be had ahead of its turn (no room, too late) is asked for again when its turn comes. Where there is no room
 * for the one whose turn it is, those that follow are given back, and come one by one from then on. Ends
 * before its client. */
#define KVCLIENT_SERIES_AHEAD 4
struct kvclient_series;
struct kvclient_series_cfg {
	size_t n; /* at least 1 */
	void (*key)(void *user, size_t i, struct block_key *out);
	uint32_t worth_ms; /* of each, as for kvclient_get */
	/* of the next piece, as for kvclient_get; never inline; it may free the series */
	kvclient_done_fn *done;
	void *user;
};
/* The first piece is told when it is there, each other one after kvclient_series_next. Fails as kvclient_get. */
CGN_RC kvclient_series_new(struct kvclient *c, const struct kvclient_series_cfg *cfg,
	struct kvclient_series **out, struct cgn_err *err);
void kvclient_series_next(struct kvclient_series *s); /* once a piece that was told, but not for the last */
void kvclient_series_free(
	struct kvclient_series **take); /* NULL-safe; pieces that were not told are given back */

/* The bytes of a value: pieces of memory, or a part of a file (a regular one: a memfd, say; it need not be at
 * its beginning). */
struct kvclient_source {
	/* NULL: |fd|. Copied before kvclient_put returns: at 1 MiB and more a descriptor is the better way */
	const struct iovec *iov;
	size_t n_iov;
	int fd; /* borrowed for the call of kvclient_put; what it holds must stay until |done| */
	uint64_t offset, length;
	const uint64_t *checksum; /* XXH3-64. NULL: pieces are summed here, a file by the store */
};
/* CGN_CONFLICT: the key has a value, and |only_if_absent|. A meta.created_unix_ms of 0 is the store's now. */
CGN_RC kvclient_put(struct kvclient *c, const struct block_key *key, const struct block_meta *meta,
	const struct kvclient_source *from, bool only_if_absent, kvclient_done_fn *done, void *user,
	struct kvclient_call **out, struct cgn_err *err);
CGN_RC kvclient_remove(struct kvclient *c, const struct block_key *keys, size_t n, kvclient_done_fn *done,
	void *user, struct kvclient_call **out, struct cgn_err *err);

/* ---- leases ---- */
/* The bytes stay what they are until the store's deadline for leases (kv.lease_timeout, 30 s), or until the
 * daemon is lost. Then the lease is stale: it can still be read, but may be other bytes by now; compare the
 * checksum after reading, or get it again. */
const struct iovec *kvclient_lease_iov(const struct kvclient_lease *l, size_t *n);
const struct block_info *kvclient_lease_info(const struct kvclient_lease *l);
bool kvclient_lease_is_stale(const struct kvclient_lease *l);
void kvclient_lease_release(struct kvclient_lease **take); /* NULL-safe; before or after kvclient_free */

/* ---- what the store holds ---- */
/* All of it first, then what changes; state, not a log. |reset|: forget all that was told before (at first,
 * when the daemon came back, when this watcher was too slow). |synced|: everything has been told once. Goes
 * on through reconnects, until the client is freed. */
typedef void kvclient_watch_fn(void *user, bool reset, const struct block_change *changes, size_t n,
	bool synced);
/* one a client; NULL ends it */
void kvclient_watch(struct kvclient *c, kvclient_watch_fn *on_changes, void *user);
