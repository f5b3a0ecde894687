/* SPDX-License-Identifier: Apache-2.0 */
/* usage: the cost that an engine's answer reports (usagescan.h reads it), the question for it, and what clients that did
 * not ask are shown; and the last bytes of an answer. */
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

/* The "timings" of llama-server (read at 0.7.0), for prompts that it computed. */
struct usage_timings {
	/* Tokens of the prompt, cached and computed; tokens of the answer */
	uint64_t cache_n, prompt_n, predicted_n;
	double prompt_ms;
};

/* Append a value of "stream_options" that asks for the usage of a stream. |own|: the client's value, whose members are
 * kept, except those about usage; raw.p NULL: it has none. */
void usage_ask_put(struct json_val own, struct cgn_buf *out);
/* Append |events|, whole events, without the members "usage" at their tops; an event that has neither a choice nor an error
 * beside it is left out. All other bytes stay, and so does a member that is null. Returns false if there was none: nothing is
 * appended then. Events without the name are not parsed. */
bool usage_events_shown(struct cgn_str events, struct cgn_buf *out);

/* At least the last USAGE_TAIL bytes that were added. Memory is allocated with the first byte. */
#define USAGE_TAIL 2048
struct usage_tail {
	char *p;
	size_t n;
};
void usage_tail_add(struct usage_tail *t, const void *p, size_t n);
struct cgn_str usage_tail_view(const struct usage_tail *t);
void usage_tail_fini(struct usage_tail *t);
