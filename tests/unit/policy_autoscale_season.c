/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "policy/fleet/autoscale/autoscale.h"

#define HOUR 3600U
#define DAY  86400U

static const struct autoscale_cfg usual = {.least = 1,
	.most = 20,
	.target = 0.7,
	.up_window = 15 * CGN_SEC,
	.down_window = 300 * CGN_SEC,
	.idle = 900 * CGN_SEC,
	.down_step = 1};
static const cgn_nsec wake = 120 * CGN_SEC;

/* A load of 3 from 8 to 20 o'clock, and of |night| else. */
static double load_of_day(uint64_t at, double night)
{
	uint64_t hour = at % DAY / HOUR;
	return hour >= 8 && hour < 20 ? 3 : night;
}

static void days_learn(struct autoscale_season *s, uint64_t from, unsigned days, double night)
{
	for (uint64_t at = from; at < from + days * DAY; at++)
		(void)autoscale_season_note(s, load_of_day(at, night), at);
}

static double soon_at(const struct autoscale_season *s, uint64_t at)
{
	struct autoscale_season usual_day = *s;
	usual_day.today = 0;
	return autoscale_season_expect(&usual_day, at, wake);
}

static void two_days_tell_what_is_usual(void **state)
{
	(void)state;
	struct autoscale_season s = {.n = 0};
	days_learn(&s, 0, 1, 0.2);
	assert_true(soon_at(&s, DAY + HOUR) <= 0);
	days_learn(&s, DAY, 1, 0.2);
	(void)autoscale_season_note(&s, 0.2, 2 * DAY); /* Ends the last quarter. */
	assert_true(fabs(soon_at(&s, 2 * DAY + 3 * HOUR) - 0.2) < 0.01);
	assert_true(fabs(soon_at(&s, 2 * DAY + 12 * HOUR) - 3) < 0.01);
	/* The rise at 8 is expected from the lead time before. */
	assert_true(soon_at(&s, 2 * DAY + 8 * HOUR - 121) < 0.25);
	assert_true(fabs(soon_at(&s, 2 * DAY + 8 * HOUR - 120) - 3) < 0.01);
	assert_true(soon_at(&s, 2 * DAY + 20 * HOUR + AUTOSCALE_SEASON_SLOT) < 0.25);
	/* Never more than an hour ahead. */
	assert_true(autoscale_season_expect(&s, 2 * DAY + 6 * HOUR, UINT64_MAX) < 0.25);
}

static void later_days_count_more_and_weekdays_differ(void **state)
{
	(void)state;
	struct autoscale_season s = {.n = 0};
	for (unsigned day = 0; day < 15; day++)
		for (uint64_t i = 0; i < DAY; i++)
			(void)autoscale_season_note(&s, day % 7 < 5 ? 2 : 0.1, day * DAY + i);
	assert_true(fabs(soon_at(&s, 15 * DAY + HOUR) - 2) < 0.01);
	assert_true(fabs(soon_at(&s, 19 * DAY + HOUR) - 0.1) < 0.01);
	struct autoscale_season grows = {.n = 0};
	for (unsigned day = 0; day < 6; day++)
		for (uint64_t i = 0; i < DAY; i++)
			(void)autoscale_season_note(&grows, day < 3 ? 1 : 2, day * DAY + i);
	assert_true(soon_at(&grows, 6 * DAY + HOUR) > 1.6);
}

static void less_than_half_a_quarter_counts_for_nothing(void **state)
{
	(void)state;
	struct autoscale_season s = {.n = 0};
	for (unsigned day = 0; day < 5; day++)
		for (uint64_t i = 0; i < AUTOSCALE_SEASON_SLOT / 2 - 1; i++)
			assert_false(autoscale_season_note(&s, 5, day * DAY + i));
	assert_true(soon_at(&s, 5 * DAY) <= 0);
	assert_false(autoscale_season_note(&s, 5, 100)); /* The clock goes back. */
	(void)autoscale_season_note(&s, NAN, 101);
	(void)autoscale_season_note(&s, -4, 102);
	(void)autoscale_season_note(&s, INFINITY, 103);
	assert_true(isfinite(s.level) && s.level >= 0);
}

static void what_is_expected_follows_the_day(void **state)
{
	(void)state;
	const uint64_t rise = 3 * DAY + 8 * HOUR;
	struct autoscale_season s = {.n = 0}, busy, holiday;
	days_learn(&s, 0, 3, 0.2);
	busy = holiday = s;
	for (uint64_t at = 3 * DAY; at < rise; at++) {
		(void)autoscale_season_note(&busy, 0.3, at);
		(void)autoscale_season_note(&holiday, 0, at);
	}
	assert_true(autoscale_season_expect(&busy, rise - 60, wake) > 3.5);
	assert_true(autoscale_season_expect(&busy, rise - 60, wake) <= 4.51);
	assert_true(autoscale_season_expect(&holiday, rise - 60, wake) < 1);
	for (uint64_t at = rise; at < rise + HOUR; at++)
		(void)autoscale_season_note(&holiday, 0, at);
	assert_true(autoscale_season_expect(&holiday, rise + HOUR, wake) <= 0);
}

/* Return the replicas that are ready or come when the load rises at 8 o'clock after three days; |*later|: an hour later. */
static uint32_t replicas_at_eight(bool season, double night, uint32_t least, bool holiday, uint32_t *later)
{
	struct autoscale_season s = {.n = 0};
	struct autoscale a = {.at = 0};
	struct autoscale_cfg cfg = usual;
	struct autoscale_decision d;
	uint32_t have = 1, at_eight = 0;
	cfg.least = least;
	days_learn(&s, 0, 3, night);
	for (uint64_t at = 3 * DAY; at < 3 * DAY + 9 * HOUR; at++) {
		double load = holiday ? night : load_of_day(at, night);
		(void)autoscale_season_note(&s, load, at);
		const struct autoscale_signals g = {.load = load,
			.inflight = load > 0,
			.waiting = have == 0 && load > 0,
			.ready = have,
			.wake = wake,
			.expected = season ? autoscale_season_expect(&s, at, autoscale_lead(&cfg, wake)) : 0};
		autoscale_step(&a, &cfg, &g, (at + 1) * CGN_SEC, &d);
		have += d.action == AUTOSCALE_UP ? d.by : 0;
		have -= d.action == AUTOSCALE_DOWN ? d.by : 0;
		if (d.action == AUTOSCALE_UP && at < 3 * DAY + 8 * HOUR)
			assert_non_null(strstr(d.why, "at this time of day"));
		at_eight = at == 3 * DAY + 8 * HOUR - 1 ? have : at_eight;
	}
	*later = have;
	return at_eight;
}

static void replicas_are_there_before_the_usual_rise(void **state)
{
	(void)state;
	uint32_t later;
	assert_int_equal(replicas_at_eight(false, 0.2, 1, false, &later), 1);
	assert_in_range(later, 5, 6);
	assert_in_range(replicas_at_eight(true, 0.2, 1, false, &later), 3, 5);
	assert_in_range(later, 5, 6);
	/* From none too, and they go again when nothing comes. */
	assert_int_equal(replicas_at_eight(false, 0, 0, false, &later), 0);
	assert_in_range(replicas_at_eight(true, 0, 0, false, &later), 1, 5);
	assert_in_range(replicas_at_eight(true, 0, 0, true, &later), 1, 5);
	assert_int_equal(later, 0);
}

static void lines_survive(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "day", "day 1 2", "day 96 1 1", "week 672 1 1", "hour 1 1 1",
		"day 1 1 0", "day 1 1000000001 1", "day -1 1 1", "day 1 1 1 1"};
	struct autoscale_season s = {.n = 0}, same = {.n = 0};
	struct cgn_buf text = {0};
	struct cgn_err err;
	days_learn(&s, 0, 9, 0.2);
	autoscale_season_put(&s, &text);
	for (struct cgn_str rest = cgn_buf_view(&text); rest.n > 0;)
		assert_true(cgn_ok(autoscale_season_take(&same, cgn_str_split(&rest, '\n'), &err)));
	assert_memory_equal(s.day, same.day, sizeof s.day);
	assert_memory_equal(s.week, same.week, sizeof s.week);
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(cgn_ok(autoscale_season_take(&same, cgn_str_of(bad[i]), &err)));
	cgn_buf_fini(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_days_tell_what_is_usual),
		cmocka_unit_test(later_days_count_more_and_weekdays_differ),
		cmocka_unit_test(less_than_half_a_quarter_counts_for_nothing),
		cmocka_unit_test(what_is_expected_follows_the_day),
		cmocka_unit_test(replicas_are_there_before_the_usual_rise),
		cmocka_unit_test(lines_survive),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
