/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "policy/power/governor/governor.h"

static struct governor g;
static cgn_nsec again;

static enum governor_phase step_at(enum governor_role role, uint32_t prompts, cgn_nsec now)
{
	const struct governor_input in = {.role = role, .prompts = prompts, .hold = 5 * CGN_SEC, .now = now};
	return governor_step(&g, &in, &again);
}

static void a_role_alone_decides(void **state)
{
	(void)state;
	g = (struct governor){.prompt_at = 0};
	assert_int_equal(step_at(GOVERNOR_PREFILL, 0, CGN_SEC), GOVERNOR_FOR_PREFILL);
	assert_int_equal(again, 0);
	assert_int_equal(step_at(GOVERNOR_PREFILL, 3, 90 * CGN_SEC), GOVERNOR_FOR_PREFILL);
	assert_int_equal(step_at(GOVERNOR_DECODE, 3, 91 * CGN_SEC), GOVERNOR_FOR_DECODE);
	assert_int_equal(step_at(GOVERNOR_DECODE, 0, 92 * CGN_SEC), GOVERNOR_FOR_DECODE);
	assert_int_equal(again, 0);
}

static void a_node_of_both_follows_its_prompts(void **state)
{
	(void)state;
	g = (struct governor){.prompt_at = 0};
	assert_int_equal(step_at(GOVERNOR_BOTH, 0, 2 * CGN_SEC), GOVERNOR_FOR_DECODE);
	assert_int_equal(again, 0);
	assert_int_equal(step_at(GOVERNOR_BOTH, 1, 100 * CGN_SEC), GOVERNOR_FOR_PREFILL);
	assert_int_equal(again, 0);
	assert_int_equal(step_at(GOVERNOR_BOTH, 2, 103 * CGN_SEC), GOVERNOR_FOR_PREFILL);
	assert_int_equal(step_at(GOVERNOR_BOTH, 0, 104 * CGN_SEC), GOVERNOR_FOR_PREFILL);
	assert_int_equal(again, 4 * CGN_SEC); /* The last prompt was seen at 103 s. */
	assert_int_equal(step_at(GOVERNOR_BOTH, 0, 108 * CGN_SEC - 1), GOVERNOR_FOR_PREFILL);
	assert_int_equal(again, 1);
	assert_int_equal(step_at(GOVERNOR_BOTH, 0, 108 * CGN_SEC), GOVERNOR_FOR_DECODE);
	assert_int_equal(again, 0);
	assert_int_equal(step_at(GOVERNOR_BOTH, 0, 109 * CGN_SEC), GOVERNOR_FOR_DECODE);
}

static void a_prompt_within_the_hold_changes_nothing(void **state)
{
	(void)state;
	g = (struct governor){.prompt_at = 0};
	for (cgn_nsec s = 10; s < 60; s += 4) {
		assert_int_equal(step_at(GOVERNOR_BOTH, 1, s * CGN_SEC), GOVERNOR_FOR_PREFILL);
		assert_int_equal(step_at(GOVERNOR_BOTH, 0, (s + 3) * CGN_SEC), GOVERNOR_FOR_PREFILL);
	}
}

static const uint16_t h100[] = {1980, 1965, 1950, 1200, 1185, 1170, 345, 210};
#define LIMIT(phase, asked) governor_limit(h100, CGN_COUNT(h100), GOVERNOR_FOR_##phase, asked)

static void a_limit_is_a_supported_clock(void **state)
{
	(void)state;
	assert_int_equal(LIMIT(DECODE, 1200), 1200);
	assert_int_equal(LIMIT(DECODE, 1199), 1185);
	assert_int_equal(LIMIT(DECODE, 1201), 1200);
	assert_int_equal(LIMIT(PREFILL, 1950), 1950);
	assert_int_equal(LIMIT(DECODE, 100), 210); /* Below the lowest */
	assert_int_equal(LIMIT(DECODE, 210), 210);
}

static void the_highest_clock_is_no_limit(void **state)
{
	(void)state;
	assert_int_equal(LIMIT(PREFILL, 1980), 0);
	assert_int_equal(LIMIT(DECODE, 5000), 0);
	assert_int_equal(LIMIT(PREFILL, 1979), 1965);
	const uint16_t only[] = {900};
	assert_int_equal(governor_limit(only, 1, GOVERNOR_FOR_DECODE, 0), 0);
}

static void auto_limits_decode_to_a_share(void **state)
{
	(void)state;
	assert_int_equal(LIMIT(DECODE, 0), 1185); /* 0.6 x 1980 is 1188. */
	assert_int_equal(LIMIT(PREFILL, 0), 0);
	const uint16_t upward[] = {210, 345, 1185, 1200, 1980};
	assert_int_equal(governor_limit(upward, 5, GOVERNOR_FOR_DECODE, 0), 1185);
}

static void without_supported_clocks_the_setting_counts(void **state)
{
	(void)state;
	assert_int_equal(governor_limit(NULL, 0, GOVERNOR_FOR_DECODE, 0), 0);
	assert_int_equal(governor_limit(NULL, 0, GOVERNOR_FOR_DECODE, 1111), 1111);
	assert_int_equal(governor_limit(NULL, 0, GOVERNOR_FOR_PREFILL, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_role_alone_decides),
		cmocka_unit_test(a_node_of_both_follows_its_prompts),
		cmocka_unit_test(a_prompt_within_the_hold_changes_nothing),
		cmocka_unit_test(a_limit_is_a_supported_clock),
		cmocka_unit_test(the_highest_clock_is_no_limit),
		cmocka_unit_test(auto_limits_decode_to_a_share),
		cmocka_unit_test(without_supported_clocks_the_setting_counts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
