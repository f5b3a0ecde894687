/* SPDX-License-Identifier: Apache-2.0 */
/* Small hand-made files: the effect of each component on a text, and refused files.
 * tests/interop/test_tokenizer.py shows that the ids are those of the reference library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/core/buf.h"
#include "base/json/json.h"
#include "policy/text/tokenizer/tokenizer.h"

#define MARK "\xe2\x96\x81"

/* Vocabulary of the character model; ids are the places here. */
static const char *const letters[] = {"<unk>", "a", "b", "c", "d", "e", "h", "t", MARK, " ", "1", "2", ".",
	"\xc3\xa9", "E", "\xe4\xb8\xad", "e", "_", "he", "the", MARK "the", MARK "a", "ab", "abc", MARK MARK,
	"T", "x", "\n", "\xcc\x81", "!", "22"};
static const char *const letter_merges[] = {"h e", "t he", MARK " the", MARK " a", "a b", "ab c",
	MARK " " MARK, "2 2"};
static const char *const byte_merges[] = {"h e", "t he", "\xc4\xa0 the", "\xc4\xa0 \xc4\xa0", "1 2",
	"\xc3\x83 \xc2\xa9"};

struct world { /* A file and the texts of its tokens. */
	struct cgn_buf json;
	char tokens[700][40];
	size_t n;
	struct tokenizer *t;
	struct tokenizer_work *w;
};

struct parts { /* Parts of a file, as JSON; NULL: null. */
	const char *normalizer, *pre, *post, *added, *flags;
	bool bytes, fallback, pairs;
};

static void know_token(struct world *w, const char *token)
{
	for (size_t i = 0; i < w->n; i++)
		if (strcmp(w->tokens[i], token) == 0)
			return;
	assert_true(w->n < CGN_COUNT(w->tokens));
	assert_true(cgn_str_copyz(w->tokens[w->n++], sizeof w->tokens[0], cgn_str_of(token)));
}

/* Add the characters that stand for bytes, numbered as in the reference. */
static void know_bytes(struct world *w)
{
	uint32_t next = 256;
	for (uint32_t b = 0; b < 256; b++) {
		bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		uint32_t c = itself ? b : next++;
		char z[3] = {(char)c, 0, 0};
		if (c >= 0x80) {
			z[0] = (char)(0xc0 | c >> 6);
			z[1] = (char)(0x80 | (c & 0x3f));
		}
		know_token(w, z);
	}
}

static void know_merges(struct world *w, const char *const *merges, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char joined[40];
		const char *space = strchr(merges[i], ' ');
		(void)snprintf(joined, sizeof joined, "%.*s%s", (int)(space - merges[i]), merges[i],
			space + 1);
		know_token(w, joined);
	}
}

static void put_merges(struct json_out *o, const char *const *merges, size_t n, bool pairs)
{
	json_key(o, "merges");
	json_open(o, '[');
	for (size_t i = 0; i < n; i++) {
		struct cgn_str rest = cgn_str_of(merges[i]);
		if (!pairs) {
			json_put_str(o, rest);
			continue;
		}
		json_open(o, '[');
		json_put_str(o, cgn_str_split(&rest, ' '));
		json_put_str(o, rest);
		json_close(o, ']');
	}
	json_close(o, ']');
}

static void put_raw(struct json_out *o, const char *key, const char *json)
{
	json_key(o, key);
	json_put_raw(o, cgn_str_of(json != NULL ? json : "null"));
}

static void put_model(struct world *w, const struct parts *p, struct json_out *o)
{
	const char *const *merges = p->bytes ? byte_merges : letter_merges;
	size_t n_merges = p->bytes ? CGN_COUNT(byte_merges) : CGN_COUNT(letter_merges);
	char name[8];
	for (size_t i = 0; !p->bytes && i < CGN_COUNT(letters); i++)
		know_token(w, letters[i]);
	if (p->bytes)
		know_bytes(w);
	for (unsigned b = 0; p->fallback && b < 256; b++) {
		(void)snprintf(name, sizeof name, "<0x%02X>", b);
		know_token(w, name);
	}
	know_merges(w, merges, n_merges);
	json_open(o, '{');
	put_raw(o, "type", "\"BPE\"");
	put_raw(o, "byte_fallback", p->fallback ? "true" : "false");
	put_raw(o, "unk_token", p->bytes ? "null" : "\"<unk>\"");
	json_key(o, "vocab");
	json_open(o, '{');
	for (size_t i = 0; i < w->n; i++) {
		json_key(o, w->tokens[i]);
		json_put_u64(o, i);
	}
	json_close(o, '}');
	put_merges(o, merges, n_merges, p->pairs);
	if (p->flags != NULL) {
		cgn_buf_char(o->b, ',');
		cgn_buf_putz(o->b, p->flags);
	}
	json_close(o, '}');
}

/* |added|: contents with their flags: "<s>:sn" special and normalized; l lstrip, r rstrip, w single_word.
 * Separated by blanks; "~" is a blank. */
static void put_added(struct world *w, const char *added, struct json_out *o)
{
	static const char *const names[] = {"special", "normalized", "lstrip", "rstrip", "single_word"};
	struct cgn_str rest = cgn_str_of(added), one;
	json_key(o, "added_tokens");
	json_open(o, '[');
	while (rest.n > 0 && (one = cgn_str_split(&rest, ' ')).n > 0) {
		struct cgn_str content = cgn_str_split(&one, ':');
		char z[40];
		assert_true(cgn_str_copyz(z, sizeof z, content));
		for (char *c = z; *c != '\0'; c++)
			*c = *c == '~' ? ' ' : *c;
		know_token(w, z);
		size_t id = 0;
		while (strcmp(w->tokens[id], z) != 0)
			id++;
		json_open(o, '{');
		json_key(o, "id");
		json_put_u64(o, id);
		json_key(o, "content");
		json_put_z(o, z);
		for (size_t i = 0; i < CGN_COUNT(names); i++) {
			json_key(o, names[i]);
			json_put_bool(o, one.n > 0 && memchr(one.p, "snlrw"[i], one.n) != NULL);
		}
		json_close(o, '}');
	}
	json_close(o, ']');
}

static void write_file(struct world *w, const struct parts *p)
{
	struct json_out o = json_out_to(&w->json);
	struct cgn_buf model = {0};
	struct json_out m = json_out_to(&model);
	put_model(w, p, &m);
	json_open(&o, '{');
	put_raw(&o, "version", "\"1.0\"");
	put_raw(&o, "normalizer", p->normalizer);
	put_raw(&o, "pre_tokenizer", p->pre);
	put_raw(&o, "post_processor", p->post);
	put_added(w, p->added != NULL ? p->added : "", &o);
	put_raw(&o, "model", cgn_buf_z(&model));
	json_close(&o, '}');
	cgn_buf_fini(&model);
	assert_false(w->json.bad);
}

static struct world *world_of(struct parts p)
{
	struct world *w = calloc(1, sizeof *w);
	struct cgn_err err = {0};
	assert_non_null(w);
	write_file(w, &p);
	if (!cgn_ok(tokenizer_load(cgn_buf_view(&w->json), &w->t, &err)))
		fail_msg("%s", err.msg);
	w->w = tokenizer_work_new(w->t);
	return w;
}

static void world_free(struct world *w)
{
	tokenizer_work_free(&w->w);
	tokenizer_free(&w->t);
	cgn_buf_fini(&w->json);
	free(w);
}

static const char *tokens_shown(struct world *w, struct cgn_str text, unsigned flags)
{
	static char out[4096];
	struct tokenizer_ids ids = {0};
	struct cgn_err err = {0};
	size_t n = 0;
	if (!cgn_ok(tokenizer_encode(w->t, w->w, text, flags, &ids, &err)))
		fail_msg("%s", err.msg);
	out[0] = '\0';
	for (size_t i = 0; i < ids.n; i++) {
		assert_true(ids.ids[i] < tokenizer_vocab(w->t));
		n += (size_t)snprintf(out + n, sizeof out - n, "%s%s", i > 0 ? "|" : "",
			w->tokens[ids.ids[i]]);
		assert_true(n < sizeof out);
	}
	tokenizer_ids_fini(&ids);
	return out;
}

/* Check that the tokens of |text| in a file of |p|, joined by "|", are |want|. */
static void expect_tokens(struct parts p, const char *text, const char *want)
{
	struct world *w = world_of(p);
	assert_string_equal(tokens_shown(w, cgn_str_of(text), TOKENIZER_SPECIALS), want);
	/* Now from the word cache. */
	assert_string_equal(tokens_shown(w, cgn_str_of(text), TOKENIZER_SPECIALS), want);
	world_free(w);
}

static void refuses_json(struct cgn_str json, enum cgn_code code, const char *part)
{
	struct tokenizer *t = NULL;
	struct cgn_err err = {0};
	cgn_rc rc = tokenizer_load(json, &t, &err);
	if (rc.code != code || strstr(err.msg, part) == NULL)
		fail_msg("%s: %s, wanted %s: %s", cgn_code_name(rc.code), err.msg, cgn_code_name(code), part);
	assert_null(t);
}

static void expect_refused(struct parts p, enum cgn_code code, const char *part)
{
	struct world *w = calloc(1, sizeof *w);
	assert_non_null(w);
	write_file(w, &p);
	refuses_json(cgn_buf_view(&w->json), code, part);
	world_free(w);
}

/* ---- the model ---- */

static void lowest_rank_merges_first(void **state)
{
	(void)state;
	expect_tokens((struct parts){0}, "thehe", "the|he");
	expect_tokens((struct parts){.pairs = true}, "abcab", "abc|ab");
	expect_tokens((struct parts){0}, "22222", "22|22|2");
	expect_tokens((struct parts){0}, "", "");
}

static void long_words_merge_like_short_ones(void **state)
{
	(void)state;
	struct world *w = world_of((struct parts){0});
	struct cgn_buf text = {0}, want = {0};
	for (size_t i = 0; i < 100; i++) {
		cgn_buf_putz(&text, "theabc2a");
		cgn_buf_fmt(&want, "%sthe|abc|2|a", i > 0 ? "|" : "");
	}
	assert_string_equal(tokens_shown(w, cgn_buf_view(&text), 0), cgn_buf_z(&want));
	/* Pairs that overlap: a character belongs to the first merge only. */
	text.n = want.n = 0;
	for (size_t i = 0; i < 101; i++) {
		cgn_buf_char(&text, '2');
		if (i % 2 == 1)
			cgn_buf_putz(&want, "22|");
	}
	cgn_buf_char(&want, '2');
	assert_string_equal(tokens_shown(w, cgn_buf_view(&text), 0), cgn_buf_z(&want));
	cgn_buf_fini(&text);
	cgn_buf_fini(&want);
	world_free(w);
}

static void unknown_characters(void **state)
{
	(void)state;
	expect_tokens((struct parts){0}, "azqa", "a|<unk>|<unk>|a");
	expect_tokens((struct parts){.flags = "\"fuse_unk\":true"}, "azqaz", "a|<unk>|a|<unk>");
	expect_tokens((struct parts){.flags = "\"unk_token\":null"}, "azqa", "a|a");
	expect_tokens((struct parts){.fallback = true}, "az\xc3\xb6", "a|<0x7A>|<0xC3>|<0xB6>");
}

static void whole_words_skip_merges_when_told(void **state)
{
	(void)state;
	expect_tokens((struct parts){.flags = "\"ignore_merges\":true",
			      .pre = "{\"type\":\"WhitespaceSplit\"}"},
		"22 the", "22|the");
	expect_tokens((struct parts){.flags = "\"ignore_merges\":true", .added = "bad"}, "bad ab",
		"bad| |ab");
}

static void bytes_of_any_text(void **state)
{
	(void)state;
	struct parts p = {.bytes = true,
		.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"};
	expect_tokens(p, "the the\xc3\xa9  12", "the|\xc4\xa0the|\xc3\x83\xc2\xa9|\xc4\xa0|\xc4\xa0|12");
	expect_tokens(p, "\xf0\x9f\x98\x80", "\xc3\xb0|\xc5\x81|\xc4\xba|\xc4\xa2");
	p.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":false}";
	expect_tokens(p, "the the", "\xc4\xa0the|\xc4\xa0the");
}

static void ill_formed_text_is_replaced(void **state)
{
	(void)state;
	struct parts p = {.fallback = true, .added = "\xef\xbf\xbd"};
	const char *bad = "\xef\xbf\xbd";
	struct {
		const char *raw;
		size_t n;
	} cases[] = {{"a\xff", 1}, {"a\xc0\x80", 2}, {"a\xe2\x82", 1}, {"a\xed\xa0\x80", 3},
		{"a\xf4\x90\x80\x80", 4}, {"a\xf0\x9f\x98", 1}, {"a\xf0\x9f\xe2\x82", 2}, {"a\x80\x80", 2}};
	for (size_t i = 0; i < CGN_COUNT(cases); i++) {
		char want[64] = "a";
		for (size_t k = 0; k < cases[i].n; k++) {
			strcat(want, "|");
			strcat(want, bad);
		}
		expect_tokens(p, cases[i].raw, want);
	}
}

/* ---- normalizers ---- */

static void each_normalizer_changes_its_text(void **state)
{
	(void)state;
	expect_tokens((struct parts){.normalizer = "{\"type\":\"NFC\"}"}, "e\xcc\x81", "\xc3\xa9");
	expect_tokens((struct parts){.normalizer = "{\"type\":\"NFD\"}"}, "\xc3\xa9", "e|\xcc\x81");
	/* Marks are ordered by their class, lowest first. */
	expect_tokens((struct parts){.normalizer = "{\"type\":\"NFD\"}", .fallback = true},
		"e\xcc\x81\xcc\xa3\xcc\xa7", "e|<0xCC>|<0xA7>|<0xCC>|<0xA3>|\xcc\x81");
	/* Letters of Unicode 16. */
	expect_tokens((struct parts){.normalizer = "{\"type\":\"Lowercase\"}", .fallback = true},
		"\xe1\xb2\x89\xea\x9f\x8b", "<0xE1>|<0xB2>|<0x8A>|<0xC9>|<0xA4>");
	expect_tokens((struct parts){.normalizer = "{\"type\":\"NFKC\"}"}, "\xe2\x91\xa0\xef\xbd\x81", "1|a");
	expect_tokens((struct parts){.normalizer = "{\"type\":\"NFKD\"}"}, "\xef\xbd\x81\xc3\xa9",
		"a|e|\xcc\x81");
	expect_tokens((struct parts){.normalizer = "{\"type\":\"Lowercase\"}"}, "THE \xc3\x89",
		"the| |\xc3\xa9");
	expect_tokens((struct parts){.normalizer = "{\"type\":\"StripAccents\"}"}, "e\xcc\x81", "e");
	/* White space of Unicode goes, letters beyond ASCII stay. */
	expect_tokens((struct parts){.fallback = true,
			      .normalizer = "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}"},
		"\xe3\x80\x80\xe2\x80\xa9\xc3\xb6\xc2\xa0", "<0xC3>|<0xB6>");
	expect_tokens(
		(struct parts){
			.normalizer = "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}"},
		"  a ", "a| ");
	expect_tokens((struct parts){.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"b\"}"}, "c", "b|c");
	expect_tokens(
		(struct parts){
			.normalizer =
				"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}"},
		"a  b", "a|_|_|b");
	expect_tokens(
		(struct parts){
			.normalizer =
				"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"content\":\"_\"}"},
		"a  b", "a|_|b");
	expect_tokens(
		(struct parts){
			.normalizer =
				"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},{\"type\":\"Prepend\",\"prepend\":\"a\"}]}"},
		"\xc3\xa9", "a|e");
}

/* Marks by the thousand: sorted by class in less than n² steps, and composed like few marks. */
static void many_marks(void **state)
{
	(void)state;
	struct world *w = world_of((struct parts){.normalizer = "{\"type\":\"NFC\"}", .fallback = true});
	struct cgn_buf text = {0};
	struct tokenizer_ids ids = {0};
	cgn_buf_char(&text, 'e');
	for (size_t i = 0; i < 200000; i++)
		cgn_buf_putz(&text, i % 2 == 0 ? "\xcc\x81" : "\xcc\xa3");
	assert_true(cgn_ok(tokenizer_encode(w->t, w->w, cgn_buf_view(&text), 0, &ids, NULL)));
	/* U+1EB9 (three bytes), 99999 times U+0323 (two bytes each), then 100000 times U+0301, a token of its
	 * own. */
	assert_int_equal(ids.n, 3 + 2 * 99999 + 100000);
	tokenizer_ids_fini(&ids);
	cgn_buf_fini(&text);
	world_free(w);
}

/* ---- pre-tokenizers: "22" merges only where no split comes between ---- */

#define SPLIT(pattern, behavior, invert) \
	"{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":" invert "}"

static void split_behaviors(void **state)
{
	(void)state;
	expect_tokens((struct parts){.pre = SPLIT("{\"String\":\"a\"}", "Removed", "false")}, "2a2a", "2|2");
	expect_tokens((struct parts){.pre = SPLIT("{\"String\":\"a\"}", "Isolated", "false")}, "abab",
		"a|b|a|b");
	expect_tokens((struct parts){.pre = SPLIT("{\"String\":\"h\"}", "MergedWithPrevious", "false")},
		"hehe", "h|e|h|e");
	expect_tokens((struct parts){.pre = SPLIT("{\"String\":\"h\"}", "MergedWithNext", "false")}, "hehe",
		"he|he");
	expect_tokens((struct parts){.pre = SPLIT("{\"String\":\"2\"}", "Contiguous", "false")}, "a22b",
		"a|22|b");
	expect_tokens((struct parts){.pre = SPLIT("{\"String\":\"2\"}", "Isolated", "false")}, "a22b",
		"a|2|2|b");
	expect_tokens((struct parts){.pre = SPLIT("{\"Regex\":\"[ab]+\"}", "Removed", "true")}, "c1ab2ab",
		"ab|ab");
	expect_tokens((struct parts){.pre = SPLIT("{\"Regex\":\"a\"}", "MergedWithNext", "true")}, "2a2a",
		"2|a|2|a");
	expect_tokens((struct parts){.pre = SPLIT("{\"Regex\":\"\\\\d{1,3}\"}", "Isolated", "false")},
		"2222222", "22|2|22|2|2");
}

static void metaspace_marks_words(void **state)
{
	(void)state;
	expect_tokens((struct parts){.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
					    "\",\"prepend_scheme\":\"always\"}"},
		"the the", MARK "the|" MARK "the");
	expect_tokens((struct parts){.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
					    "\",\"add_prefix_space\":true}"},
		"  the", MARK "|" MARK "the");
	expect_tokens((struct parts){.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
					    "\",\"add_prefix_space\":false}"},
		"the", "the");
	expect_tokens((struct parts){.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
					    "\",\"prepend_scheme\":\"never\",\"split\":false}"},
		"the  e", "the|" MARK MARK "|e");
	struct parts first = {.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
				     "\",\"prepend_scheme\":\"first\"}",
		.added = "<s>"};
	expect_tokens(first, "a<s>a", MARK "a|<s>|a");
	expect_tokens(first, "<s>a", "<s>|a");
	first.pre = "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"always\"}";
	expect_tokens(first, "a<s>a", MARK "a|<s>|" MARK "a");
}

static void other_pre_tokenizers(void **state)
{
	(void)state;
	expect_tokens((struct parts){.pre = "{\"type\":\"Digits\",\"individual_digits\":true}"}, "a22",
		"a|2|2");
	expect_tokens((struct parts){.pre = "{\"type\":\"Digits\",\"individual_digits\":false}"}, "a22",
		"a|22");
	expect_tokens((struct parts){.pre = "{\"type\":\"WhitespaceSplit\"}"}, "2 \n 2", "2|2");
	expect_tokens((struct parts){.pre = "{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}"}, "2.2",
		"2|2");
	expect_tokens(
		(struct parts){
			.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Punctuation\"}]}"},
		"22 !2", "22|!|2");
}

/* Letters that are newer than PCRE2's tables count as letters. */
static void newer_letters(void **state)
{
	(void)state;
	struct parts p = {.fallback = true, .pre = SPLIT("{\"Regex\":\"\\\\p{L}+\"}", "Removed", "false")};
	expect_tokens(p,
		"1\xf0\xb1\x8d\x90\xe4\xb8\xad"
		"2",
		"1|2"); /* U+31350, of Unicode 15. */
	expect_tokens(p,
		"1\xe1\xb2\x89"
		"2",
		"1|2"); /* U+1C89, of Unicode 16. */
	/* The same behind a stage that cut the text. */
	p.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("{\"String\":\".\"}", "Removed",
		"false") "," SPLIT("{\"Regex\":\"\\\\p{L}+\"}", "Removed", "false") "]}";
	expect_tokens(p,
		"1\xe1\xb2\x89"
		".2\xe1\xb2\x89",
		"1|2");
	p.pre = SPLIT("{\"Regex\":\"\\\\s\"}", "Removed", "false");
	/* U+180E is not a blank. */
	expect_tokens(p,
		"1\xc2\xa0\xe2\x80\xa8"
		"2\xe1\xa0\x8e",
		"1|2|<0xE1>|<0xA0>|<0x8E>");
}

/* ---- post-processors, added tokens ---- */

static void templates_add_tokens(void **state)
{
	(void)state;
	struct parts p = {.added = "<s>:s </s>:s",
		.post = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false},"
			"{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
			"{\"SpecialToken\":{\"id\":\"E\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"a\"]},"
			"\"E\":{\"id\":\"E\",\"ids\":[2,3],\"tokens\":[\"b\",\"c\"]}}}]}"};
	expect_tokens(p, "e", "a|e|b|c");
	expect_tokens(p, "", "a|b|c");
	struct world *w = world_of(p);
	assert_string_equal(tokens_shown(w, CGN_STR("e"), 0), "e");
	assert_string_equal(tokens_shown(w, CGN_STR("e"), TOKENIZER_HEAD), "a|e");
	assert_string_equal(tokens_shown(w, CGN_STR("e"), TOKENIZER_TAIL | TOKENIZER_CONTINUED), "e|b|c");
	world_free(w);
}

static void added_tokens(void **state)
{
	(void)state;
	expect_tokens((struct parts){.added = "<s> <s><s> <s"}, "a<s><s><s>b<sc", "a|<s><s>|<s>|b|<s|c");
	expect_tokens((struct parts){.added = "<l>:l <r>:r"}, "a  <l>  b  <r> \n c", "a|<l>| | |b| | |<r>|c");
	expect_tokens((struct parts){.added = "<r>:r <l>:l"}, "<r>  <l>", "<r>|<l>");
	expect_tokens((struct parts){.added = "abc:w"}, "abc abca _abc!abc\xe4\xb8\xad.abc",
		"abc| |abc|a| |_|abc|!|abc|\xe4\xb8\xad|.|abc");
	expect_tokens((struct parts){.added = "eh:w"}, "eh ehe e eh.", "eh| |e|he| |e| |eh|.");
	expect_tokens((struct parts){.added = "EX:n TX", .normalizer = "{\"type\":\"Lowercase\"}"},
		"exTXEXtx", "EX|TX|EX|t|x");
}

static void ids_by_text(void **state)
{
	(void)state;
	struct world *w = world_of((struct parts){.added = "<s>:s",
		.bytes = true,
		.pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"});
	uint32_t id = 0;
	assert_true(tokenizer_token_id(w->t, CGN_STR("<s>"), &id));
	assert_string_equal(w->tokens[id], "<s>");
	assert_true(tokenizer_token_id(w->t, CGN_STR("\xc4\xa0the"), &id));
	assert_string_equal(w->tokens[id], "\xc4\xa0the");
	assert_false(tokenizer_token_id(w->t, CGN_STR(" the"), &id));
	assert_int_equal(tokenizer_vocab(w->t), w->n);
	assert_true(tokenizer_bytes(w->t) > w->n * sizeof(uint32_t));
	world_free(w);
}

/* ---- cuts ---- */

static void cuts_are(struct parts p, const char *text, size_t n, const size_t *want)
{
	struct world *w = world_of(p);
	struct cgn_str s = cgn_str_of(text);
	size_t cuts[16];
	assert_int_equal(tokenizer_cuts(w->t, s, cuts, 16), n);
	for (size_t i = 0; i < n; i++) {
		char whole[4096], parts[8192];
		assert_int_equal(cuts[i], want[i]);
		(void)snprintf(whole, sizeof whole, "%s", tokens_shown(w, s, TOKENIZER_SPECIALS));
		(void)snprintf(parts, sizeof parts, "%s",
			tokens_shown(w, (struct cgn_str){s.p, cuts[i]}, TOKENIZER_HEAD));
		const char *right = tokens_shown(w, (struct cgn_str){s.p + cuts[i], s.n - cuts[i]},
			TOKENIZER_CONTINUED | TOKENIZER_TAIL);
		if (right[0] != '\0')
			(void)snprintf(parts + strlen(parts), sizeof parts - strlen(parts), "|%s", right);
		assert_string_equal(parts, whole);
	}
	world_free(w);
}

static void cuts_keep_the_tokens(void **state)
{
	(void)state;
	const char *first =
		"{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"first\"}";
	cuts_are((struct parts){.added = "<s> </s>", .pre = first}, "a<s>b</s><s>", 3, (size_t[]){4, 9, 12});
	cuts_are((struct parts){.added = "<s>:r"}, "a<s>  b<s>b", 2, (size_t[]){6, 10});
	cuts_are((struct parts){.added = "<s>:r ~~~"}, "a<s>    b<s>b", 2, (size_t[]){7, 12});
	cuts_are((struct parts){.added = "<s>:l"}, "a  <s> b", 1, (size_t[]){6});
	cuts_are((struct parts){.added = "<s> ab:w"}, "ab <s>ab", 1, (size_t[]){6});
	cuts_are((struct parts){.added = "sab abc:w"}, "sababc", 0, NULL);
	cuts_are((struct parts){.added = "<n>:n <s>"}, "a<n>b<s>c<n>", 3, (size_t[]){4, 8, 12});
	cuts_are((struct parts){.added = "<n>:n <s>", .normalizer = "{\"type\":\"NFC\"}"}, "a<n>b<s>c<n>", 1,
		(size_t[]){8});
	cuts_are((struct parts){.added = "<s>"}, "a\xff<s>b", 1, (size_t[]){5});
}

static void the_last_cuts_are_told(void **state)
{
	(void)state;
	struct world *w = world_of((struct parts){.added = "<s>"});
	size_t two[2];
	assert_int_equal(tokenizer_cuts(w->t, CGN_STR("<s><s><s>a"), two, 2), 2);
	assert_true(two[0] == 6 && two[1] == 9);
	assert_int_equal(tokenizer_cuts(w->t, CGN_STR("<s>"), two, 0), 0);
	world_free(w);
}

/* ---- refusals ---- */

static void unsupported_components_are_named(void **state)
{
	(void)state;
	expect_refused((struct parts){.pre = "{\"type\":\"BertPreTokenizer\"}"}, CGN_UNSUPPORTED,
		"pre_tokenizer.type \"BertPreTokenizer\"");
	expect_refused(
		(struct parts){
			.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Foo\"}]}"},
		CGN_UNSUPPORTED, "pre_tokenizer.pretokenizers[1].type \"Foo\"");
	expect_refused((struct parts){.normalizer = "{\"type\":\"Precompiled\"}"}, CGN_UNSUPPORTED,
		"normalizer.type \"Precompiled\"");
	expect_refused((struct parts){.post = "{\"type\":\"BertProcessing\"}"}, CGN_UNSUPPORTED,
		"post_processor.type \"BertProcessing\"");
	expect_refused((struct parts){.flags = "\"type\":\"Unigram\""}, CGN_UNSUPPORTED,
		"model.type \"Unigram\"");
	expect_refused((struct parts){.flags = "\"dropout\":0.1"}, CGN_UNSUPPORTED, "model.dropout");
	expect_refused((struct parts){.flags = "\"end_of_word_suffix\":\"</w>\""}, CGN_UNSUPPORTED,
		"model.end_of_word_suffix");
	expect_refused((struct parts){.flags = "\"unk_token\":\"?\""}, CGN_UNSUPPORTED, "model.unk_token");
	expect_refused(
		(struct parts){
			.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{\"type\":\"WhitespaceSplit\"}]}",
			.bytes = true},
		CGN_UNSUPPORTED, "behind a ByteLevel");
	expect_refused(
		(struct parts){.normalizer = "{\"type\":\"StripAccents\"}",
			.pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\"}"},
		CGN_UNSUPPORTED, "prepend_scheme");
	expect_refused((struct parts){.added = "A:n a:n", .normalizer = "{\"type\":\"Lowercase\"}"},
		CGN_UNSUPPORTED, "the same once normalized");
	expect_refused((struct parts){.added = "\xcc\x81:n", .normalizer = "{\"type\":\"StripAccents\"}"},
		CGN_UNSUPPORTED, "empty once normalized");
}

static void patterns_that_may_differ_are_refused(void **state)
{
	(void)state;
	static const char *const patterns[] = {"^a", "a$", "a*", "\\\\bA", "[a[bc]]", "[a&&b]",
		"(?i)a(?i:ss)", "(a)\\\\1", "\\\\p{Greek}", "[\\\\P{L}]", "a{2}+", "(?<n>a)", "(?i:[a])",
		"\\\\h", "\\\\X", "a**", "(?m:a)", "[\\\\p{L}-z]", "", "a{,3}", "\\\\xff", "(?#a)b",
		"\xe1\xb2\x89"};
	for (size_t i = 0; i < CGN_COUNT(patterns); i++) {
		char pre[200];
		(void)snprintf(pre, sizeof pre, SPLIT("{\"Regex\":\"%s\"}", "Isolated", "false"),
			patterns[i]);
		expect_refused((struct parts){.pre = pre}, CGN_UNSUPPORTED, "pre_tokenizer.pattern");
	}
	expect_refused((struct parts){.pre = SPLIT("{\"Regex\":\"(a\"}", "Isolated", "false")}, CGN_INVALID,
		"pre_tokenizer.pattern");
	expect_refused((struct parts){.pre = SPLIT("{\"String\":\"\"}", "Isolated", "false")},
		CGN_UNSUPPORTED, "pre_tokenizer.pattern");
}

static void malformed_files(void **state)
{
	(void)state;
	refuses_json(CGN_STR("{\"model\":"), CGN_INVALID, "line 1 column");
	refuses_json(CGN_STR("[]"), CGN_INVALID, "model");
	refuses_json(CGN_STR("{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}"), CGN_INVALID,
		"model.vocab");
	refuses_json(CGN_STR("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}"), CGN_INVALID,
		"model.merges");
	refuses_json(CGN_STR("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}"),
		CGN_INVALID, "model.vocab[\"a\"]");
	refuses_json(CGN_STR("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}"),
		CGN_UNSUPPORTED, "two tokens have id 0");
	refuses_json(CGN_STR("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}"),
		CGN_INVALID, "model.merges[0]: \"aa\"");
	refuses_json(CGN_STR("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}"),
		CGN_INVALID, "model.merges[0]");
	refuses_json(CGN_STR("{\"truncation\":{},\"model\":{}}"), CGN_UNSUPPORTED, "truncation");
	refuses_json(CGN_STR("{\"version\":\"2.0\",\"model\":{}}"), CGN_UNSUPPORTED, "version");
	expect_refused((struct parts){.pre = "{\"type\":\"Digits\"}"}, CGN_INVALID,
		"pre_tokenizer.individual_digits");
	expect_refused((struct parts){.pre = "[]"}, CGN_INVALID, "pre_tokenizer must be an object");
	refuses_json(
		CGN_STR("{\"added_tokens\":[{\"id\":7,\"content\":\"x\",\"special\":false,\"lstrip\":false,\"rstrip\":false,\"single_word\":false,\"normalized\":false}],"
			"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"),
		CGN_UNSUPPORTED, "added_tokens[0]: \"x\" has id 7");
}

/* Tokens with a character that stands for no byte; here there are no others. */
static void a_vocabulary_that_no_word_holds(void **state)
{
	(void)state;
	struct cgn_buf json = {0};
	struct tokenizer *t = NULL;
	struct cgn_err err = {0};
	uint32_t id = 0;
	cgn_buf_putz(&json,
		"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
		"\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
	for (unsigned i = 0; i < 5000; i++)
		cgn_buf_fmt(&json, "%s\"\xe4\xb8\xad%u\":%u", i > 0 ? "," : "", i, i);
	cgn_buf_putz(&json, "}}}");
	if (!cgn_ok(tokenizer_load(cgn_buf_view(&json), &t, &err)))
		fail_msg("%s", err.msg);
	assert_true(tokenizer_token_id(t,
		CGN_STR("\xe4\xb8\xad"
			"4999"),
		&id));
	assert_int_equal(id, 4999);
	tokenizer_free(&t);
	cgn_buf_fini(&json);
}

static void bounds_hold(void **state)
{
	(void)state;
	struct world *w = world_of((struct parts){0});
	struct tokenizer_ids ids = {0};
	struct cgn_err err = {0};
	char *text = malloc(TOKENIZER_MAX_TEXT + 1);
	assert_non_null(text);
	memset(text, 'b', TOKENIZER_MAX_TEXT + 1);
	assert_true(cgn_ok(tokenizer_encode(w->t, w->w, CGN_STR("ab"), 0, &ids, &err)));
	assert_int_equal(tokenizer_encode(w->t, w->w, (struct cgn_str){text, TOKENIZER_MAX_TEXT + 1}, 0, &ids,
				 &err)
				 .code,
		CGN_TOO_LARGE);
	assert_int_equal(tokenizer_encode(w->t, w->w, (struct cgn_str){text, TOKENIZER_MAX_WORD + 1}, 0, &ids,
				 &err)
				 .code,
		CGN_TOO_LARGE);
	assert_non_null(strstr(err.msg, "without a place to split"));
	assert_int_equal(ids.n, 1); /* Unchanged. */
	free(text);
	tokenizer_ids_fini(&ids);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lowest_rank_merges_first),
		cmocka_unit_test(long_words_merge_like_short_ones),
		cmocka_unit_test(unknown_characters),
		cmocka_unit_test(whole_words_skip_merges_when_told),
		cmocka_unit_test(bytes_of_any_text),
		cmocka_unit_test(ill_formed_text_is_replaced),
		cmocka_unit_test(each_normalizer_changes_its_text),
		cmocka_unit_test(many_marks),
		cmocka_unit_test(split_behaviors),
		cmocka_unit_test(metaspace_marks_words),
		cmocka_unit_test(other_pre_tokenizers),
		cmocka_unit_test(newer_letters),
		cmocka_unit_test(templates_add_tokens),
		cmocka_unit_test(added_tokens),
		cmocka_unit_test(ids_by_text),
		cmocka_unit_test(cuts_keep_the_tokens),
		cmocka_unit_test(the_last_cuts_are_told),
		cmocka_unit_test(unsupported_components_are_named),
		cmocka_unit_test(patterns_that_may_differ_are_refused),
		cmocka_unit_test(malformed_files),
		cmocka_unit_test(a_vocabulary_that_no_word_holds),
		cmocka_unit_test(bounds_hold),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
