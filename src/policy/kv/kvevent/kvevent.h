/* SPDX-License-Identifier: Apache-2.0 */
/* kvevent: reads the KV cache events that an engine publishes as MessagePack. Pure; no allocation; any
 * thread.
 *
 * The reader knows the layouts of vLLM 0.10 to 0.26 and its main branch of 2026-06, and of SGLang 0.4 to 0.5
 * and the maps of 2026-08. It recognizes the layout of each level by itself:
 *
 *   batch    [ts, [event...], data_parallel_rank?], or a map {ts, events, data_parallel_rank}
 *   stored   ["BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium,
 *            lora_name, extra_keys, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window, locality],
 *            without trailing defaults; SGLang has {"cache_salt"} at the place of lora_name
 *   removed  ["BlockRemoved", block_hashes, medium, group_idx, locality]
 *   cleared  ["AllBlocksCleared"]
 *   an event may also be a map {"type": "BlockStored", ...} with the same names; SGLang's map has
 *            "cache_salt" too, or "metadata" that holds it
 *   hash     an integer of up to 64 bits, or bytes: the last 8 bytes, big-endian
 *   medium   GPU or no medium: BLOCK_GPU. CPU, CPU_PINNED, CPU_TIER1, CPU_TIER2: BLOCK_RAM. STORAGE, DISK,
 *            SSD, FS, NVME: BLOCK_SSD. Any other medium, and locality REMOTE: BLOCK_REMOTE. Case does not
 *            matter.
 *
 * Unknown events and unknown fields are skipped and counted. */
#pragma once
#include "base/core/err.h"
#include "base/msgpack/msgpack.h"
#include "policy/kv/block/tier.h"

#define KVEVENT_MAX_GROUPS 32 /* Cache groups of a hybrid model; a larger group_idx is an error. */

/* Hashes or tokens of an event, borrowed from the payload and checked: read them with kvevent_hash_next and
 * kvevent_token_next. */
struct kvevent_list {
	struct msgpack_in at;
	uint32_t n; /* Elements that are left. */
};
bool kvevent_hash_next(struct kvevent_list *l, uint64_t *out);
bool kvevent_token_next(struct kvevent_list *l, uint32_t *out);

enum kvevent_type { KVEVENT_STORED, KVEVENT_REMOVED, KVEVENT_CLEARED, KVEVENT_TYPES };
struct kvevent {
	enum kvevent_type type;
	enum block_tier tier;
	uint32_t group; /* Cache group of a hybrid model; 0 if the event names no group. */
	struct kvevent_list hashes;
	/* The rest is for KVEVENT_STORED. */
	bool has_parent;
	uint64_t parent;
	/* block_size tokens for each hash; or none: the event tells in which tier the blocks are, not their
	 * tokens. With |windowed|, the tokens may be more than that: vLLM tells all tokens of the prompt and
	 * only the hashes of the blocks that the window keeps, down to none. */
	struct kvevent_list tokens;
	uint32_t block_size; /* Tokens in a block. */
	/* The group keeps a window or a state, not the whole prefix (kv_cache_spec_kind, or a sliding
	 * window). */
	bool windowed;
	uint64_t lora_id;          /* 0: none. */
	struct cgn_str lora;       /* Name of the LoRA; empty: none, or unknown. */
	struct cgn_str salt;       /* SGLang's cache_salt; empty: none */
	struct cgn_str extra_keys; /* Raw: an array, or empty. See kvevent_extra_next. */
};

/* Return true when |e| has block_size tokens for each hash. False only for a windowed group, whose hashes then
 * can't be matched with their tokens. */
bool kvevent_tokens_fit(const struct kvevent *e);

/* The entry of extra_keys for a single block, without the LoRA's name. */
struct kvevent_extra {
	struct cgn_str salt;    /* The cache_salt, recognized by its position; empty: none. */
	struct cgn_str foreign; /* Raw values: image hashes, digests of prompt embeddings; empty: none. */
};
/* Read the next entry of e->extra_keys: as many as hashes, or none at all. In an entry, vLLM lists the LoRA's
 * name, then the hashes of images, then (first block of a prompt) the cache_salt as a bare string, then bytes
 * for prompt embeddings, all without labels. Therefore, in a block without a parent, the last bare string
 * that is not the LoRA's name counts as the salt. If that string is the hash of an image instead, the prefix
 * gets a root that no prompt of text has, and rightly matches nothing. */
void kvevent_extra_next(struct msgpack_in *entries, struct cgn_str lora, bool first_of_prompt,
	struct kvevent_extra *out);

struct kvevent_batch {
	double ts;       /* Unix seconds. */
	int64_t dp_rank; /* -1: the batch names no rank. */
	uint32_t events, unknown_events, unknown_fields;
};

/* Read |payload|. |each| gets the known events in order, after each was checked completely; NULL: only check.
 * CGN_INVALID: err->msg names the fault and its byte; |each| was called for the events before it. */
CGN_RC kvevent_batch_read(struct cgn_str payload, void (*each)(void *user, const struct kvevent *e),
	void *user, struct kvevent_batch *out, struct cgn_err *err);
