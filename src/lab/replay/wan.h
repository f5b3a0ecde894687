/* SPDX-License-Identifier: Apache-2.0 */
/* wan: when a message over a long way arrives. The model is that of federation.h. Pure. */
#pragma once
#include "lab/replay/federation.h"

struct wan {
	const struct federation_cfg *cfg; /* Borrowed. */
	uint64_t random;
};
cgn_nsec wan_round_trip(const struct federation_cfg *cfg, uint32_t a, uint32_t b);
bool wan_is_cut(const struct federation_cfg *cfg, uint32_t a, uint32_t b, cgn_nsec now);
/* Return when a message of |bytes| that is sent at |now| arrives. UINT64_MAX: it does not within 17 minutes. */
cgn_nsec wan_arrival(struct wan *w, uint32_t a, uint32_t b, size_t bytes, cgn_nsec now);
