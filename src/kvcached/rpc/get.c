/* SPDX-License-Identifier: Apache-2.0 */
/* rpc, Get: a value in chunks, as fast as the client takes them. The checksum is compared before the first
 * byte, as sent bytes cannot be revoked. */

#include "base/sum/sum.h"
#include "kvcached/rpc/rpc_priv.h"

#define CHUNK      ((uint64_t)64 * 1024)
#define MAX_PIECES 12
#define LEAD       11 /* bytes of a tag and a length */

/* Write the field head of KvGetChunk.data: field 2, bytes. */
static size_t data_lead(uint8_t lead[LEAD], uint64_t n)
{
	size_t at = 0;
	lead[at++] = 2 << 3 | 2;
	for (; n >= 0x80; n >>= 7)
		lead[at++] = (uint8_t)(n | 0x80);
	lead[at++] = (uint8_t)n;
	return at;
}

static void send_chunk(struct rpc_call *c)
{
	struct iovec iov[1 + MAX_PIECES];
	uint8_t lead[LEAD];
	size_t n;
	uint64_t want = c->end - c->at < CHUNK ? c->end - c->at : CHUNK;
	uint64_t bytes = kvstore_block_iov(c->block, c->at, want, iov + 1, MAX_PIECES, &n);
	CGN_MUST(bytes > 0);
	iov[0] = (struct iovec){lead, data_lead(lead, bytes)};
	grpc_send(c->call, iov, n + 1);
	c->at += bytes;
}

static void get_pump(struct rpc_call *c)
{
	if (c->block == NULL || c->call == NULL || !c->sound)
		return;
	while (c->at < c->end && !grpc_over_mark(c->call)) {
		send_chunk(c);
		rpc_moved(c);
	}
	if (c->at == c->end)
		rpc_finish(c, NULL);
}

static CGN_RC get_begin(struct rpc_call *c, struct cgn_err *err)
{
	struct rpc_entry e;
	Cognitora__V1__KvGetChunk first = COGNITORA__V1__KV_GET_CHUNK__INIT;
	const struct block_info info = kvstore_block_info(c->block);
	uint64_t size = kvstore_block_size(c->block);
	if (c->offset > size || c->length > size - c->offset)
		return CGN_FAIL(err, INVALID, "the value has %llu bytes: no %llu from %llu on",
			(unsigned long long)size, (unsigned long long)c->length,
			(unsigned long long)c->offset);
	c->at = c->offset;
	c->end = c->length != 0 ? c->offset + c->length : size;
	c->sound = true;
	rpc_entry(&e, &c->key, &info, c->block);
	first.entry = &e.m;
	rpc_send(c, &first);
	rpc_moved(c);
	get_pump(c);
	return CGN_OK;
}

/* ---- checksum ---- */
static void sum_on_pool(void *call)
{
	struct rpc_call *c = call;
	struct iovec iov[MAX_PIECES];
	uint64_t at = 0, bytes;
	size_t n;
	struct sum64 s;
	sum64_begin(&s);
	while ((bytes = kvstore_block_iov(c->block, at, UINT64_MAX, iov, MAX_PIECES, &n)) > 0) {
		for (size_t i = 0; i < n; i++)
			sum64_add(&s, iov[i].iov_base, iov[i].iov_len);
		at += bytes;
	}
	c->sound = sum64_end(&s) == kvstore_block_checksum(c->block);
}

static void on_block(void *user, struct kvstore_block **take, const struct cgn_err *why);

/* Read again from SSD or a peer, after a miss or a damaged value in RAM. */
static void look_further(struct rpc_call *c)
{
	c->progress = 0;
	c->read =
		value_get(c->port->w->daemon, c->port->w->loop, &c->key, c->worth_ms, c->sites, on_block, c);
	rpc_trace_read(c);
}

static void on_summed(void *call)
{
	struct rpc_call *c = call;
	struct cgn_err err = {0};
	if (!rpc_pooled(c) || c->finished)
		return;
	if (!c->sound) {
		kvstore_block_unref(&c->block);
		look_further(c);
	} else if (!cgn_ok(get_begin(c, &err))) {
		rpc_finish(c, &err);
	}
}

/* ---- lookup ---- */
static void on_block(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct rpc_call *c = user;
	struct cgn_err err = {0};
	c->read = NULL;
	if (*take == NULL || c->finished) {
		kvstore_block_unref(take);
		rpc_finish(c, why);
		return;
	}
	c->block = *take;
	*take = NULL;
	cgn_rc rc = c->held == 0 ? rpc_hold(c, kvstore_block_size(c->block), &err) : CGN_OK;
	if (cgn_ok(rc))
		rc = get_begin(c, &err);
	if (!cgn_ok(rc))
		rpc_finish(c, &err);
}

static CGN_RC on_request(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	const Cognitora__V1__KvGetRequest *rq = request;
	struct kvcached *d = c->port->w->daemon;
	struct block_info info;
	CGN_TRY(rpc_key(rq->key, &c->key, err));
	c->offset = rq->offset;
	c->length = rq->length;
	c->worth_ms = value_worth(rq->peers, rq->budget_ms);
	c->sites = rpc_sites(c, rq->tenant);
	bool small = kvstore_lookup(d->store, &c->key, &info) && info.size <= RPC_AT_ONCE;
	c->block = kvstore_get_ram(d->store, &c->key, small);
	if (c->block == NULL) {
		look_further(c);
		return CGN_OK;
	}
	CGN_TRY(rpc_hold(c, kvstore_block_size(c->block), err));
	/* The block's own size counts: another value may have replaced the one that was looked up. */
	if (small && kvstore_block_size(c->block) <= RPC_AT_ONCE)
		return get_begin(c, err);
	rpc_pool(c, sum_on_pool, on_summed);
	return CGN_OK;
}

static void on_gone(struct rpc_call *c)
{
	kvstore_block_unref(&c->block);
}

const struct rpc_method rpc_get = {.request = &cognitora__v1__kv_get_request__descriptor,
	.on_request = on_request,
	.on_drain = get_pump,
	.on_gone = on_gone};
