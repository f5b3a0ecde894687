/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/proto/proto_priv.h"

#include <endian.h>

static size_t bytes_left(const struct wire_rd *rd)
{
	return (size_t)(rd->end - rd->p);
}

uint64_t wire_varint(struct wire_rd *rd)
{
	uint64_t v = 0;
	for (unsigned shift = 0; shift < 70 && !rd->bad && rd->p < rd->end; shift += 7) {
		uint8_t c = *rd->p++;
		if (shift == 63 && c > 1)
			break;
		v |= (uint64_t)(c & 0x7f) << shift;
		if (c < 0x80)
			return v;
	}
	rd->bad = true;
	return 0;
}

uint64_t wire_fixed64(struct wire_rd *rd)
{
	uint64_t v;
	if (rd->bad || bytes_left(rd) < sizeof v) {
		rd->bad = true;
		return 0;
	}
	memcpy(&v, rd->p, sizeof v);
	rd->p += sizeof v;
	return le64toh(v);
}

struct cgn_str wire_bytes(struct wire_rd *rd)
{
	uint64_t n = wire_varint(rd);
	if (rd->bad || n > bytes_left(rd)) {
		rd->bad = true;
		return (struct cgn_str){NULL, 0};
	}
	struct cgn_str s = {(const char *)rd->p, (size_t)n};
	rd->p += n;
	return s;
}

uint32_t wire_tag(struct wire_rd *rd)
{
	if (rd->bad || rd->p == rd->end)
		return 0;
	uint64_t tag = wire_varint(rd);
	if (tag > UINT32_MAX || tag >> 3 == 0)
		rd->bad = true;
	return rd->bad ? 0 : (uint32_t)tag;
}

void wire_skip(struct wire_rd *rd, uint32_t tag)
{
	switch (tag & 7) {
	case WIRE_VARINT:
		(void)wire_varint(rd);
		return;
	case WIRE_FIXED64:
		(void)wire_fixed64(rd);
		return;
	case WIRE_BYTES:
		(void)wire_bytes(rd);
		return;
	case WIRE_FIXED32:
		if (!rd->bad && bytes_left(rd) >= 4)
			rd->p += 4;
		else
			rd->bad = true;
		return;
	default: /* Groups do not exist in proto3, and skipping them would need a stack. */
		rd->bad = true;
	}
}

size_t wire_varint_size(uint64_t v)
{
	size_t n = 1;
	while ((v >>= 7) != 0)
		n++;
	return n;
}

size_t wire_varint_to(uint8_t *to, uint64_t v)
{
	size_t n = 0;
	for (; v >= 0x80; v >>= 7)
		to[n++] = (uint8_t)(v | 0x80);
	to[n++] = (uint8_t)v;
	return n;
}

size_t wire_str_size(unsigned field, struct cgn_str s)
{
	return s.n == 0 ? 0 : wire_varint_size(WIRE_TAG(field, WIRE_BYTES)) + wire_varint_size(s.n) + s.n;
}

size_t wire_u64_size(unsigned field, uint64_t v)
{
	return v == 0 ? 0 : wire_varint_size(WIRE_TAG(field, WIRE_VARINT)) + wire_varint_size(v);
}

static size_t varints_size(const uint32_t *v, size_t n)
{
	size_t size = 0;
	for (size_t i = 0; i < n; i++)
		size += wire_varint_size(v[i]);
	return size;
}

size_t wire_u32s_size(unsigned field, const uint32_t *v, size_t n)
{
	return wire_str_size(field, (struct cgn_str){NULL, varints_size(v, n)});
}

static void put_varints(struct cgn_buf *b, uint32_t tag, uint64_t v)
{
	uint8_t *to = (uint8_t *)cgn_buf_room(b, 20);
	if (to == NULL)
		return;
	size_t n = wire_varint_to(to, tag);
	cgn_buf_grew(b, n + wire_varint_to(to + n, v));
}

void wire_put_head(struct cgn_buf *b, unsigned field, size_t n_bytes)
{
	put_varints(b, WIRE_TAG(field, WIRE_BYTES), n_bytes);
}

void wire_put_str(struct cgn_buf *b, unsigned field, struct cgn_str s)
{
	if (s.n == 0)
		return;
	wire_put_head(b, field, s.n);
	cgn_buf_str(b, s);
}

void wire_put_u64(struct cgn_buf *b, unsigned field, uint64_t v)
{
	if (v != 0)
		put_varints(b, WIRE_TAG(field, WIRE_VARINT), v);
}

size_t wire_fixed64_size(unsigned field, uint64_t v)
{
	return v == 0 ? 0 : wire_varint_size(WIRE_TAG(field, WIRE_FIXED64)) + sizeof v;
}

void wire_put_fixed64(struct cgn_buf *b, unsigned field, uint64_t v)
{
	uint8_t *to = v != 0 ? (uint8_t *)cgn_buf_room(b, 10 + sizeof v) : NULL;
	if (to == NULL)
		return;
	size_t n = wire_varint_to(to, WIRE_TAG(field, WIRE_FIXED64));
	v = htole64(v);
	memcpy(to + n, &v, sizeof v);
	cgn_buf_grew(b, n + sizeof v);
}

void wire_put_fixed64s(struct cgn_buf *b, unsigned field, const uint64_t *v, size_t n)
{
	if (n == 0)
		return;
	wire_put_head(b, field, n * sizeof *v);
	char *to = cgn_buf_room(b, n * sizeof *v);
	if (to == NULL)
		return;
	for (size_t i = 0; i < n; i++) {
		uint64_t le = htole64(v[i]);
		memcpy(to + i * sizeof le, &le, sizeof le);
	}
	cgn_buf_grew(b, n * sizeof *v);
}

void wire_put_u32s(struct cgn_buf *b, unsigned field, const uint32_t *v, size_t n)
{
	if (n == 0)
		return;
	size_t size = varints_size(v, n);
	wire_put_head(b, field, size);
	uint8_t *to = (uint8_t *)cgn_buf_room(b, size);
	if (to == NULL)
		return;
	for (size_t i = 0; i < n; i++)
		to += wire_varint_to(to, v[i]);
	cgn_buf_grew(b, size);
}
