/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/core/buf.h"
#include "base/toml/toml.h"

/* Add a line for the node: path, type, text, places. */
static cgn_rc node_note(void *arg, const struct toml_node *node, struct cgn_err *err)
{
	static const char *const types[] = {"table", "array", "string", "integer", "float", "bool", "date"};
	struct cgn_buf *b = arg;
	for (size_t i = 0; i < node->depth; i++) {
		if (node->path[i].key.p != NULL)
			cgn_buf_fmt(b, "%s%.*s", i > 0 ? "." : "", CGN_STR_ARG(node->path[i].key));
		else
			cgn_buf_fmt(b, "[%zu]", node->path[i].index);
	}
	cgn_buf_fmt(b, " %s", types[node->type]);
	if (node->type == TOML_TABLE || node->type == TOML_ARRAY)
		cgn_buf_fmt(b, " %zu", node->n);
	else
		cgn_buf_fmt(b, " %.*s", CGN_STR_ARG(node->text));
	cgn_buf_fmt(b, " %u:%u %u:%u\n", node->key_at.line, node->key_at.column, node->at.line,
		node->at.column);
	(void)err;
	return CGN_OK;
}

static void expect_nodes(const char *toml, const char *want)
{
	struct cgn_buf b = {0};
	struct cgn_err err = {0};
	if (!cgn_ok(toml_parse("f.toml", cgn_str_of(toml), node_note, &b, &err)))
		fail_msg("%s", err.msg);
	assert_string_equal(cgn_buf_z(&b), want);
	cgn_buf_fini(&b);
}

static void each_kind_of_value_is_seen_with_its_place(void **state)
{
	(void)state;
	expect_nodes("", "");
	expect_nodes("\xef\xbb\xbf"
		     "\"\xc3\xa4\" = '\xc3\xa4' # \xc3\xa4",
		"\xc3\xa4 string \xc3\xa4 1:1 1:7\n");
	expect_nodes("a = 1\n[s]\n  b = \"x\"\nf = 0.55\nt = true\nd = 1979-05-27\n",
		"a integer 1 1:1 1:5\n"
		"s table 4 2:2 2:1\n"
		"s.b string x 3:3 3:7\n"
		"s.d date 1979-05-27 6:1 6:5\n"
		"s.f float 0.55 4:1 4:5\n"
		"s.t bool true 5:1 5:5\n");
	expect_nodes("i = -9223372036854775808\nx = 0xff\nz = 1_000\n",
		"i integer -9223372036854775808 1:1 1:5\nx integer 255 2:1 2:5\nz integer 1000 3:1 3:5\n");
	expect_nodes("a = inf\nb = -inf\nc = nan\nd = 1e300\n",
		"a float inf 1:1 1:5\nb float -inf 2:1 2:5\nc float nan 3:1 3:5\nd float 1e+300 4:1 4:5\n");
	expect_nodes(
		"a = 07:32:00.5\nb = 1979-05-27T07:32:00-07:30\nc = 1979-05-27T07:32:00Z\nd = 1979-05-27 07:32:00\n",
		"a date 07:32:00.500000000 1:1 1:5\nb date 1979-05-27T07:32:00-07:30 2:1 2:5\n"
		"c date 1979-05-27T07:32:00Z 3:1 3:5\nd date 1979-05-27T07:32:00 4:1 4:5\n");
}

static void arrays_and_tables_nest(void **state)
{
	(void)state;
	expect_nodes("[[engines]]\nurl = \"u\"\n[[engines]]\n[engines.labels]\n\"a b\" = '\xc3\xa4'\n",
		"engines array 2 1:3 1:1\n"
		"engines[0] table 1 1:1 1:1\n"
		"engines[0].url string u 2:1 2:7\n"
		"engines[1] table 1 3:1 3:1\n"
		"engines[1].labels table 1 4:10 4:1\n"
		"engines[1].labels.a b string \xc3\xa4 5:1 5:9\n");
	expect_nodes("peers = [\"a\",\n \"b\"]\nempty = []\nt = {}\n",
		"empty array 0 3:1 3:9\n"
		"peers array 2 1:1 1:9\n"
		"peers[0] string a 1:10 1:10\n"
		"peers[1] string b 2:2 2:2\n"
		"t table 0 4:1 4:5\n");
	expect_nodes("[models.\"org/name.v1\"]\n",
		"models table 1 1:2 1:1\nmodels.org/name.v1 table 0 1:9 1:1\n");
}

static void expect_refused(struct cgn_str toml, enum cgn_code code, const char *want)
{
	struct cgn_buf b = {0};
	struct cgn_err err = {0};
	char *copy = malloc(toml.n + 1); /* A block of its own, without a final NUL. */
	assert_non_null(copy);
	memcpy(copy, toml.p, toml.n);
	cgn_rc rc = toml_parse("f.toml", (struct cgn_str){copy, toml.n}, node_note, &b, &err);
	free(copy);
	assert_int_equal(rc.code, code);
	assert_int_equal(err.code, code);
	if (strncmp(err.msg, want, strlen(want)) != 0)
		fail_msg("%s", err.msg);
	cgn_buf_fini(&b);
}

static void errors_name_file_line_and_column(void **state)
{
	(void)state;
	expect_refused(CGN_STR("a = 1\nb = \n"), CGN_INVALID, "f.toml:2:5: ");
	expect_refused(CGN_STR("a = 1\na = 2\n"), CGN_INVALID, "f.toml:2:");
	expect_refused(CGN_STR("a = \"x"), CGN_INVALID, "f.toml:1:");
	expect_refused(CGN_STR("a = \"\xff\""), CGN_INVALID, "f.toml:1:");
	expect_refused(CGN_STR("[a"), CGN_INVALID, "f.toml:1:");
	expect_refused(CGN_STR("a = 99999999999999999999"), CGN_INVALID, "f.toml:1:");
	expect_refused(CGN_STR("\0"), CGN_INVALID, "f.toml:1:");
	expect_refused(CGN_STR("a = 1\n# \xc3\xa4\n[b\xc3\xa4]\n"), CGN_INVALID, "f.toml:3:3: ");
	expect_refused(CGN_STR("a = 0x6\"\"\"\xcb\x9e"), CGN_INVALID, "f.toml:1:");
	expect_refused(CGN_STR("a = 1\n[ =a]\nb = 2\n"), CGN_INVALID, "f.toml:2:3: ");
}

static void put_many(struct cgn_buf *b, const char *piece, size_t times)
{
	for (size_t i = 0; i < times; i++)
		cgn_buf_putz(b, piece);
}

static void size_and_nesting_are_bounded(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	put_many(&b, "#\n", TOML_MAX_BYTES / 2 + 1);
	expect_refused(cgn_buf_view(&b), CGN_TOO_LARGE, "f.toml has 1048578 bytes");
	b.n = 0;
	cgn_buf_putz(&b, "# .\n[a");
	put_many(&b, ".a", 400000);
	cgn_buf_putz(&b, "]\n");
	expect_refused(cgn_buf_view(&b), CGN_INVALID, "f.toml:2:131: a key of more than 64 parts");
	b.n = 0;
	cgn_buf_putz(&b, "a = ");
	put_many(&b, "[", 400000);
	expect_refused(cgn_buf_view(&b), CGN_INVALID, "f.toml:1:");
	b.n = 0;
	cgn_buf_putz(&b, "a");
	put_many(&b, ".a", 20);
	cgn_buf_putz(&b, " = 1\n");
	expect_refused(cgn_buf_view(&b), CGN_INVALID, "f.toml:1:33: nested deeper than 16 steps");
	b.n = 0;
	cgn_buf_putz(&b, "s = \"");
	put_many(&b, ".\\\".", 100);
	cgn_buf_putz(&b, "\" # ");
	put_many(&b, ".", 100);
	cgn_buf_putz(&b, "\nt = '''");
	put_many(&b, ".'\n", 100);
	cgn_buf_putz(&b, "'''\nn = 1");
	struct cgn_buf out = {0};
	assert_true(cgn_ok(toml_parse("f.toml", cgn_buf_view(&b), node_note, &out, NULL)));
	assert_true(cgn_str_starts(cgn_buf_view(&out), "n integer 1 103:1 103:5\ns string "));
	cgn_buf_fini(&out);
	cgn_buf_fini(&b);
}

static cgn_rc stop_at_second(void *arg, const struct toml_node *node, struct cgn_err *err)
{
	int *seen = arg;
	return ++*seen < 2 ? CGN_OK : CGN_FAIL(err, NOT_FOUND, "unknown key at line %u", node->key_at.line);
}

static void a_visitor_ends_the_parse(void **state)
{
	(void)state;
	int seen = 0;
	struct cgn_err err = {0};
	cgn_rc rc = toml_parse("f.toml", CGN_STR("a=1\nb=2\nc=3\n"), stop_at_second, &seen, &err);
	assert_int_equal(rc.code, CGN_NOT_FOUND);
	assert_string_equal(err.msg, "unknown key at line 2");
	assert_int_equal(seen, 2);
	assert_true(cgn_ok(toml_parse("f.toml", (struct cgn_str){NULL, 0}, stop_at_second, &seen, &err)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_kind_of_value_is_seen_with_its_place),
		cmocka_unit_test(arrays_and_tables_nest),
		cmocka_unit_test(errors_name_file_line_and_column),
		cmocka_unit_test(size_and_nesting_are_bounded),
		cmocka_unit_test(a_visitor_ends_the_parse),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
