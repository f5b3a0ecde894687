/* SPDX-License-Identifier: Apache-2.0 */
/* rules: an operator's settings of routing: policy, weights, hand-offs, energy. routing.h has the
 * formulas. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "policy/kv/block/tier.h"
#include "policy/route/routing/transfer.h"

enum route_policy {
#define POLICY(id, text, score, pick, unit, help) ROUTE_##id,
#include "policy/config/route_policies.def"
#undef POLICY
	ROUTE_POLICIES
};
#define ROUTE_KV ROUTE_PREDICTED /* The policy named `kv`. */

struct route_weights {
	double kv, load, power, capacity;
};

struct route_tiers {
	float weight[BLOCK_TIERS];
};

/* Rules for prompts that one node computes and another one decodes. */
struct route_disagg {
	bool enabled;
	/* 0: costs decide. Otherwise requests with fewer tokens to compute stay on one node, and all others are
	 * split where a pair of nodes exists. */
	uint32_t colocate_below;
	double token_bytes;          /* Bytes of KV cache per token. */
	struct transfer_speed prior; /* Assumed speed of a path that was not measured yet. */
};

/* Rules that spare energy, where the nodes' power is known (policy/power/energy). */
enum route_energy_mode { ROUTE_ENERGY_OFF, ROUTE_ENERGY_SHADOW, ROUTE_ENERGY_ON };
struct route_energy {
	enum route_energy_mode mode;
	double ms_per_joule;   /* Price of a joule in predicted. */
	float ttft_ms, itl_ms; /* Nodes that would miss one are left out; 0: no objective. */
	double budget_w;       /* All nodes together; 0: none. */
};

/* Routing rules from the configuration. */
struct route_rules {
	struct route_weights weights;
	struct route_tiers tiers;
	/* Requests that one node may have: router.admission.max_concurrent_per_replica. */
	uint32_t max_inflight;
	enum route_policy policy;
	double session_bound; /* Bound on demand, as a multiple of the mean; below 1 counts as 1. */
	struct route_disagg disagg;
	struct route_energy energy;
	/* Count the tokens that each node's cache saves (node_stats.saved_tokens), for the autoscaler. */
	bool counts_saved;
};
