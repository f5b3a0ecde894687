/* SPDX-License-Identifier: Apache-2.0 */
/* The holders of one block in one 64-bit word. The word is either up to four members of 16 bits, packed from
 * the low bits with the first one never empty, or the address of a set. The low four bits of an address are
 * 0; no member's are.
 *
 * Sets change in place, and a reader sees a correct set at every instant. An array never moves a member:
 * removing one leaves a hole. In bit planes, the bit "held" is set after the tier's bit and cleared before
 * it. A tier that changes is set before the old one is cleared. A reader that finds a member in no tier has
 * read one plane too early and the other too late, and reads again. */
#include "policy/kv/kvindex/kvindex_priv.h"

#include <string.h>

#define INLINE    4
#define MAX_ARRAY 68

/* Capacities that fill the allocator's size classes of 40, 56, 88 and 152 bytes. */
static const unsigned array_caps[] = {12, 20, 36, MAX_ARRAY};

static unsigned word_member(uint64_t holders, unsigned i)
{
	return (unsigned)(holders >> 16 * i) & 0xffff;
}

static _Atomic uint16_t *array_of(const struct epoch_head *s)
{
	return (_Atomic uint16_t *)(uintptr_t)(s + 1);
}

static _Atomic uint64_t *plane_of(const struct epoch_head *s, unsigned plane)
{
	return (_Atomic uint64_t *)(uintptr_t)(s + 1) + (size_t)plane * s->words;
}

unsigned holders_array_cap(const struct epoch_head *s)
{
	return (unsigned)((s->bytes - sizeof *s) / 2);
}

uint16_t holders_array_at(const struct epoch_head *s, unsigned i)
{
	return atomic_load_explicit(&array_of(s)[i], memory_order_acquire);
}

uint64_t holders_plane(const struct epoch_head *s, unsigned plane, unsigned word)
{
	return word < s->words ? atomic_load_explicit(&plane_of(s, plane)[word], memory_order_acquire) : 0;
}

/* Return the capacity when |node| is not in the array. */
static unsigned array_find(const struct epoch_head *s, unsigned node)
{
	unsigned i = 0, cap = holders_array_cap(s);
	while (i < cap && (holders_array_at(s, i) == 0 || holders_array_at(s, i) >> 4 != node))
		i++;
	return i;
}

static unsigned array_tiers(const struct epoch_head *s, unsigned node)
{
	for (unsigned i = 0, cap = holders_array_cap(s); i < cap; i++) {
		unsigned m = holders_array_at(s, i);
		if (m >> 4 == node && m != 0)
			return m & BLOCK_TIER_MASK;
	}
	return 0;
}

static unsigned dense_tiers(const struct epoch_head *s, unsigned node)
{
	unsigned word = node / 64;
	while ((holders_plane(s, 0, word) & bit_of(node)) != 0) {
		unsigned tiers = 0;
		if (s->kind == EPOCH_DENSE)
			return BLOCK_TIER_BIT(BLOCK_GPU);
		for (unsigned t = 0; t < BLOCK_TIERS; t++)
			tiers |= (holders_plane(s, 1 + t, word) & bit_of(node)) != 0 ? BLOCK_TIER_BIT(t) : 0;
		if (tiers != 0)
			return tiers;
	}
	return 0;
}

unsigned holders_tiers(uint64_t holders, unsigned node)
{
	if (holders_is_set(holders))
		return holders_set(holders)->kind == EPOCH_ARRAY ? array_tiers(holders_set(holders), node)
								 : dense_tiers(holders_set(holders), node);
	for (; holders != 0; holders >>= 16)
		if ((holders & 0xffff) >> 4 == node)
			return (unsigned)holders & BLOCK_TIER_MASK;
	return 0;
}

static unsigned list_dense(const struct epoch_head *s, uint16_t *out)
{
	unsigned n = 0;
	for (unsigned w = 0; w < s->words; w++)
		for (uint64_t bits = holders_plane(s, 0, w); bits != 0; bits &= bits - 1) {
			unsigned node = w * 64 + (unsigned)__builtin_ctzll(bits);
			out[n++] = member_of(node, dense_tiers(s, node));
		}
	return n;
}

unsigned holders_list(uint64_t holders, uint16_t out[KVINDEX_NODES])
{
	unsigned n = 0;
	if (!holders_is_set(holders)) {
		for (; holders != 0; holders >>= 16)
			out[n++] = (uint16_t)holders;
		return n;
	}
	const struct epoch_head *s = holders_set(holders);
	if (s->kind != EPOCH_ARRAY)
		return list_dense(s, out);
	for (unsigned i = 0; i < holders_array_cap(s); i++)
		if (holders_array_at(s, i) != 0)
			out[n++] = holders_array_at(s, i);
	return n;
}

static bool members_any(uint64_t member, const uint64_t nodes[NODE_WORDS])
{
	return member != 0 && (nodes[(member >> 4) / 64] & bit_of((unsigned)member >> 4)) != 0;
}

bool holders_any(uint64_t holders, const uint64_t nodes[NODE_WORDS])
{
	if (!holders_is_set(holders)) {
		for (; holders != 0; holders >>= 16)
			if (members_any(holders & 0xffff, nodes))
				return true;
		return false;
	}
	const struct epoch_head *s = holders_set(holders);
	if (s->kind == EPOCH_ARRAY) {
		for (unsigned i = 0; i < holders_array_cap(s); i++)
			if (members_any(holders_array_at(s, i), nodes))
				return true;
		return false;
	}
	for (unsigned i = 0; i < s->words; i++)
		if ((holders_plane(s, 0, i) & nodes[i]) != 0)
			return true;
	return false;
}

/* ---- building the smallest word ---- */

static size_t array_bytes(unsigned n)
{
	for (size_t i = 0; i < CGN_COUNT(array_caps); i++)
		if (n <= array_caps[i])
			return sizeof(struct epoch_head) + 2 * (size_t)array_caps[i];
	return SIZE_MAX / 8;
}

static bool members_only_gpu(const uint16_t *m, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if ((m[i] & BLOCK_TIER_MASK) != BLOCK_TIER_BIT(BLOCK_GPU))
			return false;
	return true;
}

static void set_fill(struct epoch_head *s, const uint16_t *m, unsigned n)
{
	s->n = (uint16_t)n;
	for (unsigned i = 0; i < n; i++) {
		unsigned node = m[i] >> 4;
		if (s->kind == EPOCH_ARRAY) {
			atomic_store_explicit(&array_of(s)[i], m[i], memory_order_relaxed);
			continue;
		}
		atomic_fetch_or_explicit(&plane_of(s, 0)[node / 64], bit_of(node), memory_order_relaxed);
		for (unsigned t = 0; t < BLOCK_TIERS && s->kind == EPOCH_DENSE_TIERS; t++)
			if ((m[i] & BLOCK_TIER_BIT(t)) != 0)
				atomic_fetch_or_explicit(&plane_of(s, 1 + t)[node / 64], bit_of(node),
					memory_order_relaxed);
	}
}

static bool holders_make(struct kvindex *ix, const uint16_t *m, unsigned n, uint64_t *holders)
{
	if (n <= INLINE) {
		*holders = 0;
		for (unsigned i = 0; i < n; i++)
			*holders |= (uint64_t)m[i] << 16 * i;
		return true;
	}
	unsigned words = atomic_load_explicit(&ix->words, memory_order_relaxed);
	enum epoch_kind kind = members_only_gpu(m, n) ? EPOCH_DENSE : EPOCH_DENSE_TIERS;
	size_t array = array_bytes(n),
	       dense = sizeof(struct epoch_head) +
		8 * (size_t)words * (kind == EPOCH_DENSE ? 1 : 1 + BLOCK_TIERS);
	if (array < dense)
		kind = EPOCH_ARRAY;
	struct epoch_head *s = epoch_new(ix, kind, kind == EPOCH_ARRAY ? array : dense);
	if (s == NULL)
		return false;
	s->words = (uint8_t)words;
	set_fill(s, m, n);
	*holders = (uint64_t)(uintptr_t)s;
	return true;
}

static bool holders_remake(struct kvindex *ix, uint64_t *holders, unsigned node, unsigned tiers)
{
	uint16_t *m = ix->members;
	unsigned n = holders_list(*holders, m), i = 0;
	while (i < n && m[i] >> 4 != node)
		i++;
	if (tiers != 0) {
		m[i] = member_of(node, tiers);
		n += i == n;
	} else if (i < n) {
		m[i] = m[--n];
	}
	return holders_make(ix, m, n, holders);
}

/* ---- changes in place ---- */

static bool array_put(struct epoch_head *s, unsigned node, unsigned tiers)
{
	unsigned cap = holders_array_cap(s), i = array_find(s, node);
	if (i == cap) {
		for (i = 0; i < cap && holders_array_at(s, i) != 0;)
			i++;
		if (i == cap)
			return false;
		s->n++;
	}
	s->n = (uint16_t)(s->n - (tiers == 0));
	atomic_store_explicit(&array_of(s)[i], tiers != 0 ? member_of(node, tiers) : 0, memory_order_release);
	return true;
}

static void plane_set(struct epoch_head *s, unsigned plane, unsigned node, bool on)
{
	_Atomic uint64_t *w = &plane_of(s, plane)[node / 64];
	uint64_t v = atomic_load_explicit(w, memory_order_relaxed);
	atomic_store_explicit(w, on ? v | bit_of(node) : v & ~bit_of(node), memory_order_release);
}

static bool dense_put(struct epoch_head *s, unsigned node, unsigned tiers)
{
	bool held = (holders_plane(s, 0, node / 64) & bit_of(node)) != 0;
	if (node / 64 >= s->words ||
		(s->kind == EPOCH_DENSE && tiers != 0 && tiers != BLOCK_TIER_BIT(BLOCK_GPU)))
		return false;
	s->n = (uint16_t)(s->n + (tiers != 0) - held);
	if (tiers == 0)
		plane_set(s, 0, node, false);
	if (s->kind == EPOCH_DENSE_TIERS) {
		for (unsigned t = 0; t < BLOCK_TIERS; t++)
			if ((tiers & BLOCK_TIER_BIT(t)) != 0)
				plane_set(s, 1 + t, node, true);
		for (unsigned t = 0; t < BLOCK_TIERS; t++)
			if ((tiers & BLOCK_TIER_BIT(t)) == 0)
				plane_set(s, 1 + t, node, false);
	}
	if (tiers != 0)
		plane_set(s, 0, node, true);
	return true;
}

static bool set_too_large(const struct epoch_head *s)
{
	return s->n < INLINE || 4 * array_bytes(s->n) < (s->kind == EPOCH_ARRAY ? 2 : 1) * (size_t)s->bytes;
}

static bool word_put(uint64_t *holders, unsigned node, unsigned tiers)
{
	unsigned i = 0;
	while (i < INLINE && word_member(*holders, i) != 0 && word_member(*holders, i) >> 4 != node)
		i++;
	if (i == INLINE)
		return tiers == 0;
	uint64_t below = *holders & ((UINT64_C(1) << 16 * i) - 1),
		 above = i + 1 < INLINE ? *holders >> 16 * (i + 1) : 0;
	if (tiers == 0)
		*holders = below | above << 16 * i;
	else
		*holders = below | (uint64_t)member_of(node, tiers) << 16 * i |
			(i + 1 < INLINE ? above << 16 * (i + 1) : 0);
	return true;
}

bool holders_put(struct kvindex *ix, uint64_t *holders, unsigned node, unsigned tiers)
{
	if (!holders_is_set(*holders))
		return word_put(holders, node, tiers) || holders_remake(ix, holders, node, tiers);
	struct epoch_head *s = holders_set(*holders);
	if (tiers == 0 && holders_tiers(*holders, node) == 0)
		return true;
	if (!(s->kind == EPOCH_ARRAY ? array_put(s, node, tiers) : dense_put(s, node, tiers)))
		return holders_remake(ix, holders, node, tiers);
	if (tiers == 0 && set_too_large(s))
		(void)holders_remake(ix, holders, node,
			0); /* If there is no memory for a smaller set, the larger one stays. */
	return true;
}
