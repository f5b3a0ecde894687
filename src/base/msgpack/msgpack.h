/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack: MessagePack (github.com/msgpack/msgpack, spec.md of 2017). A reader over borrowed bytes and a
 * writer into a buffer.
 *
 * The reader is a cursor with a sticky error: read all values, then check once (msgpack_bad). The reader
 * allocates nothing and does not recurse. A length beyond the bytes at hand is an error at once (each element
 * of a container takes a byte at least), so that a loop over a container's count is bounded by the message.
 * Types are strict: a string is an error where a number is asked for. Values may follow each other;
 * msgpack_end tells that nothing is left. One thread for each reader. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/str.h"

enum msgpack_type {
	MSGPACK_NONE, /* No byte is left, the first one is unassigned (0xc1), or an error came before. */
	MSGPACK_NIL,
	MSGPACK_BOOL,
	MSGPACK_INT, /* An integer of any width and sign. */
	MSGPACK_FLOAT,
	MSGPACK_STR,
	MSGPACK_BIN,
	MSGPACK_ARRAY,
	MSGPACK_MAP,
	MSGPACK_EXT,
};

struct msgpack_in {
	const uint8_t *begin, *at, *end;
	const char *bad; /* The first error; NULL: none. */
	size_t bad_at;   /* The byte of the first error. */
};
struct msgpack_in msgpack_in_of(struct cgn_str bytes);
static inline bool msgpack_bad(const struct msgpack_in *in)
{
	return in->bad != NULL;
}
/* True when there was no error and nothing is left. */
static inline bool msgpack_end(const struct msgpack_in *in)
{
	return in->bad == NULL && in->at == in->end;
}
/* Report an error of the caller's; |what| must outlive the reader. Only the first error is kept; every later
 * read is empty. */
void msgpack_fault(struct msgpack_in *in, const char *what);
enum msgpack_type msgpack_peek(const struct msgpack_in *in); /* The type of the next value. */

/* Each call takes one value, and returns 0, false or {NULL, 0} after an error. */
/* Takes the value only if it is nil; another value is not an error. */
bool msgpack_get_nil(struct msgpack_in *in);
uint64_t msgpack_get_u64(struct msgpack_in *in); /* A negative number is an error. */
uint32_t msgpack_get_u32(struct msgpack_in *in);
int64_t msgpack_get_i64(struct msgpack_in *in);        /* A number above INT64_MAX is an error. */
uint64_t msgpack_get_bits(struct msgpack_in *in);      /* An integer of either sign, in two's complement. */
double msgpack_get_f64(struct msgpack_in *in);         /* Accepts integers too. */
struct cgn_str msgpack_get_str(struct msgpack_in *in); /* Borrowed; not checked to be UTF-8. */
struct cgn_str msgpack_get_bin(struct msgpack_in *in);
/* Take the head of a container and return the count of its elements (of a map: its pairs), which follow. */
uint32_t msgpack_get_array(struct msgpack_in *in);
uint32_t msgpack_get_map(struct msgpack_in *in);
/* Take one value with everything in it; returns its raw bytes. */
struct cgn_str msgpack_get_raw(struct msgpack_in *in);
static inline void msgpack_skip(struct msgpack_in *in)
{
	(void)msgpack_get_raw(in);
}

/* The writer uses the shortest forms, except for f64. Errors are the buffer's. Write a container's elements
 * after its head. */
void msgpack_put_nil(struct cgn_buf *b);
void msgpack_put_u64(struct cgn_buf *b, uint64_t v);
void msgpack_put_i64(struct cgn_buf *b, int64_t v);
void msgpack_put_f64(struct cgn_buf *b, double v);
void msgpack_put_str(struct cgn_buf *b, struct cgn_str s); /* At most UINT32_MAX bytes. */
void msgpack_put_z(struct cgn_buf *b, const char *z);
void msgpack_put_bin(struct cgn_buf *b, struct cgn_str s);
void msgpack_put_array(struct cgn_buf *b, uint32_t n);
void msgpack_put_map(struct cgn_buf *b, uint32_t n);
