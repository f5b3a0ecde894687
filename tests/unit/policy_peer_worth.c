/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/route/peer/worth.h"

#define MS CGN_MSEC

/* Is the side worth it that takes |there|, with nothing known of the prompt's time? */
static bool worth_of(const struct peer_stay *s, cgn_nsec there, cgn_nsec margin)
{
	const struct peer_rules rules = {.margin = margin, .rework = 1, .affinity = 2};
	return peer_worth(s, &(struct peer_there){.ttft = there}, &rules);
}

static void a_request_that_need_not_wait_stays(void **state)
{
	(void)state;
	const struct peer_stay idle = {.known = true, .prefill = 60 * CGN_SEC}, fresh = {0};
	assert_false(worth_of(&idle, 1 * MS, 0));
	assert_false(worth_of(&fresh, 0, 0));
}

static void a_wait_must_be_longer_than_the_other_side_and_the_margin(void **state)
{
	(void)state;
	struct peer_stay s = {.waits = true, .known = true, .queue = 700 * MS, .prefill = 400 * MS};
	assert_true(worth_of(&s, 999 * MS, 100 * MS));
	assert_false(worth_of(&s, 1000 * MS, 100 * MS));
	s.waits = false; /* A place is free, on a node with 700 ms of others' prompts. */
	assert_true(worth_of(&s, 999 * MS, 100 * MS));
	s.queue = 0;
	assert_false(worth_of(&s, 1 * MS, 0));
}

static void what_has_no_node_leaves_and_so_does_a_wait_of_unknown_length(void **state)
{
	(void)state;
	const struct peer_stay none = {.none = true}, unknown = {.waits = true};
	assert_true(worth_of(&none, 3600 * CGN_SEC, CGN_SEC));
	assert_true(worth_of(&unknown, 3600 * CGN_SEC, CGN_SEC));
}

static void a_dearer_side_must_be_sooner(void **state)
{
	(void)state;
	struct peer_stay s = {.known = true, .queue = 3000 * MS, .cost = {.priced = true, .price = 0.1}};
	struct peer_there there = {.ttft = 1000 * MS, .cost = {.priced = true, .price = 0.2}};
	struct peer_rules rules = {.margin = 0};
	assert_true(peer_worth(&s, &there, &rules));
	rules.price = 19; /* 1.9 s for the price, with 1 s there. */
	assert_true(peer_worth(&s, &there, &rules));
	rules.price = 21;
	assert_false(peer_worth(&s, &there, &rules));
	there.cost.priced = false; /* As here. */
	assert_true(peer_worth(&s, &there, &rules));
	s.queue = 500 * MS;
	assert_false(peer_worth(&s, &there, &rules));
	there.cost = (struct peer_cost){.priced = true}; /* Nothing: 2.1 s better. */
	assert_true(peer_worth(&s, &there, &rules) && peer_may_be_worth(&s, &rules));
	s.queue = 0; /* No wait: it stays, however cheap another side is. */
	assert_false(peer_worth(&s, &there, &rules) || peer_may_be_worth(&s, &rules));
	s.queue = 3000 * MS;
	s.cost.priced = false;
	there.cost.price = 0.2; /* The price here is 0. */
	assert_false(peer_worth(&s, &there, &rules));
	rules = (struct peer_rules){.energy = 100};
	there.cost = (struct peer_cost){.powered = true, .joules = 50};
	assert_true(peer_worth(&s, &there, &rules)); /* The joules here are not known. */
	s.cost = (struct peer_cost){.powered = true, .joules = 20};
	assert_false(peer_worth(&s, &there, &rules)); /* 3 s more. */
	s.cost.joules = 31;
	assert_true(peer_worth(&s, &there, &rules));
}

static void work_that_is_done_again_counts(void **state)
{
	(void)state;
	const struct peer_stay s = {.known = true, .queue = 500 * MS, .prefill = 100 * MS};
	struct peer_there there = {.ttft = 400 * MS, .known = true, .prefill = 200 * MS};
	struct peer_rules rules = {.margin = 50 * MS};
	assert_true(peer_worth(&s, &there, &rules));
	rules.rework = 1; /* 600 > 400 + 50 + 100 */
	assert_true(peer_worth(&s, &there, &rules));
	rules.rework = 2;
	assert_false(peer_worth(&s, &there, &rules));
	there.prefill = 50 * MS; /* The peer has more of it. */
	assert_true(peer_worth(&s, &there, &rules));
	there.known = false;
	there.prefill = 400 * MS;
	assert_true(peer_worth(&s, &there, &rules));
}

static void a_prompt_goes_where_its_prefix_is_cached(void **state)
{
	(void)state;
	const struct peer_stay s = {.known = true, .prefill = 400 * MS};
	struct peer_there there = {.ttft = 200 * MS, .known = true, .prefill = 50 * MS};
	struct peer_rules rules = {.margin = 100 * MS, .rework = 1};
	assert_false(peer_worth(&s, &there, &rules));
	assert_false(peer_may_be_worth(&s, &rules));
	rules.affinity = 4;
	assert_true(peer_worth(&s, &there, &rules));
	assert_true(peer_may_be_worth(&s, &rules));
	there.paid = true;
	assert_false(peer_worth(&s, &there, &rules));
	there.paid = false;
	rules.affinity = 8; /* Not so much more of it. */
	assert_false(peer_worth(&s, &there, &rules));
	rules.affinity = 4;
	there.ttft = 300 * MS; /* Not sooner by the margin. */
	assert_false(peer_worth(&s, &there, &rules));
	const struct peer_stay brief = {.known = true, .prefill = 90 * MS};
	assert_false(peer_may_be_worth(&brief, &rules));
}

static cgn_nsec estimate_after(cgn_nsec from, cgn_nsec low, cgn_nsec high, unsigned n)
{
	uint64_t random = 7;
	for (unsigned i = 0; i < n; i++)
		from = peer_ttft_learn(from, low + mix_splitmix(&random) % (high - low));
	return from;
}

static void the_estimate_settles_where_three_of_four_are_shorter(void **state)
{
	(void)state;
	assert_true(peer_ttft_learn(0, 300 * MS) == 300 * MS);
	cgn_nsec e = estimate_after(0, 100 * MS, 500 * MS, 2000);
	assert_in_range(e / MS, 340, 460); /* The exact value is 400. */
	e = estimate_after(e, 1000 * MS, 1400 * MS, 2000);
	assert_in_range(e / MS, 1200, 1400);
}

static void one_slow_answer_changes_little(void **state)
{
	(void)state;
	assert_in_range(peer_ttft_learn(640 * MS, 3600 * CGN_SEC) / MS, 640, 670);
	assert_in_range(peer_ttft_learn(640 * MS, 1 * MS) / MS, 630, 640);
	assert_true(peer_ttft_learn(640 * MS, 640 * MS) == 640 * MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_that_need_not_wait_stays),
		cmocka_unit_test(a_wait_must_be_longer_than_the_other_side_and_the_margin),
		cmocka_unit_test(a_dearer_side_must_be_sooner),
		cmocka_unit_test(work_that_is_done_again_counts),
		cmocka_unit_test(a_prompt_goes_where_its_prefix_is_cached),
		cmocka_unit_test(what_has_no_node_leaves_and_so_does_a_wait_of_unknown_length),
		cmocka_unit_test(the_estimate_settles_where_three_of_four_are_shorter),
		cmocka_unit_test(one_slow_answer_changes_little),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
