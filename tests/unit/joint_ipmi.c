/* SPDX-License-Identifier: Apache-2.0 */
/* ipmi: rounds of a program in the place of ipmitool, a shell script. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "io/os/disk/disk.h"
#include "joint/power/ipmi/ipmi.h"

static char folder[64], program[96], log_file[96];

struct world {
	struct cgn_loop *l;
	struct cgn_timer tick;
	struct ipmi_bmc *b;
};

static void world_tick(struct cgn_timer *t)
{
	cgn_timer_set(t, CGN_MSEC);
}

/* Make a program that notes its arguments and then runs |body|. */
static void program_write(const char *body)
{
	char text[2048];
	(void)snprintf(text, sizeof text, "#!/bin/sh\necho \"$*\" >>%s\n%s\n", log_file, body);
	assert_true(cgn_ok(disk_write_file_atomic(program, cgn_str_of(text), 0755, NULL)));
}

static void world_open(struct world *w, const char *host)
{
	const struct ipmi_bmc_cfg cfg = {.program = program,
		.host = host,
		.user = host != NULL ? "cgn" : NULL,
		.password_file = host != NULL ? "/secret" : NULL,
		.node = "n1",
		.timeout = 10 * CGN_SEC,
		.interval = 5 * CGN_MSEC};
	*w = (struct world){.l = NULL};
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	cgn_timer_init(&w->tick, w->l, world_tick);
	world_tick(&w->tick);
	w->b = ipmi_bmc_open(w->l, &cfg);
}

static struct ipmi_bmc_view round_wait(struct world *w)
{
	struct ipmi_bmc_view v = ipmi_bmc_view(w->b);
	cgn_nsec last = v.last;
	uint64_t failures = v.failures;
	alarm(60);
	while (v.last == last && v.failures == failures) {
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
		v = ipmi_bmc_view(w->b);
	}
	alarm(0);
	return v;
}

static void world_close(struct world *w)
{
	ipmi_bmc_close(&w->b);
	assert_null(w->b);
	cgn_timer_cancel(&w->tick);
	cgn_loop_free(&w->l);
}

static void expect_log(const char *want)
{
	struct cgn_buf b = {0};
	assert_true(cgn_ok(disk_read_file(log_file, 1 << 16, &b, NULL)));
	b.n = b.n < strlen(want) ? b.n : strlen(want);
	assert_string_equal(cgn_buf_z(&b), want);
	cgn_buf_fini(&b);
}

static int folder_make(void **state)
{
	(void)state;
	(void)snprintf(folder, sizeof folder, "/tmp/cgn-ipmi-XXXXXX");
	assert_non_null(mkdtemp(folder));
	(void)snprintf(program, sizeof program, "%s/ipmitool", folder);
	(void)snprintf(log_file, sizeof log_file, "%s/log", folder);
	return 0;
}

static int folder_drop(void **state)
{
	char cmd[96];
	(void)state;
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	return system(cmd);
}

#define SENSORS \
	"echo 'PS1 Input Power,400,Watts,ok'; echo 'CPU1 Temp,45,degrees C,ok'; echo 'Fan1,5000,RPM,ok'; echo 'CPU1 Temp,46,degrees C,ok'; echo 'CPU1 Temp,47,degrees C,ok'"

static void test_dcmi_and_sensors(void **state)
{
	struct world w;
	(void)state;
	program_write(
		"case \"$*\" in *dcmi*) echo '    Instantaneous power reading:     220 Watts' ;; *) " SENSORS
		" ;; esac");
	world_open(&w, NULL);
	struct ipmi_bmc_view v = round_wait(&w);
	assert_true(v.is_up);
	assert_string_equal(v.why, "");
	assert_int_equal(v.n, 5);
	assert_string_equal(v.reading[4].part, "CPU1 Temp#3");
	assert_int_equal(v.reading[0].component, POWER_NODE);
	assert_true(fabs(v.reading[0].value - 220) < 1e-9);
	assert_string_equal(v.reading[1].part, "PS1 Input Power");
	assert_string_equal(v.reading[2].node, "n1");
	assert_true(v.reading[2].max_age >= 15 * CGN_MSEC && v.reading[2].time > 0);
	v = round_wait(&w);
	assert_int_equal(v.n, 5);
	world_close(&w);
	expect_log("-I open dcmi power reading\n-I open -c sdr list full\n-I open dcmi power reading\n");
}

static void test_a_bmc_without_dcmi_is_asked_once(void **state)
{
	struct world w;
	(void)state;
	program_write(
		"case \"$*\" in *dcmi*) echo 'Unable to Get Channel Cipher Suites' >&2; echo '    DCMI request failed because: Invalid command (c1)' >&2; exit 1 ;; "
		"*) " SENSORS " ;; esac");
	world_open(&w, "bmc7");
	struct ipmi_bmc_view v = round_wait(&w);
	assert_true(v.is_up);
	assert_int_equal(v.n, 4);
	v = round_wait(&w);
	assert_true(v.is_up);
	world_close(&w);
	expect_log("-I lanplus -H bmc7 -p 623 -N 2 -R 2 -U cgn -f /secret dcmi power reading\n"
		   "-I lanplus -H bmc7 -p 623 -N 2 -R 2 -U cgn -f /secret -c sdr list full\n"
		   "-I lanplus -H bmc7 -p 623 -N 2 -R 2 -U cgn -f /secret -c sdr list full\n");
}

static void test_failures_have_the_programs_words(void **state)
{
	struct world w;
	(void)state;
	program_write("echo 'Could not open device at /dev/ipmi0' >&2; echo 'more' >&2; exit 1");
	world_open(&w, NULL);
	struct ipmi_bmc_view v = round_wait(&w);
	assert_false(v.is_up);
	assert_string_equal(v.why, "Could not open device at /dev/ipmi0");
	program_write("exit 3");
	v = round_wait(&w);
	assert_non_null(strstr(v.why, "exit status 3"));
	program_write(SENSORS);
	while (!v.is_up)
		v = round_wait(&w);
	assert_int_equal(v.n, 4);
	program_write("exit 1");
	v = round_wait(&w);
	assert_false(v.is_up);
	assert_int_equal(v.n, 4); /* The last readings stay, and become stale */
	world_close(&w);
}

static void test_no_program(void **state)
{
	struct world w;
	(void)state;
	world_open(&w, NULL);
	struct ipmi_bmc_view v = round_wait(&w);
	assert_false(v.is_up);
	assert_non_null(strstr(v.why, "ipmitool"));
	world_close(&w);
}

static void test_a_program_that_hangs_is_killed_at_the_end(void **state)
{
	struct world w;
	(void)state;
	program_write("sleep 1000");
	world_open(&w, NULL);
	for (unsigned i = 0; i < 50; i++)
		(void)uv_run(cgn_loop_uv(w.l), UV_RUN_ONCE);
	assert_false(ipmi_bmc_view(w.b).is_up);
	world_close(&w); /* Does not wait 1,000 s */
}

static void test_output_without_end_is_bounded(void **state)
{
	struct world w;
	(void)state;
	program_write("i=0; while [ $i -lt 1500 ]; do echo \"GPU$i Power,300,Watts,ok\"; i=$((i+1)); done; "
		      "head -c 100000 /dev/zero | tr '\\0' x");
	world_open(&w, NULL);
	struct ipmi_bmc_view v = round_wait(&w);
	assert_true(v.is_up);
	assert_int_equal(v.n, IPMI_MAX_READINGS);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_dcmi_and_sensors, folder_make, folder_drop),
		cmocka_unit_test_setup_teardown(test_a_bmc_without_dcmi_is_asked_once, folder_make,
			folder_drop),
		cmocka_unit_test_setup_teardown(test_failures_have_the_programs_words, folder_make,
			folder_drop),
		cmocka_unit_test_setup_teardown(test_no_program, folder_make, folder_drop),
		cmocka_unit_test_setup_teardown(test_a_program_that_hangs_is_killed_at_the_end, folder_make,
			folder_drop),
		cmocka_unit_test_setup_teardown(test_output_without_end_is_bounded, folder_make, folder_drop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
