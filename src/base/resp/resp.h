/* SPDX-License-Identifier: Apache-2.0 */
/* resp: Redis' wire format, version 2 (redis.io/docs/reference/protocol-spec). Values are read from borrowed
 * bytes in place: no allocation, no recursion, and no count is believed before its elements came. One thread
 * for each value. */
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
	RESP_ARRAY,  /* *: |n| elements follow */
	RESP_NIL,    /* $-1, *-1 */
};
struct resp_value {
	enum resp_type type;
	struct cgn_str text; /* The text of a text, an error or a bulk; borrowed. */
	int64_t number;
	size_t n; /* Elements of an array; bytes of a bulk. */
};

#define RESP_MAX_BULK     ((size_t)512 << 20) /* As in Redis. */
#define RESP_MAX_ELEMENTS ((size_t)1 << 20)

enum resp_outcome { RESP_GOT, RESP_MORE /* A part of the value is missing yet. */, RESP_BAD };
/* Take one value from the front of |*rest|; of an array only the head. On RESP_MORE and RESP_BAD |*rest| is
 * unchanged; |*why| describes the fault of a bad value. */
enum resp_outcome resp_take(struct cgn_str *rest, struct resp_value *out, const char **why);
/* As resp_take, but of a bulk only the head too: |n| bytes and CRLF follow. */
enum resp_outcome resp_take_head(struct cgn_str *rest, struct resp_value *out, const char **why);
/* Set |*out| to the bytes of the value at the front, with all its elements. */
enum resp_outcome resp_whole(struct cgn_str bytes, size_t *out, const char **why);

/* Write the head of an array. A command is an array of bulks. */
void resp_put_array(struct cgn_buf *b, size_t n);
void resp_put_bulk(struct cgn_buf *b, struct cgn_str s);
