/* SPDX-License-Identifier: Apache-2.0 */
/* set: the fingerprints of a cluster's cached blocks, as another cluster keeps them. Pure.
 *
 * A fingerprint is the upper 32 bits of a block's short digest (policy/kv/block/tier.h). A set is an ascending array of
 * them: 4 bytes a block. A block that is not held is found with the probability n / 2^32 (0.024 % with a million blocks,
 * 0.1 % with REMOTE_BLOCKS). An index of more blocks is sampled: of a set with |shift| only the blocks whose digest ends
 * in |shift| zero bits are members, and a prefix is known up to its last such block.
 *
 * A small set needs fewer bits: in a set of width |w| only the upper |w| bits of each fingerprint count, and the others are
 * 0. remote_width chooses the width so that at most one in 2,048 blocks that are not held is found, where 32 bits suffice
 * for that. Sets of the same members are the same array, and have the same sum, by which two sides see that they agree. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define REMOTE_BLOCKS 4194304U
#define REMOTE_SHIFT  16 /* Greatest shift. */

#define REMOTE_WIDTH        32
#define REMOTE_WIDTH_LEAST  24
#define REMOTE_WIDTH_BEYOND 11 /* Bits beyond those of the number of members. */
#define REMOTE_WIDTH_SLACK  2  /* Bits that a width may be greater than needed, so that it seldom changes. */

/* Immutable once it is shared; counted. */
struct remote_set {
	_Atomic uint32_t refs;
	uint32_t n;
	uint32_t width; /* Bits of a fingerprint that count. */
	uint64_t sum;   /* Sum of the mixed members, modulo 2^64. */
	uint32_t v[];   /* Ascending, each once. */
};
void remote_set_ref(struct remote_set *s);       /* Any thread. */
void remote_set_unref(struct remote_set **take); /* Any thread. NULL-safe. */

static inline uint32_t remote_fingerprint(uint64_t digest)
{
	return (uint32_t)(digest >> 32);
}
static inline bool remote_sampled(uint64_t digest, unsigned shift)
{
	return (digest & ((UINT64_C(1) << shift) - 1)) == 0;
}

/* A set that is being filled, in parts that ascend. One owner. Zero is empty. */
struct remote_draft {
	struct remote_set *set; /* NULL: nothing was added. */
	size_t cap;
	size_t sorted; /* Members of the parts that are over. */
	bool bad;      /* There was no memory, or more than REMOTE_BLOCKS were added. */
};
void remote_draft_add(struct remote_draft *d, uint32_t fingerprint);
/* The part is over: no fingerprint of it or of those before is added any more, but equal ones. */
void remote_draft_part(struct remote_draft *d);
/* Return the set, which the caller owns; NULL: the draft was bad. The draft is empty afterwards. */
struct remote_set *remote_draft_finish(struct remote_draft *d);
void remote_draft_drop(struct remote_draft *d);

/* Return the width for a set of |n| members: |before|, the width of the set before (0: none), or a new one if that is too
 * small or much too great. */
unsigned remote_width(uint32_t n, unsigned before);
/* Make the set, which has no other reference, one of |width|, which is not greater than its own. Members that become equal are
 * one. */
void remote_set_narrow(struct remote_set *s, unsigned width);

/* Return how many leading blocks of |chain| (short digests) are held. With |shift| 0 only the last of each eight blocks
 * is looked at, and the others where it lacks. */
size_t remote_set_match(const struct remote_set *s, unsigned shift, const uint64_t *chain, size_t n);

/* Set |removed| and |added|, drafts that are empty, to what makes |after| of |before|. False: no memory. */
bool remote_set_differ(const struct remote_set *before, const struct remote_set *after,
	struct remote_draft *removed, struct remote_draft *added);
/* Return |before| without |removed| and with |added|, which the caller owns. NULL: no memory, or more than REMOTE_BLOCKS.
 * A member that is removed and absent, or added and present, is as if it had not been named; the sum then tells. */
struct remote_set *remote_set_change(const struct remote_set *before, const struct remote_set *removed,
	const struct remote_set *added);

/* Return the places in |s| of |some| of its members, ascending from 0, as a set that the caller owns. NULL: no memory. */
struct remote_set *remote_set_places(const struct remote_set *s, const struct remote_set *some);
/* Return the members at |places|, each below s->n, as a set that the caller owns. NULL: no memory. */
struct remote_set *remote_set_at(const struct remote_set *s, const struct remote_set *places);
