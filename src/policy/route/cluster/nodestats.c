/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/cluster/nodestats.h"

#include <stddef.h>
#include <string.h>

#include "policy/route/routing/trust.h"

#define RECOUNT_MOST 64 /* Times that a prompt has more or fewer tokens than its bytes say. */

static uint32_t at_most(uint64_t v, uint32_t limit)
{
	return v < limit ? (uint32_t)v : limit;
}

static void others_set(struct node_stats *stats, uint64_t requests, uint64_t tokens, uint64_t decoding)
{
	atomic_store_explicit(&stats->others, at_most(requests, 1000000), memory_order_relaxed);
	atomic_store_explicit(&stats->others_tokens, at_most(tokens, 1000000000), memory_order_relaxed);
	atomic_store_explicit(&stats->others_decoding, at_most(decoding, 1000000), memory_order_relaxed);
}

_Static_assert(offsetof(struct node_stats, answer_ppm) == 64, "a pick reads one cache line of a node");

static uint32_t sixteen_bits(float share)
{
	if (!(share > 0)) /* Also true for a NaN, which an agent may send. */
		return 0;
	return share >= 1 ? UINT16_MAX : (uint32_t)((double)share * UINT16_MAX + 0.5);
}

static void spare_set(struct node_stats *stats, float kv_usage, float power_headroom)
{
	atomic_store_explicit(&stats->kv_and_power,
		sixteen_bits(kv_usage) << 16 | sixteen_bits(power_headroom), memory_order_relaxed);
}

struct cluster_spare node_stats_spare(const struct node_stats *stats)
{
	uint32_t both = atomic_load_explicit(&stats->kv_and_power, memory_order_relaxed);
	return (struct cluster_spare){(float)(both >> 16) / UINT16_MAX,
		(float)(both & UINT16_MAX) / UINT16_MAX};
}

void node_stats_reset(struct node_stats *stats)
{
	others_set(stats, 0, 0, 0);
	spare_set(stats, 0, 1);
	atomic_store_explicit(&stats->trust_ppm, 1000000, memory_order_relaxed);
	atomic_store_explicit(&stats->answer_ppm, 1000000, memory_order_relaxed);
	atomic_store_explicit(&stats->block_millitokens, 0, memory_order_relaxed);
	atomic_store_explicit(&stats->breaker, 0, memory_order_relaxed);
	pulse_reset(&stats->pulse);
	atomic_store_explicit(&stats->saved_tokens, 0, memory_order_relaxed);
	atomic_store_explicit(&stats->refuses_usage, false, memory_order_relaxed);
	atomic_store_explicit(&stats->untrue_until, 0, memory_order_relaxed);
	atomic_store_explicit(&stats->token_us, 0, memory_order_relaxed);
	warm_clear(&stats->warm);
	teller_reset(&stats->teller);
	atomic_store_explicit(&stats->prefill_speed, 0, memory_order_relaxed);
	atomic_store_explicit(&stats->decode_speed, 0, memory_order_relaxed);
}

static uint64_t two_floats(float a, float b)
{
	uint32_t bits[2];
	memcpy(&bits[0], &a, sizeof a);
	memcpy(&bits[1], &b, sizeof b);
	return (uint64_t)bits[0] << 32 | bits[1];
}

static void two_floats_of(const _Atomic uint64_t *word, float *a, float *b)
{
	uint64_t v = atomic_load_explicit(word, memory_order_relaxed);
	uint32_t bits[2] = {(uint32_t)(v >> 32), (uint32_t)v};
	memcpy(a, &bits[0], sizeof *a);
	memcpy(b, &bits[1], sizeof *b);
}

cgn_nsec node_stats_busy(const struct node_stats *stats, cgn_nsec now)
{
	cgn_nsec total = atomic_load_explicit(&stats->prefill_total, memory_order_relaxed);
	cgn_nsec since = atomic_load_explicit(&stats->prefill_since, memory_order_relaxed);
	bool busy = atomic_load_explicit(&stats->queued_tokens, memory_order_relaxed) > 0;
	return busy ? total + cgn_since(now, since) : total;
}

uint32_t node_stats_requests(const struct node_stats *stats)
{
	return atomic_load_explicit(&stats->inflight, memory_order_relaxed) +
		atomic_load_explicit(&stats->others, memory_order_relaxed);
}

struct route_speed node_stats_speed(const struct node_stats *stats)
{
	struct route_speed s = {0};
	two_floats_of(&stats->prefill_speed, &s.prefill_ms, &s.interference);
	two_floats_of(&stats->decode_speed, &s.step_ms, &s.batch_ms);
	s.measured = s.prefill_ms > 0 && s.step_ms > 0;
	return s;
}

double node_stats_queue_ms(const struct node_stats *stats)
{
	uint64_t tokens = atomic_load_explicit(&stats->queued_tokens, memory_order_relaxed) +
		atomic_load_explicit(&stats->others_tokens, memory_order_relaxed);
	return (double)tokens * (double)node_stats_speed(stats).prefill_ms;
}

static void speed_set(struct node_stats *stats, const struct route_speed *s)
{
	atomic_store_explicit(&stats->prefill_speed, two_floats(s->prefill_ms, s->interference),
		memory_order_relaxed);
	atomic_store_explicit(&stats->decode_speed, two_floats(s->step_ms, s->batch_ms),
		memory_order_relaxed);
}

void node_stats_prefill(struct node_stats *stats, double ms, double tokens)
{
	struct route_speed s = node_stats_speed(stats);
	route_speed_prefill(&s, ms, tokens);
	speed_set(stats, &s);
}

void node_stats_decode(struct node_stats *stats, double ms, double tokens, double beside, double stall_ms)
{
	struct route_speed s = node_stats_speed(stats);
	route_speed_decode(&s, ms, tokens, beside, stall_ms);
	speed_set(stats, &s);
}

double node_stats_answer_share(const struct node_stats *stats)
{
	return (double)atomic_load_explicit(&stats->answer_ppm, memory_order_relaxed) * 1e-6;
}

void node_stats_answer(struct node_stats *stats, uint64_t answer, uint64_t found)
{
	if (answer == 0)
		return;
	double was = node_stats_answer_share(stats),
	       now = found < answer ? (double)found / (double)answer : 1;
	atomic_store_explicit(&stats->answer_ppm, (uint32_t)((was + (now - was) / 16) * 1e6 + 0.5),
		memory_order_relaxed);
}

double node_stats_trust(const struct node_stats *stats)
{
	return (double)atomic_load_explicit(&stats->trust_ppm, memory_order_relaxed) * 1e-6;
}

void node_stats_believe(struct node_stats *stats, uint64_t predicted, uint64_t actual)
{
	double trust = route_trust_step(node_stats_trust(stats), predicted, actual);
	atomic_store_explicit(&stats->trust_ppm, (uint32_t)(trust * 1e6 + 0.5), memory_order_relaxed);
}

double node_stats_block_tokens(const struct node_stats *stats)
{
	return (double)atomic_load_explicit(&stats->block_millitokens, memory_order_relaxed) * 1e-3;
}

void node_stats_measure(struct node_stats *stats, uint64_t tokens, double blocks)
{
	if (!(blocks >= 1) || tokens == 0)
		return;
	double was = node_stats_block_tokens(stats), now = (double)tokens / blocks;
	if (now > 1e6)
		now = 1e6;
	if (was > 0)
		now = was + (now - was) / 16;
	atomic_store_explicit(&stats->block_millitokens, (uint32_t)(now * 1e3 + 0.5), memory_order_relaxed);
}

double node_stats_pace(const struct node_stats *stats)
{
	return (double)atomic_load_explicit(&stats->token_us, memory_order_relaxed) * 1e-3;
}

void node_stats_paced(struct node_stats *stats, double ms, uint64_t tokens)
{
	double was = node_stats_pace(stats), now = tokens > 0 ? ms / (double)tokens : 0;
	if (!(now > 1e-3) || now > 1e6)
		return;
	if (was > 0)
		now = was + (now - was) / 16;
	atomic_store_explicit(&stats->token_us, (uint32_t)(now * 1e3 + 0.5), memory_order_relaxed);
}

void node_stats_recount(struct node_stats *stats, double expected, double counted)
{
	struct route_speed s = node_stats_speed(stats);
	double by = counted > 0 ? expected / counted : 0;
	if (!(by > 1.0 / RECOUNT_MOST) || by > RECOUNT_MOST)
		return;
	s.prefill_ms = (float)((double)s.prefill_ms * by);
	speed_set(stats, &s);
}

static uint64_t excess_of(uint64_t all, uint64_t part)
{
	return all > part ? all - part : 0;
}

/* The agent counts by router: it reports all requests at one instant, and which of them are ours. */
static void others_take(struct node_stats *stats, const Cognitora__V1__Load *load)
{
	others_set(stats, excess_of(load->inflight, load->yours) + load->foreign,
		excess_of(load->queued_tokens, load->yours_queued_tokens),
		excess_of(load->decoding, load->yours_decoding));
}

/* The agent does not count by router: take the requests that its engines report, less those that this router
 * had there when the report came. An agent that knows nothing of its engine still knows the requests that it
 * relays. */
static void others_guess(struct node_stats *stats, const Cognitora__V1__Load *load)
{
	uint64_t engines = (uint64_t)load->running + load->waiting;
	uint64_t there = engines > load->inflight ? engines : load->inflight;
	others_set(stats, excess_of(there, atomic_load_explicit(&stats->inflight, memory_order_relaxed)), 0,
		0);
}

void node_stats_load(struct node_stats *stats, const Cognitora__V1__Load *load, cgn_nsec now)
{
	const struct pulse_witness witness = proto_witness_of(load);
	pulse_told(&stats->pulse, now, &witness);
	(load->shared ? others_take : others_guess)(stats, load);
	spare_set(stats, load->kv_usage, load->power_headroom);
}

void node_stats_forget_others(struct node_stats *stats)
{
	others_set(stats, 0, 0, 0);
}
