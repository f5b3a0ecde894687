/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "policy/fleet/autoscale/autoscale.h"

static const struct autoscale_cfg usual = {.least = 1,
	.most = 20,
	.target = 0.7,
	.ttft = 2 * CGN_SEC,
	.itl = 100 * CGN_MSEC,
	.up_window = 15 * CGN_SEC,
	.down_window = 300 * CGN_SEC,
	.idle = 900 * CGN_SEC,
	.down_step = 1};

/* A fleet whose replicas take |wake| to get ready. */
struct fleet {
	struct autoscale a;
	struct autoscale_cfg cfg;
	uint32_t ready, coming;
	cgn_nsec now, ready_at, wake;
	uint32_t ups, downs, turns; /* |turns|: changes of direction. */
	enum autoscale_action last;
	struct autoscale_decision d;
};

static uint64_t seed = 88172645463325252ULL;

static double any_between(double lo, double hi)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return lo + (hi - lo) * (double)(seed >> 11) / 9007199254740992.0;
}

static struct fleet fleet_of(uint32_t ready, const struct autoscale_cfg *cfg)
{
	return (struct fleet){.cfg = *cfg, .ready = ready, .now = CGN_SEC, .wake = 60 * CGN_SEC};
}

static void fleet_obey(struct fleet *f)
{
	if (f->d.action == AUTOSCALE_STAY)
		return;
	assert_true(f->d.by > 0);
	assert_true(f->d.why[0] != '\0');
	f->turns += f->last != AUTOSCALE_STAY && f->last != f->d.action;
	f->last = f->d.action;
	if (f->d.action == AUTOSCALE_UP) {
		f->ups++;
		f->coming += f->d.by;
		f->ready_at = f->now + f->wake;
	} else {
		f->downs++;
		assert_true(f->d.by <= f->ready + f->coming);
		f->ready -= f->d.by;
	}
	assert_true(f->ready + f->coming <= f->cfg.most);
}

/* Pass a second with a load. Replicas beyond 0.95 of load let requests wait and miss objectives. */
static void fleet_second(struct fleet *f, double load)
{
	if (f->coming > 0 && f->now >= f->ready_at) {
		f->ready += f->coming;
		f->coming = 0;
	}
	double each = f->ready > 0 ? load / f->ready : load > 0 ? 9 : 0;
	const struct autoscale_signals s = {.load = load < f->ready ? load : f->ready,
		.inflight = load > 0,
		.waiting = each > 0.95 ? 1 + (uint32_t)(4 * each) : 0,
		.ttft = each > 0.95 ? 5 * CGN_SEC : 300 * CGN_MSEC,
		.itl = 20 * CGN_MSEC,
		.ready = f->ready,
		.coming = f->coming,
		.wake = f->wake};
	autoscale_step(&f->a, &f->cfg, &s, f->now, &f->d);
	fleet_obey(f);
	f->now += CGN_SEC;
}

static void grows_to_the_target_and_stays(void **state)
{
	(void)state;
	struct fleet f = fleet_of(1, &usual);
	for (int i = 0; i < 3600; i++)
		fleet_second(&f, 4.2);
	assert_in_range(f.ready, 6, 7);
	assert_int_equal(f.downs, 0);
	uint32_t ups = f.ups;
	for (int i = 0; i < 3600; i++)
		fleet_second(&f, 4.2);
	assert_int_equal(f.ups + f.downs, ups);
}

static void shrinks_step_by_step_after_the_window(void **state)
{
	(void)state;
	struct fleet f = fleet_of(8, &usual);
	for (int i = 0; i < 299; i++)
		fleet_second(&f, 0.65);
	assert_int_equal(f.downs, 0);
	for (int i = 0; i < 61; i++)
		fleet_second(&f, 0.65);
	assert_in_range(f.downs, 1, 2); /* An eighth of the window lies between two. */
	for (int i = 0; i < 1800; i++)
		fleet_second(&f, 0.65);
	assert_int_equal(f.ready, 2); /* A single replica would carry 0.65, but without slack. */
}

static void a_burst_within_the_window_changes_nothing(void **state)
{
	(void)state;
	struct fleet f = fleet_of(2, &usual);
	for (int i = 0; i < 3600; i++)
		fleet_second(&f, i % 300 >= 295 ? 1.9 : 0.9);
	assert_int_equal(f.ups + f.downs, 0);
}

static void a_rising_load_is_met_before_it_is_there(void **state)
{
	(void)state;
	struct fleet f = fleet_of(4, &usual);
	uint32_t late = 0;
	for (int i = 0; i < 600; i++)
		fleet_second(&f, 2.0);
	for (int i = 0; i < 1200; i++) {
		double load = 2.0 + 8.0 * i / 1200;
		fleet_second(&f, load);
		late += load > f.ready;
	}
	assert_int_equal(late, 0);
	assert_int_equal(f.downs, 0);
}

/* Steady loads with noise: after the fleet has settled, no change of direction. Days: few changes of direction. */
static void never_oscillates(void **state)
{
	(void)state;
	for (int k = 0; k < 60; k++) {
		double base = any_between(0.1, 12), noise = any_between(0, 0.25);
		struct fleet f = fleet_of((uint32_t)any_between(1, 20), &usual);
		f.wake = (cgn_nsec)any_between(2, 200) * CGN_SEC;
		for (int i = 0; i < 4 * 3600; i++)
			fleet_second(&f, base * any_between(1 - noise, 1 + noise));
		if (f.turns > 2)
			fail_msg("load %.2f +- %.2f: %u changes of direction", base, noise, f.turns);
		assert_true(f.ready >= base || f.ready == usual.most);
	}
	for (int k = 0; k < 5; k++) {
		double most = any_between(2, 12), noise = any_between(0, 0.2);
		struct fleet f = fleet_of(5, &usual);
		for (int i = 0; i < 86400; i++)
			fleet_second(&f,
				most * (0.55 - 0.45 * cos(2 * M_PI * i / 86400.0)) *
					any_between(1 - noise, 1 + noise));
		if (f.turns > 4)
			fail_msg("a day of at most %.2f +- %.2f: %u changes of direction", most, noise,
				f.turns);
	}
}

static void a_missed_objective_adds_replicas_and_they_stay(void **state)
{
	(void)state;
	struct fleet f = fleet_of(4, &usual);
	const struct autoscale_signals fine = {.load = 2.0,
		.inflight = 9,
		.ttft = CGN_SEC,
		.ready = 5,
		.wake = CGN_SEC};
	struct autoscale_signals bad = {.load = 2.0,
		.inflight = 9,
		.ttft = 2200 * CGN_MSEC,
		.ready = 4,
		.wake = CGN_SEC};
	for (int i = 0; i < 20 && f.d.action == AUTOSCALE_STAY; i++, f.now += CGN_SEC)
		autoscale_step(&f.a, &f.cfg, &bad, f.now, &f.d);
	assert_int_equal(f.d.action, AUTOSCALE_UP);
	assert_int_equal(f.d.by, 1);
	assert_non_null(strstr(f.d.why, "90th percentile of TTFT is 2200 ms"));
	for (int i = 0; i < 3600; i++, f.now += CGN_SEC) {
		autoscale_step(&f.a, &f.cfg, &fine, f.now, &f.d);
		assert_int_equal(f.d.action, AUTOSCALE_STAY);
	}
	/* Replicas with little to do do not miss objectives for lack of replicas. */
	bad.load = 0.4;
	f = fleet_of(4, &usual);
	for (int i = 0; i < 200; i++, f.now += CGN_SEC) {
		autoscale_step(&f.a, &f.cfg, &bad, f.now, &f.d);
		assert_int_not_equal(f.d.action, AUTOSCALE_UP);
	}
}

static void goes_to_zero_and_back(void **state)
{
	(void)state;
	struct autoscale_cfg cfg = usual;
	cfg.least = 0;
	struct fleet f = fleet_of(1, &cfg);
	for (int i = 0; i < 899; i++)
		fleet_second(&f, 0);
	assert_int_equal(f.ready, 1);
	for (int i = 0; i < 10 && f.d.action != AUTOSCALE_DOWN; i++)
		fleet_second(&f, 0);
	assert_int_equal(f.ready, 0);
	assert_non_null(strstr(f.d.why, "no request ran or waited for 900 s"));

	fleet_second(&f, 0.1);
	assert_int_equal(f.coming, 1); /* At once. */
	assert_non_null(strstr(f.d.why, "no replica is there"));
	for (int i = 0; i < 600; i++)
		fleet_second(&f, 0.1);
	assert_int_equal(f.ready, 1);
}

/* Prefill nodes without load of their own stay while decode nodes have requests, and come for them. */
static void partners_go_and_come_together(void **state)
{
	(void)state;
	struct autoscale_cfg cfg = usual;
	cfg.least = 0;
	struct autoscale_signals g = {.ready = 1, .inflight = 1, .wake = CGN_SEC};
	struct autoscale a = {.at = 0};
	struct autoscale_decision d;
	cgn_nsec now = CGN_SEC;
	for (int i = 0; i < 3600; i++, now += CGN_SEC) {
		autoscale_step(&a, &cfg, &g, now, &d);
		assert_int_equal(d.action, AUTOSCALE_STAY);
	}
	g.inflight = 0;
	for (int i = 0; i < 1000 && d.action == AUTOSCALE_STAY; i++, now += CGN_SEC)
		autoscale_step(&a, &cfg, &g, now, &d);
	assert_int_equal(d.action, AUTOSCALE_DOWN);
	g.ready = 0;
	for (int i = 0; i < 100; i++, now += CGN_SEC) {
		autoscale_step(&a, &cfg, &g, now, &d);
		assert_int_equal(d.action, AUTOSCALE_STAY);
	}
	g.inflight = 1;
	autoscale_step(&a, &cfg, &g, now, &d);
	assert_int_equal(d.action, AUTOSCALE_UP);
	assert_int_equal(d.by, 1);
}

static void limits_hold(void **state)
{
	(void)state;
	struct autoscale_cfg cfg = usual;
	cfg.least = 3;
	cfg.most = 4;
	struct fleet f = fleet_of(1, &cfg);
	fleet_second(&f, 0.1);
	assert_int_equal(f.coming, 2);
	for (int i = 0; i < 1200; i++)
		fleet_second(&f, 9);
	assert_int_equal(f.ready, 4);
	assert_non_null(strstr(f.d.why, "at most 4 are allowed"));
	f = fleet_of(6, &cfg);
	fleet_second(&f, 9);
	assert_int_equal(f.ready, 4);
}

static void the_cache_that_saves_least_goes_first(void **state)
{
	(void)state;
	struct autoscale_worth w = {.at = 0};
	cgn_nsec now = CGN_SEC;
	autoscale_worth_note(&w, 5000, now); /* Tokens of earlier times are not of late. */
	assert_true(autoscale_worth_rate(&w, now) <= 0);
	for (uint64_t i = 1; i <= 36000; i++)
		autoscale_worth_note(&w, 5000 + i * 10, now += CGN_SEC);
	assert_true(fabs(autoscale_worth_rate(&w, now) - 10) < 0.1);
	assert_true(fabs(autoscale_worth_rate(&w, now + AUTOSCALE_HALF) - 5) < 0.1);
	autoscale_worth_note(&w, 3, now + CGN_SEC); /* Another node has the slot. */
	assert_true(autoscale_worth_rate(&w, now + CGN_SEC) <= 0);

	struct autoscale_replica r[] = {{.id = "a", .worth = 5, .held = 9},
		{.id = "b", .worth = 2, .held = 70, .requests = 1}, {.id = "c", .worth = 2, .held = 70},
		{.id = "d", .worth = 0, .fixed = true}};
	assert_int_equal(autoscale_least_worth(r, 4), 2);
	r[1].requests = 0;
	assert_int_equal(autoscale_least_worth(r, 3), 2);
	r[1].held = 3;
	assert_int_equal(autoscale_least_worth(r, 4), 1);
	assert_int_equal(autoscale_least_worth(&r[3], 1), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grows_to_the_target_and_stays),
		cmocka_unit_test(shrinks_step_by_step_after_the_window),
		cmocka_unit_test(a_burst_within_the_window_changes_nothing),
		cmocka_unit_test(a_rising_load_is_met_before_it_is_there),
		cmocka_unit_test(never_oscillates),
		cmocka_unit_test(a_missed_objective_adds_replicas_and_they_stay),
		cmocka_unit_test(goes_to_zero_and_back),
		cmocka_unit_test(partners_go_and_come_together),
		cmocka_unit_test(limits_hold),
		cmocka_unit_test(the_cache_that_saves_least_goes_first),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
