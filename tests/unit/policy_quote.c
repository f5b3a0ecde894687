/* SPDX-License-Identifier: Apache-2.0 */
/* Quotes: intervals that hold as often as they say, for errors of several shapes and while they change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/route/quote/quote.h"

#define COVERAGE 0.9

static struct quote_book *book_open(void)
{
	struct quote_book *b = quote_book_new();
	return b;
}

static const struct quote_key one_key = {.model = 7, .holder = 9};

static struct quote_guess guess_of(double first_ms, double step_ms, uint32_t limit)
{
	struct quote_guess g = {.answer_limit = limit, .answers = true};
	g.v[QUOTE_TTFT] = (struct quote_line){true, first_ms, 0};
	g.v[QUOTE_FINISH] = (struct quote_line){true, first_ms, step_ms};
	g.v[QUOTE_COST] = (struct quote_line){true, 1000, 10};
	return g;
}

static double uniform_draw(uint64_t *random)
{
	return ((double)(mix_splitmix(random) >> 11) + 0.5) * 0x1p-53;
}

/* A factor with a long tail above 1. */
static double noise_draw(uint64_t *random)
{
	return exp(0.3 * sqrt(-2 * log(uniform_draw(random))) * cos(6.283185307 * uniform_draw(random)));
}

struct tally {
	unsigned n, sides[3];
	double ratio; /* Sum of high / low. */
};

static double share_inside(const struct tally *t)
{
	return (double)t->sides[QUOTE_INSIDE] / t->n;
}

/* Quote and learn |n| times a first byte that takes |factor| times the guess, but for noise. */
static void first_play(struct quote_book *b, const struct quote_key *key, unsigned n, double factor,
	uint64_t *random, struct tally *t)
{
	for (unsigned i = 0; i < n; i++) {
		double guess = 50 + 400 * uniform_draw(random);
		struct quote_guess g = guess_of(guess, 20, 0);
		struct quote q;
		quote_make(b, key, &g, COVERAGE, &q);
		enum quote_side s =
			quote_learn(b, &q, QUOTE_TTFT, guess * factor * noise_draw(random), COVERAGE);
		t->n++;
		t->sides[s]++;
		t->ratio += q.v[QUOTE_TTFT].high / q.v[QUOTE_TTFT].low;
	}
}

static void the_first_intervals_are_wide_and_say_so(void **state)
{
	(void)state;
	struct quote_book *b = book_open();
	struct quote_guess g = guess_of(100, 20, 0);
	struct quote q;
	quote_make(b, &one_key, &g, COVERAGE, &q);
	assert_int_equal(q.samples[QUOTE_TTFT], 0);
	assert_true(q.known[QUOTE_TTFT] && !q.known[QUOTE_JOULES]);
	assert_true(q.v[QUOTE_TTFT].low < 100 / 7.0 && q.v[QUOTE_TTFT].high > 7 * 100);
	assert_true(q.v[QUOTE_TTFT].expected > 99 && q.v[QUOTE_TTFT].expected < 101);
	uint64_t random = 1;
	struct tally t = {0};
	first_play(b, &one_key, QUOTE_LEAST, 1, &random, &t);
	quote_make(b, &one_key, &g, COVERAGE, &q);
	assert_int_equal(q.samples[QUOTE_TTFT], QUOTE_LEAST);
	assert_true(q.v[QUOTE_TTFT].high < 7 * 100);
	quote_book_free(&b);
}

static void intervals_hold_and_are_no_wider_than_the_noise(void **state)
{
	(void)state;
	struct quote_book *b = book_open();
	uint64_t random = 2;
	struct tally warm = {0}, t = {0};
	first_play(b, &one_key, 300, 1.7, &random,
		&warm); /* The guess is wrong by a factor: that is learned. */
	first_play(b, &one_key, 4000, 1.7, &random, &t);
	assert_true(share_inside(&t) > 0.885 && share_inside(&t) < 0.915);
	assert_true(t.sides[QUOTE_BELOW] > 100 && t.sides[QUOTE_ABOVE] > 100);
	/* exp(2 * 1.645 * 0.3) is 2.68. */
	assert_true(t.ratio / t.n > 2.4 && t.ratio / t.n < 3.2);
	quote_book_free(&b);
}

static void intervals_follow_nodes_that_become_slower(void **state)
{
	(void)state;
	struct quote_book *b = book_open();
	uint64_t random = 3;
	struct tally t = {0}, after = {0};
	first_play(b, &one_key, 500, 1, &random, &t);
	first_play(b, &one_key, 200, 3, &random, &after);
	assert_true(share_inside(&after) > 0.75);
	after = (struct tally){0};
	first_play(b, &one_key, 500, 3, &random, &after);
	assert_true(share_inside(&after) > 0.86);
	/* A steady drift: each request takes longer than the one before. */
	after = (struct tally){0};
	for (unsigned i = 0; i < 1000; i++)
		first_play(b, &one_key, 1, 3 * exp(i * 0.002), &random, &after);
	assert_true(share_inside(&after) > 0.87 && share_inside(&after) < 0.93);
	quote_book_free(&b);
}

static void lengths_of_answers_are_learned_by_holder(void **state)
{
	(void)state;
	struct quote_book *b = book_open();
	struct quote_key other = one_key, stranger = one_key;
	struct quote_guess g = guess_of(100, 10, 0), cut = guess_of(100, 10, 50), none = guess_of(100, 10, 0);
	struct quote q;
	other.holder = 10;
	stranger.holder = 11;
	for (unsigned i = 0; i < 200; i++) {
		quote_answer_learn(b, &one_key, 90 + i % 21);
		quote_answer_learn(b, &other, 900 + i % 201);
	}
	quote_make(b, &one_key, &g, COVERAGE, &q);
	assert_true(q.answer.low >= 90 && q.answer.low < 94 && q.answer.high > 106 && q.answer.high <= 110);
	assert_true(q.guess[QUOTE_FINISH].expected > 1050 && q.guess[QUOTE_FINISH].expected < 1150);
	quote_make(b, &other, &g, COVERAGE, &q);
	assert_true(q.answer.low >= 900 && q.answer.high <= 1100);
	quote_make(b, &stranger, &g, COVERAGE, &q); /* All holders' answers. */
	assert_true(q.answer.low < 110 && q.answer.high > 900);
	quote_make(b, &one_key, &cut, COVERAGE, &q);
	assert_true(!(q.answer.high > 50) && !(q.guess[QUOTE_FINISH].high > 600));
	none.answers = false;
	quote_make(b, &one_key, &none, COVERAGE, &q);
	assert_true(!(q.answer.high > 0) && !(q.guess[QUOTE_FINISH].high > 100));
	quote_book_free(&b);
}

static void places_and_forms_learn_apart(void **state)
{
	(void)state;
	struct quote_book *b = book_open();
	struct quote_key queued = one_key;
	struct quote_guess g = guess_of(100, 20, 0);
	struct quote q;
	uint64_t random = 4;
	struct tally t = {0};
	queued.place = QUOTE_QUEUED;
	first_play(b, &one_key, 100, 1, &random, &t);
	first_play(b, &queued, 100, 10, &random, &t);
	quote_make(b, &one_key, &g, COVERAGE, &q);
	assert_true(q.v[QUOTE_TTFT].expected < 150);
	quote_make(b, &queued, &g, COVERAGE, &q);
	assert_true(q.v[QUOTE_TTFT].expected > 800);
	double half = quote_first_ms(b, &q, 0.5), most = quote_first_ms(b, &q, 0.95);
	assert_true(half > 800 && half < 1200);
	assert_true(most > 1.2 * half && most < 2.5 * half);
	quote_book_free(&b);
}

static void odd_values_keep_intervals_sound(void **state)
{
	(void)state;
	static const double odd[] = {0, 1e300, -1, HUGE_VAL, 1e-300};
	struct quote_book *b = book_open();
	struct quote_guess g = guess_of(0, 0, 0);
	struct quote q;
	for (unsigned i = 0; i < 2000; i++) {
		g.v[QUOTE_TTFT].base = odd[i % 3];
		quote_make(b, &one_key, &g, COVERAGE, &q);
		for (unsigned f = 0; f < QUOTE_FIGURES; f++)
			assert_true(!q.known[f] ||
				(q.v[f].low >= 0 && q.v[f].expected >= q.v[f].low &&
					q.v[f].high >= q.v[f].expected));
		(void)quote_learn(b, &q, QUOTE_TTFT, odd[(i / 3) % CGN_COUNT(odd)], COVERAGE);
		(void)quote_learn(b, &q, QUOTE_TTFT, (double)NAN, COVERAGE);
		quote_answer_learn(b, &one_key, i % 2 == 0 ? UINT64_MAX : 0);
	}
	quote_book_free(&b);
}

static struct quote_range answer_of(struct quote_book *b, struct quote_key key)
{
	struct quote q;
	struct quote_guess g = guess_of(100, 20, key.limited ? 64 : 0);
	quote_make(b, &key, &g, COVERAGE, &q);
	return q.answer;
}

/* The narrowest group with some answers tells the length: session, family of prompts, holder, model. */
static void lengths_come_from_the_narrowest_group(void **state)
{
	(void)state;
	struct quote_book *b = book_open();
	const struct quote_key session = {.model = 7, .holder = 9, .family = 3, .session = 5},
			       family = {.model = 7, .holder = 9, .family = 4},
			       limited = {.model = 7, .holder = 9, .limited = true};
	for (unsigned i = 0; i < 30; i++) {
		quote_answer_learn(b, &session, 10);
		quote_answer_learn(b, &family, 1000);
		quote_answer_learn(b, &limited, 64);
	}
	assert_true(answer_of(b, session).high <= 10);
	assert_true(answer_of(b, family).low >= 1000);
	/* A new session of a known family, and a new family. */
	assert_true(
		answer_of(b, (struct quote_key){.model = 7, .holder = 9, .family = 4, .session = 6}).low >=
		1000);
	struct quote_range any = answer_of(b, (struct quote_key){.model = 7, .holder = 9, .family = 8});
	assert_true(any.low <= 10 && any.high >= 1000);
	/* Answers with a limit say nothing about others, and another holder's prompts are not looked at. */
	assert_true(answer_of(b, limited).low >= 64);
	any = answer_of(b, (struct quote_key){.model = 7, .holder = 8, .family = 4});
	assert_true(any.low <= 10 && any.high >= 1000);
	quote_book_free(&b);
}

static void many_models_and_groups_take_a_bounded_place(void **state)
{
	(void)state;
	struct quote_book *b = book_open();
	uint64_t random = 5;
	struct tally t = {0};
	struct quote q;
	struct quote_guess g = guess_of(100, 20, 0);
	for (uint64_t i = 1; i <= 3 * QUOTE_MODELS; i++) {
		struct quote_key key = {.model = mix64(i), .holder = i};
		first_play(b, &key, 2, 1, &random, &t);
		first_play(b, &one_key, 1, 1, &random, &t); /* Used all the time, so that it stays. */
	}
	for (uint64_t i = 1; i <= 3 * QUOTE_GROUPS; i++)
		quote_answer_learn(b, &(struct quote_key){.model = 7, .holder = i}, 100);
	quote_make(b, &one_key, &g, COVERAGE, &q);
	assert_int_equal(q.samples[QUOTE_TTFT], QUOTE_WINDOW);
	struct quote_key gone = {.model = mix64(1), .holder = 1};
	quote_make(b, &gone, &g, COVERAGE, &q);
	assert_int_equal(q.samples[QUOTE_TTFT], 0);
	quote_book_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_intervals_are_wide_and_say_so),
		cmocka_unit_test(intervals_hold_and_are_no_wider_than_the_noise),
		cmocka_unit_test(intervals_follow_nodes_that_become_slower),
		cmocka_unit_test(lengths_of_answers_are_learned_by_holder),
		cmocka_unit_test(places_and_forms_learn_apart),
		cmocka_unit_test(odd_values_keep_intervals_sound),
		cmocka_unit_test(lengths_come_from_the_narrowest_group),
		cmocka_unit_test(many_models_and_groups_take_a_bounded_place),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
