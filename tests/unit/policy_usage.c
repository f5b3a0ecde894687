/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/node/engine/usage.h"

static void the_tail_keeps_the_end_whatever_the_pieces(void **state)
{
	(void)state;
	for (size_t piece = 1; piece < 9000; piece = piece * 3 + 1) {
		struct usage_tail t = {0};
		size_t total = 0;
		char *all = malloc(40000);
		while (total + piece <= 40000 && total < 30000) {
			for (size_t i = 0; i < piece; i++)
				all[total + i] = (char)('a' + (total + i) * 7 % 23);
			usage_tail_add(&t, all + total, piece);
			total += piece;
		}
		struct cgn_str got = usage_tail_view(&t);
		assert_true(got.n >= (total < USAGE_TAIL ? total : USAGE_TAIL) && got.n <= total);
		assert_memory_equal(got.p, all + total - got.n, got.n);
		usage_tail_fini(&t);
		usage_tail_fini(&t);
		free(all);
	}
}

static void a_stream_is_asked_for_its_usage(void **state)
{
	(void)state;
	static const struct {
		const char *own, *asked;
	} rows[] = {
		{NULL, "{\"include_usage\":true}"},
		{"null", "{\"include_usage\":true}"},
		{"{}", "{\"include_usage\":true}"},
		{"{\"include_usage\":false,\"include_obfuscation\": false}",
			"{\"include_usage\":true,\"include_obfuscation\":false}"},
		{"{\"include\\u005fusage\":false,\"\\u0061\":1,\"include_usage\":false}",
			"{\"include_usage\":true,\"\\u0061\":1}"},
		{"{\"continuous_usage_stats\":true,\"a\":{\"b\":[1]}}",
			"{\"include_usage\":true,\"a\":{\"b\":[1]}}"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		struct json_val own = {0};
		if (rows[i].own != NULL)
			assert_true(cgn_ok(json_parse(cgn_str_of(rows[i].own), &own, NULL, NULL)));
		usage_ask_put(own, &out);
		assert_string_equal(cgn_buf_z(&out), rows[i].asked);
	}
}

#define CHUNK  "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a \\\"usage\\\" b\"}}]}\n\n"
#define NULLED "data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":null}\n\n"
#define U      "\"usage\" : {\"prompt_tokens\":1,\"completion_tokens\":2}"
#define CHOICE "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]"
#define ALONE  "data: {\"id\":\"x\",\"choices\": [ ]," U "}\n\n"
#define END    "data: [DONE]\n\n"

static void the_usage_is_not_shown(void **state)
{
	(void)state;
	static const struct {
		const char *events, *left; /* NULL: nothing is left out */
	} rows[] = {
		{CHUNK END, NULL},
		{NULLED END, NULL},
		{CHUNK ALONE END, CHUNK END},
		{ALONE, ""},
		{ALONE CHUNK END, CHUNK END},
		{NULLED CHUNK ALONE CHUNK, NULLED CHUNK CHUNK},
		{": a comment\n\n" ALONE "event: x\ndata: 1\n\n", ": a comment\n\nevent: x\ndata: 1\n\n"},
		{"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\r\n\r\ndata: [DONE]\r\n\r\n",
			"data: [DONE]\r\n\r\n"},
		{"data:{\"choices\":[],\"usage\":{}}\r\rdata: [DONE]\r\r", "data: [DONE]\r\r"},
		/* The end of an event whose begin has passed, then the chunk. */
		{"ntent\":\"x\"}}]}\n\n" ALONE, "ntent\":\"x\"}}]}\n\n"},
		/* No list of choices; names with escapes; several lines; other types */
		{"data: {" U "}\n\n", ""},
		{"data: {\"choices\":null," U "}\n\n", ""},
		{"data: {\"choices\":[],\"\\u0075sage\":{\"prompt_tokens\":1}}\n\n", ""},
		{"id: 1\ndata: {\"choices\":[],\ndata: " U "}\n\n", ""},
		{"\xef\xbb\xbf"
		 "data: {\"choices\":[]," U "}\n\n",
			""},
		{"data: {\"choices\":[],\"usage\":[1]}\n\n", ""},
		/* A part of the answer stays, byte for byte. */
		{"data: {" CHOICE "," U "}\n\n", "data: {" CHOICE "}\n\n"},
		{"data: {" U " , " CHOICE "}\n\n", "data: { " CHOICE "}\n\n"},
		{"data: {\"id\":1 , " U "," CHOICE "}\n\n", "data: {\"id\":1 ," CHOICE "}\n\n"},
		{"data: {" U "," U "," CHOICE "," U ",\"\\u0075sage\":1}\n\n", "data: {" CHOICE "}\n\n"},
		{"id: 7\ndata: {" CHOICE "\ndata: ," U "\ndata: }\n\n",
			"id: 7\ndata: {" CHOICE "\ndata: \ndata: }\n\n"},
		{"data: {" CHOICE ",\r\ndata:" U "}\r\n\r\n", "data: {" CHOICE "}\r\n\r\n"},
		{"data: {" U "\ndata: ," CHOICE "}\n\n", "data: {" CHOICE "}\n\n"},
		{"data: {\"choices\":[{\"usage\":{\"a\":1}}],\"x\":{" U "}}\n\n", NULL},
		{"data: {\"choices\":[],\"usage\":{\"prompt_tok", NULL},
		{"data: {\"choices\":[],\"usage\":{},\"error\":{\"message\":\"boom\"}}\n\n",
			"data: {\"choices\":[],\"error\":{\"message\":\"boom\"}}\n\n"},
		{"data: {\"choices\":[],\"usage\":{},\"error\":null}\n\n", ""},
		{"", NULL},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
		bool changed = usage_events_shown(cgn_str_of(rows[i].events), &out);
		if (changed != (rows[i].left != NULL) ||
			!cgn_str_is(cgn_buf_view(&out), changed ? rows[i].left : ""))
			fail_msg("row %zu: %s: %.*s", i, rows[i].events, CGN_STR_ARG(cgn_buf_view(&out)));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_tail_keeps_the_end_whatever_the_pieces),
		cmocka_unit_test(a_stream_is_asked_for_its_usage),
		cmocka_unit_test(the_usage_is_not_shown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
