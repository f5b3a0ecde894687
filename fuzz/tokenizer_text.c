/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz tokenizer text: any bytes have ids in two small tokenizers, equal to the sum of the parts at each cut.
 * The byte-level tokenizer loses nothing: its ids spell the text with ill-formed bytes replaced. */
#include <stdlib.h>

#include "base/core/buf.h"
#include "policy/text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define ADDED(id, text, lstrip, rstrip, single)                                                             \
	"{\"id\":" id ",\"content\":\"" text "\",\"special\":true,\"lstrip\":" lstrip ",\"rstrip\":" rstrip \
	",\"single_word\":" single ",\"normalized\":false}"
#define CL100K \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const char marks[] = "{\"added_tokens\":[" ADDED("13", "<s>", "false", "false",
	"false") "," ADDED("14", "<r>", "true", "true", "false") "," ADDED("15", "ab", "false", "false",
	"true") "],"
		"\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\"},"
		"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"b\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
		"{\"SpecialToken\":{\"id\":\"b\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"b\":{\"id\":\"b\",\"ids\":[1],\"tokens\":[\"b\"]}}},"
		"\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"\xe2\x96\x81\":3,\"e\":4,\"\xc3\xa9\":5,\"1\":6,\"\xe2\x96\x81"
		"a\":7,\"aa\":8,\"aaaa\":9,\"be\":10,\"\xe4\xb8\xad\":11,\"\xe2\x96\x81\xe2\x96\x81\":12},\"merges\":[\"\xe2\x96\x81 a\",\"a a\",\"aa aa\",\"b e\",\"\xe2\x96\x81 \xe2\x96\x81\"]}}";

struct made {
	struct tokenizer *t;
	struct tokenizer_work *w;
	char spelt[300][4]; /* The bytes of each id. */
	uint8_t len[300];
};

static void made_begin(struct made *m, struct cgn_str json)
{
	struct cgn_err err = {0};
	CGN_MUST(cgn_ok(tokenizer_load(json, &m->t, &err)));
	m->w = tokenizer_work_new(m->t);
}

static void know_token(struct made *m, struct cgn_buf *b, const char *token, const char *bytes, size_t n)
{
	static size_t id;
	cgn_buf_fmt(b, "%s\"%s\":%zu", id > 0 ? "," : "", token, id);
	memcpy(m->spelt[id], bytes, n);
	m->len[id++] = (uint8_t)n;
}

/* Make the vocabulary: all bytes by the characters that stand for them, and a few merges. */
static void begin_bytes(struct made *m)
{
	struct cgn_buf b = {0};
	uint32_t next = 256;
	cgn_buf_putz(&b,
		"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" CL100K
		"\"},\"behavior\":\"Isolated\",\"invert\":false},"
		"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},\"model\":{\"type\":\"BPE\",\"vocab\":{");
	for (uint32_t i = 0; i < 256; i++) {
		bool itself = (i >= 0x21 && i <= 0x7e) || (i >= 0xa1 && i <= 0xac) || i >= 0xae;
		char escape[8], byte = (char)i;
		(void)snprintf(escape, sizeof escape, "\\u%04x", itself ? i : next++);
		know_token(m, &b, escape, &byte, 1);
	}
	know_token(m, &b, "aa", "aa", 2);
	know_token(m, &b, "aaaa", "aaaa", 4);
	know_token(m, &b, "\\u0120\\u0120", "  ", 2);
	know_token(m, &b, "th", "th", 2);
	cgn_buf_putz(&b,
		"},\"merges\":[\"a a\",\"\\u0120 \\u0120\",\"t h\",\"aa aa\"]},\"added_tokens\":[" ADDED(
			"260", "<s>", "false", "false", "false") "]}");
	memcpy(m->spelt[260], "<s>", 3);
	m->len[260] = 3;
	made_begin(m, cgn_buf_view(&b));
	cgn_buf_fini(&b);
}

static bool encode_text(const struct made *m, struct cgn_str text, unsigned flags, struct tokenizer_ids *ids)
{
	struct cgn_err err = {0};
	cgn_rc rc = tokenizer_encode(m->t, m->w, text, flags, ids, &err);
	CGN_MUST(cgn_ok(rc) || rc.code == CGN_TOO_LARGE);
	return cgn_ok(rc);
}

static void check_cuts(const struct made *m, struct cgn_str text, const struct tokenizer_ids *whole)
{
	struct tokenizer_ids parts = {0};
	size_t cuts[16], n = tokenizer_cuts(m->t, text, cuts, CGN_COUNT(cuts));
	for (size_t i = 0; i < n; i++) {
		CGN_MUST(cuts[i] > (i > 0 ? cuts[i - 1] : 0) && cuts[i] <= text.n);
		parts.n = 0;
		CGN_MUST(encode_text(m, (struct cgn_str){text.p, cuts[i]}, TOKENIZER_HEAD, &parts));
		CGN_MUST(encode_text(m, (struct cgn_str){text.p + cuts[i], text.n - cuts[i]},
			TOKENIZER_CONTINUED | TOKENIZER_TAIL, &parts));
		CGN_MUST(parts.n == whole->n &&
			memcmp(parts.ids, whole->ids, whole->n * sizeof *whole->ids) == 0);
	}
	tokenizer_ids_fini(&parts);
}

static void check_spelling(const struct made *m, struct cgn_str text, const struct tokenizer_ids *ids)
{
	struct cgn_buf spelt = {0};
	for (size_t i = 0; i < ids->n; i++)
		cgn_buf_add(&spelt, m->spelt[ids->ids[i]], m->len[ids->ids[i]]);
	CGN_MUST(cgn_utf8_valid(spelt.p, spelt.n));
	if (cgn_utf8_valid(text.p, text.n))
		CGN_MUST(cgn_str_eq(text, cgn_buf_view(&spelt)));
	cgn_buf_fini(&spelt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct made bytes, chars;
	if (bytes.t == NULL) {
		begin_bytes(&bytes);
		made_begin(&chars, cgn_str_of(marks));
	}
	const struct cgn_str text = {(const char *)data, n};
	struct tokenizer_ids ids = {0};
	if (encode_text(&bytes, text, TOKENIZER_SPECIALS, &ids)) {
		check_spelling(&bytes, text, &ids);
		check_cuts(&bytes, text, &ids);
	}
	ids.n = 0;
	if (encode_text(&chars, text, TOKENIZER_SPECIALS, &ids))
		check_cuts(&chars, text, &ids);
	tokenizer_ids_fini(&ids);
	return 0;
}
