/* SPDX-License-Identifier: Apache-2.0 */
/* Whether one node or two compute a request: by cost in milliseconds, among nodes that can hand KV over. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define BLOCKS 128
#include "chooser_world.h"

#define TOKENS (BLOCKS * 16) /* 204.8 ms of prefill at the default speed. */

static void assert_near(double got, double want, double by)
{
	if (!(fabs(got - want) <= by))
		fail_msg("%g, not %g", got, want);
}

/* p0, p1: prefill; d0, d1: decode. All have the hand-off |kind|. */
enum { P0, P1, D0, D1, NODES };

struct pools {
	struct world w;
	struct transfer *transfer;
	struct view_node *nodes;
	struct handoff_end ends[NODES];
	struct node_stats *stats;
};

static void pools_of(struct pools *p)
{
	*p = (struct pools){0};
	world_of(&p->w, NODES, 0, ROUTE_PREDICTED);
	p->transfer = transfer_new();
	chooser_free(&p->w.chooser);
	p->w.shared.transfer = p->transfer;
	assert_true(cgn_ok(chooser_new(&p->w.shared, 0, &p->w.chooser, NULL)));
	p->w.rules.max_inflight = 64;
	p->w.rules.disagg = (struct route_disagg){true, 0, 131072, {1, 0.01F, false}};
	p->nodes = p->w.view->nodes;
	p->stats = p->w.cluster->stats;
	for (int i = 0; i < NODES; i++) {
		p->nodes[i].role =
			i < D0 ? COGNITORA__V1__ROLE__ROLE_PREFILL : COGNITORA__V1__ROLE__ROLE_DECODE;
		p->ends[i] = (struct handoff_end){.kind = HANDOFF_NIXL, .fingerprint = 7};
		p->w.view->models[0].handoff[i] = &p->ends[i];
	}
}

static void pools_fini(struct pools *p)
{
	world_fini(&p->w);
	transfer_free(&p->transfer);
}

/* Let |n| streams run on a node. */
static void streams_run(struct pools *p, int node, uint32_t n)
{
	p->stats[p->nodes[node].slot].inflight = p->stats[p->nodes[node].slot].decoding = n;
}

static void prompts_wait(struct pools *p, int node, uint32_t n, uint64_t tokens)
{
	p->stats[p->nodes[node].slot].inflight += n;
	p->stats[p->nodes[node].slot].queued_tokens += n * tokens;
}

static void node_holds(struct pools *p, int node, size_t blocks)
{
	route_record_add(p->w.shared.record, p->w.chain, blocks, p->nodes[node].slot);
}

static struct chooser_split split_of(struct pools *p, size_t blocks)
{
	struct chooser_ask ask = ask_of(&p->w);
	struct chooser_split s;
	ask.blocks = blocks;
	chooser_split(p->w.chooser, &ask, &s);
	return s;
}

static void an_idle_cluster_moves_nothing(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_string_equal(chooser_shape_text(s.shape), "whole");
	assert_string_equal(chooser_reason_text(s.why), "cost");
	assert_true(s.whole == p.nodes[D0].slot || s.whole == p.nodes[D1].slot);
	/* The pair costs as much more as the hand-over and one step of the decode node take. */
	assert_int_equal(s.moved_tokens, TOKENS);
	assert_near(s.transfer_ms, 1 + 0.01 * TOKENS, 0.01);
	assert_near(s.pair_ms - s.whole_ms, s.transfer_ms + 20, 0.1);
	assert_near(s.ttft_ms, 0.1 * TOKENS + s.transfer_ms + 20, 0.1);
	assert_true(s.continues_ms > s.pair_ms);
	pools_fini(&p);
}

static void a_prompt_that_would_stall_streams_is_moved(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 8);
	streams_run(&p, D1, 4);
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_PAIR);
	assert_int_equal(s.decode, p.nodes[D1].slot);
	assert_true(s.prefill == p.nodes[P0].slot || s.prefill == p.nodes[P1].slot);
	assert_int_equal(s.first.verdict, ROUTE_PICKED);
	assert_int_equal(s.first.cands[s.first.index].slot, s.prefill);
	assert_int_equal(s.handoff, 7);
	/* Saved: the stall of the four streams. */
	assert_near(s.whole_ms - s.pair_ms, 4 * 0.1 * TOKENS - s.transfer_ms - 20, 0.5);
	/* A prompt whose stall is shorter than a hand-over takes is not. */
	s = split_of(&p, 3);
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	assert_int_equal(s.whole, p.nodes[D1].slot);
	pools_fini(&p);
}

/* Two watts at the prefill nodes do what seven do at the decode nodes: with a price of a joule, prompts move there. */
static void joules_count_where_all_are_known(void **state)
{
	(void)state;
	struct pools p;
	struct energy_board *board = NULL;
	pools_of(&p);
	board = energy_board_new(ROUTE_MAX_NODES);
	chooser_free(&p.w.chooser);
	p.w.shared.energy = board;
	assert_true(cgn_ok(chooser_new(&p.w.shared, 0, &p.w.chooser, NULL)));
	for (int i = 0; i < NODES; i++) {
		struct energy_curve w = {.prefill = i < D0 ? 200 : 700};
		for (size_t k = 0; k < ENERGY_KNOTS; k++)
			w.decode[k] = 100;
		energy_board_set(board, p.nodes[i].slot, &w, 0);
	}
	struct chooser_split s = split_of(&p, BLOCKS);
	const double free_ms = s.whole_ms, plain = 0.1 * TOKENS;
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	p.w.rules.energy = (struct route_energy){.mode = ROUTE_ENERGY_ON, .ms_per_joule = 16};
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_PAIR);
	/* 0.2 s at 600 W and at 100 W above idle. */
	assert_near(s.whole_ms - free_ms, 16 * 600 * plain / 1000, 0.1 * s.whole_ms);
	assert_near(s.whole_ms - s.pair_ms, 16 * 500 * plain / 1000 - s.transfer_ms - 20, 0.1 * s.whole_ms);
	p.w.rules.energy.mode = ROUTE_ENERGY_SHADOW;
	assert_int_equal(split_of(&p, BLOCKS).shape, CHOOSER_WHOLE);
	p.w.rules.energy.mode = ROUTE_ENERGY_ON;
	energy_board_clear(board, p.nodes[P1].slot);
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	assert_near(s.whole_ms, free_ms, 0.1);
	pools_fini(&p);
	energy_board_free(&board);
}

/* The prompts that are at prefill nodes now will be answered at the decode nodes, and stall behind this one. */
static void answers_that_will_begin_count(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 1);
	streams_run(&p, D1, 1);
	double none = split_of(&p, BLOCKS).whole_ms, prefill = 0.1 * TOKENS;
	prompts_wait(&p, P0, 1, 100);
	prompts_wait(&p, P1, 2, 100);
	assert_near(split_of(&p, BLOCKS).whole_ms - none, 1.5 * prefill,
		0.5); /* Half of them come to each. */
	prompts_wait(&p, P0, 20, 100);
	assert_near(split_of(&p, BLOCKS).whole_ms - none, ROUTE_PRESSURE * prefill, 0.5);
	pools_fini(&p);
}

static void a_slow_network_keeps_requests_together(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 4);
	streams_run(&p, D1, 4);
	assert_int_equal(split_of(&p, BLOCKS).shape, CHOOSER_PAIR);
	for (int i = 0; i < 100; i++)
		for (int from = P0; from <= P1; from++)
			for (int to = D0; to <= D1; to++) {
				const struct transfer_path path = {p.nodes[from].node_id_hash,
					p.nodes[to].node_id_hash, 7};
				transfer_learn(p.transfer, &path, &p.w.rules.disagg.prior, TOKENS, 900, 0);
			}
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	assert_near(s.transfer_ms, 900, 10);
	pools_fini(&p);
}

/* A network that is slower than the prefill node has a queue too. */
static void prompts_wait_for_the_network(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 40);
	streams_run(&p, D1, 40);
	p.w.rules.disagg.prior.token_ms = 0.2F;
	double idle = split_of(&p, BLOCKS).transfer_ms;
	prompts_wait(&p, P0, 3, TOKENS);
	prompts_wait(&p, P1, 3, TOKENS);
	/* Three prompts move at 0.2 ms a token, while four are computed at 0.1. */
	assert_near(split_of(&p, BLOCKS).transfer_ms - idle, (3 * 0.2 - 4 * 0.1) * TOKENS, 1);
	struct chooser_ticket t = {0};
	struct chooser_ask ask = ask_of(&p.w);
	ask.handoff = 7;
	ask.from = (struct chooser_source){p.nodes[P0].node_id_hash, p.nodes[P0].slot};
	struct chooser_pick_result r = chooser_pick(p.w.chooser, &ask);
	chooser_book(p.w.chooser, &ask, &r, &t);
	assert_int_equal(p.stats[p.nodes[P0].slot].moving_tokens, TOKENS);
	assert_int_equal(p.stats[t.slot].moving_tokens, TOKENS);
	route_record_forget(p.w.shared.record, t.slot);
	r = chooser_pick(p.w.chooser, &ask);
	assert_near((double)r.cands[r.index].fetch_ms, idle + 0.2 * TOKENS, 1);
	chooser_begun(p.w.chooser, &t, 0);
	chooser_release(p.w.chooser, &t, 0);
	assert_int_equal(p.stats[p.nodes[P0].slot].moving_tokens, 0);
	assert_int_equal(p.stats[t.slot].moving_tokens, 0);
	pools_fini(&p);
}

static void a_long_queue_for_prompts_sends_them_elsewhere(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 4);
	streams_run(&p, D1, 4);
	prompts_wait(&p, P0, 4, TOKENS);
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_PAIR);
	assert_int_equal(s.prefill, p.nodes[P1].slot);
	prompts_wait(&p, P1, 8, TOKENS);
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.prefill, p.nodes[P0].slot);
	prompts_wait(&p, P0, 4, TOKENS);
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	pools_fini(&p);
}

static void a_conversation_stays_where_its_history_is(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 4);
	streams_run(&p, D1, 4);
	node_holds(&p, D1, BLOCKS - 2);
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	assert_int_equal(s.whole, p.nodes[D1].slot);
	/* A longer new turn: the pair decodes where the history is, and moves only the rest. */
	pools_fini(&p);
	pools_of(&p);
	for (int i = P0; i < NODES; i++)
		p.ends[i].kind = HANDOFF_STORE;
	streams_run(&p, D0, 10);
	streams_run(&p, D1, 10);
	node_holds(&p, D1, BLOCKS / 2);
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_PAIR);
	assert_int_equal(s.decode, p.nodes[D1].slot);
	assert_int_equal(s.moved_tokens, TOKENS / 2);
	pools_fini(&p);
}

/* A prompt of the decode node's own is computed meanwhile, and delays the answer by the rest of its time. */
static void queues_of_both_nodes_pass_at_once(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	double idle = split_of(&p, BLOCKS).ttft_ms;
	prompts_wait(&p, D0, 1, TOKENS);
	prompts_wait(&p, D1, 1, TOKENS);
	assert_near(split_of(&p, BLOCKS).ttft_ms, idle, 0.5);
	prompts_wait(&p, D0, 1, TOKENS);
	prompts_wait(&p, D1, 1, TOKENS);
	assert_near(split_of(&p, BLOCKS).ttft_ms, idle + 0.1 * TOKENS, 0.5);
	pools_fini(&p);
}

static void what_decode_made_is_pulled_where_the_hand_off_can(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 10);
	streams_run(&p, D1, 10);
	node_holds(&p, D1, BLOCKS / 2);
	double without = split_of(&p, BLOCKS).pair_ms;
	for (int i = P0; i < NODES; i++)
		p.ends[i].kind = HANDOFF_STORE;
	double with = split_of(&p, BLOCKS).pair_ms;
	/* Half of the prompt is fetched instead of computed. */
	assert_near(without - with, 5 * 0.1 * TOKENS / 2 - (1 + 0.01 * TOKENS / 2), 1);
	p.w.rules.disagg.prior.token_ms = 0.2F; /* Fetching takes longer than computing. */
	double slow = split_of(&p, BLOCKS).pair_ms;
	for (int i = P0; i < NODES; i++)
		p.ends[i].kind = HANDOFF_NIXL;
	assert_near(split_of(&p, BLOCKS).pair_ms, slow, 1e-3);
	pools_fini(&p);
}

static void pairs_have_equal_hand_offs(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 10);
	streams_run(&p, D1, 10);
	p.ends[P0].fingerprint = 8;
	p.ends[D1].fingerprint = 8;
	prompts_wait(&p, P1, 3, TOKENS);
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.prefill, p.nodes[P0].slot);
	assert_int_equal(s.decode, p.nodes[D1].slot);
	assert_int_equal(s.handoff, 8);
	assert_int_equal(s.first.cands[s.first.index].slot, s.prefill);
	prompts_wait(&p, P0, 6, TOKENS);
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.prefill, p.nodes[P1].slot);
	assert_int_equal(s.decode, p.nodes[D0].slot);
	assert_int_equal(s.first.cands[s.first.index].slot, s.prefill);
	/* No node decodes the prompts that they compute. */
	p.ends[P0].fingerprint = p.ends[P1].fingerprint = 9;
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	assert_int_equal(s.why, CHOOSER_BY_NO_PAIR);
	assert_true(isinf(s.pair_ms));
	p.ends[P0].fingerprint = p.ends[D1].fingerprint = 0; /* 0 means no hand-off, not an equal one. */
	assert_true(isinf(split_of(&p, BLOCKS).pair_ms));
	pools_fini(&p);
}

static void a_prefill_node_answers_where_decode_is_scarce(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	streams_run(&p, D0, 60);
	streams_run(&p, D1, 60);
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_CONTINUES);
	assert_true(s.continues == p.nodes[P0].slot || s.continues == p.nodes[P1].slot);
	/* When there is no place at all, too. */
	p.w.rules.max_inflight = 10;
	s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_CONTINUES);
	assert_true(isinf(s.whole_ms) && isinf(s.pair_ms));
	assert_int_equal(s.whole, CHOOSER_NO_SLOT);
	struct chooser_ask ask = ask_of(&p.w);
	ask.continues = true;
	struct chooser_pick_result r = chooser_pick(p.w.chooser, &ask);
	assert_int_equal(r.verdict, ROUTE_PICKED);
	assert_int_equal(r.cands[r.index].role, COGNITORA__V1__ROLE__ROLE_PREFILL);
	streams_run(&p, D0, 5);
	assert_int_equal(split_of(&p, BLOCKS).shape, CHOOSER_PAIR);
	pools_fini(&p);
}

static void the_threshold_overrides_the_costs(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	p.w.rules.disagg.colocate_below = TOKENS / 2;
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_PAIR); /* Though the cluster is idle. */
	assert_int_equal(s.why, CHOOSER_BY_TOKENS);
	streams_run(&p, D0, 20);
	streams_run(&p, D1, 20);
	s = split_of(&p, BLOCKS / 4);
	assert_int_equal(s.shape, CHOOSER_WHOLE); /* Though streams stall. */
	assert_true(s.pair_ms < s.whole_ms);
	pools_fini(&p);
}

/* Engines of a disaggregated SGLang refuse requests without another engine. */
static void engines_that_can_not_answer_alone_are_paired(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	for (int i = P0; i < NODES; i++)
		p.ends[i].kind = HANDOFF_SGLANG;
	struct chooser_split s = split_of(&p, 1);
	assert_int_equal(s.shape, CHOOSER_PAIR);
	assert_true(isinf(s.whole_ms) && isinf(s.continues_ms));
	p.w.rules.disagg.colocate_below = TOKENS;
	assert_int_equal(split_of(&p, 1).shape, CHOOSER_PAIR);
	p.ends[D1].kind = HANDOFF_NIXL;
	p.ends[D1].fingerprint = 9;
	assert_int_equal(split_of(&p, 1).shape, CHOOSER_WHOLE);
	assert_int_equal(split_of(&p, 1).whole, p.nodes[D1].slot);
	pools_fini(&p);
}

/* A prefill node answers nothing, so that no engine counts the tokens of its blocks: they are those of other nodes. */
static void blocks_of_bytes_are_equally_long_everywhere(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	struct chooser_ask ask = ask_of(&p.w);
	struct chooser_split s;
	ask.block_tokens = 0;
	streams_run(&p, D0, 8);
	streams_run(&p, D1, 8);
	for (int i = 0; i < 50; i++) {
		node_stats_measure(&p.stats[p.nodes[D0].slot], TOKENS, BLOCKS);
		node_stats_measure(&p.stats[p.nodes[D1].slot], TOKENS, BLOCKS);
	}
	chooser_split(p.w.chooser, &ask, &s);
	assert_string_equal(chooser_shape_text(s.shape), "pair");
	assert_near(s.moved_tokens, TOKENS, 1);
	assert_near(s.whole_ms - s.pair_ms, 8 * 0.1 * TOKENS - s.transfer_ms - 20, 2);
	pools_fini(&p);
}

static void one_role_does_all_the_work(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	for (int i = P0; i < NODES; i++)
		p.nodes[i].role = COGNITORA__V1__ROLE__ROLE_PREFILL;
	struct chooser_split s = split_of(&p, BLOCKS);
	assert_int_equal(s.shape, CHOOSER_WHOLE);
	assert_int_equal(s.why, CHOOSER_BY_NO_PAIR);
	pools_fini(&p);
}

/* The decode leg goes to nodes with the same hand-off, and its first byte teaches how long the hand-over takes. */
static void a_decode_leg_is_priced_by_its_transfer_and_learned_from(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	p.ends[D0].fingerprint = 8;
	struct chooser_ask ask = ask_of(&p.w);
	ask.handoff = 7;
	ask.from = (struct chooser_source){p.nodes[P0].node_id_hash, p.nodes[P0].slot};
	for (uint64_t i = 0; i < 200; i++) {
		struct chooser_ticket t = {0};
		ask.now = i * CGN_SEC;
		struct chooser_pick_result r = chooser_pick(p.w.chooser, &ask);
		assert_int_equal(r.verdict, ROUTE_PICKED);
		assert_int_equal(r.n, 1);
		assert_int_equal(r.cands[r.index].slot, p.nodes[D1].slot);
		assert_near((double)r.cands[r.index].uncached_tokens, 0, 1e-6);
		assert_int_equal(r.cands[r.index].held, BLOCKS);
		assert_int_equal(r.cands[r.index].by_tier[BLOCK_REMOTE], BLOCKS);
		chooser_book(p.w.chooser, &ask, &r, &t);
		assert_int_equal(t.new_tokens, 0);
		assert_int_equal(t.move.tokens, TOKENS);
		chooser_moving(&t, ask.now + 300 * CGN_MSEC); /* The prefill leg took 300 ms. */
		chooser_begun(p.w.chooser, &t, ask.now + (300 + 20 + 120) * CGN_MSEC);
		chooser_release(p.w.chooser, &t, ask.now + 900 * CGN_MSEC);
		route_record_forget(p.w.shared.record, p.nodes[D1].slot);
	}
	const struct transfer_path path = {p.nodes[P0].node_id_hash, p.nodes[D1].node_id_hash, 7};
	const struct transfer_speed s =
		transfer_speed_of(p.transfer, &path, &p.w.rules.disagg.prior, 200 * CGN_SEC);
	assert_true(s.measured);
	assert_near(transfer_ms(&s, TOKENS), 120, 5);
	p.ends[D1].fingerprint = 8;
	struct chooser_pick_result r =
		chooser_pick(p.w.chooser, &ask); /* The others are the prefill nodes. */
	assert_int_equal(r.verdict, ROUTE_PICKED);
	assert_int_equal(r.cands[r.index].role, COGNITORA__V1__ROLE__ROLE_PREFILL);
	ask.handoff = 9;
	assert_int_equal(chooser_pick(p.w.chooser, &ask).verdict, ROUTE_NONE);
	pools_fini(&p);
}

/* The decode leg goes to a node that can take the prompt over, or to none. */
static void a_decode_leg_stays_within_its_hand_off(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	struct chooser_ask ask = ask_of(&p.w);
	p.ends[D0].fingerprint = 8;
	streams_run(&p, D1, 8);
	ask.handoff = 7;
	struct chooser_pick_result r = chooser_pick(p.w.chooser, &ask);
	assert_int_equal(r.verdict, ROUTE_PICKED);
	assert_int_equal(r.cands[r.index].slot, p.nodes[D1].slot);
	ask.handoff = 9;
	assert_int_equal(chooser_pick(p.w.chooser, &ask).verdict, ROUTE_NONE);
	pools_fini(&p);
}

/* SGLang's decode nodes take whole requests only when no other node is there: then the router says why not. */
static void a_whole_request_avoids_nodes_that_answer_only_in_pairs(void **state)
{
	(void)state;
	struct pools p;
	pools_of(&p);
	const struct chooser_ask ask = ask_of(&p.w);
	p.ends[D0].kind = HANDOFF_SGLANG;
	streams_run(&p, D1, 8);
	struct chooser_pick_result r = chooser_pick(p.w.chooser, &ask);
	assert_int_equal(r.cands[r.index].slot, p.nodes[D1].slot);
	p.ends[D1].kind = HANDOFF_SGLANG;
	r = chooser_pick(p.w.chooser, &ask);
	assert_int_equal(r.verdict, ROUTE_PICKED);
	assert_false(r.cands[r.index].alone);
	p.nodes[D0].role = COGNITORA__V1__ROLE__ROLE_BOTH;
	streams_run(&p, D0, 16);
	r = chooser_pick(p.w.chooser, &ask);
	assert_int_equal(r.cands[r.index].slot, p.nodes[D0].slot);
	assert_true(r.cands[r.index].alone);
	pools_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_idle_cluster_moves_nothing),
		cmocka_unit_test(joules_count_where_all_are_known),
		cmocka_unit_test(a_prompt_that_would_stall_streams_is_moved),
		cmocka_unit_test(answers_that_will_begin_count),
		cmocka_unit_test(a_slow_network_keeps_requests_together),
		cmocka_unit_test(prompts_wait_for_the_network),
		cmocka_unit_test(a_long_queue_for_prompts_sends_them_elsewhere),
		cmocka_unit_test(a_conversation_stays_where_its_history_is),
		cmocka_unit_test(queues_of_both_nodes_pass_at_once),
		cmocka_unit_test(what_decode_made_is_pulled_where_the_hand_off_can),
		cmocka_unit_test(pairs_have_equal_hand_offs),
		cmocka_unit_test(a_prefill_node_answers_where_decode_is_scarce),
		cmocka_unit_test(the_threshold_overrides_the_costs),
		cmocka_unit_test(engines_that_can_not_answer_alone_are_paired),
		cmocka_unit_test(blocks_of_bytes_are_equally_long_everywhere),
		cmocka_unit_test(one_role_does_all_the_work),
		cmocka_unit_test(a_decode_leg_is_priced_by_its_transfer_and_learned_from),
		cmocka_unit_test(a_decode_leg_stays_within_its_hand_off),
		cmocka_unit_test(a_whole_request_avoids_nodes_that_answer_only_in_pairs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
