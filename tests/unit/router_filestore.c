/* SPDX-License-Identifier: Apache-2.0 */
/* filestore: the bounds of a tenant while uploads run, and files that cannot be removed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "router/shared/filestore/filestore_priv.h"

#define MIB   ((uint64_t)1 << 20)
#define PIECE ((size_t)65536)

struct world {
	char folder[64];
	struct filestore *files;
};

static void world_open(struct world *w, uint64_t max_tenant, uint32_t max_files)
{
	struct cgn_err err;
	(void)snprintf(w->folder, sizeof w->folder, "/tmp/cgn-filestore-XXXXXX");
	assert_non_null(mkdtemp(w->folder));
	const struct filestore_cfg cfg = {.folder = w->folder,
		.max_tenant = max_tenant,
		.max_files = max_files,
		.keep_s = 100};
	assert_true(cgn_ok(filestore_open(&cfg, &w->files, &err)));
}

/* Close the store, whose files are all gone. */
static void world_close(struct world *w)
{
	filestore_sweep(w->files, UINT64_MAX);
	filestore_close(&w->files);
	assert_int_equal(rmdir(w->folder), 0);
}

static struct filestore_upload *upload_begin(struct world *w, const char *tenant)
{
	struct filestore_upload *u = NULL;
	struct cgn_err err;
	cgn_rc rc = filestore_begin(w->files, cgn_str_of(tenant), NULL, &u, &err);
	assert_true(cgn_ok(rc) == (u != NULL));
	assert_true(cgn_ok(rc) || rc.code == CGN_OVERLOADED);
	return u;
}

/* Write |n| bytes, and return how many were taken. */
static uint64_t bytes_add(struct filestore_upload *u, uint64_t n)
{
	static const char zeros[PIECE];
	struct cgn_err err;
	for (uint64_t done = 0; done < n; done += PIECE) {
		cgn_rc rc = filestore_add(u, (struct cgn_str){zeros, PIECE}, &err);
		assert_true(cgn_ok(rc) || rc.code == CGN_OVERLOADED);
		if (!cgn_ok(rc))
			return done;
	}
	return n;
}

static bool upload_commit(struct filestore_upload **take, uint64_t bytes)
{
	struct filestore_file f = {.name = "x", .purpose = "batch", .bytes = bytes};
	struct cgn_err err;
	cgn_rc rc = filestore_commit(take, &f, &err);
	assert_true(cgn_ok(rc) || rc.code == CGN_OVERLOADED);
	assert_null(*take);
	return cgn_ok(rc);
}

/* Uploads at one time share what the tenant may have: together they write at most the form around each beyond it. */
static void uploads_book_their_bytes(void **state)
{
	struct world w;
	struct filestore_upload *u[3];
	uint64_t sum = 0;
	(void)state;
	world_open(&w, 4 * MIB, 100);
	for (size_t i = 0; i < 3; i++)
		u[i] = upload_begin(&w, "acme");
	struct filestore_upload *other = upload_begin(&w, "umbra");
	for (size_t i = 0; i < 3; i++)
		sum += bytes_add(u[i], 3 * MIB);
	assert_in_range(sum, 4 * MIB, 4 * MIB + 3 * FILESTORE_FORM_MAX);
	assert_int_equal(bytes_add(other, 3 * MIB), 3 * MIB);
	assert_null(upload_begin(&w, "acme"));
	filestore_cancel(&u[1]); /* Gives back what it had. */
	filestore_cancel(&u[2]);
	assert_true(upload_commit(&u[0], 3 * MIB));
	u[1] = upload_begin(&w, "acme");
	assert_int_equal(bytes_add(u[1], MIB), MIB);
	assert_true(upload_commit(&u[1], MIB));
	assert_null(upload_begin(&w, "acme"));
	assert_true(upload_commit(&other, 3 * MIB));
	world_close(&w);
}

/* A result is written whatever the tenant has; it counts once it is a file. */
static void results_are_written_in_any_case(void **state)
{
	struct world w;
	struct filestore_upload *u = NULL;
	struct filestore_file f = {.name = "x", .purpose = "batch_output", .bytes = 3 * MIB};
	struct cgn_err err;
	(void)state;
	world_open(&w, 2 * MIB, 1);
	struct filestore_upload *one = upload_begin(&w, "acme");
	assert_null(upload_begin(&w, "umbra")); /* max_files */
	assert_true(cgn_ok(filestore_begin(w.files, CGN_STR("acme"), "file-1", &u, &err)));
	assert_int_equal(bytes_add(u, 3 * MIB), 3 * MIB);
	assert_true(cgn_ok(filestore_commit(&u, &f, &err)));
	assert_int_equal(bytes_add(one, MIB), PIECE);
	filestore_cancel(&one);
	world_close(&w);
}

/* A file whose bytes are in a bucket cannot be removed without the bucket. */
static void a_removal_that_fails_holds_up_no_other(void **state)
{
	struct world w;
	struct filestore_file f = {.purpose = "batch", .expires = 10, .remote = true};
	(void)state;
	world_open(&w, 4 * MIB, 100);
	for (unsigned i = 0; i < 3; i++) {
		(void)snprintf(f.id, sizeof f.id, "file-remote%u", i);
		(void)snprintf(f.tenant, sizeof f.tenant, "acme");
		filestore_row_add(w.files, &f);
	}
	struct filestore_upload *u = upload_begin(&w, "acme");
	assert_true(upload_commit(&u, 0));
	w.files->files[3].expires = 10;
	filestore_sweep(w.files, 9);
	assert_int_equal(w.files->n, 4);
	filestore_sweep(w.files, 20);
	assert_int_equal(w.files->n, 3);
	for (size_t i = 0; i < 3; i++) {
		assert_in_range(w.files->files[i].again, 21, 20 + 3600);
		w.files->files[i].remote = false; /* The bucket is back. */
	}
	filestore_sweep(w.files, 21);
	assert_int_equal(w.files->n, 3);
	filestore_sweep(w.files, 20 + 3600);
	assert_int_equal(w.files->n, 0);
	world_close(&w);
}

/* The files of a batch that goes on count before they are written; a file takes its place, once. */
static void results_hold_places(void **state)
{
	static const char *const ids[][2] = {{"file-1", "file-2"}, {"file-3", "file-4"},
		{"file-5", "file-6"}};
	const struct cgn_str acme = CGN_STR("acme");
	struct world w;
	struct filestore_upload *u = NULL;
	struct filestore_file f = {.name = "x", .purpose = "batch_output"};
	struct quota_told told;
	struct cgn_err err;
	(void)state;
	world_open(&w, 2 * MIB, 8);
	assert_true(cgn_ok(filestore_reserve(w.files, acme, ids[0], 2, &told, &err)));
	assert_true(cgn_ok(filestore_reserve(w.files, acme, ids[1], 2, &told, &err)));
	assert_int_equal(filestore_reserve(w.files, acme, ids[2], 2, &told, &err).code, CGN_OVERLOADED);
	assert_true(told.share && !told.full && told.held == 4 && told.limit == 4);
	assert_true(cgn_ok(filestore_begin(w.files, acme, "file-1", &u, &err)));
	assert_true(cgn_ok(filestore_commit(&u, &f, &err)));
	filestore_reserve_again(w.files, acme, "file-1"); /* This one is a file already. */
	filestore_reserve_again(w.files, acme, "file-2"); /* This one has its place already. */
	assert_int_equal(filestore_share(w.files, acme).held, 4);
	filestore_reserve_again(w.files, acme, "file-5");
	assert_int_equal(filestore_share(w.files, acme).held, 5);
	filestore_give(w.files, "file-2");
	filestore_give(w.files, "file-2");
	filestore_give(w.files, "file-5");
	assert_int_equal(filestore_share(w.files, acme).held, 3);
	filestore_reserve_again(w.files, acme, "file-6"); /* The store frees it. */
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(uploads_book_their_bytes),
		cmocka_unit_test(results_are_written_in_any_case),
		cmocka_unit_test(results_hold_places),
		cmocka_unit_test(a_removal_that_fails_holds_up_no_other),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
