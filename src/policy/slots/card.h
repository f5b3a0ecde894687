/* SPDX-License-Identifier: Apache-2.0 */
/* card: a slot's state as values of a block store. A state is one value that describes it, its card (segment
 * 0), and pieces of its files (segments 1 to n) under one key; and links, small values under the keys of some
 * of its blocks, by which it is found by whoever begins alike. Keys:
 *
 *   digest of a chain's block, first 8 bytes, little-endian | 24 bytes of BLAKE3_keyed(fingerprint, "card" or
 *   "link")
 *
 * The fingerprint is the digest of all that a state must have in common with an engine to mean the same
 * there; so a state that does not fit is never found. Numbers are little-endian. Foreign bytes: whatever is
 * not exactly a card or a link is refused. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/digest/digest.h"

#define CARD_PIECE      ((uint64_t)64 << 20) /* bytes of a segment, but for the last */
#define CARD_MAX_PIECES 4096                 /* 256 GiB */
#define CARD_MAX_CHAIN  65536
#define CARD_MAX_BYTES  ((size_t)(64 + 8 * (CARD_MAX_CHAIN + CARD_MAX_PIECES))) /* of an encoded card */
/* the state, and its context checkpoints (".ckpt"), which may be missing: 0 bytes */
#define CARD_FILES 2
#define CARD_LINKS 64 /* of one state */
#define CARD_TAIL  24

/* ---- keys ---- */
struct card_keys {
	uint8_t card[CARD_TAIL], link[CARD_TAIL];
};
void card_keys_make(const struct digest *fingerprint, struct card_keys *out);
struct digest card_key(const uint8_t tail[CARD_TAIL], uint64_t block);
bool card_key_is(const struct digest *key, const uint8_t tail[CARD_TAIL], uint64_t *block);

/* ---- cards ---- */
struct card {
	uint32_t tokens; /* in the state, prompt and answer */
	uint32_t prompt; /* of them, those of the prompt that the chain is of */
	uint64_t file_bytes[CARD_FILES];
	/* XXH3-64 of each piece: a state that was put again while it is read is not mixed with the one
	 * before */
	const uint64_t *sums;
	const uint64_t *chain; /* 1 to CARD_MAX_CHAIN blocks */
	size_t n;
};
static inline uint64_t card_bytes(const struct card *c)
{
	return c->file_bytes[0] + c->file_bytes[1];
}
static inline uint64_t card_id(const struct card *c) /* the block that it is stored under: its last */
{
	return c->chain[c->n - 1];
}
/* Each file begins a piece: piece i is segment i + 1. */
static inline uint32_t card_pieces(const struct card *c)
{
	return (uint32_t)((c->file_bytes[0] + CARD_PIECE - 1) / CARD_PIECE +
		(c->file_bytes[1] + CARD_PIECE - 1) / CARD_PIECE);
}
struct card_piece {
	unsigned file;
	uint64_t offset, bytes;
};
struct card_piece card_piece(const struct card *c, uint32_t i);
void card_write(const struct card *c, struct cgn_buf *out);
/* Sums and chain are copied to |words|, which has room for bytes.n / 8 of them. CGN_INVALID. */
CGN_RC card_read(struct cgn_str bytes, uint64_t *words, struct card *out, struct cgn_err *err);

/* ---- links ---- */
struct card_link {
	uint64_t id;                           /* of the state */
	uint32_t blocks;                       /* leading blocks of it that this link's key names */
	uint32_t tokens, prompt, chain_blocks; /* of the state */
	uint64_t bytes;
};
#define CARD_LINK_BYTES 40
void card_link_write(const struct card_link *l, uint8_t out[CARD_LINK_BYTES]);
CGN_RC card_link_read(struct cgn_str bytes, struct card_link *out, struct cgn_err *err);
/* Which blocks of a chain of |n| get one: the last, and others at equal distances. Returns how many; their
 * indices, ascending, in |at|. */
size_t card_links(size_t n, uint32_t at[CARD_LINKS]);
