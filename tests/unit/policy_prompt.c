/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "policy/text/prompt/prompt.h"

static bool prompt_of(enum prompt_api api, enum prompt_format format, const char *text, struct prompt *p,
	const char **lacks)
{
	struct json_val body;
	struct cgn_err err;
	const struct prompt_ask ask = {.api = api, .format = format, .max_ids = 8};
	if (!cgn_ok(json_parse(cgn_str_of(text), &body, NULL, &err)))
		fail_msg("%s: %s", text, err.msg);
	return prompt_read(&ask, body, p, lacks);
}

static void is_json(struct json_val v, const char *want)
{
	struct json_val again;
	if (v.raw.p == NULL && want == NULL)
		return;
	if (want == NULL || v.raw.p == NULL || !cgn_str_is(v.raw, want))
		fail_msg("%.*s is not %s", v.raw.p != NULL ? (int)v.raw.n : 4,
			v.raw.p != NULL ? v.raw.p : "none", want != NULL ? want : "none");
	assert_true(cgn_ok(json_parse(v.raw, &again, NULL, NULL)));
}

static void expect_messages(enum prompt_api api, enum prompt_format format, const char *body,
	const char *messages)
{
	struct prompt p;
	const char *lacks = NULL;
	if (!prompt_of(api, format, body, &p, &lacks))
		fail_msg("%s: %s", body, lacks);
	assert_int_equal(p.kind, PROMPT_IS_CHAT);
	is_json(p.messages, messages);
	prompt_fini(&p);
}

static void expect_chat(const char *in, const char *as_string, const char *as_parts)
{
	struct cgn_buf body = {0};
	cgn_buf_fmt(&body, "{\"messages\":%s}", in);
	expect_messages(PROMPT_CHAT, PROMPT_STRING, cgn_buf_z(&body), as_string);
	expect_messages(PROMPT_CHAT, PROMPT_PARTS, cgn_buf_z(&body), as_parts);
	cgn_buf_fini(&body);
}

static void a_format_that_keeps_what_the_client_wrote(void **state)
{
	(void)state;
	expect_messages(PROMPT_CHAT, PROMPT_KEPT,
		"{\"messages\":[{\"role\":\"user\",\"content\":\" a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]}]}",
		"[{\"role\":\"user\",\"content\":\" a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]}]");
}

static void expect_refused(enum prompt_api api, const char *body, const char *why)
{
	struct prompt p;
	const char *lacks = NULL;
	if (prompt_of(api, PROMPT_STRING, body, &p, &lacks))
		fail_msg("%s was read", body);
	assert_string_equal(lacks, why);
	prompt_fini(&p);
}

static void a_path_says_what_a_body_is(void **state)
{
	(void)state;
	assert_int_equal(prompt_api_of(CGN_STR("/v1/chat/completions")), PROMPT_CHAT);
	assert_int_equal(prompt_api_of(CGN_STR("/v1/messages?beta=true")), PROMPT_MESSAGES);
	assert_int_equal(prompt_api_of(CGN_STR("/v1/embeddings")), PROMPT_EMBEDDINGS);
	assert_int_equal(prompt_api_of(CGN_STR("/v1/rerank")), PROMPT_NONE);
	assert_int_equal(prompt_api_of(CGN_STR("/tokenize")), PROMPT_NONE);
}

static void content_is_what_the_template_takes(void **state)
{
	(void)state;
	expect_chat("[{\"content\":\"h\\u0069\\n\",\"role\":\"user\"}]",
		"[{\"role\":\"user\",\"content\":\"h\\u0069\\n\"}]",
		"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"h\\u0069\\n\"}]}]");
	expect_chat(
		"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\",{\"type\":\"input_text\",\"text\":\"c\"},{\"type\":\"refusal\",\"refusal\":\"d\"}]}]",
		"[{\"role\":\"user\",\"content\":\"a\\nb\\nc\\nd\"}]",
		"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"},{\"type\":\"text\",\"text\":\"d\"}]}]");
	expect_chat("[{\"role\":\"assistant\",\"content\":null},{\"role\":\"user\",\"content\":[]}]",
		"[{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"\"}]",
		"[{\"role\":\"assistant\",\"content\":[]},{\"role\":\"user\",\"content\":[]}]");
	expect_chat(
		"[{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y\"}]}]",
		"[{\"role\":\"tool\",\"content\":\"x\\ny\",\"tool_call_id\":\"c1\"}]",
		"[{\"role\":\"tool\",\"content\":\"x\\ny\",\"tool_call_id\":\"c1\"}]");
}

static void fields_that_engines_drop_are_dropped(void **state)
{
	(void)state;
	expect_chat(
		"[{\"role\":\"assistant\",\"weight\":1,\"name\":\"n\",\"reasoning_content\":\"r\",\"content\":\"c\",\"tool_calls\":[]}]",
		"[{\"role\":\"assistant\",\"content\":\"c\",\"name\":\"n\",\"reasoning\":\"r\",\"reasoning_content\":\"r\"}]",
		"[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}],\"name\":\"n\",\"reasoning\":\"r\",\"reasoning_content\":\"r\"}]");
}

static void arguments_become_json(void **state)
{
	(void)state;
	const char *in =
		"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1]}\"}},"
		"{\"function\":{\"name\":\"g\",\"arguments\":\"no json\"}},{\"function\":{\"name\":\"h\"}},{\"function\":{\"name\":\"i\",\"arguments\":{\"b\":2}}}]}]}";
	expect_messages(PROMPT_CHAT, PROMPT_STRING, in,
		"[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\": [1]}}},"
		"{\"function\":{\"name\":\"g\",\"arguments\":{}}},{\"function\":{\"name\":\"h\",\"arguments\":{}}},{\"function\":{\"name\":\"i\",\"arguments\":{\"b\":2}}}]}]");
}

static void tools_have_their_members_in_the_engines_order(void **state)
{
	(void)state;
	struct prompt p;
	const char *lacks = NULL;
	const char *head = "{\"messages\":[],\"tools\":";
	static const char *const rows[][2] = {
		{"[{\"function\":{\"strict\":true,\"parameters\":{\"x\":1},\"name\":\"f\"},\"type\":\"function\"}]",
			"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":null,\"parameters\":{\"x\":1},\"strict\":true}}]"},
		{"[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\",\"strict\":false}]",
			"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":null,\"strict\":false}}]"},
		{"[{\"name\":\"f\",\"input_schema\":{\"t\":0},\"cache_control\":{}}]",
			"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":null,\"parameters\":{\"t\":0}}}]"},
		{"[]", NULL},
		{"null", NULL},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		char body[512];
		(void)snprintf(body, sizeof body, "%s%s}", head, rows[i][0]);
		assert_true(prompt_of(PROMPT_CHAT, PROMPT_STRING, body, &p, &lacks));
		is_json(p.tools, rows[i][1]);
		prompt_fini(&p);
	}
}

static void chat_flags_have_the_engines_defaults(void **state)
{
	(void)state;
	struct prompt p;
	const char *lacks = NULL;
	assert_true(prompt_of(PROMPT_CHAT, PROMPT_STRING, "{\"messages\":[]}", &p, &lacks));
	assert_true(p.add_generation_prompt && !p.continue_final_message && !p.add_specials);
	prompt_fini(&p);
	assert_true(prompt_of(PROMPT_CHAT, PROMPT_STRING,
		"{\"messages\":[],\"add_generation_prompt\":false,\"continue_final_message\":true,\"add_special_tokens\":true,\"chat_template_kwargs\":{\"a\":1},\"documents\":[{}],\"reasoning_effort\":\"low\"}",
		&p, &lacks));
	assert_true(!p.add_generation_prompt && p.continue_final_message && p.add_specials);
	is_json(p.kwargs, "{\"a\":1,\"reasoning_effort\":\"low\"}");
	is_json(p.documents, "[{}]");
	prompt_fini(&p);
	assert_true(prompt_of(PROMPT_CHAT, PROMPT_STRING,
		"{\"messages\":[],\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{ }}", &p, &lacks));
	is_json(p.kwargs, "{\"reasoning_effort\":\"high\"}");
	prompt_fini(&p);
}

static void media_stand_as_their_digests(void **state)
{
	(void)state;
	struct prompt p, q;
	const char *lacks = NULL;
	const char *in =
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"http:\\/\\/x\"}}]}]}";
	const char *other =
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"input_image\",\"image_url\":\"http://x\"}]}]}";
	assert_true(prompt_of(PROMPT_CHAT, PROMPT_STRING, in, &p, &lacks));
	assert_true(prompt_of(PROMPT_CHAT, PROMPT_PARTS, other, &q, &lacks));
	assert_int_equal(p.n_media, 1);
	assert_int_equal(q.n_media, 1);
	const struct digest want = digest_of(CGN_STR("http://x"));
	assert_memory_equal(&p.media[0], &want, sizeof want);
	assert_memory_equal(&q.media[0], &want, sizeof want);
	/* Before the text in a string, at its place in a list. */
	assert_true(cgn_str_starts(p.messages.raw, "[{\"role\":\"user\",\"content\":\"" PROMPT_MEDIUM));
	assert_non_null(memmem(p.messages.raw.p, p.messages.raw.n, "\\na\"", 4));
	assert_true(cgn_str_starts(q.messages.raw,
		"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"" PROMPT_MEDIUM));
	prompt_fini(&p);
	prompt_fini(&q);
	assert_true(prompt_of(PROMPT_MESSAGES, PROMPT_RAW,
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"data\":\"AAAA\"}}]}]}",
		&p, &lacks));
	const struct digest data = digest_of(CGN_STR("AAAA"));
	assert_memory_equal(&p.media[0], &data, sizeof data);
	prompt_fini(&p);
}

static void raw_messages_stay_as_they_came(void **state)
{
	(void)state;
	expect_messages(PROMPT_CHAT, PROMPT_RAW,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}]}",
		"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}]");
}

static void items_become_messages(void **state)
{
	(void)state;
	expect_messages(PROMPT_RESPONSES, PROMPT_STRING, "{\"instructions\":\"be\",\"input\":\"hi\"}",
		"[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"hi\"}]");
	expect_messages(PROMPT_RESPONSES, PROMPT_STRING,
		"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"q\"}]},"
		"{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},"
		"{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"},"
		"{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"42\"},"
		"{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"so\"}]},"
		"{\"role\":\"assistant\",\"content\":\"more\"}]}",
		"[{\"role\":\"user\",\"content\":\"q\"},"
		"{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"hm\",\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}},\"type\":\"function\"}]},"
		"{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"c\"},"
		"{\"role\":\"assistant\",\"content\":\"so\"},{\"role\":\"assistant\",\"content\":\"more\"}]");
}

static void blocks_become_messages(void **state)
{
	(void)state;
	expect_messages(PROMPT_MESSAGES, PROMPT_STRING,
		"{\"system\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{}},{\"type\":\"text\",\"text\":\"b\"}],\"messages\":["
		"{\"role\":\"user\",\"content\":\"q\"},"
		"{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"let me see\"},{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{\"a\":1}}]},"
		"{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"text\",\"text\":\"4\"},{\"type\":\"text\",\"text\":\"2\"}]}]},"
		"{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"text\",\"text\":\"y\"}]}]}",
		"[{\"role\":\"system\",\"content\":\"ab\"},{\"role\":\"user\",\"content\":\"q\"},"
		"{\"role\":\"assistant\",\"content\":\"let me see\",\"tool_calls\":[{\"id\":\"t\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},"
		"{\"role\":\"tool\",\"content\":\"4\\n2\",\"tool_call_id\":\"t\"},"
		"{\"role\":\"user\",\"content\":\"x\\ny\"}]");
}

static void texts_and_ids_of_a_completion(void **state)
{
	(void)state;
	struct prompt p;
	const char *lacks = NULL;
	assert_true(prompt_of(PROMPT_COMPLETIONS, PROMPT_STRING, "{\"prompt\":\"a\\u00e4\"}", &p, &lacks));
	assert_int_equal(p.kind, PROMPT_IS_TEXT);
	assert_true(cgn_str_is(p.text, "a\xc3\xa4") && p.add_specials);
	prompt_fini(&p);
	assert_true(prompt_of(PROMPT_COMPLETIONS, PROMPT_STRING,
		"{\"prompt\":[\"first\",\"second\"],\"add_special_tokens\":false}", &p, &lacks));
	assert_true(cgn_str_is(p.text, "first") && !p.add_specials);
	prompt_fini(&p);
	assert_true(prompt_of(PROMPT_COMPLETIONS, PROMPT_STRING, "{\"prompt\":[1,2,70000]}", &p, &lacks));
	assert_true(p.kind == PROMPT_IS_IDS && p.n_ids == 3 && p.ids[2] == 70000);
	prompt_fini(&p);
	assert_true(prompt_of(PROMPT_COMPLETIONS, PROMPT_STRING, "{\"prompt\":[[5,6],[7]]}", &p, &lacks));
	assert_true(p.kind == PROMPT_IS_IDS && p.n_ids == 2 && p.ids[0] == 5);
	prompt_fini(&p);
	assert_true(prompt_of(PROMPT_EMBEDDINGS, PROMPT_STRING, "{\"input\":[1,2,3,4,5,6,7,8,9,10]}", &p,
		&lacks));
	assert_int_equal(p.n_ids, 8); /* The bound. */
	prompt_fini(&p);
	expect_messages(PROMPT_EMBEDDINGS, PROMPT_STRING,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
		"[{\"role\":\"user\",\"content\":\"a\"}]");
}

static void what_can_not_be_known_says_why(void **state)
{
	(void)state;
	expect_refused(PROMPT_CHAT, "{\"messages\":[],\"chat_template\":\"{{ 1 }}\"}", PROMPT_LACKS_TEMPLATE);
	expect_refused(PROMPT_RESPONSES, "{\"input\":\"a\",\"previous_response_id\":\"r\"}",
		PROMPT_LACKS_HISTORY);
	expect_refused(PROMPT_COMPLETIONS, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":5}",
		PROMPT_LACKS_TRUNCATE);
	static const char *const shapeless[] = {"{}", "{\"messages\":5}", "{\"messages\":[5]}",
		"{\"messages\":[{\"content\":\"a\"}]}", "{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
		"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]}",
		"{\"messages\":[],\"tools\":[7]}"};
	for (size_t i = 0; i < CGN_COUNT(shapeless); i++)
		expect_refused(PROMPT_CHAT, shapeless[i], PROMPT_LACKS_SHAPE);
	expect_refused(PROMPT_COMPLETIONS, "{\"prompt\":[]}", PROMPT_LACKS_SHAPE);
	expect_refused(PROMPT_COMPLETIONS, "{\"prompt\":[-1]}", PROMPT_LACKS_SHAPE);
	expect_refused(PROMPT_COMPLETIONS, "{\"prompt\":[1.5]}", PROMPT_LACKS_SHAPE);
	expect_refused(PROMPT_RESPONSES, "{\"input\":7}", PROMPT_LACKS_SHAPE);
}

static void more_media_than_the_bound_are_refused(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	cgn_buf_putz(&b, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"image_url\":\"u\"}");
	for (int i = 0; i < PROMPT_MEDIA_MAX; i++)
		cgn_buf_putz(&b, ",{\"image_url\":\"u\"}");
	cgn_buf_putz(&b, "]}]}");
	expect_refused(PROMPT_CHAT, cgn_buf_z(&b), PROMPT_LACKS_SHAPE);
	cgn_buf_fini(&b);
}

static void the_format_is_found_in_the_template(void **state)
{
	(void)state;
	static const char *const strings[] = {
		"",
		"{% for message in messages %}{{ message['content'] }}{% endfor %}",
		"{% for m in messages %}{% for c in tools %}{{ c }}{% endfor %}{% endfor %}",
		"{# {% for message in messages %}{% for c in message.content %} #}",
		"{% for message in messages %}{% for c in message.content.items() %}x{% endfor %}{% endfor %}",
		"{% for message in messages %}{% for c in message.tool_calls %}x{% endfor %}{% endfor %}",
		"{% for message in messages + [] %}{% for c in message.content %}x{% endfor %}{% endfor %}",
		"{% for message in messages %}{% set content = message.content %}{% for c in content %}x{% endfor %}{% endfor %}",
		"{% for",
	};
	static const char *const parts[] = {
		"{%- for message in messages -%}{%- for item in message['content'] -%}{{ item }}{%- endfor -%}{%- endfor -%}",
		"{% for message in messages[1:] %}{% for c in message.content | selectattr('type', 'equalto', 'image') %}x{% endfor %}{% endfor %}",
		"{% set loop_messages = messages %}{% for m in loop_messages %}{% set msg = m %}{% for c in msg[\"content\"] %}x{% endfor %}{% endfor %}",
		"{% for message in messages %}{% for c in message.content if c.type == 'text' %}x{% endfor %}{% endfor %}",
	};
	for (size_t i = 0; i < CGN_COUNT(strings); i++)
		if (prompt_format_of(cgn_str_of(strings[i])) != PROMPT_STRING)
			fail_msg("parts: %s", strings[i]);
	for (size_t i = 0; i < CGN_COUNT(parts); i++)
		if (prompt_format_of(cgn_str_of(parts[i])) != PROMPT_PARTS)
			fail_msg("a string: %s", parts[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_path_says_what_a_body_is),
		cmocka_unit_test(a_format_that_keeps_what_the_client_wrote),
		cmocka_unit_test(content_is_what_the_template_takes),
		cmocka_unit_test(fields_that_engines_drop_are_dropped),
		cmocka_unit_test(arguments_become_json),
		cmocka_unit_test(tools_have_their_members_in_the_engines_order),
		cmocka_unit_test(chat_flags_have_the_engines_defaults),
		cmocka_unit_test(media_stand_as_their_digests),
		cmocka_unit_test(raw_messages_stay_as_they_came),
		cmocka_unit_test(items_become_messages),
		cmocka_unit_test(blocks_become_messages),
		cmocka_unit_test(texts_and_ids_of_a_completion),
		cmocka_unit_test(what_can_not_be_known_says_why),
		cmocka_unit_test(more_media_than_the_bound_are_refused),
		cmocka_unit_test(the_format_is_found_in_the_template),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
