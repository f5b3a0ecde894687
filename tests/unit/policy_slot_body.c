/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json/json.h"
#include "policy/kv/slots/body.h"

#define CHAT CGN_STR("/v1/chat/completions")
#define TEXT CGN_STR("/v1/completions?x=1")

static void body_with_slot(const char *body, const char *expected)
{
	char text[SLOT_BODY_INSERT];
	struct slot_body b = slot_body_read(CHAT, cgn_str_of(body));
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct json_val doc;
	assert_true(b.placeable);
	cgn_buf_add(&out, body, b.at);
	cgn_buf_add(&out, text, slot_body_insert(&b, 3, text));
	cgn_buf_putz(&out, body + b.at);
	assert_string_equal(cgn_buf_z(&out), expected);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&out), &doc, NULL, NULL)));
	assert_int_equal(json_get_u64(doc, "id_slot", 99), 3);
}

static void the_body_stays_as_it_is(void **state)
{
	(void)state;
	body_with_slot("{\"model\":\"m\"}", "{\"id_slot\":3,\"model\":\"m\"}");
	body_with_slot(" \n{ \"a\" : [1, 2] } ", " \n{\"id_slot\":3, \"a\" : [1, 2] } ");
	body_with_slot("{}", "{\"id_slot\":3}");
	body_with_slot("{ \t}", "{\"id_slot\":3 \t}");
	body_with_slot("{\"n\":1,\"prompt\":\"{\\\"id_slot\\\":1}\"}",
		"{\"id_slot\":3,\"n\":1,\"prompt\":\"{\\\"id_slot\\\":1}\"}");
}

static bool is_placed(struct cgn_str path, const char *body)
{
	return slot_body_read(path, cgn_str_of(body)).placeable;
}

static void a_prefill_drops_what_is_of_the_answer(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	slot_body_prefill(TEXT,
		CGN_STR("{\"prompt\":\"a\",\"n_predic\\u0074\":9,\"\\u0073tream\":true,\"n_predict\":9,\"k\\n\":1}"),
		3, true, &out);
	assert_string_equal(cgn_buf_z(&out),
		"{\"prompt\":\"a\",\"k\\n\":1,\"stream\":false,\"max_tokens\":1,\"id_slot\":3}");
}

static void some_are_left_alone(void **state)
{
	(void)state;
	assert_false(is_placed(CHAT, "{\"id_slot\":0}")); /* The client's own slot */
	assert_false(is_placed(CHAT, "{\"n\":2}"));
	assert_false(is_placed(CHAT, "{\"n\":\"2\"}"));
	assert_true(is_placed(CHAT, "{\"n\":null}"));
	assert_false(is_placed(TEXT, "{\"prompt\":[\"a\",\"b\"]}"));
	assert_false(is_placed(TEXT, "{\"prompt\":[[1,2],[3]]}"));
	assert_true(is_placed(TEXT, "{\"prompt\":[\"a\"]}"));
	assert_true(is_placed(TEXT, "{\"prompt\":[1,2,3]}"));
	assert_true(is_placed(TEXT, "{\"prompt\":\"a\"}"));
	assert_true(is_placed(CGN_STR("/v1/responses"), "{\"input\":\"a\"}"));
	assert_false(is_placed(CGN_STR("/v1/messages"), "{\"messages\":[]}"));
	assert_false(is_placed(CGN_STR("/v1/embeddings"), "{\"input\":\"a\"}"));
	assert_false(is_placed(CHAT, "[1]"));
	assert_false(is_placed(CHAT, "{\"a\":"));
	assert_false(is_placed(CHAT, ""));
	assert_false(slot_body_read(CHAT, CGN_STR("{\"cache_prompt\":false}")).caches);
	assert_true(slot_body_read(CHAT, CGN_STR("{\"cache_prompt\":true}")).caches);
	assert_true(slot_body_read(CHAT, CGN_STR("{\"a\":1}")).caches);
}

static void prefill_body(struct cgn_str path, const char *body, const char *expected)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct json_val doc;
	slot_body_prefill(path, cgn_str_of(body), 2, true, &out);
	assert_string_equal(cgn_buf_z(&out), expected);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&out), &doc, NULL, NULL)));
}

static void reuse_is_forbidden_whatever_the_client_says(void **state)
{
	(void)state;
	static const char *const bodies[] = {"{}", " {\"cache_prompt\":true} ",
		"{\"prompt\":\"}\",\"a\":{}}\n"};
	for (size_t i = 0; i < CGN_COUNT(bodies); i++) {
		struct cgn_str body = cgn_str_of(bodies[i]);
		struct slot_body b = slot_body_read(CHAT, body);
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		cgn_buf_add(&out, body.p, b.end);
		cgn_buf_str(&out, slot_body_forbid_reuse(&b));
		cgn_buf_add(&out, body.p + b.end, body.n - b.end);
		assert_false(slot_body_read(CHAT, cgn_buf_view(&out)).caches);
		assert_true(slot_body_read(CHAT, cgn_buf_view(&out)).end > 0);
	}
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	slot_body_prefill(TEXT, CGN_STR("{\"cache_prompt\":true}"), 3, false, &out);
	assert_false(slot_body_read(TEXT, cgn_buf_view(&out)).caches);
}

static void salts_are_owners(void **state)
{
	(void)state;
	uint64_t a = slot_body_read(CHAT, CGN_STR("{\"cache_salt\":\"a\"}")).owner;
	assert_true(a != 0);
	assert_true(a == slot_body_read(TEXT, CGN_STR("{\"x\":1,\"cache_salt\":\"a\"}")).owner);
	assert_true(a != slot_body_read(CHAT, CGN_STR("{\"cache_salt\":\"b\"}")).owner);
	assert_true(slot_body_read(CHAT, CGN_STR("{\"x\":1}")).owner == 0);
	assert_true(slot_body_read(CHAT, CGN_STR("{\"cache_salt\":null}")).owner == 0);
}

static void a_prefill_says_one_token(void **state)
{
	(void)state;
	prefill_body(CHAT,
		"{\"messages\":[{\"n\":1}],\"stream\":true,\"stream_options\":{},\"max_tokens\":100,\"max_completion_tokens\":7,\"seed\":1}",
		"{\"messages\":[{\"n\":1}],\"seed\":1,\"stream\":false,\"max_tokens\":1,\"id_slot\":2}");
	prefill_body(TEXT, "{}", "{\"stream\":false,\"max_tokens\":1,\"id_slot\":2}");
	prefill_body(CGN_STR("/v1/responses"), "{\"input\":\"a\\\"b\",\"max_output_tokens\":9}",
		"{\"input\":\"a\\\"b\",\"stream\":false,\"max_output_tokens\":1,\"id_slot\":2}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_body_stays_as_it_is),
		cmocka_unit_test(a_prefill_drops_what_is_of_the_answer),
		cmocka_unit_test(some_are_left_alone),
		cmocka_unit_test(a_prefill_says_one_token),
		cmocka_unit_test(reuse_is_forbidden_whatever_the_client_says),
		cmocka_unit_test(salts_are_owners),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
