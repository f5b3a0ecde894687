/* SPDX-License-Identifier: Apache-2.0 */
/* tokens: the simulator's tokenizer and the hash chain over its tokens. Pure.
 *
 * The vocabulary is computed, not a table: any text round-trips exactly, and about four bytes of English make
 * a token:
 *   [0, 256) one byte
 *   [256, 1366) one to three decimal digits
 *   [1366, 49427886) one to five ASCII letters, lower case but for an optional first capital, with an
 *   optional space in
 *   front
 *   [50000000, ...) markers of the chat template and image patches, never part of a text
 *
 * Cutting is greedy from the left: a longer word is several tokens of five letters. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/str.h"
#include "base/digest/digest.h"
#include "lab/enginemodel/contents.h"

enum sim_marker {
	SIM_TOK_SYSTEM = 50000000,
	SIM_TOK_USER,
	SIM_TOK_ASSISTANT,
	SIM_TOK_TOOL,
	SIM_TOK_END,
	SIM_TOK_PATCH_0, /* An image is SIM_IMAGE_TOKENS of these. */
	SIM_TOK_LAST = SIM_TOK_PATCH_0 + 0xffff,
};
#define SIM_TOKEN_TEXT_MAX 16
#define SIM_IMAGE_TOKENS   256 /* A 512 x 512 image in 32 x 32 patches. */

/* Cut one token off the front of |*rest|, which must not be empty. Returns its text, a part of |*rest|, and
 * |*id|. */
struct cgn_str sim_token_cut(struct cgn_str *rest, uint32_t *id);
/* Write the bytes of |id| into |out|. Returns their number, 0 when there is no such token. */
size_t sim_token_text(uint32_t id, char out[SIM_TOKEN_TEXT_MAX]);
/* Return a word as a function of |draw|. */
uint32_t sim_token_any(uint64_t draw);

/* A chain over tokens with two results: a hash of each full block and its prefix, rooted in model and salt
 * (the key of the prefix cache); and a digest of the tokens alone (the seed of the answer). 64 bits, not
 * cryptographic, which is enough for a simulated cache. Tokens beyond |max_tokens| are counted and not
 * kept. */
struct sim_chain {
	uint64_t *hashes; /* Owned; n of them, cap allocated. */
	uint32_t n, cap;
	uint32_t block_tokens, in_block;
	uint64_t n_tokens, max_tokens;
	uint64_t root, digest, part;
	bool keep;                             /* Keep contents too. */
	struct enginemodel_contents *contents; /* Owned; NULL until the first token. */
	/* Digest of the last full block; of the root before the first one. */
	struct digest last;
	uint32_t model;
	struct cgn_str salt; /* Borrowed until the first token. */
};
struct sim_chain_cfg {
	struct cgn_str model, salt; /* Borrowed until the chain has its first token. */
	uint32_t model_index, block_tokens;
	uint64_t max_tokens;
	bool keep; /* Keep the contents of full blocks, for events and digests. */
};
void sim_chain_init(struct sim_chain *c, const struct sim_chain_cfg *cfg);
void sim_chain_fini(struct sim_chain *c);
void sim_chain_add(struct sim_chain *c, uint32_t id);
void sim_chain_text(struct sim_chain *c, struct cgn_str text);
/* Add a text in which markers ("<|user|>") become marker tokens. */
void sim_chain_marked(struct sim_chain *c, struct cgn_str text);
/* Add SIM_IMAGE_TOKENS patches that depend on the image's |source| (its URL or data). */
void sim_chain_image(struct sim_chain *c, struct cgn_str source);
/* Return a digest of all tokens so far, independent of model and salt. */
uint64_t sim_chain_digest(const struct sim_chain *c);
/* Make an independent copy with room to grow. */
void sim_chain_copy(struct sim_chain *to, const struct sim_chain *from);

uint64_t sim_hash(struct cgn_str s);
