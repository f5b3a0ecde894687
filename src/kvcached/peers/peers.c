/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the stores of other nodes. kvpeer runs on worker 0; other workers ask it and are answered by
 * posts. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/pb/pb_json.h"
#include "joint/cluster/state/state.h"
#include "joint/kv/kvpeer/kvpeer.h"
#include "kvcached/daemon/metrics.h"
#include "kvcached/peers/peers.h"
#include "kvcached/peers/sites.h"

#define METRICS_EVERY CGN_SEC
#define SPARE_READERS 2 /* the main thread, and a spare one */

struct peers_port {
	struct kvcached *daemon;
	struct cgn_loop *loop;
	struct kvpeer *kp; /* belongs to worker 0, which ends last; peers_nearest may run on any worker */
	struct state_stores *stores;
	struct tls_ctx *tls;
	struct sites_trust sites;
	struct cgn_timer metrics_timer;
	char address[PROTO_MAX_ADDRESS + 1];
};

/* ---- membership ---- */

static void member_on_store(void *user, const struct state_store *s)
{
	struct peers_port *p = user;
	kvpeer_member(p->kp, s->node_id, s->address, s->rack, s->region);
}

static void member_on_gone(void *user, const char *node_id)
{
	struct peers_port *p = user;
	kvpeer_member_gone(p->kp, node_id);
}

static const struct state_stores_ops store_ops = {.on_store = member_on_store, .on_gone = member_on_gone};

/* ---- the port ---- */

static void metrics_set_quic(struct telemetry *t, const struct kvpeer *kp)
{
	struct kvpeer_overview v;
	kvpeer_overview(kp, &v);
	const struct quic_stats *q = &v.quic;
	metric_set(METRIC_ONE(t, KV_PEER_OWED), (double)v.owed_bytes);
	metric_set(METRIC_OF(t, QUIC_CONNS, "open"), (double)(q->conns - q->handshakes));
	metric_set(METRIC_OF(t, QUIC_CONNS, "handshake"), (double)q->handshakes);
	metrics_count_up(METRIC_OF(t, QUIC_HANDSHAKES, "accepted"), q->accepted);
	metrics_count_up(METRIC_OF(t, QUIC_HANDSHAKES, "dialled"), q->dialled);
	metrics_count_up(METRIC_OF(t, QUIC_HANDSHAKES, "failed"), q->handshakes_failed);
	metrics_count_up(METRIC_OF(t, QUIC_HANDSHAKES, "refused"), q->refused);
	metrics_count_up(METRIC_OF(t, QUIC_HANDSHAKES, "retry"), q->retries_sent);
	metrics_count_up(METRIC_OF(t, QUIC_HANDSHAKES, "bad_token"), q->tokens_refused);
	metrics_count_up(METRIC_OF(t, QUIC_HANDSHAKES, "bad_version"), q->versions_sent);
	metrics_count_up(METRIC_OF(t, QUIC_RESETS, "in"), q->resets_got);
	metrics_count_up(METRIC_OF(t, QUIC_RESETS, "out"), q->resets_sent);
	metrics_count_up(METRIC_OF(t, QUIC_PACKETS, "in"), q->packets_in);
	metrics_count_up(METRIC_OF(t, QUIC_PACKETS, "out"), q->packets_out);
	metrics_count_up(METRIC_OF(t, QUIC_PACKETS, "junk"), q->packets_junk);
	metrics_count_up(METRIC_OF(t, QUIC_BYTES, "in"), q->bytes_in);
	metrics_count_up(METRIC_OF(t, QUIC_BYTES, "out"), q->bytes_out);
	metrics_count_up(METRIC_ONE(t, QUIC_LOST), q->lost);
}

static void on_metrics(struct cgn_timer *t)
{
	struct peers_port *p = CGN_CONTAINER(t, struct peers_port, metrics_timer);
	struct telemetry *m = p->daemon->telemetry;
	size_t ready, all = kvpeer_count(p->kp, &ready);
	metric_set(METRIC_OF(m, KV_PEERS, "ready"), (double)ready);
	metric_set(METRIC_OF(m, KV_PEERS, "down"), (double)(all - ready));
	metrics_set_quic(m, p->kp);
	sites_measure(&p->sites, m, p->kp);
	cgn_timer_set(t, METRICS_EVERY);
}

/* Without certificates there is no QUIC: blocks are never sent in clear. */
static bool peers_wanted(const struct config *cfg)
{
	if (cfg->kv.transport == KV_TRANSPORT_OFF)
		return false;
	if (cfg->security.ca_file != NULL && cfg->security.cert_file != NULL &&
		cfg->security.key_file != NULL)
		return true;
	cgn_log(WARN, "kvcached.no_peers",
		F_STR("why", "blocks move between nodes with certificates on both sides only"),
		F_STR("do", "set security.ca_file, cert_file and key_file, or kv.transport = \"off\""));
	return false;
}

static CGN_RC peers_open_pool(struct peers_port *p, const struct config *cfg, struct cgn_err *err)
{
	const struct tls_cfg tls = {.server = true,
		.ca_file = cfg->security.ca_file,
		.cert_file = cfg->security.cert_file,
		.key_file = cfg->security.key_file,
		.crl_file = cfg->security.crl_file,
		.require_peer_cert = true};
	char node[PROTO_MAX_ID + 1];
	unsigned readers = KVCACHED_MAX_WORKERS + SPARE_READERS;
	size_t least = kvpeer_least_index(readers);
	CGN_TRY(tls_ctx_new(&tls, &p->tls, err));
	CGN_TRY(sites_trust_open(&p->sites, cfg, err));
	CGN_TRY(state_node_id(cfg, node, sizeof node, err));
	const struct kvpeer_cfg pool = {.store = p->daemon->store,
		.telemetry = p->daemon->telemetry,
		.listen = cfg->kv.quic_listen,
		.tls = p->tls,
		.access = svc_access(p->daemon->svc),
		.peer_name = cfg->security.node_name,
		.node_id = node,
		.rack = cfg->kv.rack,
		.region = cfg->kv.region,
		.index_bytes = cfg->kv.peer_index > least ? cfg->kv.peer_index : least,
		.readers = readers,
		.egress_bytes_per_second = cfg->kv.egress_limit,
		.egress_streams = cfg->kv.egress_streams,
		.sites = p->daemon->sites,
		.site_cfgs = p->sites.cfgs};
	return cgn_err_of(kvpeer_open(p->loop, &pool, &p->kp, err), "peers (kv.quic_listen, kv.transport)",
		err);
}

static void peers_set_address(struct peers_port *p, const struct config *cfg)
{
	struct cgn_err err;
	if (!cgn_ok(state_advertised(cfg, cfg->kv.advertise, cfg->kv.quic_listen, kvpeer_port(p->kp),
		    "kv.advertise", p->address, sizeof p->address, &err)))
		cgn_log(WARN, "kvcached.no_address", F_STR("why", err.msg),
			F_STR("then", "other stores are not told of this one"));
	cgn_log(INFO, "kvcached.peers", F_U64("port", kvpeer_port(p->kp)), F_STR("address", p->address));
}

static CGN_RC peers_open_parts(struct peers_port *p, const struct config *cfg, struct cgn_err *err)
{
	CGN_TRY(peers_open_pool(p, cfg, err));
	peers_set_address(p, cfg);
	for (size_t i = 0; i < cfg->kv.peers.n; i++)
		kvpeer_member(p->kp, NULL, cfg->kv.peers.v[i], NULL, NULL);
	for (unsigned i = 0; i < p->sites.n; i++)
		for (size_t k = 0; k < cfg->kv_sites[i].peers.n; k++)
			kvpeer_site_member(p->kp, i, cfg->kv_sites[i].peers.v[k]);
	CGN_TRY(state_stores_open(p->loop, cfg, p->daemon->telemetry, &store_ops, p, &p->stores, err));
	cgn_timer_set(&p->metrics_timer, METRICS_EVERY);
	return CGN_OK;
}

static void peers_close(void **take)
{
	struct peers_port *p = CGN_TAKE(take);
	cgn_timer_cancel(&p->metrics_timer);
	state_stores_close(&p->stores);
	kvpeer_close(&p->kp);
	tls_ctx_free(&p->tls);
	sites_trust_close(&p->sites);
}

static CGN_RC peers_open(struct kvcached_worker *w, void **out, struct cgn_err *err)
{
	struct kvcached *d = w->daemon;
	if (w->index != 0 || !peers_wanted(d->cfg))
		return CGN_OK;
	struct peers_port *p = CGN_NEW(struct peers_port);
	*p = (struct peers_port){.daemon = d, .loop = w->loop};
	cgn_timer_init(&p->metrics_timer, w->loop, on_metrics);
	d->peers = p;
	*out = p;
	return peers_open_parts(p, d->cfg, err);
}

static void peers_drain(void *port)
{
	struct peers_port *p = port;
	kvpeer_drain(p->kp);
}

static bool peers_idle(const void *port)
{
	const struct peers_port *p = port;
	return kvpeer_is_idle(p->kp);
}

static void peers_reload(void *port)
{
	struct peers_port *p = port;
	struct cgn_err err;
	if (!cgn_ok(tls_ctx_reload(p->tls, &err)) || !cgn_ok(state_stores_reload_tls(p->stores, &err)))
		cgn_log(ERROR, "kvcached.tls_reload", F_STR("why", err.msg),
			F_STR("then", "the old certificate stays"));
	if (!cgn_ok(sites_trust_reload(&p->sites, p->daemon->cfg, &err)))
		cgn_log(ERROR, "kvcached.tls_reload", F_STR("why", err.msg),
			F_STR("then", "the old CA and certificate of that site stay"));
}

const struct kvcached_port kvcached_port_peers = {.name = "peers",
	.open = peers_open,
	.drain = peers_drain,
	.idle = peers_idle,
	.close = peers_close,
	.reload = peers_reload};

void peers_free(struct kvcached *d)
{
	free(d->peers);
	d->peers = NULL;
}

const char *peers_quic_address(const struct kvcached *d)
{
	return d->peers != NULL ? d->peers->address : "";
}

const char *peers_nearest(struct kvcached *d, const struct block_key *k, uint16_t sites)
{
	struct kvpeer_where where;
	if (d->peers == NULL || !kvpeer_has(d->peers->kp, k, sites, &where))
		return NULL;
	return where.node;
}

/* ---- a fetch, from any worker ---- */

#define FETCH_TAG 0x4b564446U

/* Two loops hold a fetch: the caller's until |done| or the cancel, worker 0's until its answer. The last one
 * frees it. */
struct peers_fetch {
	uint32_t tag;
	_Atomic unsigned refs;
	struct peers_port *peers;
	struct cgn_loop *loop;
	struct block_key key;
	struct kvpeer_ask ask;
	kvstore_read_done done;
	void *user;
	bool cancelled; /* by the caller's loop */
	/* worker 0's part */
	bool ended;
	struct kvpeer_fetch *fetch;
	/* answer */
	struct kvstore_block *block;
	struct cgn_err why;
	struct cgn_post ask_post, answer_post, cancel_post;
};

static void fetch_unref(struct peers_fetch *f)
{
	if (atomic_fetch_sub(&f->refs, 1) != 1)
		return;
	kvstore_block_unref(&f->block);
	f->tag = 0;
	free(f);
}

static void fetch_on_answer(struct cgn_loop *l, struct cgn_post *post)
{
	struct peers_fetch *f = CGN_CONTAINER(post, struct peers_fetch, answer_post);
	struct kvstore_block *block = f->block;
	struct cgn_err why = f->why;
	(void)l;
	CGN_LIVE(f, FETCH_TAG);
	kvstore_read_done done = f->cancelled ? NULL : f->done;
	void *user = f->user;
	if (done != NULL)
		f->block = NULL;
	fetch_unref(f);
	if (done != NULL)
		done(user, &block, &why);
}

static void fetch_on_done(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct peers_fetch *f = user;
	CGN_LIVE(f, FETCH_TAG);
	f->fetch = NULL;
	f->ended = true;
	f->block = *take;
	*take = NULL;
	f->why = *why;
	cgn_loop_post(f->loop, &f->answer_post, fetch_on_answer);
}

static void fetch_on_ask(struct cgn_loop *l, struct cgn_post *post)
{
	struct peers_fetch *f = CGN_CONTAINER(post, struct peers_fetch, ask_post);
	struct cgn_err err = {0};
	(void)l;
	CGN_LIVE(f, FETCH_TAG);
	/* An earlier fetch may have brought the block meanwhile. */
	struct kvstore_block *here = kvstore_get_ram(f->peers->daemon->store, &f->key, true);
	if (here != NULL) {
		fetch_on_done(f, &here, &err);
		return;
	}
	cgn_rc rc = f->peers->kp == NULL
		? CGN_FAIL(&err, UNAVAILABLE, "the store is stopping")
		: kvpeer_fetch(f->peers->kp, &f->key, &f->ask, fetch_on_done, f, &f->fetch, &err);
	if (!cgn_ok(rc))
		fetch_on_done(f, &here, &err);
}

static void fetch_on_cancel(struct cgn_loop *l, struct cgn_post *post)
{
	struct peers_fetch *f = CGN_CONTAINER(post, struct peers_fetch, cancel_post);
	struct kvstore_block *none = NULL;
	struct cgn_err err;
	(void)l;
	CGN_LIVE(f, FETCH_TAG);
	(void)CGN_FAIL(&err, CANCELLED, "nobody waits for it");
	kvpeer_fetch_cancel(&f->fetch);
	if (!f->ended)
		fetch_on_done(f, &none, &err); /* the caller's loop frees it there */
	fetch_unref(f);
}

CGN_RC peers_fetch(struct kvcached *d, struct cgn_loop *l, const struct block_key *k,
	const struct kvpeer_ask *ask, kvstore_read_done done, void *user, struct peers_fetch **out,
	struct cgn_err *err)
{
	CGN_LIVE(d, KVCACHED_TAG);
	if (d->peers == NULL)
		return CGN_FAIL(err, UNAVAILABLE, "this store has no peers");
	if (peers_nearest(d, k, ask->sites) == NULL)
		return CGN_FAIL(err, NOT_FOUND, "no peer has it");
	struct peers_fetch *f = CGN_NEW(struct peers_fetch);
	*f = (struct peers_fetch){.tag = FETCH_TAG,
		.refs = 1,
		.peers = d->peers,
		.loop = l,
		.key = *k,
		.ask = *ask,
		.done = done,
		.user = user};
	cgn_loop_post(d->peers->loop, &f->ask_post, fetch_on_ask);
	*out = f;
	return CGN_OK;
}

void peers_fetch_cancel(struct peers_fetch **take)
{
	struct peers_fetch *f = CGN_TAKE_LIVE(take, FETCH_TAG);
	if (f == NULL)
		return;
	f->cancelled = true;
	atomic_fetch_add(&f->refs, 1);
	cgn_loop_post(f->peers->loop, &f->cancel_post, fetch_on_cancel);
}

/* ---- status ---- */

struct peers_question {
	struct kvcached *daemon;
	struct cgn_loop *loop;
	peers_write_fn *write;
	peers_told_fn *done; /* NULL: cancelled */
	void *user;
	struct cgn_buf text;
	struct cgn_post post;
};

static void question_on_told(struct cgn_loop *l, struct cgn_post *post)
{
	struct peers_question *q = CGN_CONTAINER(post, struct peers_question, post);
	(void)l;
	if (q->done != NULL)
		q->done(q->user, &q->text);
	cgn_buf_fini(&q->text);
	free(q);
}

static void question_on_ask(struct cgn_loop *l, struct cgn_post *post)
{
	struct peers_question *q = CGN_CONTAINER(post, struct peers_question, post);
	(void)l;
	if (q->daemon->peers->kp != NULL)
		q->write(q->daemon, q->daemon->peers->kp, &q->text);
	cgn_loop_post(q->loop, &q->post, question_on_told);
}

struct peers_question *peers_ask(struct kvcached *d, struct cgn_loop *l, peers_write_fn *write,
	peers_told_fn *done, void *user)
{
	CGN_LIVE(d, KVCACHED_TAG);
	if (d->peers == NULL)
		return NULL;
	struct peers_question *q = CGN_NEW(struct peers_question);
	*q = (struct peers_question){.daemon = d, .loop = l, .write = write, .done = done, .user = user};
	cgn_loop_post(d->peers->loop, &q->post, question_on_ask);
	return q;
}

void peers_question_drop(struct peers_question **take)
{
	if (*take != NULL)
		(*take)->done = NULL;
	*take = NULL;
}

/* An HTTP client of GET /peers, on the main loop. */
struct visitor {
	struct svc_admin_call *call; /* NULL: the client disconnected */
};

static void visitor_on_gone(void *user)
{
	struct visitor *v = user;
	v->call = NULL;
}

static void visitor_on_described(void *user, const struct cgn_buf *text)
{
	struct visitor *v = user;
	struct svc_admin_reply r = svc_admin_reply_new();
	cgn_buf_str(&r.body, cgn_buf_view(text));
	if (text->bad)
		svc_admin_error(&r, 503, "no_memory", "no memory for the document");
	if (v->call != NULL)
		svc_admin_done(v->call, &r);
	else
		cgn_buf_fini(&r.body);
	free(v);
}

static void peers_write_json(const struct kvcached *d, const struct kvpeer *kp, struct cgn_buf *out)
{
	(void)d;
	struct json_out o = json_out_to(out);
	Cognitora__V1__KvPeersResponse rs = COGNITORA__V1__KV_PEERS_RESPONSE__INIT;
	CGN_ON_EXIT(pb_tree_fini) struct pb_tree t;
	pb_tree_init(&t, SVC_DOCUMENT_LIMIT);
	kvpeer_fill(kp, &t, &rs);
	if (!t.bad)
		pb_json_select(&o, &rs, kvcached_documents[KVCACHED_peers_fill].select);
	out->bad = out->bad || t.bad;
}

void peers_visit(struct kvcached *d, struct svc_admin_reply *r)
{
	struct visitor *v = CGN_NEW(struct visitor);
	if (peers_ask(d, svc_loop(d->svc), peers_write_json, visitor_on_described, v) == NULL) {
		svc_admin_error(r, 404, "no_peers", PEERS_NONE);
		free(v);
		return;
	}
	v->call = svc_admin_later(r, visitor_on_gone, v);
}
