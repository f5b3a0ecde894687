/* SPDX-License-Identifier: Apache-2.0 */
/* digest: BLAKE3, and the chain of digests that names a prefix: D[-1] from model, LoRA and salt, D[i] = keyed
 * by D[i-1] over block i. D[i] names everything up to block i. Any thread; an object belongs to one. */
#pragma once
#include <blake3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

#define DIGEST_BYTES 32

struct digest {
	uint8_t b[DIGEST_BYTES];
};

struct digest digest_of(struct cgn_str bytes);
struct digest digest_keyed(const struct digest *key, struct cgn_str bytes);
uint64_t digest_short(const struct digest *d); /* first 8 bytes, little-endian */

/* D[-1]: BLAKE3("cognitora.prefix.v1", model, 0, lora, 0, cache_salt). */
struct digest digest_chain_root(struct cgn_str model, struct cgn_str lora, struct cgn_str cache_salt);
/* D[i] of a whole block at once, e.g. of its tokens as little-endian 32-bit numbers. */
static inline struct digest digest_chain_next(const struct digest *previous, struct cgn_str block)
{
	return digest_keyed(previous, block);
}
/* The same for |n| blocks that lie one behind the other, in half the time when they are small: |*last| goes
 * from D[i-1] to D[i+n-1], the short forms of all to |short_digests|. */
void digest_chain_run(struct digest *last, const void *blocks, size_t block_bytes, size_t n,
	uint64_t *short_digests);

/* The same for bytes that come in pieces of any length. */
struct digest_chain {
	struct digest last; /* of the last full block, the root before */
	size_t block_bytes, filled;
	blake3_hasher block; /* of the block being filled, but for its last bytes: */
	size_t n_pending;
	/* a call into BLAKE3 costs as much as 64 bytes, and text with escapes comes in short pieces */
	char pending[256];
};
void digest_chain_start(struct digest_chain *c, const struct digest *root, size_t block_bytes);
/* Take bytes from the front of |*rest| until it is empty (false) or a block is full (true: read c->last, call
 * again). */
bool digest_chain_feed(struct digest_chain *c, struct cgn_str *rest);
