/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled with -mavx2: call nothing here before sum.c has checked the processor. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LEAST 2048 /* Below this size the copy should stay in the cache. */

/* Copy past the caches: the target is not read first, and cached data of others stays. */
static void copy_bit(char *to, const char *from, size_t n)
{
	size_t head = (size_t)(-(uintptr_t)to & 63);
	if (n < LEAST) {
		memcpy(to, from, n);
		return;
	}
	memcpy(to, from, head);
	size_t at = head;
	for (; at + 64 <= n; at += 64) {
		__m256i a = _mm256_loadu_si256((const void *)(from + at)),
			b = _mm256_loadu_si256((const void *)(from + at + 32));
		_mm256_stream_si256((void *)(to + at), a);
		_mm256_stream_si256((void *)(to + at + 32), b);
	}
	memcpy(to + at, from + at, n - at);
}

/* Stores past the caches are not ordered with other stores: wait for them before the copy is published. */
static void copy_finish(void)
{
	_mm_sfence();
}

#define SUM_OPS sum_avx2
#include "base/sum/width.h"
