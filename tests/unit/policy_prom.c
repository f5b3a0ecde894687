/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "policy/node/engine/prom.h"

static struct cgn_str prom_text(const char *z)
{
	return cgn_str_of(z);
}

static void samples_come_in_order(void **state)
{
	(void)state;
	struct prom_reader r = prom_reader_of(
		prom_text("# HELP a b\n\na 1\r\n  b_total{x=\"1\"}\t2.5 1700000000\nc:d{} -1e3"));
	struct prom_sample s;
	assert_true(prom_next(&r, &s));
	assert_true(cgn_str_is(s.name, "a"));
	assert_true(s.value == 1.0 && s.labels.n == 0);
	assert_true(prom_next(&r, &s));
	assert_true(cgn_str_is(s.name, "b_total") && cgn_str_is(s.labels, "x=\"1\"") && s.value == 2.5);
	assert_true(prom_next(&r, &s));
	assert_true(cgn_str_is(s.name, "c:d") && s.value == -1000.0);
	assert_false(prom_next(&r, &s));
	assert_false(prom_next(&r, &s));
	assert_int_equal(r.skipped, 0);
}

static void odd_values_are_read(void **state)
{
	(void)state;
	struct prom_reader r = prom_reader_of(prom_text("a NaN\nb +Inf\nc 3 # {trace=\"x\"} 1 2\n"));
	struct prom_sample s;
	assert_true(prom_next(&r, &s) && isnan(s.value));
	assert_true(prom_next(&r, &s) && isinf(s.value));
	assert_true(prom_next(&r, &s) && s.value == 3.0);
}

static void labels_with_braces_and_quotes(void **state)
{
	(void)state;
	struct prom_reader r = prom_reader_of(prom_text("m{a=\"}\\\"{\" , le=\"0.5\",} 7\n"));
	struct prom_sample s;
	struct cgn_str v;
	assert_true(prom_next(&r, &s));
	assert_true(s.value == 7.0);
	assert_true(prom_label(&s, "a", &v) && cgn_str_is(v, "}\\\"{"));
	assert_true(prom_label(&s, "le", &v) && cgn_str_is(v, "0.5"));
	assert_false(prom_label(&s, "l", &v));
	assert_false(prom_label(&s, "", &v));
}

static void nonsense_is_skipped_and_counted(void **state)
{
	(void)state;
	static const char *const broken[] = {"a", "a{", "a{b", "a{b=", "a{b=\"", "a{b=\"c\"",
		"a{b=\"c\\\"} 1", "{} 1", "1a 2", "a 1x", "a x", "a{b=c} 1", "=", "a{b=\"c\"}",
		"a 1111111111111111111111111111111111111111111111111111111111111111111111111"};
	for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
		char doc[256];
		struct prom_sample s;
		(void)snprintf(doc, sizeof doc, "%s\nok 1\n", broken[i]);
		struct prom_reader r = prom_reader_of(prom_text(doc));
		assert_true(prom_next(&r, &s));
		if (!cgn_str_is(s.name, "ok"))
			fail_msg("%s was taken for a sample", broken[i]);
		assert_int_equal(r.skipped, 1);
		assert_false(prom_next(&r, &s));
	}
}

static void folding_takes_finite_samples_of_that_name(void **state)
{
	(void)state;
	const char *doc = "x{e=\"0\"} 2\nxy 50\nx{e=\"1\"} 3\nx NaN\ny -4\ny -2\n";
	double v = 99;
	assert_true(prom_sum(prom_text(doc), "x", &v) && v == 5.0);
	assert_true(prom_max(prom_text(doc), "x", &v) && v == 3.0);
	assert_true(prom_max(prom_text(doc), "y", &v) && v == -2.0);
	v = 99;
	assert_false(prom_sum(prom_text(doc), "z", &v));
	assert_false(prom_sum((struct cgn_str){NULL, 0}, "x", &v));
	assert_false(prom_sum(prom_text("x NaN\n"), "x", &v));
	assert_true(v == 99.0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(samples_come_in_order),
		cmocka_unit_test(odd_values_are_read),
		cmocka_unit_test(labels_with_braces_and_quotes),
		cmocka_unit_test(nonsense_is_skipped_and_counted),
		cmocka_unit_test(folding_takes_finite_samples_of_that_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
