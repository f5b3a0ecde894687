/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/cluster/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "policy/route/cluster/nodestats.h"

#define CLUSTER_TAG 0xc1057e02U

static const struct {
	const char *text;
	bool takes;
} state_rows[NODE_STATE_COUNT] = {
#define NODE_STATE(id, text, takes, help) {text, takes},
#include "policy/route/cluster/node_states.def"
#undef NODE_STATE
};

const char *node_state_text(enum node_state s)
{
	CGN_MUST((unsigned)s < NODE_STATE_COUNT);
	return state_rows[s].text;
}

struct cluster *cluster_new(void)
{
	struct cluster *c = CGN_NEW(struct cluster);
	c->stats = CGN_NEW_LINES(struct node_stats, CLUSTER_STATS);
	c->tag = CLUSTER_TAG;
	cgn_list_init(&c->nodes);
	for (size_t i = 0; i < NODE_STATE_COUNT; i++)
		cgn_list_init(&c->by_state[i]);
	return c;
}

static struct cluster_node *node_of(struct cgn_link *l)
{
	struct cluster_node *n = CGN_CONTAINER(l, struct cluster_node, link);
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	return n;
}

static void node_free(struct cluster_node *n)
{
	cgn_list_drop(&n->by_state);
	cgn_list_drop(&n->link);
	proto_node_free(&n->info);
	free(n->member_id);
	free(n->address);
	n->tag = 0;
	free(n);
}

void cluster_free(struct cluster **take)
{
	struct cluster *c = CGN_TAKE_LIVE(take, CLUSTER_TAG);
	if (c == NULL)
		return;
	cgn_list_each_safe (l, &c->nodes)
		node_free(node_of(l));
	c->tag = 0;
	free(c->stats);
	free(c);
}

static void cluster_move(struct cluster *c, struct cluster_node *n, enum node_state to)
{
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	CGN_MUST(c->count[n->state] > 0);
	cgn_list_drop(&n->by_state);
	c->count[n->state]--;
	n->state = to;
	c->count[to]++;
	cgn_list_push(&c->by_state[to], &n->by_state);
}

static bool has_ready_engine(const struct cluster_node *n)
{
	for (size_t i = 0; i < n->info->n_engines; i++)
		if (n->info->engines[i]->ready)
			return true;
	return false;
}

static enum node_state state_of(const struct cluster_node *n)
{
	if (!n->heard)
		return n->ever_heard ? NODE_DOWN : NODE_JOINING;
	if (n->info->draining || n->drains > 0)
		return NODE_DRAINING;
	if (n->cordoned)
		return NODE_CORDONED;
	return has_ready_engine(n) ? NODE_READY : NODE_JOINING;
}

static void node_settle(struct cluster *c, struct cluster_node *n, struct cluster_orders *out)
{
	enum node_state to = state_of(n);
	if (to == n->state)
		return;
	cluster_move(c, n, to);
	out->publish = true;
	out->recovered = to == NODE_READY;
}

static struct cluster_orders orders_for(const struct cluster_node *n)
{
	return (struct cluster_orders){.slot = n->slot};
}

static struct cluster_node *member_find(const struct cluster *c, const char *member_id)
{
	for (struct cgn_link *l = c->nodes.next; l != &c->nodes; l = l->next)
		if (strcmp(node_of(l)->member_id, member_id) == 0)
			return node_of(l);
	return NULL;
}

struct cluster_node *cluster_find(const struct cluster *c, const char *id)
{
	CGN_LIVE(c, CLUSTER_TAG);
	for (struct cgn_link *l = c->nodes.next; l != &c->nodes; l = l->next)
		if (strcmp(node_of(l)->info->id, id) == 0)
			return node_of(l);
	return member_find(c, id);
}

/* Never give away a slot while requests of the slot's last node run: they release their booking there. */
static CGN_RC slot_take(const struct cluster *c, uint16_t *slot, struct cgn_err *err)
{
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++) {
		if (c->by_slot[i] != NULL || cluster_inflight(c, i) > 0)
			continue;
		*slot = i;
		return CGN_OK;
	}
	return CGN_FAIL(err, OVERLOADED, "the cluster has more than %d nodes", ROUTE_MAX_NODES);
}

static CGN_RC node_new(struct cluster *c, const Cognitora__V1__Node *info, bool cordoned,
	struct cluster_node **out, struct cgn_err *err)
{
	uint16_t slot = 0;
	CGN_TRY(slot_take(c, &slot, err));
	struct cluster_node *n = CGN_NEW(struct cluster_node);
	n->tag = CLUSTER_NODE_TAG;
	cgn_list_init(&n->link);
	cgn_list_init(&n->by_state);
	n->member_id = cgn_str_dupz(cgn_str_of(info->id));
	n->address = cgn_str_dupz(cgn_str_of(info->address));
	n->info = proto_node_dup(info);
	if (n->info == NULL) {
		node_free(n);
		return CGN_FAIL(err, NO_MEMORY, "node %s: out of memory", info->id);
	}
	n->slot = slot;
	n->cordoned = cordoned;
	cognitora__v1__load__init(&n->load);
	n->load.power_headroom = 1;
	node_stats_reset(&c->stats[slot]);
	c->by_slot[slot] = n;
	cgn_list_push(&c->nodes, &n->link);
	n->state = NODE_JOINING;
	c->count[NODE_JOINING]++;
	cgn_list_push(&c->by_state[NODE_JOINING], &n->by_state);
	*out = n;
	return CGN_OK;
}

static CGN_RC info_replace(struct cluster_node *n, const Cognitora__V1__Node *info, struct cgn_err *err)
{
	Cognitora__V1__Node *copy = proto_node_dup(info);
	if (copy == NULL)
		return CGN_FAIL(err, NO_MEMORY, "node %s: out of memory", info->id);
	proto_node_free(&n->info);
	n->info = copy;
	return CGN_OK;
}

static CGN_RC node_moved(struct cluster *c, struct cluster_node *n, const Cognitora__V1__Node *info,
	struct cluster_orders *out, struct cgn_err *err)
{
	free(n->address);
	n->address = cgn_str_dupz(cgn_str_of(info->address));
	n->heard = false;
	out->watch = WATCH_AGAIN;
	out->publish = true;
	CGN_TRY(info_replace(n, info, err));
	node_settle(c, n, out);
	return CGN_OK;
}

CGN_RC cluster_node_seen(struct cluster *c, const Cognitora__V1__Node *info, bool cordoned,
	struct cluster_orders *out, struct cgn_err *err)
{
	CGN_LIVE(c, CLUSTER_TAG);
	struct cluster_node *n = member_find(c, info->id);
	if (n == NULL) {
		CGN_TRY(node_new(c, info, cordoned, &n, err));
		CGN_LIVE(n, CLUSTER_NODE_TAG);
		*out = (struct cluster_orders){.slot = n->slot, .watch = WATCH_OPEN, .publish = true};
		return CGN_OK;
	}
	*out = orders_for(n);
	if (strcmp(n->address, info->address) != 0)
		return node_moved(c, n, info, out, err);
	/* While the watch is open, the watch reports the same change earlier. */
	if (!n->heard && !proto_node_equal(n->info, info)) {
		CGN_TRY(info_replace(n, info, err));
		out->publish = true;
	}
	return CGN_OK;
}

bool cluster_node_gone(struct cluster *c, const char *member_id, struct cluster_orders *out)
{
	CGN_LIVE(c, CLUSTER_TAG);
	struct cluster_node *n = member_find(c, member_id);
	if (n == NULL)
		return false;
	*out = (struct cluster_orders){.slot = n->slot,
		.watch = WATCH_CLOSE,
		.publish = true,
		.forget = true,
		.had_index_id = n->has_index_id,
		.index_id = n->index_id};
	c->by_slot[n->slot] = NULL;
	c->count[n->state]--;
	node_free(n);
	return true;
}

bool cluster_cordon(struct cluster *c, const char *id, bool cordoned, struct cluster_orders *out)
{
	struct cluster_node *n = cluster_find(c, id);
	if (n == NULL)
		return false;
	*out = orders_for(n);
	n->cordoned = cordoned;
	node_settle(c, n, out);
	return true;
}

void cluster_drain_begin(struct cluster *c, struct cluster_node *n, struct cluster_orders *out)
{
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	*out = orders_for(n);
	n->drains++;
	node_settle(c, n, out);
}

void cluster_drain_end(struct cluster *c, struct cluster_node *n, struct cluster_orders *out)
{
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	CGN_MUST(n->drains > 0);
	*out = orders_for(n);
	n->drains--;
	node_settle(c, n, out);
}

static void load_take(struct cluster *c, struct cluster_node *n, const Cognitora__V1__Load *load,
	cgn_nsec now)
{
	node_stats_load(&c->stats[n->slot], load, now);
	n->load = *load;
	n->load.base.n_unknown_fields = 0; /* The unknown fields belong to the message, which is freed. */
	n->load.base.unknown_fields = NULL;
}

static void info_take(struct cluster_node *n, const Cognitora__V1__Node *info, struct cluster_orders *out)
{
	if (proto_node_equal(n->info, info))
		return;
	struct cgn_err err;
	uint64_t was = n->info->started_unix_ms;
	if (!cgn_ok(proto_node_check(info, &err)) || !cgn_ok(info_replace(n, info, &err))) {
		out->watch = WATCH_AGAIN;
		return;
	}
	out->publish = true;
	out->forget = was != 0 && was != info->started_unix_ms; /* A new agent process starts new engines. */
}

void cluster_watch_event(struct cluster *c, struct cluster_node *n, const Cognitora__V1__WatchEvent *ev,
	cgn_nsec now, struct cluster_orders *out)
{
	CGN_LIVE(c, CLUSTER_TAG);
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	*out = orders_for(n);
	bool snapshot = ev->seq == 1 && ev->node != NULL;
	if (!snapshot && (!n->heard || ev->seq != n->seq + 1)) {
		out->watch = WATCH_AGAIN;
		return;
	}
	n->seq = ev->seq;
	n->heard_at = now;
	if (ev->node != NULL)
		info_take(n, ev->node, out);
	if (out->watch == WATCH_AGAIN)
		return;
	n->heard = n->ever_heard = true;
	if (ev->load != NULL) {
		out->stalled = ev->load->stalled && !n->load.stalled;
		load_take(c, n, ev->load, now);
		n->load_at = now;
		n->beat = (cgn_nsec)ev->beat_ms * CGN_MSEC;
		n->quiet = 0;
	}
	node_settle(c, n, out);
}

void cluster_watch_quiet(struct cluster *c, struct cluster_node *n, cgn_nsec elapsed,
	struct cluster_orders *out)
{
	CGN_LIVE(c, CLUSTER_TAG);
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	*out = orders_for(n);
	n->quiet += elapsed;
	if (!n->heard || n->beat == 0 || n->quiet < CLUSTER_QUIET_BEATS * n->beat)
		return;
	node_stats_forget_others(&c->stats[n->slot]);
	out->watch = WATCH_AGAIN;
}

void cluster_watch_lost(struct cluster *c, struct cluster_node *n, struct cluster_orders *out)
{
	CGN_LIVE(c, CLUSTER_TAG);
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	*out = orders_for(n);
	n->heard = false;
	node_settle(c, n, out);
}

uint32_t cluster_inflight(const struct cluster *c, uint16_t slot)
{
	CGN_MUST(slot < ROUTE_MAX_NODES);
	return atomic_load_explicit(&c->stats[slot].inflight, memory_order_relaxed);
}

uint64_t cluster_node_kv_tokens(const struct cluster_node *n)
{
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	uint64_t sum = 0;
	for (size_t i = 0; i < n->info->n_engines; i++) {
		const Cognitora__V1__Engine *e = n->info->engines[i];
		if (e->kv_block_tokens != 0 && e->kv_blocks_total < (1ULL << 40) / e->kv_block_tokens)
			sum += e->kv_blocks_total * e->kv_block_tokens;
	}
	return sum;
}

uint32_t cluster_node_kv_block(const struct cluster_node *n)
{
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	uint32_t least = 0;
	for (size_t i = 0; i < n->info->n_engines; i++) {
		uint32_t one = n->info->engines[i]->kv_block_tokens;
		if (one != 0 && (least == 0 || one < least))
			least = one;
	}
	return least;
}

uint32_t cluster_node_width(const struct cluster_node *n)
{
	CGN_LIVE(n, CLUSTER_NODE_TAG);
	uint64_t sum = 0;
	for (size_t i = 0; i < n->info->n_engines; i++)
		sum += n->info->engines[i]->ready ? n->info->engines[i]->slots : 0;
	return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}
