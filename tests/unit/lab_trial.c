/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of eviction policies: hits in traces small enough to check by hand, and the optimality of
 * OFFLINE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "lab/trial/trial.h"
#include "lab/workload/workload.h"

/* Make a trace of prompts: "abc ab" requests a, b, c, then a, b. */
static struct trace make_prompts(const char *text)
{
	struct trace t = {.block_tokens = 16};
	struct cgn_str rest = cgn_str_of(text);
	while (rest.p != NULL) {
		struct cgn_str word = cgn_str_split(&rest, ' ');
		uint64_t ids[16];
		for (size_t i = 0; i < word.n; i++)
			ids[i] = (uint64_t)word.p[i];
		struct trace_request r = {.input = 16 * (uint32_t)word.n, .output = 1};
		assert_true(cgn_ok(trace_add(&t, &r, ids, word.n)));
	}
	return t;
}

static struct trial_result run_trial(const struct trace *t, enum trial_policy p, uint32_t blocks,
	bool begin_first)
{
	struct trial_result r;
	struct cgn_err err = {0};
	struct trial_cfg cfg = {.policy = p, .blocks = blocks, .shards = 1, .begin_first = begin_first};
	if (!cgn_ok(trial_run(t, &cfg, &r, &err)))
		fail_msg("%s", err.msg);
	return r;
}

static uint64_t found_by(const char *text, enum trial_policy p, uint32_t blocks)
{
	struct trace t = make_prompts(text);
	struct trial_result r = run_trial(&t, p, blocks, true);
	assert_int_equal(r.blocks, t.n_ids);
	trace_fini(&t);
	return r.found;
}

static void each_lets_go_of_another(void **state)
{
	(void)state;
	assert_int_equal(found_by("a b a c a", TRIAL_LRU, 2), 2);
	assert_int_equal(found_by("a b a c a", TRIAL_FIFO, 2), 1);
	assert_int_equal(found_by("a b a c a", TRIAL_OFFLINE, 2), 2);
	assert_int_equal(found_by("a b c a b c", TRIAL_LRU, 2), 0);
	assert_int_equal(found_by("a b c a b c", TRIAL_OFFLINE, 2), 2);
	for (enum trial_policy p = 0; p < TRIAL_POLICIES; p++)
		assert_int_equal(found_by("abc abd abc abd", p, 100), 2 + 3 + 3); /* Room for all. */
}

static void a_hole_ends_what_is_found(void **state)
{
	(void)state;
	struct trace t = make_prompts("abc d abc");
	struct trial_result r = run_trial(&t, TRIAL_LRU, 3, true); /* Block a is the oldest. */
	assert_int_equal(r.found, 0);
	assert_int_equal(r.behind_gap, 2);
	assert_int_equal(r.evicted, 1 + 3);     /* Block a evicts b, b evicts c, c evicts d. */
	r = run_trial(&t, TRIAL_LRU, 3, false); /* Block c is the oldest. */
	assert_int_equal(r.found, 2);
	assert_int_equal(r.behind_gap, 0);
	trace_fini(&t);
}

static void a_scan_does_not_disturb_what_is_used(void **state)
{
	(void)state;
	char text[4096] = "", *at = text;
	for (int i = 0; i < 40; i++) { /* "a" now and then, between prompts that never return. */
		at = stpcpy(at, "a ");
		for (int k = 0; k < 12; k++) {
			*at++ = (char)(128 + (i * 12 + k) % 100);
			*at++ = ' ';
		}
	}
	at[-1] = '\0';
	assert_int_equal(found_by(text, TRIAL_LRU, 10), 0);
	assert_true(found_by(text, TRIAL_EVICT, 10) >= 38);
	assert_true(found_by(text, TRIAL_S3_FIFO, 10) > 0);
}

/* Return the most hits of any choice, by trying all. At most 8 distinct blocks, 'a' to 'h'. */
static uint64_t best_of_all(const struct trace *t, uint32_t blocks)
{
	int best[256], next[256];
	memset(best, -1, sizeof best);
	best[0] = 0;
	for (size_t r = 0; r < t->n; r++) {
		const uint64_t *ids = trace_ids(t, &t->requests[r]);
		memset(next, -1, sizeof next);
		for (unsigned held = 0; held < 256; held++) {
			unsigned there = held;
			int hits = 0;
			if (best[held] < 0)
				continue;
			while (hits < (int)t->requests[r].n && (held >> (ids[hits] - 'a') & 1) != 0)
				hits++;
			for (uint32_t i = 0; i < t->requests[r].n; i++)
				there |= 1U << (ids[i] - 'a');
			for (unsigned keep = there;; keep = (keep - 1) & there) {
				if ((uint32_t)__builtin_popcount(keep) <= blocks &&
					next[keep] < best[held] + hits)
					next[keep] = best[held] + hits;
				if (keep == 0)
					break;
			}
		}
		memcpy(best, next, sizeof best);
	}
	int most = 0;
	for (unsigned held = 0; held < 256; held++)
		most = best[held] > most ? best[held] : most;
	return (uint64_t)most;
}

static void no_policy_finds_more_than_the_optimum(void **state)
{
	(void)state;
	static const char *const chains[] = {"a", "ab", "abc", "abd", "e", "ef", "efg", "h"};
	uint64_t s = 3;
	for (int round = 0; round < 60; round++) {
		char text[256] = "";
		for (int i = 0; i < 14; i++) {
			(void)mix_lcg(&s);
			(void)strcat(text, i > 0 ? " " : "");
			(void)strcat(text, chains[(s >> 33) % CGN_COUNT(chains)]);
		}
		struct trace t = make_prompts(text);
		for (uint32_t blocks = 1; blocks < 6; blocks++) {
			struct trial_result r = run_trial(&t, TRIAL_OFFLINE, blocks, true);
			assert_int_equal(r.found, best_of_all(&t, blocks));
			assert_int_equal(r.behind_gap, 0);
			for (enum trial_policy p = 0; p < TRIAL_POLICIES; p++)
				assert_true(run_trial(&t, p, blocks, false).found <= r.found);
		}
		trace_fini(&t);
	}
}

/* Keep the results that the documentation shows. */
static void on_workloads_it_holds_its_own(void **state)
{
	(void)state;
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++) {
		struct trace t = {0};
		struct trace_found lru = {0};
		struct workload_cfg cfg = {.kind = k, .seed = 5, .requests = 2000, .rate = 10};
		assert_true(cgn_ok(workload_make(&cfg, &t, NULL)));
		struct trial_result ours = run_trial(&t, TRIAL_EVICT, 1000, false),
				    theirs = run_trial(&t, TRIAL_LRU, 1000, false),
				    most = run_trial(&t, TRIAL_OFFLINE, 1000, false);
		if (most.found == 0) /* Every prompt is new: there is nothing to find. */
			assert_int_equal(ours.found, 0);
		else
			assert_true(ours.found > theirs.found && ours.found < most.found);
		assert_true(cgn_ok(trace_one_cache(&t, 1000, &lru, NULL)));
		theirs = run_trial(&t, TRIAL_LRU, 1000, true);
		/* The same cache; every cached block counts there. */
		assert_true(theirs.found <= lru.found && lru.found <= theirs.found + theirs.behind_gap);
		trace_fini(&t);
	}
}

static void shards_share_the_blocks(void **state)
{
	(void)state;
	struct trace t = {0};
	struct trial_result r;
	struct workload_cfg cfg = {.kind = WORKLOAD_RAG, .seed = 1, .requests = 1000, .rate = 10};
	assert_true(cgn_ok(workload_make(&cfg, &t, NULL)));
	for (enum trial_policy p = TRIAL_EVICT; p < TRIAL_OFFLINE; p++) {
		struct trial_cfg c = {.policy = p, .blocks = 1000, .shards = 7};
		assert_true(cgn_ok(trial_run(&t, &c, &r, NULL)));
		struct trial_result one = run_trial(&t, p, 1000, false);
		assert_true(r.found * 10 > one.found * 8 && r.found * 10 < one.found * 12);
	}
	trace_fini(&t);
}

static void impossible_settings_are_refused(void **state)
{
	(void)state;
	struct trace t = make_prompts("a");
	struct trial_result r;
	struct cgn_err err = {0};
	enum trial_policy p;
	assert_true(
		trial_run(&t, &(struct trial_cfg){.blocks = 4, .shards = 5}, &r, &err).code == CGN_INVALID);
	assert_true(trial_run(&t, &(struct trial_cfg){.blocks = 4}, &r, &err).code == CGN_INVALID);
	assert_true(trial_run(&t, &(struct trial_cfg){.policy = TRIAL_OFFLINE, .blocks = 4, .shards = 2}, &r,
			    &err)
			    .code == CGN_INVALID);
	assert_true(trial_find(cgn_str_of("s3-fifo"), &p) && p == TRIAL_S3_FIFO);
	assert_string_equal(trial_text(p), "s3-fifo");
	assert_true(strlen(trial_help(p)) > 0);
	assert_false(trial_find(cgn_str_of("s3"), &p));
	trace_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_lets_go_of_another),
		cmocka_unit_test(a_hole_ends_what_is_found),
		cmocka_unit_test(a_scan_does_not_disturb_what_is_used),
		cmocka_unit_test(no_policy_finds_more_than_the_optimum),
		cmocka_unit_test(on_workloads_it_holds_its_own),
		cmocka_unit_test(shards_share_the_blocks),
		cmocka_unit_test(impossible_settings_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
