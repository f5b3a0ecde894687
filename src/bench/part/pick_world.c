/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/part/pick_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mix/mix.h"
#include "bench/common/traces.h"

#define INDEX_BYTES  ((size_t)4 << 30)
#define RECORD_BYTES ((size_t)64 << 20)
#define PROMPT_BYTES ((size_t)1 << 30)
#define VOCABULARY   150000

/* ---- nodes ---- */

static const struct handoff_end handoff = {.kind = HANDOFF_NIXL, .fingerprint = 1};

static CGN_RC node_join(struct pick_world *w, size_t i, bool fed, struct cgn_err *err)
{
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT, *engines[] = {&e};
	Cognitora__V1__Load load = COGNITORA__V1__LOAD__INIT;
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	struct cluster_orders o;
	char model[] = "m", address[] = "127.0.0.1:7080", kind[] = "sim", name[32];
	char *models[] = {model};
	(void)snprintf(name, sizeof name, "node-%zu", i);
	e.name = e.kind = kind;
	e.models = models;
	e.n_models = 1;
	e.ready = true;
	e.slots = 256;
	e.kv_blocks_total = 65536;
	e.kv_block_tokens = PICK_BLOCK_TOKENS;
	n.id = name;
	n.address = address;
	n.engines = engines;
	if (i % 100 < w->prefill)
		n.role = COGNITORA__V1__ROLE__ROLE_PREFILL;
	n.n_engines = 1;
	CGN_TRY(cluster_node_seen(w->cluster, &n, false, &o, err));
	struct cluster_node *node = cluster_find(w->cluster, name);
	CGN_MUST(node != NULL);
	if (fed)
		CGN_TRY(kvindex_node_add(w->shared.index, &node->index_id, err));
	node->has_index_id = node->fed = fed;
	load.shared = true;
	load.inflight = (uint32_t)(mix_seeded(w->seed ^ i) % 4); /* Requests from other routers. */
	load.kv_usage = (float)(mix_seeded(w->seed + i) % 100) * 0.01F;
	load.power_headroom = 1;
	ev.seq = 1;
	ev.node = &n;
	ev.load = &load;
	cluster_watch_event(w->cluster, node, &ev, 1, &o);
	return CGN_OK;
}

static CGN_RC nodes_join(struct pick_world *w, size_t sent, struct cgn_err *err)
{
	/* A pool of engines that publish KV events, then one of others. */
	for (size_t i = 0; i < w->n_nodes; i++)
		CGN_TRY(node_join(w, i, i < w->n_nodes - sent, err));
	CGN_TRY(cluster_view_new(w->cluster, NULL, NULL, &w->view, err));
	for (size_t i = 0; i < w->n_nodes && w->prefill > 0; i++)
		w->view->models[0].handoff[i] = &handoff;
	return CGN_OK;
}

static void node_hold(struct pick_world *w, size_t node, const uint64_t *chain, size_t n)
{
	const struct cluster_node *to = w->cluster->by_slot[node];
	if (to->fed)
		kvindex_set(w->shared.index, to->index_id, chain, NULL, n);
	else
		route_record_add(w->shared.record, chain, n, to->slot);
}

/* ---- prompts ---- */

void pick_world_ids(struct pick_world *w, uint64_t conversation, enum pick_kind kind)
{
	uint64_t own = mix_seeded(w->seed ^ mix_seeded(conversation));
	for (size_t i = 0; i < w->tokens; i++) {
		uint64_t of = i < PICK_SYSTEM_TOKENS && kind != PICK_STRANGE ? w->seed : own;
		w->ids[i] = (uint32_t)(mix_seeded(of + i) % VOCABULARY);
	}
}

static struct promptcache_key key_of(uint64_t a, uint64_t b)
{
	struct promptcache_key k;
	struct digest d = digest_of((struct cgn_str){(const char *)(const uint64_t[]){a, b}, 16});
	memcpy(k.b, d.b, sizeof k.b);
	return k;
}

void pick_world_keys(const struct pick_world *w, uint64_t conversation, enum pick_kind kind,
	struct pick_keys *out)
{
	out->key[0] = kind == PICK_STRANGE ? key_of(w->seed, mix_seeded(conversation)) : key_of(w->seed, 0);
	for (size_t i = 1; i < CGN_COUNT(out->key); i++)
		out->key[i] = key_of(w->seed + conversation + 1, i);
}

/* Return the end of the text of each key. */
static size_t end_of(const struct pick_world *w, size_t key)
{
	size_t before = w->tokens - PICK_TURN_TOKENS - PICK_SYSTEM_TOKENS;
	return key > PICK_TURNS ? w->tokens : PICK_SYSTEM_TOKENS + before * key / PICK_TURNS;
}

static void chain_begin(struct pick_world *w)
{
	prefix_tokens_start(&w->chain, &w->root, PICK_BLOCK_TOKENS, w->digests,
		w->tokens / PICK_BLOCK_TOKENS);
}

size_t pick_world_digest(struct pick_world *w, const struct pick_keys *keys)
{
	size_t at = 0;
	chain_begin(w);
	struct promptcache_entry *e = promptcache_find(w->prompts, keys->key, CGN_COUNT(keys->key), &at);
	if (e != NULL)
		promptcache_load(e, &w->chain);
	size_t known = w->chain.n, from = e != NULL ? end_of(w, at) : 0;
	prefix_tokens_add(&w->chain, w->ids + from, w->tokens - from);
	(void)promptcache_put(w->prompts, &keys->key[CGN_COUNT(keys->key) - 1], e, &w->chain);
	return w->chain.n - known;
}

static void system_tell(struct pick_world *w)
{
	struct pick_keys keys;
	pick_world_keys(w, 0, PICK_KNOWN, &keys);
	pick_world_ids(w, 0, PICK_KNOWN);
	chain_begin(w);
	prefix_tokens_add(&w->chain, w->ids, PICK_SYSTEM_TOKENS);
	(void)promptcache_put(w->prompts, &keys.key[0], NULL, &w->chain);
	for (size_t i = 0; i < w->n_nodes; i++)
		node_hold(w, i, w->digests, w->chain.n);
}

CGN_RC pick_world_tell(struct pick_world *w, uint64_t conversation, struct cgn_err *err)
{
	struct pick_keys keys;
	pick_world_keys(w, conversation, PICK_KNOWN, &keys);
	pick_world_ids(w, conversation, PICK_KNOWN);
	struct promptcache_entry *e = promptcache_get(w->prompts, &keys.key[0]);
	chain_begin(w);
	if (e != NULL)
		promptcache_load(e, &w->chain);
	for (size_t i = 1; e != NULL && i <= PICK_TURNS; i++) {
		prefix_tokens_add(&w->chain, w->ids + end_of(w, i - 1), end_of(w, i) - end_of(w, i - 1));
		e = promptcache_put(w->prompts, &keys.key[i], e, &w->chain);
	}
	if (e == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the %" PRIu64 "th prompt", conversation);
	node_hold(w, mix_seeded(conversation) % w->n_nodes, w->digests, w->chain.n);
	return CGN_OK;
}

/* ---- the world ---- */

CGN_RC pick_world_init(struct pick_world *w, const struct pick_cfg *cfg, struct cgn_err *err)
{
	const struct kvindex_cfg index = {.max_bytes = INDEX_BYTES,
		.max_readers = 1,
		.seed = mix_seeded(cfg->seed)};
	*w = (struct pick_world){.seed = mix_seeded(cfg->seed),
		.n_nodes = cfg->nodes,
		.tokens = cfg->tokens,
		.prefill = cfg->prefill};
	CGN_TRY(ctl_rules_of(&w->rules, err));
	w->rules.policy = cfg->policy;
	w->root = digest_chain_root(CGN_STR("m"), CGN_STR(""), CGN_STR(""));
	w->ids = CGN_NEW_ARRAY(uint32_t, w->tokens);
	w->digests = CGN_NEW_ARRAY(uint64_t, w->tokens / PICK_BLOCK_TOKENS);
	w->cluster = cluster_new();
	w->shared.stats = w->cluster->stats;
	CGN_TRY(kvindex_new(&index, &w->shared.index, err));
	CGN_TRY(route_record_new(RECORD_BYTES, &w->shared.record, err));
	w->shared.pending = pending_new(PENDING_BYTES);
	w->shared.hotprefix = hotprefix_new(HOTPREFIX_BYTES);
	w->shared.transfer = transfer_new();
	if ((w->prompts = promptcache_new(PROMPT_BYTES)) == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the cache of prompts");
	CGN_TRY(nodes_join(w, cfg->sent, err));
	CGN_TRY(chooser_new(&w->shared, (uint32_t)w->seed, &w->chooser, err));
	system_tell(w);
	return CGN_OK;
}

void pick_world_fini(struct pick_world *w)
{
	chooser_free(&w->chooser);
	cluster_view_unref(&w->view);
	promptcache_free(&w->prompts);
	route_record_free(&w->shared.record);
	pending_free(&w->shared.pending);
	hotprefix_free(&w->shared.hotprefix);
	transfer_free(&w->shared.transfer);
	kvindex_free(&w->shared.index);
	cluster_free(&w->cluster);
	free(w->ids);
	free(w->digests);
}
