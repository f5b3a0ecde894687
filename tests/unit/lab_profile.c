/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles of published GPUs, and the model's terms, compared with published measurements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lab/enginemodel/profile.h"

static struct enginemodel *engine_of(const char *profile, uint32_t step_tokens)
{
	struct enginemodel *m = NULL;
	const struct enginemodel_profile *p = enginemodel_profile_find(cgn_str_of(profile));
	assert_non_null(p);
	const struct enginemodel_pace pace = enginemodel_profile_pace(p);
	const struct enginemodel_cfg cfg = {.prefill_tokens_per_s = pace.prefill_tokens_per_s,
		.decode = pace.decode,
		.batch_effect = pace.batch_effect,
		.terms = pace.terms,
		.max_batch = 256,
		.step_tokens = step_tokens,
		.max_queue = 1000,
		.kv_blocks = pace.kv_tokens / 16,
		.block_tokens = 16,
		.keeps_none = true};
	assert_true(cgn_ok(enginemodel_new(&cfg, &m)));
	return m;
}

struct client {
	cgn_nsec came, last;
};
struct measured {
	double ttft_ms, itl_ms, tokens_per_s;
};

static void client_send(struct enginemodel *m, struct client *c, uint32_t prompt, uint32_t answer,
	cgn_nsec now)
{
	struct enginemodel_job *job = NULL;
	const struct enginemodel_job_spec spec = {.prompt_tokens = prompt,
		.answer_tokens = answer,
		.user = c};
	c->came = now;
	assert_true(cgn_ok(enginemodel_submit(m, &spec, &job)));
}

/* So many clients send a request each, again and again; the first fifth of the time is not counted. */
static struct measured clients_run(const char *profile, uint32_t clients, uint32_t prompt, uint32_t answer,
	uint32_t step_tokens, cgn_nsec span)
{
	struct enginemodel *m = engine_of(profile, step_tokens);
	struct client c[256] = {{0}};
	struct enginemodel_orders o;
	double ttft = 0, itl = 0;
	uint64_t firsts = 0, others = 0;
	for (uint32_t i = 0; i < clients; i++)
		client_send(m, &c[i], prompt, answer, 0);
	for (cgn_nsec now = 0; now < span;) {
		enginemodel_step(m, now, &o);
		for (size_t i = 0; i < o.n_progress; i++) {
			struct client *one = o.progress[i].user;
			if (now > span / 5 && o.progress[i].given == 1) {
				ttft += (double)(now - one->came) * 1e-6;
				firsts++;
			} else if (now > span / 5) {
				itl += (double)(now - one->last) * 1e-6;
				others++;
			}
			one->last = now;
			if (o.progress[i].finished)
				client_send(m, one, prompt, answer, now);
		}
		if (o.n_progress > 0) /* The clients' next requests. */
			enginemodel_step(m, now, &o);
		assert_true(o.wake_at > now);
		now = o.wake_at;
	}
	enginemodel_free(&m);
	return (struct measured){ttft / (double)firsts, itl / (double)others,
		(double)(firsts + others) * 1e9 / ((double)span * 0.8)};
}

static void assert_near(const char *what, double is, double published, double share)
{
	if (!(is >= published * (1 - share) && is <= published * (1 + share)))
		fail_msg("%s: %.2f, published %.2f", what, is, published);
}

/* vLLM's own benchmark: 8 prompts of 32 tokens, 128 tokens of answer each, milliseconds for all of it. The shares of the peaks
 * that are reached come from this table, so that only the rest of the model is tested. */
static void batches_of_vllms_benchmark_take_as_long(void **state)
{
	(void)state;
	static const struct {
		const char *profile;
		double ms;
	} rows[] = {{"a100-llama-8b", 1579.27}, {"h100-llama-8b", 997.54}, {"h200-llama-8b", 833.42},
		{"a100x4-llama-70b", 3990.59}, {"h100x4-llama-70b", 2444.47}, {"h200x4-llama-70b", 2077.53}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct enginemodel *m = engine_of(rows[i].profile, 2048);
		struct client c[8];
		struct enginemodel_orders o;
		cgn_nsec now = 0;
		for (size_t k = 0; k < CGN_COUNT(c); k++)
			client_send(m, &c[k], 32, 128, 0);
		for (enginemodel_step(m, 0, &o); o.wake_at != 0; enginemodel_step(m, now, &o))
			now = o.wake_at;
		assert_near(rows[i].profile, (double)now * 1e-6, rows[i].ms, 0.03);
		enginemodel_free(&m);
	}
}

/* NVIDIA's table for NIM 1.8.0: clients that send 5,000 tokens each and get 500. One client's time to the first token gave the
 * share of the peak flops; the other numbers are predictions. */
static void clients_of_nvidias_table_wait_as_long(void **state)
{
	(void)state;
	static const struct {
		uint32_t clients;
		struct measured published;
	} rows[] = {{1, {406.77, 18.58, 51.67}}, {5, {546.70, 21.83, 218.48}}, {25, {688.69, 38.75, 623.40}},
		{50, {834.51, 59.73, 814.37}}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct measured m =
			clients_run("h100x2-llama-70b-fp8", rows[i].clients, 5000, 500, 2048, 300 * CGN_SEC);
		assert_near("TTFT", m.ttft_ms, rows[i].published.ttft_ms, 0.13);
		assert_near("ITL", m.itl_ms, rows[i].published.itl_ms, 0.1);
		assert_near("tokens per second", m.tokens_per_s, rows[i].published.tokens_per_s, 0.08);
	}
}

static void profiles_have_names_and_room(void **state)
{
	(void)state;
	size_t n = 0;
	for (const struct enginemodel_profile *p; (p = enginemodel_profile_at(n)) != NULL; n++) {
		const struct enginemodel_pace pace = enginemodel_profile_pace(p);
		assert_ptr_equal(enginemodel_profile_find(cgn_str_of(p->name)), p);
		assert_true(pace.kv_tokens > 100000 && pace.terms.overlaps);
		assert_true(pace.terms.context_ns > 0 && pace.terms.pair_ns > 0);
	}
	assert_true(n > 0);
	assert_null(enginemodel_profile_find(CGN_STR("h100")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(profiles_have_names_and_room),
		cmocka_unit_test(batches_of_vllms_benchmark_take_as_long),
		cmocka_unit_test(clients_of_nvidias_table_wait_as_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
