/* SPDX-License-Identifier: Apache-2.0 */
/* record: which node was sent which prefix. A set-associative table of fixed size that all workers share
 * without locks.
 *
 * Buckets are one cache line: eight entries of {fingerprint 28, node 12, generation 8, age 16} bits. The
 * block's digest and the node's group (eight neighbouring slots) choose the bucket, so that one probe answers
 * for eight nodes and a prefix that every node holds has room. Entries are single atomic words: a reader sees
 * an entry whole or not at all, and a lost race between two writers drops one block. A false match
 * (probability 2^-28 an entry) costs one worse prediction. The record is an estimate: engines decide which
 * blocks they keep. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define ROUTE_MAX_NODES 4096
/* Leading blocks of a chain that are considered. */
#define ROUTE_MAX_BLOCKS 4096
#define ROUTE_GROUP      8

struct route_record;
struct route_cand;

/* |bytes| is rounded down to a power of two, at least 64 KiB. Pages are touched only as they fill. */
CGN_RC route_record_new(size_t bytes, struct route_record **out, struct cgn_err *err);
void route_record_free(struct route_record **take);

/* Any thread. */
/* Record that the node at |slot| was sent the prefix |chain| (block digests). Leading blocks recorded
 * recently are not refreshed. */
void route_record_add(struct route_record *r, const uint64_t *chain, size_t n, uint16_t slot);
/* Record that the node no longer holds these blocks. */
void route_record_drop(struct route_record *r, const uint64_t *chain, size_t n, uint16_t slot);
/* Set cand->held of each candidate that is not fed, or only lately: how many leading blocks of |chain| it holds. Only the
 * last of each eight blocks is looked at, and the others where a candidate lacks it: a missing block in the
 * middle may go unnoticed. |cands| ascend by slot. Never allocates. */
void route_record_match(const struct route_record *r, const uint64_t *chain, size_t n,
	struct route_cand *cands, size_t n_cands);
/* Invalidate all records of |slot|: the node left or lost its cache. */
void route_record_forget(struct route_record *r, uint16_t slot);
/* Set the capacity of the node's KV cache in blocks (0: unknown). Blocks sent longer ago than that do not
 * count. */
void route_record_capacity(struct route_record *r, uint16_t slot, uint64_t blocks);

/* Approximate number of entries in use. */
uint64_t route_record_blocks(const struct route_record *r);
uint64_t route_record_blocks_of(const struct route_record *r, uint16_t slot); /* Approximate. */
size_t route_record_bytes(const struct route_record *r);
