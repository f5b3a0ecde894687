/* SPDX-License-Identifier: Apache-2.0 */
/* unit: the requests that get one arm together: a session; where none is named, the requests that begin with the same
 * block, so that a growing conversation stays in its arm. Blocks with which many requests begin, such as a common system
 * prompt, say nothing about the conversation: the first block after them does. A request without such a block is a unit
 * of its own. One thread at a time. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define UNIT_COUNTERS 4096
#define UNIT_COMMON   64 /* A block that one request in so many begins with is common. */

/* How many of the last requests began with a block, by its hash. Zeroed: none. */
struct unit_counts {
	uint32_t all, n[UNIT_COUNTERS];
};

/* A request, as far as its unit depends on it. */
struct unit_ask {
	uint64_t session;      /* Hash of the session; 0: none is named. */
	const uint64_t *chain; /* Digests of the prompt's blocks. */
	size_t blocks;
	uint64_t request; /* A number of the request alone. */
};
/* Return the unit, and count the request. */
uint64_t unit_of(struct unit_counts *c, const struct unit_ask *ask);
