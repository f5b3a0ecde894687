/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer stages: the pre-tokenizers. Each one splits the pieces of the previous stage, depth first, down
 * to words. */
#include "policy/text/tokenizer/tokenizer_priv.h"

struct run {
	const struct tokenizer *t;
	struct tokenizer_work *w;
	struct tokenizer_ids *out;
	struct cgn_err *err;
};

static CGN_RC stage_run(struct run *r, size_t stage, struct tok_piece piece);

/* ---- words ---- */

static CGN_RC put_ids(struct run *r, const uint32_t *ids, size_t n)
{
	if (n == 0) /* The word has no known character, and unknown characters are dropped. */
		return CGN_OK;
	if (!cgn_ok(tok_ids_room(r->out, n)))
		return CGN_FAIL(r->err, NO_MEMORY, "out of memory for %zu ids", r->out->n + n);
	memcpy(r->out->ids + r->out->n, ids, n * sizeof *ids);
	r->out->n += n;
	return CGN_OK;
}

static bool is_it(const struct tok_cached *c, uint32_t hash, const char *p, size_t n)
{
	return c->hash == hash && c->len == n && memcmp(c->key, p, n) == 0;
}

/* A hash selects two places: a new word takes the first, and the old one moves to the second. */
static CGN_RC short_word(struct run *r, const char *p, size_t n)
{
	uint64_t h = tok_hash(p, n);
	uint32_t hash = (uint32_t)(h >> 32);
	struct tok_cached *c = &r->w->cache[h % TOK_CACHE_N], *second = &r->w->cache[(h % TOK_CACHE_N) ^ 1];
	if (is_it(c, hash, p, n))
		return put_ids(r, c->ids, c->n);
	if (is_it(second, hash, p, n))
		return put_ids(r, second->ids, second->n);
	size_t before = r->out->n;
	CGN_TRY(tok_word(&r->t->model, &r->w->room, (struct cgn_str){p, n}, r->out, r->err));
	size_t made = r->out->n - before;
	if (made > TOK_CACHE_IDS)
		return CGN_OK;
	*second = *c;
	c->hash = hash;
	c->len = (uint8_t)n;
	c->n = (uint8_t)made;
	memcpy(c->key, p, n);
	memcpy(c->ids, r->out->ids + before, made * sizeof *c->ids);
	return CGN_OK;
}

static CGN_RC word_put(struct run *r, const char *p, size_t n)
{
	return n <= TOK_CACHE_KEY
		? short_word(r, p, n)
		: tok_word(&r->t->model, &r->w->room, (struct cgn_str){p, n}, r->out, r->err);
}

#define MARK "\xe2\x96\x81"

/* Where no token holds a mark behind another character, no merge crosses that place. Splitting one long word
 * into many short ones there gives the same ids. */
static CGN_RC marked_words(struct run *r, const char *p, size_t n)
{
	const char *end = p + n, *from = p, *stage_mark;
	while (p < end && (stage_mark = memmem(p, (size_t)(end - p), MARK, 3)) != NULL) {
		if (stage_mark > from && (stage_mark - from < 3 || memcmp(stage_mark - 3, MARK, 3) != 0)) {
			CGN_TRY(word_put(r, from, (size_t)(stage_mark - from)));
			from = stage_mark;
		}
		p = stage_mark + 3;
	}
	return from < end ? word_put(r, from, (size_t)(end - from)) : CGN_OK;
}

static CGN_RC words_put(struct run *r, const char *p, size_t n)
{
	return r->t->model.mark_breaks ? marked_words(r, p, n) : word_put(r, p, n);
}

/* ---- matches, and the text between them ---- */

struct joiner {
	struct run *r;
	size_t stage;
	const struct tok_piece *whole;
	enum tok_behavior behavior;
	/* A part that may still grow: whether there is one, and whether its last item was a match. */
	bool invert, have, have_match;
	size_t start, end;
};

static CGN_RC joiner_emit(const struct joiner *j, size_t start, size_t end)
{
	const struct tok_piece *w = j->whole;
	const struct tok_piece part = {w->p + start, w->shadow != NULL ? w->shadow + start : NULL,
		end - start, w->first && start == 0};
	return stage_run(j->r, j->stage + 1, part);
}

static CGN_RC joiner_flush(struct joiner *j)
{
	if (!j->have)
		return CGN_OK;
	j->have = false;
	return joiner_emit(j, j->start, j->end);
}

static CGN_RC joiner_hold(struct joiner *j, size_t start, size_t end, bool match, bool joins)
{
	if (!j->have || !joins) {
		CGN_TRY(joiner_flush(j));
		j->start = start;
	}
	j->end = end;
	j->have = true;
	j->have_match = match;
	return CGN_OK;
}

static CGN_RC joiner_item(struct joiner *j, size_t start, size_t end, bool match)
{
	if (start == end)
		return CGN_OK;
	match ^= j->invert;
	switch (j->behavior) {
	case SPLIT_REMOVED:
		return match ? CGN_OK : joiner_emit(j, start, end);
	case SPLIT_ISOLATED:
		break;
	case SPLIT_CONTIGUOUS:
		return joiner_hold(j, start, end, match, j->have_match == match);
	case SPLIT_MERGED_WITH_PREVIOUS:
		return joiner_hold(j, start, end, match, match && !j->have_match);
	case SPLIT_MERGED_WITH_NEXT:
		CGN_TRY(joiner_hold(j, start, end, match, j->have_match && !match));
		return match ? CGN_OK : joiner_flush(j);
	}
	return joiner_emit(j, start, end);
}

/* ---- stages ---- */

static CGN_RC split_regex(struct run *r, struct joiner *j, const struct tok_regex *re,
	struct tok_piece *piece)
{
	size_t from = 0, start, end;
	if (re->shadow && piece->shadow == NULL)
		piece->shadow = tok_shadow((struct cgn_str){piece->p, piece->n}, &r->w->shadow[j->stage]);
	if (r->w->shadow[j->stage].bad)
		return CGN_FAIL(r->err, NO_MEMORY, "out of memory");
	const struct cgn_str seen = {re->shadow ? piece->shadow : piece->p, piece->n};
	for (;; from = end) {
		CGN_TRY(tok_regex_next(re, &r->w->matcher, seen, from, &start, &end, r->err));
		if (end == 0)
			break;
		CGN_TRY(joiner_item(j, from, start, false));
		CGN_TRY(joiner_item(j, start, end, true));
	}
	CGN_TRY(joiner_item(j, from, piece->n, false));
	return joiner_flush(j);
}

static CGN_RC split_literal(struct joiner *j, struct cgn_str at, const struct tok_piece *piece)
{
	size_t from = 0;
	const char *hit;
	while (from < piece->n && (hit = memmem(piece->p + from, piece->n - from, at.p, at.n)) != NULL) {
		size_t start = (size_t)(hit - piece->p);
		CGN_TRY(joiner_item(j, from, start, false));
		CGN_TRY(joiner_item(j, start, start + at.n, true));
		from = start + at.n;
	}
	CGN_TRY(joiner_item(j, from, piece->n, false));
	return joiner_flush(j);
}

static CGN_RC text_rewritten(struct run *r, size_t stage, bool first)
{
	const struct cgn_buf *b = &r->w->text[stage];
	if (b->bad)
		return CGN_FAIL(r->err, TOO_LARGE, "the text does not fit into %zu bytes, or into memory",
			b->limit);
	return stage_run(r, stage + 1, (struct tok_piece){b->p, NULL, b->n, first});
}

static struct cgn_buf *text_fresh(struct run *r, size_t stage)
{
	struct cgn_buf *b = &r->w->text[stage];
	b->limit = 4 * TOKENIZER_MAX_TEXT;
	b->n = 0;
	b->bad = false;
	return b;
}

static CGN_RC space_prefix(struct run *r, size_t stage, const struct tok_piece *piece)
{
	if (piece->p[0] == ' ')
		return stage_run(r, stage + 1, *piece);
	struct cgn_buf *b = text_fresh(r, stage);
	cgn_buf_char(b, ' ');
	cgn_buf_add(b, piece->p, piece->n);
	return text_rewritten(r, stage, piece->first);
}

static CGN_RC stage_mark(struct run *r, size_t stage, const struct tok_stage *s,
	const struct tok_piece *piece)
{
	struct cgn_buf *b = text_fresh(r, stage);
	const char *p = piece->p, *end = p + piece->n, *space;
	bool marked = *p == ' ' || (piece->n >= s->literal.n && memcmp(p, s->literal.p, s->literal.n) == 0);
	if (!marked && (s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && piece->first)))
		cgn_buf_str(b, s->literal);
	for (; p < end && (space = memchr(p, ' ', (size_t)(end - p))) != NULL; p = space + 1) {
		cgn_buf_add(b, p, (size_t)(space - p));
		cgn_buf_str(b, s->literal);
	}
	cgn_buf_add(b, p, (size_t)(end - p));
	return text_rewritten(r, stage, piece->first);
}

static CGN_RC stage_run(struct run *r, size_t stage, struct tok_piece piece)
{
	if (stage == r->t->n_stages)
		return words_put(r, piece.p, piece.n);
	const struct tok_stage *s = &r->t->stages[stage];
	struct joiner j = {.r = r,
		.stage = stage,
		.whole = &piece,
		.behavior = s->behavior,
		.invert = s->invert};
	switch (s->kind) {
	case STAGE_REGEX:
		return split_regex(r, &j, &s->regex, &piece);
	case STAGE_LITERAL:
		return split_literal(&j, s->literal, &piece);
	case STAGE_SPACE_PREFIX:
		return space_prefix(r, stage, &piece);
	case STAGE_MARK:
		break;
	}
	return stage_mark(r, stage, s, &piece);
}

CGN_RC tok_stages(const struct tokenizer *t, struct tokenizer_work *w, size_t stage, struct tok_piece piece,
	struct tokenizer_ids *out, struct cgn_err *err)
{
	struct run r = {t, w, out, err};
	return piece.n > 0 ? stage_run(&r, stage, piece) : CGN_OK;
}
