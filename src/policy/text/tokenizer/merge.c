/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer merge: byte pair encoding of one word. The lowest rank is merged first, among equal ranks the
 * leftmost. Short words are scanned from end to end; long words use a heap of (rank, place), so that a word
 * of n symbols costs O(n log n). */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "policy/text/tokenizer/tokenizer_priv.h"

#define SHORT_WORD 40 /* In symbols; measured: up to this length the scan is faster. */

static inline uint64_t pair_hash(uint32_t left, uint32_t right)
{
	uint64_t h = mix_golden((uint64_t)left << 32 | right);
	return h ^ h >> 32;
}

static const struct tok_merge *tok_merge_of(const struct tok_model *m, uint32_t left, uint32_t right)
{
	for (size_t i = pair_hash(left, right) & m->merge_mask;; i = (i + 1) & m->merge_mask) {
		const struct tok_merge *e = &m->merges[i];
		if (e->left == left && e->right == right)
			return e;
		if (e->left == TOK_NONE)
			return NULL;
	}
}

/* When a pair is given twice, the last one counts. */
void tok_merge_put(struct tok_model *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t to)
{
	size_t i = pair_hash(left, right) & m->merge_mask;
	while (m->merges[i].left != TOK_NONE && (m->merges[i].left != left || m->merges[i].right != right))
		i = (i + 1) & m->merge_mask;
	m->n_merges += m->merges[i].left == TOK_NONE;
	CGN_MUST(m->n_merges <= m->merge_mask / 2 + 1);
	m->merges[i] = (struct tok_merge){left, right, rank, to};
}

CGN_RC tok_ids_room(struct tokenizer_ids *ids, size_t n)
{
	if (ids->cap - ids->n >= n)
		return CGN_OK;
	size_t cap = ids->cap * 2 > ids->n + n ? ids->cap * 2 : ids->n + n + 16;
	uint32_t *grown = realloc(ids->ids, cap * sizeof *grown);
	if (grown == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	ids->ids = grown;
	ids->cap = cap;
	return CGN_OK;
}

/* ---- the first symbols of a word ---- */

struct starter {
	const struct tok_model *m;
	uint32_t *ids;
	size_t n;
	bool pending; /* An unknown symbol that may still grow. */
};

static void start_known(struct starter *s, uint32_t id)
{
	if (s->pending)
		s->ids[s->n++] = s->m->unk;
	s->pending = false;
	s->ids[s->n++] = id;
}

/* Bytes that stand in for a character do not end a pending unknown symbol; the reference behaves so. */
static bool start_bytes(struct starter *s, const char *p, size_t n)
{
	if (!s->m->byte_fallback)
		return false;
	for (size_t i = 0; i < n; i++)
		if (s->m->byte_ids[(unsigned char)p[i]] == TOK_NONE)
			return false;
	for (size_t i = 0; i < n; i++)
		s->ids[s->n++] = s->m->byte_ids[(unsigned char)p[i]];
	return true;
}

static void start_unknown(struct starter *s)
{
	/* Without an unknown token the character is dropped; the reference behaves so. */
	if (s->m->unk == TOK_NONE)
		return;
	if (s->pending && !s->m->fuse_unk)
		s->ids[s->n++] = s->m->unk;
	s->pending = true;
}

static void start_char(struct starter *s, const char *p, size_t n)
{
	uint32_t id =
		n == 1 ? s->m->start[(unsigned char)*p] : tok_names_get(&s->m->names, (struct cgn_str){p, n});
	if (id != TOK_NONE)
		start_known(s, id);
	else if (!start_bytes(s, p, n))
		start_unknown(s);
}

static void start_byte(struct starter *s, unsigned char b)
{
	if (s->m->start[b] != TOK_NONE)
		start_known(s, s->m->start[b]);
	else
		start_unknown(s);
}

static size_t word_start(const struct tok_model *m, struct cgn_str word, uint32_t *ids)
{
	struct starter s = {.m = m, .ids = ids};
	size_t n;
	for (const char *p = word.p, *end = p + word.n; p < end; p += n) {
		n = 1;
		if (m->bytes) {
			start_byte(&s, (unsigned char)*p);
		} else {
			(void)tok_char_at(p, end, &n);
			start_char(&s, p, n);
		}
	}
	if (s.pending)
		s.ids[s.n++] = m->unk;
	return s.n;
}

/* ---- short words ---- */

struct pairs {
	uint32_t rank[SHORT_WORD], to[SHORT_WORD];
};

static inline void pair_look(const struct tok_model *m, struct pairs *ps, const uint32_t *ids, size_t i)
{
	const struct tok_merge *e = tok_merge_of(m, ids[i], ids[i + 1]);
	ps->rank[i] = e != NULL ? e->rank : TOK_NONE;
	ps->to[i] = e != NULL ? e->to : 0;
}

static size_t merge_short(const struct tok_model *m, uint32_t *ids, size_t n)
{
	struct pairs ps;
	for (size_t i = 0; i + 1 < n; i++)
		pair_look(m, &ps, ids, i);
	for (;;) {
		size_t best = 0;
		uint32_t rank = TOK_NONE;
		for (size_t i = 0; i + 1 < n; i++)
			if (ps.rank[i] < rank) {
				rank = ps.rank[i];
				best = i;
			}
		if (rank == TOK_NONE)
			return n;
		ids[best] = ps.to[best];
		n--;
		for (size_t i = best + 1; i < n; i++)
			ids[i] = ids[i + 1];
		for (size_t i = best + 1; i + 1 < n; i++) {
			ps.rank[i] = ps.rank[i + 1];
			ps.to[i] = ps.to[i + 1];
		}
		if (best + 1 < n)
			pair_look(m, &ps, ids, best);
		if (best > 0)
			pair_look(m, &ps, ids, best - 1);
	}
}

/* ---- long words ---- */

struct heap {
	uint64_t *v;
	size_t n;
};

static void heap_push(struct heap *h, uint64_t v)
{
	size_t i = h->n++;
	for (; i > 0 && h->v[(i - 1) / 2] > v; i = (i - 1) / 2)
		h->v[i] = h->v[(i - 1) / 2];
	h->v[i] = v;
}

static uint64_t heap_pop(struct heap *h)
{
	uint64_t top = h->v[0], v = h->v[--h->n];
	size_t i = 0;
	for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
		child += child + 1 < h->n && h->v[child + 1] < h->v[child];
		if (h->v[child] >= v)
			break;
		h->v[i] = h->v[child];
	}
	h->v[i] = v;
	return top;
}

/* Symbols as a list; rank: of the pair that begins at the symbol, so that an outdated heap entry is
 * detected. */
struct chain {
	const struct tok_model *m;
	uint32_t *id, *prev, *next, *rank, *to;
	struct heap heap;
};

static void chain_look(struct chain *c, uint32_t at)
{
	const struct tok_merge *e =
		c->next[at] != TOK_NONE ? tok_merge_of(c->m, c->id[at], c->id[c->next[at]]) : NULL;
	c->rank[at] = e != NULL ? e->rank : TOK_NONE;
	if (e == NULL)
		return;
	c->to[at] = e->to;
	heap_push(&c->heap, (uint64_t)e->rank << 32 | at);
}

static void chain_merge(struct chain *c, uint32_t at)
{
	uint32_t gone = c->next[at];
	c->id[at] = c->to[at];
	c->rank[gone] = TOK_NONE;
	c->next[at] = c->next[gone];
	if (c->next[at] != TOK_NONE)
		c->prev[c->next[at]] = at;
	if (c->prev[at] != TOK_NONE)
		chain_look(c, c->prev[at]);
	chain_look(c, at);
}

static size_t merge_long(const struct tok_model *m, uint32_t *ids, size_t n, uint32_t *room)
{
	struct chain c =
		{.m = m, .id = ids, .prev = room, .next = room + n, .rank = room + 2 * n, .to = room + 3 * n};
	c.heap.v = (uint64_t *)(void *)(room + 4 * n);
	for (uint32_t i = 0; i < n; i++) {
		c.prev[i] = i == 0 ? TOK_NONE : i - 1;
		c.next[i] = i + 1 < n ? i + 1 : TOK_NONE;
	}
	for (uint32_t i = 0; i < n; i++)
		chain_look(&c, i);
	while (c.heap.n > 0) {
		uint64_t top = heap_pop(&c.heap);
		if (c.rank[(uint32_t)top] == top >> 32)
			chain_merge(&c, (uint32_t)top);
	}
	size_t left = 0;
	for (uint32_t i = 0; n > 0 && i != TOK_NONE; i = c.next[i])
		ids[left++] = ids[i];
	return left;
}

/* ---- a word ---- */

/* Reserve memory for n symbols (at most one per byte): 4 lists of n and a heap. Each merge removes one symbol
 * and adds at most 2 heap entries. */
static CGN_RC room_for(struct tok_room *room, size_t n, struct cgn_err *err)
{
	size_t want = n < SHORT_WORD ? 0 : 10 * n;
	if (room->cap >= want)
		return CGN_OK;
	free(room->sym);
	room->sym = malloc(want * sizeof *room->sym);
	room->cap = room->sym != NULL ? want : 0;
	return room->sym != NULL ? CGN_OK
				 : CGN_FAIL(err, NO_MEMORY, "out of memory for a word of %zu symbols", n);
}

CGN_RC tok_word(const struct tok_model *m, struct tok_room *room, struct cgn_str word,
	struct tokenizer_ids *out, struct cgn_err *err)
{
	size_t most = word.n + 1;
	if (word.n > TOKENIZER_MAX_WORD)
		return CGN_FAIL(err, TOO_LARGE, "%zu bytes without a place to split them, the limit is %zu",
			word.n, TOKENIZER_MAX_WORD);
	if (!cgn_ok(tok_ids_room(out, most)))
		return CGN_FAIL(err, NO_MEMORY, "out of memory for %zu ids", out->n + most);
	uint32_t whole = m->ignore_merges ? tok_names_get(&m->names, word) : TOK_NONE;
	if (whole != TOK_NONE) {
		out->ids[out->n++] = whole;
		return CGN_OK;
	}
	uint32_t *ids = out->ids + out->n;
	size_t n = word_start(m, word, ids);
	if (n <= SHORT_WORD) {
		out->n += n > 1 ? merge_short(m, ids, n) : n;
		return CGN_OK;
	}
	CGN_TRY(room_for(room, n, err));
	out->n += merge_long(m, ids, n, room->sym);
	return CGN_OK;
}
