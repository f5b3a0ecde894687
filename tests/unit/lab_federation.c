/* SPDX-License-Identifier: Apache-2.0 */
/* Several clusters lose no request, whatever the ways between them do; equal inputs give equal results; and messages take
 * the time of their way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/replay/wan.h"

#define TURNS 8

static const struct route_rules rules = {.weights = {0.55, 0.25, 0.10, 0.10},
	.tiers = {{1, 0.8F, 0.5F, 0.3F}},
	.max_inflight = 256,
	.policy = ROUTE_WEIGHTED,
	.session_bound = 1.25};
static const uint64_t ways[] = {40, 80, 150};

static struct replay_cfg replay_of(void)
{
	struct replay_cfg c = replay_defaults;
	c.rules = &rules;
	c.nodes = 1;
	c.blocks = 600;
	return c;
}

static struct federation_cfg clusters_of(const struct replay_cfg *replay)
{
	return (struct federation_cfg){.replay = replay,
		.clusters = 3,
		.forwards = true,
		.way_ms = ways,
		.n_ways = 3,
		.interval = 2 * CGN_SEC,
		.rules = {.margin = 20 * CGN_MSEC, .rework = 1, .affinity = 2},
		.max_hops = 1,
		.max_concurrent = 64,
		.expected_ttft = CGN_SEC,
		.first_byte_timeout = 10 * CGN_SEC};
}

/* Sessions of TURNS prompts that grow; session |i| sends its turn |k| at (i + k * n / 4) * gap. */
static struct trace sessions_make(size_t n, cgn_nsec gap)
{
	struct trace t = {.block_tokens = 512};
	for (size_t at = 0; at < n + TURNS * n / 4; at++)
		for (size_t k = 0; k < TURNS; k++) {
			const size_t i = at - k * n / 4;
			uint64_t ids[2 * TURNS + 3] = {0};
			if (at < k * n / 4 || i >= n)
				continue;
			for (size_t b = 1; b < 2 * k + 4; b++)
				ids[b] = 1 + i * 100 + b;
			const struct trace_request q = {.at = at * gap,
				.session = i + 1,
				.input = (uint32_t)(2 * k + 4) * 512,
				.output = 60};
			assert_true(cgn_ok(trace_add(&t, &q, ids, 2 * k + 4)));
		}
	return t;
}

static struct federation_result run_clusters(const struct federation_trace *t,
	const struct federation_cfg *cfg)
{
	struct federation_result r;
	struct cgn_err err = {0};
	if (!cgn_ok(federation_run(t, cfg, &r, &err)))
		fail_msg("%s", err.msg);
	return r;
}

static void split_trace(const struct trace *t, uint32_t clusters, double swing, struct federation_trace *out)
{
	assert_true(cgn_ok(federation_split(t, clusters, swing, out, NULL)));
}

/* A request is answered once, whatever happens; hits and first tokens count once. */
static void nothing_is_lost(void **state)
{
	(void)state;
	static const struct federation_cut cuts[] = {{0, 1, 8 * CGN_SEC, 12 * CGN_SEC},
		{1, 2, 10 * CGN_SEC, 11 * CGN_SEC}};
	struct trace t = sessions_make(120, 60 * CGN_MSEC);
	struct federation_trace cut;
	struct replay_cfg replay = replay_of();
	split_trace(&t, 3, 0.8, &cut);
	for (unsigned mode = 0; mode < 16; mode++) {
		struct federation_cfg cfg = clusters_of(&replay);
		cfg.cuts = cuts;
		cfg.n_cuts = mode & 1 ? 2 : 0;
		cfg.loss = mode & 2 ? 0.05 : 0;
		cfg.max_hops = mode & 4 ? 3 : 1;
		cfg.interval = mode & 8 ? 0 : cfg.interval;
		cfg.resumes = true;
		struct federation_result r = run_clusters(&cut, &cfg);
		assert_int_equal(r.requests, t.n);
		assert_int_equal(r.done, t.n);
		assert_int_equal(r.broken + r.refused, 0);
		assert_int_equal(samples_count(&r.ttft), t.n);
		assert_int_equal(r.prompt_blocks, t.n_ids);
		assert_true(r.cached_blocks < r.prompt_blocks);
		assert_true(r.left > 0);
		assert_true(cfg.interval > 0 ? r.summaries > 0 && r.left_by[PEER_BID_SUMMARY] > 0
					     : r.summaries == 0 && r.left_by[PEER_BID_MEASURED] == r.left);
		for (size_t i = 0; i < cfg.n_cuts; i++)
			assert_true(r.cuts[i].left_for_ns < CGN_SEC);
		federation_result_fini(&r);
	}
	federation_trace_fini(&cut);
	trace_fini(&t);
}

/* Without a way to continue answers, a cut breaks those that were streaming over it, and only those. */
static void cuts_break_what_streams(void **state)
{
	(void)state;
	static const struct federation_cut cuts[] = {{0, 1, 4 * CGN_SEC, 60 * CGN_SEC},
		{0, 2, 4 * CGN_SEC, 60 * CGN_SEC}, {1, 2, 4 * CGN_SEC, 60 * CGN_SEC}};
	struct trace t = sessions_make(120, 30 * CGN_MSEC);
	struct federation_trace cut;
	struct replay_cfg replay = replay_of();
	struct federation_cfg cfg = clusters_of(&replay);
	split_trace(&t, 3, 0.8, &cut);
	cfg.cuts = cuts;
	cfg.n_cuts = 3;
	struct federation_result broken = run_clusters(&cut, &cfg);
	cfg.resumes = true;
	struct federation_result resumed = run_clusters(&cut, &cfg);
	assert_true(broken.broken > 0);
	assert_int_equal(broken.done + broken.broken, t.n);
	assert_int_equal(resumed.resumed, broken.broken);
	assert_int_equal(resumed.done, t.n);
	assert_true(resumed.lost >= 6);
	federation_result_fini(&broken);
	federation_result_fini(&resumed);
	federation_trace_fini(&cut);
	trace_fini(&t);
}

static void equal_inputs_give_equal_results(void **state)
{
	(void)state;
	struct trace t = sessions_make(90, 60 * CGN_MSEC);
	struct federation_trace cut;
	struct replay_cfg replay = replay_of();
	struct federation_cfg cfg = clusters_of(&replay);
	split_trace(&t, 3, 0.8, &cut);
	cfg.loss = 0.03;
	struct federation_result a = run_clusters(&cut, &cfg), b = run_clusters(&cut, &cfg);
	assert_int_equal(a.ttft.ns.n, b.ttft.ns.n);
	assert_memory_equal(a.ttft.ns.p, b.ttft.ns.p, a.ttft.ns.n);
	assert_int_equal(a.summary_bytes, b.summary_bytes);
	replay.seed = 2; /* Other packets are lost. */
	struct federation_result c = run_clusters(&cut, &cfg);
	assert_int_equal(c.done, t.n);
	assert_int_not_equal(memcmp(a.ttft.ns.p, c.ttft.ns.p, a.ttft.ns.n), 0);
	federation_result_fini(&a);
	federation_result_fini(&b);
	federation_result_fini(&c);
	federation_trace_fini(&cut);
	trace_fini(&t);
}

/* Sessions stay in their region; the days keep their requests and their order. */
static void regions_keep_sessions(void **state)
{
	(void)state;
	struct trace t = sessions_make(200, 20 * CGN_MSEC);
	struct federation_trace flat, day;
	uint8_t of[201];
	size_t n[4] = {0};
	split_trace(&t, 4, 0, &flat);
	split_trace(&t, 4, 0.9, &day);
	memset(of, 0xff, sizeof of);
	for (size_t i = 0; i < t.n; i++) {
		const struct trace_request *q = &flat.all.requests[i], *d = &day.all.requests[i];
		assert_memory_equal(q, &t.requests[i], sizeof *q);
		assert_true(flat.region[i] < 4);
		assert_true(of[q->session] == 0xff || of[q->session] == flat.region[i]);
		of[q->session] = flat.region[i];
		n[flat.region[i]]++;
		assert_true(i == 0 || d->at >= day.all.requests[i - 1].at);
		assert_true(d->at <= t.requests[t.n - 1].at + 1);
	}
	for (size_t i = 0; i < t.n; i++)
		assert_int_equal(of[day.all.requests[i].session], day.region[i]);
	for (size_t i = 0; i < 4; i++)
		assert_in_range(n[i], t.n / 8, t.n / 2);
	federation_trace_fini(&flat);
	federation_trace_fini(&day);
	trace_fini(&t);
}

static void messages_take_their_way(void **state)
{
	(void)state;
	static const struct federation_cut cuts[] = {{0, 2, CGN_SEC, 3 * CGN_SEC}};
	const struct replay_cfg replay = replay_of();
	struct federation_cfg cfg = clusters_of(&replay);
	struct wan w = {&cfg, 1};
	assert_true(
		wan_round_trip(&cfg, 0, 1) == 40 * CGN_MSEC && wan_round_trip(&cfg, 2, 1) == 150 * CGN_MSEC);
	assert_true(wan_arrival(&w, 1, 0, 100000, CGN_SEC) == CGN_SEC + 20 * CGN_MSEC);
	cfg.cuts = cuts;
	cfg.n_cuts = 1;
	assert_true(wan_arrival(&w, 0, 1, 100, CGN_SEC) == CGN_SEC + 20 * CGN_MSEC);
	cgn_nsec at = wan_arrival(&w, 0, 2, 100, 2 * CGN_SEC); /* Again after 280 and 560 ms and 1.12 s. */
	assert_true(at == 2 * CGN_SEC + (280 + 560 + 1120 + 40) * CGN_MSEC);
	cfg.n_cuts = 0;
	cfg.loss = 0.25;
	unsigned late = 0;
	for (unsigned i = 0; i < 1000; i++)
		late += wan_arrival(&w, 0, 1, 100, 0) > 20 * CGN_MSEC;
	assert_in_range(late, 200, 300);
}

static void bad_bounds_are_refused(void **state)
{
	(void)state;
	struct trace t = sessions_make(4, CGN_SEC);
	struct federation_trace cut;
	struct replay_cfg replay = replay_of();
	struct federation_cfg good = clusters_of(&replay), bad;
	struct federation_result r;
	struct cgn_err err = {0};
	split_trace(&t, 3, 0, &cut);
	bad = good;
	bad.clusters = FEDERATION_CLUSTERS + 1;
	assert_int_equal(federation_run(&cut, &bad, &r, &err).code, CGN_INVALID);
	bad = good;
	bad.loss = 0.5;
	assert_int_equal(federation_run(&cut, &bad, &r, &err).code, CGN_INVALID);
	bad = good;
	bad.cuts = &(struct federation_cut){0, 3, 0, 1};
	bad.n_cuts = 1;
	assert_int_equal(federation_run(&cut, &bad, &r, &err).code, CGN_INVALID);
	replay.blocks = 0;
	assert_int_equal(federation_run(&cut, &good, &r, &err).code, CGN_INVALID);
	federation_trace_fini(&cut);
	trace_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_lost),
		cmocka_unit_test(cuts_break_what_streams),
		cmocka_unit_test(equal_inputs_give_equal_results),
		cmocka_unit_test(regions_keep_sessions),
		cmocka_unit_test(messages_take_their_way),
		cmocka_unit_test(bad_bounds_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
