/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_watch: membership in etcd. One watch over the cluster's prefix: nodes/<id> is a Node as JSON,
 * cordon/<id> is there or not, routing/policy and models/wanted are documents of operators. */
#include <stdlib.h>

#include "base/log/log.h"
#include "io/wire/etcd/etcd.h"
#include "joint/cluster/state/state_priv.h"

struct etcd_members {
	struct etcd *etcd;
	struct etcd_watch *watch;
	char prefix[96];
	int64_t seen_revision;                      /* newest revision in the watch's events */
	int64_t document_revision[STATE_DOCUMENTS]; /* revision of each document; 0: there is none */
	struct state_watch *s;
	struct cgn_timer patience; /* no answer in time: the membership of an earlier run is used */
};
#define PATIENCE CGN_SEC

static struct etcd_members *members_of(const struct state_watch *s)
{
	return s->own;
}

CGN_RC state_etcd_new(struct cgn_loop *l, const struct config *cfg, struct etcd **out, struct cgn_err *err)
{
	const struct etcd_cfg e = {
		.endpoints = cfg->cluster.etcd_endpoints.v,
		.n_endpoints = cfg->cluster.etcd_endpoints.n,
		.ca_file = cfg->cluster.etcd_ca_file,
		.cert_file = cfg->cluster.etcd_cert_file,
		.key_file = cfg->cluster.etcd_key_file,
	};
	return etcd_new(l, &e, out, err);
}

CGN_RC state_etcd_prefix(const struct config *cfg, char *out, size_t cap, struct cgn_err *err)
{
	int n = snprintf(out, cap, "/cognitora/%s/", cfg->cluster.name);
	return n > 0 && (size_t)n < cap ? CGN_OK : CGN_FAIL(err, INVALID, "cluster.name is too long");
}

/* Copy the id out of a key "<prefix><folder><id>". False: another key, or no valid id. */
static bool id_of(const struct state_watch *s, struct cgn_str key, const char *folder,
	char id[PROTO_MAX_ID + 1])
{
	size_t skip = strlen(members_of(s)->prefix), n = strlen(folder);
	if (key.n < skip + n || memcmp(key.p + skip, folder, n) != 0)
		return false;
	struct cgn_str rest = {key.p + skip + n, key.n - skip - n};
	return proto_node_id_ok(rest) && cgn_str_copyz(id, PROTO_MAX_ID + 1, rest);
}

/* Find the document with this key. False: it is the key of none. */
static bool document_of(const struct state_watch *s, struct cgn_str key, enum state_document *out)
{
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		if (cgn_str_is(key, s->documents[d].where)) {
			*out = (enum state_document)d;
			return true;
		}
	return false;
}

/* |revision|: of the key; 0: there is no key. */
static void document_seen(struct state_watch *s, enum state_document d, struct cgn_str text, int64_t revision)
{
	members_of(s)->document_revision[d] = revision;
	state_document_seen(s, d, text);
}

/* ---- news from etcd ---- */

static void on_snapshot_begin(void *user)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	members_of(s)->seen_revision = 0;
	memset(members_of(s)->document_revision, 0, sizeof members_of(s)->document_revision);
	state_snapshot_begin(s);
}

static void on_snapshot_end(void *user)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	state_snapshot_end(s);
}

static void node_read(struct state_watch *s, const char *id, struct cgn_str json)
{
	CGN_ON_EXIT(proto_node_free) Cognitora__V1__Node *node = NULL;
	struct roster_entry *e;
	struct cgn_err err;
	cgn_rc rc = proto_node_from_json(json, &node, &err);
	if (cgn_ok(rc) && strcmp(node->id, id) != 0)
		rc = CGN_FAIL(&err, INVALID, "the value says that it is node %s", node->id);
	if (cgn_ok(rc))
		rc = state_node_seen(s, node, &e, &err);
	if (!cgn_ok(rc))
		cgn_log_limited(WARN, "state.node_ignored", F_STR("node", id), F_STR("why", err.msg));
}

static void revision_seen(struct state_watch *s, const struct etcd_kv *kv)
{
	if (kv->mod_revision > members_of(s)->seen_revision)
		members_of(s)->seen_revision = kv->mod_revision;
}

static void on_put(void *user, const struct etcd_kv *kv)
{
	struct state_watch *s = user;
	enum state_document d;
	char id[PROTO_MAX_ID + 1];
	CGN_LIVE(s, STATE_WATCH_TAG);
	revision_seen(s, kv);
	if (id_of(s, kv->key, "nodes/", id))
		node_read(s, id, kv->value);
	else if (id_of(s, kv->key, "cordon/", id))
		state_cordon_seen(s, id, true);
	else if (document_of(s, kv->key, &d))
		document_seen(s, d, kv->value, kv->mod_revision);
}

static void on_delete(void *user, const struct etcd_kv *kv)
{
	struct state_watch *s = user;
	enum state_document d;
	char id[PROTO_MAX_ID + 1];
	CGN_LIVE(s, STATE_WATCH_TAG);
	revision_seen(s, kv);
	struct roster_entry *e = id_of(s, kv->key, "nodes/", id) ? roster_find(&s->nodes, id) : NULL;
	if (e != NULL)
		state_node_gone(s, e);
	else if (id_of(s, kv->key, "cordon/", id))
		state_cordon_seen(s, id, false);
	else if (document_of(s, kv->key, &d))
		document_seen(s, d, (struct cgn_str){NULL, 0}, 0);
}

static void on_connected(void *user, bool connected, const char *why)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	if (!connected)
		cgn_log(WARN, "state.etcd_lost", F_STR("why", why), F_U64("nodes_kept", s->nodes.n));
	else
		cgn_log(INFO, "state.etcd_connected", F_U64("nodes", s->nodes.n));
	state_connected(s, connected, why);
	if (!connected)
		state_members_recall(s);
}

static void on_patience_over(struct cgn_timer *t)
{
	state_members_recall(CGN_CONTAINER(t, struct etcd_members, patience)->s);
}

static const struct etcd_watch_ops watch_ops = {
	.news = {on_snapshot_begin, on_snapshot_end, on_connected},
	.on_put = on_put,
	.on_delete = on_delete,
};

/* ---- requests ---- */

/* Whether |rq| was taken, and the watch has brought neither it nor a later write yet. */
static bool request_answered(struct state_request *rq, const struct etcd_result *r, const char *what)
{
	rq->call = NULL;
	rq->err = *r->err;
	if (r->err->code != CGN_FINE)
		(void)CGN_FAIL_AS(&rq->err, r->err->code, "etcd did not take the %s: %s", what, r->err->msg);
	return r->err->code == CGN_FINE && r->revision > members_of(rq->s)->seen_revision;
}

static void request_send(struct state_watch *s, struct state_request *rq, struct cgn_str key,
	struct cgn_str value, etcd_done_fn *done)
{
	struct etcd *etcd = members_of(s)->etcd;
	rq->call = rq->on ? etcd_put(etcd, key, value, 0, done, rq) : etcd_delete(etcd, key, done, rq);
}

static void on_cordon_done(void *user, const struct etcd_result *r)
{
	struct state_request *rq = user;
	if (request_answered(rq, r, "cordon"))
		state_cordon_seen(rq->s, rq->id, rq->on);
	state_request_ready(rq->s, rq);
}

static void etcd_cordon(struct state_watch *s, struct state_request *rq)
{
	char key[sizeof((struct etcd_members *)NULL)->prefix + sizeof rq->id + 8];
	(void)snprintf(key, sizeof key, "%scordon/%s", members_of(s)->prefix, rq->id);
	request_send(s, rq, cgn_str_of(key), CGN_STR("true"), on_cordon_done);
}

static void on_reset_done(void *user, const struct etcd_result *r)
{
	struct state_request *rq = user;
	if (request_answered(rq, r, "policy"))
		document_seen(rq->s, STATE_POLICY, (struct cgn_str){NULL, 0}, 0);
	state_request_ready(rq->s, rq);
}

/* Two routers may change the document at once: the second one gets the first one's, and changes that. */
static void on_shared_done(void *user, const struct etcd_result *r)
{
	struct state_request *rq = user;
	bool news = request_answered(rq, r, state_document_name(rq->document));
	if (rq->err.code == CGN_FINE && !r->did) {
		(void)CGN_FAIL_AS(&rq->err, CGN_CONFLICT, "another router changed %s at once",
			state_document_title(rq->document));
		document_seen(rq->s, rq->document, r->n_kvs > 0 ? r->kvs[0].value : (struct cgn_str){NULL, 0},
			r->n_kvs > 0 ? r->kvs[0].mod_revision : 0);
	} else if (news) {
		document_seen(rq->s, rq->document, (struct cgn_str){rq->text, rq->text_bytes}, r->revision);
	}
	state_request_ready(rq->s, rq);
}

static void etcd_document(struct state_watch *s, struct state_request *rq)
{
	struct cgn_str key = cgn_str_of(s->documents[rq->document].where), text = {rq->text, rq->text_bytes};
	if (rq->document == STATE_POLICY && !rq->on) /* A reset depends on nothing that was read. */
		request_send(s, rq, key, text, on_reset_done);
	else
		rq->call = etcd_put_if(members_of(s)->etcd, key,
			members_of(s)->document_revision[rq->document], text, 0, on_shared_done, rq);
}

static void key_name(struct state_watch *s, enum state_document d, const char *name)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {.n = 0};
	cgn_buf_fmt(&key, "%s%s", members_of(s)->prefix, name);
	s->documents[d].where = cgn_str_dupz(cgn_buf_view(&key));
}

static void request_drop(struct state_request *rq)
{
	struct etcd_op *op = rq->call;
	rq->call = NULL;
	etcd_op_drop(&op);
}

/* ---- open and close ---- */

static CGN_RC etcd_open(struct state_watch *s, const struct config *cfg, struct cgn_err *err)
{
	struct etcd_members *own = CGN_NEW(struct etcd_members);
	s->own = own;
	own->s = s;
	cgn_timer_init(&own->patience, s->loop, on_patience_over);
	state_members_open(s, cfg, false);
	CGN_TRY(state_etcd_prefix(cfg, own->prefix, sizeof own->prefix, err));
	key_name(s, STATE_POLICY, "routing/policy");
	key_name(s, STATE_MODELS, "models/wanted");
	key_name(s, STATE_INVITES, "invites");
	CGN_TRY(state_etcd_new(s->loop, cfg, &own->etcd, err));
	own->watch = etcd_watch_open(own->etcd, cgn_str_of(own->prefix), &watch_ops, s);
	return CGN_OK;
}

static void etcd_begin(struct state_watch *s)
{
	if (s->knowledge == STATE_UNHEARD) /* the watch tells when it has read the prefix */
		cgn_timer_set(&members_of(s)->patience, PATIENCE);
}

static CGN_RC etcd_certificates(struct state_watch *s, struct cgn_err *err)
{
	return etcd_reload_tls(members_of(s)->etcd, err);
}

static void etcd_close(struct state_watch *s)
{
	struct etcd_members *own = s->own;
	if (own == NULL)
		return;
	cgn_timer_cancel(&own->patience);
	etcd_watch_close(&own->watch);
	etcd_free(&own->etcd);
	free(own);
}

const struct state_backend state_backend_etcd = {
	.where = "in etcd",
	.open = etcd_open,
	.begin = etcd_begin,
	.close = etcd_close,
	.cordon = etcd_cordon,
	.put = etcd_document,
	.drop = request_drop,
	.reload_tls = etcd_certificates,
};
