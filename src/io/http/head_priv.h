/* SPDX-License-Identifier: Apache-2.0 */
/* head store: where one message head lives between its first byte and the end of on_request or on_head.
 * Bounded, and lent from a spare, so that a connection between two heads holds none. */
#pragma once
#include "base/core/buf.h"
#include "io/http/http.h"

struct http_slot {
	uint32_t name, name_n, value, value_n; /* into text: it moves while it grows */
};
enum http_pseudo { HTTP_P_METHOD, HTTP_P_PATH, HTTP_P_SCHEME, HTTP_P_AUTHORITY, HTTP_P_COUNT };

struct http_store {
	struct cgn_buf text; /* its limit bounds the head's bytes */
	struct http_slot pseudo[HTTP_P_COUNT];
	struct http_slot *slots;
	struct http_field *fields; /* as many as slots */
	uint32_t n, cap, max_fields;
	struct http_head head;
};

/* The spare or a new one, empty, with these bounds. NULL without memory. */
struct http_store *http_store_get(struct http_store **spare, size_t max_bytes, uint32_t max_fields);
/* Back to the spare, or freed when it is there already or has grown large. NULL-safe. */
void http_store_put(struct http_store **spare, struct http_store **take);
void http_store_free(struct http_store **take);

/* Appending: false when a bound was hit. Names are lowered. Pieces of one name or value may come one by
 * one. */
bool http_store_field(struct http_store *s); /* begin a field */
bool http_store_name(struct http_store *s, const char *p, size_t n);
bool http_store_value(struct http_store *s, const char *p, size_t n);
bool http_store_pseudo(struct http_store *s, enum http_pseudo which, const char *p, size_t n);
/* Resolve all into s->head, whose status, version and content_length are the caller's to set. */
struct http_head *http_store_head(struct http_store *s);
/* Drop the field at |i| from the resolved head. */
void http_store_drop(struct http_store *s, size_t i);

/* connection, transfer-encoding, keep-alive, te, upgrade, proxy-*, content-length: never relayed, framing is
 * ours. */
bool http_field_is_hop(struct cgn_str name);
/* May field |i| be sent on: no hop-by-hop name, not named by a connection field, no byte that could end a
 * line. Names may be in any case. */
bool http_field_passes(const struct http_field *fields, size_t n, size_t i);
/* HTTP/1 lines for those fields that pass, and how many bytes they take at most. */
void http_fields_write(struct cgn_buf *b, const struct http_field *fields, size_t n);
void http_field_write(struct cgn_buf *b, struct cgn_str name, struct cgn_str value);
size_t http_fields_bytes(const struct http_field *fields, size_t n);
/* No control byte: safe to send as a value, a path or an authority. */
bool http_text_is_clean(struct cgn_str s);
bool http_name_is_token(struct cgn_str s);
