/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/text/prompt/encode.h"

#include <stdlib.h>

#define CUTS_MAX  ((size_t)65536)
#define UNCERTAIN 64 /* Last ids of a cut text, which may differ in the whole text. */

/* ---- segments ---- */

struct planner {
	struct encode *e;
	struct digest last; /* The last key. */
};

static struct promptcache_key short_key(const struct digest *d)
{
	struct promptcache_key key;
	memcpy(key.b, d->b, sizeof key.b);
	return key;
}

static void segments_grow(struct encode *e)
{
	e->cap = e->cap > 0 ? 2 * e->cap : 16;
	e->segments = CGN_GROWN(e->segments, e->cap);
	e->keys = CGN_GROWN(e->keys, e->cap);
}

enum closing {
	CLOSE_AT_CUT,
	CLOSE_WHOLE,
	CLOSE_OPEN /* No key, because caching the state is not worth it. */
};

static void close_segment(struct planner *p, size_t start, size_t end, int medium, enum closing how)
{
	struct encode *e = p->e;
	if (e->n_segments == e->cap)
		segments_grow(e);
	e->segments[e->n_segments] =
		(struct prompt_encode_segment){.start = start, .end = end, .medium = medium};
	if (how != CLOSE_OPEN) {
		if (medium >= 0)
			p->last = digest_keyed(&p->last,
				(struct cgn_str){(const char *)e->media[medium].b, DIGEST_BYTES});
		p->last = digest_keyed(&p->last, (struct cgn_str){e->text.p + start, end - start});
		if (how == CLOSE_WHOLE)
			p->last = digest_keyed(&p->last, CGN_STR("the end"));
		e->keys[e->n_keys++] = short_key(&p->last);
	}
	e->n_segments++;
}

/* Plan one piece of text with |medium| before it. |cuts| ascend and are relative to the piece. */
static void plan_piece(struct planner *p, size_t start, size_t end, int medium, bool last, const size_t *cuts,
	size_t n_cuts)
{
	size_t from = start;
	for (size_t i = 0; i < n_cuts; i++) {
		size_t at = start + cuts[i];
		if (at - from < ENCODE_SEGMENT || at == end)
			continue;
		close_segment(p, from, at, medium, CLOSE_AT_CUT);
		from = at;
		medium = -1;
	}
	bool worth = end - from >= ENCODE_SEGMENT && !p->e->cut;
	close_segment(p, from, end, medium, !last ? CLOSE_AT_CUT : worth ? CLOSE_WHOLE : CLOSE_OPEN);
}

/* Return the offset of the medium's mark after |from|, or the text's end when there is none. */
static size_t mark_of(struct cgn_str text, size_t from, const struct digest *medium)
{
	static const char digits[] = "0123456789abcdef";
	char mark[PROMPT_MEDIUM_TEXT + 1];
	size_t n = sizeof PROMPT_MEDIUM - 1;
	memcpy(mark, PROMPT_MEDIUM, n);
	for (size_t i = 0; i < DIGEST_BYTES; i++) {
		mark[n++] = digits[medium->b[i] >> 4];
		mark[n++] = digits[medium->b[i] & 15];
	}
	const char *at = memmem(text.p + from, text.n - from, mark, n);
	return at != NULL ? (size_t)(at - text.p) : text.n;
}

static void segments_plan(struct planner *p, size_t n_media, size_t *cuts)
{
	struct encode *e = p->e;
	size_t start = 0;
	for (size_t m = 0; m <= n_media; m++) {
		size_t end = m < n_media ? mark_of(e->text, start, &e->media[m]) : e->text.n;
		struct cgn_str piece = {e->text.p + start, end - start};
		size_t n = tokenizer_cuts(e->tokenizer, piece, cuts, CUTS_MAX);
		if (n == CUTS_MAX)
			n = 0; /* The first ids may be missing, and all keys depend on them. */
		plan_piece(p, start, end, (int)m - 1, m == n_media, cuts, n);
		start = end + PROMPT_MEDIUM_TEXT <= e->text.n && m < n_media && end < e->text.n
			? end + PROMPT_MEDIUM_TEXT
			: end;
	}
}

/* Return the front of a text whose chain can't be longer, cut at a character's edge. */
static struct cgn_str front_of(struct cgn_str text, size_t max_ids)
{
	if (text.n / ENCODE_TOKEN_BYTES <= max_ids)
		return text;
	size_t n = max_ids * ENCODE_TOKEN_BYTES;
	while (n > 0 && (text.p[n] & 0xc0) == 0x80)
		n--;
	return (struct cgn_str){text.p, n};
}

void prompt_encode_open(struct encode *e, const struct prompt_encode_ask *ask)
{
	struct cgn_str front = front_of(ask->text, ask->max_ids);
	*e = (struct encode){
		.tokenizer = ask->tokenizer,
		.text = front,
		.media = ask->media,
		.flags = ask->specials ? TOKENIZER_SPECIALS : 0,
		.cut = front.n < ask->text.n,
		.max_ids = ask->max_ids,
	};
	struct planner p = {.e = e,
		.last = digest_keyed(&ask->root, ask->specials ? CGN_STR("specials") : CGN_STR("text"))};
	size_t *cuts = CGN_GROWN((size_t *)NULL, CUTS_MAX); /* Not cleared: few entries are used. */
	segments_plan(&p, ask->n_media, cuts);
	free(cuts);
}

void prompt_encode_close(struct encode *e)
{
	free(e->segments);
	free(e->keys);
	tokenizer_ids_fini(&e->ids);
	e->segments = NULL;
	e->keys = NULL;
}

/* ---- cached states ---- */

size_t prompt_encode_resume(struct encode *e, struct promptcache *cache, struct prefix_tokens *chain)
{
	size_t at = 0;
	const struct promptcache_entry *found = promptcache_find(cache, e->keys, e->n_keys, &at);
	if (found != NULL) {
		promptcache_load(found, chain);
		e->known = at + 1;
	}
	if (prefix_tokens_full(chain))
		e->max_ids = 0; /* No more ids are taken. */
	if (e->known == e->n_segments || prefix_tokens_full(chain))
		return 0;
	e->max_ids = chain->cap * chain->block_tokens - chain->n_tokens;
	return e->text.n - e->segments[e->known].start;
}

/* ---- new text ---- */

static bool put_foreign(struct encode *e, const struct digest *medium)
{
	size_t need = e->ids.n + PREFIX_FOREIGN_IDS;
	if (need > e->ids.cap) {
		uint32_t *ids = realloc(e->ids.ids, 2 * need * sizeof *ids);
		if (ids == NULL)
			return false;
		e->ids.ids = ids;
		e->ids.cap = 2 * need;
	}
	prefix_tokens_foreign(medium, e->ids.ids + e->ids.n);
	e->ids.n = need;
	return true;
}

static unsigned flags_of(const struct encode *e, size_t i)
{
	unsigned flags = i == 0 ? e->flags & TOKENIZER_HEAD : TOKENIZER_CONTINUED;
	return i + 1 == e->n_segments && !e->cut ? flags | (e->flags & TOKENIZER_TAIL) : flags;
}

CGN_RC prompt_encode_run(struct encode *e, struct tokenizer_work *work, struct cgn_err *err)
{
	for (size_t i = e->known; i < e->n_segments && e->ids.n < e->max_ids; i++) {
		struct prompt_encode_segment *s = &e->segments[i];
		size_t before = e->ids.n;
		if (s->medium >= 0 && !put_foreign(e, &e->media[s->medium]))
			return CGN_FAIL(err, NO_MEMORY, "no memory for a prompt's tokens");
		struct cgn_str text = {e->text.p + s->start, s->end - s->start};
		CGN_TRY(tokenizer_encode(e->tokenizer, work, text, flags_of(e, i), &e->ids, err));
		if (e->cut && i + 1 == e->n_segments)
			e->ids.n = e->ids.n - before > UNCERTAIN ? e->ids.n - UNCERTAIN : before;
		s->n_ids = e->ids.n - before;
	}
	return CGN_OK;
}

/* ---- result ---- */

void prompt_encode_finish(struct encode *e, struct promptcache *cache, struct prefix_tokens *chain)
{
	struct promptcache_entry *parent =
		e->known > 0 ? promptcache_get(cache, &e->keys[e->known - 1]) : NULL;
	bool keep = true;
	size_t at = 0;
	for (size_t i = e->known; i < e->n_segments && !prefix_tokens_full(chain); i++) {
		prefix_tokens_add(chain, e->ids.ids + at, e->segments[i].n_ids);
		at += e->segments[i].n_ids;
		if (!keep || i >= e->n_keys)
			continue;
		parent = promptcache_put(cache, &e->keys[i], parent, chain);
		keep = parent != NULL;
	}
}
