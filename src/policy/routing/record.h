/* SPDX-License-Identifier: Apache-2.0 */
/* record: which node was sent which prefix. A fixed-size set-associative table that all workers share without
 * locks.
 *
 * Buckets are one cache line: eight entries of {fingerprint 28, node 12, generation 8, age 16} bits. A
 * block's digest and the node's group (eight neighbouring slots) choose the bucket, so one probe answers for
 * eight nodes and a prefix that every node holds has room. Entries are single atomic words: a reader sees one
 * whole or not at all, and a lost race between two writers costs one forgotten block. A wrong match (2^-28 an
 * entry) costs one worse guess. Nothing here is ever more than a guess: engines decide what they still
 * hold. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define ROUTE_MAX_NODES 4096
/* leading blocks of a chain that are looked at; the rest of a longer prompt is not counted */
#define ROUTE_MAX_BLOCKS 4096
#define ROUTE_GROUP      8

struct route_record;
struct route_cand;

/* |bytes| is rounded down to a power of two, at least 64 KiB. Pages are touched only as they fill. */
CGN_RC route_record_new(size_t bytes, struct route_record **out, struct cgn_err *err);
void route_record_free(struct route_record **take);

/* Any thread. */
/* The node at |slot| was sent the prefix whose block digests are |chain|. Leading blocks that it was sent not
 * long ago are left as they are. */
void route_record_add(struct route_record *r, const uint64_t *chain, size_t n, uint16_t slot);
/* It no longer holds these blocks. */
void route_record_drop(struct route_record *r, const uint64_t *chain, size_t n, uint16_t slot);
/* Set cand->held of each candidate that is not fed: how many leading blocks of |chain| it holds. Of eight
 * blocks the last is looked at, and only where not all that are left hold it, each: one that is missing in
 * the middle may not be noticed. |cands| ascend by slot. Never allocates. */
void route_record_match(const struct route_record *r, const uint64_t *chain, size_t n,
	struct route_cand *cands, size_t n_cands);
/* Nothing that was recorded for |slot| counts any more: the node left, or forgot. */
void route_record_forget(struct route_record *r, uint16_t slot);
/* The node's KV cache has room for so many blocks (0: unknown): what it was sent longer ago than that is not
 * counted. */
void route_record_capacity(struct route_record *r, uint16_t slot, uint64_t blocks);

uint64_t route_record_blocks(const struct route_record *r);                   /* entries in use, about */
uint64_t route_record_blocks_of(const struct route_record *r, uint16_t slot); /* about */
size_t route_record_bytes(const struct route_record *r);
