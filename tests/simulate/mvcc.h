/* SPDX-License-Identifier: Apache-2.0 */
/* mvcc: the data of etcd: keys with revisions, leases, and all that ever changed. Pure: time is an argument. */
#pragma once
#include "base/core/list.h"
#include "base/core/str.h"

struct mvcc_event {
	int64_t revision, create, version, lease;
	bool put; /* False: the key was deleted */
	uint64_t at;
	char *key, *value;
	size_t key_n, value_n;
};
struct mvcc_lease {
	struct cgn_link link;
	int64_t id, ttl; /* Seconds */
	uint64_t ends;
};
struct mvcc {
	uint64_t cluster, term;
	int64_t revision, compacted, leases_ever;
	struct mvcc_event *events;
	size_t n, cap;
	struct cgn_link leases;
};
struct mvcc_range {
	struct cgn_str key, end; /* No end: the key alone */
	int64_t revision, limit; /* 0: the newest; no limit */
};
#define MVCC_KEYS 512 /* Keys that a range tells at most */

void mvcc_init(struct mvcc *m, uint64_t cluster);
void mvcc_fini(struct mvcc *m);
/* Copy all of |from| into |to|, which was initialised. */
void mvcc_copy(struct mvcc *to, const struct mvcc *from);
bool mvcc_in_range(const struct mvcc_range *r, struct cgn_str key);
/* The key as it is; NULL: there is none. */
const struct mvcc_event *mvcc_get(const struct mvcc *m, struct cgn_str key);
/* The last thing that happened to the key; NULL: nothing ever. */
const struct mvcc_event *mvcc_last(const struct mvcc *m, struct cgn_str key);
/* Write the range's keys to |out|, in order; at most |r->limit|. Returns how many there are. */
size_t mvcc_range(const struct mvcc *m, const struct mvcc_range *r, const struct mvcc_event *out[MVCC_KEYS]);
void mvcc_put(struct mvcc *m, struct cgn_str key, struct cgn_str value, int64_t lease, uint64_t now);
/* Delete the range, in one revision. Returns how many keys there were. */
size_t mvcc_delete(struct mvcc *m, const struct mvcc_range *r, uint64_t now);

/* ---- leases ---- */
struct mvcc_lease *mvcc_grant(struct mvcc *m, int64_t id, int64_t ttl, uint64_t now);
struct mvcc_lease *mvcc_lease(const struct mvcc *m, int64_t id); /* NULL: there is none */
void mvcc_revoke(struct mvcc *m, struct mvcc_lease *l, uint64_t now);
/* Revoke the leases whose time is over. Returns how many. */
size_t mvcc_expire(struct mvcc *m, uint64_t now);
/* A new leader: each lease has its whole time again. */
void mvcc_elect(struct mvcc *m, uint64_t now);
