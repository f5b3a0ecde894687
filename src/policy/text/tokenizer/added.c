/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer added tokens: found in the text before it is split, at each place the longest token that begins
 * there; and the places where the text may be cut. */
#include <stdlib.h>

#include "policy/text/tokenizer/tokenizer_priv.h"

static int by_match(const void *a, const void *b)
{
	struct cgn_str x = (*(const struct tok_added *const *)a)->match,
		       y = (*(const struct tok_added *const *)b)->match;
	int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
	return order != 0 ? order : (x.n > y.n) - (x.n < y.n);
}

CGN_RC tok_added_set_init(struct tok_added_set *s, struct tok_added *all, size_t n, bool normalized,
	struct cgn_arena *a)
{
	s->v = cgn_arena_get(a, (n + 1) * sizeof(struct tok_added *));
	if (s->v == NULL)
		return CGN_RC_OF(CGN_NO_MEMORY);
	for (size_t i = 0; i < n; i++)
		if (all[i].normalized == normalized)
			s->v[s->n++] = &all[i];
	qsort(s->v, s->n, sizeof s->v[0], by_match);
	for (size_t b = 0, i = 0; b <= 256; b++) {
		while (i < s->n && (unsigned char)s->v[i]->match.p[0] < b)
			i++;
		s->first[b] = (uint32_t)i;
	}
	return CGN_OK;
}

/* Narrow the sorted tokens low..high, which agree up to byte |at|, to the tokens that have |c| there. Shorter
 * tokens sort first. */
static void tokens_narrow(const struct tok_added_set *s, size_t *low, size_t *high, size_t at,
	unsigned char c)
{
	size_t a = *low, b = *high;
	while (a < b) {
		size_t mid = (a + b) / 2;
		if (s->v[mid]->match.n <= at || (unsigned char)s->v[mid]->match.p[at] < c)
			a = mid + 1;
		else
			b = mid;
	}
	*low = a;
	b = *high;
	while (a < b) {
		size_t mid = (a + b) / 2;
		if ((unsigned char)s->v[mid]->match.p[at] <= c)
			a = mid + 1;
		else
			b = mid;
	}
	*high = a;
}

static const struct tok_added *longest_at(const struct tok_added_set *s, const char *p, size_t n)
{
	const struct tok_added *best = NULL;
	size_t low = s->first[(unsigned char)*p], high = s->first[(unsigned char)*p + 1];
	for (size_t at = 1; low < high; at++) {
		if (s->v[low]->match.n == at)
			best = s->v[low];
		if (at == n)
			break;
		tokens_narrow(s, &low, &high, at, (unsigned char)p[at]);
	}
	return best;
}

static const struct tok_added *match_leftmost(const struct tok_finder *f, size_t from, size_t *start)
{
	for (size_t i = from; i < f->text.n; i++) {
		unsigned char c = (unsigned char)f->text.p[i];
		const struct tok_added *hit = f->set->first[c] < f->set->first[c + 1]
			? longest_at(f->set, f->text.p + i, f->text.n - i)
			: NULL;
		if (hit != NULL) {
			*start = i;
			return hit;
		}
	}
	return NULL;
}

static bool word_before(struct cgn_str text, size_t at)
{
	size_t n;
	return at > 0 && tok_is_word(tok_char_before(text.p, text.p + at, &n));
}

static bool word_behind(struct cgn_str text, size_t at)
{
	size_t n;
	return at < text.n && tok_is_word(tok_char_at(text.p + at, text.p + text.n, &n));
}

static size_t skip_back(struct cgn_str text, size_t at)
{
	size_t n;
	while (at > 0 && tok_is_space(tok_char_before(text.p, text.p + at, &n)))
		at -= n;
	return at;
}

static size_t skip_on(struct cgn_str text, size_t at)
{
	size_t n;
	while (at < text.n && tok_is_space(tok_char_at(text.p + at, text.p + text.n, &n)))
		at += n;
	return at;
}

bool tok_find(struct tok_finder *f, struct tok_span *out)
{
	size_t start;
	const struct tok_added *token;
	while (f->set->n > 0 && (token = match_leftmost(f, f->at, &start)) != NULL) {
		size_t end = start + token->match.n;
		f->at = end;
		if (token->single_word && (word_before(f->text, start) || word_behind(f->text, end)))
			continue;
		*out = (struct tok_span){token, start, end, end};
		if (token->lstrip) {
			size_t back = skip_back(f->text, start);
			out->start = back > f->done ? back : f->done;
		}
		if (token->rstrip)
			out->stop = skip_on(f->text, end);
		f->done = out->stop;
		return true;
	}
	return false;
}

/* ---- cuts ---- */

/* May the text be cut where |s| ends? The rest must not depend on the part before: a single_word token
 * depends on its neighbours, and blanks that |s| took must not be part of another token. */
static bool may_cut(const struct tok_finder *f, const struct tok_span *s)
{
	size_t next;
	if (s->token->single_word || (f->t->any_single_word && word_before(f->text, s->stop)))
		return false;
	if (s->stop == s->end)
		return true;
	const struct tok_finder behind = *f;
	return match_leftmost(&behind, s->end, &next) == NULL || next >= s->stop;
}

struct cuts {
	size_t *out, max, skip, n; /* skip: cuts before the last |max| ones. */
};

static void cut_add(struct cuts *c, size_t at)
{
	if (c->out != NULL && c->n >= c->skip)
		c->out[c->n - c->skip] = at;
	c->n++;
}

/* The ends of tokens that are matched behind the normalizers are unknown in the text, unless there are no
 * such tokens. */
static void cuts_within(const struct tokenizer *t, struct cgn_str text, size_t base, struct cuts *c)
{
	struct tok_finder f = {.t = t, .set = &t->normal, .text = text};
	struct tok_span s;
	if (t->n_normals > 0)
		return;
	while (tok_find(&f, &s))
		if (may_cut(&f, &s))
			cut_add(c, base + s.stop);
}

static void all_cuts(const struct tokenizer *t, struct cgn_str text, struct cuts *c)
{
	struct tok_finder f = {.t = t, .set = &t->exact, .text = text};
	struct tok_span s;
	size_t from = 0;
	while (tok_find(&f, &s)) {
		if (from < s.start)
			cuts_within(t, (struct cgn_str){text.p + from, s.start - from}, from, c);
		if (may_cut(&f, &s))
			cut_add(c, s.stop);
		from = s.stop;
	}
	if (from < text.n)
		cuts_within(t, (struct cgn_str){text.p + from, text.n - from}, from, c);
}

size_t tokenizer_cuts(const struct tokenizer *t, struct cgn_str text, size_t *out, size_t max)
{
	struct cuts count = {0};
	if (max == 0 || text.n == 0 || (t->any_fffd && !cgn_utf8_valid(text.p, text.n)))
		return 0;
	all_cuts(t, text, &count);
	struct cuts c = {.out = out, .max = max, .skip = count.n > max ? count.n - max : 0};
	all_cuts(t, text, &c);
	return c.n - c.skip;
}
