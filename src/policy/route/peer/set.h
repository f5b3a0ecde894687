/* SPDX-License-Identifier: Apache-2.0 */
/* set: the fingerprints of a cluster's cached blocks, as another cluster keeps them. Pure.
 *
 * A fingerprint is the upper 32 bits of a block's short digest (policy/kv/block/tier.h). A set is an ascending array of
 * them: 4 bytes a block. A block that is not held is found with the probability n / 2^32 (0.024 % with a million blocks,
 * 0.1 % with PEER_BLOCKS). An index of more blocks is sampled: of a set with |shift| only the blocks whose digest ends
 * in |shift| zero bits are members, and a prefix is known up to its last such block.
 *
 * A small set needs fewer bits: in a set of width |w| only the upper |w| bits of each fingerprint count, and the others are
 * 0. peer_width chooses the width so that at most one in 2,048 blocks that are not held is found, where 32 bits suffice
 * for that. Sets of the same members are the same array, and have the same sum, by which two sides see that they agree. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define PEER_BLOCKS 4194304U
#define PEER_SHIFT  16 /* Greatest shift. */

#define PEER_WIDTH        32
#define PEER_WIDTH_LEAST  24
#define PEER_WIDTH_BEYOND 11 /* Bits beyond those of the number of members. */
#define PEER_WIDTH_SLACK  2  /* Bits that a width may be greater than needed, so that it seldom changes. */

/* Immutable once it is shared; counted. */
struct peer_set {
	_Atomic uint32_t refs;
	uint32_t n;
	uint32_t width; /* Bits of a fingerprint that count. */
	uint64_t sum;   /* Sum of the mixed members, modulo 2^64. */
	uint32_t v[];   /* Ascending, each once. */
};
void peer_set_ref(struct peer_set *s);       /* Any thread. */
void peer_set_unref(struct peer_set **take); /* Any thread. NULL-safe. */

static inline uint32_t peer_fingerprint(uint64_t digest)
{
	return (uint32_t)(digest >> 32);
}
static inline bool peer_sampled(uint64_t digest, unsigned shift)
{
	return (digest & ((UINT64_C(1) << shift) - 1)) == 0;
}

/* A set that is being filled, in parts that ascend. One owner. Zero is empty. */
struct peer_draft {
	struct peer_set *set; /* NULL: nothing was added. */
	size_t cap;
	size_t sorted; /* Members of the parts that are over. */
	bool bad;      /* There was no memory, or more than PEER_BLOCKS were added. */
};
void peer_draft_add(struct peer_draft *d, uint32_t fingerprint);
/* The part is over: no fingerprint of it or of those before is added any more, but equal ones. */
void peer_draft_part(struct peer_draft *d);
/* Return the set, which the caller owns; NULL: the draft was bad. The draft is empty afterwards. */
struct peer_set *peer_draft_finish(struct peer_draft *d);
void peer_draft_drop(struct peer_draft *d);

/* Return the width for a set of |n| members: |before|, the width of the set before (0: none), or a new one if that is too
 * small or much too great. */
unsigned peer_width(uint32_t n, unsigned before);
/* Make the set, which has no other reference, one of |width|, which is not greater than its own. Members that become equal are
 * one. */
void peer_set_narrow(struct peer_set *s, unsigned width);

/* Return how many leading blocks of |chain| (short digests) are held. With |shift| 0 only the last of each eight blocks
 * is looked at, and the others where it lacks. */
size_t peer_set_match(const struct peer_set *s, unsigned shift, const uint64_t *chain, size_t n);

/* Set |removed| and |added|, drafts that are empty, to what makes |after| of |before|. False: no memory. */
bool peer_set_differ(const struct peer_set *before, const struct peer_set *after, struct peer_draft *removed,
	struct peer_draft *added);
/* Return |before| without |removed| and with |added|, which the caller owns. NULL: no memory, or more than PEER_BLOCKS.
 * A member that is removed and absent, or added and present, is as if it had not been named; the sum then tells. */
struct peer_set *peer_set_change(const struct peer_set *before, const struct peer_set *removed,
	const struct peer_set *added);

/* Return the places in |s| of |some| of its members, ascending from 0, as a set that the caller owns. NULL: no memory. */
struct peer_set *peer_set_places(const struct peer_set *s, const struct peer_set *some);
/* Return the members at |places|, each below s->n, as a set that the caller owns. NULL: no memory. */
struct peer_set *peer_set_at(const struct peer_set *s, const struct peer_set *places);
