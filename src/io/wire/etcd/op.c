/* SPDX-License-Identifier: Apache-2.0 */
/* op: one call to etcd, tried on each endpoint while it is unavailable. */
#include <stdlib.h>

#include "base/pb/pb.h"
#include "io/wire/etcd/etcd_priv.h"

#define ETCD_OP_TAG 0xe7cd0002U

struct etcd_op {
	uint32_t tag;
	const struct etcd_kind *kind;
	struct etcd *e;
	struct cgn_buf request;
	etcd_done_fn *done; /* NULL: dropped. */
	void *user;
	size_t endpoint, tries;
	struct cgn_link link;
	struct cgn_hook turn; /* Runs an attempt that could not even start. */
	struct cgn_err err;
};

/* ---- answers ---- */

void etcd_op_tell(struct etcd_op *op, const struct etcd_result *r)
{
	if (op->done != NULL)
		op->done(op->user, r);
	op->done = NULL;
}

static void read_header(const Etcdserverpb__ResponseHeader *h, struct etcd_result *r)
{
	if (h == NULL)
		return;
	r->cluster_id = h->cluster_id;
	r->revision = h->revision;
}

static struct cgn_str str_of(const ProtobufCBinaryData *b)
{
	return (struct cgn_str){(const char *)b->data, b->len};
}

/* Call |done| with the keys of |m|, which it borrows. */
static CGN_RC keys_done(struct etcd_op *op, const Etcdserverpb__RangeResponse *m, struct etcd_result *r,
	struct cgn_err *err)
{
	struct etcd_kv *kvs = calloc(m->n_kvs + 1, sizeof *kvs);
	if (kvs == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %zu keys of etcd", m->n_kvs);
	for (size_t i = 0; i < m->n_kvs; i++) {
		const Etcdserverpb__KeyValue *kv = m->kvs[i];
		kvs[i] = (struct etcd_kv){str_of(&kv->key), str_of(&kv->value), kv->mod_revision, kv->lease};
	}
	r->kvs = kvs;
	r->n_kvs = m->n_kvs;
	r->more = m->more;
	etcd_op_tell(op, r);
	free(kvs);
	return CGN_OK;
}

static CGN_RC range_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__RangeResponse *m = NULL;
	CGN_TRY(pb_unpack(&etcdserverpb__range_response__descriptor, bytes, &m, err));
	read_header(m->header, r);
	return keys_done(op, m, r, err);
}

static CGN_RC put_if_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__TxnResponse *m = NULL;
	CGN_TRY(pb_unpack(&etcdserverpb__txn_response__descriptor, bytes, &m, err));
	read_header(m->header, r);
	r->did = m->succeeded;
	if (m->succeeded || m->n_responses == 0 ||
		m->responses[0]->response_case != ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE)
		return CGN_OK;
	return keys_done(op, m->responses[0]->response_range, r, err);
}

static CGN_RC put_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__PutResponse *m = NULL;
	(void)op;
	CGN_TRY(pb_unpack(&etcdserverpb__put_response__descriptor, bytes, &m, err));
	read_header(m->header, r);
	return CGN_OK;
}

static CGN_RC delete_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__DeleteRangeResponse *m = NULL;
	(void)op;
	CGN_TRY(pb_unpack(&etcdserverpb__delete_range_response__descriptor, bytes, &m, err));
	read_header(m->header, r);
	r->deleted = m->deleted;
	return CGN_OK;
}

static CGN_RC grant_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__LeaseGrantResponse *m = NULL;
	(void)op;
	CGN_TRY(pb_unpack(&etcdserverpb__lease_grant_response__descriptor, bytes, &m, err));
	if (m->error[0] != '\0' || m->id == 0)
		return CGN_FAIL(err, UNAVAILABLE, "etcd granted no lease: %.200s", m->error);
	read_header(m->header, r);
	r->lease = m->id;
	r->ttl = m->ttl;
	return CGN_OK;
}

static CGN_RC keepalive_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__LeaseKeepAliveResponse *m = NULL;
	(void)op;
	CGN_TRY(pb_unpack(&etcdserverpb__lease_keep_alive_response__descriptor, bytes, &m, err));
	read_header(m->header, r);
	r->lease = m->id;
	r->ttl = m->ttl;
	return CGN_OK;
}

static CGN_RC revoke_done(struct etcd_op *op, struct cgn_str bytes, struct etcd_result *r,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Etcdserverpb__LeaseRevokeResponse *m = NULL;
	(void)op;
	CGN_TRY(pb_unpack(&etcdserverpb__lease_revoke_response__descriptor, bytes, &m, err));
	read_header(m->header, r);
	return CGN_OK;
}

static const struct etcd_kind range_kind = {"/etcdserverpb.KV/Range", range_done};
static const struct etcd_kind put_kind = {"/etcdserverpb.KV/Put", put_done};
static const struct etcd_kind put_if_kind = {"/etcdserverpb.KV/Txn", put_if_done};
static const struct etcd_kind delete_kind = {"/etcdserverpb.KV/DeleteRange", delete_done};
static const struct etcd_kind grant_kind = {"/etcdserverpb.Lease/LeaseGrant", grant_done};
/* Declared as a stream; with one message each way it is a call like the others. */
static const struct etcd_kind keepalive_kind = {"/etcdserverpb.Lease/LeaseKeepAlive", keepalive_done};
static const struct etcd_kind revoke_kind = {"/etcdserverpb.Lease/LeaseRevoke", revoke_done};

/* ---- trying ---- */

static void op_try(struct etcd_op *op);

static void op_end(struct etcd_op *op, const struct etcd_result *r)
{
	cgn_list_drop(&op->link);
	cgn_hook_drop(&op->turn);
	if (op->done != NULL)
		op->done(op->user, r);
	cgn_buf_fini(&op->request);
	op->tag = 0;
	free(op);
}

static void op_failed(struct etcd_op *op, const struct cgn_err *why)
{
	struct etcd *e = op->e;
	const struct etcd_result r = {.err = why};
	if (why->code == CGN_UNAVAILABLE || why->code == CGN_DEADLINE)
		etcd_move_on(e, op->endpoint);
	if (why->code == CGN_UNAVAILABLE && !e->dying && op->done != NULL && op->tries < e->n_channels)
		op_try(op);
	else
		op_end(op, &r);
}

static void op_answered(void *user, const struct grpc_unary_result *g)
{
	struct etcd_op *op = user;
	CGN_LIVE(op, ETCD_OP_TAG);
	struct cgn_err err = *g->err;
	struct etcd_result r = {.err = &err};
	if (err.code == CGN_FINE &&
		!cgn_ok(op->kind->answer(op, (struct cgn_str){(const char *)g->p, g->n}, &r, &err)))
		r = (struct etcd_result){.err = &err};
	if (err.code != CGN_FINE)
		op_failed(op, &err);
	else
		op_end(op, &r);
}

static void op_not_started(struct cgn_hook *h)
{
	struct etcd_op *op = CGN_CONTAINER(h, struct etcd_op, turn);
	CGN_LIVE(op, ETCD_OP_TAG);
	op_failed(op, &op->err);
}

static void op_try(struct etcd_op *op)
{
	struct etcd *e = op->e;
	op->endpoint = e->current;
	op->tries++;
	cgn_rc rc = op->request.bad
		? CGN_FAIL(&op->err, NO_MEMORY, "no memory for a call to etcd")
		: grpc_unary(e->channels[op->endpoint], op->kind->path, cgn_buf_view(&op->request),
			  e->timeout, op_answered, op, &op->err);
	if (!cgn_ok(rc))
		cgn_loop_defer(e->loop, &op->turn);
}

struct etcd_op *etcd_op_start(struct etcd *e, const struct etcd_kind *kind, const void *message,
	etcd_done_fn *done, void *user)
{
	CGN_LIVE(e, ETCD_TAG);
	struct etcd_op *op = CGN_NEW(struct etcd_op);
	*op = (struct etcd_op){.tag = ETCD_OP_TAG, .kind = kind, .e = e, .done = done, .user = user};
	cgn_list_init(&op->link);
	cgn_hook_init(&op->turn, op_not_started);
	pb_pack(message, &op->request);
	cgn_list_push(&e->ops, &op->link);
	op_try(op);
	return op;
}

void etcd_op_drop(struct etcd_op **take)
{
	struct etcd_op *op = CGN_TAKE_LIVE(take, ETCD_OP_TAG);
	if (op == NULL)
		return;
	op->done = NULL;
}

/* ---- the calls ---- */

static ProtobufCBinaryData data_of(struct cgn_str s)
{
	union { /* protobuf-c has no const; packing only reads. */
		const char *in;
		uint8_t *out;
	} p = {.in = s.p};
	return (ProtobufCBinaryData){.len = s.n, .data = p.out};
}

struct etcd_op *etcd_get(struct etcd *e, const struct etcd_range *range, etcd_done_fn *done, void *user)
{
	Etcdserverpb__RangeRequest m = ETCDSERVERPB__RANGE_REQUEST__INIT;
	m.key = data_of(range->key);
	m.range_end = data_of(range->end);
	m.limit = range->limit;
	m.revision = range->revision;
	return etcd_op_start(e, &range_kind, &m, done, user);
}

struct etcd_op *etcd_put(struct etcd *e, struct cgn_str key, struct cgn_str value, int64_t lease,
	etcd_done_fn *done, void *user)
{
	Etcdserverpb__PutRequest m = ETCDSERVERPB__PUT_REQUEST__INIT;
	m.key = data_of(key);
	m.value = data_of(value);
	m.lease = lease;
	return etcd_op_start(e, &put_kind, &m, done, user);
}

struct etcd_op *etcd_put_if(struct etcd *e, struct cgn_str key, int64_t mod_revision, struct cgn_str value,
	int64_t lease, etcd_done_fn *done, void *user)
{
	Etcdserverpb__PutRequest put = ETCDSERVERPB__PUT_REQUEST__INIT;
	Etcdserverpb__RangeRequest get = ETCDSERVERPB__RANGE_REQUEST__INIT;
	Etcdserverpb__Compare same = ETCDSERVERPB__COMPARE__INIT, *compare = &same;
	Etcdserverpb__RequestOp yes = ETCDSERVERPB__REQUEST_OP__INIT, *success = &yes;
	Etcdserverpb__RequestOp no = ETCDSERVERPB__REQUEST_OP__INIT, *failure = &no;
	Etcdserverpb__TxnRequest m = ETCDSERVERPB__TXN_REQUEST__INIT;
	put.key = get.key = same.key = data_of(key);
	put.value = data_of(value);
	put.lease = lease;
	same.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__MOD;
	same.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_MOD_REVISION;
	same.mod_revision = mod_revision;
	yes.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
	yes.request_put = &put;
	no.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_RANGE;
	no.request_range = &get;
	m.n_compare = m.n_success = m.n_failure = 1;
	m.compare = &compare;
	m.success = &success;
	m.failure = &failure;
	return etcd_op_start(e, &put_if_kind, &m, done, user);
}

struct etcd_op *etcd_delete(struct etcd *e, struct cgn_str key, etcd_done_fn *done, void *user)
{
	Etcdserverpb__DeleteRangeRequest m = ETCDSERVERPB__DELETE_RANGE_REQUEST__INIT;
	m.key = data_of(key);
	return etcd_op_start(e, &delete_kind, &m, done, user);
}

struct etcd_op *etcd_grant(struct etcd *e, int64_t ttl_seconds, etcd_done_fn *done, void *user)
{
	Etcdserverpb__LeaseGrantRequest m = ETCDSERVERPB__LEASE_GRANT_REQUEST__INIT;
	m.ttl = ttl_seconds;
	return etcd_op_start(e, &grant_kind, &m, done, user);
}

struct etcd_op *etcd_keepalive(struct etcd *e, int64_t lease, etcd_done_fn *done, void *user)
{
	Etcdserverpb__LeaseKeepAliveRequest m = ETCDSERVERPB__LEASE_KEEP_ALIVE_REQUEST__INIT;
	m.id = lease;
	return etcd_op_start(e, &keepalive_kind, &m, done, user);
}

struct etcd_op *etcd_revoke(struct etcd *e, int64_t lease, etcd_done_fn *done, void *user)
{
	Etcdserverpb__LeaseRevokeRequest m = ETCDSERVERPB__LEASE_REVOKE_REQUEST__INIT;
	m.id = lease;
	return etcd_op_start(e, &revoke_kind, &m, done, user);
}

/* ---- the end ---- */

void etcd_free(struct etcd **take)
{
	struct etcd *e = *take;
	struct cgn_link *first;
	*take = NULL;
	if (e == NULL)
		return;
	CGN_LIVE(e, ETCD_TAG);
	CGN_MUST(e->users == 0);
	e->dying = true;
	for (size_t i = 0; i < e->n_channels; i++)
		grpc_channel_free(&e->channels[i]); /* Ends the calls in flight on the channel. */
	while ((first = cgn_list_first(&e->ops)) != NULL)
		op_failed(CGN_CONTAINER(first, struct etcd_op, link),
			&(struct cgn_err){.code = CGN_CANCELLED, .msg = "the etcd client was closed"});
	tls_ctx_free(&e->tls);
	e->tag = 0;
	free(e);
}
