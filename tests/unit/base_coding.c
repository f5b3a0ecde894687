/* SPDX-License-Identifier: Apache-2.0 */
#define ZLIB_CONST
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <zlib.h>
#include <zstd.h>

#include "base/coding/coding.h"

#define RAW_WINDOW (-MAX_WBITS)

static void names_are_read(void **state)
{
	(void)state;
	const struct {
		const char *list;
		enum coding_kind kind;
	} rows[] = {{"", CODING_IDENTITY}, {"identity", CODING_IDENTITY}, {"gzip", CODING_GZIP},
		{"X-GZIP", CODING_GZIP}, {" deflate ", CODING_DEFLATE}, {"ZStd", CODING_ZSTD},
		{"identity, gzip,", CODING_GZIP}, {"gzip, gzip", CODING_OTHER}, {"gzip,zstd", CODING_OTHER},
		{"br", CODING_OTHER}, {"gzip;q=1", CODING_OTHER}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		assert_int_equal(coding_of(CODING_IDENTITY, cgn_str_of(rows[i].list)), rows[i].kind);
	assert_int_equal(coding_of(CODING_GZIP, CGN_STR("zstd")), CODING_OTHER);
	assert_int_equal(coding_of(CODING_GZIP, CGN_STR("identity")), CODING_GZIP);
	assert_int_equal(coding_of(CODING_ZSTD, (struct cgn_str){NULL, 0}), CODING_ZSTD);
}

static struct cgn_buf zlib_coded(int window, struct cgn_str text)
{
	struct cgn_buf b = {0};
	z_stream z = {0};
	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY), Z_OK);
	size_t room = deflateBound(&z, text.n);
	z.next_in = (const Bytef *)text.p;
	z.avail_in = (unsigned)text.n;
	z.next_out = (Bytef *)cgn_buf_room(&b, room);
	z.avail_out = (unsigned)room;
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	cgn_buf_grew(&b, room - z.avail_out);
	assert_int_equal(deflateEnd(&z), Z_OK);
	return b;
}

static struct cgn_buf zstd_coded(struct cgn_str text)
{
	struct cgn_buf b = {0};
	ZSTD_CCtx *c = ZSTD_createCCtx();
	assert_non_null(c);
	(void)ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
	size_t room = ZSTD_compressBound(text.n);
	ZSTD_outBuffer out = {cgn_buf_room(&b, room), room, 0};
	ZSTD_inBuffer in = {text.p, text.n, 0};
	assert_int_equal(ZSTD_compressStream2(c, &out, &in, ZSTD_e_end), 0);
	cgn_buf_grew(&b, out.pos);
	(void)ZSTD_freeCCtx(c);
	return b;
}

static const struct {
	enum coding_kind kind;
	int window;
} kinds[] = {{CODING_GZIP, MAX_WBITS + 16}, {CODING_DEFLATE, MAX_WBITS}, {CODING_DEFLATE, RAW_WINDOW},
	{CODING_ZSTD, 0}};

static struct cgn_buf coded_as(size_t i, struct cgn_str text)
{
	return kinds[i].kind == CODING_ZSTD ? zstd_coded(text) : zlib_coded(kinds[i].window, text);
}

/* Decode |in|, given in two pieces, the first one of |cut| bytes, with room for |cap| bytes at a time. */
static cgn_rc text_decode(enum coding_kind kind, struct cgn_str in, size_t cut, size_t cap,
	struct cgn_buf *out)
{
	struct cgn_err err = {0};
	struct coding *c = NULL;
	char room[4096];
	assert_true(cgn_ok(coding_open(kind, &c, &err)));
	struct cgn_str pieces[] = {{in.p, cut}, {in.p + cut, in.n - cut}};
	cgn_rc rc = CGN_OK;
	for (size_t i = 0; i < CGN_COUNT(pieces) && cgn_ok(rc); i++) {
		size_t n = cap;
		while (n == cap && cgn_ok(rc)) {
			rc = coding_read(c, &pieces[i], room, cap, &n, &err);
			if (cgn_ok(rc))
				cgn_buf_add(out, room, n);
		}
		assert_true(!cgn_ok(rc) || pieces[i].n == 0);
	}
	if (cgn_ok(rc))
		rc = coding_finish(c, &err);
	assert_true(cgn_ok(rc) || err.msg[0] != '\0');
	coding_close(&c);
	assert_null(c);
	return rc;
}

static struct cgn_buf some_text(void)
{
	struct cgn_buf b = {0};
	for (unsigned i = 0; i < 60; i++)
		cgn_buf_fmt(&b, "{\"role\":\"user\",\"content\":\"%u\"},", i * i * 7919U);
	return b;
}

static void expect_text(cgn_rc rc, struct cgn_buf *got, struct cgn_str want)
{
	assert_true(cgn_ok(rc));
	assert_true(cgn_str_eq(cgn_buf_view(got), want));
	cgn_buf_fini(got);
}

static void a_text_comes_back_however_it_is_cut(void **state)
{
	(void)state;
	struct cgn_buf text = some_text();
	for (size_t k = 0; k < CGN_COUNT(kinds); k++) {
		struct cgn_buf coded = coded_as(k, cgn_buf_view(&text));
		for (size_t cut = 0; cut <= coded.n; cut++)
			for (size_t cap = 1; cap <= 4096; cap *= 64) {
				struct cgn_buf got = {0};
				cgn_rc rc = text_decode(kinds[k].kind, cgn_buf_view(&coded), cut, cap, &got);
				expect_text(rc, &got, cgn_buf_view(&text));
			}
		cgn_buf_fini(&coded);
	}
	cgn_buf_fini(&text);
}

static void expect_refused(enum coding_kind kind, struct cgn_str in)
{
	struct cgn_buf got = {0};
	assert_int_equal(text_decode(kind, in, 0, 4096, &got).code, CGN_INVALID);
	cgn_buf_fini(&got);
}

static void a_text_that_is_cut_off_or_goes_on_is_refused(void **state)
{
	(void)state;
	struct cgn_buf text = some_text();
	for (size_t k = 0; k < CGN_COUNT(kinds); k++) {
		struct cgn_buf coded = coded_as(k, cgn_buf_view(&text));
		for (size_t n = 0; n < coded.n; n++)
			expect_refused(kinds[k].kind, (struct cgn_str){coded.p, n});
		cgn_buf_putz(&coded, "x");
		expect_refused(kinds[k].kind, cgn_buf_view(&coded));
		coded.p[coded.n - 1] = '\0';
		expect_refused(kinds[k].kind, cgn_buf_view(&coded));
		cgn_buf_fini(&coded);
		expect_refused(kinds[k].kind, CGN_STR("{\"model\":\"m\"}"));
	}
	cgn_buf_fini(&text);
}

static void a_damaged_text_is_refused(void **state)
{
	(void)state;
	struct cgn_buf text = some_text();
	for (size_t k = 0; k < CGN_COUNT(kinds); k++) {
		if (kinds[k].window == RAW_WINDOW)
			continue; /* Raw deflate has no checksum. */
		struct cgn_buf coded = coded_as(k, cgn_buf_view(&text));
		coded.p[coded.n / 2] ^= 0x10;
		expect_refused(kinds[k].kind, cgn_buf_view(&coded));
		cgn_buf_fini(&coded);
	}
	cgn_buf_fini(&text);
}

static void members_behind_each_other_are_one_text(void **state)
{
	(void)state;
	for (size_t k = 0; k < CGN_COUNT(kinds); k++) {
		struct cgn_buf got = {0}, a = coded_as(k, CGN_STR("one ")), b = coded_as(k, CGN_STR("two"));
		cgn_buf_str(&a, cgn_buf_view(&b));
		cgn_rc rc = text_decode(kinds[k].kind, cgn_buf_view(&a), 1, 2, &got);
		if (kinds[k].kind == CODING_DEFLATE)
			assert_int_equal(rc.code, CGN_INVALID);
		else
			expect_text(rc, &got, CGN_STR("one two"));
		cgn_buf_fini(&got);
		cgn_buf_fini(&a);
		cgn_buf_fini(&b);
	}
}

static void a_reader_gets_no_more_than_its_room(void **state)
{
	(void)state;
	const size_t size = (size_t)8 << 20;
	char room[1000];
	char *zeros = calloc(size, 1);
	assert_non_null(zeros);
	for (size_t k = 0; k < CGN_COUNT(kinds); k++) {
		struct cgn_buf coded = coded_as(k, (struct cgn_str){zeros, size});
		struct cgn_str in = cgn_buf_view(&coded);
		struct coding *c = NULL;
		size_t n = 0, sum = 0;
		assert_true(cgn_ok(coding_open(kinds[k].kind, &c, NULL)));
		assert_true(in.n < size / 500);
		do {
			assert_true(cgn_ok(coding_read(c, &in, room, sizeof room, &n, NULL)));
			sum += n;
		} while (n == sizeof room);
		assert_int_equal(sum, size);
		assert_true(cgn_ok(coding_finish(c, NULL)));
		coding_close(&c);
		cgn_buf_fini(&coded);
	}
	free(zeros);
}

static void a_window_above_that_of_http_is_refused(void **state)
{
	(void)state;
	/* A frame with the window 2 ^ (10 + 13) bytes, and one with twice as much; each has one block, "x". */
	struct cgn_buf got = {0};
	expect_text(text_decode(CODING_ZSTD, CGN_STR("\x28\xb5\x2f\xfd\x00\x68\x09\x00\x00x"), 0, 4096, &got),
		&got, CGN_STR("x"));
	expect_refused(CODING_ZSTD, CGN_STR("\x28\xb5\x2f\xfd\x00\x70\x09\x00\x00x"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_read),
		cmocka_unit_test(a_text_comes_back_however_it_is_cut),
		cmocka_unit_test(a_text_that_is_cut_off_or_goes_on_is_refused),
		cmocka_unit_test(a_damaged_text_is_refused),
		cmocka_unit_test(members_behind_each_other_are_one_text),
		cmocka_unit_test(a_reader_gets_no_more_than_its_room),
		cmocka_unit_test(a_window_above_that_of_http_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
