/* SPDX-License-Identifier: Apache-2.0 */
/* kvframe: what block stores say to each other on QUIC streams, ALPN "cgn-kv/1". Pure; any thread; everything
 * read is foreign.
 *
 * A stream carries one exchange; who opens it asks. Both directions begin with a frame: type (u8), 0 (u8), 0
 * (u16), length of the payload (u32), payload. Numbers are little-endian. A payload may be longer than what
 * is known of it: what follows is of a later revision, and is not looked at. Another meaning of the same
 * fields is another ALPN.
 *   FETCH -> ANSWER, then ANSWER.length bytes of the value, then the end of the stream
 *   SUBSCRIBE -> HELLO, then HOLDS for as long as the stream lives: the snapshot in pieces, then what
 *   changes, numbered from 1 A side that reads what it can't understand ends the stream. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/block/block.h"

#define KVFRAME_ALPN      "cgn-kv/1"
#define KVFRAME_HEAD      8
#define KVFRAME_MAX       ((size_t)48 * 1024) /* bytes of a payload */
#define KVFRAME_MAX_HOLDS 4096                /* blocks in a HOLDS */
#define KVFRAME_MAX_NAME  1024                /* bytes of any text in a frame */

/* 3 and 4 mean nothing. */
enum kvframe_type { KVFRAME_FETCH = 1, KVFRAME_ANSWER, KVFRAME_SUBSCRIBE = 5, KVFRAME_HELLO, KVFRAME_HOLDS };
const char *kvframe_type_text(enum kvframe_type t); /* "unknown" for what is none */

/* ---- a stream's frames, as its bytes come ---- */
struct kvframe {
	enum kvframe_type type;
	struct cgn_str payload; /* borrowed until the next call */
};
struct kvframe_in {
	struct cgn_buf buf; /* at most KVFRAME_HEAD + KVFRAME_MAX */
	bool bad;           /* it failed once: nothing more is read */
	bool whole;         /* what is in |buf| was given out */
};
void kvframe_in_init(struct kvframe_in *in);
void kvframe_in_fini(struct kvframe_in *in);
/* Take bytes from the front of |*rest| until a frame is whole (*got true; call again for the next) or they
 * are used up. CGN_INVALID: no frame begins so, or one longer than KVFRAME_MAX; CGN_NO_MEMORY. Frames that do
 * not come whole take memory as their bytes come. */
CGN_RC kvframe_next(struct kvframe_in *in, struct cgn_str *rest, struct kvframe *out, bool *got,
	struct cgn_err *err);

/* What a HOLDS calls it: the first 8 bytes of the digest, of later segments mixed with their number. Two keys
 * may share it: it says where to ask, the answer says what there is. */
uint64_t kvframe_short(const struct block_key *k);

/* ---- payloads: written with their frame's head, read without it. Reading: CGN_INVALID, and what is wrong.
 * ---- */
struct kvframe_fetch {
	struct block_key key;
	uint64_t offset, length; /* length 0: to the end */
	uint32_t budget_ms;      /* that the asker waits at most; 0: not told */
	uint8_t priority;        /* 0 (first) to 7 */
};
void kvframe_put_fetch(struct cgn_buf *out, const struct kvframe_fetch *f);
CGN_RC kvframe_read_fetch(struct cgn_str payload, struct kvframe_fetch *out, struct cgn_err *err);

enum kvframe_status {
	KVFRAME_OK,
	KVFRAME_NOT_FOUND,
	KVFRAME_BUSY,    /* ask again after wait_ms, or somebody else */
	KVFRAME_FAILED,  /* it has it, and can't read it */
	KVFRAME_REFUSED, /* no such range */
	KVFRAME_STATUSES
};
const char *kvframe_status_text(enum kvframe_status s);
struct kvframe_answer {
	enum kvframe_status status;
	uint32_t wait_ms;
	uint64_t size, checksum; /* of the whole value: XXH3-64 */
	uint64_t offset, length; /* of the bytes that follow: inside |size| */
	uint32_t tokens;
	uint64_t created_unix_ms, expires_unix_ms;
	struct cgn_str model, name; /* borrowed */
};
void kvframe_put_answer(struct cgn_buf *out, const struct kvframe_answer *a);
CGN_RC kvframe_read_answer(struct cgn_str payload, struct kvframe_answer *out, struct cgn_err *err);

/* Who it is: the payload of SUBSCRIBE and of HELLO. */
struct kvframe_who {
	uint64_t instance; /* random, of this run */
	struct cgn_str node, rack, region;
};
void kvframe_put_who(struct cgn_buf *out, enum kvframe_type type, const struct kvframe_who *w);
CGN_RC kvframe_read_who(struct cgn_str payload, struct kvframe_who *out, struct cgn_err *err);

/* What it holds. State, not a log: what is told of a block is all that is known of it then. */
struct kvframe_hold {
	uint64_t block; /* kvframe_short */
	uint8_t tiers;  /* BLOCK_TIER_BIT; 0: gone */
};
struct kvframe_holds {
	uint64_t seq;           /* the last plus one; else something was lost: subscribe again */
	bool reset;             /* forget all before applying this: a snapshot begins */
	bool synced;            /* everything was told once */
	uint64_t blocks, bytes; /* that it holds in all, about: what a fetch of one will weigh */
	size_t n;
	const char *packed; /* 9 bytes each, borrowed: kvframe_hold_at */
};
struct kvframe_hold kvframe_hold_at(const struct kvframe_holds *h, size_t i);
/* Append |n| of |list|; h->n and h->packed are not looked at. */
void kvframe_put_holds(struct cgn_buf *out, const struct kvframe_holds *h, const struct kvframe_hold *list,
	size_t n);
CGN_RC kvframe_read_holds(struct cgn_str payload, struct kvframe_holds *out, struct cgn_err *err);
