/* SPDX-License-Identifier: Apache-2.0 */
/* swap: loads and unloads the node's engines that are on demand, as policy/node/swap decides. Before an engine is unloaded its
 * slots are saved into the block store, so that conversations go on after the next load. One loop, its thread. */
#pragma once
#include "agent/engine/engine.h"

struct swap {
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	struct engine *engines;
	size_t n_engines;
	struct swap_rules rules;
	uint32_t max_waiting; /* A reload may change it. */
	struct cgn_timer timer;
	bool on, stepping, again;
	bool over; /* The node leaves: nothing is loaded any more. */
};
void swap_open(struct swap *s, struct cgn_loop *l, struct telemetry *t, const struct config *cfg);
void swap_follow(struct swap *s, const struct config *cfg);        /* Settings that a reload may change. */
void swap_begin(struct swap *s, struct engine *engines, size_t n); /* The engines are open. */
void swap_end(struct swap *s);                                     /* The node leaves. */
/* Take the next steps; call when an engine or its requests changed. */
void swap_step(struct swap *s);
/* Return true if no request may wait for |e| now: it could not be loaded a moment ago, or too many wait already. |no|: why,
 * with the text in |why|, and when to try again. */
bool swap_refuses(const struct swap *s, const struct engine *e, char *why, size_t cap,
	struct engine_refusal *no);
