/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/os/nvml/nvml.h"

static char script[64], folder[200];

/* The fake library is scripted by a file; a reader must see all of it or nothing. */
static void script_put(const char *text)
{
	char fresh[80];
	(void)snprintf(fresh, sizeof fresh, "%s.new", script);
	FILE *f = fopen(fresh, "we");
	assert_non_null(f);
	(void)fputs(text, f);
	(void)fclose(f);
	assert_int_equal(rename(fresh, script), 0);
}

static int world_enter(void **state)
{
	(void)state;
	ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
	assert_true(n > 0);
	folder[n] = '\0';
	*strrchr(folder, '/') = '\0';
	(void)snprintf(script, sizeof script, "/tmp/cgn-nvml-%d", (int)getpid());
	return setenv("FAKE_NVML", script, 1);
}

static int world_leave(void **state)
{
	(void)state;
	return unlink(script);
}

static struct nvml *open_fake(const char *name, const char *gpus)
{
	char path[300];
	struct nvml *n = NULL;
	(void)snprintf(path, sizeof path, name[0] == '/' ? "%s%s" : "%s/tests/helpers/%s.so",
		name[0] == '/' ? "" : folder, name);
	assert_true(name[0] == '/' || access(path, R_OK) == 0);
	const struct nvml_cfg cfg = {.library = path, .gpus = gpus, .interval = CGN_MSEC};
	assert_true(cgn_ok(nvml_open(&cfg, &n, NULL)));
	return n;
}

static struct nvml_view view;

static bool is_in_state(enum nvml_state s)
{
	return view.state == s;
}

/* Wait for a view that was made by at least two whole readings from now. */
static void view_await(struct nvml *n, bool (*is_it)(void))
{
	for (;;) {
		nvml_read(n, &view);
		if (is_it())
			return;
		(void)nanosleep(&(struct timespec){.tv_nsec = CGN_MSEC}, NULL);
	}
}

static bool reads_now(void)
{
	return is_in_state(NVML_READING) && view.readings > 0;
}

static bool is_absent(void)
{
	return is_in_state(NVML_ABSENT);
}

static bool is_failing(void)
{
	return is_in_state(NVML_FAILING);
}

static void everything_is_read(void **state)
{
	(void)state;
	script_put(
		"count 2\nmemory_total 1 85899345920\nmemory_used 1 4294967296\nsm 1 93\npower 1 612345\npower_limit 1 700000\n"
		"energy 1 123456789012\ntemperature 1 67\nclock 1 1980\nslowed 1 36\n");
	struct nvml *n = open_fake("fake_nvml", NULL);
	view_await(n, reads_now);
	assert_int_equal(view.n, 2);
	assert_string_equal(view.driver, "580.65.06");
	assert_string_equal(view.why, "");
	const struct nvml_gpu *g = &view.gpu[1];
	assert_int_equal(g->have, 511);
	assert_string_equal(g->uuid, "GPU-000000a1-0000-0000-0000-000000000000");
	assert_string_equal(g->name, "NVIDIA H100 80GB HBM3");
	assert_true(g->index == 1 && g->memory_total == 85899345920 && g->memory_used == 4294967296);
	assert_true(g->sm_percent == 93 && g->memory_percent == 5 && g->power_mw == 612345 &&
		g->power_limit_mw == 700000);
	assert_true(g->energy_mj == 123456789012 && g->temperature_c == 67);
	assert_true(g->sm_mhz == 1981 && g->memory_mhz == 1982 && g->slowed == 36);
	nvml_close(&n);
	assert_null(n);
	nvml_close(&n);
}

static bool has_read_twice_all(void)
{
	return is_in_state(NVML_READING) && view.readings >= 6 && view.n == 2 && view.gpu[0].have == 511 &&
		view.gpu[1].have == 511 && view.why[0] == '\0';
}

/* The second reading of a GPU fails, or that of all: what comes after it is read again. */
static void each_function_may_fail_on_its_third_call(void **state)
{
	static const char *const functions[] = {"DeviceGetCount", "DeviceGetHandleByIndex",
		"DeviceGetMemoryInfo", "DeviceGetUtilizationRates", "DeviceGetPowerUsage",
		"DeviceGetEnforcedPowerLimit", "DeviceGetTotalEnergyConsumption", "DeviceGetTemperature",
		"DeviceGetClockInfo", "DeviceGetCurrentClocksThrottleReasons"};
	char text[200];
	(void)state;
	for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
		(void)snprintf(text, sizeof text, "count 2\npower 0 100\nenergy 0 5\nfail_at %s 3 999\n",
			functions[i]);
		script_put(text);
		struct nvml *n = open_fake("fake_nvml", NULL);
		view_await(n, has_read_twice_all);
		assert_int_equal(view.gpu[0].energy_mj, 5);
		nvml_close(&n);
	}
}

static void a_machine_without_the_library(void **state)
{
	(void)state;
	script_put("count 1\n");
	struct nvml *n = open_fake("/nonexistent/libnvidia-ml.so.1", NULL);
	view_await(n, is_absent);
	assert_non_null(strstr(view.why, "/nonexistent/libnvidia-ml.so.1"));
	assert_int_equal(view.n, 0);
	nvml_close(&n);
}

static void a_library_with_few_functions(void **state)
{
	(void)state;
	script_put("count 1\nmemory_total 0 100\nmemory_used 0 7\n");
	struct nvml *n = open_fake("fake_nvml_few", NULL);
	view_await(n, reads_now);
	assert_true(view.n == 1 && view.gpu[0].have == NVML_MEMORY && view.gpu[0].memory_used == 7);
	assert_string_equal(view.gpu[0].name, "");
	nvml_close(&n);
	n = open_fake("fake_nvml_none", NULL);
	view_await(n, is_absent);
	assert_non_null(strstr(view.why, "nvmlDeviceGetCount_v2"));
	nvml_close(&n);
}

static bool lacks_power(void)
{
	return reads_now() && view.n == 1 && (view.gpu[0].have & (NVML_POWER | NVML_MEMORY)) == NVML_MEMORY;
}

static bool has_power(void)
{
	return reads_now() && view.n == 1 && (view.gpu[0].have & NVML_POWER) != 0;
}

static void a_failing_function_costs_its_reading_only(void **state)
{
	(void)state;
	script_put("count 1\npower 0 5\n");
	struct nvml *n = open_fake("fake_nvml", NULL);
	view_await(n, has_power);
	script_put("count 1\npower 0 5\nfail DeviceGetPowerUsage 3\n");
	view_await(n, lacks_power);
	script_put("count 1\npower 0 5\n");
	view_await(n, has_power);
	nvml_close(&n);
}

static void a_lost_gpu_is_said_and_comes_back(void **state)
{
	(void)state;
	script_put("count 1\n");
	struct nvml *n = open_fake("fake_nvml", NULL);
	view_await(n, reads_now);
	script_put("count 1\nfail DeviceGetHandleByIndex 15\n");
	view_await(n, is_failing);
	assert_string_equal(view.why, "GPU 0: GPU is lost");
	assert_int_equal(view.n, 0);
	script_put("count 1\n");
	view_await(n, reads_now);
	assert_string_equal(view.why, "");
	script_put("count 1\nfail DeviceGetCount 999\n");
	view_await(n, is_failing);
	assert_string_equal(view.why, "nvmlDeviceGetCount: Unknown Error");
	script_put("count 1\nfail Init 9\n");
	while (strstr(view.why, "nvmlInit") == NULL)
		view_await(n, is_failing);
	script_put("count 1\n");
	view_await(n, reads_now);
	nvml_close(&n);
}

static bool hangs_now(void)
{
	return view.readings > 0 && view.call_since != 0;
}

static void a_call_that_never_returns_holds_no_one_up(void **state)
{
	(void)state;
	script_put("count 1\nsm 0 7\n");
	struct nvml *n = open_fake("fake_nvml", NULL);
	view_await(n, reads_now);
	script_put("count 1\nsm 0 8\nhang DeviceGetTemperature\n");
	cgn_nsec first = 0;
	for (unsigned same = 0; same < 50;) { /* The same call is under way again and again. */
		view_await(n, hangs_now);
		same = view.call_since == first ? same + 1 : 0;
		first = view.call_since;
		(void)nanosleep(&(struct timespec){.tv_nsec = CGN_MSEC}, NULL);
	}
	assert_true(view.n == 1 && view.gpu[0].sm_percent == 7); /* The last whole reading stays. */
	nvml_close(&n);                                          /* Returns, and leaves the thread alone. */
}

static void only_the_listed_gpus(void **state)
{
	(void)state;
	script_put("count 3\n");
	static const struct {
		const char *list, *gpus; /* Indexes */
	} rows[] = {{NULL, "012"}, {"", ""}, {"1", "1"}, {"0,1", "01"}, {"0, 1 ,2", "012"}, {"11", ""},
		{"-1", ""}, {"GPU-000000a1", "1"}, {"GPU-", ""}, {"MIG-000000a1", ""},
		{"0,GPU-000000a1-0000-0000-0000-000000000000", "01"},
		{"GPU-000000a1-0000-0000-0000-000000000000-and-more", ""}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct nvml *n = open_fake("fake_nvml", rows[i].list);
		char got[8] = "";
		view_await(n, reads_now);
		for (size_t k = 0; k < view.n; k++)
			got[k] = (char)('0' + view.gpu[k].index);
		assert_string_equal(got, rows[i].gpus);
		nvml_close(&n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_is_read),
		cmocka_unit_test(each_function_may_fail_on_its_third_call),
		cmocka_unit_test(a_machine_without_the_library),
		cmocka_unit_test(a_library_with_few_functions),
		cmocka_unit_test(a_failing_function_costs_its_reading_only),
		cmocka_unit_test(a_lost_gpu_is_said_and_comes_back), cmocka_unit_test(only_the_listed_gpus),
		cmocka_unit_test(a_call_that_never_returns_holds_no_one_up), /* Last: its thread lives on. */
	};
	return cmocka_run_group_tests(tests, world_enter, world_leave);
}
