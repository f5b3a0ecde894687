/* SPDX-License-Identifier: Apache-2.0 */
/* etcd: a client of etcd v3 over gRPC: keys, leases that are kept, prefixes that are watched. Several
 * endpoints, the next one when one fails. Objects belong to their loop. No callback is ever made inline. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/loop/loop.h"

struct etcd;
struct etcd_cfg {
	const char *const *endpoints; /* "http://host:port", "https://host:port" or "host:port" (in clear) */
	size_t n_endpoints;           /* 1..ETCD_MAX_ENDPOINTS */
	const char *ca_file, *cert_file, *key_file; /* https; NULL: the system's CAs, no client certificate */
	cgn_nsec timeout;                           /* of each try of a call; 0: 5 s */
};
#define ETCD_MAX_ENDPOINTS 16
/* CGN_INVALID: an endpoint that is none; CGN_TLS: certificates. Connects when first used. */
CGN_RC etcd_new(struct cgn_loop *l, const struct etcd_cfg *cfg, struct etcd **out, struct cgn_err *err);
/* Calls under way are done with CGN_CANCELLED before it returns. Leases and watches must be closed
 * already. */
void etcd_free(struct etcd **take);
CGN_RC etcd_reload_tls(struct etcd *e,
	struct cgn_err *err); /* read the certificates again; for new connections */

/* ---- calls: tried on each endpoint once while they are UNAVAILABLE ---- */
struct etcd_kv {
	struct cgn_str key, value;
	int64_t mod_revision, lease;
};
struct etcd_result { /* borrowed for the call of done */
	/* CGN_FINE; CGN_NOT_FOUND: no such lease; CGN_TOO_LARGE: the revision was compacted; CGN_UNAVAILABLE;
	 * ... */
	const struct cgn_err *err;
	uint64_t cluster_id;
	int64_t revision;
	const struct etcd_kv *kvs; /* range */
	size_t n_kvs;
	bool more;          /* range: beyond the limit */
	int64_t lease, ttl; /* grant, keepalive (ttl <= 0: gone) */
	int64_t deleted;
};
typedef void etcd_done_fn(void *user, const struct etcd_result *r);
struct etcd_op; /* a call under way; valid until done */

struct etcd_range {
	struct cgn_str key, end; /* end empty: just the key */
	int64_t limit, revision; /* 0: none, newest */
};
/* All of them: |op| may be NULL. The only failure is CGN_NO_MEMORY, and then done is not called. */
CGN_RC etcd_get(struct etcd *e, const struct etcd_range *range, etcd_done_fn *done, void *user,
	struct etcd_op **op, struct cgn_err *err);
CGN_RC etcd_put(struct etcd *e, struct cgn_str key, struct cgn_str value, int64_t lease, etcd_done_fn *done,
	void *user, struct etcd_op **op, struct cgn_err *err);
CGN_RC etcd_delete(struct etcd *e, struct cgn_str key, etcd_done_fn *done, void *user, struct etcd_op **op,
	struct cgn_err *err);
CGN_RC etcd_grant(struct etcd *e, int64_t ttl_seconds, etcd_done_fn *done, void *user, struct etcd_op **op,
	struct cgn_err *err);
CGN_RC etcd_keepalive(struct etcd *e, int64_t lease, etcd_done_fn *done, void *user, struct etcd_op **op,
	struct cgn_err *err);
CGN_RC etcd_revoke(struct etcd *e, int64_t lease, etcd_done_fn *done, void *user, struct etcd_op **op,
	struct cgn_err *err);
/* done is not called any more; what the call does at etcd may still happen. Safe on NULL. */
void etcd_op_drop(struct etcd_op **take);

/* ---- a lease that is kept ---- */
struct etcd_lease;
struct etcd_lease_ops {
	void (*on_granted)(void *user,
		int64_t lease); /* a new lease: put the keys under it. Again whenever the old one was lost */
	void (*on_trouble)(void *user,
		const struct cgn_err
			*why);          /* could not be granted or renewed now; tried again with backoff */
	void (*on_renewed)(void *user); /* may be NULL */
};
CGN_RC etcd_lease_open(struct etcd *e, cgn_nsec ttl, const struct etcd_lease_ops *ops, void *user,
	struct etcd_lease **out, struct cgn_err *err);
/* Somebody was told that there is no such lease: get another one. */
void etcd_lease_lost(struct etcd_lease *l);
int64_t etcd_lease_id(const struct etcd_lease *l); /* 0: none now */
void etcd_lease_close(struct etcd_lease **take);   /* stops renewing; revoking is etcd_revoke's business */

/* ---- a prefix that is watched ---- */
struct etcd_watch;
struct etcd_watch_ops {
	/* Between begin and end come all keys there are, as puts: at the start, after a compaction that we
	 * missed, and when etcd is another cluster than before. What did not come is gone. A begin may follow
	 * a begin: start over. */
	void (*on_snapshot_begin)(void *user);
	void (*on_snapshot_end)(void *user);
	void (*on_put)(void *user, const struct etcd_kv *kv);
	void (*on_delete)(void *user, const struct etcd_kv *kv); /* without a value */
	/* Changes only. After a reconnect nothing was missed: the watch goes on from the revision it had. */
	void (*on_connected)(void *user, bool connected, const char *why);
};
CGN_RC etcd_watch_open(struct etcd *e, struct cgn_str prefix, const struct etcd_watch_ops *ops, void *user,
	struct etcd_watch **out, struct cgn_err *err);
void etcd_watch_close(struct etcd_watch **take);
