/* SPDX-License-Identifier: Apache-2.0 */
/* Answers on the wire: every event is valid, and a stream has the same content as a body. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json/json.h"
#include "sim/reply/reply.h"

struct got {
	struct cgn_buf text; /* Concatenation of the deltas. */
	struct cgn_arena arena;
	unsigned events, deltas, most; /* |most|: events until the socket is "full". */
	char last[64], finish[32];
	char types[400];       /* Types of the events, each once in a row, separated by blanks. */
	struct cgn_buf opener; /* Data of the first typed event. */
	bool done, usage;
};

static void on_chat(struct got *g, struct json_val root)
{
	struct json_val choices, choice, delta, v;
	g->usage |= json_get(root, "usage", &v) && v.type == JSON_OBJECT;
	assert_true(json_get(root, "choices", &choices));
	struct json_iter it = json_iter_of(choices);
	if (!json_next_elem(&it, &choice) || json_get_u64(choice, "index", 9) != 0)
		return;
	struct cgn_str reason = json_get_str(choice, "finish_reason", &g->arena);
	(void)cgn_str_copyz(g->finish, sizeof g->finish, reason);
	struct cgn_str piece = json_get_str(choice, "text", &g->arena);
	if (json_get(choice, "delta", &delta)) {
		piece = json_get_str(delta, "content", &g->arena);
		if (json_get(delta, "tool_calls", &v)) {
			it = json_iter_of(v);
			assert_true(json_next_elem(&it, &v) && json_get(v, "function", &v));
			piece = json_get_str(v, "arguments", &g->arena);
		}
	}
	g->deltas += piece.n > 0;
	cgn_buf_str(&g->text, piece);
}

static void on_typed(struct got *g, struct json_val root, struct cgn_str name)
{
	struct json_val v;
	struct cgn_str type = json_get_str(root, "type", &g->arena);
	assert_true(cgn_str_eq(type, name));
	size_t n = strlen(g->types);
	if (!cgn_str_is(type, g->last))
		(void)snprintf(g->types + n, sizeof g->types - n, "%s%.*s", n > 0 ? " " : "",
			CGN_STR_ARG(type));
	if (n == 0)
		cgn_buf_str(&g->opener, root.raw);
	(void)cgn_str_copyz(g->last, sizeof g->last, type);
	struct cgn_str piece = json_get_str(root, "delta", &g->arena);
	if (json_get(root, "delta", &v) && v.type == JSON_OBJECT) {
		piece = json_get_str(v, "text", &g->arena);
		if (piece.n == 0)
			piece = json_get_str(v, "partial_json", &g->arena);
		(void)cgn_str_copyz(g->finish, sizeof g->finish, json_get_str(v, "stop_reason", &g->arena));
	}
	g->deltas += piece.n > 0;
	cgn_buf_str(&g->text, piece);
}

static void take_event(void *arg, struct cgn_str event)
{
	struct got *g = arg;
	struct cgn_str name = {0}, data;
	struct json_val root = {0};
	struct cgn_err err;
	assert_true(event.n > 8 && memcmp(event.p + event.n - 2, "\n\n", 2) == 0);
	event.n -= 2;
	if (cgn_str_starts(event, "event: ")) {
		name = cgn_str_split(&event, '\n');
		name = (struct cgn_str){name.p + 7, name.n - 7};
	}
	assert_true(cgn_str_starts(event, "data: "));
	data = (struct cgn_str){event.p + 6, event.n - 6};
	assert_null(memchr(data.p, '\n', data.n));
	assert_false(g->done);
	g->events++;
	if (cgn_str_is(data, "[DONE]")) {
		g->done = true;
		return;
	}
	if (!cgn_ok(json_parse(data, &root, NULL, &err)))
		fail_msg("%.*s: %s", CGN_STR_ARG(data), err.msg);
	if (name.n > 0)
		on_typed(g, root, name);
	else
		on_chat(g, root);
}

static bool never_full(void *arg)
{
	(void)arg;
	return false;
}

static bool often_full(void *arg)
{
	struct got *g = arg;
	return g->events >= g->most;
}

struct fixture {
	struct sim_reply r;
	struct sim_choice choices[3];
};

static void prepare_reply(struct fixture *f, enum sim_api api, uint32_t n, const char *script,
	const struct sim_limits *lim)
{
	*f = (struct fixture){0};
	f->r = (struct sim_reply){.api = api,
		.stream = true,
		.include_usage = true,
		.logprobs = -1,
		.id = "id",
		.msg_id = "m",
		.call_id = "c",
		.created = 5,
		.model = CGN_STR("\"a \\\"model\\\"\""),
		.prompt_tokens = 20,
		.cached_tokens = 16,
		.n_choices = n,
		.choices = f->choices};
	for (uint32_t i = 0; i < n; i++) {
		if (script != NULL)
			sim_text_script(&f->choices[i].start, cgn_str_of(script));
		else
			sim_text_words(&f->choices[i].start, i);
		f->choices[i].text = f->choices[i].start;
		assert_true(sim_plan_make(f->choices[i].start, lim, NULL, NULL, &f->choices[i].plan));
		f->choices[i].given = f->choices[i].plan.n_tokens;
	}
}

static const struct sim_limits forty = {.max_tokens = 40, .natural_tokens = 100};

static void streams_say_what_bodies_say(void **state)
{
	(void)state;
	for (unsigned api = 0; api < SIM_API_COUNT; api++) {
		struct fixture f;
		struct got g = {0};
		struct cgn_buf body = {0};
		struct json_val root = {0};
		struct cgn_err err;
		cgn_arena_init(&g.arena, 1 << 20);
		prepare_reply(&f, (enum sim_api)api, 1, NULL, &forty);
		struct sim_sink to = {.emit = take_event, .arg = &g};
		assert_true(sim_reply_pump(&f.r, UINT64_MAX, &to, never_full));
		assert_int_equal(g.deltas, 40);
		sim_put_text(&f.choices[0], &body);
		assert_int_equal(body.n, g.text.n + 2);
		assert_memory_equal(body.p + 1, g.text.p, g.text.n);
		body.n = 0;
		f.r.stream = false;
		sim_reply_ops_of(f.r.api)->whole(&f.r, &body);
		assert_true(cgn_ok(json_parse(cgn_buf_view(&body), &root, NULL, &err)));
		assert_non_null(memmem(body.p, body.n, g.text.p, g.text.n));
		cgn_buf_fini(&body);
		cgn_buf_fini(&g.text);
		cgn_buf_fini(&g.opener);
		cgn_buf_fini(&to.b);
		cgn_arena_fini(&g.arena);
	}
}

static void endings_are_as_each_api_wants(void **state)
{
	(void)state;
	static const struct {
		enum sim_api api;
		const char *finish, *last;
		bool done;
	} want[] = {{SIM_CHAT, "length", "", true}, {SIM_COMPLETIONS, "length", "", true},
		{SIM_RESPONSES, "", "response.incomplete", false},
		{SIM_MESSAGES, "max_tokens", "message_stop", false}};
	for (size_t i = 0; i < CGN_COUNT(want); i++) {
		struct fixture f;
		struct got g = {0};
		cgn_arena_init(&g.arena, 1 << 20);
		prepare_reply(&f, want[i].api, 1, NULL, &forty);
		f.r.include_usage = false;
		struct sim_sink to = {.emit = take_event, .arg = &g};
		assert_true(sim_reply_pump(&f.r, UINT64_MAX, &to, never_full));
		assert_string_equal(g.finish, want[i].finish);
		assert_string_equal(g.last, want[i].last);
		assert_int_equal(g.done, want[i].done);
		assert_false(g.usage);
		cgn_buf_fini(&g.text);
		cgn_buf_fini(&g.opener);
		cgn_buf_fini(&to.b);
		cgn_arena_fini(&g.arena);
	}
}

/* A stream of typed events is opened, filled and closed as clients expect. */
static void typed_streams_have_their_frame(void **state)
{
	(void)state;
	static const struct {
		enum sim_api api;
		const char *types, *opener;
	} want[] = {
		{SIM_MESSAGES,
			"message_start content_block_start content_block_delta content_block_stop message_delta message_stop",
			"\"stop_reason\":null"},
		{SIM_RESPONSES,
			"response.created response.in_progress response.output_item.added response.content_part.added "
			"response.output_text.delta response.output_text.done response.content_part.done "
			"response.output_item.done response.incomplete",
			"\"status\":\"in_progress\""},
	};
	for (size_t i = 0; i < CGN_COUNT(want); i++) {
		struct fixture f;
		struct got g = {0};
		cgn_arena_init(&g.arena, 1 << 20);
		prepare_reply(&f, want[i].api, 1, NULL, &forty);
		struct sim_sink to = {.emit = take_event, .arg = &g};
		assert_true(sim_reply_pump(&f.r, UINT64_MAX, &to, never_full));
		assert_string_equal(g.types, want[i].types);
		assert_non_null(strstr(cgn_buf_z(&g.opener), want[i].opener));
		assert_non_null(strstr(cgn_buf_z(&g.opener), "\"a \\\"model\\\"\""));
		cgn_buf_fini(&g.opener);
		cgn_buf_fini(&g.text);
		cgn_buf_fini(&to.b);
		cgn_arena_fini(&g.arena);
	}
}

static void a_full_socket_only_delays(void **state)
{
	(void)state;
	struct fixture f;
	struct got whole = {0}, parts = {0};
	cgn_arena_init(&whole.arena, 1 << 20);
	cgn_arena_init(&parts.arena, 1 << 20);
	prepare_reply(&f, SIM_CHAT, 3, NULL, &forty);
	struct sim_sink to = {.emit = take_event, .arg = &whole};
	assert_true(sim_reply_pump(&f.r, UINT64_MAX, &to, never_full));
	prepare_reply(&f, SIM_CHAT, 3, NULL, &forty);
	to.arg = &parts;
	unsigned rounds = 0;
	do
		parts.most = parts.events + 2;
	while (!sim_reply_pump(&f.r, rounds++ % 2 ? 1 : UINT64_MAX, &to, often_full) && rounds < 1000);
	assert_true(rounds > 40);
	assert_true(parts.done && parts.usage);
	assert_int_equal(parts.events, whole.events);
	assert_true(cgn_str_eq(cgn_buf_view(&parts.text), cgn_buf_view(&whole.text)));
	cgn_buf_fini(&whole.text);
	cgn_buf_fini(&parts.text);
	cgn_buf_fini(&to.b);
	cgn_arena_fini(&whole.arena);
	cgn_arena_fini(&parts.arena);
}

static void nothing_comes_before_it_was_given(void **state)
{
	(void)state;
	struct fixture f;
	struct got g = {0};
	cgn_arena_init(&g.arena, 1 << 20);
	prepare_reply(&f, SIM_CHAT, 1, NULL, &forty);
	struct sim_sink to = {.emit = take_event, .arg = &g};
	for (uint32_t n = 1; n <= 40; n++) {
		f.choices[0].given = n;
		assert_int_equal(sim_reply_pump(&f.r, UINT64_MAX, &to, never_full), n == 40);
		assert_int_equal(g.deltas, n);
	}
	assert_true(g.done);
	cgn_buf_fini(&g.text);
	cgn_buf_fini(&to.b);
	cgn_arena_fini(&g.arena);
}

static void tool_calls_stream_their_arguments(void **state)
{
	(void)state;
	const char *script = "{\"city\":\"Z\xc3\xbcrich \\\"x\\\"\",\"days\":3}";
	for (unsigned api = 0; api < SIM_API_COUNT; api++) {
		struct fixture f;
		struct got g = {0};
		struct cgn_buf body = {0};
		struct json_val root = {0};
		struct cgn_err err;
		if (api == SIM_COMPLETIONS)
			continue;
		cgn_arena_init(&g.arena, 1 << 20);
		prepare_reply(&f, (enum sim_api)api, 1, script, &(struct sim_limits){.max_tokens = 500});
		f.choices[0].plan.finish = SIM_FINISH_TOOL;
		f.r.tool = CGN_STR("get_\"weather\"");
		struct sim_sink to = {.emit = take_event, .arg = &g};
		assert_true(sim_reply_pump(&f.r, UINT64_MAX, &to, never_full));
		assert_string_equal(cgn_buf_z(&g.text), script);
		f.r.stream = false;
		sim_reply_ops_of(f.r.api)->whole(&f.r, &body);
		assert_true(cgn_ok(json_parse(cgn_buf_view(&body), &root, NULL, &err)));
		cgn_buf_fini(&body);
		cgn_buf_fini(&g.text);
		cgn_buf_fini(&g.opener);
		cgn_buf_fini(&to.b);
		cgn_arena_fini(&g.arena);
	}
}

static void logprobs_and_stops_are_valid(void **state)
{
	(void)state;
	struct sim_limits lim = {.max_tokens = 200,
		.natural_tokens = 200,
		.stops = {CGN_STR(".")},
		.n_stops = 1};
	for (unsigned api = SIM_CHAT; api <= SIM_COMPLETIONS; api++) {
		struct fixture f;
		struct got g = {0};
		struct cgn_buf body = {0};
		struct json_val root = {0};
		struct cgn_err err;
		cgn_arena_init(&g.arena, 1 << 20);
		prepare_reply(&f, (enum sim_api)api, 1, NULL, &lim);
		f.r.logprobs = 3;
		f.r.stop = CGN_STR(".");
		struct sim_sink to = {.emit = take_event, .arg = &g};
		assert_true(sim_reply_pump(&f.r, UINT64_MAX, &to, never_full));
		assert_string_equal(g.finish, "stop");
		assert_null(memchr(g.text.p, '.', g.text.n));
		f.r.stream = false;
		sim_reply_ops_of(f.r.api)->whole(&f.r, &body);
		assert_true(cgn_ok(json_parse(cgn_buf_view(&body), &root, NULL, &err)));
		assert_non_null(strstr(cgn_buf_z(&body), "\"stop_reason\":\".\""));
		cgn_buf_fini(&body);
		cgn_buf_fini(&g.text);
		cgn_buf_fini(&g.opener);
		cgn_buf_fini(&to.b);
		cgn_arena_fini(&g.arena);
	}
}

/* A token that is a part of a character has its bytes. */
static void tokens_have_their_bytes(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	sim_put_token_logprob(&b, CGN_STR("a\xc3"), -0.5);
	assert_non_null(strstr(cgn_buf_z(&b), ",\"logprob\":-0.5,\"bytes\":[97,195]"));
	cgn_buf_fini(&b);
}

static void errors_have_openai_s_shape(void **state)
{
	(void)state;
	struct sim_refusal no;
	struct cgn_buf b = {0};
	assert_false(sim_refuse(&no, 404, "model_not_found", "model", "no \"%s\"", "x"));
	sim_error_body(&b, &no);
	assert_string_equal(cgn_buf_z(&b),
		"{\"error\":{\"message\":\"no \\\"x\\\"\",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":\"model_not_found\"}}");
	b.n = 0;
	assert_false(sim_refuse(&no, 503, NULL, NULL, "busy"));
	sim_error_body(&b, &no);
	assert_string_equal(cgn_buf_z(&b),
		"{\"error\":{\"message\":\"busy\",\"type\":\"ServiceUnavailableError\",\"param\":null,\"code\":503}}");
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_say_what_bodies_say),
		cmocka_unit_test(endings_are_as_each_api_wants),
		cmocka_unit_test(typed_streams_have_their_frame),
		cmocka_unit_test(a_full_socket_only_delays),
		cmocka_unit_test(nothing_comes_before_it_was_given),
		cmocka_unit_test(tool_calls_stream_their_arguments),
		cmocka_unit_test(logprobs_and_stops_are_valid),
		cmocka_unit_test(tokens_have_their_bytes),
		cmocka_unit_test(errors_have_openai_s_shape),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
