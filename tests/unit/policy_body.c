/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "policy/text/body/body.h"

static struct body_facts facts_of(const char *text)
{
	struct body_facts f;
	struct body_fault fault;
	if (!cgn_ok(body_read(cgn_str_of(text), &f, &fault)))
		fail_msg("%s: %s", text, fault.text);
	return f;
}

static void facts_are_read(void **state)
{
	(void)state;
	struct body_facts f =
		facts_of("{\"model\":\"m\",\"stream\":true,\"n\":1,\"max_tokens\":7,\"x\":{\"n\":2}}");
	assert_true(cgn_str_is(f.model.raw, "\"m\""));
	assert_true(f.stream);
	assert_false(f.several);
	assert_int_equal(f.answer_limit, 7);
	f = facts_of("{}");
	assert_null(f.model.raw.p);
	assert_false(f.stream);
	assert_int_equal(f.answer_limit, 0);
	assert_true(facts_of("{\"store\":false}").unstored);
	assert_false(
		facts_of("{\"store\":true}").unstored || facts_of("{\"store\":null}").unstored || f.unstored);
	assert_true(facts_of("{\"n\":2}").several);
	assert_true(facts_of("{\"best_of\":3}").several);
	assert_true(facts_of("{\"prompt\":[\"a\",\"b\"]}").several);
	assert_true(facts_of("{\"input\":[[1],[2]]}").several);
	assert_false(facts_of("{\"prompt\":[1,2]}").several);
	assert_false(facts_of("{\"prompt\":[\"a\"]}").several);
	assert_int_equal(facts_of("{\"max_tokens\":5,\"max_completion_tokens\":6}").answer_limit, 6);
	assert_int_equal(facts_of("{\"n_predict\":99999999999}").answer_limit, UINT32_MAX);
	assert_true(facts_of("{\"\\u0073tream\":true}").stream);
	/* Only a true asks for a stream; a limit of one token is one. */
	assert_false(facts_of("{\"stream\":\"true\"}").stream);
	assert_false(facts_of("{\"stream\":null}").stream);
	assert_int_equal(facts_of("{\"max_tokens\":1}").answer_limit, 1);
	assert_int_equal(facts_of("{\"max_tokens\":0,\"n_predict\":3}").answer_limit, 3);
}

static void hints_of_agents_are_read(void **state)
{
	(void)state;
	static const char *const none[] = {"{}", "{\"nvext\":null}", "{\"nvext\":{}}",
		"{\"nvext\":{\"agent_hints\":null}}", "{\"nvext\":7}",
		"{\"nvext\":{\"agent_hints\":{\"osl\":null,\"other\":\"x\",\"speculative_prefill\":true}}}"};
	static const struct {
		const char *hints, *param;
	} bad[] = {{"7", "nvext.agent_hints"}, {"{\"priority\":\"high\"}", "nvext.agent_hints.priority"},
		{"{\"priority\":1.5}", "nvext.agent_hints.priority"},
		{"{\"priority\":3000000000}", "nvext.agent_hints.priority"},
		{"{\"osl\":-1}", "nvext.agent_hints.osl"}, {"{\"osl\":[1]}", "nvext.agent_hints.osl"},
		{"{\"osl\":1e10}", "nvext.agent_hints.osl"}};
	struct body_facts f = facts_of(
		"{\"nvext\":{\"agent_hints\":{\"priority\":-3,\"osl\":1024,\"strict_priority\":1}}}");
	assert_true(f.hints.has_priority);
	assert_int_equal(f.hints.priority, -3);
	assert_int_equal(f.hints.answer, 1024);
	for (size_t i = 0; i < CGN_COUNT(none); i++) {
		f = facts_of(none[i]);
		assert_true(!f.hints.has_priority && f.hints.answer == 0);
	}
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		char text[128];
		struct body_fault fault;
		(void)snprintf(text, sizeof text, "{\"nvext\":{\"agent_hints\":%s}}", bad[i].hints);
		assert_false(cgn_ok(body_read(cgn_str_of(text), &f, &fault)));
		assert_string_equal(fault.code, "invalid_hint");
		assert_string_equal(fault.param, bad[i].param);
		assert_non_null(strstr(fault.text, bad[i].param));
	}
}

static void what_engines_could_read_otherwise_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *body, *code, *param;
	} rows[] = {
		{"[]", "invalid_json", NULL},
		{"{", "invalid_json", NULL},
		{"{\"model\":\"a\",\"model\":\"a\"}", "duplicate_key", "model"},
		{"{\"model\":\"a\",\"mod\\u0065l\":\"b\"}", "duplicate_key", "model"},
		{"{\"stream\":null,\"stream\":true}", "duplicate_key", "stream"},
		{"{\"Model\":\"a\"}", "ambiguous_key", "model"},
		{"{\"N\":2}", "ambiguous_key", "n"},
		{"{\"kv_transfer_params\":{}}", "reserved_key", "kv_transfer_params"},
		{"{\"bootstrap_h\\u006fst\":\"x\"}", "reserved_key", "bootstrap_host"},
		{"{\"Bootstrap_Room\":1}", "ambiguous_key", "bootstrap_room"},
		{"{\"mes\xc5\xbf"
		 "ages\":[]}",
			"ambiguous_key", "messages"},
		{"{\"max_to\\u212aens\":1}", "ambiguous_key", "max_tokens"},
		{"{\"continue_final_messagE\":1}", "ambiguous_key", "continue_final_message"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct body_facts f;
		struct body_fault fault;
		if (cgn_ok(body_read(cgn_str_of(rows[i].body), &f, &fault)))
			fail_msg("%s was taken", rows[i].body);
		assert_string_equal(fault.code, rows[i].code);
		assert_true((fault.param == NULL) == (rows[i].param == NULL));
		if (rows[i].param != NULL)
			assert_string_equal(fault.param, rows[i].param);
		if (rows[i].param != NULL)
			assert_non_null(strstr(fault.text, rows[i].param));
	}
	(void)facts_of(
		"{\"user\":1,\"user\":2,\"User\":3,\"modeL2\":1}"); /* Keys that routing does not read. */
	(void)facts_of("{\"messages\":[{\"Model\":1,\"n\":1,\"n\":2}]}");
}

static void members_are_bounded(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct body_facts f;
	struct body_fault fault;
	cgn_buf_putz(&text, "{\"\":1");
	for (int i = 1; i < BODY_MEMBERS_MAX; i++)
		cgn_buf_putz(&text, ",\"\\u006d\":1");
	cgn_buf_char(&text, '}');
	assert_true(cgn_ok(body_read(cgn_buf_view(&text), &f, &fault)));
	text.n--;
	cgn_buf_putz(&text, ",\"\":1}");
	assert_false(cgn_ok(body_read(cgn_buf_view(&text), &f, &fault)));
	assert_string_equal(fault.code, "too_many_members");
}

static void numbers_that_readers_read_differently_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *text, *param; /* param: NULL for none */
		uint32_t limit;
		bool fine;
	} rows[] = {
		{"{\"max_tokens\":7}", NULL, 7, true},
		{"{\"max_tokens\":7.0}", NULL, 7, true},
		{"{\"max_tokens\":7e0}", NULL, 7, true},
		{"{\"n_predict\":-1}", NULL, 0, true},
		{"{\"max_tokens\":null,\"max_completion_tokens\":0,\"n_predict\":9}", NULL, 9, true},
		{"{\"max_tokens\":99999999999}", NULL, UINT32_MAX, true},
		{"{\"max_completion_tokens\":1e400}", NULL, 0, false},
		{"{\"max_completion_tokens\":-1e400}", NULL, 0, false},
		{"{\"temperature\":1e999}", NULL, 0, false},
		{"{\"of_an_engine\":-1e999}", NULL, 0, false},
		{"{\"temperature\":1e-999}", NULL, 0, true},
		{"{\"max_tokens\":1e30}", "max_tokens", 0, false},
		{"{\"max_output_tokens\":7.5}", "max_output_tokens", 0, false},
		{"{\"max_tokens\":7,\"n_predict\":0.5}", "n_predict", 0, false},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct body_facts f;
		struct body_fault fault;
		bool fine = cgn_ok(body_read(cgn_str_of(rows[i].text), &f, &fault));
		assert_int_equal(fine, rows[i].fine);
		if (fine) {
			assert_int_equal(f.answer_limit, rows[i].limit);
			continue;
		}
		assert_string_equal(fault.code, "invalid_number");
		if (rows[i].param != NULL)
			assert_string_equal(fault.param, rows[i].param);
	}
}

static void the_clients_salt_leaves_the_body(void **state)
{
	(void)state;
	static const struct {
		const char *body, *left;
	} rows[] = {
		{"{\"model\":\"m\",\"cache_salt\":\"s\",\"n\":1}",
			"{\"model\":\"m\",                 \"n\":1}"},
		{"{\"cache_salt\" : \"s\" , \"model\":\"m\"}", "{                     \"model\":\"m\"}"},
		{"{\"model\":\"m\" , \"cache_salt\":[\"a,b\"] }",
			"{\"model\":\"m\"                        }"},
		{"{\"cache_salt\":null}", "{                 }"},
		{"{\"c\\u0061che_salt\":\"s\",\"a\":2}", "{                      \"a\":2}"},
		{"{\"a\":{\"cache_salt\":1}}", "{\"a\":{\"cache_salt\":1}}"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		char text[128];
		(void)cgn_str_copyz(text, sizeof text, cgn_str_of(rows[i].body));
		struct body_facts f = facts_of(text);
		body_drop_salt(text, &f);
		assert_string_equal(text, rows[i].left);
		body_drop_salt(text, &f); /* nothing is left to drop */
		assert_string_equal(text, rows[i].left);
		f = facts_of(text);
		assert_null(f.salt.raw.p);
	}
}

static void names_of_a_request_are_dropped(void **state)
{
	(void)state;
	static const struct {
		const char *body, *left;
	} rows[] = {
		{"{\"request_id\":\"a\",\"rid\":[\"b\"],\"model\":\"m\"}",
			"{                             \"model\":\"m\"}"},
		{"{\"model\":\"m\",\"rid\":null,\"request_id\":{}}",
			"{\"model\":\"m\"                           }"},
		{"{\"r\\u0069d\":\"a\"}", "{              }"},
		{"{\"messages\":[{\"rid\":1}],\"id\":2}", "{\"messages\":[{\"rid\":1}],\"id\":2}"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		char text[128];
		(void)cgn_str_copyz(text, sizeof text, cgn_str_of(rows[i].body));
		struct body_facts f = facts_of(text);
		body_drop_names(text, &f);
		assert_string_equal(text, rows[i].left);
		body_drop_names(text, &f);
		assert_string_equal(text, rows[i].left);
	}
}

static void names_of_what_an_engine_keeps_are_found(void **state)
{
	(void)state;
	static const char *const none[] = {"{}", "{\"session_params\":null}",
		"{\"uuid\":1,\"messages\":[{\"uuid\":1}]}",
		"{\"messages\":[{\"content\":\"uuid\"},{\"content\":[{\"text\":\"uuid\"},{\"uuid\":null}]},7,{\"content\":[7]}]}",
		"{\"messages\":{\"content\":[{\"uuid\":1}]}}"};
	static const char *const parts[] = {"{\"messages\":[{\"content\":[{\"uuid\":\"x\"}]}]}",
		"{\"input\":[{},{\"content\":[{\"a\":1},{\"\\u0075uid\":\"x\"}]}]}"};
	for (size_t i = 0; i < CGN_COUNT(none); i++)
		assert_null(facts_of(none[i]).shared);
	for (size_t i = 0; i < CGN_COUNT(parts); i++)
		assert_string_equal(facts_of(parts[i]).shared, "uuid");
	assert_string_equal(facts_of("{\"session_params\":{}}").shared, "session_params");
}

static void options_of_a_stream_are_found_and_dropped(void **state)
{
	(void)state;
	char text[] =
		"{\"stream\":true, \"stream_options\" : {\"include_usage\":false},\"cache_salt\":\"a\"}";
	struct body_facts f = facts_of(text);
	assert_false(f.asks_usage);
	assert_true(cgn_str_is(f.options.raw, "{\"include_usage\":false}"));
	body_drop_options(text, &f);
	assert_null(f.options.raw.p);
	body_drop_salt(text, &f);
	f = facts_of(text);
	assert_true(f.stream && f.options.raw.p == NULL && f.salt.raw.p == NULL);
	assert_true(facts_of("{\"stream_options\":{\"include_usage\":true}}").asks_usage);
	assert_false(facts_of("{\"stream_options\":null}").asks_usage);
	assert_false(facts_of("{\"stream_options\":{\"include_usage\":1}}").asks_usage);
}

static void options_that_engines_could_read_otherwise_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *body, *param; /* NULL: it is fine */
		bool asks;
	} rows[] = {
		{"{\"stream\":true}", NULL, false},
		{"{\"stream\":true,\"stream_options\":null}", NULL, false},
		{"{\"stream\":true,\"stream_options\":{}}", NULL, false},
		{"{\"stream\":true,\"stream_options\":{\"include_usage\":null,\"other\":[1]}}", NULL, false},
		{"{\"stream\":true,\"stream_options\":{\"include\\u005fusage\":true}}", NULL, true},
		{"{\"stream\":true,\"stream\\u005foptions\":{\"include_usage\":true,\"continuous_usage_stats\":false}}",
			NULL, true},
		{"{\"stream\":true,\"stream_options\":\"x\"}", "stream_options", false},
		{"{\"stream\":true,\"stream_options\":[]}", "stream_options", false},
		{"{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "stream_options.include_usage",
			false},
		{"{\"stream\":true,\"stream_options\":{\"include_usage\":\"true\"}}",
			"stream_options.include_usage", false},
		{"{\"stream\":true,\"stream_options\":{\"include_usage\":false,\"include_us\\u0061ge\":true}}",
			"stream_options.include_usage", true},
		{"{\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":{}}}",
			"stream_options.continuous_usage_stats", false},
		{"{\"stream\":1}", "stream", false},
		{"{\"stream\":\"true\"}", "stream", false},
		/* The engine judges the options of an answer that comes as a whole. */
		{"{\"stream\":false,\"stream_options\":7}", NULL, false},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		const struct body_facts f = facts_of(rows[i].body);
		struct body_fault fault = {0};
		bool fine = cgn_ok(body_check_options(&f, &fault));
		if (f.asks_usage != rows[i].asks || fine != (rows[i].param == NULL) ||
			(!fine && strcmp(fault.param, rows[i].param) != 0))
			fail_msg("%s", rows[i].body);
	}
}

static void a_model_is_put_where_none_is(void **state)
{
	(void)state;
	static const struct {
		const char *body, *with;
	} rows[] = {
		{"{}", "{\"model\":\"m\\\"\"}"},
		{" { } ", " {\"model\":\"m\\\"\" } "},
		{"{\"a\":1}", "{\"model\":\"m\\\"\",\"a\":1}"},
		{"{\"a\":1,\"model\": \"\" ,\"b\":2}", "{\"a\":1,\"model\": \"m\\\"\" ,\"b\":2}"},
		{"{\"model\":null}", "{\"model\":\"m\\\"\"}"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct body_facts f = facts_of(rows[i].body);
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		assert_true(body_lacks_model(&f));
		body_put_model(cgn_str_of(rows[i].body), &f, CGN_STR("m\""), &out);
		assert_string_equal(cgn_buf_z(&out), rows[i].with);
		f = facts_of(cgn_buf_z(&out));
		assert_false(body_lacks_model(&f));
	}
	struct body_facts f = facts_of("{\"model\":7}");
	assert_false(body_lacks_model(&f)); /* Refused elsewhere. */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(facts_are_read),
		cmocka_unit_test(hints_of_agents_are_read),
		cmocka_unit_test(numbers_that_readers_read_differently_are_refused),
		cmocka_unit_test(the_clients_salt_leaves_the_body),
		cmocka_unit_test(what_engines_could_read_otherwise_is_refused),
		cmocka_unit_test(members_are_bounded),
		cmocka_unit_test(names_of_a_request_are_dropped),
		cmocka_unit_test(names_of_what_an_engine_keeps_are_found),
		cmocka_unit_test(options_of_a_stream_are_found_and_dropped),
		cmocka_unit_test(options_that_engines_could_read_otherwise_are_refused),
		cmocka_unit_test(a_model_is_put_where_none_is),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
