/* SPDX-License-Identifier: Apache-2.0 */
/* rpc, Peers. The reply is packed on the loop of the peers and sent on the caller's loop. */
#include "joint/kv/kvpeer/kvpeer.h"
#include "kvcached/rpc/rpc_priv.h"

static void write_peers(const struct kvcached *d, const struct kvpeer *kp, struct cgn_buf *out)
{
	Cognitora__V1__KvPeersResponse rs = COGNITORA__V1__KV_PEERS_RESPONSE__INIT;
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	pb_tree_init(&t, SVC_DOCUMENT_LIMIT);
	kvpeer_fill(kp, &t, &rs);
	rs.quic_address = pb_text(peers_quic_address(d));
	if (!t.bad)
		pb_pack(&rs, out);
	out->bad = out->bad || t.bad;
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
