/* SPDX-License-Identifier: Apache-2.0 */
/* roster: entries by id, with leases. */
#pragma once
#include "base/core/list.h"
#include "io/os/loop/loop.h"
#include "policy/node/proto/proto.h"

#define ROSTER_BUCKETS 256
struct roster_entry {
	struct cgn_link link;
	Cognitora__V1__Node *node; /* nodes; NULL in the roster of cordons */
	cgn_nsec lease_end;        /* by cgn_loop_listened; 0: the entry has no lease */
	cgn_nsec lease;            /* duration of the lease; 0: the entry has none */
	cgn_nsec refused_at;       /* when the log had a line of another agent with this id; 0: never */
	bool marked;               /* not confirmed yet by the snapshot that is being read */
	bool recalled;             /* from the file of an earlier run, and not heard since */
	char id[];
};
struct roster {
	struct cgn_link buckets[ROSTER_BUCKETS];
	size_t n;
};
void roster_init(struct roster *r);
void roster_fini(struct roster *r);
struct roster_entry *roster_find(const struct roster *r, const char *id); /* NULL */
struct roster_entry *roster_add(struct roster *r, const char *id);
void roster_drop(struct roster *r, struct roster_entry *e);
/* Call |fn| for each entry. |fn| may drop the entry that it is given, and no other. */
void roster_each(struct roster *r, void (*fn)(void *arg, struct roster_entry *e), void *arg);
/* A snapshot: mark every entry, clear |marked| of each entry that the snapshot has, then call |gone| for the
 * entries that are still marked. |gone| may drop its entry. */
void roster_mark(struct roster *r);
void roster_sweep(struct roster *r, void (*gone)(void *arg, struct roster_entry *e), void *arg);
