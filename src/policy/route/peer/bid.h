/* SPDX-License-Identifier: Apache-2.0 */
/* bid: when a peer would give the first byte of a request: by its summary, if the summary is fresh and the peer is
 * believed; else by its measured time to first token. Pure; any thread. */
#pragma once
#include "policy/route/peer/summary.h"
#include "policy/route/peer/trust.h"
#include "policy/route/peer/worth.h"

/* Where the time of a bid comes from. */
enum peer_bid_source {
	PEER_BID_MEASURED, /* The peer tells no summary, or none of the model, or its speed is not known there yet. */
	PEER_BID_SUMMARY,
	PEER_BID_STALE,   /* Measured: the summary is too old. */
	PEER_BID_DEMOTED, /* Measured: the summary was wrong too often. */
	PEER_BID_FULL,    /* By the summary there is no room: the peer cannot be chosen. */
	PEER_BID_SOURCES
};
const char *peer_bid_text(enum peer_bid_source source);

/* Knowledge about a peer. All pointers are borrowed. */
struct peer_side {
	cgn_nsec measured; /* Measured time to first token, or the one to assume before a measurement. */
	cgn_nsec way;      /* Round trip. */
	struct peer_trust trust;
	bool told;         /* There is a summary. */
	cgn_nsec valid_to; /* From then on the summary is too old. */
	const struct peer_load
		*load; /* Load of the request's model; NULL: the summary does not name the model. */
	const struct peer_set *set;
	unsigned shift;
	uint32_t open, open_then; /* Our requests for the model at the peer, now and when the summary came. */
	double paid;              /* Agreed price of the request, in router.currency; 0: none was agreed. */
};
struct peer_prompt {
	const uint64_t *chain; /* Short digests of the blocks. */
	size_t blocks;
	uint64_t tokens;
	uint64_t answer;       /* Expected tokens of the answer. */
	uint32_t block_tokens; /* 0: blocks have other lengths. */
};
/* Return the tokens of the first |held| blocks. */
uint64_t peer_prompt_tokens(const struct peer_prompt *p, size_t held);

struct peer_bid {
	enum peer_bid_source source;
	cgn_nsec ttft;                 /* With the way there and back. */
	struct peer_forecast forecast; /* By the summary; not known without one. */
	double paid;                   /* As in the side. */
	struct peer_cost cost;         /* The agreed price, else the one that the summary tells. */
};
struct peer_bid peer_bid_of(const struct peer_side *side, const struct peer_prompt *prompt, cgn_nsec now);
/* Return true if |a| is preferred to |b|: believed before demoted; then, if money counts for no time (rules->price is 0), the
 * lower agreed price; then the lower sum of time and toll. |here|: the cost of a request that stays. */
bool peer_bid_beats(const struct peer_bid *a, const struct peer_bid *b, const struct peer_rules *rules,
	const struct peer_cost *here);

/* May a request that would have |stay| here leave for the bid? */
enum peer_door {
	PEER_DOOR_OPEN,
	PEER_DOOR_LATE, /* The peer is not worth it (worth.h). */
	PEER_DOOR_FULL, /* By its summary the peer has no room. */
	PEER_DOOR_BUSY  /* |open| requests are at the peer, of |most|. */
};
enum peer_door peer_bid_door(const struct peer_bid *bid, const struct peer_stay *stay,
	const struct peer_rules *rules, uint32_t open, uint32_t most);

/* Return how long a summary counts that is asked for every |interval|. */
cgn_nsec peer_valid_span(cgn_nsec interval);
