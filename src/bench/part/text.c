/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/part/text.h"

#include <math.h>

#include "base/core/err.h"
#include "base/mix/mix.h"

#define PARAGRAPH 1500 /* Approximate length in bytes. */

static size_t draw_below(uint64_t *s, size_t n)
{
	return (size_t)(mix_xorshift_star(s) >> 33) % n;
}

/* Draw the rank of a word; rank 1 is the most frequent. */
static uint64_t draw_zipf(uint64_t *s)
{
	double u = ((double)(mix_xorshift_star(s) >> 11) + 1) / 9007199254740993.0;
	return (uint64_t)exp(u * log(400000.0));
}

static void put_char(struct cgn_buf *out, uint32_t c)
{
	if (c < 0x80) {
		cgn_buf_char(out, (char)c);
	} else if (c < 0x800) {
		cgn_buf_char(out, (char)(0xc0 | c >> 6));
		cgn_buf_char(out, (char)(0x80 | (c & 0x3f)));
	} else {
		cgn_buf_char(out, (char)(0xe0 | c >> 12));
		cgn_buf_char(out, (char)(0x80 | (c >> 6 & 0x3f)));
		cgn_buf_char(out, (char)(0x80 | (c & 0x3f)));
	}
}

/* Append the word of a rank: the rank determines the letters, rarer words are longer. */
static void latin_word(struct cgn_buf *out, uint64_t rank, bool capital)
{
	static const char *const common[] = {"the", "of", "and", "to", "in", "is", "that", "it", "for", "was",
		"on", "with", "as", "be", "by", "this", "are", "from", "or", "have", "not", "which",
		"request", "model", "time", "system", "when", "more", "can", "data"};
	static const char *const heads[] = {"con", "re", "pro", "in", "un", "de", "ex", "ma", "st", "tra",
		"pre", "lo", "ca", "be", "per", "di", "sub", "co", "me", "in", "gr", "fl", "sh", "th"};
	static const char *const middles[] = {"ta", "ti", "ni", "ra", "ve", "lo", "mi", "si", "ca", "der",
		"ter", "pli", "cu", "la", "por", "ster", "ment", "gra", "no", "sti", "e", "o", "qua", "bl"};
	static const char *const tails[] = {"tion", "ing", "ed", "er", "ly", "s", "ment", "al", "able",
		"ness", "ic", "ity", "e", "or", "ant", "ous", "y", "n", "est", "ive"};
	size_t at = out->n;
	uint64_t letters = rank;
	if (rank <= CGN_COUNT(common)) {
		cgn_buf_putz(out, common[rank - 1]);
	} else {
		letters = mix_xorshift_star(&letters);
		cgn_buf_putz(out, heads[letters % CGN_COUNT(heads)]);
		for (uint64_t left = rank; left > 300; left /= 60)
			cgn_buf_putz(out, middles[(letters >>= 5) % CGN_COUNT(middles)]);
		cgn_buf_putz(out, tails[(letters >> 7) % CGN_COUNT(tails)]);
	}
	if (capital && out->n > at)
		out->p[at] = (char)(out->p[at] - 'a' + 'A');
}

static void put_prose(struct cgn_buf *out, uint64_t *s)
{
	static const char *const signs[] = {" ", " ", " ", " ", " ", " ", " ", " ", ", ", ", ", ". ", "'s ",
		" (", ") ", "; ", " - ", ": ", "? "};
	bool capital = true;
	for (size_t end = out->n + PARAGRAPH; out->n < end && !out->bad;) {
		const char *sign = signs[draw_below(s, CGN_COUNT(signs))];
		latin_word(out, draw_zipf(s), capital || draw_below(s, 40) == 0);
		if (draw_below(s, 30) == 0)
			cgn_buf_fmt(out, " %zu", draw_below(s, 3000));
		cgn_buf_putz(out, sign);
		capital = sign[0] == '.' || sign[0] == '?';
	}
	cgn_buf_putz(out, "\n\n");
}

static void put_name(struct cgn_buf *out, uint64_t *s)
{
	latin_word(out, draw_zipf(s), false);
	for (size_t parts = draw_below(s, 3); parts > 0; parts--) {
		cgn_buf_char(out, '_');
		latin_word(out, draw_zipf(s), false);
	}
}

static void put_code(struct cgn_buf *out, uint64_t *s)
{
	static const char *const operators[] = {" = ", " += ", "(", "->", ".", " == ", ", ", "[", " && ",
		") + ", " < "};
	static const char *const ends[] = {";\n", ");\n", " {\n", "];\n", "}\n", ":\n", "\n\n", "  # "};
	static const char *const words[] = {"if (", "return ", "for (size_t i = 0; i < ", "const char *",
		"def ", "self.", "import ", "\"%s: %d\\n\", ", "/* ", "static int ", "#define ", "else "};
	size_t indent = 0;
	for (size_t end = out->n + PARAGRAPH; out->n < end && !out->bad; indent = draw_below(s, 5)) {
		for (size_t i = 0; i < indent; i++)
			cgn_buf_putz(out, "    ");
		if (draw_below(s, 2) == 0)
			cgn_buf_putz(out, words[draw_below(s, CGN_COUNT(words))]);
		put_name(out, s);
		cgn_buf_putz(out, operators[draw_below(s, CGN_COUNT(operators))]);
		if (draw_below(s, 2) == 0)
			put_name(out, s);
		else
			cgn_buf_fmt(out, draw_below(s, 4) == 0 ? "0x%zx" : "%zu", draw_below(s, 100000));
		cgn_buf_putz(out, ends[draw_below(s, CGN_COUNT(ends))]);
	}
	cgn_buf_putz(out, "\n\n");
}

/* Append letters of another script, with spaces and full stops where the script has them. */
static void other_script(struct cgn_buf *out, uint64_t *s)
{
	static const struct {
		uint32_t first, n;
		const char *blank, *stop;
	} scripts[] = {{0x430, 32, " ", ". "}, {0x3b1, 25, " ", ", "}, {0x627, 36, " ", "\xd8\x8c "},
		{0x905, 53, " ", "\xe0\xa5\xa4 "}, {0xe01, 46, "", " "}, {0xac00, 2350, " ", ". "},
		{0x4e00, 3500, "", "\xe3\x80\x82"}, {0x3042, 82, "", "\xe3\x80\x81"}, {0xe0, 30, " ", "! "}};
	size_t k = draw_below(s, CGN_COUNT(scripts));
	for (size_t end = out->n + PARAGRAPH; out->n < end && !out->bad;) {
		uint64_t rank = draw_zipf(s), letters = rank * 2654435761U + 1;
		for (size_t i = 0; i < 2 + rank % 5; i++)
			put_char(out,
				scripts[k].first +
					(uint32_t)(mix_xorshift_star(&letters) % scripts[k].n % (1 + rank)));
		cgn_buf_putz(out, draw_below(s, 9) == 0 ? scripts[k].stop : scripts[k].blank);
	}
	cgn_buf_putz(out, "\n\n");
}

void bench_text(struct cgn_buf *out, size_t n, uint64_t seed)
{
	static void (*const kinds[])(struct cgn_buf *, uint64_t *) = {put_prose, put_code, other_script};
	size_t start = out->n;
	uint64_t s = seed * 2 + 1;
	for (size_t i = 0; out->n - start < n && !out->bad; i++)
		kinds[i % CGN_COUNT(kinds)](out, &s);
	if (out->n - start > n)
		out->n = start + n;
	out->n = start + cgn_utf8_prefix(out->p + start, out->n - start);
}
