/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer encode: a text from its bytes to its ids, and the scratch memory for it. */
#include <stdlib.h>

#include "policy/text/tokenizer/tokenizer_priv.h"

#define WORK_TAG 0x746b776bu

struct encoder {
	const struct tokenizer *t;
	struct tokenizer_work *w;
	struct tokenizer_ids *out;
	struct cgn_err *err;
	bool continued;
};

static CGN_RC put_id(struct encoder *e, uint32_t id)
{
	if (!cgn_ok(tok_ids_room(e->out, 1)))
		return CGN_FAIL(e->err, NO_MEMORY, "out of memory for %zu ids", e->out->n + 1);
	e->out->ids[e->out->n++] = id;
	return CGN_OK;
}

static CGN_RC encode_plain(struct encoder *e, struct cgn_str text, bool first)
{
	return tok_stages(e->t, e->w, 0, (struct tok_piece){text.p, NULL, text.n, first}, e->out, e->err);
}

/* Encode text between added tokens that are matched in the original text. */
static CGN_RC encode_fragment(struct encoder *e, struct cgn_str text, bool first)
{
	struct tok_finder f = {.t = e->t, .set = &e->t->normal};
	struct tok_span s;
	size_t from = 0;
	CGN_TRY(tok_normalize(e->t->normals, e->t->n_normals, &e->w->scratch, &e->w->matcher, &text, e->err));
	f.text = text;
	while (tok_find(&f, &s)) {
		if (from < s.start)
			CGN_TRY(encode_plain(e, (struct cgn_str){text.p + from, s.start - from},
				first && from == 0));
		CGN_TRY(put_id(e, s.token->id));
		from = s.stop;
	}
	return from < text.n
		? encode_plain(e, (struct cgn_str){text.p + from, text.n - from}, first && from == 0)
		: CGN_OK;
}

static CGN_RC encode_whole(struct encoder *e, struct cgn_str text)
{
	struct tok_finder f = {.t = e->t, .set = &e->t->exact, .text = text};
	struct tok_span s;
	size_t from = 0;
	while (tok_find(&f, &s)) {
		if (from < s.start)
			CGN_TRY(encode_fragment(e, (struct cgn_str){text.p + from, s.start - from},
				!e->continued && from == 0));
		CGN_TRY(put_id(e, s.token->id));
		from = s.stop;
	}
	return from < text.n ? encode_fragment(e, (struct cgn_str){text.p + from, text.n - from},
				       !e->continued && from == 0)
			     : CGN_OK;
}

static CGN_RC text_encode(struct encoder *e, struct cgn_str text, unsigned flags)
{
	const struct tokenizer *t = e->t;
	for (size_t i = 0; (flags & TOKENIZER_HEAD) != 0 && i < t->n_head; i++)
		CGN_TRY(put_id(e, t->head[i]));
	if (text.n > 0)
		CGN_TRY(encode_whole(e, text));
	for (size_t i = 0; (flags & TOKENIZER_TAIL) != 0 && i < t->n_tail; i++)
		CGN_TRY(put_id(e, t->tail[i]));
	return CGN_OK;
}

static CGN_RC make_valid(struct tokenizer_work *w, struct cgn_str *text, struct cgn_err *err)
{
	if (cgn_utf8_valid(text->p, text->n))
		return CGN_OK;
	w->lossy.n = 0;
	w->lossy.limit = 3 * TOKENIZER_MAX_TEXT;
	tok_put_lossy(&w->lossy, *text);
	if (w->lossy.bad)
		return CGN_FAIL(err, NO_MEMORY, "out of memory for a text of %zu bytes", text->n);
	*text = cgn_buf_view(&w->lossy);
	return CGN_OK;
}

static void trim_buf(struct cgn_buf *b)
{
	if (b->cap > TOKENIZER_WORK_KEEP / 4 || b->bad)
		cgn_buf_fini(b);
}

/* Give back the memory that a large text took. */
static void work_trim(struct tokenizer_work *w)
{
	trim_buf(&w->lossy);
	for (size_t i = 0; i < w->t->n_stages; i++) {
		trim_buf(&w->text[i]);
		trim_buf(&w->shadow[i]);
	}
	trim_buf(&w->scratch.flip);
	trim_buf(&w->scratch.flop);
	if (w->scratch.n_points * sizeof(int32_t) > TOKENIZER_WORK_KEEP / 4) {
		free(w->scratch.points);
		w->scratch.points = NULL;
		w->scratch.n_points = 0;
	}
	if (w->room.cap * sizeof(uint32_t) > TOKENIZER_WORK_KEEP / 4) {
		free(w->room.sym);
		w->room = (struct tok_room){0};
	}
}

CGN_RC tokenizer_encode(const struct tokenizer *t, struct tokenizer_work *w, struct cgn_str text,
	unsigned flags, struct tokenizer_ids *out, struct cgn_err *err)
{
	CGN_LIVE(w, WORK_TAG);
	CGN_MUST(w->t == t);
	struct encoder e = {t, w, out, err, (flags & TOKENIZER_CONTINUED) != 0};
	size_t before = out->n;
	if (text.n > TOKENIZER_MAX_TEXT)
		return CGN_FAIL(err, TOO_LARGE, "a text of %zu bytes, the limit is %zu", text.n,
			TOKENIZER_MAX_TEXT);
	cgn_rc rc = make_valid(w, &text, err);
	if (cgn_ok(rc))
		rc = text_encode(&e, text, flags);
	if (!cgn_ok(rc))
		out->n = before;
	work_trim(w);
	return rc;
}

void tokenizer_ids_fini(struct tokenizer_ids *ids)
{
	free(ids->ids);
	*ids = (struct tokenizer_ids){0};
}

static void *align_up(void *p, size_t alignment)
{
	return (char *)p + (alignment - (uintptr_t)p % alignment) % alignment;
}

struct tokenizer_work *tokenizer_work_new(const struct tokenizer *t)
{
	struct tokenizer_work *w = CGN_NEW(struct tokenizer_work);
	w->tag = WORK_TAG;
	w->t = t;
	/* Not aligned_alloc: before glibc 2.38 a freed aligned block is too small for the next
	 * one, and a process that makes one work after another grows without end. */
	w->cache_memory = CGN_NEW_ARRAY(char, TOKENIZER_WORK_BYTES + sizeof *w->cache);
	w->cache = align_up(w->cache_memory, sizeof *w->cache);
	tok_matcher_init(&w->matcher);
	return w;
}

void tokenizer_work_free(struct tokenizer_work **take)
{
	struct tokenizer_work *w = CGN_TAKE_LIVE(take, WORK_TAG);
	if (w == NULL)
		return;
	w->tag = 0;
	for (size_t i = 0; i <= TOK_MAX_STAGES; i++) {
		cgn_buf_fini(&w->text[i]);
		cgn_buf_fini(&w->shadow[i]);
	}
	cgn_buf_fini(&w->lossy);
	tok_scratch_fini(&w->scratch);
	tok_matcher_fini(&w->matcher);
	free(w->room.sym);
	free(w->cache_memory);
	free(w);
}
