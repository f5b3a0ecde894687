/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/core/err.h"
#include "base/sum/sum_priv.h"

#define BYTES 200000

static uint64_t dice = 88172645463325252ULL;

static uint64_t random_below(uint64_t below)
{
	dice ^= dice << 13;
	dice ^= dice >> 7;
	dice ^= dice << 17;
	return dice % below;
}

static unsigned char *noise_make(void)
{
	unsigned char *p = malloc(BYTES);
	assert_non_null(p);
	for (size_t i = 0; i < BYTES; i++)
		p[i] = (unsigned char)random_below(256);
	return p;
}

static void the_sums_are_the_librarys(void **state)
{
	(void)state;
	unsigned char *p = noise_make();
	for (size_t n = 0; n < 2000; n++)
		assert_true(sum64(p + n % 63, n) == XXH3_64bits(p + n % 63, n));
	for (size_t n = 2000; n < BYTES - 64; n += 1 + random_below(5000))
		assert_true(sum64(p + random_below(64), 0) == XXH3_64bits("", 0) &&
			sum64(p + 1, n) == XXH3_64bits(p + 1, n));
	assert_true(sum64(NULL, 0) == XXH3_64bits("", 0));
	free(p);
}

static void copies_are_copies(void **state)
{
	(void)state;
	const struct sum_ops *widths[] = {&sum_plain,
#ifdef SUM_HAS_AVX2
		__builtin_cpu_supports("avx2") ? &sum_avx2 : &sum_plain
#endif
	};
	unsigned char *p = noise_make(), *to = malloc(BYTES);
	assert_non_null(to);
	for (size_t round = 0; round < 2000; round++) {
		const struct sum_ops *o = widths[round % CGN_COUNT(widths)];
		size_t n = random_below(round % 3 == 0  ? 100
				       : round % 3 == 1 ? 10000
							: 100000),
		       from = random_below(200), at = 1 + random_below(200);
		size_t first = n > 0 ? random_below(n) : 0;
		struct sum64 s;
		memset(to, 0x5a, at + n + 64);
		o->begin(s.state);
		o->copy(s.state, to + at, p + from, first);
		o->copy(s.state, to + at + first, p + from + first, n - first);
		assert_memory_equal(to + at, p + from, n);
		assert_true(to[at - 1] == 0x5a && to[at + n] == 0x5a);
		assert_true(o->end(s.state) == XXH3_64bits(p + from, n));
	}
	free(to);
	free(p);
}

static void pieces_are_as_one(void **state)
{
	(void)state;
	unsigned char *p = noise_make();
	for (size_t round = 0; round < 300; round++) {
		struct iovec iov[40];
		struct sum64 s;
		size_t n = 0, at = 0;
		sum64_begin(&s);
		while (n < CGN_COUNT(iov) && at < BYTES) {
			size_t length = random_below(round % 2 == 0 ? 700 : 9000);
			length = length < BYTES - at ? length : BYTES - at;
			iov[n++] = (struct iovec){p + at, length};
			sum64_add(&s, p + at, length);
			at += length;
		}
		assert_true(sum64_end(&s) == XXH3_64bits(p, at));
		assert_true(sum64_end(&s) == sum64_pieces(iov, n));
	}
	assert_true(sum64_pieces(NULL, 0) == XXH3_64bits("", 0));
	free(p);
}

/* A sum that began at one width may end at another. */
static void widths_agree(void **state)
{
	(void)state;
	unsigned char *p = noise_make();
	struct sum64 s;
	sum_plain.begin(s.state);
	sum_plain.add(s.state, p, 777);
	sum64_add(&s, p + 777, 100000);
	assert_true(sum_plain.end(s.state) == sum64_end(&s));
	assert_true(sum64_end(&s) == XXH3_64bits(p, 100777));
	assert_true(sum_plain.all(p, BYTES) == sum64(p, BYTES));
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_sums_are_the_librarys),
		cmocka_unit_test(copies_are_copies),
		cmocka_unit_test(pieces_are_as_one),
		cmocka_unit_test(widths_agree),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
