/* SPDX-License-Identifier: Apache-2.0 */
/* usage: what an engine's answer says it cost, read beside the relayed bytes from a bounded tail of them.
 * Dialects: OpenAI (usage of chat, completions, embeddings), Responses and Anthropic (input_tokens,
 * output_tokens). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"

struct usage {
	bool has_prompt, has_completion, has_cached;
	uint64_t prompt_tokens, completion_tokens, cached_tokens;
};

#define USAGE_MOST ((uint64_t)1 << 40) /* tokens; who claims more has not counted, and is not heard */

/* Take over what the last readable "usage" object of |text| says; fields that it lacks stay. True when there
 * was one.
 * |text| may begin and end anywhere. */
bool usage_find(struct cgn_str text, struct usage *io);

/* What llama-server says beside it (read at 0.7.0), of prompts that it computed. */
struct usage_timings {
	/* tokens: of the prompt, found and computed; of the answer */
	uint64_t cache_n, prompt_n, predicted_n;
	double prompt_ms;
};
bool usage_find_timings(struct cgn_str text, struct usage_timings *out);

/* The last USAGE_TAIL bytes, at least, of what was added. Memory comes with the first byte; out of it, the
 * tail is empty. */
#define USAGE_TAIL 2048
struct usage_tail {
	char *p;
	size_t n;
};
void usage_tail_add(struct usage_tail *t, const void *p, size_t n);
struct cgn_str usage_tail_view(const struct usage_tail *t);
void usage_tail_fini(struct usage_tail *t);
