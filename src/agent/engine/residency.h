/* SPDX-License-Identifier: Apache-2.0 */
/* residency: which prompt blocks an engine holds, from the best source that the engine has, reported into the
 * node's holdings. */
#pragma once
#include "base/core/err.h"
#include "policy/kv/holdings/holdings.h"
#include "policy/node/engine/residency.h"
#include "policy/node/proto/proto.h"

#define NODE_MAX_BLOCKS ((size_t)16 * 1024 * 1024) /* Over all engines; about 24 bytes for each held block */

/* How the agent knows what the engine holds. */
enum residency_by {
	RESIDENCY_BY_SENT,   /* From the prompts that were sent to the engine */
	RESIDENCY_BY_EVENTS, /* From the engine's KV events */
	RESIDENCY_BY_SLOTS,  /* The slot manager assigns the engine's slots */
};

struct engine;
struct engine_residency {
	enum residency_by by;
	cgn_nsec unheard_since; /* Events stopped at this instant; 0: they arrive */
	struct residency *sent; /* Record of the prompts that were sent */
	uint32_t block_bytes;   /* Bytes of prompt in the smallest block that routers have sent */
};
void engine_residency_init(struct engine *e);
/* Record a prompt that was sent to the engine. Does nothing while the engine has a better source. */
void engine_residency_sent(struct engine *e, const uint64_t *chain, size_t n);
void engine_residency_clear(struct engine *e);
/* Bound the record by what fits into the engine's KV cache. */
void engine_residency_fit(struct engine *e);
/* A chain with blocks of |block_tokens| tokens arrived; 0: blocks of bytes. */
void engine_blocks_seen(struct engine *e, uint32_t block_tokens);
/* Change the source. A source other than RESIDENCY_BY_SENT reports into the node's holdings itself and drops only
 * what it added; the record of sent prompts is cleared. */
void engine_residency_source(struct engine *e, enum residency_by by);
/* The engine said for the first time, or differently, whether it keeps blocks after a request (load.now.keeps_none). */
void engine_residency_keeps(struct engine *e);
/* Return the source as the node's description states it; borrowed from |e|. */
const char *engine_residency_text(const struct engine *e);
/* The source lost contact with the engine, or regained it. */
void engine_residency_heard(struct engine *e, bool heard);

/* The best source that all engines of the node have; engines that keep no blocks do not count. */
Cognitora__V1__ResidencySource engines_residency_source(const struct engine *e, size_t n);
/* Milliseconds since the source of some engine lost contact; 0: all sources are in contact. */
uint64_t engines_stale_ms(const struct engine *e, size_t n, cgn_nsec now);
