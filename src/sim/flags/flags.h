/* SPDX-License-Identifier: Apache-2.0 */
/* flags: the command line of cgn-sim. */
#pragma once
#include "lab/enginemodel/profile.h"
#include "policy/node/handoff/handoff.h"
#include "sim/events/events.h"
#include "sim/faults/faults.h"

#define SIM_MODELS_MAX 64
enum sim_role { SIM_ROLE_BOTH, SIM_ROLE_PREFILL, SIM_ROLE_DECODE };
struct sim_handoff_cfg {
	enum handoff_kind kind;
	enum sim_role role;
	const char *host; /* "": the default. */
	uint32_t lease_ms;
};
/* Where KV events are published. */
struct sim_publish_cfg {
	const char *endpoint, *replay, *topic; /* "": none. */
	uint32_t buffer;
	bool describes;
};
struct sim_cfg {
	const char *listen; /* All strings are borrowed from argv or static. */
	const char *models[SIM_MODELS_MAX];
	unsigned n_models;
	enum sim_model_state {
		SIM_MODEL_PLAIN,
		SIM_MODEL_AFTER_BASE, /* A LoRA that SGLang's route loaded: requests name it as BASE:NAME. */
		SIM_MODEL_UNLOADED,   /* The LoRA is served no more. */
	} model_state[SIM_MODELS_MAX];
	const char *tokenizer, *chat_template; /* "": none. */
	uint64_t seed;
	double skill, time_scale, prefill_tokens_per_s, decode_ms, batch_effect;
	struct enginemodel_terms terms;
	const struct enginemodel_profile *profile; /* NULL: none. */
	uint32_t max_batch, step_tokens, kv_blocks, block_tokens, max_queue, max_model_len,
		max_tokens_default, workers, token_interval_us;
	uint32_t lower_blocks[ENGINEMODEL_TIER_COUNT];
	double restore_us[ENGINEMODEL_TIER_COUNT];
	struct sim_publish_cfg events;
	enum sim_dialect dialect;
	uint32_t kv_groups;
	const char *kv_uds; /* "": no block store. */
	uint32_t kv_block_bytes;
	double kv_load_us;
	struct sim_handoff_cfg handoff;
	const char *build; /* "": the default. */
	const char *books; /* File that is told each request's tokens; "": none. */
	bool no_prefix_caching, no_logprobs, lora, can_sleep;
	bool chunk_per_write, kv_digests, hash_bytes;
	struct sim_faults faults;
};
static inline bool sim_has_events(const struct sim_cfg *cfg)
{
	return cfg->events.endpoint != NULL && cfg->events.endpoint[0] != '\0';
}
static inline bool sim_has_store(const struct sim_cfg *cfg)
{
	return cfg->kv_uds != NULL && cfg->kv_uds[0] != '\0';
}
/* True when the engine must keep the tokens of blocks, for events, digests or the block store. */
static inline bool sim_keeps_contents(const struct sim_cfg *cfg)
{
	return cfg->kv_digests || sim_has_events(cfg) || sim_has_store(cfg) ||
		cfg->handoff.kind != HANDOFF_NONE;
}

enum sim_flags_then { SIM_RUN, SIM_HELP, SIM_VERSION };
/* Parse the command line. CGN_INVALID: |err| has one sentence with the flag, the allowed values, and the
 * nearest known flag. */
CGN_RC sim_flags_parse(int argc, char **argv, struct sim_cfg *out, enum sim_flags_then *then,
	struct cgn_err *err);
void sim_flags_help(struct cgn_buf *out);
