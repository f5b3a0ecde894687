/* SPDX-License-Identifier: Apache-2.0 */
/* encode: a rendered prompt as a chain of its tokens, of which only what is new is tokenised.
 *
 * The text is cut where a tokenizer may be cut (tokenizer_cuts) and no closer than ENCODE_SEGMENT bytes,
 * always at the same places for the same beginning, and where a medium stands. Behind each segment the
 * chain's state is kept in a promptcache, and behind the whole text when much of it has no cut. Keys are
 * BLAKE3 chained from segment to segment, so a prompt is hashed once however long its conversation is.
 *
 * In four steps, so that the third can be done on another thread: prompt_encode_open, prompt_encode_resume, prompt_encode_run,
 * prompt_encode_finish. Memory: 24 bytes a segment, 4 a token, and what the tokenizer takes. Of a text that is
 * longer than its chain can ever be, the front alone is looked at. Pure. */
#pragma once
#include "policy/prefix/promptcache.h"
#include "policy/prompt/prompt.h"
#include "policy/tokenizer/tokenizer.h"

#define ENCODE_SEGMENT 512
/* a prompt has a token at least every so many bytes, or its chain is shorter than it could be */
#define ENCODE_TOKEN_BYTES 16

struct prompt_encode_segment {
	size_t start, end; /* of the text */
	int medium;        /* that stands in front of it; -1: none */
	size_t n_ids;      /* once it was run */
};
struct encode {
	const struct tokenizer *tokenizer;
	struct cgn_str text;                    /* borrowed */
	const struct digest *media;             /* borrowed */
	unsigned flags;                         /* TOKENIZER_SPECIALS or 0 */
	bool cut;                               /* the text goes on behind what is looked at */
	struct prompt_encode_segment *segments; /* owned */
	struct promptcache_key *keys;           /* owned; of the leading n_keys segments */
	size_t n_segments, n_keys, known, cap;
	size_t max_ids;
	struct tokenizer_ids ids; /* of the segments that were not known */
};

struct prompt_encode_ask {
	const struct tokenizer *tokenizer; /* outlives it */
	/* of the keys: the chain's, and what else its tokens and blocks depend on */
	struct digest root;
	struct cgn_str text;
	bool specials; /* add what the tokenizer puts around a text */
	/* whose marks (PROMPT_MEDIUM) stand in the text, in order; one that does not comes last */
	const struct digest *media;
	size_t n_media;
	size_t max_ids; /* the chain takes no more */
};
/* CGN_NO_MEMORY. prompt_encode_close in either case. */
CGN_RC prompt_encode_open(struct encode *e, const struct prompt_encode_ask *ask, struct cgn_err *err);
void prompt_encode_close(struct encode *e);
/* Set |chain|, just started, to what is known. Returns how many bytes are left to be tokenised. */
size_t prompt_encode_resume(struct encode *e, struct promptcache *cache, struct prefix_tokens *chain);
/* Tokenise the rest. Any thread. As tokenizer_encode. */
CGN_RC prompt_encode_run(struct encode *e, struct tokenizer_work *work, struct cgn_err *err);
/* Complete |chain|, and keep what is new. */
void prompt_encode_finish(struct encode *e, struct promptcache *cache, struct prefix_tokens *chain);
