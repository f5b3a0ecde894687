/* SPDX-License-Identifier: Apache-2.0 */
/* said: a request that goes on with an answer, as an engine at temperature 0 would: what follows is what
 * would have followed. Pure. */
#pragma once
#include "sim/request/request.h"

/* The end of |prompt| that is the beginning of the answer to what stands before it, with |seed|; of several
 * the longest; n == 0: there is none.
 * |blank|: a chain without tokens, as the prompt's. Only of the arithmetic vocabulary: another one cuts a
 * part of a text otherwise than the whole. */
struct cgn_str sim_resumed_find(struct cgn_str prompt, uint64_t seed, const struct sim_chain *blank);
/* What the answer to a prompt with this digest is a function of. */
uint64_t sim_answer_seed(uint64_t digest, uint64_t seed, uint32_t choice);
/* |said| was said to |c|'s prompt: as the answer's own tokens behind it, when it begins like that answer, and
 * then |*n| of them; else as a text. */
bool sim_resumed_add(const struct sim_request_env *env, struct cgn_str said, uint64_t seed,
	struct sim_chain *c, uint32_t *n, struct sim_refusal *no);
