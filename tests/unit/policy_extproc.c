/* SPDX-License-Identifier: Apache-2.0 */
/* extproc: the messages of a proxy are read, and a picker's answers have the fields of the protocol. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/pb/pb.h"
#include "envoy/ext_proc.pb-c.h"
#include "policy/answer/extproc/extproc.h"

static struct cgn_err err;

#define BYTES(text) ((struct cgn_str){(text), sizeof(text) - 1})

static void test_request_head(void **state)
{
	(void)state;
	/* request_headers {headers {headers {key: ":path" raw_value: "/v1/x"} headers {key: "a" value: "b"}} end_of_stream: true}
	 * metadata_context {filter_metadata {"envoy.lb.subset_hint" {fields {"x-gateway-destination-endpoint-subset"
	 * list_value {values {string_value: "1.2.3.4:5"} values {string_value: "[::1]:6"}}}}}} protocol_config {2, 4} */
	struct extproc_message m;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf list = {0};
	struct cgn_str bytes = BYTES("\x12\x1c"
				     "\x0a\x18"
				     "\x0a\x0e\x0a\x05:path\x1a\x05/v1/x"
				     "\x0a\x06\x0a\x01"
				     "a\x12\x01"
				     "b"
				     "\x18\x01"
				     "\x42\x5f\x0a\x5d\x0a\x14"
				     "envoy.lb.subset_hint"
				     "\x12\x45\x0a\x43\x0a\x25x-gateway-destination-endpoint-subset"
				     "\x12\x1a\x32\x18\x0a\x0b\x1a\x09"
				     "1.2.3.4:5"
				     "\x0a\x09\x1a\x07[::1]:6"
				     "\x5a\x04\x08\x02\x10\x04");
	assert_true(cgn_ok(extproc_read(bytes, &m, &err)));
	assert_int_equal(m.kind, EXTPROC_REQUEST_HEAD);
	assert_true(m.last);
	assert_int_equal(m.request_mode, EXTPROC_WHOLE);
	assert_int_equal(m.answer_mode, EXTPROC_DUPLEX);
	assert_int_equal(extproc_fields(&m), 2);
	assert_true(cgn_str_is(extproc_field(&m, ":path"), "/v1/x"));
	assert_true(cgn_str_is(extproc_field(&m, "a"), "b"));
	assert_null(extproc_field(&m, "c").p);
	assert_true(extproc_subset(&m, &list));
	assert_true(cgn_str_is(cgn_buf_view(&list), "1.2.3.4:5,[::1]:6"));
	assert_null(extproc_served(&m).p);
	extproc_fini(&m);
}

/* Write |n| bytes |in| as the member |tag| of a message, before |end|; returns where it begins. */
static char *member_before(char *end, unsigned char tag, size_t n)
{
	char length[10];
	size_t digits = 0;
	end -= n;
	for (; n > 0x7f; n >>= 7)
		length[digits++] = (char)(n | 0x80);
	length[digits++] = (char)n;
	end -= digits;
	memcpy(end, length, digits);
	*--end = (char)tag;
	return end;
}

static cgn_rc nested_values_read(unsigned depth)
{
	static char room[64 * 1024];
	char *end = room + sizeof room, *p = end;
	struct extproc_message m;
	for (unsigned i = 0; i < depth; i++) {
		p = member_before(end, 0x0a, (size_t)(end - p)); /* ListValue.values */
		p = member_before(end, 0x32, (size_t)(end - p)); /* Value.list_value */
	}
	p = member_before(end, 0x12, (size_t)(end - p)); /* Struct.fields.value */
	p = member_before(end, 0x0a, (size_t)(end - p)); /* Struct.fields */
	p = member_before(end, 0x12, (size_t)(end - p)); /* Metadata.filter_metadata.value */
	p = member_before(end, 0x0a, (size_t)(end - p)); /* Metadata.filter_metadata */
	p = member_before(end, 0x42, (size_t)(end - p)); /* ProcessingRequest.metadata_context */
	p -= 4;
	memcpy(p, "\x22\x02\x10\x01", 4); /* ProcessingRequest.request_body */
	cgn_rc rc = extproc_read((struct cgn_str){p, (size_t)(end - p)}, &m, &err);
	if (cgn_ok(rc))
		extproc_fini(&m);
	return rc;
}

static void test_values_within_values_end(void **state)
{
	(void)state;
	assert_true(cgn_ok(nested_values_read(0)));
	assert_true(cgn_ok(
		nested_values_read(47))); /* 99 messages within messages, with those around the values */
	assert_int_equal(nested_values_read(60).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "deep"));
	assert_int_equal(nested_values_read(5000).code, CGN_INVALID);
}

static void test_bodies_and_trailers(void **state)
{
	(void)state;
	struct extproc_message m;
	assert_true(cgn_ok(extproc_read(BYTES("\x22\x06\x0a\x02hi\x10\x01"), &m, &err)));
	assert_int_equal(m.kind, EXTPROC_REQUEST_BODY);
	assert_true(m.last && cgn_str_is(m.body, "hi"));
	extproc_fini(&m);
	assert_true(cgn_ok(extproc_read(BYTES("\x2a\x04\x0a\x02hi"), &m, &err)));
	assert_int_equal(m.kind, EXTPROC_ANSWER_BODY);
	assert_false(m.last);
	extproc_fini(&m);
	assert_true(cgn_ok(extproc_read(BYTES("\x3a\x00"), &m, &err)));
	assert_int_equal(m.kind, EXTPROC_ANSWER_TRAILERS);
	extproc_fini(&m);
	assert_true(cgn_ok(extproc_read(BYTES("\x1a\x00\x50\x01"), &m, &err)));
	assert_int_equal(m.kind, EXTPROC_ANSWER_HEAD);
	assert_true(m.observes && extproc_fields(&m) == 0);
	extproc_fini(&m);
}

static void test_what_is_no_message(void **state)
{
	(void)state;
	struct extproc_message m;
	assert_false(cgn_ok(extproc_read(BYTES(""), &m, &err)));
	extproc_fini(&m);
	assert_false(cgn_ok(extproc_read(BYTES("\x12\x7f"), &m, &err)));
	extproc_fini(&m);
	/* A newer body mode is not guessed. */
	assert_true(cgn_ok(extproc_read(BYTES("\x12\x00\x5a\x02\x08\x05"), &m, &err)));
	assert_int_equal(m.request_mode, EXTPROC_NO_BODY);
	extproc_fini(&m);
}

static void test_served(void **state)
{
	(void)state;
	struct extproc_message m;
	struct cgn_str bytes =
		BYTES("\x1a\x00\x42\x43\x0a\x41\x0a\x08"
		      "envoy.lb"
		      "\x12\x35\x0a\x33\x0a\x25x-gateway-destination-endpoint-served\x12\x0a\x1a\x08"
		      "10.0.0.1");
	assert_true(cgn_ok(extproc_read(bytes, &m, &err)));
	assert_true(cgn_str_is(extproc_served(&m), "10.0.0.1"));
	extproc_fini(&m);
}

static void test_pick_has_equal_values_in_both_places(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	const struct extproc_pick pick = {"1.2.3.4:5", -1};
	extproc_put_head(EXTPROC_REQUEST_HEAD, &pick, &b);
	CGN_ON_EXIT(pb_free) Extproc__ProcessingResponse *m = NULL;
	assert_true(cgn_ok(pb_unpack(&extproc__processing_response__descriptor, cgn_buf_view(&b), &m, &err)));
	assert_int_equal(m->response_case, EXTPROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_HEADERS);
	const Extproc__HeaderMutation *set = m->request_headers->response->header_mutation;
	assert_int_equal(set->n_set_headers, 1);
	assert_string_equal(set->set_headers[0]->header->key, "x-gateway-destination-endpoint");
	assert_memory_equal(set->set_headers[0]->header->raw_value.data, "1.2.3.4:5", 9);
	assert_int_equal(set->set_headers[0]->append_action,
		EXTPROC__HEADER_VALUE_OPTION__APPEND_ACTION__OVERWRITE_IF_EXISTS_OR_ADD);
	const Extproc__Struct__FieldsEntry *space = m->dynamic_metadata->fields[0];
	assert_string_equal(space->key, "envoy.lb");
	assert_string_equal(space->value->struct_value->fields[0]->key, "x-gateway-destination-endpoint");
	assert_string_equal(space->value->struct_value->fields[0]->value->string_value, "1.2.3.4:5");
}

static void test_a_new_length_and_a_new_body(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	CGN_ON_EXIT(pb_free) Extproc__ProcessingResponse *m = NULL;
	const struct extproc_pick pick = {"1.2.3.4:5,1.2.3.5:5", 3};
	extproc_put_body(EXTPROC_REQUEST_BODY, &pick, CGN_STR("abc"), &b);
	assert_true(cgn_ok(pb_unpack(&extproc__processing_response__descriptor, cgn_buf_view(&b), &m, &err)));
	const Extproc__CommonResponse *c = m->request_body->response;
	assert_int_equal(c->header_mutation->n_set_headers, 2);
	assert_string_equal(c->header_mutation->set_headers[1]->header->key, "content-length");
	assert_memory_equal(c->header_mutation->set_headers[1]->header->raw_value.data, "3", 1);
	assert_int_equal(c->body_mutation->mutation_case, EXTPROC__BODY_MUTATION__MUTATION_BODY);
	assert_memory_equal(c->body_mutation->body.data, "abc", 3);
}

static void test_pieces_and_trailers(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0}, t = {0};
	CGN_ON_EXIT(pb_free) Extproc__ProcessingResponse *m = NULL, *n = NULL;
	extproc_put_piece(EXTPROC_ANSWER_BODY, CGN_STR("abc"), true, &b);
	assert_true(cgn_ok(pb_unpack(&extproc__processing_response__descriptor, cgn_buf_view(&b), &m, &err)));
	const Extproc__StreamedBodyResponse *piece =
		m->response_body->response->body_mutation->streamed_response;
	assert_true(piece->end_of_stream);
	assert_memory_equal(piece->body.data, "abc", 3);
	extproc_put_trailers(EXTPROC_REQUEST_TRAILERS, &t);
	assert_true(cgn_ok(pb_unpack(&extproc__processing_response__descriptor, cgn_buf_view(&t), &n, &err)));
	assert_int_equal(n->response_case, EXTPROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_TRAILERS);
}

static void test_refusal(void **state)
{
	(void)state;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	CGN_ON_EXIT(pb_free) Extproc__ProcessingResponse *m = NULL;
	extproc_put_refusal(429, CGN_STR("{}"), 7, "why", &b);
	assert_true(cgn_ok(pb_unpack(&extproc__processing_response__descriptor, cgn_buf_view(&b), &m, &err)));
	const Extproc__ImmediateResponse *now = m->immediate_response;
	assert_int_equal(now->status->code, 429);
	assert_memory_equal(now->body.data, "{}", 2);
	assert_string_equal(now->details, "why");
	assert_int_equal(now->headers->n_set_headers, 2);
	assert_string_equal(now->headers->set_headers[1]->header->key, "retry-after");
	assert_memory_equal(now->headers->set_headers[1]->header->raw_value.data, "7", 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_request_head),
		cmocka_unit_test(test_values_within_values_end),
		cmocka_unit_test(test_bodies_and_trailers),
		cmocka_unit_test(test_what_is_no_message),
		cmocka_unit_test(test_served),
		cmocka_unit_test(test_pick_has_equal_values_in_both_places),
		cmocka_unit_test(test_a_new_length_and_a_new_body),
		cmocka_unit_test(test_pieces_and_trailers),
		cmocka_unit_test(test_refusal),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
