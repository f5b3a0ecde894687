/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the methods with one request and one response. */
#include <stdlib.h>

#include "kvcached/rpc/rpc_priv.h"

/* ---- Lookup ---- */
static void look_up(struct rpc_call *c, const struct block_key *k, bool peers, uint16_t sites,
	struct rpc_entry *e)
{
	struct kvcached *d = c->port->w->daemon;
	struct block_info info;
	(void)value_lookup(d, k, peers, sites, &info);
	const char *peer =
		(info.tiers & BLOCK_TIER_BIT(BLOCK_REMOTE)) != 0 ? peers_nearest(d, k, sites) : NULL;
	rpc_entry(e, k, &info, NULL);
	if (peer != NULL)
		e->m.peer = pb_text(peer);
}

static CGN_RC on_lookup(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const Cognitora__V1__KvLookupRequest *rq = request;
	struct rpc_entry e;
	CGN_TRY(rpc_key(rq->key, &c->key, err));
	look_up(c, &c->key, rq->peers, rpc_sites(c, rq->tenant), &e);
	rpc_reply(c, &e.m);
	return CGN_OK;
}
const struct rpc_method rpc_lookup = {.request = &cognitora__v1__kv_lookup_request__descriptor,
	.on_request = on_lookup};

/* ---- BatchLookup ---- */
static CGN_RC check_keys(Cognitora__V1__KvKey *const *keys, size_t n, struct cgn_err *err)
{
	struct block_key k;
	if (n > RPC_MAX_KEYS)
		return CGN_FAIL(err, INVALID, "%zu keys: at most %d", n, RPC_MAX_KEYS);
	for (size_t i = 0; i < n; i++)
		CGN_TRY(rpc_key(keys[i], &k, err));
	return CGN_OK;
}

static void look_up_all(struct rpc_call *c, const Cognitora__V1__KvBatchLookupRequest *rq,
	struct rpc_entry *entries, Cognitora__V1__KvEntry **list)
{
	Cognitora__V1__KvBatchLookupResponse rs = COGNITORA__V1__KV_BATCH_LOOKUP_RESPONSE__INIT;
	for (size_t i = 0; i < rq->n_keys; i++) {
		struct block_key k;
		(void)!cgn_ok(rpc_key(rq->keys[i], &k, NULL)); /* checked before */
		look_up(c, &k, rq->peers, rpc_sites(c, rq->tenant), &entries[i]);
		list[i] = &entries[i].m;
	}
	rs.entries = list;
	rs.n_entries = rq->n_keys;
	rpc_reply(c, &rs);
}

static CGN_RC on_batch_lookup(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const Cognitora__V1__KvBatchLookupRequest *rq = request;
	CGN_TRY(check_keys(rq->keys, rq->n_keys, err));
	struct rpc_entry *entries = CGN_NEW_ARRAY(struct rpc_entry, rq->n_keys);
	Cognitora__V1__KvEntry **list = CGN_NEW_ARRAY(Cognitora__V1__KvEntry *, rq->n_keys);
	look_up_all(c, rq, entries, list);
	free(entries);
	free(list);
	return CGN_OK;
}
const struct rpc_method rpc_batch_lookup = {.request = &cognitora__v1__kv_batch_lookup_request__descriptor,
	.on_request = on_batch_lookup};

/* ---- Pin ---- */
static CGN_RC on_pin(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const Cognitora__V1__KvPinRequest *rq = request;
	struct kvstore *s = c->port->w->daemon->store;
	struct rpc_entry e;
	struct block_info info;
	CGN_TRY(rpc_key(rq->key, &c->key, err));
	uint64_t for_ms = !rq->pinned ? 0 : rq->for_ms == 0 ? UINT64_MAX : rq->for_ms;
	CGN_TRY(kvstore_pin(s, &c->key, value_pin_until(for_ms), err));
	(void)kvstore_lookup(s, &c->key, &info);
	rpc_entry(&e, &c->key, &info, NULL);
	rpc_reply(c, &e.m);
	return CGN_OK;
}
const struct rpc_method rpc_pin = {.request = &cognitora__v1__kv_pin_request__descriptor,
	.on_request = on_pin};

/* ---- Promote ---- */
static void on_promoted(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct rpc_call *c = user;
	struct rpc_entry e;
	c->read = NULL;
	if (*take == NULL) {
		rpc_finish(c, why);
		return;
	}
	const struct block_info info = kvstore_block_info(*take);
	rpc_entry(&e, &c->key, &info, *take);
	rpc_reply(c, &e.m);
	kvstore_block_unref(take);
}

static CGN_RC on_promote(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const Cognitora__V1__KvPromoteRequest *rq = request;
	CGN_TRY(rpc_key(rq->key, &c->key, err));
	c->progress = 0;
	c->read = value_get(c->port->w->daemon, c->port->w->loop, &c->key,
		value_worth(rq->peers, rq->budget_ms), rpc_sites(c, rq->tenant), on_promoted, c);
	rpc_trace_read(c);
	return CGN_OK;
}
const struct rpc_method rpc_promote = {.request = &cognitora__v1__kv_promote_request__descriptor,
	.on_request = on_promote};

/* ---- Remove ---- */
static CGN_RC on_remove(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const Cognitora__V1__KvRemoveRequest *rq = request;
	Cognitora__V1__KvRemoveResponse rs = COGNITORA__V1__KV_REMOVE_RESPONSE__INIT;
	CGN_TRY(check_keys(rq->keys, rq->n_keys, err));
	for (size_t i = 0; i < rq->n_keys; i++) {
		struct block_key k;
		CGN_TRY(rpc_key(rq->keys[i], &k, err));
		rs.removed += kvstore_remove(c->port->w->daemon->store, &k);
	}
	rpc_reply(c, &rs);
	return CGN_OK;
}
const struct rpc_method rpc_remove = {.request = &cognitora__v1__kv_remove_request__descriptor,
	.on_request = on_remove};

/* ---- Stats ---- */

#define STATS_LIMIT ((size_t)16 << 10) /* Bytes of the answer. */

static CGN_RC on_stats(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const struct kvcached *d = c->port->w->daemon;
	Cognitora__V1__KvStatsResponse rs = COGNITORA__V1__KV_STATS_RESPONSE__INIT;
	Cognitora__V1__KvTierStats *tiers[2];
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	(void)request;
	(void)err;
	pb_tree_init(&t, STATS_LIMIT);
	kvcached_store_fill(d, &t, &rs);
	tiers[0] = rs.ram;
	tiers[1] = rs.ssd;
	rs.tiers = tiers;
	rs.n_tiers = CGN_COUNT(tiers);
	rs.node_id = c->port->node;
	rs.quic_address = pb_text(peers_quic_address(d));
	rs.grpc_address = pb_text(d->grpc_address);
	rs.version = pb_text(CGN_VERSION);
	rs.uptime_ms = cgn_since(cgn_clock_now(), d->started) / CGN_MSEC;
	rpc_reply(c, &rs);
	return CGN_OK;
}
const struct rpc_method rpc_stats = {.request = &cognitora__v1__kv_stats_request__descriptor,
	.on_request = on_stats};
