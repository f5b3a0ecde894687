/* SPDX-License-Identifier: Apache-2.0 */
/* enginecall: the request for an engine, the relayed part of its answer, and the error that a client gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "joint/node/enginecall/enginecall.h"

#define FIELD(n, v) {CGN_STR(n), CGN_STR(v)}

static bool has_field(const struct http_field *f, size_t n, const char *name, const char *value)
{
	for (size_t i = 0; i < n; i++)
		if (cgn_str_is(f[i].name, name))
			return cgn_str_is(f[i].value, value);
	return false;
}

static void sends_the_clients_fields_and_its_own_key(void **state)
{
	(void)state;
	const struct proto_header h[] = {FIELD("content-type", "application/json"),
		FIELD("Authorization", "Bearer client"), FIELD("connection", "close"),
		FIELD("host", "gateway"), FIELD("traceparent", "t")};
	const struct proto_generate rq = {.request_id = CGN_STR("id-1"),
		.headers = h,
		.n_headers = CGN_COUNT(h)};
	struct http_field out[ENGINECALL_FIELDS];
	size_t n = enginecall_fields(&rq, NULL, out);
	assert_int_equal(n, 3);
	assert_true(has_field(out, n, "content-type", "application/json"));
	assert_true(has_field(out, n, "traceparent", "t"));
	assert_true(has_field(out, n, "x-request-id", "id-1"));
	n = enginecall_fields(&rq, "Bearer engine", out);
	assert_int_equal(n, 4);
	assert_true(has_field(out, n, "authorization", "Bearer engine"));
}

static void refuses_what_would_become_a_second_request(void **state)
{
	(void)state;
	struct proto_header h[] = {FIELD("accept", "a\r\nevil: b")};
	struct cgn_err err;
	struct proto_generate rq = {.method = CGN_STR("POST"),
		.path = CGN_STR("/v1/x"),
		.request_id = CGN_STR("i")};
	assert_true(cgn_ok(enginecall_check(&rq, &err)));
	rq.path = CGN_STR("/v1/x HTTP/1.1");
	assert_int_equal(enginecall_check(&rq, &err).code, CGN_INVALID);
	rq.path = CGN_STR("/v1/x");
	rq.method = CGN_STR("PO ST");
	assert_int_equal(enginecall_check(&rq, &err).code, CGN_INVALID);
	rq.method = CGN_STR("POST");
	rq.headers = h;
	rq.n_headers = 1;
	assert_int_equal(enginecall_check(&rq, &err).code, CGN_INVALID);
}

static void relays_no_field_of_the_connection(void **state)
{
	(void)state;
	const struct http_field f[] = {FIELD("content-type", "text/event-stream"),
		FIELD("transfer-encoding", "chunked"), FIELD("server", "uvicorn")};
	const struct http_head h = {.status = 200, .fields = f, .n_fields = CGN_COUNT(f)};
	struct proto_header out[PROTO_MAX_HEADERS];
	assert_int_equal(enginecall_head(&h, out), 2);
	assert_true(cgn_str_is(out[1].name, "server"));
}

static void tells_whose_fault_a_failure_is(void **state)
{
	(void)state;
	const struct cgn_err reset = {.code = CGN_CANCELLED, .msg = "reset"},
			     full = {.code = CGN_OVERLOADED, .msg = "full"};
	struct cgn_err out;
	enginecall_failed("main", HTTP_FAIL_BODY, &reset, &out);
	assert_int_equal(out.code, CGN_UNAVAILABLE);
	assert_string_equal(out.msg, "engine main ended in the middle of its answer: reset");
	enginecall_failed("main", HTTP_FAIL_CONNECT, &full, &out);
	assert_int_equal(out.code, CGN_OVERLOADED);
}

static void on_turn_end(struct cgn_hook *h)
{
	(void)h;
}

static void gathers_small_pieces_in_order(void **state)
{
	(void)state;
	static const char large[8192];
	struct cgn_loop *l = NULL;
	struct cgn_err err;
	assert_true(cgn_ok(cgn_loop_new(&l, &err)));
	struct enginecall_gather g = {.loop = l};
	cgn_hook_init(&g.hook, on_turn_end);
	assert_true(enginecall_gather_add(&g, "ab", 2));
	assert_true(enginecall_gather_add(&g, "c", 1));
	assert_false(enginecall_gather_add(&g, large, sizeof large));
	struct cgn_buf b = enginecall_gather_take(&g);
	assert_true(cgn_str_is(cgn_buf_view(&b), "abc"));
	cgn_buf_fini(&b);
	b = enginecall_gather_take(&g);
	assert_int_equal(b.n, 0);
	cgn_loop_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sends_the_clients_fields_and_its_own_key),
		cmocka_unit_test(refuses_what_would_become_a_second_request),
		cmocka_unit_test(relays_no_field_of_the_connection),
		cmocka_unit_test(tells_whose_fault_a_failure_is),
		cmocka_unit_test(gathers_small_pieces_in_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
