/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer load parts: normalizers, pre-tokenizers and post-processors. Sequences are flattened; an unknown
 * type is refused with its place. */
#include "policy/text/tokenizer/load_priv.h"

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define DEPTH_MAX    8
/* Characters that Rust's char::is_numeric accepts and Unicode 16 does not have. */
#define DIGIT_PATTERN "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]"

static CGN_RC type_of(struct tok_loader *l, struct json_val v, const char *at, struct cgn_str *type)
{
	if (v.type != JSON_OBJECT)
		return CGN_FAIL(l->err, INVALID, "%s must be an object", at);
	*type = json_get_str(v, "type", &l->scratch);
	return type->p != NULL ? CGN_OK : CGN_FAIL(l->err, INVALID, "%s.type must be a string", at);
}

static cgn_rc refuse_type(struct tok_loader *l, const char *at, struct cgn_str type, const char *known)
{
	return CGN_FAIL(l->err, UNSUPPORTED, "%s.type \"%.*s\" is not supported (%s are)", at,
		(int)(type.n < 40 ? type.n : 40), type.p, known);
}

typedef cgn_rc (*part_fn)(struct tok_loader *l, struct json_val v, const char *at, size_t depth);

static CGN_RC each_part(struct tok_loader *l, struct json_val v, const char *at, const char *key,
	part_fn load, size_t depth)
{
	struct json_val list, part;
	if (depth == DEPTH_MAX)
		return CGN_FAIL(l->err, UNSUPPORTED, "%s: nested deeper than %d levels", at, DEPTH_MAX);
	CGN_TRY(tok_get_array(l, v, at, key, &list));
	struct json_iter it = json_iter_of(list);
	for (size_t i = 0; json_next_elem(&it, &part); i++)
		CGN_TRY(load(l, part, tok_place(l, "%s.%s[%zu]", at, key, i), depth + 1));
	return CGN_OK;
}

/* {"String": text} or {"Regex": pattern}. */
static CGN_RC read_pattern(struct tok_loader *l, struct json_val v, const char *at, struct cgn_str *literal,
	struct tok_regex *regex, bool *is_regex)
{
	struct json_val pattern, s;
	struct cgn_str text;
	at = tok_place(l, "%s.pattern", at);
	if (!json_get(v, "pattern", &pattern) || pattern.type != JSON_OBJECT)
		return CGN_FAIL(l->err, INVALID, "%s must be an object", at);
	*is_regex = json_get(pattern, "Regex", &s);
	CGN_TRY(tok_get_str(l, pattern, at, *is_regex ? "Regex" : "String", &text));
	if (*is_regex)
		return tok_regex_make(text, at, regex, l->err);
	*literal = text;
	return text.n > 0 ? CGN_OK
			  : CGN_FAIL(l->err, UNSUPPORTED, "%s: the empty string is not supported", at);
}

/* ---- normalizers ---- */

/* load_normalizer made sure that there is room. */
static struct tok_normal *add_normal(struct tok_loader *l, enum tok_normal_kind kind)
{
	struct tok_normal *n = &l->t->normals[l->t->n_normals++];
	n->kind = kind;
	return n;
}

static CGN_RC load_replace(struct tok_loader *l, struct json_val v, const char *at)
{
	struct tok_normal *n = add_normal(l, NORMAL_REPLACE);
	bool is_regex;
	CGN_TRY(read_pattern(l, v, at, &n->from, &n->regex, &is_regex));
	n->kind = is_regex ? NORMAL_REPLACE_REGEX : NORMAL_REPLACE;
	return tok_get_str(l, v, at, "content", &n->to);
}

static CGN_RC load_strip(struct tok_loader *l, struct json_val v, const char *at)
{
	struct tok_normal *n = add_normal(l, NORMAL_STRIP);
	CGN_TRY(tok_get_bool(l, v, at, "strip_left", true, &n->left));
	return tok_get_bool(l, v, at, "strip_right", true, &n->right);
}

static CGN_RC load_unicode(struct tok_loader *l, struct cgn_str type)
{
	struct tok_normal *n = add_normal(l, NORMAL_UNICODE);
	n->compat = cgn_str_starts(type, "NFK");
	n->compose = type.p[type.n - 1] == 'C';
	return CGN_OK;
}

static cgn_rc load_normalizer(struct tok_loader *l, struct json_val v, const char *at, size_t depth)
{
	struct cgn_str type = {NULL, 0};
	CGN_TRY(type_of(l, v, at, &type));
	if (l->t->n_normals == TOK_MAX_STAGES)
		return CGN_FAIL(l->err, UNSUPPORTED, "%s: more than %d normalizers", at, TOK_MAX_STAGES);
	if (cgn_str_is(type, "Sequence"))
		return each_part(l, v, at, "normalizers", load_normalizer, depth);
	if (cgn_str_is(type, "NFC") || cgn_str_is(type, "NFD") || cgn_str_is(type, "NFKC") ||
		cgn_str_is(type, "NFKD"))
		return load_unicode(l, type);
	if (cgn_str_is(type, "Replace"))
		return load_replace(l, v, at);
	if (cgn_str_is(type, "Strip"))
		return load_strip(l, v, at);
	if (cgn_str_is(type, "Lowercase") || cgn_str_is(type, "StripAccents")) {
		(void)add_normal(l, cgn_str_is(type, "Lowercase") ? NORMAL_LOWERCASE : NORMAL_STRIP_ACCENTS);
		return CGN_OK;
	}
	if (!cgn_str_is(type, "Prepend"))
		return refuse_type(l, at, type,
			"NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, StripAccents, Sequence");
	return tok_get_str(l, v, at, "prepend", &add_normal(l, NORMAL_PREPEND)->to);
}

CGN_RC tok_load_normalizer(struct tok_loader *l, struct json_val v)
{
	if (v.raw.p == NULL || v.type == JSON_NULL)
		return CGN_OK;
	l->t->normals = cgn_arena_zero(&l->t->arena, TOK_MAX_STAGES * sizeof *l->t->normals);
	if (l->t->normals == NULL)
		return CGN_FAIL(l->err, NO_MEMORY, "normalizer: out of memory");
	return load_normalizer(l, v, "normalizer", 0);
}

/* ---- pre-tokenizers ---- */

/* load_pre_tokenizer made sure that there is room. */
static struct tok_stage *add_stage(struct tok_loader *l, enum tok_stage_kind kind, enum tok_behavior behavior)
{
	struct tok_stage *s = &l->t->stages[l->t->n_stages++];
	s->kind = kind;
	s->behavior = behavior;
	return s;
}

static CGN_RC read_behavior(struct tok_loader *l, struct json_val v, const char *at, enum tok_behavior *out)
{
	static const char *const names[] = {[SPLIT_REMOVED] = "Removed",
		[SPLIT_ISOLATED] = "Isolated",
		[SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
		[SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
		[SPLIT_CONTIGUOUS] = "Contiguous"};
	struct cgn_str name = json_get_str(v, "behavior", &l->scratch);
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_is(name, names[i])) {
			*out = (enum tok_behavior)i;
			return CGN_OK;
		}
	return CGN_FAIL(l->err, INVALID,
		"%s.behavior must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous",
		at);
}

static CGN_RC load_split(struct tok_loader *l, struct json_val v, const char *at)
{
	struct tok_stage *s = add_stage(l, STAGE_LITERAL, SPLIT_ISOLATED);
	bool is_regex;
	CGN_TRY(read_pattern(l, v, at, &s->literal, &s->regex, &is_regex));
	s->kind = is_regex ? STAGE_REGEX : STAGE_LITERAL;
	CGN_TRY(tok_get_bool(l, v, at, "invert", true, &s->invert));
	return read_behavior(l, v, at, &s->behavior);
}

static CGN_RC load_byte_level(struct tok_loader *l, struct json_val v, const char *at)
{
	bool prefix = false, regex = true;
	CGN_TRY(tok_get_bool(l, v, at, "add_prefix_space", true, &prefix));
	CGN_TRY(tok_get_bool(l, v, at, "use_regex", false, &regex));
	l->t->model.bytes = true;
	if (prefix)
		(void)add_stage(l, STAGE_SPACE_PREFIX, SPLIT_ISOLATED);
	if (!regex)
		return CGN_OK;
	return tok_regex_make(CGN_STR(GPT2_PATTERN), at, &add_stage(l, STAGE_REGEX, SPLIT_ISOLATED)->regex,
		l->err);
}

/* Files older than prepend_scheme have add_prefix_space only. */
static CGN_RC read_prepend(struct tok_loader *l, struct json_val v, const char *at, enum tok_prepend *out)
{
	static const char *const names[] =
		{[PREPEND_ALWAYS] = "always", [PREPEND_FIRST] = "first", [PREPEND_NEVER] = "never"};
	bool prefix = true, said = !tok_is_null(v, "add_prefix_space");
	if (said)
		CGN_TRY(tok_get_bool(l, v, at, "add_prefix_space", false, &prefix));
	*out = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
	if (tok_is_null(v, "prepend_scheme"))
		return CGN_OK;
	struct cgn_str name = json_get_str(v, "prepend_scheme", &l->scratch);
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		if (!cgn_str_is(name, names[i]))
			continue;
		*out = (enum tok_prepend)i;
		return prefix || *out == PREPEND_NEVER
			? CGN_OK
			: CGN_FAIL(l->err, INVALID,
				  "%s.add_prefix_space is false, but prepend_scheme is not \"never\"", at);
	}
	return CGN_FAIL(l->err, INVALID, "%s.prepend_scheme must be always, first or never", at);
}

static CGN_RC load_metaspace(struct tok_loader *l, struct json_val v, const char *at)
{
	struct tok_stage *s = add_stage(l, STAGE_MARK, SPLIT_ISOLATED);
	bool splits = true;
	size_t n = 0;
	CGN_TRY(tok_get_str(l, v, at, "replacement", &s->literal));
	if (s->literal.n > 0)
		(void)tok_char_at(s->literal.p, s->literal.p + s->literal.n, &n);
	if (n == 0 || n != s->literal.n)
		return CGN_FAIL(l->err, INVALID, "%s.replacement must be one character", at);
	CGN_TRY(read_prepend(l, v, at, &s->prepend));
	if (!tok_is_null(v, "split"))
		CGN_TRY(tok_get_bool(l, v, at, "split", false, &splits));
	if (splits)
		add_stage(l, STAGE_LITERAL, SPLIT_MERGED_WITH_NEXT)->literal = s->literal;
	return CGN_OK;
}

static CGN_RC load_digits(struct tok_loader *l, struct json_val v, const char *at)
{
	bool individual = false;
	CGN_TRY(tok_get_bool(l, v, at, "individual_digits", true, &individual));
	struct tok_stage *s = add_stage(l, STAGE_REGEX, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
	CGN_TRY(tok_regex_own(CGN_STR(DIGIT_PATTERN), &s->regex, l->err));
	s->regex.shadow = true;
	return CGN_OK;
}

static void put_range(struct cgn_buf *b, uint32_t first, uint32_t last)
{
	cgn_buf_fmt(b, "\\x{%x}-\\x{%x}", first, last);
}

/* Punctuation of the reference's table: an older Unicode's, and ASCII's. */
static CGN_RC load_punctuation(struct tok_loader *l, struct json_val v, const char *at)
{
	struct tok_stage *s = add_stage(l, STAGE_REGEX, SPLIT_ISOLATED);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_val behavior;
	if (json_get(v, "behavior", &behavior))
		CGN_TRY(read_behavior(l, v, at, &s->behavior));
	cgn_buf_putz(&b, "(?![");
	tok_each_plain(&b, put_range);
	cgn_buf_putz(&b, "])[!-/:-@\\[-`{-~\\p{P}\\x{166d}\\x{111c9}]");
	return tok_regex_own(cgn_buf_view(&b), &s->regex, l->err);
}

static cgn_rc load_pre_tokenizer(struct tok_loader *l, struct json_val v, const char *at, size_t depth)
{
	struct cgn_str type = {NULL, 0};
	CGN_TRY(type_of(l, v, at, &type));
	if (l->t->n_stages + 2 > TOK_MAX_STAGES) /* The most that one pre-tokenizer may need. */
		return CGN_FAIL(l->err, UNSUPPORTED, "%s: more than %d stages", at, TOK_MAX_STAGES);
	if (cgn_str_is(type, "Sequence"))
		return each_part(l, v, at, "pretokenizers", load_pre_tokenizer, depth);
	/* From here on the reference's text consists of characters that stand for bytes. */
	if (l->t->model.bytes)
		return CGN_FAIL(l->err, UNSUPPORTED, "%s.type \"%.*s\" behind a ByteLevel is not supported",
			at, (int)(type.n < 40 ? type.n : 40), type.p);
	if (cgn_str_is(type, "ByteLevel"))
		return load_byte_level(l, v, at);
	if (cgn_str_is(type, "Split"))
		return load_split(l, v, at);
	if (cgn_str_is(type, "Metaspace"))
		return load_metaspace(l, v, at);
	if (cgn_str_is(type, "Digits"))
		return load_digits(l, v, at);
	if (cgn_str_is(type, "Punctuation"))
		return load_punctuation(l, v, at);
	if (!cgn_str_is(type, "WhitespaceSplit"))
		return refuse_type(l, at, type,
			"ByteLevel, Split, Digits, Metaspace, Punctuation, WhitespaceSplit, Sequence");
	return tok_regex_own(CGN_STR("\\p{White_Space}"), &add_stage(l, STAGE_REGEX, SPLIT_REMOVED)->regex,
		l->err);
}

CGN_RC tok_load_pre_tokenizer(struct tok_loader *l, struct json_val v)
{
	if (v.raw.p == NULL || v.type == JSON_NULL)
		return CGN_OK;
	l->t->stages = cgn_arena_zero(&l->t->arena, TOK_MAX_STAGES * sizeof *l->t->stages);
	if (l->t->stages == NULL)
		return CGN_FAIL(l->err, NO_MEMORY, "pre_tokenizer: out of memory");
	return load_pre_tokenizer(l, v, "pre_tokenizer", 0);
}

/* ---- post-processors ---- */

static CGN_RC put_special(struct tok_loader *l, struct json_val tokens, struct json_val piece, const char *at,
	bool behind)
{
	struct tokenizer *t = l->t;
	struct json_val special, ids, v;
	struct cgn_str name = json_get_str(piece, "id", &l->scratch);
	const char *key = name.p != NULL && name.n <= JSON_KEY_MAX ? cgn_arena_strz(&l->scratch, name) : NULL;
	uint64_t id;
	if (key == NULL || !json_get(tokens, key, &special) || !json_get(special, "ids", &ids) ||
		ids.type != JSON_ARRAY)
		return CGN_FAIL(l->err, INVALID, "%s: SpecialToken without its ids in special_tokens", at);
	struct json_iter it = json_iter_of(ids);
	while (json_next_elem(&it, &v)) {
		size_t *n = behind ? &t->n_tail : &t->n_head;
		if (!json_u64(v, &id) || id > UINT32_MAX)
			return CGN_FAIL(l->err, INVALID, "%s.special_tokens: an id must be a number", at);
		if (*n == TOK_MAX_SPECIALS)
			return CGN_FAIL(l->err, UNSUPPORTED, "%s: more than %d special tokens", at,
				TOK_MAX_SPECIALS);
		(behind ? t->tail : t->head)[(*n)++] = (uint32_t)id;
	}
	return CGN_OK;
}

static CGN_RC read_template(struct tok_loader *l, struct json_val v, const char *at)
{
	bool seen_text = false;
	struct json_val single, tokens, piece, part;
	CGN_TRY(tok_get_array(l, v, at, "single", &single));
	if (!json_get(v, "special_tokens", &tokens) || tokens.type != JSON_OBJECT)
		return CGN_FAIL(l->err, INVALID, "%s.special_tokens must be an object", at);
	struct json_iter it = json_iter_of(single);
	while (json_next_elem(&it, &piece)) {
		if (json_get(piece, "SpecialToken", &part)) {
			CGN_TRY(put_special(l, tokens, part, at, seen_text));
			continue;
		}
		struct cgn_str id = json_get(piece, "Sequence", &part) ? json_get_str(part, "id", &l->scratch)
								       : (struct cgn_str){NULL, 0};
		if (!cgn_str_is(id, "A") || seen_text)
			return CGN_FAIL(l->err, UNSUPPORTED,
				"%s.single must hold Sequence A once, and SpecialTokens", at);
		seen_text = true;
	}
	return seen_text ? CGN_OK : CGN_FAIL(l->err, UNSUPPORTED, "%s.single does not hold Sequence A", at);
}

static cgn_rc load_post_processor(struct tok_loader *l, struct json_val v, const char *at, size_t depth)
{
	struct cgn_str type = {NULL, 0};
	CGN_TRY(type_of(l, v, at, &type));
	if (cgn_str_is(type, "Sequence"))
		return each_part(l, v, at, "processors", load_post_processor, depth);
	/* The reference shifts offsets for it; this tokenizer has no offsets. */
	if (cgn_str_is(type, "ByteLevel"))
		return CGN_OK;
	if (!cgn_str_is(type, "TemplateProcessing"))
		return refuse_type(l, at, type, "ByteLevel, TemplateProcessing, Sequence");
	if (l->has_template) /* The reference accepts only one. */
		return CGN_FAIL(l->err, UNSUPPORTED, "%s: a second TemplateProcessing is not supported", at);
	l->has_template = true;
	return read_template(l, v, at);
}

CGN_RC tok_load_post_processor(struct tok_loader *l, struct json_val v)
{
	return v.raw.p == NULL || v.type == JSON_NULL ? CGN_OK
						      : load_post_processor(l, v, "post_processor", 0);
}
