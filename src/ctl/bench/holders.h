/* SPDX-License-Identifier: Apache-2.0 */
/* fleet: nodes that serve a trace's conversations, as what their caches report. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "lab/trace/trace.h"
#include "policy/holdings/holdings.h"

/* The chain of request |i|, as digests, in |out| (cleared before). Beyond the last it starts over with other
 * digests; the first block stays. */
size_t holders_chain(const struct trace *t, uint64_t i, struct cgn_buf *out);

/* Nodes with caches of a fixed size each, first in, first out. */
struct holders_node {
	struct holdings *holds;
	uint64_t *ring; /* what it holds, by age */
	size_t at, used;
};
struct holders_batch {
	uint32_t node, n; /* updates of one node, in order */
};
struct fleet {
	size_t n_nodes, capacity;
	struct holders_node *nodes;
	uint64_t rng;
	/* What the nodes reported and nobody took yet. */
	struct cgn_buf batches, digests, tiers; /* struct holders_batch, uint64_t, uint8_t */
	uint32_t reporting;
};
CGN_RC holders_init(struct fleet *f, size_t n_nodes, size_t capacity, uint64_t seed, struct cgn_err *err);
void holders_fini(struct fleet *f);
/* A node takes the request: nine in ten times the one that its conversation went to before. One batch is
 * added, that may be empty. */
CGN_RC holders_serve(struct fleet *f, const uint64_t *chain, size_t n, struct cgn_err *err);
