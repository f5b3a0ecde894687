/* SPDX-License-Identifier: Apache-2.0 */
/* Requests as clients write them, valid and invalid; and JSON that fits a schema. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sim/request/request.h"
#include "sim/text/schema.h"

static const struct sim_cfg cfg = {.models = {"sim", "other"},
	.n_models = 2,
	.block_tokens = 16,
	.max_model_len = 1000,
	.max_tokens_default = 64};
static struct cgn_arena arena;
static struct sim_request ask;
static struct sim_refusal no;

static bool parse_body(enum sim_api api, const char *body)
{
	const struct sim_request_env env = {&cfg, &arena, NULL, 0};
	no = (struct sim_refusal){0};
	return sim_request_parse(&env, api, cgn_str_of(body), &ask, &no);
}

static void assert_good(enum sim_api api, const char *body)
{
	if (!parse_body(api, body))
		fail_msg("%s: %d %s", body, no.status, no.msg);
}

static void request_done(void)
{
	sim_request_fini(&ask);
	cgn_arena_reset(&arena);
}

static void assert_bad(enum sim_api api, const char *body, int status, const char *code)
{
	if (parse_body(api, body))
		fail_msg("%s was accepted", body);
	assert_int_equal(no.status, status);
	assert_string_equal(no.code, code);
	assert_true(strlen(no.msg) > 5);
	request_done();
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void the_four_apis_are_read(void **state)
{
	(void)state;
	assert_good(SIM_CHAT,
		"{\"model\":\"other\"," USER
		",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_completion_tokens\":9,"
		"\"n\":3,\"stop\":[\"a\",\"b\\u0041\"],\"logprobs\":true,\"top_logprobs\":4,\"seed\":5}");
	assert_int_equal(ask.model, 1);
	assert_true(ask.stream && ask.include_usage);
	assert_int_equal(ask.n, 3);
	assert_int_equal(ask.limits.max_tokens, 9);
	assert_int_equal(ask.limits.n_stops, 2);
	assert_true(cgn_str_is(ask.limits.stops[1], "bA"));
	assert_int_equal(ask.logprobs, 4);
	assert_int_equal(ask.seed, 5);
	assert_int_equal(ask.prompts[0].n_tokens, 4); /* user, "hi", end, assistant */
	request_done();
	assert_good(SIM_COMPLETIONS, "{\"prompt\":[\"one\",\"two three\"],\"logprobs\":2}");
	assert_int_equal(ask.n_prompts, 2);
	assert_int_equal(ask.limits.max_tokens, 16);
	assert_int_equal(ask.logprobs, 2);
	assert_int_equal(ask.prompts[1].n_tokens, 2);
	request_done();
	assert_good(SIM_COMPLETIONS, "{\"prompt\":[[65,66],[67]]}");
	assert_int_equal(ask.n_prompts, 2);
	request_done();
	assert_good(SIM_COMPLETIONS, "{\"prompt\":[65,66,67]}");
	assert_int_equal(ask.n_prompts, 1);
	assert_int_equal(ask.prompts[0].n_tokens, 3);
	request_done();
	assert_good(SIM_RESPONSES, "{\"input\":\"hi\",\"instructions\":\"be\",\"max_output_tokens\":3}");
	assert_int_equal(ask.prompts[0].n_tokens, 7);
	assert_int_equal(ask.limits.max_tokens, 3);
	request_done();
	assert_good(SIM_RESPONSES,
		"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"hi\"}]}]}");
	assert_int_equal(ask.prompts[0].n_tokens, 4);
	request_done();
	assert_good(SIM_MESSAGES,
		"{\"max_tokens\":3,\"system\":[{\"type\":\"text\",\"text\":\"be\"}],\"stop_sequences\":[\"x\"]," USER
		"}");
	assert_int_equal(ask.limits.n_stops, 1);
	assert_int_equal(ask.prompts[0].n_tokens, 7);
	request_done();
}

static void the_same_chat_is_the_same_prompt(void **state)
{
	(void)state;
	assert_good(SIM_CHAT, "{" USER "}");
	uint64_t digest = sim_chain_digest(&ask.prompts[0]);
	request_done();
	assert_good(SIM_CHAT,
		"{\"temperature\":0.3,\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"h\\u0069\"}],\"role\":\"user\"}],\"user\":\"x\"}");
	assert_true(sim_chain_digest(&ask.prompts[0]) == digest);
	request_done();
	assert_good(SIM_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"hi\"}]}");
	assert_true(sim_chain_digest(&ask.prompts[0]) != digest);
	request_done();
}

static void images_count_as_tokens(void **state)
{
	(void)state;
	assert_good(SIM_CHAT,
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"},{\"type\":\"image_url\",\"image_url\":{"
		"\"url\":\"data:image/png;base64,AA==\"}}]}]}");
	assert_int_equal(ask.prompts[0].n_tokens, 4 + SIM_IMAGE_TOKENS);
	request_done();
}

static void bad_requests_are_refused(void **state)
{
	(void)state;
	assert_bad(SIM_CHAT, "", 400, "invalid_json");
	assert_bad(SIM_CHAT, "{\"messages\":", 400, "invalid_json");
	assert_bad(SIM_CHAT, "[]", 400, "invalid_type");
	assert_bad(SIM_CHAT, "{}", 400, "missing");
	assert_bad(SIM_CHAT, "{\"messages\":{}}", 400, "missing");
	assert_bad(SIM_CHAT, "{\"messages\":[]}", 400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"messages\":[3]}", 400, "invalid_type");
	assert_bad(SIM_CHAT, "{\"model\":\"gpt\"," USER "}", 404, "model_not_found");
	assert_bad(SIM_CHAT, "{\"model\":3," USER "}", 400, "invalid_type");
	assert_bad(SIM_CHAT, "{\"n\":0," USER "}", 400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"n\":129," USER "}", 400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"n\":1.5," USER "}", 400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"max_tokens\":0," USER "}", 400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"max_tokens\":-4," USER "}", 400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"max_tokens\":997," USER "}", 400, "context_length_exceeded");
	assert_bad(SIM_CHAT, "{\"max_tokens\":4294967294," USER "}", 400, "context_length_exceeded");
	assert_bad(SIM_CHAT, "{\"stop\":7," USER "}", 400, "invalid_type");
	assert_bad(SIM_CHAT, "{\"stop\":\"\"," USER "}", 400, "invalid_value");
	assert_bad(SIM_CHAT,
		"{\"stop\":[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]," USER
		"}",
		400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"logprobs\":true,\"top_logprobs\":21," USER "}", 400, "invalid_value");
	assert_bad(SIM_CHAT, "{\"seed\":\"x\"," USER "}", 400, "invalid_type");
	assert_bad(SIM_MESSAGES, "{" USER "}", 400, "missing");
	assert_bad(SIM_RESPONSES, "{\"input\":3}", 400, "missing");
	assert_bad(SIM_COMPLETIONS, "{\"prompt\":\"\"}", 400, "invalid_value");
	assert_bad(SIM_COMPLETIONS, "{\"prompt\":[1,\"x\"]}", 400, "invalid_value");
	assert_bad(SIM_COMPLETIONS, "{\"prompt\":[49999999]}", 400, "invalid_value");
	assert_bad(SIM_COMPLETIONS, "{\"prompt\":{}}", 400, "invalid_type");
	assert_bad(SIM_COMPLETIONS, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":128}", 400, "invalid_value");
}

#define TOOLS                                                                                                                                    \
	"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}},{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"," \
	"\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":7}}}}}]"

static void tools_are_called_by_rule(void **state)
{
	(void)state;
	assert_good(SIM_CHAT, "{" TOOLS "," USER "}");
	assert_false(ask.is_tool);
	request_done();
	assert_good(SIM_CHAT, "{" TOOLS ",\"tool_choice\":\"required\"," USER "}");
	assert_true(ask.is_tool && cgn_str_is(ask.tool_name, "get_time"));
	assert_true(ask.script.n > 0);
	request_done();
	assert_good(SIM_CHAT,
		"{" TOOLS
		",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}," USER "}");
	assert_true(ask.is_tool && cgn_str_is(ask.tool_name, "get_weather"));
	struct json_val args = {0};
	struct cgn_err err;
	assert_true(cgn_ok(json_parse(cgn_buf_view(&ask.script), &args, NULL, &err)));
	uint64_t days = json_get_u64(args, "days", 0);
	assert_true(days >= 1 && days <= 7);
	assert_true(json_get_str(args, "city", &arena).n > 0);
	request_done();
	assert_good(SIM_CHAT,
		"{" TOOLS ",\"messages\":[{\"role\":\"user\",\"content\":\"please get_weather\"}]}");
	assert_true(ask.is_tool && cgn_str_is(ask.tool_name, "get_weather"));
	request_done();
	assert_good(SIM_CHAT,
		"{" TOOLS
		",\"tool_choice\":\"none\",\"messages\":[{\"role\":\"user\",\"content\":\"please get_weather\"}]}");
	assert_false(ask.is_tool);
	request_done();
	/* The tool has answered, so the model speaks next. */
	assert_good(SIM_CHAT,
		"{" TOOLS
		",\"messages\":[{\"role\":\"user\",\"content\":\"get_weather\"},{\"role\":\"tool\",\"content\":\"rain\"}]}");
	assert_false(ask.is_tool);
	request_done();
	assert_good(SIM_MESSAGES,
		"{\"max_tokens\":50,\"tools\":[{\"name\":\"t\",\"input_schema\":{\"type\":\"object\"}}],\"tool_choice\":{\"type\":\"any\"}," USER
		"}");
	assert_true(ask.is_tool && cgn_str_is(cgn_buf_view(&ask.script), "{}"));
	request_done();
	assert_good(SIM_RESPONSES,
		"{\"tools\":[{\"type\":\"function\",\"name\":\"t\"}],\"tool_choice\":\"required\",\"input\":\"x\"}");
	assert_true(ask.is_tool);
	request_done();
}

static void formats_are_json(void **state)
{
	(void)state;
	static const char *const bodies[] = {
		"{\"response_format\":{\"type\":\"json_object\"}," USER "}",
		"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
		"\"boolean\"}}}}}," USER "}",
	};
	for (size_t i = 0; i < CGN_COUNT(bodies); i++) {
		struct json_val root = {0};
		struct cgn_err err;
		assert_good(SIM_CHAT, bodies[i]);
		assert_false(ask.is_tool);
		assert_true(cgn_ok(json_parse(cgn_buf_view(&ask.script), &root, NULL, &err)));
		assert_int_equal(root.type, JSON_OBJECT);
		request_done();
	}
	assert_good(SIM_CHAT, "{\"response_format\":{\"type\":\"text\"}," USER "}");
	assert_int_equal(ask.script.n, 0);
	request_done();
}

/* Fill |schema|; the result must be JSON. The caller frees |out|. */
static struct json_val fill_schema(const char *schema, struct cgn_buf *out)
{
	struct json_val root = {0}, made = {0};
	struct cgn_err err;
	uint64_t rng = 9;
	assert_true(cgn_ok(json_parse(cgn_str_of(schema), &root, NULL, &err)));
	struct json_out o = json_out_to(out);
	sim_schema_fill(root, &rng, &arena, &o);
	if (!cgn_ok(json_parse(cgn_buf_view(out), &made, NULL, &err)))
		fail_msg("%s gave %s", schema, cgn_buf_z(out));
	return made;
}

static void schemas_are_obeyed(void **state)
{
	(void)state;
	static const struct {
		const char *schema, *want; /* NULL: any value of |type|. */
		enum json_type type;
	} cases[] = {
		{"{\"enum\":[\"a\\n\",2]}", "\"a\\n\"", JSON_STRING},
		{"{\"const\":{\"x\":[1]}}", "{\"x\":[1]}", JSON_OBJECT},
		{"{\"type\":\"integer\",\"minimum\":5,\"maximum\":5}", "5", JSON_NUMBER},
		{"{\"type\":\"number\",\"minimum\":-2.5,\"maximum\":-2}", "-2", JSON_NUMBER},
		{"{\"type\":[\"null\",\"string\"]}", "null", JSON_NULL},
		{"{\"type\":\"boolean\"}", NULL, JSON_BOOL},
		{"{\"type\":\"string\"}", NULL, JSON_STRING},
		{"{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]}", "null", JSON_NULL},
		{"{\"$defs\":{\"A\":{\"const\":1}},\"$ref\":\"#/$defs/A\"}", "1", JSON_NUMBER},
		{"{\"type\":\"array\",\"minItems\":3,\"items\":{\"const\":0}}", "[0,0,0]", JSON_ARRAY},
		{"{\"properties\":{\"k\\\"\":{\"const\":1}}}", "{\"k\\\"\":1}", JSON_OBJECT},
		{"{}", NULL, JSON_STRING},
		{"true", NULL, JSON_STRING},
		{"{\"$ref\":\"http://elsewhere\"}", NULL, JSON_STRING},
		{"{\"type\":\"integer\",\"minimum\":1e300}", NULL, JSON_NUMBER},
	};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct cgn_buf out = {0};
		struct json_val v = fill_schema(cases[i].schema, &out);
		assert_int_equal(v.type, cases[i].type);
		if (cases[i].want != NULL)
			assert_string_equal(cgn_buf_z(&out), cases[i].want);
		cgn_buf_fini(&out);
	}
}

static void endless_schemas_end(void **state)
{
	(void)state;
	static const char *const schemas[] = {
		"{\"$ref\":\"#\"}",
		"{\"$defs\":{\"A\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/A\"},\"b\":{\"$ref\":\"#/$defs/A\"}}}},\"$ref\":\"#/$defs/A\"}",
		"{\"$defs\":{\"L\":{\"type\":\"array\",\"minItems\":1000000000,\"items\":{\"$ref\":\"#/$defs/L\"}}},\"$ref\":\"#/$defs/L\"}",
	};
	for (size_t i = 0; i < CGN_COUNT(schemas); i++) {
		struct cgn_buf out = {0};
		(void)fill_schema(schemas[i], &out);
		assert_true(out.n < 1 << 20);
		cgn_buf_fini(&out);
	}
}

static void natural_lengths_stay_in_range(void **state)
{
	(void)state;
	bool differ = false;
	for (uint64_t d = 0; d < 1000; d++) {
		uint32_t n = sim_request_natural_tokens(&cfg, d);
		assert_true(n >= 32 && n <= 64);
		differ |= n != sim_request_natural_tokens(&cfg, d + 1);
	}
	assert_true(differ);
	const struct sim_cfg one = {.max_tokens_default = 1};
	assert_int_equal(sim_request_natural_tokens(&one, 3), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_four_apis_are_read),
		cmocka_unit_test(the_same_chat_is_the_same_prompt),
		cmocka_unit_test(images_count_as_tokens),
		cmocka_unit_test(bad_requests_are_refused),
		cmocka_unit_test(tools_are_called_by_rule),
		cmocka_unit_test(formats_are_json),
		cmocka_unit_test(schemas_are_obeyed),
		cmocka_unit_test(endless_schemas_end),
		cmocka_unit_test(natural_lengths_stay_in_range),
	};
	cgn_arena_init(&arena, 1 << 24);
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	cgn_arena_fini(&arena);
	return rc;
}
