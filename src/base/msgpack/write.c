/* SPDX-License-Identifier: Apache-2.0 */
#include "base/core/err.h"
#include "base/msgpack/msgpack.h"

static void put_head(struct cgn_buf *b, unsigned first, uint64_t number, unsigned width)
{
	cgn_buf_char(b, (char)(uint8_t)first);
	for (unsigned i = width; i > 0; i--)
		cgn_buf_char(b, (char)(uint8_t)(number >> (8 * (i - 1))));
}

void msgpack_put_nil(struct cgn_buf *b)
{
	put_head(b, 0xc0, 0, 0);
}

void msgpack_put_u64(struct cgn_buf *b, uint64_t v)
{
	if (v < 0x80)
		put_head(b, (unsigned)v, 0, 0);
	else if (v <= UINT8_MAX)
		put_head(b, 0xcc, v, 1);
	else if (v <= UINT16_MAX)
		put_head(b, 0xcd, v, 2);
	else if (v <= UINT32_MAX)
		put_head(b, 0xce, v, 4);
	else
		put_head(b, 0xcf, v, 8);
}

void msgpack_put_i64(struct cgn_buf *b, int64_t v)
{
	if (v >= 0)
		msgpack_put_u64(b, (uint64_t)v);
	else if (v >= -32)
		put_head(b, (uint8_t)v, 0, 0);
	else if (v >= INT8_MIN)
		put_head(b, 0xd0, (uint64_t)v, 1);
	else if (v >= INT16_MIN)
		put_head(b, 0xd1, (uint64_t)v, 2);
	else if (v >= INT32_MIN)
		put_head(b, 0xd2, (uint64_t)v, 4);
	else
		put_head(b, 0xd3, (uint64_t)v, 8);
}

void msgpack_put_f64(struct cgn_buf *b, double v)
{
	uint64_t bits;
	memcpy(&bits, &v, sizeof bits);
	put_head(b, 0xcb, bits, 8);
}

void msgpack_put_str(struct cgn_buf *b, struct cgn_str s)
{
	CGN_MUST(s.n <= UINT32_MAX);
	if (s.n < 32)
		put_head(b, 0xa0 | (unsigned)s.n, 0, 0);
	else if (s.n <= UINT8_MAX)
		put_head(b, 0xd9, s.n, 1);
	else if (s.n <= UINT16_MAX)
		put_head(b, 0xda, s.n, 2);
	else
		put_head(b, 0xdb, s.n, 4);
	cgn_buf_str(b, s);
}

void msgpack_put_z(struct cgn_buf *b, const char *z)
{
	msgpack_put_str(b, cgn_str_of(z));
}

void msgpack_put_bin(struct cgn_buf *b, struct cgn_str s)
{
	CGN_MUST(s.n <= UINT32_MAX);
	if (s.n <= UINT8_MAX)
		put_head(b, 0xc4, s.n, 1);
	else if (s.n <= UINT16_MAX)
		put_head(b, 0xc5, s.n, 2);
	else
		put_head(b, 0xc6, s.n, 4);
	cgn_buf_str(b, s);
}

static void put_container(struct cgn_buf *b, unsigned small, unsigned large, uint32_t n)
{
	if (n < 16)
		put_head(b, small | n, 0, 0);
	else if (n <= UINT16_MAX)
		put_head(b, large, n, 2);
	else
		put_head(b, large + 1, n, 4);
}

void msgpack_put_array(struct cgn_buf *b, uint32_t n)
{
	put_container(b, 0x90, 0xdc, n);
}

void msgpack_put_map(struct cgn_buf *b, uint32_t n)
{
	put_container(b, 0x80, 0xde, n);
}
