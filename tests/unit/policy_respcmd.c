/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/kv/respcmd/respcmd.h"

static enum respcmd_outcome step_of(struct respcmd *c, const char *text)
{
	const char *why = NULL;
	respcmd_init(c);
	return respcmd_step(c, cgn_str_of(text), &why);
}

static void args_are(const char *text, const char *const *want, size_t n)
{
	struct respcmd c;
	assert_int_equal(step_of(&c, text), RESPCMD_GOT);
	assert_int_equal(c.n, n);
	for (size_t i = 0; i < n; i++)
		assert_true(cgn_str_is(respcmd_arg(&c, cgn_str_of(text), i), want[i]));
	respcmd_fini(&c);
}

static void bad_with(const char *text, const char *part)
{
	struct respcmd c;
	const char *why = "";
	respcmd_init(&c);
	assert_int_equal(respcmd_step(&c, cgn_str_of(text), &why), RESPCMD_BAD);
	assert_non_null(strstr(why, part));
	respcmd_fini(&c);
}

static void commands_are_arrays_or_lines(void **state)
{
	(void)state;
	args_are("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", (const char *[]){"GET", "k"}, 2);
	args_are("*2\r\n$3\r\nGET\r\n$0\r\n\r\n*1", (const char *[]){"GET", ""}, 2);
	args_are("GET k\r\n", (const char *[]){"GET", "k"}, 2);
	args_are("  set\tk  'a b' \"c d\" ''\nmore", (const char *[]){"set", "k", "a b", "c d", ""}, 5);
	args_are("\r\n", NULL, 0);
	args_are("   \n", NULL, 0);
	args_are("*0\r\n", NULL, 0);
	args_are("*-1\r\n", NULL, 0);
}

static void what_is_not_whole_waits(void **state)
{
	(void)state;
	static const char text[] = "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n";
	struct respcmd c;
	const char *why;
	for (size_t cut = 0; cut < sizeof text - 1; cut++) {
		respcmd_init(&c);
		assert_int_equal(respcmd_step(&c, (struct cgn_str){text, cut}, &why), RESPCMD_MORE);
		assert_int_equal(respcmd_step(&c, CGN_STR("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n"),
					 &why),
			RESPCMD_GOT);
		assert_int_equal(c.at, sizeof text - 1);
		assert_int_equal(c.id, RESPCMD_SET);
		respcmd_fini(&c);
	}
}

static void nonsense_is_told(void **state)
{
	(void)state;
	bad_with("*1048577\r\n", "invalid multibulk length");
	bad_with("*-2\r\n", "invalid multibulk length");
	bad_with("*x\r\n", "invalid multibulk length");
	bad_with("*65537\r\n", "invalid multibulk length");
	bad_with("*1\r\n:1\r\n", "expected '$'");
	bad_with("*1\r\n$-1\r\n", "invalid bulk length");
	bad_with("*1\r\n$99999999999\r\n", "invalid bulk length");
	bad_with("*1\r\n$3\r\nGETxx", "does not end");
	bad_with("*2\r\n$3\r\nGET\r\n$2000000\r\n", "1 MiB");
	bad_with("get \"k\n", "unbalanced quotes");
	bad_with("get \"k\\\"\"\n", "unbalanced quotes");
	bad_with("get 'k'x\n", "unbalanced quotes");
	struct cgn_buf line = {0};
	while (line.n < RESPCMD_MAX_LINE)
		cgn_buf_char(&line, 'x');
	bad_with(cgn_buf_z(&line), "too big inline");
	cgn_buf_fini(&line);
}

static void strangers_may_say_little(void **state)
{
	(void)state;
	struct respcmd c;
	const char *why = "";
	respcmd_init(&c);
	c.wary = true;
	assert_int_equal(respcmd_step(&c, CGN_STR("*11\r\n"), &why), RESPCMD_BAD);
	assert_non_null(strstr(why, "unauthenticated multibulk"));
	respcmd_reset(&c);
	assert_true(c.wary);
	assert_int_equal(respcmd_step(&c, CGN_STR("*2\r\n$4\r\nAUTH\r\n$16385\r\n"), &why), RESPCMD_BAD);
	assert_non_null(strstr(why, "unauthenticated bulk"));
	/* As many arguments as a stranger may send need memory, which the reset gives back. */
	respcmd_reset(&c);
	assert_int_equal(respcmd_step(&c,
				 CGN_STR("*10\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n"
					 "$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n"),
				 &why),
		RESPCMD_GOT);
	respcmd_reset(&c);
	assert_true(c.wary);
	assert_int_equal(respcmd_step(&c, CGN_STR("*11\r\n"), &why), RESPCMD_BAD);
	respcmd_fini(&c);
}

static void large_values_come_apart(void **state)
{
	(void)state;
	struct respcmd c;
	const char *why;
	static const char head[] = "*5\r\n$3\r\nset\r\n$1\r\nk\r\n$4097\r\n",
			  tail[] = "\r\n$2\r\nEX\r\n$2\r\n10\r\n";
	char whole[sizeof head + sizeof tail];
	(void)snprintf(whole, sizeof whole, "%s%s", head, tail);
	respcmd_init(&c);
	assert_int_equal(respcmd_step(&c, cgn_str_of(head), &why), RESPCMD_VALUE);
	assert_int_equal(c.value, 4097);
	assert_int_equal(c.at, sizeof head - 1);
	assert_int_equal(respcmd_step(&c, cgn_str_of(head), &why), RESPCMD_MORE);
	assert_int_equal(respcmd_step(&c, cgn_str_of(whole), &why), RESPCMD_GOT);
	assert_int_equal(c.n, 5);
	assert_int_equal(c.n_apart, 1);
	assert_int_equal(c.args[2].at, RESPCMD_IS_APART);
	assert_int_equal(respcmd_arg(&c, cgn_str_of(whole), 2).n, 0);
	assert_true(cgn_str_is(respcmd_arg(&c, cgn_str_of(whole), 4), "10"));
	respcmd_fini(&c);
	/* A long word that is not a value does not come apart, and neither does a small value. */
	assert_int_equal(step_of(&c, "*2\r\n$3\r\nGET\r\n$4097\r\n"), RESPCMD_MORE);
	assert_int_equal(step_of(&c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4096\r\n"), RESPCMD_MORE);
	assert_int_equal(step_of(&c, "*3\r\n$3\r\nSET\r\n$4097\r\n"), RESPCMD_MORE);
	assert_int_equal(step_of(&c, "*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$9999\r\n"),
		RESPCMD_VALUE);
	assert_int_equal(step_of(&c, "*4\r\n$5\r\nSETEX\r\n$1\r\na\r\n$1\r\n5\r\n$9999\r\n"), RESPCMD_VALUE);
	/* Values must end with CRLF. */
	respcmd_init(&c);
	assert_int_equal(respcmd_step(&c, cgn_str_of(head), &why), RESPCMD_VALUE);
	whole[sizeof head - 1] = 'x';
	assert_int_equal(respcmd_step(&c, cgn_str_of(whole), &why), RESPCMD_BAD);
	respcmd_fini(&c);
}

static void many_arguments_fit(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct respcmd c;
	const char *why;
	cgn_buf_putz(&b, "*10001\r\n$4\r\nMGET\r\n");
	for (unsigned i = 0; i < 10000; i++)
		cgn_buf_fmt(&b, "$4\r\n%04u\r\n", i);
	respcmd_init(&c);
	assert_int_equal(respcmd_step(&c, cgn_buf_view(&b), &why), RESPCMD_GOT);
	assert_int_equal(c.n, 10001);
	assert_true(cgn_str_is(respcmd_arg(&c, cgn_buf_view(&b), 10000), "9999"));
	respcmd_reset(&c);
	assert_int_equal(c.n, 0);
	assert_int_equal(c.cap, CGN_COUNT(c.few));
	respcmd_fini(&c);
	cgn_buf_fini(&b);
}

static void names_are_found_in_any_case(void **state)
{
	(void)state;
	for (int i = 0; i < RESPCMD_UNKNOWN; i++)
		assert_int_equal(respcmd_find(cgn_str_of(respcmd_rows[i].name)), i);
	assert_int_equal(respcmd_find(CGN_STR("gEt")), RESPCMD_GET);
	assert_int_equal(respcmd_find(CGN_STR("flushall")), RESPCMD_UNKNOWN);
	assert_true(respcmd_arity_ok(RESPCMD_GET, 2));
	assert_false(respcmd_arity_ok(RESPCMD_GET, 3));
	assert_true(respcmd_arity_ok(RESPCMD_SET, 5));
	assert_false(respcmd_arity_ok(RESPCMD_SET, 2));
}

static void keys_name_blocks(void **state)
{
	(void)state;
	struct digest a, b;
	uint32_t segment;
	char hex[80];
	for (size_t i = 0; i < 64; i++)
		hex[i] = "0123456789abcdefABCDEF"[i % 22];
	hex[64] = '\0';
	assert_true(respcmd_key(cgn_str_of(hex), &a, &segment));
	assert_int_equal(segment, 0);
	assert_int_equal(a.b[0], 0x01);
	assert_int_equal(a.b[5], 0xab);
	assert_int_equal(a.b[8], 0xab);
	(void)strcpy(hex + 64, ":4294967295");
	assert_true(respcmd_key(cgn_str_of(hex), &b, &segment));
	assert_int_equal(segment, UINT32_MAX);
	assert_memory_equal(&a, &b, sizeof a);
	static const char *const foreign[] = {":4294967296", ":", ":01", ":x", "0", " "};
	for (size_t i = 0; i < CGN_COUNT(foreign); i++) {
		(void)strcpy(hex + 64, foreign[i]);
		assert_false(respcmd_key(cgn_str_of(hex), &b, &segment));
		assert_int_equal(segment, 0);
		assert_memory_not_equal(&a, &b, sizeof a);
	}
	assert_false(respcmd_key((struct cgn_str){hex, 63}, &b, &segment));
	assert_false(respcmd_key(CGN_STR("a"), &a, &segment));
	struct digest untagged = digest_of(CGN_STR("a"));
	assert_memory_not_equal(&a, &untagged, sizeof a); /* No chain can be named by chance. */
	assert_false(respcmd_key((struct cgn_str){NULL, 0}, &b, &segment));
	assert_memory_not_equal(&a, &b, sizeof a);
}

static void numbers_are_strict(void **state)
{
	(void)state;
	int64_t v;
	static const struct {
		const char *text;
		int64_t v;
	} good[] = {{"0", 0}, {"-1", -1}, {"9223372036854775807", INT64_MAX},
		{"-9223372036854775808", INT64_MIN}, {"10", 10}};
	static const char *const bad[] = {"", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808",
		"-9223372036854775809", "0x1"};
	for (size_t i = 0; i < CGN_COUNT(good); i++) {
		assert_true(respcmd_int(cgn_str_of(good[i].text), &v));
		assert_true(v == good[i].v);
	}
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(respcmd_int(cgn_str_of(bad[i]), &v));
}

static void ranges_are_redis(void **state)
{
	(void)state;
	static const struct {
		int64_t first, last;
		uint64_t size, off, n;
	} rows[] = {{0, -1, 10, 0, 10}, {0, 3, 10, 0, 4}, {-3, -1, 10, 7, 3}, {5, 100, 10, 5, 5},
		{10, 12, 10, 0, 0}, {-1, -3, 10, 0, 0}, {-100, 2, 10, 0, 3}, {-100, -50, 10, 0, 1},
		{0, -1, 0, 0, 0}, {3, 1, 10, 0, 0}, {INT64_MIN, INT64_MAX, 10, 0, 10}, {0, 0, 1, 0, 1}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		uint64_t off, n;
		respcmd_range(rows[i].first, rows[i].last, rows[i].size, &off, &n);
		assert_int_equal(n, rows[i].n);
		assert_int_equal(off, rows[i].off);
	}
}

static const char *set_of(const char *options, struct respcmd_set *o)
{
	char text[256];
	struct respcmd c;
	(void)snprintf(text, sizeof text, "set k v %s\n", options);
	assert_int_equal(step_of(&c, text), RESPCMD_GOT);
	const char *wrong = respcmd_set_options(&c, cgn_str_of(text), 3, 1000000, o);
	respcmd_fini(&c);
	return wrong;
}

static void set_has_options(void **state)
{
	(void)state;
	struct respcmd_set o;
	assert_null(set_of("", &o));
	assert_true(o.expires_unix_ms == 0 && !o.only_new && !o.only_old && !o.get && !o.keep_ttl);
	assert_null(set_of("ex 10 NX get", &o));
	assert_true(o.expires_unix_ms == 1010000 && o.only_new && o.get);
	assert_null(set_of("PX 10", &o));
	assert_int_equal(o.expires_unix_ms, 1000010);
	assert_null(set_of("EXAT 2000", &o));
	assert_int_equal(o.expires_unix_ms, 2000000);
	assert_null(set_of("PXAT 5 XX", &o));
	assert_true(o.expires_unix_ms == 5 && o.only_old);
	assert_null(set_of("keepttl", &o));
	assert_true(o.keep_ttl);
	static const char *const wrong[] = {"nx xx", "xx nx", "ex", "ex 1 px 1", "keepttl ex 1",
		"ex 1 keepttl", "what", "10"};
	for (size_t i = 0; i < CGN_COUNT(wrong); i++)
		assert_string_equal(set_of(wrong[i], &o), "ERR syntax error");
	assert_string_equal(set_of("ex x", &o), "ERR value is not an integer or out of range");
	static const char *const never[] = {"ex 0", "px -1", "ex 9223372036854775807",
		"px 9223372036854775807", "exat 0"};
	for (size_t i = 0; i < CGN_COUNT(never); i++)
		assert_string_equal(set_of(never[i], &o), "ERR invalid expire time in 'set' command");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_are_arrays_or_lines),
		cmocka_unit_test(what_is_not_whole_waits),
		cmocka_unit_test(nonsense_is_told),
		cmocka_unit_test(strangers_may_say_little),
		cmocka_unit_test(large_values_come_apart),
		cmocka_unit_test(many_arguments_fit),
		cmocka_unit_test(names_are_found_in_any_case),
		cmocka_unit_test(keys_name_blocks),
		cmocka_unit_test(numbers_are_strict),
		cmocka_unit_test(ranges_are_redis),
		cmocka_unit_test(set_has_options),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
