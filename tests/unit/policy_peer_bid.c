/* SPDX-License-Identifier: Apache-2.0 */
/* A bid follows the summary while it is fresh and believed, and the measured time otherwise; a cluster's load is the sum
 * over its nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/route/peer/beat.h"
#include "policy/route/peer/bid.h"
#include "policy/route/peer/load.h"
#include "policy/route/peer/worth.h"

static const uint64_t chain[4] = {UINT64_C(1) << 32, UINT64_C(2) << 32, UINT64_C(3) << 32, UINT64_C(4) << 32};
static const struct peer_prompt prompt = {.chain = chain, .blocks = 4, .tokens = 2100, .block_tokens = 512};
static const struct peer_load idle = {.nodes = 2, .room = 3, .wait_us = 5000, .prefill_ns = 50000};

static struct peer_set *set_of(size_t n)
{
	struct peer_draft d = {0};
	for (size_t i = 0; i < n; i++)
		peer_draft_add(&d, peer_fingerprint(chain[i]));
	struct peer_set *s = peer_draft_finish(&d);
	assert_non_null(s);
	return s;
}

static void bids_follow_the_summary(void **state)
{
	(void)state;
	struct peer_set *set = set_of(2);
	struct peer_side side = {.measured = 900 * CGN_MSEC,
		.way = 80 * CGN_MSEC,
		.told = true,
		.valid_to = 10 * CGN_SEC,
		.load = &idle,
		.set = set};
	struct peer_bid b = peer_bid_of(&side, &prompt, CGN_SEC);
	assert_int_equal(b.source, PEER_BID_SUMMARY);
	assert_int_equal(b.forecast.held, 2);
	assert_int_equal(b.forecast.cached, 1024);
	/* 80 ms there and back, 5 ms for others, 1076 tokens of 50 us. */
	assert_true(b.ttft == 80 * CGN_MSEC + 5 * CGN_MSEC + 1076 * UINT64_C(50000));
	b = peer_bid_of(&side, &prompt, 10 * CGN_SEC);
	assert_int_equal(b.source, PEER_BID_STALE);
	assert_true(b.ttft == side.measured && !b.forecast.known);
	side.trust.until = 2 * CGN_SEC;
	assert_int_equal(peer_bid_of(&side, &prompt, CGN_SEC).source, PEER_BID_DEMOTED);
	assert_int_equal(peer_bid_of(&side, &prompt, 3 * CGN_SEC).source, PEER_BID_SUMMARY);
	side.load = NULL;
	assert_int_equal(peer_bid_of(&side, &prompt, 3 * CGN_SEC).source, PEER_BID_MEASURED);
	side.told = false;
	assert_int_equal(peer_bid_of(&side, &prompt, 60 * CGN_SEC).source, PEER_BID_MEASURED);
	peer_set_unref(&set);
}

/* Requests that left since the summary came count as there. */
static void rooms_are_counted_down(void **state)
{
	(void)state;
	struct peer_set *set = set_of(4);
	struct peer_load load = idle;
	struct peer_side side =
		{.told = true, .valid_to = CGN_SEC, .load = &load, .set = set, .open = 7, .open_then = 5};
	assert_int_equal(peer_bid_of(&side, &prompt, 0).source, PEER_BID_SUMMARY);
	const struct peer_bid b = peer_bid_of(&side, &prompt, 0);
	const struct peer_stay stay = {.waits = true, .known = true, .queue = CGN_SEC};
	const struct peer_rules rules = {.margin = 100 * CGN_MSEC};
	assert_int_equal(peer_bid_door(&b, &stay, &rules, 7, 8), PEER_DOOR_OPEN);
	assert_int_equal(peer_bid_door(&b, &stay, &rules, 8, 8), PEER_DOOR_BUSY);
	assert_int_equal(peer_bid_door(&b, &(struct peer_stay){.known = true}, &rules, 7, 8), PEER_DOOR_LATE);
	side.open = 8;
	assert_int_equal(peer_bid_of(&side, &prompt, 0).source, PEER_BID_FULL);
	const struct peer_bid full = peer_bid_of(&side, &prompt, 0);
	assert_int_equal(peer_bid_door(&full, &stay, &rules, 7, 8), PEER_DOOR_FULL);
	side.open = 2;
	load.waiting = 1;
	assert_int_equal(peer_bid_of(&side, &prompt, 0).source, PEER_BID_FULL);
	load = idle;
	load.nodes = 0;
	assert_int_equal(peer_bid_of(&side, &prompt, 0).source, PEER_BID_FULL);
	load = idle;
	load.prefill_ns = 0; /* There is room, but the speed is not known. */
	side.measured = 70;
	assert_int_equal(peer_bid_of(&side, &prompt, 0).source, PEER_BID_MEASURED);
	assert_true(peer_bid_of(&side, &prompt, 0).ttft == 70);
	peer_set_unref(&set);
}

static const struct peer_cost unknown = {0};

static bool bid_beats(struct peer_bid a, double a_paid, struct peer_bid b, double b_paid)
{
	const struct peer_rules rules = {0};
	a.paid = a_paid;
	b.paid = b_paid;
	return peer_bid_beats(&a, &b, &rules, &unknown);
}

/* The costs of a bid are the agreed price, else the told one, and the joules of the tokens that are not
 * cached. */
static void bids_have_costs(void **state)
{
	(void)state;
	struct peer_set *set = set_of(2);
	struct peer_load load = idle;
	struct peer_prompt asked = prompt;
	struct peer_side side = {.told = true, .valid_to = CGN_SEC, .load = &load, .set = set, .measured = 9};
	struct peer_bid b = peer_bid_of(&side, &prompt, 0);
	assert_false(b.cost.priced || b.cost.powered);
	asked.answer = 100;
	load.input = 2000000; /* 2 a million tokens. */
	load.output = 10000000;
	load.prefill_uj = 500000;
	b = peer_bid_of(&side, &asked, 0);
	assert_true(b.cost.priced && b.cost.powered && b.forecast.cached == 1024);
	assert_true(b.cost.price > 0.00519 && b.cost.price < 0.00521); /* 2,100 tokens, and 100. */
	assert_true(b.cost.joules > 537.9 && b.cost.joules < 538.1);   /* 1,076 tokens. */
	side.paid = 3;
	b = peer_bid_of(&side, &asked, 0);
	assert_true(b.cost.priced && b.cost.price > 2.9 && b.paid > 2.9);
	b = peer_bid_of(&side, &asked, CGN_SEC); /* The summary is too old. */
	assert_true(b.cost.priced && !b.cost.powered);
	side.paid = 0;
	b = peer_bid_of(&side, &asked, CGN_SEC);
	assert_false(b.cost.priced || b.cost.powered);
	peer_set_unref(&set);
}

static struct peer_bid bid_costing(cgn_nsec ttft, double price, double joules)
{
	return (struct peer_bid){.source = PEER_BID_SUMMARY,
		.ttft = ttft,
		.cost = {.priced = price >= 0, .powered = joules >= 0, .price = price, .joules = joules}};
}

static void money_and_energy_count_as_time(void **state)
{
	(void)state;
	const struct peer_rules none = {0}, money = {.price = 10}, energy = {.energy = 10};
	const struct peer_bid soon = bid_costing(CGN_SEC, 0.5, 400),
			      late = bid_costing(3 * CGN_SEC, 0.2, 100),
			      blank = bid_costing(2 * CGN_SEC, -1, -1);
	const struct peer_cost here = {.priced = true, .powered = true, .price = 0.3, .joules = 500};
	assert_true(peer_bid_beats(&soon, &late, &none, &here));   /* Told costs count for nothing. */
	assert_true(peer_bid_beats(&late, &soon, &money, &here));  /* 2 s sooner, 3 s of money more. */
	assert_true(peer_bid_beats(&late, &soon, &energy, &here)); /* 3 s of energy more. */
	/* An unknown cost counts as the one here. */
	assert_true(peer_bid_beats(&late, &blank, &energy, &here));
	assert_true(peer_bid_beats(&soon, &blank, &energy, &here));
	assert_true(peer_bid_beats(&blank, &soon, &money, &here));
	assert_true(peer_bid_beats(&late, &blank, &(struct peer_rules){.price = 20}, &here));
	struct peer_bid cheap = late, dear = soon;
	cheap.paid = 0.2;
	dear.paid = 0.5;
	assert_true(peer_bid_beats(&cheap, &dear, &none, &here)); /* Agreed prices come first. */
	assert_true(peer_bid_beats(&dear, &cheap, &(struct peer_rules){.price = 1}, &here));
}

static void believed_then_cheap_then_soon(void **state)
{
	(void)state;
	const struct peer_bid soon = {.source = PEER_BID_SUMMARY, .ttft = 10}, late = {.ttft = 20},
			      lies = {.source = PEER_BID_DEMOTED, .ttft = 1};
	assert_true(bid_beats(soon, 5, late, 5));
	assert_false(bid_beats(soon, 6, late, 5));
	assert_true(bid_beats(late, 9, lies, 0));
	assert_false(bid_beats(lies, 0, late, 9));
	for (enum peer_bid_source s = 0; s < PEER_BID_SOURCES; s++)
		assert_true(strlen(peer_bid_text(s)) > 0);
	const struct peer_prompt uneven = {.blocks = 4, .tokens = 1000};
	assert_true(peer_prompt_tokens(&uneven, 3) == 750);
	assert_true(peer_prompt_tokens(&(struct peer_prompt){.tokens = 9}, 0) == 0);
}

static void loads_add_up(void **state)
{
	(void)state;
	struct node_stats busy = {0}, fresh = {0};
	struct peer_load_sums s = {0};
	assert_int_equal(peer_load_of(&s).nodes, 0);
	assert_int_equal(peer_load_of(&s).wait_us, 0);
	atomic_store(&busy.inflight, 6);
	atomic_store(&busy.others, 1);
	peer_load_add(&s, &busy, 0, 8, 0);
	peer_load_add(&s, &fresh, 0, 8, 200);
	const struct peer_load l = peer_load_of(&s);
	assert_int_equal(l.nodes, 2);
	assert_int_equal(l.inflight, 7);
	assert_int_equal(l.room, route_room(8, 0, 6, 1) + route_room(8, 0, 0, 0));
	assert_int_equal(l.waiting, 0);
}

static void spans_and_round_trips(void **state)
{
	(void)state;
	assert_true(peer_valid_span(100 * CGN_MSEC) == 5 * CGN_SEC);
	assert_true(peer_valid_span(2 * CGN_SEC) == 10 * CGN_SEC);
	assert_true(peer_rtt_learn(0, 40) == 40);
	assert_true(peer_rtt_learn(80, 160) == 90);
	assert_true(peer_is_silent(10 * CGN_SEC, 10 * CGN_SEC - PEER_BEAT_TIMEOUT / 2));
	assert_false(peer_is_silent(10 * CGN_SEC, 10 * CGN_SEC - PEER_BEAT_TIMEOUT / 2 + 1));
	assert_false(peer_is_silent(10 * CGN_SEC, 10 * CGN_SEC + 9)); /* On its way. */
	const struct admission_forecast f = {.now = 300, .idle = 100, .measured = true};
	struct peer_stay stay = peer_stay_of(ROUTE_PICKED, &f, false, 50);
	assert_true(!stay.none && !stay.waits && stay.known && stay.queue == 200 && stay.prefill == 100);
	stay = peer_stay_of(ROUTE_FULL, &f, true, 50);
	assert_true(stay.waits && stay.known && stay.queue == 250);
	stay = peer_stay_of(ROUTE_FULL, &f, true, 0); /* The wait is not known yet. */
	assert_true(stay.waits && !stay.known);
	assert_true(peer_stay_of(ROUTE_NONE, &f, false, 0).none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bids_follow_the_summary),
		cmocka_unit_test(rooms_are_counted_down),
		cmocka_unit_test(believed_then_cheap_then_soon),
		cmocka_unit_test(bids_have_costs),
		cmocka_unit_test(money_and_energy_count_as_time),
		cmocka_unit_test(loads_add_up),
		cmocka_unit_test(spans_and_round_trips),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
