/* SPDX-License-Identifier: Apache-2.0 */
/* kvpeer: blocks of KV cache from one node's store to another's, over QUIC with mutual TLS. Speaks
 * policy/kvframe.
 *
 * Each store dials each other one and keeps one connection to it, and over it hears all the time what the
 * other holds. So asking who has a block asks nobody; a fetch goes to one that should have it, nearest first,
 * and to the next when that one is busy, silent, dead or wrong. Values are received straight into the store's
 * own memory, and count for nobody before their checksum was compared.
 *
 * All of it belongs to the loop but kvpeer_has, kvpeer_fetches. Bounds: KVPEER_MAX peers, KVPEER_MAX_GUESTS
 * that dialled us, KVPEER_MAX_FETCHES blocks fetched at once (in the RAM tier's budget), KVPEER_MAX_ASKERS
 * waiting for them; egress_streams values held while they are sent; index_bytes for what peers hold, where
 * what was not asked for longest is forgotten when there is more. What is heard is 8 bytes a block, 20 to 40
 * bytes in memory. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "io/loop/loop.h"
#include "io/quic/quic.h"
#include "joint/kvstore/kvstore.h"
#include "policy/kvfetch/kvfetch.h"

#define KVPEER_MAX         256
#define KVPEER_MAX_GUESTS  512
#define KVPEER_MAX_FETCHES 1024
#define KVPEER_MAX_ASKERS  16384
#define KVPEER_MAX_TRIES   8 /* peers asked for one block */

struct telemetry;
struct kvpeer;
struct kvpeer_cfg {
	struct kvstore *store;
	struct telemetry *telemetry; /* borrowed */
	const char *listen;          /* UDP, host:port */
	struct tls_ctx *tls;         /* the node's certificate and the cluster's CA; kept by reference */
	const char *node_id, *rack, *region; /* who we are; copied; rack and region may be NULL */
	size_t index_bytes;                  /* at least kvpeer_least_index */
	unsigned readers;                    /* threads that may be in kvpeer_has at once */
	uint64_t egress_bytes_per_second;    /* 0: no limit */
	unsigned egress_streams;             /* values sent at once */
};
size_t kvpeer_least_index(unsigned readers);
/* CGN_ADDRESS_IN_USE, CGN_INVALID, CGN_TLS, CGN_NO_MEMORY. */
CGN_RC kvpeer_open(struct cgn_loop *l, const struct kvpeer_cfg *cfg, struct kvpeer **out,
	struct cgn_err *err);
/* Fetches that are under way end with CGN_CANCELLED before it returns; the loop must turn once more. */
void kvpeer_close(struct kvpeer **take);
unsigned kvpeer_port(const struct kvpeer *kp);
/* No new fetches, nothing new is served; kvpeer_is_idle once nothing runs any more. */
void kvpeer_drain(struct kvpeer *kp);
bool kvpeer_is_idle(const struct kvpeer *kp);

/* ---- members ---- */
/* A store to know. The same |id| again: what changed counts. |id| NULL: known by its address alone; what it
 * calls itself is shown only. What turns out to be ourselves, or known twice, is left alone. Over KVPEER_MAX:
 * not taken, said in the log. */
void kvpeer_member(struct kvpeer *kp, const char *id, const char *address, const char *rack,
	const char *region);
void kvpeer_member_gone(struct kvpeer *kp, const char *id);

/* ---- who has it ---- */
struct kvpeer_where {
	const char *node; /* the nearest that has it; valid until kvpeer_close */
	unsigned tiers;   /* there */
};
/* Any thread, up to cfg.readers at once: beyond that it is false. What it says may be some 20 ms old, and of
 * another block in one of 2^64. */
bool kvpeer_has(struct kvpeer *kp, const struct block_key *k, struct kvpeer_where *out);

/* ---- fetching ---- */
struct kvpeer_ask {
	/* that the block stands for; with ms_per_token what computing them would cost; 0: not told */
	uint32_t tokens;
	double ms_per_token;
	/* what waiting longer than is of no use, since recomputing is faster; 0: not told, 30 s at most */
	uint32_t budget_ms;
	uint8_t priority; /* 0 first, to 7 */
};
/* |done| once, never inline; it owns |*take|, a block that was verified (NULL: |why|: CGN_NOT_FOUND nobody
 * has it, or recomputing it is faster; CGN_OVERLOADED those that have it are busy, or there is no room here;
 * CGN_DEADLINE; CGN_UNAVAILABLE they failed; CGN_STORAGE what came was not whole). It stays in the store when
 * that is worth it (kvfetch_keep). Who asks for what is being fetched waits for the same fetch. At once:
 * CGN_NOT_FOUND, CGN_OVERLOADED (too many), CGN_UNAVAILABLE (draining), CGN_NO_MEMORY. */
struct kvpeer_fetch;
typedef kvstore_read_done kvpeer_fetch_done;
CGN_RC kvpeer_fetch(struct kvpeer *kp, const struct block_key *k, const struct kvpeer_ask *ask,
	kvpeer_fetch_done done, void *user, struct kvpeer_fetch **out, struct cgn_err *err);
void kvpeer_fetch_cancel(struct kvpeer_fetch **take); /* NULL-safe; |done| does not come */

/* ---- what is known of them ---- */
/* How many peers there are, but for those that are left alone, and how many of them are ready. */
size_t kvpeer_count(const struct kvpeer *kp, size_t *ready);

struct kvpeer_overview { /* texts: until the next turn of the loop */
	const char *node, *rack, *region;
	unsigned port;
	size_t guests, serving, fetching; /* connections that others dialled; values sent and fetched now */
	uint64_t owed_bytes;              /* of those that are sent: admitted and not sent yet */
	uint64_t index_blocks, index_bytes, index_max_bytes;
	struct quic_stats quic;
	struct cgn_err refusal; /* the last handshake that failed, whoever began it; CGN_FINE: none has */
	cgn_nsec refused_at;
};
void kvpeer_overview(const struct kvpeer *kp, struct kvpeer_overview *out);

struct kvpeer_row {                 /* texts: as above */
	const char *id, *name;      /* as it is known; as it calls itself, empty before it was heard */
	struct cgn_str certificate; /* the name in it, verified; empty while there is no connection */
	const char *address, *rack, *region, *distance;
	const char *state; /* "down", "connecting", "reading" (what it holds), "ready", "left alone" */
	const char *why;   /* it is down or left alone; else empty */
	uint64_t blocks, rtt_us, first_byte_us, bytes_per_second;
	uint64_t fetched, fetched_bytes; /* from it */
	/* fetches that it could not serve, would not, did not end well, values that were not whole */
	uint64_t missed, busy, failed, corrupt;
	uint64_t served, served_bytes; /* to it, or to whoever dialled us under its name */
};
typedef void kvpeer_row_fn(void *user, const struct kvpeer_row *row);
void kvpeer_each(const struct kvpeer *kp, kvpeer_row_fn *fn, void *user);
/* Both as one object of JSON. */
struct json_out;
void kvpeer_describe(const struct kvpeer *kp, struct json_out *o);
