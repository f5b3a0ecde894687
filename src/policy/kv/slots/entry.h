/* SPDX-License-Identifier: Apache-2.0 */
/* entry: a slot's state as values of a block store. A state is one describing value, its slot entry (segment
 * 0), and the pieces of its files (segments 1 to n) under the same key; and links, small values under the
 * keys of some of its blocks, by which a chain with the same beginning finds the state. Keys:
 *
 *   digest of a chain's block, first 8 bytes, little-endian | 24 bytes of BLAKE3_keyed(fingerprint, "card" or
 *   "link")
 *
 * The fingerprint is the digest of everything that two engines must have in common to share a state, so a
 * state that does not fit is never found. Numbers are little-endian. The bytes are untrusted: a value that is
 * not exactly an entry or a link is refused. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/digest/digest.h"

#define SLOT_PIECE_BYTES      ((uint64_t)64 << 20) /* Bytes of a piece; the last piece of a file is shorter */
#define SLOT_ENTRY_MAX_PIECES 4096                 /* 256 GiB */
#define SLOT_ENTRY_MAX_CHAIN  65536
#define SLOT_ENTRY_MAX_BYTES \
	((size_t)(64 + 8 * (SLOT_ENTRY_MAX_CHAIN + SLOT_ENTRY_MAX_PIECES))) /* Bytes of an encoded entry */
/* The state, and its context checkpoints (".ckpt"), whose file may be missing: 0 bytes */
#define SLOT_ENTRY_FILES 2
#define SLOT_ENTRY_LINKS 64 /* Links of one state */
#define SLOT_KEY_TAIL    24

/* ---- keys ---- */
struct slot_keys {
	uint8_t entry[SLOT_KEY_TAIL], link[SLOT_KEY_TAIL];
};
void slot_keys_make(const struct digest *fingerprint, struct slot_keys *out);
struct digest slot_key(const uint8_t tail[SLOT_KEY_TAIL], uint64_t block);
bool slot_key_is(const struct digest *key, const uint8_t tail[SLOT_KEY_TAIL], uint64_t *block);

/* ---- entries ---- */
struct slot_entry {
	uint32_t tokens; /* Tokens in the state, prompt and answer */
	uint32_t prompt; /* Tokens of the prompt to which the chain belongs */
	uint64_t file_bytes[SLOT_ENTRY_FILES];
	/* XXH3-64 of each piece, so that pieces of a state that is put again during a restore are not
	 * mixed */
	const uint64_t *sums;
	const uint64_t *chain; /* 1 to SLOT_ENTRY_MAX_CHAIN blocks */
	size_t n;
};
static inline uint64_t slot_entry_bytes(const struct slot_entry *c)
{
	return c->file_bytes[0] + c->file_bytes[1];
}
static inline uint64_t slot_entry_id(
	const struct slot_entry *c) /* The last block, under which the state is stored */
{
	return c->chain[c->n - 1];
}
/* Each file begins with a new piece. Piece i is segment i + 1. */
static inline uint32_t slot_entry_pieces(const struct slot_entry *c)
{
	return (uint32_t)((c->file_bytes[0] + SLOT_PIECE_BYTES - 1) / SLOT_PIECE_BYTES +
		(c->file_bytes[1] + SLOT_PIECE_BYTES - 1) / SLOT_PIECE_BYTES);
}
struct slot_entry_piece {
	unsigned file;
	uint64_t offset, bytes;
};
struct slot_entry_piece slot_entry_piece(const struct slot_entry *c, uint32_t i);
void slot_entry_write(const struct slot_entry *c, struct cgn_buf *out);
/* Decode an entry. Sums and chain are copied to |words|, which has room for bytes.n / 8 words.
 * CGN_INVALID. */
CGN_RC slot_entry_read(struct cgn_str bytes, uint64_t *words, struct slot_entry *out, struct cgn_err *err);

/* ---- links ---- */
struct slot_link {
	uint64_t id; /* The state's */
	/* Leading blocks of the state's chain that the link's key names */
	uint32_t blocks;
	uint32_t tokens, prompt, chain_blocks; /* The state's */
	uint64_t bytes;
};
#define SLOT_LINK_BYTES 40
void slot_link_write(const struct slot_link *l, uint8_t out[SLOT_LINK_BYTES]);
CGN_RC slot_link_read(struct cgn_str bytes, struct slot_link *out, struct cgn_err *err);
/* Choose the blocks of a chain of |n| blocks that get a link: the last one, and others at equal distances.
 * Returns how many; their indices, ascending, are in |at|. */
size_t slot_entry_links(size_t n, uint32_t at[SLOT_ENTRY_LINKS]);
