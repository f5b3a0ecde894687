/* SPDX-License-Identifier: Apache-2.0 */
/* powertext: DCGM's text and our own as readings. */
#include "policy/power/powertext/powertext.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define LABELS(gpu, host) \
	"{gpu=\"" gpu "\",UUID=\"GPU-" gpu "\",device=\"nvidia" gpu "\",Hostname=\"" host "\"} "

struct found {
	struct power_reading out[40];
	struct powertext t;
};

static bool text_read(struct found *f, const char *node, const char *text)
{
	f->t = (struct powertext){.node = node,
		.time = 7 * CGN_SEC,
		.max_age = 60 * CGN_SEC,
		.out = f->out,
		.cap = CGN_COUNT(f->out)};
	return powertext_read(cgn_str_of(text), &f->t);
}

static const struct power_reading *reading_find(const struct found *f, enum power_quantity q,
	const char *part, const char *kind)
{
	for (size_t i = 0; i < f->t.n; i++)
		if (f->out[i].quantity == q && strcmp(f->out[i].part, part) == 0 &&
			strcmp(f->out[i].kind, kind) == 0)
			return &f->out[i];
	return NULL;
}

static void value_expect(const struct found *f, enum power_quantity q, const char *part, const char *kind,
	double want)
{
	const struct power_reading *r = reading_find(f, q, part, kind);
	if (r == NULL)
		fail_msg("no %s of %s %s", power_quantity_name(q), part, kind);
	assert_int_equal(power_state_now(r, 7 * CGN_SEC), POWER_FRESH);
	if (fabs(r->value - want) > 1e-6 * fabs(want))
		fail_msg("%s of %s %s: %g", power_quantity_name(q), part, kind, r->value);
}

static void test_dcgm(void **state)
{
	struct found f;
	(void)state;
	assert_true(text_read(&f, "n1",
		"# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n"
		"# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
		"DCGM_FI_DEV_SM_CLOCK" LABELS("0",
			"h") "1980\n"
			     "DCGM_FI_DEV_MEM_CLOCK" LABELS("0",
				     "h") "2619\n"
					  "DCGM_FI_DEV_MEMORY_TEMP" LABELS("0",
						  "h") "55\n"
						       "DCGM_FI_DEV_GPU_TEMP" LABELS("0",
							       "h") "41\n"
								    "DCGM_FI_DEV_POWER_USAGE" LABELS("0",
									    "h") "412.5\n"
										 "DCGM_FI_DEV_POWER_MGMT_LIMIT" LABELS(
											 "0",
											 "h") "700\n"
											      "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" LABELS(
												      "0",
												      "h") "5000000 1700000000000\n"
													   "DCGM_FI_DEV_FB_USED" LABELS(
														   "0",
														   "h") "2\n"
															"DCGM_FI_DEV_GPU_UTIL" LABELS(
																"0",
																"h") "97\n"
																     "DCGM_FI_DEV_MEM_COPY_UTIL" LABELS(
																	     "0",
																	     "h") "50\n"
																		  "DCGM_FI_DEV_XID_ERRORS" LABELS(
																			  "0",
																			  "h") "0\n"
																			       "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" LABELS(
																				       "0",
																				       "h") "68\n"));
	assert_string_equal(f.t.why, "");
	value_expect(&f, POWER_HERTZ, "GPU-0", "sm", 1.98e9);
	value_expect(&f, POWER_HERTZ, "GPU-0", "memory", 2.619e9);
	value_expect(&f, POWER_CELSIUS, "GPU-0", "", 41);
	value_expect(&f, POWER_CELSIUS, "GPU-0", "memory", 55);
	value_expect(&f, POWER_WATTS, "GPU-0", "", 412.5);
	value_expect(&f, POWER_LIMIT_WATTS, "GPU-0", "", 700);
	value_expect(&f, POWER_JOULES, "GPU-0", "", 5000);
	value_expect(&f, POWER_BYTES, "GPU-0", "used", 2097152);
	value_expect(&f, POWER_SHARE, "GPU-0", "sm", 0.97);
	value_expect(&f, POWER_SHARE, "GPU-0", "memory", 0.5);
	value_expect(&f, POWER_FLAG, "GPU-0", "power_cap", 1);
	value_expect(&f, POWER_FLAG, "GPU-0", "hardware_thermal", 1);
	value_expect(&f, POWER_FLAG, "GPU-0", "thermal", 0);
	assert_int_equal(f.t.n, 10 + power_n_slow_reasons);
	assert_string_equal(f.out[0].node, "n1");
	assert_int_equal(f.out[0].source, POWER_FROM_DCGM);
	assert_int_equal(power_state_now(&f.out[0], 67 * CGN_SEC), POWER_STALE);
}

static void test_newer_names(void **state)
{
	struct found f;
	(void)state;
	assert_true(text_read(&f, "n1",
		"DCGM_FI_DEV_POWER_USAGE_INSTANT" LABELS("0",
			"h") "400\n"
			     "DCGM_FI_DEV_CLOCKS_EVENT_REASONS" LABELS("0", "h") "8\n"));
	value_expect(&f, POWER_WATTS, "GPU-0", "", 400);
	value_expect(&f, POWER_FLAG, "GPU-0", "hardware", 1);
}

/* A GPU in slices, or shared by pods, is told once for each of them with its whole power. */
static void test_a_gpu_is_counted_once(void **state)
{
	struct found f;
	struct power_sum sum;
	(void)state;
	assert_true(text_read(&f, "n1",
		"DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-0\",GPU_I_ID=\"1\"} 300\n"
		"DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-0\",GPU_I_ID=\"2\"} 300\n"
		"DCGM_FI_DEV_POWER_USAGE{gpu=\"1\",UUID=\"GPU-1\",pod=\"a\"} 200\n"
		"DCGM_FI_DEV_POWER_USAGE{gpu=\"2\"} 100\n"));
	assert_int_equal(f.t.n, 3);
	assert_true(power_sum_of(f.out, f.t.n, CGN_STR("n1"), 8 * CGN_SEC, &sum));
	assert_true(fabs(sum.watts - 600) < 1e-9);
	assert_int_equal(sum.source, POWER_FROM_DCGM);
}

static void test_another_host(void **state)
{
	struct found f;
	(void)state;
	assert_true(text_read(&f, "n1",
		"DCGM_FI_DEV_POWER_USAGE" LABELS("0", "gpu-01") "300\n"
								"DCGM_FI_DEV_POWER_USAGE" LABELS("1",
									"gpu-02") "200\n"));
	assert_int_equal(f.t.n, 1);
	assert_string_equal(f.t.why, "has GPUs of several hosts: gpu-01 is read, gpu-02 is left out");
}

static void test_values_that_no_device_has(void **state)
{
	static const char *const values[] = {"NaN", "+Inf", "9223372036854775792", "140737488355328",
		"-1e300"};
	char text[200];
	struct found f;
	struct power_sum sum;
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(values); i++) {
		(void)snprintf(text, sizeof text,
			"DCGM_FI_DEV_POWER_USAGE" LABELS("0",
				"h") "%s\n"
				     "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" LABELS("0", "h") "NaN\n",
			values[i]);
		assert_true(text_read(&f, "n1", text));
		assert_int_equal(f.t.n, 1);
		assert_int_equal(f.out[0].state, POWER_FAILING);
		assert_string_not_equal(f.out[0].why, "");
		assert_false(power_sum_of(f.out, f.t.n, CGN_STR("n1"), 8 * CGN_SEC, &sum));
	}
	assert_true(text_read(&f, "n1", "DCGM_FI_DEV_POWER_USAGE" LABELS("0", "h") "-5\n"));
	assert_int_equal(power_state_now(&f.out[0], 8 * CGN_SEC), POWER_FAILING);
}

static void test_our_own_series(void **state)
{
	static const char text[] =
		"cgn_gpu_power_watts{gpu=\"0\",uuid=\"GPU-0\"} 300\n"
		"cgn_power_watts{node=\"n1\",component=\"gpu\",part=\"GPU-0\",source=\"nvml\"} 300\n"
		"cgn_power_watts{node=\"n1\",component=\"node\",part=\"a\\\"b\",source=\"hwmon\"} 800\n"
		"cgn_power_watts{node=\"n1\",component=\"gpu\",part=\"GPU-1\",source=\"dcgm\"} 310\n"
		"cgn_power_watts{node=\"n1\",component=\"moon\",part=\"\",source=\"nvml\"} 1\n"
		"cgn_power_watts{component=\"gpu\",part=\"\",source=\"nvml\"} 1\n"
		"cgn_energy_joules_total{node=\"n1\",component=\"gpu\",part=\"GPU-0\",source=\"nvml\"} 77\n"
		"cgn_temperature_celsius{node=\"n1\",component=\"gpu\",part=\"GPU-0\",source=\"nvml\"} 61\n"
		"cgn_power_limit_watts{node=\"n1\",component=\"gpu\",part=\"GPU-0\",source=\"nvml\"} 700\n"
		"cgn_node_power_watts{node=\"n1\",by=\"node\",source=\"hwmon\"} 800\n";
	struct found f;
	struct power_sum sum;
	(void)state;
	assert_true(text_read(&f, "n1", text));
	assert_int_equal(f.t.n, 6);
	value_expect(&f, POWER_WATTS, "a\"b", "", 800);
	value_expect(&f, POWER_JOULES, "GPU-0", "", 77);
	assert_true(power_sum_of(f.out, f.t.n, CGN_STR("n1"), 8 * CGN_SEC, &sum));
	assert_true(fabs(sum.watts - 800) < 1e-9);
	/* An agent does not speak for another node. */
	assert_true(text_read(&f, "n2", text));
	assert_int_equal(f.t.n, 0);
	assert_non_null(strstr(f.t.why, "n1 is left out"));
	/* Without a node the text says which it is. */
	assert_true(text_read(&f, NULL, text));
	assert_string_equal(f.out[0].node, "n1");
	assert_int_equal(f.t.n, 6);
}

static void test_other_texts(void **state)
{
	struct found f;
	(void)state;
	assert_false(text_read(&f, "n1", ""));
	assert_false(text_read(&f, "n1", "up 1\nDCGM 1\ncgn_power_watts 1\n<html>no</html>\n"));
	assert_int_equal(f.t.n, 0);
	assert_true(text_read(&f, "n1", "DCGM_FI_DEV_XID_ERRORS" LABELS("0", "h") "0\n"));
	assert_int_equal(f.t.n, 0);
}

static void test_more_than_there_is_room_for(void **state)
{
	struct found f;
	char text[8000];
	size_t n = 0;
	(void)state;
	for (unsigned i = 0; i < 60; i++)
		n += (size_t)snprintf(text + n, sizeof text - n,
			"DCGM_FI_DEV_POWER_USAGE{UUID=\"GPU-%u\"} 100\n", i);
	assert_true(text_read(&f, "n1", text));
	assert_int_equal(f.t.n, 40);
	assert_int_equal(f.t.dropped, 20);
	assert_string_equal(f.t.why, "has more than 40 readings; the rest is left out");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dcgm),
		cmocka_unit_test(test_newer_names),
		cmocka_unit_test(test_a_gpu_is_counted_once),
		cmocka_unit_test(test_another_host),
		cmocka_unit_test(test_values_that_no_device_has),
		cmocka_unit_test(test_our_own_series),
		cmocka_unit_test(test_other_texts),
		cmocka_unit_test(test_more_than_there_is_room_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
