/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated device in virtual time: batching, queueing, KV memory, prefix cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "lab/enginemodel/enginemodel.h"

struct seen { /* Progress of a job. */
	struct enginemodel_job *job;
	uint32_t given, cached;
	cgn_nsec first_at, last_at;
	bool finished;
};

static const struct enginemodel_cfg plain = {
	.prefill_tokens_per_s = 1000, /* A token every millisecond. */
	.decode = 10 * CGN_MSEC,
	.batch_effect = 0.5,
	.max_batch = 8,
	.step_tokens = 64,
	.max_queue = 100,
	.kv_blocks = 64,
	.block_tokens = 4,
};

static struct enginemodel *model_of(const struct enginemodel_cfg *cfg)
{
	struct enginemodel *m = NULL;
	assert_true(cgn_ok(enginemodel_new(cfg, &m)));
	return m;
}

/* Submit a job; |lineage| determines its tokens: jobs of equal lineage share their prefix. */
static cgn_rc submit_job(struct enginemodel *m, struct seen *s, uint64_t lineage, uint32_t prompt,
	uint32_t answer)
{
	uint64_t hashes[256];
	uint32_t n = (prompt + answer) / 4;
	for (uint32_t i = 0; i < n; i++)
		hashes[i] = mix64(lineage * 1000 + i);
	*s = (struct seen){0};
	const struct enginemodel_job_spec spec = {prompt, answer, hashes, n, s, NULL};
	return enginemodel_submit(m, &spec, &s->job);
}

static cgn_nsec step_model(struct enginemodel *m, cgn_nsec now)
{
	struct enginemodel_orders o;
	enginemodel_step(m, now, &o);
	for (size_t i = 0; i < o.n_progress; i++) {
		struct seen *s = o.progress[i].user;
		assert_int_equal(o.progress[i].given, s->given + 1);
		s->given++;
		s->cached = o.progress[i].cached;
		s->first_at = s->given == 1 ? now : s->first_at;
		s->last_at = now;
		s->finished = o.progress[i].finished;
		if (s->finished)
			s->job = NULL;
	}
	assert_true(enginemodel_sound(m));
	return o.wake_at;
}

static cgn_nsec run_until_idle(struct enginemodel *m, cgn_nsec now) /* Run until idle; return the time. */
{
	for (unsigned i = 0; i < 100000; i++) {
		cgn_nsec at = step_model(m, now);
		if (at == 0)
			return now;
		assert_true(at > now);
		now = at;
	}
	fail_msg("the device never idles");
	return 0;
}

static void one_request_takes_prefill_and_decodes(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&plain);
	struct seen a;
	assert_true(cgn_ok(submit_job(m, &a, 1, 20, 5)));
	(void)run_until_idle(m, 1000 * CGN_MSEC);
	assert_true(a.finished);
	assert_int_equal(a.given, 5);
	assert_int_equal(a.first_at / CGN_MSEC, 1020);
	assert_int_equal(a.last_at / CGN_MSEC, 1060);
	struct enginemodel_stats s = enginemodel_stats(m);
	assert_int_equal(s.prompt_tokens, 20);
	assert_int_equal(s.answer_tokens, 5);
	assert_int_equal(s.kv_used, 0);
	assert_int_equal(s.running + s.waiting, 0);
	enginemodel_free(&m);
	assert_null(m);
}

static void long_prompts_are_chunked_beside_decodes(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&plain);
	struct seen a, b;
	assert_true(cgn_ok(submit_job(m, &a, 1, 4, 30)));
	cgn_nsec at = step_model(m, 0);
	at = step_model(m, at); /* Job a decodes now. */
	assert_int_equal(a.given, 1);
	assert_true(cgn_ok(submit_job(m, &b, 2, 150, 2)));
	uint32_t before = a.given;
	while (b.given == 0)
		at = step_model(m, at);
	/* 150 tokens beside one decode with a budget of 64: three steps of at most 63. */
	assert_int_equal(a.given - before, 4); /* Three, and the one in flight. */
	(void)run_until_idle(m, at);
	assert_true(a.finished && b.finished);
	enginemodel_free(&m);
}

static void batches_slow_each_step(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&plain);
	struct seen s[4];
	for (unsigned i = 0; i < 4; i++)
		assert_true(cgn_ok(submit_job(m, &s[i], i, 1, 10)));
	cgn_nsec at = step_model(m, 0);
	assert_int_equal(at / CGN_MSEC, 4); /* Four prompts of one token. */
	cgn_nsec next = step_model(m, at);
	assert_int_equal((next - at) / CGN_MSEC, 25); /* 10 ms * (1 + 0.5 * 3) */
	(void)run_until_idle(m, next);
	enginemodel_free(&m);
}

static const struct enginemodel_cfg real = {
	.prefill_tokens_per_s = 1000,
	.decode = 10 * CGN_MSEC,
	.terms = {.context_ns = 1e5, .pair_ns = 1e4, .overlaps = true},
	.max_batch = 8,
	.step_tokens = 64,
	.max_queue = 100,
	.kv_blocks = 64,
	.block_tokens = 4,
};

static void a_step_reads_the_weights_or_computes_and_reads_the_context(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&real);
	struct seen a, b;
	assert_true(cgn_ok(submit_job(m, &a, 1, 100, 4)));
	/* 64 tokens: 64 ms, longer than the weights' 10, and 64 * 32 pairs of 10 us. */
	cgn_nsec at = step_model(m, 0), next = step_model(m, at);
	assert_int_equal(at, 64 * CGN_MSEC + 20480 * CGN_USEC);
	/* 36 tokens behind 64: 36 * (64 + 18) pairs, and the KV of 64 is read. */
	assert_int_equal(next - at, 36 * CGN_MSEC + 29520 * CGN_USEC + 6400 * CGN_USEC);
	assert_true(cgn_ok(submit_job(m, &b, 2, 4, 2)));
	at = step_model(m, next);
	/* A token behind 101, and a prompt of 4: 5 tokens are computed while the weights are read. */
	assert_int_equal(at - next, 10 * CGN_MSEC + 10100 * CGN_USEC + 80 * CGN_USEC);
	next = step_model(m, at);
	assert_int_equal(next - at, 10 * CGN_MSEC + 10200 * CGN_USEC + 500 * CGN_USEC);
	(void)run_until_idle(m, next);
	assert_true(a.finished && b.finished);
	enginemodel_free(&m);
}

/* The parts of a step add up, so that energy counts all of it. */
static void parts_of_a_step_add_up(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&real);
	struct seen a, b;
	assert_true(cgn_ok(submit_job(m, &a, 1, 30, 4)));
	cgn_nsec now = step_model(m, 0);
	assert_true(cgn_ok(submit_job(m, &b, 2, 60, 4)));
	for (cgn_nsec at = step_model(m, now); at != 0; at = step_model(m, now)) {
		const struct enginemodel_step_parts p = enginemodel_step_parts(m);
		assert_in_range(at - now - p.prefill - p.decode, 0, 2);
		if (p.decodes == 1 && p.prefill > 0) /* The weights are read while the prompt is computed. */
			assert_true(p.prefill >= (cgn_nsec)(60 * 1e9 / real.prefill_tokens_per_s));
		now = at;
	}
	assert_true(a.finished && b.finished);
	enginemodel_free(&m);
}

/* A prompt that another engine computed takes no prefill here, and its blocks are cached like computed ones. */
static void handed_prompts_are_not_computed(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&plain);
	struct seen a = {0}, b;
	uint64_t hashes[10];
	for (uint32_t i = 0; i < 10; i++)
		hashes[i] = mix64(1000 + i);
	const struct enginemodel_job_spec spec = {.prompt_tokens = 42,
		.answer_tokens = 3,
		.hashes = hashes,
		.n_hashes = 10,
		.user = &a,
		.handed = 42};
	assert_true(cgn_ok(enginemodel_submit(m, &spec, &a.job)));
	(void)run_until_idle(m, 0);
	assert_true(a.finished);
	assert_int_equal(a.first_at / CGN_MSEC, 10); /* The last token takes a decode step. */
	assert_int_equal(a.cached, 0);
	assert_true(cgn_ok(submit_job(m, &b, 1, 41, 1)));
	(void)run_until_idle(m, 1000 * CGN_MSEC);
	assert_int_equal(b.cached, 40);
	enginemodel_free(&m);
}

static void batch_slots_queue_first_come_first_served(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = plain;
	cfg.max_batch = 2;
	struct enginemodel *m = model_of(&cfg);
	struct seen s[5];
	for (unsigned i = 0; i < 5; i++)
		assert_true(cgn_ok(submit_job(m, &s[i], i, 8, 4)));
	cgn_nsec at = step_model(m, 0);
	assert_int_equal(enginemodel_stats(m).running, 2);
	assert_int_equal(enginemodel_stats(m).waiting, 3);
	(void)run_until_idle(m, at);
	for (unsigned i = 1; i < 5; i++)
		assert_true(s[i - 1].first_at <= s[i].first_at);
	assert_true(s[4].first_at > s[1].last_at);
	enginemodel_free(&m);
}

static void full_queue_and_hopeless_jobs_are_refused(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = plain;
	cfg.max_queue = 2;
	struct enginemodel *m = model_of(&cfg);
	struct seen s[4];
	assert_int_equal(submit_job(m, &s[0], 0, 250, 7).code, CGN_TOO_LARGE); /* 257 tokens; 256 fit. */
	assert_true(cgn_ok(submit_job(m, &s[0], 0, 250, 6)));
	assert_true(cgn_ok(submit_job(m, &s[1], 1, 8, 4)));
	assert_int_equal(submit_job(m, &s[2], 2, 8, 4).code, CGN_OVERLOADED);
	(void)run_until_idle(m, 0);
	assert_true(s[0].finished && s[1].finished);
	enginemodel_free(&m);
}

static void repeated_prompts_are_cached(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&plain);
	struct seen a, b, c, longer;
	assert_true(cgn_ok(submit_job(m, &a, 1, 40, 4)));
	cgn_nsec at = run_until_idle(m, 0);
	assert_int_equal(a.cached, 0);
	assert_true(cgn_ok(submit_job(m, &b, 1, 40, 4)));
	cgn_nsec start = at;
	at = run_until_idle(m, at);
	assert_int_equal(b.cached, 36); /* The block with the last token is computed again. */
	assert_int_equal((b.first_at - start) / CGN_MSEC, 4);
	assert_true(cgn_ok(submit_job(m, &c, 2, 40, 4)));
	at = run_until_idle(m, at);
	assert_int_equal(c.cached, 0);
	/* The next turn finds prompt and answer of the turn before: 43 computed tokens are 10 full blocks. */
	assert_true(cgn_ok(submit_job(m, &longer, 1, 80, 4)));
	(void)run_until_idle(m, at);
	assert_int_equal(longer.cached, 40);
	struct enginemodel_stats s = enginemodel_stats(m);
	assert_int_equal(s.prefix_queried, 200);
	assert_int_equal(s.prefix_hit, 76);
	enginemodel_free(&m);
}

static void least_recently_used_prefixes_go_first(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = plain;
	cfg.kv_blocks = 25;
	struct enginemodel *m = model_of(&cfg);
	struct seen s;
	cgn_nsec at = 0;
	for (uint64_t lineage = 1; lineage <= 2; lineage++) {
		assert_true(cgn_ok(submit_job(m, &s, lineage, 40, 1)));
		at = run_until_idle(m, at);
	}
	assert_true(cgn_ok(submit_job(m, &s, 1, 40, 1))); /* Uses the first one again. */
	at = run_until_idle(m, at);
	assert_int_equal(s.cached, 36);
	/* Takes 5 free blocks and the last blocks of the second. */
	assert_true(cgn_ok(submit_job(m, &s, 3, 40, 1)));
	at = run_until_idle(m, at);
	assert_true(cgn_ok(submit_job(m, &s, 1, 40, 1)));
	at = run_until_idle(m, at);
	assert_int_equal(s.cached, 36);
	assert_true(cgn_ok(submit_job(m, &s, 2, 40, 1)));
	(void)run_until_idle(m, at);
	assert_true(s.cached < 36);
	enginemodel_free(&m);
}

static void kv_memory_bounds_admission(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = plain;
	cfg.kv_blocks = 12; /* 48 tokens. */
	struct enginemodel *m = model_of(&cfg);
	struct seen a, b;
	assert_true(cgn_ok(submit_job(m, &a, 1, 30, 10)));
	assert_true(cgn_ok(submit_job(m, &b, 2, 30, 10)));
	cgn_nsec at = step_model(m, 0);
	assert_int_equal(enginemodel_stats(m).running, 1);
	(void)run_until_idle(m, at);
	assert_true(b.first_at > a.last_at);
	assert_true(a.finished && b.finished);
	enginemodel_free(&m);
}

static void growing_jobs_preempt_the_last_comer(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = plain;
	cfg.kv_blocks = 12;
	struct enginemodel *m = model_of(&cfg);
	struct seen a, b, c;
	assert_true(cgn_ok(submit_job(m, &a, 1, 12, 24)));
	assert_true(cgn_ok(submit_job(m, &b, 2, 12, 24)));
	assert_true(cgn_ok(submit_job(m, &c, 3, 12, 24)));
	(void)run_until_idle(m, 0);
	assert_true(a.finished && b.finished && c.finished);
	assert_int_equal(a.given + b.given + c.given, 72); /* A preempted job continues where it was. */
	assert_true(enginemodel_stats(m).preempted > 0);
	assert_true(a.last_at <= b.last_at && b.last_at <= c.last_at);
	enginemodel_free(&m);
}

static void abort_frees_at_once(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = plain;
	cfg.max_batch = 1;
	struct enginemodel *m = model_of(&cfg);
	struct seen a, b;
	assert_true(cgn_ok(submit_job(m, &a, 1, 40, 50)));
	assert_true(cgn_ok(submit_job(m, &b, 2, 8, 2)));
	cgn_nsec at = step_model(m, 0);
	at = step_model(m, at);
	assert_true(enginemodel_stats(m).kv_used > 0);
	enginemodel_abort(m, &a.job); /* A step is in flight. */
	assert_null(a.job);
	assert_int_equal(enginemodel_stats(m).kv_used, 0);
	assert_int_equal(enginemodel_stats(m).running, 0);
	assert_int_equal(enginemodel_stats(m).aborted, 1);
	assert_true(enginemodel_sound(m));
	at = run_until_idle(m, at);
	assert_true(b.finished);
	assert_true(cgn_ok(submit_job(m, &a, 3, 8, 2)));
	enginemodel_abort(m, &a.job); /* The job is still waiting. */
	assert_int_equal(run_until_idle(m, at), at);
	enginemodel_free(&m);
}

static void held_jobs_stay_and_others_go_on(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&plain);
	struct seen a, b;
	assert_true(cgn_ok(submit_job(m, &a, 1, 8, 50)));
	cgn_nsec at = step_model(m, 0);
	at = step_model(m, at);
	enginemodel_hold(m, a.job);
	assert_true(cgn_ok(submit_job(m, &b, 2, 8, 5)));
	at = run_until_idle(m, at);
	assert_true(b.finished);
	assert_true(a.given < 4);
	assert_int_equal(enginemodel_stats(m).running, 1);
	assert_true(enginemodel_stats(m).kv_used > 0);
	enginemodel_abort(m, &a.job);
	assert_int_equal(enginemodel_stats(m).kv_used, 0);
	enginemodel_free(&m);
}

static void a_late_caller_does_not_slow_the_device(void **state)
{
	(void)state;
	struct enginemodel *m = model_of(&plain);
	struct seen a;
	assert_true(cgn_ok(submit_job(m, &a, 1, 10, 3)));
	cgn_nsec at = step_model(m, 0);
	assert_int_equal(at / CGN_MSEC, 10);
	at = step_model(m, 1000 * CGN_MSEC);
	assert_int_equal(at / CGN_MSEC, 20);
	enginemodel_free(&m);
}

static void fixed_steps_pace(void **state)
{
	(void)state;
	struct enginemodel_cfg cfg = plain;
	cfg.fixed_step = 7 * CGN_MSEC;
	struct enginemodel *m = model_of(&cfg);
	struct seen a;
	assert_true(cgn_ok(submit_job(m, &a, 1, 20, 3)));
	assert_int_equal(run_until_idle(m, 0) / CGN_MSEC, 21);
	enginemodel_free(&m);
}

/* Run thousands of random submits, steps and aborts: no leak, no hang, and equal seeds give equal
 * histories. */
static uint64_t run_storm(uint64_t seed)
{
	struct enginemodel_cfg cfg = plain;
	cfg.kv_blocks = 40;
	cfg.max_batch = 5;
	cfg.step_tokens = 16;
	struct enginemodel *m = model_of(&cfg);
	static struct seen s[64];
	uint64_t rng = seed, history = 0;
	cgn_nsec now = 0;
	memset(s, 0, sizeof s);
	for (unsigned i = 0; i < 5000; i++) {
		rng = mix64(rng + 1);
		struct seen *it = &s[rng % CGN_COUNT(s)];
		if (it->job == NULL)
			(void)!submit_job(m, it, rng >> 8 & 7, 1 + (uint32_t)(rng >> 16 & 63),
				1 + (uint32_t)(rng >> 24 & 31))
				.code;
		else if ((rng >> 32 & 7) == 0)
			enginemodel_abort(m, &it->job);
		cgn_nsec at = step_model(m, now);
		now = at != 0 ? at : now;
		struct enginemodel_stats st = enginemodel_stats(m);
		history = mix64(history ^ st.answer_tokens ^ st.kv_used << 20 ^ now);
	}
	(void)run_until_idle(m, now);
	struct enginemodel_stats st = enginemodel_stats(m);
	assert_int_equal(st.kv_used, 0);
	assert_int_equal(st.running + st.waiting, 0);
	assert_true(st.finished > 100 && st.aborted > 10 && st.preempted > 0);
	enginemodel_free(&m);
	return history;
}

static void storms_leave_nothing_behind(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 5; seed++)
		assert_true(run_storm(seed) == run_storm(seed));
	assert_true(run_storm(1) != run_storm(2));
}

static void blocks_are_shared_and_evicted(void **state)
{
	(void)state;
	struct enginemodel_blocks *b = NULL;
	assert_true(cgn_ok(enginemodel_blocks_new(&(struct enginemodel_blocks_cfg){.n = 3}, &b)));
	uint32_t x = enginemodel_blocks_take(b);
	assert_true(enginemodel_blocks_publish(b, x, 77));
	assert_int_equal(enginemodel_blocks_find(b, 77), x); /* Two users. */
	enginemodel_blocks_release(b, x);
	assert_int_equal(enginemodel_blocks_used(b), 1);
	enginemodel_blocks_release(b, x);
	assert_int_equal(enginemodel_blocks_used(b), 0);
	assert_true(enginemodel_blocks_has(b, 77) && enginemodel_blocks_idle(b, 77));
	assert_false(enginemodel_blocks_has(b, 78) || enginemodel_blocks_idle(b, 78));
	assert_null(enginemodel_blocks_note(b, x));
	uint32_t y = enginemodel_blocks_take(b), z = enginemodel_blocks_take(b);
	assert_int_equal(enginemodel_blocks_known(b), 1);   /* Unused blocks are taken first. */
	assert_false(enginemodel_blocks_publish(b, y, 77)); /* The block cached under 77 keeps its place. */
	uint32_t w = enginemodel_blocks_take(b);
	assert_int_equal(w, x);
	assert_int_equal(enginemodel_blocks_known(b), 0);
	assert_int_equal(enginemodel_blocks_take(b), ENGINEMODEL_BLOCK_NONE);
	assert_int_equal(enginemodel_blocks_find(b, 77), ENGINEMODEL_BLOCK_NONE);
	assert_true(enginemodel_blocks_sound(b));
	enginemodel_blocks_release(b, y);
	enginemodel_blocks_release(b, z);
	enginemodel_blocks_release(b, w);
	assert_true(enginemodel_blocks_sound(b));
	enginemodel_blocks_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_request_takes_prefill_and_decodes),
		cmocka_unit_test(long_prompts_are_chunked_beside_decodes),
		cmocka_unit_test(batches_slow_each_step),
		cmocka_unit_test(a_step_reads_the_weights_or_computes_and_reads_the_context),
		cmocka_unit_test(parts_of_a_step_add_up),
		cmocka_unit_test(handed_prompts_are_not_computed),
		cmocka_unit_test(batch_slots_queue_first_come_first_served),
		cmocka_unit_test(full_queue_and_hopeless_jobs_are_refused),
		cmocka_unit_test(repeated_prompts_are_cached),
		cmocka_unit_test(least_recently_used_prefixes_go_first),
		cmocka_unit_test(kv_memory_bounds_admission),
		cmocka_unit_test(growing_jobs_preempt_the_last_comer),
		cmocka_unit_test(abort_frees_at_once),
		cmocka_unit_test(held_jobs_stay_and_others_go_on),
		cmocka_unit_test(a_late_caller_does_not_slow_the_device),
		cmocka_unit_test(fixed_steps_pace),
		cmocka_unit_test(storms_leave_nothing_behind),
		cmocka_unit_test(blocks_are_shared_and_evicted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
