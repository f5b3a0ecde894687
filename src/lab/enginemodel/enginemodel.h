/* SPDX-License-Identifier: Apache-2.0 */
/* enginemodel: when a GPU would have which token. Continuous batching over a paged KV cache, as vLLM's v1
 * scheduler does it: first come, first served; decodes first, then prompts in chunks up to a token budget a
 * step; a running request that can't grow makes the one that came last give its blocks back and start over.
 * Pure: time is an argument, virtual, in any unit of pace the caller likes. */
#pragma once
#include "base/core/list.h"
#include "lab/enginemodel/memory.h"

struct enginemodel;
struct enginemodel_job; /* one sequence; n choices of a request are n of them */

struct enginemodel_cfg {
	double prefill_tokens_per_s; /* 0: prefill takes no time */
	cgn_nsec decode;             /* a step with one decoding sequence */
	double batch_effect;         /* each further one adds this share of it */
	cgn_nsec fixed_step;         /* not 0: every step takes this long, whatever is in it */
	uint32_t max_batch;          /* running sequences */
	uint32_t step_tokens;        /* budget of one step, decode and prefill together; at least max_batch */
	uint32_t max_queue;          /* waiting sequences */
	uint32_t kv_blocks, block_tokens;
	uint32_t lower_blocks[ENGINEMODEL_TIER_COUNT]; /* of the tiers below the GPU; 0: none */
	cgn_nsec restore[ENGINEMODEL_TIER_COUNT]; /* what a block that comes up from there adds to the step */
	enum enginemodel_note_kind notes;
	struct enginemodel_listener listener;
};

struct enginemodel_job_spec {
	uint32_t prompt_tokens, answer_tokens; /* both at least 1 */
	const uint64_t *hashes;                /* of the full blocks of prompt and answer; copied */
	uint32_t n_hashes;
	void *user;
	/* of those blocks; taken on success. NULL: nobody wants to know */
	struct enginemodel_contents **contents;
};

/* What a finished step gave to one job. */
struct enginemodel_progress {
	void *user;
	uint32_t given;  /* answer tokens so far */
	uint32_t cached; /* prompt tokens that were not computed */
	bool finished;   /* the job is gone */
};
struct enginemodel_orders {
	const struct enginemodel_progress *gains; /* borrowed until the next call */
	size_t n_gains;
	/* call enginemodel_step again then; 0: nothing to do until something is submitted */
	cgn_nsec wake_at;
};

struct enginemodel_stats {
	uint32_t running, waiting, kv_used, kv_total, kv_known;
	uint64_t prompt_tokens, answer_tokens, prefix_queried, prefix_hit, finished, aborted, preempted,
		steps;
	uint64_t restored[ENGINEMODEL_TIER_COUNT]; /* blocks */
	uint32_t lower_known[ENGINEMODEL_TIER_COUNT];
};

CGN_RC enginemodel_new(const struct enginemodel_cfg *cfg, struct enginemodel **out);
void enginemodel_free(struct enginemodel **take); /* jobs too */
/* Queue a job. CGN_OVERLOADED: the queue is full. CGN_TOO_LARGE: it could never fit into the KV cache.
 * CGN_NO_MEMORY. */
CGN_RC enginemodel_submit(struct enginemodel *m, const struct enginemodel_job_spec *spec,
	struct enginemodel_job **out);
/* Its memory is free at once, a step in flight or not. |*take| is gone. */
void enginemodel_abort(struct enginemodel *m, struct enginemodel_job **take);
/* A held job keeps its blocks and its place and makes no progress (a stalled sequence). */
void enginemodel_hold(struct enginemodel *m, struct enginemodel_job *job);
/* End the step in flight if |now| has reached its end, and begin the next. Call it until wake_at is 0 or
 * later than |now|. */
void enginemodel_step(struct enginemodel *m, cgn_nsec now, struct enginemodel_orders *out);
/* Forget all cached blocks, in every tier. False, and nothing happens, while a job has blocks, unless
 * |even_running|: then what runs starts over, as if preempted. |silently|: the listener is not told. */
bool enginemodel_reset(struct enginemodel *m, bool even_running, bool silently);
/* Put the blocks of |run| into the cache as if they had been computed; none of those before them is pushed
 * out by it. How many there was room for: all, unless jobs hold the rest. */
uint32_t enginemodel_fill(struct enginemodel *m, const struct enginemodel_run *run);
/* The step that begins next takes so much longer: something was loaded meanwhile. */
void enginemodel_delay(struct enginemodel *m, cgn_nsec by);
struct enginemodel_memory *enginemodel_memory_of(struct enginemodel *m); /* borrowed, to look at */
struct enginemodel_stats enginemodel_stats(const struct enginemodel *m);
bool enginemodel_sound(const struct enginemodel *m); /* O(n) audit for tests */
