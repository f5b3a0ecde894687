/* SPDX-License-Identifier: Apache-2.0 */
/* proto, inside: the protobuf wire format. A reading cursor with a sticky error, and appenders to a
 * cgn_buf. */
#pragma once
#include "policy/node/proto/proto.h"

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
#define WIRE_TAG(field, type) ((uint32_t)(field) << 3 | (uint32_t)(type))

/* Once bad, every read gives zero and nothing moves: check once per message. */
struct wire_rd {
	const uint8_t *p, *end;
	bool bad;
};
static inline struct wire_rd wire_rd_of(struct cgn_str s)
{
	const uint8_t *p = (const uint8_t *)(s.n > 0 ? s.p : "");
	return (struct wire_rd){.p = p, .end = p + s.n};
}
uint64_t wire_varint(struct wire_rd *rd);
uint64_t wire_fixed64(struct wire_rd *rd);
struct cgn_str wire_bytes(struct wire_rd *rd);
/* Return the next field's tag; 0 at the end or after an error: while ((tag = wire_tag(&rd)) != 0). */
uint32_t wire_tag(struct wire_rd *rd);
void wire_skip(struct wire_rd *rd, uint32_t tag); /* Skip the value of an unknown field. */

size_t wire_varint_size(uint64_t v);
size_t wire_varint_to(uint8_t *to, uint64_t v); /* At most 10 bytes. */
/* As in proto3, empty strings and zeros are omitted. */
size_t wire_str_size(unsigned field, struct cgn_str s);
size_t wire_u64_size(unsigned field, uint64_t v);
size_t wire_fixed64_size(unsigned field, uint64_t v);
void wire_put_fixed64(struct cgn_buf *b, unsigned field, uint64_t v);
/* Write the tag and the length of a length-delimited field. */
void wire_put_head(struct cgn_buf *b, unsigned field, size_t n_bytes);
void wire_put_str(struct cgn_buf *b, unsigned field, struct cgn_str s);
void wire_put_u64(struct cgn_buf *b, unsigned field, uint64_t v);
void wire_put_fixed64s(struct cgn_buf *b, unsigned field, const uint64_t *v, size_t n);
size_t wire_u32s_size(unsigned field, const uint32_t *v, size_t n); /* Packed varints. */
void wire_put_u32s(struct cgn_buf *b, unsigned field, const uint32_t *v, size_t n);
