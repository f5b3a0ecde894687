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
	struct digest whole = digest_of(CGN_STR("cognitora.prefix.v2"
						"m\1\0\0\0\0\0\0\0"
						"l\1\0\0\0\0\0\0\0"
						"s\1\0\0\0\0\0\0\0"));
	assert_memory_equal(rows[0].b, whole.b, DIGEST_BYTES);
}

/* A client chooses its LoRA name and its salt: it cannot move the border between them. */
static void no_part_of_the_root_can_look_like_two(void **state)
{
	(void)state;
	struct digest one = digest_chain_root(CGN_STR("m"), CGN_STR("l\0x"), CGN_STR("s"));
	struct digest other = digest_chain_root(CGN_STR("m"), CGN_STR("l"), CGN_STR("x\0s"));
	assert_memory_not_equal(one.b, other.b, DIGEST_BYTES);
}

enum { TEXT = 20000, BLOCKS_MOST = 1400 };
static char text[TEXT];

static void text_fill(void)
{
	for (size_t i = 0; i < TEXT; i++)
		text[i] = (char)(i * 131 + i / 64);
}

/* D[i] by its definition, with nothing but BLAKE3's own functions. */
static struct digest next_by_definition(const struct digest *previous, struct cgn_str block)
{
	struct digest hash = digest_of(block);
	if (block.n <= 64 && block.n != 32)
		return digest_keyed(previous, block);
	return digest_keyed(previous, (struct cgn_str){(const char *)hash.b, sizeof hash.b});
}

static void the_chain_has_the_documented_digests(void **state)
{
	(void)state;
	static char tokens[128];
	struct digest d = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR("salt"));
	expect_digest(d, "79baa3d8e2191b4b54b8067a2dbb1c7b8492a4f8f442ac041d96732e751208e8");
	for (size_t i = 0; i < 32; i++)
		tokens[4 * i] = (char)i;
	d = digest_chain_next(&d, (struct cgn_str){tokens, 64});
	expect_digest(d, "215833bfc53538d36fd1daf9caf37c2e7f6c8068befa3e0e83a9653eee3989f4");
	d = digest_chain_next(&d, (struct cgn_str){tokens, 128});
	expect_digest(d, "18f60dd3995128a4b1b12a34f039c7d049f90f38b319ee9272d351f7299c5003");
}

static void chain_check(size_t block_bytes, size_t step, size_t cap)
{
	static uint64_t got[BLOCKS_MOST];
	const struct digest root = digest_of(CGN_STR("root"));
	struct digest want = root;
	struct digest_chain c;
	size_t blocks = TEXT / block_bytes;
	digest_chain_start(&c, &root, block_bytes, got, cap);
	for (size_t at = 0; at < TEXT; at += step)
		digest_chain_add(&c, (struct cgn_str){text + at, TEXT - at < step ? TEXT - at : step});
	assert_int_equal(digest_chain_full(&c), blocks >= cap);
	digest_chain_flush(&c);
	assert_int_equal(c.n, blocks < cap ? blocks : cap);
	for (size_t i = 0; i < c.n; i++) {
		want = next_by_definition(&want, (struct cgn_str){text + i * block_bytes, block_bytes});
		assert_true(got[i] == digest_short(&want));
	}
	assert_memory_equal(c.last.b, want.b, DIGEST_BYTES);
	if (blocks < cap)
		assert_int_equal(digest_chain_rest(&c), TEXT % block_bytes);
}

static void pieces_make_the_same_chain_as_blocks(void **state)
{
	(void)state;
	static const size_t sizes[] = {16, 32, 64, 100, 256, 960, 1024, 1088, 3000, 4096, 4097, 9000, 30000};
	static const size_t steps[] = {1, 63, 256, 4095, 4096, 4097, 8192, TEXT};
	text_fill();
	for (size_t i = 0; i < CGN_COUNT(sizes); i++)
		for (size_t j = 0; j < CGN_COUNT(steps); j++) {
			chain_check(sizes[i], steps[j], BLOCKS_MOST);
			chain_check(sizes[i], steps[j], 3);
			chain_check(sizes[i], steps[j], 0);
		}
}

/* A run of blocks is hashed without BLAKE3's hasher; the result must equal the hasher's at every length. */
static void a_run_is_what_the_hasher_makes_of_its_blocks(void **state)
{
	(void)state;
	enum { LONGEST = 1200, RUN = DIGEST_LANES + 1 };
	static char run[LONGEST * RUN + 3];
	struct digest key = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	for (size_t i = 0; i < sizeof run; i++)
		run[i] = (char)(i * 131 + i / 64);
	for (size_t n = 0; n <= LONGEST; n++) {
		const char *p = run + n % 3; /* aligned or not */
		struct digest got = key;
		uint64_t shorts[RUN + 1] = {0};
		digest_chain_run(&got, p, n, RUN, shorts);
		for (size_t i = 0; i < RUN; i++) {
			key = next_by_definition(&key, (struct cgn_str){p + i * n, n});
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
		cmocka_unit_test(no_part_of_the_root_can_look_like_two),
		cmocka_unit_test(the_chain_has_the_documented_digests),
		cmocka_unit_test(pieces_make_the_same_chain_as_blocks),
		cmocka_unit_test(a_run_is_what_the_hasher_makes_of_its_blocks),
		cmocka_unit_test(the_short_form_is_little_endian),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
