/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/peer/code.h"

#include <string.h>

#define ALL (UINT64_C(1) << PEER_WIDTH)

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
static unsigned rice_bits(uint32_t n, uint64_t range)
{
	unsigned k = 0;
	for (uint64_t gap = range / ((uint64_t)n + 1) * 7 / 10; gap > 1; gap /= 2)
		k++;
	return k;
}

static void members_put(const struct peer_set *s, unsigned drop, unsigned k, struct cgn_buf *out)
{
	struct bits_out b = {.to = out};
	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t v = s->v[i] >> drop, gap = i == 0 ? v : v - (s->v[i - 1] >> drop) - 1, q = gap >> k;
		for (; q >= 16; q -= 16)
			bits_put(&b, 0xffff, 16);
		bits_put(&b, (1U << q) - 1, q + 1);
		bits_put(&b, gap & (uint32_t)((UINT64_C(1) << k) - 1), k);
	}
	bits_end(&b);
}

void peer_set_put(const struct peer_set *s, struct cgn_buf *out)
{
	const unsigned k = rice_bits(s->n, ALL);
	size_t at = out->n;
	cgn_put_u32(out, s->n);
	cgn_put_u32(out, 0); /* bytes of the code */
	cgn_put_u8(out, (uint8_t)k);
	members_put(s, 0, k, out);
	if (out->bad)
		return;
	uint32_t bytes = htole32((uint32_t)(out->n - at - 9));
	memcpy(out->p + at + 4, &bytes, sizeof bytes);
}

void peer_gaps_put(const struct peer_set *s, unsigned drop, uint64_t range, struct cgn_buf *out)
{
	const unsigned k = rice_bits(s->n, range);
	peer_number_put(s->n, out);
	cgn_put_u8(out, (uint8_t)k);
	members_put(s, drop, k, out);
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

/* Fill the draft with |n| members below |range|; false: the code is wrong. */
static bool members_get(struct bits_in *b, uint32_t n, unsigned k, unsigned drop, uint64_t range,
	struct peer_draft *d)
{
	uint64_t next = 0;
	bool bad = false;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t q = unary_get(b, &bad), low = bits_get(b, k, &bad);
		if (bad || q > UINT32_MAX >> k)
			return false;
		next += q << k | low;
		if (next >= range)
			return false;
		peer_draft_add(d, (uint32_t)(next++ << drop));
	}
	return true;
}

/* Are all bits up to |end| zero? */
static bool zeros_get(struct bits_in *b, size_t end)
{
	bool bad = false;
	while (!bad && b->at < end)
		bad = bits_get(b, 1, &bad) != 0;
	return !bad;
}

/* Make the set of the draft, or say why there is none; |fine|: the code is right. */
static CGN_RC draft_take(struct peer_draft *d, bool fine, uint32_t n, struct peer_set **out,
	struct cgn_err *err)
{
	const bool full = d->bad;
	struct peer_set *s = fine ? peer_draft_finish(d) : NULL;
	peer_draft_drop(d);
	if (s == NULL && (fine || full))
		return CGN_FAIL(err, NO_MEMORY, "set of fingerprints: out of memory");
	if (s == NULL)
		return CGN_FAIL(err, INVALID, "set of fingerprints: the code of %u members is wrong", n);
	*out = s;
	return CGN_OK;
}

/* Each member takes k + 1 bits at least. */
static bool members_fit(uint64_t n, unsigned k, size_t bytes)
{
	return n <= PEER_BLOCKS && k <= 31 && n * (k + 1) <= (uint64_t)bytes * 8;
}

CGN_RC peer_set_get(struct cgn_cursor *from, struct peer_set **out, struct cgn_err *err)
{
	struct peer_draft d = {0};
	const uint32_t n = cgn_cursor_u32(from), bytes = cgn_cursor_u32(from);
	const unsigned k = cgn_cursor_u8(from);
	const uint8_t *p = cgn_cursor_take(from, bytes);
	if (p == NULL || !members_fit(n, k, bytes))
		return CGN_FAIL(err, INVALID, "set of fingerprints: %u members in %u bytes with %u bits", n,
			bytes, k);
	struct bits_in b = {p, (size_t)bytes * 8, 0};
	bool fine = members_get(&b, n, k, 0, ALL, &d) && zeros_get(&b, b.n);
	return draft_take(&d, fine, n, out, err);
}

CGN_RC peer_gaps_get(struct cgn_cursor *from, unsigned drop, uint64_t range, struct peer_set **out,
	struct cgn_err *err)
{
	struct peer_draft d = {0};
	const uint64_t n = peer_number_get(from, PEER_BLOCKS);
	const unsigned k = cgn_cursor_u8(from);
	if (from->bad || !members_fit(n, k, from->n))
		return CGN_FAIL(err, INVALID,
			"set of fingerprints: %llu members in at most %zu bytes with %u bits",
			(unsigned long long)n, from->n, k);
	struct bits_in b = {from->p, from->n * 8, 0};
	bool fine = members_get(&b, (uint32_t)n, k, drop, range, &d);
	const size_t bytes = (b.at + 7) / 8;
	fine = fine && zeros_get(&b, bytes * 8);
	(void)cgn_cursor_take(from, bytes);
	CGN_TRY(draft_take(&d, fine, (uint32_t)n, out, err));
	(*out)->width = PEER_WIDTH - drop;
	return CGN_OK;
}

/* ---- numbers ---- */

void peer_number_put(uint64_t v, struct cgn_buf *out)
{
	for (; v >= 0x80; v >>= 7)
		cgn_put_u8(out, (uint8_t)(v | 0x80));
	cgn_put_u8(out, (uint8_t)v);
}

uint64_t peer_number_get(struct cgn_cursor *from, uint64_t most)
{
	uint64_t v = 0;
	for (unsigned shift = 0; shift < 64; shift += 7) {
		const uint64_t byte = cgn_cursor_u8(from);
		from->bad = from->bad || (shift == 63 && byte > 1);
		v |= (byte & 0x7f) << shift;
		if (byte < 0x80)
			break;
	}
	from->bad = from->bad || v > most;
	return from->bad ? 0 : v;
}
