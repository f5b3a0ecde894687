/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer names: a hash table from strings to ids, filled once. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "policy/text/tokenizer/tokenizer_priv.h"

static uint64_t hash_mix(uint64_t a, uint64_t b)
{
	__extension__ unsigned __int128 wide = (unsigned __int128)a * b;
	return (uint64_t)wide ^ (uint64_t)(wide >> 64);
}

static uint64_t word_load(const unsigned char *p, size_t n) /* n <= 8 */
{
	uint64_t v = 0;
	uint32_t low, high;
	if (n >= 4) {
		memcpy(&low, p, 4);
		memcpy(&high, p + n - 4, 4);
		return (uint64_t)high << 32 | low;
	}
	if (n > 0)
		v = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
	return v;
}

uint64_t tok_hash(const void *bytes, size_t n)
{
	const unsigned char *p = bytes;
	uint64_t h = MIX_GOLDEN ^ n, word;
	for (; n > 8; p += 8, n -= 8) {
		memcpy(&word, p, 8);
		h = hash_mix(h ^ word, UINT64_C(0xa0761d6478bd642f));
	}
	return hash_mix(h ^ word_load(p, n), UINT64_C(0xe7037ed1a0b428db) ^ n);
}

CGN_RC tok_names_init(struct tok_names *s, size_t expect)
{
	size_t slots = 16;
	while (slots < expect * 2)
		slots *= 2;
	s->cap = slots / 2;
	s->mask = slots - 1;
	s->v = malloc(s->cap * sizeof *s->v);
	s->slots = calloc(slots, sizeof *s->slots);
	return s->v != NULL && s->slots != NULL ? CGN_OK : CGN_RC_OF(CGN_NO_MEMORY);
}

void tok_names_fini(struct tok_names *s)
{
	cgn_buf_fini(&s->text);
	free(s->v);
	free(s->slots);
	*s = (struct tok_names){0};
}

struct cgn_str tok_names_text(const struct tok_names *s, size_t i)
{
	return (struct cgn_str){s->text.p + s->v[i].off, s->v[i].len};
}

/* The slot that holds |name|, or the free one where it would go. */
static uint64_t *slot_find(const struct tok_names *s, struct cgn_str name)
{
	uint64_t hash = tok_hash(name.p, name.n), top = hash >> 32 << 32;
	for (size_t i = hash & s->mask;; i = (i + 1) & s->mask) {
		uint64_t slot = s->slots[i];
		if (slot == 0 ||
			((slot ^ top) >> 32 == 0 && cgn_str_eq(tok_names_text(s, (uint32_t)slot - 1), name)))
			return &s->slots[i];
	}
}

CGN_RC tok_names_put(struct tok_names *s, struct cgn_str name, uint32_t id)
{
	uint64_t *slot = slot_find(s, name);
	if (*slot != 0) {
		s->v[(uint32_t)*slot - 1].id = id;
		return CGN_OK;
	}
	CGN_MUST(s->n < s->cap);
	s->v[s->n] = (struct tok_name){(uint32_t)s->text.n, (uint32_t)name.n, id};
	cgn_buf_str(&s->text, name);
	*slot = tok_hash(name.p, name.n) >> 32 << 32 | ++s->n;
	return s->text.bad ? CGN_RC_OF(CGN_NO_MEMORY) : CGN_OK;
}

uint32_t tok_names_get(const struct tok_names *s, struct cgn_str name)
{
	if (s->slots == NULL)
		return TOK_NONE;
	uint64_t slot = *slot_find(s, name);
	return slot != 0 ? s->v[(uint32_t)slot - 1].id : TOK_NONE;
}

size_t tok_names_bytes(const struct tok_names *s)
{
	return s->slots == NULL ? 0 : s->text.cap + s->cap * sizeof *s->v + (s->mask + 1) * sizeof *s->slots;
}
