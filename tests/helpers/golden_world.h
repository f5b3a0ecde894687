/* SPDX-License-Identifier: Apache-2.0 */
/* The captures of tests/golden: a folder for each version that is kept, with the bytes that it writes. Tests read all of
 * them; with CGN_GOLDEN_OUT=FOLDER they write those of this build there instead (tests/golden/capture). */
#pragma once
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/os/disk/disk.h"

#define GOLDEN_MAX      ((size_t)1 << 20)
#define GOLDEN_PATH     1024
#define GOLDEN_NAME     64
#define GOLDEN_VERSIONS 16

/* Return the folder that this build's captures go to; NULL: those of the kept versions are read. */
static inline const char *golden_out(void)
{
	return getenv("CGN_GOLDEN_OUT");
}

/* Find tests/golden from the program's folder, of which __FILE__ is relative. */
static inline void golden_root(char out[GOLDEN_PATH])
{
	char exe[512];
	const char *here = __FILE__;
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	assert_true(n > 0);
	exe[n] = '\0';
	*strrchr(exe, '/') = '\0';
	(void)snprintf(out, GOLDEN_PATH, "%s%s%.*s/../golden", here[0] == '/' ? "" : exe,
		here[0] == '/' ? "" : "/", (int)(strrchr(here, '/') - here), here);
}

/* Read a capture; false: that version has none of this name. */
static inline bool golden_read(const char *version, const char *name, struct cgn_buf *out)
{
	char root[GOLDEN_PATH], path[2 * GOLDEN_PATH];
	struct cgn_err err;
	golden_root(root);
	(void)snprintf(path, sizeof path, "%s/%s/%s", root, version, name);
	cgn_rc rc = disk_read_file(path, GOLDEN_MAX, out, &err);
	if (!cgn_ok(rc) && rc.code != CGN_NOT_FOUND)
		fail_msg("%s", err.msg);
	return cgn_ok(rc);
}

static inline void golden_write(const char *name, struct cgn_str bytes)
{
	char path[2 * GOLDEN_PATH];
	struct cgn_err err;
	(void)snprintf(path, sizeof path, "%s/%s", golden_out(), name);
	if (!cgn_ok(disk_write_file_atomic(path, bytes, 0644, &err)))
		fail_msg("%s", err.msg);
}

/* Fill |out| with the versions that are kept, and return how many: at least one. */
static inline size_t golden_versions(char out[GOLDEN_VERSIONS][GOLDEN_NAME])
{
	char root[GOLDEN_PATH];
	size_t n = 0;
	golden_root(root);
	DIR *d = opendir(root);
	assert_non_null(d);
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
		if (e->d_name[0] >= '0' && e->d_name[0] <= '9') {
			assert_true(n < GOLDEN_VERSIONS);
			assert_true(cgn_str_copyz(out[n++], GOLDEN_NAME, cgn_str_of(e->d_name)));
		}
	(void)closedir(d);
	assert_true(n > 0);
	return n;
}

/* ---- assertions ---- */

static inline void must_work(cgn_rc rc, const struct cgn_err *err)
{
	if (!cgn_ok(rc))
		fail_msg("%s", err->msg);
}

/* |rc| is a refusal whose sentence has |word|. */
static inline void must_refuse(cgn_rc rc, const struct cgn_err *err, const char *word)
{
	assert_false(cgn_ok(rc));
	if (strstr(err->msg, word) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", err->msg, word);
}

static inline void text_is(struct cgn_str got, const char *want)
{
	if (!cgn_str_is(got, want))
		fail_msg("\"%.*s\" is not \"%s\"", CGN_STR_ARG(got), want);
}

/* ---- samples ---- */

/* |make| writes it as this build does, |check| reads it and knows the written values. */
struct golden_sample {
	const char *file;
	void (*make)(struct cgn_buf *out);
	void (*check)(struct cgn_str bytes);
	const char *unknown_to; /* the last version that writes no such file; NULL: all write it */
};

static inline void golden_sample_check(const char *version, const struct golden_sample *s)
{
	struct cgn_buf kept = {.n = 0}, now = {.n = 0};
	bool is_kept = golden_read(version, s->file, &kept);
	if (!is_kept && s->unknown_to != NULL && strcmp(version, s->unknown_to) == 0) {
		print_message("%s does not write %s\n", version, s->file);
		s->make(&now); /* This build reads what it writes. */
		s->check(cgn_buf_view(&now));
		cgn_buf_fini(&now);
		return;
	}
	if (!is_kept)
		fail_msg("tests/golden/%s has no %s", version, s->file);
	print_message("%s of %s\n", s->file, version);
	s->check(cgn_buf_view(&kept));
	s->make(&now);
	/* A change that the kept version reads all the same needs a case of its own here, and a line in docs/change/wires.md. */
	if (!cgn_str_eq(cgn_buf_view(&kept), cgn_buf_view(&now)))
		fail_msg("%s is not written as %s wrote it", s->file, version);
	cgn_buf_fini(&kept);
	cgn_buf_fini(&now);
}

static inline void golden_sample_write(const struct golden_sample *s)
{
	struct cgn_buf now = {.n = 0};
	s->make(&now);
	golden_write(s->file, cgn_buf_view(&now));
	cgn_buf_fini(&now);
}

/* Check the samples against all versions that are kept, or write them. */
static inline void golden_samples(const struct golden_sample *list, size_t n)
{
	char versions[GOLDEN_VERSIONS][GOLDEN_NAME];
	size_t count = golden_versions(versions);
	for (size_t i = 0; i < n; i++) {
		if (golden_out() != NULL)
			golden_sample_write(&list[i]);
		for (size_t v = 0; v < count && golden_out() == NULL; v++)
			golden_sample_check(versions[v], &list[i]);
	}
}
