/* SPDX-License-Identifier: Apache-2.0 */
/* pending: prompts on their way to nodes that say themselves what they hold, but have not said it yet. Such a
 * prompt counts as held from its pick on, so that what comes right behind it with the same beginning goes to
 * the same node; a booking that no event confirms is gone when its time is over, and at once when the request
 * failed.
 *
 * Two tables of fixed size that all workers share without locks; entries are single atomic words. Of blocks
 * {fingerprint 40, booking 24}, by digest, in buckets of eight of which the oldest goes; of bookings {number
 * 24, slot 12, end 28}, a ring: the oldest goes. An end is in milliseconds, modulo three days. What does not
 * fit is forgotten, a wrong match (2^-37) costs one worse guess. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define PENDING_BYTES    (1024 * 1024) /* 131,072 blocks */
#define PENDING_BOOKINGS 16384
#define PENDING_LONGEST  (600 * CGN_SEC)

struct pending;
struct route_cand;

/* |bytes|: of the blocks, rounded down to a power of two, at least 4 KiB; the ring takes 128 KiB. */
CGN_RC pending_new(size_t bytes, struct pending **out, struct cgn_err *err);
void pending_free(struct pending **take);

/* Any thread. */
/* The prompt |chain| is on its way to the node at |slot|, which held the first |held| blocks of it: for so
 * long, at most PENDING_LONGEST. Returns the booking, never 0. */
uint32_t pending_add(struct pending *p, const uint64_t *chain, size_t n, uint32_t held, uint16_t slot,
	cgn_nsec now, cgn_nsec life);
/* The booking is gone, or ends |life| from now. Nothing when it is over, or was forgotten. */
void pending_drop(struct pending *p, uint32_t booking);
void pending_limit(struct pending *p, uint32_t booking, cgn_nsec now, cgn_nsec life);
/* Of each candidate that is fed, which holds the first cand->held blocks of |chain|: count those behind them
 * that are on their way, in held and in by_tier[BLOCK_GPU]. |cands| ascend by slot. Never allocates. */
void pending_match(const struct pending *p, const uint64_t *chain, size_t n, struct route_cand *cands,
	size_t n_cands, cgn_nsec now);
size_t pending_bytes(const struct pending *p);
