/* SPDX-License-Identifier: Apache-2.0 */
/* trial: the share of a trace's prompt blocks that one cache would have found, by eviction policy. Pure.
 *
 * A request finds the blocks at the beginning of its prompt up to the first missing one and uses them. The
 * other blocks are computed and added to the cache; a cached block behind the gap counts as used. All blocks
 * are equally large; unfinished last blocks count as blocks.
 *
 * OFFLINE knows the future and is optimal: no policy finds more. After each request it keeps, of the cached
 * blocks and those of the prompt, the ones with the earliest next use, and of one prompt the earlier ones:
 * Belady's MIN with bypass ("A study of replacement algorithms", 1966), which finds the most single blocks. A
 * request for a block is also a request for all blocks before it, so none of those has a later next use.
 * Hence the kept blocks always form prefixes, and the result for single blocks is the result for prefixes. */
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
	uint32_t blocks; /* Blocks that the cache holds, at least 1. */
	/* Number of parts that the cache is split into by digest; 1 to |blocks|; OFFLINE: 1. */
	uint32_t shards;
	bool begin_first; /* Prompts are added from their first block on; default: from their last. */
};
struct trial_result {
	uint64_t blocks, found;
	uint64_t behind_gap; /* Blocks that were cached but came after a missing one. */
	uint64_t evicted;
	uint64_t policy_bytes; /* EVICT: bytes of ghosts at the end. */
};

/* Run the trial over |t|. INVALID: |cfg| is out of bounds; NO_MEMORY. Needs 80 bytes a distinct block and 4
 * for each block of a prompt; OFFLINE about 100 and 8. */
CGN_RC trial_run(const struct trace *t, const struct trial_cfg *cfg, struct trial_result *out,
	struct cgn_err *err);
static inline double trial_ratio(const struct trial_result *r)
{
	return r->blocks > 0 ? (double)r->found / (double)r->blocks : 0;
}
bool trial_find(struct cgn_str text, enum trial_policy *out);
const char *trial_text(enum trial_policy p);
const char *trial_help(enum trial_policy p);
