/* SPDX-License-Identifier: Apache-2.0 */
/* kvpeer: transfers blocks of KV cache between the stores of nodes, over QUIC with mutual TLS. Speaks
 * policy/kv/kvframe.
 *
 * Each store dials each other store, keeps one connection to it, and receives on it what the other store
 * holds. So a lookup of a block asks no peer. A fetch asks the nearest peer that should have the block, and
 * the next one when that peer is busy, silent, dead or wrong. Values are written straight into the store's
 * memory, and no reader sees them before their checksum was compared.
 *
 * Stores of another site have a CA and a port of their own: the port and the address say which site it is,
 * and no other CA is believed there. They are told and sent only blocks that policy/kv/kvsite lets go there, are
 * asked only for blocks of tenants that it names, and their blocks are taken only if they name tenant and
 * model too.
 *
 * All functions except kvpeer_has belong to the loop. Bounds: KVPEER_MAX peers; KVPEER_MAX_GUESTS connections
 * from other stores; KVPEER_MAX_FETCHES blocks fetched at once, within the budget of the RAM tier;
 * KVPEER_MAX_ASKERS callers; egress_streams values sent at once; index_bytes for what peers hold, from which
 * the entries that were not asked for longest are evicted. An entry takes 20 to 40 bytes in memory, and 8 on
 * the wire. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/kv.pb-c.h"
#include "io/net/quic/quic.h"
#include "io/os/loop/loop.h"
#include "joint/kv/kvstore/kvstore.h"
#include "joint/who/access/access.h"
#include "policy/kv/kvfetch/kvfetch.h"
#include "policy/kv/kvsite/kvsite.h"

#define KVPEER_MAX          256
#define KVPEER_MAX_GUESTS   512
#define KVPEER_MAX_FETCHES  1024
#define KVPEER_MAX_ASKERS   16384
#define KVPEER_MAX_ATTEMPTS 8 /* peers asked for one block */

struct telemetry;
struct kvpeer;
/* Another site; its name and its lists are those of cfg.sites, at the same place. */
struct kvpeer_site_cfg {
	const char *listen;    /* UDP, host:port, for this site alone; NULL: it is only dialled */
	struct tls_ctx *tls;   /* certificate of the node, and CA of the site; a reference is kept */
	const char *peer_name; /* name in the certificates of its stores; borrowed; NULL: their address */
};
struct kvpeer_cfg {
	struct kvstore *store;
	struct telemetry *telemetry; /* borrowed */
	const char *listen;          /* UDP, host:port */
	struct tls_ctx *tls;         /* certificate of the node and CA of the cluster; a reference is kept */
	/* Other stores need kv.read to fetch from this one, and kv.write for this one to fetch from them, as their blocks
	 * become this store's. Borrowed; NULL: every certificate of the CA will do. */
	struct access *access;
	const char *peer_name; /* name in the certificates of peers; borrowed; NULL: their address */
	const char *node_id, *rack, *region; /* this node; copied; rack and region may be NULL */
	size_t index_bytes;                  /* at least kvpeer_least_index */
	unsigned readers;                    /* threads that may call kvpeer_has at once */
	uint64_t egress_bytes_per_second;    /* 0: no limit */
	unsigned egress_streams;             /* values that are sent at once */
	/* The least time without a byte after which another peer is asked as well; 0: as kvfetch_patience. */
	cgn_nsec least_patience;
	const struct kvsites *sites; /* as of the store; borrowed; NULL: there are no other sites */
	const struct kvpeer_site_cfg *site_cfgs; /* as many */
};
size_t kvpeer_least_index(unsigned readers);
/* Listen and start. CGN_ADDRESS_IN_USE, CGN_INVALID, CGN_TLS, CGN_NO_MEMORY. */
CGN_RC kvpeer_open(struct cgn_loop *l, const struct kvpeer_cfg *cfg, struct kvpeer **out,
	struct cgn_err *err);
/* Close everything. Fetches end with CGN_CANCELLED before the call returns; the loop must turn once more. */
void kvpeer_close(struct kvpeer **take);
unsigned kvpeer_port(const struct kvpeer *kp);
/* Start no fetch and serve no new request. kvpeer_is_idle says when all that runs has ended. */
void kvpeer_drain(struct kvpeer *kp);
bool kvpeer_is_idle(const struct kvpeer *kp);

/* ---- members ---- */
/* Add or update a peer. |id| NULL: the peer is known by its address alone; the name that it gives itself is
 * only shown. A peer that turns out to be this node, or to be known twice, is left alone. Beyond KVPEER_MAX
 * the peer is ignored, and logged. */
void kvpeer_member(struct kvpeer *kp, const char *id, const char *address, const char *rack,
	const char *region);
void kvpeer_member_gone(struct kvpeer *kp, const char *id);
/* Add a peer of another site, known by its address alone. */
void kvpeer_site_member(struct kvpeer *kp, unsigned site, const char *address);

/* ---- lookup ---- */
struct kvpeer_where {
	const char *node; /* the nearest peer that has the block; valid until kvpeer_close */
	unsigned tiers;   /* tiers of that peer */
};
/* Find the nearest peer that holds |k|, of this site or of |sites|, a bit each. Any thread, up to cfg.readers at once; more get false. The answer may
 * be some 20 ms old, and is about another block once in 2^64. */
bool kvpeer_has(struct kvpeer *kp, const struct block_key *k, uint16_t sites, struct kvpeer_where *out);

/* ---- fetching ---- */
struct kvpeer_ask {
	/* Tokens of the block, and the cost of computing one; 0: not known. */
	uint32_t tokens;
	double ms_per_token;
	/* Waiting longer than this is of no use, as recomputing is faster. 0: not known, 30 s at most. */
	uint32_t budget_ms;
	uint8_t priority; /* 0 (first) to 7 */
	uint16_t sites;   /* Other sites whose stores may be asked (kvsites_of_tenant), a bit each */
};
/* Fetch a block from a peer. |done| runs once, never inline, and owns |*take|, a verified block. NULL: |why|
 * is CGN_NOT_FOUND (no peer has it, or recomputing is faster), CGN_OVERLOADED (the peers that have it are
 * busy, or this store has no room), CGN_DEADLINE, CGN_UNAVAILABLE (peers failed) or CGN_STORAGE (the value
 * was damaged). The block stays in the store when kvfetch_keep says so. Callers of the same block share one
 * fetch. Fails at once with CGN_NOT_FOUND, CGN_OVERLOADED (too many) or CGN_UNAVAILABLE (draining). */
struct kvpeer_fetch;
typedef kvstore_read_done kvpeer_fetch_done;
CGN_RC kvpeer_fetch(struct kvpeer *kp, const struct block_key *k, const struct kvpeer_ask *ask,
	kvpeer_fetch_done done, void *user, struct kvpeer_fetch **out, struct cgn_err *err);
void kvpeer_fetch_cancel(struct kvpeer_fetch **take); /* NULL-safe; |done| does not run */

/* ---- status ---- */
/* Return the number of peers without those that are left alone. |*ready|: how many of them are ready. */
size_t kvpeer_count(const struct kvpeer *kp, size_t *ready);

struct kvpeer_overview { /* texts are valid until the next turn of the loop */
	const char *node, *rack, *region;
	unsigned port;
	size_t guests, serving, fetching; /* connections of guests; values that are sent and fetched now */
	uint64_t owed_bytes;              /* bytes of values that were admitted and not sent yet */
	uint64_t index_blocks, index_bytes, index_max_bytes;
	struct quic_stats quic;
	struct cgn_err refusal; /* the last failed handshake of either side; CGN_FINE: none failed */
	cgn_nsec refused_at;
};
void kvpeer_overview(const struct kvpeer *kp, struct kvpeer_overview *out);

/* The state of another site, for operators. */
struct kvpeer_site_view {
	const char *name;
	unsigned port; /* where it comes in; 0: nowhere */
	bool takes;    /* both of its lists have entries: something may go there */
	size_t peers, ready, guests;
	uint64_t bytes_in, bytes_out;
	uint64_t
		withheld[KVSITE_WHYS]; /* times that a block was not told, sent or asked for, by the reason */
	struct quic_stats quic;
	struct cgn_err refusal; /* as in kvpeer_overview */
	cgn_nsec refused_at;
};
size_t kvpeer_sites(const struct kvpeer *kp);
void kvpeer_site(const struct kvpeer *kp, size_t i, struct kvpeer_site_view *out);

/* Fill overview, peers and sites. The texts are |kp|'s, valid until the next turn of the loop, or of |t|. */
void kvpeer_fill(const struct kvpeer *kp, struct pb_tree *t, Cognitora__V1__KvPeersResponse *to);
