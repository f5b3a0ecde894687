/* SPDX-License-Identifier: Apache-2.0 */
/* kvindex segments: keys and ages, the two buckets of a digest, and the table of a segment (segment.c). */
#pragma once
#include "policy/kv/kvindex/kvindex_priv.h"

static inline struct segment *segment_of(struct kvindex *ix, uint64_t digest)
{
	return &ix->segments[digest >> 54];
}
#define KEY_BITS 54
static inline bool key_is(uint64_t key, uint64_t digest)
{
	return (key ^ digest) << (64 - KEY_BITS) == 0;
}
static inline uint8_t key_age(uint64_t key)
{
	return (uint8_t)(key >> KEY_BITS);
}
static inline uint64_t key_of(uint64_t digest, uint8_t age)
{
	return (digest & ((UINT64_C(1) << KEY_BITS) - 1)) | (uint64_t)age << KEY_BITS;
}
static inline uint64_t key_digest(const struct kvindex *ix, const struct segment *s, uint64_t key)
{
	return (uint64_t)(s - ix->segments) << KEY_BITS | key_of(key, 0);
}
/* Set the age of |slot| to |now|. |key| was read a moment ago; a slot that changed since is left alone. */
static inline void slot_touch(struct slot *slot, uint64_t key, uint8_t now)
{
	if (key_age(key) != now)
		(void)atomic_compare_exchange_strong_explicit(&slot->key, &key, key_of(key, now),
			memory_order_relaxed, memory_order_relaxed);
}
/* Hash a digest or a key. */
static inline uint64_t spread(uint64_t seed, uint64_t key)
{
	uint64_t x = mix_golden(key << (64 - KEY_BITS) ^ seed);
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ULL;
	return x ^ x >> 32;
}
static inline uint32_t first_bucket(uint64_t spread, uint32_t n)
{
	return (uint32_t)((spread >> 32) * n >> 32);
}
static inline uint32_t second_bucket(uint64_t spread, uint32_t n)
{
	uint32_t b = (uint32_t)((spread & UINT32_MAX) * n >> 32);
	return b != first_bucket(spread, n) ? b : b + 1 < n ? b + 1 : 0;
}
static inline struct table *segment_table(struct segment *s) /* Writer only. */
{
	return atomic_load_explicit(&s->at[atomic_load_explicit(&s->cur, memory_order_relaxed)].table,
		memory_order_relaxed);
}
static inline uint32_t segment_buckets(struct segment *s) /* Writer only. */
{
	return atomic_load_explicit(&s->at[atomic_load_explicit(&s->cur, memory_order_relaxed)].n_buckets,
		memory_order_relaxed);
}
/* Return the slot of |digest| or NULL. With |touch|, set the slot's age to now. */
struct slot *segment_find(struct kvindex *ix, uint64_t digest, bool touch);
/* Insert a block that is not in the segment. Grow the segment, or shed other blocks when it may not grow.
 * Return false when neither made room. */
bool segment_insert(struct kvindex *ix, uint64_t digest, uint64_t holders);
/* Empty a slot. The caller retires the set of the old |holders|. */
void segment_remove(struct kvindex *ix, struct segment *s, struct slot *slot);
/* Call once before a pass that empties many slots with segment_remove_next and fills none. */
void segment_bump(struct segment *s);
void segment_remove_next(struct kvindex *ix, struct segment *s, struct slot *slot);
/* Shrink the table when it is too empty. */
void segment_fit(struct kvindex *ix, struct segment *s);
/* Shed the oldest sixteenth, at least one block. Return false when the segment is empty. */
bool segment_shed(struct kvindex *ix, struct segment *s);
