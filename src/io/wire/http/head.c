/* SPDX-License-Identifier: Apache-2.0 */
#include "io/wire/http/head_priv.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_BYTES 16384 /* A larger spare is not kept. */
#define FIRST_BYTES 1024
#define FIRST_SLOTS 24

struct cgn_str http_head_get(const struct http_head *h, const char *name)
{
	for (size_t i = 0; i < h->n_fields; i++)
		if (cgn_str_is(h->fields[i].name, name))
			return h->fields[i].value;
	return (struct cgn_str){NULL, 0};
}

struct cgn_str http_query_get(struct cgn_str path, const char *key)
{
	(void)cgn_str_split(&path, '?');
	while (path.n > 0) {
		struct cgn_str value = cgn_str_split(&path, '&'), name = cgn_str_split(&value, '=');
		if (cgn_str_is(name, key))
			return value;
	}
	return (struct cgn_str){NULL, 0};
}

static struct cgn_str cookie_find(struct cgn_str field, struct cgn_str name)
{
	while (field.p != NULL) {
		struct cgn_str value = cgn_str_trim(cgn_str_split(&field, ';'));
		struct cgn_str key = cgn_str_split(&value, '=');
		if (value.p != NULL && cgn_str_eq(cgn_str_trim(key), name))
			return cgn_str_trim(value);
	}
	return (struct cgn_str){NULL, 0};
}

struct cgn_str http_head_cookie(const struct http_head *h, struct cgn_str name)
{
	struct cgn_str v = {NULL, 0};
	for (size_t i = 0; i < h->n_fields && v.n == 0; i++)
		if (cgn_str_is(h->fields[i].name, "cookie"))
			v = cookie_find(h->fields[i].value, name);
	return v;
}

static void store_clear(struct http_store *s, size_t max_bytes, uint32_t max_fields)
{
	s->text.n = 0;
	s->text.bad = false;
	s->text.limit = max_bytes;
	s->n = 0;
	s->max_fields = max_fields;
	memset(s->pseudo, 0, sizeof s->pseudo);
	s->head = (struct http_head){.content_length = -1};
}

struct http_store *http_store_get(struct http_store **spare, size_t max_bytes, uint32_t max_fields)
{
	struct http_store *s = CGN_TAKE(spare);
	if (s == NULL)
		s = CGN_NEW(struct http_store);
	store_clear(s, max_bytes, max_fields);
	return s;
}

void http_store_free(struct http_store **take)
{
	struct http_store *s = CGN_TAKE(take);
	if (s == NULL)
		return;
	cgn_buf_fini(&s->text);
	free(s->slots);
	free(s->fields);
	free(s);
}

void http_store_put(struct http_store **spare, struct http_store **take)
{
	if (*take != NULL && *spare == NULL && (*take)->text.cap <= SPARE_BYTES) {
		*spare = *take;
		*take = NULL;
	}
	http_store_free(take);
}

static void slots_grow(struct http_store *s)
{
	s->cap = s->cap == 0 ? FIRST_SLOTS : s->cap * 2;
	s->slots = CGN_GROWN(s->slots, s->cap);
	s->fields = CGN_GROWN(s->fields, s->cap);
}

bool http_store_field(struct http_store *s)
{
	if (s->n == s->max_fields)
		return false;
	if (s->n == s->cap)
		slots_grow(s);
	s->slots[s->n++] = (struct http_slot){0};
	return true;
}

static char *text_room(struct http_store *s, size_t n)
{
	if (s->text.cap == 0 && s->text.limit > FIRST_BYTES)
		(void)cgn_buf_room(&s->text, FIRST_BYTES);
	return cgn_buf_room(&s->text, n);
}

/* Append to the piece at |*at|, which is always the last one in |text|. */
static bool piece_add(struct http_store *s, uint32_t *at, uint32_t *len, const char *p, size_t n)
{
	char *to = text_room(s, n);
	if (to == NULL)
		return false;
	if (*len == 0)
		*at = (uint32_t)s->text.n;
	if (n > 0)
		memcpy(to, p, n);
	cgn_buf_grew(&s->text, n);
	*len += (uint32_t)n;
	return true;
}

bool http_store_name(struct http_store *s, const char *p, size_t n)
{
	struct http_slot *slot = &s->slots[s->n - 1];
	if (!piece_add(s, &slot->name, &slot->name_n, p, n))
		return false;
	char *name = s->text.p + s->text.n - n;
	for (size_t i = 0; i < n; i++)
		if (name[i] >= 'A' && name[i] <= 'Z')
			name[i] = (char)(name[i] | 0x20);
	return true;
}

bool http_store_value(struct http_store *s, const char *p, size_t n)
{
	struct http_slot *slot = &s->slots[s->n - 1];
	return piece_add(s, &slot->value, &slot->value_n, p, n);
}

bool http_store_pseudo(struct http_store *s, enum http_pseudo which, const char *p, size_t n)
{
	struct http_slot *slot = &s->pseudo[which];
	return piece_add(s, &slot->value, &slot->value_n, p, n);
}

static struct cgn_str text_at(const struct http_store *s, uint32_t at, uint32_t n)
{
	return (struct cgn_str){n > 0 ? s->text.p + at : "", n};
}

static struct cgn_str pseudo_at(const struct http_store *s, enum http_pseudo which)
{
	return text_at(s, s->pseudo[which].value, s->pseudo[which].value_n);
}

struct http_head *http_store_head(struct http_store *s)
{
	for (uint32_t i = 0; i < s->n; i++) {
		const struct http_slot *slot = &s->slots[i];
		s->fields[i].name = text_at(s, slot->name, slot->name_n);
		s->fields[i].value = cgn_str_trim(text_at(s, slot->value, slot->value_n));
	}
	s->head.method = pseudo_at(s, HTTP_P_METHOD);
	s->head.path = pseudo_at(s, HTTP_P_PATH);
	s->head.scheme = pseudo_at(s, HTTP_P_SCHEME);
	s->head.authority = pseudo_at(s, HTTP_P_AUTHORITY);
	s->head.fields = s->fields;
	s->head.n_fields = s->n;
	return &s->head;
}

void http_store_drop(struct http_store *s, size_t i)
{
	CGN_MUST(i < s->head.n_fields);
	s->head.n_fields--;
	memmove(&s->fields[i], &s->fields[i + 1], (s->head.n_fields - i) * sizeof s->fields[0]);
}

bool http_name_is_hop(struct cgn_str name)
{
	static const char *const hop[] = {"connection", "transfer-encoding", "keep-alive", "te", "upgrade",
		"proxy-connection", "proxy-authenticate", "proxy-authorization", "http2-settings", "trailer"};
	/* The first letter tells most names apart without a comparison. */
	if (name.n == 0 || strchr("cCtTkKuUpPhH", name.p[0]) == NULL)
		return false;
	for (size_t i = 0; i < CGN_COUNT(hop); i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(hop[i])))
			return true;
	return false;
}

bool http_text_is_clean(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if ((c < 0x20 && c != '\t') || c == 0x7f)
			return false;
	}
	return true;
}

bool http_name_is_token(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c <= 0x20 || c >= 0x7f || strchr("()<>@,;:\\\"/[]?={}", c) != NULL)
			return false;
	}
	return s.n > 0;
}

static bool named_by(struct cgn_str connection, struct cgn_str name)
{
	while (connection.p != NULL)
		if (cgn_str_eq_nocase(cgn_str_trim(cgn_str_split(&connection, ',')), name))
			return true;
	return false;
}

bool http_field_passes(const struct http_field *fields, size_t n, size_t i)
{
	if (http_name_is_hop(fields[i].name) ||
		cgn_str_eq_nocase(fields[i].name, CGN_STR("content-length")) ||
		!http_name_is_token(fields[i].name) || !http_text_is_clean(fields[i].value))
		return false;
	for (size_t k = 0; k < n; k++)
		if (fields[k].name.n == 10 && cgn_str_eq_nocase(fields[k].name, CGN_STR("connection")) &&
			named_by(fields[k].value, fields[i].name))
			return false;
	return true;
}

void http_field_write(struct cgn_buf *b, struct cgn_str name, struct cgn_str value)
{
	cgn_buf_str(b, name);
	cgn_buf_add(b, ": ", 2);
	cgn_buf_str(b, value);
	cgn_buf_add(b, "\r\n", 2);
}

void http_fields_write(struct cgn_buf *b, const struct http_field *fields, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (http_field_passes(fields, n, i))
			http_field_write(b, fields[i].name, fields[i].value);
}

size_t http_fields_bytes(const struct http_field *fields, size_t n)
{
	size_t total = 0;
	for (size_t i = 0; i < n; i++)
		total += fields[i].name.n + fields[i].value.n + 4;
	return total;
}
