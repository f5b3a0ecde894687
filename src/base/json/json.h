/* SPDX-License-Identifier: Apache-2.0 */
/* json: strict RFC 8259. A parser over borrowed bytes (one pass, no allocation, bounded depth), walkers over
 * parsed documents, and a writer. Keys may repeat. Raw control characters, bad escapes, lone surrogates,
 * invalid UTF-8, NaN, leading zeros, a byte order mark and trailing bytes are errors with their place. */
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

/* Return |text| without a byte order mark (UTF-8) at its beginning, which RFC 8259 lets a reader ignore. */
struct cgn_str json_skip_bom(struct cgn_str text);

/* Check the whole document once; the walkers below need no error handling afterwards. INVALID is the only
 * failure: err->msg says "line L column C: what" (columns count characters), and *offset, if not NULL, is the
 * byte. */
CGN_RC json_parse(struct cgn_str text, struct json_val *out, size_t *offset, struct cgn_err *err);

/* Walkers: valid only on values that json_parse accepted. */
struct json_iter {
	struct cgn_str rest;
};
struct json_iter json_iter_of(struct json_val container);
bool json_next_elem(struct json_iter *it, struct json_val *elem);
/* |key| is raw: with its escapes, without quotes. */
bool json_next_member(struct json_iter *it, struct cgn_str *key, struct json_val *value);
/* Return |raw|, a key of json_next_member, without its escapes: itself or in |room|. p is NULL when it has escapes
 * and is longer than JSON_KEY_MAX bytes. */
#define JSON_KEY_MAX 64
struct cgn_str json_key_plain(struct cgn_str raw, char room[JSON_KEY_MAX]);
/* Return true if |raw| stands for |key|, of at most JSON_KEY_MAX bytes: keys are never compared with their escapes. */
bool json_key_is(struct cgn_str raw, const char *key);
/* Find the last member named |key|, as engines do; false when there is none or |object| is not an object. */
bool json_get(struct json_val object, const char *key, struct json_val *out);
/* Return true if no object in |v|, however deep, has a member twice, or more than |most| members: the time grows with
 * the square of the members of an object. A key with escapes that is longer than JSON_KEY_MAX bytes counts as twice. */
bool json_is_unique(struct json_val v, size_t most);
#define JSON_UNIQUE_MAX 256 /* Largest |most|. */
#define JSON_PICK_MAX   64
/* Find at most JSON_PICK_MAX keys of at most JSON_KEY_MAX bytes in one walk: out[i] is the last member named keys[i]; its raw.p is NULL when there is
 * none or |object| is not an object. False: a member named by a key stands there twice. Readers of JSON differ in which one counts, so documents that
 * decide on permissions are refused then. */
bool json_pick(struct json_val object, const char *const *keys, size_t n, struct json_val *out);

/* Return the unescaped string, in |a|; a string without escapes is borrowed from the document. The result's p
 * is NULL on exhaustion. */
struct cgn_str json_str(struct json_val v, struct cgn_arena *a);
/* Append the unescaped text to |b|. */
void json_str_to(struct json_val v, struct cgn_buf *b);
/* Pass the unescaped text to |take| in order and in pieces, without a copy; a piece is borrowed until the
 * call returns. */
typedef void (*json_piece_fn)(void *arg, struct cgn_str piece);
void json_str_pieces(struct json_val v, json_piece_fn take, void *arg);
bool json_bool(struct json_val v, bool fallback);
/* Accepts a non-negative integer that fits, "1.0" and "1e3" included. */
bool json_u64(struct json_val v, uint64_t *out);
/* False for a value that is not a number, and for a number outside the range of a double. */
bool json_f64(struct json_val v, double *out);
/* As json_get; |fallback| is returned for an absent member and for one of another type. */
/* {NULL, 0} when absent. */
struct cgn_str json_get_str(struct json_val object, const char *key, struct cgn_arena *a);
uint64_t json_get_u64(struct json_val object, const char *key, uint64_t fallback);
double json_get_f64(struct json_val object, const char *key, double fallback);
bool json_get_bool(struct json_val object, const char *key, bool fallback);

/* The writer puts commas and closes what it opened. Errors are the buffer's. */
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
/* Write a key and its value. */
void json_key_str(struct json_out *o, const char *key, struct cgn_str s);
void json_key_z(struct json_out *o, const char *key, const char *z);
void json_key_u64(struct json_out *o, const char *key, uint64_t v);
void json_key_f64(struct json_out *o, const char *key, double v);
void json_key_bool(struct json_out *o, const char *key, bool v);
/* Write a key and open its object ('{') or its array ('['). */
void json_key_open(struct json_out *o, const char *key, char bracket);
void json_put_str(struct json_out *o, struct cgn_str s); /* Escapes; invalid UTF-8 becomes U+FFFD. */
void json_put_z(struct json_out *o, const char *z);
void json_put_u64(struct json_out *o, uint64_t v);
void json_put_i64(struct json_out *o, int64_t v);
/* The shortest form that reads back; null when |v| is not finite. */
void json_put_f64(struct json_out *o, double v);
void json_put_bool(struct json_out *o, bool v);
void json_put_null(struct json_out *o);
void json_put_raw(struct json_out *o, struct cgn_str json); /* |json| must be valid JSON. */
/* As json_put_raw, on one line, for formats whose lines are documents: ends of lines are white space in JSON, since
 * strings have none, and become spaces. */
void json_put_flat(struct json_out *o, struct cgn_str json);
