/* SPDX-License-Identifier: Apache-2.0 */
/* pool: the peers, one connection to each, and the connections of guests. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/kv/kvpeer/kvpeer_priv.h"

#define LEFT_ALONE   (60 * CGN_SEC)
#define SWEEP_EVERY  (50 * CGN_MSEC)
#define SWEEP_BUDGET 10000

/* ---- connections to peers ---- */

static void peer_dial(struct cgn_timer *t);

static void peer_log_trouble(struct kvpeer_peer *p, const struct cgn_err *why)
{
	p->why = *why;
	if (!p->trouble_said)
		cgn_log_limited(WARN, "kvpeer.lost", F_STR("peer", p->id), F_STR("address", p->address),
			F_STR("why", why->msg), F_STR("then", "dialling again"));
	p->trouble_said = true;
}

static void peer_wait(struct kvpeer_peer *p, const struct cgn_err *why)
{
	kvpeer_forget(p);
	kvframe_in_fini(&p->in);
	if (p->state == PEER_LEFT_ALONE) {
		cgn_timer_set(&p->timer, LEFT_ALONE);
		return;
	}
	kvpeer_peer_move(p, PEER_WAITING);
	peer_log_trouble(p, why);
	cgn_timer_set(&p->timer, cgn_backoff_next(&p->backoff));
}

void kvpeer_peer_lost(struct kvpeer_peer *p, enum kvpeer_code code, const struct cgn_err *why)
{
	struct quic_conn *c = p->conn;
	p->conn = NULL;
	if (p->hears != NULL)
		quic_stream_cancel(&p->hears, code);
	kvpeer_attempts_lost(p, why);
	if (c != NULL) {
		quic_conn_take(c, NULL, NULL);
		quic_conn_close(c, code, why->msg);
	}
	peer_wait(p, why);
}

void kvpeer_peer_ready(struct kvpeer_peer *p)
{
	kvpeer_peer_move(p, PEER_READY);
	p->failures = 0;
	p->busy_until = 0;
	cgn_backoff_reset(&p->backoff);
	cgn_log_limited(INFO, "kvpeer.ready", F_STR("peer", p->id), F_STR("address", p->address),
		F_STR("distance", kvfetch_distance_text(p->distance)));
	p->trouble_said = false;
}

/* Is |who|, with a certificate of another site's CA, a store there? What its stores may do, kvpeer_site_may says. */
static CGN_RC store_check(struct kvpeer *kp, const struct kvpeer_site *s, struct cgn_str uris,
	const struct principal *who, enum identity_action action, struct cgn_err *err)
{
	if (identity_uris_name(uris, "kvcached") || identity_uris_name(uris, "agent"))
		return CGN_OK;
	return access_refuse(kp->access, who, action, cgn_str_of(s->name),
		"no URI name of the site's certificate has the role kvcached or agent (cognitora://CLUSTER/kvcached/NODE)",
		err);
}

/* May the holder of the certificate of |c|, at |from|, do |action| with this store's blocks? */
static CGN_RC holder_check(struct kvpeer *kp, const struct kvpeer_site *s, const struct quic_conn *c,
	struct cgn_str from, enum identity_action action, struct cgn_err *err)
{
	struct principal who;
	if (kp->access == NULL)
		return CGN_OK;
	access_peer(kp->access, from, quic_conn_peer_name(c), quic_conn_peer_uris(c), &who);
	if (!kvpeer_is_here(s))
		return store_check(kp, s, quic_conn_peer_uris(c), &who, action, err);
	return access_check(kp->access, &who, action, (struct cgn_str){0}, err);
}

static void peer_on_open(struct quic_conn *c, void *user)
{
	struct kvpeer_peer *p = user;
	struct cgn_err err;
	CGN_LIVE(p, KVPEER_PEER_TAG);
	kvfetch_path_trip(&p->path, (double)quic_conn_rtt(c) / (double)CGN_MSEC);
	if (cgn_ok(holder_check(p->kp, p->site, c, cgn_str_of(p->address), ACTION_KV_WRITE, &err)))
		kvpeer_hear(p);
	else
		kvpeer_peer_lost(p, KVPEER_CODE_FORBIDDEN, &err);
}

static void peer_on_close(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	struct kvpeer_peer *p = user;
	struct cgn_err said = *why;
	(void)c;
	CGN_LIVE(p, KVPEER_PEER_TAG);
	p->conn = NULL;
	p->hears = NULL; /* hear_on_close ran before */
	if (said.code == CGN_FINE)
		(void)CGN_FAIL(&said, UNAVAILABLE, "the peer closed the connection");
	peer_wait(p, &said);
}

static const struct quic_conn_ops peer_ops = {.on_open = peer_on_open, .on_close = peer_on_close};

static void peer_dial(struct cgn_timer *t)
{
	struct kvpeer_peer *p = CGN_CONTAINER(t, struct kvpeer_peer, timer);
	struct cgn_err err;
	CGN_LIVE(p, KVPEER_PEER_TAG);
	kvpeer_peer_move(p, PEER_OPENING);
	if (!cgn_ok(quic_connect(p->site->ep, p->address, p->site->peer_name, &peer_ops, p, &p->conn, &err)))
		peer_wait(p, &err);
}

/* ---- members ---- */

static struct kvpeer_peer *peer_find(const struct kvpeer *kp, const char *id)
{
	cgn_list_each (it, &kp->peers) {
		struct kvpeer_peer *p = CGN_CONTAINER(it, struct kvpeer_peer, link);
		if (strcmp(p->id, id) == 0)
			return p;
	}
	return NULL;
}

static void peer_drop(struct kvpeer_peer *p)
{
	struct kvpeer *kp = p->kp;
	const struct cgn_err why = {.code = CGN_UNAVAILABLE, .msg = "the peer left the cluster"};
	kvpeer_peer_move(p, PEER_LEFT_ALONE); /* no fetch chooses the peer from here on */
	kvpeer_peer_lost(p, KVPEER_CODE_FINE, &why);
	cgn_timer_cancel(&p->timer);
	atomic_store(&kp->slots[p->slot].name, NULL);
	cgn_list_drop(&p->link);
	kp->n_peers--;
	free(p->id);
	free(p->address);
	free(p->rack);
	free(p->region);
	p->tag = 0;
	free(p);
}

static bool slot_is_free(const struct kvpeer *kp, unsigned slot)
{
	cgn_list_each (it, &kp->peers)
		if (CGN_CONTAINER(it, struct kvpeer_peer, link)->slot == slot)
			return false;
	return true;
}

static struct kvpeer_peer *peer_add(struct kvpeer *kp, struct kvpeer_site *s, const char *id,
	const char *address, bool by_hand)
{
	if (kp->n_peers == KVPEER_MAX) {
		if (!kp->full_said)
			cgn_log_limited(WARN, "kvpeer.ignored", F_STR("peer", id),
				F_U64("peers", kp->n_peers), F_U64("most", KVPEER_MAX));
		kp->full_said = true;
		return NULL;
	}
	struct kvpeer_peer *p = CGN_NEW(struct kvpeer_peer);
	*p = (struct kvpeer_peer){.tag = KVPEER_PEER_TAG,
		.kp = kp,
		.site = s,
		.by_hand = by_hand,
		.index_id = NO_INDEX_ID,
		.id = cgn_str_dupz(cgn_str_of(id)),
		.address = cgn_str_dupz(cgn_str_of(address)),
		.backoff = {.first = 50 * CGN_MSEC, .last = 5 * CGN_SEC}};
	while (!slot_is_free(kp, p->slot))
		p->slot++;
	cgn_timer_init(&p->timer, kp->loop, peer_dial);
	kvframe_in_init(&p->in);
	kvfetch_path_init(&p->path);
	cgn_list_push(&kp->peers, &p->link);
	kp->n_peers++;
	return p;
}

static void text_set(char **to, const char *z)
{
	char *copy = cgn_str_dupz(cgn_str_of(z));
	free(*to);
	*to = copy;
}

static void member_set(struct kvpeer *kp, struct kvpeer_site *s, const char *id, const char *address,
	const char *rack, const char *region, bool by_hand)
{
	struct kvpeer_peer *p = peer_find(kp, id);
	bool moved = p != NULL && strcmp(p->address, address) != 0, fresh = p == NULL;
	if (fresh)
		p = peer_add(kp, s, id, address, by_hand);
	if (p == NULL)
		return;
	text_set(&p->address, address);
	text_set(&p->rack, rack);
	text_set(&p->region, region);
	kvpeer_place(p);
	const struct cgn_err why = {.code = CGN_UNAVAILABLE, .msg = "its address changed"};
	if (moved)
		kvpeer_peer_lost(p, KVPEER_CODE_FINE, &why);
	if (moved || fresh)
		cgn_timer_set(&p->timer, 0);
}

void kvpeer_member(struct kvpeer *kp, const char *id, const char *address, const char *rack,
	const char *region)
{
	CGN_LIVE(kp, KVPEER_TAG);
	if (id == NULL || strcmp(id, kp->node) != 0)
		member_set(kp, kvpeer_site_here(kp), id != NULL ? id : address, address, rack, region,
			id == NULL);
}

void kvpeer_site_member(struct kvpeer *kp, unsigned site, const char *address)
{
	char id[400];
	CGN_LIVE(kp, KVPEER_TAG);
	CGN_MUST(kp->sites != NULL && site < kp->sites->n);
	(void)snprintf(id, sizeof id, "%s/%s", kp->site[site].name, address);
	member_set(kp, &kp->site[site], id, address, NULL, NULL, true);
}

void kvpeer_member_gone(struct kvpeer *kp, const char *id)
{
	CGN_LIVE(kp, KVPEER_TAG);
	struct kvpeer_peer *p = peer_find(kp, id);
	if (p == NULL)
		return;
	cgn_log_limited(INFO, "kvpeer.gone", F_STR("peer", p->id));
	peer_drop(p);
}

/* ---- guests ---- */

static void guest_stream(struct quic_conn *c, void *user, struct quic_stream *s)
{
	struct kvpeer_guest *g = user;
	(void)c;
	CGN_LIVE(g, KVPEER_GUEST_TAG);
	kvpeer_serve(g, s);
}

/* Add the bytes that the guest was served to the peer of the same name, if there is one. */
static void guest_keep_count(const struct kvpeer_guest *g)
{
	cgn_list_each (it, &g->kp->peers) {
		struct kvpeer_peer *p = CGN_CONTAINER(it, struct kvpeer_peer, link);
		if (g->name == NULL || p->name != g->name || p->site != g->site)
			continue;
		p->served += g->served;
		p->served_bytes += g->served_bytes;
		return;
	}
}

static void guest_free(struct kvpeer_guest *g)
{
	guest_keep_count(g);
	cgn_list_drop(&g->link);
	g->kp->n_guests--;
	g->site->guests--;
	g->tag = 0;
	free(g);
}

static void guest_close(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	struct kvpeer_guest *g = user;
	(void)c;
	(void)why;
	CGN_LIVE(g, KVPEER_GUEST_TAG);
	g->tells = NULL;
	kvpeer_guest_gone(g);
	guest_free(g);
}

static const struct quic_conn_ops kvpeer_guest_ops = {.on_stream = guest_stream, .on_close = guest_close};

static void guest_on_accept(void *user, struct quic_conn *c)
{
	struct kvpeer *kp = user;
	struct cgn_err err;
	CGN_LIVE(kp, KVPEER_TAG);
	struct kvpeer_site *s = kvpeer_site_of(kp, c);
	if (!cgn_ok(holder_check(kp, s, c, quic_conn_peer(c), ACTION_KV_READ, &err))) {
		cgn_log_limited(WARN, "kvpeer.guest_refused", F_STR("why", err.msg));
		quic_conn_close(c, KVPEER_CODE_FORBIDDEN, err.msg);
		return;
	}
	if (kp->n_guests == KVPEER_MAX_GUESTS || kp->draining)
		return; /* not taken: QUIC closes it */
	struct kvpeer_guest *g = CGN_NEW(struct kvpeer_guest);
	*g = (struct kvpeer_guest){.tag = KVPEER_GUEST_TAG, .kp = kp, .site = s, .conn = c};
	cgn_list_init(&g->serves);
	cgn_list_push(&kp->guests, &g->link);
	kp->n_guests++;
	s->guests++;
	quic_conn_take(c, &kvpeer_guest_ops, g);
}

/* ---- the beginning ---- */

/* Leave the connections whose name stands for another address now. */
static void peers_follow(struct kvpeer *kp)
{
	static const struct cgn_err why = {.code = CGN_UNAVAILABLE,
		.where = "kvpeer",
		.msg = "its name stands for another address now"};
	cgn_list_each (it, &kp->peers) {
		struct kvpeer_peer *p = CGN_CONTAINER(it, struct kvpeer_peer, link);
		if (p->conn == NULL || !quic_conn_is_moved(p->conn))
			continue;
		kvpeer_peer_lost(p, KVPEER_CODE_FINE, &why);
		cgn_timer_set(&p->timer, 0);
	}
}

static void index_on_sweep(struct cgn_timer *t)
{
	struct kvpeer *kp = CGN_CONTAINER(t, struct kvpeer, sweep);
	CGN_LIVE(kp, KVPEER_TAG);
	peers_follow(kp);
	(void)kvindex_tick(kp->index, SWEEP_BUDGET);
	cgn_timer_set(t, SWEEP_EVERY);
}

size_t kvpeer_least_index(unsigned readers)
{
	return kvindex_least_bytes(readers);
}

static CGN_RC pool_open_index(struct kvpeer *kp, const struct kvpeer_cfg *cfg, struct cgn_err *err)
{
	struct kvindex_cfg index = {.max_bytes = cfg->index_bytes, .max_readers = cfg->readers};
	cgn_random(&index.seed, sizeof index.seed);
	CGN_TRY(kvindex_new(&index, &kp->index, err));
	kp->readers = CGN_NEW_ARRAY(struct kvpeer_reader, cfg->readers);
	for (; kp->n_readers < cfg->readers; kp->n_readers++)
		CGN_TRY(kvindex_reader_new(kp->index, &kp->readers[kp->n_readers].reader, err));
	return CGN_OK;
}

static void pool_init(struct kvpeer *kp, struct cgn_loop *l, const struct kvpeer_cfg *cfg)
{
	struct kvstore_stats st;
	*kp = (struct kvpeer){.tag = KVPEER_TAG,
		.loop = l,
		.store = cfg->store,
		.telemetry = cfg->telemetry,
		.access = cfg->access};
	kvstore_stats(cfg->store, &st);
	kp->ram_budget = st.tier[BLOCK_RAM].budget;
	cgn_list_init(&kp->peers);
	cgn_list_init(&kp->guests);
	for (size_t i = 0; i < KVPEER_FETCH_BUCKETS; i++)
		cgn_list_init(&kp->gets[i]);
	for (size_t i = 0; i < KVPEER_MAX; i++)
		atomic_init(&kp->slots[i].index_id, NO_INDEX_ID);
	cgn_timer_init(&kp->tell, l, kvpeer_tell_all);
	cgn_timer_init(&kp->sweep, l, index_on_sweep);
	kp->least_patience = cfg->least_patience;
	kvfetch_egress_init(&kp->egress, cfg->egress_bytes_per_second, cfg->egress_streams);
	cgn_random(&kp->instance, sizeof kp->instance);
	text_set(&kp->node, cfg->node_id);
	text_set(&kp->rack, cfg->rack);
	text_set(&kp->region, cfg->region);
}

CGN_RC kvpeer_open(struct cgn_loop *l, const struct kvpeer_cfg *cfg, struct kvpeer **out, struct cgn_err *err)
{
	CGN_ON_EXIT(kvpeer_close) struct kvpeer *kp = CGN_NEW(struct kvpeer);
	pool_init(kp, l, cfg);
	CGN_TRY(pool_open_index(kp, cfg, err));
	CGN_TRY(kvpeer_sites_open(kp, cfg, guest_on_accept, err));
	cgn_timer_set(&kp->sweep, SWEEP_EVERY);
	*out = CGN_TAKE(&kp);
	return CGN_OK;
}

unsigned kvpeer_port(const struct kvpeer *kp)
{
	CGN_LIVE(kp, KVPEER_TAG);
	return quic_endpoint_port(kp->site[KVPEER_HERE].ep);
}

/* ---- the end ---- */

void kvpeer_drain(struct kvpeer *kp)
{
	CGN_LIVE(kp, KVPEER_TAG);
	kp->draining = true;
}

bool kvpeer_is_idle(const struct kvpeer *kp)
{
	CGN_LIVE(kp, KVPEER_TAG);
	return kp->n_gets == 0 && kp->n_serves == 0;
}

static void pool_on_buried(struct cgn_grave *grave)
{
	struct kvpeer *kp = CGN_CONTAINER(grave, struct kvpeer, grave);
	kp->buried = true;
	kvpeer_release(kp);
}

static void guests_close(struct kvpeer *kp)
{
	cgn_list_each_safe (it, &kp->guests) {
		struct kvpeer_guest *g = CGN_CONTAINER(it, struct kvpeer_guest, link);
		if (g->tells != NULL)
			quic_stream_cancel(&g->tells, KVPEER_CODE_FINE);
		kvpeer_guest_gone(g);
		quic_conn_take(g->conn, NULL, NULL);
		quic_conn_close(g->conn, KVPEER_CODE_FINE, NULL);
		guest_free(g);
	}
}

void kvpeer_close(struct kvpeer **take)
{
	struct kvpeer *kp = CGN_TAKE_LIVE(take, KVPEER_TAG);
	if (kp == NULL)
		return;
	kp->draining = true;
	kvpeer_gets_end(kp);
	guests_close(kp);
	cgn_list_each_safe (it, &kp->peers)
		peer_drop(CGN_CONTAINER(it, struct kvpeer_peer, link));
	cgn_timer_cancel(&kp->tell);
	cgn_timer_cancel(&kp->sweep);
	kvpeer_sites_close(kp);
	cgn_loop_bury(kp->loop, &kp->grave, pool_on_buried);
}
