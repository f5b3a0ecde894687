/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/node/swap/swap.h"

#define S   CGN_SEC
#define GB  ((uint64_t)1 << 30)
#define NOW (1000 * S)

static const struct swap_rules one = {.max_loaded = 1, .residence = 10 * S};

static struct swap_model model_in(cgn_nsec loaded_at, cgn_nsec used_at, uint32_t running)
{
	return (struct swap_model){.state = SWAP_IN,
		.loaded_at = loaded_at,
		.used_at = used_at,
		.running = running,
		.expires_at = SWAP_NEVER,
		.load_time = 2 * S};
}

static struct swap_model model_wanted(cgn_nsec since)
{
	return (struct swap_model){.waiting = 1,
		.waits_since = since,
		.expires_at = SWAP_NEVER,
		.load_time = 2 * S};
}

static struct swap_orders orders_of(const struct swap_rules *rules, const struct swap_model *m, size_t n)
{
	struct swap_orders o;
	swap_decide(rules, m, n, NOW, &o);
	assert_int_equal(o.load & o.unload, 0);
	assert_int_equal(o.hold & o.unload, 0);
	return o;
}

static void orders_check(struct swap_orders o, uint64_t load, uint64_t unload, uint64_t hold)
{
	assert_int_equal(o.load, load);
	assert_int_equal(o.unload, unload);
	assert_int_equal(o.hold, hold);
}

static void test_room(void **state)
{
	(void)state;
	struct swap_model m[3] = {model_wanted(NOW), {.load_time = S}, {.load_time = S}};
	orders_check(orders_of(&one, m, 3), 1, 0, 0);
	m[0].barred = true;
	orders_check(orders_of(&one, m, 3), 0, 0, 0);
	m[0].barred = false;
	m[1] = model_in(NOW - 100 * S, NOW - 50 * S, 0); /* Idle for long. */
	orders_check(orders_of(&one, m, 3), 0, 2, 0);
	m[1].state = SWAP_LEAVING;
	orders_check(orders_of(&one, m, 3), 0, 0, 0);
	m[2] = model_in(NOW - 100 * S, NOW - 50 * S, 0); /* Two places: no other one has to go. */
	const struct swap_rules two = {.max_loaded = 2, .residence = 10 * S};
	orders_check(orders_of(&two, m, 3), 0, 0, 0);
	const struct swap_rules free_of_limits = {.residence = 10 * S};
	orders_check(orders_of(&free_of_limits, m, 3), 1, 0, 0);
}

static void test_an_idle_model_lingers(void **state)
{
	(void)state;
	struct swap_model m[2] = {model_wanted(NOW), model_in(NOW - 4 * S, NOW - 400 * CGN_MSEC, 0)};
	struct swap_orders o = orders_of(&one, m, 2);
	orders_check(o, 0, 0, 0);
	assert_int_equal(o.wake_at, NOW + 100 * CGN_MSEC); /* A quarter of its load time. */
	m[1].load_time = 100 * S;
	assert_int_equal(orders_of(&one, m, 2).wake_at, NOW + 600 * CGN_MSEC);
	m[1].load_time = 0;
	orders_check(orders_of(&one, m, 2), 0, 2, 0);
	m[1].used_at = NOW;
	orders_check(orders_of(&one, m, 2), 0, 0, 0);
	m[1].loaded_at = NOW - 10 * S;
	m[1].held = true; /* The residence is over: the model does not wait for another request. */
	orders_check(orders_of(&one, m, 2), 0, 2, 0);
	m[1].held = false;
	orders_check(orders_of(&one, m, 2), 0, 0, 0);
	m[1].used_at = NOW - 400 * CGN_MSEC;
	m[1].loaded_at = NOW - 100 * CGN_MSEC; /* Just loaded: its client comes in a moment. */
	assert_int_equal(orders_of(&one, m, 2).wake_at, NOW + 150 * CGN_MSEC);
	const struct swap_rules hasty = {.max_loaded = 1};
	orders_check(orders_of(&hasty, m, 2), 0, 2, 0);
}

static void test_a_model_in_use_resides(void **state)
{
	(void)state;
	struct swap_model m[2] = {model_wanted(NOW - S), model_in(NOW - 4 * S, NOW, 3)};
	struct swap_orders o = orders_of(&one, m, 2);
	orders_check(o, 0, 0, 0);
	assert_int_equal(o.wake_at, NOW + 6 * S);
	m[1].loaded_at = NOW - 10 * S;
	orders_check(orders_of(&one, m, 2), 0, 0, 2); /* The streams end by themselves. */
	m[1].running = 0;
	m[1].waiting = 5; /* Held requests. */
	orders_check(orders_of(&one, m, 2), 0, 2, 0);
	m[0].waiting = 0; /* The other one's client has left. */
	orders_check(orders_of(&one, m, 2), 0, 0, 0);
}

static void test_priority_and_starvation(void **state)
{
	(void)state;
	struct swap_model m[3] = {model_wanted(NOW - S), model_in(NOW - 4 * S, NOW, 1), {.load_time = S}};
	m[0].priority = 2;
	m[1].priority = 1;
	orders_check(orders_of(&one, m, 3), 0, 0, 2); /* A higher one does not wait. */
	m[0].priority = 0;
	m[1].loaded_at = NOW - 20 * S;
	struct swap_orders o = orders_of(&one, m, 3);
	orders_check(o, 0, 0, 0); /* A lower one waits ... */
	assert_int_equal(o.wake_at, NOW + 59 * S);
	m[0].waits_since = NOW - 60 * S;
	orders_check(orders_of(&one, m, 3), 0, 0, 2); /* ... but not for ever. */
	/* The higher of two waiting ones comes first, and one that starves comes before both. */
	m[1].state = SWAP_OUT;
	m[1].running = 0;
	m[2] = model_wanted(NOW - S);
	m[2].priority = 5;
	m[0].waits_since = NOW - 30 * S;
	orders_check(orders_of(&one, m, 3), 4, 0, 0);
	m[0].waits_since = NOW - 60 * S;
	orders_check(orders_of(&one, m, 3), 1, 0, 0);
}

static void test_memory(void **state)
{
	(void)state;
	const struct swap_rules rules = {.memory = 16 * GB, .residence = 10 * S};
	struct swap_model m[4] = {model_wanted(NOW), model_in(1, NOW - 60 * S, 0),
		model_in(1, NOW - 50 * S, 0), model_in(1, NOW - 40 * S, 0)};
	m[0].bytes = 8 * GB;
	m[1].bytes = 2 * GB;
	m[2].bytes = 8 * GB;
	m[3].bytes = 6 * GB;
	orders_check(orders_of(&rules, m, 4), 0, 4, 0); /* The oldest alone is too small, and stays. */
	m[2].bytes = 1 * GB;
	orders_check(orders_of(&rules, m, 4), 0, 2, 0); /* 8 + 1 + 6 fit. */
	m[0].bytes = 20 * GB;
	orders_check(orders_of(&rules, m, 4), 0, 14, 0); /* Larger than all: alone. */
	m[1].running = 1;
	orders_check(orders_of(&rules, m, 4), 0, 12, 2);
	m[1].loaded_at = NOW - S; /* None leaves for a room that would not be enough. */
	orders_check(orders_of(&rules, m, 4), 0, 0, 0);
	/* A later one that would fit does not overtake. */
	struct swap_model two[3] = {model_wanted(NOW - S), model_wanted(NOW), model_in(NOW, NOW, 1)};
	two[0].bytes = 12 * GB;
	two[1].bytes = two[2].bytes = 6 * GB;
	orders_check(orders_of(&rules, two, 3), 0, 0, 0);
}

static void test_a_load_nobody_wants_any_more_is_given_up(void **state)
{
	(void)state;
	struct swap_model m[2] = {model_wanted(NOW), {.state = SWAP_LOADING, .loaded_at = NOW}};
	orders_check(orders_of(&one, m, 2), 0, 2, 0);
	m[1].waiting = 1;
	orders_check(orders_of(&one, m, 2), 0, 0, 0);
	m[0].waiting = 0;
	orders_check(orders_of(&one, m, 2), 0, 0, 0);
}

static void test_expiry(void **state)
{
	(void)state;
	struct swap_model m[1] = {model_in(1, NOW - S, 0)};
	m[0].expires_at = NOW + 5 * S;
	assert_int_equal(orders_of(&one, m, 1).wake_at, NOW + 5 * S);
	m[0].expires_at = NOW;
	orders_check(orders_of(&one, m, 1), 0, 1, 0);
	m[0].running = 1;
	orders_check(orders_of(&one, m, 1), 0, 0, 0);
	m[0].running = 0;
	m[0].expires_at = SWAP_NEVER;
	assert_int_equal(orders_of(&one, m, 1).wake_at, SWAP_NEVER);
}

static void test_forecast(void **state)
{
	(void)state;
	struct swap_model m[3] = {{.load_time = 2 * S}, {.load_time = 3 * S}, {.load_time = 4 * S}};
	assert_int_equal(swap_forecast(&one, m, 3, 0, NOW), 2 * S);
	m[1].state = SWAP_LOADING;
	m[1].loaded_at = NOW - S;
	assert_int_equal(swap_forecast(&one, m, 3, 1, NOW), 2 * S);
	assert_int_equal(swap_forecast(&one, m, 3, 0, NOW), 12 * S);
	m[2].waiting = 1;
	assert_int_equal(swap_forecast(&one, m, 3, 0, NOW), 26 * S);
	m[1].loaded_at = NOW - 60 * S;
	assert_int_equal(swap_forecast(&one, m, 3, 1, NOW), 0);
}

/* Three clients that ask all the time, of one place: neither starves, and no model leaves before its time. */
static void test_contention(void **state)
{
	(void)state;
	struct swap_model m[3];
	unsigned served[3] = {0}, loads = 0;
	cgn_nsec since[3] = {0};
	for (size_t i = 0; i < 3; i++)
		m[i] = model_wanted(0);
	for (cgn_nsec now = 0; now < 600 * S; now += 100 * CGN_MSEC) {
		struct swap_orders o;
		swap_decide(&one, m, 3, now, &o);
		for (size_t i = 0; i < 3; i++) {
			if ((o.unload >> i & 1) != 0) {
				assert_true(now - m[i].loaded_at >= one.residence);
				m[i] = model_wanted(now);
			} else if ((o.load >> i & 1) != 0) {
				m[i] = model_in(now, now, 1);
				loads++;
			} else if (m[i].state == SWAP_IN) {
				bool held = (o.hold >> i & 1) != 0;
				m[i].waiting = held;
				m[i].waits_since = held && since[i] == 0 ? now : m[i].waits_since;
				m[i].running = !held;
				m[i].used_at = now;
				served[i]++;
			}
		}
	}
	assert_in_range(loads, 50, 61);
	for (size_t i = 0; i < 3; i++)
		assert_in_range(served[i], 1700, 2300);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_an_idle_model_lingers),
		cmocka_unit_test(test_a_model_in_use_resides),
		cmocka_unit_test(test_priority_and_starvation),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_a_load_nobody_wants_any_more_is_given_up),
		cmocka_unit_test(test_expiry),
		cmocka_unit_test(test_forecast),
		cmocka_unit_test(test_contention),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
