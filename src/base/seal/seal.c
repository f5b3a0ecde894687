/* SPDX-License-Identifier: Apache-2.0 */
#include "base/seal/seal.h"

#include "base/codec/codec.h"
#include "base/digest/digest.h"

#define SUM_HEAD "sum "
#define SUM_LINE (sizeof SUM_HEAD - 1 + (size_t)2 * DIGEST_BYTES + 1) /* With its newline. */

void seal_begin(struct cgn_buf *out, const char *kind, unsigned format)
{
	cgn_buf_fmt(out, "%s %u\n", kind, format);
}

static void sum_put(struct cgn_buf *out, struct cgn_str bytes)
{
	struct digest d = digest_of(bytes);
	cgn_buf_putz(out, SUM_HEAD);
	hex_put(out, (struct cgn_str){(const char *)d.b, sizeof d.b});
	cgn_buf_char(out, '\n');
}

void seal_end(struct cgn_buf *out)
{
	if (!out->bad)
		sum_put(out, cgn_buf_view(out));
}

/* Take the last line, the checksum of all lines before it, from |*text|. */
static bool sum_take(struct cgn_str *text)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf want = {0};
	if (text->n < SUM_LINE)
		return false;
	struct cgn_str had = {text->p + text->n - SUM_LINE, SUM_LINE};
	text->n -= SUM_LINE;
	sum_put(&want, *text);
	return !want.bad && cgn_str_eq(had, cgn_buf_view(&want));
}

CGN_RC seal_open(struct cgn_str text, const char *kind, unsigned format, struct cgn_str *lines,
	struct cgn_err *err)
{
	struct cgn_str rest = text, number = cgn_str_split(&rest, '\n'), word = cgn_str_split(&number, ' ');
	uint64_t has = 0;
	if (!cgn_str_is(word, kind) || !cgn_str_u64(number, &has) || has == 0)
		return CGN_FAIL(err, INVALID, "the first line is not \"%s %u\"", kind, format);
	if (has > format)
		return CGN_FAIL(err, INVALID,
			"its format is %llu, of a later version; this one reads up to %u",
			(unsigned long long)has, format);
	if (!sum_take(&text))
		return CGN_FAIL(err, INVALID, "it is damaged: the sum in its last line is wrong or missing");
	if (rest.p > text.p + text.n)
		return CGN_FAIL(err, INVALID, "it is damaged: it has no lines");
	*lines = (struct cgn_str){rest.p, (size_t)(text.p + text.n - rest.p)};
	return CGN_OK;
}
