/* SPDX-License-Identifier: Apache-2.0 */
/* The curve follows a node's counter, a broken counter teaches nothing, and the joules of requests add up to the
 * counter. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/power/energy/board.h"
#include "policy/power/energy/meter.h"
#include "policy/power/energy/park.h"
#include "policy/power/energy/series.h"

static uint64_t seed = 88172645463325252ULL;

static double any_between(double lo, double hi)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return lo + (hi - lo) * (double)(seed >> 11) / 9007199254740992.0;
}

/* A node unlike the prior: steep at first, then flat. */
static const struct energy_curve real = {
	.decode = {120, 267, 303, 339, 375, 411, 447, 483, 519, 555},
	.prefill = 680,
};

static void near_to(double is, double want, double share)
{
	if (!(fabs(is - want) <= fabs(want) * share))
		fail_msg("%g is not within %g %% of %g", is, share * 100, want);
}

static struct energy_sample any_sample(double most_streams)
{
	struct energy_sample s = {.seconds = any_between(0.2, 1)};
	s.prefill_s = s.seconds * any_between(0, 0.5);
	s.decode_s = (s.seconds - s.prefill_s) * any_between(0, 1);
	s.streams_s = s.decode_s * any_between(1, most_streams);
	s.joules = energy_expected(&real, &s) * any_between(0.97, 1.03);
	return s;
}

static void curve_follows_the_counter(void **state)
{
	(void)state;
	struct energy_model m;
	energy_model_init(&m, 400); /* A wrong limit. */
	for (int i = 0; i < 5000; i++) {
		struct energy_sample s = any_sample(i % 3 == 0 ? 64 : 8);
		energy_learn(&m, &s);
	}
	for (size_t k = 0; k < 7; k++)
		near_to((double)m.curve.decode[k], (double)real.decode[k], 0.08);
	near_to((double)m.curve.prefill, 680, 0.05);
	assert_true(m.error < 0.04F);
	/* No span had 256 streams: the shape of the prior goes on from there. */
	assert_true(m.curve.decode[9] >= m.curve.decode[7] && m.curve.decode[9] < 700);
}

static void error_tells_of_a_change(void **state)
{
	(void)state;
	struct energy_model m;
	energy_model_init(&m, 700);
	for (int i = 0; i < 2000; i++) {
		struct energy_sample s = any_sample(32);
		energy_learn(&m, &s);
	}
	float before = m.error;
	for (int i = 0; i < 4; i++) {
		struct energy_sample s = any_sample(32);
		s.joules *= 2;
		energy_learn(&m, &s);
	}
	assert_true(m.error > 2 * before);
}

static void nonsense_teaches_nothing(void **state)
{
	(void)state;
	struct energy_model m;
	energy_model_init(&m, 700);
	struct energy_model was = m;
	const struct energy_sample bad[] = {{.joules = 10}, {.joules = -1, .seconds = 1},
		{.joules = (double)NAN, .seconds = 1}, {.joules = 1, .seconds = (double)INFINITY},
		{.joules = 1e9, .seconds = 1}, {.joules = 100, .seconds = 1, .prefill_s = 2},
		{.joules = 100, .seconds = 1, .decode_s = (double)NAN},
		{.joules = 100, .seconds = 1, .decode_s = 1, .streams_s = -5}};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		energy_learn(&m, &bad[i]);
	assert_memory_equal(&m, &was, sizeof m);
}

static void counter_wraps_stops_and_goes_back(void **state)
{
	(void)state;
	struct energy_counter c;
	double j = 0, s = 0;
	energy_counter_init(&c, 1000000000, 700);
	assert_int_equal(energy_counter_read(&c, 900000000, CGN_SEC, &j, &s), ENERGY_FIRST);
	assert_int_equal(energy_counter_read(&c, 999000000, 2 * CGN_SEC, &j, &s), ENERGY_SPAN);
	near_to(j, 99, 1e-9);
	assert_int_equal(energy_counter_read(&c, 99000000, 3 * CGN_SEC, &j, &s), ENERGY_SPAN); /* Wrapped. */
	near_to(j, 100, 1e-9);
	assert_int_equal(energy_counter_read(&c, 99000000, 4 * CGN_SEC, &j, &s), ENERGY_WAITING);
	assert_int_equal(energy_counter_read(&c, 299000000, 5 * CGN_SEC, &j, &s), ENERGY_SPAN);
	near_to(j, 200, 1e-9); /* Used in two seconds. */
	near_to(s, 2, 1e-9);
	/* A jump. */
	assert_int_equal(energy_counter_read(&c, 999000000, 5 * CGN_SEC + CGN_MSEC, &j, &s), ENERGY_FIRST);
	assert_int_equal(energy_counter_read(&c, 999000000, 17 * CGN_SEC, &j, &s), ENERGY_STOPPED);
	/* How long it stood still within the span is not known. */
	assert_int_equal(energy_counter_read(&c, 999000100, 18 * CGN_SEC, &j, &s), ENERGY_FIRST);
	assert_int_equal(energy_counter_read(&c, 999000200, CGN_SEC, &j, &s),
		ENERGY_FIRST); /* The clock went back. */
}

static void counter_without_a_range_restarts(void **state)
{
	(void)state;
	struct energy_counter c;
	double j = 0, s = 0;
	energy_counter_init(&c, 0, 700);
	assert_int_equal(energy_counter_read(&c, 5000000, CGN_SEC, &j, &s), ENERGY_FIRST);
	assert_int_equal(energy_counter_read(&c, 10, 2 * CGN_SEC, &j, &s), ENERGY_FIRST); /* A new driver. */
	assert_int_equal(energy_counter_read(&c, 100000010, 3 * CGN_SEC, &j, &s), ENERGY_SPAN);
	near_to(j, 100, 1e-9);
	near_to(s, 1, 1e-9);
}

static void first_stream_costs_most(void **state)
{
	(void)state;
	struct energy_ask a = {.prefill_ms = 100, .answer_tokens = 300, .step_ms = 12, .batch_ms = 0.12};
	double idle = energy_marginal(&real, &a);
	near_to(idle, 0.1 * 560 + 300 * 0.012 * 147, 1e-6);
	a.streams = 8;
	double busy = energy_marginal(&real, &a);
	assert_true(busy < idle / 3);
	/* A cached prompt is worth its energy. */
	a.prefill_ms = 1100;
	near_to(energy_marginal(&real, &a) - busy, 560, 1e-6);
}

static void knee_is_where_filling_saves_little(void **state)
{
	(void)state;
	uint32_t knee = energy_knee(&real, 12, 0.12, 256, 0.1);
	assert_true(knee > 32 && knee < 256);
	/* Where each stream lengthens the step by as much as a step, nothing is gained after the first few. */
	assert_true(energy_knee(&real, 12, 12, 256, 0.1) < 256);
	assert_int_equal(energy_knee(&real, 12, 0.12, 1, 0.1), 1);
}

/* ---- the meter ---- */

struct job {
	double from_token_j, from_stream_j, joules;
	uint32_t tokens;
	int state; /* 0: free, 1: prompt, 2: stream. */
};

/* Move on one random job. Return the joules of a request that ended. */
static double job_turn(struct job *j, const struct energy_sums *s)
{
	double joules = 0;
	if (j->state == 0) {
		j->tokens = (uint32_t)any_between(100, 8000);
		j->from_token_j = s->token_j;
	} else if (j->state == 1) {
		j->joules = (s->token_j - j->from_token_j) * (j->tokens + 1.0);
		j->from_stream_j = s->stream_j;
	} else {
		joules = j->joules + s->stream_j - j->from_stream_j;
	}
	j->state = (j->state + 1) % 3;
	return joules;
}

static void joules_of_requests_add_up_to_the_counter(void **state)
{
	(void)state;
	struct energy_meter m;
	struct job jobs[12] = {0};
	double counted = 0, since = 0, requests = 0;
	cgn_nsec now = CGN_SEC, read = now;
	energy_meter_init(&m, 700, now);
	for (int i = 0; i < 40000; i++) {
		uint32_t streams = 0, prompts = 0, tokens = 0;
		struct energy_sums s = energy_meter_sums(&m, now);
		requests += job_turn(&jobs[(size_t)any_between(0, i % 1000 < 200 ? 1 : 12)], &s);
		for (size_t k = 0; k < CGN_COUNT(jobs); k++) {
			streams += jobs[k].state == 2;
			prompts += jobs[k].state == 1;
			tokens += jobs[k].state == 1 ? jobs[k].tokens : 0;
		}
		energy_meter_load(&m, &(struct energy_load){streams, prompts, tokens}, now);
		cgn_nsec dt = (cgn_nsec)any_between(1e6, 1e8);
		since += (double)dt * 1e-9 *
			(prompts > 0 ? (double)real.prefill : energy_decode_watts(&real, streams));
		now += dt;
		if (now - read < CGN_SEC)
			continue;
		energy_meter_counted(&m, since, (double)(now - read) * 1e-9, now);
		counted += since;
		since = 0;
		read = now;
	}
	struct energy_sums s = energy_meter_sums(&m, now);
	near_to(s.prefill_j + s.decode_j + s.idle_j, counted, 0.01);
	near_to(requests, counted - s.idle_j, 0.05);
	assert_true(s.idle_j > 0 && m.model.error < 0.05F);
}

static void idle_joules_are_of_no_request(void **state)
{
	(void)state;
	struct energy_meter m;
	energy_meter_init(&m, 700, CGN_SEC);
	energy_meter_counted(&m, 120, 1, 2 * CGN_SEC);
	struct energy_sums s = energy_meter_sums(&m, 2 * CGN_SEC);
	near_to(s.idle_j, 120, 0.01);
	assert_true(s.stream_j == 0 && s.token_j == 0);
	/* More was given out than counted: less is given out later, and no sum falls. */
	energy_meter_load(&m, &(struct energy_load){1, 0, 0}, 2 * CGN_SEC);
	struct energy_sums a = energy_meter_sums(&m, 3 * CGN_SEC);
	energy_meter_counted(&m, 10, 1, 3 * CGN_SEC);
	for (cgn_nsec t = 3 * CGN_SEC; t < 20 * CGN_SEC; t += 100 * CGN_MSEC) {
		struct energy_sums b = energy_meter_sums(&m, t);
		assert_true(b.stream_j >= a.stream_j);
		a = b;
	}
	energy_meter_skip(&m, 20 * CGN_SEC);
	assert_true(energy_meter_sums(&m, 20 * CGN_SEC).stream_j >= a.stream_j);
}

static void board_gives_what_was_set(void **state)
{
	(void)state;
	struct energy_board *b = energy_board_new(8);
	struct energy_curve c;
	assert_int_equal(energy_board_get(b, 3, &c), 0);
	assert_false(energy_known(&c));
	energy_board_set(b, 3, &real, ENERGY_HOT);
	assert_int_equal(energy_board_get(b, 3, &c), ENERGY_HOT);
	assert_true(energy_known(&c));
	assert_memory_equal(&c, &real, sizeof c);
	assert_int_equal(b->top, 4);
	energy_board_free(&b);
}

static void board_counts_what_was_measured(void **state)
{
	(void)state;
	struct energy_board *b = energy_board_new(8);
	const struct energy_report report = {.sums.at = 100 * CGN_SEC, .scale = 1.1, .pace = 1};
	cgn_nsec now = 105 * CGN_SEC, late = 111 * CGN_SEC;
	near_to(energy_board_watts(b, 3, 4, 0, now), 0, 0);
	/* Without a curve the node's own measurement counts, while it is fresh. */
	const struct energy_measured alone = {.node_w = 800};
	energy_board_measured(b, 3, &alone, 100 * CGN_SEC);
	near_to(energy_board_watts(b, 3, 0, 0, now), 800, 1e-6);
	near_to(energy_board_node_watts(b, 3, now), 800, 0);
	/* Streams beyond those that ran then bring what the usual curve says, also where the reading is told again. */
	near_to(energy_board_watts(b, 3, 4, 0, now), 800 + (0.48 - 0.17) * 700, 1e-6);
	const struct energy_change more = {.more = {.streams = 4}}, less = {.less = {.streams = 4}};
	(void)energy_board_count(b, 3, &more, 101 * CGN_SEC);
	energy_board_measured(b, 3, &alone, 100 * CGN_SEC);
	near_to(energy_board_watts(b, 3, 4, 0, now), 800 + (0.48 - 0.17) * 700, 1e-6);
	energy_board_measured(b, 3, &(struct energy_measured){.node_w = 900}, 100 * CGN_SEC);
	near_to(energy_board_watts(b, 3, 4, 0, now), 900, 1e-6);
	(void)energy_board_count(b, 3, &less, 101 * CGN_SEC);
	near_to(energy_board_watts(b, 3, 4, 0, late), 0, 0);
	near_to(energy_board_node_watts(b, 3, late), 0, 0);
	/* With a curve the load of now does, and what the meter showed beyond the counters; but never less than was measured. */
	energy_board_set(b, 3, &real, 0);
	energy_board_measured(b, 3, &(struct energy_measured){.node_w = 800, .extra_w = 150}, 100 * CGN_SEC);
	near_to(energy_board_watts(b, 3, 4, 0, now), 800, 1e-6);
	near_to(energy_board_expected(b, 3, 4, 0, now), 339 + 150, 1e-6);
	energy_board_measured(b, 3,
		&(struct energy_measured){.extra_w = 150, .counted_w = 400, .short_w = 61}, 100 * CGN_SEC);
	near_to(energy_board_watts(b, 3, 4, 0, now), 400 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 0, 0, now), 400 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 8, 0, now), 400 + 150 + 36, 1e-6); /* Booked, not measured yet. */
	near_to(energy_board_measured_watts(b, 3, now), 400 + 150, 1e-6);
	energy_board_measured(b, 3, &(struct energy_measured){.node_w = 1, .extra_w = 150}, 100 * CGN_SEC);
	near_to(energy_board_watts(b, 3, 0, 0, now), 120 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 4, 0, now), 339 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 4, 1, now), 680 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 4, 0.25, now), 0.25 * 680 + 0.75 * 339 + 150, 1e-6);
	energy_board_sums(b, 3, &report); /* The counter says more than the curve, while requests run. */
	near_to(energy_board_watts(b, 3, 4, 1, now), 680 * 1.1 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 0, 0, now), 120 + 150, 1e-6);
	struct energy_curve few =
		real; /* With more streams than were measured, the node counts with the watts of prefill. */
	few.most = 2;
	energy_board_set(b, 3, &few, 0);
	near_to(energy_board_watts(b, 3, 2, 0, now), 303 * 1.1 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 3, 0, now), 680 * 1.1 + 150, 1e-6);
	near_to(energy_board_watts(b, 3, 4, 1, late), 680, 1e-6);
	energy_board_set(b, 3, &real, ENERGY_PARKED);
	near_to(energy_board_watts(b, 3, 4, 1, late), 120, 1e-6);
	energy_board_clear(b, 3);
	near_to(energy_board_watts(b, 3, 4, 0, now), 0, 0);
	energy_board_free(&b);
}

/* Learn |seconds| of a node that draws |watts| at |load|, and return the scale. */
static double seconds_of(struct energy_meter *m, int seconds, const struct energy_load *load, double watts)
{
	energy_meter_load(m, load, m->at);
	for (int i = 0; i < seconds; i++)
		energy_meter_counted(m, watts, 1, m->at + CGN_SEC);
	return m->scale;
}

/* The limit is far too low, so that the idle node is, too: nothing is learned from that for a stream. */
static void idle_seconds_correct_no_stream(void **state)
{
	(void)state;
	const struct energy_load idle = {.streams = 0}, one = {.streams = 1};
	struct energy_meter m;
	energy_meter_init(&m, 65, CGN_SEC);
	near_to(seconds_of(&m, 30, &idle, 100), 1, 0);
	assert_int_equal(m.model.curve.measured, ENERGY_LIMITED);
	assert_true(m.model.curve.most > 0 && m.model.curve.most < 2);
	assert_true(m.scale * (double)m.model.curve.decode[1] < 200);
	double scale = seconds_of(&m, 10, &one, 270);
	assert_true(scale >= METER_SCALE_LEAST && scale <= METER_SCALE_MOST);
	near_to(scale * (double)m.model.curve.decode[1], 270, 0.05);
	assert_int_equal(m.model.curve.measured, ENERGY_MEASURED_ALONE | ENERGY_LIMITED);
	near_to((double)m.model.curve.most, 2, 0);
	/* A node at half of its clock: within the bounds, and idle time does not undo it. */
	scale = seconds_of(&m, 3, &one, 150);
	near_to(seconds_of(&m, 30, &idle, 100), scale, 0);
	near_to(seconds_of(&m, 1, &idle, 1e4), scale, 0);
}

/* Whole answers of a second with a short prompt teach what streams draw, not what prompts do. */
static void whole_answers_teach_the_watts_of_streams(void **state)
{
	(void)state;
	struct energy_meter m;
	energy_meter_init(&m, 700, CGN_SEC);
	struct energy_load load = {.streams = 0};
	for (unsigned i = 0; i < 40; i++) {
		load = (struct energy_load){.prompts = i % 2 == 0 ? 2 : 0,
			.wholes = i % 2 == 0 ? 2 : 0,
			.prompt_tokens = 200,
			.whole_us = load.whole_us + (i % 2 == 0 ? 20000 : 0)};
		energy_meter_load(&m, &load, m.at);
		energy_meter_counted(&m, i % 2 == 0 ? 290 : 100, 1, m.at + CGN_SEC);
	}
	near_to((double)m.model.curve.decode[0], 100, 0.05);
	near_to((double)m.model.curve.decode[2], 290, 0.05);
	const struct energy_load running = {.prompts = 2, .wholes = 2, .prompt_s = 0.5};
	near_to(energy_load_watts(&m.model.curve, &running), (double)m.model.curve.prefill, 0);
	assert_int_equal(energy_load_lasts(&running, CGN_SEC), CGN_SEC / 2 + 1);
	struct energy_load later = running;
	energy_load_pass(&later, 0.6);
	near_to(energy_load_watts(&m.model.curve, &later), (double)m.model.curve.decode[2], 0);
	assert_int_equal(energy_load_lasts(&later, CGN_SEC), CGN_SEC);
}

/* ---- parking ---- */

/* Step nodes of both roles. Return how many are wanted. */
static uint32_t park_step(struct energy_pools *p, double load, bool pressed, uint32_t awake, cgn_nsec now)
{
	const struct energy_park_cfg cfg = {.spare = 1, .least = 1, .window = 600 * CGN_SEC};
	const struct energy_pool_view view[ENERGY_POOLS] = {{.load = 0},
		{.load = load, .pressed = pressed, .awake = awake, .all = 8}};
	uint32_t want[ENERGY_POOLS];
	energy_pools_step(p, &cfg, view, now, want);
	assert_int_equal(want[ENERGY_PROMPTS], 0);
	return want[ENERGY_ANSWERS];
}

static void parks_after_the_window_and_wakes_at_once(void **state)
{
	(void)state;
	struct energy_pools p = {0};
	uint32_t want = 0;
	cgn_nsec now = CGN_SEC;
	assert_int_equal(park_step(&p, 0, false, 8, now), 8); /* Nothing is known yet. */
	for (; now < 1300 * CGN_SEC; now += CGN_SEC)
		want = park_step(&p, 2.0, false, 8, now);
	assert_int_equal(want, 4);
	for (cgn_nsec from = now; now < from + 400 * CGN_SEC; now += CGN_SEC)
		want = park_step(&p, 0, false, 4, now);
	assert_int_equal(want, 4); /* The load of a moment ago may return. */
	for (cgn_nsec from = now; now < from + 800 * CGN_SEC; now += CGN_SEC)
		want = park_step(&p, 0, false, 4, now);
	assert_int_equal(want, 1);
	for (int i = 0; i < 200; i++, now += CGN_SEC)
		want = park_step(&p, 4.0, false, 1, now);
	assert_int_equal(want, 6);
	assert_int_equal(park_step(&p, 4.0, true, 6, now), 7); /* Requests wait. */
	for (int i = 0; i < 200; i++, now += CGN_SEC)
		want = park_step(&p, 100, false, 8, now);
	assert_int_equal(want, 8);
}

/* Step the pools for |s| seconds. */
static void pools_run(struct energy_pools *p, const struct energy_pool_view view[ENERGY_POOLS], unsigned s,
	cgn_nsec *now, uint32_t want[ENERGY_POOLS])
{
	const struct energy_park_cfg cfg = {.spare = 1, .least = 1, .window = 300 * CGN_SEC};
	for (unsigned i = 0; i < s; i++, *now += CGN_SEC)
		energy_pools_step(p, &cfg, view, *now, want);
}

static void wants_are(const uint32_t want[ENERGY_POOLS], uint32_t prompts, uint32_t answers)
{
	assert_int_equal(want[ENERGY_PROMPTS], prompts);
	assert_int_equal(want[ENERGY_ANSWERS], answers);
}

static void pools_have_their_own_loads(void **state)
{
	(void)state;
	struct energy_pool_view view[ENERGY_POOLS] = {{.load = 1.5, .awake = 3, .all = 6},
		{.load = 0.1, .awake = 1, .all = 2}};
	struct energy_pools p = {0};
	uint32_t want[ENERGY_POOLS];
	cgn_nsec now = CGN_SEC;
	pools_run(&p, view, 100, &now, want);
	wants_are(want, 6, 2); /* Nothing is known yet. */
	pools_run(&p, view, 1000, &now, want);
	wants_are(want, 3, 1);
	view[ENERGY_PROMPTS].load = 0.1; /* A single node is enough now. */
	pools_run(&p, view, 1000, &now, want);
	wants_are(want, 0, 1);
	view[ENERGY_PROMPTS].awake = 0;
	view[ENERGY_PROMPTS].late = true; /* Without nodes there is nothing to be late. */
	pools_run(&p, view, 100, &now, want);
	wants_are(want, 0, 1);
	view[ENERGY_ANSWERS].pressed = true; /* The prompts stand in the way there: a node for them wakes. */
	pools_run(&p, view, 1, &now, want);
	wants_are(want, 1, 1);
}

static void one_pool_has_all_of_the_load(void **state)
{
	(void)state;
	const struct energy_pool_view view[ENERGY_POOLS] = {{.load = 1.5},
		{.load = 0.5, .awake = 8, .all = 8}};
	struct energy_pools p = {0};
	uint32_t want[ENERGY_POOLS];
	cgn_nsec now = CGN_SEC;
	pools_run(&p, view, 1000, &now, want);
	wants_are(want, 0, 4);
}

static void late_nodes_get_one_more(void **state)
{
	(void)state;
	struct energy_pool_view view[ENERGY_POOLS] = {{.load = 0}, {.load = 1, .awake = 2, .all = 8}};
	struct energy_pools p = {0};
	uint32_t want[ENERGY_POOLS];
	cgn_nsec now = CGN_SEC;
	pools_run(&p, view, 1000, &now, want);
	wants_are(want, 0, 2);
	view[ENERGY_ANSWERS].late = true;
	pools_run(&p, view, 1, &now, want);
	wants_are(want, 0, 2); /* A single second says little. */
	pools_run(&p, view, 3, &now, want);
	wants_are(want, 0, 3);
}

static void budget_bounds_the_nodes(void **state)
{
	(void)state;
	assert_int_equal(energy_park_most(&real, 0, 70, 8), 8);
	/* Five at 456 W and three at 70 W are 2,490 W. */
	assert_int_equal(energy_park_most(&real, 2491, 70, 8), 5);
	assert_int_equal(energy_park_most(&real, 2489, 70, 8), 4);
	assert_int_equal(energy_park_most(&real, 100, 70, 8), 1);
	assert_int_equal(energy_park_most(&real, 9000, 70, 8), 8);
}

static void within_is(struct energy_pools *p, uint32_t most, cgn_nsec now, uint32_t prompts, uint32_t answers)
{
	const struct energy_park_cfg cfg = {.spare = 1, .least = 1, .window = 300 * CGN_SEC};
	uint32_t want[ENERGY_POOLS] = {4, 2};
	energy_pools_within(p, &cfg, most, now, want);
	wants_are(want, prompts, answers);
}

static void a_budget_that_wavers_wakes_nobody(void **state)
{
	(void)state;
	struct energy_pools p = {0};
	within_is(&p, 6, CGN_SEC, 4, 2);
	within_is(&p, 3, 2 * CGN_SEC, 1, 2);
	within_is(&p, 6, 3 * CGN_SEC, 1, 2);
	within_is(&p, 3, 200 * CGN_SEC, 1, 2);
	within_is(&p, 6, 400 * CGN_SEC, 1, 2);
	within_is(&p, 6, 500 * CGN_SEC, 4, 2);
	within_is(&p, 1, 501 * CGN_SEC, 0, 1);
	within_is(&p, 0, 502 * CGN_SEC, 0, 1);
}

/* ---- prices ---- */

static void series_gives_the_value_of_now(void **state)
{
	(void)state;
	const struct cgn_str day = CGN_STR("# EUR per kWh\n1000 0.31\n\n2000\t0.12 # at night\n3000 0.4\n");
	struct cgn_err err = {0};
	double v = -1;
	assert_true(cgn_ok(energy_series_at(day, 1999, 1000, &v, &err)));
	near_to(v, 0.31, 1e-9);
	assert_true(cgn_ok(energy_series_at(day, 2000, 1000, &v, &err)));
	near_to(v, 0.12, 1e-9);
	assert_int_equal(energy_series_at(day, 999, 1000, &v, &err).code, CGN_NOT_FOUND);
	assert_string_equal(err.msg, "no value has begun yet");
	err = (struct cgn_err){0};
	assert_int_equal(energy_series_at(day, 4001, 1000, &v, &err).code, CGN_NOT_FOUND);
	assert_string_equal(err.msg, "the last value is 1001 s old");
	const struct cgn_str bad[] = {CGN_STR("1000"), CGN_STR("1000 "), CGN_STR("1000 x"),
		CGN_STR("1000 nan"), CGN_STR("1000 -1"), CGN_STR("x 1"), CGN_STR("1000 1 2"),
		CGN_STR("2000 1\n1000 1\n")};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_int_equal(energy_series_at(bad[i], 4000, 9000, &v, &err).code, CGN_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(curve_follows_the_counter),
		cmocka_unit_test(error_tells_of_a_change),
		cmocka_unit_test(nonsense_teaches_nothing),
		cmocka_unit_test(counter_wraps_stops_and_goes_back),
		cmocka_unit_test(counter_without_a_range_restarts),
		cmocka_unit_test(first_stream_costs_most),
		cmocka_unit_test(knee_is_where_filling_saves_little),
		cmocka_unit_test(joules_of_requests_add_up_to_the_counter),
		cmocka_unit_test(idle_joules_are_of_no_request),
		cmocka_unit_test(board_gives_what_was_set),
		cmocka_unit_test(idle_seconds_correct_no_stream),
		cmocka_unit_test(whole_answers_teach_the_watts_of_streams),
		cmocka_unit_test(board_counts_what_was_measured),
		cmocka_unit_test(parks_after_the_window_and_wakes_at_once),
		cmocka_unit_test(pools_have_their_own_loads),
		cmocka_unit_test(one_pool_has_all_of_the_load),
		cmocka_unit_test(late_nodes_get_one_more),
		cmocka_unit_test(budget_bounds_the_nodes),
		cmocka_unit_test(a_budget_that_wavers_wakes_nobody),
		cmocka_unit_test(series_gives_the_value_of_now),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
