/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of clocks through the helper, with a scripted libnvidia-ml (tests/helpers/fake_nvml.c), whose calls are in a file. This
 * program is its own helper. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/core/str.h"
#include "io/os/clockhold/clockhold.h"
#include "io/os/disk/disk.h"

#define GPU(i)  "GPU-000000a" #i "-0000-0000-0000-000000000000"
#define LIMITED "slowed 0 2\n" /* The reason clock_setting */

static char dir[] = "/tmp/cgn-clockhold-XXXXXX";
static char folder[200];
static char script[64], calls[64], record[64], library[256];
static struct cgn_loop *loop;

/* ---- the words of the helper ---- */
static struct {
	unsigned gpus, ready, waiting, done, ended;
	uint32_t lifted, failed;
	struct nvml_clock_gpu gpu;
	struct clockhold_done last;
	enum cgn_code code;
	char why[200];
} said;

static void on_gpu(void *user, const struct nvml_clock_gpu *gpu)
{
	(void)user;
	said.gpu = *gpu;
	said.gpus++;
}

static void on_ready(void *user, uint32_t lifted, uint32_t failed, const char *why)
{
	(void)user;
	said.ready++;
	said.lifted = lifted;
	said.failed = failed;
	(void)cgn_str_copyz(said.why, sizeof said.why, cgn_str_of(why));
	cgn_loop_stop(loop);
}

static void on_waiting(void *user)
{
	(void)user;
	said.waiting++;
	cgn_loop_stop(loop);
}

static void on_done(void *user, const struct clockhold_done *d)
{
	(void)user;
	said.done++;
	said.last = *d;
	cgn_loop_stop(loop);
}

static void on_ended(void *user, enum cgn_code code, const char *why)
{
	(void)user;
	said.ended++;
	said.code = code;
	(void)cgn_str_copyz(said.why, sizeof said.why, cgn_str_of(why));
	cgn_loop_stop(loop);
}

/* ---- the world ---- */

static void file_put(const char *path, const char *text)
{
	assert_true(cgn_ok(disk_write_file_atomic(path, cgn_str_of(text), 0600, NULL)));
}

static void assert_calls(const char *want)
{
	struct cgn_buf b = {0};
	(void)!cgn_ok(disk_read_file(calls, 65536, &b, NULL));
	assert_string_equal(cgn_buf_z(&b), want);
	cgn_buf_fini(&b);
}

static int world_begin(void **state)
{
	(void)state;
	memset(&said, 0, sizeof said);
	(void)unlink(calls);
	(void)unlink(record);
	file_put(script, "count 2\n");
	return cgn_ok(cgn_loop_new(&loop, NULL)) ? 0 : -1;
}

static int world_end(void **state)
{
	(void)state;
	cgn_loop_free(&loop);
	return 0;
}

static struct clockhold *hold_open(const char *gpus)
{
	static const struct clockhold_ops ops = {.gpu = on_gpu,
		.ready = on_ready,
		.waiting = on_waiting,
		.done = on_done,
		.ended = on_ended};
	const struct clockhold_cfg cfg = {.library = library,
		.gpus = gpus,
		.record = record,
		.log_format = "json"};
	struct clockhold *h = NULL;
	assert_true(cgn_ok(clockhold_open(loop, &cfg, &ops, NULL, &h, NULL)));
	cgn_loop_run(loop);
	return h;
}

static enum cgn_code lock_gpu(struct clockhold *h, const char *uuid, bool take_over)
{
	assert_true(clockhold_lock(h, uuid, 210, 1185, take_over));
	cgn_loop_run(loop);
	assert_string_equal(said.last.uuid, uuid);
	assert_int_equal(said.last.high_mhz, 1185);
	return said.last.code;
}

static void hold_close(struct clockhold **h)
{
	clockhold_free(h, 20 * CGN_SEC);
}

/* ---- tests ---- */

static void limits_are_lifted_at_the_end(void **state)
{
	(void)state;
	struct clockhold *h = hold_open(NULL);
	assert_true(said.ready == 1 && said.gpus == 2 && said.lifted == 0);
	assert_string_equal(said.gpu.uuid, GPU(1));
	assert_true(said.gpu.index == 1 && said.gpu.n == 119 && said.gpu.mhz[0] == 1980 &&
		said.gpu.mhz[118] == 210);
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_FINE);
	assert_int_equal(lock_gpu(h, GPU(1), false), CGN_FINE);
	assert_true(clockhold_recorded(record));
	assert_true(clockhold_reset(h, GPU(0)));
	cgn_loop_run(loop);
	assert_true(said.done == 3 && said.last.code == CGN_FINE && said.last.high_mhz == 0);
	assert_true(clockhold_recorded(record));
	hold_close(&h);
	assert_calls("lock 0 210 1185 0\nlock 1 210 1185 0\nreset 0 0\nreset 1 0\n");
	assert_false(clockhold_recorded(record));
}

static void end_lifts_limits_and_is_told(void **state)
{
	(void)state;
	struct clockhold *h = hold_open("1");
	assert_int_equal(said.gpus, 1);
	assert_int_equal(lock_gpu(h, GPU(1), false), CGN_FINE);
	clockhold_end(h);
	assert_false(clockhold_reset(h, GPU(1)));
	cgn_loop_run(loop);
	assert_true(said.ended == 1 && said.code == CGN_FINE);
	assert_calls("lock 1 210 1185 0\nreset 1 0\n");
	hold_close(&h);
}

static void only_our_limits_are_lifted(void **state)
{
	(void)state;
	struct clockhold *h = hold_open(NULL);
	assert_true(clockhold_reset(h, GPU(0))); /* Another owner may have set one. */
	cgn_loop_run(loop);
	assert_int_equal(said.last.code, CGN_FINE);
	hold_close(&h);
	assert_calls("");
}

static void a_killed_helper_leaves_work_for_the_next(void **state)
{
	(void)state;
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(lock_gpu(h, GPU(1), false), CGN_FINE);
	assert_int_equal(kill(clockhold_pid(h), SIGKILL), 0);
	cgn_loop_run(loop);
	assert_true(said.ended == 1 && said.code == CGN_UNAVAILABLE);
	assert_non_null(strstr(said.why, "killed"));
	hold_close(&h);
	assert_true(clockhold_recorded(record));
	file_put(script, "count 2\nslowed 1 2\n"); /* The limit that was left is not another owner's. */
	h = hold_open(NULL);
	assert_true(said.ready == 2 && said.lifted == 1 && said.failed == 0);
	assert_false(clockhold_recorded(record));
	assert_int_equal(lock_gpu(h, GPU(1), false), CGN_FINE);
	hold_close(&h);
	assert_calls("lock 1 210 1185 0\nreset 1 0\nlock 1 210 1185 0\nreset 1 0\n");
}

static void a_record_with_a_cut_line_is_read(void **state)
{
	(void)state;
	file_put(record, "+" GPU(0) "\n+" GPU(1) "\n-" GPU(0) "\n+GPU-0000");
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(said.lifted, 1);
	hold_close(&h);
	assert_calls("reset 1 0\n");
	assert_false(clockhold_recorded(record));
}

static void a_gpu_that_is_gone_stays_in_the_record(void **state)
{
	(void)state;
	file_put(record, "+GPU-elsewhere\n");
	struct clockhold *h = hold_open(NULL);
	assert_true(said.lifted == 0 && said.failed == 1);
	assert_non_null(strstr(said.why, "GPU-elsewhere is not there"));
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_FINE);
	hold_close(&h);
	assert_true(clockhold_recorded(record));
	assert_calls("lock 0 210 1185 0\nreset 0 0\n");
}

static void no_permission_is_told_and_leaves_nothing(void **state)
{
	(void)state;
	file_put(script, "count 2\nfail DeviceSetGpuLockedClocks 4\n");
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_FORBIDDEN);
	assert_non_null(strstr(said.last.why, "nvmlDeviceSetGpuLockedClocks: Insufficient Permissions"));
	assert_false(clockhold_recorded(record));
	hold_close(&h);
	assert_calls("lock 0 210 1185 4\n");
}

static void a_failure_is_undone(void **state)
{
	(void)state;
	file_put(script, "count 3\nfail_at DeviceSetGpuLockedClocks 3 999\n");
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_FINE);
	assert_int_equal(lock_gpu(h, GPU(1), false), CGN_FINE);
	assert_int_equal(lock_gpu(h, GPU(2), false), CGN_UNAVAILABLE);
	assert_int_equal(lock_gpu(h, GPU(2), false), CGN_FINE);
	hold_close(&h);
	assert_calls(
		"lock 0 210 1185 0\nlock 1 210 1185 0\nlock 2 210 1185 999\nreset 2 0\nlock 2 210 1185 0\n"
		"reset 2 0\nreset 1 0\nreset 0 0\n");
}

static void a_limit_that_cannot_be_lifted_is_tried_again(void **state)
{
	(void)state;
	file_put(script, "count 1\nfail_at DeviceResetGpuLockedClocks 1 999\n");
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_FINE);
	hold_close(&h);
	assert_calls("lock 0 210 1185 0\nreset 0 999\nreset 0 0\n");
	assert_false(clockhold_recorded(record));
}

static void the_limit_of_another_owner_is_left_alone(void **state)
{
	(void)state;
	file_put(script, "count 1\n" LIMITED);
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_CONFLICT);
	assert_non_null(strstr(said.last.why, "agent.clocks.take_over"));
	assert_false(clockhold_recorded(record));
	assert_calls("");
	assert_int_equal(lock_gpu(h, GPU(0), true), CGN_FINE);
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_FINE); /* Ours by now */
	hold_close(&h);
	assert_calls("lock 0 210 1185 0\nlock 0 210 1185 0\nreset 0 0\n");
}

static void one_helper_at_a_time_has_the_record(void **state)
{
	(void)state;
	struct clockhold *first = hold_open(NULL);
	assert_int_equal(lock_gpu(first, GPU(0), false), CGN_FINE);
	struct clockhold *second = hold_open(NULL);
	assert_true(said.waiting == 1 && said.ready == 1);
	hold_close(&first);
	cgn_loop_run(loop);
	assert_true(said.ready == 2 && said.lifted == 0);
	hold_close(&second);
	assert_calls("lock 0 210 1185 0\nreset 0 0\n");
}

static void a_relative_path_is_the_callers(void **state)
{
	(void)state;
	char here[sizeof record], was[300];
	memcpy(here, record, sizeof here);
	assert_non_null(getcwd(was, sizeof was));
	assert_int_equal(chdir(dir), 0);
	(void)snprintf(record, sizeof record, "record");
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(lock_gpu(h, GPU(0), false), CGN_FINE);
	assert_true(clockhold_recorded(here));
	hold_close(&h);
	assert_int_equal(chdir(was), 0);
	memcpy(record, here, sizeof here);
	assert_calls("lock 0 210 1185 0\nreset 0 0\n");
}

static void troubles_are_told(void **state)
{
	(void)state;
	static const struct {
		const char *name, *script, *why;
		enum cgn_code code;
	} rows[] = {{"absent", "count 1\n", "absent.so", CGN_NOT_FOUND},
		{"fake_nvml_few", "count 1\n", "cannot lock clocks", CGN_UNSUPPORTED},
		{"fake_nvml", "fail Init 9\n", "nvmlInit", CGN_UNAVAILABLE}};
	char good[sizeof library];
	memcpy(good, library, sizeof good);
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		/* The script is read by the library's first call. */
		file_put(script, rows[i].script);
		(void)snprintf(library, sizeof library, "%s/tests/helpers/%s.so", folder, rows[i].name);
		struct clockhold *h = hold_open(NULL);
		assert_true(said.ended == i + 1 && said.ready == 0);
		assert_int_equal(said.code, rows[i].code);
		assert_non_null(strstr(said.why, rows[i].why));
		hold_close(&h);
	}
	memcpy(library, good, sizeof good);
	char here[sizeof record];
	memcpy(here, record, sizeof here);
	(void)snprintf(record, sizeof record, "%s/none/record", dir);
	struct clockhold *h = hold_open(NULL);
	assert_int_equal(said.code, CGN_STORAGE);
	assert_non_null(strstr(said.why, "none/record: No such file"));
	hold_close(&h);
	memcpy(record, here, sizeof here);
}

static int folder_make(void **state)
{
	(void)state;
	ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
	assert_true(n > 0);
	folder[n] = '\0';
	*strrchr(folder, '/') = '\0';
	if (mkdtemp(dir) == NULL)
		return -1;
	(void)snprintf(script, sizeof script, "%s/gpus", dir);
	(void)snprintf(calls, sizeof calls, "%s/gpus.calls", dir);
	(void)snprintf(record, sizeof record, "%s/record", dir);
	(void)snprintf(library, sizeof library, "%s/tests/helpers/fake_nvml.so", folder);
	return setenv("FAKE_NVML", script, 1);
}

static int folder_drop(void **state)
{
	(void)state;
	(void)unlink(script);
	(void)unlink(calls);
	(void)unlink(record);
	return rmdir(dir);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], CLOCKHOLD_ARG) == 0)
		return clockhold_main(argc, argv);
#define TEST(f) cmocka_unit_test_setup_teardown(f, world_begin, world_end)
	const struct CMUnitTest tests[] = {
		TEST(limits_are_lifted_at_the_end),
		TEST(end_lifts_limits_and_is_told),
		TEST(only_our_limits_are_lifted),
		TEST(a_killed_helper_leaves_work_for_the_next),
		TEST(a_record_with_a_cut_line_is_read),
		TEST(a_gpu_that_is_gone_stays_in_the_record),
		TEST(no_permission_is_told_and_leaves_nothing),
		TEST(a_failure_is_undone),
		TEST(a_limit_that_cannot_be_lifted_is_tried_again),
		TEST(the_limit_of_another_owner_is_left_alone),
		TEST(one_helper_at_a_time_has_the_record),
		TEST(a_relative_path_is_the_callers),
		TEST(troubles_are_told),
	};
	return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
