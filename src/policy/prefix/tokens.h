/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: token ids as a chain of digests, one per full block: D[i] is keyed by D[i-1] over the block's ids
 * as little-endian 32-bit numbers (base/digest), which is how an engine's own blocks are named from its KV
 * events. Pure; an object belongs to one thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/digest/digest.h"

#define TOKENS_BLOCK_MAX 1024 /* tokens in a block, at most */
/* Ids from here on are no vocabulary's: what stands for a picture or a sound, so that its blocks are never
 * those of a text. */
#define TOKENS_FOREIGN 0x80000000U

struct prefix_tokens {
	struct digest last;      /* of the last full block, the root before */
	uint32_t block_tokens;   /* 1..TOKENS_BLOCK_MAX */
	uint32_t n_left;         /* tokens behind the last full block, below block_tokens */
	uint64_t n_tokens;       /* taken in all */
	uint64_t *short_digests; /* the caller's: room for |cap| */
	size_t n, cap;
	uint32_t left[TOKENS_BLOCK_MAX];
};

void prefix_tokens_start(struct prefix_tokens *c, const struct digest *root, uint32_t block_tokens,
	uint64_t *short_digests, size_t cap);
/* Beyond |cap| blocks nothing is taken any more. */
void prefix_tokens_add(struct prefix_tokens *c, const uint32_t *ids, size_t n);
/* Something that is no text, as ids at TOKENS_FOREIGN or above. */
#define PREFIX_FOREIGN_IDS (DIGEST_BYTES / 4)
void prefix_tokens_foreign(const struct digest *what, uint32_t ids[PREFIX_FOREIGN_IDS]);
static inline bool prefix_tokens_full(const struct prefix_tokens *c)
{
	return c->n == c->cap;
}
