/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer unicode: UTF-8 in both directions, and where the reference library's tables differ from ours. */
#include <utf8proc.h>

#include "policy/text/tokenizer/tokenizer_priv.h"

enum kind { Lu, Ll, Lm, Lo, Han, Mn, Mc, Nd, No, Pd, Po, Sm, So };

struct newer {
	uint32_t first, last;
	enum kind kind;
};
struct range {
	uint32_t first, last;
};
struct lower {
	uint32_t first, last;
	int32_t step;
};

static const struct newer newer[] = {
#define NEWER(first, last, kind) {first, last, kind},
#define PLAIN(first, last)
#define INERT(first, last)
#define LOWER(first, last, step)
#include "policy/text/tokenizer/unicode.def"
#undef NEWER
#undef PLAIN
};
static const struct range plain[] = {
#define NEWER(first, last, kind)
#define PLAIN(first, last) {first, last},
#include "policy/text/tokenizer/unicode.def"
#undef PLAIN
#undef INERT
};
static const struct range inert[] = {
#define PLAIN(first, last)
#define INERT(first, last) {first, last},
#include "policy/text/tokenizer/unicode.def"
#undef INERT
#undef LOWER
};
static const struct lower lower[] = {
#define INERT(first, last)
#define LOWER(first, last, step) {first, last, step},
#include "policy/text/tokenizer/unicode.def"
#undef NEWER
#undef PLAIN
#undef INERT
#undef LOWER
};

/* Old letters of each kind, 3 and 4 bytes long in UTF-8; 0: there is no newer one of that length. */
static const uint32_t stand_ins[][2] = {
	[Lu] = {0x10a0, 0x10400},
	[Ll] = {0x1d00, 0x10428},
	[Lm] = {0, 0x16b40},
	[Lo] = {0, 0x10280},
	[Han] = {0, 0x20000},
	[Mn] = {0x0900, 0x10a01},
	[Mc] = {0x0903, 0x11000},
	[Nd] = {0, 0x104a0},
	[No] = {0, 0x10107},
	[Pd] = {0, 0x10ead},
	[Po] = {0x0964, 0x10100},
	[Sm] = {0, 0x1d6c1},
	[So] = {0x2100, 0x1f300},
};

uint32_t tok_char_at(const char *p, const char *end, size_t *n)
{
	utf8proc_int32_t c;
	unsigned char lead = (unsigned char)*p;
	if (lead < 0x80) {
		*n = 1;
		return lead;
	}
	utf8proc_ssize_t got = utf8proc_iterate((const utf8proc_uint8_t *)p, end - p, &c);
	*n = got > 0 ? (size_t)got : 1;
	return got > 0 ? (uint32_t)c : 0xfffd;
}

uint32_t tok_char_before(const char *from, const char *p, size_t *n)
{
	for (size_t back = 1; back <= 4 && (size_t)(p - from) >= back; back++) {
		size_t len;
		if (((unsigned char)p[-(ptrdiff_t)back] & 0xc0) == 0x80)
			continue;
		uint32_t c = tok_char_at(p - back, p, &len);
		if (len != back)
			break;
		*n = len;
		return c;
	}
	*n = 1;
	return 0xfffd;
}

bool tok_is_space(uint32_t c)
{
	if (c < 0x80)
		return c == ' ' || (c >= 9 && c <= 13);
	return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
		c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool in_ranges(const struct range *v, size_t n, uint32_t c)
{
	size_t low = 0, high = n;
	while (low < high) {
		size_t mid = (low + high) / 2;
		if (c > v[mid].last)
			low = mid + 1;
		else
			high = mid;
	}
	return low < n && c >= v[low].first;
}

bool tok_is_inert(uint32_t c)
{
	return in_ranges(inert, CGN_COUNT(inert), c);
}

void tok_each_plain(struct cgn_buf *b, void (*put)(struct cgn_buf *b, uint32_t first, uint32_t last))
{
	for (size_t i = 0; i < CGN_COUNT(plain); i++)
		put(b, plain[i].first, plain[i].last);
}

void tok_put_char(struct cgn_buf *b, uint32_t c)
{
	char *room = cgn_buf_room(b, 4);
	if (room != NULL)
		cgn_buf_grew(b, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)room));
}

void tok_put_lower(struct cgn_buf *b, uint32_t c)
{
	if (c == 0x130) { /* The only letter whose lower case has two characters. */
		cgn_buf_putz(b, "i\xcc\x87");
		return;
	}
	for (size_t i = 0; i < CGN_COUNT(lower); i++)
		if (c >= lower[i].first && c <= lower[i].last) {
			tok_put_char(b, (uint32_t)((int32_t)c + lower[i].step));
			return;
		}
	tok_put_char(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static const struct newer *newer_of(uint32_t c)
{
	size_t low = 0, high = CGN_COUNT(newer);
	while (low < high) {
		size_t mid = (low + high) / 2;
		if (c > newer[mid].last)
			low = mid + 1;
		else
			high = mid;
	}
	return low < CGN_COUNT(newer) && c >= newer[low].first ? &newer[low] : NULL;
}

static uint32_t stand_in(uint32_t c)
{
	const struct newer *late = newer_of(c);
	return late != NULL ? stand_ins[late->kind][c > 0xffff] : 0;
}

bool tok_is_word(uint32_t c)
{
	utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
	bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO,
	     mark = k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
	bool other = k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_PC ||
		c == 0x200c || c == 0x200d;
	bool in_circle = (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
		(c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
	const struct newer *late = newer_of(c);
	return letter || mark || other || in_circle || (late != NULL && late->kind <= Nd);
}

/* Lead bytes below 0xe0 and those of the CJK blocks begin no newer character. */
static bool may_be_newer(const unsigned char *p)
{
	return *p >= 0xe0 && (*p <= 0xe3 || *p == 0xea || *p == 0xf0);
}

bool tok_range_is_steady(uint32_t first, uint32_t last)
{
	for (size_t i = 0; i < CGN_COUNT(newer); i++)
		if (newer[i].first <= last && newer[i].last >= first)
			return false;
	for (size_t i = 0; i < CGN_COUNT(stand_ins); i++)
		for (size_t k = 0; k < 2; k++)
			if (stand_ins[i][k] != 0 && stand_ins[i][k] >= first && stand_ins[i][k] <= last)
				return false;
	return true;
}

static const char *skip_ascii(const char *p, const char *end)
{
	for (uint64_t w; end - p >= 8; p += 8) {
		memcpy(&w, p, sizeof w);
		if ((w & UINT64_C(0x8080808080808080)) != 0)
			break;
	}
	while (p < end && (unsigned char)*p < 0x80)
		p++;
	return p;
}

const char *tok_shadow(struct cgn_str text, struct cgn_buf *b)
{
	const char *end = text.p + text.n;
	bool copied = false;
	size_t n;
	for (const char *p = skip_ascii(text.p, end); p < end; p = skip_ascii(p, end)) {
		if (!may_be_newer((const unsigned char *)p)) {
			p += (unsigned char)*p >= 0xf0 ? 4 : (unsigned char)*p >= 0xe0 ? 3 : 2;
			continue;
		}
		uint32_t other = stand_in(tok_char_at(p, end, &n));
		if (other != 0 && !copied) {
			b->n = 0;
			cgn_buf_str(b, text);
			copied = !b->bad;
		}
		if (other != 0 && copied)
			(void)utf8proc_encode_char((utf8proc_int32_t)other,
				(utf8proc_uint8_t *)b->p + (p - text.p));
		p += n;
	}
	return copied ? b->p : text.p;
}

/* Return the length of the ill-formed part at |p|: the bytes that could still have become a character, at
 * least one. */
static size_t ill_formed(const unsigned char *p, const unsigned char *end)
{
	size_t want = *p >= 0xc2 && *p < 0xe0 ? 1
		: *p >= 0xe0 && *p < 0xf0     ? 2
		: *p >= 0xf0 && *p < 0xf5     ? 3
					      : 0,
	       n = 1;
	unsigned char low = 0x80, high = 0xbf;
	if (*p == 0xe0)
		low = 0xa0;
	else if (*p == 0xed)
		high = 0x9f;
	else if (*p == 0xf0)
		low = 0x90;
	else if (*p == 0xf4)
		high = 0x8f;
	for (; n <= want && p + n < end && p[n] >= low && p[n] <= high; n++) {
		low = 0x80;
		high = 0xbf;
	}
	return n;
}

void tok_put_lossy(struct cgn_buf *b, struct cgn_str text)
{
	while (text.n > 0) {
		size_t good = cgn_utf8_prefix(text.p, text.n);
		cgn_buf_add(b, text.p, good);
		text.p += good;
		text.n -= good;
		if (text.n == 0)
			break;
		size_t bad =
			ill_formed((const unsigned char *)text.p, (const unsigned char *)text.p + text.n);
		cgn_buf_putz(b, "\xef\xbf\xbd");
		text.p += bad;
		text.n -= bad;
	}
}
