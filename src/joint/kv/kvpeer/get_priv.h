/* SPDX-License-Identifier: Apache-2.0 */
/* A block that is being fetched (get.c), the attempts at peers (attempt.c) and the callers (fetch.c). */
#pragma once
#include "joint/kv/kvpeer/kvpeer_priv.h"

/* An attempt: one stream to one peer. */
struct kvpeer_attempt {
	struct kvpeer_get *g;
	struct kvpeer_peer *peer; /* NULL: this place is free */
	struct quic_stream *stream;
	struct kvframe_in in;
	bool answered;
	uint64_t pos;      /* position in the value of the next byte */
	uint64_t promised; /* bytes added to peer->path.under_way */
	uint64_t begun_at; /* position of the first requested byte */
	cgn_nsec asked_at, first_at;
};
struct kvpeer_asked {
	uint64_t instance; /* instance of the peer */
	bool brought;      /* bytes of the peer are in the value */
};
enum get_state {
#define GET(id, exits, why) GET_##id,
#include "joint/kv/kvpeer/states.def"
};
struct kvpeer_get {
	uint32_t tag;
	enum get_state state;
	struct cgn_link link;
	struct kvpeer *kp;
	struct block_key key;
	struct cgn_link askers;
	unsigned n_asked; /* callers, all that ever joined */
	struct kvfetch_ask cost;
	uint8_t priority;
	uint16_t sites; /* other sites that may be asked, for one of the callers */
	struct kvpeer_attempt attempts[2];
	struct kvpeer_attempt *active; /* the attempt that fills the writer */
	struct kvpeer_asked tried[KVPEER_MAX_ATTEMPTS];
	unsigned n_asked_peers;
	struct kvstore_writer *writer;
	uint64_t size, checksum, got;
	cgn_nsec moved_at;
	struct cgn_timer timer; /* fires when the patience with the active peer ends */
	struct cgn_err why;     /* the last failure */
	/* result of the commit */
	struct cgn_err committed;
	uint64_t used_before; /* bytes in the RAM tier before the value was written */
	bool on_pool, keep;
	struct kvstore_read *read;
};
struct kvpeer_fetch {
	uint32_t tag;
	struct cgn_link link;
	struct kvpeer *kp;
	struct kvpeer_get *g; /* NULL: the get ended, and |done| is due */
	kvpeer_fetch_done done;
	void *user;
	cgn_nsec began, deadline;
	struct cgn_timer timer; /* fires at the deadline */
};

/* ---- fetch.c: the callers that wait for a block ---- */
/* Call |done| of |f| with a reference of its own to |block|, or with |why| when |block| is NULL, and free |f|.
 * Closes the get when this was its last asker. |done| may ask again, cancel others or close everything. */
void kvpeer_fetch_end(struct kvpeer_fetch *f, struct kvstore_block *block, const struct cgn_err *why);

/* ---- get.c ---- */
struct kvpeer_get *kvpeer_get_find(struct kvpeer *kp, const struct block_key *k);
/* Create a get without askers and attempts; NULL: no memory. */
struct kvpeer_get *kvpeer_get_new(struct kvpeer *kp, const struct block_key *k, const struct kvpeer_ask *ask);
/* End the attempts and let no further asker join. Frees |g| now, or after its job on the pool. */
void kvpeer_get_close(struct kvpeer_get *g);
/* Answer all askers with |block|, or with |why| when |block| is NULL, and close |g|. Takes |block|. */
void kvpeer_get_finish(struct kvpeer_get *g, struct kvstore_block *block, const struct cgn_err *why);
/* Commit the value: all of its bytes are in the writer. */
void kvpeer_get_complete(struct kvpeer_get *g);

/* ---- attempt.c ---- */
/* Ask the next peer. Returns false when no peer is left; g->why then says why. */
bool kvpeer_attempt_next(struct kvpeer_get *g);
/* End the attempt and forget that its peer was asked, unless the peer sent bytes. */
void kvpeer_attempt_spare(struct kvpeer_attempt *t);
void kvpeer_attempts_end(struct kvpeer_get *g);
/* Return the record of a peer that was asked, or NULL. */
struct kvpeer_asked *kvpeer_get_asked(struct kvpeer_get *g, uint64_t instance);
/* When nothing came for a while: ask another peer, or finish the get when no peer is left. */
void kvpeer_attempt_on_patience(struct cgn_timer *timer);
