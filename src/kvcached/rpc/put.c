/* SPDX-License-Identifier: Apache-2.0 */
/* rpc, Put: bytes go straight to the pages that were reserved when the head arrived. */
#include "kvcached/rpc/rpc_priv.h"

static CGN_RC on_head(struct rpc_call *c, const Cognitora__V1__KvPutHead *h, struct cgn_err *err)
{
	uint64_t now = cgn_clock_wall_ms();
	if (c->writer != NULL)
		return CGN_FAIL(err, INVALID, "a second KvPutHead: it comes with the first message only");
	CGN_TRY(rpc_key(h->key, &c->key, err));
	if (h->size > BLOCK_MAX_BYTES)
		return CGN_FAIL(err, TOO_LARGE, "a value of %llu bytes: at most %llu",
			(unsigned long long)h->size, (unsigned long long)BLOCK_MAX_BYTES);
	const struct block_meta meta = {.model = cgn_str_of(h->model),
		.name = {(const char *)h->name.data, h->name.len},
		.tenant = cgn_str_of(h->tenant),
		.tokens = h->tokens,
		.created_unix_ms = now,
		.expires_unix_ms = h->ttl_ms == 0      ? 0
			: h->ttl_ms < UINT64_MAX - now ? now + h->ttl_ms
						       : UINT64_MAX};
	c->checksum = h->checksum;
	c->if_absent = h->only_if_absent;
	CGN_TRY(rpc_hold(c, h->size, err));
	return kvstore_put(c->port->w->daemon->store, &c->key, &meta, h->size, &c->writer, err);
}

static CGN_RC on_request(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const Cognitora__V1__KvPutChunk *rq = request;
	if (rq->head != NULL)
		CGN_TRY(on_head(c, rq->head, err));
	if (c->writer == NULL)
		return CGN_FAIL(err, INVALID, "the first KvPutChunk has no head");
	if (rq->data.len > kvstore_writer_missing(c->writer))
		return CGN_FAIL(err, INVALID, "%zu bytes more than KvPutHead.size says",
			rq->data.len - (size_t)kvstore_writer_missing(c->writer));
	kvstore_writer_add(c->writer, rq->data.data, rq->data.len);
	c->at += rq->data.len;
	rpc_moved(c);
	return CGN_OK;
}

static void put_commit(void *call)
{
	struct rpc_call *c = call;
	c->committed = cgn_ok(kvstore_writer_commit(&c->writer, c->checksum != 0 ? &c->checksum : NULL,
		c->if_absent ? KVSTORE_IF_ABSENT : 0, &c->err));
}

static void put_reply(struct rpc_call *c)
{
	struct rpc_entry e;
	struct block_info info;
	if (!c->committed) {
		rpc_finish(c, &c->err);
		return;
	}
	/* the value may be gone already: then tiers is 0 */
	(void)kvstore_lookup(c->port->w->daemon->store, &c->key, &info);
	rpc_entry(&e, &c->key, &info, NULL);
	rpc_reply(c, &e.m);
}

static void on_committed(void *call)
{
	if (rpc_pooled(call))
		put_reply(call);
}

static CGN_RC on_end(struct rpc_call *c, struct cgn_err *err)
{
	uint64_t missing = kvstore_writer_missing(c->writer);
	if (missing > 0)
		return CGN_FAIL(err, INVALID, "%llu bytes of the value are missing",
			(unsigned long long)missing);
	if (c->held > RPC_AT_ONCE) {
		rpc_pool(c, put_commit, on_committed);
	} else {
		put_commit(c);
		put_reply(c);
	}
	return CGN_OK;
}

static void on_gone(struct rpc_call *c)
{
	kvstore_writer_abort(&c->writer);
}

const struct rpc_method rpc_put = {.request = &cognitora__v1__kv_put_chunk__descriptor,
	.on_request = on_request,
	.on_end = on_end,
	.on_gone = on_gone,
	.many = true};
