/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCKS 64
#include "chooser_world.h"

#define NODES 3

static void world_init(struct world *w)
{
	world_of(w, NODES, 8, ROUTE_WEIGHTED);
}

/* Two workers pick at one instant: both see the last place, one gets it. */
static void the_last_place_is_taken_once(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct route_rules rules = *ask_of(&w).rules;
	rules.max_inflight = 1;
	struct chooser_ask ask = ask_of(&w);
	ask.rules = &rules;
	struct chooser_ticket t = {0};
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask), late = p;
	struct node_stats *stats = &w.shared.stats[p.cands[p.index].slot];
	assert_true(chooser_claim(w.chooser, &ask, &p));
	assert_false(chooser_claim(w.chooser, &ask, &late));
	assert_int_equal(stats->inflight, 1);
	chooser_unclaim(w.chooser, &p);
	assert_true(chooser_claim(w.chooser, &ask, &late));
	chooser_book(w.chooser, &ask, &late, &t);
	assert_int_equal(stats->inflight, 1);
	chooser_release(w.chooser, &t, 0);
	assert_int_equal(stats->inflight, 0);
	world_fini(&w);
}

/* Two workers have a chooser each: together they go through the nodes in turn, whichever is asked. */
static void workers_take_turns_together(void **state)
{
	(void)state;
	struct world w;
	struct chooser *both[2] = {NULL, NULL};
	_Atomic uint32_t turns = 0;
	unsigned sent[NODES] = {0};
	world_of(&w, NODES, 8, ROUTE_ROUND_ROBIN);
	w.shared.turns = &turns;
	chooser_free(&w.chooser);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(cgn_ok(chooser_new(&w.shared, 7 * i, &both[i], NULL)));
	const struct chooser_ask ask = ask_of(&w);
	for (unsigned i = 0; i < 8 * NODES; i++) {
		struct chooser *c = both[(i * i + i / 5) % 2];
		struct chooser_ticket t = {0};
		struct chooser_pick_result p = chooser_pick(c, &ask);
		sent[p.index]++;
		chooser_book(c, &ask, &p, &t);
		chooser_release(c, &t, 0);
		for (unsigned n = 0; n < NODES; n++)
			assert_true(sent[n] == i / NODES || sent[n] == i / NODES + 1);
	}
	chooser_free(&both[0]);
	chooser_free(&both[1]);
	world_fini(&w);
}

static void report_sums(struct world *w, uint32_t slot, double stream_j, double token_j, cgn_nsec at)
{
	const struct energy_report r = {.sums = {stream_j, token_j, at}, .scale = 1, .pace = 1};
	energy_board_sums(w->shared.energy, slot, &r);
}

/* A node alone, whose meter tells once a second, uses 100 W for a prompt: one request of 2 s has 200 J, whole or streamed,
 * with its place claimed before or not. */
static void a_request_is_told_its_joules(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 4; n++) {
		const bool claims = n & 1, whole = n & 2;
		struct world w;
		struct energy_board *board = NULL;
		world_of(&w, 1, 8, ROUTE_WEIGHTED);
		board = energy_board_new(ROUTE_MAX_NODES);
		chooser_free(&w.chooser);
		w.shared.energy = board;
		assert_true(cgn_ok(chooser_new(&w.shared, 0, &w.chooser, NULL)));
		struct chooser_ask ask = ask_of(&w);
		ask.whole = whole;
		ask.now = 110 * CGN_SEC;
		struct chooser_ticket t = {0};
		struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
		uint32_t slot = p.cands[p.index].slot;
		const struct energy_curve watts = {.decode = {100, 100, 100, 100, 100, 100, 100, 100, 100,
							   100},
			.prefill = 100};
		energy_board_set(board, slot, &watts, 0);
		report_sums(&w, slot, 1000, 5000, 109 * CGN_SEC);
		if (claims)
			assert_true(chooser_claim(w.chooser, &ask, &p));
		chooser_book(w.chooser, &ask, &p, &t);
		/* The meter counts the first second of the prompt, and nothing before it. */
		report_sums(&w, slot, 1000, 5000 + 100 / (t.new_tokens + 1.0), 111 * CGN_SEC);
		struct chooser_energy e = chooser_joules(w.chooser, &t, 112 * CGN_SEC);
		assert_true(e.counted);
		if (e.prefill_j + e.decode_j < 190 || e.prefill_j + e.decode_j > 210)
			fail_msg("claims %d, whole %d: %g + %g J", claims, whole, e.prefill_j, e.decode_j);
		/* Another meter begins at 0: the joules until then stay. */
		report_sums(&w, slot, 0, 0, 112 * CGN_SEC);
		chooser_release(w.chooser, &t, 113 * CGN_SEC);
		e = chooser_joules(w.chooser, &t, 114 * CGN_SEC);
		if (e.prefill_j + e.decode_j < 290 || e.prefill_j + e.decode_j > 310)
			fail_msg("a new meter: %g + %g J", e.prefill_j, e.decode_j);
		world_fini(&w);
		energy_board_free(&board);
	}
}

/* Two idle nodes draw 240 W, and one stream brings 147 more. A prompt counts with the power of prefill for the part of a second
 * that it takes, and with the prompts of the last second. */
static void the_budget_counts_a_prompt_by_its_time(void **state)
{
	(void)state;
	struct energy_curve watts = {.decode = {120, 267, 303, 339, 375, 411, 447, 483, 519, 555},
		.prefill = 680,
		.measured = ENERGY_MEASURED_ALONE | ENERGY_MEASURED_PREFILL};
	struct world w;
	world_of(&w, 2, 8, ROUTE_LEAST_LOADED);
	w.shared.energy = energy_board_new(ROUTE_MAX_NODES);
	chooser_free(&w.chooser);
	assert_true(cgn_ok(chooser_new(&w.shared, 0, &w.chooser, NULL)));
	w.rules.energy = (struct route_energy){.mode = ROUTE_ENERGY_ON, .budget_w = 600};
	struct chooser_ask ask = ask_of(&w);
	ask.now = 100 * CGN_SEC;
	for (uint32_t i = 0; i < 2; i++) {
		energy_board_set(w.shared.energy, i, &watts, 0);
		node_stats_prefill(&w.shared.stats[i], 100, 1000); /* 0.1 ms for each token. */
		assert_true(node_stats_speed(&w.shared.stats[i]).prefill_ms > 0);
	}
	assert_true(chooser_watts_least(&w.shared, ask.now) > 386.9 &&
		chooser_watts_least(&w.shared, ask.now) < 387.1);
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED); /* A tenth of a second. */
	w.rules.energy.budget_w = 380;
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_FULL);
	assert_true(p.ask.barred_w > 400 && p.ask.never_w > 400); /* Not even alone. */
	watts.measured = 0;                                       /* Only a guess: it waits. */
	energy_board_set(w.shared.energy, 1, &watts, 0);
	p = chooser_pick(w.chooser, &ask);
	assert_true(p.verdict == ROUTE_FULL && p.ask.never_w <= 0);
	assert_true(chooser_watts_least(&w.shared, ask.now) <= 0);
	watts.most = 1; /* No request was measured there yet: it is tried while nothing else runs. */
	energy_board_set(w.shared.energy, 1, &watts, 0);
	p = chooser_pick(w.chooser, &ask);
	assert_true(p.verdict == ROUTE_PICKED && p.cands[p.index].slot == 1);
	atomic_store(&w.shared.stats[0].inflight, 1);
	assert_int_equal(chooser_pick(w.chooser, &ask).verdict, ROUTE_FULL);
	atomic_store(&w.shared.stats[0].inflight, 0);
	watts = (struct energy_curve){
		.prefill = 0}; /* No curve, and a reading, which may be that of other requests. */
	energy_board_set(w.shared.energy, 1, &watts, 0);
	energy_board_measured(w.shared.energy, 1, &(struct energy_measured){.node_w = 370}, ask.now);
	p = chooser_pick(w.chooser, &ask);
	assert_true(p.verdict == ROUTE_FULL && p.ask.barred_w > 490 && p.ask.never_w <= 0);
	energy_board_clear(w.shared.energy, 1);
	energy_board_get(w.shared.energy, 0, &watts);
	energy_board_set(w.shared.energy, 1, &watts, 0);
	w.rules.energy.budget_w = 600;
	p = chooser_pick(w.chooser, &ask);
	struct chooser_ticket t = {0};
	chooser_book(w.chooser, &ask, &p, &t);
	ask.now += CGN_SEC; /* The prompt is being computed for a second. */
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_FULL);
	assert_true(p.ask.barred_w > 600 && p.ask.never_w <= 0);
	chooser_release(w.chooser, &t, ask.now);
	ask.now += 10 * CGN_SEC;
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	/* Another thread sends a request elsewhere between the pick and the claim. */
	atomic_store(&w.shared.stats[1 - p.cands[p.index].slot].inflight, 4);
	assert_false(chooser_claim(w.chooser, &ask, &p));
	assert_false(p.claimed);
	struct chooser_pick_result then = chooser_pick(w.chooser, &ask); /* Beside it there is room. */
	assert_true(then.verdict == ROUTE_PICKED && then.cands[then.index].inflight == 4);
	energy_board_free(&w.shared.energy);
	world_fini(&w);
}

/* Tokens that the picked node alone has count as saved, and only if they are asked for. */
static void what_a_cache_saves_is_counted(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct route_rules rules = *ask_of(&w).rules;
	struct chooser_ask ask = ask_of(&w);
	ask.rules = &rules;
	struct chooser_ticket t[3] = {0};
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	struct node_stats *stats = &w.shared.stats[p.cands[p.index].slot];
	chooser_book(w.chooser, &ask, &p, &t[0]);
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.cands[p.index].held, BLOCKS);
	chooser_book(w.chooser, &ask, &p, &t[1]);
	assert_int_equal(stats->saved_tokens, 0);
	rules.counts_saved = true;
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.cands[p.index].held, BLOCKS);
	chooser_book(w.chooser, &ask, &p, &t[2]);
	assert_int_equal(stats->saved_tokens, BLOCKS * 16);
	for (size_t i = 0; i < CGN_COUNT(t); i++)
		chooser_release(w.chooser, &t[i], 0);
	world_fini(&w);
}

static void what_is_booked_is_seen_and_given_back(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct chooser_ask ask = ask_of(&w);
	struct chooser_ticket a = {0}, b = {0};
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	assert_int_equal(p.n, NODES);
	chooser_book(w.chooser, &ask, &p, &a);
	struct node_stats *stats = &w.shared.stats[a.slot];
	assert_int_equal(stats->inflight, 1);
	assert_int_equal(stats->queued_tokens, BLOCKS * 16);
	assert_int_equal(a.ahead_tokens, 0);

	p = chooser_pick(w.chooser, &ask);
	/* The prompt was sent there, so the blocks are assumed there. */
	assert_int_equal(p.cands[p.index].slot, a.slot);
	assert_int_equal(p.cands[p.index].held, BLOCKS);
	chooser_book(w.chooser, &ask, &p, &b);
	assert_int_equal(b.new_tokens, 0);
	assert_int_equal(b.ahead_tokens, BLOCKS * 16);

	chooser_begun(w.chooser, &a, 0);
	chooser_begun(w.chooser, &a, 0);
	assert_int_equal(stats->queued_tokens, 0);
	assert_int_equal(stats->decoding, 1);
	chooser_release(w.chooser, &a, 0);
	chooser_release(w.chooser, &a, 0);
	chooser_release(w.chooser, &b, 0);
	assert_int_equal(stats->inflight, 0);
	assert_int_equal(stats->decoding, 0);
	assert_int_equal(stats->queued_tokens, 0);
	world_fini(&w);
}

static void a_pin_has_one_candidate_or_none(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct chooser_ask ask = ask_of(&w);
	ask.pin = view_node_find(w.view, CGN_STR("n1"))->slot;
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	assert_int_equal(p.n, 1);
	const uint16_t excluded[] = {(uint16_t)ask.pin};
	ask.excluded = excluded;
	ask.n_excluded = 1;
	assert_int_equal(chooser_pick(w.chooser, &ask).verdict, ROUTE_NONE);
	ask.model = NULL;
	assert_int_equal(chooser_pick(w.chooser, &ask).verdict, ROUTE_NONE);
	world_fini(&w);
}

/* Make every node publish events from here on, in a lane of its own. */
static void feed_all(struct world *w)
{
	for (int i = 0; i < NODES; i++) {
		char id[8];
		(void)snprintf(id, sizeof id, "n%d", i);
		struct cluster_node *n = cluster_find(w->cluster, id);
		assert_true(cgn_ok(kvindex_node_add(w->shared.index, &n->index_id, NULL)));
		n->has_index_id = n->fed = true;
	}
	cluster_view_unref(&w->view);
	assert_true(cgn_ok(cluster_view_new(w->cluster, NULL, NULL, &w->view, NULL)));
}

static uint32_t held_at(struct world *w, struct chooser_ask *ask, uint16_t slot, cgn_nsec now)
{
	ask->now = now;
	struct chooser_pick_result p = chooser_pick(w->chooser, ask);
	for (size_t i = 0; i < p.n; i++)
		if (p.cands[i].slot == slot)
			return p.cands[i].held;
	return UINT32_MAX;
}

static struct chooser_ticket send_one(struct world *w, const struct chooser_ask *ask)
{
	struct chooser_ticket t = {0};
	struct chooser_pick_result p = chooser_pick(w->chooser, ask);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	chooser_book(w->chooser, ask, &p, &t);
	return t;
}

static void a_burst_goes_where_the_first_went(void **state)
{
	(void)state;
	static const enum route_policy kv[] = {ROUTE_WEIGHTED, ROUTE_PREDICTED};
	for (size_t k = 0; k < CGN_COUNT(kv); k++) {
		struct world w;
		struct chooser_ticket t[20];
		world_of(&w, NODES, 64, ROUTE_WEIGHTED);
		feed_all(&w);
		w.rules.policy = kv[k];
		w.rules.max_inflight = 256;
		unsigned moved = 0;
		for (uint64_t i = 0; i < 20; i++) { /* No block is confirmed meanwhile. */
			w.chain[BLOCKS - 1] = block_fingerprint(i + 1, 7);
			struct chooser_ask ask = ask_of(&w);
			ask.block_tokens = 512; /* A long block. */
			ask.now = i * CGN_MSEC;
			t[i] = send_one(&w, &ask);
			moved += t[i].slot != t[0].slot;
		}
		assert_true(moved <= 4); /* At most 4 prompts move because of the load. */
		for (int i = 0; i < 20; i++)
			chooser_release(w.chooser, &t[i], CGN_SEC);
		struct chooser_ask ask = ask_of(&w); /* The engines all failed and hold nothing. */
		for (uint16_t slot = 0; slot < NODES; slot++)
			assert_int_equal(held_at(&w, &ask, slot, CGN_SEC), 0);
		world_fini(&w);
	}
}

static void a_booking_is_confirmed_or_ends(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	feed_all(&w);
	struct chooser_ask ask = ask_of(&w);
	struct chooser_ticket t = send_one(&w, &ask);
	assert_int_equal(held_at(&w, &ask, t.slot, CGN_SEC), BLOCKS);
	assert_int_equal(held_at(&w, &ask, t.slot, 60 * CGN_SEC), 0); /* The predicted prefill took 100 ms. */
	chooser_release(w.chooser, &t, 60 * CGN_SEC);

	ask.now = 100 * CGN_SEC;
	t = send_one(&w, &ask);
	chooser_begun(w.chooser, &t, 101 * CGN_SEC);
	assert_int_equal(held_at(&w, &ask, t.slot, 105 * CGN_SEC), BLOCKS);
	/* Computed without an event: the node does not cache it. */
	assert_int_equal(held_at(&w, &ask, t.slot, 107 * CGN_SEC), 0);
	chooser_release(w.chooser, &t, 107 * CGN_SEC);

	ask.now = 200 * CGN_SEC;
	t = send_one(&w, &ask);
	kvindex_set(w.shared.index, view_node_at(w.view, t.slot)->index_id, w.chain, NULL, BLOCKS);
	chooser_begun(w.chooser, &t, 201 * CGN_SEC);
	chooser_release(w.chooser, &t, 202 * CGN_SEC);
	assert_int_equal(held_at(&w, &ask, t.slot, 900 * CGN_SEC), BLOCKS);
	world_fini(&w);
}

/* Serve one request on |slot|: |prefill| until its first byte, then |stream| for 101 tokens. */
static void serve_one(struct world *w, uint16_t slot, cgn_nsec at, cgn_nsec prefill, cgn_nsec stream)
{
	struct chooser_ask ask = ask_of(w);
	ask.pin = slot;
	ask.now = at;
	struct chooser_ticket t = send_one(w, &ask);
	chooser_begun(w->chooser, &t, at + prefill);
	chooser_done(w->chooser, &t, &(struct chooser_outcome){.answer_tokens = 101}, at + prefill + stream);
	assert_false(t.booked);
	route_record_forget(w->shared.record, slot);
}

static void speeds_are_learned_and_lent(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct chooser_ask ask = ask_of(&w);
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	for (size_t i = 0; i < NODES; i++) {
		assert_false(p.cands[i].speed.measured);
		assert_float_equal(p.cands[i].speed.prefill_ms, 0.1, 1e-4);
	}
	for (int i = 0; i < 40; i++) { /* 1024 tokens in 20 ms; 10 ms a token. */
		serve_one(&w, 0, (cgn_nsec)(i + 1) * 10 * CGN_SEC, 20 * CGN_MSEC, CGN_SEC);
		serve_one(&w, 1, (cgn_nsec)(i + 1) * 10 * CGN_SEC, 40 * CGN_MSEC, 2 * CGN_SEC);
	}
	ask.now = 1000 * CGN_SEC;
	p = chooser_pick(w.chooser, &ask);
	assert_true(p.cands[0].speed.measured && p.cands[1].speed.measured && !p.cands[2].speed.measured);
	assert_float_equal(p.cands[0].speed.prefill_ms, 20.0 / 1024, 0.002);
	assert_float_equal(p.cands[1].speed.prefill_ms, 40.0 / 1024, 0.004);
	assert_float_equal(p.cands[0].speed.step_ms, 10, 0.5);
	assert_float_equal(p.cands[1].speed.step_ms, 20, 1);
	/* As the other nodes. */
	assert_true(p.cands[2].speed.prefill_ms > 0.015F && p.cands[2].speed.prefill_ms < 0.045F);
	w.rules.policy = ROUTE_PREDICTED;
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.cands[p.index].slot, 0); /* The fastest node, when all else is equal. */
	struct route_terms t;
	route_terms(&p.ask, &p.cands[1], &t);
	assert_float_equal((float)t.prefill_ms, 40, 4);
	assert_true(t.measured);
	world_fini(&w);
}

/* A node took a minute for its first prompt, and another node's engine reports wrong token counts: neither is
 * excluded or preferred for ever. */
static void a_wrong_measurement_does_not_last(void **state)
{
	(void)state;
	for (int slow = 0; slow < 2; slow++) {
		struct world w;
		struct chooser_ticket t[200];
		unsigned got[NODES] = {0};
		world_of(&w, NODES, 0, ROUTE_WEIGHTED);
		w.rules.policy = ROUTE_PREDICTED;
		w.rules.max_inflight = 1000;
		for (uint16_t i = 0; i < NODES; i++) {
			node_stats_prefill(&w.shared.stats[i], i == 1 ? (slow ? 6e4 : 1e-3) : 100, 1000);
			node_stats_decode(&w.shared.stats[i], i == 1 ? (slow ? 3e6 : 1e-3) : 2000, 100, 0, 0);
		}
		for (size_t i = 0; i < CGN_COUNT(t); i++) {
			struct chooser_ask ask = ask_of(&w);
			w.chain[0] = block_fingerprint(i + 1, 3); /* Each prompt has its own chain. */
			t[i] = send_one(&w, &ask);
			got[t[i].slot]++;
		}
		assert_in_range(got[1], 2, 190);
		for (size_t i = 0; i < CGN_COUNT(t); i++)
			chooser_release(w.chooser, &t[i], CGN_SEC);
		world_fini(&w);
	}
}

/* ---- random sequences ---- */

static uint64_t random_of(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* Make an agent's load report, plausible or not. */
static Cognitora__V1__Load any_load(uint64_t *dice)
{
	Cognitora__V1__Load l = COGNITORA__V1__LOAD__INIT;
	static const uint32_t numbers[] = {0, 1, 7, 300, UINT32_MAX};
	static const float shares[] = {0, 0.5F, 1, -1, 1e30F, __builtin_nanf(""), __builtin_inff()};
	l.shared = random_of(dice) % 2;
	l.inflight = numbers[random_of(dice) % CGN_COUNT(numbers)];
	l.yours = numbers[random_of(dice) % CGN_COUNT(numbers)];
	l.foreign = numbers[random_of(dice) % CGN_COUNT(numbers)];
	l.decoding = numbers[random_of(dice) % CGN_COUNT(numbers)];
	l.yours_decoding = numbers[random_of(dice) % CGN_COUNT(numbers)];
	l.queued_tokens = random_of(dice) % 3 == 0 ? UINT64_MAX : random_of(dice) % 100000;
	l.yours_queued_tokens = random_of(dice) % 3 == 0 ? UINT64_MAX : random_of(dice) % 100000;
	l.running = numbers[random_of(dice) % CGN_COUNT(numbers)];
	l.waiting = numbers[random_of(dice) % CGN_COUNT(numbers)];
	l.kv_usage = shares[random_of(dice) % CGN_COUNT(shares)];
	l.power_headroom = shares[random_of(dice) % CGN_COUNT(shares)];
	return l;
}

static void say_load(struct world *w, struct cluster_node *n, uint64_t *dice)
{
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	Cognitora__V1__Load l = any_load(dice);
	struct cluster_orders o;
	ev.seq = n->seq + 1;
	ev.load = &l;
	cluster_watch_event(w->cluster, n, &ev, 0, &o);
	assert_int_equal(o.watch, WATCH_KEEP);
}

/* Remove a node, with requests in flight, and add another. */
static void replace_node(struct world *w, int i, unsigned *names)
{
	struct cluster_orders o;
	char id[16];
	for (uint16_t slot = 0; slot < ROUTE_MAX_NODES; slot++) {
		struct cluster_node *n = w->cluster->by_slot[slot];
		if (n == NULL || i-- > 0)
			continue;
		assert_true(cluster_node_gone(w->cluster, n->member_id, &o));
		break;
	}
	(void)snprintf(id, sizeof id, "x%u", ++*names);
	(void)join(w->cluster, id, 8);
	cluster_view_unref(&w->view);
	assert_true(cgn_ok(cluster_view_new(w->cluster, NULL, NULL, &w->view, NULL)));
}

static void request_step(struct world *w, struct chooser_ticket *t, uint64_t *dice, cgn_nsec now)
{
	struct chooser_outcome o = {
		.answer_tokens = random_of(dice) % 4 ? random_of(dice) % 1000 : random_of(dice)};
	if (!t->booked) {
		struct chooser_ask ask = ask_of(w);
		w->rules.policy = (enum route_policy)(random_of(dice) % ROUTE_POLICIES);
		w->chain[random_of(dice) % BLOCKS] = block_fingerprint(random_of(dice) % 50 + 1, 11);
		ask.now = now;
		ask.blocks = random_of(dice) % (BLOCKS + 1);
		ask.prompt_tokens = random_of(dice) % 5 == 0 ? random_of(dice) : 0;
		ask.whole = random_of(dice) % 4 == 0;
		ask.embeds = random_of(dice) % 8 == 0;
		struct chooser_pick_result p = chooser_pick(w->chooser, &ask);
		for (size_t i = 0; i < p.n; i++)
			assert_true(p.cands[i].uncached_tokens >= 0 && p.cands[i].reuse == p.cands[i].reuse);
		if (p.verdict == ROUTE_PICKED)
			chooser_book(w->chooser, &ask, &p, t);
		return;
	}
	unsigned what = random_of(dice) % 4;
	if (what < 2)
		chooser_begun(w->chooser, t, now);
	else if (what == 2)
		chooser_release(w->chooser, t, now);
	else
		chooser_done(w->chooser, t, &o, now);
}

static void whatever_happens_all_is_given_back(void **state)
{
	(void)state;
	struct world w;
	struct chooser_ticket t[64] = {0};
	uint64_t dice = 88172645463325252ULL;
	unsigned names = 0;
	cgn_nsec now = CGN_SEC;
	world_init(&w);
	for (int i = 0; i < 200000; i++) {
		now += random_of(&dice) % (20 * CGN_MSEC);
		request_step(&w, &t[random_of(&dice) % CGN_COUNT(t)], &dice, now);
		if (random_of(&dice) % 8 == 0)
			say_load(&w, CGN_CONTAINER(w.cluster->nodes.next, struct cluster_node, link), &dice);
		if (random_of(&dice) % 256 == 0)
			replace_node(&w, (int)(random_of(&dice) % NODES), &names);
	}
	for (size_t i = 0; i < CGN_COUNT(t); i++)
		chooser_release(w.chooser, &t[i], now);
	for (uint16_t slot = 0; slot < ROUTE_MAX_NODES; slot++) {
		const struct node_stats *stats = &w.shared.stats[slot];
		assert_true(stats->inflight == 0 && stats->decoding == 0 && stats->queued_tokens == 0);
		const struct route_speed s = node_stats_speed(stats);
		assert_true(s.prefill_ms >= 0 && s.prefill_ms < 1e4F && s.step_ms >= 0 && s.step_ms < 1e5F);
	}
	for (uint64_t k = 1; k <= 50; k++)
		assert_int_equal(hotprefix_count(w.shared.hotprefix, block_fingerprint(k, 11)), 0);
	assert_true(names > 100);
	world_fini(&w);
}

static void an_immediate_answer_teaches_no_prefill(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	struct chooser_ask ask = ask_of(&w);
	ask.whole = true;
	struct chooser_ticket t = send_one(&w, &ask);
	struct node_stats *stats = &w.shared.stats[t.slot];
	assert_int_equal(stats->decoding, 1);
	assert_true(stats->queued_tokens < BLOCKS * 16); /* At most the prefill's part of its time. */
	chooser_begun(w.chooser, &t, 9 * CGN_SEC);
	chooser_done(w.chooser, &t, &(struct chooser_outcome){.answer_tokens = 500}, 9 * CGN_SEC);
	assert_int_equal(stats->queued_tokens, 0);
	assert_int_equal(stats->decoding, 0);
	assert_int_equal(stats->inflight, 0);
	struct route_speed s = node_stats_speed(stats);
	assert_false(s.measured || s.prefill_ms > 0 || s.step_ms > 0);
	t = (struct chooser_ticket){0};
	chooser_release(w.chooser, &t, 0); /* A ticket that was never booked gives nothing back. */
	assert_int_equal(stats->inflight, 0);
	world_fini(&w);
}

static void what_is_below_the_gpu_costs_less_than_computing_it(void **state)
{
	(void)state;
	struct world w;
	uint8_t tiers[BLOCKS];
	world_init(&w);
	feed_all(&w);
	struct chooser_ask ask = ask_of(&w);
	w.rules.policy = ROUTE_PREDICTED;
	memset(tiers, BLOCK_TIER_BIT(BLOCK_RAM), sizeof tiers);
	kvindex_set(w.shared.index, view_node_find(w.view, CGN_STR("n1"))->index_id, w.chain, tiers, BLOCKS);
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	struct route_terms cold, warm;
	size_t at = p.index, other = (at + 1) % NODES;
	assert_string_equal(view_node_at(w.view, p.cands[at].slot)->id, "n1");
	route_terms(&p.ask, &p.cands[at], &warm);
	route_terms(&p.ask, &p.cands[other], &cold);
	assert_float_equal((float)cold.prefill_ms, 102.4, 0.1);
	assert_float_equal((float)cold.fetch_ms, 0, 1e-6);
	assert_float_equal((float)warm.prefill_ms, 0, 1e-6);
	assert_float_equal((float)warm.fetch_ms, 20.48, 0.1);
	memset(tiers, BLOCK_TIER_BIT(BLOCK_GPU), sizeof tiers);
	kvindex_set(w.shared.index, view_node_find(w.view, CGN_STR("n2"))->index_id, w.chain, tiers, BLOCKS);
	p = chooser_pick(w.chooser, &ask);
	assert_string_equal(view_node_at(w.view, p.cands[p.index].slot)->id, "n2");
	world_fini(&w);
}

static void roles_are_kept_while_there_are_others(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	cluster_find(w.cluster, "n0")->info->role = COGNITORA__V1__ROLE__ROLE_PREFILL;
	cluster_find(w.cluster, "n1")->info->role = COGNITORA__V1__ROLE__ROLE_DECODE;
	cluster_view_unref(&w.view);
	assert_true(cgn_ok(cluster_view_new(w.cluster, NULL, NULL, &w.view, NULL)));
	uint16_t n0 = view_node_find(w.view, CGN_STR("n0"))->slot,
		 n1 = view_node_find(w.view, CGN_STR("n1"))->slot;
	struct chooser_ask ask = ask_of(&w);
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.n, 2);
	for (size_t i = 0; i < p.n; i++)
		assert_int_not_equal(p.cands[i].slot, n0);
	ask.embeds = true;
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.n, 2);
	for (size_t i = 0; i < p.n; i++)
		assert_int_not_equal(p.cands[i].slot, n1);
	ask.embeds = false;
	const uint16_t excluded[] = {n1, view_node_find(w.view, CGN_STR("n2"))->slot};
	ask.excluded = excluded;
	ask.n_excluded = 2;
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED); /* The node for prefill is better than no node. */
	assert_int_equal(p.cands[p.index].slot, n0);
	ask.n_excluded = 0;
	ask.pin = n0;
	assert_int_equal(chooser_pick(w.chooser, &ask).verdict, ROUTE_PICKED);
	world_fini(&w);
}

/* Set n0 for prefill and n1 and n2 for decode; all but n2 have a store. */
static void two_legs(struct world *w, const struct view_node *nodes[NODES])
{
	world_init(w);
	for (size_t i = 0; i < NODES; i++) {
		char id[8];
		(void)snprintf(id, sizeof id, "n%zu", i);
		struct cluster_node *n = cluster_find(w->cluster, id);
		Cognitora__V1__KvStore store = COGNITORA__V1__KV_STORE__INIT;
		char at[] = "127.0.0.1:7091";
		struct cluster_orders o;
		Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
		Cognitora__V1__Node told = *n->info;
		store.quic_address = at;
		told.role = i == 0 ? COGNITORA__V1__ROLE__ROLE_PREFILL : COGNITORA__V1__ROLE__ROLE_DECODE;
		told.kv = i < 2 ? &store : NULL;
		ev.seq = 2;
		ev.node = &told;
		cluster_watch_event(w->cluster, n, &ev, 0, &o);
	}
	cluster_view_unref(&w->view);
	assert_true(cgn_ok(cluster_view_new(w->cluster, NULL, NULL, &w->view, NULL)));
	for (size_t i = 0; i < NODES; i++)
		nodes[i] = &w->view->nodes[i];
}

static void a_prompt_alone_is_for_nodes_of_that_role(void **state)
{
	(void)state;
	struct world w;
	const struct view_node *nodes[NODES];
	two_legs(&w, nodes);
	struct chooser_ask ask = ask_of(&w);
	ask.prefill = true;
	struct chooser_pick_result p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.verdict, ROUTE_PICKED);
	assert_int_equal(p.n, 1);
	assert_int_equal(p.cands[0].slot, nodes[0]->slot);
	ask.prefill = false;
	p = chooser_pick(w.chooser, &ask);
	assert_int_equal(p.n, 2);
	assert_int_not_equal(p.cands[p.index].slot, nodes[0]->slot);
	world_fini(&w);
}

static void no_policy_picks_what_is_excluded_or_full(void **state)
{
	(void)state;
	struct world w;
	world_init(&w);
	for (unsigned i = 0; i < ROUTE_POLICIES * 300; i++) {
		struct chooser_ask ask = ask_of(&w);
		const uint16_t excluded[] = {(uint16_t)(i % NODES)};
		uint16_t full = (uint16_t)((i + 1) % NODES);
		w.rules.policy = (enum route_policy)(i % ROUTE_POLICIES);
		w.chain[0] = block_fingerprint(i + 1, 3);
		ask.session = i % 2 ? block_fingerprint(i + 1, 5) : 0;
		ask.excluded = excluded;
		ask.n_excluded = 1;
		w.shared.stats[full].inflight += w.rules.max_inflight;
		struct chooser_ticket t = send_one(&w, &ask);
		assert_int_not_equal(t.slot, excluded[0]);
		assert_int_not_equal(t.slot, full);
		w.shared.stats[full].inflight -= w.rules.max_inflight;
		chooser_release(w.chooser, &t, 0);
	}
	world_fini(&w);
}

/* ---- a hot prefix ---- */

#define MOST   400 /* Most requests at once. */
#define STEP   (10 * CGN_MSEC)
#define STREAM (2 * CGN_SEC) /* Time that a request takes. */

struct crowd {
	struct chooser_ticket t[MOST];
	cgn_nsec until[MOST];
	size_t n;
	uint32_t peak;  /* Most requests that a node had at once. */
	unsigned nodes; /* Nodes that had at least one request. */
	uint32_t seen[NODES];
};

static void crowd_step(struct world *w, struct crowd *c, cgn_nsec now, unsigned come)
{
	for (size_t i = 0; i < c->n;) {
		if (c->until[i] > now) {
			i++;
			continue;
		}
		chooser_release(w->chooser, &c->t[i], now);
		c->t[i] = c->t[--c->n];
		c->until[i] = c->until[c->n];
	}
	for (unsigned k = 0; k < come; k++) {
		struct chooser_ask ask = ask_of(w);
		w->chain[BLOCKS - 1] = block_fingerprint(now + k + 1, 9); /* The last block is its own. */
		ask.now = now;
		c->t[c->n] = send_one(w, &ask);
		chooser_begun(w->chooser, &c->t[c->n], now);
		c->seen[c->t[c->n].slot]++;
		c->until[c->n++] = now + STREAM;
	}
	for (int i = 0; i < NODES; i++)
		c->peak = w->shared.stats[i].inflight > c->peak ? w->shared.stats[i].inflight : c->peak;
}

/* Run a crowd: |come| requests every 10 ms for |seconds| seconds; then all end. */
static struct crowd crowd_of(struct world *w, cgn_nsec start, unsigned every, unsigned seconds)
{
	struct crowd c = {0};
	for (cgn_nsec t = 0; t < seconds * CGN_SEC; t += STEP)
		crowd_step(w, &c, start + t, t / STEP % every == 0);
	crowd_step(w, &c, start + seconds * CGN_SEC + STREAM, 0);
	assert_int_equal(c.n, 0);
	for (int i = 0; i < NODES; i++)
		c.nodes += c.seen[i] > 0;
	return c;
}

static void a_hot_prefix_gets_further_holders(void **state)
{
	(void)state;
	struct world w;
	uint32_t peak[2];
	for (int heated = 0; heated < 2; heated++) {
		/* No node reports how many requests its engine runs at once, so only the scores spread the
		 * requests. */
		world_of(&w, NODES, 0, ROUTE_WEIGHTED);
		struct hotprefix *hotprefix = w.shared.hotprefix;
		if (!heated) {
			struct chooser_shared cold = w.shared;
			cold.hotprefix = NULL;
			chooser_free(&w.chooser);
			assert_true(cgn_ok(chooser_new(&cold, 0, &w.chooser, NULL)));
		}
		w.rules.max_inflight = 1000;
		/* A prefix that is expensive to recompute: the weights alone would spread it late. */
		w.rules.weights = (struct route_weights){0.85, 0.15, 0, 0};
		/* Two at once: one node has the prefix. */
		struct crowd warm = crowd_of(&w, 100 * CGN_SEC, 100, 10);
		assert_int_equal(warm.nodes, 1);
		/* Forty at once, and a node has sixteen places. */
		struct crowd hot = crowd_of(&w, 200 * CGN_SEC, 5, 20);
		peak[heated] = hot.peak;
		if (heated) {
			assert_true(hot.nodes >= 2);
			assert_int_equal(hotprefix_count(hotprefix, w.chain[BLOCKS - 2]),
				0); /* The prefix has cooled down. */
		}
		world_fini(&w);
	}
	print_message("peak %u, without heat %u\n", peak[1], peak[0]);
	assert_true(peak[1] < peak[0]);
	assert_in_range(peak[1], 14, 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_place_is_taken_once),
		cmocka_unit_test(workers_take_turns_together),
		cmocka_unit_test(a_request_is_told_its_joules),
		cmocka_unit_test(what_is_booked_is_seen_and_given_back),
		cmocka_unit_test(the_budget_counts_a_prompt_by_its_time),
		cmocka_unit_test(what_a_cache_saves_is_counted),
		cmocka_unit_test(a_pin_has_one_candidate_or_none),
		cmocka_unit_test(a_burst_goes_where_the_first_went),
		cmocka_unit_test(a_booking_is_confirmed_or_ends),
		cmocka_unit_test(speeds_are_learned_and_lent),
		cmocka_unit_test(a_wrong_measurement_does_not_last),
		cmocka_unit_test(whatever_happens_all_is_given_back),
		cmocka_unit_test(an_immediate_answer_teaches_no_prefill),
		cmocka_unit_test(what_is_below_the_gpu_costs_less_than_computing_it),
		cmocka_unit_test(roles_are_kept_while_there_are_others),
		cmocka_unit_test(a_prompt_alone_is_for_nodes_of_that_role),
		cmocka_unit_test(no_policy_picks_what_is_excluded_or_full),
		cmocka_unit_test(a_hot_prefix_gets_further_holders),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
