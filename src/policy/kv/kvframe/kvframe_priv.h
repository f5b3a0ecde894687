/* SPDX-License-Identifier: Apache-2.0 */
/* kvframe, inside: little-endian reads with a sticky error. */
#pragma once
#include "policy/kv/kvframe/kvframe.h"

struct kvframe_rd {
	const char *p;
	size_t n;
	bool bad; /* A read went beyond the end and returned zeros. */
};
uint64_t kvframe_rd_le(struct kvframe_rd *r, size_t bytes);
static inline uint8_t kvframe_rd_u8(struct kvframe_rd *r)
{
	return (uint8_t)kvframe_rd_le(r, 1);
}
static inline uint16_t kvframe_rd_u16(struct kvframe_rd *r)
{
	return (uint16_t)kvframe_rd_le(r, 2);
}
static inline uint32_t kvframe_rd_u32(struct kvframe_rd *r)
{
	return (uint32_t)kvframe_rd_le(r, 4);
}
static inline uint64_t kvframe_rd_u64(struct kvframe_rd *r)
{
	return kvframe_rd_le(r, 8);
}
