/* SPDX-License-Identifier: Apache-2.0 */
/* width: the body of one width, for the file that names it by SUM_OPS, is compiled for it, and says how to
 * copy (copy_bit, and copied when all are). Not for anybody else. */
#define XXH_INLINE_ALL
#include <assert.h>
#include <xxhash.h>

#include "base/sum/sum_priv.h"

#define COPY_BIT ((size_t)8192)

static_assert(sizeof(XXH3_state_t) <= sizeof(struct sum64), "the state grew");

static uint64_t all(const void *p, size_t n)
{
	return XXH3_64bits(n > 0 ? p : "", n);
}

static void begin(void *state)
{
	XXH3_INITSTATE((XXH3_state_t *)state);
	(void)XXH3_64bits_reset(state);
}

static void add(void *state, const void *p, size_t n)
{
	if (n > 0)
		(void)XXH3_64bits_update(state, p, n);
}

static uint64_t end(const void *state)
{
	return XXH3_64bits_digest(state);
}

/* Bit by bit, so that what is copied is summed while it is in the nearest cache. */
static void copy(void *state, void *to, const void *from, size_t n)
{
	char *at = to;
	for (const char *p = from; n > 0;) {
		size_t bit = n < COPY_BIT ? n : COPY_BIT;
		copy_bit(at, p, bit);
		add(state, p, bit);
		at += bit;
		p += bit;
		n -= bit;
	}
	copied();
}

const struct sum_ops SUM_OPS = {all, begin, add, end, copy};
