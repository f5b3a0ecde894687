/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/answer/tracing/tracing.h"

static const uint64_t numbers[3] = {0x1122334455667788, 0x99aabbccddeeff00, 0x0102030405060708};
static const struct tracing_rules all = {TRACING_ALL, true, 1}, none = {TRACING_NONE, true, 0};

static struct tracing_context context_of(const struct tracing_rules *rules, const char *parent)
{
	struct tracing_context c;
	tracing_begin(rules, cgn_str_of(parent), numbers, &c);
	return c;
}

/* The example of the specification. */
#define PARENT "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static void a_trace_is_continued(void **state)
{
	(void)state;
	char text[TRACING_PARENT_TEXT + 1];
	struct tracing_context c = context_of(&none, PARENT);
	assert_true(c.sampled && c.parent == 0xb7ad6b7169203331 && c.span != 0 && c.span != c.parent);
	tracing_parent_write(&c, c.parent, text);
	assert_string_equal(text, PARENT);
	tracing_parent_write(&c, tracing_child(&c, 1), text);
	assert_memory_equal(text, PARENT, 36);
	assert_memory_not_equal(text, PARENT, 52);
	assert_int_not_equal(tracing_child(&c, 1), tracing_child(&c, 2));
	c = context_of(&all, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
	assert_false(c.sampled);
	/* Only the lowest flag says that it is sampled; a later version may say more. */
	assert_true(context_of(&none, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff").sampled);
	assert_int_not_equal(
		context_of(&none, "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").parent, 0);
}

static void what_is_no_parent_begins_a_trace(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "00", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
		"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
		"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct tracing_context c = context_of(&all, bad[i]);
		assert_true(c.sampled && c.parent == 0 && c.span != 0);
		assert_int_equal(c.trace[0], 0x99);
		assert_false(context_of(&none, bad[i]).sampled);
	}
}

static void samplers_are_read(void **state)
{
	(void)state;
	struct tracing_rules r;
	struct cgn_err err;
	assert_true(cgn_ok(tracing_rules_read(CGN_STR(""), CGN_STR(""), &r, &err)));
	assert_true(r.sampler == TRACING_SHARE && r.parent_decides && r.share == 0.01);
	assert_true(cgn_ok(tracing_rules_read(CGN_STR(""), CGN_STR("0.5"), &r, &err)) && r.share == 0.5);
	assert_true(cgn_ok(tracing_rules_read(CGN_STR("traceidratio"), CGN_STR("0.25"), &r, &err)));
	assert_true(r.sampler == TRACING_SHARE && !r.parent_decides && r.share == 0.25);
	assert_true(cgn_ok(tracing_rules_read(CGN_STR("always_off"), CGN_STR("not read"), &r, &err)));
	assert_true(r.sampler == TRACING_NONE && !r.parent_decides);
	assert_false(cgn_ok(tracing_rules_read(CGN_STR("jaeger_remote"), CGN_STR(""), &r, &err)));
	assert_non_null(strstr(err.msg, "OTEL_TRACES_SAMPLER"));
	static const char *const bad[] = {"2", "-1", "x", "0.5x", "nan", "", " "};
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		if (bad[i][0] != '\0')
			assert_false(cgn_ok(
				tracing_rules_read(CGN_STR("traceidratio"), cgn_str_of(bad[i]), &r, &err)));
}

static void a_share_of_the_traces_is_sampled(void **state)
{
	(void)state;
	const struct tracing_rules tenth = {TRACING_SHARE, true, 0.1}, whole = {TRACING_SHARE, true, 1},
				   nothing = {TRACING_SHARE, true, 0};
	size_t taken = 0;
	for (uint64_t i = 0; i < 10000; i++) {
		struct tracing_context c;
		const uint64_t random[3] = {i, i * 7, i * UINT64_C(0x9e3779b97f4a7c15)};
		tracing_begin(&tenth, CGN_STR(""), random, &c);
		taken += c.sampled;
		tracing_begin(&whole, CGN_STR(""), random, &c);
		assert_true(c.sampled);
		tracing_begin(&nothing, CGN_STR(""), random, &c);
		assert_false(c.sampled);
	}
	assert_in_range(taken, 900, 1100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_trace_is_continued),
		cmocka_unit_test(what_is_no_parent_begins_a_trace),
		cmocka_unit_test(samplers_are_read),
		cmocka_unit_test(a_share_of_the_traces_is_sampled),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
