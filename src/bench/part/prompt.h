/* SPDX-License-Identifier: Apache-2.0 */
/* bench prompt: measures a router's work between a rendered prompt and its chain: for a new conversation, for
 * the same one again (cuts, hashes, lookup, chain; only text after the last cut is tokenized), and for its
 * next turn. */
#pragma once
#include "policy/text/tokenizer/tokenizer.h"

struct bench_prompt {
	size_t tokens, bytes, messages;
	double first, repeat, turn;      /* Seconds; the best of the rounds. */
	size_t repeat_bytes, turn_bytes; /* Bytes that were tokenized. */
	size_t cache_bytes;
};
/* Measure with a prompt of about |tokens| tokens. */
CGN_RC bench_prompt(const struct tokenizer *t, size_t tokens, uint64_t rounds, struct bench_prompt *out,
	struct cgn_err *err);
