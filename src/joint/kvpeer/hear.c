/* SPDX-License-Identifier: Apache-2.0 */
/* hear: what a peer holds, as it tells on the stream that was opened for it. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/kvpeer/kvpeer_priv.h"

/* ---- the index ---- */

void kvpeer_forget(struct peer *p)
{
	atomic_store(&p->kp->slots[p->slot].index_id, NO_INDEX_ID);
	if (p->index_id != NO_INDEX_ID)
		kvindex_node_remove(p->kp->index, p->index_id);
	p->index_id = NO_INDEX_ID;
	p->synced = false;
}

static CGN_RC begin_lane(struct peer *p, struct cgn_err *err)
{
	uint16_t index_id;
	kvpeer_forget(p);
	CGN_TRY(kvindex_node_add(p->kp->index, &index_id, err));
	p->index_id = index_id;
	atomic_store(&p->kp->slots[p->slot].index_id, index_id);
	return CGN_OK;
}

static void apply(struct peer *p, const struct kvframe_holds *h)
{
	static _Thread_local uint64_t blocks[KVFRAME_MAX_HOLDS];
	static _Thread_local uint8_t tiers[KVFRAME_MAX_HOLDS];
	for (size_t i = 0; i < h->n; i++) {
		struct kvframe_hold hold = kvframe_hold_at(h, i);
		blocks[i] = hold.block;
		tiers[i] = hold.tiers;
	}
	kvindex_set(p->kp->index, p->index_id, blocks, tiers, h->n);
}

void kvpeer_has_not(struct peer *p, const struct block_key *k)
{
	const uint64_t block = kvframe_short(k);
	const uint8_t none = 0;
	if (p->index_id != NO_INDEX_ID)
		kvindex_set(p->kp->index, p->index_id, &block, &none, 1);
}

bool kvpeer_peer_has(struct kvpeer *kp, const struct peer *p, const struct block_key *k, unsigned *tiers)
{
	*tiers = p->state == PEER_READY && p->index_id != NO_INDEX_ID
		? kvindex_tiers(kp->index, p->index_id, kvframe_short(k))
		: 0;
	return *tiers != 0;
}

/* ---- the stream ---- */

static bool is_known(const struct peer *p, uint64_t instance)
{
	cgn_list_each (it, &p->kp->peers) {
		const struct peer *other = CGN_CONTAINER(it, struct peer, link);
		if (other != p && other->state == PEER_READY && other->instance == instance)
			return true;
	}
	return false;
}

static void leave_alone(struct peer *p, const char *why)
{
	struct cgn_err err;
	cgn_log(INFO, "kvpeer.left_alone", F_STR("peer", p->id), F_STR("address", p->address),
		F_STR("why", why));
	(void)CGN_FAIL(&err, UNAVAILABLE, "%s", why);
	p->why = err;
	p->state = PEER_LEFT_ALONE;
	kvpeer_peer_lost(p, CODE_SELF, &err);
}

/* One that is known by its address alone has the place that it gives itself. */
static void take_names(struct peer *p, const struct kvframe_who *w)
{
	char *rack = kvpeer_text(w->rack), *region = kvpeer_text(w->region);
	if (p->by_hand && rack != NULL && region != NULL) {
		free(p->rack);
		free(p->region);
		p->rack = rack;
		p->region = region;
		rack = region = NULL;
	}
	free(rack);
	free(region);
	char *name = kvpeer_text(w->node);
	p->name = name != NULL ? kvpeer_name(p->kp, name) : NULL;
	free(name);
	kvpeer_place(p);
}

/* False: the peer was left, and |p| with its stream is not to be gone on with. */
static bool on_hello(struct peer *p, struct cgn_str payload, struct cgn_err *err)
{
	struct kvframe_who w;
	if (!cgn_ok(kvframe_read_who(payload, &w, err)))
		return false;
	if (w.instance == p->kp->instance || is_known(p, w.instance)) {
		leave_alone(p,
			w.instance == p->kp->instance ? "it is this node itself"
						      : "it is a peer that is known under another name");
		err->code = CGN_FINE;
		return false;
	}
	p->instance = w.instance;
	p->seq = 0;
	take_names(p, &w);
	if (!cgn_ok(begin_lane(p, err)))
		return false;
	kvpeer_peer_ready(p);
	return true;
}

static bool on_holds(struct peer *p, struct cgn_str payload, struct cgn_err *err)
{
	struct kvframe_holds h;
	if (!cgn_ok(kvframe_read_holds(payload, &h, err)))
		return false;
	if (h.seq != p->seq + 1)
		return cgn_ok(CGN_FAIL(err, INVALID, "what it holds came with number %llu, after %llu",
			(unsigned long long)h.seq, (unsigned long long)p->seq));
	p->seq = h.seq;
	if (h.reset && h.seq > 1 && !cgn_ok(begin_lane(p, err)))
		return false;
	apply(p, &h);
	p->mean_bytes = h.blocks > 0 ? h.bytes / h.blocks : 0;
	p->synced = p->synced || h.synced;
	return true;
}

static bool on_frame(struct peer *p, const struct kvframe *f, struct cgn_err *err)
{
	if (p->state == PEER_GREETING && f->type == KVFRAME_HELLO)
		return on_hello(p, f->payload, err);
	if (p->state == PEER_READY && f->type == KVFRAME_HOLDS)
		return on_holds(p, f->payload, err);
	return cgn_ok(CGN_FAIL(err, INVALID, "the peer said %s where it should say what it holds",
		kvframe_type_text(f->type)));
}

static void on_data(struct quic_stream *s, void *user, const uint8_t *bytes, size_t n, bool fin)
{
	struct peer *p = user;
	struct cgn_str rest = {(const char *)bytes, n};
	struct kvframe f;
	struct cgn_err err = {.code = CGN_FINE};
	bool got = true, fine = true;
	(void)s;
	CGN_LIVE(p, KVPEER_PEER_TAG);
	while (fine && got) {
		fine = cgn_ok(kvframe_next(&p->in, &rest, &f, &got, &err));
		if (fine && got)
			fine = on_frame(p, &f, &err);
	}
	if (fine && fin)
		fine = cgn_ok(CGN_FAIL(&err, UNAVAILABLE, "the peer tells no more what it holds"));
	if (!fine && err.code != CGN_FINE)
		kvpeer_peer_lost(p, CODE_NOT_UNDERSTOOD, &err);
}

static void on_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct peer *p = user;
	struct cgn_err err = *why;
	(void)s;
	CGN_LIVE(p, KVPEER_PEER_TAG);
	p->hears = NULL;
	if (p->conn == NULL || !quic_conn_is_open(p->conn))
		return; /* its own on_close follows */
	(void)CGN_FAIL(&err, UNAVAILABLE, "the peer ended the stream of what it holds (code %llu)",
		(unsigned long long)code);
	kvpeer_peer_lost(p, CODE_NOT_UNDERSTOOD, &err);
}

static const struct quic_stream_ops ops = {.on_data = on_data, .on_close = on_close};

void kvpeer_hear(struct peer *p)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err;
	kvframe_in_fini(&p->in);
	kvframe_in_init(&p->in);
	if (!cgn_ok(quic_stream_open(p->conn, &ops, p, &p->hears, &err))) {
		kvpeer_peer_lost(p, CODE_ENOUGH, &err);
		return;
	}
	p->state = PEER_GREETING;
	quic_priority(p->hears, 0);
	kvpeer_put_self(p->kp, KVFRAME_SUBSCRIBE, &b);
	kvpeer_send_buf(p->hears, &b, false);
}
