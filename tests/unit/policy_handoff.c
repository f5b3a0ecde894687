/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "policy/node/handoff/cached.h"
#include "policy/node/handoff/handoff.h"

#define CHAT "/v1/chat/completions"

static struct json_val doc_parsed(const char *text)
{
	struct json_val v;
	if (!cgn_ok(json_parse(cgn_str_of(text), &v, NULL, NULL)))
		fail_msg("not JSON: %s", text);
	return v;
}

struct pair {
	enum handoff_kind kind;
	const char *path, *body, *model, *params;
};

/* Write both bodies and compare them; they are JSON. */
static void expect_bodies(struct pair p, const char *prefill, const char *decode)
{
	static const struct cgn_str ids[] = {{"e0", 2}, {"e1", 2}};
	const struct handoff_end end = {.kind = p.kind,
		.host = CGN_STR("10.0.0.1"),
		.port = 8998,
		.engine_ids = ids,
		.n_engine_ids = 2};
	struct handoff_job job = {.path = cgn_str_of(p.path),
		.body = doc_parsed(p.body),
		.model = p.model != NULL ? cgn_str_of(p.model) : (struct cgn_str){NULL, 0},
		.prefill = &end,
		.id = CGN_STR("r1"),
		.number = 0x1234,
		.now_ms = 1,
		.rank = 1,
		.params = cgn_str_of(p.params != NULL ? p.params : "")};
	const char *const want[] = {prefill, decode};
	for (enum handoff_leg leg = HANDOFF_PREFILL; leg <= HANDOFF_DECODE; leg++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		handoff_body(&job, leg, &out);
		assert_string_equal(cgn_buf_z(&out), want[leg]);
		(void)doc_parsed(cgn_buf_z(&out));
	}
}

static void nixl_takes_its_parameters_from_the_answer(void **state)
{
	(void)state;
	expect_bodies(
		(struct pair){HANDOFF_NIXL, CHAT,
			"{\"model\":\"m\",\"messages\":[{\"role\":\"user\"}],\"stream\":true,\"stream_options\":{},"
			"\"max_tokens\":9,\"min_tokens\":3,\"n\":1,\"logprobs\":true,\"top_logprobs\":2,\"stop\":[\"x\"],"
			"\"kv_transfer_params\":null}",
			"\"served\"", "{\"remote_port\":7}"},
		"{\"model\":\"served\",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
		"\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null},"
		"\"stream\":false,\"max_tokens\":1,\"max_completion_tokens\":1,\"messages\":[{\"role\":\"user\"}],\"stop\":[\"x\"]}",
		"{\"model\":\"served\",\"kv_transfer_params\":{\"remote_port\":7},\"messages\":[{\"role\":\"user\"}],"
		"\"stream\":true,\"stream_options\":{},\"max_tokens\":9,\"min_tokens\":3,\"n\":1,\"logprobs\":true,"
		"\"top_logprobs\":2,\"stop\":[\"x\"]}");
}

static void each_route_has_a_name_for_one_token(void **state)
{
	(void)state;
	const char *params =
		"{\"kv_transfer_params\":{\"remote_decoder\":{\"kv_request_id\":\"0000000000001234\"}},"
		"\"stream\":false,\"%s\":1,\"a\":1}";
	const char *decode =
		"{\"kv_transfer_params\":{\"remote_prefiller\":{\"kv_request_id\":\"0000000000001234\","
		"\"remote_host\":\"10.0.0.1\",\"remote_port\":8999}},\"a\":1%s}";
	static const char *const rows[][2] = {{"/v1/completions", "max_tokens"},
		{"/v1/messages", "max_tokens"}, {"/v1/responses?x=1", "max_output_tokens"}};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf p = {0};
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf d = {0};
		const char *at = strstr(params, "%s");
		cgn_buf_add(&p, params, (size_t)(at - params));
		cgn_buf_putz(&p, rows[i][1]);
		cgn_buf_putz(&p, at + 2);
		cgn_buf_add(&d, decode, strlen(decode) - 3);
		cgn_buf_putz(&d, "}");
		expect_bodies((struct pair){HANDOFF_P2P, rows[i][0], "{\"a\":1}", NULL, NULL}, cgn_buf_z(&p),
			cgn_buf_z(&d));
	}
}

static void mooncake_names_the_transfer(void **state)
{
	(void)state;
	expect_bodies((struct pair){HANDOFF_MOONCAKE, "/v1/completions", "{\"model\":\"m\",\"max_tokens\":5}",
			      NULL, NULL},
		"{\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
		"\"transfer_id\":\"xfer-0000000000001234\"},\"stream\":false,\"max_tokens\":1,\"model\":\"m\"}",
		"{\"kv_transfer_params\":{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
		"\"transfer_id\":\"xfer-0000000000001234\",\"remote_engine_id\":\"e1\","
		"\"remote_bootstrap_addr\":\"http://10.0.0.1:8998\"},\"model\":\"m\",\"max_tokens\":5}");
}

static void sglang_gives_both_legs_the_same_room(void **state)
{
	(void)state;
	const char *room = "{\"bootstrap_host\":\"10.0.0.1\",\"bootstrap_port\":8998,\"bootstrap_room\":4660,"
			   "\"stream\":false,\"n\":2,\"max_tokens\":5}";
	expect_bodies((struct pair){HANDOFF_SGLANG, CHAT, "{\"n\":2,\"max_tokens\":5,\"stream\":true}", NULL,
			      NULL},
		room,
		"{\"bootstrap_host\":\"10.0.0.1\",\"bootstrap_port\":8998,\"bootstrap_room\":4660,"
		"\"n\":2,\"max_tokens\":5,\"stream\":true}");
	const char *lists = "{\"bootstrap_host\":[\"10.0.0.1\",\"10.0.0.1\"],\"bootstrap_port\":[8998,8998],"
			    "\"bootstrap_room\":[4660,4661]";
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf p = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf d = {0};
	cgn_buf_putz(&p, lists);
	cgn_buf_putz(&p, ",\"stream\":false,\"prompt\":[\"a\",[1,2]]}");
	cgn_buf_putz(&d, lists);
	cgn_buf_putz(&d, ",\"prompt\":[\"a\",[1,2]]}");
	expect_bodies((struct pair){HANDOFF_SGLANG, "/v1/completions", "{\"prompt\":[\"a\",[1,2]]}", NULL,
			      NULL},
		cgn_buf_z(&p), cgn_buf_z(&d));
}

static void trtllm_changes_the_request_type(void **state)
{
	(void)state;
	expect_bodies(
		(struct pair){HANDOFF_TRTLLM, CHAT, "{\"max_tokens\":5}", NULL,
			"{\"request_type\":\"context_only\",\"ctx_request_id\":9,\"a\\u0062\":1,\"opaque\":\"x\"}"},
		"{\"disaggregated_params\":{\"request_type\":\"context_only\",\"disagg_request_id\":4198964},"
		"\"stream\":false,\"max_tokens\":5}",
		"{\"disaggregated_params\":{\"request_type\":\"generation_only\",\"ctx_request_id\":9,\"opaque\":\"x\"},"
		"\"max_tokens\":5}");
}

static void answers_give_their_parameters(void **state)
{
	(void)state;
	static const struct {
		enum handoff_kind kind;
		const char *answer, *params; /* |params| NULL: refused. */
	} rows[] = {
		{HANDOFF_NIXL, "{\"id\":\"x\",\"kv_transfer_params\":{\"remote_port\": 5600}}",
			"{\"remote_port\": 5600}"},
		{HANDOFF_NIXL, "{\"kv_transfer_params\":null}", NULL},
		{HANDOFF_NIXL, "{}", NULL},
		{HANDOFF_NIXL, "[1]", NULL},
		{HANDOFF_NIXL, "{\"kv_transfer_params\":{", NULL},
		{HANDOFF_TRTLLM, "{\"choices\":[{\"disaggregated_params\":{\"a\":1}}]}", "{\"a\":1}"},
		{HANDOFF_TRTLLM, "{\"choices\":[]}", NULL},
		{HANDOFF_TRTLLM, "{\"choices\":[1]}", NULL},
		{HANDOFF_TRTLLM, "{\"disaggregated_params\":{\"a\":1}}", NULL},
		{HANDOFF_P2P, "whatever", ""},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf params = {0};
		struct cgn_err err = {0};
		cgn_rc rc = handoff_params_read(rows[i].kind, cgn_str_of(rows[i].answer), &params, &err);
		assert_int_equal(cgn_ok(rc), rows[i].params != NULL);
		if (rows[i].params != NULL)
			assert_string_equal(cgn_buf_z(&params), rows[i].params);
		else
			assert_true(err.msg[0] != '\0');
	}
}

static void requests_that_no_leg_can_take_are_told(void **state)
{
	(void)state;
	const struct handoff_ops *nixl = handoff_ops_of(HANDOFF_NIXL),
				 *sglang = handoff_ops_of(HANDOFF_SGLANG);
	assert_null(handoff_refusal(nixl, cgn_str_of(CHAT), doc_parsed("{\"echo\":false}"), false));
	assert_string_equal(handoff_refusal(nixl, cgn_str_of(CHAT), doc_parsed("{}"), true), "several");
	assert_null(handoff_refusal(sglang, CGN_STR("/v1/completions"),
		doc_parsed("{\"prompt\":[\"a\",\"b\"],\"n\":1}"), true));
	assert_string_equal(handoff_refusal(sglang, cgn_str_of(CHAT), doc_parsed("{\"n\":2}"), true),
		"several");
	assert_string_equal(handoff_refusal(sglang, CGN_STR("/v1/completions"),
				    doc_parsed("{\"best_of\":2,\"n\":1}"), true),
		"several");
	assert_string_equal(handoff_refusal(sglang, CGN_STR("/v1/responses"), doc_parsed("{}"), false),
		"route");
	assert_null(handoff_refusal(nixl, CGN_STR("/v1/responses"), doc_parsed("{}"), false));
	assert_string_equal(handoff_refusal(nixl, CGN_STR("/v1/embeddings"), doc_parsed("{}"), false),
		"route");
	assert_string_equal(handoff_refusal(nixl, cgn_str_of(CHAT), doc_parsed("{\"prompt_logprobs\":1}"),
				    false),
		"prompt_logprobs");
	assert_string_equal(handoff_refusal(nixl, CGN_STR("/v1/completions"), doc_parsed("{\"echo\":true}"),
				    false),
		"prompt_logprobs");
	assert_null(handoff_refusal(handoff_ops_of(HANDOFF_STORE), cgn_str_of(CHAT), doc_parsed("{}"), true));
}

static void dialects_are_found_by_name(void **state)
{
	(void)state;
	for (enum handoff_kind k = HANDOFF_NONE; k < HANDOFF_KINDS; k++)
		assert_int_equal(handoff_kind_named(cgn_str_of(handoff_ops_of(k)->name)), k);
	assert_int_equal(handoff_kind_named(CGN_STR("pigeon")), HANDOFF_NONE);
}

static struct handoff_end end_of(enum handoff_kind kind, const char *terms)
{
	return (struct handoff_end){.kind = kind,
		.terms = cgn_str_of(terms),
		.fingerprint = handoff_fingerprint(kind, cgn_str_of(terms))};
}

static void a_pair_has_the_same_terms(void **state)
{
	(void)state;
	char text[80];
	struct handoff_end a = end_of(HANDOFF_NIXL, "build=0.32 block=16"), b = a,
			   other = end_of(HANDOFF_NIXL, "build=0.32 block=32"),
			   longer = end_of(HANDOFF_NIXL, "build=0.32 block=16 tp=2"),
			   kind = end_of(HANDOFF_P2P, "build=0.32 block=16");
	handoff_differ(&a, &b, text, sizeof text);
	assert_string_equal(text, "");
	assert_true(a.fingerprint != 0 && a.fingerprint != other.fingerprint &&
		a.fingerprint != kind.fingerprint);
	handoff_differ(&a, &other, text, sizeof text);
	assert_string_equal(text, "block=16 and block=32");
	handoff_differ(&a, &longer, text, sizeof text);
	assert_string_equal(text, " and tp=2");
	handoff_differ(&a, &kind, text, sizeof text);
	assert_string_equal(text, "handoff=nixl and handoff=p2p");
	assert_true(handoff_fingerprint(HANDOFF_NONE, CGN_STR("x")) == 0);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf terms = {0};
	handoff_term_add(&terms, "build", CGN_STR("0.32 x\n"));
	handoff_term_add(&terms, "layout", CGN_STR(""));
	assert_string_equal(cgn_buf_z(&terms), "build=0.32_x_ layout=-");
}

/* Feed |text| in pieces of each size. */
static void expect_cached(bool events, const char *text, const char *want)
{
	for (size_t step = 1; step <= strlen(text); step++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		struct cached_filter f;
		cached_filter_init(&f, events);
		f.cached = 42;
		f.known = true;
		for (size_t at = 0; at < strlen(text); at += step)
			(void)cached_filter_feed(&f,
				(struct cgn_str){text + at,
					strlen(text) - at < step ? strlen(text) - at : step},
				&out);
		assert_string_equal(cgn_buf_z(&out), want);
	}
}

static void the_client_sees_what_the_prefill_leg_had_cached(void **state)
{
	(void)state;
	expect_cached(false,
		"{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\": 8 }}}",
		"{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\": 42 }}}");
	expect_cached(false, "{\n\"usage\": {\"cache_read_input_tokens\":0,\"x\":1}\n}",
		"{\n\"usage\": {\"cache_read_input_tokens\":42,\"x\":1}\n}");
	expect_cached(true,
		"event: a\ndata: {\"response\":{\"usage\":{\"input_tokens_details\":{\"cached_tokens\":1}}}}\n\n"
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":123456}}}\n\ndata: [DONE]\n\n",
		"event: a\ndata: {\"response\":{\"usage\":{\"input_tokens_details\":{\"cached_tokens\":42}}}}\n\n"
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":42}}}\n\ndata: [DONE]\n\n");
	/* Anthropic: the tokens that were not read from the cache are counted beside it. */
	expect_cached(false,
		"{\"usage\":{\"input_tokens\":5,\"output_tokens\":9,\"cache_creation_input_tokens\":8,\"cache_read_input_tokens\":95}}",
		"{\"usage\":{\"input_tokens\":58,\"output_tokens\":9,\"cache_creation_input_tokens\":8,\"cache_read_input_tokens\":42}}");
	expect_cached(true,
		"data: {\"message\":{\"usage\":{\"cache_read_input_tokens\": 0 ,\"input_tokens\":100}}}\n\n"
		"data: {\"delta\":{},\"usage\":{\"cache_read_input_tokens\":30,\"input_tokens\":1}}\n",
		"data: {\"message\":{\"usage\":{\"cache_read_input_tokens\": 42 ,\"input_tokens\":58}}}\n\n"
		"data: {\"delta\":{},\"usage\":{\"cache_read_input_tokens\":31,\"input_tokens\":0}}\n");
	static const char *const same[] = {
		"{\"message\":{\"usage\":{\"input_tokens\":100,\"output_tokens\":0}}}",
		"{\"usage\":{\"input_tokens\":100,\"input_tokens_details\":{\"cached_tokens\":42}}}",
		"{\"usage\":{\"prompt_tokens_details\":null,\"cached_tokens\":null}}",
		"{\"input\":{\"usage\":{\"cached_tokens\":7}}}",
		"{\"content\":[{\"usage\":{\"cached_tokens\":7}}],\"cached_tokens\":7}",
		"{\"text\":\"\\\"usage\\\":{\\\"cached_tokens\\\":7}\",\"usage\":{\"a\":{\"cached_tokens\":7}}}",
		"{\"usage\":{\"cached_tokens\":\"7\",\"x\":7}}",
		"not JSON: }]\"{",
	};
	for (size_t i = 0; i < CGN_COUNT(same); i++) {
		expect_cached(false, same[i], same[i]);
		expect_cached(true, same[i], same[i]);
	}
}

static void a_usage_that_is_too_long_or_cut_passes_as_it_is(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	cgn_buf_putz(&text, "{\"usage\":{\"cached_tokens\":7");
	for (size_t i = 0; i < CACHED_USAGE_MAX; i++)
		cgn_buf_char(&text, ' ');
	cgn_buf_putz(&text, "},\"usage\":{\"cached_tokens\":42}}");
	expect_cached(false, cgn_buf_z(&text), cgn_buf_z(&text));
	expect_cached(true,
		"data: {\"usage\":{\"cached_tokens\":7\n\ndata: {\"usage\":{\"cached_tokens\":7}}\n",
		"data: {\"usage\":{\"cached_tokens\":7\n\ndata: {\"usage\":{\"cached_tokens\":42}}\n");
}

static void a_number_that_is_not_known_yet_is_waited_for(void **state)
{
	(void)state;
	const char *text = "{\"usage\":{\"prompt_tokens\":5,\"cached_tokens\":17}}";
	struct cgn_str rest = cgn_str_of(text);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf given_up = {0};
	struct cached_filter f, g;
	cached_filter_init(&f, false);
	f.waits = true;
	g = f;
	size_t n = cached_filter_feed(&f, rest, &out);
	assert_true(strncmp(text + n, "{\"prompt", 8) == 0);
	rest = (struct cgn_str){rest.p + n, rest.n - n};
	assert_int_equal(cached_filter_feed(&f, rest, &out), 0);
	f.cached = 3;
	f.known = true;
	assert_int_equal(cached_filter_feed(&f, rest, &out), rest.n);
	assert_string_equal(cgn_buf_z(&out), "{\"usage\":{\"prompt_tokens\":5,\"cached_tokens\":3}}");
	(void)cached_filter_feed(&g, cgn_str_of(text), &given_up);
	g.waits = false;
	assert_int_equal(cached_filter_feed(&g, rest, &given_up), rest.n);
	assert_string_equal(cgn_buf_z(&given_up), text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nixl_takes_its_parameters_from_the_answer),
		cmocka_unit_test(each_route_has_a_name_for_one_token),
		cmocka_unit_test(mooncake_names_the_transfer),
		cmocka_unit_test(sglang_gives_both_legs_the_same_room),
		cmocka_unit_test(trtllm_changes_the_request_type),
		cmocka_unit_test(answers_give_their_parameters),
		cmocka_unit_test(requests_that_no_leg_can_take_are_told),
		cmocka_unit_test(dialects_are_found_by_name),
		cmocka_unit_test(a_pair_has_the_same_terms),
		cmocka_unit_test(the_client_sees_what_the_prefill_leg_had_cached),
		cmocka_unit_test(a_usage_that_is_too_long_or_cut_passes_as_it_is),
		cmocka_unit_test(a_number_that_is_not_known_yet_is_waited_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
