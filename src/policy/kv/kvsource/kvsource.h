/* SPDX-License-Identifier: Apache-2.0 */
/* kvsource: the blocks of one publisher of KV events (an engine, or one data-parallel rank of it), written
 * into the node's `struct holdings`. A pure state machine over numbered batches: (state, input, now) ->
 * orders. A block is held only when its whole chain of parents is known. One thread.
 *
 * Names. The engine's hash of a block is kept, with its cache group and block size, beside our digest of the
 * block. The digest is made from the tokens: digest_chain_root(model, lora, salt), then digest_chain_next
 * over the tokens as little-endian 32-bit numbers. An engine's block of k x block_tokens tokens is k blocks
 * of ours. An engine's block of block_tokens / k tokens, at most 8, is a page: k pages are one block of ours,
 * held where its last page is, because engines drop the end of a prefix first. Any other size demotes the
 * source.
 * - Root: vLLM presents a LoRA to clients as a model name, so its root is (model = lora, lora = "", salt);
 *   SGLang's is (model, lora, salt). A LoRA known only by number has lora = "#number", which no router asks
 *   for.
 * - Extra keys that are neither the LoRA's name nor the salt (hashes of images or of prompt embeddings) are
 *   appended to the tokens as raw MessagePack, or as its digest when over 1 KiB. A block of text is 4 x
 *   block_tokens bytes, so such a block never equals one of text.
 *
 * Counting. Each announcement in a tier is one reference there, each removal drops one; the block leaves the
 * tier with the last reference. Removals of unknown blocks are counted and ignored.
 *
 * Groups. A hybrid model announces a block once for each cache group. The block is held in a tier when every
 * full-attention group holds it there. The groups of a sliding window or a recurrent state keep only what the
 * last tokens need, so their absence further back does not matter. If no full-attention group was ever seen,
 * every group counts.
 *
 * Sequence. Batches are numbered from 0 and applied in order, once each; early ones wait (HELD_BATCHES,
 * HELD_BYTES).
 * - A gap, or a new connection, orders a replay from the last applied batch. If the publisher answers with a
 *   different batch of that number, or none, it was restarted and everything is forgotten. The same holds for
 *   a live batch with a known number and different contents, among the last 1,024; older numbers come from a
 *   connection that a replay overtook.
 * - A replay that fails, or does not reach back far enough, also forgets everything. The source continues
 *   from the next batch as KVSOURCE_PARTIAL: its blocks are correct but may be incomplete. A replay from the
 *   beginning is tried every KVSOURCE_COOLDOWN; known blocks are kept until one answers.
 * - After KVSOURCE_QUIET without a batch, a replay checks whether the last batch was lost, and again each
 *   KVSOURCE_IDLE.
 * - A batch that can't be parsed demotes the source: everything is forgotten, and the source restarts behind
 *   that batch after KVSOURCE_COOLDOWN. More than 8 restarts of the publisher within KVSOURCE_COOLDOWN demote
 *   it too: two publishers probably share the endpoint.
 * - A source that lost its connection keeps its blocks for KVSOURCE_STALE.
 *
 * Memory: at most max_blocks blocks of ours and as many pages, 110 to 220 bytes each, 8 to 20 more for each
 * further cache group, and the batches held back. One block more demotes the source. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/kv/holdings/holdings.h"

#define KVSOURCE_MAX_BLOCKS     ((size_t)1 << 20)
#define KVSOURCE_HELD_BATCHES   256
#define KVSOURCE_HELD_BYTES     ((size_t)8 * 1024 * 1024)
#define KVSOURCE_REPLAY_TIMEOUT (5 * CGN_SEC) /* Longest silence during a replay. */
#define KVSOURCE_COOLDOWN       (30 * CGN_SEC)
#define KVSOURCE_QUIET          (2 * CGN_SEC)
#define KVSOURCE_IDLE           (30 * CGN_SEC)
#define KVSOURCE_STALE          (10 * CGN_SEC)

enum kvsource_state {
#define STATE(id, text, exits, meaning) KVSOURCE_##id,
#include "policy/kv/kvsource/states.def"
#undef STATE
	KVSOURCE_STATES,
};
const char *kvsource_state_name(enum kvsource_state s); /* For logs and JSON: "waiting". */

struct kvsource_cfg {
	const char *model;  /* Model in the chain's root. */
	bool lora_is_model; /* Make roots by vLLM's rule, else by SGLang's. */
	uint32_t block_tokens;
	bool can_replay;   /* Replays that are ordered will be tried. */
	size_t max_blocks; /* 0: KVSOURCE_MAX_BLOCKS. */
};

enum kvsource_input_type {
	KVSOURCE_IN_CONNECTED, /* Subscribed, first or again. */
	KVSOURCE_IN_DISCONNECTED,
	KVSOURCE_IN_LIVE,          /* Carries seq and payload. */
	KVSOURCE_IN_REPLAYED,      /* Carries seq and payload: an answer to the last replay ordered. */
	KVSOURCE_IN_REPLAY_END,    /* The replay is complete. */
	KVSOURCE_IN_REPLAY_FAILED, /* Carries why. */
	KVSOURCE_IN_TICK,          /* wake_at has come. */
};
struct kvsource_input {
	enum kvsource_input_type type;
	uint64_t seq;
	struct cgn_str payload; /* Borrowed. */
	const char *why;
};
struct kvsource_orders {
	/* Start a replay from replay_from; cancel the one in progress, if any. */
	bool replay;
	bool cancel_replay; /* Cancel the replay in progress. */
	uint64_t replay_from;
	bool unparsable;  /* A batch could not be parsed; kvsource_why tells how. */
	char head[72];    /* The first bytes of that batch, in hexadecimal. */
	cgn_nsec wake_at; /* When to send KVSOURCE_IN_TICK; replaces the last one. 0: not needed. */
};

struct kvsource_stats {
	/* Batches applied; blocks announced and withdrawn, with duplicates; AllBlocksCleared events. */
	uint64_t batches, stored, removed, cleared;
	uint64_t duplicates; /* Batches received again. */
	uint64_t gaps, replays, replay_failures, restarts, errors;
	uint64_t orphans;         /* Blocks skipped because their parent is unknown. */
	uint64_t unknown_removed; /* Removals of unknown blocks. */
	uint64_t unknown_events, unknown_fields;
	uint64_t next_seq;
	size_t blocks; /* The engine's blocks, by hash. */
	size_t held;   /* Batches held back. */
	/* The source still holds its last known blocks while it waits for its publisher or syncs; always true
	 * when good or partial. */
	bool keeps;
	int64_t dp_rank;  /* From the last batch; -1: not given. */
	cgn_nsec last_at; /* Time of the last batch; 0: none came. */
};

struct kvsource;
/* |h| must outlive the source. Fails with INVALID when |cfg| is out of bounds. */
CGN_RC kvsource_new(const struct kvsource_cfg *cfg, struct holdings *h, struct kvsource **out,
	struct cgn_err *err);
void kvsource_free(struct kvsource **take); /* Remove the source's blocks from the holdings. NULL-safe. */
void kvsource_step(struct kvsource *s, const struct kvsource_input *in, cgn_nsec now,
	struct kvsource_orders *out);
enum kvsource_state kvsource_state(const struct kvsource *s);
const char *kvsource_why(const struct kvsource *s); /* A phrase; "" when good. */
struct kvsource_stats kvsource_stats(const struct kvsource *s);
