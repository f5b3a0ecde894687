/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer load: the file as a whole, and its added tokens. */
#include <stdarg.h>
#include <stdlib.h>

#include "policy/text/tokenizer/load_priv.h"

#define TOKENIZER_TAG 0x746f6b6eu
#define ADDED_MAX     ((size_t)1 << 17)
#define ADDED_LEN_MAX 1024

const char *tok_place(struct tok_loader *l, const char *fmt, ...)
{
	char text[200];
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	const char *kept = cgn_arena_strz(&l->scratch, cgn_str_of(text));
	return kept != NULL ? kept : "?";
}

bool tok_is_null(struct json_val object, const char *key)
{
	struct json_val v;
	return !json_get(object, key, &v) || v.type == JSON_NULL;
}

CGN_RC tok_get_bool(struct tok_loader *l, struct json_val object, const char *at, const char *key,
	bool required, bool *out)
{
	struct json_val v;
	if (!json_get(object, key, &v))
		return required ? CGN_FAIL(l->err, INVALID, "%s.%s is missing", at, key) : CGN_OK;
	if (v.type != JSON_BOOL)
		return CGN_FAIL(l->err, INVALID, "%s.%s must be true or false", at, key);
	*out = json_bool(v, false);
	return CGN_OK;
}

CGN_RC tok_get_str(struct tok_loader *l, struct json_val object, const char *at, const char *key,
	struct cgn_str *out)
{
	struct json_val v;
	if (!json_get(object, key, &v) || v.type != JSON_STRING)
		return CGN_FAIL(l->err, INVALID, "%s.%s must be a string", at, key);
	struct cgn_str s = json_str(v, &l->t->arena);
	*out = s.p != NULL ? cgn_arena_str(&l->t->arena, s) : s;
	return out->p != NULL ? CGN_OK : CGN_FAIL(l->err, NO_MEMORY, "%s.%s: out of memory", at, key);
}

CGN_RC tok_get_array(struct tok_loader *l, struct json_val object, const char *at, const char *key,
	struct json_val *out)
{
	if (!json_get(object, key, out) || out->type != JSON_ARRAY)
		return CGN_FAIL(l->err, INVALID, "%s.%s must be an array", at, key);
	return CGN_OK;
}

/* ---- added tokens ---- */

static CGN_RC read_added(struct tok_loader *l, struct json_val v, const char *at, struct tok_added *a)
{
	if (v.type != JSON_OBJECT)
		return CGN_FAIL(l->err, INVALID, "%s must be an object", at);
	a->normalized = true;
	CGN_TRY(tok_get_str(l, v, at, "content", &a->content));
	CGN_TRY(tok_get_bool(l, v, at, "special", true, &a->special));
	CGN_TRY(tok_get_bool(l, v, at, "lstrip", true, &a->lstrip));
	CGN_TRY(tok_get_bool(l, v, at, "rstrip", true, &a->rstrip));
	CGN_TRY(tok_get_bool(l, v, at, "single_word", true, &a->single_word));
	CGN_TRY(tok_get_bool(l, v, at, "normalized", true, &a->normalized));
	if (a->content.n > ADDED_LEN_MAX)
		return CGN_FAIL(l->err, UNSUPPORTED, "%s.content has %zu bytes, up to %d are supported", at,
			a->content.n, ADDED_LEN_MAX);
	return CGN_OK;
}

/* The ids are those of the reference, whatever the file says: the model's id where it has the token,
 * otherwise the next one after the highest. */
static CGN_RC number_added(struct tok_loader *l, struct json_val v, const char *at, struct tok_added *a,
	uint32_t *highest)
{
	struct tokenizer *t = l->t;
	uint64_t said;
	uint32_t n_vocab = (uint32_t)(t->model.names.n + t->model.odd.n);
	if (!tokenizer_token_id(t, a->content, &a->id))
		a->id = *highest != TOK_NONE && *highest >= n_vocab ? *highest + 1 : n_vocab;
	*highest = *highest == TOK_NONE || a->id > *highest ? a->id : *highest;
	struct json_val id;
	if (!json_get(v, "id", &id) || !json_u64(id, &said))
		return CGN_FAIL(l->err, INVALID, "%s.id must be a number", at);
	if (said != a->id)
		return CGN_FAIL(l->err, UNSUPPORTED,
			"%s: \"%.*s\" has id %llu here, but its place gives it id %u; a file with gaps is not supported",
			at, CGN_STR_ARG(a->content), (unsigned long long)said, a->id);
	if (a->id >= t->model.n_ids)
		t->model.n_ids = a->id + 1;
	return cgn_ok(tok_names_put(&t->added_names, a->content, a->id))
		? CGN_OK
		: CGN_FAIL(l->err, NO_MEMORY, "%s: out of memory", at);
}

/* A normalized token is matched in normalized text, so it is matched by its own normalized form. */
static CGN_RC match_added(struct tok_loader *l, const char *at, struct tok_added *a, struct tok_scratch *s,
	struct tok_matcher *m)
{
	a->match = a->content;
	if (a->normalized)
		CGN_TRY(tok_normalize(l->t->normals, l->t->n_normals, s, m, &a->match, l->err));
	if (a->match.n == 0)
		return CGN_FAIL(l->err, UNSUPPORTED,
			"%s: \"%.*s\" is empty once normalized, which is not supported", at,
			CGN_STR_ARG(a->content));
	a->match = cgn_arena_str(&l->t->arena, a->match);
	if (a->match.p == NULL)
		return CGN_FAIL(l->err, NO_MEMORY, "%s: out of memory", at);
	l->t->any_single_word |= a->single_word;
	l->t->any_fffd |= memmem(a->match.p, a->match.n, "\xef\xbf\xbd", 3) != NULL;
	return CGN_OK;
}

static CGN_RC each_added(struct tok_loader *l, struct json_val list, struct tok_scratch *s,
	struct tok_matcher *m)
{
	struct tokenizer *t = l->t;
	struct json_iter it = json_iter_of(list);
	struct json_val v;
	uint32_t highest = TOK_NONE;
	for (size_t i = 0; json_next_elem(&it, &v); i++) {
		struct tok_added *a = &t->added[t->n_added];
		char at[40];
		(void)snprintf(at, sizeof at, "added_tokens[%zu]", i);
		CGN_TRY(read_added(l, v, at, a));
		if (a->content.n == 0)
			continue; /* The reference ignores it. */
		if (tok_names_get(&t->added_names, a->content) != TOK_NONE)
			return CGN_FAIL(l->err, UNSUPPORTED, "%s: \"%.*s\" is there twice", at,
				CGN_STR_ARG(a->content));
		CGN_TRY(number_added(l, v, at, a, &highest));
		CGN_TRY(match_added(l, at, a, s, m));
		t->n_added++;
	}
	return CGN_OK;
}

/* Refuse two tokens that look alike where they are matched: the winner depends on the order of tables inside
 * the reference. */
static CGN_RC check_alike(struct tok_loader *l, const struct tok_added_set *s)
{
	for (size_t i = 1; i < s->n; i++)
		if (cgn_str_eq(s->v[i - 1]->match, s->v[i]->match))
			return CGN_FAIL(l->err, UNSUPPORTED,
				"added_tokens: \"%.*s\" and \"%.*s\" are the same once normalized",
				CGN_STR_ARG(s->v[i - 1]->content), CGN_STR_ARG(s->v[i]->content));
	return CGN_OK;
}

/* The start of the text depends on the reference's map from normalized to original offsets when normalizers
 * make the text shorter or longer, or when a stage splits it before. Accept only the cases in which the start
 * does not depend on that map. */
static CGN_RC check_first(struct tok_loader *l)
{
	const struct tokenizer *t = l->t;
	bool clean = true;
	for (size_t i = 0; i < t->n_normals; i++)
		clean &= t->normals[i].kind == NORMAL_UNICODE || t->normals[i].kind == NORMAL_LOWERCASE;
	for (size_t i = 0; i < t->n_added; i++)
		clean &= !t->added[i].normalized || t->n_normals == 0;
	for (size_t i = 0; i < t->n_stages; i++) {
		bool first = t->stages[i].kind == STAGE_MARK && t->stages[i].prepend == PREPEND_FIRST;
		if (first && (i > 0 || !clean))
			return CGN_FAIL(l->err, UNSUPPORTED,
				"pre_tokenizer: Metaspace with prepend_scheme \"first\" is supported as the first one only, and behind normalizers "
				"that keep the text's start (NFC, NFD, NFKC, NFKD, Lowercase) without normalized added tokens");
	}
	return CGN_OK;
}

static size_t tokens_count(struct json_val container)
{
	struct json_iter it = json_iter_of(container);
	struct json_val v;
	size_t n = 0;
	while (json_next_elem(&it, &v))
		n++;
	return n;
}

static CGN_RC tok_load_added(struct tok_loader *l, struct json_val list)
{
	struct tokenizer *t = l->t;
	if (list.raw.p == NULL || list.type == JSON_NULL)
		list = (struct json_val){JSON_ARRAY, CGN_STR("[]")};
	if (list.type != JSON_ARRAY)
		return CGN_FAIL(l->err, INVALID, "added_tokens must be an array");
	size_t n = tokens_count(list);
	if (n > ADDED_MAX)
		return CGN_FAIL(l->err, TOO_LARGE, "%zu added_tokens, up to %zu are supported", n, ADDED_MAX);
	t->added = cgn_arena_zero(&t->arena, (n + 1) * sizeof *t->added);
	if (t->added == NULL || !cgn_ok(tok_names_reserve(&t->added_names, n)))
		return CGN_FAIL(l->err, NO_MEMORY, "added_tokens: out of memory");
	struct tok_scratch s = {0};
	struct tok_matcher m = {0};
	tok_matcher_init(&m);
	cgn_rc rc = each_added(l, list, &s, &m);
	tok_matcher_fini(&m);
	tok_scratch_fini(&s);
	CGN_TRY(rc);
	CGN_TRY(check_first(l));
	CGN_TRY(tok_added_set_init(&t->exact, t->added, t->n_added, false, &t->arena));
	CGN_TRY(tok_added_set_init(&t->normal, t->added, t->n_added, true, &t->arena));
	CGN_TRY(check_alike(l, &t->exact));
	return check_alike(l, &t->normal);
}

/* ---- the file ---- */

static CGN_RC check_root(struct tok_loader *l, struct json_val root)
{
	static const char *const unwanted[] = {"truncation", "padding"};
	struct json_val v;
	if (root.type != JSON_OBJECT || !json_get(root, "model", &v) || v.type != JSON_OBJECT)
		return CGN_FAIL(l->err, INVALID, "this is not a tokenizer.json: it has no object \"model\"");
	for (size_t i = 0; i < CGN_COUNT(unwanted); i++)
		if (!tok_is_null(root, unwanted[i]))
			return CGN_FAIL(l->err, UNSUPPORTED,
				"%s is not supported: it would change the ids of a prompt", unwanted[i]);
	if (json_get(root, "version", &v) &&
		(v.type != JSON_STRING || !cgn_str_eq(v.raw, CGN_STR("\"1.0\""))))
		return CGN_FAIL(l->err, UNSUPPORTED, "version %.*s is not supported, \"1.0\" is",
			(int)(v.raw.n < 40 ? v.raw.n : 40), v.raw.p);
	return CGN_OK;
}

/* Load the normalizer before the added tokens and the pre-tokenizer before the model, because the later parts
 * depend on the earlier ones. */
static CGN_RC file_load(struct tok_loader *l, struct json_val root)
{
	static const char *const keys[] = {"normalizer", "pre_tokenizer", "model", "added_tokens",
		"post_processor"};
	struct json_val v[CGN_COUNT(keys)];
	CGN_TRY(check_root(l, root));
	json_pick(root, keys, CGN_COUNT(keys), v);
	CGN_TRY(tok_load_normalizer(l, v[0]));
	CGN_TRY(tok_load_pre_tokenizer(l, v[1]));
	CGN_TRY(tok_load_model(l, v[2]));
	CGN_TRY(tok_load_added(l, v[3]));
	return tok_load_post_processor(l, v[4]);
}

CGN_RC tokenizer_load(struct cgn_str json, struct tokenizer **out, struct cgn_err *err)
{
	struct json_val root;
	if (json.n > TOKENIZER_MAX_FILE)
		return CGN_FAIL(err, TOO_LARGE, "a file of %zu bytes, the limit is %zu", json.n,
			TOKENIZER_MAX_FILE);
	CGN_TRY(json_parse(json, &root, NULL, err));
	struct tokenizer *t = CGN_NEW(struct tokenizer);
	struct tok_loader l = {.t = t, .err = err};
	t->tag = TOKENIZER_TAG;
	cgn_arena_init(&t->arena, (size_t)64 << 20);
	cgn_arena_init(&l.scratch, (size_t)1 << 20);
	cgn_rc rc = file_load(&l, root);
	cgn_arena_fini(&l.scratch);
	if (cgn_ok(rc))
		*out = t;
	else
		tokenizer_free(&t);
	return rc;
}

void tokenizer_free(struct tokenizer **take)
{
	struct tokenizer *t = CGN_TAKE_LIVE(take, TOKENIZER_TAG);
	if (t == NULL)
		return;
	t->tag = 0;
	for (size_t i = 0; i < t->n_stages; i++)
		tok_regex_fini(&t->stages[i].regex);
	for (size_t i = 0; i < t->n_normals; i++)
		tok_regex_fini(&t->normals[i].regex);
	tok_names_fini(&t->model.names);
	tok_names_fini(&t->model.odd);
	tok_names_fini(&t->added_names);
	free(t->model.merges);
	cgn_arena_fini(&t->arena);
	free(t);
}

size_t tokenizer_vocab(const struct tokenizer *t)
{
	return t->model.n_ids;
}

size_t tokenizer_bytes(const struct tokenizer *t)
{
	size_t n = sizeof *t + t->arena.used_bytes + tok_names_bytes(&t->model.names) +
		tok_names_bytes(&t->model.odd) + tok_names_bytes(&t->added_names) +
		(t->model.merges != NULL ? (t->model.merge_mask + 1) * sizeof *t->model.merges : 0);
	for (size_t i = 0; i < t->n_stages; i++)
		n += tok_regex_bytes(&t->stages[i].regex);
	for (size_t i = 0; i < t->n_normals; i++)
		n += tok_regex_bytes(&t->normals[i].regex);
	return n;
}
