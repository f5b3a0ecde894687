/* SPDX-License-Identifier: Apache-2.0 */
/* holders: nodes with caches that serve the conversations of a trace, and the reports of their caches. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "lab/trace/trace.h"
#include "policy/kv/holdings/holdings.h"

/* Write the chain of request |i|, as digests, into |out|, which is cleared first. Beyond the last request the
 * trace starts over with other digests after the first block. */
size_t holders_chain(const struct trace *t, uint64_t i, struct cgn_buf *out);

/* A node with a cache of fixed size, first in, first out. */
struct holders_node {
	struct holdings *holds;
	uint64_t *ring; /* Digests held, by age. */
	size_t at, used;
};
struct holders_batch {
	uint32_t node, n; /* Number of consecutive updates of one node. */
};
struct fleet {
	size_t n_nodes, capacity;
	struct holders_node *nodes;
	uint64_t rng;
	/* Reports not taken yet. */
	struct cgn_buf batches, digests, tiers; /* Elements: struct holders_batch, uint64_t, uint8_t. */
	uint32_t reporting;
};
CGN_RC holders_init(struct fleet *f, size_t n_nodes, size_t capacity, uint64_t seed, struct cgn_err *err);
void holders_fini(struct fleet *f);
/* Serve a request on a node: with probability 0.9 the node that served its conversation before. Adds one
 * batch, which may be empty. */
CGN_RC holders_serve(struct fleet *f, const uint64_t *chain, size_t n, struct cgn_err *err);
