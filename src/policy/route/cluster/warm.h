/* SPDX-License-Identifier: Apache-2.0 */
/* warm: which models this router's own requests make a node load, until the node's description tells. A request that waits
 * for a load is noted when it is booked, so that the next one, seconds before the engine says anything, neither starts the
 * same load elsewhere nor drives the model out again. Lock-free; any thread. Of two notes at one instant one may be lost. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/core/err.h"
#include "base/core/str.h"

#define WARM_NOTES 4             /* Models of a node; the oldest note makes room. */
#define WARM_FRESH (4 * CGN_SEC) /* A note is newer than what the engine told: two of its readings. */
#define WARM_SLACK (5 * CGN_SEC) /* Beside twice the load's time, until a note counts no more. */
#define WARM_MOST  ((cgn_nsec)3600 * CGN_SEC)

struct warm {
	_Atomic uint64_t note[WARM_NOTES]; /* Hash of the name and milliseconds, 32 bits each; 0: empty. */
};
struct warm_seen {
	bool noted; /* The model was sent there, |ago|. */
	cgn_nsec ago;
	uint32_t others; /* Other models with notes that count. */
	uint32_t later;  /* The part of |others| whose notes are newer than the model's and WARM_FRESH. */
};

void warm_clear(struct warm *w);
void warm_note(struct warm *w, struct cgn_str model, cgn_nsec now);
/* |load|: expected time of the model's load. */
struct warm_seen warm_look(const struct warm *w, struct cgn_str model, cgn_nsec load, cgn_nsec now);
