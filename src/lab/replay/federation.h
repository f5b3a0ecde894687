/* SPDX-License-Identifier: Apache-2.0 */
/* federation: plays a trace against several clusters in virtual time, each a replay with its own nodes, index and queue.
 * What leaves is decided by the router's own code (policy/route/peer): bids by summaries, the margin, trust. Summaries are the
 * router's: sets of the index, changes between generations, coded and read; their bytes are counted. Pure.
 *
 * Requests come in at the cluster of their region (federation_split). Between two clusters there is a way with a round trip
 * time, loss and cuts. A message of p packets of 1400 bytes loses each packet with probability |loss|. A lost packet is sent
 * again after one round trip, one of the last three after 200 ms and a round trip, and after twice as long each further
 * time; the message is there when its last packet is. Packets that are sent during a cut are lost. Bandwidth is not limited.
 * The way lengthens the time to first token; the time between tokens is that of the node.
 *
 * A peer that is silent is lost, as in the router: requests that have no first byte go on where they came from; answers that
 * have begun are continued there with |resumes|, and broken without. The peer plays on what it had.
 *
 * Not simulated: circuit breakers, money, tenants' permissions, several routers in a cluster.
 *
 * Memory: that of the replays, about 400 bytes for each request that leaves, and 4 bytes a block for each two clusters. */
#pragma once
#include "lab/replay/replay.h"
#include "policy/route/peer/bid.h"

#define FEDERATION_CLUSTERS 16
#define FEDERATION_CUTS     16

struct federation_cut {
	uint32_t a, b; /* Clusters. */
	cgn_nsec from, to;
};

struct federation_cfg {
	const struct replay_cfg *replay; /* Each cluster's settings: 1 block or more, no GPU, no roles. */
	uint32_t clusters;               /* 2 to FEDERATION_CLUSTERS. */
	bool forwards;                   /* False: each request stays. */
	const uint64_t *way_ms; /* Round trips of A-B, A-C, ..., B-C, ...; a shorter list starts over. */
	size_t n_ways;
	double loss; /* Share of packets, below 0.5. */
	cgn_nsec interval;
	struct peer_rules rules;
	uint32_t max_hops, max_concurrent;
	cgn_nsec expected_ttft, first_byte_timeout;
	bool resumes;
	const struct federation_cut *cuts;
	size_t n_cuts;
};

/* A trace with the cluster of each request. */
struct federation_trace {
	struct trace all; /* |ids| are borrowed. */
	uint8_t *region;  /* Owned; by request. */
};
/* Assign each request of |t| to one of |clusters| by a hash of its session, else of its tenant, else of the first block of
 * its prompt that less than 1 in 100 requests have. |swing|, 0 to 0.95: the trace is a day, in which the rate of each
 * region goes up and down by this share as a sine; the peaks of the regions follow each other at equal times. |t| must
 * outlive the result. NO_MEMORY. */
CGN_RC federation_split(const struct trace *t, uint32_t clusters, double swing, struct federation_trace *out,
	struct cgn_err *err);
void federation_trace_fini(struct federation_trace *f);

struct federation_cut_result {
	uint64_t left_for_ns; /* From the cut to the last request that left over the way; 0: none did. */
	uint64_t most_before; /* Most requests that left over the way in a second before the cut. */
	uint64_t most_after;  /* The same in the ten seconds after the cut. */
};

struct federation_result {
	/* Sums over the clusters; times to first token with the ways. done: answered in full. */
	uint64_t requests, done, refused, broken, resumed, waited;
	uint64_t prompt_blocks, cached_blocks, evicted_blocks;
	struct samples ttft, itl;
	/* Requests that left; that a peer refused, or that came back because it was lost. */
	uint64_t left, bounced, returned;
	uint64_t left_by[PEER_BID_SOURCES];
	/* Answers that were compared with a summary, those that were far worse, and the peers that were demoted for it. */
	uint64_t predicted, mispredicted, demotions;
	uint64_t held_predicted, held_found; /* Tokens in peers' caches. */
	uint64_t summaries, whole, diverged, summary_bytes;
	uint64_t lost;     /* Times that a peer was silent. */
	double block_mean; /* Blocks that a summary told, mean over the summaries. */
	uint64_t by_cluster[FEDERATION_CLUSTERS], left_from[FEDERATION_CLUSTERS]; /* Requests. */
	struct federation_cut_result cuts[FEDERATION_CUTS];
	cgn_nsec ended;
};
/* Kilobits per second of one summary's way, for a million blocks; 0: no summary was told. */
double federation_kbit_per_million(const struct federation_result *r, const struct federation_cfg *cfg);

/* Play |t| and fill |out|, which the caller frees. NO_MEMORY; INVALID: a setting is out of its bounds. */
CGN_RC federation_run(const struct federation_trace *t, const struct federation_cfg *cfg,
	struct federation_result *out, struct cgn_err *err);
void federation_result_fini(struct federation_result *r);
