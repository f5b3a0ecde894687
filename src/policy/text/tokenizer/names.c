/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer names: strings with ids, filled once. */
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

CGN_RC tok_names_reserve(struct tok_names *s, size_t n)
{
	struct tok_name *v = n > s->cap ? reallocarray(s->v, n, sizeof *v) : s->v;
	if (n > s->cap && v == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	s->v = v;
	s->cap = n > s->cap ? n : s->cap;
	return table_reserve(&s->table, s->cap) ? CGN_OK : CGN_RC_OF(CGN_NO_MEMORY);
}

void tok_names_fini(struct tok_names *s)
{
	cgn_buf_fini(&s->text);
	free(s->v);
	table_fini(&s->table);
	*s = (struct tok_names){0};
}

struct cgn_str tok_names_text(const struct tok_names *s, size_t i)
{
	return (struct cgn_str){s->text.p + s->v[i].off, s->v[i].len};
}

static struct tok_name *name_find(const struct tok_names *s, struct cgn_str name, uint64_t hash)
{
	table_each (at, &s->table, hash)
		if (cgn_str_eq(tok_names_text(s, at.number), name))
			return &s->v[at.number];
	return NULL;
}

CGN_RC tok_names_put(struct tok_names *s, struct cgn_str name, uint32_t id)
{
	uint64_t hash = tok_hash(name.p, name.n);
	struct tok_name *known = name_find(s, name, hash);
	if (known != NULL) {
		known->id = id;
		return CGN_OK;
	}
	if (s->n == s->cap)
		CGN_TRY(tok_names_reserve(s, 2 * s->cap + 64));
	table_put(&s->table, hash, (uint32_t)s->n);
	s->v[s->n++] = (struct tok_name){(uint32_t)s->text.n, (uint32_t)name.n, id};
	cgn_buf_str(&s->text, name);
	return s->text.bad ? CGN_RC_OF(CGN_NO_MEMORY) : CGN_OK;
}

uint32_t tok_names_get(const struct tok_names *s, struct cgn_str name)
{
	const struct tok_name *known = name_find(s, name, tok_hash(name.p, name.n));
	return known != NULL ? known->id : TOK_NONE;
}

size_t tok_names_bytes(const struct tok_names *s)
{
	return s->text.cap + s->cap * sizeof *s->v + table_bytes(&s->table);
}
