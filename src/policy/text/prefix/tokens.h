/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: token ids as a chain of digests, one per full block: D[i] is linked to D[i-1] and the hash of the block's ids
 * as little-endian 32-bit numbers (base/digest). Engine blocks get the same names from KV events. Pure; an
 * object belongs to one thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/digest/digest.h"

#define TOKENS_BLOCK_MAX 1024 /* Most tokens in a block. */
/* Ids from here on are in no vocabulary. They stand for an image or a sound, so that its blocks never equal
 * those of a text. */
#define TOKENS_FOREIGN 0x80000000U

struct prefix_tokens {
	struct digest last;      /* Digest of the last full block; at first the root. */
	uint32_t block_tokens;   /* 1..TOKENS_BLOCK_MAX. */
	uint32_t n_left;         /* Tokens after the last full block, below block_tokens. */
	uint64_t n_tokens;       /* Tokens taken in all. */
	uint64_t *short_digests; /* The caller's, with room for |cap|. */
	size_t n, cap;
	uint32_t left[TOKENS_BLOCK_MAX];
};

void prefix_tokens_start(struct prefix_tokens *c, const struct digest *root, uint32_t block_tokens,
	uint64_t *short_digests, size_t cap);
/* Add ids. After |cap| blocks no more are taken. */
void prefix_tokens_add(struct prefix_tokens *c, const uint32_t *ids, size_t n);
/* Turn a digest of something other than text into ids from TOKENS_FOREIGN on. */
#define PREFIX_FOREIGN_IDS (DIGEST_BYTES / 4)
void prefix_tokens_foreign(const struct digest *what, uint32_t ids[PREFIX_FOREIGN_IDS]);
static inline bool prefix_tokens_full(const struct prefix_tokens *c)
{
	return c->n == c->cap;
}
