/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/who/audit/audit.h"

#define LINES 3

static struct cgn_buf lines[LINES];

/* Seal three lines, as they are in a file. */
static int chain_make(void **state)
{
	struct audit_chain c = {0};
	(void)state;
	for (size_t i = 0; i < LINES; i++) {
		lines[i] = (struct cgn_buf){0};
		audit_seal(&c, i == 1 ? CGN_STR("{\"event\":\"b\"}\n") : CGN_STR("{\"event\":\"a\"}\n"),
			&lines[i]);
		assert_true(cgn_ok(audit_follow(&c, (struct cgn_str){lines[i].p, lines[i].n - 1}, NULL)));
	}
	assert_int_equal(c.seq, LINES);
	return 0;
}

static int chain_drop(void **state)
{
	(void)state;
	for (size_t i = 0; i < LINES; i++)
		cgn_buf_fini(&lines[i]);
	return 0;
}

static struct cgn_str line_at(size_t i)
{
	return (struct cgn_str){lines[i].p, lines[i].n - 1};
}

static void assert_refused(struct audit_chain *c, struct cgn_str line, const char *why)
{
	struct cgn_err err = {0};
	struct audit_chain before = *c;
	assert_false(cgn_ok(audit_follow(c, line, &err)));
	if (strstr(err.msg, why) == NULL)
		fail_msg("%s", err.msg);
	assert_memory_equal(&before, c, sizeof before);
}

static void test_the_form_is_what_others_can_check(void **state)
{
	(void)state;
	assert_string_equal(cgn_buf_z(&lines[0]),
		"{\"event\":\"a\",\"seq\":1,\"prev\":\"0000000000000000000000000000000000000000000000000000000000000000\"}\n");
	/* printf '%s' LINE | sha256sum */
	assert_non_null(strstr(cgn_buf_z(&lines[1]),
		"\"seq\":2,\"prev\":\"0d8cd99cb148d5f1d9b43405b56efc2e646dc97f80150cb25fa9e093d3665a0c\"}\n"));
}

static void test_a_line_that_was_removed_inserted_or_moved(void **state)
{
	struct audit_chain c = {0};
	(void)state;
	assert_refused(&c, line_at(1), "seq is 2 and should be 1");
	assert_true(cgn_ok(audit_follow(&c, line_at(0), NULL)));
	assert_refused(&c, line_at(0), "seq is 1 and should be 2");
	assert_refused(&c, line_at(2), "seq is 3 and should be 2");
	assert_true(cgn_ok(audit_follow(&c, line_at(1), NULL)));
	assert_true(cgn_ok(audit_follow(&c, line_at(2), NULL)));
}

static void test_a_changed_line_does_not_fit_its_successor(void **state)
{
	struct audit_chain c = {0};
	(void)state;
	memcpy(strstr(lines[0].p, "\"a\""), "\"z\"", 3);
	assert_true(cgn_ok(audit_follow(&c, line_at(0), NULL)));
	assert_refused(&c, line_at(1), "prev is not the SHA-256 of the line before (seq 1)");
}

static void test_a_chain_goes_on_from_any_line(void **state)
{
	struct audit_chain c = {0};
	(void)state;
	assert_true(cgn_ok(audit_begin(&c, line_at(1), NULL)));
	assert_int_equal(c.seq, 2);
	assert_true(cgn_ok(audit_follow(&c, line_at(2), NULL)));
}

static void test_lines_of_other_logs(void **state)
{
	static const char *const bad[] = {"{\"event\":\"a\"}", "{\"seq\":1}", "{\"seq\":1,\"prev\":\"00\"}",
		"{\"seq\":1,\"prev\":7}",
		"{\"seq\":0,\"prev\":\"0000000000000000000000000000000000000000000000000000000000000000\"}",
		"{\"seq\":-1,\"prev\":\"0000000000000000000000000000000000000000000000000000000000000000\"}",
		"{\"seq\":1,\"prev\":\"000000000000000000000000000000000000000000000000000000000000000g\"}",
		"[1]", "7"};
	struct audit_chain c = {0};
	char longest[AUDIT_LINE_MAX + 2];
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_refused(&c, cgn_str_of(bad[i]), "has no \"seq\"");
	assert_refused(&c, CGN_STR("{\"seq\":1"), "is not JSON");
	assert_refused(&c, CGN_STR(""), "is not JSON");
	memset(longest, ' ', sizeof longest);
	assert_refused(&c, (struct cgn_str){longest, AUDIT_LINE_MAX + 1}, "longer than 8192 bytes");
	assert_refused(&c, (struct cgn_str){longest, AUDIT_LINE_MAX}, "is not JSON");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_form_is_what_others_can_check, chain_make,
			chain_drop),
		cmocka_unit_test_setup_teardown(test_a_line_that_was_removed_inserted_or_moved, chain_make,
			chain_drop),
		cmocka_unit_test_setup_teardown(test_a_changed_line_does_not_fit_its_successor, chain_make,
			chain_drop),
		cmocka_unit_test_setup_teardown(test_a_chain_goes_on_from_any_line, chain_make, chain_drop),
		cmocka_unit_test(test_lines_of_other_logs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
