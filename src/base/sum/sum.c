/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sum/sum_priv.h"

static const struct sum_ops *ops_best(void)
{
#ifdef SUM_HAS_AVX2
	static const struct sum_ops *best; /* Threads that race here find the same result. */
	const struct sum_ops *o = __atomic_load_n(&best, __ATOMIC_RELAXED);
	if (o == NULL) {
		o = __builtin_cpu_supports("avx2") ? &sum_avx2 : &sum_plain;
		__atomic_store_n(&best, o, __ATOMIC_RELAXED);
	}
	return o;
#else
	return &sum_plain;
#endif
}

uint64_t sum64(const void *p, size_t n)
{
	return ops_best()->all(p, n);
}

uint64_t sum64_pieces(const struct iovec *iov, size_t n)
{
	struct sum64 s;
	if (n <= 1)
		return sum64(n > 0 ? iov[0].iov_base : NULL, n > 0 ? iov[0].iov_len : 0);
	sum64_begin(&s);
	for (size_t i = 0; i < n; i++)
		sum64_add(&s, iov[i].iov_base, iov[i].iov_len);
	return sum64_end(&s);
}

void sum64_begin(struct sum64 *s)
{
	ops_best()->begin(s->state);
}

void sum64_add(struct sum64 *s, const void *p, size_t n)
{
	ops_best()->add(s->state, p, n);
}

void sum64_copy(struct sum64 *s, void *to, const void *from, size_t n)
{
	ops_best()->copy(s->state, to, from, n);
}

uint64_t sum64_end(const struct sum64 *s)
{
	return ops_best()->end(s->state);
}
