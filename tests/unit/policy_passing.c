/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/passing/passing.h"

static void paths_match_by_segments(void **state)
{
	(void)state;
	const struct {
		const char *pattern, *path;
		bool matches;
	} rows[] = {{"/", "/", true}, {"/a", "/a", true}, {"/a", "/ab", false}, {"/a", "/a/", false},
		{"/a", "/", false}, {"/a/*", "/a/b", true}, {"/a/*", "/a/", false}, {"/a/*", "/a", false},
		{"/a/*", "/a/b/c", false}, {"/a/*/c", "/a/b/c", true}, {"/a/*/c", "/a//c", false},
		{"/a/*/c", "/a/b/d", false}, {"/a/**", "/a/b/c", true}, {"/a/**", "/a/b", true},
		{"/a/**", "/a/", false}, {"/a/**", "/a", false}, {"/a/**", "/b/c", false}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		assert_int_equal(passing_path_matches(cgn_str_of(rows[i].path), rows[i].pattern),
			rows[i].matches);
}

static void a_route_has_a_method_a_scope_and_a_path(void **state)
{
	(void)state;
	struct passing_route r;
	assert_true(cgn_ok(passing_route_read("POST /v1/videos", &r, NULL)));
	assert_string_equal(r.method, "POST");
	assert_string_equal(r.path, "/v1/videos");
	assert_int_equal(r.scope, PASSING_CHAT);
	assert_true(cgn_ok(passing_route_read("GET embed /v1/videos/*/content", &r, NULL)));
	assert_int_equal(r.scope, PASSING_EMBED);
	assert_true(cgn_ok(passing_route_read("POST admin /slots/*", &r, NULL)));
	assert_int_equal(r.scope, PASSING_ADMIN);
	assert_string_equal(r.path, "/slots/*");
}

static void a_route_that_is_none_is_refused(void **state)
{
	(void)state;
	static const char *const texts[] = {"", "/v1/videos", "post /v1/videos", "OPTIONS /x", "POST",
		"POST ", "POST x", "POST /", "POST  /x", "POST all /x", "POST /a//b", "POST /a/", "POST /a?b",
		"POST /a/../b", "POST /a/**/b", "POST /a*", "POST /%41", "POST chat", "GET chat "};
	for (size_t i = 0; i < CGN_COUNT(texts); i++) {
		struct passing_route r;
		struct cgn_err err = {0};
		assert_int_equal(passing_route_read(texts[i], &r, &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, texts[i]));
	}
}

static void administration_needs_the_scope_admin(void **state)
{
	(void)state;
	static const char *const texts[] = {"POST /v1/load_lora_adapter", "GET /slots", "POST /slots/*",
		"POST /*", "POST embed /**", "POST /v1/*", "POST /update_weights_from_disk", "GET /metrics"};
	for (size_t i = 0; i < CGN_COUNT(texts); i++) {
		struct passing_route r;
		struct cgn_err err = {0};
		assert_int_equal(passing_route_read(texts[i], &r, &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, " admin "));
	}
}

static void some_fields_never_pass(void **state)
{
	(void)state;
	static const char *const barred[] = {"connection", "proxy-authorization", "te", "upgrade", "host",
		"content-length", "content-encoding", "accept-encoding", "authorization", "cookie",
		"x-api-key", "openai-project", "x-cgn-node", "x-request-id", "traceparent"};
	static const char *const no_names[] = {"", "X-Team", "x team", "x:y", "x-\xc3\xa4"};
	static const char *const fine[] = {"x-team", "user-agent", "accept-language", "helicone-session",
		"teams"};
	struct cgn_err err = {0};
	for (size_t i = 0; i < CGN_COUNT(barred); i++) {
		assert_int_equal(passing_header_check(barred[i], &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, "cannot pass"));
	}
	for (size_t i = 0; i < CGN_COUNT(no_names); i++)
		assert_int_equal(passing_header_check(no_names[i], &err).code, CGN_INVALID);
	for (size_t i = 0; i < CGN_COUNT(fine); i++)
		assert_true(cgn_ok(passing_header_check(fine[i], NULL)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths_match_by_segments),
		cmocka_unit_test(a_route_has_a_method_a_scope_and_a_path),
		cmocka_unit_test(a_route_that_is_none_is_refused),
		cmocka_unit_test(administration_needs_the_scope_admin),
		cmocka_unit_test(some_fields_never_pass),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
