/* SPDX-License-Identifier: Apache-2.0 */
/* routing: which node gets a request. A pure function of what is known of each candidate at that instant.
 *
 *   score = kv * reuse / blocks  +  load * (1 - demand / width)  +  power * headroom  +  capacity * (1 - kv_usage)
 *
 * reuse  = trust * sum over tiers of weight * leading blocks whose best tier that is (route_reuse): what lies in RAM saves less than what
 *          lies on the GPU, and a source that promised more than engines found counts for less (trust.h).
 * demand = requests that this router has there now (booked before the request leaves) + what others have there as last reported.
 * width  = what the engine runs at once, at most ROUTE_WIDTH, which also stands for "unknown".
 * The load term is not cut off at zero: with 0.55 / 0.25, a fully held prompt outweighs a lead of 2.2 widths of requests and no more; beyond that
 * the prefix goes to a second node, which from then on holds it too. Blocks that every candidate holds add the same to each score.
 * Scores within ROUTE_TIE are equal: then the one that holds more, then rendezvous hashing of the prompt's first block (or its session), so
 * that one prefix stays on one node and different ones spread. Without a prompt: the least demand, then in turn. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/kvindex/tier.h"
#include "policy/routing/record.h"

#define ROUTE_WIDTH 16
#define ROUTE_TIE   0.01 /* below the 0.25 / 16 that one request weighs */

struct route_weights {
	double kv, load, power, capacity;
};

struct route_tiers {
	float weight[KV_TIERS];
};

/* What a configuration says about choosing. */
struct route_rules {
	struct route_weights weights;
	struct route_tiers tiers;
	uint32_t max_inflight; /* requests that one node may have: router.admission.max_concurrent_per_replica */
};

struct route_cand {
	uint16_t slot;
	uint32_t inflight; /* sent by this router and not finished */
	uint32_t others;   /* requests of others there, as last reported */
	uint32_t width;    /* what its engine runs at once; 0: unknown */
	float kv_usage, power_headroom;
	uint64_t name_hash; /* of the node's id */
	uint16_t lane;      /* in the index, which is asked if |fed|; else the record is */
	bool fed;
	uint32_t held;      /* leading blocks in whatever tier: route_record_match, or the index */
	float reuse;        /* route_reuse */
};

struct route_ask {
	struct route_weights weights;
	size_t blocks;         /* of the prompt's chain; 0: no prompt */
	uint64_t sticky;       /* first digest, or hash of the session; 0: none */
	uint32_t turn;         /* counts up by one a request */
	uint32_t max_inflight; /* router.admission.max_concurrent_per_replica */
};

enum route_verdict { ROUTE_PICKED, ROUTE_NONE /* no candidate */, ROUTE_FULL /* each at max_inflight */ };

struct route_pick {
	enum route_verdict verdict;
	size_t index; /* into the candidates */
	double score;
};

float route_reuse(const struct route_tiers *w, const uint32_t by_tier[KV_TIERS], double trust);
double route_score(const struct route_ask *ask, const struct route_cand *c);
struct route_pick route_pick(const struct route_ask *ask, const struct route_cand *cands, size_t n);
/* For names of nodes and sessions; never 0. */
uint64_t route_hash(const void *p, size_t n);
