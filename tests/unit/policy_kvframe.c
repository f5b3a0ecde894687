/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mix/mix.h"
#include "policy/kv/kvframe/kvframe.h"

#define U64(v) ((unsigned long long)(v))

static struct block_key key_of(uint8_t first, uint32_t segment)
{
	struct block_key k = {.segment = segment};
	for (size_t i = 0; i < sizeof k.digest.b; i++)
		k.digest.b[i] = (uint8_t)(first + i);
	return k;
}

static bool same_key(const struct block_key *a, const struct block_key *b)
{
	return memcmp(&a->digest, &b->digest, sizeof a->digest) == 0 && a->segment == b->segment;
}

/* Return the only frame in |b|; its payload is borrowed from |in|. */
static struct kvframe only_frame(struct kvframe_in *in, const struct cgn_buf *b)
{
	struct cgn_str rest = cgn_buf_view(b);
	struct kvframe f = {.type = KVFRAME_FETCH};
	bool got = false;
	struct cgn_err err;
	kvframe_in_init(in);
	if (!cgn_ok(kvframe_next(in, &rest, &f, &got, &err)))
		fail_msg("%s", err.msg);
	assert_true(got);
	assert_int_equal(rest.n, 0);
	return f;
}

static void a_fetch_comes_as_it_was_asked(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct kvframe_in in;
	const struct kvframe_fetch asked = {.key = key_of(7, 3),
		.offset = 1ULL << 40,
		.length = UINT64_MAX,
		.budget_ms = 250,
		.priority = 7};
	struct kvframe_fetch got;
	kvframe_put_fetch(&b, &asked);
	assert_int_equal(b.n, KVFRAME_HEAD + 36 + 24);
	struct kvframe f = only_frame(&in, &b);
	assert_int_equal(f.type, KVFRAME_FETCH);
	assert_true(cgn_ok(kvframe_read_fetch(f.payload, &got, NULL)));
	assert_true(same_key(&got.key, &asked.key));
	assert_true(got.offset == asked.offset && got.length == asked.length);
	assert_int_equal(got.budget_ms, 250);
	assert_int_equal(got.priority, 7);
	/* A later revision may add fields; a shorter payload is refused. */
	for (size_t n = 0; n < f.payload.n; n++)
		assert_int_equal(kvframe_read_fetch((struct cgn_str){f.payload.p, n}, &got, NULL).code,
			CGN_INVALID);
	kvframe_in_fini(&in);
	cgn_buf_fini(&b);
}

static void a_priority_that_does_not_exist_is_refused(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct kvframe_in in;
	struct kvframe_fetch got;
	struct cgn_err err;
	kvframe_put_fetch(&b, &(struct kvframe_fetch){.priority = 8});
	struct kvframe f = only_frame(&in, &b);
	assert_int_equal(kvframe_read_fetch(f.payload, &got, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "priority 8, the last one is 7"));
	kvframe_in_fini(&in);
	cgn_buf_fini(&b);
}

static void an_answer_says_what_follows(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct kvframe_in in;
	const struct kvframe_answer said = {.status = KVFRAME_OK,
		.wait_ms = 5,
		.size = 100,
		.checksum = 0xfedcba9876543210ULL,
		.offset = 40,
		.length = 60,
		.tokens = 16,
		.created_unix_ms = 1,
		.expires_unix_ms = 2,
		.model = CGN_STR("m"),
		.name = CGN_STR("a\0b"),
		.tenant = CGN_STR("acme")};
	struct kvframe_answer got;
	kvframe_put_answer(&b, &said);
	struct kvframe f = only_frame(&in, &b);
	assert_true(cgn_ok(kvframe_read_answer(f.payload, &got, NULL)));
	assert_int_equal(got.status, KVFRAME_OK);
	assert_true(got.size == 100 && got.offset == 40 && got.length == 60 && got.checksum == said.checksum);
	assert_true(
		got.tokens == 16 && got.created_unix_ms == 1 && got.expires_unix_ms == 2 && got.wait_ms == 5);
	assert_true(cgn_str_eq(got.model, said.model) && cgn_str_eq(got.name, said.name) &&
		cgn_str_eq(got.tenant, said.tenant));
	/* An earlier version ends before the tenant. */
	const size_t before = f.payload.n - 2 - said.tenant.n;
	for (size_t n = 0; n < f.payload.n; n++)
		assert_int_equal(kvframe_read_answer((struct cgn_str){f.payload.p, n}, &got, NULL).code,
			n == before ? CGN_FINE : CGN_INVALID);
	assert_true(cgn_ok(kvframe_read_answer((struct cgn_str){f.payload.p, before}, &got, NULL)));
	assert_true(cgn_str_eq(got.name, said.name) && got.tenant.n == 0);
	kvframe_in_fini(&in);
	cgn_buf_fini(&b);
}

static void an_answer_beyond_its_value_is_refused(void **state)
{
	(void)state;
	static const struct {
		uint64_t size, offset, length;
		bool fine;
	} cases[] = {{10, 0, 10, true}, {10, 10, 0, true}, {0, 0, 0, true}, {10, 0, 11, false},
		{10, 11, 0, false}, {10, 5, 6, false}, {10, 5, UINT64_MAX, false},
		{10, UINT64_MAX, 20, false}};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		struct cgn_buf b = {0};
		struct kvframe_in in;
		struct kvframe_answer got;
		kvframe_put_answer(&b,
			&(struct kvframe_answer){.size = cases[i].size,
				.offset = cases[i].offset,
				.length = cases[i].length});
		struct kvframe f = only_frame(&in, &b);
		assert_int_equal(cgn_ok(kvframe_read_answer(f.payload, &got, NULL)), cases[i].fine);
		kvframe_in_fini(&in);
		cgn_buf_fini(&b);
	}
}

static void an_unknown_status_is_refused(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct kvframe_in in;
	struct kvframe_answer got;
	kvframe_put_answer(&b, &(struct kvframe_answer){.status = KVFRAME_STATUSES});
	struct kvframe f = only_frame(&in, &b);
	assert_int_equal(kvframe_read_answer(f.payload, &got, NULL).code, CGN_INVALID);
	kvframe_in_fini(&in);
	cgn_buf_fini(&b);
}

static void counts_are_bounded(void **state)
{
	(void)state;
	static char payload[KVFRAME_MAX];
	static const uint32_t bad[] = {KVFRAME_MAX_HOLDS + 1, UINT32_MAX};
	struct kvframe_holds h;
	assert_true(cgn_ok(kvframe_read_holds((struct cgn_str){payload, sizeof payload}, &h, NULL)));
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		memcpy(payload + 28, &bad[i], 4); /* The tests run on little-endian machines only. */
		assert_int_equal(kvframe_read_holds((struct cgn_str){payload, sizeof payload}, &h, NULL).code,
			CGN_INVALID);
	}
	memcpy(payload + 28, &(uint32_t){2}, 4);
	assert_int_equal(kvframe_read_holds((struct cgn_str){payload, 32 + 17}, &h, NULL).code, CGN_INVALID);
	assert_true(cgn_ok(kvframe_read_holds((struct cgn_str){payload, 32 + 18}, &h, NULL)));
}

static void names_are_text_of_bounded_length(void **state)
{
	(void)state;
	static char longest[KVFRAME_MAX_NAME + 1];
	struct cgn_buf b = {0};
	struct kvframe_in in;
	struct kvframe_who got;
	memset(longest, 'a', sizeof longest);
	kvframe_put_who(&b, KVFRAME_SUBSCRIBE,
		&(struct kvframe_who){77, CGN_STR("n1"), CGN_STR("rack ä"), {longest, sizeof longest}});
	struct kvframe f = only_frame(&in, &b);
	assert_int_equal(f.type, KVFRAME_SUBSCRIBE);
	assert_true(cgn_ok(kvframe_read_who(f.payload, &got, NULL)));
	assert_true(got.instance == 77 && cgn_str_is(got.node, "n1") && cgn_str_is(got.rack, "rack ä"));
	assert_int_equal(got.region.n, KVFRAME_MAX_NAME);
	kvframe_in_fini(&in);
	static const struct cgn_str bad[] = {{"a\nb", 3}, {"\xff", 1}, {"\x7f", 1}, {"a\0", 2}};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		b.n = 0;
		kvframe_put_who(&b, KVFRAME_HELLO,
			&(struct kvframe_who){.node = CGN_STR("n"), .rack = bad[i]});
		f = only_frame(&in, &b);
		assert_int_equal(kvframe_read_who(f.payload, &got, NULL).code, CGN_INVALID);
		kvframe_in_fini(&in);
	}
	cgn_buf_fini(&b);
}

static void holdings_come_as_they_are(void **state)
{
	(void)state;
	static struct kvframe_hold list[KVFRAME_MAX_HOLDS];
	struct cgn_buf b = {0};
	struct kvframe_in in;
	struct kvframe_holds got;
	for (size_t i = 0; i < KVFRAME_MAX_HOLDS; i++)
		list[i] = (struct kvframe_hold){i * MIX_GOLDEN, (uint8_t)(i % 16)};
	kvframe_put_holds(&b, &(struct kvframe_holds){.seq = 9, .reset = true, .blocks = 5, .bytes = 6}, list,
		KVFRAME_MAX_HOLDS);
	struct kvframe f = only_frame(&in, &b);
	assert_true(cgn_ok(kvframe_read_holds(f.payload, &got, NULL)));
	assert_true(got.seq == 9 && got.reset && !got.synced && got.blocks == 5 && got.bytes == 6 &&
		got.n == KVFRAME_MAX_HOLDS);
	for (size_t i = 0; i < got.n; i++) {
		struct kvframe_hold h = kvframe_hold_at(&got, i);
		assert_true(h.block == list[i].block && h.tiers == list[i].tiers);
	}
	kvframe_in_fini(&in);
	b.n = 0;
	kvframe_put_holds(&b, &(struct kvframe_holds){.seq = 10, .synced = true}, NULL, 0);
	f = only_frame(&in, &b);
	assert_true(cgn_ok(kvframe_read_holds(f.payload, &got, NULL)));
	assert_true(got.synced && !got.reset && got.n == 0);
	kvframe_in_fini(&in);
	cgn_buf_fini(&b);
}

static void frames_come_in_pieces_of_any_length(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	kvframe_put_fetch(&b, &(struct kvframe_fetch){.key = key_of(1, 0)});
	kvframe_put_who(&b, KVFRAME_HELLO, &(struct kvframe_who){.instance = 1});
	kvframe_put_holds(&b, &(struct kvframe_holds){.seq = 1}, NULL, 0);
	cgn_buf_putz(&b, "bytes of the value");
	for (size_t step = 1; step <= b.n; step++) {
		static const enum kvframe_type want[] = {KVFRAME_FETCH, KVFRAME_HELLO, KVFRAME_HOLDS};
		struct kvframe_in in;
		size_t seen = 0, left = 0;
		kvframe_in_init(&in);
		for (size_t at = 0; at < b.n && seen < 3; at += step) {
			struct cgn_str rest = {b.p + at, b.n - at < step ? b.n - at : step};
			bool got = true;
			while (seen < 3) {
				struct kvframe f;
				assert_true(cgn_ok(kvframe_next(&in, &rest, &f, &got, NULL)));
				if (!got)
					break;
				assert_int_equal(f.type, want[seen]);
				seen++;
			}
			left = b.n - at - (b.n - at < step ? b.n - at : step) + rest.n;
		}
		assert_int_equal(seen, 3);
		/* The bytes after a frame are left to the caller. */
		assert_int_equal(left, strlen("bytes of the value"));
		kvframe_in_fini(&in);
	}
	cgn_buf_fini(&b);
}

static void what_is_no_frame_ends_the_stream(void **state)
{
	(void)state;
	static const char bad[][KVFRAME_HEAD] = {{0}, {3}, {4}, {8}, {1, 1}, {1, 0, 1},
		{1, 0, 0, 0, 1, (char)0xc0}, {1, 0, 0, 0, -1, -1, -1, -1}};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct kvframe_in in;
		struct kvframe f;
		bool got;
		struct cgn_str rest = {bad[i], KVFRAME_HEAD};
		kvframe_in_init(&in);
		assert_int_equal(kvframe_next(&in, &rest, &f, &got, NULL).code, CGN_INVALID);
		rest = (struct cgn_str){NULL, 0}; /* The stream stays at its end, whatever comes. */
		assert_int_equal(kvframe_next(&in, &rest, &f, &got, NULL).code, CGN_INVALID);
		assert_true(in.buf.cap < 1024); /* No memory was allocated for the announced length. */
		kvframe_in_fini(&in);
	}
}

static void segments_of_a_value_are_told_apart(void **state)
{
	(void)state;
	struct block_key a = key_of(1, 0), b = key_of(1, 1), c = key_of(1, 2);
	assert_true(kvframe_short(&a) == digest_short(&a.digest));
	assert_true(kvframe_short(&a) != kvframe_short(&b) && kvframe_short(&b) != kvframe_short(&c));
}

static void words_for_people(void **state)
{
	(void)state;
	assert_string_equal(kvframe_type_text(KVFRAME_HOLDS), "HOLDS");
	assert_string_equal(kvframe_type_text((enum kvframe_type)0), "unknown");
	assert_string_equal(kvframe_type_text((enum kvframe_type)3), "unknown");
	assert_string_equal(kvframe_status_text(KVFRAME_BUSY), "busy");
	assert_string_equal(kvframe_status_text(KVFRAME_STATUSES), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fetch_comes_as_it_was_asked),
		cmocka_unit_test(a_priority_that_does_not_exist_is_refused),
		cmocka_unit_test(an_answer_says_what_follows),
		cmocka_unit_test(an_answer_beyond_its_value_is_refused),
		cmocka_unit_test(an_unknown_status_is_refused),
		cmocka_unit_test(counts_are_bounded),
		cmocka_unit_test(names_are_text_of_bounded_length),
		cmocka_unit_test(holdings_come_as_they_are),
		cmocka_unit_test(frames_come_in_pieces_of_any_length),
		cmocka_unit_test(what_is_no_frame_ends_the_stream),
		cmocka_unit_test(segments_of_a_value_are_told_apart),
		cmocka_unit_test(words_for_people),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
