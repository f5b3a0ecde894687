/* SPDX-License-Identifier: Apache-2.0 */
/* usage: read the cost that an engine's answer reports, from a bounded tail of the relayed bytes. Dialects:
 * OpenAI (usage of chat, completions, embeddings), Responses and Anthropic (input_tokens, output_tokens). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/str.h"
#include "base/json/json.h"

struct usage {
	bool has_prompt, has_completion, has_cached;
	bool absurd; /* A member of the usage is a number that no count can be: negative, a fraction, above USAGE_MOST. */
	/* |prompt_tokens|: the whole prompt, |cached_tokens| included, in every dialect */
	uint64_t prompt_tokens, completion_tokens, cached_tokens;
};

#define USAGE_MOST ((uint64_t)1 << 28) /* Tokens, 25 times the longest context; more is taken as invalid */

/* Read the last valid "usage" object of |text| into |io|; fields that the object lacks stay unchanged. |text|
 * may begin and end anywhere. False: there is none. */
bool usage_find(struct cgn_str text, struct usage *io);

/* The "timings" of llama-server (read at 0.7.0), for prompts that it computed. */
struct usage_timings {
	/* Tokens of the prompt, cached and computed; tokens of the answer */
	uint64_t cache_n, prompt_n, predicted_n;
	double prompt_ms;
};
bool usage_find_timings(struct cgn_str text, struct usage_timings *out);

/* As usage_find, for answers of engines' own routes: "meta_info" of SGLang's /generate, "timings" of llama-server's
 * /completion. */
bool usage_find_own(struct cgn_str text, struct usage *io);

/* Append a value of "stream_options" that asks for the usage of a stream. |own|: the client's value, whose members are
 * kept, except those about usage; raw.p NULL: it has none. */
void usage_ask_put(struct json_val own, struct cgn_buf *out);
/* Append the whole events of |events| except those that hold the usage and no part of the answer: chunks whose list of
 * choices is empty. Returns true if there was one; else nothing is appended. Events without usage are not parsed. */
bool usage_chunk_drop(struct cgn_str events, struct cgn_buf *out);

/* At least the last USAGE_TAIL bytes that were added. Memory is allocated with the first byte. */
#define USAGE_TAIL 2048
struct usage_tail {
	char *p;
	size_t n;
};
void usage_tail_add(struct usage_tail *t, const void *p, size_t n);
struct cgn_str usage_tail_view(const struct usage_tail *t);
void usage_tail_fini(struct usage_tail *t);
