/* SPDX-License-Identifier: Apache-2.0 */
/* Simulate a fleet with heavy-tailed lengths, queues and noise, and count the ejected nodes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/node/breaker/outlier.h"

#define NODES 8

static uint64_t dice = MIX_GOLDEN;

static double random_uniform(void)
{
	dice ^= dice << 13;
	dice ^= dice >> 7;
	dice ^= dice << 17;
	return (double)(dice >> 11) * 0x1p-53;
}

static double random_normal(void)
{
	return sqrt(-2 * log(1 - random_uniform())) * cos(6.283185307179586 * random_uniform());
}

struct fleet {
	struct outlier_tally tally[NODES];
	struct outlier_window window[NODES];
	struct outlier_peer peers[NODES];
	double slow[NODES], stutter[NODES], fails[NODES], longer[NODES], crowd[NODES];
	size_t n;
	bool out[NODES];
	unsigned ejected[NODES];
	enum breaker_reason why[NODES];
};

static void holders_init(struct fleet *f, size_t n)
{
	*f = (struct fleet){.n = n};
	for (size_t i = 0; i < n; i++)
		f->slow[i] = f->stutter[i] = f->longer[i] = f->crowd[i] = 1;
}

/* Serve one request: 30 ms and 0.1 ms a token until its first byte, then 20 ms a token and 0.3 ms for each
 * concurrent answer. */
static void fleet_request(struct fleet *f, size_t i)
{
	/* Pareto: some are a thousand times the least. */
	double tokens = 200 * f->longer[i] * pow(1 - random_uniform(), -1 / 1.3);
	double beside = f->crowd[i] * (1 + floor(20 * random_uniform()));
	double first = (30 + 0.1 * tokens) * exp(0.6 * random_normal()) * f->slow[i];
	double token = (20 + 0.3 * beside) * exp(0.3 * random_normal()) * f->stutter[i];
	if (tokens > 1e6)
		tokens = 1e6;
	bool failed = random_uniform() < f->fails[i];
	outlier_add_end(&f->tally[i], failed);
	if (failed)
		return;
	outlier_add_first(&f->tally[i], (cgn_nsec)(first * 1e6), (uint64_t)tokens);
	outlier_add_token(&f->tally[i], (cgn_nsec)(token * 1e6), (uint32_t)beside);
}

static void fleet_look(struct fleet *f, double share, bool turn)
{
	double scratch[NODES];
	for (size_t i = 0; i < f->n; i++) {
		struct outlier_totals now;
		outlier_read(&f->tally[i], &now);
		if (f->out[i])
			outlier_window_reset(&f->window[i], &now);
		else if (turn)
			outlier_window_turn(&f->window[i], &now);
		outlier_window_get(&f->window[i], &now, &f->peers[i].recent);
		f->peers[i].out = f->out[i];
	}
	outlier_judge(f->peers, f->n, share, scratch);
	for (size_t i = 0; i < f->n; i++) {
		if (f->peers[i].verdict == BREAKER_FOR_NOTHING)
			continue;
		f->ejected[i]++;
		f->why[i] = f->peers[i].verdict;
	}
}

/* Run |seconds| seconds with |rate| requests a second and node. */
static void fleet_run(struct fleet *f, unsigned seconds, unsigned rate, bool eject)
{
	for (unsigned s = 0; s < seconds; s++) {
		for (size_t i = 0; i < f->n; i++)
			for (unsigned k = 0; k < rate && !f->out[i]; k++)
				fleet_request(f, i);
		fleet_look(f, 0.3, s % 10 == 9);
		for (size_t i = 0; i < f->n && eject; i++)
			f->out[i] = f->out[i] || f->peers[i].verdict != BREAKER_FOR_NOTHING;
	}
}

static unsigned all_ejected(const struct fleet *f)
{
	unsigned n = 0;
	for (size_t i = 0; i < f->n; i++)
		n += f->ejected[i];
	return n;
}

static void equal_nodes_are_never_ejected(void **state)
{
	(void)state;
	struct fleet f;
	holders_init(&f, NODES);
	fleet_run(&f, 12500, 1, false); /* 10^5 requests; the windows hold little more than the minimum. */
	assert_int_equal(all_ejected(&f), 0);
	fleet_run(&f, 1500, 10, false);
	assert_int_equal(all_ejected(&f), 0);
	holders_init(&f, 3);
	fleet_run(&f, 15000, 2, false);
	assert_int_equal(all_ejected(&f), 0);
}

static void long_prompts_and_many_answers_are_no_fault(void **state)
{
	(void)state;
	struct fleet f;
	holders_init(&f, NODES);
	f.longer[2] = 20;
	f.crowd[5] = 8;
	fleet_run(&f, 3000, 4, false);
	assert_int_equal(all_ejected(&f), 0);
}

static void a_slow_node_is_ejected_and_the_others_stay(void **state)
{
	(void)state;
	struct fleet f;
	for (size_t n = 3; n <= NODES; n += 5) {
		holders_init(&f, n);
		fleet_run(&f, 60, 4, true);
		f.slow[1] = 5;
		fleet_run(&f, 60, 4, true);
		assert_int_equal(all_ejected(&f), 1);
		assert_int_equal(f.ejected[1], 1);
		assert_int_equal(f.why[1], BREAKER_FOR_FIRST);
	}
	holders_init(&f, NODES);
	f.stutter[4] = 5;
	fleet_run(&f, 60, 4, true);
	assert_int_equal(all_ejected(&f), 1);
	assert_int_equal(f.why[4], BREAKER_FOR_TOKENS);
	holders_init(&f, NODES);
	f.fails[7] = 0.5;
	for (size_t i = 0; i < 7; i++)
		f.fails[i] = 0.02;
	fleet_run(&f, 60, 4, true);
	assert_int_equal(all_ejected(&f), 1);
	assert_int_equal(f.why[7], BREAKER_FOR_ERRORS);
}

static void one_that_recovers_returns_and_stays(void **state)
{
	(void)state;
	struct fleet f;
	holders_init(&f, NODES);
	f.slow[1] = 5;
	fleet_run(&f, 60, 4, true);
	assert_true(f.out[1]);
	f.out[1] = false; /* The probe succeeded, and the node is as slow as before. */
	fleet_run(&f, 60, 4, true);
	assert_int_equal(f.ejected[1], 2);
	f.slow[1] = 1;
	f.out[1] = false;
	fleet_run(&f, 300, 4, true);
	assert_int_equal(f.ejected[1], 2);
	assert_int_equal(all_ejected(&f), 2);
}

static void no_more_than_a_share_is_ejected_and_the_worst_first(void **state)
{
	(void)state;
	struct fleet f;
	holders_init(&f, NODES);
	f.slow[0] = 6;
	f.slow[3] = 40;
	f.slow[6] = 15;
	fleet_run(&f, 40, 4, true);
	assert_int_equal(all_ejected(&f), 2); /* 0.3 of 8. */
	assert_true(f.out[3] && f.out[6]);
	holders_init(&f, 3);
	f.slow[0] = 10;
	fleet_run(&f, 40, 4, true);
	assert_true(f.out[0]); /* 0.3 of 3 is none, but one ejection is always allowed. */
	f.slow[1] = 10;
	fleet_run(&f, 40, 4, true);
	assert_false(f.out[1]);
	holders_init(&f, 2);
	f.slow[0] = 50;
	f.fails[0] = 0.9;
	fleet_run(&f, 40, 4, true);
	assert_int_equal(all_ejected(&f), 0); /* Neither of two nodes is the outlier. */
}

static void too_few_requests_say_nothing(void **state)
{
	(void)state;
	struct fleet f;
	holders_init(&f, NODES);
	for (size_t i = 0; i < NODES; i++)
		for (unsigned k = 0; k < (i == 1 ? OUTLIER_REQUESTS - 1 : 200); k++) {
			f.slow[i] = i == 1 ? 30 : 1;
			fleet_request(&f, i);
		}
	fleet_look(&f, 0.3, false);
	assert_int_equal(all_ejected(&f), 0);
	for (int k = 0; k < 5; k++)
		fleet_request(&f, 1);
	fleet_look(&f, 0.3, false);
	assert_int_equal(f.ejected[1], 1);
}

/* Two nodes have the long prompts, two others the short ones: no class has enough nodes to compare. */
static void work_that_two_nodes_have_is_not_compared(void **state)
{
	(void)state;
	struct outlier_tally tally[4] = {0};
	struct outlier_peer peers[4] = {0};
	double scratch[4] = {0};
	for (size_t i = 0; i < 4; i++) {
		for (int k = 0; k < 2 * OUTLIER_REQUESTS; k++) {
			outlier_add_end(&tally[i], false);
			outlier_add_first(&tally[i], (i == 1 ? 2000 : 100) * CGN_MSEC, i < 2 ? 50000 : 500);
		}
		outlier_read(&tally[i], &peers[i].recent);
	}
	outlier_judge(peers, 4, 0.3, scratch);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(peers[i].verdict, BREAKER_FOR_NOTHING);
}

/* All nodes fail often, one more often; another one answers 32 times as slowly. How far a node is beyond the
 * bound of its measure counts, not how large the measure is. */
static void the_worst_of_two_measures_is_ejected(void **state)
{
	(void)state;
	struct outlier_tally tally[4] = {0};
	struct outlier_peer peers[4] = {0};
	double scratch[4] = {0};
	for (size_t i = 0; i < 4; i++) {
		for (unsigned k = 0; k < 100; k++) {
			outlier_add_end(&tally[i], k < (i == 3 ? 95 : 40));
			outlier_add_first(&tally[i], (i == 2 ? 3200 : 100) * CGN_MSEC, 500);
		}
		outlier_read(&tally[i], &peers[i].recent);
	}
	outlier_judge(peers, 4, 0.3, scratch);
	assert_int_equal(peers[2].verdict, BREAKER_FOR_FIRST);
	assert_int_equal(peers[3].verdict, BREAKER_FOR_NOTHING);
	outlier_judge(peers, 4, 0.5, scratch);
	assert_int_equal(peers[3].verdict, BREAKER_FOR_ERRORS);
}

/* Three nodes that fail alike are not outliers, and neither is one with few requests. */
static void alike_is_no_outlier(void **state)
{
	(void)state;
	struct outlier_peer peers[5] = {0};
	double scratch[5] = {0};
	for (size_t i = 0; i < 3; i++)
		peers[i].recent = (struct outlier_totals){.ended = 100, .failed = 60};
	outlier_judge(peers, 3, 1, scratch);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(peers[i].verdict, BREAKER_FOR_NOTHING);
	for (size_t i = 0; i < 3; i++)
		peers[i].recent.failed = 0;
	peers[3].recent =
		(struct outlier_totals){.ended = OUTLIER_REQUESTS - 1, .failed = OUTLIER_REQUESTS - 1};
	outlier_judge(peers, 4, 1, scratch);
	assert_int_equal(peers[3].verdict, BREAKER_FOR_NOTHING);
	peers[3].recent.ended = peers[3].recent.failed = OUTLIER_REQUESTS;
	peers[4].recent.ended = OUTLIER_REQUESTS - 1; /* Stands behind a bad one. */
	outlier_judge(peers, 5, 1, scratch);
	assert_int_equal(peers[3].verdict, BREAKER_FOR_ERRORS);
	assert_int_equal(peers[4].verdict, BREAKER_FOR_NOTHING);
}

static void windows_forget_and_totals_may_wrap(void **state)
{
	(void)state;
	struct outlier_window w = {0};
	struct outlier_totals now = {0}, got;
	now.ended = UINT32_MAX - 5;
	now.first[2] = (struct outlier_class){UINT32_MAX, UINT32_MAX - 10};
	outlier_window_reset(&w, &now);
	now.ended += 20;
	now.first[2].n += 3;
	now.first[2].sum += 100;
	outlier_window_get(&w, &now, &got);
	assert_int_equal(got.ended, 20);
	assert_int_equal(got.first[2].n, 3);
	assert_int_equal(got.first[2].sum, 100);
	for (int i = 0; i < 2; i++) {
		outlier_window_turn(&w, &now);
		outlier_window_get(&w, &now, &got);
		assert_int_equal(got.ended, 20); /* At least two turns are counted. */
	}
	outlier_window_turn(&w, &now);
	outlier_window_get(&w, &now, &got);
	assert_int_equal(got.ended, 0);
}

static void a_share_of_failures_needs_no_peers(void **state)
{
	(void)state;
	struct outlier_totals t = {.ended = OUTLIER_REQUESTS, .failed = OUTLIER_REQUESTS / 2};
	assert_true(outlier_fails(&t, 0.5));
	assert_false(outlier_fails(&t, 0.6));
	assert_false(outlier_fails(&t, 0));
	t.ended--;
	assert_false(outlier_fails(&t, 0.5));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_nodes_are_never_ejected),
		cmocka_unit_test(long_prompts_and_many_answers_are_no_fault),
		cmocka_unit_test(a_slow_node_is_ejected_and_the_others_stay),
		cmocka_unit_test(one_that_recovers_returns_and_stays),
		cmocka_unit_test(no_more_than_a_share_is_ejected_and_the_worst_first),
		cmocka_unit_test(too_few_requests_say_nothing),
		cmocka_unit_test(work_that_two_nodes_have_is_not_compared),
		cmocka_unit_test(the_worst_of_two_measures_is_ejected),
		cmocka_unit_test(alike_is_no_outlier),
		cmocka_unit_test(windows_forget_and_totals_may_wrap),
		cmocka_unit_test(a_share_of_failures_needs_no_peers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
