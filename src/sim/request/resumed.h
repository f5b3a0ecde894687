/* SPDX-License-Identifier: Apache-2.0 */
/* resumed: requests that resume an answer. The continuation equals the rest of the original answer, as with
 * an engine at temperature 0. Pure. */
#pragma once
#include "sim/request/request.h"

/* Find the longest end of |prompt| that is the beginning of the answer, with |seed|, to the text before it; n
 * == 0: none. |blank|: an empty chain with the prompt's settings. Works with the computed vocabulary only:
 * other tokenizers cut a part of a text differently from the whole. */
struct cgn_str sim_resumed_find(struct cgn_str prompt, uint64_t seed, const struct sim_chain *blank);
/* Return the seed of the answer to a prompt with this digest. */
uint64_t sim_answer_seed(uint64_t digest, uint64_t seed, uint32_t choice);
/* Add |resumed|, the beginning of an answer to |c|'s prompt, to |c|: as |*n| tokens of that answer when it
 * matches it, else as text. */
bool sim_resumed_add(const struct sim_request_env *env, struct cgn_str resumed, uint64_t seed,
	struct sim_chain *c, uint32_t *n, struct sim_refusal *no);
