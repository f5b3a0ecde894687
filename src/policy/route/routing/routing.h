/* SPDX-License-Identifier: Apache-2.0 */
/* routing: which node gets a request. A pure function of the facts that are known of each candidate at that
 * instant. The policies are the rows of policy/config/route_policies.def. Each picks only among candidates with room
 * (route_room).
 *
 * weighted: a score of about 1 (greater is better):
 *   kv * (reuse - common) / blocks + load * (1 - demand / width) + power * spared
 *     + capacity * (1 - kv_usage)
 * - spared = 1 - joules of the request there / the most that any candidate needs for it, with energy rules and
 *   where all nodes' power is known; else the share of the power limit that the node has left.
 * - reuse = trust * sum over tiers of weight * leading blocks with that best tier (route_reuse). A block in
 *   RAM saves less than one on the GPU, and a source that predicted more than engines found counts for less
 *   (trust.h).
 * - common = the least reuse of all candidates: blocks that every node holds favour none.
 * - demand = requests that this router has there (booked before the request is sent) + the others' as last
 *   reported.
 * - width = requests that the engine runs at once, at most ROUTE_WIDTH, which is also the default. The load
 *   term may be negative: with weights 0.55 and 0.25, a fully held prompt outweighs a lead of 2.2 widths of
 *   requests and no more. Beyond that the prefix goes to a second node, which holds it from then on.
 *
 * predicted: the cost in milliseconds for all requests on the node (less is better), the sum of:
 * - queue = queued tokens * prefill, for the prompts before it, + a stream's time * excess / width, for a
 *   place when the node has more requests than its engine runs at once.
 * - prefill = uncached tokens * prefill, for its own prompt.
 * - fetch = blocks below the GPU * (1 - their tier's weight) * prefill: never more than computing them.
 * - slowdown = (ROUTE_PRESSURE + demand * interference) * uncached tokens * prefill, because later requests
 *   wait for the prompt and running streams stall, + 2 * demand * answer tokens * batch, because each step is
 *   longer for this stream and for the others. For a prompt without an answer, demand is the number of
 *   streams: requests whose prompts wait are before it and do not stall.
 * - energy = joules of the request there * ms_per_joule, with energy rules.
 * - load = the expected wait until a model that is loaded on demand is loaded, in queue. weighted subtracts 1, which is
 *   more than any other node's load and blocks are worth.
 * - evict = the time of two more loads where another model has to leave for it, in slowdown. weighted subtracts 1 more.
 * - minus credit (hot prefixes, below). queue + prefill + fetch is the predicted time to first token. The
 *   node's speeds are in struct route_speed (speed.h): its own measurements, or the median of the measured
 *   nodes, and at most sixteen times off that median. batch and interference, as shares of a step, are the
 *   median's for all nodes.
 *
 * A hot prefix is one with more requests in flight than its holders have width. A node without it would
 * compute it for later requests too. Of that cost, the share requests / holders' width - 1 is not charged,
 * and all of it from twice the width on. weighted adds that share to the reuse; predicted subtracts it from
 * the cost (credit). So another node computes the prefix before the queue costs as much as computing it, the
 * sooner the more requests there are, until the holders' width meets the demand.
 *
 * Ties (within ROUTE_TIE of the weights' sum, or within ROUTE_TIE_COST of the least cost) go to the node that
 * holds more. Among those, rendezvous hashing of the session, else of the first block that they do not hold,
 * keeps one conversation on one node and spreads different ones even if they share a system prompt. Among
 * nodes that hold all of it, the least demand wins, then turns. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"
#include "policy/kv/block/tier.h"
#include "policy/route/routing/record.h"
#include "policy/route/routing/rules.h"
#include "policy/route/routing/speed.h"
#include "policy/route/routing/transfer.h"

#define ROUTE_WIDTH    16
#define ROUTE_TIE      0.01 /* Below the 0.25 / 16 that one request weighs. */
#define ROUTE_TIE_COST 0.05 /* Relative difference below the accuracy of the measured speeds. */
/* Cost of a computed token beyond the request's own time, as a multiple of that time: requests that arrive
 * while it is computed, and the cached blocks it evicts. A larger value gives more hits, a smaller one
 * shorter queues; from 2 to 8 both change little. */
#define ROUTE_PRESSURE 4

struct route_cand {
	uint16_t slot;
	uint32_t inflight; /* Requests sent by this router and not finished. */
	uint32_t others;   /* Requests of other routers, as last reported. */
	uint32_t decoding; /* Streams being answered, of this router and others. */
	uint32_t width;    /* Requests that its engine runs at once; 0: unknown. */
	uint8_t role;      /* Role of the node, for the chooser. */
	float kv_usage, power_headroom;
	uint64_t node_id_hash; /* route_hash of the node's id. */
	/* Number of the node in the index; valid if |fed|, else the record is asked. */
	uint16_t index_id;
	/* fed: the node reports its blocks. fed_bytes: also those of chains of bytes. */
	bool fed, fed_bytes;
	bool keeps_none; /* Fed: no engine there keeps blocks after a request. */
	/* fed: tokens in the blocks that it reports; 0: as in those of the prompt. */
	uint32_t chain_tokens;
	/* The node began to report its blocks a moment ago: the record of prompts sent to it counts too. */
	bool fed_lately;
	bool stores; /* Blocks from another node's store can be fetched to it. */
	/* Fingerprint of its engine's hand-off (policy/node/handoff): engines of equal fingerprints may compute prompts for each
	 * other. 0: the engine neither gives nor takes. */
	uint64_t handoff;
	bool pulls;       /* The node can fetch a prompt's blocks from others of the same |handoff|. */
	bool on_demand;   /* The model is loaded there when requests ask for it. */
	uint32_t load_ms; /* Expected wait until the model is loaded; 0: it is. */
	/* Expected time of two more loads, as on the slowest of the nodes, because another model has to
	 * leave, which is loaded again and drives this one out. A node that loads quickly does not justify
	 * that. 0: none has to leave. */
	uint32_t evict_ms;
	bool alone; /* The engine answers requests without another engine. */
	/* Leading blocks held in any tier, from the index or route_record_match. */
	uint32_t held;
	uint32_t by_tier[BLOCK_TIERS]; /* Blocks of |held| by their best tier. */
	float reuse;                   /* route_reuse, and the spared part of a hot prefix. */
	/* ---- for costs ---- */
	float queued_tokens;   /* Tokens of prompts to compute there before this one. */
	float uncached_tokens; /* Tokens of this prompt to compute. */
	float spared_tokens;   /* Part of |uncached_tokens| that a hot prefix charges to later requests. */
	float handed_tokens;   /* Tokens whose KV another node hands over; not in |uncached_tokens|. */
	float joules;          /* Energy that the node uses because of this request; 0: unknown. */
	uint8_t barred;        /* enum route_bar: why energy rules leave the node out. */
	float fetch_ms;        /* Including the hand-over. */
	struct route_speed speed;
};
static inline uint64_t route_demand(const struct route_cand *c)
{
	return (uint64_t)c->inflight + c->others;
}

/* Why the rules of struct route_energy leave a node out. */
enum route_bar {
	ROUTE_BAR_NONE,
	ROUTE_BAR_PARKED,    /* The engine is not there. */
	ROUTE_BAR_HOT,       /* The node slows down because of heat or power, and others do not. */
	ROUTE_BAR_OBJECTIVE, /* The node would miss an objective that another node meets. */
	ROUTE_BAR_BUDGET     /* All nodes together would draw more than the budget. */
};

struct route_ask {
	enum route_policy policy;
	bool spares;         /* Obey |barred| of the candidates, and charge |ms_per_joule|. */
	double ms_per_joule; /* Price of a joule in predicted. */
	float most_joules;   /* Most joules of all candidates, for weighted; 0: unknown. */
	double barred_w; /* Least watts of all nodes with the request at a node that the budget bars; 0: it bars none. */
	double never_w; /* The same without any other request, where that is above the budget too; else 0. */
	struct route_weights weights;
	const uint64_t *chain; /* Digests of the prompt's blocks; may be NULL. */
	size_t blocks;         /* Blocks of the chain; 0: no prompt. */
	uint64_t session;      /* Hash; 0: none. */
	uint32_t turn;         /* Incremented with each request. */
	uint32_t max_inflight; /* router.admission.max_concurrent_per_replica. */
	uint64_t random;       /* A different random number for each request. */
	double session_bound;
	float common;        /* Least reuse of all candidates. */
	float answer_tokens; /* Expected tokens of the answer. */
};

/* The terms of both scores, whichever policy is asked. */
struct route_terms {
	double kv, load, power, capacity;                   /* Terms of weighted. */
	double queue_ms, prefill_ms, fetch_ms, slowdown_ms; /* Terms of predicted. */
	double energy_ms, joules;                           /* The last one's price, and what it is of. */
	bool measured;                                      /* The speeds are the node's own measurements. */
};

enum route_verdict {
	ROUTE_PICKED,
	ROUTE_NONE /* There is no candidate. */,
	ROUTE_FULL /* Each candidate is at max_inflight. */
};

struct route_pick {
	enum route_verdict verdict;
	size_t index; /* Index into the candidates. */
	double score;
};

/* Return the requests that a node runs at once, 1 to ROUTE_WIDTH. */
static inline uint32_t route_width(const struct route_cand *c)
{
	return c->width == 0 || c->width > ROUTE_WIDTH ? ROUTE_WIDTH : c->width;
}
/* Return how many more requests a node takes from this router, beside |inflight| of its own and |others|. The
 * limit is |max|, or 1.25 times |width| if that is known and less: enough waits at the node to keep it busy,
 * and the rest may still go elsewhere. A fifth of the limit is this router's own, whatever others do, because
 * their numbers are a moment old. */
uint32_t route_room(uint32_t max, uint32_t width, uint32_t inflight, uint32_t others);
float route_reuse(const struct route_tiers *w, const uint32_t by_tier[BLOCK_TIERS], double trust);
/* Return the score by ask->policy: greater is better in every unit; costs are negative. */
double route_score(const struct route_ask *ask, const struct route_cand *c);
void route_terms(const struct route_ask *ask, const struct route_cand *c, struct route_terms *out);
/* Pick by ask->policy. |cands| ascend by slot. Never allocates; the stack holds ROUTE_MAX_NODES scores. */
struct route_pick route_pick(const struct route_ask *ask, const struct route_cand *cands, size_t n);
/* Find a policy by name, or `kv`. Return false, with *out unchanged, when there is none. */
bool route_policy_find(struct cgn_str text, enum route_policy *out);
const char *route_policy_text(enum route_policy p);
const char *route_policy_help(enum route_policy p);
/* Hash the name of a node or a session; never 0. */
uint64_t route_hash(const void *p, size_t n);
