/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json/json.h"
#include "policy/answer/batch/batch.h"
#include "policy/who/claims/kept.h"

#define ENDPOINT "/v1/chat/completions"

static void test_lines(void **state)
{
	static const struct {
		const char *text, *code; /* NULL: the line is fine. */
	} rows[] = {
		{"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"" ENDPOINT
		 "\",\"body\":{\"model\":\"m\"}}",
			NULL},
		{"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"" ENDPOINT
		 "\",\"body\":{\"stream\":false}}",
			NULL},
		{"{", "invalid_json_line"},
		{"[]", "invalid_json_line"},
		{"{\"method\":\"POST\",\"url\":\"" ENDPOINT "\",\"body\":{}}", "invalid_custom_id"},
		{"{\"custom_id\":7,\"method\":\"POST\",\"url\":\"" ENDPOINT "\",\"body\":{}}",
			"invalid_custom_id"},
		{"{\"custom_id\":\"a\\u0000b\",\"method\":\"POST\",\"url\":\"" ENDPOINT "\",\"body\":{}}",
			"invalid_custom_id"},
		{"{\"custom_id\":\"a\",\"method\":\"GET\",\"url\":\"" ENDPOINT "\",\"body\":{}}",
			"invalid_method"},
		{"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{}}",
			"mismatched_endpoint"},
		{"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"" ENDPOINT "\"}", "invalid_body"},
		{"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"" ENDPOINT
		 "\",\"body\":{\"stream\":true}}",
			"invalid_body"},
	};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct batch_line line;
		struct cgn_err err;
		const char *code = NULL;
		cgn_rc rc = batch_line_read(cgn_str_of(rows[i].text), ENDPOINT, &line, &code, &err);
		assert_int_equal(cgn_ok(rc), rows[i].code == NULL);
		if (rows[i].code != NULL)
			assert_string_equal(code, rows[i].code);
		else
			assert_string_equal(line.custom_id, "a");
	}
}

static void test_answers_are_one_line(void **state)
{
	struct cgn_buf b = {0};
	struct json_val v, response, body;
	(void)state;
	batch_answer_put(&(struct batch_answer){.batch_id = "batch_1",
				 .custom_id = "x\ny",
				 .line = 0,
				 .status = 200,
				 .request_id = CGN_STR("r"),
				 .body = CGN_STR("{\n \"a\": \"b\\n\"\r\n}\n")},
		&b);
	assert_ptr_equal(memchr(b.p, '\n', b.n), b.p + b.n - 1);
	assert_null(memchr(b.p, '\r', b.n));
	assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &v, NULL, NULL)));
	assert_true(json_get(v, "response", &response) && json_get(response, "body", &body));
	assert_int_equal(body.type, JSON_OBJECT);
	b.n = 0;
	batch_answer_put(&(struct batch_answer){.batch_id = "b",
				 .custom_id = "c",
				 .status = 502,
				 .body = CGN_STR("<html>\n")},
		&b);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &v, NULL, NULL)));
	assert_true(json_get(v, "response", &response) && json_get(response, "body", &body));
	assert_int_equal(body.type, JSON_STRING);
	cgn_buf_fini(&b);
}

/* However a journal is cut, the records before the cut are read, and those behind it are not. */
static void test_a_cut_journal_keeps_whole_records(void **state)
{
	struct cgn_buf b = {0};
	size_t ends[4] = {0};
	(void)state;
	for (size_t i = 0; i < 3; i++) {
		batch_record_put(&(struct batch_record){i * 7, i == 1,
					 i == 2 ? CGN_STR("") : CGN_STR("{\"a\":1}\n")},
			&b);
		ends[i + 1] = b.n;
	}
	for (size_t cut = 0; cut <= b.n; cut++) {
		struct cgn_str rest = {b.p, cut};
		struct batch_record r;
		size_t n = 0;
		while (rest.n > 0 && batch_record_next(&rest, &r)) {
			assert_int_equal(r.line, n * 7);
			assert_int_equal(r.failed, n == 1);
			n++;
		}
		assert_true(ends[n] <= cut && (n == 3 || ends[n + 1] > cut));
		assert_int_equal(cut - rest.n, ends[n]);
	}
	for (size_t i = 0; i < ends[1]; i++) {
		struct cgn_str rest = {b.p, b.n};
		struct batch_record r;
		b.p[i] ^= 1;
		assert_false(batch_record_next(&rest, &r));
		assert_int_equal(rest.n, b.n);
		b.p[i] ^= 1;
	}
	cgn_buf_fini(&b);
}

/* A try is a record of its line. A version that knows no such record finds a line that no batch has. */
static void test_a_try_is_a_record(void **state)
{
	struct cgn_buf b = {0};
	struct batch_record r;
	(void)state;
	batch_record_put(&(struct batch_record){.line = 7, .tried = true, .text = CGN_STR("")}, &b);
	batch_record_put(&(struct batch_record){.line = 8, .text = CGN_STR("x\n")}, &b);
	struct cgn_str rest = cgn_buf_view(&b), first = rest;
	assert_true(batch_record_next(&rest, &r) && r.tried && !r.failed && r.line == 7 && r.text.n == 0);
	(void)cgn_str_split(&first, ' ');
	uint64_t number = 0;
	assert_true(cgn_str_u64(cgn_str_split(&first, ' '), &number) && number > UINT32_MAX);
	assert_true(batch_record_next(&rest, &r) && !r.tried && r.line == 8 && rest.n == 0);
	cgn_buf_fini(&b);
}

static void test_a_batch_survives_its_file(void **state)
{
	struct batch b = {.id = "batch_1",
		.tenant = "acme",
		.key = "k1",
		.endpoint = ENDPOINT,
		.window = "24h",
		.input = "file-1",
		.output = "file-2",
		.error = "file-3",
		.has_error = true,
		.status = BATCH_FINALIZING,
		.ending = BATCH_EXPIRED,
		.total = 9,
		.completed = 5,
		.failed = 2};
	struct batch got = {0};
	struct cgn_buf text = {0};
	struct cgn_err err;
	char metadata[] = "{\"k\":\"v\"}";
	(void)state;
	b.metadata = metadata;
	b.times[BATCH_CANCELLING_AT] = 77;
	batch_fault_add(&b, "code", 4, "message");
	batch_file_put(&b, &text);
	assert_true(cgn_ok(batch_file_read(cgn_buf_view(&text), &got, &err)));
	assert_string_equal(got.output, "file-2");
	assert_true(got.has_error && !got.has_output);
	assert_int_equal(got.status, BATCH_FINALIZING);
	assert_int_equal(got.ending, BATCH_EXPIRED);
	assert_int_equal(got.completed, 5);
	assert_int_equal(got.times[BATCH_CANCELLING_AT], 77);
	assert_string_equal(got.metadata, "{\"k\":\"v\"}");
	assert_string_equal(got.faults[0].message, "message");
	assert_int_equal(got.faults[0].line, 4);
	batch_fini(&got);
	text.p[text.n / 2] ^= 1;
	assert_false(cgn_ok(batch_file_read(cgn_buf_view(&text), &got, &err)));
	cgn_buf_fini(&text);
}

static const struct claims_kept ann = {.issuer = "https://id.example/r",
	.who = {.subject = "ann \"\xc3\xa4",
		.account = "ann~01",
		.tenant = "acme",
		.n_roles = 2,
		.limits = "rps=2",
		.role = {"user", "students"}}};

/* Read |json| by way of a field. */
static bool holder_read(struct cgn_str json, struct claims_kept *out)
{
	struct cgn_buf field = {0};
	claims_kept_field(json, &field);
	bool read = claims_kept_unfold(cgn_buf_view(&field), out);
	cgn_buf_fini(&field);
	return read;
}

static void holder_is_ann(const struct claims_kept *h)
{
	assert_string_equal(h->issuer, ann.issuer);
	assert_string_equal(h->who.subject, ann.who.subject);
	assert_string_equal(h->who.account, "ann~01");
	assert_string_equal(h->who.tenant, "acme");
	assert_string_equal(h->who.limits, "rps=2");
	assert_int_equal(h->who.n_roles, 2);
	assert_string_equal(h->who.role[1], "students");
}

static void test_a_holder_survives_its_object_its_field_and_its_file(void **state)
{
	struct cgn_buf json = {0}, field = {0}, text = {0};
	struct claims_kept h;
	struct batch b = {.id = "batch_1", .tenant = "acme", .key = "ann~01", .by_token = true}, got = {0};
	struct cgn_err err;
	(void)state;
	claims_kept_put(&ann, &json);
	assert_true(holder_read(cgn_buf_view(&json), &h));
	holder_is_ann(&h);
	claims_kept_field(cgn_buf_view(&json), &field);
	assert_true(field.p[0] == '~' && memchr(field.p, ' ', field.n) == NULL);
	assert_true(claims_kept_unfold(cgn_buf_view(&field), &h));
	holder_is_ann(&h);
	b.holder = cgn_str_dupz(cgn_buf_view(&json));
	batch_file_put(&b, &text);
	assert_true(cgn_ok(batch_file_read(cgn_buf_view(&text), &got, &err)));
	assert_true(got.by_token && holder_read(cgn_str_of(got.holder), &h));
	holder_is_ann(&h);
	batch_fini(&got);
	free(b.holder);
	b.holder = cgn_str_dupz(CGN_STR("[]"));
	text.n = 0;
	batch_file_put(&b, &text);
	assert_false(cgn_ok(batch_file_read(cgn_buf_view(&text), &got, &err)));
	batch_fini(&b);
	cgn_buf_fini(&json);
	cgn_buf_fini(&field);
	cgn_buf_fini(&text);
}

static void test_objects_that_are_no_holder_are_refused(void **state)
{
	static const char *const bad[] = {"", "[]", "{}",
		"{\"issuer\":\"i\",\"subject\":\"s\",\"account\":\"a\",\"tenant\":\"t\",\"roles\":[],\"limits\":\"\"}",
		"{\"issuer\":\"i\",\"subject\":\"s\",\"account\":\"a\",\"tenant\":\"t\",\"roles\":[1],\"limits\":\"\"}",
		"{\"issuer\":\"\",\"subject\":\"s\",\"account\":\"a\",\"tenant\":\"t\",\"roles\":[\"r\"],\"limits\":\"\"}",
		"{\"issuer\":\"i\",\"subject\":\"s\\u0000x\",\"account\":\"a\",\"tenant\":\"t\",\"roles\":[\"r\"],\"limits\":\"\"}",
		"{\"issuer\":\"i\",\"subject\":\"s\",\"account\":\"a\",\"roles\":[\"r\"],\"limits\":\"\"}"};
	struct claims_kept h;
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++)
		assert_false(holder_read(cgn_str_of(bad[i]), &h));
	assert_false(claims_kept_unfold(CGN_STR("e30"), &h));
	assert_false(claims_kept_unfold(CGN_STR("~"), &h));
	assert_false(claims_kept_unfold(CGN_STR("~!!"), &h));
}

static void test_metadata_is_bounded(void **state)
{
	static const struct {
		const char *text;
		bool ok;
	} rows[] = {{"{}", true}, {"{\"a\":\"b\"}", true}, {"{\"a\":1}", false}, {"[]", false},
		{"{\"12345678901234567890123456789012345678901234567890123456789012345\":\"\"}", false}};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct json_val v;
		assert_true(cgn_ok(json_parse(cgn_str_of(rows[i].text), &v, NULL, NULL)));
		assert_int_equal(batch_metadata_ok(&v), rows[i].ok);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_answers_are_one_line),
		cmocka_unit_test(test_a_cut_journal_keeps_whole_records),
		cmocka_unit_test(test_a_try_is_a_record),
		cmocka_unit_test(test_a_batch_survives_its_file),
		cmocka_unit_test(test_a_holder_survives_its_object_its_field_and_its_file),
		cmocka_unit_test(test_objects_that_are_no_holder_are_refused),
		cmocka_unit_test(test_metadata_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
