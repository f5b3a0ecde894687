/* SPDX-License-Identifier: Apache-2.0 */
/* cached: puts the number of cached prompt tokens into the usage of an answer whose prompt another engine computed. The
 * engine that answers counts the tokens that it took over as cached; the client is to see how many the prefill leg found
 * cached. Pure; one thread.
 *
 * The number is the value of "cached_tokens" in "usage" or its "prompt_tokens_details" or "input_tokens_details", or of
 * "cache_read_input_tokens" in "usage" (Anthropic). Anthropic's "input_tokens" are the tokens of the prompt that were
 * neither read from the cache nor written to it: where "cache_read_input_tokens" changes, they change with it, so that
 * the sum stays the whole prompt. "usage" counts at the top of a document and in its "message" or "response". A usage
 * object passes once it is complete; one of more than CACHED_USAGE_MAX bytes, or that is cut off by the end of its line,
 * passes as it is. All other bytes pass unchanged and at once, however the stream is cut. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"

#define CACHED_KEY_MAX   12 /* Longer than no key that matters. */
#define CACHED_USAGE_MAX 1024
struct cached_filter {
	uint64_t cached;
	bool known;  /* |cached| is known; may be set at any time, like |waits|. */
	bool waits;  /* Stop at a usage object while |cached| is not known; otherwise it passes as it is. */
	bool events; /* Each line may hold a document (SSE, or one document a line). */
	uint8_t at;
	bool is_key;
	uint8_t key, key_n;
	uint32_t depth, inside; /* Depths: of the next byte, of the innermost object looked into. */
	uint32_t usage;         /* Depth of the usage object that is being kept; 0: none. */
	uint32_t kept_n;
	char key_text[CACHED_KEY_MAX];
	char kept[CACHED_USAGE_MAX]; /* Bytes of the usage object so far. */
};
/* Set |cached| and |known| as soon as the number is known. |events|: the answer is an event stream; otherwise one document. */
void cached_filter_init(struct cached_filter *f, bool events);
/* Append to |out| what the client gets for the bytes |data|, cut anywhere. Return how many of them are dealt with: all, or
 * those before a usage object that is waited for; then call again with the others. Failures are |out|'s. */
size_t cached_filter_feed(struct cached_filter *f, struct cgn_str data, struct cgn_buf *out);
/* The answer has ended: append the kept part of a usage object that did not come whole. */
void cached_filter_end(struct cached_filter *f, struct cgn_buf *out);
