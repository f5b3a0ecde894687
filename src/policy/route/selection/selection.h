/* SPDX-License-Identifier: Apache-2.0 */
/* selection: bodies of the selection API, in which a runtime that sends its requests itself asks which node should get
 * one. The wire is that of Dynamo's standalone selection service, as read in its documentation of version 1.7 (November
 * 2026): model_name, token_ids, selection_id, expected_output_tokens, allowed_worker_ids, pinned_worker, worker_id.
 * Pure. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

#define SELECTION_ID_MAX      128
#define SELECTION_WORKERS_MAX 1024
/* Largest number of a worker: every reader of JSON knows it exactly. */
#define SELECTION_WORKER_MASK ((UINT64_C(1) << 53) - 1)

struct selection_ask {
	struct json_val model;         /* A string; borrowed from the body. */
	struct json_val ids;           /* The prompt's tokens: an array; borrowed. */
	char id[SELECTION_ID_MAX + 1]; /* Empty: none was given. */
	uint64_t answer_tokens;        /* 0: not told. */
	bool one;                      /* Only |worker| will do. */
	uint64_t worker;
	struct json_val
		workers; /* Only these will do: an array of at most SELECTION_WORKERS_MAX numbers; raw.p NULL: all. */
};
/* Read |body|. INVALID: |err| names the member. */
CGN_RC selection_read(struct cgn_str body, struct selection_ask *out, struct cgn_err *err);
/* Append the request that |a| is about, as one for /v1/completions. */
void selection_request(const struct selection_ask *a, struct cgn_buf *out);
/* May the worker |number| get the request? */
bool selection_allows(const struct selection_ask *a, uint64_t number);
/* Is |s| fit to name a selection: 1 to SELECTION_ID_MAX visible characters without quotes, backslashes and slashes? */
bool selection_id_is_ok(struct cgn_str s);
/* Return the number of the node whose id has the hash |node_id_hash|. */
static inline uint64_t selection_worker(uint64_t node_id_hash)
{
	return node_id_hash & SELECTION_WORKER_MASK;
}
/* Is |endpoint| ("host:port") one of |list|, endpoints with commas between them? */
bool selection_lists(struct cgn_str list, struct cgn_str endpoint);
