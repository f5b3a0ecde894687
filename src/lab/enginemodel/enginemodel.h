/* SPDX-License-Identifier: Apache-2.0 */
/* enginemodel: predicts at which time a GPU has produced which token. Models vLLM's v1 scheduler: continuous
 * batching over a paged KV cache; first come, first served; decodes first, then prompts in chunks up to the
 * token budget of a step. When a running request needs a block and none is free, the request that came last
 * releases its blocks and starts over. Pure: time is an argument and may be virtual. */
#pragma once
#include "base/core/list.h"
#include "lab/enginemodel/memory.h"

struct enginemodel;
struct enginemodel_job; /* A sequence; a request with n choices is n jobs. */

/* Terms of a real GPU; all 0: the context does not matter, and prompts and decoding sequences take turns. */
struct enginemodel_terms {
	double context_ns; /* Reading the KV of one token, once in a step for each sequence. */
	double pair_ns;    /* Attention of one computed prompt token to one token before it. */
	/* Each step reads the weights, which takes |decode|, and computes its tokens meanwhile: the longer of the two counts. */
	bool overlaps;
};
struct enginemodel_cfg {
	double prefill_tokens_per_s; /* 0: prefill takes no time. */
	cgn_nsec decode;             /* Duration of a step with one decoding sequence. */
	double batch_effect;         /* Share of |decode| that each further sequence adds. */
	struct enginemodel_terms terms;
	cgn_nsec fixed_step; /* Duration of every step, whatever its load; 0: computed. */
	uint32_t max_batch;  /* Largest number of running sequences. */
	/* Token budget of one step, decode and prefill together; at least max_batch. */
	uint32_t step_tokens;
	uint32_t max_queue; /* Largest number of waiting sequences. */
	uint32_t kv_blocks, block_tokens;
	/* Blocks of the tiers below the GPU; 0: no such tier. */
	uint32_t lower_blocks[ENGINEMODEL_TIER_COUNT];
	/* Time that a block restored from each tier adds to its step. */
	cgn_nsec restore[ENGINEMODEL_TIER_COUNT];
	bool keeps_none; /* See memory.h. */
	enum enginemodel_note_kind notes;
	struct enginemodel_listener listener;
};

struct enginemodel_job_spec {
	uint32_t prompt_tokens, answer_tokens; /* Both at least 1. */
	const uint64_t *hashes;                /* Hashes of the full blocks of prompt and answer; copied. */
	uint32_t n_hashes;
	void *user;
	/* Contents of the hashed blocks, taken on success. May be NULL. */
	struct enginemodel_contents **contents;
	/* Leading prompt tokens whose KV another engine hands over with the job. They are cached and not computed,
	 * unless the job is preempted. At least the last token is computed, in a decode step. */
	uint32_t handed;
};

/* Progress of one job in a finished step. */
struct enginemodel_progress {
	void *user;
	uint32_t given;  /* Answer tokens so far. */
	uint32_t cached; /* Prompt tokens that came from the cache. */
	bool finished;   /* The job has ended and is freed. */
};
struct enginemodel_orders {
	const struct enginemodel_progress *progress; /* Borrowed until the next call. */
	size_t n_progress;
	/* Time of the next enginemodel_step; 0: nothing to do until the next submission. */
	cgn_nsec wake_at;
};

/* Parts of the step in flight; all 0: there is none. */
struct enginemodel_step_parts {
	cgn_nsec prefill, decode; /* Restoring blocks is neither. */
	uint32_t decodes;         /* Sequences that get a token. */
};

struct enginemodel_stats {
	uint32_t running, waiting, kv_used, kv_total, kv_known;
	uint64_t prompt_tokens, answer_tokens, prefix_queried, prefix_hit, finished, aborted, preempted,
		steps;
	uint64_t restored[ENGINEMODEL_TIER_COUNT]; /* Blocks restored from each tier. */
	uint32_t lower_known[ENGINEMODEL_TIER_COUNT];
};

CGN_RC enginemodel_new(const struct enginemodel_cfg *cfg, struct enginemodel **out);
void enginemodel_free(struct enginemodel **take); /* Frees the jobs too. */
/* Queue a job. CGN_OVERLOADED: the queue is full. CGN_TOO_LARGE: the job can never fit into the KV cache.
 * CGN_NO_MEMORY. */
CGN_RC enginemodel_submit(struct enginemodel *m, const struct enginemodel_job_spec *spec,
	struct enginemodel_job **out);
/* Free the job and its KV memory at once, even in a step. */
void enginemodel_abort(struct enginemodel *m, struct enginemodel_job **take);
/* Stall the job: it keeps its blocks and its place in the batch and makes no progress. */
void enginemodel_hold(struct enginemodel *m, struct enginemodel_job *job);
/* End the step in flight if |now| has reached its end, and begin the next. Call it until wake_at is 0 or
 * later than
 * |now|. */
void enginemodel_step(struct enginemodel *m, cgn_nsec now, struct enginemodel_orders *out);
/* Drop all cached blocks of every tier. While a job has blocks, return false and do nothing, unless
 * |even_running|: then running jobs start over as if preempted. |silently|: do not call the listener. */
bool enginemodel_reset(struct enginemodel *m, bool even_running, bool silently);
/* Cache the blocks of |run| as if they had been computed, without evicting the blocks before them. Return how
 * many fitted; fewer than |run->n| when jobs use the other blocks. */
uint32_t enginemodel_fill(struct enginemodel *m, const struct enginemodel_run *run);
/* From the next step on, decode and prefill take |decode| and |prefill| times as long as configured. */
void enginemodel_slow(struct enginemodel *m, double decode, double prefill);
/* Lengthen the next step by |by|, for blocks loaded from elsewhere. */
void enginemodel_delay(struct enginemodel *m, cgn_nsec by);
struct enginemodel_memory *enginemodel_memory_of(struct enginemodel *m); /* Borrowed, read only. */
struct enginemodel_stats enginemodel_stats(const struct enginemodel *m);
struct enginemodel_step_parts enginemodel_step_parts(const struct enginemodel *m);
bool enginemodel_sound(const struct enginemodel *m); /* Check the invariants in O(n). For tests. */
