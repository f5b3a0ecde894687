/* SPDX-License-Identifier: Apache-2.0 */
/* head store: the memory of one message head between its first byte and the end of on_request or on_head.
 * Bounded, and lent from a spare, so that a connection between two heads holds none. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "io/wire/http/head.h"

struct http_slot {
	uint32_t name, name_n, value, value_n; /* Offsets into |text|, which moves while it grows. */
};
enum http_pseudo { HTTP_P_METHOD, HTTP_P_PATH, HTTP_P_SCHEME, HTTP_P_AUTHORITY, HTTP_P_COUNT };

struct http_store {
	struct cgn_buf text; /* The buffer's limit bounds the head's bytes. */
	struct http_slot pseudo[HTTP_P_COUNT];
	struct http_slot *slots;
	struct http_field *fields; /* As many as slots. */
	uint32_t n, cap, max_fields;
	struct http_head head;
};

/* Return the spare or a new store, empty, with these bounds. */
struct http_store *http_store_get(struct http_store **spare, size_t max_bytes, uint32_t max_fields);
/* Give the store back as the spare, or free it when there is a spare already or the store has grown large.
 * NULL-safe. */
void http_store_put(struct http_store **spare, struct http_store **take);
void http_store_free(struct http_store **take);

/* Append to the head; each returns false when a bound was hit. Names are lowered. A name or value may come in
 * several pieces. */
bool http_store_field(struct http_store *s); /* Begin a field. */
bool http_store_name(struct http_store *s, const char *p, size_t n);
bool http_store_value(struct http_store *s, const char *p, size_t n);
bool http_store_pseudo(struct http_store *s, enum http_pseudo which, const char *p, size_t n);
/* Resolve the fields into s->head. The caller sets status, version and content_length. */
struct http_head *http_store_head(struct http_store *s);
/* Drop the field at |i| from the resolved head. */
void http_store_drop(struct http_store *s, size_t i);

/* May field |i| be sent on? Not a hop-by-hop name or content-length, not named by a connection field, and without a byte that
 * could end a line. Names may be in any case. */
bool http_field_passes(const struct http_field *fields, size_t n, size_t i);
/* Write HTTP/1 lines for the fields that pass; and the upper bound of their bytes. */
void http_fields_write(struct cgn_buf *b, const struct http_field *fields, size_t n);
void http_field_write(struct cgn_buf *b, struct cgn_str name, struct cgn_str value);
size_t http_fields_bytes(const struct http_field *fields, size_t n);
/* No control byte: safe to send as a value, a path or an authority. */
bool http_text_is_clean(struct cgn_str s);
bool http_name_is_token(struct cgn_str s);
