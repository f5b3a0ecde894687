/* SPDX-License-Identifier: Apache-2.0 */
/* events: changes of KV blocks in the formats of vLLM and SGLang (dialects.def): batches of BlockStored,
 * BlockRemoved and AllBlocksCleared in msgpack. Collects the changes of engine steps until a batch is taken.
 * Pure.
 *
 * Every model but the first is a LoRA: lora_id is its index in the list, lora_name its name. extra_keys of a
 * block hold the LoRA's name, the images in the block, and cache_salt on a first block; in SGLang every page
 * has cache_salt. With several groups, each GPU block has one event for each group: full attention first, the
 * others as sliding windows; lower tiers have no groups, as in vLLM. Hashes are integers (SGLang: signed) or
 * 32 bytes that end with the integer. The event of a block that moves to a lower tier has its hash only,
 * unless it is described (as with vLLM's self_describing_kv_events, and always in SGLang). */
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
/* True when the dialect always describes blocks that move to lower tiers. */
bool sim_dialect_describes(enum sim_dialect d);

#define SIM_GROUPS_MAX 16
#define SIM_WINDOW     1024 /* Tokens of the sliding window of all groups but the first. */
struct sim_events_cfg {
	enum sim_dialect dialect;
	bool hash_bytes;
	uint32_t groups; /* 1 to SIM_GROUPS_MAX. */
	uint32_t block_tokens;
	unsigned rank;
	const char *const *models; /* Borrowed names of the served models. */
};
struct sim_events {
	struct sim_events_cfg cfg;
	struct cgn_buf inner; /* Owned. */
	uint32_t n;
};
void sim_events_init(struct sim_events *e, const struct sim_events_cfg *cfg);
void sim_events_fini(struct sim_events *e);
struct enginemodel_listener sim_events_listener(
	struct sim_events *e); /* The listener keeps |e|, which must not move. */
bool sim_events_any(const struct sim_events *e);
/* Append one batch of all events since the last call to |out|. |ts|: Unix seconds. |alien|: put an event of
 * an unknown type first. |out| is bad when memory was short. */
void sim_events_take(struct sim_events *e, double ts, bool alien, struct cgn_buf *out);
void sim_events_drop(struct sim_events *e); /* Discard all events since the last call. */
