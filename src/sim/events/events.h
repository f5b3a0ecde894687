/* SPDX-License-Identifier: Apache-2.0 */
/* events: what happens to KV blocks, written as vLLM and SGLang write it (dialects.def): batches of
 * BlockStored, BlockRemoved and AllBlocksCleared in msgpack. Pure; collects what one engine step changed
 * until it is taken.
 *
 * A model but the first is a LoRA: lora_id is its place in the list, lora_name its name. extra_keys of a
 * block: the LoRA's name, the pictures in it, cache_salt on a first block; in SGLang cache_salt goes with
 * each page. Several groups: each block of the GPU is told of once for each, full attention first, the others
 * as sliding windows; tiers below know no groups, in vLLM neither. Hashes are whole numbers (SGLang: signed)
 * or 32 bytes that end with the number. A block that moves below is told of by its hash alone, unless it is
 * described (as vLLM's self_describing_kv_events does, and SGLang always). */
#pragma once
#include "lab/enginemodel/memory.h"
#include "sim/text/tokens.h"

enum sim_dialect {
#define DIALECT(id, name, batch, event, engine, gpu, cpu, storage, topic, help) SIM_DIALECT_##id,
#include "sim/events/dialects.def"
#undef DIALECT
	SIM_DIALECT_COUNT
};
bool sim_dialect_of(struct cgn_str name, enum sim_dialect *out);
const char *sim_dialect_name(enum sim_dialect d);
const char *sim_dialect_help(enum sim_dialect d);
bool sim_dialect_replays_topic(enum sim_dialect d);
bool sim_dialect_describes(enum sim_dialect d); /* blocks that move below, always */

#define SIM_GROUPS_MAX 16
#define SIM_WINDOW     1024 /* tokens, of groups but the first */
struct sim_events_cfg {
	enum sim_dialect dialect;
	bool hash_bytes;
	uint32_t groups; /* 1 to SIM_GROUPS_MAX */
	uint32_t block_tokens;
	unsigned rank;
	const char *const *models; /* borrowed: the served names */
};
struct sim_events {
	struct sim_events_cfg cfg;
	struct cgn_buf inner; /* owned */
	uint32_t n;
};
void sim_events_init(struct sim_events *e, const struct sim_events_cfg *cfg);
void sim_events_fini(struct sim_events *e);
struct enginemodel_listener sim_events_listener(
	struct sim_events *e); /* calls |e|, which must stay where it is */
bool sim_events_any(const struct sim_events *e);
/* One batch of all that was told since the last take, appended to |out|; |ts| is Unix seconds. |alien|: with
 * an event of an unknown type in front. |out| is bad when memory was short. */
void sim_events_take(struct sim_events *e, double ts, bool alien, struct cgn_buf *out);
void sim_events_drop(struct sim_events *e); /* as if nobody had told */
