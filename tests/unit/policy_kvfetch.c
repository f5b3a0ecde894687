/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/kv/kvfetch/kvfetch.h"

#define MIB   ((uint64_t)1 << 20)
#define START (1000 * CGN_SEC)

static enum kvfetch_distance distance_between(const char *rack_a, const char *region_a, const char *rack_b,
	const char *region_b)
{
	struct kvfetch_place a = {cgn_str_of(rack_a), cgn_str_of(region_a)},
			     b = {cgn_str_of(rack_b), cgn_str_of(region_b)};
	assert_int_equal(kvfetch_distance(&a, &b), kvfetch_distance(&b, &a));
	return kvfetch_distance(&a, &b);
}

static void racks_are_nearer_than_regions(void **state)
{
	(void)state;
	assert_int_equal(distance_between("r1", "eu", "r1", "eu"), KVFETCH_RACK);
	assert_int_equal(distance_between("r1", "", "r1", ""), KVFETCH_RACK);
	assert_int_equal(distance_between("r1", "eu", "r2", "eu"), KVFETCH_REGION);
	assert_int_equal(distance_between("", "eu", "", "eu"),
		KVFETCH_REGION); /* Two nodes without a rack are not in the same rack. */
	assert_int_equal(distance_between("", "", "", ""), KVFETCH_REGION);
	/* Racks of two regions may share a name. */
	assert_int_equal(distance_between("r1", "eu", "r1", "us"), KVFETCH_FAR);
	assert_int_equal(distance_between("", "eu", "", ""), KVFETCH_FAR);
	assert_string_equal(kvfetch_distance_text(KVFETCH_RACK), "rack");
	assert_string_equal(kvfetch_distance_text(KVFETCH_DISTANCES), "unknown");
}

static void a_path_is_what_was_measured(void **state)
{
	(void)state;
	struct kvfetch_path p;
	kvfetch_path_init(&p);
	assert_true(kvfetch_ms(&p, 1000000) > 10.9 && kvfetch_ms(&p, 1000000) < 11.1);
	kvfetch_path_first(&p, 0.2);
	/* 1,000,000 bytes a ms: the first sample replaces the guess. */
	kvfetch_path_rate(&p, 10 * MIB, 10.485760);
	assert_true(kvfetch_ms(&p, 1000000) > 1.19 && kvfetch_ms(&p, 1000000) < 1.21);
	p.under_way = 1000000;
	assert_true(kvfetch_ms(&p, 1000000) > 2.19 && kvfetch_ms(&p, 1000000) < 2.21);
	p.under_way = 0;
	kvfetch_path_rate(&p, 10 * MIB, 104.85760); /* A slow fetch moves the rate by an eighth. */
	assert_true(p.bytes_per_ms > 887000 && p.bytes_per_ms < 888000);
	for (int i = 0; i < 100; i++)
		kvfetch_path_rate(&p, 10 * MIB, 104.85760);
	assert_true(p.bytes_per_ms > 99900 && p.bytes_per_ms < 100500);
}

static void the_first_fetch_over_a_long_way_is_judged_by_its_round_trip(void **state)
{
	(void)state;
	struct kvfetch_path p;
	const struct kvfetch_ask a = {.bytes = 65536, .budget_ms = 50};
	kvfetch_path_init(&p);
	assert_true(kvfetch_worth(&p, &a));
	kvfetch_path_trip(&p, 80);
	assert_false(kvfetch_worth(&p, &a));
	kvfetch_path_trip(&p, 0.01); /* A new connection makes the way no shorter than was assumed. */
	assert_false(kvfetch_worth(&p, &a));
	kvfetch_path_first(&p, 20);
	kvfetch_path_rate(&p, MIB, 10);
	kvfetch_path_trip(&p, 80); /* Samples know it better. */
	assert_true(kvfetch_worth(&p, &a));
}

static void small_values_say_nothing_of_a_rate(void **state)
{
	(void)state;
	struct kvfetch_path p;
	kvfetch_path_init(&p);
	double before = p.bytes_per_ms;
	kvfetch_path_rate(&p, KVFETCH_RATE_BYTES - 1, 0.001);
	kvfetch_path_rate(&p, MIB, 0);
	kvfetch_path_rate(&p, MIB, -1);
	assert_true(p.bytes_per_ms == before && p.samples == 0);
	kvfetch_path_rate(&p, MIB, 1e12);
	assert_true(p.bytes_per_ms >= 1); /* Never zero. */
}

static void a_block_is_fetched_when_that_beats_computing_it(void **state)
{
	(void)state;
	struct kvfetch_path lan, wan;
	kvfetch_path_init(&lan);
	kvfetch_path_first(&lan, 0.3);
	kvfetch_path_rate(&lan, 100 * MIB, 100); /* About 1 GB/s. */
	kvfetch_path_init(&wan);
	kvfetch_path_first(&wan, 40);
	kvfetch_path_rate(&wan, MIB, 100); /* About 10 MB/s. */
	/* 16 tokens at 0.14 ms each: 2.3 ms. 1 MiB takes 1.3 ms on the LAN, 140 ms on the WAN. */
	struct kvfetch_ask a = {.bytes = MIB, .tokens = 16, .ms_per_token = 0.144};
	assert_true(kvfetch_worth(&lan, &a));
	assert_false(kvfetch_worth(&wan, &a));
	/* 3,780 tokens in 542 ms against a value of 7.8 MB. */
	a = (struct kvfetch_ask){.bytes = 7800000, .tokens = 3780, .ms_per_token = 542.0 / 3780};
	assert_true(kvfetch_worth(&lan, &a));
	assert_false(kvfetch_worth(&wan, &a));
	/* The caller's own budget replaces the estimate from tokens. */
	a.budget_ms = 5000;
	assert_true(kvfetch_worth(&wan, &a));
	a.budget_ms = 1;
	assert_false(kvfetch_worth(&lan, &a));
	/* A queue at the peer makes the fetch not worth it. */
	a.budget_ms = 12;
	assert_true(kvfetch_worth(&lan, &a));
	lan.under_way = 20 * MIB;
	assert_false(kvfetch_worth(&lan, &a));
}

static void a_caller_without_costs_gets_the_block(void **state)
{
	(void)state;
	struct kvfetch_path p;
	kvfetch_path_init(&p);
	p.under_way = UINT64_MAX;
	assert_true(kvfetch_worth(&p, &(struct kvfetch_ask){.bytes = MIB}));
	assert_true(kvfetch_worth(&p, &(struct kvfetch_ask){.bytes = MIB, .tokens = 16}));
	assert_true(kvfetch_recompute_ms(&(struct kvfetch_ask){.tokens = 10, .ms_per_token = 0.5}) == 5);
	assert_true(kvfetch_recompute_ms(
			    &(struct kvfetch_ask){.tokens = 10, .ms_per_token = 0.5, .budget_ms = 2}) == 2);
}

static void a_block_is_kept_where_there_is_room_or_need(void **state)
{
	(void)state;
	assert_true(kvfetch_keep(100, 60, 40, 1));
	assert_false(kvfetch_keep(100, 61, 40, 1));
	assert_false(kvfetch_keep(100, 101, 1, 1)); /* Over the budget: no wrap. */
	assert_true(kvfetch_keep(100, 100, 40, 2));
}

static void the_nearest_is_asked_then_the_fastest(void **state)
{
	(void)state;
	struct kvfetch_peer peers[] = {
		{.distance = KVFETCH_FAR, .in_ram = true, .ms = 1},
		{.distance = KVFETCH_REGION, .in_ram = true, .ms = 1},
		{.distance = KVFETCH_RACK, .in_ram = false, .ms = 1},
		{.distance = KVFETCH_RACK, .in_ram = true, .ms = 9},
		{.distance = KVFETCH_RACK, .in_ram = true, .ms = 8},
	};
	static const size_t order[] = {4, 3, 2, 1, 0};
	for (size_t i = 0; i < CGN_COUNT(order); i++) {
		size_t at = kvfetch_choose(peers, CGN_COUNT(peers), START);
		assert_int_equal(at, order[i]);
		peers[at].tried = true;
	}
	assert_int_equal(kvfetch_choose(peers, CGN_COUNT(peers), START), CGN_COUNT(peers));
	assert_int_equal(kvfetch_choose(NULL, 0, START), 0);
}

static void a_busy_peer_is_asked_last(void **state)
{
	(void)state;
	struct kvfetch_peer peers[] = {
		{.distance = KVFETCH_RACK, .in_ram = true, .busy_until = START + 1},
		{.distance = KVFETCH_FAR, .in_ram = false, .ms = 50},
	};
	assert_int_equal(kvfetch_choose(peers, 2, START), 1);
	assert_int_equal(kvfetch_choose(peers, 2, START + 1), 0); /* The peer's rest is over. */
	peers[1].tried = true;
	assert_int_equal(kvfetch_choose(peers, 2, START), 0); /* A resting peer is better than none. */
}

static void patience_and_rest_are_bounded(void **state)
{
	(void)state;
	struct kvfetch_path p;
	kvfetch_path_init(&p);
	assert_true(kvfetch_patience(&p) == 20 * CGN_MSEC);
	p.first_ms = 10;
	assert_true(kvfetch_patience(&p) == 80 * CGN_MSEC);
	p.first_ms = 1e9;
	assert_true(kvfetch_patience(&p) == 500 * CGN_MSEC);
	assert_true(kvfetch_rest(7, 0) == 7 * CGN_MSEC);
	assert_true(kvfetch_rest(UINT32_MAX, 0) == 5 * CGN_SEC);
	assert_true(kvfetch_rest(0, 1) == 50 * CGN_MSEC);
	assert_true(kvfetch_rest(0, 2) == 100 * CGN_MSEC);
	assert_true(kvfetch_rest(0, 100) == 5 * CGN_SEC);
}

static void streams_are_counted(void **state)
{
	(void)state;
	struct kvfetch_egress e;
	uint32_t wait;
	kvfetch_egress_init(&e, 0, 2);
	assert_true(kvfetch_egress_admit(&e, MIB, 0, &wait));
	assert_true(kvfetch_egress_admit(&e, 100 * MIB, 1, &wait)); /* No limit: no caller waits. */
	assert_false(kvfetch_egress_admit(&e, 1, 0, &wait));
	assert_true(wait > 0);
	kvfetch_egress_end(&e, MIB);
	assert_true(kvfetch_egress_admit(&e, 1, 0, &wait));
	kvfetch_egress_end(&e, 1);
	kvfetch_egress_end(&e, 100 * MIB);
	assert_true(e.streams == 0 && e.promised == 0);
}

static void a_request_that_is_too_late_goes_elsewhere(void **state)
{
	(void)state;
	struct kvfetch_egress e;
	uint32_t wait;
	kvfetch_egress_init(&e, 10 * MIB, 64);
	assert_true(kvfetch_egress_admit(&e, 5 * MIB, 100, &wait)); /* The queue is empty. */
	assert_false(kvfetch_egress_admit(&e, MIB, 500, &wait));
	assert_int_equal(wait, 500);
	assert_true(kvfetch_egress_admit(&e, MIB, 501, &wait));
	assert_true(kvfetch_egress_admit(&e, 20 * MIB, 0, &wait)); /* 600 ms of the 2 s that are allowed. */
	assert_false(kvfetch_egress_admit(&e, 1, 0, &wait));
	assert_int_equal(wait, 2000);
}

/* For any requests at any times, the granted bytes stay below the limit. */
static void no_more_goes_than_the_limit(void **state)
{
	(void)state;
	struct kvfetch_egress e;
	const uint64_t rate = 4 * MIB;
	uint64_t sent = 0;
	cgn_nsec now = START, wait;
	kvfetch_egress_init(&e, rate, 8);
	for (unsigned i = 0; i < 2000; i++) {
		uint64_t n = kvfetch_egress_take(&e, now, 1 + i * 7919 % (300 * 1024), &wait);
		assert_true(n <= KVFETCH_EGRESS_PIECE);
		assert_true(n > 0 || wait > 0);
		sent += n;
		double line = (double)rate * (double)(now - START) / 1e9 + (double)KVFETCH_EGRESS_PIECE +
			(double)rate / 50;
		assert_true((double)sent <= line);
		now += n > 0 ? (i % 3) * CGN_USEC : wait;
	}
	/* Not much less either: the sender asked for at least one KiB each time it was allowed to. */
	assert_true((double)sent > 0.95 * (double)rate * (double)(now - START) / 1e9);
}

static void what_is_less_than_a_piece_goes_too(void **state)
{
	(void)state;
	struct kvfetch_egress e;
	cgn_nsec wait;
	kvfetch_egress_init(&e, 1, 8); /* A KiB a second is the minimum. */
	assert_true(kvfetch_egress_take(&e, START, UINT64_MAX, &wait) == KVFETCH_EGRESS_PIECE);
	assert_true(kvfetch_egress_take(&e, START, 1, &wait) == 0);
	assert_true(wait > 0 && wait <= CGN_SEC);
	assert_true(kvfetch_egress_take(&e, START + wait, 1, &wait) == 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(racks_are_nearer_than_regions),
		cmocka_unit_test(a_path_is_what_was_measured),
		cmocka_unit_test(the_first_fetch_over_a_long_way_is_judged_by_its_round_trip),
		cmocka_unit_test(small_values_say_nothing_of_a_rate),
		cmocka_unit_test(a_block_is_fetched_when_that_beats_computing_it),
		cmocka_unit_test(a_caller_without_costs_gets_the_block),
		cmocka_unit_test(a_block_is_kept_where_there_is_room_or_need),
		cmocka_unit_test(the_nearest_is_asked_then_the_fastest),
		cmocka_unit_test(a_busy_peer_is_asked_last),
		cmocka_unit_test(patience_and_rest_are_bounded),
		cmocka_unit_test(streams_are_counted),
		cmocka_unit_test(a_request_that_is_too_late_goes_elsewhere),
		cmocka_unit_test(no_more_goes_than_the_limit),
		cmocka_unit_test(what_is_less_than_a_piece_goes_too),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
