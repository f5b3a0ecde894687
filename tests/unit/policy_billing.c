/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "policy/node/proto/document.h"
#include "policy/who/billing/billing.h"

#define DAY  20000
#define HOUR (UINT64_C(24) * DAY)

static struct billing *billing_open(void)
{
	struct billing *l = billing_new();
	return l;
}

static void row_add(struct billing *l, uint64_t hour, const char *tenant, const char *key, const char *model,
	uint64_t n)
{
	const struct billing_names names = {cgn_str_of(tenant), cgn_str_of(key), cgn_str_of(model)};
	const struct billing_amounts more = {1, 0, n, n / 2, 2 * n, n * 1000000000, n * 1500};
	billing_add(l, hour, &names, &more);
}

static cgn_rc report_put(const struct billing *l, const struct billing_query *q, bool csv,
	struct cgn_buf *out)
{
	CGN_ON_EXIT(billing_report_free) struct billing_report *r = billing_report_new(q);
	struct cgn_err err;
	while (billing_report_add(r, l))
		;
	CGN_TRY(billing_report_end(r, &err));
	if (csv) {
		billing_report_csv(r, out);
		return CGN_OK;
	}
	struct json_out j = json_out_to(out);
	struct pb_tree t;
	Cognitora__V1__Usage usage = COGNITORA__V1__USAGE__INIT;
	pb_tree_init(&t, (size_t)64 << 20);
	billing_report_fill(r, &t, &usage);
	assert_false(t.bad);
	proto_document_put(PROTO_DOCUMENT_USAGE, &usage, &j);
	pb_tree_fini(&t);
	return CGN_OK;
}

static void csv_is(const struct billing *l, enum billing_by by, enum billing_step step, const char *want)
{
	const struct billing_query q = {HOUR, HOUR + 48, by, step, "USD"};
	struct cgn_buf b = {0};
	assert_true(cgn_ok(report_put(l, &q, true, &b)));
	assert_string_equal(cgn_buf_z(&b), want);
	cgn_buf_fini(&b);
}

static void rows_are_added_up(void **state)
{
	(void)state;
	struct billing *l = billing_open();
	row_add(l, HOUR - 1, "acme", "k1", "m", 1000); /* This hour is before the report's. */
	row_add(l, HOUR, "acme", "k1", "m", 1);
	row_add(l, HOUR, "acme", "k2", "m", 2);
	row_add(l, HOUR + 1, "acme", "k1", "a, \"b\"", 4);
	row_add(l, HOUR + 24, "beta", "k3", "m", 8);
	row_add(l, HOUR + 48, "beta", "k3", "m", 1000);
	csv_is(l, BILLING_BY_ALL, BILLING_STEP_ALL,
		"requests,estimated,input_tokens,cached_tokens,output_tokens,money_USD,joules\n"
		"4,0,15,7,30,15,22.5\n");
	csv_is(l, BILLING_BY_TENANT, BILLING_STEP_DAY,
		"time,tenant,requests,estimated,input_tokens,cached_tokens,output_tokens,money_USD,joules\n"
		"2024-10-04T00:00:00Z,\"acme\",3,0,7,3,14,7,10.5\n"
		"2024-10-05T00:00:00Z,\"beta\",1,0,8,4,16,8,12\n");
	csv_is(l, BILLING_BY_MODEL, BILLING_STEP_ALL,
		"model,requests,estimated,input_tokens,cached_tokens,output_tokens,money_USD,joules\n"
		"\"a, \"\"b\"\"\",1,0,4,2,8,4,6\n\"m\",3,0,11,5,22,11,16.5\n");
	csv_is(l, BILLING_BY_KEY, BILLING_STEP_HOUR,
		"time,key,requests,estimated,input_tokens,cached_tokens,output_tokens,money_USD,joules\n"
		"2024-10-04T00:00:00Z,\"k1\",1,0,1,0,2,1,1.5\n2024-10-04T00:00:00Z,\"k2\",1,0,2,1,4,2,3\n"
		"2024-10-04T01:00:00Z,\"k1\",1,0,4,2,8,4,6\n2024-10-05T00:00:00Z,\"k3\",1,0,8,4,16,8,12\n");
	billing_free(&l);
}

static void the_rest_goes_to_other(void **state)
{
	(void)state;
	struct billing *l = billing_open();
	char name[16];
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < BILLING_ROWS + 100; i++) {
			(void)snprintf(name, sizeof name, "t%u", i);
			row_add(l, HOUR, name, "k", "m", 1);
		}
	const struct billing_query q = {HOUR, HOUR + 1, BILLING_BY_TENANT, BILLING_STEP_ALL, "USD"};
	struct cgn_buf b = {0};
	assert_true(cgn_ok(report_put(l, &q, true, &b)));
	size_t lines = 0;
	for (const char *p = cgn_buf_z(&b); (p = strchr(p, '\n')) != NULL; p++)
		lines++;
	assert_int_equal(lines, BILLING_ROWS + 1);
	assert_non_null(strstr(cgn_buf_z(&b), "\"(other)\",202,"));
	cgn_buf_fini(&b);
	csv_is(l, BILLING_BY_ALL, BILLING_STEP_ALL,
		"requests,estimated,input_tokens,cached_tokens,output_tokens,money_USD,joules\n"
		"1224,0,1224,0,2448,1224,1836\n");
	billing_free(&l);
}

static void the_earliest_hour_gives_way(void **state)
{
	(void)state;
	struct billing *l = billing_open();
	for (uint64_t i = 0; i < BILLING_HOURS + 5; i++)
		row_add(l, HOUR + i, "acme", "k", "m", 1);
	row_add(l, HOUR + 1, "acme", "k", "m", 1); /* This hour is too early now. */
	const struct billing_query q = {0, UINT64_MAX, BILLING_BY_TENANT, BILLING_STEP_ALL, "USD"};
	struct cgn_buf b = {0};
	assert_true(cgn_ok(report_put(l, &q, false, &b)));
	assert_non_null(strstr(cgn_buf_z(&b), "\"requests\":768,"));
	cgn_buf_fini(&b);
	row_add(l, HOUR + 100000, "acme", "k", "m", 1); /* A clock that jumps loses one hour, not all. */
	assert_true(cgn_ok(report_put(l, &q, false, &b)));
	assert_non_null(strstr(cgn_buf_z(&b), "\"requests\":768,"));
	cgn_buf_fini(&b);
	billing_free(&l);
}

static void a_day_survives_as_a_text(void **state)
{
	(void)state;
	struct billing *l = billing_open(), *again = billing_open();
	struct cgn_buf a = {0}, b = {0};
	struct cgn_err err;
	row_add(l, HOUR, "acme", "k 1", "m%\n\xc3\xbc", 1);
	row_add(l, HOUR + 23, "acme", "k1", "", 2);
	row_add(l, HOUR + 24, "acme", "k1", "m", 3); /* This hour is of the next day. */
	billing_write_day(l, DAY, &a);
	assert_false(cgn_ok(billing_read_day(again, DAY + 1, cgn_buf_view(&a), &err)));
	for (size_t i = 0; i < a.n; i++) {
		a.p[i] ^= 4;
		assert_false(cgn_ok(billing_read_day(again, DAY, cgn_buf_view(&a), &err)));
		a.p[i] ^= 4;
	}
	assert_true(cgn_ok(billing_read_day(again, DAY, cgn_buf_view(&a), &err)));
	billing_write_day(again, DAY, &b);
	assert_string_equal(cgn_buf_z(&a), cgn_buf_z(&b));
	cgn_buf_fini(&a);
	cgn_buf_fini(&b);
	billing_free(&again);
	billing_free(&l);
}

static void times_are_read(void **state)
{
	(void)state;
	uint64_t h = 0;
	assert_true(billing_time(CGN_STR("2024-10-04"), &h) && h == HOUR);
	assert_true(billing_time(CGN_STR("2024-10-04T01"), &h) && h == HOUR + 1);
	assert_true(billing_time(CGN_STR("2024-10-04T01:59Z"), &h) && h == HOUR + 1);
	assert_true(billing_time(CGN_STR("1728003600"), &h) && h == HOUR + 1);
	assert_false(billing_time(CGN_STR("yesterday"), &h));
	assert_false(billing_time(CGN_STR("2024-13-04"), &h));
	assert_false(billing_time(CGN_STR("2026-02-30"), &h));
	assert_true(billing_time(CGN_STR("2028-02-29"), &h));
	assert_false(billing_time(CGN_STR("18446744073709551615"), &h));
	assert_true(billing_time(CGN_STR("253402300799"), &h));
	assert_false(billing_time(CGN_STR("253402300800"), &h));
	assert_false(billing_time(CGN_STR("2024-10-04T01:00:00+01:00"), &h));
	enum billing_by by;
	enum billing_step step;
	assert_true(billing_by_find(CGN_STR("key"), &by) && by == BILLING_BY_KEY);
	assert_false(billing_by_find(CGN_STR("node"), &by));
	assert_true(billing_step_find(CGN_STR("day"), &step) && step == BILLING_STEP_DAY);
	assert_false(billing_step_find(CGN_STR("week"), &step));
}

static void a_report_is_bounded(void **state)
{
	(void)state;
	struct billing *l = billing_open();
	char name[16];
	for (unsigned h = 0; h < 140; h++)
		for (unsigned i = 0; i < BILLING_ROWS; i++) {
			(void)snprintf(name, sizeof name, "t%u", i);
			row_add(l, HOUR + h, name, "k", "m", 1);
		}
	struct billing_query q = {HOUR, HOUR + 140, BILLING_BY_TENANT, BILLING_STEP_HOUR, "USD"};
	struct cgn_buf b = {0};
	assert_int_equal(report_put(l, &q, true, &b).code, CGN_TOO_LARGE);
	assert_int_equal(b.n, 0);
	q.step = BILLING_STEP_DAY;
	assert_true(cgn_ok(report_put(l, &q, true, &b)));
	cgn_buf_fini(&b);
	billing_free(&l);
}

/* Rows come and go while the report is made, as they do where the lock is given back between two hours. */
static void a_report_is_made_beside_changes(void **state)
{
	(void)state;
	struct billing *l = billing_open();
	struct billing_report *r = NULL;
	struct cgn_buf b = {0};
	struct cgn_err err;
	const struct billing_query q = {0, UINT64_MAX, BILLING_BY_KEY, BILLING_STEP_ALL, "USD"};
	for (uint64_t i = 0; i < BILLING_HOURS; i++)
		row_add(l, HOUR + i, "acme", i == 0 ? "first" : "k", "m", 1);
	r = billing_report_new(&q);
	for (uint64_t i = 0; billing_report_add(r, l); i++)
		if (i < 3)
			row_add(l, HOUR + BILLING_HOURS + i, "acme", "late", "m",
				1); /* The earliest hours give way. */
	assert_true(cgn_ok(billing_report_end(r, &err)));
	billing_report_csv(r, &b);
	assert_string_equal(cgn_buf_z(&b),
		"key,requests,estimated,input_tokens,cached_tokens,output_tokens,money_USD,joules\n"
		"\"first\",1,0,1,0,2,1,1.5\n\"k\",767,0,767,0,1534,767,1150.5\n\"late\",3,0,3,0,6,3,4.5\n");
	cgn_buf_fini(&b);
	billing_report_free(&r);
	billing_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_added_up),
		cmocka_unit_test(the_rest_goes_to_other),
		cmocka_unit_test(the_earliest_hour_gives_way),
		cmocka_unit_test(a_day_survives_as_a_text),
		cmocka_unit_test(times_are_read),
		cmocka_unit_test(a_report_is_bounded),
		cmocka_unit_test(a_report_is_made_beside_changes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
