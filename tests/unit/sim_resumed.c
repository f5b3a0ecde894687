/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that resume an answer: the continuation equals the rest of the original answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "sim/request/resumed.h"

static const struct sim_cfg cfg = {.models = {"sim"},
	.n_models = 1,
	.block_tokens = 16,
	.max_model_len = 4000,
	.max_tokens_default = 64};
static struct cgn_arena arena;
static struct sim_refusal no;

static void parse_body(enum sim_api api, const char *body, struct sim_request *ask)
{
	const struct sim_request_env env = {&cfg, &arena, NULL, 0};
	no = (struct sim_refusal){0};
	if (!sim_request_parse(&env, api, cgn_str_of(body), ask, &no))
		fail_msg("%s: %d %s", body, no.status, no.msg);
}

/* Append the first |n| tokens of the answer from the request's position. */
static void put_answer(const struct sim_request *ask, unsigned n, struct cgn_buf *out)
{
	struct sim_text t;
	uint32_t id = 0, skipped = 0;
	struct cgn_str piece;
	sim_text_words(&t,
		sim_answer_seed(ask->resumed_tokens > 0 ? ask->origin : sim_chain_digest(&ask->prompts[0]),
			ask->seed, 0));
	if (ask->resumed_tokens > 0)
		assert_true(sim_text_skip(&t, ask->resumed, NULL, NULL, &skipped));
	assert_int_equal(skipped, ask->resumed_tokens);
	for (unsigned i = 0; i < n && sim_text_next(&t, &piece, &id); i++)
		cgn_buf_str(out, piece);
}

#define TOKENS 40

static void goes_on(enum sim_api api, const char *before, const char *behind, const char *first)
{
	struct sim_request ask;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf whole = {0};
	parse_body(api, first, &ask);
	uint64_t prompt = ask.prompts[0].n_tokens;
	assert_int_equal(ask.resumed_tokens, 0);
	put_answer(&ask, TOKENS, &whole);
	for (unsigned said = 1; said < TOKENS; said++) {
		struct sim_request next;
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
		put_answer(&ask, said, &text);
		cgn_buf_fmt(&body, "%s%.*s%s", before, (int)text.n, text.p, behind);
		parse_body(api, cgn_buf_z(&body), &next);
		assert_int_equal(next.resumed_tokens, said);
		/* As if the answer's own tokens had been kept. */
		assert_int_equal(next.prompts[0].n_tokens, prompt + said);
		assert_true(cgn_str_eq(next.resumed, cgn_buf_view(&text)));
		put_answer(&next, TOKENS - said, &text);
		assert_true(cgn_str_eq(cgn_buf_view(&text), cgn_buf_view(&whole)));
		sim_request_fini(&next);
	}
	sim_request_fini(&ask);
	cgn_arena_reset(&arena);
}

#define CHAT(prompt) "{\"messages\":[{\"role\":\"user\",\"content\":\"" prompt "\"}"
#define SAID(prompt) CHAT(prompt) ",{\"role\":\"assistant\",\"content\":\""
#define OPEN         "\"}],\"continue_final_message\":true,\"add_generation_prompt\":false}"

static void chats_go_on(void **state)
{
	(void)state;
	goes_on(SIM_CHAT, SAID("hi"), OPEN, CHAT("hi") "]}");
	goes_on(SIM_CHAT, SAID("The same Again And Again, A lot of it, more than a block of Tokens is."),
		OPEN, CHAT("The same Again And Again, A lot of it, more than a block of Tokens is.") "]}");
}

static void texts_go_on(void **state)
{
	(void)state;
	static const char *const prompts[] = {"hi", "Once Upon a Time, By The Sea ", "ends with A",
		"and a space ", "1234567", "\xc3\xa9"};
	for (size_t i = 0; i < CGN_COUNT(prompts); i++) {
		char first[200], before[200];
		(void)snprintf(first, sizeof first, "{\"prompt\":\"%s\"}", prompts[i]);
		(void)snprintf(before, sizeof before, "{\"prompt\":\"%s", prompts[i]);
		goes_on(SIM_COMPLETIONS, before, "\"}", first);
	}
}

static void another_text_is_a_prompt(void **state)
{
	(void)state;
	struct sim_request ask;
	parse_body(SIM_CHAT, SAID("hi") "Something else" OPEN, &ask);
	assert_int_equal(ask.resumed_tokens, 0);
	struct sim_chain c = ask.prompts[0];
	assert_int_equal(c.n_tokens, 3 + 1 + 3); /* marker, hi, end, marker; Somet, hing, else */
	sim_request_fini(&ask);
	parse_body(SIM_COMPLETIONS, "{\"prompt\":[\"One two\",\"Three\"]}", &ask);
	assert_int_equal(ask.resumed_tokens, 0);
	sim_request_fini(&ask);
	cgn_arena_reset(&arena);
}

static void check_refusals(void **state)
{
	(void)state;
	static const char *const bodies[] = {
		SAID("hi") "x\"}],\"continue_final_message\":true}", /* Both flags, as in vLLM. */
		CHAT("hi") "],\"continue_final_message\":true,\"add_generation_prompt\":false}",
		CHAT("hi") ",{\"role\":\"assistant\",\"content\":null}],\"continue_final_message\":true,\"add_generation_prompt\":false}",
	};
	const struct sim_request_env env = {&cfg, &arena, NULL, 0};
	for (size_t i = 0; i < CGN_COUNT(bodies); i++) {
		struct sim_request ask;
		assert_false(sim_request_parse(&env, SIM_CHAT, cgn_str_of(bodies[i]), &ask, &no));
		assert_int_equal(no.status, 400);
		assert_string_equal(no.param, "continue_final_message");
		sim_request_fini(&ask);
		cgn_arena_reset(&arena);
	}
}

/* A partly given token is completed; a stop string may begin in the resumed part. */
static void parts_of_tokens_and_stops(void **state)
{
	(void)state;
	struct sim_text t;
	uint32_t n = 0, id = 0;
	struct cgn_str piece;
	char said[200];
	struct cgn_buf b = cgn_buf_over(said, sizeof said);
	sim_text_words(&t, 5);
	for (unsigned i = 0; i < 6; i++) {
		(void)sim_text_next(&t, &piece, &id);
		cgn_buf_str(&b, piece);
	}
	size_t last = piece.n;
	assert_true(last > 2);
	sim_text_words(&t, 5);
	assert_true(sim_text_skip(&t, (struct cgn_str){said, b.n - 2}, NULL, NULL, &n));
	assert_int_equal(n, 5);
	struct sim_limits lim = {.max_tokens = 3,
		.natural_tokens = 50,
		.stops = {{said + b.n - last, last}},
		.n_stops = 1,
		.resumed = {said, b.n - 2}};
	struct sim_plan plan;
	assert_true(sim_plan_make(t, &lim, NULL, NULL, &plan));
	assert_int_equal(plan.finish, SIM_FINISH_STOP);
	assert_int_equal(plan.n_tokens, 1);
	assert_int_equal(plan.text_bytes, 0); /* The whole new part of the stop string is cut. */
	(void)sim_text_next(&t, &piece, &id);
	assert_true(cgn_str_eq(piece, (struct cgn_str){said + b.n - 2, 2}));
	assert_false(sim_text_skip(&t, CGN_STR("no such word"), NULL, NULL, &n));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chats_go_on),
		cmocka_unit_test(texts_go_on),
		cmocka_unit_test(another_text_is_a_prompt),
		cmocka_unit_test(check_refusals),
		cmocka_unit_test(parts_of_tokens_and_stops),
	};
	cgn_arena_init(&arena, 1 << 20);
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	cgn_arena_fini(&arena);
	return rc;
}
