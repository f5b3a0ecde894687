/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "policy/who/invite/invite.h"

#define NOW  ((int64_t)1700000000)
#define HOUR 3600
#define HEX  "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define GOOD "cgnj1/agent/gpu-07/0123456789abcdef/" HEX "/" HEX "/10.0.0.5:9093"

static void a_token_is_read_as_it_was_written(void **state)
{
	(void)state;
	static const char *const good[] = {GOOD,
		"cgnj1/agent//0123456789abcdef/" HEX "/" HEX "/[fe80::1]:9093"};
	for (size_t i = 0; i < CGN_COUNT(good); i++) {
		struct invite_token t;
		struct cgn_buf again = {0};
		assert_true(cgn_ok(invite_token_read(cgn_str_of(good[i]), &t, NULL)));
		assert_true(cgn_str_is(t.role, "agent") && cgn_str_is(t.id, "0123456789abcdef"));
		assert_true(t.secret[0] == 0x01 && t.ca[31] == 0xef);
		invite_token_put(&t, &again);
		assert_string_equal(cgn_buf_z(&again), good[i]);
		cgn_buf_fini(&again);
	}
}

static void a_damaged_token_is_refused_without_its_secret(void **state)
{
	(void)state;
	static const struct {
		const char *text, *part;
	} bad[] = {{"", "not a token"}, {"hello", "not a token"}, {"cgnj1", "not a token"},
		{"cgnj2/agent", "not a token"}, {"cgnj1/agent", "id"},
		{"cgnj1//n/0123456789abcdef/" HEX "/" HEX "/a:1", "role"},
		{"cgnj1/agent/a b/0123456789abcdef/" HEX "/" HEX "/a:1", "node"},
		{"cgnj1/agent/n/0123456789ABCDEF/" HEX "/" HEX "/a:1", "id"},
		{"cgnj1/agent/n/0123456789abcdef/" HEX "0/" HEX "/a:1", "secret"},
		{"cgnj1/agent/n/0123456789abcdef/" HEX "/0123/a:1", "CA"},
		{"cgnj1/agent/n/0123456789abcdef/" HEX "/" HEX "/a", "address"},
		{"cgnj1/agent/n/0123456789abcdef/" HEX "/" HEX, "address"},
		{"cgnj1/agent/n/0123456789abcdef/" HEX "/" HEX "/:1", "address"},
		{"cgnj1/agent/n/0123456789abcdef/" HEX "/" HEX "/a/b:1", "address"}};
	struct invite_token t;
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct cgn_err err = {0};
		assert_int_equal(invite_token_read(cgn_str_of(bad[i].text), &t, &err).code, CGN_INVALID);
		if (strstr(err.msg, bad[i].part) == NULL)
			fail_msg("\"%s\" lacks \"%s\"", err.msg, bad[i].part);
		assert_null(strstr(err.msg, "0123456789abcdef0123"));
	}
	for (size_t n = 0; n < strlen(GOOD) - 1; n++) /* The last digit may be missing: another port. */
		assert_true(n > strlen(GOOD) - 5 ||
			!cgn_ok(invite_token_read((struct cgn_str){GOOD, n}, &t, NULL)));
}

static struct invite invite_of(const char *id, const char *node)
{
	struct invite i = {.ends = NOW + HOUR, .days = 365, .role = "agent"};
	(void)cgn_str_copyz(i.id, sizeof i.id, cgn_str_of(id));
	(void)cgn_str_copyz(i.node, sizeof i.node, cgn_str_of(node));
	(void)cgn_str_copyz(i.sans, sizeof i.sans, CGN_STR("a.example,10.0.0.7"));
	i.secret = crypto_sha256(cgn_str_of(id));
	return i;
}

static struct invite_request request_of(const char *id, const char *role, const char *node, const char *key)
{
	return (struct invite_request){cgn_str_of(id), cgn_str_of(role), cgn_str_of(node),
		crypto_sha256(cgn_str_of(id)), crypto_sha256(cgn_str_of(key))};
}

static const char first[] = "00000000000000a1", open_id[] = "00000000000000a2";

static void document_make(struct cgn_buf *out)
{
	struct cgn_buf one = {0};
	struct invite a = invite_of(first, "n1"), b = invite_of(open_id, "");
	assert_true(cgn_ok(invite_add(CGN_STR(""), &a, NOW, &one, NULL)));
	assert_true(cgn_ok(invite_add(cgn_buf_view(&one), &b, NOW, out, NULL)));
	assert_int_equal(invite_add(cgn_buf_view(out), &b, NOW, &one, NULL).code, CGN_CONFLICT);
	assert_null(strstr(cgn_buf_z(out), "secret"));
	cgn_buf_fini(&one);
}

static enum cgn_code request_judge(const struct cgn_buf *doc, struct invite_request rq, int64_t now,
	bool *again, const char *why)
{
	struct invite found;
	struct cgn_err err = {0};
	cgn_rc rc = invite_judge(cgn_buf_view(doc), &rq, now, &found, again, &err);
	if (!cgn_ok(rc) && strstr(err.msg, why) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", err.msg, why);
	return rc.code;
}

static void an_invite_is_for_one_key(void **state)
{
	(void)state;
	struct cgn_buf doc = {0}, claimed = {0};
	bool again = true;
	document_make(&doc);
	struct invite_request rq = request_of(first, "agent", "n1", "key");
	assert_int_equal(request_judge(&doc, rq, NOW, &again, ""), CGN_FINE);
	assert_false(again);
	invite_claim(cgn_buf_view(&doc), &rq, NOW, &claimed);
	assert_int_equal(request_judge(&claimed, rq, NOW + 5, &again, ""),
		CGN_FINE); /* The answer was lost. */
	assert_true(again);
	assert_int_equal(request_judge(&claimed, request_of(first, "agent", "n1", "thief"), NOW, &again,
				 "another machine"),
		CGN_UNAUTHENTICATED);
	assert_int_equal(request_judge(&claimed, rq, NOW + HOUR, &again, "is over"), CGN_UNAUTHENTICATED);
	assert_int_equal(request_judge(&claimed, request_of(open_id, "agent", "n1", "key"), NOW, &again, ""),
		CGN_FINE);
	cgn_buf_fini(&doc);
	cgn_buf_fini(&claimed);
}

static void an_invite_is_for_its_role_and_node(void **state)
{
	(void)state;
	struct cgn_buf doc = {0}, claimed = {0};
	bool again;
	document_make(&doc);
	assert_int_equal(request_judge(&doc, request_of(first, "operator", "n1", "k"), NOW, &again,
				 "not for operator"),
		CGN_FORBIDDEN);
	assert_int_equal(request_judge(&doc, request_of(first, "agent", "n2", "k"), NOW, &again,
				 "not for n2"),
		CGN_FORBIDDEN);
	struct invite_request wrong = request_of(first, "agent", "n1", "k");
	wrong.secret.b[31] ^= 1;
	assert_int_equal(request_judge(&doc, wrong, NOW, &again, "no invite has this token"),
		CGN_UNAUTHENTICATED);
	assert_int_equal(request_judge(&doc, request_of("00000000000000ff", "agent", "n1", "k"), NOW, &again,
				 "no invite has this token"),
		CGN_UNAUTHENTICATED);
	struct invite_request any = request_of(open_id, "agent", "mine", "k");
	assert_int_equal(request_judge(&doc, any, NOW, &again, ""), CGN_FINE);
	invite_claim(cgn_buf_view(&doc), &any, NOW, &claimed);
	assert_int_equal(request_judge(&claimed, request_of(open_id, "agent", "other", "k"), NOW, &again,
				 "not for other"),
		CGN_FORBIDDEN); /* The name is chosen once. */
	cgn_buf_fini(&doc);
	cgn_buf_fini(&claimed);
}

static void invites_are_bounded_and_cleaned(void **state)
{
	(void)state;
	struct cgn_buf doc = {0}, next = {0};
	for (unsigned i = 0; i < INVITE_MAX_INVITES; i++) {
		char id[INVITE_ID_DIGITS + 1];
		(void)snprintf(id, sizeof id, "%016x", i);
		struct invite v = invite_of(id, "");
		assert_true(cgn_ok(invite_add(cgn_buf_view(&doc), &v, NOW, &next, NULL)));
		cgn_buf_fini(&doc);
		doc = next;
		next = (struct cgn_buf){0};
	}
	struct invite v = invite_of("ffffffffffffffff", "");
	assert_int_equal(invite_add(cgn_buf_view(&doc), &v, NOW, &next, NULL).code, CGN_OVERLOADED);
	next.n = 0;
	v.ends = NOW + 9 * HOUR;
	assert_true(cgn_ok(invite_add(cgn_buf_view(&doc), &v, NOW + 3 * HOUR, &next, NULL)));
	(void)cgn_buf_z(&next);
	assert_true(strchr(next.p, '\n') == next.p + next.n - 1); /* Invites that ended are gone. */
	assert_non_null(strstr(next.p, " a.example,10.0.0.7 "));
	cgn_buf_fini(&doc);
	cgn_buf_fini(&next);
}

static void lines_that_are_none_are_passed_over(void **state)
{
	(void)state;
	struct cgn_buf doc = {0}, out = {0};
	bool again;
	document_make(&doc);
	cgn_buf_putz(&out, "\n\nhello\n* * * *\n");
	cgn_buf_str(&out, cgn_buf_view(&doc));
	cgn_buf_putz(&out, "00000000000000a3 agent n1 *");
	(void)cgn_buf_z(&out);
	assert_int_equal(request_judge(&out, request_of(first, "agent", "n1", "k"), NOW, &again, ""),
		CGN_FINE);
	assert_int_equal(request_judge(&out, request_of(open_id, "agent", "n1", "k"), NOW, &again, ""),
		CGN_FINE);
	assert_int_equal(request_judge(&out, request_of("00000000000000a3", "agent", "n1", "k"), NOW, &again,
				 "no invite"),
		CGN_UNAUTHENTICATED);
	struct invite bad = invite_of(first, "a b");
	assert_int_equal(invite_add(CGN_STR(""), &bad, NOW, &out, NULL).code, CGN_INVALID);
	bad = invite_of(first, "n");
	(void)cgn_str_copyz(bad.sans, sizeof bad.sans, CGN_STR("a\nb"));
	assert_int_equal(invite_add(CGN_STR(""), &bad, NOW, &out, NULL).code, CGN_INVALID);
	cgn_buf_fini(&doc);
	cgn_buf_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_token_is_read_as_it_was_written),
		cmocka_unit_test(a_damaged_token_is_refused_without_its_secret),
		cmocka_unit_test(an_invite_is_for_one_key),
		cmocka_unit_test(an_invite_is_for_its_role_and_node),
		cmocka_unit_test(invites_are_bounded_and_cleaned),
		cmocka_unit_test(lines_that_are_none_are_passed_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
