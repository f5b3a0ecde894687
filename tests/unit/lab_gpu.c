/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lab/gpu/gpu.h"

static void gpus_have_names(void **state)
{
	(void)state;
	assert_string_equal(gpu_find("h200")->name, "h200");
	assert_null(gpu_find("h1"));
}

static void the_highest_clock_changes_nothing(void **state)
{
	(void)state;
	const struct gpu_clocked c = gpu_at_clock(1), above = gpu_at_clock(1.5);
	assert_float_equal(c.decode_time, 1, 1e-9);
	assert_float_equal(c.prefill_time, 1, 1e-9);
	assert_float_equal(c.watts, 1, 1e-9);
	assert_float_equal(above.watts, 1, 1e-9);
}

static void a_lower_clock_costs_prompts_more_than_decode(void **state)
{
	(void)state;
	const struct gpu_clocked c = gpu_at_clock(0.6), least = gpu_at_clock(0.063),
				 below = gpu_at_clock(0.001);
	assert_float_equal(c.decode_time, 1.0256, 1e-3);
	assert_float_equal(c.prefill_time, 1.6667, 1e-3);
	assert_float_equal(c.watts, 0.65, 1e-3);
	assert_float_equal(least.decode_time, 1.06, 1e-9);
	assert_float_equal(least.watts, 0.18, 1e-9);
	assert_float_equal(below.prefill_time, least.prefill_time, 1e-9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpus_have_names),
		cmocka_unit_test(the_highest_clock_changes_nothing),
		cmocka_unit_test(a_lower_clock_costs_prompts_more_than_decode),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
