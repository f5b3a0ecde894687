/* SPDX-License-Identifier: Apache-2.0 */
/* tenancy: the owners whose prompts the slots of an engine may hold, so that no request of one owner is
 * answered from the prompt of another. An owner is a number made from the "cache_salt" of requests; 0:
 * requests without one. A slot's owner is known while the agent chooses the slot of every request, and not
 * known after a request whose slot the engine chose, or which was cut off: the engine may begin it later.
 * Pure; one thread.
 *
 * Memory: 2 KiB for each slot. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"
#include "policy/kv/slots/slots.h"

#define SLOT_TENANCY_CHAIN 256 /* Blocks of a slot's last prompt by which slots are compared. */
#define SLOT_TENANCY_CUT \
	(10 * CGN_SEC) /* An engine ends a request within this time after its client has left. */

struct slot_tenancy;
struct slot_tenancy *slot_tenancy_new(void);        /* No slot is known. */
void slot_tenancy_free(struct slot_tenancy **take); /* NULL-safe. */
/* The engine has |n| slots, at most SLOTS_MAX; 0: it is not known. Another number than before forgets all owners. Without
 * memory the number is 0. */
void slot_tenancy_size(struct slot_tenancy *t, uint32_t n);

struct slot_guest {
	uint64_t owner;
	const uint64_t *chain; /* Block digests of the prompt. */
	size_t n;
	uint32_t slot;  /* SLOTS_NONE: the engine chooses, or the slot is not known to it. */
	uint32_t epoch; /* Set by slot_tenancy_enter. */
};
/* Return a slot for the request, an idle one if there is one: the slot whose last prompt begins like its prompt, if more
 * than a tenth does, else the one unused for longest. SLOTS_NONE: the number of slots is not known. */
uint32_t slot_tenancy_choose(const struct slot_tenancy *t, const struct slot_guest *g);
/* The request is sent. True: the engine may use what the slot holds; false: it must compute the whole prompt. |restored|: a
 * state of the owner's was just read into the slot. */
bool slot_tenancy_enter(struct slot_tenancy *t, struct slot_guest *g, bool restored, cgn_nsec now);
/* The request has ended, once for each slot_tenancy_enter. |cut|: before the engine said anything, so that
 * it may begin the request later. */
void slot_tenancy_leave(struct slot_tenancy *t, const struct slot_guest *g, bool cut, cgn_nsec now);
