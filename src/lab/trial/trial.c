/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/trial/trial_priv.h"

static const struct {
	const char *text;
	const struct trial_ops *ops;
	const char *help;
} rows[TRIAL_POLICIES] = {
#define TRIAL(id, text, ops, help) [TRIAL_##id] = {text, ops, help},
#include "lab/trial/trials.def"
#undef TRIAL
};

const char *trial_text(enum trial_policy p)
{
	return rows[p].text;
}

const char *trial_help(enum trial_policy p)
{
	return rows[p].help;
}

bool trial_find(struct cgn_str text, enum trial_policy *out)
{
	for (enum trial_policy p = 0; p < TRIAL_POLICIES; p++) {
		if (cgn_str_eq(text, cgn_str_of(rows[p].text))) {
			*out = p;
			return true;
		}
	}
	return false;
}

struct trial {
	const struct trace *trace;
	const struct trial_cfg *cfg;
	const struct trial_ops *ops;
	struct trace_numbers numbers;
	uint32_t *of; /* Number of each of the trace's ids. */
	struct trial_block *block;
	struct trial_shard *shard;
	struct trial_result result;
};

static CGN_RC no_memory(const struct trace *t, struct cgn_err *err)
{
	return CGN_FAIL(err, NO_MEMORY, "no memory for a cache over %zu blocks", t->n_ids);
}

static CGN_RC number_blocks(struct trial *x, struct cgn_err *err)
{
	const struct trace *t = x->trace;
	x->of = malloc((t->n_ids + 1) * sizeof *x->of);
	if (x->of == NULL)
		return no_memory(t, err);
	for (size_t i = 0; i < t->n_ids; i++) {
		x->of[i] = trace_number(&x->numbers, t->ids[i]);
		if (x->of[i] == TRACE_NO_NUMBER)
			return no_memory(t, err);
	}
	x->block = calloc(x->numbers.n + 1, sizeof *x->block);
	if (x->block == NULL)
		return no_memory(t, err);
	for (size_t i = 0; i < x->numbers.n; i++)
		x->block[i].digest = trace_digest(x->numbers.key[i]);
	return CGN_OK;
}

static CGN_RC cut_shards(struct trial *x, struct cgn_err *err)
{
	x->shard = calloc(x->cfg->shards, sizeof *x->shard);
	if (x->shard == NULL)
		return no_memory(x->trace, err);
	for (uint32_t i = 0; i < x->cfg->shards; i++)
		trial_shard_init(&x->shard[i],
			x->cfg->blocks / x->cfg->shards + (i < x->cfg->blocks % x->cfg->shards));
	return CGN_OK;
}

static void trial_fini(struct trial *x)
{
	for (uint32_t i = 0; x->shard != NULL && i < x->cfg->shards; i++)
		trial_shard_fini(&x->shard[i]);
	trace_numbers_fini(&x->numbers);
	free(x->of);
	free(x->block);
	free(x->shard);
}

static void use_block(struct trial *x, struct trial_block *b)
{
	struct trial_shard *s = &x->shard[b->digest % x->cfg->shards];
	if (b->held) {
		x->ops->touch(s, b);
		return;
	}
	struct trial_block *out = x->ops->add(s, b);
	b->held = true;
	if (out != NULL) {
		out->held = false;
		x->result.evicted++;
	}
}

static void play_request(struct trial *x, const struct trace_request *r)
{
	const uint32_t *of = x->of + r->first;
	uint32_t found = 0;
	while (found < r->n && x->block[of[found]].held)
		found++;
	x->result.found += found;
	for (uint32_t i = found; i < r->n; i++)
		x->result.behind_gap += x->block[of[i]].held;
	for (uint32_t i = 0; i < found; i++)
		use_block(x, &x->block[of[x->cfg->begin_first ? i : found - 1 - i]]);
	for (uint32_t i = found; i < r->n; i++)
		use_block(x, &x->block[of[x->cfg->begin_first ? i : r->n - 1 - (i - found)]]);
}

static CGN_RC run_policy(struct trial *x, struct cgn_err *err)
{
	CGN_TRY(number_blocks(x, err));
	if (x->ops == NULL)
		return trial_offline(x->trace, x->of, (uint32_t)x->numbers.n, x->cfg->blocks, &x->result,
			err);
	CGN_TRY(cut_shards(x, err));
	for (size_t i = 0; i < x->trace->n; i++)
		play_request(x, &x->trace->requests[i]);
	for (uint32_t i = 0; i < x->cfg->shards; i++)
		x->result.policy_bytes += evict_bytes(&x->shard[i].evict);
	return CGN_OK;
}

CGN_RC trial_run(const struct trace *t, const struct trial_cfg *cfg, struct trial_result *out,
	struct cgn_err *err)
{
	bool offline = cfg->policy == TRIAL_OFFLINE;
	if (cfg->shards == 0 || cfg->shards > cfg->blocks || (offline && cfg->shards > 1))
		return CGN_FAIL(err, INVALID, "a cache of %u blocks can't be %u%s", cfg->blocks, cfg->shards,
			offline ? ": the optimum knows of one" : "");
	CGN_ON_EXIT(trial_fini)
	struct trial x = {.trace = t,
		.cfg = cfg,
		.ops = rows[cfg->policy].ops,
		.result = {.blocks = t->n_ids}};
	CGN_TRY(run_policy(&x, err));
	*out = x.result;
	return CGN_OK;
}
