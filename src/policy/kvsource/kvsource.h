/* SPDX-License-Identifier: Apache-2.0 */
/* kvsource: what one publisher of KV events (an engine, or one data-parallel rank of it) holds, as `struct
 * holdings` of the node. A pure state machine over numbered batches: (state, input, now) -> orders. What it
 * cannot know it does not claim: a block is held only when its whole chain of parents is known.
 *
 * Names. The engine's hash of a block means nothing to us; it is kept (with its cache group and block size)
 * beside our digest of the block, which is made from the tokens: digest_chain_root(model, lora, salt), then
 * digest_chain_next over the tokens as little-endian 32-bit numbers. An engine's block of k x block_tokens
 * tokens is k of ours. One of block_tokens / k tokens, at most 8, is a page, and k of them are one of ours,
 * which is held where its last page is: engines drop the later part of a prefix first. Another size demotes
 * the source.
 *   - Root: a vLLM LoRA is a model by its name to clients, so its root is (model = lora, lora = "", salt);
 *     SGLang's is (model, lora, salt).
 *     A LoRA of which only a number is told has lora = "#number", which no router asks for.
 *   - Extra keys that are neither the LoRA's name nor the salt (hashes of images, of prompt embeddings) are
 *     appended to the tokens, as the raw
 *     MessagePack values that came, or as their digest if they are over 1 KiB. A block of text is 4 x
 *     block_tokens bytes, so such a block is never taken for one of text. Counting. Each announcement in a
 *     medium is one reference there, each removal one less; with the last one it is gone. Removals of unknown
 *     blocks are counted and pass. Groups. A hybrid model announces a block once for each cache group. It is
 *     held in a tier when every full-attention group holds it there: the groups of a sliding window or a
 *     recurrent state keep only what the last tokens need, and their absence further back costs nothing. If
 *     no group of full attention was ever seen, every group seen counts.
 *
 * Sequence. Batches are numbered from 0 and applied in order, each once; those that come early wait
 * (HELD_BATCHES, HELD_BYTES). A gap, and each new connection, orders a replay from the last batch that was
 * applied: if the publisher answers with another batch of that number, or with none, it was restarted, and
 * everything is forgotten. A number that was applied before, with other contents, says the same (among the
 * last 1,024; those before that come from a connection that a replay overtook). A replay that fails, or does
 * not reach back far enough, forgets everything too, and the source goes on from what comes next, as
 * KVSOURCE_PARTIAL: what it knows is true, but there may be more. After a failure a replay from the
 * beginning is tried 30 s later, and again; what is known is kept until one answers. When nothing came for
 * KVSOURCE_QUIET, a replay looks whether the last batch before the lull was lost, and again each
 * KVSOURCE_IDLE. An unparsable batch demotes: all is forgotten, and the source starts anew behind it after
 * 30 s. So does a publisher that was restarted more than 8 times within 30 s: two that publish to one
 * endpoint look like that. So does one that seems to restart more than 8 times in 30 s: two publishers share
 * the endpoint. A source that lost its connection keeps what it knows for 10 s.
 *
 * Memory: at most max_blocks blocks of ours, and as many pages, 130 to 260 bytes each, and 8 to 20 more for
 * each further cache group; one block more demotes; and what is held back. One thread. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/holdings/holdings.h"

#define KVSOURCE_MAX_BLOCKS     ((size_t)1 << 20)
#define KVSOURCE_HELD_BATCHES   256
#define KVSOURCE_HELD_BYTES     ((size_t)8 * 1024 * 1024)
#define KVSOURCE_REPLAY_TIMEOUT (5 * CGN_SEC) /* without an answer that brings something */
#define KVSOURCE_COOLDOWN       (30 * CGN_SEC)
#define KVSOURCE_QUIET          (2 * CGN_SEC)
#define KVSOURCE_IDLE           (30 * CGN_SEC)
#define KVSOURCE_STALE          (10 * CGN_SEC)

enum kvsource_state {
	KVSOURCE_WAITING, /* not connected */
	KVSOURCE_SYNCING, /* learns what was before it came */
	KVSOURCE_PARTIAL, /* true, but incomplete */
	KVSOURCE_GOOD,    /* exact */
	KVSOURCE_DEMOTED, /* not usable */
	KVSOURCE_STATES,
};
const char *kvsource_state_name(enum kvsource_state s); /* "waiting" */

struct kvsource_cfg {
	const char *model;  /* as it enters the chain's root */
	bool lora_is_model; /* vLLM's rule for roots, else SGLang's */
	uint32_t block_tokens;
	bool can_replay;   /* a replay that is ordered will be tried */
	size_t max_blocks; /* 0: KVSOURCE_MAX_BLOCKS */
};

enum kvsource_input_type {
	KVSOURCE_IN_CONNECTED, /* subscribed, anew */
	KVSOURCE_IN_DISCONNECTED,
	KVSOURCE_IN_LIVE,          /* seq, payload */
	KVSOURCE_IN_REPLAYED,      /* seq, payload: an answer to the replay that was ordered last */
	KVSOURCE_IN_REPLAY_END,    /* it is complete */
	KVSOURCE_IN_REPLAY_FAILED, /* why */
	KVSOURCE_IN_TICK,          /* wake_at has come */
};
struct kvsource_input {
	enum kvsource_input_type type;
	uint64_t seq;
	struct cgn_str payload; /* borrowed */
	const char *why;
};
struct kvsource_orders {
	/* ask for the batches from replay_from on; a replay under way is to be broken off */
	bool replay;
	bool cancel_replay; /* break it off */
	uint64_t replay_from;
	bool unparsable;  /* a batch was; kvsource_why says how */
	char head[72];    /* and this is how it begins, as hexadecimal digits */
	cgn_nsec wake_at; /* KVSOURCE_IN_TICK then; 0: no need. Replaces the one before */
};

struct kvsource_stats {
	/* batches applied; blocks announced and withdrawn, with duplicates; AllBlocksCleared */
	uint64_t batches, stored, removed, cleared;
	uint64_t duplicates; /* batches that came again */
	uint64_t gaps, replays, replay_failures, restarts, errors;
	uint64_t orphans;         /* blocks passed over because their parent is not known */
	uint64_t unknown_removed; /* removals of what was not known */
	uint64_t unknown_events, unknown_fields;
	uint64_t next_seq;
	size_t blocks; /* engine's, by hash */
	size_t held;   /* batches held back */
	/* what it knew last, while it waits for its publisher or syncs; always when good or partial */
	bool keeps;
	int64_t dp_rank;  /* as the last batch says; -1: not said */
	cgn_nsec last_at; /* of the last batch; 0: none came */
};

struct kvsource;
/* |h| outlives it. INVALID: cfg; NO_MEMORY. */
CGN_RC kvsource_new(const struct kvsource_cfg *cfg, struct holdings *h, struct kvsource **out,
	struct cgn_err *err);
void kvsource_free(struct kvsource **take); /* what it held leaves the holdings. NULL-safe */
void kvsource_step(struct kvsource *s, const struct kvsource_input *in, cgn_nsec now,
	struct kvsource_orders *out);
enum kvsource_state kvsource_state(const struct kvsource *s);
const char *kvsource_why(const struct kvsource *s); /* a phrase; "" when good */
struct kvsource_stats kvsource_stats(const struct kvsource *s);
