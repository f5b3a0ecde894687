/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "base/digest/digest.h"
#include "policy/answer/ollama/ollama.h"

#define STREAM "\"stream\":true,\"stream_options\":{\"include_usage\":true}}"

static struct json_val json_of(const char *text)
{
	struct json_val v;
	assert_true(cgn_ok(json_parse(cgn_str_of(text), &v, NULL, NULL)));
	return v;
}

/* Check the body that an engine gets for |body|, and that it is JSON. */
static void assert_request(enum ollama_api api, const char *body, const char *path, const char *expected)
{
	struct cgn_buf out = {0};
	struct ollama_request rq;
	struct cgn_err err;
	assert_true(cgn_ok(ollama_request_read(api, json_of(body), CGN_STR("m"), &rq, &out, &err)));
	assert_false(rq.loads);
	assert_string_equal(rq.path, path);
	assert_string_equal(cgn_buf_z(&out), expected);
	(void)json_of(cgn_buf_z(&out));
	cgn_buf_fini(&out);
}

static void assert_refused(enum ollama_api api, const char *body, const char *what)
{
	struct cgn_buf out = {0};
	struct ollama_request rq;
	struct cgn_err err = {0};
	assert_int_equal(ollama_request_read(api, json_of(body), CGN_STR("m"), &rq, &out, &err).code,
		CGN_INVALID);
	assert_non_null(strstr(err.msg, what));
	assert_int_equal(out.n, 0);
}

static void a_chat_becomes_a_stream_of_openais(void **state)
{
	(void)state;
	assert_request(OLLAMA_CHAT,
		"{\"model\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9\"}]}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9\"}]," STREAM);
	/* not streamed: the engine streams all the same */
	assert_request(OLLAMA_CHAT, "{\"stream\":false,\"messages\":[{\"role\":\"user\"}]}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\"}]," STREAM);
}

static void options_get_the_names_of_openai(void **state)
{
	(void)state;
	assert_request(OLLAMA_CHAT,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"options\":{\"num_predict\":7,\"temperature\":0.5,"
		"\"top_p\":0.9,\"top_k\":40,\"min_p\":0.1,\"seed\":3,\"stop\":[\"a\",\"b\"],\"repeat_penalty\":1.1,"
		"\"presence_penalty\":1,\"frequency_penalty\":2,\"num_ctx\":4096,\"num_gpu\":1},\"keep_alive\":\"5m\"}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"temperature\":0.5,\"top_p\":0.9,"
		"\"top_k\":40,\"min_p\":0.1,\"seed\":3,\"stop\":[\"a\",\"b\"],\"presence_penalty\":1,"
		"\"frequency_penalty\":2,\"repeat_penalty\":1.1,\"repetition_penalty\":1.1,\"max_tokens\":7," STREAM);
	/* no limit */
	assert_request(OLLAMA_CHAT,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"options\":{\"num_predict\":-1}}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\"}]," STREAM);
	assert_refused(OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\"}],\"options\":3}", "options");
}

static void formats_and_thinking(void **state)
{
	(void)state;
	assert_request(OLLAMA_CHAT,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"format\":\"json\",\"think\":false,\"logprobs\":true,"
		"\"top_logprobs\":2,\"tools\":[{\"type\":\"function\"}]}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"tools\":[{\"type\":\"function\"}],"
		"\"logprobs\":true,\"top_logprobs\":2,\"response_format\":{\"type\":\"json_object\"},"
		"\"chat_template_kwargs\":{\"enable_thinking\":false}," STREAM);
	assert_request(OLLAMA_CHAT,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"format\":{\"type\":\"object\"},\"think\":\"low\","
		"\"tools\":[]}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\"}],\"response_format\":{\"type\":\"json_schema\","
		"\"json_schema\":{\"name\":\"answer\",\"strict\":true,\"schema\":{\"type\":\"object\"}}},"
		"\"reasoning_effort\":\"low\"," STREAM);
	assert_refused(OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\"}],\"format\":\"xml\"}", "format");
	assert_refused(OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\"}],\"think\":3}", "think");
}

static void images_become_urls(void **state)
{
	(void)state;
	assert_request(OLLAMA_CHAT,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"h\",\"images\":[\"/9j/AA\",\"iVBORw\",\"https://x/y\"]}]}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"h\"},"
		"{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/jpeg;base64,/9j/AA\"}},"
		"{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,iVBORw\"}},"
		"{\"type\":\"image_url\",\"image_url\":{\"url\":\"https://x/y\"}}]}]," STREAM);
	assert_refused(OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\",\"images\":[3]}]}", "images");
	assert_refused(OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\",\"images\":\"x\"}]}", "images");
}

/* A result names its tool; the engine wants the id of the call. Two calls of one tool are answered in order. */
static void results_find_their_calls(void **state)
{
	(void)state;
	assert_request(OLLAMA_CHAT,
		"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},"
		"{\"function\":{\"name\":\"g\"}},{\"id\":\"own\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
		"{\"role\":\"tool\",\"tool_name\":\"g\",\"content\":\"1\"},{\"role\":\"tool\",\"tool_name\":\"f\",\"content\":\"2\"},"
		"{\"role\":\"tool\",\"content\":\"3\"}]}",
		"/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
		"{\"id\":\"call_0\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},"
		"{\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}},"
		"{\"id\":\"own\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
		"{\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":\"call_1\"},"
		"{\"role\":\"tool\",\"content\":\"2\",\"tool_call_id\":\"call_0\"},"
		"{\"role\":\"tool\",\"content\":\"3\",\"tool_call_id\":\"own\"}]," STREAM);
	assert_refused(OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\",\"tool_calls\":[{}]}]}",
		"function.name");
	assert_refused(OLLAMA_CHAT,
		"{\"messages\":[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"name\":5}}]}]}",
		"function.name");
	assert_refused(OLLAMA_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "role");
	assert_refused(OLLAMA_CHAT, "{\"messages\":3}", "messages");
}

static void a_prompt_becomes_a_chat_or_a_text(void **state)
{
	(void)state;
	assert_request(OLLAMA_GENERATE, "{\"prompt\":\"p\",\"system\":\"s\"}", "/v1/chat/completions",
		"{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
		"{\"role\":\"user\",\"content\":\"p\"}]," STREAM);
	assert_request(OLLAMA_GENERATE, "{\"prompt\":\"p\",\"raw\":true}", "/v1/completions",
		"{\"model\":\"m\",\"prompt\":\"p\"," STREAM);
	assert_request(OLLAMA_GENERATE, "{\"prompt\":\"p\",\"suffix\":\"q\"}", "/v1/completions",
		"{\"model\":\"m\",\"prompt\":\"p\",\"suffix\":\"q\"," STREAM);
	assert_refused(OLLAMA_GENERATE, "{\"prompt\":3}", "prompt");
	assert_refused(OLLAMA_GENERATE, "{\"prompt\":\"p\",\"template\":\"t\"}", "template");
	assert_refused(OLLAMA_GENERATE, "{\"prompt\":\"p\",\"context\":[1]}", "context");
	assert_refused(OLLAMA_GENERATE, "{\"prompt\":\"p\",\"raw\":true,\"images\":[\"x\"]}", "images");
}

static void inputs_become_vectors(void **state)
{
	(void)state;
	assert_request(OLLAMA_EMBED, "{\"input\":[\"a\",\"b\"],\"dimensions\":8,\"stream\":true}",
		"/v1/embeddings",
		"{\"model\":\"m\",\"input\":[\"a\",\"b\"],\"encoding_format\":\"float\",\"dimensions\":8}");
	assert_request(OLLAMA_EMBEDDINGS, "{\"prompt\":\"a\"}", "/v1/embeddings",
		"{\"model\":\"m\",\"input\":\"a\",\"encoding_format\":\"float\"}");
	assert_refused(OLLAMA_EMBED, "{\"input\":3}", "input");
	assert_refused(OLLAMA_EMBEDDINGS, "{\"prompt\":[\"a\"]}", "prompt");
}

static void without_a_prompt_nothing_is_asked(void **state)
{
	static const struct {
		enum ollama_api api;
		const char *body, *expected;
		bool unloads;
	} rows[] = {
		{OLLAMA_CHAT, "{}",
			"{\"model\":\"x\",\"created_at\":\"2025-11-24T16:00:00.123Z\",\"message\":{\"role\":\"assistant\","
			"\"content\":\"\"},\"done\":true,\"done_reason\":\"load\"}",
			false},
		{OLLAMA_CHAT, "{\"messages\":[],\"keep_alive\":0}",
			"{\"model\":\"x\",\"created_at\":\"2025-11-24T16:00:00.123Z\",\"message\":{\"role\":\"assistant\","
			"\"content\":\"\"},\"done\":true,\"done_reason\":\"unload\"}",
			true},
		{OLLAMA_GENERATE, "{\"prompt\":\"\",\"keep_alive\":\"0\"}",
			"{\"model\":\"x\",\"created_at\":\"2025-11-24T16:00:00.123Z\",\"response\":\"\",\"done\":true,"
			"\"done_reason\":\"unload\"}",
			true},
		{OLLAMA_EMBED, "{\"input\":[]}", "{\"model\":\"x\",\"embeddings\":[]}", false},
		{OLLAMA_EMBEDDINGS, "{}", "{\"embedding\":[]}", false},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct cgn_buf out = {0};
		struct ollama_request rq;
		assert_true(cgn_ok(ollama_request_read(rows[i].api, json_of(rows[i].body), CGN_STR("m"), &rq,
			&out, NULL)));
		assert_true(rq.loads && rq.unloads == rows[i].unloads && out.n == 0);
		ollama_put_loaded(rows[i].api, CGN_STR("x"), rq.unloads, 1764000000123, &out);
		assert_string_equal(cgn_buf_z(&out), rows[i].expected);
		cgn_buf_fini(&out);
	}
}

/* ---- answers ---- */

struct trial {
	enum ollama_api api;
	bool stream;
	int status;
	bool events;
	const char *in;
	size_t vectors;
	const char *encoding;
};

/* Return the answer that a client gets, fed |step| bytes at a time, 10 ns each. The caller frees
 * it. */
static struct cgn_buf answer_of(const struct trial *t, size_t step, int *status)
{
	struct cgn_buf out = {0};
	struct ollama_answer *a = ollama_answer_new(t->api, t->stream, CGN_STR("x"));
	struct ollama_time now = {1764000000123, 0};
	assert_non_null(a);
	struct cgn_str encoding = cgn_str_of(t->encoding != NULL ? t->encoding : "");
	ollama_answer_expect(a, t->vectors);
	bool lines = ollama_answer_begin(a, t->status, t->events, encoding);
	assert_true(lines == (t->stream && t->events && t->status == 200 && encoding.n == 0));
	for (size_t at = 0, n = strlen(t->in); at < n; at += step) {
		now.elapsed += 10;
		ollama_answer_feed(a, (struct cgn_str){t->in + at, n - at < step ? n - at : step}, &now,
			&out);
	}
	now.elapsed += 10;
	ollama_answer_end(a, &now, &out);
	*status = ollama_answer_status(a);
	ollama_answer_free(&a);
	return out;
}

static void assert_answer(const struct trial *t, size_t step, int status, const char *expected)
{
	int got = 0;
	struct cgn_buf out = answer_of(t, step, &got);
	assert_string_equal(cgn_buf_z(&out), expected);
	assert_int_equal(got, status);
	cgn_buf_fini(&out);
}

#define AT          "{\"model\":\"x\",\"created_at\":\"2025-11-24T16:00:00.123Z\","
#define SAID(text)  "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"},\"finish_reason\":null}]}"
#define EVENT(data) "data: " data "\n\n"
#define LAST_USAGE  "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}"

static void a_stream_becomes_lines(void **state)
{
	const struct trial t = {OLLAMA_CHAT, true, 200, true,
		EVENT("{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}") EVENT(
			SAID("a\\n")) EVENT(SAID("\\u00e9"))
			EVENT("{\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}") EVENT(
				"{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2},"
				"\"timings\":{\"prompt_ms\":1.5,\"predicted_ms\":2.25}}") EVENT("[DONE]")};
	const char *expected = AT
		"\"message\":{\"role\":\"assistant\",\"content\":\"a\\n\"},\"done\":false}\n" AT
		"\"message\":{\"role\":\"assistant\",\"content\":\"\\u00e9\"},\"done\":false}\n" AT
		"\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"done_reason\":\"length\","
		"\"total_duration\":10,\"load_duration\":0,\"prompt_eval_count\":5,\"prompt_eval_duration\":1500000,"
		"\"eval_count\":2,\"eval_duration\":2250000}\n";
	(void)state;
	assert_answer(&t, strlen(t.in), 200, expected);
	/* cut anywhere, only the time is another */
	struct cgn_buf byte = {0};
	int status = 0;
	byte = answer_of(&t, 1, &status);
	assert_non_null(strstr(cgn_buf_z(&byte), "\"content\":\"a\\n\"},\"done\":false}\n"));
	assert_non_null(strstr(cgn_buf_z(&byte), "\"eval_duration\":2250000}\n"));
	cgn_buf_fini(&byte);
}

/* Without the engine's own times, those of the stream count: the first token came after 10 ns of 30. */
static void a_stream_is_gathered(void **state)
{
	const struct trial t = {OLLAMA_GENERATE, false, 200, true,
		EVENT(SAID("a")) EVENT(SAID("b")) EVENT(LAST_USAGE) EVENT("[DONE]")};
	(void)state;
	assert_answer(&t, strlen(EVENT(SAID("a"))), 200,
		AT
		"\"response\":\"ab\",\"done\":true,\"done_reason\":\"stop\",\"total_duration\":40,\"load_duration\":0,"
		"\"prompt_eval_count\":5,\"prompt_eval_duration\":10,\"eval_count\":2,\"eval_duration\":10}");
}

static void thoughts_tools_and_logprobs(void **state)
{
	const struct trial t = {OLLAMA_CHAT, true, 200, true,
		EVENT("{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}") EVENT(
			"{\"choices\":[{\"delta\":{\"content\":\"a\"},\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-1}]}}]}")
			EVENT("{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\","
			      "\"arguments\":\"{\\n\\\"a\\\"\"}}]}}]}")
				EVENT("{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\":1}\"}},"
				      "{\"index\":1,\"function\":{\"name\":\"g\"}}]},\"finish_reason\":\"tool_calls\"}]}")
					EVENT("[DONE]")};
	(void)state;
	assert_answer(&t, strlen(t.in), 200,
		AT
		"\"message\":{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"hm\"},\"done\":false}\n" AT
		"\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"logprobs\":[{\"token\":\"a\",\"logprob\":-1}],"
		"\"done\":false}\n" AT
		"\"message\":{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"index\":0,"
		"\"name\":\"f\",\"arguments\":{ \"a\":1}}},{\"function\":{\"index\":1,\"name\":\"g\",\"arguments\":{}}}]},"
		"\"done\":false}\n" AT
		"\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\","
		"\"total_duration\":10,\"load_duration\":0,\"prompt_eval_count\":0,\"prompt_eval_duration\":10,"
		"\"eval_count\":0,\"eval_duration\":0}\n");
}

static void errors_are_told(void **state)
{
	static const struct {
		struct trial t;
		int status;
		const char *expected;
	} rows[] = {
		{{OLLAMA_CHAT, true, 400, false, "{\"error\":{\"message\":\"no\\n\",\"code\":1}}"}, 400,
			"{\"error\":\"no\\n\"}"},
		{{OLLAMA_CHAT, true, 422, false, "{\"detail\":[1]}"}, 422, "{\"error\":\"[1]\"}"},
		{{OLLAMA_EMBED, false, 500, false, "<html>"}, 500, "{\"error\":\"<html>\"}"},
		{{OLLAMA_CHAT, true, 200, true, EVENT("{\"error\":{\"message\":\"out\"}}") EVENT(SAID("a"))},
			502, "{\"error\":\"out\"}\n"},
		{{OLLAMA_CHAT, false, 200, true, EVENT("x")}, 502,
			"{\"error\":\"the engine sent an event that is not a JSON object\"}"},
		{{OLLAMA_CHAT, false, 200, true,
			 EVENT("{\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"[1\"}}]}}]}")
				 EVENT("[DONE]")},
			502,
			"{\"error\":\"the engine's tool call has arguments that are not a JSON object\"}"},
		{{OLLAMA_EMBED, false, 200, false, "{\"data\":[{\"index\":1,\"embedding\":[1]}]}"}, 502,
			"{\"error\":\"the engine's answer is not a list with a vector for each input\"}"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		assert_answer(&rows[i].t, 4096, rows[i].status, rows[i].expected);
}

#define CALLS(pieces) EVENT("{\"choices\":[{\"delta\":{\"tool_calls\":[" pieces "]}}]}")
#define CALL(n, id, name, arguments)                                                                       \
	"{\"index\":" #n ",\"id\":\"" id "\",\"function\":{\"name\":\"" name "\",\"arguments\":" arguments \
	"}}"
#define BARE(name, arguments) "{\"function\":{\"name\":\"" name "\",\"arguments\":" arguments "}}"
#define FINISH(reason)        EVENT("{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"" reason "\"}]}")
#define PARTS(parts)          EVENT("{\"choices\":[{\"delta\":{\"content\":" parts "}}]}")
#define DONE                  EVENT("[DONE]")
#define TOLD(n, name, arguments) \
	"\"function\":{\"index\":" #n ",\"name\":\"" name "\",\"arguments\":" arguments "}"

/* Every strange stream that an engine was seen to send, and what the client gets of it, as lines and as a whole; cut at
 * every byte. */
static const struct odd_answer {
	const char *in;
	const char *has[2]; /* Each is in the answer. */
	const char *error;  /* Or this is the answer. */
} odd_answers[] = {
	/* Tool calls of one index, of none, and in pieces. */
	{CALLS(CALL(0, "c1", "f", "\"{\\\"x\\\":1}\"")) CALLS(CALL(0, "c2", "g", "\"{}\""))
			FINISH("tool_calls"),
		{TOLD(0, "f", "{\"x\":1}"), TOLD(1, "g", "{}")}, NULL},
	{CALLS(CALL(0, "c1", "f", "\"{}\"")) CALLS(CALL(0, "c2", "f", "\"{}\"")) DONE,
		{TOLD(0, "f", "{}"), TOLD(1, "f", "{}")}, NULL},
	{CALLS(CALL(0, "", "f", "\"{\\\"x\\\":1}\"")) CALLS(CALL(0, "", "f", "\"{\\\"x\\\":2}\"")) DONE,
		{TOLD(0, "f", "{\"x\":1}"), TOLD(1, "f", "{\"x\":2}")}, NULL},
	{CALLS(CALL(0, "x", "f", "\"{}\"")) CALLS(CALL(1, "x", "f", "\"{}\"")) DONE,
		{TOLD(0, "f", "{}"), TOLD(1, "f", "{}")}, NULL},
	{CALLS(BARE("f", "\"{\\\"x\\\":1}\"")) CALLS(BARE("g", "\"{}\"")) DONE,
		{TOLD(0, "f", "{\"x\":1}"), TOLD(1, "g", "{}")}, NULL},
	{CALLS(BARE("f", "\"{}\"") "," BARE("f", "\"{}\"")) DONE, {TOLD(0, "f", "{}"), TOLD(1, "f", "{}")},
		NULL},
	{CALLS(BARE("f", "\"{\\\"x\\\":\"")) CALLS("{\"function\":{\"arguments\":\"1}\"}}") DONE,
		{TOLD(0, "f", "{\"x\":1}"), ""}, NULL},
	{CALLS(CALL(0, "c1", "f", "\"{\\\"x\\\":\"")) CALLS(CALL(0, "c2", "g", "\"{}\""))
			CALLS(CALL(0, "c1", "f", "\"1}\"")) DONE,
		{TOLD(0, "f", "{\"x\":1}"), TOLD(1, "g", "{}")}, NULL},
	{CALLS(CALL(0, "c1", "f", "\"{\\\"x\\\": \\\"}\\\\\\\"\"")) CALLS(CALL(0, "c1", "f", "\"{\\\"}\""))
			DONE,
		{TOLD(0, "f", "{\"x\": \"}\\\"{\"}"), ""}, NULL},
	{CALLS(CALL(0, "c1", "f", "{\"x\":1}")) DONE, {TOLD(0, "f", "{\"x\":1}"), ""}, NULL},
	{CALLS(CALL(0, "c1", "f", "null"))
			CALLS("{\"index\":0,\"id\":null,\"function\":{\"name\":null,\"arguments\":"
			      "\"{\\\"x\\\":1}\"}}") DONE,
		{TOLD(0, "f", "{\"x\":1}"), ""}, NULL},
	{CALLS(CALL(0, "c1", "f", "\"\"")) DONE, {TOLD(0, "f", "{}"), ""}, NULL},
	{EVENT("{\"choices\":[{\"delta\":{\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}}}]}")
			FINISH("function_call"),
		{TOLD(0, "f", "{}"), ""}, NULL},
	{CALLS(CALL(0, "c1", "f", "7")) DONE, {NULL, NULL},
		"the engine's tool call has arguments that are not a JSON object"},
	{CALLS(CALL(0, "c1", "f", "\"{\"")) FINISH("length"), {NULL, NULL},
		"the engine's tool call has arguments that are not a JSON object"},
	{CALLS(CALL(0, "c1", "", "\"{}\"")) DONE, {NULL, NULL}, "the engine's tool call names no function"},
	{CALLS("{\"type\":\"custom\"}") DONE, {NULL, NULL}, "the engine's tool call names no function"},
	{EVENT("{\"choices\":[{\"delta\":{\"tool_calls\":{}}}]}") DONE, {NULL, NULL},
		"the engine's tool calls are not a list"},
	/* Calls without parameters, whose arguments are an object, and white space behind arguments. */
	{CALLS(BARE("f", "{}")) CALLS(BARE("f", "{}")) DONE, {TOLD(0, "f", "{}"), TOLD(1, "f", "{}")}, NULL},
	{CALLS(CALL(0, "", "f", "{}")) CALLS(CALL(0, "", "f", "{}")) DONE,
		{TOLD(0, "f", "{}"), TOLD(1, "f", "{}")}, NULL},
	{CALLS(CALL(0, "", "f", "{\"x\":1}")) CALLS(CALL(0, "", "f", "{}")) DONE,
		{TOLD(0, "f", "{\"x\":1}"), TOLD(1, "f", "{}")}, NULL},
	{CALLS(CALL(0, "c1", "f", "\"{}\"")) CALLS(CALL(0, "", "", "\"\\n\""))
			CALLS(CALL(0, "", "", "\" \\u0009\"")) CALLS(CALL(1, "", "g", "\"{}\"")) DONE,
		{"\"id\":\"c1\",\"function\":{\"index\":0,\"name\":\"f\"", TOLD(1, "g", "{}")}, NULL},
	{CALLS(CALL(0, "c1", "f", "{}")) CALLS(CALL(0, "", "", "\" \\n\"")) DONE, {"\"name\":\"f\"", ""},
		NULL},
	{CALLS(CALL(0, "c1", "f", "\"\\n\"")) DONE, {TOLD(0, "f", "{}"), ""}, NULL},
	/* Texts. */
	{PARTS("[{\"type\":\"text\",\"text\":\"\\u00e9\"},\"b\",{\"type\":\"text\",\"text\":\"\"}]") DONE,
		{"\"content\":\"\\u00e9b\"", ""}, NULL},
	{PARTS("[{\"type\":\"thinking\",\"thinking\":[{\"type\":\"text\",\"text\":\"hm\"}]},{\"text\":\"b\"}]")
			DONE,
		{"\"content\":\"b\"", "\"thinking\":\"hm\""}, NULL},
	{PARTS("null") EVENT("{\"choices\":[{\"delta\":{\"refusal\":\"no\"}}]}") FINISH("content_filter"),
		{"\"content\":\"no\"", "\"done_reason\":\"content_filter\""}, NULL},
	{EVENT("{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"B\"}}]}") EVENT(SAID("A")) DONE,
		{"\"content\":\"A\"", "\"done_reason\":\"stop\""}, NULL},
	{PARTS("[{\"type\":\"image_url\"}]") DONE, {NULL, NULL},
		"the engine's answer has a text of an unknown shape"},
	{PARTS("7") DONE, {NULL, NULL}, "the engine's answer has a text of an unknown shape"},
	{EVENT("{\"choices\":[7]}") DONE, {NULL, NULL}, "the engine's answer has a text of an unknown shape"},
	/* Ends. */
	{EVENT(SAID(
		 "a")) "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}]}",
		{"b\"", "\"done_reason\":\"length\""}, NULL},
	{EVENT(SAID("ab")) "data: [DONE]\r", {"\"content\":\"ab\"", "\"done_reason\":\"stop\""}, NULL},
	{EVENT(SAID("ab")) ": ping\n\ndata:\n\n" EVENT("{}") FINISH("eos_token"),
		{"\"content\":\"ab\"", "\"done_reason\":\"stop\""}, NULL},
	{EVENT(SAID("ab")) FINISH("abort") DONE, {NULL, NULL},
		"the engine ended its answer with the reason \\\"abort\\\""},
	{EVENT(SAID("ab")) FINISH("error"), {NULL, NULL},
		"the engine ended its answer with the reason \\\"error\\\""},
	{EVENT(SAID("ab")), {NULL, NULL},
		"the engine's answer stopped without a finish_reason and without [DONE]"},
	{EVENT(SAID("ab")) "data: {\"choices\":[{\"del", {NULL, NULL},
		"the engine sent an event that is not a JSON object"},
	{"", {NULL, NULL}, "the engine ended its answer without a choice in it"},
	{DONE, {NULL, NULL}, "the engine ended its answer without a choice in it"},
	{": ping\n\n" EVENT("{\"choices\":[]}") DONE, {NULL, NULL},
		"the engine ended its answer without a choice in it"},
	/* Errors. */
	{EVENT(SAID("a")) EVENT("{\"object\":\"error\",\"message\":\"boom\"}") DONE, {NULL, NULL}, "boom"},
	{EVENT("{\"type\":\"error\",\"message\":\"boom\"}"), {NULL, NULL}, "boom"},
	{EVENT("{\"error\":\"boom\"}"), {NULL, NULL}, "boom"},
	{EVENT("{\"detail\":\"boom\"}"), {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) "event: error\ndata: boom\n\n", {NULL, NULL}, "boom"},
	{"event: error\ndata: {\"code\":5}", {NULL, NULL}, "{\\\"code\\\":5}"},
	{EVENT(SAID("a")) "error: {\"code\":500,\"message\":\"context shift is disabled\"}\n\n" DONE,
		{NULL, NULL}, "context shift is disabled"},
	{EVENT(SAID("a")) "Error: boom\r\n" DONE, {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) "error:{\"error\":{\"message\":\"boom\"}}\n" DONE, {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) "error: \"boom\"\n\n" DONE, {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) "error\n\n" DONE, {NULL, NULL}, "the engine sent an error without a text"},
	{EVENT(SAID("a")) "event: error\ndata:\n\n" DONE, {NULL, NULL},
		"the engine sent an error without a text"},
	{EVENT(SAID("a")) "event: Error\ndata: {\"message\":\"boom\"}\n\n" DONE, {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) "error: {\"message\":\"boom\"}", {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) "{\"error\":{\"message\":\"boom\"}}\n" DONE, {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) " {\"message\":\"boom\",\"code\":500}\n\n" DONE, {NULL, NULL}, "boom"},
	{EVENT(SAID("a")) "{\"foo\":1}\n" DONE, {NULL, NULL}, "the engine sent JSON that is not in an event"},
	{EVENT(SAID("a")) "[1]\n" DONE, {NULL, NULL}, "the engine sent JSON that is not in an event"},
	{EVENT(SAID("a")) FINISH("ABORT") DONE, {NULL, NULL},
		"the engine ended its answer with the reason \\\"ABORT\\\""},
	{EVENT(SAID("a")) FINISH("Error") DONE, {NULL, NULL},
		"the engine ended its answer with the reason \\\"Error\\\""},
	{EVENT(SAID("a")) FINISH("abort ") DONE, {NULL, NULL},
		"the engine ended its answer with the reason \\\"abort \\\""},
	{EVENT(SAID("a")) EVENT("{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":5}]}") DONE,
		{NULL, NULL}, "the engine's finish_reason is not a text"},
	{EVENT(SAID("a")) EVENT("{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":false}]}") DONE,
		{NULL, NULL}, "the engine's finish_reason is not a text"},
	{EVENT(SAID("a")) EVENT(
		 "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":{\"type\":\"stop\"}}]}") DONE,
		{NULL, NULL}, "the engine's finish_reason is not a text"},
	{EVENT(SAID("a")) EVENT("{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":[\"error\"]}]}")
			DONE,
		{NULL, NULL}, "the engine's finish_reason is not a text"},
	{EVENT(SAID("a")) EVENT(
		 "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\",\"error\":{\"message\":\"boom\"}}]}")
			DONE,
		{NULL, NULL}, "boom"},
	{EVENT(SAID("a")) EVENT("{\"message\":\"boom\",\"type\":\"InternalServerError\",\"code\":500}") DONE,
		{NULL, NULL}, "boom"},
	{EVENT(SAID("a")) EVENT("{\"status\":\"error\"}") DONE, {NULL, NULL},
		"{\\\"status\\\":\\\"error\\\"}"},
	{EVENT(SAID("a")) EVENT("{\"foo\":\"bar\"}") DONE, {NULL, NULL},
		"the engine sent an object without choices"},
	{EVENT(SAID("a")) EVENT("{\"type\":\"pong\"}") DONE, {NULL, NULL},
		"the engine sent an object without choices"},
	{EVENT(SAID("a")) EVENT("{\"choices\":{\"error\":\"x\"}}") DONE, {NULL, NULL},
		"the engine's choices are not a list"},
	{EVENT(SAID("a")) EVENT("{\"choices\":\"x\"}") DONE, {NULL, NULL},
		"the engine's choices are not a list"},
	/* Lines and events without a choice that are not errors. */
	{EVENT(SAID("ab")) "id: 1\nretry: 5\nfoo: bar\n\n" EVENT(
		 "{\"choices\":[],\"usage\":{\"prompt_tokens\":5}}") EVENT("{\"usage\":{\"prompt_tokens\":5}}")
			EVENT("{\"choices\":null,\"timings\":{\"prompt_ms\":1}}") EVENT(
				"{\"choices\":[],\"prompt_filter_results\":[]}") EVENT("{\"type\":\"ping\"}")
				EVENT("{\"object\":\"chat.completion.chunk\",\"id\":\"x\"}") EVENT(
					"{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":null,\"error\":null}]}")
					FINISH("STOP ") DONE,
		{"\"content\":\"ab\"", "\"done_reason\":\"stop\""}, NULL},
	{EVENT("{\"error\":null,\"choices\":[{\"delta\":{\"content\":\"ab\"}}]}") DONE,
		{"\"content\":\"ab\"", "\"done_reason\":\"stop\""}, NULL},
};

static void odd_assert(const struct odd_answer *o, bool stream, size_t step)
{
	const struct trial t = {OLLAMA_CHAT, stream, 200, true, o->in};
	char error[200];
	int status = 0;
	struct cgn_buf out = answer_of(&t, step, &status);
	const char *text = cgn_buf_z(&out);
	(void)snprintf(error, sizeof error, "{\"error\":\"%s\"}%s", o->error, stream ? "\n" : "");
	bool ends = o->error == NULL ||
		(strlen(text) >= strlen(error) && strcmp(text + strlen(text) - strlen(error), error) == 0);
	for (size_t i = 0; i < 2 && o->error == NULL; i++)
		ends = ends && strstr(text, o->has[i]) != NULL;
	if (!ends || (strstr(text, "\"done\":true") != NULL) != (o->error == NULL) ||
		status != (o->error == NULL ? 200 : 502))
		fail_msg("%s\nby %zu bytes, %s: %d %s", o->in, step, stream ? "lines" : "whole", status,
			text);
	cgn_buf_fini(&out);
}

static void an_odd_answer_is_understood_or_an_error(void **state)
{
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(odd_answers); i++)
		for (size_t step = 1; step <= 4096; step *= step < 8 ? 7 : 600) {
			odd_assert(&odd_answers[i], true, step);
			odd_assert(&odd_answers[i], false, step);
		}
}

/* The same for answers that are not streams, and for vectors. */
static void an_odd_body_is_understood_or_an_error(void **state)
{
	static const struct {
		struct trial t;
		int status;
		const char *has; /* In the answer. */
	} rows[] = {
		{{OLLAMA_CHAT, true, 200, false, "{\"object\":\"error\",\"message\":\"boom\",\"code\":500}"},
			502, "{\"error\":\"boom\"}"},
		{{OLLAMA_CHAT, false, 200, false, "{\"detail\":\"boom\"}"}, 502, "{\"error\":\"boom\"}"},
		{{OLLAMA_CHAT, false, 400, false, "{\"object\":\"error\",\"message\":\"boom\"}"}, 400,
			"{\"error\":\"boom\"}"},
		{{OLLAMA_CHAT, false, 404, false, "{\"message\":\"boom\"}"}, 404, "{\"error\":\"boom\"}"},
		{{OLLAMA_CHAT, false, 200, false, ""}, 502, "not a JSON object"},
		{{OLLAMA_CHAT, false, 200, false, "{}"}, 502, "without a choice"},
		{{OLLAMA_CHAT, false, 200, false, "{\"choices\":[]}"}, 502, "without a choice"},
		{{OLLAMA_CHAT, false, 200, false, "{\"choices\":[{\"finish_reason\":\"stop\"}]}"}, 502,
			"without a choice"},
		{{OLLAMA_CHAT, false, 200, false,
			 "{\"choices\":[{\"message\":{\"content\":[{\"text\":\"a\"}]},\"finish_reason\":\"abort\"}]}"},
			502, "the reason \\\"abort\\\""},
		{{OLLAMA_CHAT, false, 200, false,
			 "{\"choices\":[{\"delta\":null,\"message\":{\"content\":[{\"text\":\"a\"},{\"text\":\"b\"}]}}]}"},
			200, "\"content\":\"ab\""},
		{{OLLAMA_CHAT, true, 200, true, "\x1f\x8b", .encoding = "gzip"}, 502, "compressed"},
		{{OLLAMA_EMBED, false, 200, false, "\x1f\x8b", .encoding = "br"}, 502, "compressed"},
		{{OLLAMA_CHAT, false, 500, false, "\x1f\x8b", .encoding = "gzip"}, 500, "compressed"},
		/* Vectors in another order; too few, too many, twice one, none, of a vector for each token. */
		{{OLLAMA_EMBED, false, 200, false,
			 "{\"data\":[{\"index\":1,\"embedding\":[1]},{\"index\":0,\"embedding\":[0]}]}",
			 .vectors = 2},
			200, "\"embeddings\":[[0],[1]]"},
		{{OLLAMA_EMBED, false, 200, false, "{\"data\":[{\"embedding\":[0]}]}", .vectors = 2}, 502,
			"for each"},
		{{OLLAMA_EMBED, false, 200, false, "{\"data\":[{\"embedding\":[0]},{\"embedding\":[1]}]}",
			 .vectors = 1},
			502, "for each"},
		{{OLLAMA_EMBED, false, 200, false,
			 "{\"data\":[{\"index\":0,\"embedding\":[1]},{\"index\":0,\"embedding\":[0]}]}",
			 .vectors = 2},
			502, "for each"},
		{{OLLAMA_EMBED, false, 200, false, "{\"data\":[]}"}, 502, "for each"},
		{{OLLAMA_EMBED, false, 200, false, "{\"data\":[{\"embedding\":[]}]}", .vectors = 1}, 502,
			"for each"},
		{{OLLAMA_EMBEDDINGS, false, 200, false, "{\"data\":[{\"embedding\":[[0],[1]]}]}",
			 .vectors = 1},
			502, "for each"},
		{{OLLAMA_EMBED, false, 200, false, "{\"data\":[{\"embedding\":\"AACAPg==\"}]}", .vectors = 1},
			502, "for each"},
		{{OLLAMA_EMBED, false, 200, false, "{\"object\":\"error\",\"message\":\"boom\"}"}, 502,
			"{\"error\":\"boom\"}"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		int status = 0;
		struct cgn_buf out = answer_of(&rows[i].t, 4096, &status);
		if (status != rows[i].status || strstr(cgn_buf_z(&out), rows[i].has) == NULL)
			fail_msg("row %zu: %d %s", i, status, cgn_buf_z(&out));
		cgn_buf_fini(&out);
	}
}

static void a_cut_answer_ends_with_an_error(void **state)
{
	struct ollama_time now = {1, 1};
	(void)state;
	for (int stream = 0; stream < 2; stream++) {
		struct cgn_buf out = {0};
		struct ollama_answer *a = ollama_answer_new(OLLAMA_CHAT, stream, CGN_STR("x"));
		(void)ollama_answer_begin(a, 200, true, (struct cgn_str){NULL, 0});
		ollama_answer_feed(a, CGN_STR("data: {\"choices\":[]}\n\n"), &now, &out);
		ollama_answer_cut(a, "it died", &out);
		assert_string_equal(cgn_buf_z(&out),
			stream ? "{\"error\":\"it died\"}\n" : "{\"error\":\"it died\"}");
		assert_int_equal(ollama_answer_status(a), 502);
		ollama_answer_free(&a);
		cgn_buf_fini(&out);
	}
}

static void vectors_and_whole_answers(void **state)
{
	static const struct {
		struct trial t;
		const char *expected;
	} rows[] = {
		{{OLLAMA_EMBED, false, 200, false,
			 "{\"data\":[{\"index\":0,\"embedding\":[1,2]},{\"index\":1,\"embedding\":[3]}],"
			 "\"usage\":{\"prompt_tokens\":4}}"},
			"{\"model\":\"x\",\"embeddings\":[[1,2],[3]],\"total_duration\":20,\"load_duration\":0,"
			"\"prompt_eval_count\":4}"},
		{{OLLAMA_EMBEDDINGS, false, 200, false, "{\"data\":[{\"embedding\":[1,2]}]}"},
			"{\"embedding\":[1,2]}"},
		/* an engine that does not stream */
		{{OLLAMA_GENERATE, true, 200, false,
			 "{\"choices\":[{\"text\":\"ab\",\"finish_reason\":\"length\"}],\"usage\":{\"completion_tokens\":1}}"},
			AT
			"\"response\":\"ab\",\"done\":true,\"done_reason\":\"length\",\"total_duration\":20,"
			"\"load_duration\":0,\"prompt_eval_count\":0,\"prompt_eval_duration\":20,\"eval_count\":1,"
			"\"eval_duration\":0}\n"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		assert_answer(&rows[i].t, 4096, 200, rows[i].expected);
}

static void an_event_is_bounded(void **state)
{
	static char big[OLLAMA_EVENT_MAX + 100];
	struct cgn_buf out = {0};
	struct ollama_time now = {1, 1};
	struct ollama_answer *a = ollama_answer_new(OLLAMA_CHAT, true, CGN_STR("x"));
	(void)state;
	memset(big, 'x', sizeof big);
	(void)ollama_answer_begin(a, 200, true, (struct cgn_str){NULL, 0});
	ollama_answer_feed(a, CGN_STR("data: "), &now, &out);
	ollama_answer_feed(a, (struct cgn_str){big, sizeof big}, &now, &out);
	ollama_answer_feed(a, CGN_STR("\n\n"), &now, &out);
	assert_non_null(strstr(cgn_buf_z(&out), "longer than 1 MiB"));
	ollama_answer_free(&a);
	cgn_buf_fini(&out);
}

#define DETAILS                                                                                       \
	"\"details\":{\"parent_model\":\"\",\"format\":\"\",\"family\":\"\",\"parameter_size\":\"\"," \
	"\"quantization_level\":\"\",\"families\":[]}"

/* Tools of Ollama read these members, so each of them is there. */
static void models_are_described(void **state)
{
	(void)state;
	struct cgn_buf out = {0};
	struct json_out j = json_out_to(&out);
	char hex[2 * DIGEST_BYTES + 1];
	struct cgn_buf b = cgn_buf_over(hex, sizeof hex);
	struct digest d = digest_of(CGN_STR("m"));
	hex_put(&b, (struct cgn_str){(const char *)d.b, sizeof d.b});
	hex[b.n] = '\0';
	char want[600];
	struct ollama_model m = {.name = CGN_STR("m"), .since_ms = 1764000000123};
	ollama_put_card(&j, &m, NULL);
	(void)snprintf(want, sizeof want,
		"{\"name\":\"m\",\"model\":\"m\",\"modified_at\":\"2025-11-24T16:00:00.123Z\",\"size\":0,\"digest\":\"%s\"," DETAILS
		"}",
		hex);
	assert_string_equal(cgn_buf_z(&out), want);
	out.n = 0;
	j = json_out_to(&out);
	ollama_put_card(&j, &m, &(struct ollama_running){.bytes = 0});
	(void)snprintf(want, sizeof want,
		"{\"name\":\"m\",\"model\":\"m\",\"size\":0,\"digest\":\"%s\"," DETAILS
		",\"expires_at\":\"9999-12-31T23:59:59.000Z\",\"size_vram\":0}",
		hex);
	assert_string_equal(cgn_buf_z(&out), want);
	out.n = 0;
	j = json_out_to(&out);
	ollama_put_card(&j, &m, &(struct ollama_running){7, 1764000000123});
	(void)snprintf(want, sizeof want,
		"{\"name\":\"m\",\"model\":\"m\",\"size\":7,\"digest\":\"%s\"," DETAILS
		",\"expires_at\":\"2025-11-24T16:00:00.123Z\",\"size_vram\":0}",
		hex);
	assert_string_equal(cgn_buf_z(&out), want);
	out.n = 0;
	ollama_put_show(&m, &out);
	assert_string_equal(cgn_buf_z(&out),
		"{\"modelfile\":\"\",\"parameters\":\"\",\"template\":\"\",\"modified_at\":\"2025-11-24T16:00:00.123Z\"," DETAILS
		",\"model_info\":{\"general.basename\":\"m\",\"general.architecture\":\"cognitora\"},"
		"\"capabilities\":[\"completion\",\"tools\"]}");
	/* As llama-server describes it. */
	m.card = CGN_STR(
		"\"capabilities\":[\"completion\"],\"meta\":{\"n_vocab\":265,\"n_params\":8030261312,\"size\":4920739072,\"ftype\":\"Q4_K - Medium\"}");
	m.context = 131072;
	out.n = 0;
	ollama_put_show(&m, &out);
	assert_non_null(strstr(cgn_buf_z(&out), "\"cognitora.context_length\":131072}"));
	assert_non_null(strstr(cgn_buf_z(&out), "\"capabilities\":[\"completion\"]}"));
	assert_non_null(strstr(cgn_buf_z(&out), "\"format\":\"gguf\""));
	assert_non_null(strstr(cgn_buf_z(&out),
		"\"parameter_size\":\"8.0B\",\"quantization_level\":\"Q4_K - Medium\""));
	out.n = 0;
	j = json_out_to(&out);
	ollama_put_card(&j, &m, NULL);
	assert_non_null(strstr(cgn_buf_z(&out), "\"size\":4920739072,"));
	cgn_buf_fini(&out);
}

static void test_keep_alive(void **state)
{
	static const struct {
		const char *text;
		bool quoted;
		int64_t ms; /* INT64_MIN: refused. */
	} rows[] = {
		{"0", false, 0},
		{"300", false, 300000},
		{"1.5", false, 1500},
		{"-1", false, -1},
		{"5m", true, 300000},
		{"1h30m", true, 5400000},
		{"300ms", true, 300},
		{"0", true, 0},
		{"0s", true, 0},
		{"-1", true, -1},
		{"-1m", true, -1},
		{"24h", true, 86400000},
		{"99999999999999h", true, -1},
		{"", true, INT64_MIN},
		{"-", true, INT64_MIN},
		{"5m", false, INT64_MIN},
		{"m", true, INT64_MIN},
		{"5x", true, INT64_MIN},
		{"5m 3s", true, INT64_MIN},
		{"1h30", true, INT64_MIN},
		{"..", true, INT64_MIN},
		{"1e5", false, INT64_MIN},
		{"null", false, INT64_MIN},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		int64_t ms = INT64_MIN;
		bool read = ollama_keep_alive_read(cgn_str_of(rows[i].text), rows[i].quoted, &ms);
		if (read != (rows[i].ms != INT64_MIN) || (read && ms != rows[i].ms))
			fail_msg("%s: %d, %lld", rows[i].text, read, (long long)ms);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keep_alive),
		cmocka_unit_test(a_chat_becomes_a_stream_of_openais),
		cmocka_unit_test(options_get_the_names_of_openai),
		cmocka_unit_test(formats_and_thinking),
		cmocka_unit_test(images_become_urls),
		cmocka_unit_test(results_find_their_calls),
		cmocka_unit_test(a_prompt_becomes_a_chat_or_a_text),
		cmocka_unit_test(inputs_become_vectors),
		cmocka_unit_test(without_a_prompt_nothing_is_asked),
		cmocka_unit_test(a_stream_becomes_lines),
		cmocka_unit_test(a_stream_is_gathered),
		cmocka_unit_test(thoughts_tools_and_logprobs),
		cmocka_unit_test(errors_are_told),
		cmocka_unit_test(an_odd_answer_is_understood_or_an_error),
		cmocka_unit_test(an_odd_body_is_understood_or_an_error),
		cmocka_unit_test(a_cut_answer_ends_with_an_error),
		cmocka_unit_test(vectors_and_whole_answers),
		cmocka_unit_test(an_event_is_bounded),
		cmocka_unit_test(models_are_described),
	};
	return cmocka_run_group_tests_name("policy_ollama", tests, NULL, NULL);
}
