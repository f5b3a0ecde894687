/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "joint/power/powersrc/host.h"
#include "joint/power/powersrc/powersrc.h"

static char root[] = "/tmp/cgn-power-XXXXXX";

static void put_file(const char *zone, const char *file, const char *text)
{
	char path[256];
	(void)snprintf(path, sizeof path, "%s/%s", root, zone);
	(void)mkdir(path, 0700);
	(void)snprintf(path, sizeof path, "%s/%s/%s", root, zone, file);
	FILE *f = fopen(path, "we");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void put_package(const char *zone, const char *limit_uw, const char *energy_uj)
{
	put_file(zone, "name", "package-0\n");
	put_file(zone, "constraint_0_power_limit_uw", limit_uw);
	put_file(zone, "max_energy_range_uj", "1000000000\n");
	put_file(zone, "energy_uj", energy_uj);
}

static int fresh_root(void **state)
{
	(void)state;
	memcpy(root + strlen(root) - 6, "XXXXXX", 6);
	return mkdtemp(root) != NULL ? 0 : -1;
}

static int drop_root(void **state)
{
	char cmd[128];
	(void)state;
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", root);
	return system(cmd);
}

static bool is_near(double a, double b)
{
	return a - b < 1e-9 && b - a < 1e-9;
}

static void nothing_to_read_is_unknown(void **state)
{
	(void)state;
	struct powersrc p;
	powersrc_init(&p, "/nonexistent");
	assert_true(is_near(powersrc_step(&p, CGN_SEC), 1));
	powersrc_init(&p, root);
	assert_int_equal(p.n, 0);
	assert_true(is_near(powersrc_step(&p, CGN_SEC), 1));
}

static void half_of_the_limit_is_half_left(void **state)
{
	(void)state;
	struct powersrc p;
	put_package("intel-rapl:0", "100000000\n", "5000000\n"); /* 100 W */
	powersrc_init(&p, root);
	assert_int_equal(p.n, 1);
	assert_true(is_near(powersrc_step(&p, 10 * CGN_SEC), 1));
	put_file("intel-rapl:0", "energy_uj", "105000000\n"); /* 100 J in 2 s: 50 W */
	assert_true(is_near(powersrc_step(&p, 12 * CGN_SEC), 0.5));
	assert_true(is_near(powersrc_step(&p, 12 * CGN_SEC), 0.5)); /* No time has passed */
	assert_true(is_near(powersrc_step(&p, 13 * CGN_SEC), 1));   /* Nothing was used since */
	put_file("intel-rapl:0", "energy_uj", "999000000\n");
	assert_true(is_near(powersrc_step(&p, 14 * CGN_SEC), 0)); /* Over the limit for a moment */
}

static void packages_share_their_limits(void **state)
{
	(void)state;
	struct powersrc p;
	put_package("intel-rapl:0", "100000000\n", "0\n");
	put_package("intel-rapl:1", "300000000\n", "0\n");
	powersrc_init(&p, root);
	assert_int_equal(p.n, 2);
	(void)powersrc_step(&p, CGN_SEC);
	put_file("intel-rapl:0", "energy_uj", "80000000\n");
	put_file("intel-rapl:1", "energy_uj", "20000000\n");
	assert_true(is_near(powersrc_step(&p, 2 * CGN_SEC), 0.75)); /* 100 W of 400 W */
}

static void counters_wrap(void **state)
{
	(void)state;
	struct powersrc p;
	put_package("intel-rapl:0", "100000000\n", "990000000\n");
	powersrc_init(&p, root);
	(void)powersrc_step(&p, CGN_SEC);
	put_file("intel-rapl:0", "energy_uj", "15000000\n"); /* 10 J up to the wrap and 15 J after it */
	assert_true(is_near(powersrc_step(&p, 2 * CGN_SEC), 0.75));
}

static void a_counter_that_is_reset_is_no_energy(void **state)
{
	(void)state;
	struct powersrc p;
	put_package("intel-rapl:0", "100000000\n", "900000000\n");
	put_file("intel-rapl:0", "max_energy_range_uj", "262143328850\n");
	put_package("intel-rapl:1", "100000000\n", "900000000\n");
	put_file("intel-rapl:1", "max_energy_range_uj", "nonsense\n");
	powersrc_init(&p, root);
	(void)powersrc_step(&p, CGN_SEC);
	put_file("intel-rapl:0", "energy_uj", "5000000\n"); /* A wrap would be 261 kJ in a second */
	put_file("intel-rapl:1", "energy_uj", "5000000\n");
	assert_true(is_near(powersrc_step(&p, 2 * CGN_SEC), 1));
	assert_true(is_near(p.joules, 0));
	put_file("intel-rapl:0", "energy_uj", "35000000\n");
	put_file("intel-rapl:1", "energy_uj", "25000000\n");
	assert_true(is_near(powersrc_step(&p, 3 * CGN_SEC), 0.75));
	assert_true(is_near(p.joules, 50));
}

static void the_limit_of_a_package_is_optional(void **state)
{
	(void)state;
	struct powersrc p;
	put_package("intel-rapl:0", "100000000\n", "0\n");
	put_package("intel-rapl:1", "0\n", "0\n");
	put_package("intel-rapl:2", "nonsense\n", "0\n");
	put_package("intel-rapl:3", "100000000\n", "-\n");
	put_package("intel-rapl:0:0", "100000000\n", "0\n");
	put_file("intel-rapl:0:0", "name", "core\n");
	put_file("intel-rapl:4", "name", "package-4\n"); /* No file of its energy, */
	put_file("intel-rapl:4", "constraint_0_power_limit_uw", "100000000\n");
	put_file("intel-rapl:5", "constraint_0_power_limit_uw", "100000000\n"); /* or of its name. */
	put_file("intel-rapl:5", "energy_uj", "0\n");
	put_file("intel-rapl:6", "name", "package-6\n"); /* AMD: no file of a limit. */
	put_file("intel-rapl:6", "energy_uj", "0\n");
	powersrc_init(&p, root);
	assert_int_equal(p.n, 4);
	assert_true(is_near(powersrc_limit_watts(&p), 100));
	assert_true(is_near(powersrc_most_watts(&p), 100 + 3 * POWERSRC_MOST_WATTS));
	(void)powersrc_step(&p, CGN_SEC);
	put_file("intel-rapl:0", "energy_uj", "garbage\n"); /* Unreadable once: no energy is counted */
	put_file("intel-rapl:6", "energy_uj", "200000000\n");
	assert_true(is_near(powersrc_step(&p, 2 * CGN_SEC), 1)); /* Packages with a limit used nothing. */
	assert_true(is_near(p.joules, 200));
	put_file("intel-rapl:0", "energy_uj", "50000000\n");
	put_file("intel-rapl:6", "energy_uj", "500000000\n");
	assert_true(is_near(powersrc_step(&p, 3 * CGN_SEC), 0.5));
	assert_true(is_near(p.joules, 550));
}

static void there_may_be_many_packages(void **state)
{
	(void)state;
	struct powersrc p;
	char zone[32];
	for (int i = 0; i < POWERSRC_MAX_ZONES + 3; i++) {
		(void)snprintf(zone, sizeof zone, "intel-rapl:%d", i);
		put_package(zone, "100000000\n", "0\n");
	}
	powersrc_init(&p, root);
	assert_int_equal(p.n, POWERSRC_MAX_ZONES);
}

/* ---- the readings of the machine ---- */

/* Write the readings as lines in the order of the alphabet. */
static int line_order(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void readings_expect(struct powersrc_host *h, cgn_nsec now, const char *want)
{
	static struct power_reading r[POWERSRC_MAX_READINGS];
	char line[POWERSRC_MAX_READINGS][200], text[4096] = "";
	size_t n = powersrc_host_read(h, "n1", now, 3 * CGN_SEC, r), at = 0;
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(r[i].node, "n1");
		assert_true(r[i].time == now && r[i].max_age == 3 * CGN_SEC);
		int k = snprintf(line[i], sizeof line[i], "%s %s[%s]%s%s %s ", power_source_name(r[i].source),
			power_component_name(r[i].component), r[i].part, r[i].kind[0] != '\0' ? "." : "",
			r[i].kind, power_quantity_name(r[i].quantity));
		if (r[i].state == POWER_FRESH)
			(void)snprintf(line[i] + k, sizeof line[i] - (size_t)k, "%g\n", r[i].value);
		else
			(void)snprintf(line[i] + k, sizeof line[i] - (size_t)k, "%s\n",
				strrchr(r[i].why, ':'));
	}
	qsort(line, n, sizeof line[0], line_order);
	for (size_t i = 0; i < n; i++)
		at += (size_t)snprintf(text + at, sizeof text - at, "%s", line[i]);
	assert_string_equal(text, want);
}

static void rapl_is_energy_and_power(void **state)
{
	(void)state;
	struct powersrc_host h;
	put_package("intel-rapl:0", "0\n", "999000000\n"); /* A limit is not needed to read */
	put_file("intel-rapl:0:0", "name", "dram\n");
	put_file("intel-rapl:0:0", "energy_uj", "5000000\n");
	put_file("intel-rapl:0:1", "name", "core\n"); /* A part of the package */
	put_file("intel-rapl:0:1", "energy_uj", "5\n");
	put_file("intel-rapl:1", "name", "psys\n"); /* Has the package in it */
	put_file("intel-rapl:1", "energy_uj", "5\n");
	put_package("intel-rapl-mmio:0", "0\n", "999000000\n"); /* The same package once more */
	powersrc_host_init(&h, root, "/nonexistent");
	readings_expect(&h, CGN_SEC, "rapl cpu[0] joules 0\nrapl dram[0] joules 0\n");
	put_file("intel-rapl:0", "energy_uj", "49000000\n");  /* Wrapped at 1,000 J */
	put_file("intel-rapl:0:0", "energy_uj", "3000000\n"); /* Was reset */
	readings_expect(&h, 2 * CGN_SEC,
		"rapl cpu[0] joules 50\nrapl cpu[0] watts 50\nrapl dram[0] joules 0\n");
	put_file("intel-rapl:0:0", "energy_uj", "nonsense\n");
	readings_expect(&h, 3 * CGN_SEC,
		"rapl cpu[0] joules 50\nrapl cpu[0] watts 0\nrapl dram[0] watts : no number\n");
}

static void hwmon_is_told_by_its_driver(void **state)
{
	(void)state;
	struct powersrc_host h;
	put_file("hwmon0", "name", "power_meter\n");
	put_file("hwmon0", "power1_average", "344000000\n");
	put_file("hwmon0", "power1_input", "1\n"); /* The average is preferred */
	put_file("hwmon1", "name", "pmbus\n");
	put_file("hwmon1", "power1_input", "180500000\n");
	put_file("hwmon1", "power1_label", "pin\n");
	put_file("hwmon1", "power2_input", "170000000\n");
	put_file("hwmon1", "power2_label", "pout1\n");
	put_file("hwmon2", "name", "amdgpu\n");
	put_file("hwmon2", "power1_input", "300000000\n");
	put_file("hwmon3", "name", "ina226\n");
	put_file("hwmon3", "power1_input", "4000000\n");
	put_file("hwmon3", "energy1_input", "4000000\n");
	put_file("hwmon4", "temp1_input", "40000\n"); /* No name */
	powersrc_host_init(&h, "/nonexistent", root);
	readings_expect(&h, CGN_SEC,
		"hwmon gpu[hwmon2/power1] watts 300\nhwmon node[hwmon0/power1] watts 344\n"
		"hwmon other[hwmon3/energy1].sensor joules 0\nhwmon other[hwmon3/power1].sensor watts 4\n"
		"hwmon psu[hwmon1/power1] watts 180.5\nhwmon psu[hwmon1/power2].output watts 170\n");
	put_file("hwmon0", "power1_average", "-1\n");
	char gone[128];
	(void)snprintf(gone, sizeof gone, "rm -r %s/hwmon1 %s/hwmon2 %s/hwmon3", root, root, root);
	assert_int_equal(system(gone), 0);
	readings_expect(&h, 2 * CGN_SEC,
		"hwmon gpu[hwmon2/power1] watts : No such file or directory\n"
		"hwmon node[hwmon0/power1] watts : no number\n"
		"hwmon other[hwmon3/energy1].sensor watts : No such file or directory\n"
		"hwmon other[hwmon3/power1].sensor watts : No such file or directory\n"
		"hwmon psu[hwmon1/power1] watts : No such file or directory\n"
		"hwmon psu[hwmon1/power2].output watts : No such file or directory\n");
}

static void sensors_are_bounded(void **state)
{
	(void)state;
	static struct power_reading r[POWERSRC_MAX_READINGS];
	struct powersrc_host h;
	char dir[32], file[32];
	for (int i = 0; i < 20; i++)
		for (int k = 1; k <= 8; k++) {
			(void)snprintf(dir, sizeof dir, "hwmon%d", i);
			(void)snprintf(file, sizeof file, "power%d_input", k);
			put_file(dir, "name", "ina226\n");
			put_file(dir, file, "4000000\n");
		}
	powersrc_host_init(&h, "/nonexistent", root);
	assert_int_equal(powersrc_host_read(&h, "n1", CGN_SEC, CGN_SEC, r), POWERSRC_MAX_SENSORS);
}

static void gpus_are_readings_too(void **state)
{
	(void)state;
	struct power_reading r[POWERSRC_GPU_READINGS];
	struct power_sum sum;
	struct nvml_gpu gpu = {.uuid = "GPU-1",
		.have = (NVML_SLOWED << 1) - 1, /* All */
		.power_mw = 612345,
		.power_limit_mw = 700000,
		.energy_mj = 5000,
		.temperature_c = 67,
		.sm_mhz = 1980,
		.sm_percent = 93,
		.slowed = power_slow_reasons[0].bit};
	size_t n = powersrc_gpu_read(&gpu, "n1", CGN_SEC, CGN_SEC, r);
	assert_int_equal(n, 10 + power_n_slow_reasons);
	assert_true(power_sum_of(r, n, CGN_STR("n1"), CGN_SEC, &sum));
	assert_true(is_near(sum.watts, 612.345));
	assert_int_equal(sum.n, 1);
	assert_true(is_near(r[2].value, 5));
	assert_int_equal(r[n - power_n_slow_reasons].quantity, POWER_FLAG);
	assert_true(is_near(r[n - power_n_slow_reasons].value, 1));
	assert_true(is_near(r[n - 1].value, 0));
	gpu.have = NVML_TEMPERATURE; /* An old one */
	assert_int_equal(powersrc_gpu_read(&gpu, "n1", CGN_SEC, CGN_SEC, r), 1);
	assert_int_equal(r[0].quantity, POWER_CELSIUS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_to_read_is_unknown, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(half_of_the_limit_is_half_left, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(there_may_be_many_packages, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(packages_share_their_limits, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(rapl_is_energy_and_power, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(hwmon_is_told_by_its_driver, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(sensors_are_bounded, fresh_root, drop_root),
		cmocka_unit_test(gpus_are_readings_too),
		cmocka_unit_test_setup_teardown(counters_wrap, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(a_counter_that_is_reset_is_no_energy, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(the_limit_of_a_package_is_optional, fresh_root, drop_root),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
