/* SPDX-License-Identifier: Apache-2.0 */
/* json: strict RFC 8259. A parser over borrowed bytes (one pass, no allocation, depth-bounded), walkers over
 * what it accepted, a writer. Keys may repeat. Raw control characters, bad escapes, lone surrogates, invalid
 * UTF-8, NaN, leading zeros, a byte order mark and trailing bytes are errors with their place. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define JSON_MAX_DEPTH 128

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* A value inside the document: its type and its raw bytes, quotes and brackets included. */
struct json_val {
	enum json_type type;
	struct cgn_str raw;
};

/* Check the whole document once; afterwards the walkers below may be used on it without errors. INVALID is
 * the only failure: err->msg says "line L column C: what" (columns count characters) and *offset, if not
 * NULL, the byte. */
CGN_RC json_parse(struct cgn_str text, struct json_val *out, size_t *offset, struct cgn_err *err);

/* Walkers: valid only on values that json_parse accepted. */
struct json_iter {
	struct cgn_str rest;
};
struct json_iter json_iter_of(struct json_val container);
bool json_next_elem(struct json_iter *it, struct json_val *elem);
/* |key| is raw (still escaped, without quotes). */
bool json_next_member(struct json_iter *it, struct cgn_str *key, struct json_val *value);
/* Last member named |key| (the one that engines honour); false when absent or not an object. */
bool json_get(struct json_val object, const char *key, struct json_val *out);
/* Several keys in one walk: out[i] is the last member named keys[i], raw.p == NULL when absent or |object| is
 * none. */
void json_pick(struct json_val object, const char *const *keys, size_t n, struct json_val *out);

/* Scalars. The string is unescaped into |a|; a string without escapes is borrowed from the document. p ==
 * NULL on exhaustion. */
struct cgn_str json_str(struct json_val v, struct cgn_arena *a);
/* Append the unescaped text to |b|. */
void json_str_to(struct json_val v, struct cgn_buf *b);
/* The unescaped text piece by piece, in order, without a copy; a piece is borrowed until the call returns. */
typedef void (*json_piece_fn)(void *arg, struct cgn_str piece);
void json_str_pieces(struct json_val v, json_piece_fn take, void *arg);
bool json_bool(struct json_val v, bool fallback);
/* a non-negative integer that fits, "1.0" and "1e3" included */
bool json_u64(struct json_val v, uint64_t *out);
/* false when not a number, or outside of what a double holds */
bool json_f64(struct json_val v, double *out);
/* Convenience over json_get: fallback when absent or of another type. */
/* {NULL,0} when absent */
struct cgn_str json_get_str(struct json_val object, const char *key, struct cgn_arena *a);
uint64_t json_get_u64(struct json_val object, const char *key, uint64_t fallback);
double json_get_f64(struct json_val object, const char *key, double fallback);
bool json_get_bool(struct json_val object, const char *key, bool fallback);

/* Writer: commas and nesting are its business. Errors are the buffer's. */
struct json_out {
	struct cgn_buf *b;
	uint8_t depth;
	bool comma;
};
static inline struct json_out json_out_to(struct cgn_buf *b)
{
	return (struct json_out){.b = b};
}
void json_open(struct json_out *o, char bracket);  /* '{' or '[' */
void json_close(struct json_out *o, char bracket); /* '}' or ']' */
void json_key(struct json_out *o, const char *key);
/* A key and its value. */
void json_key_str(struct json_out *o, const char *key, struct cgn_str s);
void json_key_z(struct json_out *o, const char *key, const char *z);
void json_key_u64(struct json_out *o, const char *key, uint64_t v);
void json_key_f64(struct json_out *o, const char *key, double v);
void json_put_str(struct json_out *o, struct cgn_str s); /* escapes; invalid UTF-8 becomes U+FFFD */
void json_put_z(struct json_out *o, const char *z);
void json_put_u64(struct json_out *o, uint64_t v);
void json_put_i64(struct json_out *o, int64_t v);
void json_put_f64(struct json_out *o, double v); /* shortest that reads back; null when not finite */
void json_put_bool(struct json_out *o, bool v);
void json_put_null(struct json_out *o);
void json_put_raw(struct json_out *o, struct cgn_str json); /* trusted, already JSON */
