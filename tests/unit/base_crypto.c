/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/codec/codec.h"
#include "base/core/err.h"
#include "base/crypto/crypto.h"

static void expect_hash(struct sha256 d, const char *hex)
{
	struct cgn_buf b = {0};
	hex_put(&b, (struct cgn_str){(const char *)d.b, sizeof d.b});
	assert_string_equal(cgn_buf_z(&b), hex);
	cgn_buf_fini(&b);
}

static void hmac_is_that_of_rfc_4231(void **state)
{
	(void)state;
	expect_hash(crypto_hmac_sha256(CGN_STR("Jefe"), CGN_STR("what do ya want for nothing?")),
		"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	char long_key[131];
	memset(long_key, 0xaa, sizeof long_key);
	expect_hash(crypto_hmac_sha256((struct cgn_str){long_key, sizeof long_key},
			    CGN_STR("Test Using Larger Than Block-Size Key - Hash Key First")),
		"60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void sha256_is_that_of_fips_180(void **state)
{
	(void)state;
	expect_hash(crypto_sha256((struct cgn_str){NULL, 0}),
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	expect_hash(crypto_sha256(CGN_STR("abc")),
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	expect_hash(crypto_sha256(CGN_STR("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
		"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void equality_sees_each_bit(void **state)
{
	(void)state;
	uint8_t a[33] = {0}, b[33] = {0};
	assert_true(crypto_equal(a, b, sizeof a));
	assert_true(crypto_equal(a, b, 0));
	for (size_t bit = 0; bit < sizeof a * 8; bit++) {
		b[bit / 8] = (uint8_t)(1U << bit % 8);
		assert_false(crypto_equal(a, b, sizeof a));
		b[bit / 8] = 0;
	}
}

static void a_wipe_leaves_zeros(void **state)
{
	(void)state;
	char secret[16] = "0123456789abcde", zeros[15] = {0};
	crypto_wipe(secret, sizeof zeros);
	assert_memory_equal(secret, zeros, sizeof zeros);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hmac_is_that_of_rfc_4231),
		cmocka_unit_test(sha256_is_that_of_fips_180),
		cmocka_unit_test(equality_sees_each_bit),
		cmocka_unit_test(a_wipe_leaves_zeros),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
