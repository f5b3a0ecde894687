/* SPDX-License-Identifier: Apache-2.0 */
/* vectors: the APIs that answer from the tokens alone: embeddings, rerank, score, tokenize, detokenize,
 * apply-template. Pure. They take no part in the timing model: their cost in a real engine is one prefill. */
#pragma once
#include "sim/request/request.h"

/* |id| names the answer; |now| is Unix seconds. Each appends the JSON body to |out|, or fills |no| and
 * returns false. */
struct sim_vector_call {
	const struct sim_request_env *env;
	struct cgn_str body;
	const char *id;
	uint64_t now;
};
typedef bool (*sim_vector_fn)(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no);
bool sim_embeddings(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no);
bool sim_rerank(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no);
bool sim_score(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no);
/* tokenize.c: the ids that a request with this prompt would be hashed by. */
bool sim_tokenize(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no);
bool sim_detokenize(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no);
bool sim_apply_template(const struct sim_vector_call *v, struct cgn_buf *out, struct sim_refusal *no);
