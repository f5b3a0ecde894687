/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer normalizers: text in, text out, in the order of the file. */
#include <stdlib.h>
#include <utf8proc.h>

#include "policy/text/tokenizer/tokenizer_priv.h"

#define SHORT_RUN 32

struct range {
	uint32_t first, last;
};

/* Letters that no form changes or joins to the text before them: text between two of them can be normalized
 * by itself. Only a short cut, so these need not be all. */
static const struct range settled_always[] = {{0, 0x7f}, {0x4e00, 0x9fef}};
static const struct range settled_composed[] = {{0x80, 0x2ff}, {0x400, 0x482}, {0x5d0, 0x5ea}, {0x621, 0x63a},
	{0xe01, 0xe33}, {0x2010, 0x2027}, {0x3041, 0x3096}, {0x30a1, 0x30fa}, {0xac00, 0xd7a3},
	{0xff01, 0xff60}, {0x1f300, 0x1f64f}};

static bool range_has(const struct range *v, size_t n, uint32_t c)
{
	for (size_t i = 0; i < n; i++)
		if (c >= v[i].first && c <= v[i].last)
			return true;
	return false;
}

static bool is_settled(const struct tok_normal *form, uint32_t c)
{
	return range_has(settled_always, CGN_COUNT(settled_always), c) ||
		(form->compose && !form->compat &&
			range_has(settled_composed, CGN_COUNT(settled_composed), c));
}

/* ---- stretches of text to be normalized ---- */

static bool points_room(struct tok_scratch *s, size_t n)
{
	if (s->n_points >= n)
		return true;
	size_t want = n * 2 + 64;
	int32_t *grown = realloc(s->points, want * sizeof *grown);
	if (grown == NULL)
		return false;
	s->points = grown;
	s->n_points = want;
	return true;
}

static uint8_t class_of(int32_t c)
{
	return (uint8_t)utf8proc_get_property(c)->combining_class;
}

/* Sort marks by class and keep the order within a class. utf8proc would take n² steps for n marks. */
static void sort_few(int32_t *v, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		int32_t c = v[i];
		size_t k = i;
		for (; k > 0 && class_of(v[k - 1]) > class_of(c); k--)
			v[k] = v[k - 1];
		v[k] = c;
	}
}

static void sort_many(int32_t *v, size_t n, int32_t *other)
{
	size_t at[257] = {0};
	for (size_t i = 0; i < n; i++)
		at[class_of(v[i]) + 1]++;
	for (size_t i = 1; i < 257; i++)
		at[i] += at[i - 1];
	for (size_t i = 0; i < n; i++)
		other[at[class_of(v[i])]++] = v[i];
	memcpy(v, other, n * sizeof *v);
}

static void sort_marks(int32_t *v, size_t n, int32_t *other)
{
	for (size_t i = 0, run; i < n; i += run + 1) {
		for (run = 0; i + run < n && class_of(v[i + run]) != 0; run++)
			continue;
		if (run > SHORT_RUN)
			sort_many(v + i, run, other);
		else if (run > 1)
			sort_few(v + i, run);
	}
}

/* Behind the points there is room for as many again, for sort_many. */
static bool text_decompose(const struct tok_normal *form, struct tok_scratch *s, struct cgn_str text,
	size_t *out)
{
	int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form->compat ? UTF8PROC_COMPAT : 0);
	size_t n = 0, len;
	for (const char *p = text.p, *end = p + text.n; p < end; p += len) {
		int boundary = 0;
		int32_t c = (int32_t)tok_char_at(p, end, &len);
		if (!points_room(s, 2 * (n + 32))) /* A character decomposes to at most 18 others. */
			return false;
		utf8proc_ssize_t got =
			utf8proc_decompose_char(c, s->points + n, 32, (utf8proc_option_t)options, &boundary);
		CGN_MUST(got >= 0 && got <= 32);
		n += (size_t)got;
	}
	*out = n;
	return true;
}

static bool put_normal(const struct tok_normal *form, struct tok_scratch *s, struct cgn_str text,
	struct cgn_buf *out)
{
	int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
	size_t n;
	if (!text_decompose(form, s, text, &n))
		return false;
	sort_marks(s->points, n, s->points + n);
	if (form->compose)
		n = (size_t)utf8proc_normalize_utf32(s->points, (utf8proc_ssize_t)n,
			(utf8proc_option_t)options);
	for (size_t i = 0; i < n; i++)
		tok_put_char(out, (uint32_t)s->points[i]);
	return true;
}

/* ---- the normalizers ---- */

static bool unicode_form(const struct tok_normal *form, struct tok_scratch *s, struct cgn_str text,
	struct cgn_buf *out)
{
	/* from: the previous letter, if a mark may combine with it. */
	const char *end = text.p + text.n, *copied = text.p, *from = NULL;
	size_t n;
	for (const char *p = text.p; p < end;) {
		uint32_t c = tok_char_at(p, end, &n);
		if (is_settled(form, c) || tok_is_inert(c)) {
			from = tok_is_inert(c) ? NULL : p;
			p += n;
			continue;
		}
		from = from != NULL ? from : p;
		for (p += n; p < end; p += n) {
			c = tok_char_at(p, end, &n);
			if (is_settled(form, c) || tok_is_inert(c))
				break;
		}
		cgn_buf_add(out, copied, (size_t)(from - copied));
		if (!put_normal(form, s, (struct cgn_str){from, (size_t)(p - from)}, out))
			return false;
		copied = p;
		from = NULL;
	}
	cgn_buf_add(out, copied, (size_t)(end - copied));
	return true;
}

static void text_lowercase(struct cgn_str text, struct cgn_buf *out)
{
	size_t n;
	for (const char *p = text.p, *end = p + text.n; p < end; p += n)
		tok_put_lower(out, tok_char_at(p, end, &n));
}

static bool is_mark(uint32_t c)
{
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	bool mark = k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
	/* Both characters were marks when the reference's tables were made. */
	return (mark && !tok_is_inert(c)) || c == 0x1cf2 || c == 0x1cf3;
}

static void strip_accents(struct cgn_str text, struct cgn_buf *out)
{
	size_t n;
	for (const char *p = text.p, *end = p + text.n; p < end; p += n)
		if (!is_mark(tok_char_at(p, end, &n)))
			cgn_buf_add(out, p, n);
}

static void text_strip(const struct tok_normal *v, struct cgn_str text, struct cgn_buf *out)
{
	const char *p = text.p, *end = p + text.n;
	size_t n;
	while (v->left && p < end && tok_is_space(tok_char_at(p, end, &n)))
		p += n;
	while (v->right && end > p && tok_is_space(tok_char_before(p, end, &n)))
		end -= n;
	cgn_buf_add(out, p, (size_t)(end - p));
}

static void text_replace(const struct tok_normal *v, struct cgn_str text, struct cgn_buf *out)
{
	const char *p = text.p, *end = p + text.n, *hit;
	while (p < end && (hit = memmem(p, (size_t)(end - p), v->from.p, v->from.n)) != NULL) {
		cgn_buf_add(out, p, (size_t)(hit - p));
		cgn_buf_str(out, v->to);
		p = hit + v->from.n;
	}
	cgn_buf_add(out, p, (size_t)(end - p));
}

static CGN_RC replace_regex(const struct tok_normal *v, struct tok_matcher *m, struct cgn_str text,
	struct cgn_buf *out, struct cgn_err *err)
{
	struct cgn_buf copy = {0};
	const struct cgn_str seen = {tok_shadow(text, &copy), text.n};
	size_t from = 0, start, end;
	cgn_rc rc;
	for (; cgn_ok(rc = tok_regex_next(&v->regex, m, seen, from, &start, &end, err)) && end > 0;
		from = end) {
		cgn_buf_add(out, text.p + from, start - from);
		cgn_buf_str(out, v->to);
	}
	cgn_buf_add(out, text.p + from, text.n - from);
	cgn_buf_fini(&copy);
	return rc;
}

static CGN_RC normal_apply(const struct tok_normal *v, struct tok_scratch *s, struct tok_matcher *m,
	struct cgn_str text, struct cgn_buf *out, struct cgn_err *err)
{
	switch (v->kind) {
	case NORMAL_UNICODE:
		if (!unicode_form(v, s, text, out))
			return CGN_FAIL(err, NO_MEMORY, "out of memory");
		break;
	case NORMAL_LOWERCASE:
		text_lowercase(text, out);
		break;
	case NORMAL_REPLACE:
		text_replace(v, text, out);
		break;
	case NORMAL_REPLACE_REGEX:
		CGN_TRY(replace_regex(v, m, text, out, err));
		break;
	case NORMAL_PREPEND:
		cgn_buf_str(out, v->to);
		cgn_buf_str(out, text);
		break;
	case NORMAL_STRIP:
		text_strip(v, text, out);
		break;
	case NORMAL_STRIP_ACCENTS:
		strip_accents(text, out);
		break;
	}
	return out->bad
		? CGN_FAIL(err, TOO_LARGE, "the normalized text does not fit into %zu bytes, or into memory",
			  out->limit)
		: CGN_OK;
}

CGN_RC tok_normalize(const struct tok_normal *v, size_t n, struct tok_scratch *s, struct tok_matcher *m,
	struct cgn_str *text, struct cgn_err *err)
{
	struct cgn_buf *out = &s->flip, *other = &s->flop;
	s->flip.limit = s->flop.limit = 4 * TOKENIZER_MAX_TEXT;
	for (size_t i = 0; i < n && text->n > 0; i++) {
		out->n = 0;
		out->bad = false;
		CGN_TRY(normal_apply(&v[i], s, m, *text, out, err));
		*text = cgn_buf_view(out);
		struct cgn_buf *swap = out;
		out = other;
		other = swap;
	}
	return CGN_OK;
}

void tok_scratch_fini(struct tok_scratch *s)
{
	cgn_buf_fini(&s->flip);
	cgn_buf_fini(&s->flop);
	free(s->points);
	*s = (struct tok_scratch){0};
}
