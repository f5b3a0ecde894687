/* SPDX-License-Identifier: Apache-2.0 */
/* digest: BLAKE3, and the chain of digests that names a prefix: D[-1] from model, LoRA and salt, D[i] =
 * BLAKE3 keyed with D[i-1] over the BLAKE3 hash of block i, or over block i itself if it has at most 64 bytes
 * and not 32. D[i] names everything up to block i. The blocks' hashes do not depend on each other, so that a
 * CPU with vectors computes up to DIGEST_LANES of them at once; one compression each links them. Any thread;
 * one thread for each object. */
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
	uint64_t n; /* Bytes added, of the part in a root. */
};
void digest_stream_start(struct digest_stream *s);
void digest_stream_add(void *stream, struct cgn_str piece);
struct digest digest_stream_end(const struct digest_stream *s);
uint64_t digest_short(const struct digest *d); /* The first 8 bytes, little-endian. */

#define DIGEST_VERSION 2 /* Changes with the way in which digests are made. */
/* Return D[-1]: BLAKE3("cognitora.prefix.v2", model, lora, cache_salt), each part followed by its length as a
 * little-endian 64-bit number, so that no part can be chosen to look like two. */
struct digest digest_chain_root(struct cgn_str model, struct cgn_str lora, struct cgn_str cache_salt);
/* Begin D[-1] in pieces: the pieces of the LoRA's name and of the salt follow, with digest_root_end_part after
 * the last piece of each. */
void digest_root_start(struct digest_stream *s, struct cgn_str model);
void digest_root_end_part(struct digest_stream *s);
/* Return D[i] of a whole block, for example of its tokens as little-endian 32-bit numbers. */
struct digest digest_chain_next(const struct digest *previous, struct cgn_str block);
/* As digest_chain_next for |n| adjacent blocks, in a fraction of the time: |*last| goes from D[i-1] to
 * D[i+n-1], and the short forms of all go to |short_digests|. */
void digest_chain_run(struct digest *last, const void *blocks, size_t block_bytes, size_t n,
	uint64_t *short_digests);

#define DIGEST_LANES 16 /* Blocks that are hashed at once, with AVX-512. */
#define DIGEST_STAGE 4096

/* A chain over bytes that come in pieces of any length. */
struct digest_chain {
	struct digest last; /* The digest of the last block before |staged|; the root before the first. */
	uint64_t *short_digests; /* The caller's, with room for |cap|. */
	size_t n, cap;
	size_t block_bytes;
	size_t n_staged, n_hashed;
	blake3_hasher large;       /* A block longer than |staged|, of which |n_hashed| bytes were added. */
	char staged[DIGEST_STAGE]; /* Gathers pieces, until several blocks can be hashed at once. */
};
void digest_chain_start(struct digest_chain *c, const struct digest *root, size_t block_bytes,
	uint64_t *short_digests, size_t cap);
/* Add bytes. After |cap| blocks no more are taken. */
void digest_chain_add(struct digest_chain *c, struct cgn_str bytes);
/* Return true when |cap| blocks are full, hashed or not. */
static inline bool digest_chain_full(const struct digest_chain *c)
{
	return c->n + c->n_staged / c->block_bytes >= c->cap;
}
/* Hash the full blocks that wait for more: afterwards |n|, |short_digests| and |last| cover all full blocks. */
void digest_chain_flush(struct digest_chain *c);
/* Return the bytes after the last full block; call after digest_chain_flush. */
static inline size_t digest_chain_rest(const struct digest_chain *c)
{
	return c->n_hashed + c->n_staged;
}
