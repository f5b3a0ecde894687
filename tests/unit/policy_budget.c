/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/who/budget/budget.h"

#define NOON   UINT64_C(1764504000) /* 2025-11-30 12:00:00 UTC, the last day of a month. */
#define DAY_S  UINT64_C(86400)
#define ACME   CGN_STR("t:acme")
#define ROUNDS 20000

static void is_read(const char *text, enum budget_unit unit, enum budget_window window, uint64_t limit,
	const char *written)
{
	struct budget_set s = {0};
	struct cgn_err err;
	char out[BUDGET_TEXT_MAX];
	if (!cgn_ok(budget_set_add(&s, cgn_str_of(text), &err)))
		fail_msg("%s: %s", text, err.msg);
	assert_int_equal(s.v[0].unit, unit);
	assert_int_equal(s.v[0].window, window);
	assert_true(s.v[0].limit == limit);
	budget_text(&s.v[0], out);
	assert_string_equal(out, written);
}

static void is_refused(const char *text, const char *says)
{
	struct budget_set s = {0};
	struct cgn_err err;
	assert_false(cgn_ok(budget_set_add(&s, cgn_str_of(text), &err)));
	if (strstr(err.msg, says) == NULL)
		fail_msg("%s: %s", text, err.msg);
	assert_int_equal(s.n, 0);
}

static void prices_are_rounded_up_to_money(void **state)
{
	(void)state;
	assert_int_equal(budget_of_prices(0), 0);
	assert_int_equal(budget_of_prices(1), 1);
	assert_int_equal(budget_of_prices(1000), 1);
	assert_int_equal(budget_of_prices(1001), 2);
	assert_int_equal(budget_of_prices(BUDGET_PRICE_SCALE), BUDGET_MONEY_SCALE);
	assert_int_equal(budget_of_prices((budget_prices)UINT64_MAX * UINT64_MAX), BUDGET_AMOUNT_MAX);
}

static void budgets_are_read(void **state)
{
	(void)state;
	is_read("1000 requests/day", BUDGET_REQUESTS, BUDGET_DAY, 1000, "1000 requests/day");
	is_read("2M tokens/month", BUDGET_TOKENS, BUDGET_MONTH, 2000000, "2000000 tokens/month");
	is_read(" 1.5k tokens / minute ", BUDGET_TOKENS, BUDGET_MINUTE, 1500, "1500 tokens/minute");
	is_read("5.50USD/day", BUDGET_MONEY, BUDGET_DAY, UINT64_C(5500000000), "5.5 USD/day");
	is_read("0.000000001 EUR/month", BUDGET_MONEY, BUDGET_MONTH, 1, "0.000000001 EUR/month");
	is_read("9MXN/day", BUDGET_MONEY, BUDGET_DAY, UINT64_C(9000000000), "9 MXN/day");
	is_read("9MMXN/day", BUDGET_MONEY, BUDGET_DAY, UINT64_C(9000000000000000), "9000000 MXN/day");
	is_read("3 kWh/day", BUDGET_JOULES, BUDGET_DAY, UINT64_C(10800000000), "10800000 joules/day");
	is_read("3kkWh/day", BUDGET_JOULES, BUDGET_DAY, UINT64_C(10800000000000), "10800000000 joules/day");
	is_read("0.25 joules/minute", BUDGET_JOULES, BUDGET_MINUTE, 250, "0.25 joules/minute");
	is_read("1G requests/month", BUDGET_REQUESTS, BUDGET_MONTH, 1000000000, "1000000000 requests/month");
	is_refused("", "must begin with a number");
	is_refused("-1 requests/day", "must begin with a number");
	is_refused("1. requests/day", "must begin with a number");
	is_refused("1..2 requests/day", "must begin with a number");
	is_refused("requests/day", "must begin with a number");
	is_refused("99999999999999999999999999999999999999999 tokens/day", "must begin with a number");
	is_refused("1000000000000000001 tokens/day", "too large");
	/* 2^128 / 10^9 and a little: the product with a thousand million is small again without a bound. */
	is_refused("340282366920938463463374608Gtokens/day", "too large");
	is_refused("340282366920938464Gtokens/day", "too large");
	is_refused("1000000000000000000Gtokens/day", "too large");
	is_refused("999999999999999999.999999999Gtokens/day", "too large");
	is_refused("999999999999999999GkWh/day", "too large");
	is_refused("999999999999999999kkWh/day", "too large");
	is_refused("1000000000000G USD/day", "too large");
	is_refused("0 requests/day", "less than");
	is_refused("0.5 requests/day", "less than");
	is_refused("5 usd/day", "must be of requests");
	is_refused("5 USDX/day", "must be of requests");
	is_refused("5 requests", "must end with");
	is_refused("5 requests/week", "must end with");
	is_refused("5 requests/day/day", "must end with");
}

static void a_set_has_each_budget_once(void **state)
{
	(void)state;
	struct budget_set s = {0};
	struct cgn_err err;
	assert_null(budget_set_currency(&s));
	assert_true(cgn_ok(budget_set_add(&s, CGN_STR("5 USD/day"), &err)));
	assert_true(cgn_ok(budget_set_add(&s, CGN_STR("50 USD/month"), &err)));
	assert_string_equal(budget_set_currency(&s), "USD");
	assert_false(cgn_ok(budget_set_add(&s, CGN_STR("6 USD/day"), &err)));
	assert_non_null(strstr(err.msg, "two budgets of USD a day"));
	assert_false(cgn_ok(budget_set_add(&s, CGN_STR("6 EUR/minute"), &err)));
	assert_non_null(strstr(err.msg, "USD and EUR"));
	assert_int_equal(s.n, 2);
	static const char *const more[] = {"1 requests/minute", "1 requests/day", "1 requests/month",
		"1 tokens/minute", "1 tokens/day", "1 tokens/month"};
	for (size_t i = 0; i < CGN_COUNT(more); i++)
		assert_true(cgn_ok(budget_set_add(&s, cgn_str_of(more[i]), &err)));
	assert_false(cgn_ok(budget_set_add(&s, CGN_STR("1 joules/day"), &err)));
	assert_non_null(strstr(err.msg, "more than 8"));
}

static void windows_are_those_of_the_calendar(void **state)
{
	(void)state;
	uint64_t december = NOON + DAY_S / 2;
	assert_true(budget_window_end(BUDGET_MONTH, budget_window_at(BUDGET_MONTH, NOON)) == december);
	assert_true(budget_window_end(BUDGET_DAY, budget_window_at(BUDGET_DAY, NOON)) == december);
	assert_true(
		budget_window_end(BUDGET_MINUTE, budget_window_at(BUDGET_MINUTE, NOON + 59)) == NOON + 60);
	assert_true(budget_window_end(BUDGET_MONTH, budget_window_at(BUDGET_MONTH, december)) ==
		december + 31 * DAY_S);
	for (int w = 0; w < BUDGET_WINDOWS; w++) /* Each second is in one window. */
		for (uint64_t t = NOON; t < NOON + 900 * DAY_S; t += 3571 * 7) {
			uint64_t n = budget_window_at((enum budget_window)w, t),
				 end = budget_window_end((enum budget_window)w, n);
			assert_true(t < end && budget_window_at((enum budget_window)w, end - 1) == n);
			assert_true(budget_window_at((enum budget_window)w, end) == n + 1);
		}
	(void)budget_window_at(BUDGET_MONTH, UINT64_MAX);
}

struct world {
	struct budget_book *book;
	struct budget_set set;
};

static struct world world_of(const char *budget)
{
	struct world w = {0};
	struct cgn_err err;
	w.book = budget_book_new();
	assert_true(cgn_ok(budget_set_add(&w.set, cgn_str_of(budget), &err)));
	return w;
}

static struct budget_amounts tokens_of(uint64_t n)
{
	return (struct budget_amounts){.v = {[BUDGET_REQUESTS] = 1, [BUDGET_TOKENS] = n}};
}

static bool tokens_take(struct world *w, uint64_t at, uint64_t tokens, struct budget_answer *a,
	struct budget_held *h)
{
	struct budget_amounts want = tokens_of(tokens);
	return budget_book_take(w->book, ACME, &w->set, at, &want, a, h);
}

static void is_reserved_and_settled(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct budget_answer a;
	struct budget_held h, other;
	assert_true(tokens_take(&w, NOON, 900, &a, &h));
	assert_true(a.granted && a.spent == 900 && a.ends_at == NOON + DAY_S / 2);
	assert_false(tokens_take(&w, NOON, 101, &a, &other));
	assert_true(!a.granted && a.spent == 900);
	struct budget_amounts used = tokens_of(100);
	budget_book_settle(w.book, ACME, &h, &used);
	assert_true(tokens_take(&w, NOON, 900, &a, &h));
	assert_false(tokens_take(&w, NOON, 1, &a, &other));
	used = tokens_of(5000); /* An engine may use more than was reserved. */
	budget_book_settle(w.book, ACME, &h, &used);
	assert_false(tokens_take(&w, NOON + DAY_S / 2 - 1, 0, &a, &h));
	assert_true(tokens_take(&w, NOON + DAY_S / 2, 1000, &a, &h));
	budget_book_free(&w.book);
}

static void is_settled_where_it_was_reserved(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct budget_answer a;
	struct budget_held h, next;
	struct budget_amounts used = tokens_of(100);
	assert_true(tokens_take(&w, NOON, 900, &a, &h));
	assert_true(tokens_take(&w, NOON + DAY_S, 500, &a, &next));
	budget_book_settle(w.book, ACME, &h, &used);
	const struct budget_account *acme = budget_book_find(w.book, ACME);
	assert_true(acme->spells[BUDGET_DAY][0].spent.v[BUDGET_TOKENS] == 500);
	assert_true(acme->spells[BUDGET_DAY][1].spent.v[BUDGET_TOKENS] == 100);
	/* The windows that follow push the old one out. */
	assert_true(tokens_take(&w, NOON + 2 * DAY_S, 1, &a, &h));
	assert_true(tokens_take(&w, NOON + 3 * DAY_S, 1, &a, &h));
	budget_book_settle(w.book, ACME, &next, &used);
	assert_true(budget_book_find(w.book, ACME)->spells[BUDGET_DAY][0].spent.v[BUDGET_TOKENS] == 1);
	budget_book_free(&w.book);
}

static void a_clock_that_goes_back_gives_nothing_back(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct budget_answer a;
	struct budget_held h;
	assert_true(tokens_take(&w, NOON, 1000, &a, &h));
	assert_false(tokens_take(&w, NOON - 40 * DAY_S, 1, &a, &h));
	assert_true(a.spent == 1000);
	(void)tokens_take(&w, NOON - 39 * DAY_S, 1, &a, &h); /* The wrong clock goes on: a day is a day. */
	assert_false(tokens_take(&w, NOON, 1, &a, &h));      /* The clock is right again. */
	assert_true(a.spent == 1000);
	budget_book_free(&w.book);
}

static void a_clock_that_goes_ahead_and_back_meets_its_windows(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/month");
	struct budget_answer a;
	struct budget_held h;
	assert_true(tokens_take(&w, NOON, 1000, &a, &h));
	assert_true(tokens_take(&w, NOON + 20 * DAY_S, 300, &a, &h));
	assert_false(tokens_take(&w, NOON, 1, &a, &h));
	/* The next month has the amounts that were spent in it. */
	assert_false(tokens_take(&w, NOON + DAY_S, 701, &a, &h));
	assert_true(a.spent == 300);
	assert_true(tokens_take(&w, NOON + DAY_S, 700, &a, &h));
	/* A jump by years leaves nothing in the way of the months that follow. */
	assert_true(tokens_take(&w, NOON + 4000 * DAY_S, 1000, &a, &h));
	assert_false(tokens_take(&w, NOON + DAY_S, 1, &a, &h));
	for (unsigned month = 2; month < 24; month++) {
		assert_true(tokens_take(&w, NOON + month * 31 * DAY_S, 1000, &a, &h));
		assert_false(tokens_take(&w, NOON + month * 31 * DAY_S, 1, &a, &h));
		assert_false(tokens_take(&w, NOON + (month - 1) * 31 * DAY_S, 1, &a, &h));
	}
	budget_book_free(&w.book);
}

static void all_budgets_or_none(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct cgn_err err;
	struct budget_answer a[2];
	struct budget_held h;
	assert_true(cgn_ok(budget_set_add(&w.set, CGN_STR("2 requests/month"), &err)));
	assert_true(tokens_take(&w, NOON, 10, a, &h));
	assert_false(tokens_take(&w, NOON, 991, a, &h));
	assert_true(!a[0].granted && a[1].granted);
	assert_true(tokens_take(&w, NOON, 10, a, &h));
	assert_false(tokens_take(&w, NOON, 10, a, &h));
	assert_true(a[0].granted && !a[1].granted && a[0].spent == 20);
	budget_book_settle(w.book, ACME, &h, &(struct budget_amounts){0}); /* Nothing is held. */
	assert_true(budget_book_find(w.book, ACME)->spells[BUDGET_DAY][0].spent.v[BUDGET_TOKENS] == 20);
	budget_book_free(&w.book);
}

static void is_a_lowered_budget_at_once(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct budget_answer a;
	struct budget_held h;
	assert_true(tokens_take(&w, NOON, 500, &a, &h));
	w.set.v[0].limit = 400;
	assert_false(tokens_take(&w, NOON, 1, &a, &h));
	assert_true(a.spent == 500);
	w.set.v[0].limit = 600;
	assert_true(tokens_take(&w, NOON, 100, &a, &h));
	budget_book_free(&w.book);
}

static void what_another_counter_says_counts(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct budget_answer a;
	struct budget_held h;
	uint64_t today = budget_window_at(BUDGET_DAY, NOON);
	budget_book_learn(w.book, ACME, &w.set.v[0], today, 950);
	budget_book_learn(w.book, ACME, &w.set.v[0], today - 1, 5000); /* This window is not known. */
	assert_false(tokens_take(&w, NOON, 51, &a, &h));
	assert_true(tokens_take(&w, NOON, 50, &a, &h));
	budget_book_learn(w.book, ACME, &w.set.v[0], today, 200); /* The others settled. */
	assert_true(tokens_take(&w, NOON, 800, &a, &h));
	budget_book_free(&w.book);
}

/* A shared counter that was emptied says less than this router holds: the settlement takes away what there is. */
static void a_settlement_takes_no_more_than_was_spent(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct budget_answer a;
	struct budget_held h, next;
	struct budget_amounts used = tokens_of(100);
	assert_true(tokens_take(&w, NOON, 900, &a, &h));
	budget_book_learn(w.book, ACME, &w.set.v[0], budget_window_at(BUDGET_DAY, NOON), 200);
	budget_book_settle(w.book, ACME, &h, &used);
	assert_true(tokens_take(&w, NOON, 900, &a, &next));
	assert_true(a.spent == 1000);
	budget_book_free(&w.book);
}

static void books_are_the_same(const struct budget_book *a, const struct budget_book *b)
{
	struct cgn_buf x = {0}, y = {0};
	budget_book_write(a, &x);
	budget_book_write(b, &y);
	assert_string_equal(cgn_buf_z(&x), cgn_buf_z(&y));
	cgn_buf_fini(&x);
	cgn_buf_fini(&y);
}

static void a_book_survives_as_a_text(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	struct budget_book *again = NULL;
	struct cgn_err err;
	struct budget_held h;
	struct budget_answer a;
	for (unsigned i = 0; i < 500; i++) {
		char name[24];
		int n = snprintf(name, sizeof name, "k:%u", i);
		struct budget_amounts want = tokens_of(i);
		assert_true(budget_book_take(w.book, (struct cgn_str){name, (size_t)n}, &w.set,
			NOON + i * DAY_S / 7, &want, &a, &h));
	}
	struct cgn_buf text = {0};
	budget_book_write(w.book, &text);
	again = budget_book_new();
	/* Each byte that changes, and each byte that is missing, is noticed. */
	for (size_t i = 0; i < text.n; i += 31) {
		text.p[i] ^= 1;
		assert_false(cgn_ok(budget_book_read(again, cgn_buf_view(&text), &err)));
		text.p[i] ^= 1;
		assert_false(cgn_ok(budget_book_read(again, (struct cgn_str){text.p, i}, &err)));
		assert_int_equal(budget_book_count(again), 0);
	}
	assert_true(cgn_ok(budget_book_read(again, cgn_buf_view(&text), &err)));
	assert_int_equal(budget_book_count(again), 500);
	books_are_the_same(w.book, again);
	budget_book_free(&again);
	again = budget_book_new();
	assert_false(cgn_ok(budget_book_read(again, CGN_STR("cognitora-budgets 2\nsum 00\n"), &err)));
	assert_non_null(strstr(err.msg, "later version"));
	assert_false(cgn_ok(budget_book_read(again, CGN_STR(""), &err)));
	budget_book_free(&again);
	budget_book_free(&w.book);
	cgn_buf_fini(&text);
}

/* A window grants exactly its budget, and only settled amounts stay. */
static void no_order_of_events_exceeds_a_budget(void **state)
{
	(void)state;
	struct world w = world_of("1000 tokens/day");
	uint64_t random = 7, at = NOON, in_day = 0, day = 0;
	struct budget_held open[8] = {0};
	struct budget_answer a;
	for (unsigned i = 0; i < ROUNDS; i++) {
		uint64_t dice = mix_splitmix(&random);
		unsigned k = dice % 8;
		at += (dice >> 8) % 64 == 0 ? DAY_S / 3 : (dice >> 8) % 16;
		if (at / DAY_S != day) {
			for (unsigned o = 0; o < 8; o++) /* The open ones belong to the day before. */
				if (open[o].number[BUDGET_DAY] != 0)
					budget_book_settle(w.book, ACME, &open[o],
						&(struct budget_amounts){0});
			memset(open, 0, sizeof open);
			day = at / DAY_S;
			in_day = 0;
		}
		if (open[k].number[BUDGET_DAY] != 0) {
			uint64_t had = open[k].amounts.v[BUDGET_TOKENS], used = (dice >> 16) % (had + 1);
			struct budget_amounts u = tokens_of(used);
			budget_book_settle(w.book, ACME, &open[k], &u);
			in_day -= had - used;
			open[k] = (struct budget_held){0};
			continue;
		}
		uint64_t n = (dice >> 24) % 400;
		bool fits = in_day < 1000 && in_day + n <= 1000;
		assert_true(tokens_take(&w, at, n, &a, &open[k]) == fits);
		in_day += fits ? n : 0;
		assert_true(a.spent == in_day);
	}
	budget_book_free(&w.book);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prices_are_rounded_up_to_money),
		cmocka_unit_test(budgets_are_read),
		cmocka_unit_test(a_set_has_each_budget_once),
		cmocka_unit_test(windows_are_those_of_the_calendar),
		cmocka_unit_test(is_reserved_and_settled),
		cmocka_unit_test(is_settled_where_it_was_reserved),
		cmocka_unit_test(a_clock_that_goes_back_gives_nothing_back),
		cmocka_unit_test(a_clock_that_goes_ahead_and_back_meets_its_windows),
		cmocka_unit_test(all_budgets_or_none),
		cmocka_unit_test(is_a_lowered_budget_at_once),
		cmocka_unit_test(what_another_counter_says_counts),
		cmocka_unit_test(a_settlement_takes_no_more_than_was_spent),
		cmocka_unit_test(a_book_survives_as_a_text),
		cmocka_unit_test(no_order_of_events_exceeds_a_budget),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
