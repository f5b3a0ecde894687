/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/answer/batch/hours.h"

#define DAY      ((uint64_t)20000 * 86400) /* A midnight. */
#define AT(h, m) (DAY + 3600 * (uint64_t)(h) + 60 * (uint64_t)(m))
#define HOUR     3600.0

static struct batch_hours hours_of(const char *a, const char *b)
{
	struct batch_hours h = {.n = 0};
	struct cgn_err err;
	assert_true(cgn_ok(batch_hours_add(&h, cgn_str_of(a), &err)));
	if (b != NULL)
		assert_true(cgn_ok(batch_hours_add(&h, cgn_str_of(b), &err)));
	return h;
}

/* Ask the gate for a batch whose window ends in three days. Return whether it is open at |at|, and when it opens next. */
static bool hours_open(const struct batch_hours *h, uint64_t at, uint64_t *next)
{
	const struct batch_gate g = {.hours = *h, .margin_s = 1};
	const struct batch_moment m = {.now_s = at,
		.created_s = at,
		.expires_s = at + (uint64_t)3 * 86400,
		.price = -1};
	return batch_gate_at(&g, &m, next) == BATCH_GOES;
}

static void test_spans(void **state)
{
	static const char *const bad[] = {"", "22:00", "22:00-", "-06:00", "22-06", "24:00-06:00",
		"25:00-06:00", "22:60-06:00", "22:00-24:01", "22:00-22:00", "22:00-06:00-07:00",
		"+2:00-06:00", " 2:00-06:00", "2:00-6:00"};
	struct batch_hours h = {.n = 0};
	struct cgn_err err;
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_int_equal(batch_hours_add(&h, cgn_str_of(bad[i]), &err).code, CGN_INVALID);
	assert_int_equal(h.n, 0);
	for (size_t i = 0; i < BATCH_SPANS_MAX; i++)
		assert_true(cgn_ok(batch_hours_add(&h, CGN_STR("01:00-02:00"), &err)));
	assert_int_equal(batch_hours_add(&h, CGN_STR("01:00-02:00"), &err).code, CGN_INVALID);
}

static void test_hours_of_the_day(void **state)
{
	const struct batch_hours none = {.n = 0}, morning = hours_of("01:00-02:00", NULL),
				 night = hours_of("22:00-06:00", NULL),
				 two = hours_of("12:00-13:30", "23:00-24:00"),
				 all = hours_of("00:00-24:00", NULL);
	uint64_t next, later;
	(void)state;
	for (uint64_t at = DAY; at < DAY + 86400; at += 60) {
		assert_true(hours_open(&none, at, &next) && hours_open(&all, at, &next));
		assert_int_equal(hours_open(&night, at, &next), at < AT(6, 0) || at >= AT(22, 0));
		assert_int_equal(hours_open(&two, at, &next),
			(at >= AT(12, 0) && at < AT(13, 30)) || at >= AT(23, 0));
		for (size_t i = 0; i < 2; i++) { /* The next time is the first one that is open. */
			const struct batch_hours *h = i == 0 ? &night : &two;
			uint64_t first = at;
			if (hours_open(h, at, &next))
				continue;
			while (!hours_open(h, first, &later))
				first += 60;
			assert_int_equal(next, first);
		}
	}
	assert_false(hours_open(&night, AT(21, 59) + 59, &next));
	assert_int_equal(next, AT(22, 0));
	assert_true(hours_open(&two, AT(23, 59) + 59, &next));
	assert_false(hours_open(&morning, AT(2, 0), &next));
	assert_int_equal(next, AT(25, 0));
}

static void test_gate(void **state)
{
	const struct batch_gate plain = {.margin_s = 4 * 3600},
				night = {.hours = hours_of("22:00-06:00", NULL), .margin_s = 4 * 3600},
				cheap = {.max_price = 0.8, .margin_s = 4 * 3600},
				both = {.hours = hours_of("22:00-06:00", NULL),
					.max_price = 0.8,
					.margin_s = 4 * 3600};
	const struct {
		const struct batch_gate *gate;
		struct batch_moment m;
		enum batch_wait wait;
		uint64_t until;
	} rows[] = {
		{&plain, {AT(12, 0), AT(12, 0), AT(36, 0), 5, 0}, BATCH_GOES, 0},
		{&night, {AT(12, 0), AT(12, 0), AT(36, 0), -1, 0}, BATCH_WAITS_HOURS, AT(22, 0)},
		{&night, {AT(22, 0), AT(12, 0), AT(36, 0), -1, 0}, BATCH_GOES, 0},
		/* The window ends before the night begins: the margin of 4 hours, or half the window. */
		{&night, {AT(12, 0), AT(11, 0), AT(21, 0), -1, 0}, BATCH_WAITS_HOURS, AT(17, 0)},
		{&night, {AT(17, 0), AT(11, 0), AT(21, 0), -1, 0}, BATCH_GOES, 0},
		{&night, {AT(12, 0), AT(12, 0), AT(14, 0), -1, 0}, BATCH_WAITS_HOURS, AT(13, 0)},
		{&night, {AT(13, 0), AT(12, 0), AT(14, 0), -1, 0}, BATCH_GOES, 0},
		/* Lines that need longer than the margin begin earlier, at most at once. */
		{&night, {AT(12, 0), AT(11, 0), AT(21, 0), -1, 3 * HOUR}, BATCH_WAITS_HOURS, AT(15, 0)},
		{&night, {AT(15, 0), AT(11, 0), AT(21, 0), -1, 3 * HOUR}, BATCH_GOES, 0},
		{&night, {AT(12, 0), AT(12, 0), AT(36, 0), -1, 1e9 * HOUR}, BATCH_GOES, 0},
		{&cheap, {AT(12, 0), AT(12, 0), AT(36, 0), 0.9, 0}, BATCH_WAITS_PRICE, AT(32, 0)},
		{&cheap, {AT(12, 0), AT(12, 0), AT(36, 0), 0.8, 0}, BATCH_GOES, 0},
		{&cheap, {AT(12, 0), AT(12, 0), AT(36, 0), -1, 0}, BATCH_GOES, 0},
		{&cheap, {AT(32, 0), AT(12, 0), AT(36, 0), 9, 0}, BATCH_GOES, 0},
		{&both, {AT(12, 0), AT(12, 0), AT(36, 0), 0.5, 0}, BATCH_WAITS_HOURS, AT(22, 0)},
		{&both, {AT(23, 0), AT(12, 0), AT(36, 0), 0.9, 0}, BATCH_WAITS_PRICE, AT(32, 0)},
		{&both, {AT(23, 0), AT(12, 0), AT(36, 0), 0.5, 0}, BATCH_GOES, 0},
		/* Over already, or a clock that was set back. */
		{&night, {AT(12, 0), AT(8, 0), AT(11, 0), -1, 0}, BATCH_GOES, 0},
		{&night, {AT(12, 0), AT(15, 0), AT(14, 0), -1, 0}, BATCH_WAITS_HOURS, AT(14, 0)},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		uint64_t until = 1;
		assert_int_equal(batch_gate_at(rows[i].gate, &rows[i].m, &until), rows[i].wait);
		assert_int_equal(until, rows[i].until);
	}
}

static void test_no_batch_is_late(void **state)
{
	const struct batch_gate g = {.hours = hours_of("01:00-01:01", NULL),
		.max_price = 0.1,
		.margin_s = 7200};
	(void)state;
	for (uint64_t window = 1; window < 14 * 86400; window = window * 3 / 2 + 1)
		for (double need = 0; need < 2.0 * (double)window; need += (double)window / 7) {
			struct batch_moment m = {.created_s = AT(3, 0),
				.expires_s = AT(3, 0) + window,
				.price = 9,
				.need_s = need};
			uint64_t until = m.now_s = m.created_s;
			if (batch_gate_at(&g, &m, &until) == BATCH_GOES)
				continue;
			assert_true(until > m.now_s && (double)(m.expires_s - until) + 1 >= 2 * need &&
				until <= m.expires_s);
			m.now_s = m.expires_s - window / 2;
			while (batch_gate_at(&g, &m, &until) != BATCH_GOES)
				m.now_s = until;
			assert_true(m.now_s <= m.expires_s);
		}
	assert_string_equal(batch_wait_text(BATCH_WAITS_HOURS), "hours");
	assert_string_equal(batch_wait_text(BATCH_WAITS_PRICE), "price");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spans),
		cmocka_unit_test(test_hours_of_the_day),
		cmocka_unit_test(test_gate),
		cmocka_unit_test(test_no_batch_is_late),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
