/* SPDX-License-Identifier: Apache-2.0 */
/* pending: prompts sent to nodes that report their blocks, but have not reported these yet. Such a prompt
 * counts as held from its pick on, so that the next request with the same prefix goes to the same node. A
 * booking ends when its time is over without a confirming event, or at once when the request fails.
 *
 * Two tables of fixed size that all workers share without locks; entries are single atomic words. Blocks are
 * {fingerprint 40, booking 24}, by digest, in buckets of eight, the oldest replaced. Bookings are {number 24,
 * slot 12, end 28} in a ring, the oldest replaced. An end is in milliseconds, modulo three days. An entry
 * that does not fit is dropped; a false match (probability 2^-37) costs one worse prediction. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define PENDING_BYTES    (1024 * 1024) /* 131,072 blocks. */
#define PENDING_BOOKINGS 16384
#define PENDING_LONGEST  (600 * CGN_SEC)

struct pending;
struct route_cand;

/* |bytes| is the size of the table of blocks, rounded down to a power of two, at least 4 KiB. The ring takes
 * 128 KiB. */
struct pending *pending_new(size_t bytes);
void pending_free(struct pending **take);

/* Any thread. */
/* Book the prompt |chain| for the node at |slot|, which held its first |held| blocks, for |life|, at most
 * PENDING_LONGEST. Return the booking, never 0. */
uint32_t pending_add(struct pending *p, const uint64_t *chain, size_t n, uint32_t held, uint16_t slot,
	cgn_nsec now, cgn_nsec life);
/* End the booking at once, or |life| from |now|. No effect when the booking is over or was replaced. */
void pending_drop(struct pending *p, uint32_t booking);
void pending_limit(struct pending *p, uint32_t booking, cgn_nsec now, cgn_nsec life);
/* For each candidate that is fed and holds the first cand->held blocks of |chain|: add the pending blocks
 * behind them to held and by_tier[BLOCK_GPU]. |cands| ascend by slot. Never allocates. */
void pending_match(const struct pending *p, const uint64_t *chain, size_t n, struct route_cand *cands,
	size_t n_cands, cgn_nsec now);
size_t pending_bytes(const struct pending *p);
