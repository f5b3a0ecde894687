/* SPDX-License-Identifier: Apache-2.0 */
/* summaries: the summaries that this cluster and a peer have of each other (policy/route/peer): the peer's
 * last one, how far it is believed, and the one for the peer. Any thread. */
#pragma once
#include "base/core/buf.h"
#include "policy/route/peer/summary.h"
#include "policy/route/peer/trust.h"

struct gw_peer;

/* A model of the peer, as it told. */
struct gw_known_model {
	struct peer_load load;
	uint32_t open; /* Requests of this router for the model that were at the peer then. */
};
/* A summary that came; immutable, counted. Memory: 4 bytes a block, and 22 KiB. */
struct gw_known {
	_Atomic uint32_t refs;
	struct peer_set *set; /* A reference. */
	unsigned shift;
	uint64_t generation;
	cgn_nsec at;       /* When it came, by the control loop's clock. */
	cgn_nsec valid_to; /* From then on it is too old to count. */
	size_t bytes;      /* Length of the answer. */
	bool whole;        /* The answer had the whole set. */
	size_t n_models;
	struct gw_known_model models[PEER_MODELS];
	char names[PEER_MODELS * PEER_NAME];
};
/* Keep the facts of |s| and |set|, which is taken; |peer| has the models whose open requests are noted. NULL:
 * no memory. */
struct gw_known *gw_known_new(const struct gw_peer *peer, const struct peer_summary *s,
	struct peer_set **set);
void gw_known_unref(struct gw_known **take); /* NULL-safe. */
const struct gw_known_model *gw_known_model(const struct gw_known *k,
	struct cgn_str theirs); /* NULL: none. */

struct gw_summaries;
struct gw_summaries *gw_summaries_new(void);
void gw_summaries_free(struct gw_summaries **take); /* NULL-safe. */

/* ---- from the peer ---- */

struct gw_known *gw_summaries_known(struct gw_summaries *r); /* A reference; NULL: nothing is known. */
void gw_summaries_know(struct gw_summaries *r, struct gw_known **take); /* From now on; NULL: nothing. */
struct peer_trust gw_summaries_trust(struct gw_summaries *r);           /* As it is now. */
/* As peer_trust_learn. */
bool gw_summaries_learn(struct gw_summaries *r, const struct peer_forecast *f, const struct peer_shown *s,
	cgn_nsec now);

/* ---- to the peer ---- */

/* Make |*take|, which is taken and has no other reference, the set that the peer is told: in the newest version, unless a router
 * of the peer that does not read it asked in the last minute. */
void gw_summaries_tell(struct gw_summaries *r, struct peer_set **take, unsigned shift, cgn_nsec now);
/* Return true if the peer asked within the last |span|. */
bool gw_summaries_is_asked(struct gw_summaries *r, cgn_nsec now, cgn_nsec span);
/* Append the answer to one who has generation |since| and reads |version|; |s| has the models, the rest of it is filled in. CGN_OVERLOADED: it
 * would be a whole set, and one was told within the last second. CGN_NO_MEMORY. */
struct gw_summaries_question {
	uint64_t since[PEER_VIEWS]; /* Generations that the peer has; 0: none. */
	unsigned version;           /* At least 1. */
};
CGN_RC gw_summaries_answer(struct gw_summaries *r, const struct gw_summaries_question *q, cgn_nsec now,
	struct peer_summary *s, struct cgn_buf *out, struct cgn_err *err);
