/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/node/modelsource/modelsource.h"

#define SUM "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"

static struct cgn_arena arena;
static struct modelsource_list list;
static struct cgn_err err;

static int list_new(void **state)
{
	(void)state;
	cgn_arena_init(&arena, (size_t)1 << 24);
	list = (struct modelsource_list){.arena = &arena};
	return 0;
}

static int list_free(void **state)
{
	(void)state;
	cgn_arena_fini(&arena);
	return 0;
}

static void sources_are_read(void **state)
{
	(void)state;
	struct modelsource s;
	assert_true(cgn_ok(modelsource_parse("hf:Qwen/Qwen3-8B", &s, &err)));
	assert_true(s.kind == MODELSOURCE_HUB);
	assert_string_equal(s.name, "Qwen/Qwen3-8B");
	assert_string_equal(s.revision, "main");
	assert_true(cgn_ok(modelsource_parse("hf:a/b@refs/pr/1", &s, &err)));
	assert_string_equal(s.revision, "refs/pr/1");
	assert_true(cgn_ok(modelsource_parse("oci://127.0.0.1:5000/models/llama:8b", &s, &err)));
	assert_string_equal(s.host, "127.0.0.1:5000");
	assert_string_equal(s.name, "models/llama");
	assert_string_equal(s.revision, "8b");
	assert_true(cgn_ok(modelsource_parse("oci://r.example/m@sha256:" SUM, &s, &err)));
	assert_string_equal(s.revision, "sha256:" SUM);
	assert_true(cgn_ok(modelsource_parse("oci://r.example/m", &s, &err)));
	assert_string_equal(s.revision, "latest");
	assert_true(cgn_ok(modelsource_parse("s3://bucket/a/b/", &s, &err)));
	assert_string_equal(s.prefix, "a/b");
	assert_true(cgn_str_is(modelsource_title(&s), "b"));
	assert_true(cgn_ok(modelsource_parse("https://h/x/m.gguf?d=1/2", &s, &err)));
	assert_true(s.kind == MODELSOURCE_HTTP && cgn_str_is(modelsource_title(&s), "m.gguf"));
	assert_true(cgn_ok(modelsource_parse("file:/models/m/", &s, &err)) && s.kind == MODELSOURCE_PATH);
	assert_true(cgn_str_is(modelsource_title(&s), "m"));
	assert_true(cgn_ok(modelsource_parse("file:///models/m", &s, &err)));
	assert_string_equal(s.name, "/models/m");
	assert_false(cgn_ok(modelsource_parse("file://host/models/m", &s, &err)));
}

static void what_is_no_source_is_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/b@",
		"hf:a/b@x y", "hf:a/b?c", "oci://", "oci://host", "oci://host/", "oci://host/a:b c",
		"oci://host/a@md5:00", "http:///m.gguf", "https://", "http://:80/x", "s3://", "s3:///key",
		"ftp://host/x", "oci://host/../x:1"};
	struct modelsource s;
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(cgn_ok(modelsource_parse(bad[i], &s, &err)));
}

static void only_paths_inside_the_folder_are_safe(void **state)
{
	(void)state;
	static const char *const good[] = {"a", "a/b.c", ".hidden", "a..b", "...", "a b"};
	static const char *const bad[] = {"", "/a", "a/", "a//b", "..", "../a", "a/../b", ".", "a/.", "a\\b",
		"a\nb", "a\x7f"};
	for (size_t i = 0; i < CGN_COUNT(good); i++)
		assert_true(modelsource_path_is_safe(cgn_str_of(good[i])));
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(modelsource_path_is_safe(cgn_str_of(bad[i])));
	assert_false(modelsource_path_is_safe((struct cgn_str){"a\0b", 3}));
}

static void the_hubs_tree(void **state)
{
	(void)state;
	assert_true(cgn_ok(modelsource_hub_read(
		CGN_STR("[{\"type\":\"directory\",\"path\":\"d\"},{\"type\":\"file\",\"path\":\"d/config.json\",\"size\":12,\"oid\":\"ab\"},"
			"{\"type\":\"file\",\"path\":\"m.safetensors\",\"size\":130,\"lfs\":{\"oid\":\"" SUM
			"\",\"size\":5000,\"pointerSize\":130}}]"),
		&list, &err)));
	assert_int_equal(list.n, 2);
	assert_string_equal(list.files[0].path, "d/config.json");
	assert_true(list.files[0].size == 12 && list.files[0].sha256[0] == '\0');
	assert_true(list.files[1].size == 5000);
	assert_string_equal(list.files[1].sha256, SUM);
	assert_false(
		cgn_ok(modelsource_hub_read(CGN_STR("[{\"type\":\"file\",\"path\":\"../../etc/passwd\"}]"),
			&list, &err)));
	assert_non_null(strstr(err.msg, "outside the folder"));
	assert_false(cgn_ok(modelsource_hub_read(CGN_STR("{}"), &list, &err)));
	assert_false(cgn_ok(modelsource_hub_read(CGN_STR("<html>"), &list, &err)));
	static const char *const sums[] = {"\"sha256:" SUM "\"", "\"" SUM "0\"", "\"12\"", "\"\"", "null",
		"7"};
	for (size_t i = 0; i < CGN_COUNT(sums); i++) {
		char text[300];
		list.n = 0;
		(void)snprintf(text, sizeof text,
			"[{\"type\":\"file\",\"path\":\"m\",\"size\":1,\"lfs\":{\"oid\":%s}}]", sums[i]);
		assert_false(cgn_ok(modelsource_hub_read(cgn_str_of(text), &list, &err)));
		assert_non_null(strstr(err.msg, "checksum"));
	}
}

static void a_registrys_manifest(void **state)
{
	(void)state;
	char next[128];
	assert_true(cgn_ok(modelsource_oci_read(CGN_STR("{\"manifests\":[{\"digest\":\"sha256:" SUM "\"}]}"),
		&list, next, &err)));
	assert_string_equal(next, "sha256:" SUM);
	assert_true(cgn_ok(modelsource_oci_read(
		CGN_STR("{\"layers\":[{\"digest\":\"sha256:" SUM
			"\",\"size\":3,\"annotations\":{\"org.opencontainers.image.title\":\"m.gguf\"}},"
			"{\"digest\":\"sha256:" SUM "\",\"size\":4}]}"),
		&list, next, &err)));
	assert_string_equal(next, "");
	assert_int_equal(list.n, 2);
	assert_string_equal(list.files[0].path, "m.gguf");
	assert_string_equal(list.files[0].sha256, SUM);
	assert_string_equal(list.files[1].path, "sha256-" SUM);
	assert_false(cgn_ok(modelsource_oci_read(CGN_STR("{\"layers\":[{\"digest\":\"sha256:12\"}]}"), &list,
		next, &err)));
	assert_false(cgn_ok(modelsource_oci_read(CGN_STR("{\"manifests\":[]}"), &list, next, &err)));
	assert_false(cgn_ok(modelsource_oci_read(CGN_STR("{}"), &list, next, &err)));
}

static void a_buckets_list(void **state)
{
	(void)state;
	char token[1100];
	assert_true(cgn_ok(modelsource_s3_read(
		CGN_STR("<ListBucketResult><Contents><Key>m/a/</Key><Size>0</Size></Contents><Contents><Key>m/a/x &amp; y&#46;bin</Key><Size>7</Size></Contents>"
			"<Contents><Key>m/a-large/z</Key><Size>9</Size></Contents><NextContinuationToken>t&lt;1</NextContinuationToken></ListBucketResult>"),
		"m/a", &list, token, &err)));
	assert_int_equal(list.n, 1);
	assert_string_equal(list.files[0].path, "x & y.bin");
	assert_string_equal(list.files[0].where, "m/a/x & y.bin");
	assert_true(list.files[0].size == 7);
	assert_string_equal(token, "t<1");
	/* The address of one object. */
	assert_true(cgn_ok(modelsource_s3_read(
		CGN_STR("<ListBucketResult><Contents><Key>m/a.gguf</Key><Size>7</Size></Contents></ListBucketResult>"),
		"m/a.gguf", &list, token, &err)));
	assert_string_equal(list.files[1].path, "a.gguf");
	assert_string_equal(token, "");
	assert_false(cgn_ok(
		modelsource_s3_read(CGN_STR("<ListBucketResult><Contents><Key>m/a/../../x</Key></Contents>"),
			"m/a", &list, token, &err)));
	assert_false(cgn_ok(
		modelsource_s3_read(CGN_STR("<ListBucketResult><Contents><Key>m/a/&evil;</Key></Contents>"),
			"m/a", &list, token, &err)));
	assert_false(cgn_ok(modelsource_s3_read(CGN_STR("<Error/>"), "", &list, token, &err)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sources_are_read),
		cmocka_unit_test(what_is_no_source_is_refused),
		cmocka_unit_test(only_paths_inside_the_folder_are_safe),
		cmocka_unit_test_setup_teardown(the_hubs_tree, list_new, list_free),
		cmocka_unit_test_setup_teardown(a_registrys_manifest, list_new, list_free),
		cmocka_unit_test_setup_teardown(a_buckets_list, list_new, list_free),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
