/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer load model: the vocabulary and the merges of a BPE model. */
#include <stdlib.h>

#include "policy/text/tokenizer/load_priv.h"

#define ID_MAX        ((uint64_t)1 << 24)
#define TOKEN_LEN_MAX ((size_t)64 << 10)

/* ---- byte-level: the characters that stand for bytes ---- */

/* Return the byte that |c| stands for, or -1: printable Latin-1 characters stand for themselves; the other
 * bytes are represented by 256 and up, in order. */
static int byte_of(uint32_t c)
{
	if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
		return (int)c;
	if (c < 0x100 || c > 0x143)
		return -1;
	c -= 0x100;
	return c <= 0x20 ? (int)c : c <= 0x41 ? (int)(c - 0x21 + 0x7f) : c == 0x42 ? 0xa0 : 0xad;
}

/* Convert |token| to bytes; returns false when it holds a character that stands for no byte. */
static bool to_bytes(struct cgn_str token, struct cgn_buf *out)
{
	size_t n;
	out->n = 0;
	for (const char *p = token.p, *end = p + token.n; p < end; p += n) {
		int b = byte_of(tok_char_at(p, end, &n));
		if (b < 0)
			return false;
		cgn_buf_char(out, (char)b);
	}
	return !out->bad;
}

/* Can no word hold |*token|, as the file spells it? If a word can, replace it with the form that words hold;
 * |bytes| keeps it. */
static bool is_odd(const struct tok_model *m, struct cgn_str *token, struct cgn_buf *bytes)
{
	if (!m->bytes)
		return false;
	if (!to_bytes(*token, bytes))
		return true;
	*token = cgn_buf_view(bytes);
	return false;
}

static uint32_t id_of(const struct tok_model *m, struct cgn_str token, struct cgn_buf *bytes)
{
	return tok_names_get(is_odd(m, &token, bytes) ? &m->odd : &m->names, token);
}

bool tokenizer_token_id(const struct tokenizer *t, struct cgn_str token, uint32_t *id)
{
	struct cgn_buf bytes = {0};
	uint32_t found = tok_names_get(&t->added_names, token);
	if (found == TOK_NONE)
		found = id_of(&t->model, token, &bytes);
	cgn_buf_fini(&bytes);
	if (found != TOK_NONE)
		*id = found;
	return found != TOK_NONE;
}

/* ---- vocabulary ---- */

struct texts { /* Strings of the file, without escapes. */
	struct cgn_buf plain, other, bytes, pair;
};

static void texts_fini(struct texts *x)
{
	cgn_buf_fini(&x->plain);
	cgn_buf_fini(&x->other);
	cgn_buf_fini(&x->bytes);
	cgn_buf_fini(&x->pair);
}

static struct cgn_str token_unescape(struct json_val v, struct cgn_buf *b)
{
	struct cgn_str inside = {v.raw.p + 1, v.raw.n - 2};
	if (inside.n == 0 || memchr(inside.p, '\\', inside.n) == NULL)
		return inside;
	b->n = 0;
	json_str_to(v, b);
	return cgn_buf_view(b);
}

static CGN_RC put_token(struct tok_loader *l, struct cgn_str key, struct json_val value, struct texts *x)
{
	struct tok_model *m = &l->t->model;
	struct cgn_str token =
		token_unescape((struct json_val){JSON_STRING, {key.p - 1, key.n + 2}}, &x->plain);
	uint64_t id;
	if (!json_u64(value, &id) || id >= ID_MAX)
		return CGN_FAIL(l->err, INVALID, "model.vocab[\"%.*s\"] must be an id below %llu",
			(int)(key.n < 60 ? key.n : 60), key.p, (unsigned long long)ID_MAX);
	if (token.n > TOKEN_LEN_MAX)
		return CGN_FAIL(l->err, TOO_LARGE,
			"model.vocab: a token of %zu bytes, up to %zu are supported", token.n, TOKEN_LEN_MAX);
	bool odd = is_odd(m, &token, &x->bytes);
	if (!cgn_ok(tok_names_put(odd ? &m->odd : &m->names, token, (uint32_t)id)) || x->plain.bad ||
		x->bytes.bad)
		return CGN_FAIL(l->err, NO_MEMORY, "model.vocab: out of memory");
	m->n_ids = id >= m->n_ids ? (uint32_t)id + 1 : m->n_ids;
	return CGN_OK;
}

static bool note_ids(const struct tok_names *s, uint8_t *seen, uint32_t *twice)
{
	for (size_t i = 0; i < s->n; i++) {
		uint32_t id = s->v[i].id;
		if ((seen[id / 8] >> id % 8 & 1) != 0) {
			*twice = id;
			return true;
		}
		seen[id / 8] = (uint8_t)(seen[id / 8] | 1U << id % 8);
	}
	return false;
}

/* With a distinct id for each token, an unmerged pair keeps its rank. merge.c relies on it. */
static CGN_RC check_ids(struct tok_loader *l)
{
	const struct tok_model *m = &l->t->model;
	uint32_t twice = 0;
	uint8_t *seen = calloc(1, m->n_ids / 8 + 1);
	if (seen == NULL)
		return CGN_FAIL(l->err, NO_MEMORY, "model.vocab: out of memory");
	bool bad = note_ids(&m->names, seen, &twice) || note_ids(&m->odd, seen, &twice);
	free(seen);
	return bad ? CGN_FAIL(l->err, UNSUPPORTED,
			     "model.vocab: two tokens have id %u, which is not supported", twice)
		   : CGN_OK;
}

static CGN_RC load_vocab(struct tok_loader *l, struct json_val vocab, struct texts *x)
{
	struct tok_model *m = &l->t->model;
	struct json_iter it = json_iter_of(vocab);
	struct cgn_str key;
	struct json_val v;
	size_t n = 0;
	while (json_next_member(&it, &key, &v))
		n++;
	if (n > TOKENIZER_MAX_TOKENS)
		return CGN_FAIL(l->err, TOO_LARGE, "model.vocab has %zu tokens, up to %zu are supported", n,
			TOKENIZER_MAX_TOKENS);
	if (!cgn_ok(tok_names_reserve(&m->names, n)))
		return CGN_FAIL(l->err, NO_MEMORY, "model.vocab: out of memory for %zu tokens", n);
	it = json_iter_of(vocab);
	while (json_next_member(&it, &key, &v))
		CGN_TRY(put_token(l, key, v, x));
	return check_ids(l);
}

/* ---- merges ---- */

/* "left right", or ["left", "right"]. */
static bool read_merge(struct json_val v, struct texts *x, struct cgn_str *left, struct cgn_str *right)
{
	struct json_val a, b, more;
	if (v.type == JSON_STRING) {
		struct cgn_str both = token_unescape(v, &x->plain);
		const char *space = both.n > 0 ? memchr(both.p, ' ', both.n) : NULL;
		if (space == NULL)
			return false;
		*left = (struct cgn_str){both.p, (size_t)(space - both.p)};
		*right = (struct cgn_str){space + 1, both.n - left->n - 1};
		return memchr(right->p, ' ', right->n) == NULL;
	}
	if (v.type != JSON_ARRAY)
		return false;
	struct json_iter it = json_iter_of(v);
	if (!json_next_elem(&it, &a) || !json_next_elem(&it, &b) || json_next_elem(&it, &more) ||
		a.type != JSON_STRING || b.type != JSON_STRING)
		return false;
	*left = token_unescape(a, &x->plain);
	*right = token_unescape(b, &x->other);
	return true;
}

/* Store the pair's three tokens. In a byte-level model a token that no word can hold is never merged; its
 * pair is only counted. */
static CGN_RC put_merge(struct tok_loader *l, struct cgn_str left, struct cgn_str right, size_t rank,
	struct texts *x)
{
	struct tok_model *m = &l->t->model;
	x->pair.n = 0;
	cgn_buf_str(&x->pair, left);
	cgn_buf_str(&x->pair, right);
	if (x->pair.bad)
		return CGN_FAIL(l->err, NO_MEMORY, "model.merges: out of memory");
	const struct cgn_str three[] = {left, right, cgn_buf_view(&x->pair)};
	uint32_t id[3];
	for (size_t i = 0; i < 3; i++) {
		id[i] = id_of(m, three[i], &x->bytes);
		if (id[i] == TOK_NONE)
			return CGN_FAIL(l->err, INVALID,
				"model.merges[%zu]: \"%.*s\" is not in the vocabulary", rank,
				(int)(three[i].n < 60 ? three[i].n : 60), three[i].p);
	}
	tok_merge_put(m, id[0], id[1], (uint32_t)rank, id[2]);
	return CGN_OK;
}

static bool is_version_line(struct json_val v)
{
	return v.type == JSON_STRING &&
		cgn_str_starts((struct cgn_str){v.raw.p + 1, v.raw.n - 2}, "#version");
}

static CGN_RC merges_room(struct tok_loader *l, size_t n)
{
	struct tok_model *m = &l->t->model;
	size_t slots = 16;
	while (slots < n * 2)
		slots *= 2;
	m->merges = malloc(slots * sizeof *m->merges);
	if (m->merges == NULL)
		return CGN_FAIL(l->err, NO_MEMORY, "model.merges: out of memory for %zu", n);
	m->merge_mask = slots - 1;
	for (size_t i = 0; i < slots; i++)
		m->merges[i].left = TOK_NONE;
	return CGN_OK;
}

static CGN_RC load_merges(struct tok_loader *l, struct json_val merges, struct texts *x)
{
	struct json_iter it = json_iter_of(merges);
	struct json_val v;
	struct cgn_str left, right;
	size_t n = 0, rank = 0;
	while (json_next_elem(&it, &v))
		n++;
	if (n > TOKENIZER_MAX_MERGES)
		return CGN_FAIL(l->err, TOO_LARGE, "model.merges has %zu, up to %zu are supported", n,
			TOKENIZER_MAX_MERGES);
	CGN_TRY(merges_room(l, n));
	it = json_iter_of(merges);
	while (json_next_elem(&it, &v)) {
		if (is_version_line(v))
			continue;
		if (!read_merge(v, x, &left, &right))
			return CGN_FAIL(l->err, INVALID,
				"model.merges[%zu] must be \"left right\" or [\"left\", \"right\"]", rank);
		CGN_TRY(put_merge(l, left, right, rank++, x));
	}
	return CGN_OK;
}

/* ---- derived tables ---- */

static CGN_RC start_table(struct tok_loader *l, struct texts *x)
{
	struct tok_model *m = &l->t->model;
	for (unsigned b = 0; b < 256; b++) {
		char text[8];
		const char one = (char)b;
		(void)snprintf(text, sizeof text, "<0x%02X>", b);
		m->byte_ids[b] = id_of(m, cgn_str_of(text), &x->bytes);
		m->start[b] =
			m->bytes || b < 0x80 ? tok_names_get(&m->names, (struct cgn_str){&one, 1}) : TOK_NONE;
		if (m->bytes && m->byte_fallback && m->start[b] == TOK_NONE)
			return CGN_FAIL(l->err, UNSUPPORTED,
				"model.byte_fallback with a ByteLevel pre-tokenizer is not supported: byte 0x%02x has no token",
				b);
	}
	return CGN_OK;
}

#define MARK "\xe2\x96\x81"

/* Does every mark stand first in its token, or behind other marks only? */
static bool marks_lead(const struct tok_names *s)
{
	for (size_t i = 0; i < s->n; i++) {
		struct cgn_str token = tok_names_text(s, i);
		size_t lead = 0;
		while (token.n - lead >= 3 && memcmp(token.p + lead, MARK, 3) == 0)
			lead += 3;
		if (memmem(token.p + lead, token.n - lead, MARK, 3) != NULL)
			return false;
	}
	return true;
}

/* An unknown character that is dropped would bring a mark next to the text before it. */
static bool may_break_at_marks(const struct tok_model *m)
{
	return !m->bytes && !m->ignore_merges && m->unk != TOK_NONE &&
		tok_names_get(&m->names, CGN_STR(MARK)) != TOK_NONE && marks_lead(&m->names);
}

/* ---- the model ---- */

static CGN_RC refuse_affix(struct tok_loader *l, struct json_val model, const char *key)
{
	struct json_val v;
	if (tok_is_null(model, key))
		return CGN_OK;
	(void)json_get(model, key, &v);
	if (v.type == JSON_STRING && v.raw.n == 2)
		return CGN_OK;
	return CGN_FAIL(l->err, UNSUPPORTED, "model.%s is not supported", key);
}

static CGN_RC check_model(struct tok_loader *l, struct json_val model)
{
	struct json_val v;
	double dropout = 0;
	if (json_get(model, "type", &v) && !cgn_str_eq(v.raw, CGN_STR("\"BPE\"")))
		return CGN_FAIL(l->err, UNSUPPORTED, "model.type %.*s is not supported, \"BPE\" is",
			(int)(v.raw.n < 40 ? v.raw.n : 40), v.raw.p);
	/* NOLINT: exactly 0 */
	if (!tok_is_null(model, "dropout") && json_get(model, "dropout", &v) &&
		(!json_f64(v, &dropout) || dropout != 0))
		return CGN_FAIL(l->err, UNSUPPORTED, "model.dropout is not supported: it makes ids random");
	CGN_TRY(refuse_affix(l, model, "continuing_subword_prefix"));
	return refuse_affix(l, model, "end_of_word_suffix");
}

static CGN_RC load_flags(struct tok_loader *l, struct json_val model, struct texts *x)
{
	struct tok_model *m = &l->t->model;
	struct cgn_str unk;
	CGN_TRY(tok_get_bool(l, model, "model", "fuse_unk", false, &m->fuse_unk));
	CGN_TRY(tok_get_bool(l, model, "model", "byte_fallback", false, &m->byte_fallback));
	CGN_TRY(tok_get_bool(l, model, "model", "ignore_merges", false, &m->ignore_merges));
	m->unk = TOK_NONE;
	if (tok_is_null(model, "unk_token"))
		return CGN_OK;
	CGN_TRY(tok_get_str(l, model, "model", "unk_token", &unk));
	m->unk = id_of(m, unk, &x->bytes);
	return m->unk != TOK_NONE
		? CGN_OK
		: CGN_FAIL(l->err, UNSUPPORTED, "model.unk_token \"%.*s\" is not in the vocabulary",
			  CGN_STR_ARG(unk));
}

CGN_RC tok_load_model(struct tok_loader *l, struct json_val model)
{
	static const char *const keys[] = {"vocab", "merges"};
	struct tok_model *m = &l->t->model;
	struct json_val v[CGN_COUNT(keys)];
	CGN_ON_EXIT(texts_fini) struct texts x = {0};
	CGN_TRY(check_model(l, model));
	json_pick(model, keys, CGN_COUNT(keys), v);
	if (v[0].raw.p == NULL || v[0].type != JSON_OBJECT)
		return CGN_FAIL(l->err, INVALID, "model.vocab must be an object");
	if (v[1].raw.p == NULL || v[1].type != JSON_ARRAY)
		return CGN_FAIL(l->err, INVALID, "model.merges must be an array");
	CGN_TRY(load_vocab(l, v[0], &x));
	CGN_TRY(load_merges(l, v[1], &x));
	CGN_TRY(load_flags(l, model, &x));
	CGN_TRY(start_table(l, &x));
	m->mark_breaks = may_break_at_marks(m);
	return CGN_OK;
}
