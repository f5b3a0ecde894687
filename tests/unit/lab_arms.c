/* SPDX-License-Identifier: Apache-2.0 */
/* A policy that some sessions follow is found better or worse than the one that the others follow as replays of the whole
 * traffic with each of them say, in virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/replay/replay.h"
#include "lab/workload/workload.h"

#define RUNS 20

static const struct route_rules rules_base = {.weights = {0.55, 0.25, 0.10, 0.10},
	.tiers = {{1, 0.8F, 0.5F, 0.3F}},
	.max_inflight = 256,
	.session_bound = 1.25};

static struct trace make_chats(uint64_t seed)
{
	const struct workload_cfg cfg = {.kind = WORKLOAD_CHAT, .seed = seed, .requests = 2000, .rate = 12};
	struct trace t = {0};
	assert_true(cgn_ok(workload_make(&cfg, &t, NULL)));
	return t;
}

static struct replay_result play_chats(const struct trace *t, enum route_policy live,
	enum route_policy shadow, double share)
{
	struct route_rules rules = rules_base;
	struct replay_cfg cfg = replay_defaults;
	struct replay_result r;
	rules.policy = live;
	cfg.rules = &rules;
	cfg.blocks = 2000;
	cfg.arms = (struct arms_rules){.shadows = {shadow}, .n = 1, .share = share};
	assert_true(cgn_ok(replay_run(t, &cfg, &r, NULL)));
	assert_int_equal(r.done, t->n);
	return r;
}

/* Count the runs by verdict of TTFT. */
static void verdicts_count(enum route_policy live, enum route_policy shadow, unsigned n[4])
{
	memset(n, 0, 4 * sizeof *n);
	for (uint64_t seed = 1; seed <= RUNS; seed++) {
		struct trace t = make_chats(seed);
		struct replay_result r = play_chats(&t, live, shadow, 0.25);
		const struct arms_estimate *e = r.arms[0];
		n[e[ARMS_TTFT].verdict]++;
		assert_int_equal(e[ARMS_FINISH].n_live + e[ARMS_FINISH].n_shadow, r.done);
		replay_result_fini(&r);
		trace_fini(&t);
	}
}

static void a_worse_policy_is_found_worse(void **state)
{
	(void)state;
	unsigned n[4];
	verdicts_count(ROUTE_KV, ROUTE_ROUND_ROBIN, n);
	assert_int_equal(n[ARMS_WORSE], RUNS);
}

static void equal_policies_are_not_told_different(void **state)
{
	(void)state;
	unsigned n[4];
	verdicts_count(ROUTE_ROUND_ROBIN, ROUTE_ROUND_ROBIN, n);
	assert_in_range(n[ARMS_UNCLEAR], RUNS - 1, RUNS);
}

/* The mean of TTFT changes between replays of all traffic by as much as the interval says. */
static void a_better_policy_is_found_better(void **state)
{
	(void)state;
	unsigned inside = 0;
	for (uint64_t seed = 1; seed <= RUNS; seed++) {
		struct trace t = make_chats(seed);
		struct replay_result turn = play_chats(&t, ROUTE_ROUND_ROBIN, ROUTE_KV, 0),
				     kv = play_chats(&t, ROUTE_KV, ROUTE_KV, 0),
				     both = play_chats(&t, ROUTE_ROUND_ROBIN, ROUTE_KV, 0.25);
		double whole = samples_mean_ms(&kv.ttft) - samples_mean_ms(&turn.ttft);
		const struct arms_estimate *e = &both.arms[0][ARMS_TTFT];
		assert_int_equal(e->verdict, ARMS_BETTER);
		inside += whole >= e->low && whole <= e->high;
		replay_result_fini(&turn);
		replay_result_fini(&kv);
		replay_result_fini(&both);
		trace_fini(&t);
	}
	assert_in_range(inside, RUNS - 1, RUNS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_better_policy_is_found_better),
		cmocka_unit_test(a_worse_policy_is_found_worse),
		cmocka_unit_test(equal_policies_are_not_told_different),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
