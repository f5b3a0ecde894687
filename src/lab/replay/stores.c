/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/replay/replay_priv.h"

#define STORES_BYTES ((size_t)4 << 30) /* Upper limit; memory is allocated as blocks arrive. */

CGN_RC stores_open(struct replay *r, struct cgn_err *err)
{
	struct replay_stores *s = &r->stores;
	const struct kvindex_cfg cfg = {.max_bytes = STORES_BYTES, .max_readers = 1, .seed = r->cfg->seed};
	if (!r->cfg->stores)
		return CGN_OK;
	s->nodes = calloc(r->cfg->nodes, sizeof *s->nodes);
	if (s->nodes == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for stores");
	CGN_TRY(kvindex_new(&cfg, &s->index, err));
	for (uint32_t i = 0; i < r->cfg->nodes; i++)
		CGN_TRY(kvindex_node_add(s->index, &s->nodes[i], err));
	return kvindex_reader_new(s->index, &s->reader, err);
}

void stores_close(struct replay *r)
{
	kvindex_reader_free(&r->stores.reader);
	kvindex_free(&r->stores.index);
	free(r->stores.nodes);
}

static void block_collect(void *user, uint64_t digest, unsigned tiers)
{
	struct cgn_buf *list = user;
	(void)tiers;
	cgn_buf_add(list, &digest, sizeof digest);
}

void stores_save(struct replay *r, struct replay_server *n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf list = {0};
	uint16_t store = r->stores.nodes != NULL ? r->stores.nodes[n - r->nodes] : 0;
	if (r->stores.nodes == NULL)
		return;
	kvindex_each(r->index, n->node->index_id, BLOCK_RANGES, block_collect, &list);
	r->no_memory |= list.bad;
	kvindex_clear(r->stores.index, store, BLOCK_RANGES);
	kvindex_set(r->stores.index, store, (const uint64_t *)(const void *)list.p, NULL,
		list.n / sizeof(uint64_t));
	(void)kvindex_tick(r->stores.index, list.n);
}

/* Return how many leading blocks of r->chain some store has. */
static uint32_t blocks_stored(const struct replay *r, uint32_t blocks)
{
	uint32_t most = 0;
	kvindex_match(r->stores.reader, r->chain, blocks);
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		uint32_t held = kvindex_held(r->stores.reader, r->stores.nodes[i], NULL);
		most = held > most ? held : most;
	}
	return most;
}

void stores_fetch(struct replay *r, struct replay_server *n, uint32_t blocks)
{
	if (r->stores.nodes == NULL)
		return;
	uint32_t here = enginemodel_memory_match(enginemodel_memory_of(n->engine), r->chain, blocks).found;
	uint32_t stored = blocks_stored(r, blocks);
	if (stored <= here)
		return;
	const struct enginemodel_run run = {.hashes = r->chain, .from = here, .n = stored - here};
	uint32_t fetched = enginemodel_fill(n->engine, &run);
	double bytes = (double)fetched * r->trace->block_tokens * r->cfg->rules->disagg.token_bytes;
	enginemodel_delay(n->engine, r->cfg->handoff + (cgn_nsec)(bytes / r->cfg->bandwidth * 1e9));
	r->result->fetched_blocks += fetched;
}
