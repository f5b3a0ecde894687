/* SPDX-License-Identifier: Apache-2.0 */
/* trial: what one cache would have found of a trace's prompts, by who leaves when it is full. Pure.
 *
 * A request finds the blocks at the beginning of its prompt up to the first that is missing; those it finds
 * are used, the others are computed and come into the cache (one that was there behind the gap is used). All
 * blocks are equally large; unfinished last blocks are blocks too.
 *
 * OFFLINE knows the future and is exact: no policy finds more, whatever it knows. It keeps, after each
 * request, of the blocks that were in the cache and those of the prompt the ones whose next use comes first,
 * the less deep before the deeper: Belady's MIN with bypass ("A study of replacement algorithms", 1966),
 * which finds the most of single blocks. Whoever asks for a block asks for all before it too, so none of
 * those has a later next use: what it keeps always has its beginning, and what it finds of blocks it finds of
 * prefixes. */
#pragma once
#include "lab/trace/trace.h"

enum trial_policy {
#define TRIAL(id, text, ops, help) TRIAL_##id,
#include "lab/trial/trials.def"
#undef TRIAL
	TRIAL_POLICIES
};

struct trial_cfg {
	enum trial_policy policy;
	uint32_t blocks; /* what the cache holds, at least 1 */
	/* the cache is so many, a block's is chosen by its digest; 1 to |blocks|; OFFLINE: 1 */
	uint32_t shards;
	bool begin_first; /* prompts come in from their first block on, not from their last */
};
struct trial_result {
	uint64_t blocks, found;
	uint64_t behind_gap; /* in the cache, but of no use */
	uint64_t evicted;
	uint64_t policy_bytes; /* EVICT: of ghosts, in the end */
};

/* INVALID: |cfg| is out of bounds; NO_MEMORY. 80 bytes a distinct block and 4 for each in a prompt; OFFLINE
 * some 100 and 8. */
CGN_RC trial_run(const struct trace *t, const struct trial_cfg *cfg, struct trial_result *out,
	struct cgn_err *err);
static inline double trial_ratio(const struct trial_result *r)
{
	return r->blocks > 0 ? (double)r->found / (double)r->blocks : 0;
}
bool trial_find(struct cgn_str text, enum trial_policy *out);
const char *trial_text(enum trial_policy p);
const char *trial_help(enum trial_policy p);
