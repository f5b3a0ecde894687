/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "io/os/loop/window.h"

#define MOST  (100 * CGN_USEC)
#define PURSE (WINDOW_PURSE * MOST)

/* A simulated loop and its clock. */
struct life {
	struct window w;
	cgn_nsec now, vain, polled;
	unsigned found, blocked, opened;
};

static struct life life_of(cgn_nsec most)
{
	struct life x = {.now = CGN_SEC};
	window_init(&x.w, most, x.now);
	return x;
}

/* Wait for an event that comes at |until|, on an idle processor. Returns true if polling found the event. */
static bool life_wait(struct life *x, cgn_nsec until)
{
	cgn_nsec most = window_open(&x->w, x->now);
	x->opened += most > 0;
	x->now += until;
	if (most > until) {
		x->polled += until;
		x->found++;
		window_found(&x->w, until);
		return true;
	}
	x->polled += most;
	x->vain += most;
	x->blocked++;
	window_blocked(&x->w, most, until);
	return false;
}

/* The fruitless polling time is at most the bound in the header and the last polling that began below that
 * bound. */
static void assert_bound(const struct life *x)
{
	cgn_nsec time = x->now - CGN_SEC;
	assert_true(x->vain <= time / WINDOW_SHARE + x->found * (MOST / 4) + PURSE + MOST);
}

/* ---- the window ---- */
static void without_a_bound_nothing_is_polled(void **state)
{
	(void)state;
	struct life x = life_of(0);
	for (int i = 0; i < 100; i++)
		assert_false(life_wait(&x, (cgn_nsec)i % 7));
	assert_int_equal(x.opened, 0);
}

static void an_idle_loop_never_polls(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	for (int i = 0; i < 1000; i++)
		(void)life_wait(&x, 3 * MOST + (cgn_nsec)i * CGN_USEC);
	assert_int_equal(x.opened, 0);
}

static void a_short_wait_opens_it(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	assert_false(life_wait(&x, 20 * CGN_USEC));
	assert_int_equal(x.w.size, 40 * CGN_USEC);
	for (int i = 0; i < 1000; i++)
		assert_true(life_wait(&x, 20 * CGN_USEC));
	assert_int_equal(x.w.size, 40 * CGN_USEC); /* A window that succeeds keeps its size. */
	assert_false(life_wait(&x, 45 * CGN_USEC));
	assert_int_equal(x.w.size, 90 * CGN_USEC);
	assert_false(life_wait(&x, 95 * CGN_USEC));
	assert_int_equal(x.w.size, MOST); /* The window is never above MOST. */
}

static void a_wait_that_a_wake_up_made_long_counts_as_short(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	assert_false(life_wait(&x, 2 * MOST));
	assert_int_equal(x.w.size, MOST);
	x = life_of(MOST);
	assert_false(life_wait(&x, 2 * MOST + 1));
	assert_int_equal(x.w.size, 0);
}

static void two_long_waits_close_it(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	(void)life_wait(&x, MOST);
	assert_int_equal(x.w.size, MOST);
	assert_false(life_wait(&x, CGN_SEC));
	assert_int_equal(x.w.size, MOST);
	assert_false(life_wait(&x, CGN_SEC));
	assert_int_equal(x.w.size, 0);
	for (int i = 0; i < 100; i++)
		assert_false(life_wait(&x, CGN_SEC));
	assert_int_equal(x.vain, 2 * MOST); /* The whole cost of the end of a burst. */
}

static void one_long_wait_among_short_ones_does_not_close_it(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	for (int i = 0; i < 10000; i++)
		(void)life_wait(&x, i % 50 == 0 ? 10 * MOST : 20 * CGN_USEC);
	assert_int_equal(x.blocked, 200 + 1); /* A single event opens the window. */
}

/* ---- the budget ---- */
/* The worst case: each event arrives just after polling ended. */
static void fruitless_polling_wastes_a_small_share(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	while (x.now < 11 * CGN_SEC) {
		(void)life_wait(&x, MOST + 1);
		assert_bound(&x);
	}
	assert_true(x.opened > 100); /* The window still opens from time to time. */
}

static void no_mixture_of_waits_wastes_more(void **state)
{
	(void)state;
	static const cgn_nsec waits[] = {1, 15, 45, 99, 101, 130, 199, 201, 500, 3000, 40000};
	srand(3);
	for (int round = 0; round < 200; round++) {
		struct life x = life_of(MOST);
		size_t a = (size_t)rand() % CGN_COUNT(waits), b = (size_t)rand() % CGN_COUNT(waits);
		unsigned share = (unsigned)rand() % 100;
		for (int i = 0; i < 5000; i++) {
			(void)life_wait(&x, waits[(unsigned)rand() % 100 < share ? a : b] * CGN_USEC);
			assert_bound(&x);
			assert_true(x.w.size <= MOST);
			assert_true(x.w.purse <= (int64_t)PURSE);
		}
	}
}

static void a_processor_that_others_want_is_left_to_them(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	(void)life_wait(&x, 30 * CGN_USEC);
	assert_true(life_wait(&x, 30 * CGN_USEC));
	window_found(&x.w, 3 * CGN_MSEC); /* The event was there, but another process had the processor. */
	cgn_nsec back = x.now + 3 * CGN_MSEC * WINDOW_SHARE;
	while (x.now < back - CGN_SEC / 50)
		assert_false(life_wait(&x, 30 * CGN_USEC));
	for (int i = 0; i < 2000; i++)
		(void)life_wait(&x, 30 * CGN_USEC);
	assert_true(life_wait(&x, 30 * CGN_USEC));
}

static void a_machine_that_stood_still_is_forgotten_soon(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	(void)life_wait(&x, 30 * CGN_USEC);
	window_found(&x.w, 3600 * CGN_SEC);
	window_blocked(&x.w, 3600 * CGN_SEC, 30 * CGN_USEC);
	x.now += WINDOW_DEBT * WINDOW_SHARE;
	assert_int_equal(window_open(&x.w, x.now), 0);
	x.now += MOST * WINDOW_SHARE;
	assert_true(window_open(&x.w, x.now) > 0);
}

static void a_clock_that_stands_earns_nothing(void **state)
{
	(void)state;
	struct life x = life_of(MOST);
	(void)life_wait(&x, 30 * CGN_USEC);
	for (int i = 0; i < 1000; i++)
		window_blocked(&x.w, window_open(&x.w, x.now), MOST);
	assert_int_equal(window_open(&x.w, x.now), 0);
	assert_int_equal(window_open(&x.w, x.now - CGN_SEC / 2), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_bound_nothing_is_polled),
		cmocka_unit_test(an_idle_loop_never_polls),
		cmocka_unit_test(a_short_wait_opens_it),
		cmocka_unit_test(a_wait_that_a_wake_up_made_long_counts_as_short),
		cmocka_unit_test(two_long_waits_close_it),
		cmocka_unit_test(one_long_wait_among_short_ones_does_not_close_it),
		cmocka_unit_test(fruitless_polling_wastes_a_small_share),
		cmocka_unit_test(no_mixture_of_waits_wastes_more),
		cmocka_unit_test(a_processor_that_others_want_is_left_to_them),
		cmocka_unit_test(a_machine_that_stood_still_is_forgotten_soon),
		cmocka_unit_test(a_clock_that_stands_earns_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
