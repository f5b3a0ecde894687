/* SPDX-License-Identifier: Apache-2.0 */
/* kvpeer, inside. pool.c: peers and their connections · hear.c: what they hold, and find.c: who has it ·
 * fetch.c: getting a block · tell.c: what we hold, told to guests · serve.c: what guests ask for · view.c:
 * all of it, for people. A peer is one that we dial and ask; a guest is a connection that another store
 * dialled, which asks us. */
#pragma once
#include <stdatomic.h>

#include "base/core/list.h"
#include "io/loop/backoff.h"
#include "joint/kvpeer/kvpeer.h"
#include "policy/kvframe/kvframe.h"
#include "policy/kvindex/kvindex.h"

#define KVPEER_TAG       0x4b505001U
#define KVPEER_PEER_TAG  0x4b505002U
#define KVPEER_GUEST_TAG 0x4b505003U
#define KVPEER_SERVE_TAG 0x4b505004U
#define KVPEER_GET_TAG   0x4b505005U
#define KVPEER_FETCH_TAG 0x4b505006U

#define FETCH_BUCKETS 256
#define NO_INDEX_ID   UINT16_MAX
#define MAX_NAMES     4096
#define GHOSTS        4096 /* blocks fetched of late, by 4 bytes each */

/* Codes that streams and connections are ended with. */
enum kvpeer_code { CODE_FINE, CODE_NOT_UNDERSTOOD, CODE_ENOUGH, CODE_SLOW, CODE_SELF };

/* Names of nodes: what kvpeer_has hands out is never freed before the end. */
struct kvpeer_name {
	struct kvpeer_name *next;
	char z[];
};

/* A place that readers of other threads look at: which lane of the index is whose. */
struct kvpeer_slot {
	_Atomic uint16_t index_id; /* NO_INDEX_ID: nobody */
	_Atomic uint8_t distance;
	_Atomic(const char *) name;
};
struct kvpeer_reader {
	_Atomic bool taken;
	struct kvindex_reader *reader;
};

enum peer_state { PEER_WAITING, PEER_OPENING, PEER_GREETING, PEER_READY, PEER_LEFT_ALONE };

struct peer {
	uint32_t tag;
	enum peer_state state;
	struct cgn_link link;
	struct kvpeer *kp;
	unsigned slot;
	bool by_hand; /* known by its address alone */
	char *id, *address;
	char *rack, *region; /* as membership says, or as it says itself */
	enum kvfetch_distance distance;
	/* the connection */
	struct quic_conn *conn;
	struct quic_stream *hears;
	struct kvframe_in in;
	struct cgn_timer timer; /* to dial again */
	struct cgn_backoff backoff;
	struct cgn_err why; /* it is not READY */
	bool trouble_said;
	/* what it holds */
	uint64_t instance, seq;
	bool synced;
	uint16_t index_id;
	uint64_t mean_bytes;
	/* what was measured */
	struct kvfetch_path path;
	cgn_nsec busy_until;
	unsigned failures;
	const char *name; /* as it calls itself, kvpeer_name; NULL: not heard yet */
	uint64_t fetched, fetched_bytes, missed, refused, failed, corrupt;
	uint64_t served, served_bytes; /* to guests of its name that went */
};

struct guest {
	uint32_t tag;
	struct cgn_link link;
	struct kvpeer *kp;
	struct quic_conn *conn;
	struct cgn_link serves;
	/* what it is told */
	struct quic_stream *tells;
	const char *name; /* as it calls itself, kvpeer_name; NULL: it has not */
	uint64_t served, served_bytes;
	uint64_t seq, at, cursor;
	bool scanned, begun;
};

/* A stream that a guest opened. Freed when the stream is gone and the last borrowed piece of the value came
 * back. */
enum serve_state { SERVE_READING, SERVE_LOADING, SERVE_SENDING, SERVE_SENT };
struct serve {
	uint32_t tag;
	enum serve_state state;
	struct cgn_link link;
	struct guest *guest; /* NULL: it went */
	struct kvpeer *kp;
	struct quic_stream *stream;
	struct kvframe_in in;
	struct kvframe_fetch rq;
	struct kvstore_read *read;
	struct kvstore_block *block;
	uint64_t at, end;
	unsigned borrowed; /* pieces that QUIC has */
	bool admitted;
	struct cgn_timer timer; /* may send again; or nothing moved */
	cgn_nsec moved_at;
};

/* One block that is being fetched, for all who asked for it. */
struct
try {
	struct get *g;
	struct peer *peer; /* NULL: not in use */
	struct quic_stream *stream;
	struct kvframe_in in;
	bool answered;
	uint64_t pos;      /* in the value, of the next byte that comes */
	uint64_t promised; /* of peer->path.under_way */
	uint64_t begun_at; /* pos at first */
	cgn_nsec asked_at, first_at;
};
struct asked {
	uint64_t instance; /* of the peer */
	bool brought;      /* bytes that count */
};
enum get_state {
	GET_FETCHING,
	GET_COMMITTING /* on the pool */,
	GET_READING /* what somebody put meanwhile */,
	GET_DONE
};
struct get {
	uint32_t tag;
	enum get_state state;
	struct cgn_link link;
	struct kvpeer *kp;
	struct block_key key;
	struct cgn_link askers;
	unsigned n_asked; /* ever */
	struct kvfetch_ask cost;
	uint8_t priority;
	struct try tries[2];
	struct try *active; /* fills the writer */
	struct asked tried[KVPEER_MAX_TRIES];
	unsigned n_tried;
	struct kvstore_writer *writer;
	uint64_t size, checksum, got;
	cgn_nsec moved_at;
	struct cgn_timer timer; /* the end of patience */
	struct cgn_err why;     /* the last thing that went wrong */
	/* committing */
	struct cgn_err committed;
	uint64_t used_before; /* of the RAM tier */
	bool on_pool, keep;
	struct kvstore_read *read;
};
struct kvpeer_fetch {
	uint32_t tag;
	struct cgn_link link;
	struct kvpeer *kp;
	struct get *g; /* NULL: it ended, and |done| is due */
	kvpeer_fetch_done done;
	void *user;
	cgn_nsec began, deadline;
	struct cgn_timer timer; /* the deadline */
};

struct kvpeer {
	uint32_t tag;
	bool draining;
	struct cgn_loop *loop;
	struct kvstore *store;
	struct telemetry *telemetry;
	struct tls_ctx *tls;
	struct quic_endpoint *ep;
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
	struct cgn_link gets[FETCH_BUCKETS];
	size_t n_gets, n_askers;
	uint32_t ghosts[GHOSTS];
	struct cgn_grave grave;
	bool buried;
};

/* pool.c */
extern const struct quic_conn_ops kvpeer_guest_ops;
/* close, and dial again later */
void kvpeer_peer_lost(struct peer *p, enum kvpeer_code code, const struct cgn_err *why);
void kvpeer_peer_ready(struct peer *p);
void kvpeer_place(struct peer *p); /* rack and region stand: how far it is */
void kvpeer_release(struct kvpeer *kp);
const char *kvpeer_name(struct kvpeer *kp, const char *z); /* interned; NULL: no memory, or MAX_NAMES */
char *kvpeer_text(struct cgn_str s);

/* hear.c */
void kvpeer_hear(struct peer *p);   /* the connection is open: subscribe */
void kvpeer_forget(struct peer *p); /* what it holds */
void kvpeer_has_not(struct peer *p, const struct block_key *k);
bool kvpeer_peer_has(struct kvpeer *kp, const struct peer *p, const struct block_key *k, unsigned *tiers);

/* fetch.c */
void kvpeer_gets_end(struct kvpeer *kp);
void kvpeer_tries_lost(struct peer *p, const struct cgn_err *why); /* its connection ends */

/* tell.c */
void kvpeer_tell(struct guest *g, struct quic_stream *s);
void kvpeer_tell_all(struct cgn_timer *t);
void kvpeer_put_self(struct kvpeer *kp, enum kvframe_type type, struct cgn_buf *out);

/* serve.c */
void kvpeer_serve(struct guest *g, struct quic_stream *s);
void kvpeer_guest_is(struct guest *g, struct cgn_str name);
void kvpeer_guest_gone(struct guest *g);
void kvpeer_send_buf(struct quic_stream *s, struct cgn_buf *b, bool fin);
