/* SPDX-License-Identifier: Apache-2.0 */
/* vectors: APIs answered from the tokens alone: embeddings, rerank, score, tokenize, detokenize,
 * apply-template. Pure. They are outside the timing model; in a real engine each costs one prefill. */
#pragma once
#include "sim/request/request.h"

/* A call with the id of its answer and the time in Unix seconds. Each function appends the JSON body to
 * |out|, or fills
 * |no| and returns false. */
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
