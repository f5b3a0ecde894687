/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "policy/text/prefix/prefix.h"

#define CHAIN_MAX 512

struct chain {
	uint64_t v[CHAIN_MAX];
	size_t n;
};

static const struct prefix_params small_blocks = {.model = {"m", 1},
	.block_bytes = 8,
	.max_blocks = CHAIN_MAX};

static struct chain chain_with(const struct prefix_params *p, const char *text)
{
	struct cgn_err err = {0};
	struct json_val body;
	struct cgn_arena a;
	struct chain c = {.n = 0};
	if (!cgn_ok(json_parse(cgn_str_of(text), &body, NULL, &err)))
		fail_msg("%s: %s", text, err.msg);
	cgn_arena_init(&a, 1 << 20);
	struct prefix_chain made = prefix_chain_make(p, body, &a);
	assert_true(made.n <= CHAIN_MAX);
	c.n = made.n;
	if (made.n > 0)
		memcpy(c.v, made.short_digests, made.n * sizeof c.v[0]);
	cgn_arena_fini(&a);
	return c;
}

static struct chain chain_of(const char *text)
{
	return chain_with(&small_blocks, text);
}

static size_t common_blocks(const struct chain *a, const struct chain *b)
{
	size_t n = 0;
	while (n < a->n && n < b->n && a->v[n] == b->v[n])
		n++;
	return n;
}

static void expect_same(const char *left, const char *right)
{
	struct chain a = chain_of(left), b = chain_of(right);
	if (a.n == 0 || a.n != b.n || common_blocks(&a, &b) != a.n)
		fail_msg("%zu and %zu, %zu alike: %s | %s", a.n, b.n, common_blocks(&a, &b), left, right);
}

/* The chain of |longer| begins with the whole chain of |shorter|, and is longer. */
static void expect_opens(const char *shorter, const char *longer)
{
	struct chain a = chain_of(shorter), b = chain_of(longer);
	if (a.n == 0 || b.n <= a.n || common_blocks(&a, &b) != a.n)
		fail_msg("%zu and %zu, %zu alike: %s | %s", a.n, b.n, common_blocks(&a, &b), shorter, longer);
}

static void differ_at_once(const char *left, const char *right)
{
	struct chain a = chain_of(left), b = chain_of(right);
	if (a.n == 0 || b.n == 0 || common_blocks(&a, &b) != 0)
		fail_msg("%zu and %zu, %zu alike: %s | %s", a.n, b.n, common_blocks(&a, &b), left, right);
}

static void differ_in_the_end(const char *left, const char *right)
{
	struct chain a = chain_of(left), b = chain_of(right);
	size_t alike = common_blocks(&a, &b);
	if (a.n == 0 || b.n == 0 || (alike == a.n && alike == b.n))
		fail_msg("alike: %s | %s", left, right);
}

static void expect_empty(const char *text)
{
	struct chain c = chain_of(text);
	if (c.n != 0)
		fail_msg("%zu blocks: %s", c.n, text);
}

#define SYSTEM "{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"}"
#define USER   "{\"role\":\"user\",\"content\":\"Tell me of the sea and its waves.\"}"
#define ANSWER "{\"role\":\"assistant\",\"content\":\"It is wide.\"}"

static void more_messages_keep_the_leading_chain(void **state)
{
	(void)state;
	expect_opens("{\"messages\":[" SYSTEM "]}", "{\"messages\":[" SYSTEM "," USER "]}");
	expect_opens("{\"messages\":[" SYSTEM "," USER "]}",
		"{\"messages\":[" SYSTEM "," USER "," ANSWER "," USER "]}");
	expect_opens("{\"prompt\":\"once upon a time\"}", "{\"prompt\":\"once upon a time there was\"}");
	expect_opens("{\"input\":[" SYSTEM "]}", "{\"input\":[" SYSTEM "," USER "]}");
	expect_opens("{\"prompt\":[101,102,103,104]}", "{\"prompt\":[101,102,103,104,105,106,107,108]}");
}

static void how_the_json_is_written_does_not_matter(void **state)
{
	(void)state;
	expect_same("{\"messages\":[" SYSTEM "," USER "]}",
		" { \"stream\" : true, \"messages\" :\n[ {\"content\": \"You are a helpful assistant.\", \"role\":\"system\" } ,\t" USER
		"], \"temperature\":0.5 }");
	expect_same("{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u00e4\\n\\ud83d\\ude00 and more\"}]}",
		"{\"messages\":[{\"r\\u006fle\":\"user\",\"content\":\"\\u0061\xc3\xa4\\u000a\xf0\x9f\x98\x80 and more\"}]}");
	expect_same("{\"messages\":[{\"role\":\"user\",\"content\":\"some longer text\"}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"some longer text\",\"cache_control\":{\"type\":\"ephemeral\"}}]}]}");
	expect_same(
		"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":1,\"b\":[true,null]}}}],\"messages\":[" USER
		"]}",
		"{\"messages\":[" USER
		"],\"tools\":[ {\"function\":{\"parameters\":{\"b\":[true, null],\"\\u0061\":1},\"name\":\"f\"},\"type\":\"function\"} ]}");
	expect_same("{\"system\":\"You are a helpful assistant.\",\"messages\":[" USER "]}",
		"{\"messages\":[" SYSTEM "," USER "]}");
	expect_same("{\"instructions\":\"You are a helpful assistant.\",\"input\":[" USER "]}",
		"{\"messages\":[" SYSTEM "," USER "]}");
	expect_same("{\"messages\":[{\"role\":\"user\",\"content\":\"null is as absent\",\"name\":null}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"null is as absent\"}]}");
}

static void what_is_in_the_root_changes_everything(void **state)
{
	(void)state;
	const char *body = "{\"messages\":[" USER "]}";
	differ_at_once(body, "{\"messages\":[" USER "],\"cache_salt\":\"s\"}");
	differ_at_once("{\"messages\":[" USER "],\"cache_salt\":\"t\"}",
		"{\"messages\":[" USER "],\"cache_salt\":\"s\"}");
	expect_same(body, "{\"messages\":[" USER "],\"cache_salt\":null}");
	differ_at_once(body, "{\"messages\":[" USER "],\"lora_path\":\"l\"}");
	differ_at_once(body, "{\"messages\":[" USER "],\"lora\":[{\"id\":0,\"scale\":1.0}]}");
	expect_same(body, "{\"messages\":[" USER "],\"lora_path\":null}");
	struct prefix_params other = small_blocks;
	struct chain base = chain_of(body);
	other.model = CGN_STR("n");
	struct chain model = chain_with(&other, body);
	assert_int_equal(common_blocks(&base, &model), 0);
	assert_int_equal(base.n, model.n);
}

static void what_is_said_matters(void **state)
{
	(void)state;
	differ_in_the_end("{\"messages\":[{\"role\":\"user\",\"content\":\"0123456789abcdef\"}]}",
		"{\"messages\":[{\"role\":\"tool\",\"content\":\"0123456789abcdef\"}]}");
	differ_in_the_end(
		"{\"messages\":[{\"role\":\"user\",\"content\":\"0123456789abcdef\"},{\"role\":\"user\",\"content\":\"x\"}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"0123456789abcdef\"}]}");
	differ_in_the_end("{\"tools\":[{\"name\":\"f\"}],\"messages\":[" USER "]}",
		"{\"tools\":[{\"name\":\"g\"}],\"messages\":[" USER "]}");
	differ_in_the_end(
		"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}",
		"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"2\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}");
	differ_in_the_end("{\"previous_response_id\":\"resp_1\",\"input\":\"go on with that\"}",
		"{\"previous_response_id\":\"resp_2\",\"input\":\"go on with that\"}");
}

#define IMAGE(url)                                                                                     \
	"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"what is it?\"}," \
	"{\"type\":\"image_url\",\"image_url\":{\"url\":\"" url "\",\"detail\":\"low\"}}]}]}"

static void images_count_by_what_they_are(void **state)
{
	(void)state;
	expect_same(IMAGE("data:image/png;base64,AAAA"), IMAGE("data:image\\/png;base64,AAAA"));
	differ_in_the_end(IMAGE("data:image/png;base64,AAAA"), IMAGE("data:image/png;base64,AAAB"));
	expect_same(
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"data\":\"AAAA\"}}]}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"source\":{\"data\":\"AAAA\",\"type\":\"base64\"},\"type\":\"image\"}]}]}");
	differ_in_the_end(
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"data\":\"AAAA\"}}]}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"data\":\"BBBB\"}}]}]}");
	struct chain tiny = chain_of(IMAGE("data:,"));
	struct cgn_buf b = {0};
	cgn_buf_putz(&b,
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"what is it?\"},"
		"{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
	for (int i = 0; i < 4000; i++)
		cgn_buf_char(&b, 'A');
	cgn_buf_putz(&b, "\"}}]}]}");
	struct chain large = chain_of(cgn_buf_z(&b));
	assert_int_equal(tiny.n, large.n);
	cgn_buf_fini(&b);
}

static void a_result_of_a_tool_is_content(void **state)
{
	(void)state;
	expect_same(
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"x\",\"content\":\"it rains today\"}]}]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"content\":[{\"type\":\"text\",\"text\":\"it rains today\"}]}]}]}");
}

static void what_is_not_understood_is_empty(void **state)
{
	(void)state;
	const char *bodies[] = {"{}", "[]", "1", "null", "\"messages\"", "{\"messages\":null}",
		"{\"messages\":\"long enough for a block\"}",
		"{\"messages\":{\"role\":\"long enough for a block\"}}",
		"{\"messages\":[\"long enough for a block\"]}", "{\"messages\":[" USER ",5]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":5}," USER "]}",
		"{\"messages\":[{\"role\":\"user\",\"content\":{\"text\":\"long enough\"}}]}",
		"{\"prompt\":5,\"tools\":[\"long enough for a block\"]}", "{\"input\":{}}",
		"{\"query\":\"long enough for a block\"}", "{\"system\":5,\"messages\":[" USER "]}"};
	for (size_t i = 0; i < CGN_COUNT(bodies); i++)
		expect_empty(bodies[i]);
	expect_empty("{\"messages\":[]}");
	expect_empty("{\"prompt\":\"short\"}");
}

static void the_chain_is_that_of_the_canonical_bytes(void **state)
{
	(void)state;
	struct chain c = chain_of("{\"messages\":[{\"role\":\"user\",\"content\":\"hello there, you\"}]}");
	struct digest root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	struct digest first = digest_chain_next(&root, CGN_STR("\x1euser\x1fhe"));
	struct digest second = digest_chain_next(&first, CGN_STR("llo ther"));
	assert_int_equal(c.n, 2);
	assert_true(c.v[0] == digest_short(&first));
	assert_true(c.v[1] == digest_short(&second));
}

static void the_chain_is_bounded(void **state)
{
	(void)state;
	struct prefix_params few = small_blocks;
	few.max_blocks = 3;
	struct chain all = chain_of("{\"messages\":[" SYSTEM "," USER "]}"),
		     some = chain_with(&few, "{\"messages\":[" SYSTEM "," USER "]}");
	assert_int_equal(some.n, 3);
	assert_int_equal(common_blocks(&all, &some), 3);
	few.max_blocks = 0;
	assert_int_equal(chain_with(&few, "{\"messages\":[" USER "]}").n, 0);
}

static void a_chain_takes_eight_bytes_a_block(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	const struct prefix_params params = {.model = {"m", 1}, .block_bytes = 512, .max_blocks = 4096};
	struct json_val body;
	struct cgn_arena a;
	cgn_buf_putz(&text, "{\"tools\":[");
	for (int i = 0; i < 2000; i++)
		cgn_buf_fmt(&text, "%s{\"n\\u0061me\":%d,\"b\":{\"d\":1,\"c\":[2]},\"a\":\"\\n\"}",
			i > 0 ? "," : "", i);
	cgn_buf_putz(&text, "],\"messages\":[" USER "]}");
	assert_true(cgn_ok(json_parse(cgn_buf_view(&text), &body, NULL, NULL)));
	cgn_arena_init(&a, (text.n / 512 + 1) * sizeof(uint64_t) + 16);
	struct prefix_chain made = prefix_chain_make(&params, body, &a);
	assert_true(made.n > 2000 * 30 / 512); /* The chain covers all tools. */
	cgn_arena_fini(&a);
	cgn_arena_init(&a, 16);
	assert_int_equal(prefix_chain_make(&params, body, &a).n, 0);
	cgn_arena_fini(&a);
}

/* Sorting the members of each level scans the levels inside it again. */
static void deep_objects_end_the_chain(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val body;
	struct cgn_arena a;
	cgn_buf_putz(&text, "{\"tools\":[\"a tool before the deep one\",");
	for (int i = 0; i < 120; i++)
		cgn_buf_putz(&text, "{\"\":");
	cgn_buf_char(&text, '"');
	for (int i = 0; i < 100000; i++)
		cgn_buf_putz(&text, "0123456789");
	cgn_buf_char(&text, '"');
	for (int i = 0; i < 120; i++)
		cgn_buf_char(&text, '}');
	cgn_buf_putz(&text, "],\"messages\":[" USER "]}");
	assert_true(cgn_ok(json_parse(cgn_buf_view(&text), &body, NULL, NULL)));
	cgn_arena_init(&a, 1 << 20);
	struct prefix_chain made = prefix_chain_make(&small_blocks, body, &a);
	assert_in_range(made.n, 3, 64);
	cgn_arena_fini(&a);
}

/* Count the blocks of a prompt whose one tool has |n| members before its messages. */
static size_t blocks_of_wide(int n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val body;
	struct cgn_arena a;
	cgn_buf_putz(&text, "{\"tools\":[\"a tool before the wide one\",{");
	for (int i = 0; i < n; i++)
		cgn_buf_fmt(&text, "%s\"%d\":0", i > 0 ? "," : "", i);
	cgn_buf_putz(&text, "}],\"messages\":[" USER "]}");
	assert_true(cgn_ok(json_parse(cgn_buf_view(&text), &body, NULL, NULL)));
	cgn_arena_init(&a, 1 << 20);
	size_t blocks = prefix_chain_make(&small_blocks, body, &a).n;
	cgn_arena_fini(&a);
	return blocks;
}

/* A chain that goes on must not leave out what lies behind the bound: two prompts that differ there would be
 * taken for one. */
static void wide_objects_end_the_chain(void **state)
{
	(void)state;
	assert_in_range(blocks_of_wide(4096), 65, SIZE_MAX);
	assert_in_range(blocks_of_wide(4097), 3, 64);
	assert_in_range(blocks_of_wide(9000), 3, 64);
}

/* A conversation grows message by message, each with text from a seed: each chain is the beginning of the
 * next. */
static void a_growing_conversation_only_grows_its_chain(void **state)
{
	(void)state;
	struct cgn_buf messages = {0}, body = {0};
	struct chain before = {.n = 0};
	uint32_t seed = 7;
	for (int turn = 0; turn < 40; turn++) {
		struct json_out o = {.b = &messages, .comma = turn > 0};
		json_open(&o, '{');
		json_key(&o, "role");
		json_put_z(&o, turn % 2 == 0 ? "user" : "assistant");
		json_key(&o, "content");
		char text[64];
		size_t n = (seed >> 16) % sizeof text;
		for (size_t i = 0; i < n; i++) {
			seed = seed * 1664525 + 1013904223;
			text[i] = (char)(seed >> 24 & 0x7f);
		}
		seed = seed * 1664525 + 1013904223;
		json_put_str(&o, (struct cgn_str){text, n});
		json_close(&o, '}');
		body.n = 0;
		cgn_buf_fmt(&body, "{\"messages\":[%s]}", cgn_buf_z(&messages));
		struct chain now = chain_of(cgn_buf_z(&body));
		assert_true(now.n >= before.n);
		assert_int_equal(common_blocks(&before, &now), before.n);
		before = now;
	}
	assert_true(before.n > 50);
	cgn_buf_fini(&messages);
	cgn_buf_fini(&body);
}

static struct digest root_of(const char *text)
{
	struct json_val body;
	assert_true(cgn_ok(json_parse(cgn_str_of(text), &body, NULL, NULL)));
	return prefix_root(CGN_STR("m"), (struct cgn_str){NULL, 0}, body);
}

static void salt_and_lora_are_in_the_root(void **state)
{
	(void)state;
	const struct digest plain = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR("")),
			    none = root_of("{\"cache_salt\":null}");
	const struct digest salted = digest_chain_root(CGN_STR("m"), CGN_STR("l"), CGN_STR("s")),
			    got = root_of("{\"cache_salt\":\"s\",\"lora_path\":\"l\"}");
	const struct digest llama = root_of("{\"lora\":[{\"id\":0,\"scale\":1}]}");
	assert_memory_equal(&plain, &none, sizeof plain);
	assert_memory_equal(&salted, &got, sizeof got);
	assert_memory_not_equal(&plain, &llama, sizeof plain);
	const struct digest escaped = root_of("{\"cache_salt\":\"\\u0073\",\"lora\":\"l\"}");
	assert_memory_equal(&salted, &escaped, sizeof salted);
}

/* A short body may have one block only, and has it. */
static void a_short_prompt_has_its_block(void **state)
{
	(void)state;
	const struct prefix_params p = {.model = {"m", 1}, .block_bytes = 64, .max_blocks = CHAIN_MAX};
	char text[128];
	(void)snprintf(text, sizeof text, "{\"prompt\":\"%.*s\"}", 70,
		"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
	assert_int_equal(chain_with(&p, text).n, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_short_prompt_has_its_block),
		cmocka_unit_test(salt_and_lora_are_in_the_root),
		cmocka_unit_test(more_messages_keep_the_leading_chain),
		cmocka_unit_test(how_the_json_is_written_does_not_matter),
		cmocka_unit_test(what_is_in_the_root_changes_everything),
		cmocka_unit_test(what_is_said_matters),
		cmocka_unit_test(images_count_by_what_they_are),
		cmocka_unit_test(a_result_of_a_tool_is_content),
		cmocka_unit_test(what_is_not_understood_is_empty),
		cmocka_unit_test(the_chain_is_that_of_the_canonical_bytes),
		cmocka_unit_test(the_chain_is_bounded),
		cmocka_unit_test(a_chain_takes_eight_bytes_a_block),
		cmocka_unit_test(deep_objects_end_the_chain),
		cmocka_unit_test(wide_objects_end_the_chain),
		cmocka_unit_test(a_growing_conversation_only_grows_its_chain),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
