/* SPDX-License-Identifier: Apache-2.0 */
/* rpc, Peers. The reply is packed on the loop of the peers and sent on the caller's loop. */
#include <stdlib.h>

#include "joint/kv/kvpeer/kvpeer.h"
#include "kvcached/rpc/rpc_priv.h"

struct rows {
	Cognitora__V1__KvPeer m[KVPEER_MAX], *list[KVPEER_MAX];
	char certificates[KVPEER_MAX][KVPEER_CERTIFICATE];
	size_t n;
	Cognitora__V1__KvSite sites[BLOCK_SITES], *site_list[BLOCK_SITES];
	char refusals[BLOCK_SITES][sizeof((struct cgn_err *)0)->msg];
	size_t n_sites;
};

static void on_row(void *user, const Cognitora__V1__KvPeer *row)
{
	struct rows *rows = user;
	Cognitora__V1__KvPeer *m = &rows->m[rows->n];
	*m = *row;
	m->certificate = rows->certificates[rows->n];
	(void)cgn_str_copyz(m->certificate, sizeof rows->certificates[0], cgn_str_of(row->certificate));
	rows->list[rows->n++] = m;
}

static void on_site(void *user, const Cognitora__V1__KvSite *row)
{
	struct rows *rows = user;
	Cognitora__V1__KvSite *m = &rows->sites[rows->n_sites];
	*m = *row;
	m->last_refusal = rows->refusals[rows->n_sites];
	(void)cgn_str_copyz(m->last_refusal, sizeof rows->refusals[0], cgn_str_of(row->last_refusal));
	rows->site_list[rows->n_sites++] = m;
}

static void peers_overview(const struct kvpeer_overview *v, Cognitora__V1__KvPeersResponse *rs)
{
	rs->node_id = pb_text(v->node);
	rs->rack = pb_text(v->rack);
	rs->region = pb_text(v->region);
	rs->guests = v->guests;
	rs->serving = v->serving;
	rs->owed_bytes = v->owed_bytes;
	rs->fetching = v->fetching;
	rs->index_blocks = v->index_blocks;
	rs->index_bytes = v->index_bytes;
	rs->index_max_bytes = v->index_max_bytes;
	rs->handshakes_failed = v->quic.handshakes_failed;
	if (v->refusal.code == CGN_FINE)
		return;
	rs->last_refusal = pb_text(v->refusal.msg);
	rs->last_refusal_ms = cgn_since(cgn_clock_now(), v->refused_at) / CGN_MSEC;
}

static void write_peers(const struct kvcached *d, const struct kvpeer *kp, struct cgn_buf *out)
{
	Cognitora__V1__KvPeersResponse rs = COGNITORA__V1__KV_PEERS_RESPONSE__INIT;
	struct kvpeer_overview v;
	struct rows *rows = calloc(1, sizeof *rows);
	out->bad = rows == NULL;
	if (rows == NULL)
		return;
	kvpeer_overview(kp, &v);
	peers_overview(&v, &rs);
	rs.quic_address = pb_text(peers_quic_address(d));
	kvpeer_each(kp, on_row, rows);
	rs.peers = rows->list;
	rs.n_peers = rows->n;
	kvpeer_each_site(kp, on_site, rows);
	rs.sites = rows->site_list;
	rs.n_sites = rows->n_sites;
	pb_pack(&rs, out);
	free(rows);
}

static void on_told(void *user, const struct cgn_buf *packed)
{
	struct rpc_call *c = user;
	c->question = NULL;
	if (packed->bad) {
		rpc_finish(c, &(struct cgn_err){.code = CGN_NO_MEMORY, .msg = "no memory for an answer"});
		return;
	}
	rpc_send_packed(c, cgn_buf_view(packed));
	rpc_finish(c, NULL);
}

static CGN_RC on_peers(struct rpc_call *c, const void *request, struct cgn_err *err)
{
	(void)request;
	c->progress = 0;
	c->question = peers_ask(c->port->w->daemon, c->port->w->loop, write_peers, on_told, c);
	return c->question != NULL ? CGN_OK : CGN_FAIL(err, NOT_FOUND, PEERS_NONE);
}

static void on_gone(struct rpc_call *c)
{
	peers_question_drop(&c->question);
}
const struct rpc_method rpc_peers = {.request = &cognitora__v1__kv_peers_request__descriptor,
	.on_request = on_peers,
	.on_gone = on_gone};
