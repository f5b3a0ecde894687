/* SPDX-License-Identifier: Apache-2.0 */
/* beat: how a cluster finds out that a peer is there, how long the way is, and how long a peer rests. Pure. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"

/* A beat and its timeout are less than a second together. */
#define PEER_BEAT_EVERY   (250 * CGN_MSEC) /* From an answer, or its absence, to the next question. */
#define PEER_BEAT_TIMEOUT (700 * CGN_MSEC)
#define PEER_REST_LEAST \
	CGN_SEC         /* After an answer that there is no room, or an error that says nothing of its end. */
#define PEER_RTT_PART 8 /* A sample of the round trip counts for an eighth. */

/* A beat had no answer by |now|: is the peer silent? |heard|: when an answer brought the last byte from there. A way that
 * loses packets delays a beat by seconds now and then; the answers that go on show that the peer is there. */
static inline bool peer_is_silent(cgn_nsec now, cgn_nsec heard)
{
	return heard + PEER_BEAT_TIMEOUT / 2 <= now;
}

/* Return the round trip after |sample|. |rtt| 0: there was no sample before. */
static inline cgn_nsec peer_rtt_learn(cgn_nsec rtt, cgn_nsec sample)
{
	return rtt == 0 ? sample : rtt - rtt / PEER_RTT_PART + sample / PEER_RTT_PART;
}
