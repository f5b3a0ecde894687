/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/replay/replay_priv.h"

#define MODEL        "replayed"
#define INDEX_BYTES  ((size_t)4 << 30) /* Upper limit; memory is allocated as blocks arrive. */
#define RECORD_BYTES ((size_t)64 << 20)
#define SWEEP        10000

/* ---- changes reported by engines ---- */

/* Every node can hand KV to every other one, as engines with vLLM's NIXL connector do. */
static const struct handoff_end handoff = {.kind = HANDOFF_NIXL, .fingerprint = 1};

static void record_change(struct replay_server *n, uint64_t hash, uint8_t tiers)
{
	cgn_buf_add(&n->digests, &hash, sizeof hash);
	cgn_buf_add(&n->tiers, &tiers, 1);
}

static void on_stored(void *arg, const struct enginemodel_run *run)
{
	for (uint32_t i = run->from; i < run->from + run->n; i++)
		record_change(arg, run->hashes[i], BLOCK_TIER_BIT(BLOCK_GPU));
}

static void on_removed(void *arg, enum enginemodel_tier from, uint64_t hash)
{
	(void)from;
	struct replay_server *n = arg;
	record_change(n, hash, 0);
	n->r->result->evicted_blocks++;
}

/* ---- reports on their way to the router ---- */

static void report_push(struct replay *r, struct replay_report *t, uint32_t node)
{
	t->at = r->now + r->cfg->report_delay;
	t->node = node;
	t->next = NULL;
	*r->reports_end = t;
	r->reports_end = &t->next;
}

void replay_report_blocks(struct replay_server *n)
{
	struct replay *r = n->r;
	size_t k = n->tiers.n;
	if (k == 0 && !n->tiers.bad)
		return;
	struct replay_report *t =
		r->cfg->publishes ? malloc(sizeof *t + k * (sizeof t->digests[0] + 1)) : NULL;
	r->no_memory |= n->digests.bad || n->tiers.bad || (r->cfg->publishes && t == NULL);
	if (t != NULL && !n->digests.bad && !n->tiers.bad) {
		t->is_load = false;
		t->n = k;
		t->tiers = (uint8_t *)(t->digests + k);
		memcpy(t->digests, n->digests.p, k * sizeof t->digests[0]);
		memcpy(t->tiers, n->tiers.p, k);
		report_push(r, t, (uint32_t)(n - r->nodes));
	} else {
		free(t);
	}
	n->digests.n = n->tiers.n = 0;
}

void replay_report_load(struct replay *r)
{
	struct replay_server *n = &r->nodes[r->load_turn];
	struct enginemodel_stats s = enginemodel_stats(n->engine);
	struct replay_report *t = malloc(sizeof *t);
	r->load_turn = (r->load_turn + 1) % r->cfg->nodes;
	r->next_load += r->cfg->load_interval / r->cfg->nodes + 1;
	if (t == NULL) {
		r->no_memory = true;
		return;
	}
	t->is_load = true;
	t->n = 0;
	cognitora__v1__load__init(&t->load);
	t->load.shared = true; /* There is one router: the whole load of the node is its own. */
	t->load.inflight = t->load.yours = s.running + s.waiting;
	t->load.running = s.running;
	t->load.waiting = s.waiting;
	t->load.kv_usage = (float)s.kv_used / (float)s.kv_total;
	t->load.power_headroom = 1;
	t->load.requests_total = n->counts->requests;
	report_push(r, t, (uint32_t)(n - r->nodes));
}

/* Skip whole rounds of load reports while nothing runs and no request arrives before |until|. Every round
 * repeats the one before, so the replay after |until| is the same as with these rounds. */
void replay_idle_until(struct replay *r, cgn_nsec until)
{
	cgn_nsec round = r->cfg->nodes * (r->cfg->load_interval / r->cfg->nodes + 1),
		 spare = 2 * round + r->cfg->report_delay;
	if (until <= r->next_load || until - r->next_load <= spare)
		return;
	cgn_nsec leap = (until - r->next_load - spare) / round * round;
	r->next_load += leap;
	for (struct replay_report *t = r->reports; t != NULL; t = t->next)
		t->at += leap;
}

void replay_receive_report(struct replay *r)
{
	struct replay_report *t = r->reports;
	struct replay_server *n = &r->nodes[t->node];
	r->reports = t->next;
	if (r->reports == NULL)
		r->reports_end = &r->reports;
	if (t->is_load) {
		Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
		struct cluster_orders orders;
		ev.seq = ++n->seq;
		ev.load = &t->load;
		cluster_watch_event(r->cluster, n->node, &ev, r->now, &orders);
		CGN_MUST(orders.watch == WATCH_KEEP && !orders.publish);
		(void)kvindex_tick(r->index, SWEEP);
	} else {
		kvindex_set(r->index, n->node->index_id, t->digests, t->tiers, t->n);
	}
	free(t);
}

/* ---- the engine that is due next ---- */

static bool wake_is_before(const struct replay_wake *a, const struct replay_wake *b)
{
	return a->at != b->at ? a->at < b->at : a->node < b->node;
}

static void wake_swap(struct replay_wake *a, struct replay_wake *b)
{
	struct replay_wake was = *a;
	*a = *b;
	*b = was;
}

void replay_wake_at(struct replay *r, struct replay_server *n, cgn_nsec at)
{
	bool was = n->wake_at != 0;
	n->wake_at = at;
	if (!was)
		energy_step(r, n, at);
	if (at == 0 || was)
		return; /* A submission does not change the end of a step under way. */
	n->counts->busy += at - r->now;
	struct replay_wake *h = r->wakes;
	size_t i = r->n_wakes++;
	h[i] = (struct replay_wake){at, (uint32_t)(n - r->nodes)};
	for (; i > 0 && wake_is_before(&h[i], &h[(i - 1) / 2]); i = (i - 1) / 2)
		wake_swap(&h[i], &h[(i - 1) / 2]);
}

uint32_t replay_take_woken(struct replay *r)
{
	struct replay_wake *h = r->wakes;
	uint32_t node = h[0].node;
	h[0] = h[--r->n_wakes];
	for (size_t i = 0;;) {
		size_t k = 2 * i + 1;
		if (k + 1 < r->n_wakes && wake_is_before(&h[k + 1], &h[k]))
			k++;
		if (k >= r->n_wakes || !wake_is_before(&h[k], &h[i]))
			break;
		wake_swap(&h[i], &h[k]);
		i = k;
	}
	r->nodes[node].wake_at = 0;
	return node;
}

/* ---- the cluster ---- */

/* Return enough blocks that nothing is ever evicted: each block of the trace once, plus the blocks of the
 * largest possible batch. */
static uint32_t enough_blocks(const struct replay *r, size_t distinct)
{
	uint64_t largest = 0, batch = r->cfg->max_batch < r->trace->n ? r->cfg->max_batch : r->trace->n;
	for (size_t i = 0; i < r->trace->n; i++) {
		const struct trace_request *q = &r->trace->requests[i];
		uint64_t n = ((uint64_t)q->input + q->output) / r->trace->block_tokens + 1;
		largest = n > largest ? n : largest;
	}
	uint64_t all = distinct + batch * largest;
	return all < 1U << 26 ? (uint32_t)all : 1U << 26;
}

static CGN_RC count_blocks(const struct replay *r, uint32_t *out, struct cgn_err *err)
{
	struct trace_found found;
	*out = r->cfg->blocks;
	if (r->cfg->blocks > 0)
		return CGN_OK;
	CGN_TRY(trace_one_cache(r->trace, 0, &found, err));
	*out = enough_blocks(r, found.distinct);
	return CGN_OK;
}

static CGN_RC engine_new(struct replay *r, struct replay_server *n, struct cgn_err *err)
{
	const struct replay_cfg *c = r->cfg;
	const struct enginemodel_cfg cfg = {
		.prefill_tokens_per_s = c->prefill_tokens_per_s,
		.decode = c->decode,
		.batch_effect = c->batch_effect,
		.terms = c->terms,
		.max_batch = c->max_batch,
		.step_tokens = c->step_tokens,
		.max_queue = c->max_queue,
		.kv_blocks = r->result->blocks,
		.block_tokens = r->trace->block_tokens,
		.listener = {.stored = on_stored, .removed = on_removed, .arg = n},
	};
	if (!cgn_ok(enginemodel_new(&cfg, &n->engine)))
		return CGN_FAIL(err, NO_MEMORY, "no memory for %u nodes of %u blocks", c->nodes,
			r->result->blocks);
	return CGN_OK;
}

/* Announce a node as its agent does: membership first, then the first event of the watch. */
static CGN_RC announce_node(struct replay *r, struct replay_server *n, uint32_t i, struct cgn_err *err)
{
	char id[32], address[32], model[] = MODEL, kind[] = "sim", name[] = "engine", *models[] = {model};
	Cognitora__V1__Engine engine = COGNITORA__V1__ENGINE__INIT, *engines[] = {&engine};
	Cognitora__V1__Node info = COGNITORA__V1__NODE__INIT;
	Cognitora__V1__Load load = COGNITORA__V1__LOAD__INIT;
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	struct cluster_orders orders;
	(void)snprintf(id, sizeof id, "node-%u", i);
	(void)snprintf(address, sizeof address, "node-%u:7080", i);
	engine.name = name;
	engine.kind = kind;
	engine.models = models;
	engine.n_models = 1;
	engine.ready = true;
	engine.kv_blocks_total = r->result->blocks;
	engine.kv_block_tokens = r->trace->block_tokens;
	info.id = id;
	info.address = address;
	info.engines = engines;
	info.role = r->cfg->prefill_nodes == 0 ? COGNITORA__V1__ROLE__ROLE_BOTH
		: i < r->cfg->prefill_nodes    ? COGNITORA__V1__ROLE__ROLE_PREFILL
					       : COGNITORA__V1__ROLE__ROLE_DECODE;
	info.n_engines = 1;
	load.power_headroom = 1;
	CGN_TRY(cluster_node_seen(r->cluster, &info, false, &orders, err));
	n->node = cluster_find(r->cluster, id);
	ev.seq = ++n->seq;
	ev.node = &info;
	ev.load = &load;
	cluster_watch_event(r->cluster, n->node, &ev, 0, &orders);
	CGN_TRY(kvindex_node_add(r->index, &n->node->index_id, err));
	n->node->has_index_id = true;
	n->node->fed = r->cfg->publishes;
	route_record_capacity(r->record, n->node->slot, r->result->blocks);
	return CGN_OK;
}

CGN_RC replay_fleet_init(struct replay *r, struct cgn_err *err)
{
	uint32_t n = r->cfg->nodes;
	const struct kvindex_cfg index = {.max_bytes = INDEX_BYTES, .max_readers = 1, .seed = r->cfg->seed};
	r->reports_end = &r->reports;
	r->next_load = r->cfg->load_interval;
	r->nodes = calloc(n, sizeof *r->nodes);
	r->wakes = calloc(n, sizeof *r->wakes);
	r->result->nodes = calloc(n, sizeof *r->result->nodes);
	if (r->nodes == NULL || r->wakes == NULL || r->result->nodes == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %u nodes", n);
	r->result->n_nodes = n;
	CGN_TRY(count_blocks(r, &r->result->blocks, err));
	r->cluster = cluster_new();
	CGN_TRY(kvindex_new(&index, &r->index, err));
	CGN_TRY(route_record_new(RECORD_BYTES, &r->record, err));
	for (uint32_t i = 0; i < n; i++) {
		r->nodes[i].r = r;
		r->nodes[i].counts = &r->result->nodes[i];
		CGN_TRY(engine_new(r, &r->nodes[i], err));
		CGN_TRY(announce_node(r, &r->nodes[i], i, err));
	}
	CGN_TRY(cluster_view_new(r->cluster, NULL, NULL, &r->view, err));
	r->model = view_model_find(r->view, CGN_STR(MODEL));
	CGN_MUST(r->model != NULL && r->model->n_ready == n);
	for (uint32_t i = 0; i < n && r->cfg->prefill_nodes > 0; i++)
		r->model->handoff[i] = &handoff;
	return CGN_OK;
}

void replay_fleet_fini(struct replay *r)
{
	for (uint32_t i = 0; r->nodes != NULL && i < r->cfg->nodes; i++) {
		enginemodel_free(&r->nodes[i].engine);
		cgn_buf_fini(&r->nodes[i].digests);
		cgn_buf_fini(&r->nodes[i].tiers);
	}
	for (struct replay_report *t = r->reports, *next; t != NULL; t = next) {
		next = t->next;
		free(t);
	}
	free(r->nodes);
	free(r->wakes);
	cluster_view_unref(&r->view);
	cluster_free(&r->cluster);
	kvindex_free(&r->index);
	route_record_free(&r->record);
}
