/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/form/form.h"

#define PART(name, value) "--x\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n" value "\r\n"

static void boundaries_are_read(void **state)
{
	static const struct {
		const char *type, *boundary;
	} rows[] = {
		{"multipart/form-data; boundary=abc", "abc"},
		{"Multipart/Form-Data;charset=utf-8; BOUNDARY=\"a b\" ; x=y", "a b"},
		{"multipart/form-data; xboundary=no; boundary=a", "a"},
		{"multipart/form-data; note=\"boundary=no\"; boundary=a", "a"},
		{"multipart/form-data", NULL},
		{"multipart/form-data; boundary=", NULL},
		{"multipart/form-data; boundary=\"a", NULL},
		{"multipart/mixed; boundary=a", NULL},
		{"application/json", NULL},
		{"multipart/form-data; boundary=12345678901234567890123456789012345678901234567890123456789012345678901",
			NULL},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_str got = form_boundary(cgn_str_of(rows[i].type));
		assert_true((got.p == NULL) == (rows[i].boundary == NULL));
		assert_true(got.p == NULL || cgn_str_is(got, rows[i].boundary));
	}
}

static void fields_are_found(void **state)
{
	static const struct {
		const char *body, *model;
		unsigned times;
	} rows[] = {
		{PART("model", "m") "--x--\r\n", "m", 1},
		{"before\r\n" PART("a", "1") PART("model", "m") "--x--", "m", 1},
		{PART("model", "m") PART("model", "n") "--x--", "m", 2},
		{PART("a", " --x\r\n -x\r\nno") PART("model", "") "--x--", "", 1},
		{PART("a", "1") "--x--", NULL, 0},
		{"--x--", NULL, 0},
		{"--x  \r\nX: y\r\ncontent-disposition : FORM-DATA; filename=\"name=no\"; name=model\r\n\r\nm\r\n--x--",
			"m", 1},
		/* an empty value whose boundary follows the empty line at once */
		{"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n--x--", "", 1},
		{"--x\r\nContent-Disposition: attachment; name=\"model\"\r\n\r\nm\r\n--x--", NULL, 0},
		{"--x\r\n\r\nno head\r\n--x--", NULL, 0},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct form_field f = {.name = "model"};
		assert_true(cgn_ok(form_find(cgn_str_of(rows[i].body), CGN_STR("x"), &f, 1, NULL)));
		assert_int_equal(f.times, rows[i].times);
		assert_true(rows[i].model == NULL ? f.value.p == NULL : cgn_str_is(f.value, rows[i].model));
	}
}

static void bad_forms_are_refused(void **state)
{
	static const struct {
		const char *body, *why;
	} rows[] = {
		{"", "boundary is not in it"},
		{"no form", "boundary is not in it"},
		{"--x\nContent-Disposition: form-data; name=\"model\"\n\nm\n--x--", "does not end in CR LF"},
		{PART("model", "m"), "a part does not end"},
		{PART("model", "m") "--x", "does not end in CR LF"},
		{"--x\r\nContent-Disposition: form-data", "header fields"},
		{"--xy\r\n\r\n--x--", "does not end in CR LF"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_err err = {0};
		struct form_field f = {.name = "model"};
		assert_int_equal(form_find(cgn_str_of(rows[i].body), CGN_STR("x"), &f, 1, &err).code,
			CGN_INVALID);
		if (strstr(err.msg, rows[i].why) == NULL)
			fail_msg("row %zu: %s", i, err.msg);
	}
}

static void bounds_hold(void **state)
{
	static const char part[] = "--x\r\n\r\n\r\n";
	size_t n = (FORM_PARTS_MAX + 1) * (sizeof part - 1);
	char *body = malloc(n + 16);
	struct cgn_err err = {0};
	(void)state;
	assert_non_null(body);
	for (size_t i = 0; i <= FORM_PARTS_MAX; i++)
		memcpy(body + i * (sizeof part - 1), part, sizeof part - 1);
	memcpy(body + n, "--x--", 5);
	assert_int_equal(form_find((struct cgn_str){body, n + 5}, CGN_STR("x"), NULL, 0, &err).code,
		CGN_INVALID);
	assert_non_null(strstr(err.msg, "parts"));
	memset(body, 'a', n);
	memcpy(body, "--x\r\n", 5);
	memcpy(body + 5 + FORM_HEAD_MAX, "\r\n\r\n\r\n--x--", 11);
	assert_int_equal(
		form_find((struct cgn_str){body, 5 + FORM_HEAD_MAX + 11}, CGN_STR("x"), NULL, 0, &err).code,
		CGN_INVALID);
	free(body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(boundaries_are_read),
		cmocka_unit_test(fields_are_found), cmocka_unit_test(bad_forms_are_refused),
		cmocka_unit_test(bounds_hold)};
	return cmocka_run_group_tests_name("base_form", tests, NULL, NULL);
}
