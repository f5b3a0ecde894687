/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of kvpeer. pool.c: peers, guests and their connections · site.c: which site they are of · hear.c: the stream on which a peer
 * reports what it holds · find.c: the index of what peers hold · fetch.c, get.c, attempt.c (get_priv.h):
 * fetching a block · tell.c: what this store holds, reported to guests · serve.c: requests of guests ·
 * view.c: status.
 *
 * A peer is a store that this store dials and asks. A guest is a connection from another store, which asks
 * this one. */
#pragma once
#include <stdatomic.h>

#include "base/core/list.h"
#include "io/os/loop/backoff.h"
#include "joint/kv/kvpeer/kvpeer.h"
#include "joint/kv/kvpeer/site_priv.h"
#include "policy/kv/kvframe/kvframe.h"
#include "policy/kv/kvindex/kvindex.h"

#define KVPEER_TAG       0x4b505001U
#define KVPEER_PEER_TAG  0x4b505002U
#define KVPEER_GUEST_TAG 0x4b505003U
#define KVPEER_SERVE_TAG 0x4b505004U
#define KVPEER_GET_TAG   0x4b505005U
#define KVPEER_FETCH_TAG 0x4b505006U

#define KVPEER_FETCH_BUCKETS 256
#define NO_INDEX_ID          UINT16_MAX
#define KVPEER_MAX_NAMES     4096
#define KVPEER_GHOSTS        4096 /* remembered fetches, 4 bytes each */

/* Application codes of closed streams and connections. */
enum kvpeer_code {
	KVPEER_CODE_FINE,
	KVPEER_CODE_NOT_UNDERSTOOD,
	KVPEER_CODE_ENOUGH,
	KVPEER_CODE_SLOW,
	KVPEER_CODE_SELF,
	KVPEER_CODE_FORBIDDEN
};

/* Names of nodes. A name that kvpeer_has returned is valid until kvpeer_close, so names are freed at the
 * end. */
struct kvpeer_name {
	struct kvpeer_name *next;
	char z[];
};

/* The part of a peer that threads in kvpeer_has read. */
struct kvpeer_slot {
	_Atomic uint16_t index_id; /* NO_INDEX_ID: none */
	_Atomic uint8_t distance, site;
	_Atomic(const char *) name;
};
struct kvpeer_reader {
	_Atomic bool taken;
	struct kvindex_reader *reader;
};

enum peer_state {
#define PEER(id, exits, why) PEER_##id,
#include "joint/kv/kvpeer/states.def"
};

struct kvpeer_peer {
	uint32_t tag;
	enum peer_state state;
	struct cgn_link link;
	struct kvpeer *kp;
	struct kvpeer_site *site;
	unsigned slot;
	bool by_hand; /* known by its address alone */
	char *id, *address;
	char *rack, *region; /* as membership says, or as the peer says */
	enum kvfetch_distance distance;
	/* connection */
	struct quic_conn *conn;
	struct quic_stream *hears;
	struct kvframe_in in;
	struct cgn_timer timer; /* dials again */
	struct cgn_backoff backoff;
	struct cgn_err why; /* why the state is not READY */
	bool trouble_said;
	/* holdings */
	uint64_t instance, seq;
	bool synced;
	uint16_t index_id;
	uint64_t mean_bytes;
	/* measurements */
	struct kvfetch_path path;
	cgn_nsec busy_until;
	unsigned failures;
	const char *name; /* interned name that the peer gives itself; NULL before HELLO */
	uint64_t fetched, fetched_bytes, missed, refused, failed, corrupt;
	uint64_t served, served_bytes; /* to guests of the same name that are gone */
};

struct kvpeer_guest {
	uint32_t tag;
	struct cgn_link link;
	struct kvpeer *kp;
	struct kvpeer_site *site;
	struct quic_conn *conn;
	struct cgn_link serves;
	/* the stream that reports what this store holds */
	struct quic_stream *tells;
	const char *name; /* interned name that the guest gives itself; NULL before its subscription */
	uint64_t served, served_bytes;
	uint64_t seq, at, cursor;
	uint64_t told_blocks, told_bytes; /* to a guest of another site, in place of the store's totals */
	bool scanned, begun;
};

struct kvpeer {
	uint32_t tag;
	bool draining;
	struct cgn_loop *loop;
	struct kvstore *store;
	struct telemetry *telemetry;
	struct access *access;
	const struct kvsites *sites; /* NULL: there are no others */
	struct kvpeer_site site[BLOCK_SITES + 1];
	uint64_t instance;
	char *node, *rack, *region;
	uint64_t ram_budget;
	/* peers */
	struct cgn_link peers;
	size_t n_peers;
	bool full_said;
	struct kvpeer_slot slots[KVPEER_MAX];
	struct kvpeer_name *names;
	size_t n_names;
	struct kvindex *index;
	struct kvpeer_reader *readers;
	unsigned n_readers;
	struct cgn_timer sweep;
	/* guests */
	struct cgn_link guests;
	size_t n_guests, n_serves;
	struct cgn_timer tell;
	struct kvfetch_egress egress;
	/* fetches */
	struct cgn_link gets[KVPEER_FETCH_BUCKETS];
	size_t n_gets, n_askers;
	cgn_nsec least_patience;
	uint32_t ghosts[KVPEER_GHOSTS];
	struct cgn_grave grave;
	bool buried;
};

/* names.c */
void kvpeer_peer_move(struct kvpeer_peer *p, enum peer_state to);
void kvpeer_place(struct kvpeer_peer *p); /* Compute the distance from rack and region. */
char *kvpeer_text(struct cgn_str s);
const char *kvpeer_name(struct kvpeer *kp,
	const char *z); /* Return the interned copy of |z|; NULL: KVPEER_MAX_NAMES. */
void kvpeer_guest_is(struct kvpeer_guest *g, struct cgn_str name);
/* Free |kp| after the turn in which it was closed, once QUIC returned the last borrowed value. */
void kvpeer_release(struct kvpeer *kp);

/* pool.c */
/* Close the connection, and dial again later. */
void kvpeer_peer_lost(struct kvpeer_peer *p, enum kvpeer_code code, const struct cgn_err *why);
void kvpeer_peer_ready(struct kvpeer_peer *p);

/* site.c */
static inline struct kvpeer_site *kvpeer_site_here(struct kvpeer *kp)
{
	return &kp->site[KVPEER_HERE];
}

/* find.c */
/* Forget the peer's blocks. */
void kvpeer_forget(struct kvpeer_peer *p);
/* Forget the peer's blocks, and give it a new id in the index. */
CGN_RC kvpeer_index_begin(struct kvpeer_peer *p, struct cgn_err *err);
void kvpeer_holds_apply(struct kvpeer_peer *p, const struct kvframe_holds *h);
/* Record that the peer does not hold |k|. */
void kvpeer_has_not(struct kvpeer_peer *p, const struct block_key *k);
bool kvpeer_peer_has(struct kvpeer *kp, const struct kvpeer_peer *p, const struct block_key *k,
	unsigned *tiers);

/* hear.c */
void kvpeer_hear(struct kvpeer_peer *p); /* Subscribe on an open connection. */

/* fetch.c */
void kvpeer_gets_end(struct kvpeer *kp);
void kvpeer_attempts_lost(struct kvpeer_peer *p, const struct cgn_err *why); /* the connection of |p| ends */

/* tell.c */
void kvpeer_tell(struct kvpeer_guest *g, struct quic_stream *s);
void kvpeer_tell_all(struct cgn_timer *t);
void kvpeer_put_self(struct kvpeer *kp, enum kvframe_type type, struct cgn_buf *out);

/* serve.c */
void kvpeer_serve(struct kvpeer_guest *g, struct quic_stream *s);
void kvpeer_guest_gone(struct kvpeer_guest *g);
void kvpeer_send_buf(struct quic_stream *s, struct cgn_buf *b, bool fin);
