/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/answer/plan/plan.h"

#define T0 (1000 * CGN_SEC)

static const struct plan_rules rules = {
	.retry_on = 1U << BREAKER_CONNECT | 1U << BREAKER_STATUS | 1U << BREAKER_FULL | 1U << BREAKER_STALL |
		1U << BREAKER_TIMEOUT,
	.attempts = 3,
};

static void plan_start(struct plan *p)
{
	static struct plan_leg legs[PLAN_LEGS(PLAN_MAX_ATTEMPTS)];
	plan_begin(p, legs, sizeof legs / sizeof *legs, CGN_STR("m"));
}

static void leg_send(struct plan *p, uint16_t slot)
{
	plan_sent(p, slot, 3, 8, T0);
}

static struct plan_step step_of(struct plan *p, enum leg_end end, enum breaker_failure how,
	enum plan_missing missing)
{
	const struct leg_outcome o = {.end = end, .how = how, .missing = missing};
	struct plan_step s;
	plan_follow(p, &rules, &o, &s);
	return s;
}

/* End the current leg and take the leg that follows. */
static void leg_replace(struct plan *p, enum leg_end end, enum breaker_failure how)
{
	struct plan_step s = step_of(p, end, how, PLAN_MISSES_MORE);
	assert_int_equal(s.next, PLAN_LEG);
	plan_ended(p, end == LEG_END_FINE, T0 + CGN_SEC);
	plan_take(p, &s);
}

/* Each end of the first answer leg. */
static void first_leg(void **state)
{
	(void)state;
	static const struct {
		enum leg_end end;
		enum breaker_failure how;
		enum plan_missing missing;
		enum plan_next next, otherwise;
		const char *reason;
	} rows[] = {
		{LEG_END_FINE, BREAKER_FAILURES, PLAN_MISSES_LOST, PLAN_OVER, PLAN_FAIL, NULL},
		{LEG_END_FAILED, BREAKER_CONNECT, PLAN_MISSES_LOST, PLAN_LEG, PLAN_FAIL, "failed"},
		{LEG_END_FAILED, BREAKER_FULL, PLAN_MISSES_LOST, PLAN_LEG, PLAN_FAIL, "node_full"},
		{LEG_END_FAILED, BREAKER_STALL, PLAN_MISSES_LOST, PLAN_LEG, PLAN_FAIL, "stall"},
		{LEG_END_FAILED, BREAKER_TIMEOUT, PLAN_MISSES_LOST, PLAN_LEG, PLAN_FAIL, "timeout"},
		/* Not in retry_on. */
		{LEG_END_FAILED, BREAKER_RESET, PLAN_MISSES_LOST, PLAN_FAIL, PLAN_FAIL, NULL},
		/* The request is at fault. */
		{LEG_END_FAILED, BREAKER_FAILURES, PLAN_MISSES_LOST, PLAN_FAIL, PLAN_FAIL, NULL},
		{LEG_END_STATUS, BREAKER_STATUS, PLAN_MISSES_LOST, PLAN_LEG, PLAN_RELAY, "engine_5xx"},
		{LEG_END_STATUS, BREAKER_FULL, PLAN_MISSES_LOST, PLAN_LEG, PLAN_RELAY, "engine_429"},
		{LEG_END_CUT, BREAKER_CUT, PLAN_MISSES_MORE, PLAN_LEG, PLAN_FAIL, NULL},
		{LEG_END_CUT, BREAKER_CUT, PLAN_MISSES_NOTHING, PLAN_OVER, PLAN_FAIL, NULL},
		{LEG_END_CUT, BREAKER_CUT, PLAN_MISSES_LOST, PLAN_FAIL, PLAN_FAIL, NULL},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct plan p;
		plan_start(&p);
		leg_send(&p, 4);
		struct plan_step s = step_of(&p, rows[i].end, rows[i].how, rows[i].missing);
		if (s.next != rows[i].next || s.otherwise != rows[i].otherwise)
			fail_msg("row %zu: next %d, otherwise %d", i, s.next, s.otherwise);
		assert_int_equal(s.costs_retry, s.next == PLAN_LEG);
		if (rows[i].reason != NULL)
			assert_string_equal(s.reason, rows[i].reason);
		else
			assert_null(s.reason);
	}
}

static void retries_are_bounded(void **state)
{
	(void)state;
	struct plan p;
	plan_start(&p);
	assert_int_equal(plan_attempts(&p), 0);
	assert_int_equal(plan_last(&p)->blocks, 0);
	for (uint16_t i = 0; i < 2; i++) {
		leg_send(&p, i);
		leg_replace(&p, LEG_END_FAILED, BREAKER_CONNECT);
		assert_int_equal(plan_leg(&p)->state, LEG_PLANNED);
		assert_int_equal(plan_leg(&p)->stage, 0);
		assert_int_equal(plan_leg(&p)->blocks, 0);
		assert_int_equal(plan_last(&p)->blocks, 8);
		assert_string_equal(p.last_retry, "failed");
	}
	leg_send(&p, 2);
	assert_int_equal(plan_attempts(&p), 3);
	assert_int_equal(step_of(&p, LEG_END_FAILED, BREAKER_CONNECT, PLAN_MISSES_LOST).next, PLAN_FAIL);
	assert_int_equal(step_of(&p, LEG_END_STATUS, BREAKER_STATUS, PLAN_MISSES_LOST).next, PLAN_RELAY);
	assert_int_equal(step_of(&p, LEG_END_CUT, BREAKER_CUT, PLAN_MISSES_MORE).next, PLAN_FAIL);
}

/* A request that two engines hung up on may be what kills them. */
static void killers_are_stopped(void **state)
{
	(void)state;
	struct plan p;
	plan_start(&p);
	leg_send(&p, 0);
	plan_died(&p);
	leg_replace(&p, LEG_END_FAILED, BREAKER_CONNECT);
	leg_send(&p, 1);
	assert_int_equal(step_of(&p, LEG_END_FAILED, BREAKER_CONNECT, PLAN_MISSES_LOST).next, PLAN_LEG);
	plan_died(&p);
	assert_int_equal(step_of(&p, LEG_END_FAILED, BREAKER_CONNECT, PLAN_MISSES_LOST).next, PLAN_FAIL);
	assert_int_equal(step_of(&p, LEG_END_STATUS, BREAKER_STATUS, PLAN_MISSES_LOST).next, PLAN_RELAY);
}

/* A plan never takes more legs than it has room for, whatever the rules say by now. */
static void retries_are_bounded_by_room(void **state)
{
	(void)state;
	struct plan p;
	struct plan_leg legs[PLAN_LEGS(2)];
	plan_begin(&p, legs, PLAN_LEGS(2), CGN_STR("m"));
	const struct plan_leg prefill = plan_prefill_leg(&p);
	plan_prefill_first(&p, &prefill);
	leg_send(&p, 0);
	leg_replace(&p, LEG_END_FINE, BREAKER_FAILURES);
	leg_send(&p, 1);
	leg_replace(&p, LEG_END_FAILED, BREAKER_CONNECT);
	leg_send(&p, 2);
	assert_int_equal(step_of(&p, LEG_END_FAILED, BREAKER_CONNECT, PLAN_MISSES_LOST).next, PLAN_FAIL);
}

static void tried_nodes(void **state)
{
	(void)state;
	struct plan p;
	uint16_t slots[PLAN_MAX_ATTEMPTS];
	plan_start(&p);
	assert_true(plan_leg(&p)->target.untried);
	leg_send(&p, 7);
	leg_replace(&p, LEG_END_FAILED, BREAKER_CONNECT);
	leg_send(&p, 9);
	assert_int_equal(plan_tried(&p, slots), 2);
	assert_int_equal(slots[0], 7);
	assert_int_equal(slots[1], 9);
	assert_true(plan_has_tried(&p, 7) && !plan_has_tried(&p, 8));
	plan_forgive(&p);
	assert_false(plan_has_tried(&p, 7) || plan_has_tried(&p, 9));
	assert_int_equal(plan_attempts(&p), 2);
}

/* A prefill leg does not count as an attempt, excludes no node, and leads on whether it succeeds or fails. */
static void prefill_leads_on(void **state)
{
	(void)state;
	for (int well = 0; well < 2; well++) {
		struct plan p;
		plan_start(&p);
		const struct plan_leg prefill = plan_prefill_leg(&p);
		plan_prefill_first(&p, &prefill);
		assert_int_equal(plan_leg(&p)->bytes, LEG_DROP);
		assert_false(plan_leg(&p)->target.untried);
		leg_send(&p, 3);
		plan_leg(&p)->node = "pre";
		leg_replace(&p, well ? LEG_END_FINE : LEG_END_FAILED,
			well ? BREAKER_FAILURES : BREAKER_CONNECT);
		const struct plan_leg *l = plan_leg(&p);
		assert_int_equal(l->role, well ? LEG_DECODE : LEG_WHOLE);
		assert_int_equal(l->bytes, LEG_SHOW);
		assert_int_equal(l->stage, 1);
		assert_true(l->target.untried);
		assert_int_equal(plan_attempts(&p), 0);
		assert_false(plan_has_tried(&p, 3));
		assert_null(p.last_retry);
		if (!well) {
			assert_null(plan_prefilled(&p));
			continue;
		}
		assert_string_equal(plan_prefilled(&p)->node, "pre");
		assert_int_equal(plan_prefilled(&p)->took, CGN_SEC);
		/* A retry still fetches the blocks that the prefill leg stored. */
		leg_send(&p, 4);
		leg_replace(&p, LEG_END_FAILED, BREAKER_CONNECT);
		assert_int_equal(plan_leg(&p)->role, LEG_DECODE);
	}
}

static void resumed_leg(void **state)
{
	(void)state;
	struct plan p;
	plan_start(&p);
	leg_send(&p, 1);
	leg_replace(&p, LEG_END_CUT, BREAKER_CUT);
	const struct plan_leg *l = plan_leg(&p);
	assert_int_equal(l->edit, LEG_CONTINUES);
	assert_true(l->target.untried && l->target.resuming);
	assert_true(cgn_str_is(l->model, "m"));
	assert_null(p.last_retry);
	leg_send(&p, 2);
	/* An error cannot be shown after half an answer. */
	assert_int_equal(step_of(&p, LEG_END_STATUS, BREAKER_STATUS, PLAN_MISSES_LOST).otherwise, PLAN_FAIL);
	struct plan_step s = step_of(&p, LEG_END_MISFIT, BREAKER_FAILURES, PLAN_MISSES_LOST);
	assert_int_equal(s.next, PLAN_LEG);
	assert_int_equal(s.otherwise, PLAN_FAIL);
	assert_string_equal(s.reason, "resume");
	/* A retry of a continuing leg continues too. */
	leg_replace(&p, LEG_END_FAILED, BREAKER_CONNECT);
	assert_int_equal(plan_leg(&p)->edit, LEG_CONTINUES);
	assert_int_equal(plan_leg(&p)->stage, 1);
}

/* A prefill node answers in the place of decode nodes for one try; the next one is for every node. */
static void only_one_leg_is_left_to_prefill_nodes(void **state)
{
	(void)state;
	struct plan_leg legs[PLAN_LEGS(2)];
	struct plan p;
	struct plan_step step;
	const struct plan_rules twice = {1U << BREAKER_RESET, 2};
	const struct leg_outcome failed = {LEG_END_FAILED, BREAKER_RESET, PLAN_MISSES_MORE};
	plan_begin(&p, legs, CGN_COUNT(legs), CGN_STR("m"));
	plan_let_prefill_answer(&p);
	assert_true(plan_leg(&p)->target.continues);
	plan_sent(&p, 3, 0, 0, 1);
	plan_follow(&p, &twice, &failed, &step);
	assert_int_equal(step.next, PLAN_LEG);
	assert_false(step.leg.target.continues);
}

static void smaller_models_first(void **state)
{
	static const struct cgn_str models[] = {{"s", 1}, {"m", 1}, {"l", 1}};
	struct plan p;
	(void)state;
	plan_start(&p);
	plan_cascade(&p, models, 3);
	assert_true(plan_is_held(&p) && cgn_str_is(plan_leg(&p)->model, "s"));
	leg_send(&p, 1);
	struct plan_step s = step_of(&p, LEG_END_REJECTED, BREAKER_FAILURES, 0);
	assert_true(s.next == PLAN_LEG && !s.costs_retry && s.reason == NULL);
	assert_true(cgn_str_is(s.leg.model, "m") && s.leg.bytes == LEG_HOLD && s.leg.stage == 1);
	plan_ended(&p, false, T0);
	plan_take(&p, &s);
	assert_int_equal(plan_attempts(&p),
		0); /* the node of the smaller model may be asked again, for another one */
	plan_skip(&p);
	assert_false(plan_is_held(&p));
	assert_true(cgn_str_is(plan_leg(&p)->model, "l") && plan_leg(&p)->then == LEG_ENDS_ANSWER);
	leg_send(&p, 1);
	assert_int_equal(plan_attempts(&p), 1);
	assert_int_equal(step_of(&p, LEG_END_FINE, 0, 0).next, PLAN_OVER);
}

static void a_released_answer_is_the_answer(void **state)
{
	static const struct cgn_str models[] = {{"s", 1}, {"l", 1}};
	struct plan p;
	(void)state;
	plan_start(&p);
	plan_cascade(&p, models, 2);
	leg_send(&p, 1);
	assert_true(cgn_str_is(step_of(&p, LEG_END_FAILED, BREAKER_CONNECT, 0).leg.model, "l"));
	plan_release(&p);
	assert_int_equal(plan_attempts(&p), 1);
	struct plan_step s = step_of(&p, LEG_END_CUT, BREAKER_CUT, PLAN_MISSES_MORE);
	assert_true(s.next == PLAN_LEG && s.leg.edit == LEG_CONTINUES && cgn_str_is(s.leg.model, "s"));
	assert_int_equal(step_of(&p, LEG_END_FINE, 0, 0).next, PLAN_OVER);
}

static void a_leg_that_gave_nothing_elsewhere_does_not_count(void **state)
{
	struct plan p;
	(void)state;
	plan_start(&p);
	leg_send(&p, 4097);
	assert_int_equal(plan_attempts(&p), 1);
	plan_withdraw(&p);
	assert_int_equal(plan_attempts(&p), 0);
	assert_false(plan_has_tried(&p, 4097));
	assert_true(plan_leg(&p)->state == LEG_PLANNED && plan_leg(&p)->target.untried);
	leg_send(&p, 1);
	assert_int_equal(step_of(&p, LEG_END_FINE, 0, 0).next, PLAN_OVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_leg),
		cmocka_unit_test(retries_are_bounded),
		cmocka_unit_test(killers_are_stopped),
		cmocka_unit_test(only_one_leg_is_left_to_prefill_nodes),
		cmocka_unit_test(retries_are_bounded_by_room),
		cmocka_unit_test(tried_nodes),
		cmocka_unit_test(prefill_leads_on),
		cmocka_unit_test(resumed_leg),
		cmocka_unit_test(smaller_models_first),
		cmocka_unit_test(a_released_answer_is_the_answer),
		cmocka_unit_test(a_leg_that_gave_nothing_elsewhere_does_not_count),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
