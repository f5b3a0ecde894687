/* SPDX-License-Identifier: Apache-2.0 */
/* kvbulk: the messages between cgn-kvcached and the programs of its node: values are not sent, the memory
 * that they lie in is handed over. Pure; any thread. Allocates nothing: read fields borrow from the message.
 *
 * A message is one packet of a SOCK_SEQPACKET Unix socket, at most KVBULK_MAX_MESSAGE bytes, little-endian
 * throughout:
 *   u8 type, u8 flags, u16 count, u32 budget_ms (GET with KVBULK_PEERS; else 0), u64 id, then, with
 *   KVBULK_TENANT (from version 2 on), u16 and the tenant for whom this is, then by type (below), then |count| items where
 *   the type has a list. Without a tenant nothing is asked of other sites, and a value stays at this one. Client: HELLO first, and nothing else before
 *   WELCOME. Each further request has an id of the client's choice, which its answer repeats:
 *   HELLO u64 KVBULK_MAGIC, u32 version: the newest that the client speaks -> WELCOME with the version that both
 *   speak, or FAILED and the end
 *   LOOKUP keys; KVBULK_PEERS -> INFOS, one a key
 *   GET key; KVBULK_PEERS (budget_ms: what not having it costs, so that a peer is asked only if that is
 *   faster; 0: not told), KVBULK_VERIFY
 *           (the store shall look at the checksum); leases, as RELEASE's, that end first -> VALUE
 *   RELEASE lease ids (u64) no answer
 *   PUT key, u64 size, u64 checksum, u64 offset, u32 tokens, u64 created, u64 expires (Unix ms; created 0:
 *   now),
 *           u16 and model, u16 and name, bytes: the value, or, with KVBULK_FILE, none: a descriptor comes
 *           along, to be read from |offset|;
 *           KVBULK_CHECKSUM (|checksum| is one), KVBULK_IF_ABSENT -> INFOS, of one
 *   REMOVE keys -> COUNT
 *   PIN key, u64 for_ms (0: unpin; 2^64-1: until unpinned) -> INFOS, of one
 *   WATCH KVBULK_STOP: no more -> CHANGES, again and again Server:
 *   WELCOME u32 version, u32 max_calls, u32 max_leases, u32 max_inline, u64 lease_bytes, u64 lease_ms, u64
 *   arena_bytes; a descriptor comes
 *           along, to be mapped read-only
 *   INFOS infos: u64 size, u64 checksum, u32 tokens, u32 tiers (bit 31: pinned), u64 created, u64 expires
 *   VALUE u64 lease, an info, u16 and model, u16 and name, then extents of the arena: u64 offset, u64 length;
 *           KVBULK_OWN: of a descriptor that comes along, where there is no arena (arena_bytes 0)
 *   COUNT u32
 *   FAILED u32 gRPC status, u16 and a sentence
 *   CHANGES changes: key, u32 tiers, u64 size; KVBULK_RESET (forget earlier changes), KVBULK_SYNCED (all was
 *   told once) A key is 32 bytes of digest and a u32 segment. */
#pragma once
#include "base/core/buf.h"
#include "base/core/err.h"
#include "policy/kv/block/block.h"

#define KVBULK_VERSION     2
#define KVBULK_MAGIC       UINT64_C(0x4b4c42564b4e4743) /* "CGNKVBLK" */
#define KVBULK_MAX_MESSAGE 65536
#define KVBULK_MAX_INLINE  61440 /* bytes of a value in a message */
#define KVBULK_MAX_ITEMS   1280  /* Items of a list. */

/* Return the version to speak with a side that says |theirs|, the newest that it speaks; 0: there is none. */
static inline uint32_t kvbulk_common(uint32_t theirs)
{
	return theirs < KVBULK_VERSION ? theirs : KVBULK_VERSION;
}

enum kvbulk_type {
	KVBULK_HELLO = 1,
	KVBULK_LOOKUP,
	KVBULK_GET,
	KVBULK_RELEASE,
	KVBULK_PUT,
	KVBULK_REMOVE,
	KVBULK_PIN,
	KVBULK_WATCH,
	KVBULK_WELCOME = 65,
	KVBULK_INFOS,
	KVBULK_VALUE,
	KVBULK_COUNT,
	KVBULK_FAILED,
	KVBULK_CHANGES,
};
/* Flags, by type. */
#define KVBULK_PEERS     1U /* LOOKUP, GET */
#define KVBULK_VERIFY    2U /* GET */
#define KVBULK_CHECKSUM  1U /* PUT */
#define KVBULK_IF_ABSENT 2U
#define KVBULK_FILE      4U
#define KVBULK_STOP      1U /* WATCH */
#define KVBULK_OWN       1U /* VALUE */
#define KVBULK_RESET     1U /* CHANGES */
#define KVBULK_SYNCED    2U
#define KVBULK_TENANT    128U /* LOOKUP, GET, PUT */

struct kvbulk_terms {
	/* calls: further ones are not read until some are answered */
	uint32_t max_calls, max_leases, max_inline;
	uint64_t lease_bytes, lease_ms, arena_bytes;
};
struct kvbulk_extent {
	uint64_t offset, length;
};
/* Any message; which fields count says the type. */
struct kvbulk_msg {
	enum kvbulk_type type;
	uint8_t flags;
	uint16_t count;
	uint64_t id;
	uint32_t version;           /* HELLO, WELCOME */
	struct kvbulk_terms terms;  /* WELCOME */
	struct block_key key;       /* GET, PUT, PIN */
	struct block_info info;     /* VALUE; PUT: size, checksum, tokens, created and expires */
	struct cgn_str tenant;      /* KVBULK_TENANT */
	struct cgn_str model, name; /* VALUE, PUT */
	uint64_t offset;            /* PUT */
	uint32_t budget_ms;         /* GET */
	uint64_t for_ms;            /* PIN */
	uint64_t lease;             /* VALUE */
	uint32_t number;            /* COUNT; FAILED: gRPC status */
	/* FAILED: the sentence. PUT: the value's bytes. Else: the items of the list */
	struct cgn_str text;
};

/* Read one message. Fails with CGN_INVALID and the reason: an unknown type or flag, a truncated message,
 * bytes left over, a list shorter or longer than its count, a bound exceeded, or a value of the wrong
 * length. */
CGN_RC kvbulk_read(struct cgn_str bytes, struct kvbulk_msg *out, struct cgn_err *err);
/* Item |i| < count of what kvbulk_read gave: LOOKUP, REMOVE; RELEASE, GET; INFOS; VALUE; CHANGES. */
struct block_key kvbulk_key(const struct kvbulk_msg *m, size_t i);
uint64_t kvbulk_lease(const struct kvbulk_msg *m, size_t i);
struct block_info kvbulk_info(const struct kvbulk_msg *m, size_t i);
struct kvbulk_extent kvbulk_extent(const struct kvbulk_msg *m, size_t i);
struct block_change kvbulk_change(const struct kvbulk_msg *m, size_t i);

/* Append all of |m| but a list's items, which are to follow: |m->count| of them. */
void kvbulk_write(const struct kvbulk_msg *m, struct cgn_buf *out);
void kvbulk_add_key(struct cgn_buf *out, const struct block_key *k);
void kvbulk_add_lease(struct cgn_buf *out, uint64_t id);
void kvbulk_add_info(struct cgn_buf *out, const struct block_info *i);
void kvbulk_add_extent(struct cgn_buf *out, struct kvbulk_extent e);
void kvbulk_add_change(struct cgn_buf *out, const struct block_change *c);
