/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mix/mix.h"

static void splitmix_gives_its_published_numbers(void **state)
{
	(void)state;
	static const uint64_t expected[] = {6457827717110365317U, 3203168211198807973U, 9817491932198370423U,
		4593380528125082431U, 16408922859458223821U};
	uint64_t s = 1234567;
	for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
		assert_true(mix_splitmix(&s) == expected[i]);
	assert_true(mix_seeded(1234567) == expected[0]);
}

static void fnv1a_gives_its_published_numbers(void **state)
{
	(void)state;
	assert_true(mix_fnv1a(MIX_FNV1A, "", 0) == UINT64_C(0xcbf29ce484222325));
	assert_true(mix_fnv1a(MIX_FNV1A, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
	assert_true(mix_fnv1a(mix_fnv1a(MIX_FNV1A, "foo", 3), "bar", 3) == UINT64_C(0x85944171f73967e8));
}

/* Stored and compared data depends on these values. */
static void the_other_mixers_stay_as_they_are(void **state)
{
	(void)state;
	uint64_t s = 1;
	assert_true(mix64(0) == 0 && mix_murmur(0) == 0 && mix_stafford(0) == 0);
	assert_true(mix_murmur(1) == UINT64_C(0xb456bcfc34c2cb2c));
	assert_true(mix_stafford(1) == UINT64_C(0xccde22c1faa4d20f));
	assert_true(mix_xorshift(&s) == UINT64_C(0x40822041));
	s = 1;
	assert_true(mix_xorshift_star(&s) == UINT64_C(0x40822041) * UINT64_C(0x2545f4914f6cdd1d));
	assert_true(mix_lcg(&(uint64_t){0}) == 1442695040888963407U);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(splitmix_gives_its_published_numbers),
		cmocka_unit_test(fnv1a_gives_its_published_numbers),
		cmocka_unit_test(the_other_mixers_stay_as_they_are),
	};
	return cmocka_run_group_tests_name("base_mix", tests, NULL, NULL);
}
