/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/codec/codec.h"
#include "base/core/err.h"
#include "base/digest/digest.h"

static void expect_digest(struct digest d, const char *hex)
{
	struct cgn_buf b = {0};
	hex_put(&b, (struct cgn_str){(const char *)d.b, sizeof d.b});
	assert_string_equal(cgn_buf_z(&b), hex);
	cgn_buf_fini(&b);
}

/* The published vectors: the input is n bytes 0, 1, …, 250, 0, …; the key is the published one. */
static void the_published_vectors_hold(void **state)
{
	(void)state;
	static char input[1024];
	struct digest key;
	memcpy(key.b, "whats the Elvish word for friend", sizeof key.b);
	for (size_t i = 0; i < sizeof input; i++)
		input[i] = (char)(i % 251);
	expect_digest(digest_of(CGN_STR("")),
		"af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
	expect_digest(digest_of((struct cgn_str){input, 1}),
		"2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
	expect_digest(digest_of((struct cgn_str){input, 1024}),
		"42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7");
	expect_digest(digest_keyed(&key, CGN_STR("")),
		"92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26");
	expect_digest(digest_keyed(&key, (struct cgn_str){input, 1}),
		"6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b");
}

static void the_root_depends_on_each_of_its_parts(void **state)
{
	(void)state;
	struct digest rows[] = {
		digest_chain_root(CGN_STR("m"), CGN_STR("l"), CGN_STR("s")),
		digest_chain_root(CGN_STR("ml"), CGN_STR(""), CGN_STR("s")),
		digest_chain_root(CGN_STR("m"), CGN_STR("ls"), CGN_STR("")),
		digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR("ls")),
		digest_chain_root(CGN_STR("m"), (struct cgn_str){NULL, 0}, CGN_STR("")),
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		for (size_t j = 0; j < i; j++)
			assert_memory_not_equal(rows[i].b, rows[j].b, DIGEST_BYTES);
	struct digest whole = digest_of(CGN_STR("cognitora.prefix.v1m\0l\0s"));
	assert_memory_equal(rows[0].b, whole.b, DIGEST_BYTES);
}

static void pieces_make_the_same_chain_as_blocks(void **state)
{
	(void)state;
	const struct cgn_str text = CGN_STR("0123456789abcdef0123456789ABCDEF-tail");
	const struct digest root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	struct digest first = digest_chain_next(&root, (struct cgn_str){text.p, 16});
	struct digest second = digest_chain_next(&first, (struct cgn_str){text.p + 16, 16});
	for (size_t step = 1; step <= text.n; step++) {
		struct digest_chain c;
		struct digest seen[3];
		size_t n = 0;
		digest_chain_start(&c, &root, 16);
		for (size_t at = 0; at < text.n; at += step) {
			struct cgn_str piece = {text.p + at, text.n - at < step ? text.n - at : step};
			while (digest_chain_feed(&c, &piece))
				seen[n++] = c.last;
		}
		assert_int_equal(n, 2);
		assert_memory_equal(seen[0].b, first.b, DIGEST_BYTES);
		assert_memory_equal(seen[1].b, second.b, DIGEST_BYTES);
		assert_int_equal(c.filled, 5);
	}
}

static void large_blocks_are_whole(void **state)
{
	(void)state;
	static char text[5000];
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (char)(i * 7);
	const struct digest root = digest_of(CGN_STR("root"));
	struct digest want = digest_chain_next(&root, (struct cgn_str){text, 3000});
	const size_t steps[] = {1, 100, 255, 256, 257, 1000, 5000};
	for (size_t i = 0; i < CGN_COUNT(steps); i++) {
		struct digest_chain c;
		size_t n = 0;
		digest_chain_start(&c, &root, 3000);
		for (size_t at = 0; at < sizeof text; at += steps[i]) {
			struct cgn_str piece = {text + at,
				sizeof text - at < steps[i] ? sizeof text - at : steps[i]};
			while (digest_chain_feed(&c, &piece))
				n++;
		}
		assert_int_equal(n, 1);
		assert_memory_equal(c.last.b, want.b, DIGEST_BYTES);
	}
}

/* A run of blocks is hashed without BLAKE3's hasher; the result must equal the hasher's at every length. */
static void a_run_is_what_the_hasher_makes_of_its_blocks(void **state)
{
	(void)state;
	enum { LONGEST = 2200, RUN = 3 };
	static char text[LONGEST * RUN + 3];
	struct digest key = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (char)(i * 131 + i / 64);
	for (size_t n = 0; n <= LONGEST; n++) {
		const char *p = text + n % 3; /* aligned or not */
		struct digest got = key;
		uint64_t shorts[RUN + 1] = {0};
		digest_chain_run(&got, p, n, RUN, shorts);
		for (size_t i = 0; i < RUN; i++) {
			key = digest_keyed(&key, (struct cgn_str){p + i * n, n});
			assert_true(shorts[i] == digest_short(&key));
		}
		assert_true(shorts[RUN] == 0);
		assert_memory_equal(got.b, key.b, DIGEST_BYTES);
	}
	struct digest same = key;
	digest_chain_run(&same, NULL, 64, 0, NULL);
	assert_memory_equal(same.b, key.b, DIGEST_BYTES);
}

static void the_short_form_is_little_endian(void **state)
{
	(void)state;
	struct digest d = {{1, 2, 3, 4, 5, 6, 7, 0x88, 9}};
	assert_true(digest_short(&d) == UINT64_C(0x8807060504030201));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_published_vectors_hold),
		cmocka_unit_test(the_root_depends_on_each_of_its_parts),
		cmocka_unit_test(pieces_make_the_same_chain_as_blocks),
		cmocka_unit_test(large_blocks_are_whole),
		cmocka_unit_test(a_run_is_what_the_hasher_makes_of_its_blocks),
		cmocka_unit_test(the_short_form_is_little_endian),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
