/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/node/exposition/exposition.h"

static struct exposition_stats stats;

static struct exposition_page *page_of(const char *target, const char *text, size_t most)
{
	const struct exposition_cfg cfg = {.target = cgn_str_of(target),
		.instance = cgn_str_of("h:1"),
		.max_samples = most};
	struct exposition_page *p = NULL;
	assert_true(cgn_ok(exposition_page_make(cgn_str_of(text), &cfg, &p, &stats, NULL)));
	assert_true(exposition_page_bytes(p) > 0);
	return p;
}

/* Compare the text of the pages, of which the last is NULL, and free them. */
static void assert_merged(const struct exposition_match *match, const char *want,
	struct exposition_page **pages)
{
	struct exposition_merge m;
	struct cgn_buf out = {0};
	size_t n = 0;
	while (pages[n] != NULL)
		n++;
	exposition_merge_begin(&m, (const struct exposition_page *const *)pages, n, match);
	while (exposition_merge_next(&m, &out))
		continue;
	exposition_merge_end(&m);
	assert_string_equal(cgn_buf_z(&out), want);
	cgn_buf_fini(&out);
	for (size_t i = 0; i < n; i++)
		exposition_page_free(&pages[i]);
}
#define ONE(p)    ((struct exposition_page *[]){(p), NULL})
#define TWO(p, q) ((struct exposition_page *[]){(p), (q), NULL})

static void families_are_told_once(void **state)
{
	(void)state;
	struct exposition_page *a = page_of("a",
		"# HELP z_total All.\n# TYPE z_total counter\nz_total 1\n# TYPE b gauge\nb{x=\"1\"} 2 1700000000000\n",
		99);
	struct exposition_page *b = page_of("b", "# TYPE z_total counter\nz_total{} 3\r\nc 4\n", 99);
	assert_merged(NULL,
		"# TYPE b gauge\nb{cgn_target=\"a\",instance=\"h:1\",x=\"1\"} 2\n"
		"# TYPE c untyped\nc{cgn_target=\"b\",instance=\"h:1\"} 4\n"
		"# HELP z_total All.\n# TYPE z_total counter\nz_total{cgn_target=\"a\",instance=\"h:1\"} 1\n"
		"z_total{cgn_target=\"b\",instance=\"h:1\"} 3\n",
		TWO(a, b));
}

static void a_family_in_pieces_is_put_together(void **state)
{
	(void)state;
	struct exposition_page *p = page_of("a",
		"# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 2\nx 1\nh_count 1\n# TYPE h histogram\nh_sum{y=\"1\"} 5\n",
		99);
	assert_merged(NULL,
		"# TYPE h histogram\nh_bucket{cgn_target=\"a\",instance=\"h:1\",le=\"+Inf\"} 1\n"
		"h_sum{cgn_target=\"a\",instance=\"h:1\"} 2\nh_sum{cgn_target=\"a\",instance=\"h:1\",y=\"1\"} 5\n"
		"# TYPE h_count untyped\nh_count{cgn_target=\"a\",instance=\"h:1\"} 1\n"
		"# TYPE x untyped\nx{cgn_target=\"a\",instance=\"h:1\"} 1\n",
		ONE(p));
}

static void types_that_differ_are_none(void **state)
{
	(void)state;
	assert_merged(NULL,
		"# TYPE a untyped\na{cgn_target=\"p\",instance=\"h:1\"} 1\na{cgn_target=\"q\",instance=\"h:1\"} 2\n",
		TWO(page_of("p", "# TYPE a counter\na 1\n", 9), page_of("q", "# TYPE a gauge\na 2\n", 9)));
	assert_merged(NULL,
		"# TYPE a gauge\na{cgn_target=\"p\",instance=\"h:1\"} 1\na{cgn_target=\"q\",instance=\"h:1\"} 2\n",
		TWO(page_of("p", "a 1\n", 9), page_of("q", "# TYPE a gauge\na 2\n", 9)));
}

static void labels_of_the_text_give_way(void **state)
{
	(void)state;
	assert_merged(NULL,
		"# TYPE a untyped\na{cgn_target=\"t\\\"\\\\\\n\",instance=\"h:1\",exported_instance=\"i\",exported_cgn_target=\"c\"} 1\n",
		ONE(page_of("t\"\\\n", "a{instance=\"i\",cgn_target=\"c\"} 1\n", 9)));
}

static void what_prometheus_would_refuse_is_left_out(void **state)
{
	(void)state;
	static const char *const bad[] = {"a{x=\"1\",x=\"2\"} 1", "a{x=\"\xff\"} 1", "a{x=\"1\"", "a", "a x",
		"a{1x=\"\"} 1", "1a 1", "a{x:y=\"1\"} 1", "a{exported_instance=\"1\"} 1", "a 0x10",
		"a nan(7)x", "{x=\"1\"} 1", "<html>", "a{x=1} 1"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		assert_merged(NULL, "", ONE(page_of("t", bad[i], 9)));
		if (stats.skipped != 1 || stats.samples != 0)
			fail_msg("%s", bad[i]);
	}
	char many[2000] = "a{";
	for (unsigned i = 0; i <= EXPOSITION_LABELS; i++)
		(void)snprintf(many + strlen(many), sizeof many - strlen(many), "l%u=\"\",", i);
	(void)snprintf(many + strlen(many), sizeof many - strlen(many), "} 1");
	assert_merged(NULL, "", ONE(page_of("t", many, 9)));
	assert_int_equal(stats.skipped, 1);
}

static void numbers_are_told_as_all_read_them(void **state)
{
	(void)state;
	assert_merged(NULL,
		"# TYPE a untyped\na{cgn_target=\"t\",instance=\"h:1\",n=\"1\"} NaN\na{cgn_target=\"t\",instance=\"h:1\",n=\"2\"} +Inf\n"
		"a{cgn_target=\"t\",instance=\"h:1\",n=\"3\"} -Inf\na{cgn_target=\"t\",instance=\"h:1\",n=\"4\"} -1.5e-9\n",
		ONE(page_of("t",
			"a{n=\"1\"} nan\na{n=\"2\"} infinity\na{n=\"3\"} -Inf\na{n=\"4\"} -1.5e-9 # {trace=\"x\"} 1\n",
			9)));
}

static void samples_have_a_bound(void **state)
{
	(void)state;
	assert_merged(NULL, "# TYPE a untyped\na{cgn_target=\"t\",instance=\"h:1\",n=\"1\"} 1\n",
		ONE(page_of("t", "a{n=\"1\"} 1\na{n=\"2\"} 1\nb 1\n", 1)));
	assert_int_equal(stats.samples, 1);
	assert_int_equal(stats.cut, 2);
}

#define TEXT "# TYPE a counter\na_total{x=\"1\",y=\"q\\\"\"} 1\na_total{x=\"2\"} 2\nb 3\nab 4\n"
#define A1   "a_total{cgn_target=\"t\",instance=\"h:1\",x=\"1\",y=\"q\\\"\"} 1\n"
#define A2   "a_total{cgn_target=\"t\",instance=\"h:1\",x=\"2\"} 2\n"
#define B    "# TYPE b untyped\nb{cgn_target=\"t\",instance=\"h:1\"} 3\n"
#define AB   "# TYPE ab untyped\nab{cgn_target=\"t\",instance=\"h:1\"} 4\n"

static void selectors_choose(void **state)
{
	(void)state;
	static const struct {
		const char *selector, *want;
	} rows[] = {
		{"b", B},
		{" a_total {x=\"1\"}", "# TYPE a counter\n" A1},
		{"{x!=\"1\"}", "# TYPE a counter\n" A2 AB B},
		{"{__name__=~\"a.*\"}", "# TYPE a counter\n" A1 A2 AB},
		{"{__name__=~\"b|ab\"}", AB B},
		{"{__name__!~\"a.*\"}", B},
		{"{y=\"q\\\"\"}", "# TYPE a counter\n" A1},
		{"{cgn_target=\"t\", x = \"2\" ,}", "# TYPE a counter\n" A2},
		{"{cgn_target=\"u\"}", ""},
		{"{x=~\"[0-9]{1,3}\",__name__=\"a_total\"}", "# TYPE a counter\n" A1 A2},
		{"{nothing=\"\",__name__=\"b\"}", B},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct exposition_match *m = NULL;
		assert_true(cgn_ok(exposition_match_add(&m, cgn_str_of(rows[i].selector), NULL)));
		assert_merged(m, rows[i].want, ONE(page_of("t", TEXT, 9)));
		exposition_match_free(&m);
	}
}

/* An expression whose comparison takes 2^40 steps fits neither way, at once. */
static void an_expensive_comparison_is_given_up(void **state)
{
	(void)state;
	static const char *const selectors[] = {"{x=~\"(a|a)*[bc]\"}", "{x!~\"(a|a)*[bc]\"}"};
	for (size_t i = 0; i < CGN_COUNT(selectors); i++) {
		struct exposition_match *m = NULL;
		assert_true(cgn_ok(exposition_match_add(&m, cgn_str_of(selectors[i]), NULL)));
		assert_merged(m,
			i == 0 ? "" : "# TYPE c untyped\nc{cgn_target=\"t\",instance=\"h:1\",x=\"a\"} 1\n",
			ONE(page_of("t",
				"c{x=\"a\"} 1\nc{x=\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"} 2\n", 9)));
		exposition_match_free(&m);
	}
}

static void selectors_that_cannot_be_used(void **state)
{
	(void)state;
	static const struct {
		const char *selector, *why;
	} rows[] = {{"", "NAME"}, {"{}", "fits everything"}, {"a{x}", "a label and ="},
		{"a{x=1}", "double quotes"}, {"a{x=\"1}", "no end"}, {"a{x=\"1\" y=\"2\"}", "a comma"},
		{"a}", "NAME"}, {"{x=~\"(\"}", "not a regular expression"},
		{"{x=~\"((a{1000}){1000}){1000}\"}", "too large"}, {"{x=~\"(a*)\\\\1\"}", "non-existent"}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct exposition_match *m = NULL;
		struct cgn_err err = {0};
		assert_false(cgn_ok(exposition_match_add(&m, cgn_str_of(rows[i].selector), &err)));
		if (strstr(err.msg, rows[i].why) == NULL)
			fail_msg("%s: %s", rows[i].selector, err.msg);
		exposition_match_free(&m);
	}
	struct exposition_match *m = NULL;
	for (unsigned i = 0; i < EXPOSITION_SELECTORS; i++)
		assert_true(cgn_ok(exposition_match_add(&m, CGN_STR("a"), NULL)));
	assert_false(cgn_ok(exposition_match_add(&m, CGN_STR("a"), NULL)));
	exposition_match_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(families_are_told_once),
		cmocka_unit_test(a_family_in_pieces_is_put_together),
		cmocka_unit_test(types_that_differ_are_none),
		cmocka_unit_test(labels_of_the_text_give_way),
		cmocka_unit_test(what_prometheus_would_refuse_is_left_out),
		cmocka_unit_test(numbers_are_told_as_all_read_them),
		cmocka_unit_test(samples_have_a_bound),
		cmocka_unit_test(selectors_choose),
		cmocka_unit_test(an_expensive_comparison_is_given_up),
		cmocka_unit_test(selectors_that_cannot_be_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
