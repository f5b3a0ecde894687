/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/kv/slots/options.h"

/* Each part is followed by a space; files are in angle brackets. */
static void assert_parts(const char *const *args, size_t n, const char *expected)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct slot_options o = {.args = args, .n = n};
	struct slot_option p;
	while (slot_options_next(&o, &p))
		cgn_buf_fmt(&b, p.is_file ? "<%.*s> " : "%.*s ", CGN_STR_ARG(p.text));
	assert_string_equal(b.n > 0 ? cgn_buf_z(&b) : "", expected);
	assert_false(slot_options_next(&o, &p));
}
#define PARTS(expected, ...)                                                \
	do {                                                                \
		const char *const args[] = {__VA_ARGS__};                   \
		assert_parts(args, sizeof args / sizeof args[0], expected); \
	} while (0)

static void all_count_as_they_stand(void **state)
{
	(void)state;
	assert_parts(NULL, 0, "");
	PARTS("--cache-type-k q8_0 -fa on --override-kv a=int:1 --swa-full ", "--cache-type-k", "q8_0", "-fa",
		"on", "--override-kv", "a=int:1", "--swa-full");
	PARTS("--rope-scaling yarn --yarn-orig-ctx 4096 ", "--rope-scaling", "yarn", "--yarn-orig-ctx",
		"4096");
	PARTS("--lora-init-without-apply --lorax /a ", "--lora-init-without-apply", "--lorax", "/a");
}

static void files_count_by_what_is_in_them(void **state)
{
	(void)state;
	PARTS("--lora </a.gguf> -np 2 ", "--lora", "/a.gguf", "-np", "2");
	PARTS("--lora </a> </b> --lora </c> ", "--lora", "/a,/b", "--lora", "/c");
	PARTS("--lora-scaled </a> :0.5 </b> :2 x ", "--lora-scaled", "/a:0.5,/b:2", "x");
	PARTS("--control-vector </v> --control-vector-scaled </w> :-1 --control-vector-layer-range 1 3 ",
		"--control-vector", "/v", "--control-vector-scaled", "/w:-1", "--control-vector-layer-range",
		"1", "3");
	PARTS("--lora_scaled </a:b> :1 ", "--lora_scaled", "/a:b:1");
	/* llama-server does not start with such an option */
	PARTS("--lora-scaled </a> ", "--lora-scaled", "/a");
	PARTS("--lora ", "--lora");
	PARTS("--lora -x ", "--lora", "", "-x");
}

static void the_environment_sets_options_too(void **state)
{
	(void)state;
	assert_true(slot_options_in_env("LLAMA_ARG_CACHE_TYPE_K=q4_0"));
	assert_false(slot_options_in_env("LLAMA_CACHE=/x"));
	assert_false(slot_options_in_env("XLLAMA_ARG_A=1"));
	assert_false(slot_options_in_env(""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_count_as_they_stand),
		cmocka_unit_test(files_count_by_what_is_in_them),
		cmocka_unit_test(the_environment_sets_options_too),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
