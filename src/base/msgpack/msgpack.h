/* SPDX-License-Identifier: Apache-2.0 */
/* msgpack: MessagePack (github.com/msgpack/msgpack, spec.md of 2017). A reader over borrowed bytes and a
 * writer into a buffer.
 *
 * The reader is a cursor with a sticky error: read as if all were well, ask once at the end (msgpack_bad). It
 * allocates nothing and does not recurse; a length that claims more than the bytes at hand is an error at
 * once (each element of a container takes a byte at least), so that a loop over a container's count is
 * bounded by the message. It is strict in types: asked for a number, a string is an error. Any number of
 * values may follow each other; msgpack_end tells that nothing is left. One thread each. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/str.h"

enum msgpack_type {
	MSGPACK_NONE, /* no byte is left, the first one is not in use (0xc1), or an error came before */
	MSGPACK_NIL,
	MSGPACK_BOOL,
	MSGPACK_INT, /* of any width and sign */
	MSGPACK_FLOAT,
	MSGPACK_STR,
	MSGPACK_BIN,
	MSGPACK_ARRAY,
	MSGPACK_MAP,
	MSGPACK_EXT,
};

struct msgpack_in {
	const uint8_t *begin, *at, *end;
	const char *bad; /* what was wrong first; NULL: nothing */
	size_t bad_at;   /* and at which byte */
};
struct msgpack_in msgpack_in_of(struct cgn_str bytes);
static inline bool msgpack_bad(const struct msgpack_in *in)
{
	return in->bad != NULL;
}
/* Nothing went wrong and nothing is left. */
static inline bool msgpack_end(const struct msgpack_in *in)
{
	return in->bad == NULL && in->at == in->end;
}
/* An error of the caller's: |what| must stay. Only the first one counts; every read is empty from then on. */
void msgpack_fault(struct msgpack_in *in, const char *what);
enum msgpack_type msgpack_peek(const struct msgpack_in *in); /* of the next value */

/* Each takes one value; 0, false or {NULL, 0} once there is an error. */
bool msgpack_get_nil(struct msgpack_in *in);     /* takes it if it is nil, else leaves it: no error */
uint64_t msgpack_get_u64(struct msgpack_in *in); /* a negative number is an error */
uint32_t msgpack_get_u32(struct msgpack_in *in);
int64_t msgpack_get_i64(struct msgpack_in *in);        /* so is one over INT64_MAX */
uint64_t msgpack_get_bits(struct msgpack_in *in);      /* an integer of either sign, in two's complement */
double msgpack_get_f64(struct msgpack_in *in);         /* integers too */
struct cgn_str msgpack_get_str(struct msgpack_in *in); /* borrowed; not checked to be UTF-8 */
struct cgn_str msgpack_get_bin(struct msgpack_in *in);
/* The count of elements (map: of pairs) that follow. */
uint32_t msgpack_get_array(struct msgpack_in *in);
uint32_t msgpack_get_map(struct msgpack_in *in);
/* One value whole, whatever it is and holds: its raw bytes. */
struct cgn_str msgpack_get_raw(struct msgpack_in *in);
static inline void msgpack_skip(struct msgpack_in *in)
{
	(void)msgpack_get_raw(in);
}

/* The writer: shortest forms, but for f64. Errors are the buffer's. A container's elements are written behind
 * it. */
void msgpack_put_nil(struct cgn_buf *b);
void msgpack_put_u64(struct cgn_buf *b, uint64_t v);
void msgpack_put_i64(struct cgn_buf *b, int64_t v);
void msgpack_put_f64(struct cgn_buf *b, double v);
void msgpack_put_str(struct cgn_buf *b, struct cgn_str s); /* at most UINT32_MAX bytes */
void msgpack_put_z(struct cgn_buf *b, const char *z);
void msgpack_put_bin(struct cgn_buf *b, struct cgn_str s);
void msgpack_put_array(struct cgn_buf *b, uint32_t n);
void msgpack_put_map(struct cgn_buf *b, uint32_t n);
