/* SPDX-License-Identifier: Apache-2.0 */
/* kvframe: the messages between block stores on QUIC streams, ALPN "cgn-kv/1". Pure; any thread. Everything
 * read is untrusted.
 *
 * A stream carries one exchange, opened by the side that asks. Both directions begin with a frame: type (u8),
 * 0 (u8), 0 (u16), length of the payload (u32), payload. Numbers are little-endian. A payload may be longer
 * than the known fields: the rest belongs to a later revision and is ignored. A changed meaning of the same
 * fields needs another ALPN.
 * - FETCH -> ANSWER, then ANSWER.length bytes of the value, then the end of the stream.
 * - SUBSCRIBE -> HELLO, then HOLDS for as long as the stream lives: a snapshot in pieces, then changes,
 *   numbered from 1. A side that reads an invalid frame ends the stream. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/kv/block/block.h"

#define KVFRAME_ALPN      "cgn-kv/1"
#define KVFRAME_HEAD      8
#define KVFRAME_MAX       ((size_t)48 * 1024) /* Bytes of a payload. */
#define KVFRAME_MAX_HOLDS 4096                /* Blocks in one HOLDS. */
#define KVFRAME_MAX_NAME  1024                /* Bytes of any text in a frame. */

/* 3 and 4 are unused. */
enum kvframe_type { KVFRAME_FETCH = 1, KVFRAME_ANSWER, KVFRAME_SUBSCRIBE = 5, KVFRAME_HELLO, KVFRAME_HOLDS };
const char *kvframe_type_text(enum kvframe_type t); /* "unknown" for an invalid type. */

/* ---- reading frames from a stream ---- */
struct kvframe {
	enum kvframe_type type;
	struct cgn_str payload; /* Borrowed until the next call. */
};
struct kvframe_in {
	struct cgn_buf buf; /* At most KVFRAME_HEAD + KVFRAME_MAX. */
	bool bad;           /* A read failed; nothing more is read. */
	bool whole;         /* The frame in |buf| was returned. */
};
void kvframe_in_init(struct kvframe_in *in);
void kvframe_in_fini(struct kvframe_in *in);
/* Take bytes from the front of |*rest| until a frame is complete (*got is true; call again for the next) or
 * they are used up. Fails with CGN_INVALID when no frame begins like this or the frame is longer than
 * KVFRAME_MAX. Memory for a partial frame grows with its bytes. */
CGN_RC kvframe_next(struct kvframe_in *in, struct cgn_str *rest, struct kvframe *out, bool *got,
	struct cgn_err *err);

/* Return the key's name in HOLDS: the first 8 bytes of the digest, mixed with the segment number unless it is
 * 0. Two keys may share it: HOLDS only says where to ask, the answer is exact. */
uint64_t kvframe_short(const struct block_key *k);

/* ---- payloads, written with the frame's head and read without it. Reads fail with CGN_INVALID and the
 * reason. ---- */
struct kvframe_fetch {
	struct block_key key;
	uint64_t offset, length; /* length 0: to the end. */
	uint32_t budget_ms;      /* Longest time that the asker waits; 0: not given. */
	uint8_t priority;        /* 0 (first) to 7. */
};
void kvframe_put_fetch(struct cgn_buf *out, const struct kvframe_fetch *f);
CGN_RC kvframe_read_fetch(struct cgn_str payload, struct kvframe_fetch *out, struct cgn_err *err);

enum kvframe_status {
	KVFRAME_OK,
	KVFRAME_NOT_FOUND,
	KVFRAME_BUSY,    /* Ask again after wait_ms, or ask another peer. */
	KVFRAME_FAILED,  /* The value is held but can't be read. */
	KVFRAME_REFUSED, /* No such range. */
	KVFRAME_STATUSES
};
const char *kvframe_status_text(enum kvframe_status s);
struct kvframe_answer {
	enum kvframe_status status;
	uint32_t wait_ms;
	uint64_t size, checksum; /* The whole value; checksum: XXH3-64. */
	uint64_t offset, length; /* The bytes that follow, inside |size|. */
	uint32_t tokens;
	uint64_t created_unix_ms, expires_unix_ms;
	/* Borrowed. |tenant| is written only if it is not empty, as long as it is the last field. Empty: not known, or the peer is of a version that does not say it. */
	struct cgn_str model, name, tenant;
};
void kvframe_put_answer(struct cgn_buf *out, const struct kvframe_answer *a);
CGN_RC kvframe_read_answer(struct cgn_str payload, struct kvframe_answer *out, struct cgn_err *err);

/* Identity of a store: the payload of SUBSCRIBE and of HELLO. */
struct kvframe_who {
	uint64_t instance; /* Random number of this run. */
	struct cgn_str node, rack, region;
};
void kvframe_put_who(struct cgn_buf *out, enum kvframe_type type, const struct kvframe_who *w);
CGN_RC kvframe_read_who(struct cgn_str payload, struct kvframe_who *out, struct cgn_err *err);

/* A block in HOLDS. State, not a log: each entry replaces the block's earlier state. */
struct kvframe_hold {
	uint64_t block; /* kvframe_short of the key. */
	uint8_t tiers;  /* Mask of BLOCK_TIER_BIT; 0: gone. */
};
struct kvframe_holds {
	/* The last number plus 1; otherwise a message was lost and the subscription starts over. */
	uint64_t seq;
	bool reset;             /* A snapshot begins: forget everything before applying this. */
	bool synced;            /* The snapshot is complete. */
	uint64_t blocks, bytes; /* Approximate totals, from which the size of a fetch is estimated. */
	size_t n;
	const char *packed; /* 9 bytes per block, borrowed; read with kvframe_hold_at. */
};
struct kvframe_hold kvframe_hold_at(const struct kvframe_holds *h, size_t i);
/* Append |n| blocks of |list|; h->n and h->packed are ignored. */
void kvframe_put_holds(struct cgn_buf *out, const struct kvframe_holds *h, const struct kvframe_hold *list,
	size_t n);
CGN_RC kvframe_read_holds(struct cgn_str payload, struct kvframe_holds *out, struct cgn_err *err);
