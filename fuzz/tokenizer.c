/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz tokenizer: any tokenizer.json is refused with a message, or it loads and encodes: twice the same, ids
 * below the vocabulary's end, and the sum of the parts at each cut. */
#include <stdlib.h>

#include "policy/text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void encode_text(const struct tokenizer *t, struct tokenizer_work *w, struct cgn_str text,
	unsigned flags, struct tokenizer_ids *ids)
{
	struct cgn_err err = {0};
	size_t before = ids->n;
	if (!cgn_ok(tokenizer_encode(t, w, text, flags, ids, &err)))
		CGN_MUST(err.msg[0] != '\0' && ids->n == before);
}

static void expect_same(const struct tokenizer_ids *a, const struct tokenizer_ids *b)
{
	CGN_MUST(a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0));
}

static void check_text(const struct tokenizer *t, struct tokenizer_work *w, struct cgn_str text)
{
	struct tokenizer_ids whole = {0}, parts = {0};
	size_t cuts[8], n = tokenizer_cuts(t, text, cuts, CGN_COUNT(cuts));
	encode_text(t, w, text, TOKENIZER_SPECIALS, &whole);
	encode_text(t, w, text, TOKENIZER_SPECIALS, &parts);
	expect_same(&whole, &parts);
	for (size_t i = 0; i < n; i++) {
		CGN_MUST(cuts[i] > 0 && cuts[i] <= text.n);
		parts.n = 0;
		encode_text(t, w, (struct cgn_str){text.p, cuts[i]}, TOKENIZER_HEAD, &parts);
		encode_text(t, w, (struct cgn_str){text.p + cuts[i], text.n - cuts[i]},
			TOKENIZER_CONTINUED | TOKENIZER_TAIL, &parts);
		expect_same(&whole, &parts);
	}
	tokenizer_ids_fini(&whole);
	tokenizer_ids_fini(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char *const texts[] =
		{"The quick  brown\nfox's 123 \xe4\xb8\xad\xe6\x96\x87 e\xcc\x81 <s> </s>",
			"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\xff<s>a b"};
	struct tokenizer *t = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(tokenizer_load((struct cgn_str){(const char *)data, n}, &t, &err))) {
		CGN_MUST(err.msg[0] != '\0' && t == NULL);
		return 0;
	}
	struct tokenizer_work *w = tokenizer_work_new(t);
	for (size_t i = 0; i < CGN_COUNT(texts); i++)
		check_text(t, w, cgn_str_of(texts[i]));
	check_text(t, w, (struct cgn_str){(const char *)data, n < 400 ? n : 400});
	tokenizer_work_free(&w);
	tokenizer_free(&t);
	return 0;
}
