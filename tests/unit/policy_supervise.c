/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/node/engine/supervise.h"

static const struct supervise_cfg managed = {
	.managed = true,
	.ready_timeout = 10 * CGN_SEC,
	.ready_interval = 500 * CGN_MSEC,
	.check_interval = 2 * CGN_SEC,
	.backoff = CGN_SEC,
};
static const struct supervise_cfg adopted = {
	.ready_timeout = 10 * CGN_SEC,
	.ready_interval = 500 * CGN_MSEC,
	.check_interval = 2 * CGN_SEC,
	.backoff = CGN_SEC,
};

#define T0 (100 * CGN_SEC)

static struct supervise_orders step_at(struct supervise *s, enum supervise_event ev, cgn_nsec now)
{
	struct supervise_orders o;
	supervise_step(s, ev, now, &o);
	assert_true(o.wake_at == 0 || o.wake_at >= now);
	return o;
}

/* Start, probe once, be ready at |now| + 1 s. */
static void bring_up(struct supervise *s, const struct supervise_cfg *cfg, cgn_nsec now)
{
	supervise_init(s, cfg);
	(void)step_at(s, SUPERVISE_START, now);
	assert_true(step_at(s, SUPERVISE_TICK, now + CGN_SEC).probe);
	(void)step_at(s, SUPERVISE_PROBE_UP, now + CGN_SEC);
	assert_int_equal(s->state, SUPERVISE_READY);
}

static void managed_start_to_ready(void **state)
{
	(void)state;
	struct supervise s;
	supervise_init(&s, &managed);
	assert_int_equal(s.state, SUPERVISE_STOPPED);
	struct supervise_orders o = step_at(&s, SUPERVISE_START, T0);
	assert_true(o.spawn && !o.probe && !o.kill);
	assert_true(o.wake_at == T0 + managed.ready_interval);
	o = step_at(&s, SUPERVISE_TICK, T0); /* Too early: no orders */
	assert_false(o.probe || o.spawn);
	o = step_at(&s, SUPERVISE_TICK, T0 + managed.ready_interval);
	assert_true(o.probe);
	assert_false(step_at(&s, SUPERVISE_TICK, T0 + CGN_SEC).probe); /* No second probe at the same time */
	o = step_at(&s, SUPERVISE_PROBE_LOADING, T0 + CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_STARTING);
	assert_true(o.wake_at == T0 + CGN_SEC + managed.ready_interval);
	assert_true(step_at(&s, SUPERVISE_TICK, T0 + 2 * CGN_SEC).probe);
	o = step_at(&s, SUPERVISE_PROBE_UP, T0 + 2 * CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_READY);
	assert_true(o.wake_at == T0 + 2 * CGN_SEC + managed.check_interval);
	assert_string_equal(supervise_state_name(s.state), "ready");
}

static void too_slow_is_killed_and_started_again(void **state)
{
	(void)state;
	struct supervise s;
	supervise_init(&s, &managed);
	(void)step_at(&s, SUPERVISE_START, T0);
	cgn_nsec late = T0 + managed.ready_timeout;
	struct supervise_orders o = step_at(&s, SUPERVISE_TICK, late);
	assert_true(o.kill && !o.spawn);
	assert_false(step_at(&s, SUPERVISE_TICK, late + CGN_SEC).kill); /* The kill is ordered once */
	o = step_at(&s, SUPERVISE_EXITED, late + CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_BACKOFF);
	assert_true(o.wake_at == late + 2 * CGN_SEC);
	o = step_at(&s, SUPERVISE_TICK, o.wake_at);
	assert_true(o.spawn);
	assert_int_equal(s.state, SUPERVISE_STARTING);
	assert_int_equal(s.restarts, 1);
}

static void backoff_doubles_to_its_limit_and_resets_after_a_healthy_minute(void **state)
{
	(void)state;
	struct supervise s;
	supervise_init(&s, &managed);
	cgn_nsec now = T0;
	(void)step_at(&s, SUPERVISE_START, now);
	static const uint64_t want[] = {1, 2, 4, 8, 16, 30, 30};
	for (size_t i = 0; i < CGN_COUNT(want); i++) {
		struct supervise_orders o =
			step_at(&s, i % 2 ? SUPERVISE_EXITED : SUPERVISE_SPAWN_FAILED, now);
		assert_true(o.wake_at == now + want[i] * CGN_SEC);
		now = o.wake_at;
		assert_true(step_at(&s, SUPERVISE_TICK, now).spawn);
	}
	assert_true(step_at(&s, SUPERVISE_TICK, now + CGN_SEC).probe);
	(void)step_at(&s, SUPERVISE_PROBE_UP, now + CGN_SEC);
	cgn_nsec died = now + CGN_SEC + SUPERVISE_HEALTHY_MINUTE - 1;
	struct supervise quick = s;
	assert_true(step_at(&quick, SUPERVISE_EXITED, died).wake_at == died + SUPERVISE_BACKOFF_MAX);
	assert_true(step_at(&s, SUPERVISE_EXITED, died + 1).wake_at == died + 1 + managed.backoff);
}

static void unhealthy_recovers_or_is_replaced(void **state)
{
	(void)state;
	struct supervise s;
	bring_up(&s, &managed, T0);
	cgn_nsec now = T0 + CGN_SEC;
	for (unsigned i = 1; i <= SUPERVISE_FAILS; i++) {
		now += 2 * CGN_SEC;
		assert_true(step_at(&s, SUPERVISE_TICK, now).probe);
		(void)step_at(&s, SUPERVISE_PROBE_DOWN, now);
		assert_int_equal(s.state, i < SUPERVISE_FAILS ? SUPERVISE_READY : SUPERVISE_UNHEALTHY);
	}
	struct supervise hopeless = s;
	assert_true(step_at(&s, SUPERVISE_TICK, now + CGN_SEC).probe);
	(void)step_at(&s, SUPERVISE_PROBE_UP, now + CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_READY);
	assert_true(step_at(&hopeless, SUPERVISE_TICK, now + SUPERVISE_SICK_LIMIT).kill);
}

static void one_bad_answer_is_forgiven(void **state)
{
	(void)state;
	struct supervise s;
	bring_up(&s, &managed, T0);
	cgn_nsec now = T0;
	for (int i = 0; i < 10; i++) {
		now += 5 * CGN_SEC;
		assert_true(step_at(&s, SUPERVISE_TICK, now).probe);
		(void)step_at(&s, i % 2 ? SUPERVISE_PROBE_UP : SUPERVISE_PROBE_DOWN, now);
		assert_int_equal(s.state, SUPERVISE_READY);
	}
}

static void refused_and_loading_are_believed_at_once(void **state)
{
	(void)state;
	static const enum supervise_event clear[] = {SUPERVISE_PROBE_REFUSED, SUPERVISE_PROBE_LOADING};
	for (size_t i = 0; i < CGN_COUNT(clear); i++) {
		struct supervise s;
		bring_up(&s, &managed, T0);
		assert_true(step_at(&s, SUPERVISE_TICK, T0 + 4 * CGN_SEC).probe);
		(void)step_at(&s, clear[i], T0 + 4 * CGN_SEC);
		assert_int_equal(s.state, SUPERVISE_UNHEALTHY);
	}
}

static void adopted_is_watched_but_never_touched(void **state)
{
	(void)state;
	struct supervise s;
	supervise_init(&s, &adopted);
	cgn_nsec now = T0;
	struct supervise_orders o = step_at(&s, SUPERVISE_START, now);
	assert_false(o.spawn);
	assert_true(o.wake_at == now);   /* An unmanaged engine may be up already */
	for (int i = 0; i < 5000; i++) { /* Far beyond ready_timeout */
		o = step_at(&s, SUPERVISE_TICK, now);
		assert_true(o.probe && !o.kill && !o.spawn);
		o = step_at(&s, SUPERVISE_PROBE_REFUSED, now);
		now = o.wake_at;
	}
	assert_true(step_at(&s, SUPERVISE_TICK, now).probe);
	(void)step_at(&s, SUPERVISE_PROBE_UP, now);
	assert_int_equal(s.state, SUPERVISE_READY);
	assert_true(step_at(&s, SUPERVISE_TICK, now + 3 * CGN_SEC).probe);
	(void)step_at(&s, SUPERVISE_PROBE_REFUSED, now + 3 * CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_UNHEALTHY);
	o = step_at(&s, SUPERVISE_TICK, now + 100 * CGN_SEC);
	assert_false(o.kill);
	o = step_at(&s, SUPERVISE_STOP, now);
	assert_false(o.kill);
	assert_int_equal(s.state, SUPERVISE_STOPPED);
	assert_true(o.wake_at == 0);
}

static void stopping_waits_for_the_process(void **state)
{
	(void)state;
	struct supervise s;
	bring_up(&s, &managed, T0);
	struct supervise_orders o = step_at(&s, SUPERVISE_STOP, T0 + 2 * CGN_SEC);
	assert_true(o.kill);
	assert_int_equal(s.state, SUPERVISE_STOPPING);
	assert_false(step_at(&s, SUPERVISE_STOP, T0 + 3 * CGN_SEC).kill);
	assert_false(step_at(&s, SUPERVISE_TICK, T0 + 60 * CGN_SEC).spawn);
	o = step_at(&s, SUPERVISE_EXITED, T0 + 61 * CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_STOPPED);
	assert_true(o.wake_at == 0);
	assert_false(step_at(&s, SUPERVISE_TICK, T0 + 99 * CGN_SEC).spawn);
}

static void stop_during_backoff_ends_at_once(void **state)
{
	(void)state;
	struct supervise s;
	supervise_init(&s, &managed);
	(void)step_at(&s, SUPERVISE_START, T0);
	(void)step_at(&s, SUPERVISE_SPAWN_FAILED, T0);
	struct supervise_orders o = step_at(&s, SUPERVISE_STOP, T0);
	assert_false(o.kill);
	assert_int_equal(s.state, SUPERVISE_STOPPED);
}

static void late_answers_change_nothing(void **state)
{
	(void)state;
	struct supervise s;
	supervise_init(&s, &managed);
	(void)step_at(&s, SUPERVISE_START, T0);
	assert_true(step_at(&s, SUPERVISE_TICK, T0 + CGN_SEC).probe);
	(void)step_at(&s, SUPERVISE_EXITED, T0 + CGN_SEC);
	(void)step_at(&s, SUPERVISE_PROBE_UP, T0 + CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_BACKOFF);
	(void)step_at(&s, SUPERVISE_EXITED, T0 + CGN_SEC); /* A second exit changes nothing */
	assert_int_equal(s.state, SUPERVISE_BACKOFF);
	assert_true(s.backoff == 2 * managed.backoff);
	(void)step_at(&s, SUPERVISE_START, T0 + CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_BACKOFF);
}

/* For any sequence of events, a waiting state has an event that ends the wait, and no process is started
 * twice. */
static void any_order_of_events_leaves_no_hang(void **state)
{
	(void)state;
	for (uint32_t seed = 1; seed <= 200; seed++) {
		struct supervise s;
		uint32_t rng = seed;
		bool process = false, probing = false;
		cgn_nsec now = T0;
		supervise_init(&s, seed % 2 ? &managed : &adopted);
		struct supervise_orders o = step_at(&s, SUPERVISE_START, now);
		process = o.spawn;
		for (int i = 0; i < 300; i++) {
			rng = rng * 1664525U + 1013904223U;
			enum supervise_event ev =
				(enum supervise_event)((rng >> 16) % (SUPERVISE_PROBE_REFUSED + 1));
			now += (rng >> 8) % (5 * CGN_SEC);
			if (ev == SUPERVISE_SPAWN_FAILED)
				ev = SUPERVISE_TICK;
			if (ev == SUPERVISE_EXITED && !process)
				continue;
			if (ev == SUPERVISE_EXITED)
				process = probing = false;
			if (ev >= SUPERVISE_PROBE_UP)
				probing = false;
			supervise_step(&s, ev, now, &o);
			assert_false(o.spawn && process);
			process = process || o.spawn;
			assert_true(!o.kill || process);
			probing = probing || o.probe;
			assert_true(o.wake_at != 0 || probing || s.probing || (process && s.killing));
		}
	}
}

static void a_stalled_engine_is_unhealthy_at_once(void **state)
{
	(void)state;
	struct supervise s;
	bring_up(&s, &managed, T0);
	cgn_nsec now = T0 + 10 * CGN_SEC;
	assert_true(step_at(&s, SUPERVISE_TICK, now).probe);
	(void)step_at(&s, SUPERVISE_STALLED, now); /* During a probe */
	assert_int_equal(s.state, SUPERVISE_UNHEALTHY);
	(void)step_at(&s, SUPERVISE_STALLED, now); /* A second stall changes nothing */
	(void)step_at(&s, SUPERVISE_PROBE_UP, now + CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_READY);
	(void)step_at(&s, SUPERVISE_STALLED, now + 2 * CGN_SEC);
	struct supervise_orders o = step_at(&s, SUPERVISE_TICK, now + 2 * CGN_SEC + SUPERVISE_SICK_LIMIT);
	assert_true(o.kill && s.has_process); /* A managed engine that did not recover */
	supervise_init(&s, &adopted);
	(void)step_at(&s, SUPERVISE_STALLED, now); /* Not started */
	assert_int_equal(s.state, SUPERVISE_STOPPED);
	bring_up(&s, &adopted, T0);
	(void)step_at(&s, SUPERVISE_STALLED, now);
	/* An engine that is not managed is not restarted */
	assert_false(step_at(&s, SUPERVISE_TICK, now + 10 * SUPERVISE_SICK_LIMIT).kill);
}

static void a_program_that_ended_is_unready_before_its_children_are_gone(void **state)
{
	(void)state;
	struct supervise s;
	bring_up(&s, &managed, T0);
	cgn_nsec now = T0 + 10 * CGN_SEC;
	struct supervise_orders o = step_at(&s, SUPERVISE_ENDING, now);
	assert_int_equal(s.state, SUPERVISE_UNHEALTHY);
	assert_true(s.ending && !o.spawn && !o.probe && !o.kill && o.wake_at == 0);
	o = step_at(&s, SUPERVISE_TICK, now + SUPERVISE_SICK_LIMIT);
	assert_false(o.spawn || o.probe || o.kill);
	(void)step_at(&s, SUPERVISE_PROBE_UP, now + CGN_SEC); /* A late answer of the old process */
	assert_int_equal(s.state, SUPERVISE_UNHEALTHY);
	o = step_at(&s, SUPERVISE_EXITED, now + 2 * CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_BACKOFF);
	assert_true(!s.ending && o.wake_at == now + 3 * CGN_SEC);
	assert_true(step_at(&s, SUPERVISE_TICK, now + 3 * CGN_SEC).spawn);
	/* While it is being stopped, the end is the one that was ordered. */
	assert_true(step_at(&s, SUPERVISE_STOP, now + 4 * CGN_SEC).kill);
	(void)step_at(&s, SUPERVISE_ENDING, now + 4 * CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_STOPPING);
	(void)step_at(&s, SUPERVISE_EXITED, now + 5 * CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_STOPPED);
	(void)step_at(&s, SUPERVISE_ENDING, now + 6 * CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_STOPPED);
}

static void an_adopted_process_is_probed_at_once(void **state)
{
	(void)state;
	struct supervise s;
	supervise_init(&s, &managed);
	assert_true(step_at(&s, SUPERVISE_START, T0).spawn);
	assert_true(step_at(&s, SUPERVISE_ADOPTED, T0).wake_at == T0);
	assert_true(step_at(&s, SUPERVISE_TICK, T0).probe);
	(void)step_at(&s, SUPERVISE_PROBE_UP, T0);
	(void)step_at(&s, SUPERVISE_ADOPTED, T0 + CGN_SEC);
	assert_int_equal(s.state, SUPERVISE_READY);
	assert_true(s.next_probe == T0 + managed.check_interval);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(managed_start_to_ready),
		cmocka_unit_test(too_slow_is_killed_and_started_again),
		cmocka_unit_test(backoff_doubles_to_its_limit_and_resets_after_a_healthy_minute),
		cmocka_unit_test(unhealthy_recovers_or_is_replaced),
		cmocka_unit_test(one_bad_answer_is_forgiven),
		cmocka_unit_test(refused_and_loading_are_believed_at_once),
		cmocka_unit_test(adopted_is_watched_but_never_touched),
		cmocka_unit_test(stopping_waits_for_the_process),
		cmocka_unit_test(stop_during_backoff_ends_at_once),
		cmocka_unit_test(late_answers_change_nothing),
		cmocka_unit_test(any_order_of_events_leaves_no_hang),
		cmocka_unit_test(a_stalled_engine_is_unhealthy_at_once),
		cmocka_unit_test(a_program_that_ended_is_unready_before_its_children_are_gone),
		cmocka_unit_test(an_adopted_process_is_probed_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
