/* SPDX-License-Identifier: Apache-2.0 */
/* Terms of an engine, found again from the times of requests that it answered, with noise and with outliers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "lab/enginemodel/profile.h"
#include "lab/fit/fit.h"
#include "lab/fit/solve.h"

#define REQUESTS 400
#define DELAY    (3 * CGN_MSEC)

static double uniform_draw(uint64_t *random)
{
	return ((double)(mix_splitmix(random) >> 11) + 0.5) * 0x1p-53;
}

static double normal_draw(uint64_t *random)
{
	return sqrt(-2 * log(uniform_draw(random))) * cos(6.283185307 * uniform_draw(random));
}

static void requests_draw(struct fit_request *q, size_t n, double rate, uint64_t *random)
{
	double at = 0;
	for (size_t i = 0; i < n; i++) {
		at += -log(uniform_draw(random)) / rate;
		uint32_t prompt = (uint32_t)exp(4 + 6 * uniform_draw(random));
		q[i] = (struct fit_request){.came = (cgn_nsec)(at * 1e9),
			.prompt = prompt,
			.cached = uniform_draw(random) < 0.4 ? prompt / 2 : 0,
			.answer = (uint32_t)exp(2 + 4 * uniform_draw(random))};
	}
}

/* Answer the requests with the terms of |cfg|, and make their times |noise| longer or shorter. */
static void requests_answer(struct fit_request *q, size_t n, const struct enginemodel_cfg *cfg)
{
	struct enginemodel *m = NULL;
	struct enginemodel_orders o = {0};
	assert_true(cgn_ok(enginemodel_new(cfg, &m)));
	for (size_t next = 0; next < n || o.wake_at != 0;) {
		bool arrives = next < n && (o.wake_at == 0 || q[next].came < o.wake_at);
		cgn_nsec now = arrives ? q[next].came : o.wake_at;
		bool idle = o.wake_at == 0;
		if (arrives) {
			struct enginemodel_job *job = NULL;
			const struct enginemodel_job_spec spec = {.prompt_tokens = q[next].prompt,
				.answer_tokens = q[next].answer,
				.handed = q[next].cached,
				.user = &q[next]};
			assert_true(cgn_ok(enginemodel_submit(m, &spec, &job)));
			next++;
			if (!idle)
				continue;
		}
		enginemodel_step(m, now, &o);
		for (size_t i = 0; i < o.n_progress; i++) {
			struct fit_request *one = o.progress[i].user;
			if (o.progress[i].given == 1)
				one->first = now - one->came + DELAY;
			one->ended = now - one->came + DELAY;
		}
	}
	enginemodel_free(&m);
}

static void requests_blur(struct fit_request *q, size_t n, double noise, double outliers, uint64_t *random)
{
	for (size_t i = 0; i < n; i++) {
		double by = exp(noise * normal_draw(random)) * (uniform_draw(random) < outliers ? 4 : 1);
		cgn_nsec rest = q[i].ended - q[i].first;
		q[i].first = (cgn_nsec)((double)q[i].first * by);
		q[i].ended = q[i].first + (cgn_nsec)((double)rest * exp(noise * normal_draw(random)));
	}
}

static struct enginemodel_cfg engine_of(const char *profile)
{
	const struct enginemodel_pace pace =
		enginemodel_profile_pace(enginemodel_profile_find(cgn_str_of(profile)));
	return (struct enginemodel_cfg){.prefill_tokens_per_s = pace.prefill_tokens_per_s,
		.decode = pace.decode,
		.batch_effect = pace.batch_effect,
		.terms = pace.terms,
		.max_batch = 64,
		.step_tokens = 2048,
		.max_queue = REQUESTS,
		.kv_blocks = pace.kv_tokens / 16,
		.block_tokens = 16,
		.keeps_none = true};
}

static void assert_term(const struct fit_result *r, enum fit_term_id t, double truth, double share)
{
	if (!(fabs(r->terms[t].ns / truth - 1) <= share))
		fail_msg("%s: %g ns, in truth %g, error %g", fit_term_labels[t], r->terms[t].ns, truth,
			r->terms[t].error);
	/* The error that is told is of the right size. */
	if (!(fabs(r->terms[t].ns / truth - 1) <= 3 * r->terms[t].error))
		fail_msg("%s: %g ns, in truth %g, told error %g", fit_term_labels[t], r->terms[t].ns, truth,
			r->terms[t].error);
}

static struct fit_result fit_engine(const struct enginemodel_cfg *engine, double rate, double noise,
	double outliers)
{
	static struct fit_request q[REQUESTS];
	const struct fit_cfg cfg = {.nodes = 1,
		.max_batch = engine->max_batch,
		.step_tokens = engine->step_tokens};
	struct fit_result r;
	struct cgn_err err = {0};
	uint64_t random = 7;
	requests_draw(q, REQUESTS, rate, &random);
	requests_answer(q, REQUESTS, engine);
	requests_blur(q, REQUESTS, noise, outliers, &random);
	assert_true(cgn_ok(fit_run(q, REQUESTS, &cfg, &r, &err)));
	return r;
}

static void assert_found(const struct fit_result *r, const struct enginemodel_cfg *engine)
{
	assert_true(r->overlaps);
	assert_term(r, FIT_TOKEN, 1e9 / engine->prefill_tokens_per_s, 0.05);
	assert_term(r, FIT_STEP, (double)engine->decode, 0.03);
	assert_term(r, FIT_CONTEXT, engine->terms.context_ns, 0.1);
	assert_term(r, FIT_PAIR, engine->terms.pair_ns, 0.15);
	assert_term(r, FIT_DELAY, DELAY, 0.1);
	/* The engine that is played has the times that were measured. */
	assert_true(fabs(r->times.ttft_model[0] / r->times.ttft_measured[0] - 1) < 0.1);
}

static void a_known_engine_is_found_again(void **state)
{
	(void)state;
	const struct enginemodel_cfg engine = engine_of("h100-llama-8b");
	struct fit_result r = fit_engine(&engine, 4, 0, 0);
	assert_found(&r, &engine);
	assert_true(r.decode_error < 0.02);
	assert_true(fabs(r.times.ttft_model[1] / r.times.ttft_measured[1] - 1) < 0.05);
}

static void noise_and_outliers_do_not_hide_it(void **state)
{
	(void)state;
	const struct enginemodel_cfg engine = engine_of("h100-llama-8b");
	struct fit_result r = fit_engine(&engine, 4, 0.05, 0.05);
	assert_found(&r, &engine);
}

/* Terms that do not matter have no share, and an error that says so. */
static void an_engine_without_these_terms_has_none(void **state)
{
	(void)state;
	struct enginemodel_cfg engine = engine_of("h100-llama-8b");
	engine.terms = (struct enginemodel_terms){0};
	engine.batch_effect = 0.02;
	struct fit_result r = fit_engine(&engine, 4, 0.05, 0);
	assert_false(r.overlaps);
	assert_term(&r, FIT_TOKEN, 1e9 / engine.prefill_tokens_per_s, 0.05);
	assert_term(&r, FIT_STEP, (double)engine.decode, 0.03);
	assert_term(&r, FIT_SEQUENCE, (double)engine.decode * 0.02, 0.2);
	assert_true(r.terms[FIT_CONTEXT].share < 0.01 && !r.terms[FIT_CONTEXT].known);
	assert_true(r.terms[FIT_PAIR].share < 0.01 && !r.terms[FIT_PAIR].known);
}

/* Contexts of one length do not tell what a token of context takes. The step gets that time, and is right for such requests. */
static void the_time_of_an_unknown_term_is_not_lost(void **state)
{
	static struct fit_request q[REQUESTS];
	const struct enginemodel_cfg engine = engine_of("h100-llama-8b");
	const struct fit_cfg cfg = {.nodes = 1,
		.max_batch = engine.max_batch,
		.step_tokens = engine.step_tokens};
	struct fit_result r;
	struct cgn_err err = {0};
	uint64_t random = 9;
	(void)state;
	requests_draw(q, REQUESTS, 1, &random);
	for (size_t i = 0; i < REQUESTS; i++) {
		q[i].prompt = 8000;
		q[i].cached = 7000;
		q[i].answer = 40;
	}
	requests_answer(q, REQUESTS, &engine);
	requests_blur(q, REQUESTS, 0.02, 0, &random);
	assert_true(cgn_ok(fit_run(q, REQUESTS, &cfg, &r, &err)));
	assert_false(r.terms[FIT_CONTEXT].known);
	assert_true(r.terms[FIT_STEP].known);
	const double whole = (double)engine.decode + engine.terms.context_ns * 8020;
	if (!(fabs(r.terms[FIT_STEP].ns / whole - 1) < 0.03))
		fail_msg("a step of %g ns, in truth %g", r.terms[FIT_STEP].ns, whole);
	assert_true(fabs(r.times.itl_model[0] / r.times.itl_measured[0] - 1) < 0.03);
}

/* The terms of one log predict the times of another one. */
static void other_requests_are_predicted(void **state)
{
	static struct fit_request q[REQUESTS];
	const struct enginemodel_cfg engine = engine_of("h100-llama-8b");
	const struct fit_cfg cfg = {.nodes = 1,
		.max_batch = engine.max_batch,
		.step_tokens = engine.step_tokens};
	struct fit_result r = fit_engine(&engine, 4, 0.05, 0);
	struct fit_times t;
	struct cgn_err err = {0};
	uint64_t random = 12;
	(void)state;
	requests_draw(q, REQUESTS, 8, &random);
	requests_answer(q, REQUESTS, &engine);
	assert_true(cgn_ok(fit_play(q, REQUESTS, &cfg, &r, &t, &err)));
	assert_true(fabs(t.ttft_model[0] / t.ttft_measured[0] - 1) < 0.05);
	assert_true(fabs(t.ttft_model[1] / t.ttft_measured[1] - 1) < 0.1);
	assert_true(fabs(t.itl_model[0] / t.itl_measured[0] - 1) < 0.05);
	assert_true(fabs(t.itl_model[1] / t.itl_measured[1] - 1) < 0.1);
	assert_int_equal(fit_play(q, FIT_LEAST - 1, &cfg, &r, &t, &err).code, CGN_INVALID);
}

static void a_few_requests_are_too_few(void **state)
{
	(void)state;
	static const struct fit_request q[FIT_LEAST];
	const struct fit_cfg cfg = {.nodes = 1, .max_batch = 1, .step_tokens = 1};
	struct fit_result r;
	struct cgn_err err = {0};
	assert_int_equal(fit_run(q, FIT_LEAST - 1, &cfg, &r, &err).code, CGN_INVALID);
}

static void small_matrices_are_inverted(void **state)
{
	(void)state;
	double a[SOLVE_MOST][SOLVE_MOST] = {{4, 2, 0}, {2, 5, 3}, {0, 3, 6}}, inverse[SOLVE_MOST][SOLVE_MOST],
	       bad[SOLVE_MOST][SOLVE_MOST] = {{1, 2}, {2, 1}};
	assert_true(solve_invert(a, 3, inverse));
	for (int i = 0; i < 3; i++) {
		for (int j = 0; j < 3; j++) {
			double sum = 0;
			for (int k = 0; k < 3; k++)
				sum += a[i][k] * inverse[k][j];
			assert_true(fabs(sum - (i == j)) < 1e-12);
		}
	}
	assert_false(solve_invert(bad, 2, inverse));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_known_engine_is_found_again),
		cmocka_unit_test(noise_and_outliers_do_not_hide_it),
		cmocka_unit_test(an_engine_without_these_terms_has_none),
		cmocka_unit_test(the_time_of_an_unknown_term_is_not_lost),
		cmocka_unit_test(other_requests_are_predicted),
		cmocka_unit_test(a_few_requests_are_too_few),
		cmocka_unit_test(small_matrices_are_inverted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
