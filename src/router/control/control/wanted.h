/* SPDX-License-Identifier: Apache-2.0 */
/* wanted: the LoRA adapters that operators want, from the state backend to the agents. Control loop. */
#pragma once
#include "policy/node/wanted/wanted.h"

struct router;
struct router_wanted {
	Cognitora__V1__WantedModels *doc; /* Last valid document; NULL: there was none. */
	char trouble[400];                /* Why the current document is refused; empty: it is not. */
};
/* Use the document |text| that was read from |where|, and tell it to the agents. A bad document is logged and the last good
 * one stays. */
void router_wanted_update(struct router *r, struct cgn_str text, const char *where);
