/* SPDX-License-Identifier: Apache-2.0 */
/* routing: which node gets a request. A pure function of what is known of each candidate at that instant; the
 * policies are rows of policies.def. Every one of them picks only among candidates with room (route_room).
 *
 * weighted, a share of 1 or so (greater is better):
 *   kv * (reuse - common) / blocks + load * (1 - demand / width) + power * headroom + capacity * (1 -
 *   kv_usage) reuse = trust * sum over tiers of weight * leading blocks whose best tier that is
 *   (route_reuse): what lies in RAM saves less than what
 *          lies on the GPU, and a source that promised more than engines found counts for less (trust.h).
 *          common = the least reuse of all candidates: what everybody holds is no reason to prefer anybody.
 *          demand = requests that this router has there now (booked before the request leaves) + what others
 *          have there as last reported. width = what the engine runs at once, at most ROUTE_WIDTH, which also
 *          stands for "unknown". The load term is not cut off at zero: with 0.55 / 0.25, a fully held prompt
 *          outweighs a lead of 2.2 widths of requests and no more; beyond that the prefix goes to a second
 *          node, which from then on holds it too.
 *
 * predicted, milliseconds (less is better), what the request costs everybody on that node:
 *   queue = queued tokens * prefill it waits for the prompts before it,
 *            + a stream's time * excess / width and for a place, where more requests are than the engine runs
 *            at once
 *   prefill = uncached tokens * prefill and for its own prompt
 *   fetch = blocks below the GPU * (1 - their tier's weight) * prefill never more than computing them
 *   slowdown = (ROUTE_PRESSURE + demand * interference) * uncached tokens * prefill who comes next waits for
 *   it; streams stand still,
 *                                                            and those that wait before it will be streams by
 *                                                            then
 *            + 2 * demand * answer tokens * batch and then each step is longer, for them and for it
 *            - credit queue + prefill + fetch is the predicted time to first token. The node's speeds are in
 *              struct route_speed (speed.h): its own, or as long as it was not measured the median of those
 *              that were, and never more than sixteen times off that; batch and interference, as shares of a
 *              step, are the median's for all.
 *
 * A hot prefix: more requests that begin with it are under way than those who hold it have width. What a node
 * without it would compute is then for others, too: of that, requests / width of holders - 1 is not charged,
 * all of it from twice the width on. weighted counts that part as reuse, predicted takes it from the cost
 * (credit). So a further node computes it before the queue is as long as computing it takes; the more
 * requests there are, the sooner, until the holders' widths are about what is wanted.
 *
 * Equal scores (within ROUTE_TIE of the weights' sum, within ROUTE_TIE_COST of the least cost): the one that
 * holds more; then rendezvous hashing of the session, else of the first block that those do not hold, so that
 * one conversation stays on one node and different ones spread, however much of a system prompt they share;
 * those that hold all of it: the least demand, then in turn. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"
#include "policy/block/tier.h"
#include "policy/routing/record.h"
#include "policy/routing/speed.h"

#define ROUTE_WIDTH    16
#define ROUTE_TIE      0.01 /* below the 0.25 / 16 that one request weighs */
#define ROUTE_TIE_COST 0.05 /* a difference that no measurement of speed can vouch for */
/* What a token that is computed costs beside the request's own waiting, as a multiple of its time: requests
 * that come while it is computed, and what it takes the place of in the cache. More makes for more hits and
 * less for shorter queues; with 2 to 8 neither changes by much. */
#define ROUTE_PRESSURE 4

enum route_policy {
#define POLICY(id, text, score, pick, help) ROUTE_##id,
#include "policy/routing/policies.def"
#undef POLICY
	ROUTE_POLICIES
};
#define ROUTE_KV ROUTE_PREDICTED /* what `kv` stands for */

struct route_weights {
	double kv, load, power, capacity;
};

struct route_tiers {
	float weight[BLOCK_TIERS];
};

/* What a configuration says about choosing. */
struct route_rules {
	struct route_weights weights;
	struct route_tiers tiers;
	/* requests that one node may have: router.admission.max_concurrent_per_replica */
	uint32_t max_inflight;
	enum route_policy policy;
	double session_bound; /* of demand, as a multiple of the mean; below 1 counts as 1 */
};

struct route_cand {
	uint16_t slot;
	uint32_t inflight; /* sent by this router and not finished */
	uint32_t others;   /* requests of others there, as last reported */
	uint32_t decoding; /* of both: streams that are being answered */
	uint32_t width;    /* what its engine runs at once; 0: unknown */
	uint8_t role;      /* as its node says; the chooser's business */
	float kv_usage, power_headroom;
	uint64_t node_id_hash;         /* of the node's id */
	uint16_t index_id;             /* in the index, which is asked if |fed|; else the record is */
	bool fed, fed_bytes;           /* of chains of bytes too */
	bool stores;                   /* blocks that lie in another node's store can be fetched to it */
	uint32_t held;                 /* leading blocks in whatever tier: route_record_match, or the index */
	uint32_t by_tier[BLOCK_TIERS]; /* of them, by the best tier */
	float reuse;                   /* route_reuse, and what is spared */
	/* for costs */
	float queued_tokens;   /* of prompts that are to be computed there before */
	float uncached_tokens; /* of this prompt */
	float spared_tokens;   /* of them, those of a hot prefix that are charged to requests to come */
	float fetch_ms;
	struct route_speed speed;
};

struct route_ask {
	enum route_policy policy;
	struct route_weights weights;
	const uint64_t *chain; /* digests of the prompt's blocks; may be NULL */
	size_t blocks;         /* of it; 0: no prompt */
	uint64_t session;      /* hash; 0: none */
	uint32_t turn;         /* counts up by one a request */
	uint32_t max_inflight; /* router.admission.max_concurrent_per_replica */
	uint64_t random;       /* any number, another one for each request */
	double session_bound;
	float common;        /* the least reuse of all candidates */
	float answer_tokens; /* that are expected */
};

/* What a score is the sum of; of all policies, whichever is asked. */
struct route_terms {
	double kv, load, power, capacity;                   /* weighted */
	double queue_ms, prefill_ms, fetch_ms, slowdown_ms; /* predicted */
	bool measured;                                      /* the node's speeds are its own */
};

enum route_verdict { ROUTE_PICKED, ROUTE_NONE /* no candidate */, ROUTE_FULL /* each at max_inflight */ };

struct route_pick {
	enum route_verdict verdict;
	size_t index; /* into the candidates */
	double score;
};

/* Requests that a node carries, 1 to ROUTE_WIDTH. */
static inline uint32_t route_width(const struct route_cand *c)
{
	return c->width == 0 || c->width > ROUTE_WIDTH ? ROUTE_WIDTH : c->width;
}
/* Requests that a node takes from this router beside |inflight| of its own and |others|: up to |max|, or to
 * what its engine runs at once (|width|) and a quarter more if that is known and less; so much waits there
 * that it never idles, and what waits longer may yet go elsewhere. A router has a fifth of that for itself
 * whatever others do there: what is known of them is a moment old. */
uint32_t route_room(uint32_t max, uint32_t width, uint32_t inflight, uint32_t others);
float route_reuse(const struct route_tiers *w, const uint32_t by_tier[BLOCK_TIERS], double trust);
/* As ask->policy has it: greater is better, whatever the unit; costs are negative. */
double route_score(const struct route_ask *ask, const struct route_cand *c);
void route_terms(const struct route_ask *ask, const struct route_cand *c, struct route_terms *out);
/* By ask->policy. |cands| ascend by slot. Never allocates; the stack holds ROUTE_MAX_NODES scores. */
struct route_pick route_pick(const struct route_ask *ask, const struct route_cand *cands, size_t n);
/* By name, or `kv`. False: there is none, *out is untouched. */
bool route_policy_find(struct cgn_str text, enum route_policy *out);
const char *route_policy_text(enum route_policy p);
const char *route_policy_help(enum route_policy p);
/* For names of nodes and sessions; never 0. */
uint64_t route_hash(const void *p, size_t n);
