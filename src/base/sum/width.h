/* SPDX-License-Identifier: Apache-2.0 */
/* width: the functions of one vector width. The including file defines SUM_OPS, copy_bit and copy_finish; no
 * other file may include this one. */
#define XXH_INLINE_ALL
#include <assert.h>
#include <xxhash.h>

#include "base/sum/sum_priv.h"

#define COPY_BIT ((size_t)8192)

static_assert(sizeof(XXH3_state_t) <= sizeof(struct sum64), "the state grew");

static uint64_t sum_all(const void *p, size_t n)
{
	return XXH3_64bits(n > 0 ? p : "", n);
}

static void sum_begin(void *state)
{
	XXH3_INITSTATE((XXH3_state_t *)state);
	(void)XXH3_64bits_reset(state);
}

static void sum_add(void *state, const void *p, size_t n)
{
	if (n > 0)
		(void)XXH3_64bits_update(state, p, n);
}

static uint64_t sum_end(const void *state)
{
	return XXH3_64bits_digest(state);
}

/* Copy in small pieces, so that each piece is summed while it is in the nearest cache. */
static void sum_copy(void *state, void *to, const void *from, size_t n)
{
	char *at = to;
	for (const char *p = from; n > 0;) {
		size_t bit = n < COPY_BIT ? n : COPY_BIT;
		copy_bit(at, p, bit);
		sum_add(state, p, bit);
		at += bit;
		p += bit;
		n -= bit;
	}
	copy_finish();
}

const struct sum_ops SUM_OPS = {sum_all, sum_begin, sum_add, sum_end, sum_copy};
