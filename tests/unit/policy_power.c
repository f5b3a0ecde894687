/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/power/power.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define NOW (1000 * CGN_SEC)

static struct power_reading reading_of(enum power_component c, enum power_source s, double watts)
{
	return (struct power_reading){.node = "n1",
		.component = c,
		.source = s,
		.value = watts,
		.time = NOW - CGN_SEC,
		.max_age = 30 * CGN_SEC};
}

static bool is_near(double a, double b)
{
	return fabs(a - b) < 1e-6;
}

static double sum_watts(const struct power_reading *r, size_t n, struct power_sum *out)
{
	assert_true(power_sum_of(r, n, CGN_STR("n1"), NOW, out));
	return out->watts;
}

static void test_freshness(void **state)
{
	struct power_reading r = reading_of(POWER_GPU, POWER_FROM_NVML, 300);
	(void)state;
	assert_true(power_usable(&r, NOW));
	assert_int_equal(power_age(&r, NOW), CGN_SEC);
	assert_int_equal(power_state_now(&r, r.time + r.max_age - 1), POWER_FRESH);
	assert_int_equal(power_state_now(&r, r.time + r.max_age), POWER_STALE);
	/* The clock went back: a reading of the future is not trusted. */
	assert_int_equal(power_state_now(&r, r.time - 1), POWER_STALE);
	assert_int_equal(power_age(&r, r.time - 1), 0);
	r.max_age = 0;
	assert_int_equal(power_state_now(&r, r.time), POWER_STALE);
}

static void test_a_reader_is_believed(void **state)
{
	struct power_reading r = reading_of(POWER_GPU, POWER_FROM_NVML, 300);
	(void)state;
	for (unsigned s = POWER_STALE; s < POWER_STATES; s++) {
		r.state = (enum power_state)s;
		assert_int_equal(power_state_now(&r, NOW), s);
		assert_false(power_usable(&r, NOW));
	}
}

static void test_values_that_cannot_be(void **state)
{
	const double bad[] = {NAN, INFINITY, -INFINITY, -1};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct power_reading r = reading_of(POWER_GPU, POWER_FROM_NVML, bad[i]);
		assert_int_equal(power_state_now(&r, NOW), POWER_FAILING);
	}
	struct power_reading cold = reading_of(POWER_OTHER, POWER_FROM_IPMI, -12);
	cold.quantity = POWER_CELSIUS;
	assert_true(power_usable(&cold, NOW));
}

static void test_nothing_is_not_zero(void **state)
{
	struct power_sum sum = {.watts = 7};
	struct power_reading r[] = {reading_of(POWER_GPU, POWER_FROM_NVML, 300),
		reading_of(POWER_GPU, POWER_FROM_NVML, 300), reading_of(POWER_GPU, POWER_FROM_NVML, 300)};
	(void)state;
	assert_false(power_sum_of(NULL, 0, CGN_STR("n1"), NOW, &sum));
	r[0].state = POWER_STALE;
	r[1].quantity = POWER_LIMIT_WATTS;
	(void)cgn_str_copyz(r[2].node, sizeof r[2].node, CGN_STR("n2"));
	assert_false(power_sum_of(r, 3, CGN_STR("n1"), NOW, &sum));
	assert_true(is_near(sum.watts, 7));
}

static void test_parts_that_draw_more_than_the_whole(void **state)
{
	struct power_sum sum;
	struct power_reading r[] = {reading_of(POWER_CHASSIS, POWER_FROM_REDFISH, 1000),
		reading_of(POWER_GPU, POWER_FROM_NVML, 600), reading_of(POWER_GPU, POWER_FROM_NVML, 500)};
	(void)state;
	(void)snprintf(r[2].part, sizeof r[2].part, "1");
	assert_true(is_near(sum_watts(r, 3, &sum), 1000)); /* A tenth is a peak */
	assert_true(sum.is_whole);
	r[2].value = 501;
	assert_true(is_near(sum_watts(r, 3, &sum), 1101));
	assert_int_equal(sum.by, POWER_OTHER);
	assert_false(sum.is_whole);
	r[0].component = POWER_PSU;
	assert_true(is_near(sum_watts(r, 3, &sum), 1101));
}

static void test_a_whole_is_not_added_to_its_parts(void **state)
{
	struct power_sum sum;
	struct power_reading r[] = {reading_of(POWER_GPU, POWER_FROM_NVML, 400),
		reading_of(POWER_CPU, POWER_FROM_RAPL, 150), reading_of(POWER_DRAM, POWER_FROM_RAPL, 20),
		reading_of(POWER_PSU, POWER_FROM_IPMI, 380), reading_of(POWER_PSU, POWER_FROM_IPMI, 370),
		reading_of(POWER_CHASSIS, POWER_FROM_REDFISH, 740),
		reading_of(POWER_NODE, POWER_FROM_IPMI, 730)};
	(void)state;
	assert_true(is_near(sum_watts(r, 7, &sum), 730));
	assert_int_equal(sum.by, POWER_NODE);
	assert_true(sum.is_whole);
	r[6].state = POWER_STALE;
	assert_true(is_near(sum_watts(r, 7, &sum), 740));
	assert_int_equal(sum.by, POWER_CHASSIS);
	assert_int_equal(sum.source, POWER_FROM_REDFISH);
	(void)snprintf(r[6].kind, sizeof r[6].kind, "subsystem"); /* A kind marks a part of another reading */
	r[6].state = POWER_FRESH;
	assert_true(is_near(sum_watts(r, 7, &sum), 740));
	r[5].time = NOW - 31 * CGN_SEC;
	assert_true(is_near(sum_watts(r, 7, &sum), 750));
	assert_int_equal(sum.by, POWER_PSU);
	assert_int_equal(sum.n, 2);
	r[4].state = POWER_FAILING; /* A supply that draws an unknown power makes the sum of supplies wrong */
	assert_true(is_near(sum_watts(r, 7, &sum), 570));
	assert_int_equal(sum.by, POWER_OTHER);
	assert_false(sum.is_whole);
	assert_int_equal(sum.source, POWER_FROM_NVML);
	r[4].state = POWER_ABSENT; /* An empty bay draws nothing */
	r[0].value = 200;
	assert_true(is_near(sum_watts(r, 7, &sum), 380));
}

static void test_two_meters_of_one_thing(void **state)
{
	struct power_sum sum;
	struct power_reading r[] = {reading_of(POWER_CHASSIS, POWER_FROM_IPMI, 700),
		reading_of(POWER_CHASSIS, POWER_FROM_REDFISH, 90),
		reading_of(POWER_CHASSIS, POWER_FROM_REDFISH, 710)};
	(void)state;
	r[2].time = NOW - 2 * CGN_SEC;
	assert_true(is_near(sum_watts(r, 3, &sum), 710)); /* The smaller one is a part of it */
	assert_int_equal(sum.n, 1);
	assert_true(is_near(sum_watts(r, 2, &sum), 90)); /* The preferred source, whatever it says */
}

static void test_parts_by_the_source_that_sees_most(void **state)
{
	struct power_sum sum;
	struct power_reading r[] = {reading_of(POWER_GPU, POWER_FROM_NVML, 300),
		reading_of(POWER_GPU, POWER_FROM_HWMON, 301), reading_of(POWER_GPU, POWER_FROM_HWMON, 302),
		reading_of(POWER_CPU, POWER_FROM_RAPL, 100), reading_of(POWER_CPU, POWER_FROM_HWMON, 101)};
	(void)state;
	r[2].time = NOW - 9 * CGN_SEC;
	/* NVML sees one GPU and hwmon both; a CPU is read by the nearer of two sources. */
	assert_true(is_near(sum_watts(r, 5, &sum), 301 + 302 + 100));
	assert_int_equal(sum.n, 3);
	assert_int_equal(sum.age, 9 * CGN_SEC);
	assert_int_equal(sum.source, POWER_FROM_HWMON);
	r[2].state = POWER_STALE;
	assert_true(is_near(sum_watts(r, 5, &sum), 300 + 100));
}

static void test_a_counter(void **state)
{
	struct power_counter c;
	double watts = -1;
	(void)state;
	power_counter_init(&c, 0, 1000);
	assert_false(power_counter_step(&c, 5000000, 0, &watts)); /* The energy before is not counted */
	assert_true(power_counter_step(&c, 205000000, 2 * CGN_SEC, &watts));
	assert_true(is_near(watts, 100));
	assert_true(is_near(c.joules, 200));
	assert_true(power_counter_step(&c, 205000000, 3 * CGN_SEC, &watts));
	assert_true(is_near(watts, 0)); /* Stands still */
	assert_int_equal(c.resets, 0);
}

static void test_a_counter_that_wraps(void **state)
{
	struct power_counter c;
	double watts = -1;
	(void)state;
	power_counter_init(&c, 262143000000, 1000);
	(void)power_counter_step(&c, 252133000000, CGN_SEC, &watts);
	assert_false(power_counter_step(&c, 90000000, 2 * CGN_SEC, &watts)); /* 10,100 W cannot be */
	assert_int_equal(c.resets, 1);
	(void)power_counter_step(&c, 262143000000 - 10000000, 1000 * CGN_SEC, &watts);
	double before = c.joules;
	assert_true(power_counter_step(&c, 90000000, 1001 * CGN_SEC, &watts));
	assert_true(is_near(watts, 100));
	assert_true(is_near(c.joules - before, 100));
}

static void test_a_counter_that_goes_back(void **state)
{
	struct power_counter c;
	double watts = -1;
	(void)state;
	power_counter_init(&c, 0, 1000);
	(void)power_counter_step(&c, 900000000, CGN_SEC, &watts);
	assert_false(power_counter_step(&c, 3000000, 2 * CGN_SEC, &watts)); /* The driver was loaded again */
	assert_int_equal(c.resets, 1);
	assert_true(is_near(c.joules, 0));
	assert_true(power_counter_step(&c, 53000000, 3 * CGN_SEC, &watts));
	assert_true(is_near(watts, 50));
	assert_false(power_counter_step(&c, UINT64_MAX, 4 * CGN_SEC, &watts)); /* Nonsense is not energy */
	assert_false(power_counter_step(&c, 63000000, 5 * CGN_SEC, &watts));
	assert_true(is_near(c.joules, 50));
	/* A range that is below the value, as some drivers tell it */
	power_counter_init(&c, 100, 1000);
	(void)power_counter_step(&c, 500, 0, &watts);
	assert_false(power_counter_step(&c, 50, CGN_SEC, &watts));
	assert_int_equal(c.resets, 1);
}

static void test_a_clock_that_jumps(void **state)
{
	struct power_counter c;
	double watts = -1;
	(void)state;
	power_counter_init(&c, 1000000000, 1000);
	(void)power_counter_step(&c, 100000000, 100 * CGN_SEC, &watts);
	assert_false(power_counter_step(&c, 110000000, 50 * CGN_SEC, &watts)); /* Back: energy, no power */
	assert_true(is_near(c.joules, 10));
	assert_true(power_counter_step(&c, 120000000, 51 * CGN_SEC, &watts));
	assert_true(is_near(watts, 10));
	assert_false(power_counter_step(&c, 130000000, 51 * CGN_SEC, &watts)); /* Two readings at once */
	assert_true(is_near(c.joules, 30));
	assert_false(power_counter_step(&c, 5, 51 * CGN_SEC, &watts));
	assert_int_equal(c.resets, 1);
	/* Forward by a day: the mean of the day */
	assert_true(power_counter_step(&c, 86400005, (51 + 86400) * CGN_SEC, &watts));
	assert_true(is_near(watts, 0.001));
}

static void test_names(void **state)
{
	(void)state;
	assert_string_equal(power_source_name(POWER_FROM_REDFISH), "redfish");
	assert_string_equal(power_component_name(POWER_DRAM), "dram");
	assert_string_equal(power_quantity_name(POWER_CELSIUS), "celsius");
	assert_string_equal(power_state_name(POWER_ABSENT), "absent");
	for (unsigned i = 0; i < POWER_SOURCES; i++)
		assert_non_null(power_source_name((enum power_source)i));
	for (unsigned i = 0; i < POWER_COMPONENTS; i++)
		assert_non_null(power_component_name((enum power_component)i));
	for (unsigned i = 0; i < POWER_QUANTITIES; i++)
		assert_non_null(power_quantity_name((enum power_quantity)i));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_freshness),
		cmocka_unit_test(test_a_reader_is_believed),
		cmocka_unit_test(test_values_that_cannot_be),
		cmocka_unit_test(test_nothing_is_not_zero),
		cmocka_unit_test(test_a_whole_is_not_added_to_its_parts),
		cmocka_unit_test(test_parts_that_draw_more_than_the_whole),
		cmocka_unit_test(test_two_meters_of_one_thing),
		cmocka_unit_test(test_parts_by_the_source_that_sees_most),
		cmocka_unit_test(test_a_counter),
		cmocka_unit_test(test_a_counter_that_wraps),
		cmocka_unit_test(test_a_counter_that_goes_back),
		cmocka_unit_test(test_a_clock_that_jumps),
		cmocka_unit_test(test_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
