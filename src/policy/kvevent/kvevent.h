/* SPDX-License-Identifier: Apache-2.0 */
/* kvevent: what an engine publishes about its KV cache, as MessagePack, read into typed events. Pure; no
 * allocation; any thread.
 *
 * The layouts (vLLM 0.10 to 0.26 and its main branch of 2026-06, SGLang 0.4 to 0.5 and the maps of 2026-08),
 * told apart by what comes, at each level by itself:
 *   batch [ts, [event...], data_parallel_rank?], or a map {ts, events, data_parallel_rank}
 *   event ["BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name,
 *   extra_keys, group_idx,
 *           kv_cache_spec_kind, kv_cache_spec_sliding_window, locality], trailing defaults left out; SGLang
 *           has {"cache_salt"} where
 *           lora_name stands; ["BlockRemoved", block_hashes, medium, group_idx, locality];
 *           ["AllBlocksCleared"];
 *           or a map {"type": "BlockStored", ...} with the same names (and SGLang's "cache_salt", or
 *           "metadata" that holds it)
 *   hash an integer of up to 64 bits, or bytes, of which the last 8 count, big-endian
 *   medium GPU (and nothing said): BLOCK_GPU. CPU, CPU_PINNED, CPU_TIER1, CPU_TIER2: BLOCK_RAM. STORAGE, DISK, SSD,
 *   FS, NVME: BLOCK_SSD.
 *           Anything else, and whatever has locality REMOTE: BLOCK_REMOTE. Case does not matter Unknown events
 *           and unknown fields are passed over and counted. */
#pragma once
#include "base/core/err.h"
#include "base/msgpack/msgpack.h"
#include "policy/block/tier.h"

#define KVEVENT_MAX_GROUPS 32 /* cache groups of a hybrid model; a group_idx beyond is an error */

/* Hashes or tokens of an event, borrowed from the payload and checked: read them with kvevent_hash_next and
 * kvevent_token_next. */
struct kvevent_list {
	struct msgpack_in at;
	uint32_t n; /* still to come */
};
bool kvevent_hash_next(struct kvevent_list *l, uint64_t *out);
bool kvevent_token_next(struct kvevent_list *l, uint32_t *out);

enum kvevent_type { KVEVENT_STORED, KVEVENT_REMOVED, KVEVENT_CLEARED, KVEVENT_TYPES };
struct kvevent {
	enum kvevent_type type;
	enum block_tier tier;
	uint32_t group; /* cache group of a hybrid model; 0 when not said */
	struct kvevent_list hashes;
	/* KVEVENT_STORED: */
	bool has_parent;
	uint64_t parent;
	/* block_size for each hash; or none: then the event tells where blocks lie, not what they are */
	struct kvevent_list tokens;
	uint32_t block_size; /* in tokens */
	/* the group keeps a window or a state, not the whole prefix: kv_cache_spec_kind, or a sliding
	 * window */
	bool windowed;
	uint64_t lora_id;          /* 0: none */
	struct cgn_str lora;       /* name of the LoRA; empty: none, or unknown */
	struct cgn_str salt;       /* SGLang's cache_salt; empty: none */
	struct cgn_str extra_keys; /* raw: an array, or empty. See kvevent_extra_next */
};

/* One block's entry of extra_keys, without the LoRA's name. */
struct kvevent_extra {
	struct cgn_str salt;    /* the cache_salt, by position; empty: none */
	struct cgn_str foreign; /* raw values: image hashes, digests of prompt embeddings; empty: none */
};
/* The entries of e->extra_keys, block by block: as many as hashes, or none at all. vLLM lists for a block the
 * LoRA's name, then the hashes of images, then (first block of a prompt) the cache_salt, a bare string, then
 * bytes for prompt embeddings; they are not labelled. So in a block without a parent the last bare string
 * that is not the LoRA's name is taken for the salt. Where that is an image's hash instead, the prefix has a
 * root that no prompt of text has: it matches nothing, which is what is wanted. */
void kvevent_extra_next(struct msgpack_in *entries, struct cgn_str lora, bool first_of_prompt,
	struct kvevent_extra *out);

struct kvevent_batch {
	double ts;       /* Unix seconds */
	int64_t dp_rank; /* -1: not said */
	uint32_t events, unknown_events, unknown_fields;
};

/* Read |payload|. |each| gets the known events in order, each checked whole before; NULL: only check.
 * INVALID: err->msg says what is wrong and at which byte; events before that were told. */
CGN_RC kvevent_batch_read(struct cgn_str payload, void (*each)(void *user, const struct kvevent *e),
	void *user, struct kvevent_batch *out, struct cgn_err *err);
