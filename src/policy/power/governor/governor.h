/* SPDX-License-Identifier: Apache-2.0 */
/* governor: the SM clock at which a node's GPUs are to run at most, by the node's role and load. Computing prompts needs
 * the clock; generating tokens waits for memory, and a lower clock spares power at nearly the same speed
 * (docs/fleet/energy/README.md). Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

/* Numbered as agent.role less ROLE_BOTH. */
enum governor_role { GOVERNOR_BOTH, GOVERNOR_PREFILL, GOVERNOR_DECODE };
enum governor_phase { GOVERNOR_FOR_DECODE, GOVERNOR_FOR_PREFILL };
#define GOVERNOR_AUTO_SHARE 0.6 /* Share of the highest clock: decode's limit without a setting */

struct governor {
	enum governor_phase phase;
	cgn_nsec prompt_at; /* Prompts were being computed then; 0: never */
};
struct governor_input {
	enum governor_role role;
	uint32_t prompts; /* Requests whose prompt waits or is being computed */
	cgn_nsec hold;    /* The limit falls when no prompt was there for this long */
	cgn_nsec now;
};
/* Return the work that the clocks are to suit. A node of role prefill or decode never changes. A node of both changes to
 * prefill with the first prompt, and back when there was none for |hold|, so there are at most two changes in
 * |hold|. |*again|: the time until a change is due without another load; 0: none is. */
enum governor_phase governor_step(struct governor *g, const struct governor_input *in, cgn_nsec *again);
/* Return the limit in MHz for work of |phase|; 0: none. |asked_mhz| is the setting, 0: auto, which does not
 * limit prefill, and GOVERNOR_AUTO_SHARE of the highest supported clock for decode. The limit is the highest
 * of the |n| |supported| clocks (MHz, any order) that is not above that, or the lowest one; none where it
 * would be the highest one. Without supported clocks (|n| 0) the setting counts as it is, and auto limits
 * nothing. */
uint32_t governor_limit(const uint16_t *supported, size_t n, enum governor_phase phase, uint32_t asked_mhz);
