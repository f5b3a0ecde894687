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

#include "joint/powersrc/powersrc.h"

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

static void only_packages_with_a_limit_count(void **state)
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
	powersrc_init(&p, root);
	assert_int_equal(p.n, 1);
	(void)powersrc_step(&p, CGN_SEC);
	put_file("intel-rapl:0", "energy_uj", "garbage\n"); /* Unreadable once: no energy is counted */
	assert_true(is_near(powersrc_step(&p, 2 * CGN_SEC), 1));
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_to_read_is_unknown, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(half_of_the_limit_is_half_left, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(there_may_be_many_packages, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(packages_share_their_limits, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(counters_wrap, fresh_root, drop_root),
		cmocka_unit_test_setup_teardown(only_packages_with_a_limit_count, fresh_root, drop_root),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
