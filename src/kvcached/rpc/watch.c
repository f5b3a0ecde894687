/* SPDX-License-Identifier: Apache-2.0 */
/* rpc, Watch: a snapshot of what the store holds, then its changes. Nothing is queued for a slow watcher: one
 * that falls behind the ring of changes is told to call again. */
#include "kvcached/rpc/rpc_priv.h"

static bool send_step(struct rpc_call *c, struct feed_step *step)
{
	Cognitora__V1__KvEvent ev = COGNITORA__V1__KV_EVENT__INIT;
	Cognitora__V1__KvChange changes[FEED_BATCH], *list[FEED_BATCH];
	Cognitora__V1__KvKey keys[FEED_BATCH];
	struct cgn_err err;
	if (step->reset && c->seq > 0) {
		(void)CGN_FAIL(&err, UNAVAILABLE,
			"changes were lost, for they came faster than they were taken: call again");
		rpc_finish(c, &err);
		return false;
	}
	for (size_t i = 0; i < step->n; i++) {
		cognitora__v1__kv_change__init(&changes[i]);
		cognitora__v1__kv_key__init(&keys[i]);
		keys[i].digest = (ProtobufCBinaryData){DIGEST_BYTES, step->changes[i].key.digest.b};
		keys[i].segment = step->changes[i].key.segment;
		changes[i].key = &keys[i];
		changes[i].tiers = step->changes[i].tiers;
		changes[i].size = step->changes[i].size;
		list[i] = &changes[i];
	}
	ev.seq = ++c->seq;
	ev.changes = list;
	ev.n_changes = step->n;
	ev.synced = step->synced;
	rpc_send(c, &ev);
	return !c->finished;
}

static void watch_pump(struct rpc_call *c)
{
	struct feed_step step;
	while (c->asked && c->call != NULL && !c->finished && !grpc_over_mark(c->call) &&
		feed_next(&c->feed, &step))
		if (!send_step(c, &step))
			return;
}

static CGN_RC on_request(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	(void)request;
	(void)err;
	c->progress = 0; /* a watcher may be silent */
	c->feed.store = c->port->w->daemon->store;
	watch_pump(c);
	if (c->port->feeds.at == 0)
		cgn_timer_set(&c->port->feeds, 1);
	return CGN_OK;
}

const struct rpc_method rpc_watch = {.request = &cognitora__v1__kv_watch_request__descriptor,
	.on_request = on_request,
	.on_drain = watch_pump};
