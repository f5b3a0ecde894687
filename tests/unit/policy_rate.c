/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/who/rate/rate.h"

__extension__ typedef unsigned __int128 wide;

#define START ((cgn_nsec)1000000 * CGN_SEC)

static void rates_are_read_from_settings(void **state)
{
	(void)state;
	struct rate r = rate_per_second(0, 7);
	assert_false(rate_is_set(&r));
	r = rate_per_minute(0);
	assert_false(rate_is_set(&r));
	r = rate_per_second(0.5, 0);
	assert_true(rate_is_set(&r));
	assert_int_equal(r.burst, 1);
	assert_true(rate_cost(&r, 1) == 2 * CGN_SEC);
	r = rate_per_second(10.5, 0);
	assert_int_equal(r.burst, 11);
	r = rate_per_second(10, 3);
	assert_int_equal(r.burst, 3);
	assert_true(rate_cost(&r, 1) == CGN_SEC / 10);
	r = rate_per_minute(60000);
	assert_int_equal(r.burst, 60000);
	assert_true(rate_cost(&r, 1) == CGN_MSEC);
	assert_true(rate_cost(&r, 60000) == 60 * CGN_SEC);
	r = rate_per_minute(7); /* Rounded up: seven cost no less than a minute. */
	assert_true(rate_cost(&r, 1) * 7 >= 60 * CGN_SEC);
	r = rate_per_second(0.001, UINT32_MAX);
	assert_true(rate_cost(&r, UINT64_MAX) == RATE_LONGEST);
}

static void a_burst_then_the_rate(void **state)
{
	(void)state;
	const struct rate r = rate_per_second(10, 3);
	uint64_t at = 0;
	for (uint64_t i = 0; i < 3; i++) {
		struct rate_answer a = rate_take(&r, &at, START, 1);
		assert_true(a.granted);
		assert_int_equal(a.left, 2 - i);
		assert_true(a.full_in == (i + 1) * CGN_SEC / 10);
	}
	struct rate_answer a = rate_take(&r, &at, START, 1);
	assert_false(a.granted);
	assert_int_equal(a.left, 0);
	assert_true(a.wait == CGN_SEC / 10);
	/* The reported wait is exact to the nanosecond. */
	assert_false(rate_take(&r, &at, START + a.wait - 1, 1).granted);
	assert_true(rate_take(&r, &at, START + a.wait, 1).granted);
	/* An hour saves no more than the burst. */
	assert_true(rate_take(&r, &at, START + 3600 * CGN_SEC, 3).granted);
	assert_false(rate_take(&r, &at, START + 3600 * CGN_SEC, 1).granted);
}

static void what_is_more_than_the_bucket_is_never_granted(void **state)
{
	(void)state;
	const struct rate r = rate_per_minute(100);
	uint64_t at = 0;
	struct rate_answer a = rate_take(&r, &at, START, 101);
	assert_false(a.granted);
	assert_true(a.wait == RATE_NEVER);
	assert_int_equal(a.left, 100);
	assert_int_equal(at, 0);
	assert_false(rate_take(&r, &at, START, UINT64_MAX).granted);
	assert_true(rate_take(&r, &at, START, 100).granted);
}

static void unused_tokens_come_back_and_more_are_owed(void **state)
{
	(void)state;
	const struct rate r = rate_per_minute(1000);
	uint64_t at = 0;
	assert_true(rate_take(&r, &at, START, 900).granted);
	rate_settle(&r, &at, START, 900, 200);
	assert_int_equal(rate_left(&r, at - START), 800);
	rate_settle(&r, &at, START, 0, 1700); /* The settlement takes more than the bucket holds. */
	struct rate_answer a = rate_take(&r, &at, START, 1);
	assert_false(a.granted);
	/* 900 units are owed at 1000 a minute. */
	assert_true(a.wait > 53 * CGN_SEC && a.wait < 55 * CGN_SEC);
	rate_settle(&r, &at, START, 5000, 0); /* A refund never makes more than a full bucket. */
	assert_true(rate_take(&r, &at, START, 1000).granted);
	assert_false(rate_take(&r, &at, START, 1).granted);
}

static void no_debt_lasts_longer_than_an_hour(void **state)
{
	(void)state;
	const struct rate r = rate_per_minute(1000);
	uint64_t at = 0;
	rate_settle(&r, &at, START, 0, UINT64_MAX);
	assert_true(rate_take(&r, &at, START, 1).wait <= RATE_MAX_DEBT + 60 * CGN_SEC);
	assert_true(rate_take(&r, &at, START + RATE_MAX_DEBT + CGN_SEC, 1).granted);
}

static void a_clock_that_jumps_back_harms_little(void **state)
{
	(void)state;
	const struct rate r = rate_per_second(1, 1);
	uint64_t at = 0;
	assert_true(rate_take(&r, &at, START, 1).granted);
	struct rate_answer a = rate_take(&r, &at, 5 * CGN_SEC, 1);
	assert_false(a.granted);
	assert_true(a.wait <= RATE_MAX_DEBT + CGN_SEC);
	rate_settle(&r, &at, 5 * CGN_SEC, 1, 1);
	/* The rule holds from then on. */
	assert_true(rate_take(&r, &at, 5 * CGN_SEC + a.wait, 1).granted);
	assert_true(rate_take(&r, &at, 6 * CGN_SEC + a.wait, 1).granted);
}

/* Any requests at any times: over any interval no more than burst + rate x time is granted, and the reported
 * wait is exact. */
static void any_sequence_keeps_the_rate(void **state)
{
	(void)state;
	uint64_t s = 7;
	for (unsigned round = 0; round < 300; round++) {
		const struct rate r = mix_splitmix(&s) % 2 == 0
			? rate_per_minute(1 + (uint32_t)(mix_splitmix(&s) % (1U << mix_splitmix(&s) % 31)))
			: rate_per_second((double)(1 + mix_splitmix(&s) % 5000) / 7,
				  (uint32_t)(mix_splitmix(&s) % 50));
		uint64_t at = 0, granted = 0;
		cgn_nsec now = START;
		for (unsigned i = 0; i < 400; i++) {
			now += mix_splitmix(&s) % (rate_cost(&r, r.burst) / 10 + 2);
			uint64_t n = mix_splitmix(&s) % (r.burst + r.burst / 4 + 2);
			struct rate_answer a = rate_take(&r, &at, now, n);
			granted += a.granted ? n : 0;
			uint64_t most = r.burst + (uint64_t)((wide)(now - START) * r.units / r.period) + 1;
			assert_true(granted <= most);
			assert_true(a.left <= r.burst);
			assert_true(a.granted || n > 0);
			assert_true((n > r.burst) == (!a.granted && a.wait == RATE_NEVER));
			if (!a.granted && a.wait != RATE_NEVER) {
				uint64_t copy = at;
				assert_false(rate_take(&r, &copy, now + a.wait - 1, n).granted);
				assert_true(rate_take(&r, &copy, now + a.wait, n).granted);
			}
		}
	}
}

/* Reserving much and settling for little equals taking little, as long as nothing was refused. */
static void settling_is_as_if_it_had_been_known(void **state)
{
	(void)state;
	uint64_t s = 11;
	for (unsigned round = 0; round < 300; round++) {
		const struct rate r = rate_per_minute(1000 + (uint32_t)(mix_splitmix(&s) % 1000000));
		uint64_t reserved_at = 0, known_at = 0, spent = 0;
		cgn_nsec now = START;
		for (unsigned i = 0; i < 50; i++) {
			uint64_t used = mix_splitmix(&s) % (r.burst / 100),
				 reserved = used + mix_splitmix(&s) % (r.burst / 10);
			spent += used;
			if (spent + reserved > r.burst)
				break;
			assert_true(rate_take(&r, &reserved_at, now, reserved).granted);
			rate_settle(&r, &reserved_at, now, reserved, used);
			assert_true(rate_take(&r, &known_at, now, used).granted);
			assert_int_equal(reserved_at > now ? reserved_at : now,
				known_at > now ? known_at : now);
		}
	}
}

static struct rate_table *table_of(size_t n)
{
	struct rate_table *t = rate_table_new(n);
	return t;
}

static void buckets_of_two_keys_are_two(void **state)
{
	(void)state;
	struct rate_table *t = table_of(64);
	const struct rate r = rate_per_second(1, 2);
	for (uint64_t key = 1; key <= 2; key++) {
		assert_true(rate_table_take(t, key, &r, START, 1).granted);
		assert_true(rate_table_take(t, key, &r, START, 1).granted);
		assert_false(rate_table_take(t, key, &r, START, 1).granted);
	}
	rate_table_settle(t, 2, &r, START, 1, 0);
	assert_false(rate_table_take(t, 1, &r, START, 1).granted);
	assert_true(rate_table_take(t, 2, &r, START, 1).granted);
	rate_table_settle(t, 3, &r, START, 1, 0); /* A refund to an unknown bucket does nothing. */
	rate_table_settle(t, 3, &r, START, 0, 2); /* A debt is kept. */
	assert_false(rate_table_take(t, 3, &r, START, 1).granted);
	rate_table_free(&t);
	rate_table_free(&t);
}

/* A table for many keys keeps the buckets of many. */
static void a_large_table_forgets_no_bucket(void **state)
{
	(void)state;
	struct rate_table *t = table_of(4096);
	const struct rate r = rate_per_second(1, 4);
	for (uint64_t i = 1; i <= 256; i++)
		assert_true(rate_table_take(t, i * MIX_GOLDEN, &r, START, 4).granted);
	assert_int_equal(rate_table_forgotten(t), 0);
	for (uint64_t i = 1; i <= 256; i++)
		assert_false(rate_table_take(t, i * MIX_GOLDEN, &r, START, 1).granted);
	rate_table_free(&t);
}

static void full_buckets_are_forgotten_first(void **state)
{
	(void)state;
	struct rate_table *t = table_of(1); /* RATE_WAYS places. */
	const struct rate r = rate_per_second(1, 4);
	for (uint64_t key = 1; key < RATE_WAYS; key++)
		assert_true(rate_table_take(t, key, &r, START, 4).granted);
	for (uint64_t key = 100; key < 200; key++) { /* New keys share the one place that is left. */
		assert_true(rate_table_take(t, key, &r, START + key * 10 * CGN_MSEC, 1).granted);
		rate_table_settle(t, key, &r, START + key * 10 * CGN_MSEC, 1, 0);
	}
	assert_int_equal(rate_table_forgotten(t), 0);
	for (uint64_t key = 1; key < RATE_WAYS; key++)
		assert_false(rate_table_take(t, key, &r, START + 2 * CGN_SEC, 3).granted);
	/* When none is full, the bucket nearest to full is forgotten. */
	rate_table_settle(t, 3, &r, START + 2 * CGN_SEC, 1, 0);
	assert_true(rate_table_take(t, 300, &r, START + 2 * CGN_SEC, 4).granted);
	assert_true(rate_table_take(t, 301, &r, START + 2 * CGN_SEC, 4).granted);
	assert_int_equal(rate_table_forgotten(t), 1);
	assert_true(rate_table_take(t, 3, &r, START + 2 * CGN_SEC, 4).granted);
	rate_table_free(&t);
}

/* A refund for a key without a bucket must not cost another key its bucket. */
static void a_refund_makes_no_bucket(void **state)
{
	(void)state;
	struct rate_table *t = table_of(1);
	const struct rate r = rate_per_second(1, 4);
	for (uint64_t key = 1; key <= RATE_WAYS; key++)
		assert_true(rate_table_take(t, key, &r, START, 4).granted);
	for (uint64_t key = 50; key < 60; key++)
		rate_table_settle(t, key, &r, START, 2, 1);
	assert_int_equal(rate_table_forgotten(t), 0);
	for (uint64_t key = 1; key <= RATE_WAYS; key++) {
		assert_false(rate_table_take(t, key, &r, START, 1).granted);
		rate_table_settle(t, key, &r, START, 0, 1); /* A debt goes to the bucket that there is. */
	}
	assert_int_equal(rate_table_forgotten(t), 0);
	/* A bucket that is full at this instant holds no charge: replacing it is not counted. */
	assert_true(rate_table_take(t, 50, &r, START + 5 * CGN_SEC, 1).granted);
	assert_int_equal(rate_table_forgotten(t), 0);
	rate_table_free(&t);
}

/* ---- many threads ---- */

#define THREADS 4
#define TRIES   60000

static struct {
	struct rate_table *t;
	struct rate rate;
	_Atomic uint64_t now, granted[3];
	bool churn, settle;
} crowd;

static void *thread_hammer(void *arg)
{
	uint64_t s = (uint64_t)(uintptr_t)arg;
	for (unsigned i = 0; i < TRIES; i++) {
		uint64_t key = 1 + mix_splitmix(&s) % 3, now = atomic_fetch_add(&crowd.now, 50);
		uint64_t n = 1 + mix_splitmix(&s) % 3, back = crowd.settle ? mix_splitmix(&s) % (n + 1) : 0;
		if (rate_table_take(crowd.t, key, &crowd.rate, now, n).granted) {
			if (back > 0)
				rate_table_settle(crowd.t, key, &crowd.rate, now, n, n - back);
			atomic_fetch_add(&crowd.granted[key - 1], n - back);
		}
		/* Other buckets, full again at once, come and go in the same places. */
		if (crowd.churn)
			rate_table_settle(crowd.t, 10 + mix_splitmix(&s) % 40, &crowd.rate, 0, 0, 1);
	}
	return NULL;
}

static void threads_together(bool settle, bool churn)
{
	pthread_t id[THREADS];
	memset(&crowd, 0, sizeof crowd);
	crowd.t = table_of(churn ? 1 : 64);
	crowd.rate = rate_per_second(1000000, 1000); /* A unit a microsecond, so that time is the limit. */
	crowd.now = START;
	crowd.settle = settle;
	crowd.churn = churn;
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&id[i], NULL, thread_hammer, (void *)(i + 1)), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(id[i], NULL);
	uint64_t most = crowd.rate.burst + (crowd.now - START) / 1000;
	for (unsigned k = 0; k < 3; k++) {
		if (crowd.granted[k] > most)
			fail_msg("key %u got %llu, at most %llu", k, (unsigned long long)crowd.granted[k],
				(unsigned long long)most);
		/* Each bucket was asked for more, so nearly all of it is granted; the clock of one thread may
		 * be a little behind another's. */
		assert_true(crowd.granted[k] * 100 >= most * (settle ? 80 : 95));
	}
	rate_table_free(&crowd.t);
}

static void threads_get_what_one_would(void **state)
{
	(void)state;
	threads_together(false, false);
}

static void threads_that_settle_get_what_one_would(void **state)
{
	(void)state;
	threads_together(true, false);
}

static void buckets_that_come_and_go_take_nothing_along(void **state)
{
	(void)state;
	threads_together(false, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates_are_read_from_settings),
		cmocka_unit_test(a_burst_then_the_rate),
		cmocka_unit_test(what_is_more_than_the_bucket_is_never_granted),
		cmocka_unit_test(unused_tokens_come_back_and_more_are_owed),
		cmocka_unit_test(no_debt_lasts_longer_than_an_hour),
		cmocka_unit_test(a_clock_that_jumps_back_harms_little),
		cmocka_unit_test(any_sequence_keeps_the_rate),
		cmocka_unit_test(settling_is_as_if_it_had_been_known),
		cmocka_unit_test(buckets_of_two_keys_are_two),
		cmocka_unit_test(a_large_table_forgets_no_bucket),
		cmocka_unit_test(full_buckets_are_forgotten_first),
		cmocka_unit_test(a_refund_makes_no_bucket),
		cmocka_unit_test(threads_get_what_one_would),
		cmocka_unit_test(threads_that_settle_get_what_one_would),
		cmocka_unit_test(buckets_that_come_and_go_take_nothing_along),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
