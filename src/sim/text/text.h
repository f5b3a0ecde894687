/* SPDX-License-Identifier: Apache-2.0 */
/* text: what a simulated model answers. A pure function of a seed, produced token by token, so that a stream
 * holds a few dozen bytes and no text; or a prepared script (a tool call, a JSON document) cut by the same
 * tokenizer. */
#pragma once
#include "sim/text/tokens.h"

struct sim_text {
	uint64_t rng;
	struct cgn_str script; /* what is left of it; borrowed */
	uint16_t words_left;   /* in this sentence */
	bool scripted, begun;
	uint8_t cut;     /* words: bytes of the next token that were said already */
	uint8_t pending; /* script: bytes of a character whose last byte is still to come */
};

void sim_text_words(struct sim_text *t, uint64_t seed);
void sim_text_script(struct sim_text *t, struct cgn_str script);
/* The next token: its text, borrowed (static, or of the script), and its id. The bytes of a multi-byte
 * character are one token each; its text comes with the last of them, the others have none. False when a
 * script is over; words never are. */
bool sim_text_next(struct sim_text *t, struct cgn_str *piece, uint32_t *id);
/* Go on behind |said|, which words of |t| begin with: its whole tokens are |*n|, and are added to |chain|
 * (may be NULL), by |reader|'s ids when that is not NULL. False, and nothing is done: it begins otherwise. */
struct sim_reader;
bool sim_text_skip(struct sim_text *t, struct cgn_str said, struct sim_reader *reader,
	struct sim_chain *chain, uint32_t *n);
/* |n| words as one string into |b|'s place: for JSON values. Uses up |*rng|. Returns bytes written, at most
 * |cap|. */
size_t sim_text_phrase(uint64_t *rng, unsigned n, char *out, size_t cap);
/* A token that might have been said instead, and logprobs that fit: the k-th alternative of position |at|. */
struct cgn_str sim_text_alternative(uint64_t seed, uint64_t at, unsigned k);
double sim_text_logprob(uint64_t seed, uint64_t at, unsigned k); /* k = 0 is the token said; falls with k */

enum sim_finish { SIM_FINISH_STOP, SIM_FINISH_LENGTH, SIM_FINISH_TOOL, SIM_FINISH_ABORT, SIM_FINISH_COUNT };
const char *sim_finish_name(enum sim_finish f); /* OpenAI's: "stop", "length", "tool_calls", "abort" */

#define SIM_STOPS_MAX 16
struct sim_limits {
	uint32_t max_tokens;     /* at least 1 */
	uint32_t natural_tokens; /* where words end by themselves */
	uint32_t min_tokens;
	bool ignore_eos, keep_stop /* the stop string stays in the text */;
	struct cgn_str stops[SIM_STOPS_MAX];
	unsigned n_stops;
	struct cgn_str said; /* before the text: a stop string may begin in it */
};
/* How an answer goes, known before it is given: that is what lets stop strings cost nothing while
 * streaming. */
struct sim_plan {
	uint32_t n_tokens;   /* at least 1 unless a script is empty */
	uint64_t text_bytes; /* what the client sees of their text */
	enum sim_finish finish;
	int stop_index; /* into stops, -1: none */
};
/* Walks a copy of |text|. Adds the tokens to |chain| (may be NULL), by the ids that |reader| has for them
 * when it is not NULL (vocab.h). False when out of memory. */
bool sim_plan_make(struct sim_text text, const struct sim_limits *lim, struct sim_reader *reader,
	struct sim_chain *chain, struct sim_plan *out);
