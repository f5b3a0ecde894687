/* SPDX-License-Identifier: Apache-2.0 */
/* witness: failures that no other node has judged. A node that fails a request is a witness against the request as much as the
 * request is one against the node. Where another node gets the request too, its answer decides (router/answer/plan/refused.h). Where
 * there is none, a source of requests (a tenant's requests for a model) is remembered with the nodes at which it failed and was
 * answered. A failure counts against its node, each of the source's last WITNESS_REQUESTS requests once,
 *
 * - while the source has failed at no other node, at most as often as the caller says;
 * - beyond that if the nodes differ: the node fails the source twice and at least as often as it answers it, and another one answers
 *   it four times as often as it fails it, and once, or twice from 8 failures of the node on, or three times from 12 on.
 *
 * So a source that sends bad requests between good ones counts nowhere: all nodes fail and answer it alike. A source is forgotten
 * when it has not failed for WITNESS_TIME, and when WITNESS_SOURCES others failed after it. Pure; the caller locks. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define WITNESS_SOURCES  64
#define WITNESS_REQUESTS 8
#define WITNESS_NODES    8 /* nodes that are compared */
#define WITNESS_TIME     (5 * 60 * CGN_SEC)

struct witness_failure {
	uint64_t source, request, node; /* hashes, not 0 */
	cgn_nsec now;
	unsigned most; /* failures of the source that count */
};
/* How a node serves a source; both numbers are halved when they grow large. */
struct witness_node {
	uint64_t node; /* 0: free */
	unsigned failed, answered;
};
struct witness_row {
	uint64_t source, node; /* |source| 0: the row is free. |node|: where it failed first */
	cgn_nsec at;           /* instant of the last failure */
	bool elsewhere;        /* The source failed at another node, too. */
	unsigned n;            /* requests that failed; the last of them are in |requests|, which is a ring */
	uint64_t requests[WITNESS_REQUESTS];
	struct witness_node nodes[WITNESS_NODES];
};
/* Zero is an empty book. */
struct witness_book {
	struct witness_row rows[WITNESS_SOURCES];
};

/* Note a failure. Return true if it counts against the node. */
bool witness_failed(struct witness_book *b, const struct witness_failure *f);
/* |node| answered a request of |source|; 0: another one than those of the failures. */
void witness_answered(struct witness_book *b, uint64_t source, uint64_t node, cgn_nsec now);
/* Return the bits witness_bit of all sources that are remembered. */
uint64_t witness_bits(const struct witness_book *b);
static inline uint64_t witness_bit(uint64_t source)
{
	return UINT64_C(1) << (source & 63);
}
