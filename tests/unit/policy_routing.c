/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/config/config.h"
#include "policy/route/routing/answerhome.h"
#include "policy/route/routing/routing.h"

static const struct route_weights seed_weights = {0.55, 0.25, 0.10, 0.10};

static void fill_chain(uint64_t *chain, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		chain[i] = mix_xorshift_star(&seed);
}

static struct route_record *record_of(size_t bytes)
{
	struct route_record *r = NULL;
	assert_true(cgn_ok(route_record_new(bytes, &r, NULL)));
	return r;
}

static uint32_t held_by(const struct route_record *r, const uint64_t *chain, size_t n, uint16_t slot)
{
	struct route_cand c = {.slot = slot, .held = 99};
	route_record_match(r, chain, n, &c, 1);
	return c.held;
}

/* Match the chain; all of it counts as on the GPU and confirmed. */
static void match_chain(const struct route_record *r, const uint64_t *chain, size_t n, struct route_cand *c,
	size_t n_cands)
{
	route_record_match(r, chain, n, c, n_cands);
	for (size_t i = 0; i < n_cands; i++)
		c[i].reuse = (float)c[i].held;
}

/* ---- record ---- */

static void record_answers_the_leading_blocks(void **state)
{
	(void)state;
	struct route_record *r = record_of(1 << 20);
	uint64_t chain[100], other[100];
	fill_chain(chain, 100, 1);
	fill_chain(other, 100, 2);
	memcpy(other, chain, 40 * sizeof chain[0]);
	assert_int_equal(held_by(r, chain, 100, 3), 0);
	route_record_add(r, chain, 100, 3);
	assert_int_equal(held_by(r, chain, 100, 3), 100);
	assert_int_equal(held_by(r, chain, 7, 3), 7);
	assert_int_equal(held_by(r, other, 100, 3), 40);
	/* Digests stand alone; the chain makes them prefixes. */
	assert_int_equal(held_by(r, chain + 1, 99, 3), 99);
	assert_int_equal(held_by(r, chain, 100, 4), 0);
	assert_int_equal(held_by(r, chain, 100, 3 + ROUTE_GROUP), 0);
	assert_int_equal(held_by(r, chain, 0, 3), 0);
	assert_int_equal(route_record_blocks_of(r, 3), 100);
	assert_int_equal(route_record_blocks(r), 100);
	route_record_free(&r);
	assert_null(r);
	route_record_free(&r);
}

static void record_answers_for_many_nodes_at_once(void **state)
{
	(void)state;
	struct route_record *r = record_of(4 << 20);
	uint64_t chain[64];
	fill_chain(chain, 64, 7);
	struct route_cand cands[40];
	for (uint16_t i = 0; i < 40; i++) { /* Every hot prefix on 40 nodes: more than a bucket has ways. */
		cands[i] = (struct route_cand){.slot = (uint16_t)(i * 3)};
		route_record_add(r, chain, i, cands[i].slot);
	}
	route_record_match(r, chain, 64, cands, 40);
	for (uint32_t i = 0; i < 40; i++)
		assert_int_equal(cands[i].held, i);
	route_record_free(&r);
}

static void record_forgets_a_node_that_left(void **state)
{
	(void)state;
	struct route_record *r = record_of(1 << 20);
	uint64_t chain[50];
	fill_chain(chain, 50, 3);
	route_record_add(r, chain, 50, 9);
	route_record_add(r, chain, 50, 10);
	route_record_forget(r, 9);
	assert_int_equal(held_by(r, chain, 50, 9), 0);
	assert_int_equal(held_by(r, chain, 50, 10), 50);
	assert_int_equal(route_record_blocks_of(r, 9), 0);
	route_record_add(r, chain, 20, 9);
	assert_int_equal(held_by(r, chain, 50, 9), 20);
	for (int i = 0; i < 300; i++) /* Around the end of the generation counter. */
		route_record_forget(r, 10);
	route_record_add(r, chain, 5, 10);
	assert_int_equal(held_by(r, chain, 5, 10), 5);
	route_record_free(&r);
}

static void record_drops_the_end(void **state)
{
	(void)state;
	struct route_record *r = record_of(1 << 20);
	uint64_t chain[10];
	fill_chain(chain, 10, 4);
	route_record_add(r, chain, 10, 1);
	route_record_drop(r, chain + 6, 4, 1);
	route_record_drop(r, chain + 6, 4, 1);
	route_record_drop(r, chain, 10, 2);
	assert_int_equal(held_by(r, chain, 10, 1), 6);
	assert_int_equal(route_record_blocks_of(r, 1), 6);
	route_record_free(&r);
}

/* For all pairs of lengths: where a step ends, two candidates of one group may part. */
static void record_finds_each_end(void **state)
{
	(void)state;
	struct route_record *r = record_of(1 << 20);
	uint64_t chain[40];
	fill_chain(chain, 40, 5);
	for (uint32_t a = 0; a <= 40; a++)
		for (uint32_t b = 0; b <= 40; b += 3) {
			struct route_cand c[2] = {{.slot = 1}, {.slot = 2}};
			route_record_forget(r, 1);
			route_record_forget(r, 2);
			route_record_add(r, chain, a, 1);
			route_record_add(r, chain, b, 2);
			route_record_match(r, chain, 40, c, 2);
			assert_int_equal(c[0].held, a);
			assert_int_equal(c[1].held, b);
		}
	route_record_free(&r);
}

/* Young entries are left alone, which makes a refresh cheap; missing entries behind them are added; evicted
 * ones come back. */
static void record_refreshes_what_grew_old(void **state)
{
	(void)state;
	struct route_record *r = record_of(1 << 20);
	uint64_t chain[100], other[200];
	fill_chain(chain, 100, 6);
	fill_chain(other, 200, 8);
	route_record_capacity(r, 1, 150);
	route_record_add(r, chain, 60, 1);
	route_record_add(r, chain, 100, 1);
	assert_int_equal(held_by(r, chain, 100, 1), 100);
	route_record_add(r, other, 60, 1);
	route_record_add(r, chain, 100, 1); /* Old enough to be written again. */
	route_record_add(r, other + 60, 100, 1);
	assert_int_equal(held_by(r, chain, 100, 1), 100);
	route_record_add(r, other, 200, 1);
	assert_int_equal(held_by(r, chain, 100, 1), 0); /* Other entries have taken the places by now. */
	route_record_add(r, chain, 100, 1);
	assert_int_equal(held_by(r, chain, 100, 1), 100);
	route_record_free(&r);
}

static void record_stays_in_its_memory_and_keeps_what_is_new(void **state)
{
	(void)state;
	struct route_record *r = record_of(100000); /* Rounded down to 64 KiB: 8192 entries. */
	assert_in_range(route_record_bytes(r), 65536, 400000);
	uint64_t chain[32];
	for (uint64_t i = 1; i <= 2000; i++) { /* 64000 blocks. */
		fill_chain(chain, 32, i);
		route_record_add(r, chain, 32, (uint16_t)(i % 5));
	}
	assert_in_range(route_record_blocks(r), 4000, 8192);
	unsigned recent = 0;
	for (uint64_t i = 1981; i <= 2000; i++) {
		fill_chain(chain, 32, i);
		recent += held_by(r, chain, 32, (uint16_t)(i % 5)) == 32;
	}
	assert_true(recent >= 18); /* Mostly the age decides. */
	fill_chain(chain, 32, 5);
	assert_int_equal(held_by(r, chain, 32, 0), 0);
	route_record_free(&r);
}

static void record_keeps_what_is_used(void **state)
{
	(void)state;
	struct route_record *r = record_of(65536);
	uint64_t hot[32], chain[32];
	fill_chain(hot, 32, 12345);
	for (uint64_t i = 1; i <= 2000; i++) {
		fill_chain(chain, 32, i);
		route_record_add(r, chain, 32, 1);
		route_record_add(r, hot, 32, 1);
	}
	assert_int_equal(held_by(r, hot, 32, 1), 32);
	route_record_free(&r);
}

static void record_does_not_count_what_the_engine_must_have_evicted(void **state)
{
	(void)state;
	struct route_record *r = record_of(8 << 20);
	uint64_t first[16], chain[16];
	fill_chain(first, 16, 777);
	route_record_capacity(r, 6, 160);
	route_record_add(r, first, 16, 6);
	for (uint64_t i = 1; i <= 9; i++) {
		fill_chain(chain, 16, i);
		route_record_add(r, chain, 16, 6);
	}
	assert_int_equal(held_by(r, first, 16, 6), 16); /* 160 blocks: just fits. */
	fill_chain(chain, 16, 10);
	route_record_add(r, chain, 16, 6);
	fill_chain(chain, 16, 11);
	route_record_add(r, chain, 16, 6);
	assert_true(held_by(r, first, 16, 6) < 16);
	route_record_capacity(r, 6, 0);
	assert_int_equal(held_by(r, first, 16, 6), 16);
	route_record_free(&r);
}

/* The capacity is computed from the tokens in a block, which are assumed first and measured later. */
static void record_outlives_a_new_capacity(void **state)
{
	(void)state;
	static const uint64_t capacities[] = {8192, 3000, 9000, 2048, 70000, 4096};
	struct route_record *r = record_of(8 << 20);
	uint64_t chain[100], other[100];
	fill_chain(chain, 100, 777);
	route_record_capacity(r, 6, 2048);
	for (uint64_t i = 1; i <= 10; i++) {
		fill_chain(other, 100, i);
		route_record_add(r, other, 100, 6);
	}
	route_record_add(r, chain, 100, 6);
	for (size_t i = 0; i < 4; i++) {
		route_record_capacity(r, 6, capacities[i]);
		assert_int_equal(held_by(r, chain, 100, 6), 100);
	}
	/* Another unit is needed: the recorded blocks may count less, and those that follow count. */
	for (size_t i = 4; i < sizeof capacities / sizeof *capacities; i++) {
		route_record_capacity(r, 6, capacities[i]);
		fill_chain(other, 100, 1000 + i);
		route_record_add(r, other, 100, 6);
		assert_int_equal(held_by(r, other, 100, 6), 100);
	}
	route_record_free(&r);
}

static void record_bounds_long_chains(void **state)
{
	(void)state;
	struct route_record *r = record_of(8 << 20);
	size_t n = ROUTE_MAX_BLOCKS + 500;
	uint64_t *chain = calloc(n, sizeof *chain);
	fill_chain(chain, n, 5);
	route_record_add(r, chain, n, 0);
	assert_int_equal(held_by(r, chain, n, 0), ROUTE_MAX_BLOCKS);
	assert_true(route_record_blocks(r) <= ROUTE_MAX_BLOCKS);
	free(chain);
	route_record_free(&r);
}

struct racer {
	struct route_record *r;
	uint64_t seed;
};

static void *race_thread(void *arg) /* Returns a reason to fail, or NULL. */
{
	struct racer *a = arg;
	uint64_t chain[32];
	struct route_cand cands[4] = {{.slot = 0}, {.slot = 1}, {.slot = 2}, {.slot = 9}};
	for (uint64_t i = 0; i < 3000; i++) {
		fill_chain(chain, 32, (i + a->seed) % 97 + 1);
		route_record_match(a->r, chain, 32, cands, 4);
		route_record_add(a->r, chain, 32, (uint16_t)(i % 3));
		if (i % 500 == 0)
			route_record_forget(a->r, 2);
		for (int k = 0; k < 4; k++)
			if (cands[k].held > 32)
				return arg;
	}
	return cands[3].held > 0 ? arg : NULL;
}

static void record_is_safe_without_locks(void **state)
{
	(void)state;
	struct route_record *r = record_of(65536);
	struct racer a[3] = {{r, 1}, {r, 50}, {r, 77}};
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, race_thread, &a[i]), 0);
	for (int i = 0; i < 3; i++) {
		void *bad = &a[i];
		assert_int_equal(pthread_join(t[i], &bad), 0);
		assert_null(bad);
	}
	assert_true(route_record_blocks(r) <= 8192);
	route_record_free(&r);
}

/* ---- score and pick ---- */

static struct route_ask ask_of(size_t blocks, uint64_t sticky)
{
	return (struct route_ask){.weights = seed_weights,
		.blocks = blocks,
		.session = sticky,
		.max_inflight = 256};
}

static struct route_cand idle_cand(uint16_t slot)
{
	return (struct route_cand){.slot = slot,
		.power_headroom = 1,
		.node_id_hash = route_hash(&slot, sizeof slot)};
}

static void score_is_the_documented_sum(void **state)
{
	(void)state;
	struct route_ask ask = ask_of(10, 1);
	struct route_cand c = {.held = 5,
		.reuse = 5,
		.inflight = 3,
		.others = 1,
		.width = 8,
		.kv_usage = 0.25F,
		.power_headroom = 0.5F};
	double want = 0.55 * 0.5 + 0.25 * (1 - 4.0 / 8) + 0.10 * 0.5 + 0.10 * 0.75;
	assert_true(route_score(&ask, &c) > want - 1e-9 && route_score(&ask, &c) < want + 1e-9);
	c.width = 0; /* An unknown width counts as ROUTE_WIDTH, and so does any greater width. */
	double unknown = route_score(&ask, &c);
	c.width = 4096;
	assert_true(route_score(&ask, &c) >= unknown && route_score(&ask, &c) <= unknown);
	c.width = 1;
	assert_true(route_score(&ask, &c) < unknown - 0.5); /* A queue of three for a single slot. */
}

static void energy_counts_where_rules_say_so(void **state)
{
	(void)state;
	struct route_cand c[2] = {idle_cand(0), idle_cand(1)};
	struct route_ask ask = ask_of(0, 42);
	struct route_terms t;
	c[0].joules = 700; /* An idle node. */
	c[1].joules = 40;
	c[1].inflight = 3;
	ask.policy = ROUTE_PREDICTED;
	ask.answer_tokens = 100;
	ask.ms_per_joule = 16;
	c[0].speed = c[1].speed = ROUTE_SPEED_DEFAULT;
	assert_int_equal(route_pick(&ask, c, 2).index, 0);
	ask.spares = true;
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
	route_terms(&ask, &c[0], &t);
	assert_true(t.energy_ms > 11199 && t.energy_ms < 11201);
	c[1].barred = ROUTE_BAR_HOT;
	assert_int_equal(route_pick(&ask, c, 2).index, 0);
	c[0].barred = ROUTE_BAR_BUDGET;
	assert_int_equal(route_pick(&ask, c, 2).verdict, ROUTE_FULL);
	/* weighted: the share of the joules that a node spares, instead of the power that is left. */
	c[0].barred = c[1].barred = ROUTE_BAR_NONE;
	ask.policy = ROUTE_WEIGHTED;
	ask.most_joules = 700;
	route_terms(&ask, &c[0], &t);
	assert_true(t.power < 1e-6);
	route_terms(&ask, &c[1], &t);
	assert_true(t.power > 0.094 && t.power < 0.095);
	ask.spares = false;
	route_terms(&ask, &c[0], &t);
	assert_true(t.power > 0.099);
}

static void a_held_prefix_outweighs_two_widths_and_no_more(void **state)
{
	(void)state;
	struct route_cand c[2] = {idle_cand(0), idle_cand(1)};
	struct route_ask ask = ask_of(100, 42);
	c[0].held = 100;
	c[0].reuse = 100;
	c[0].inflight = 34;
	assert_int_equal(route_pick(&ask, c, 2).index, 0);
	c[0].inflight = 37;
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
	c[1].held = 100;
	c[1].reuse = 100; /* Equal holdings decide nothing. */
	c[0].inflight = 1;
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
}

static void reuse_weighs_tiers_and_belief(void **state)
{
	(void)state;
	const struct route_tiers w = {{1, 0.8F, 0.5F, 0.3F}};
	static const uint32_t none[BLOCK_TIERS] = {0}, gpu[BLOCK_TIERS] = {[BLOCK_GPU] = 10},
			      ram[BLOCK_TIERS] = {[BLOCK_RAM] = 10}, mixed[BLOCK_TIERS] = {1, 2, 4, 10};
	assert_true(route_reuse(&w, none, 1) < 1e-6F);
	assert_true(route_reuse(&w, gpu, 1) > route_reuse(&w, ram, 1));
	/* Half-trusted blocks on the GPU are worth less than trusted blocks in slower memory. */
	assert_true(route_reuse(&w, gpu, 0.5) < route_reuse(&w, ram, 1));
	double want = 1 + 2 * 0.8 + 4 * 0.5 + 10 * 0.3;
	assert_true((double)route_reuse(&w, mixed, 1) > want - 1e-4 &&
		(double)route_reuse(&w, mixed, 1) < want + 1e-4);
	struct route_ask ask = ask_of(10, 42);
	struct route_cand c[2] = {idle_cand(0), idle_cand(1)};
	c[0].held = c[1].held = 10;
	c[0].reuse = route_reuse(&w, ram, 1);
	c[1].reuse = route_reuse(&w, gpu, 1);
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
	/* An untrusted node is picked like one without the blocks. */
	c[1].reuse = route_reuse(&w, gpu, 0.05);
	assert_int_equal(route_pick(&ask, c, 2).index, 0);
}

static void power_and_capacity_count(void **state)
{
	(void)state;
	struct route_ask ask = ask_of(0, 0);
	struct route_cand c[2] = {idle_cand(0), idle_cand(1)};
	c[0].power_headroom = 0.2F;
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
	c[0].power_headroom = 1;
	c[1].kv_usage = 0.9F;
	assert_int_equal(route_pick(&ask, c, 2).index, 0);
	ask.weights = (struct route_weights){1, 0, 0, 0};
	ask.blocks = 4;
	c[1].held = 1;
	c[1].reuse = 1;
	c[1].inflight = 200;
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
}

static void a_node_that_has_to_load_the_model_comes_last(void **state)
{
	(void)state;
	struct route_ask ask = ask_of(10, 1);
	struct route_cand c[2] = {idle_cand(0), idle_cand(1)};
	c[0].held = 10;
	c[0].reuse = 10;
	c[0].load_ms = 2000;
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
	ask.policy = ROUTE_PREDICTED;
	ask.answer_tokens = 1;
	for (size_t i = 0; i < 2; i++)
		c[i].speed = (struct route_speed){.prefill_ms = 1, .step_ms = 1};
	c[0].uncached_tokens = 10;
	c[1].uncached_tokens = 100; /* 500 ms, of which others bear 400. */
	assert_int_equal(route_pick(&ask, c, 2).index, 1);
	c[1].queued_tokens = 3000; /* A queue that is longer than the load. */
	assert_int_equal(route_pick(&ask, c, 2).index, 0);
	struct route_terms t;
	route_terms(&ask, &c[0], &t);
	assert_true(t.queue_ms > 1999 && t.queue_ms < 2001);
	/* Both have to load: the one where another model would have to leave comes last. */
	c[1] = c[0];
	c[1].slot = 1;
	c[0].evict_ms = 2000;
	for (unsigned turn = 0; turn < 4; turn++) {
		ask.turn = turn;
		ask.policy = ROUTE_PREDICTED;
		assert_int_equal(route_pick(&ask, c, 2).index, 1);
		ask.policy = ROUTE_WEIGHTED;
		assert_int_equal(route_pick(&ask, c, 2).index, 1);
	}
}

static void no_node_is_picked_over_the_limit(void **state)
{
	(void)state;
	struct route_ask ask = ask_of(4, 9);
	struct route_cand c[3] = {idle_cand(0), idle_cand(1), idle_cand(2)};
	assert_int_equal(route_pick(&ask, c, 0).verdict, ROUTE_NONE);
	for (int i = 0; i < 3; i++)
		c[i].inflight = 256;
	c[1].held = 4;
	c[1].reuse = 4;
	assert_int_equal(route_pick(&ask, c, 3).verdict, ROUTE_FULL);
	c[2].inflight = 255;
	struct route_pick p = route_pick(&ask, c, 3);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	assert_int_equal(p.index, 2);
}

static void ties_stick_and_spread(void **state)
{
	(void)state;
	struct route_cand c[4] = {idle_cand(0), idle_cand(1), idle_cand(2), idle_cand(3)};
	unsigned count[4] = {0};
	for (uint64_t i = 1; i <= 4000; i++) {
		struct route_ask ask = ask_of(8, route_hash(&i, sizeof i));
		size_t first = route_pick(&ask, c, 4).index;
		c[(first + 1) % 4].kv_usage = 0.05F; /* A difference below ROUTE_TIE changes no pick. */
		ask.turn = (uint32_t)i;
		assert_int_equal(route_pick(&ask, c, 4).index, first);
		c[(first + 1) % 4].kv_usage = 0;
		count[first]++;
		struct route_cand three[3]; /* A node leaves: only its own prefixes move. */
		size_t n = 0;
		for (size_t k = 0; k < 4; k++)
			if (k != (first + 2) % 4)
				three[n++] = c[k];
		assert_int_equal(three[route_pick(&ask, three, 3).index].slot, c[first].slot);
	}
	for (int i = 0; i < 4; i++)
		assert_in_range(count[i], 850, 1150);
}

static void without_a_prompt_it_goes_around(void **state)
{
	(void)state;
	struct route_cand c[3] = {idle_cand(0), idle_cand(1), idle_cand(2)};
	unsigned count[3] = {0};
	for (uint32_t i = 0; i < 300; i++) {
		struct route_ask ask = ask_of(0, 0);
		ask.turn = i;
		count[route_pick(&ask, c, 3).index]++;
	}
	for (int i = 0; i < 3; i++)
		assert_int_equal(count[i], 100);
	c[0].inflight = c[1].inflight = 1;
	struct route_ask ask = ask_of(0, 0);
	for (ask.turn = 0; ask.turn < 5; ask.turn++)
		assert_int_equal(route_pick(&ask, c, 3).index, 2);
}

/* Two routers do not stay in step on equal nodes, whatever numbers they start from. */
static void two_routers_are_not_in_step(void **state)
{
	(void)state;
	struct route_cand c[4] = {idle_cand(0), idle_cand(1), idle_cand(2), idle_cand(3)};
	for (uint32_t apart = 1; apart < 2000; apart += 37) {
		unsigned together = 0;
		for (uint32_t i = 0; i < 800; i++) {
			struct route_ask a = ask_of(0, 0), b = ask_of(0, 0);
			a.policy = b.policy = apart % 2 == 0 ? ROUTE_LEAST_LOADED : ROUTE_WEIGHTED;
			a.turn = 1000000 + i;
			b.turn = 1000000 + i + 4 * apart; /* The same place in a round of four. */
			together += route_pick(&a, c, 4).index == route_pick(&b, c, 4).index;
		}
		assert_in_range(together, 80, 360); /* 200 by chance. */
	}
}

/* ---- the other policies ---- */

/* Is |word| in the row of router.policy of the settings' page? */
static bool settings_name(const char *word)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf page = {0};
	config_reference(&page);
	const char *row = strstr(cgn_buf_z(&page), "`policy`](../");
	assert_non_null(row);
	const char *at = strstr(row, word);
	return at != NULL && at < row + strcspn(row, "\n");
}

static void policies_have_names(void **state)
{
	(void)state;
	enum route_policy p = ROUTE_SESSION;
	for (unsigned i = 0; i < ROUTE_POLICIES; i++) {
		const char *text = route_policy_text((enum route_policy)i);
		assert_true(route_policy_find(cgn_str_of(text), &p));
		assert_int_equal(p, i);
		assert_true(strlen(route_policy_help(p)) > 0);
		assert_true(settings_name(text));
	}
	assert_true(route_policy_find(CGN_STR("kv"), &p));
	assert_int_equal(p, ROUTE_KV);
	assert_true(p == ROUTE_WEIGHTED || p == ROUTE_PREDICTED);
	p = ROUTE_RANDOM;
	assert_false(route_policy_find(CGN_STR("KV"), &p));
	assert_false(route_policy_find(CGN_STR(""), &p));
	assert_int_equal(p, ROUTE_RANDOM);
}

static struct route_cand any_cand(uint64_t *rng, uint16_t slot)
{
	struct route_cand c = idle_cand(slot);
	c.inflight = (uint32_t)(mix_xorshift_star(rng) % 5);
	c.others = (uint32_t)(mix_xorshift_star(rng) % 3);
	c.decoding = c.inflight / 2 + c.others;
	c.width = (uint32_t)(mix_xorshift_star(rng) % 40);
	c.kv_usage = (float)(mix_xorshift_star(rng) % 100) / 100;
	c.held = (uint32_t)(mix_xorshift_star(rng) % 11);
	c.reuse = (float)c.held;
	c.queued_tokens = (float)(mix_xorshift_star(rng) % 20000);
	c.uncached_tokens = (float)(10 - c.held) * 512;
	c.speed = (struct route_speed){0.05F, 12, 0.1F, 1, true};
	return c;
}

static void no_policy_picks_who_has_no_room(void **state)
{
	(void)state;
	uint64_t rng = 77, chain[10];
	struct route_cand c[12];
	fill_chain(chain, 10, 3);
	for (unsigned i = 0; i < 20000; i++) {
		size_t n = mix_xorshift_star(&rng) % 13, roomy = 0;
		struct route_ask ask = ask_of(10, mix_xorshift_star(&rng) % 2 ? mix_xorshift_star(&rng) : 0);
		ask.policy = (enum route_policy)(i % ROUTE_POLICIES);
		ask.max_inflight = 1 + (uint32_t)(mix_xorshift_star(&rng) % 4);
		ask.turn = i;
		ask.random = mix_xorshift_star(&rng);
		ask.session_bound = 1.25;
		ask.chain = chain;
		for (size_t k = 0; k < n; k++) {
			c[k] = any_cand(&rng, (uint16_t)k);
			roomy += route_room(ask.max_inflight, c[k].width, c[k].inflight, c[k].others) > 0;
		}
		struct route_pick p = route_pick(&ask, c, n);
		assert_int_equal(p.verdict, roomy > 0 ? ROUTE_PICKED : n > 0 ? ROUTE_FULL : ROUTE_NONE);
		if (roomy > 0)
			assert_true(p.index < n &&
				route_room(ask.max_inflight, c[p.index].width, c[p.index].inflight,
					c[p.index].others) > 0);
	}
}

static void a_node_has_room_for_its_width_and_a_quarter(void **state)
{
	(void)state;
	assert_int_equal(route_room(256, 0, 0, 0), 256); /* The engine's concurrency is unknown. */
	assert_int_equal(route_room(256, 8, 0, 0), 10);
	assert_int_equal(route_room(256, 8, 10, 0), 0);
	assert_int_equal(route_room(256, 8, 4, 5), 1);
	assert_int_equal(route_room(256, 1, 1, 0),
		1); /* A second request, to start when the first is done. */
	assert_int_equal(route_room(256, 1, 2, 0), 0);
	assert_int_equal(route_room(4, 8, 3, 0), 1);
	assert_int_equal(route_room(4, 8, 4, 0), 0);
	assert_int_equal(route_room(256, 8, 0, 50), 2); /* A fifth of the width is this router's own. */
	assert_int_equal(route_room(256, 8, 1, 50), 1);
	assert_int_equal(route_room(256, 8, 2, 50), 0);
	assert_int_equal(route_room(1, 8, 0, 50), 1);
	assert_int_equal(route_room(UINT32_MAX, UINT32_MAX, 5, UINT32_MAX), 858993454);
}

static void turns_and_chances_are_even(void **state)
{
	(void)state;
	struct route_cand c[4] = {idle_cand(0), idle_cand(1), idle_cand(2), idle_cand(3)};
	static const enum route_policy even[] = {ROUTE_ROUND_ROBIN, ROUTE_RANDOM, ROUTE_LEAST_LOADED,
		ROUTE_POWER_OF_TWO, ROUTE_SESSION};
	for (size_t k = 0; k < CGN_COUNT(even); k++) {
		unsigned count[4] = {0};
		for (uint32_t i = 0; i < 4000; i++) {
			struct route_ask ask = ask_of(0, 0);
			ask.policy = even[k];
			ask.turn = i;
			ask.random = i * MIX_GOLDEN;
			count[route_pick(&ask, c, 4).index]++;
		}
		for (int i = 0; i < 4; i++)
			assert_in_range(count[i], 850, 1150);
	}
}

static void two_choices_take_the_lesser(void **state)
{
	(void)state;
	struct route_cand c[3] = {idle_cand(0), idle_cand(1), idle_cand(2)};
	c[1].inflight = 3;
	struct route_ask ask = ask_of(0, 0);
	ask.policy = ROUTE_POWER_OF_TWO;
	for (ask.random = 0; ask.random < 2000; ask.random++)
		assert_int_not_equal(route_pick(&ask, c, 3).index, 1);
}

static void sessions_stay_until_their_node_is_ahead(void **state)
{
	(void)state;
	struct route_cand c[4] = {idle_cand(0), idle_cand(1), idle_cand(2), idle_cand(3)};
	for (uint64_t s = 1; s < 200; s++) {
		struct route_ask ask = ask_of(0, route_hash(&s, sizeof s));
		ask.policy = ROUTE_SESSION;
		ask.session_bound = 1.25;
		for (int i = 0; i < 4; i++)
			c[i].inflight = 8;
		size_t home = route_pick(&ask, c, 4).index;
		c[home].inflight = 10; /* The mean is 8.75 with this request: up to 10 are allowed. */
		assert_int_equal(route_pick(&ask, c, 4).index, home);
		c[home].inflight = 12;
		size_t second = route_pick(&ask, c, 4).index;
		assert_int_not_equal(second, home);
		ask.turn = 17;
		assert_int_equal(route_pick(&ask, c, 4).index, second);
		c[second].inflight = 40;
		assert_int_equal(route_pick(&ask, c, 4).index, home); /* The mean has grown. */
	}
}

static void costs_are_the_documented_sum(void **state)
{
	(void)state;
	struct route_ask ask = ask_of(10, 1);
	struct route_terms t;
	ask.policy = ROUTE_PREDICTED;
	ask.answer_tokens = 100;
	struct route_cand c = {.queued_tokens = 3000,
		.uncached_tokens = 1000,
		.fetch_ms = 7,
		.inflight = 3,
		.others = 1,
		.speed = {0.05F, 12, 0.5F, 0.8F, true}};
	route_terms(&ask, &c, &t);
	assert_float_equal((float)t.queue_ms, 150, 0.01);
	assert_float_equal((float)t.prefill_ms, 50, 0.01);
	assert_float_equal((float)t.fetch_ms, 7, 0.01);
	assert_float_equal((float)t.slowdown_ms, ROUTE_PRESSURE * 50 + 4 * (40 + 2 * 50), 0.01);
	assert_true(t.measured);
	assert_float_equal((float)-route_score(&ask, &c), 150 + 50 + 7 + ROUTE_PRESSURE * 50 + 560, 0.01);
}

/* No pick depends on the unit of weights or times. */
static void scale_does_not_matter(void **state)
{
	(void)state;
	uint64_t rng = 99, chain[10];
	struct route_cand c[9], scaled[9];
	fill_chain(chain, 10, 3);
	for (unsigned i = 0; i < 5000; i++) {
		struct route_ask ask = ask_of(10, 0), other;
		ask.chain = chain;
		ask.policy = i % 2 ? ROUTE_WEIGHTED : ROUTE_PREDICTED;
		ask.answer_tokens = 100;
		other = ask;
		float scale =
			(float)(1 << mix_xorshift_star(&rng) % 8) / 16; /* A power of two: no rounding. */
		other.weights = (struct route_weights){seed_weights.kv * (double)scale,
			seed_weights.load * (double)scale, seed_weights.power * (double)scale,
			seed_weights.capacity * (double)scale};
		for (size_t k = 0; k < 9; k++) {
			c[k] = scaled[k] = any_cand(&rng, (uint16_t)k);
			scaled[k].speed.prefill_ms *= scale;
			scaled[k].speed.step_ms *= scale;
			scaled[k].speed.batch_ms *= scale;
		}
		assert_int_equal(route_pick(&ask, c, 9).index, route_pick(&other, scaled, 9).index);
	}
}

/* More work makes no node better, and a node's load does not make another node be picked. */
static void load_never_attracts(void **state)
{
	(void)state;
	uint64_t rng = 5, chain[10];
	struct route_cand c[7];
	fill_chain(chain, 10, 3);
	static const enum route_policy scored[] = {ROUTE_WEIGHTED, ROUTE_PREDICTED, ROUTE_LEAST_LOADED};
	for (unsigned i = 0; i < 6000; i++) {
		struct route_ask ask = ask_of(10, 0);
		ask.chain = chain;
		ask.policy = scored[i % 3];
		ask.answer_tokens = 100;
		for (size_t k = 0; k < 7; k++)
			c[k] = any_cand(&rng, (uint16_t)k);
		size_t at = mix_xorshift_star(&rng) % 7;
		double before = route_score(&ask, &c[at]);
		size_t picked = route_pick(&ask, c, 7).index;
		c[at].inflight += 1 + (uint32_t)(mix_xorshift_star(&rng) % 9);
		c[at].queued_tokens += (float)(mix_xorshift_star(&rng) % 9000);
		assert_true(route_score(&ask, &c[at]) <= before);
		if (picked != at)
			assert_int_not_equal(route_pick(&ask, c, 7).index, at);
	}
}

/* A chat service: all prompts share the first block. Each conversation comes when all nodes are idle, so that
 * only ties decide. */
static void a_shared_prompt_does_not_pile_up(void **state)
{
	(void)state;
	static const enum route_policy kv[] = {ROUTE_WEIGHTED, ROUTE_PREDICTED};
	for (size_t k = 0; k < 2; k++) {
		struct route_record *record = record_of(1 << 20);
		struct route_cand c[6];
		unsigned served[6] = {0};
		uint64_t chain[12];
		for (uint64_t talk = 0; talk < 600; talk++) {
			fill_chain(chain, 12, 1000 + talk);
			chain[0] = 42;
			for (uint16_t i = 0; i < 6; i++) {
				c[i] = idle_cand(i);
				c[i].speed = ROUTE_SPEED_DEFAULT;
				if (talk == 0)
					route_record_add(record, chain, 1, i);
			}
			match_chain(record, chain, 12, c, 6);
			for (size_t i = 0; i < 6; i++)
				c[i].uncached_tokens = (float)(12 - c[i].held) * 16;
			struct route_ask ask = ask_of(12, 0);
			ask.policy = kv[k];
			ask.chain = chain;
			ask.common = 1;
			size_t at = route_pick(&ask, c, 6).index;
			served[at]++;
			route_record_add(record, chain, 12, c[at].slot);
			match_chain(record, chain, 12, c, 6); /* The next turn. */
			for (size_t i = 0; i < 6; i++)
				c[i].uncached_tokens = (float)(12 - c[i].held) * 16;
			assert_int_equal(route_pick(&ask, c, 6).index, at);
		}
		for (int i = 0; i < 6; i++)
			assert_in_range(served[i], 60, 140);
		route_record_free(&record);
	}
}

/* ---- a cluster of toy engines: the value of routing ---- */

#define TOY_NODES    6
#define TOY_TABLE    16384
#define TOY_CAPACITY 4000
#define TOY_FLIGHT   96 /* Requests in flight at any time. */

struct toy_engine { /* An LRU set of digests. */
	uint64_t digest[TOY_TABLE], stamp[TOY_TABLE], clock;
	size_t used;
};

static size_t toy_find(const struct toy_engine *e, uint64_t d)
{
	size_t i = d % TOY_TABLE;
	while (e->digest[i] != 0 && e->digest[i] != d)
		i = (i + 1) % TOY_TABLE;
	return i;
}

static void toy_evict(struct toy_engine *e) /* Evict the older half. */
{
	struct toy_engine *fresh = calloc(1, sizeof *fresh);
	uint64_t floor = e->clock - TOY_CAPACITY / 2;
	for (size_t i = 0; i < TOY_TABLE; i++) {
		if (e->digest[i] == 0 || e->stamp[i] < floor)
			continue;
		size_t at = toy_find(fresh, e->digest[i]);
		fresh->digest[at] = e->digest[i];
		fresh->stamp[at] = e->stamp[i];
		fresh->used++;
	}
	fresh->clock = e->clock;
	*e = *fresh;
	free(fresh);
}

/* Return the number of blocks found. */
static size_t toy_serve(struct toy_engine *e, const uint64_t *chain, size_t n)
{
	size_t hit = 0;
	while (hit < n && e->digest[toy_find(e, chain[hit])] != 0)
		hit++;
	for (size_t i = 0; i < n; i++) {
		if (e->used >= TOY_CAPACITY)
			toy_evict(e);
		size_t at = toy_find(e, chain[i]);
		e->used += e->digest[at] == 0;
		e->digest[at] = chain[i];
		e->stamp[at] = ++e->clock;
	}
	return hit;
}

struct toy_result {
	double hit_ratio;
	unsigned peak_lead; /* Most requests in flight on one node above the mean. */
	uint64_t served[TOY_NODES];
};

/* Make the next prompt of conversations over |n_systems| system prompts (16 blocks each), with up to 6 turns
 * of 4 blocks. */
static size_t toy_prompt(uint64_t *rng, unsigned n_systems, uint64_t *chain)
{
	unsigned system = (unsigned)(mix_xorshift_star(rng) % n_systems);
	if (mix_xorshift_star(rng) % 100 < 50)
		system = 0; /* A system prompt is hot. */
	uint64_t talk = mix_xorshift_star(rng) % 300, turns = 1 + mix_xorshift_star(rng) % 6;
	fill_chain(chain, 16, 1000 + system);
	fill_chain(chain + 16, turns * 4, 1000000 + system * 1000 + talk);
	return 16 + (size_t)turns * 4;
}

static struct toy_result toy_run(bool aware, unsigned n_requests, uint64_t seed)
{
	struct toy_engine *engine = calloc(TOY_NODES, sizeof *engine);
	struct route_record *record = record_of(1 << 20);
	struct route_cand c[TOY_NODES];
	uint16_t flight[TOY_FLIGHT] = {0};
	uint64_t rng = seed, hits = 0, total = 0, chain[64];
	struct toy_result res = {0};
	for (uint16_t i = 0; i < TOY_NODES; i++) {
		c[i] = idle_cand(i);
		route_record_capacity(record, i, TOY_CAPACITY);
	}
	for (unsigned i = 0; i < n_requests; i++) {
		size_t n = toy_prompt(&rng, 40, chain), at = i % TOY_NODES;
		if (aware) {
			struct route_ask ask = ask_of(n, chain[0]);
			ask.turn = i;
			match_chain(record, chain, n, c, TOY_NODES);
			at = route_pick(&ask, c, TOY_NODES).index;
			route_record_add(record, chain, n, c[at].slot);
		}
		size_t out = mix_xorshift_star(&rng) %
			TOY_FLIGHT; /* A random request ends, and this one takes its place. */
		if (i >= TOY_FLIGHT)
			c[flight[out]].inflight--;
		else
			out = i;
		flight[out] = (uint16_t)at;
		c[at].inflight++;
		if (c[at].inflight > TOY_FLIGHT / TOY_NODES + res.peak_lead)
			res.peak_lead = c[at].inflight - TOY_FLIGHT / TOY_NODES;
		res.served[at]++;
		hits += toy_serve(&engine[at], chain, n);
		total += n;
	}
	res.hit_ratio = (double)hits / (double)total;
	route_record_free(&record);
	free(engine);
	return res;
}

static void shared_prefixes_hit_far_more_than_round_robin(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 3; seed++) {
		struct toy_result rr = toy_run(false, 6000, seed), kv = toy_run(true, 6000, seed);
		print_message("seed %d: hit ratio %.3f against %.3f round robin, peak lead %u, served %d..\n",
			(int)seed, kv.hit_ratio, rr.hit_ratio, kv.peak_lead, (int)kv.served[0]);
		assert_true(kv.hit_ratio > rr.hit_ratio * 1.3);
		assert_true(kv.hit_ratio > 0.6);
		assert_true(kv.peak_lead <= 40); /* 2.2 widths and the random part. */
		/* Half of all requests share one hot prompt, and yet no node idles. */
		for (int i = 0; i < TOY_NODES; i++)
			assert_in_range(kv.served[i], 6000 / TOY_NODES / 3, 6000 / TOY_NODES * 2);
	}
}

static void a_cold_burst_does_not_pile_up(void **state)
{
	(void)state;
	struct route_record *record = record_of(1 << 20);
	struct route_cand c[4] = {idle_cand(0), idle_cand(1), idle_cand(2), idle_cand(3)};
	uint64_t chain[20];
	fill_chain(chain, 20, 99);
	struct route_ask ask = ask_of(20, chain[0]);
	for (int i = 0; i < 200; i++) { /* 200 at once, none ends. */
		match_chain(record, chain, 20, c, 4);
		size_t at = route_pick(&ask, c, 4).index;
		route_record_add(record, chain, 20, c[at].slot);
		c[at].inflight++;
	}
	for (int i = 0; i < 4; i++)
		assert_in_range(c[i].inflight, 35, 65);
	route_record_free(&record);
}

static void picks_are_the_same_for_the_same_input(void **state)
{
	(void)state;
	struct toy_result a = toy_run(true, 2000, 11), b = toy_run(true, 2000, 11);
	assert_memory_equal(a.served, b.served, sizeof a.served);
}

static void hashes_are_never_zero(void **state)
{
	(void)state;
	assert_true(route_hash("", 0) != 0);
	assert_true(route_hash("a", 1) != route_hash("b", 1));
}

static void answers_have_a_home(void **state)
{
	(void)state;
	struct prompttail_table *t = NULL;
	assert_true(cgn_ok(prompttail_new(1 << 16, &t, NULL)));
	const struct {
		const char *data, *id;
	} begins[] = {
		{"{\"id\":\"resp_1\",\"object\":\"response\"", "resp_1"},
		{"event: response.created\ndata: {\"response\":{\"id\": \"resp_a-b\",\"x\":1", "resp_a-b"},
		{"{\"output\":[{\"id\":\"msg_1\"}],\"id\" : \"resp_2\"}", "resp_2"},
		{"{\"id\":\"resp_cut", NULL},
		{"{\"id\":\"resp\\u0031\"}", NULL},
		{"{\"id\":12}", NULL},
		{"{\"id\":", NULL},
		{"", NULL},
	};
	for (size_t i = 0; i < CGN_COUNT(begins); i++) {
		struct cgn_str id = answerhome_id(cgn_str_of(begins[i].data));
		assert_true(begins[i].id == NULL ? id.p == NULL : cgn_str_is(id, begins[i].id));
	}
	for (int n = ANSWERHOME_ID_MAX; n <= ANSWERHOME_ID_MAX + 1;
		n++) { /* The longest id, and one byte more. */
		char data[ANSWERHOME_ID_MAX + 16];
		(void)snprintf(data, sizeof data, "\"id\":\"resp%0*d\"", n - 4, 7);
		assert_int_equal(answerhome_id(cgn_str_of(data)).n, n == ANSWERHOME_ID_MAX ? n : 0);
	}
	const struct answerhome_of first = {CGN_STR("resp_1"), CGN_STR("m")};
	assert_false(answerhome_get(t, first).known);
	answerhome_put(t, first, 7, 0xabcd1234);
	struct answerhome h = answerhome_get(t, first);
	assert_false(answerhome_get(t, (struct answerhome_of){CGN_STR("resp_1"), CGN_STR("other")}).known);
	assert_true(h.known && answerhome_is(&h, 7, 0xabcd1234));
	assert_false(answerhome_is(&h, 8, 0xabcd1234));
	assert_false(answerhome_is(&h, 7, 0xabcd5678)); /* Another node has the slot. */
	answerhome_put(t, first, 0, 5);
	h = answerhome_get(t, first);
	assert_true(answerhome_is(&h, 0, 5));
	prompttail_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_have_a_home),
		cmocka_unit_test(record_answers_the_leading_blocks),
		cmocka_unit_test(record_answers_for_many_nodes_at_once),
		cmocka_unit_test(record_forgets_a_node_that_left),
		cmocka_unit_test(record_drops_the_end),
		cmocka_unit_test(record_finds_each_end),
		cmocka_unit_test(record_refreshes_what_grew_old),
		cmocka_unit_test(record_stays_in_its_memory_and_keeps_what_is_new),
		cmocka_unit_test(record_keeps_what_is_used),
		cmocka_unit_test(record_does_not_count_what_the_engine_must_have_evicted),
		cmocka_unit_test(record_outlives_a_new_capacity),
		cmocka_unit_test(record_bounds_long_chains),
		cmocka_unit_test(record_is_safe_without_locks),
		cmocka_unit_test(score_is_the_documented_sum),
		cmocka_unit_test(energy_counts_where_rules_say_so),
		cmocka_unit_test(a_held_prefix_outweighs_two_widths_and_no_more),
		cmocka_unit_test(reuse_weighs_tiers_and_belief),
		cmocka_unit_test(power_and_capacity_count),
		cmocka_unit_test(a_node_that_has_to_load_the_model_comes_last),
		cmocka_unit_test(no_node_is_picked_over_the_limit),
		cmocka_unit_test(ties_stick_and_spread),
		cmocka_unit_test(without_a_prompt_it_goes_around),
		cmocka_unit_test(two_routers_are_not_in_step),
		cmocka_unit_test(policies_have_names),
		cmocka_unit_test(no_policy_picks_who_has_no_room),
		cmocka_unit_test(a_node_has_room_for_its_width_and_a_quarter),
		cmocka_unit_test(turns_and_chances_are_even),
		cmocka_unit_test(two_choices_take_the_lesser),
		cmocka_unit_test(sessions_stay_until_their_node_is_ahead),
		cmocka_unit_test(costs_are_the_documented_sum),
		cmocka_unit_test(scale_does_not_matter),
		cmocka_unit_test(load_never_attracts),
		cmocka_unit_test(a_shared_prompt_does_not_pile_up),
		cmocka_unit_test(shared_prefixes_hit_far_more_than_round_robin),
		cmocka_unit_test(a_cold_burst_does_not_pile_up),
		cmocka_unit_test(picks_are_the_same_for_the_same_input),
		cmocka_unit_test(hashes_are_never_zero),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
