/* SPDX-License-Identifier: Apache-2.0 */
/* resp: Redis' wire format, version 2 (redis.io/docs/reference/protocol-spec). Values are read from borrowed
 * bytes as they lie there, with nothing allocated, nothing recursive, and no count believed before its
 * elements came. One thread each. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/str.h"

enum resp_type {
	RESP_TEXT,   /* + */
	RESP_ERROR,  /* - */
	RESP_NUMBER, /* : */
	RESP_BULK,   /* $ */
	RESP_ARRAY,  /* *: its |n| elements follow */
	RESP_NIL,    /* $-1, *-1 */
};
struct resp_value {
	enum resp_type type;
	struct cgn_str text; /* of a text, an error, a bulk; borrowed */
	int64_t number;
	size_t n; /* of an array: elements; of a bulk: bytes */
};

#define RESP_MAX_BULK     ((size_t)512 << 20) /* as Redis has it */
#define RESP_MAX_ELEMENTS ((size_t)1 << 20)

enum resp_outcome { RESP_GOT, RESP_MORE /* a piece of it is still to come */, RESP_BAD };
/* Take one value from the front of |*rest|, of an array its head alone. On RESP_MORE and RESP_BAD |*rest| is
 * as it was; |*why| says what is wrong with a bad one. */
enum resp_outcome resp_take(struct cgn_str *rest, struct resp_value *out, const char **why);
/* The same, but of a bulk its head alone too: its |n| bytes and CRLF follow. */
enum resp_outcome resp_take_head(struct cgn_str *rest, struct resp_value *out, const char **why);
/* How many bytes the value at the front has, with all that it holds. */
enum resp_outcome resp_whole(struct cgn_str bytes, size_t *out, const char **why);

/* A command is an array of bulks. */
void resp_put_array(struct cgn_buf *b, size_t n);
void resp_put_bulk(struct cgn_buf *b, struct cgn_str s);
