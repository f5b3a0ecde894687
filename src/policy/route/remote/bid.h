/* SPDX-License-Identifier: Apache-2.0 */
/* bid: when a peer would give the first byte of a request: by its summary, if the summary is fresh and the peer is
 * believed; else by its measured time to first token. Pure; any thread. */
#pragma once
#include "policy/route/remote/summary.h"
#include "policy/route/remote/trust.h"
#include "policy/route/remote/worth.h"

/* Where the time of a bid comes from. */
enum remote_bid_source {
	REMOTE_BID_MEASURED, /* The peer tells no summary, or none of the model, or its speed is not known there yet. */
	REMOTE_BID_SUMMARY,
	REMOTE_BID_STALE,   /* Measured: the summary is too old. */
	REMOTE_BID_DEMOTED, /* Measured: the summary was wrong too often. */
	REMOTE_BID_FULL,    /* By the summary there is no room: the peer cannot be chosen. */
	REMOTE_BID_SOURCES
};
const char *remote_bid_text(enum remote_bid_source source);

/* Knowledge about a peer. All pointers are borrowed. */
struct remote_side {
	cgn_nsec measured; /* Measured time to first token, or the one to assume before a measurement. */
	cgn_nsec way;      /* Round trip. */
	struct remote_trust trust;
	bool told;         /* There is a summary. */
	cgn_nsec valid_to; /* From then on the summary is too old. */
	const struct remote_load
		*load; /* Load of the request's model; NULL: the summary does not name the model. */
	const struct remote_set *set;
	unsigned shift;
	uint32_t open, open_then; /* Our requests for the model at the peer, now and when the summary came. */
	double paid;              /* Agreed price of the request, in router.currency; 0: none was agreed. */
};
struct remote_prompt {
	const uint64_t *chain; /* Short digests of the blocks. */
	size_t blocks;
	uint64_t tokens;
	uint64_t answer;       /* Expected tokens of the answer. */
	uint32_t block_tokens; /* 0: blocks have other lengths. */
};
/* Return the tokens of the first |held| blocks. */
uint64_t remote_prompt_tokens(const struct remote_prompt *p, size_t held);

struct remote_bid {
	enum remote_bid_source source;
	cgn_nsec ttft;                   /* With the way there and back. */
	struct remote_forecast forecast; /* By the summary; not known without one. */
	double paid;                     /* As in the side. */
	struct remote_cost cost;         /* The agreed price, else the one that the summary tells. */
};
struct remote_bid remote_bid_of(const struct remote_side *side, const struct remote_prompt *prompt,
	cgn_nsec now);
/* Return true if |a| is preferred to |b|: believed before demoted; then, if money counts for no time (rules->price is 0), the
 * lower agreed price; then the lower sum of time and toll. |here|: the cost of a request that stays. */
bool remote_bid_beats(const struct remote_bid *a, const struct remote_bid *b,
	const struct remote_rules *rules, const struct remote_cost *here);

/* May a request that would have |stay| here leave for the bid? */
enum remote_door {
	REMOTE_DOOR_OPEN,
	REMOTE_DOOR_LATE, /* The peer is not worth it (worth.h). */
	REMOTE_DOOR_FULL, /* By its summary the peer has no room. */
	REMOTE_DOOR_BUSY  /* |open| requests are at the peer, of |most|. */
};
enum remote_door remote_bid_door(const struct remote_bid *bid, const struct remote_stay *stay,
	const struct remote_rules *rules, uint32_t open, uint32_t most);

/* Return how long a summary counts that is asked for every |interval|. */
cgn_nsec remote_valid_span(cgn_nsec interval);
