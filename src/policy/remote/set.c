/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/remote/set.h"

#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"

#define DRAFT_FIRST 256
#define LEAP        8

void remote_set_ref(struct remote_set *s)
{
	atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void remote_set_unref(struct remote_set **take)
{
	struct remote_set *s = *take;
	*take = NULL;
	if (s != NULL && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1)
		free(s);
}

/* ---- filling ---- */

static bool draft_reserve(struct remote_draft *d, size_t cap)
{
	if (cap > REMOTE_BLOCKS)
		cap = REMOTE_BLOCKS;
	if (cap <= d->cap)
		return false;
	struct remote_set *s = realloc(d->set, sizeof *s + cap * sizeof s->v[0]);
	if (s == NULL)
		return false;
	if (d->set == NULL)
		s->n = 0;
	d->set = s;
	d->cap = cap;
	return true;
}

static bool draft_grow(struct remote_draft *d)
{
	return draft_reserve(d, d->set == NULL ? DRAFT_FIRST : d->cap + d->cap / 2);
}

void remote_draft_add(struct remote_draft *d, uint32_t fingerprint)
{
	d->bad = d->bad || ((d->set == NULL || d->set->n == d->cap) && !draft_grow(d));
	if (!d->bad)
		d->set->v[d->set->n++] = fingerprint;
}

static int members_order(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

static bool is_ascending(const struct remote_set *s, size_t from)
{
	for (size_t i = from > 0 ? from : 1; i < s->n; i++)
		if (s->v[i - 1] >= s->v[i])
			return false;
	return true;
}

void remote_draft_part(struct remote_draft *d)
{
	if (d->bad || d->set == NULL)
		return;
	struct remote_set *s = d->set;
	size_t n = d->sorted;
	if (is_ascending(s, n)) {
		d->sorted = s->n;
		return;
	}
	qsort(s->v + n, s->n - n, sizeof s->v[0], members_order);
	for (size_t i = n; i < s->n; i++) {
		CGN_MUST(n == 0 || s->v[n - 1] <= s->v[i]);
		if (n == 0 || s->v[n - 1] != s->v[i])
			s->v[n++] = s->v[i];
	}
	s->n = (uint32_t)n;
	d->sorted = n;
}

struct remote_set *remote_draft_finish(struct remote_draft *d)
{
	remote_draft_part(d);
	if (!d->bad && d->set == NULL)
		d->bad = !draft_grow(d);
	if (d->bad) {
		remote_draft_drop(d);
		return NULL;
	}
	struct remote_set *s = realloc(d->set, sizeof *s + d->set->n * sizeof s->v[0]);
	s = s != NULL ? s : d->set;
	*d = (struct remote_draft){0};
	atomic_init(&s->refs, 1);
	s->sum = 0;
	for (uint32_t i = 0; i < s->n; i++)
		s->sum += mix_seeded(s->v[i]);
	return s;
}

void remote_draft_drop(struct remote_draft *d)
{
	free(d->set);
	*d = (struct remote_draft){0};
}

/* ---- looking ---- */

/* Return the place of the first member that is not less. Members are spread evenly: the place is near the one that the
 * value suggests, from which the search goes on in steps that double. */
static uint32_t lower_place(const struct remote_set *s, uint32_t v)
{
	const uint32_t guess = (uint32_t)((uint64_t)v * s->n >> 32);
	uint32_t lo = 0, hi = s->n;
	if (guess < s->n && s->v[guess] < v) {
		lo = guess + 1;
		for (uint32_t step = 16; lo + step < s->n; step *= 2) {
			if (s->v[lo + step] >= v) {
				hi = lo + step;
				break;
			}
			lo += step + 1;
		}
	} else {
		hi = guess;
		for (uint32_t step = 16; hi > step; step *= 2) {
			if (s->v[hi - step - 1] < v) {
				lo = hi - step;
				break;
			}
			hi -= step + 1;
		}
	}
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (s->v[mid] < v)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool set_has(const struct remote_set *s, uint32_t fingerprint)
{
	uint32_t at = lower_place(s, fingerprint);
	return at < s->n && s->v[at] == fingerprint;
}

static size_t match_sampled(const struct remote_set *s, unsigned shift, const uint64_t *chain, size_t n)
{
	size_t held = 0;
	for (size_t i = 0; i < n; i++) {
		if (!remote_sampled(chain[i], shift))
			continue;
		if (!set_has(s, remote_fingerprint(chain[i])))
			break;
		held = i + 1;
	}
	return held;
}

size_t remote_set_match(const struct remote_set *s, unsigned shift, const uint64_t *chain, size_t n)
{
	size_t held = 0;
	if (shift > 0)
		return match_sampled(s, shift, chain, n);
	while (held + LEAP <= n && set_has(s, remote_fingerprint(chain[held + LEAP - 1])))
		held += LEAP;
	while (held < n && set_has(s, remote_fingerprint(chain[held])))
		held++;
	return held;
}

/* ---- changes ---- */

bool remote_set_differ(const struct remote_set *before, const struct remote_set *after,
	struct remote_draft *removed, struct remote_draft *added)
{
	uint32_t a = 0, b = 0;
	while (a < before->n || b < after->n) {
		if (b == after->n || (a < before->n && before->v[a] < after->v[b])) {
			remote_draft_add(removed, before->v[a++]);
		} else if (a == before->n || after->v[b] < before->v[a]) {
			remote_draft_add(added, after->v[b++]);
		} else {
			a++;
			b++;
		}
	}
	return !removed->bad && !added->bad;
}

struct remote_set *remote_set_change(const struct remote_set *before, const struct remote_set *removed,
	const struct remote_set *added)
{
	struct remote_draft d = {0};
	uint32_t gone = 0, more = 0;
	(void)draft_reserve(&d, (size_t)before->n + added->n); /* Without it the draft grows. */
	for (uint32_t i = 0; i <= before->n && !d.bad; i++) {
		/* The members that come before this one; behind the last one, all. */
		while (more < added->n && (i == before->n || added->v[more] < before->v[i]))
			remote_draft_add(&d, added->v[more++]);
		if (i == before->n)
			break;
		while (gone < removed->n && removed->v[gone] < before->v[i])
			gone++;
		if (gone == removed->n || removed->v[gone] != before->v[i])
			remote_draft_add(&d, before->v[i]);
	}
	return remote_draft_finish(&d);
}

/* ---- the code ---- */

struct bits_out {
	struct cgn_buf *to;
	uint64_t word;
	unsigned n; /* Bits of |word|, fewer than 32 between calls. */
};

static void bits_put(struct bits_out *b, uint32_t v, unsigned n)
{
	b->word |= (uint64_t)v << b->n;
	b->n += n;
	if (b->n < 32)
		return;
	cgn_put_u32(b->to, (uint32_t)b->word);
	b->word >>= 32;
	b->n -= 32;
}

/* Write the bits that are left, and zeros up to the end of the byte. */
static void bits_end(struct bits_out *b)
{
	for (; b->n > 0; b->n = b->n > 8 ? b->n - 8 : 0, b->word >>= 8)
		cgn_put_u8(b->to, (uint8_t)b->word);
}

/* Return the bits of a remainder: the mean gap's, less a half bit or so, which is the shortest code. */
static unsigned rice_bits(uint32_t n)
{
	unsigned k = 0;
	for (uint64_t gap = (UINT64_C(1) << 32) / (n + 1) * 7 / 10; gap > 1; gap /= 2)
		k++;
	return k;
}

void remote_set_put(const struct remote_set *s, struct cgn_buf *out)
{
	const unsigned k = rice_bits(s->n);
	size_t at = out->n;
	cgn_put_u32(out, s->n);
	cgn_put_u32(out, 0); /* bytes of the code */
	cgn_put_u8(out, (uint8_t)k);
	struct bits_out b = {.to = out};
	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t gap = i == 0 ? s->v[0] : s->v[i] - s->v[i - 1] - 1, q = gap >> k;
		for (; q >= 16; q -= 16)
			bits_put(&b, 0xffff, 16);
		bits_put(&b, (1U << q) - 1, q + 1);
		bits_put(&b, gap & (uint32_t)((UINT64_C(1) << k) - 1), k);
	}
	bits_end(&b);
	if (out->bad)
		return;
	uint32_t bytes = htole32((uint32_t)(out->n - at - 9));
	memcpy(out->p + at + 4, &bytes, sizeof bytes);
}

struct bits_in {
	const uint8_t *p;
	size_t n, at; /* Bits, and how many were read. */
};

#define PEEK_BITS 57 /* A peek has so many bits at least, as far as there are any. */
static uint64_t bits_peek(const struct bits_in *b)
{
	uint64_t word = 0;
	size_t byte = b->at / 8, left = b->n / 8 - byte;
	memcpy(&word, b->p + byte, left < sizeof word ? left : sizeof word);
	return le64toh(word) >> b->at % 8;
}

static uint32_t bits_get(struct bits_in *b, unsigned n, bool *bad)
{
	if (n > b->n - b->at) {
		*bad = true;
		return 0;
	}
	uint64_t word = bits_peek(b);
	b->at += n;
	return (uint32_t)(word & ((UINT64_C(1) << n) - 1));
}

/* Read ones up to a zero, and return how many they are. */
static uint64_t unary_get(struct bits_in *b, bool *bad)
{
	uint64_t q = 0;
	for (;;) {
		size_t left = b->n - b->at, most = left < PEEK_BITS ? left : PEEK_BITS;
		uint64_t zeros = ~bits_peek(b);
		size_t ones = zeros != 0 ? (size_t)__builtin_ctzll(zeros) : 64;
		if (ones < most) {
			b->at += ones + 1;
			return q + ones;
		}
		b->at += most;
		q += most;
		if (most == left) {
			*bad = true;
			return 0;
		}
	}
}

/* Fill the draft; false: the code is wrong. */
static bool members_get(struct bits_in *b, uint32_t n, unsigned k, struct remote_draft *d)
{
	uint64_t next = 0;
	bool bad = false;
	for (uint32_t i = 0; i < n && !bad; i++) {
		uint64_t q = unary_get(b, &bad), low = bits_get(b, k, &bad);
		if (bad || q > UINT32_MAX >> k)
			return false;
		next += q << k | low;
		if (next > UINT32_MAX)
			return false;
		remote_draft_add(d, (uint32_t)next++);
	}
	while (!bad && b->at < b->n)
		bad = bits_get(b, 1, &bad) != 0;
	return !bad;
}

CGN_RC remote_set_get(struct cgn_cursor *from, struct remote_set **out, struct cgn_err *err)
{
	struct remote_draft d = {0};
	const uint32_t n = cgn_cursor_u32(from), bytes = cgn_cursor_u32(from);
	const unsigned k = cgn_cursor_u8(from);
	const uint8_t *p = cgn_cursor_take(from, bytes);
	/* Each member takes k + 1 bits at least. */
	if (p == NULL || n > REMOTE_BLOCKS || k > 31 || (uint64_t)n * (k + 1) > (uint64_t)bytes * 8)
		return CGN_FAIL(err, INVALID, "set of fingerprints: %u members in %u bytes with %u bits", n,
			bytes, k);
	struct bits_in b = {p, (size_t)bytes * 8, 0};
	bool fine = members_get(&b, n, k, &d);
	bool full = d.bad;
	struct remote_set *s = fine ? remote_draft_finish(&d) : NULL;
	remote_draft_drop(&d);
	if (s == NULL && (fine || full))
		return CGN_FAIL(err, NO_MEMORY, "set of fingerprints: out of memory");
	if (s == NULL)
		return CGN_FAIL(err, INVALID, "set of fingerprints: the code of %u members is wrong", n);
	*out = s;
	return CGN_OK;
}
