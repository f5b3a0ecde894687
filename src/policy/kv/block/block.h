/* SPDX-License-Identifier: Apache-2.0 */
/* block: the name of a block of KV cache and its metadata, in whatever store. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/core/str.h"
#include "base/digest/digest.h"
#include "policy/kv/block/tier.h"

#define BLOCK_MAX_BYTES  ((uint64_t)64 << 20)
#define BLOCK_MAX_MODEL  256  /* Bytes. */
#define BLOCK_MAX_NAME   1024 /* Bytes. */
#define BLOCK_MAX_TENANT 128  /* Bytes. */
#define BLOCK_SITES      16   /* Other sites that a store knows. */

struct block_key {
	struct digest digest;
	uint32_t segment;
};
static inline bool block_key_eq(const struct block_key *a, const struct block_key *b)
{
	return a->segment == b->segment && memcmp(&a->digest, &b->digest, sizeof a->digest) == 0;
}

struct block_meta {
	struct cgn_str model; /* Model of the KV cache; may be empty. */
	/* Name given by a client that does not use digests; the digest is derived from it. Otherwise
	 * empty. */
	struct cgn_str name;
	/* Tenant for whom it was computed, "-" for requests that need no key; empty: not known. */
	struct cgn_str tenant;
	uint32_t tokens;
	uint64_t created_unix_ms, expires_unix_ms; /* expires_unix_ms: 0 for never. */
};
/* The other sites that may have a block (policy/kv/kvsite), a bit each. Zero: none. */
struct block_leave {
	uint16_t may;
	uint16_t barred; /* Sites that may have blocks of its tenant, and none of its model. */
	bool owned;      /* The tenant is known. */
};
struct block_info {
	uint64_t size, checksum; /* checksum: XXH3-64. */
	uint32_t tokens;
	uint64_t created_unix_ms, expires_unix_ms;
	unsigned tiers; /* Mask of BLOCK_TIER_BIT(BLOCK_RAM) and BLOCK_TIER_BIT(BLOCK_SSD); 0: not held. */
	bool pinned;
	struct block_leave leave;
};
struct block_change {
	struct block_key key;
	unsigned tiers; /* 0: gone. */
	uint64_t size;
	struct block_leave leave;
};
