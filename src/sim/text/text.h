/* SPDX-License-Identifier: Apache-2.0 */
/* text: the answer of a simulated model, a pure function of a seed. Produced token by token, so a stream
 * needs a few dozen bytes instead of the text. Or a prepared script (a tool call, a JSON document), cut by
 * the same tokenizer. */
#pragma once
#include "sim/text/tokens.h"

struct sim_text {
	uint64_t rng;
	struct cgn_str script; /* Rest of the script; borrowed. */
	uint16_t words_left;   /* Words left in this sentence. */
	bool scripted, begun;
	uint8_t cut;     /* Words: bytes of the next token that were already given. */
	uint8_t pending; /* Script: bytes of a character whose last byte is still to come. */
};

void sim_text_words(struct sim_text *t, uint64_t seed);
void sim_text_script(struct sim_text *t, struct cgn_str script);
/* Return the next token: its text, borrowed (static, or of the script), and its id. Each byte of a multi-byte
 * character is a token; the last one has the character's text, the others have none. False at the end of a
 * script; words never end. */
bool sim_text_next(struct sim_text *t, struct cgn_str *piece, uint32_t *id);
/* Advance past |resumed|, the beginning of the words of |t|. |*n| is the number of its whole tokens, which
 * are added to
 * |chain| (may be NULL), with the ids of |reader| unless NULL. False, and nothing changes, when |t| begins
 * otherwise. */
struct sim_reader;
bool sim_text_skip(struct sim_text *t, struct cgn_str resumed, struct sim_reader *reader,
	struct sim_chain *chain, uint32_t *n);
/* Write |n| words as one string for a JSON value; |*rng| advances. Returns the number of bytes written, at
 * most |cap|. */
size_t sim_text_phrase(uint64_t *rng, unsigned n, char *out, size_t cap);
/* Return the k-th alternative to the token at position |at|. */
struct cgn_str sim_text_alternative(uint64_t seed, uint64_t at, unsigned k);
/* Logprob of the k-th alternative; k = 0 is the given token; falls with k. */
double sim_text_logprob(uint64_t seed, uint64_t at, unsigned k);

enum sim_finish { SIM_FINISH_STOP, SIM_FINISH_LENGTH, SIM_FINISH_TOOL, SIM_FINISH_ABORT, SIM_FINISH_COUNT };
const char *sim_finish_name(enum sim_finish f); /* OpenAI's names: "stop", "length", "tool_calls", "abort". */

#define SIM_STOPS_MAX 16
struct sim_limits {
	uint32_t max_tokens;     /* At least 1. */
	uint32_t natural_tokens; /* Length at which words end by themselves. */
	uint32_t min_tokens;
	bool ignore_eos, keep_stop /* Keep the stop string in the text. */;
	struct cgn_str stops[SIM_STOPS_MAX];
	unsigned n_stops;
	struct cgn_str resumed; /* Text before the answer, in which a stop string may begin. */
};
/* Length and end of an answer, computed before it is given, so that stop strings cost nothing while
 * streaming. */
struct sim_plan {
	uint32_t n_tokens;   /* At least 1 unless a script is empty. */
	uint64_t text_bytes; /* Bytes of the tokens' text that the client sees. */
	enum sim_finish finish;
	int stop_index; /* Index into stops; -1: none. */
};
/* Plan the answer by walking a copy of |text|. Adds its tokens to |chain| (may be NULL), with the ids of
 * |reader| unless NULL (vocab.h). False when out of memory. */
bool sim_plan_make(struct sim_text text, const struct sim_limits *lim, struct sim_reader *reader,
	struct sim_chain *chain, struct sim_plan *out);
