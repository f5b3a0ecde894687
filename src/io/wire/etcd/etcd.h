/* SPDX-License-Identifier: Apache-2.0 */
/* etcd: a client of etcd v3 over gRPC: keys, leases that are renewed, prefixes that are watched. When an
 * endpoint fails, the next one is used. Objects belong to their loop. Callbacks are never inline. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"
#include "io/os/loop/loop.h"
#include "io/wire/listwatch/listwatch.h"

struct etcd;
struct etcd_cfg {
	const char *const *endpoints; /* "http://host:port", "https://host:port" or "host:port" (in clear) */
	size_t n_endpoints;           /* 1 to ETCD_MAX_ENDPOINTS. */
	/* For https; NULL: the system's CAs, no client certificate. */
	const char *ca_file, *cert_file, *key_file;
	cgn_nsec timeout; /* Timeout of each attempt of a call; 0: 5 s. */
};
#define ETCD_MAX_ENDPOINTS 16
/* CGN_INVALID: an endpoint is malformed; CGN_TLS: certificates. Connects on first use. */
CGN_RC etcd_new(struct cgn_loop *l, const struct etcd_cfg *cfg, struct etcd **out, struct cgn_err *err);
/* End the client. Calls in flight are done with CGN_CANCELLED before this returns. Leases and watches must be
 * closed before. */
void etcd_free(struct etcd **take);
CGN_RC etcd_reload_tls(struct etcd *e,
	struct cgn_err *err); /* Read the certificates again, for new connections. */

/* ---- calls: tried once on each endpoint while the endpoints are UNAVAILABLE ---- */
struct etcd_kv {
	struct cgn_str key, value;
	int64_t mod_revision, lease;
};
/* A member of etcd itself. */
struct etcd_member {
	uint64_t id;
	const char *name;     /* "": it has not started yet. */
	const char *peer_url; /* The first one, by which the other members reach it; "": none. */
	bool learner;         /* without a vote */
};
struct etcd_result { /* Borrowed until the |done| callback returns. */
	/* CGN_FINE; CGN_NOT_FOUND: no such lease; CGN_TOO_LARGE: the revision was compacted; CGN_UNAVAILABLE;
	 * ... */
	const struct cgn_err *err;
	uint64_t cluster_id;
	int64_t revision;
	const struct etcd_kv *kvs; /* Result of a range request, and of etcd_put_if when it did not put. */
	size_t n_kvs;
	bool more;          /* Range: more keys exist beyond the limit. */
	int64_t lease, ttl; /* Grant and keepalive (ttl <= 0: the lease is gone). */
	int64_t deleted;
	const struct etcd_member *members; /* etcd_member calls: all members, after the change */
	size_t n_members;
	bool did; /* etcd_put_if: the key was put, and |revision| is its revision. */
};
typedef void etcd_done_fn(void *user, const struct etcd_result *r);
struct etcd_op; /* A call in flight; valid until done. */

struct etcd_range {
	struct cgn_str key, end; /* An empty end means the single key. */
	int64_t limit, revision; /* 0: no limit, the newest revision. */
};
/* All calls return the call under way, for etcd_op_drop, until |done| runs; |done| never runs inline. */
struct etcd_op *etcd_get(struct etcd *e, const struct etcd_range *range, etcd_done_fn *done, void *user);
struct etcd_op *etcd_put(struct etcd *e, struct cgn_str key, struct cgn_str value, int64_t lease,
	etcd_done_fn *done, void *user);
/* Put the key if its revision is |mod_revision| (0: the key does not exist). Else the result has the key as it is. */
struct etcd_op *etcd_put_if(struct etcd *e, struct cgn_str key, int64_t mod_revision, struct cgn_str value,
	int64_t lease, etcd_done_fn *done, void *user);
struct etcd_op *etcd_delete(struct etcd *e, struct cgn_str key, etcd_done_fn *done, void *user);
struct etcd_op *etcd_grant(struct etcd *e, int64_t ttl_seconds, etcd_done_fn *done, void *user);
struct etcd_op *etcd_keepalive(struct etcd *e, int64_t lease, etcd_done_fn *done, void *user);
struct etcd_op *etcd_revoke(struct etcd *e, int64_t lease, etcd_done_fn *done, void *user);
/* ---- member.c: the members of etcd itself ---- */
void etcd_member_list(struct etcd *e, etcd_done_fn *done, void *user);
/* Add a member without a vote, which can start then. etcd allows one such member at a time. */
void etcd_member_add(struct etcd *e, const char *peer_url, etcd_done_fn *done, void *user);
/* Give a member a vote. etcd refuses that until the member has all that the others have. */
void etcd_member_promote(struct etcd *e, uint64_t id, etcd_done_fn *done, void *user);
void etcd_member_remove(struct etcd *e, uint64_t id, etcd_done_fn *done, void *user);

/* ---- the end of a call ---- */
/* Do not call |done| any more; the call may still take effect in etcd. Safe on NULL. */
void etcd_op_drop(struct etcd_op **take);

/* ---- a lease that is renewed ---- */
struct etcd_lease;
struct etcd_lease_ops {
	/* A new lease: put the keys under it. Called again whenever the previous lease was lost. */
	void (*on_granted)(void *user, int64_t lease);
	/* The lease could not be granted or renewed; the attempt is repeated with backoff. */
	void (*on_trouble)(void *user, const struct cgn_err *why);
	void (*on_renewed)(void *user); /* May be NULL. */
};
struct etcd_lease *etcd_lease_open(struct etcd *e, cgn_nsec ttl, const struct etcd_lease_ops *ops,
	void *user);
/* Report that another call was answered with "no such lease": a new lease is granted. */
void etcd_lease_lost(struct etcd_lease *l);
int64_t etcd_lease_id(const struct etcd_lease *l); /* 0: there is no lease now. */
/* Return when the last call was sent that granted or renewed the lease, by cgn_loop_now: etcd counts the time to
 * live from then or later, however late its answer was. */
cgn_nsec etcd_lease_held_from(const struct etcd_lease *l);
void etcd_lease_close(struct etcd_lease **take); /* Stop renewing; revoke with etcd_revoke. */

/* ---- a watched prefix ---- */
struct etcd_watch;
struct etcd_watch_ops {
	struct listwatch_news news; /* In a snapshot all existing keys come, as puts. */
	void (*on_put)(void *user, const struct etcd_kv *kv);
	void (*on_delete)(void *user, const struct etcd_kv *kv); /* Without a value. */
};
struct etcd_watch *etcd_watch_open(struct etcd *e, struct cgn_str prefix, const struct etcd_watch_ops *ops,
	void *user);
void etcd_watch_close(struct etcd_watch **take);
