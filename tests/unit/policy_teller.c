/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/route/cluster/teller.h"

static void a_late_engine_rests_and_is_tried_by_one(void **state)
{
	(void)state;
	struct teller t = {0};
	cgn_nsec now = 100 * CGN_SEC;
	assert_false(teller_rests(&t, now));
	teller_asked(&t, now);
	teller_was_late(&t, now);
	teller_ended(&t);
	assert_true(teller_rests(&t, now + TELLER_REST - 1));
	now += TELLER_REST;
	assert_false(teller_rests(&t, now));
	teller_asked(&t, now);
	assert_true(teller_rests(&t, now)); /* The first request tries the engine. */
	teller_answered(&t, now);
	assert_false(teller_rests(&t, now));
	teller_was_late(&t, now);
	teller_reset(&t);
	assert_false(teller_rests(&t, now));
	teller_ended(&t);
}

static void an_engine_hesitates_while_it_answers_nobody(void **state)
{
	(void)state;
	struct teller t = {0};
	cgn_nsec now = 100 * CGN_SEC;
	assert_false(teller_hesitates(&t, now, 10));
	teller_asked(&t, now);
	teller_asked(&t, now + 5);
	assert_false(teller_hesitates(&t, now + 10, 10));
	assert_true(teller_hesitates(&t, now + 11, 10));
	teller_answered(&t, now + 11);
	teller_ended(&t);
	assert_false(teller_hesitates(&t, now + 21, 10));
	assert_true(teller_hesitates(&t, now + 22, 10));
	assert_false(teller_hesitates(&t, now, 10)); /* The clock of another thread is behind. */
	teller_ended(&t);
	assert_false(teller_hesitates(&t, now + 1000, 10));
	teller_asked(&t, now + 1000);
	assert_false(teller_hesitates(&t, now + 1001, 10));
	teller_ended(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_late_engine_rests_and_is_tried_by_one),
		cmocka_unit_test(an_engine_hesitates_while_it_answers_nobody),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
