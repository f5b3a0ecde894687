/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/server/fill.h"

#include "base/mix/mix.h"

bool sim_fill_parse(const struct sim_cfg *cfg, struct cgn_str body, struct sim_fill *out,
	struct sim_refusal *no)
{
	struct sim_fields f;
	struct json_val blocks;
	uint64_t n = 0;
	*out = (struct sim_fill){.rank = UINT32_MAX};
	if (!sim_body_parse(body, &f, no))
		return false;
	if (!json_get(f.root, "blocks", &blocks) || !json_u64(blocks, &n) || n < 1 || n > cfg->kv_blocks)
		return sim_refuse(no, 400, "invalid_value", "blocks",
			"blocks: a number from 1 to %u (--kv-blocks)", cfg->kv_blocks);
	uint64_t chain = json_get_u64(f.root, "chain", 64);
	if (chain < 1 || chain > SIM_FILL_CHAIN_MAX)
		return sim_refuse(no, 400, "invalid_value", "chain", "chain: a number from 1 to %d",
			SIM_FILL_CHAIN_MAX);
	out->blocks = (uint32_t)n;
	out->chain = (uint32_t)chain;
	out->seed = json_get_u64(f.root, "seed", 0);
	return true;
}

/* Build a chain of |n| blocks of words that prompts are unlikely to contain. */
static uint32_t fill_chain(const struct sim_fill *f, const struct sim_cfg *cfg, uint32_t vocab,
	struct enginemodel *m, uint32_t n)
{
	uint64_t tokens = (uint64_t)n * cfg->block_tokens;
	uint64_t rng = mix64(f->seed ^ mix64(f->rank + 1U)) + mix64(f->made);
	struct sim_chain chain;
	sim_chain_init(&chain,
		&(struct sim_chain_cfg){.model = cgn_str_of(cfg->models[0]),
			.block_tokens = cfg->block_tokens,
			.max_tokens = tokens,
			.keep = sim_keeps_contents(cfg)});
	for (uint64_t i = 0; i < tokens; i++) {
		uint64_t draw = mix64(rng + i);
		sim_chain_add(&chain, vocab > 0 ? (uint32_t)(draw % vocab) : sim_token_any(draw));
	}
	uint32_t made =
		enginemodel_fill(m, &(struct enginemodel_run){chain.hashes, chain.contents, 0, chain.n});
	sim_chain_fini(&chain);
	return made;
}

bool sim_fill_step(struct sim_fill *f, const struct sim_cfg *cfg, unsigned rank, uint32_t vocab,
	struct enginemodel *m)
{
	if (f->rank != rank) {
		f->rank = rank;
		f->made = 0;
		f->full = false;
	}
	struct enginemodel_stats stats = enginemodel_stats(m);
	/* More blocks would evict the ones just made. */
	uint32_t room = stats.kv_total - stats.kv_used, most = f->blocks < room ? f->blocks : room;
	uint32_t before = f->made;
	while (!f->full && f->made < most && f->made - before < SIM_FILL_BATCH) {
		uint32_t left = most - f->made, n = f->chain < left ? f->chain : left;
		uint32_t made = fill_chain(f, cfg, vocab, m, n);
		f->full = made < n;
		f->made += made;
	}
	return f->full || f->made >= most;
}
