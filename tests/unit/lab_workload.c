/* SPDX-License-Identifier: Apache-2.0 */
/* Generated traces: equal for equal seeds, at the requested rate, and shaped as their kind says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/workload/workload.h"

#define N 4000

static struct trace make_workload(enum workload_kind kind, uint64_t seed, size_t requests, double rate)
{
	struct trace t;
	struct cgn_err err = {0};
	const struct workload_cfg cfg = {.kind = kind, .seed = seed, .requests = requests, .rate = rate};
	if (!cgn_ok(workload_make(&cfg, &t, &err)))
		fail_msg("%s: %s", workload_text(kind), err.msg);
	return t;
}

static bool assert_same(const struct trace *a, const struct trace *b)
{
	return a->n == b->n && a->n_ids == b->n_ids && a->block_tokens == b->block_tokens &&
		memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids) == 0 &&
		memcmp(a->requests, b->requests, a->n * sizeof *a->requests) == 0;
}

static void equal_seeds_give_equal_traces(void **state)
{
	(void)state;
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++) {
		struct trace a = make_workload(k, 7, 500, 5), b = make_workload(k, 7, 500, 5),
			     c = make_workload(k, 8, 500, 5);
		assert_int_equal(a.n, 500);
		assert_true(assert_same(&a, &b));
		assert_false(assert_same(&a, &c));
		trace_fini(&a);
		trace_fini(&b);
		trace_fini(&c);
	}
}

/* A trace of a single kind, to the bit: every machine must generate the same. */
static void a_known_seed_gives_what_it_always_gave(void **state)
{
	(void)state;
	static const uint64_t want[WORKLOAD_KINDS] = {0x255d16d9f43a946f, 0x2d3575ebc9710d68,
		0x15cffd1254781b0, 0x694264737c656e59, 0xd643249cd13bbaa9, 0x506065c33f6a2818};
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++) {
		struct trace t = make_workload(k, 1, 1000, 8);
		uint64_t h = 0;
		for (size_t i = 0; i < t.n; i++)
			h = trace_digest(h ^ t.requests[i].at ^ (uint64_t)t.requests[i].input << 40 ^
				(uint64_t)t.requests[i].output << 20 ^ t.requests[i].n);
		for (size_t i = 0; i < t.n_ids; i++)
			h = trace_digest(h ^ t.ids[i]);
		if (h != want[k])
			fail_msg("%s: 0x%llx", workload_text(k), (unsigned long long)h);
		trace_fini(&t);
	}
}

static void workloads_are_valid_traces(void **state)
{
	(void)state;
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++) {
		struct trace t = make_workload(k, 3, N, 10), again;
		struct cgn_buf text = {0};
		struct cgn_err err = {0};
		trace_write(&t, &text);
		if (!cgn_ok(trace_parse(cgn_buf_view(&text), workload_text(k), 0, 0, &again, &err)))
			fail_msg("%s", err.msg);
		assert_true(assert_same(&t, &again));
		cgn_buf_fini(&text);
		trace_fini(&t);
		trace_fini(&again);
	}
}

/* In the second half, once sessions of all ages are under way. */
static void requests_come_at_their_rate(void **state)
{
	(void)state;
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++) {
		struct trace t = make_workload(k, 5, 2 * N, 20);
		double seconds = (double)(t.requests[t.n - 1].at - t.requests[t.n / 2].at) / 1e9,
		       rate = N / seconds;
		if (rate < 15 || rate > 25)
			fail_msg("%s: %.1f a second, 20 were asked for", workload_text(k), rate);
		trace_fini(&t);
	}
}

static double mean_input(const struct trace *t)
{
	double sum = 0;
	for (size_t i = 0; i < t->n; i++)
		sum += t->requests[i].input;
	return sum / (double)t->n;
}

static double found_share(const struct trace *t)
{
	struct trace_found f;
	assert_true(cgn_ok(trace_one_cache(t, 0, &f, NULL)));
	return trace_found_ratio(f);
}

static void each_kind_shares_as_it_says(void **state)
{
	(void)state;
	static const struct {
		double least, most;       /* Share of blocks that came before. */
		double shortest, longest; /* Mean length of prompts. */
	} want[WORKLOAD_KINDS] = {
		[WORKLOAD_CHAT] = {0.75, 0.95, 1500, 4500},
		[WORKLOAD_AGENTS] = {0.88, 0.98, 6000, 16000},
		[WORKLOAD_RAG] = {0.35, 0.70, 2000, 4000},
		[WORKLOAD_SHARED_PROMPTS] = {0.75, 0.95, 1500, 3500},
		[WORKLOAD_SERVICE] = {0.35, 0.50, 9000, 15000},
		[WORKLOAD_DOCUMENTS] = {0, 0, 9000, 11000},
	};
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++) {
		struct trace t = make_workload(k, 11, N, 8);
		double share = found_share(&t), input = mean_input(&t);
		if (share < want[k].least || share > want[k].most || input < want[k].shortest ||
			input > want[k].longest)
			fail_msg("%s: %.3f found before, %.0f tokens", workload_text(k), share, input);
		trace_fini(&t);
	}
}

/* The next turn begins with all full blocks of the turn before. */
static void talks_grow(void **state)
{
	(void)state;
	for (enum workload_kind k = WORKLOAD_CHAT; k <= WORKLOAD_AGENTS; k++) {
		struct trace t = make_workload(k, 2, 2000, 5);
		size_t followed = 0;
		for (size_t i = 0; i < t.n; i++) {
			const struct trace_request *a = &t.requests[i];
			size_t j = i + 1;
			while (j < t.n && t.requests[j].session != a->session)
				j++;
			if (j == t.n)
				continue;
			const struct trace_request *b = &t.requests[j];
			followed++;
			assert_true(b->input > a->input + a->output && b->at > a->at);
			assert_memory_equal(trace_ids(&t, a), trace_ids(&t, b),
				a->input / t.block_tokens * sizeof *t.ids);
		}
		assert_true(followed > t.n / 2);
		trace_fini(&t);
	}
}

static void kinds_have_names_and_bounds_hold(void **state)
{
	(void)state;
	enum workload_kind k = WORKLOAD_KINDS;
	struct trace t;
	struct cgn_err err = {0};
	assert_true(workload_find(CGN_STR("rag"), &k));
	assert_int_equal(k, WORKLOAD_RAG);
	assert_false(workload_find(CGN_STR("rags"), &k));
	assert_true(strlen(workload_help(k)) > 10);
	const struct workload_cfg bad[] = {{.requests = 0, .rate = 1}, {.requests = 1, .rate = 0},
		{.requests = TRACE_MAX_REQUESTS + 1, .rate = 1},
		{.kind = WORKLOAD_KINDS, .requests = 1, .rate = 1},
		{.kind = WORKLOAD_SERVICE, .requests = 100000, .rate = 1e-6},
		{.requests = 100000, .rate = 1e-300}};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_int_equal(workload_make(&bad[i], &t, &err).code, CGN_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_seeds_give_equal_traces),
		cmocka_unit_test(a_known_seed_gives_what_it_always_gave),
		cmocka_unit_test(workloads_are_valid_traces),
		cmocka_unit_test(requests_come_at_their_rate),
		cmocka_unit_test(each_kind_shares_as_it_says),
		cmocka_unit_test(talks_grow),
		cmocka_unit_test(kinds_have_names_and_bounds_hold),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
