/* SPDX-License-Identifier: Apache-2.0 */
/* hear: the stream on which a peer reports what it holds. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/kv/kvpeer/kvpeer_priv.h"

/* ---- the stream ---- */

static bool hear_is_known(const struct kvpeer_peer *p, uint64_t instance)
{
	cgn_list_each (it, &p->kp->peers) {
		const struct kvpeer_peer *other = CGN_CONTAINER(it, struct kvpeer_peer, link);
		if (other != p && other->state == PEER_READY && other->instance == instance)
			return true;
	}
	return false;
}

static void hear_leave_alone(struct kvpeer_peer *p, const char *why)
{
	struct cgn_err err;
	cgn_log(INFO, "kvpeer.left_alone", F_STR("peer", p->id), F_STR("address", p->address),
		F_STR("why", why));
	(void)CGN_FAIL(&err, UNAVAILABLE, "%s", why);
	p->why = err;
	kvpeer_peer_move(p, PEER_LEFT_ALONE);
	kvpeer_peer_lost(p, KVPEER_CODE_SELF, &err);
}

/* A peer that is known by its address alone is placed where it says that it is. */
static void hear_take_names(struct kvpeer_peer *p, const struct kvframe_who *w)
{
	if (p->by_hand) {
		free(p->rack);
		free(p->region);
		p->rack = kvpeer_text(w->rack);
		p->region = kvpeer_text(w->region);
	}
	char *name = kvpeer_text(w->node);
	p->name = kvpeer_name(p->kp, name);
	free(name);
	kvpeer_place(p);
}

/* Returns false when the peer was closed; do not use |p| afterwards. */
static bool hear_on_hello(struct kvpeer_peer *p, struct cgn_str payload, struct cgn_err *err)
{
	struct kvframe_who w;
	if (!cgn_ok(kvframe_read_who(payload, &w, err)))
		return false;
	const uint64_t instance = w.instance + p->site->salt;
	if (w.instance == p->kp->instance || hear_is_known(p, instance)) {
		hear_leave_alone(p,
			w.instance == p->kp->instance ? "it is this node itself"
						      : "it is a peer that is known under another name");
		err->code = CGN_FINE;
		return false;
	}
	p->instance = instance;
	p->seq = 0;
	hear_take_names(p, &w);
	if (!cgn_ok(kvpeer_index_begin(p, err)))
		return false;
	kvpeer_peer_ready(p);
	return true;
}

static bool hear_on_holds(struct kvpeer_peer *p, struct cgn_str payload, struct cgn_err *err)
{
	struct kvframe_holds h;
	if (!cgn_ok(kvframe_read_holds(payload, &h, err)))
		return false;
	if (h.seq != p->seq + 1)
		return cgn_ok(CGN_FAIL(err, INVALID, "the report of its blocks has number %llu, after %llu",
			(unsigned long long)h.seq, (unsigned long long)p->seq));
	p->seq = h.seq;
	if (h.reset && h.seq > 1 && !cgn_ok(kvpeer_index_begin(p, err)))
		return false;
	kvpeer_holds_apply(p, &h);
	p->mean_bytes = h.blocks > 0 ? h.bytes / h.blocks : 0;
	p->synced = p->synced || h.synced;
	return true;
}

static bool hear_on_frame(struct kvpeer_peer *p, const struct kvframe *f, struct cgn_err *err)
{
	if (p->state == PEER_GREETING && f->type == KVFRAME_HELLO)
		return hear_on_hello(p, f->payload, err);
	if (p->state == PEER_READY && f->type == KVFRAME_HOLDS)
		return hear_on_holds(p, f->payload, err);
	return cgn_ok(CGN_FAIL(err, INVALID, "the peer sent %s where a report of its blocks was due",
		kvframe_type_text(f->type)));
}

static void hear_on_data(struct quic_stream *s, void *user, const uint8_t *bytes, size_t n, bool fin)
{
	struct kvpeer_peer *p = user;
	struct cgn_str rest = {(const char *)bytes, n};
	struct kvframe f;
	struct cgn_err err = {.code = CGN_FINE};
	bool got = true, fine = true;
	(void)s;
	CGN_LIVE(p, KVPEER_PEER_TAG);
	while (fine && got) {
		fine = cgn_ok(kvframe_next(&p->in, &rest, &f, &got, &err));
		if (fine && got)
			fine = hear_on_frame(p, &f, &err);
	}
	if (fine && fin)
		fine = cgn_ok(CGN_FAIL(&err, UNAVAILABLE, "the peer ended the report of its blocks"));
	if (!fine && err.code != CGN_FINE)
		kvpeer_peer_lost(p, KVPEER_CODE_NOT_UNDERSTOOD, &err);
}

static void hear_on_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct kvpeer_peer *p = user;
	struct cgn_err err = *why;
	(void)s;
	CGN_LIVE(p, KVPEER_PEER_TAG);
	p->hears = NULL;
	if (p->conn == NULL || !quic_conn_is_open(p->conn))
		return; /* peer_on_close follows */
	(void)CGN_FAIL(&err, UNAVAILABLE, "the peer closed the stream that reports its blocks (code %llu)",
		(unsigned long long)code);
	kvpeer_peer_lost(p, KVPEER_CODE_NOT_UNDERSTOOD, &err);
}

static const struct quic_stream_ops hear_ops = {.on_data = hear_on_data, .on_close = hear_on_close};

void kvpeer_hear(struct kvpeer_peer *p)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	kvframe_in_fini(&p->in);
	kvframe_in_init(&p->in);
	if (!cgn_ok(quic_stream_open(p->conn, &hear_ops, p, &p->hears, &err))) {
		kvpeer_peer_lost(p, KVPEER_CODE_ENOUGH, &err);
		return;
	}
	kvpeer_peer_move(p, PEER_GREETING);
	quic_priority(p->hears, 0);
	kvpeer_put_self(p->kp, KVFRAME_SUBSCRIBE, &b);
	kvpeer_send_buf(p->hears, &b, false);
}
