/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/args/args.h"

static struct args_flag row_at(const void *user, size_t i)
{
	static const struct args_flag rows[] = {{"listen", "ADDR"}, {"once", NULL}, {"o", "table|json"},
		{NULL, NULL}, {"help", NULL}};
	(void)user;
	return rows[i];
}

static const struct args_table table = {.program = "cgn-test", .n_rows = 5, .row = row_at},
			       wordy = {.program = "cgn-test",
				       .takes_words = true,
				       .n_rows = 5,
				       .row = row_at};

#define LINE(...)                                                               \
	(struct args)                                                           \
	{                                                                       \
		.argc = sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), \
		.argv = (char *const *)(uintptr_t)(const char *const[])         \
		{                                                               \
			__VA_ARGS__                                             \
		}                                                               \
	}
#define TAKE(t, ...) args_take(&LINE(__VA_ARGS__), t, &given, &err)

static void flags_and_words_are_taken(void **state)
{
	(void)state;
	struct args_given given;
	struct cgn_err err;
	struct args a = LINE("--listen", "--once", "--listen=", "-o", "json", "word", "-", "-h");
	static const struct args_given expected[] = {{0, "--once"}, {0, ""}, {2, "json"}, {ARGS_WORD, "word"},
		{ARGS_WORD, "-"}, {4, NULL}};
	for (size_t i = 0; i < 6; i++) {
		assert_false(args_end(&a));
		assert_int_equal(args_take(&a, &wordy, &given, &err).code, CGN_FINE);
		assert_true(given.row == expected[i].row);
		assert_true((given.value == NULL) == (expected[i].value == NULL));
		if (given.value != NULL)
			assert_string_equal(given.value, expected[i].value);
	}
	assert_true(args_end(&a));
}

static void mistakes_name_the_flag(void **state)
{
	(void)state;
	struct args_given given;
	struct cgn_err err;
	assert_int_equal(TAKE(&table, "--lisen", "x").code, CGN_INVALID);
	assert_string_equal(err.msg, "unknown flag --lisen; did you mean --listen?");
	assert_int_equal(TAKE(&table, "-listen=x").code, CGN_INVALID);
	assert_string_equal(err.msg, "unknown flag -listen; did you mean --listen?");
	assert_int_equal(TAKE(&table, "--something-else").code, CGN_INVALID);
	assert_string_equal(err.msg, "unknown flag --something-else; cgn-test --help lists the flags");
	assert_int_equal(TAKE(&table, "--listen").code, CGN_INVALID);
	assert_string_equal(err.msg, "--listen needs a value: --listen ADDR");
	assert_int_equal(TAKE(&table, "--once=1").code, CGN_INVALID);
	assert_string_equal(err.msg, "--once takes no value");
	assert_int_equal(TAKE(&table, "serve").code, CGN_INVALID);
	assert_string_equal(err.msg, "unexpected argument \"serve\"; cgn-test --help lists the flags");
	assert_int_equal(TAKE(&table, "--").code, CGN_INVALID);
	assert_int_equal(TAKE(&table, "--o", "x").code, CGN_INVALID);
	assert_int_equal(TAKE(&table, "").code, CGN_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(flags_and_words_are_taken),
		cmocka_unit_test(mistakes_name_the_flag),
	};
	return cmocka_run_group_tests_name("base_args", tests, NULL, NULL);
}
