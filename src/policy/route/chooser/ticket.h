/* SPDX-License-Identifier: Apache-2.0 */
/* ticket: the booking of a request at a node, from the pick to the request's end. chooser.h has its
 * functions. */
#pragma once
#include "policy/power/energy/board.h"
#include "policy/route/routing/routing.h"

/* A prompt sent to a node counts as held there until the node's events confirm it: for at most CHOOSER_LIFE
 * plus twice the expected time to first byte, and for CHOOSER_CONFIRM after the first byte. */
#define CHOOSER_LIFE    (10 * CGN_SEC)
#define CHOOSER_CONFIRM (5 * CGN_SEC)
/* A prompt that was sent to a node before its events began counts as held for so long after that. */
#define CHOOSER_BEGIN (10 * CGN_SEC)

/* The KV cache of a prompt on its way to the node that decodes it. */
struct chooser_move {
	struct transfer_path path;
	struct transfer_speed prior;
	uint32_t tokens;   /* 0: nothing moves. */
	uint32_t ahead;    /* Tokens of others that move along the path before these. */
	uint16_t from, to; /* Slots; counted in their moving_tokens while |counted|. */
	bool counted;
	float other_ms; /* Predicted part of the time to first byte that is not the transfer. */
	cgn_nsec since;
};

/* The energy of its node that a request has used. */
struct chooser_energy {
	bool counted;               /* The node's energy is known. */
	struct energy_instant from; /* The node's sums at the begin of the phase that it is in. */
	double prefill_j,
		decode_j; /* Used in the phases that have ended; below 0 until chooser_joules mends it. */
};

/* The booking of one pick, owned by the booker; all zero when nothing is booked. The members after |at| are
 * for chooser_done. */
struct chooser_ticket {
	bool booked;     /* Counted in inflight of the node_stats. */
	bool prefilling; /* Counted in queued_tokens there; afterwards in decoding. */
	/* Counted in both from the start, with queued_tokens averaged over the request's time. */
	bool whole;
	bool hot;     /* Counted in the hot prefix counters under |prefix|. */
	bool crowded; /* The node had no free place, so the request had to wait. */
	bool cold;    /* The engine had to be loaded first: the first byte says nothing of its speed. */
	uint16_t slot;
	/* route_hash of the node's id: the slot may be given to another node before the end. */
	uint64_t node;
	uint64_t prefix;  /* Digest of the last block that any candidate held. */
	uint32_t pending; /* Booking of the prompt's blocks; 0: none. */
	uint32_t held, blocks;
	uint32_t new_tokens;    /* Estimated prompt tokens to compute. */
	uint32_t queued_tokens; /* As booked. */
	uint32_t prompt_us;     /* Expected time of the prompt, at least 1; 0: the answer is streamed. */
	uint32_t ahead_tokens;  /* Tokens of others' prompts to compute first. */
	struct chooser_move move;
	cgn_nsec at;
	cgn_nsec begun_at; /* 0: no byte came, or none that ended the prompt. */
	/* Streams beside this one at its first byte, and at its release. */
	uint32_t beside_then, beside_last;
	/* Total time that prompts were computed at the node, at the same instants. */
	cgn_nsec busy_then, busy_last;
	struct chooser_energy energy;
};

/* The end of a request, as the engine counted. */
struct chooser_outcome {
	uint64_t answer_tokens; /* 0: unknown. */
};
