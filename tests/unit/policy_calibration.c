/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/answer/cascade/calibration.h"
#include "policy/answer/cascade/cascade.h"
#include "policy/answer/cascade/compare.h"
#include "policy/answer/cascade/known.h"

/* ---- the curve ---- */

static double next_uniform(uint64_t *seed)
{
	*seed += MIX_GOLDEN;
	return (double)(mix64(*seed) >> 11) / 9007199254740992.0;
}

static bool is_near(double a, double b, double by)
{
	return fabs(a - b) <= by;
}

/* Compare |n| answers of random doubt, which are wrong with the probability doubt^power. Returns whether the state changed. */
static bool answers_add(struct calibration *c, uint64_t *seed, unsigned n, double power)
{
	bool changed = false;
	for (unsigned i = 0; i < n; i++) {
		double doubt = next_uniform(seed);
		changed |= calibration_add(c, doubt, next_uniform(seed) < pow(doubt, power));
	}
	return changed;
}

static void test_no_curve_before_enough_comparisons(void **state)
{
	struct calibration c = {0};
	uint64_t seed = 1;
	(void)state;
	assert_false(answers_add(&c, &seed, CALIBRATION_LEAST - 1, 1));
	assert_int_equal(c.curve.n, 0);
	assert_true(calibration_ece(&c) < 0);
	assert_true(is_near(calibration_error_of(&c.curve, 0.1), 1, 0));
	assert_true(answers_add(&c, &seed, 1, 1));
	assert_int_equal(c.state, CALIBRATION_HOLDS);
	assert_true(c.curve.n > 0);
}

static void test_the_curve_is_the_probability_and_rises(void **state)
{
	struct calibration c = {0};
	uint64_t seed = 2;
	(void)state;
	(void)answers_add(&c, &seed, 4 * CALIBRATION_PAIRS, 1);
	assert_int_equal(c.state, CALIBRATION_HOLDS);
	for (uint32_t i = 1; i < c.curve.n; i++) {
		assert_true(c.curve.upto[i] > c.curve.upto[i - 1]);
		assert_true(c.curve.error[i] > c.curve.error[i - 1]);
	}
	for (int i = 1; i < 10; i++)
		assert_true(is_near(calibration_error_of(&c.curve, i / 10.0), i / 10.0, 0.15));
	assert_true(calibration_ece(&c) < 0.1);
}

/* Isotonic regression makes one group, with the mean, of two whose shares of errors fall. */
static void test_groups_that_fall_are_one(void **state)
{
	struct calibration c = {0};
	(void)state;
	for (unsigned i = 0; i < CALIBRATION_LEAST; i++)
		(void)calibration_add(&c, i < 25 ? 0.2 : 0.8, i < 25 ? i % 2 == 0 : i % 4 == 0);
	assert_int_equal(c.curve.n, 1);
	assert_true(is_near(calibration_error_of(&c.curve, 0.1), (13 + 6) / 50.0, 0.021));
	assert_true(is_near(calibration_error_of(&c.curve, 0.9), calibration_error_of(&c.curve, 0.1), 0));
}

static void test_a_drift_forgets_and_is_over_after_enough_comparisons(void **state)
{
	struct calibration c = {0};
	uint64_t seed = 3;
	(void)state;
	(void)answers_add(&c, &seed, 300, 4);
	assert_int_equal(c.state, CALIBRATION_HOLDS);
	unsigned n = 0;
	while (c.state == CALIBRATION_HOLDS && n++ < 200)
		(void)calibration_add(&c, next_uniform(&seed), true);
	assert_int_equal(c.state, CALIBRATION_DRIFTED);
	assert_true(n <= CALIBRATION_RECENT / 6);
	assert_int_equal(c.curve.n, 0);
	assert_false(answers_add(&c, &seed, CALIBRATION_LEAST - 1, 1));
	assert_int_equal(c.state, CALIBRATION_DRIFTED);
	assert_true(answers_add(&c, &seed, 1, 1));
	assert_int_equal(c.state, CALIBRATION_HOLDS);
}

static void test_no_drift_where_nothing_changes(void **state)
{
	(void)state;
	for (uint64_t s = 1; s <= 8; s++) {
		struct calibration c = {0};
		uint64_t seed = s * 1000;
		(void)answers_add(&c, &seed, 1000, s % 2 == 0 ? 1 : 4);
		assert_int_equal(c.state, CALIBRATION_HOLDS);
	}
}

static void test_the_gate_follows_the_curve(void **state)
{
	const struct calibration_curve none = {0},
				       known = {.n = 2,
					       .upto = {0.3F, 1},
					       .error = {0.05F, 0.6F},
					       .bound = {0.1F, 0.5F}};
	struct cascade_gate g = {.threshold = -1, .curve = NULL, .max_error = 0.11};
	const struct cascade_answer
		sure = {.most = 2, .n = 2, .seen = 2, .logprob = -4, .margin = 1.8, .entropy = 0.2},
		unsure = {.most = 2, .n = 2, .seen = 2, .logprob = -0.2, .margin = 0.2, .entropy = 1.8};
	(void)state;
	assert_int_equal(cascade_judge(&g, &sure, false), CASCADE_ESCALATE);
	assert_int_equal(cascade_judge(&g, &unsure, false), CASCADE_RELEASE);
	g.curve = &none; /* learns: no threshold lets an answer pass */
	assert_int_equal(cascade_judge(&g, &sure, false), CASCADE_ESCALATE);
	assert_int_equal(cascade_judge(&g, &unsure, false), CASCADE_ESCALATE);
	g.curve = &known;
	assert_int_equal(cascade_judge(&g, &sure, false), CASCADE_RELEASE);
	assert_int_equal(cascade_judge(&g, &unsure, false), CASCADE_ESCALATE);
	g.max_error = 0.09; /* below the bound, not the error */
	assert_int_equal(cascade_judge(&g, &sure, false), CASCADE_ESCALATE);
}

/* ---- a cascade as a whole: a router whose requests are made here ---- */

/* |right|: of an answer of that doubt, whether it is the large model's. */
struct cascade_world {
	struct calibration c;
	uint64_t seed;
	double asked;                                  /* calibration_share */
	unsigned requests, passed, wrong, asked_again; /* prompts of clients, and those asked again */
	bool busy;                                     /* no prompt can be asked again */
};
#define MAX_ERROR 0.1

static void client_asks(struct cascade_world *w, double doubt, bool right)
{
	bool again = next_uniform(&w->seed) < calibration_share_of(&w->c, w->asked, MAX_ERROR);
	w->requests++;
	if (calibration_trust_of(&w->c, MAX_ERROR) == CALIBRATION_TRUSTED) {
		bool passes = calibration_passes(&w->c.curve, doubt, MAX_ERROR);
		w->passed += passes;
		w->wrong += passes && !right;
		(void)calibration_saw(&w->c, doubt, passes);
	}
	if (!again || w->busy)
		return;
	w->asked_again++;
	(void)calibration_add(&w->c, doubt, !right);
}

/* Half of the prompts are easy; an answer is wrong with the probability doubt^|power|. */
static void clients_ask(struct cascade_world *w, unsigned n, double power)
{
	for (unsigned i = 0; i < n; i++) {
		double doubt = next_uniform(&w->seed);
		client_asks(w, doubt, next_uniform(&w->seed) >= pow(doubt, power));
	}
}

/* From now on the small model is sure of everything, and |share| of it is wrong. */
static void clients_ask_a_broken_model(struct cascade_world *w, unsigned n, double share)
{
	for (unsigned i = 0; i < n; i++)
		client_asks(w, 0.1 * next_uniform(&w->seed), next_uniform(&w->seed) >= share);
}

static void test_nothing_passes_before_the_error_is_known(void **state)
{
	(void)state;
	for (uint64_t s = 1; s <= 50; s++) {
		static struct cascade_world w;
		w = (struct cascade_world){.seed = s, .asked = 0.08};
		/* Half are wrong however sure they are, as of a model that the threshold lets pass. */
		clients_ask_a_broken_model(&w, 300, 137.0 / 300);
		assert_int_equal(w.passed, 0);
		assert_int_equal(w.asked_again, 300);
		clients_ask_a_broken_model(&w, 5000, 137.0 / 300);
		assert_int_equal(w.passed, 0);
		assert_true(w.asked_again < 1200); /* all of 512, then the share that was asked for */
		w = (struct cascade_world){.seed = s, .asked = 0.08};
		clients_ask(&w, CALIBRATION_LEAST - 1, 4);
		assert_int_equal(w.passed, 0);
		clients_ask(&w, 2000, 4);
		assert_true(w.passed > 400 && w.wrong * 10 <= w.passed);
		assert_true(w.asked_again < 700);
	}
}

static void test_few_comparisons_prove_nothing(void **state)
{
	struct calibration c = {0};
	(void)state;
	for (unsigned i = 0; i < CALIBRATION_LEAST; i++)
		(void)calibration_add(&c, 0.1, false);
	assert_int_equal(calibration_trust_of(&c, MAX_ERROR), CALIBRATION_TRUSTED);
	assert_int_equal(calibration_trust_of(&c, 0.02), CALIBRATION_UNPROVEN);
	assert_true(is_near(calibration_share_of(&c, 0.1, 0.02), 1, 0));
	assert_true(is_near(calibration_needed(MAX_ERROR), CALIBRATION_LEAST, 0));
	assert_true(is_near(calibration_needed(0.02), 196, 0));
	assert_true(
		calibration_needed(0.007) > CALIBRATION_PAIRS && calibration_needed(0) > CALIBRATION_PAIRS);
	for (unsigned i = CALIBRATION_LEAST; i < 195; i++)
		(void)calibration_add(&c, 0.1, false);
	assert_int_equal(calibration_trust_of(&c, 0.02), CALIBRATION_UNPROVEN);
	(void)calibration_add(&c, 0.1, false);
	assert_int_equal(calibration_trust_of(&c, 0.02), CALIBRATION_TRUSTED);
	assert_true(is_near(calibration_share_of(&c, 0.1, 0.02), 0.1, 0));
}

static unsigned until_distrusted(struct cascade_world *w, double share, unsigned most)
{
	unsigned n = 0;
	while (calibration_trust_of(&w->c, MAX_ERROR) == CALIBRATION_TRUSTED && n < most) {
		clients_ask_a_broken_model(w, 1, share);
		n++;
	}
	return n;
}

static void test_a_model_that_turns_sure_and_wrong_is_noticed_within_500_requests(void **state)
{
	static const double asked[] = {0.08, 0.02, 1e-9};
	(void)state;
	for (uint64_t s = 1; s <= 60; s++) {
		static struct cascade_world w;
		w = (struct cascade_world){.seed = s, .asked = asked[s % 3], .busy = false};
		clients_ask(&w, 2000, 4);
		unsigned before = w.wrong;
		(void)until_distrusted(&w, 1, 500);
		assert_int_not_equal(calibration_trust_of(&w.c, MAX_ERROR), CALIBRATION_TRUSTED);
		clients_ask_a_broken_model(&w, 8000, 1);
		assert_true(w.wrong - before <= 500);
	}
}

/* The doubts are as before, so that only comparisons tell. */
static void test_a_model_that_turns_wrong_is_noticed_before_500_wrong_answers(void **state)
{
	static const double asked[] = {0.08, 0.02, 1e-9};
	(void)state;
	for (uint64_t s = 1; s <= 60; s++) {
		static struct cascade_world w;
		w = (struct cascade_world){.seed = s, .asked = asked[s % 3]};
		clients_ask(&w, 2000, 4);
		unsigned before = w.wrong, n = 0;
		while (w.c.state != CALIBRATION_DRIFTED && n++ < 4000)
			clients_ask(&w, 1, 0);
		assert_int_equal(w.c.state, CALIBRATION_DRIFTED);
		assert_true(w.wrong - before > 0 && w.wrong - before <= 500);
		assert_true(s % 3 != 0 || n <= 500); /* the default share */
		before = w.wrong;
		clients_ask(&w, 4000, 0);
		assert_int_equal(w.wrong, before);
	}
}

static void client_asks_of_changed(struct cascade_world *w, double times, double sure)
{
	double doubt = next_uniform(&w->seed), error = times * pow(doubt, 4);
	bool turned = next_uniform(&w->seed) < sure;
	client_asks(w, turned ? 0.1 * doubt : doubt, !turned && next_uniform(&w->seed) >= error);
}

/* Return of how many of 20 seeds it was noticed within 500 requests that errors come |times| as often, and that the share |sure| of
 * the prompts gets sure and wrong answers. */
static unsigned noticed_soon(double times, double sure)
{
	unsigned soon = 0;
	for (uint64_t s = 1; s <= 20; s++) {
		static struct cascade_world w;
		w = (struct cascade_world){.seed = s * 31, .asked = 0.08};
		clients_ask(&w, 3000, 4);
		for (unsigned i = 0; i < 500 && w.c.state != CALIBRATION_DRIFTED; i++)
			client_asks_of_changed(&w, times, sure);
		soon += w.c.state == CALIBRATION_DRIFTED;
	}
	return soon;
}

static void test_a_model_that_got_worse_is_noticed_soon(void **state)
{
	(void)state;
	assert_int_equal(noticed_soon(1, 0), 0);
	assert_true(noticed_soon(2, 0) >= 8);
	assert_true(noticed_soon(4, 0) >= 18);
	assert_true(noticed_soon(1, 0.1) >= 6);
	assert_true(noticed_soon(1, 0.2) >= 19);
}

/* More sure answers without errors: all prompts are compared for a while, and nothing is forgotten. */
static void test_answers_that_got_surer_are_compared(void **state)
{
	static struct cascade_world w;
	unsigned most = 0;
	(void)state;
	w = (struct cascade_world){.seed = 12, .asked = 0.08};
	clients_ask(&w, 3000, 4);
	for (unsigned i = 0; i < 1000; i++) {
		double doubt = next_uniform(&w.seed);
		client_asks(&w, next_uniform(&w.seed) < 0.15 ? 0.1 * doubt : doubt,
			next_uniform(&w.seed) >= pow(doubt, 4));
		most = w.c.suspect > most ? w.c.suspect : most;
		if (w.c.suspect > 0)
			assert_true(is_near(calibration_share_of(&w.c, 0.08, MAX_ERROR), 1, 0));
	}
	assert_int_equal(most, CALIBRATION_SUSPECT);
	assert_int_equal(w.c.suspect, 0);
	assert_int_equal(w.c.state, CALIBRATION_HOLDS);
}

static void test_the_requests_to_an_alarm_are_told(void **state)
{
	(void)state;
	assert_true(is_near(calibration_noticed_after(0.08, 0.05, 0.1), 1180, 20));
	assert_true(is_near(calibration_noticed_after(0.08, 0.05, 0.2), 254, 5));
	assert_true(calibration_noticed_after(0.08, 0.05, 1) < 50);
	/* Answers that pass cost a comparison in 16. */
	assert_true(is_near(calibration_noticed_after(0.01, 0.05, 0.1),
		calibration_noticed_after(1.0 / 16, 0.05, 0.1), 0));
	assert_true(isinf(calibration_noticed_after(0.08, 0.01, 0.02)));
}

/* Nothing can be compared: no more pass than were earned before. */
static void test_a_busy_time_lets_few_pass_unseen(void **state)
{
	static struct cascade_world w;
	(void)state;
	w = (struct cascade_world){.seed = 5, .asked = 0.08};
	clients_ask(&w, 2000, 4);
	w.busy = true;
	w.passed = w.wrong = 0;
	clients_ask(&w, 8000, 0);
	assert_int_equal(calibration_trust_of(&w.c, MAX_ERROR), CALIBRATION_UNSEEN);
	assert_true(w.passed > 0 && w.passed <= CALIBRATION_CREDIT);
}

/* No comparison is needed to see that all answers are sure now. */
static void test_the_doubts_of_clients_answers_alone_tell_a_change(void **state)
{
	static struct cascade_world w;
	(void)state;
	w = (struct cascade_world){.seed = 6, .asked = 0.08};
	clients_ask(&w, 2000, 4);
	assert_int_equal(calibration_trust_of(&w.c, MAX_ERROR), CALIBRATION_TRUSTED);
	w.busy = true;
	unsigned n = until_distrusted(&w, 0, 200);
	assert_true(n < 200);
	assert_int_equal(calibration_trust_of(&w.c, MAX_ERROR), CALIBRATION_MOVED);
}

static void test_clients_whose_prompts_do_not_change_raise_no_alarm(void **state)
{
	(void)state;
	for (uint64_t s = 1; s <= 20; s++) {
		static struct cascade_world w;
		w = (struct cascade_world){.seed = s * 77, .asked = s % 2 == 0 ? 0.08 : 1e-9};
		clients_ask(&w, 500, 4);
		for (unsigned i = 0; i < 5000; i++) {
			clients_ask(&w, 1, 4);
			assert_int_not_equal(w.c.state, CALIBRATION_DRIFTED);
			assert_int_not_equal(calibration_trust_of(&w.c, MAX_ERROR), CALIBRATION_UNSEEN);
		}
		assert_true(w.passed > 1500 && w.wrong * 10 <= w.passed);
	}
}

/* ---- comparing ---- */

static struct cgn_str chat_answer(char *room, size_t cap, const char *message, const char *finish)
{
	int n = snprintf(room, cap,
		"{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",%s},\"finish_reason\":\"%s\"}]}",
		message, finish);
	assert_true(n > 0 && (size_t)n < cap);
	return (struct cgn_str){room, (size_t)n};
}

static enum cascade_likeness likeness_of(const char *a, const char *b)
{
	char x[1024], y[1024];
	return cascade_compare(chat_answer(x, sizeof x, a, "stop"), chat_answer(y, sizeof y, b, "stop"));
}

#define CALL(name, arguments)                                                           \
	"\"content\":null,\"tool_calls\":[{\"id\":\"x\",\"function\":{\"name\":\"" name \
	"\",\"arguments\":\"" arguments "\"}}]"

static void test_answers_are_compared(void **state)
{
	char room[1024];
	(void)state;
	assert_int_equal(likeness_of("\"content\":\"four\"", "\"content\":\" four\\n\""), CASCADE_SAME);
	assert_int_equal(likeness_of("\"content\":\"four\"", "\"content\":\"five\""), CASCADE_DIFFERENT);
	assert_int_equal(likeness_of("\"content\":\"{\\\"a\\\": 1, \\\"b\\\": [true, null]}\"",
				 "\"content\":\"{\\\"b\\\":[true,null],\\\"a\\\":1.0}\""),
		CASCADE_SAME);
	assert_int_equal(likeness_of("\"content\":\"{\\\"a\\\": 1}\"", "\"content\":\"{\\\"a\\\":2}\""),
		CASCADE_DIFFERENT);
	assert_int_equal(likeness_of("\"content\":\"[1]\"", "\"content\":\"[1,2]\""), CASCADE_DIFFERENT);
	assert_int_equal(likeness_of(CALL("f", "{\\\"x\\\": 1}"), CALL("f", "{\\\"x\\\":1}")), CASCADE_SAME);
	assert_int_equal(likeness_of(CALL("f", "{}"), CALL("g", "{}")), CASCADE_OTHER);
	assert_int_equal(likeness_of(CALL("f", "{}"), "\"content\":\"f\""), CASCADE_OTHER);
	struct cgn_str cut = chat_answer(room, sizeof room, "\"content\":\"\"", "length");
	assert_int_equal(cascade_compare(cut, cut), CASCADE_UNKNOWN);
	cut = chat_answer(room, sizeof room, "\"content\":\"a\"", "abort");
	assert_int_equal(cascade_compare(cut, cut), CASCADE_UNKNOWN);
	const struct cgn_str text = CGN_STR("{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}");
	assert_int_equal(cascade_compare(text, text), CASCADE_SAME);
	assert_int_equal(cascade_compare(text, CGN_STR("{\"error\":{}}")), CASCADE_UNKNOWN);
}

static enum cascade_likeness cut_likeness(const char *a, const char *ends, const char *b, const char *other)
{
	char x[1024], y[1024];
	return cascade_compare(chat_answer(x, sizeof x, a, ends), chat_answer(y, sizeof y, b, other));
}

static void test_answers_that_are_cut_are_compared_as_far_as_they_go(void **state)
{
	(void)state;
#define TEXT(s) "\"content\":\"" s "\""
	assert_int_equal(cut_likeness(TEXT("one t"), "length", TEXT("one two"), "length"), CASCADE_SAME);
	assert_int_equal(cut_likeness(TEXT("one two"), "length", TEXT("one t "), "length"), CASCADE_SAME);
	assert_int_equal(cut_likeness(TEXT("one t"), "length", TEXT("one two"), "stop"), CASCADE_SAME);
	assert_int_equal(cut_likeness(TEXT("one"), "stop", TEXT("one two"), "length"), CASCADE_DIFFERENT);
	assert_int_equal(cut_likeness(TEXT("two"), "length", TEXT("one two"), "length"), CASCADE_DIFFERENT);
	assert_int_equal(cut_likeness(CALL("f", "{"), "length", CALL("f", "{"), "length"), CASCADE_UNKNOWN);
}

static void test_the_second_asking_is_whole_and_greedy(void **state)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_val v;
	(void)state;
	assert_true(cgn_ok(json_parse(
		CGN_STR("{\"model\":\"large\",\"stream\":true,\"str\\u0065am_options\":{},\"temperature\":0.7,\"max_tokens\":9,\"logprobs\":true,\"messages\":[]}"),
		&v, NULL, NULL)));
	cascade_double_body(PROMPT_CHAT, v, CGN_STR("small"), true, &b);
	assert_true(cgn_str_is(cgn_buf_view(&b),
		"{\"model\":\"small\",\"stream\":false,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":5,\"max_tokens\":9,\"messages\":[]}"));
	b.n = 0;
	cascade_double_body(PROMPT_COMPLETIONS, v, CGN_STR("l\"x"), false, &b);
	assert_true(cgn_str_is(cgn_buf_view(&b),
		"{\"model\":\"l\\\"x\",\"stream\":false,\"temperature\":0,\"max_tokens\":9,\"messages\":[]}"));
}

static void test_a_judge_gets_both_texts_and_its_cosine_counts(void **state)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	char x[256], y[256];
	(void)state;
	cascade_judge_body(chat_answer(x, sizeof x, "\"content\":\"a \\\"b\"", "stop"),
		chat_answer(y, sizeof y, "\"content\":\"c\"", "stop"), CGN_STR("j"), &b);
	assert_true(cgn_str_is(cgn_buf_view(&b), "{\"model\":\"j\",\"input\":[\"a \\\"b\",\"c\"]}"));
	assert_true(is_near(cascade_similarity(
				    CGN_STR("{\"data\":[{\"embedding\":[1,0]},{\"embedding\":[2,0]}]}")),
		1, 1e-12));
	assert_true(is_near(cascade_similarity(
				    CGN_STR("{\"data\":[{\"embedding\":[1,0]},{\"embedding\":[0,3]}]}")),
		0, 1e-12));
	assert_true(
		isnan(cascade_similarity(CGN_STR("{\"data\":[{\"embedding\":[1,0]},{\"embedding\":[1]}]}"))));
	assert_true(
		isnan(cascade_similarity(CGN_STR("{\"data\":[{\"embedding\":[1]},{\"embedding\":[1,0]}]}"))));
	assert_true(isnan(cascade_similarity(CGN_STR("{\"data\":[{\"embedding\":[1,0]}]}"))));
	assert_true(isnan(cascade_similarity(
		CGN_STR("{\"data\":[{\"embedding\":\"AAAA\"},{\"embedding\":\"AAAA\"}]}"))));
}

/* ---- lines of a file ---- */

/* Write |k|, and read it again. */
static void known_copy(const struct calibration_known *k, struct calibration_known *out)
{
	struct cgn_buf text = {0};
	struct cgn_err err = {.msg = ""};
	calibration_known_put(k, &text);
	struct cgn_str lines = cgn_buf_view(&text);
	cgn_rc rc = calibration_known_take(&lines, out, &err);
	assert_string_equal(err.msg, "");
	assert_true(cgn_ok(rc) && lines.n == 0);
	cgn_buf_fini(&text);
}

static void test_what_is_known_survives_as_lines(void **state)
{
	static struct calibration_known k, same;
	uint64_t seed = 7;
	(void)state;
	k = (struct calibration_known){.small = "s 1",
		.large = "l",
		.basis = UINT64_MAX,
		.same = 3,
		.different = 4};
	calibration_known_mark(&k, 0, 11);
	calibration_known_mark(&k, 1, 12);
	calibration_known_mark(&k, 1, 12);
	(void)answers_add(&k.calibration, &seed, CALIBRATION_PAIRS + 100, 1); /* The ring has turned. */
	known_copy(&k, &same);
	assert_string_equal(same.small, "s 1");
	assert_string_equal(same.large, "l");
	assert_true(same.basis == UINT64_MAX && same.same == 3 && same.different == 4);
	assert_true(same.n_marks[0] == 1 && same.n_marks[1] == 1 && same.marks[0][0] == 11 &&
		same.marks[1][0] == 12);
	assert_int_equal(same.calibration.state, CALIBRATION_HOLDS);
	assert_int_equal(same.calibration.n, CALIBRATION_PAIRS);
	for (int i = 0; i <= 100; i++)
		assert_true(is_near(calibration_error_of(&k.calibration.curve, i / 100.0),
			calibration_error_of(&same.calibration.curve, i / 100.0), 0.05));
	assert_true(is_near(calibration_ece(&k.calibration), calibration_ece(&same.calibration), 0.01));
	/* The next comparison replaces the oldest one in both. */
	(void)calibration_add(&k.calibration, 0.5, true);
	(void)calibration_add(&same.calibration, 0.5, true);
	assert_true(
		is_near((double)k.calibration.curve.error[0], (double)same.calibration.curve.error[0], 0.05));
	calibration_known_forget(&same);
	assert_true(same.calibration.n == 0 && same.n_marks[0] == 0 && same.small[0] == 's');
}

static void test_a_drift_is_kept(void **state)
{
	static struct calibration_known k, same;
	(void)state;
	k = (struct calibration_known){.small = "s", .large = "l", .calibration.state = CALIBRATION_DRIFTED};
	(void)calibration_add(&k.calibration, 0.25, true);
	known_copy(&k, &same);
	assert_int_equal(same.calibration.state, CALIBRATION_DRIFTED);
	assert_true(same.calibration.n == 1 && same.calibration.pairs[0].wrong &&
		same.calibration.pairs[0].told < 0);
	assert_true(is_near((double)same.calibration.pairs[0].doubt, 0.25, 1e-6));
}

static void test_lines_that_are_none_of_a_pair_are_refused(void **state)
{
	static const char *const bad[] = {"pair 1 2", "pair 1 2 3\nsmall a", "small a\nlarge b",
		"pair 1 2 3\nsmall a\nsmall b\nlarge c", "pair 1 2 3\nsmall a\nlarge b\ncompared 1000001 - 0",
		"pair 1 2 3\nsmall a\nlarge b\ncompared 1 - 2", "pair 1 2 3\nsmall a\nlarge b\nengine 2 1",
		"pair 1 2 3\nsmall a\nlarge b\ncompared 1 - 0\ndrifted", "pair 1 2 3\nsmall a\nlarge b\nmore",
		"pair -1 2 3\nsmall a\nlarge b", "pair 1 2 3\nsmall \nlarge b", ""};
	static struct calibration_known k;
	struct cgn_buf many = {0};
	struct cgn_err err;
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct cgn_str lines = cgn_str_of(bad[i]);
		assert_false(cgn_ok(calibration_known_take(&lines, &k, &err)));
	}
	cgn_buf_putz(&many, "pair 1 2 3\nsmall a\nlarge b\n");
	for (int i = 0; i <= CALIBRATION_PAIRS; i++)
		cgn_buf_putz(&many, "compared 1 - 0\n");
	struct cgn_str lines = cgn_buf_view(&many);
	assert_false(cgn_ok(calibration_known_take(&lines, &k, &err)));
	cgn_buf_fini(&many);
	k = (struct calibration_known){.small = "a\nb", .large = "c"};
	calibration_known_put(&k, &many);
	assert_int_equal(many.n, 0);
}

static void test_only_some_engines_are_told_apart(void **state)
{
	static struct calibration_known k;
	(void)state;
	for (uint64_t i = 1; i < CALIBRATION_MARKS; i++)
		calibration_known_mark(&k, 1, i);
	assert_true(calibration_known_has(&k, 1, 1) && !calibration_known_has(&k, 1, 99));
	assert_false(calibration_known_has(&k, 0, 1));
	calibration_known_mark(&k, 1, CALIBRATION_MARKS);
	calibration_known_mark(&k, 1, 99); /* There is no room. */
	assert_true(k.n_marks[1] == CALIBRATION_MARKS && calibration_known_has(&k, 1, 99));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_curve_before_enough_comparisons),
		cmocka_unit_test(test_the_curve_is_the_probability_and_rises),
		cmocka_unit_test(test_groups_that_fall_are_one),
		cmocka_unit_test(test_a_drift_forgets_and_is_over_after_enough_comparisons),
		cmocka_unit_test(test_no_drift_where_nothing_changes),
		cmocka_unit_test(test_the_gate_follows_the_curve),
		cmocka_unit_test(test_nothing_passes_before_the_error_is_known),
		cmocka_unit_test(test_few_comparisons_prove_nothing),
		cmocka_unit_test(test_a_model_that_turns_sure_and_wrong_is_noticed_within_500_requests),
		cmocka_unit_test(test_a_model_that_turns_wrong_is_noticed_before_500_wrong_answers),
		cmocka_unit_test(test_a_model_that_got_worse_is_noticed_soon),
		cmocka_unit_test(test_answers_that_got_surer_are_compared),
		cmocka_unit_test(test_the_requests_to_an_alarm_are_told),
		cmocka_unit_test(test_a_busy_time_lets_few_pass_unseen),
		cmocka_unit_test(test_the_doubts_of_clients_answers_alone_tell_a_change),
		cmocka_unit_test(test_clients_whose_prompts_do_not_change_raise_no_alarm),
		cmocka_unit_test(test_answers_that_are_cut_are_compared_as_far_as_they_go),
		cmocka_unit_test(test_answers_are_compared),
		cmocka_unit_test(test_the_second_asking_is_whole_and_greedy),
		cmocka_unit_test(test_what_is_known_survives_as_lines),
		cmocka_unit_test(test_a_drift_is_kept),
		cmocka_unit_test(test_lines_that_are_none_of_a_pair_are_refused),
		cmocka_unit_test(test_only_some_engines_are_told_apart),
		cmocka_unit_test(test_a_judge_gets_both_texts_and_its_cosine_counts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
