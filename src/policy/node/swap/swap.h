/* SPDX-License-Identifier: Apache-2.0 */
/* swap: which of a machine's models are in memory, when more are declared than fit. A function of the facts
 * at an instant: it says which model to load, which to unload, and which to hold, so that its streams end and
 * it can leave. Pure.
 *
 * - A model that requests wait for is loaded as soon as it fits. Waiting models are served by priority, then by
 *   the age of their oldest request; one that has waited for SWAP_STARVES times |residence| comes before all others.
 *   A model behind one that still waits for room is not loaded before it.
 * - Room is made by models without requests: an idle model leaves once it was idle for a quarter of its load time,
 *   SWAP_LINGER_LEAST to SWAP_LINGER_MOST and at most |residence|, because its client may be about to ask again.
 * - Else by models in use: they keep their place for |residence| after their load, unless the waiting model has a higher
 *   priority. Then they are held: further requests wait, the running ones end by themselves, and the model leaves.
 *   A model in use leaves for one of lower priority only when that one has waited for SWAP_STARVES times |residence|.
 * - Of several that may leave, idle ones go first, then those of low priority, then the one unused for longest; no
 *   more of them than are needed.
 * - An idle model leaves at |expires_at| too.
 * - A model that is larger than |memory| is loaded when no other one is there. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define SWAP_MAX          64
#define SWAP_NEVER        UINT64_MAX
#define SWAP_STARVES      6
#define SWAP_LINGER_LEAST (250 * CGN_MSEC)
#define SWAP_LINGER_MOST  CGN_SEC
#define SWAP_LOAD_GUESS   (5 * CGN_SEC) /* A model's load, until one was measured. */

struct swap_rules {
	uint64_t memory;     /* Bytes of all models together; 0: not limited. */
	uint32_t max_loaded; /* Models; 0: not limited. */
	cgn_nsec residence;  /* A model in use keeps its place for so long while others wait. */
};

enum swap_state {
	SWAP_OUT,
	SWAP_LOADING,
	SWAP_IN,
	SWAP_LEAVING, /* Being saved and stopped: the memory is still in use. */
};

struct swap_model {
	uint64_t bytes; /* 0: unknown, counts as nothing. */
	uint32_t priority;
	enum swap_state state;
	bool barred; /* Not to be loaded now. */
	bool held;   /* The last orders held it. */
	uint32_t waiting, running;
	cgn_nsec waits_since; /* When the oldest waiting request came. */
	cgn_nsec loaded_at;
	cgn_nsec used_at;    /* Last begin or end of a request. */
	cgn_nsec expires_at; /* SWAP_NEVER: it stays until its room is needed. */
	cgn_nsec load_time;  /* Expected. */
};

/* Bits are indices of models. */
struct swap_orders {
	uint64_t load, unload;
	uint64_t hold;    /* Send nothing to the model: it leaves when its running requests have ended. */
	cgn_nsec wake_at; /* When time alone changes the orders; SWAP_NEVER: it does not. */
};
/* Decide for |n| models, at most SWAP_MAX. A model is in one of |load|, |unload| and |hold| at most. */
void swap_decide(const struct swap_rules *rules, const struct swap_model *models, size_t n, cgn_nsec now,
	struct swap_orders *out);
/* Return how long a request that comes now would wait for the model |i|, as a forecast: the rest of its load,
 * or its load and those before it, each with the time until room is made. */
cgn_nsec swap_forecast(const struct swap_rules *rules, const struct swap_model *models, size_t n, size_t i,
	cgn_nsec now);
