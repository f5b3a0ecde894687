/* SPDX-License-Identifier: Apache-2.0 */
/* bench prompt: what a router does between a rendered prompt and its chain, with the tokenizer that is given:
 * a conversation that it sees for the first time, the same again (cuts, hashes, look-up, chain; nothing is
 * tokenised but what stands behind the last cut), and its next turn. */
#pragma once
#include "policy/tokenizer/tokenizer.h"

struct bench_prompt {
	size_t tokens, bytes, messages;
	double first, repeat, turn;      /* seconds; the best of the rounds */
	size_t repeat_bytes, turn_bytes; /* that were tokenised */
	size_t cache_bytes;
};
/* A prompt of about |tokens| tokens. */
CGN_RC bench_prompt(const struct tokenizer *t, size_t tokens, uint64_t rounds, struct bench_prompt *out,
	struct cgn_err *err);
