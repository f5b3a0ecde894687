/* SPDX-License-Identifier: Apache-2.0 */
#include "io/os/pages/pages.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MIB ((uint64_t)1 << 20)

static struct pages *make_pages(uint64_t bytes)
{
	struct pages *p = NULL;
	struct cgn_err err = {0};
	assert_true(cgn_ok(pages_new(bytes, &p, &err)));
	return p;
}

static struct pages_place take_place(struct pages *p, uint64_t size)
{
	struct pages_place at;
	bool fresh = false;
	assert_true(pages_take(p, size, &at, &fresh));
	assert_true(!fresh || pages_ready(p, size, &at));
	return at;
}

static uint64_t used_bytes(const struct pages *p)
{
	struct pages_stats st;
	pages_stats(p, &st);
	return st.used_bytes;
}

static size_t count_pieces(const struct pages_place *at, uint64_t size)
{
	struct pages_walk w = {0};
	uint64_t off = 0, n = 0, sum = 0;
	size_t count = 0;
	for (; pages_next(at, size, &w, &off, &n); count++)
		sum += n;
	assert_int_equal(sum, size);
	return count;
}

static void test_what_a_value_takes(void **state)
{
	(void)state;
	const struct {
		uint64_t size, footprint;
	} cases[] = {{0, 1024}, {1, 1024}, {1024, 1024}, {1025, 1344}, {4096, 4096}, {4097, 5440},
		{16384, 16384}, {32768, 32768}, {32769, PAGES_PAGE}, {PAGES_PAGE, PAGES_PAGE},
		{PAGES_PAGE + 1, PAGES_PAGE + 1024}, {MIB, MIB}, {MIB + 40000, MIB + PAGES_PAGE},
		{PAGES_MAX_VALUE, PAGES_MAX_VALUE}};
	for (size_t i = 0; i < CGN_COUNT(cases); i++)
		assert_int_equal(pages_footprint(cases[i].size), cases[i].footprint);
}

/* The loss is within the header's promise for every size to 200 KiB. */
static void test_loss_is_bounded(void **state)
{
	(void)state;
	for (uint64_t size = 1; size < 200 * 1024; size++) {
		uint64_t lost = pages_footprint(size) - size;
		if (size < 1024)
			assert_true(lost < 1024);
		/* Sizes are rounded to a cache line. */
		else if (size <= 32768)
			assert_true(lost * 3 <= pages_footprint(size) + 192);
		else
			assert_true(lost < 32768);
	}
}

/* At every boundary of a size class: as many places as fit are given, none overlaps another, and all come
 * back. */
static void fill_with(struct pages *p, uint64_t size)
{
	struct pages_place at[4096];
	size_t n = 0;
	bool fresh = false;
	while (n < CGN_COUNT(at) && pages_take(p, size, &at[n], &fresh)) {
		struct pages_walk w = {0};
		uint64_t off = 0, len = 0;
		while (pages_next(&at[n], size, &w, &off, &len))
			memset(pages_at(p, off), (int)(n % 251 + 1), len);
		n++;
	}
	assert_true(n > 0 && used_bytes(p) <= pages_bytes(p));
	for (size_t i = 0; i < n; i++) {
		struct pages_walk w = {0};
		uint64_t off = 0, len = 0;
		while (pages_next(&at[i], size, &w, &off, &len))
			for (uint64_t k = 0; k < len; k++)
				if (pages_at(p, off)[k] != (char)(i % 251 + 1))
					fail_msg("value %zu of %llu bytes was written over", i,
						(unsigned long long)size);
		pages_give(p, size, &at[i]);
	}
	assert_int_equal(used_bytes(p), 0);
}

static void test_every_class_holds_what_it_says(void **state)
{
	(void)state;
	struct pages *p = make_pages(2 * MIB);
	for (uint64_t size = 1024; size < 70000; size = pages_footprint(size + 1)) {
		fill_with(p, size - 1);
		fill_with(p, size);
		fill_with(p, size + 1);
	}
	fill_with(p, MIB);
	fill_with(p, MIB + 1);
	pages_free(&p);
	assert_null(p);
}

static void test_runs_are_whole_while_they_can(void **state)
{
	(void)state;
	struct pages *p = make_pages(8 * MIB);
	struct pages_place a = take_place(p, 3 * MIB), b = take_place(p, MIB), c = take_place(p, 4 * MIB), d;
	bool fresh = true;
	assert_int_equal(count_pieces(&a, 3 * MIB), 1);
	assert_int_equal(count_pieces(&c, 4 * MIB), 1);
	assert_false(pages_take(p, 1, &d, &fresh));
	pages_give(p, MIB, &b);
	d = take_place(p, MIB); /* The gap is large enough. */
	assert_int_equal(count_pieces(&d, MIB), 1);
	pages_give(p, 3 * MIB, &a);
	pages_give(p, MIB, &d);
	d = take_place(p, 4 * MIB); /* The neighbours were merged. */
	assert_int_equal(count_pieces(&d, 4 * MIB), 1);
	pages_give(p, 4 * MIB, &c);
	pages_give(p, 4 * MIB, &d);
	assert_int_equal(used_bytes(p), 0);
	pages_free(&p);
}

static void test_holes_refuse_nothing(void **state)
{
	(void)state;
	struct pages *p = make_pages(8 * MIB);
	struct pages_place at[128], big, refused;
	bool fresh = false;
	for (size_t i = 0; i < 128; i++)
		at[i] = take_place(p, PAGES_PAGE);
	for (size_t i = 0; i < 128; i += 2)
		pages_give(p, PAGES_PAGE, &at[i]);
	assert_false(pages_take(p, 4 * MIB + 1, &refused, &fresh));
	big = take_place(p, 4 * MIB - 30000);
	assert_int_equal(count_pieces(&big, 4 * MIB - 30000), 64);
	struct pages_walk from = {.at = 3 * MIB + 7};
	uint64_t off = 0, len = 0;
	assert_true(pages_next(&big, 4 * MIB - 30000, &from, &off, &len));
	assert_int_equal(len, PAGES_PAGE - 7);
	assert_int_equal(off % PAGES_PAGE, 7);
	assert_true(pages_next(&big, 4 * MIB - 30000, &from, &off, &len));
	assert_int_equal(len, PAGES_PAGE);
	pages_give(p, 4 * MIB - 30000, &big);
	for (size_t i = 1; i < 128; i += 2)
		pages_give(p, PAGES_PAGE, &at[i]);
	assert_int_equal(used_bytes(p), 0);
	pages_free(&p);
}

static void test_the_largest_value(void **state)
{
	(void)state;
	struct pages *p = make_pages(64 * MIB);
	struct pages_place at = take_place(p, PAGES_MAX_VALUE);
	assert_int_equal(count_pieces(&at, PAGES_MAX_VALUE), 1);
	*pages_at(p, PAGES_MAX_VALUE - 1) = 'x';
	pages_give(p, PAGES_MAX_VALUE, &at);
	pages_free(&p);
}

/* Two places share a page: until the page is ready, both are fresh. */
static void test_fresh_until_it_is_ready(void **state)
{
	(void)state;
	struct pages *p = make_pages(MIB);
	struct pages_place a, b, c;
	bool fresh = false;
	assert_true(pages_take(p, 20000, &a, &fresh) && fresh);
	assert_true(pages_take(p, 20000, &b, &fresh) && fresh);
	assert_int_equal(a.tail_page, b.tail_page);
	assert_true(pages_ready(p, 20000, &b));
	assert_true(pages_take(p, 20000, &c, &fresh) && !fresh);
	pages_give(p, 20000, &a);
	pages_give(p, 20000, &b);
	pages_give(p, 20000, &c);
	assert_true(pages_take(p, MIB, &a, &fresh) && fresh);
	assert_true(pages_ready(p, MIB, &a));
	pages_give(p, MIB, &a);
	assert_true(pages_take(p, MIB, &a, &fresh) && !fresh);
	pages_give(p, MIB, &a);
	pages_free(&p);
}

/* From here on, the kernel refuses to populate memory of this process. */
static bool forbid_populate(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23 /* MADV_POPULATE_WRITE */, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {CGN_COUNT(code), code};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Run the refused case in a child. Returns 0 if each call was refused. */
static int child_is_refused(struct pages *p)
{
	struct pages_place at;
	bool fresh = false;
	if (!forbid_populate())
		return 77;
	for (uint64_t size = 1000; size < MIB; size *= 5)
		for (int i = 0; i < 3; i++) {
			if (!pages_take(p, size, &at, &fresh) || !fresh)
				return 1;
			if (pages_ready(p, size, &at))
				return 2;
			pages_give(p, size, &at);
		}
	return 0;
}

static void test_what_was_refused_is_asked_for_again(void **state)
{
	(void)state;
	struct pages *p = make_pages(MIB);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(child_is_refused(p));
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	pages_free(&p);
	if (WEXITSTATUS(status) == 77)
		skip(); /* No seccomp here. */
	assert_int_equal(WEXITSTATUS(status), 0);
}

struct held {
	uint64_t size;
	struct pages_place at;
};

/* Random takes and gives: the used bytes equal the taken bytes exactly and never exceed the capacity. */
static void test_a_long_random_life(void **state)
{
	(void)state;
	struct pages *p = make_pages(32 * MIB);
	struct held held[300];
	size_t n = 0, whole = 0;
	unsigned rng = 7;
	for (int i = 0; i < 200000; i++) {
		rng = rng * 1103515245U + 12345U;
		unsigned r = rng >> 8;
		if (n == CGN_COUNT(held) || (n > 0 && r % 2 == 0)) {
			size_t victim = r / 2 % n;
			whole -= held[victim].size / PAGES_PAGE + (held[victim].size % PAGES_PAGE > 32768);
			pages_give(p, held[victim].size, &held[victim].at);
			held[victim] = held[--n];
			continue;
		}
		uint64_t size = r % 7 == 0 ? r % (2 * MIB) : r % 100000;
		bool fresh = false;
		struct pages_place at;
		if (!pages_take(p, size, &at, &fresh))
			continue;
		(void)count_pieces(&at, size);
		held[n++] = (struct held){size, at};
		whole += size / PAGES_PAGE + (size % PAGES_PAGE > 32768);
		struct pages_stats st;
		pages_stats(p, &st);
		assert_true(st.used_bytes <= 32 * MIB);
		assert_int_equal(st.used_bytes - st.cut_bytes, whole * PAGES_PAGE);
	}
	while (n > 0) {
		n--;
		pages_give(p, held[n].size, &held[n].at);
	}
	assert_int_equal(used_bytes(p), 0);
	struct pages_place all = take_place(p, 32 * MIB);
	assert_int_equal(count_pieces(&all, 32 * MIB), 1);
	pages_give(p, 32 * MIB, &all);
	pages_free(&p);
}

static int child_tries_to_write(int fd)
{
	char path[40];
	(void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int again = open(path, O_RDWR | O_CLOEXEC);
	char *reads = mmap(NULL, PAGES_PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (reads == MAP_FAILED || reads[5] != 'v')
		return 1;
	if (mmap(NULL, PAGES_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
		return 2;
	if (again >= 0 && mmap(NULL, PAGES_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) != MAP_FAILED)
		return 3;
	if (mprotect(reads, PAGES_PAGE, PROT_READ | PROT_WRITE) == 0)
		return 4;
	if (pwrite(fd, "x", 1, 5) >= 0 || (again >= 0 && pwrite(again, "x", 1, 5) >= 0))
		return 5;
	if (ftruncate(again >= 0 ? again : fd, 0) == 0)
		return 6;
	return fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL ? 0 : 7;
}

static void test_others_can_only_read(void **state)
{
	(void)state;
	struct pages *p = make_pages(MIB);
	if (pages_fd(p) < 0)
		skip(); /* before Linux 5.1 */
	pages_at(p, 0)[5] = 'v';
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(child_tries_to_write(pages_fd(p)));
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	pages_at(p, 0)[5] = 'w'; /* The owner can still write. */
	pages_free(&p);
}

static void test_sizes_that_make_no_sense(void **state)
{
	(void)state;
	struct pages *p = NULL;
	struct cgn_err err = {0};
	assert_int_equal(pages_new(1000, &p, &err).code, CGN_INVALID);
	assert_int_equal(pages_new(UINT64_MAX, &p, &err).code, CGN_INVALID);
	/* More than an address space has. */
	assert_int_equal(pages_new((uint64_t)200 << 40, &p, &err).code, CGN_NO_MEMORY);
	assert_non_null(strstr(err.msg, "bytes of memory for values"));
	assert_null(p);
	pages_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_a_value_takes),
		cmocka_unit_test(test_loss_is_bounded),
		cmocka_unit_test(test_every_class_holds_what_it_says),
		cmocka_unit_test(test_runs_are_whole_while_they_can),
		cmocka_unit_test(test_holes_refuse_nothing),
		cmocka_unit_test(test_the_largest_value),
		cmocka_unit_test(test_fresh_until_it_is_ready),
		cmocka_unit_test(test_what_was_refused_is_asked_for_again),
		cmocka_unit_test(test_a_long_random_life),
		cmocka_unit_test(test_others_can_only_read),
		cmocka_unit_test(test_sizes_that_make_no_sense),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
