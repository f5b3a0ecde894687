/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "io/os/proc/proc_priv.h"

struct world {
	struct cgn_loop *loop;
	struct proc *proc;
	struct cgn_buf out, err;
	unsigned long lines, dropped;
	struct proc_exit exit;
	int exits;
	bool stop_at_line, free_at_line;
	pid_t pid_at_line; /* proc_pid when the last line came. */
};

static void on_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	struct world *w = user;
	struct cgn_buf *b = is_stderr ? &w->err : &w->out;
	w->lines++;
	w->dropped += dropped;
	w->pid_at_line = w->proc != NULL ? proc_pid(w->proc) : 0;
	cgn_buf_str(b, line);
	cgn_buf_char(b, '|');
	if (w->stop_at_line)
		proc_stop(w->proc);
	if (w->free_at_line) {
		proc_free(&w->proc);
		cgn_loop_stop(w->loop);
	}
}

static void on_exit_(void *user, const struct proc_exit *why)
{
	struct world *w = user;
	w->exit = *why;
	w->exits++;
	w->proc = NULL;
	cgn_loop_stop(w->loop);
}

static const struct proc_ops ops = {.on_line = on_line, .on_exit = on_exit_};

static void run_program(struct world *w, const char *const *argv, const char *const *env)
{
	struct proc_cfg cfg = {.argv = argv, .env = env, .grace = 50 * CGN_MSEC};
	assert_true(cgn_ok(cgn_loop_new(&w->loop, NULL)));
	assert_true(cgn_ok(proc_spawn(w->loop, &cfg, &ops, w, &w->proc, NULL)));
	assert_int_equal(w->exits, 0);
	cgn_loop_run(w->loop);
	assert_null(w->proc);
	cgn_loop_free(&w->loop);
}

static void run_shell(struct world *w, const char *script)
{
	run_program(w, (const char *const[]){"sh", "-c", script, NULL}, NULL);
}

static void world_done(struct world *w)
{
	cgn_buf_fini(&w->out);
	cgn_buf_fini(&w->err);
}

/* False when the process is gone or is another parent's zombie. */
static bool is_running(pid_t pid)
{
	char path[64], text[512];
	(void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, sizeof text - 1);
	(void)close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	const char *end = strrchr(text, ')');
	return end != NULL && end[1] != '\0' && end[2] != 'Z' && end[2] != 'X';
}

static void a_moment(void)
{
	struct timespec ts = {.tv_nsec = 5000000};
	(void)nanosleep(&ts, NULL);
}

/* ---- lines ---- */
static void line_collect(void *user, struct cgn_str line, unsigned long dropped)
{
	struct cgn_buf *b = user;
	if (dropped > 0)
		cgn_buf_fmt(b, "(%lu)", dropped);
	cgn_buf_fmt(b, "%.*s|", line.n > 20 ? 20 : CGN_STR_ARG(line));
}

static void lines_come_whole_however_they_are_cut(void **state)
{
	(void)state;
	static const char text[] = "one\ntwo\r\n\n\nthree";
	for (size_t piece = 1; piece < sizeof text; piece++) {
		struct proc_lines l = {0};
		struct proc_rate r = {0};
		struct cgn_buf b = {0};
		for (size_t at = 0; at < sizeof text - 1; at += piece) {
			size_t left = sizeof text - 1 - at;
			proc_lines_feed(&l, &r, text + at, left < piece ? left : piece, CGN_SEC, line_collect,
				&b);
		}
		assert_string_equal(cgn_buf_z(&b), "one|two|");
		proc_lines_end(&l, &r, CGN_SEC, line_collect, &b);
		proc_lines_end(&l, &r, CGN_SEC, line_collect, &b);
		assert_string_equal(cgn_buf_z(&b), "one|two|three|");
		cgn_buf_fini(&b);
	}
}

static void sum_of_lengths(void *user, struct cgn_str line, unsigned long dropped)
{
	size_t *total = user;
	(void)dropped;
	*total += line.n;
}

static void long_lines_are_cut_and_the_next_is_whole(void **state)
{
	(void)state;
	struct proc_lines l = {0};
	struct proc_rate r = {0};
	size_t total = 0;
	char big[1000];
	memset(big, 'x', sizeof big);
	for (int i = 0; i < 100; i++)
		proc_lines_feed(&l, &r, big, sizeof big, 0, sum_of_lengths, &total);
	assert_int_equal(total, 0);
	proc_lines_feed(&l, &r, "\nabc\n", 5, 0, sum_of_lengths, &total);
	assert_int_equal(total, PROC_LINE_BYTES + 3);
}

static void floods_are_dropped_and_counted(void **state)
{
	(void)state;
	struct proc_lines l = {0};
	struct proc_rate r = {0};
	size_t total = 0;
	for (int i = 0; i < PROC_LINE_BURST + 500; i++)
		proc_lines_feed(&l, &r, "x\n", 2, 5 * CGN_SEC, sum_of_lengths, &total);
	assert_int_equal(total, PROC_LINE_BURST);
	assert_int_equal(r.dropped, 500);
	struct cgn_buf b = {0};
	proc_lines_feed(&l, &r, "y\n", 2, 6 * CGN_SEC, line_collect, &b);
	assert_string_equal(cgn_buf_z(&b), "(500)y|");
	cgn_buf_fini(&b);
	total = 0;
	for (int i = 0; i < 1000; i++)
		proc_lines_feed(&l, &r, "x\n", 2, 6 * CGN_SEC, sum_of_lengths, &total);
	assert_int_equal(total, PROC_LINE_RATE - 1);
}

/* ---- finding ---- */
static void programs_are_found_or_the_place_is_named(void **state)
{
	(void)state;
	char file[512];
	struct cgn_err err = {0};
	assert_true(cgn_ok(proc_find("sh", "/nonexistent:/bin", file, sizeof file, &err)));
	assert_string_equal(file, "/bin/sh");
	assert_int_equal(proc_find("no-such-engine", "/bin:/usr/bin", file, sizeof file, &err).code,
		CGN_NOT_FOUND);
	assert_non_null(strstr(err.msg, "no-such-engine"));
	assert_non_null(strstr(err.msg, "/bin:/usr/bin"));
	assert_int_equal(proc_find("x", NULL, file, sizeof file, &err).code, CGN_NOT_FOUND);
	assert_int_equal(proc_find("/no/such/file", "/bin", file, sizeof file, &err).code, CGN_NOT_FOUND);
	assert_non_null(strstr(err.msg, "/no/such/file"));
	assert_int_equal(proc_find("/etc/passwd", "/bin", file, sizeof file, &err).code, CGN_FORBIDDEN);
	assert_int_equal(proc_find("/bin", NULL, file, sizeof file, &err).code, CGN_FORBIDDEN);
	assert_int_equal(proc_find("sh", "/bin", file, 4, &err).code, CGN_NOT_FOUND);
}

static void spawning_what_is_not_there_fails_at_once(void **state)
{
	(void)state;
	struct world w = {0};
	struct cgn_err err = {0};
	struct proc_cfg cfg = {.argv = (const char *const[]){"no-such-engine", NULL}};
	assert_true(cgn_ok(cgn_loop_new(&w.loop, NULL)));
	assert_int_equal(proc_spawn(w.loop, &cfg, &ops, &w, &w.proc, &err).code, CGN_NOT_FOUND);
	assert_non_null(strstr(err.msg, "PATH"));
	assert_null(w.proc);
	cgn_loop_free(&w.loop);
}

static void a_file_that_is_no_program_tells_its_errno(void **state)
{
	(void)state;
	struct world w = {0};
	char name[] = "/tmp/cgn-proc-XXXXXX", text[128];
	int fd = mkstemp(name);
	assert_true(fd >= 0 && write(fd, "\1\2\3\4", 4) == 4 && fchmod(fd, 0700) == 0);
	(void)close(fd);
	run_program(&w, (const char *const[]){name, NULL}, NULL);
	(void)unlink(name);
	assert_int_equal(w.exit.exec_errno, ENOEXEC);
	assert_non_null(strstr(proc_exit_text(&w.exit, text, sizeof text), "could not be executed"));
	world_done(&w);
}

/* ---- running ---- */
static void output_and_status_arrive(void **state)
{
	(void)state;
	struct world w = {0};
	char text[128];
	run_shell(&w, "echo a; echo b >&2; printf tail; exit 3");
	assert_string_equal(cgn_buf_z(&w.out), "a|tail|");
	assert_string_equal(cgn_buf_z(&w.err), "b|");
	assert_int_equal(w.exits, 1);
	assert_int_equal(w.exit.code, 3);
	assert_int_equal(w.exit.signal, 0);
	assert_string_equal(proc_exit_text(&w.exit, text, sizeof text), "exit status 3");
	world_done(&w);
}

/* The keeper is the slower one: it shares a CPU with the program, which runs first. */
static void the_pid_is_known_before_the_program_acts(void **state)
{
	(void)state;
	cpu_set_t all, one;
	assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
	CPU_ZERO(&one);
	CPU_SET((size_t)sched_getcpu(), &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	for (int i = 0; i < 40; i++) {
		struct world w = {.free_at_line = true};
		run_program(&w, (const char *const[]){"sh", "-c", "echo up; exec sleep 60", NULL}, NULL);
		assert_true(w.pid_at_line > 0);
		world_done(&w);
	}
	assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void a_signal_is_told(void **state)
{
	(void)state;
	struct world w = {0};
	char text[128];
	run_shell(&w, "kill -SEGV $$");
	assert_int_equal(w.exit.signal, SIGSEGV);
	assert_int_equal(w.exit.code, -1);
	assert_non_null(strstr(proc_exit_text(&w.exit, text, sizeof text), "signal 11"));
	world_done(&w);
}

static void environment_is_added_and_overridden(void **state)
{
	(void)state;
	struct world w = {0};
	assert_int_equal(setenv("CGN_TEST_A", "outer", 1), 0);
	assert_int_equal(setenv("CGN_TEST_AB", "kept", 1), 0);
	run_program(&w, (const char *const[]){"sh", "-c", "echo $CGN_TEST_A $CGN_TEST_AB $CGN_TEST_C", NULL},
		(const char *const[]){"CGN_TEST_A=inner", "CGN_TEST_C=new", NULL});
	assert_string_equal(cgn_buf_z(&w.out), "inner kept new|");
	world_done(&w);
}

/* A listening socket that an engine inherited would hold the port of a dead agent. */
static void nothing_of_ours_is_inherited(void **state)
{
	(void)state;
	struct world w = {0};
	int leak = dup(0);
	assert_true(leak >= 0);
	/* No fork here: a shell that waits for a child blocks signals itself. The list of files is made
	 * before the second file is opened. */
	run_shell(&w,
		"for f in /proc/$$/fd/*; do [ -e $f ] && echo ${f##*/}; done; while IFS= read -r l; do case $l in SigBlk*|SigIgn*) echo \"$l\" ;; esac; "
		"done < /proc/$$/status");
	assert_string_equal(cgn_buf_z(&w.out), "0|1|2|SigBlk:\t0000000000000000|SigIgn:\t0000000000000000|");
	(void)close(leak);
	world_done(&w);
}

static void stop_is_polite_first(void **state)
{
	(void)state;
	struct world w = {.stop_at_line = true};
	run_shell(&w, "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done");
	assert_string_equal(cgn_buf_z(&w.out), "up|bye|");
	assert_int_equal(w.exit.code, 7);
	world_done(&w);
}

static void a_process_that_ignores_sigterm_is_killed(void **state)
{
	(void)state;
	struct world w = {.stop_at_line = true};
	run_shell(&w, "trap '' TERM; echo up; while :; do sleep 0.01; done");
	assert_int_equal(w.exit.signal, SIGKILL);
	world_done(&w);
}

static void descendants_go_with_it(void **state)
{
	(void)state;
	struct world w = {0};
	pid_t a = 0, b = 0;
	/* A child in the group, and one in a session of its own that ignores every signal it can. */
	run_shell(&w,
		"sleep 1000 & echo $!; setsid sh -c 'trap \"\" TERM HUP; echo $$; exec sleep 1000' & read x < /proc/uptime; sleep 0.2; exit 0");
	assert_int_equal(sscanf(cgn_buf_z(&w.out), "%d|%d|", &a, &b), 2);
	assert_true(a > 0 && b > 0);
	assert_false(is_running(a));
	assert_false(is_running(b));
	assert_int_equal(w.exit.code, 0);
	world_done(&w);
}

static void freeing_kills(void **state)
{
	(void)state;
	struct world w = {.free_at_line = true};
	run_shell(&w, "trap '' TERM; echo $$; while :; do sleep 0.01; done");
	pid_t pid = (pid_t)strtol(cgn_buf_z(&w.out), NULL, 10);
	assert_true(pid > 0);
	assert_false(is_running(pid));
	assert_int_equal(w.exits, 0);
	proc_free(&w.proc);
	world_done(&w);
}

static void a_torrent_is_bounded(void **state)
{
	(void)state;
	struct world w = {0};
	run_shell(&w, "yes | head -n 200000");
	assert_int_equal(w.exit.code, 0);
	assert_true(w.lines >= 1 && w.lines < 200000);
	world_done(&w);
}

/* ---- kill -9 ---- */
static void owner_life(const char *pid_file)
{
	struct world w = {0};
	char script[512];
	(void)snprintf(script, sizeof script,
		"trap '' TERM HUP; setsid sleep 1000 & echo $$ $! > %s.tmp; mv %s.tmp %s; while :; do sleep 1; done",
		pid_file, pid_file, pid_file);
	run_shell(&w, script);
}

static void kill_9_of_the_owner_takes_all_along(void **state)
{
	(void)state;
	char name[64];
	int a = 0, b = 0;
	(void)snprintf(name, sizeof name, "/tmp/cgn-proc-%d", (int)getpid());
	pid_t owner = fork();
	if (owner == 0) {
		owner_life(name);
		_exit(0);
	}
	FILE *f;
	while ((f = fopen(name, "re")) == NULL)
		a_moment();
	assert_int_equal(fscanf(f, "%d %d", &a, &b), 2);
	(void)fclose(f);
	(void)unlink(name);
	assert_true(is_running(a) && is_running(b));
	assert_int_equal(kill(owner, SIGKILL), 0);
	assert_int_equal(waitpid(owner, NULL, 0), owner);
	while (is_running(a) || is_running(b)) /* The test's own timeout ends a hang. */
		a_moment();
}

static void kill_9_of_the_keeper_is_an_exit(void **state)
{
	(void)state;
	struct world w = {0};
	/* The shell's parent is the watchdog process. */
	run_shell(&w, "echo $$; kill -KILL $PPID; while :; do sleep 0.01; done");
	pid_t pid = (pid_t)strtol(cgn_buf_z(&w.out), NULL, 10);
	assert_int_equal(w.exits, 1);
	assert_int_equal(w.exit.signal, SIGKILL);
	while (is_running(pid))
		a_moment();
	world_done(&w);
}

/* ---- adoption ---- */

static char place[64];

/* Start a program that outlives this process, and die. */
static void owner_abandons(const char *script)
{
	struct world w = {0};
	const char *const argv[] = {"sh", "-c", script, NULL};
	const struct proc_cfg cfg = {.argv = argv,
		.grace = 50 * CGN_MSEC,
		.place = place,
		.orphan_time = 30 * CGN_SEC,
		.word = "the word"};
	if (!cgn_ok(cgn_loop_new(&w.loop, NULL)) ||
		!cgn_ok(proc_spawn(w.loop, &cfg, &ops, &w, &w.proc, NULL)))
		_exit(1);
	cgn_loop_run(w.loop);
	_exit(1);
}

static pid_t owner_run(const char *script, const char *until_file)
{
	pid_t owner = fork();
	if (owner == 0)
		owner_abandons(script);
	while (access(until_file, F_OK) != 0)
		a_moment();
	(void)unlink(until_file);
	return owner;
}

static void owner_kill(pid_t owner)
{
	assert_int_equal(kill(owner, SIGKILL), 0);
	assert_int_equal(waitpid(owner, NULL, 0), owner);
}

static void a_new_owner_adopts_the_program(void **state)
{
	(void)state;
	char script[300], ready[80];
	struct world w = {0};
	struct proc_orphan orphan = {.unread = 7};
	struct cgn_err err;
	(void)snprintf(place, sizeof place, "/tmp/cgn-place-%d", (int)getpid());
	(void)snprintf(ready, sizeof ready, "%s.ready", place);
	/* The second line comes once it was adopted. */
	(void)snprintf(script, sizeof script,
		"touch %s; until [ -e %s.go ]; do sleep 0.01; done; echo here; echo there >&2; exit 3", ready,
		place);
	assert_true(cgn_ok(cgn_loop_new(&w.loop, NULL)));
	assert_int_equal(proc_adopt(w.loop, place, &ops, &w, &w.proc, &orphan, &err).code, CGN_NOT_FOUND);
	pid_t owner = owner_run(script, ready);
	assert_int_equal(proc_adopt(w.loop, place, &ops, &w, &w.proc, &orphan, &err).code, CGN_CONFLICT);
	assert_non_null(strstr(err.msg, "belongs to another agent"));
	assert_int_equal(proc_end_strays(place), 0); /* The keeper lives. */
	owner_kill(owner);
	cgn_rc rc;
	while ((rc = proc_adopt(w.loop, place, &ops, &w, &w.proc, &orphan, &err)).code == CGN_CONFLICT)
		a_moment(); /* The keeper has not noticed yet. */
	assert_true(cgn_ok(rc));
	assert_string_equal(orphan.word, "the word");
	assert_true(proc_outlives(w.proc));
	assert_true(orphan.unread == 0 && proc_pid(w.proc) > 0 && is_running(proc_pid(w.proc)));
	char go[80];
	(void)snprintf(go, sizeof go, "%s.go", place);
	(void)close(open(go, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	cgn_loop_run(w.loop);
	(void)unlink(go);
	assert_int_equal(w.exit.code, 3);
	assert_string_equal(cgn_buf_z(&w.out), "here|");
	assert_string_equal(cgn_buf_z(&w.err), "there|");
	assert_int_equal(proc_adopt(w.loop, place, &ops, &w, &w.proc, &orphan, &err).code, CGN_NOT_FOUND);
	cgn_loop_free(&w.loop);
	world_done(&w);
}

static void freeing_an_adopted_program_kills_it(void **state)
{
	(void)state;
	char script[200], ready[80];
	struct world w = {0};
	struct proc_orphan orphan;
	(void)snprintf(place, sizeof place, "/tmp/cgn-place-%d", (int)getpid());
	(void)snprintf(ready, sizeof ready, "%s.ready", place);
	(void)snprintf(script, sizeof script, "trap '' TERM; touch %s; exec sleep 1000", ready);
	owner_kill(owner_run(script, ready));
	assert_true(cgn_ok(cgn_loop_new(&w.loop, NULL)));
	while (proc_adopt(w.loop, place, &ops, &w, &w.proc, &orphan, NULL).code != CGN_FINE)
		a_moment();
	pid_t pid = proc_pid(w.proc);
	proc_free(&w.proc);
	assert_false(is_running(pid));
	cgn_loop_stop(w.loop);
	cgn_loop_run(w.loop);
	cgn_loop_free(&w.loop);
	assert_int_equal(w.exits, 0);
	world_done(&w);
}

static void a_note_of_another_boot_or_a_living_stranger_kills_nothing(void **state)
{
	(void)state;
	char path[80], text[128], boot[64] = {0};
	(void)snprintf(place, sizeof place, "/tmp/cgn-place-%d", (int)getpid());
	(void)snprintf(path, sizeof path, "%s.run", place);
	pid_t stranger = fork();
	if (stranger == 0) {
		(void)setsid();
		for (;;)
			(void)pause();
	}
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, boot, 36), 36);
	(void)close(fd);
	const char *const boots[] = {boot, "00000000-0000-0000-0000-000000000000"};
	for (size_t i = 0; i < CGN_COUNT(boots); i++) {
		FILE *f = fopen(path, "we");
		assert_non_null(f);
		(void)snprintf(text, sizeof text, "%s %d 0\n", boots[i], (int)stranger);
		(void)fputs(text, f);
		(void)fclose(f);
		assert_int_equal(proc_end_strays(place), 0);
		assert_true(is_running(stranger));
	}
	(void)unlink(path);
	owner_kill(stranger);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_come_whole_however_they_are_cut),
		cmocka_unit_test(long_lines_are_cut_and_the_next_is_whole),
		cmocka_unit_test(floods_are_dropped_and_counted),
		cmocka_unit_test(programs_are_found_or_the_place_is_named),
		cmocka_unit_test(spawning_what_is_not_there_fails_at_once),
		cmocka_unit_test(a_file_that_is_no_program_tells_its_errno),
		cmocka_unit_test(output_and_status_arrive),
		cmocka_unit_test(the_pid_is_known_before_the_program_acts),
		cmocka_unit_test(a_signal_is_told),
		cmocka_unit_test(environment_is_added_and_overridden),
		cmocka_unit_test(nothing_of_ours_is_inherited),
		cmocka_unit_test(stop_is_polite_first),
		cmocka_unit_test(a_process_that_ignores_sigterm_is_killed),
		cmocka_unit_test(descendants_go_with_it),
		cmocka_unit_test(freeing_kills),
		cmocka_unit_test(a_torrent_is_bounded),
		cmocka_unit_test(kill_9_of_the_owner_takes_all_along),
		cmocka_unit_test(kill_9_of_the_keeper_is_an_exit),
		cmocka_unit_test(a_new_owner_adopts_the_program),
		cmocka_unit_test(freeing_an_adopted_program_kills_it),
		cmocka_unit_test(a_note_of_another_boot_or_a_living_stranger_kills_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
