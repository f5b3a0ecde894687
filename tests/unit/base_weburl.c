/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "base/weburl/weburl.h"

static void urls_are_taken_apart(void **state)
{
	(void)state;
	struct weburl u;
	assert_true(cgn_ok(weburl_parse("http://127.0.0.1:8000", &u, NULL)));
	assert_false(u.tls);
	assert_string_equal(u.addr, "127.0.0.1:8000");
	assert_string_equal(u.authority, "127.0.0.1:8000");
	assert_string_equal(u.base, "");
	assert_true(cgn_ok(weburl_parse("https://api.example.com/v1/", &u, NULL)));
	assert_true(u.tls && u.base_is_version);
	assert_string_equal(u.addr, "api.example.com:443");
	assert_string_equal(u.authority, "api.example.com");
	assert_string_equal(u.base, "/v1");
	assert_true(cgn_ok(weburl_parse("http://[::1]:9/x", &u, NULL)));
	assert_string_equal(u.addr, "[::1]:9");
	assert_string_equal(u.host, "::1");
	assert_int_equal(u.port, 9);
	assert_false(u.base_is_version);
	assert_true(cgn_ok(weburl_parse("http://vllm_0.gpu-pool:8000", &u, NULL))); /* A name of compose. */
	assert_string_equal(u.host, "vllm_0.gpu-pool");
	assert_true(cgn_ok(weburl_parse("http://[::1]", &u, NULL)));
	assert_string_equal(u.addr, "[::1]:80");
	assert_string_equal(u.authority, "[::1]");
}

static void bad_urls_are_refused_by_name(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "127.0.0.1:8000", "ftp://x", "http://", "http:///v1",
		"http://x:0", "http://x:65536", "http://x:", "http://x:8a", "http://user:secret@x/",
		"http://[::1", "http://[::1]x", "http://a b/", "http://x/v1?key=1", "http://x/a b",
		"http://x/\r\nHost: y", "https://x#f", "http://::1:80"};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct weburl u;
		struct cgn_err err = {0};
		if (cgn_ok(weburl_parse(bad[i], &u, &err)))
			fail_msg("%s was accepted", bad[i]);
		assert_non_null(strstr(err.msg, "URL"));
		assert_int_equal(err.code, CGN_INVALID);
	}
}

static void paths_are_joined(void **state)
{
	(void)state;
	static const struct {
		const char *url, *path, *want;
	} row[] = {
		{"http://h:1", "/v1/chat/completions", "/v1/chat/completions"},
		{"http://h:1", "/tokenize?x=1", "/tokenize?x=1"},
		{"https://h/v1", "/v1/chat/completions", "/v1/chat/completions"},
		{"https://h/openai/v1/", "/v1/models", "/openai/v1/models"},
		{"https://h/openai/v1", "/tokenize", "/openai/tokenize"},
		{"https://h/v1", "/metrics", "/metrics"},
		{"https://h/v1beta/openai", "/v1/models?a=b", "/v1beta/openai/models?a=b"},
		{"http://h/engine1", "/v1/models", "/engine1/v1/models"},
		{"http://h/engine1", "/health", "/engine1/health"},
		{"https://h/v1", "/v1extra", "/v1extra"},
	};
	for (size_t i = 0; i < CGN_COUNT(row); i++) {
		struct weburl u;
		struct cgn_buf b = {0};
		assert_true(cgn_ok(weburl_parse(row[i].url, &u, NULL)));
		weburl_path(&u, cgn_str_of(row[i].path), &b);
		assert_string_equal(cgn_buf_z(&b), row[i].want);
		cgn_buf_fini(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(urls_are_taken_apart),
		cmocka_unit_test(bad_urls_are_refused_by_name),
		cmocka_unit_test(paths_are_joined),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
