/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes are a coded text, or are refused; the text is the same however its input is cut. The first byte names the
 * coding, the second one the place of the cut. */
#include <string.h>

#include "base/coding/coding.h"

#define TEXT_MOST ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static cgn_rc text_decode(enum coding_kind kind, struct cgn_str in, size_t cut, size_t cap,
	struct cgn_buf *out)
{
	struct cgn_str pieces[] = {{in.p, cut}, {in.p + cut, in.n - cut}};
	struct coding *c = NULL;
	char room[512];
	cgn_rc rc = coding_open(kind, &c, NULL);
	for (size_t i = 0; i < CGN_COUNT(pieces) && cgn_ok(rc); i++)
		for (size_t got = cap; got == cap && cgn_ok(rc) && out->n < TEXT_MOST;) {
			rc = coding_read(c, &pieces[i], room, cap, &got, NULL);
			CGN_MUST(got <= cap);
			if (cgn_ok(rc))
				cgn_buf_add(out, room, got);
		}
	if (cgn_ok(rc))
		rc = coding_finish(c, NULL);
	coding_close(&c);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const enum coding_kind kinds[] = {CODING_GZIP, CODING_DEFLATE, CODING_ZSTD};
	struct cgn_buf whole = {0}, pieces = {0};
	if (n < 3)
		return 0;
	struct cgn_str in = {(const char *)data + 2, n - 2};
	enum coding_kind kind = kinds[data[0] % CGN_COUNT(kinds)];
	cgn_rc one = text_decode(kind, in, 0, 512, &whole),
	       two = text_decode(kind, in, data[1] % in.n, 64, &pieces);
	if (whole.n < TEXT_MOST && pieces.n < TEXT_MOST) {
		CGN_MUST(cgn_ok(one) == cgn_ok(two));
		CGN_MUST(!cgn_ok(one) || cgn_str_eq(cgn_buf_view(&whole), cgn_buf_view(&pieces)));
	}
	cgn_buf_fini(&whole);
	cgn_buf_fini(&pieces);
	return 0;
}
