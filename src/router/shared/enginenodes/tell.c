/* SPDX-License-Identifier: Apache-2.0 */
/* tell: the state of an engine without an agent, as the events that an agent would send. */
#include "policy/node/engine/engine.h"
#include "policy/node/engine/lastwords.h"
#include "router/shared/enginenodes/node_priv.h"

/* Changed blocks in one turn of the loop; with more, all blocks are told again. */
#define CHANGED_MAX ((size_t)1 << 20)

/* ---- events ---- */

void engine_node_due(struct engine_node *n)
{
	if (n->ops != NULL)
		cgn_loop_defer(n->kin->loop, &n->hook);
}

void engine_node_describe(struct engine_node *n)
{
	n->node_due = true;
	engine_node_due(n);
}

bool engine_node_is_ready(const struct engine_node *n)
{
	return n->sup.state == SUPERVISE_READY && n->view.models.known && engineview_is_named(&n->view);
}

static bool models_fill(struct engine_node *n, Cognitora__V1__Engine *e)
{
	const struct engine_models *l = &n->view.models.list;
	size_t n_models = n->view.models.known ? l->n : 0;
	uint32_t *at = cgn_arena_get(&n->scratch, (n_models + 1) * sizeof *at);
	e->models = cgn_arena_get(&n->scratch, (n_models + 1) * sizeof *e->models);
	if (at == NULL || e->models == NULL)
		return false;
	for (size_t i = 0; i < n_models; i++) {
		e->models[i] = pb_text(l->v[i].name);
		at[i] = (uint32_t)i;
	}
	e->n_models = n_models;
	return engineview_describe(&n->view, at, &n->scratch, e);
}

/* Describe the engine in the scratch arena. The strings belong to |n|. */
static bool engine_fill(struct engine_node *n, Cognitora__V1__Engine *e, Cognitora__V1__Chain *chain)
{
	const struct engine_load *l = &n->view.load.now;
	cognitora__v1__engine__init(e);
	e->name = pb_text(n->id);
	e->kind = pb_text(config_enum_text(n->view.kind->kind));
	e->ready = engine_node_is_ready(n);
	e->slots = l->slots;
	e->kv_blocks_total = l->kv_blocks_total;
	e->kv_block_tokens = l->kv_block_tokens;
	e->residency = pb_text(l->keeps_none ? "none: prefix caching is off" : n->view.feed.text);
	e->trouble = n->trouble;
	e->served = pb_text(engineview_served(&n->view));
	e->resume = pb_text(engine_resume_of(&n->ce));
	/* An agent chooses the slots of a llama-server so that tenants do not meet in one. */
	e->mixes_salts = n->view.kind->kind == ENGINE_LLAMA_CPP || engine_mixes_salts(&n->ce);
	e->chain = engineview_feed_chain(&n->view, chain) ? chain : NULL;
	return models_fill(n, e);
}

static void load_fill(struct engine_node *n, Cognitora__V1__Load *out)
{
	const struct engine_load *l = &n->view.load.now;
	const struct pulse_witness witness = engineview_witness(&n->view);
	cognitora__v1__load__init(out);
	proto_load_witness(out, &witness);
	out->shared = true; /* |foreign| are the requests of others, as far as the engine tells. */
	out->inflight = out->yours = n->inflight;
	out->foreign = n->foreign;
	out->running = l->running;
	out->waiting = l->waiting;
	out->kv_usage = (float)l->kv_usage;
	out->power_headroom = 1;
}

/* ---- blocks ---- */

struct block_list {
	struct cgn_buf digests, tiers;
};

static void block_put(void *user, uint64_t digest, unsigned tiers)
{
	struct block_list *l = user;
	uint8_t mask = (uint8_t)tiers;
	cgn_buf_add(&l->digests, &digest, sizeof digest);
	cgn_buf_add(&l->tiers, &mask, 1);
}

void engine_node_block_changed(void *user, uint64_t digest)
{
	struct engine_node *n = user;
	if (n->ops == NULL)
		return;
	if (n->changed.n >= CHANGED_MAX * sizeof digest) {
		n->reset_due = true;
		n->changed.n = 0;
	}
	cgn_buf_add(&n->changed, &digest, sizeof digest);
	if (n->changed.bad) { /* Out of memory: all is told again. */
		n->reset_due = true;
		cgn_buf_fini(&n->changed);
		n->changed = (struct cgn_buf){0};
	}
	n->told_blocks = true;
	engine_node_due(n);
}

static Cognitora__V1__ResidencySource source_of(const struct engine_node *n)
{
	if (n->view.load.now.keeps_none)
		return COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_NONE;
	return n->view.feed.counts ? COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_EVENTS
				   : COGNITORA__V1__RESIDENCY_SOURCE__RESIDENCY_SENT;
}

/* Gather the blocks that are due. |ranges| has room for all. */
static void blocks_gather(struct engine_node *n, struct block_list *l, uint32_t *ranges, size_t *n_ranges)
{
	for (unsigned i = 0; n->reset_due && i < BLOCK_RANGES; i++)
		n->range_due[i] = true;
	for (unsigned i = 0; i < BLOCK_RANGES; i++) {
		if (!n->range_due[i])
			continue;
		if (!n->reset_due)
			ranges[(*n_ranges)++] = i;
		holdings_each(n->holdings, i, block_put, l);
	}
	for (size_t at = 0; at < n->changed.n; at += sizeof(uint64_t)) {
		uint64_t digest;
		memcpy(&digest, n->changed.p + at, sizeof digest);
		if (!n->range_due[digest >> 56])
			block_put(l, digest, holdings_tiers(n->holdings, digest));
	}
}

static void blocks_told(struct engine_node *n)
{
	memset(n->range_due, 0, sizeof n->range_due);
	n->ranges_due = n->reset_due = n->source_due = false;
	n->changed.n = 0;
}

static void event_tell(struct engine_node *n, Cognitora__V1__WatchEvent *ev)
{
	ev->seq = ++n->seq;
	n->ops->event(n->user, ev);
}

static void tell_blocks(struct engine_node *n, Cognitora__V1__WatchEvent *ev)
{
	uint32_t ranges[BLOCK_RANGES];
	size_t n_ranges = 0;
	struct block_list l = {0};
	Cognitora__V1__Residency res = COGNITORA__V1__RESIDENCY__INIT;
	cgn_nsec now = cgn_loop_now(n->kin->loop);
	blocks_gather(n, &l, ranges, &n_ranges);
	res.source = source_of(n);
	res.stale_ms = n->unheard_since != 0 ? cgn_since(now, n->unheard_since) / CGN_MSEC + 1 : 0;
	res.reset = n->reset_due || n_ranges > 0;
	res.ranges = ranges;
	res.n_ranges = n_ranges;
	res.blocks = (uint64_t *)(void *)l.digests.p;
	res.n_blocks = l.digests.n / sizeof(uint64_t);
	res.tiers = (ProtobufCBinaryData){l.tiers.n, (uint8_t *)l.tiers.p};
	if (!l.digests.bad && !l.tiers.bad) {
		blocks_told(n);
		ev->residency = &res;
	}
	event_tell(n, ev); /* Without memory the blocks stay due. */
	ev->residency = NULL;
	cgn_buf_fini(&l.digests);
	cgn_buf_fini(&l.tiers);
}

static void tell_check(struct engine_node *n)
{
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	Cognitora__V1__ResidencyCheck check = COGNITORA__V1__RESIDENCY_CHECK__INIT;
	check.sums = (uint64_t *)(uintptr_t)holdings_sums(n->holdings); /* Only read. */
	check.n_sums = BLOCK_RANGES;
	check.blocks = holdings_count(n->holdings);
	ev.check = &check;
	n->check_due = n->told_blocks = false;
	event_tell(n, &ev);
}

/* An engine whose names cannot be told is not ready, for the reason |why|. */
static void node_tame(Cognitora__V1__Node *node, char *why, size_t cap)
{
	struct cgn_err err;
	if (cgn_ok(proto_node_check(node, &err)))
		return;
	engine_text_keep(why, cap, cgn_str_of(err.msg));
	node->engines[0]->ready = false;
	node->engines[0]->n_models = 0;
	node->engines[0]->chain = NULL;
	node->engines[0]->trouble = why;
}

/* Tell all that is due in one event, then the sums. */
void engine_node_tell(struct cgn_hook *h)
{
	struct engine_node *n = CGN_CONTAINER(h, struct engine_node, hook);
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	Cognitora__V1__Node node = COGNITORA__V1__NODE__INIT;
	Cognitora__V1__Engine engine, *engines = &engine;
	Cognitora__V1__Chain chain;
	Cognitora__V1__Load load;
	char why[300];
	CGN_LIVE(n, ENGINE_NODE_TAG);
	if (n->ops == NULL)
		return;
	cgn_arena_reset(&n->scratch);
	if (n->node_due && engine_fill(n, &engine, &chain)) {
		node.id = n->id;
		node.address = n->door.url.addr;
		node.engines = &engines;
		node.n_engines = 1;
		node.draining = n->draining;
		node.started_unix_ms = n->since_ms;
		node_tame(&node, why, sizeof why);
		ev.node = &node;
		n->node_due = false;
	}
	if (n->load_due) {
		load_fill(n, &load);
		n->load_told_at = cgn_loop_now(n->kin->loop);
		ev.load = &load;
		n->load_due = false;
	}
	if (n->changed.n > 0 || n->ranges_due || n->reset_due || n->source_due)
		tell_blocks(n, &ev);
	else if (ev.node != NULL || ev.load != NULL)
		event_tell(n, &ev);
	if (n->check_due)
		tell_check(n);
}

void engine_node_check(struct cgn_timer *t)
{
	struct engine_node *n = CGN_CONTAINER(t, struct engine_node, check_timer);
	CGN_LIVE(n, ENGINE_NODE_TAG);
	n->check_due = n->check_due || n->told_blocks;
	n->source_due = n->source_due || n->unheard_since != 0; /* The age of a silent source grows. */
	if (n->check_due || n->source_due)
		engine_node_due(n);
	cgn_timer_set(t, ENGINE_NODE_CHECK);
}
