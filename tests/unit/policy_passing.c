/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/answer/passing/passing.h"

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

static void patterns_cover_patterns(void **state)
{
	(void)state;
	const struct {
		const char *pattern, *other;
		bool covers;
	} rows[] = {{"/a", "/a", true}, {"/a/*", "/a/b", true}, {"/a/*", "/a/*", true},
		{"/a/*", "/a/**", false}, {"/a/**", "/a/**", true}, {"/a/**", "/a/b/*", true},
		{"/a/b", "/a/*", false}, {"/a/*/c", "/a/b/c", true}, {"/a/*/c", "/a/*", false}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		assert_int_equal(passing_pattern_covers(rows[i].pattern, cgn_str_of(rows[i].other)),
			rows[i].covers);
}

static void paths_that_servers_read_in_different_ways_are_told(void **state)
{
	(void)state;
	static const char *const tricks[] = {"/v1/videos/..", "/v1/videos/../x", "/v1/./x", "/v1/.", "/..",
		"/v1/%2e%2e/x", "/v1/%2E./x", "/v1/.%2e", "/v1/%252e%252E/x", "/v1/%25252e%25252e/x",
		"/v1/..%2fx", "/v1/a%2Fb", "/v1/a%252fb", "/v1/a%5cb", "/v1/a%255Cb", "/v1/a\\b", "/v1/..;/x",
		"/v1/..;a=b/x", "/v1/.;/x", "/v1/%2e%2e%3b/x", "/v1/..%3Ba/x", "/v1/a%00", "/v1/a%2500",
		"/v1/%0d%0a", "/v1/%7f", "/v1/a\tb", "/v1/%25%32%65%25%32%65/x", "/v1/%%32%65%%32%65/x",
		"/v1/%25252525252541"};
	static const char *const fine[] = {"/", "/v1/videos/7", "/v1/a%20b", "/v1/%C3%A4", "/v1/100%25",
		"/v1/100%", "/v1/%zz", "/v1/...", "/v1/.a", "/v1/a..", "/v1/..a", "/v1/a;b", "/v1/a%3Ab",
		"/v1/a%2525", "/v1/%2e5", "/v1/resp_1.2", "/v1/a%3Fb"};
	char room[128];
	for (size_t i = 0; i < CGN_COUNT(tricks); i++)
		if (passing_path_trick(cgn_str_of(tricks[i]), false, room) == NULL)
			fail_msg("%s passes", tricks[i]);
	for (size_t i = 0; i < CGN_COUNT(fine); i++)
		if (passing_path_trick(cgn_str_of(fine[i]), false, room) != NULL)
			fail_msg("%s is refused", fine[i]);
	assert_non_null(passing_path_trick((struct cgn_str){"/a\0b", 4}, false, room));
	assert_null(passing_path_trick(CGN_STR("/v1/models/org%2Fbig%252f"), true, room));
	assert_non_null(passing_path_trick(CGN_STR("/v1/models/%2e%2e%2fx"), true, room));
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
		"POST /*", "POST embed /**", "POST /v1/*", "POST /update_weights_from_disk", "GET /metrics",
		"POST /configure_logging", "POST /freeze_gc", "POST /open_session",
		"POST chat /close_session", "POST /abort_requests", "POST /fault_tolerance/apply",
		"GET /SLOTS", "POST /Slots/*", "POST /slots/7", "POST /V1/Load_LoRA_Adapter", "POST /V1/**",
		"GET /fault_tolerance/status"};
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
		"x-api-key", "openai-project", "x-cgn-node", "x-request-id", "traceparent", "x-auth-token",
		"ocp-apim-subscription-key", "cf-access-client-secret", "authentication", "x_cgn_node",
		"x_api_key", "x.api.key", "x-apikey", "apikey", "x-forwarded-access-token",
		"x-amz-security-token", "x-goog-api-key", "cookie2", "set-cookie", "x-csrf-token",
		"x-user-password", "x-credentials", "x-jwt", "cf-access-jwt-assertion", "x-amzn-oidc-data",
		"x-forwarded-client-cert", "transfer_encoding"};
	static const char *const no_names[] = {"", "X-Team", "x team", "x:y", "x-\xc3\xa4"};
	static const char *const fine[] = {"x-team", "user-agent", "accept-language", "helicone-session",
		"teams", "x-author", "x-authority-zone", "x-max-tokens", "x-keyboard", "idempotency-key",
		"x_team"};
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
		cmocka_unit_test(patterns_cover_patterns),
		cmocka_unit_test(paths_that_servers_read_in_different_ways_are_told),
		cmocka_unit_test(a_route_has_a_method_a_scope_and_a_path),
		cmocka_unit_test(a_route_that_is_none_is_refused),
		cmocka_unit_test(administration_needs_the_scope_admin),
		cmocka_unit_test(some_fields_never_pass),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
