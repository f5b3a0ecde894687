/* SPDX-License-Identifier: Apache-2.0 */
/* digest: BLAKE3, and the chain of digests that names a prefix: D[-1] from model, LoRA and salt, D[i] =
 * BLAKE3 keyed with D[i-1] over block i. D[i] names everything up to block i. Any thread; one thread for each
 * object. */
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
/* The digest of bytes that come in pieces. digest_stream_add takes a struct digest_stream, as a void pointer so
 * that it can be the callback of json_str_pieces. */
struct digest_stream {
	blake3_hasher hasher;
};
void digest_stream_start(struct digest_stream *s);
void digest_stream_add(void *stream, struct cgn_str piece);
struct digest digest_stream_end(const struct digest_stream *s);
uint64_t digest_short(const struct digest *d); /* The first 8 bytes, little-endian. */

/* Return D[-1]: BLAKE3("cognitora.prefix.v1", model, 0, lora, 0, cache_salt). */
struct digest digest_chain_root(struct cgn_str model, struct cgn_str lora, struct cgn_str cache_salt);
/* Begin D[-1] in pieces: the pieces of the LoRA's name follow, then one zero byte, then the pieces of the salt. */
void digest_root_start(struct digest_stream *s, struct cgn_str model);
/* Return D[i] of a whole block, for example of its tokens as little-endian 32-bit numbers. */
static inline struct digest digest_chain_next(const struct digest *previous, struct cgn_str block)
{
	return digest_keyed(previous, block);
}
/* As digest_chain_next for |n| adjacent blocks, in half the time when they are small: |*last| goes from
 * D[i-1] to D[i+n-1], and the short forms of all go to |short_digests|. */
void digest_chain_run(struct digest *last, const void *blocks, size_t block_bytes, size_t n,
	uint64_t *short_digests);

/* A chain over bytes that come in pieces of any length. */
struct digest_chain {
	struct digest last; /* The digest of the last full block; the root before the first. */
	size_t block_bytes, filled;
	blake3_hasher block; /* The block being filled, without its last bytes, which are in |pending|. */
	size_t n_pending;
	/* Gathers short pieces, because a call into BLAKE3 costs as much as 64 bytes and text with escapes
	 * comes in short pieces. */
	char pending[256];
};
void digest_chain_start(struct digest_chain *c, const struct digest *root, size_t block_bytes);
/* Take bytes from the front of |*rest| until |*rest| is empty (false) or a block is full (true: read c->last
 * and call again). */
bool digest_chain_feed(struct digest_chain *c, struct cgn_str *rest);
