/* SPDX-License-Identifier: Apache-2.0 */
/* value: how all ports read values, and the limit of what clients hold of the RAM tier. */
#pragma once
#include "kvcached/daemon/kvcached.h"

#define VALUE_HERE_ONLY     0U
#define VALUE_WORTH_UNKNOWN UINT32_MAX
/* Return |worth_ms| for value_get from the fields of a request. */
static inline uint32_t value_worth(bool peers, uint32_t budget_ms)
{
	return !peers ? VALUE_HERE_ONLY : budget_ms > 0 ? budget_ms : VALUE_WORTH_UNKNOWN;
}
/* Read a value from any tier, and then from a peer unless |worth_ms| is VALUE_HERE_ONLY. |worth_ms|: the cost of
 * not having the value; a peer is asked only if it is faster than that (kvfetch_worth). |sites|: those whose stores may be asked
 * (kvsites_of_tenant). Otherwise as kvstore_get. */
struct value_read;
struct value_read *value_get(struct kvcached *d, struct cgn_loop *l, const struct block_key *k,
	uint32_t worth_ms, uint16_t sites, kvstore_read_done done, void *user);
/* Give a fetch from a peer the span "kv fetch" below |parent|'s, which lives as long as the read. Call after
 * value_get. */
struct tracing_context;
void value_read_trace(struct value_read *r, const struct tracing_context *parent);
void value_read_cancel(struct value_read **take); /* NULL-safe */
/* As kvstore_lookup. |peers|: a block that only a peer has, of this site or of |sites|, counts too, with tier BLOCK_REMOTE. */
bool value_lookup(struct kvcached *d, const struct block_key *k, bool peers, uint16_t sites,
	struct block_info *out);
/* Return the time for kvstore_pin: |for_ms| from now. 0: unpin; UINT64_MAX: until unpinned. */
uint64_t value_pin_until(uint64_t for_ms);

/* Count |bytes| of the RAM tier that a client keeps from eviction, by reading slowly, holding leases, or
 * announcing bytes. Returns false when all clients together would hold over half of the budget. Any thread. */
bool value_hold(struct kvcached *d, uint64_t bytes);
void value_unhold(struct kvcached *d, uint64_t bytes);
