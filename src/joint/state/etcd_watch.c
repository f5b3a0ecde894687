/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_watch: membership in etcd. One watch over the cluster's prefix: nodes/<id> is a Node as JSON,
 * cordon/<id> is there or not, routing/policy is the policy document. */
#include "base/log/log.h"
#include "joint/state/state_priv.h"

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

/* "nodes/<id>" below the prefix: the id behind |folder|; false for another key, or one that can't be an
 * id. */
static bool id_of(const struct state_watch *s, struct cgn_str key, const char *folder,
	char id[PROTO_MAX_ID + 1])
{
	size_t skip = strlen(s->prefix), n = strlen(folder);
	if (key.n < skip + n || memcmp(key.p + skip, folder, n) != 0)
		return false;
	struct cgn_str rest = {key.p + skip + n, key.n - skip - n};
	return proto_node_id_ok(rest) && cgn_str_copyz(id, PROTO_MAX_ID + 1, rest);
}

static bool is_policy(const struct state_watch *s, struct cgn_str key)
{
	return cgn_str_is(key, s->policy_where);
}

/* ---- what etcd says ---- */

static void mark(void *arg, struct roster_entry *e)
{
	(void)arg;
	e->marked = true;
}

static void on_snapshot_begin(void *user)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	s->seen_revision = 0;
	roster_each(&s->nodes, mark, s);
	roster_each(&s->cordons, mark, s);
	s->policy_marked = s->policy.n > 0;
}

static void sweep_node(void *arg, struct roster_entry *e)
{
	if (e->marked)
		state_node_gone(arg, e);
}

static void sweep_cordon(void *arg, struct roster_entry *e)
{
	struct state_watch *s = arg;
	char id[PROTO_MAX_ID + 1];
	if (e->marked && cgn_str_copyz(id, sizeof id, cgn_str_of(e->id)))
		state_cordon_seen(s, id, false);
}

static void on_snapshot_end(void *user)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	roster_each(&s->nodes, sweep_node, s);
	roster_each(&s->cordons, sweep_cordon, s);
	if (s->policy_marked)
		state_policy_seen(s, (struct cgn_str){NULL, 0});
}

static void put_node(struct state_watch *s, const char *id, struct cgn_str json)
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
		cgn_log(WARN, "state.node_ignored", F_STR("node", id), F_STR("why", err.msg));
}

static void saw(struct state_watch *s, const struct etcd_kv *kv)
{
	if (kv->mod_revision > s->seen_revision)
		s->seen_revision = kv->mod_revision;
}

static void on_put(void *user, const struct etcd_kv *kv)
{
	struct state_watch *s = user;
	char id[PROTO_MAX_ID + 1];
	CGN_LIVE(s, STATE_WATCH_TAG);
	saw(s, kv);
	if (id_of(s, kv->key, "nodes/", id))
		put_node(s, id, kv->value);
	else if (id_of(s, kv->key, "cordon/", id))
		state_cordon_seen(s, id, true);
	else if (is_policy(s, kv->key))
		state_policy_seen(s, kv->value);
}

static void on_delete(void *user, const struct etcd_kv *kv)
{
	struct state_watch *s = user;
	char id[PROTO_MAX_ID + 1];
	CGN_LIVE(s, STATE_WATCH_TAG);
	saw(s, kv);
	struct roster_entry *e = id_of(s, kv->key, "nodes/", id) ? roster_find(&s->nodes, id) : NULL;
	if (e != NULL)
		state_node_gone(s, e);
	else if (id_of(s, kv->key, "cordon/", id))
		state_cordon_seen(s, id, false);
	else if (is_policy(s, kv->key))
		state_policy_seen(s, (struct cgn_str){NULL, 0});
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
}

static const struct etcd_watch_ops watch_ops = {
	.on_snapshot_begin = on_snapshot_begin,
	.on_snapshot_end = on_snapshot_end,
	.on_put = on_put,
	.on_delete = on_delete,
	.on_connected = on_connected,
};

/* ---- cordons ---- */

static void cordon_done(void *user, const struct etcd_result *r)
{
	struct state_request *rq = user;
	struct state_watch *s = rq->s;
	rq->op = NULL;
	rq->err = *r->err;
	if (r->err->code != CGN_FINE)
		(void)CGN_FAIL_AS(&rq->err, r->err->code, "etcd did not take the cordon: %s", r->err->msg);
	else if (r->revision >
		s->seen_revision) /* else the watch has told this already, and maybe what came after it */
		state_cordon_seen(s, rq->id, rq->on);
	state_request_ready(s, rq);
}

static void etcd_cordon(struct state_watch *s, struct state_request *rq)
{
	char key[sizeof s->prefix + sizeof rq->id + 8];
	(void)snprintf(key, sizeof key, "%scordon/%s", s->prefix, rq->id);
	struct cgn_str k = cgn_str_of(key);
	cgn_rc rc = rq->on ? etcd_put(s->etcd, k, CGN_STR("true"), 0, cordon_done, rq, &rq->op, &rq->err)
			   : etcd_delete(s->etcd, k, cordon_done, rq, &rq->op, &rq->err);
	if (!cgn_ok(rc))
		state_request_ready(s, rq);
}

/* ---- the policy ---- */

static void policy_done(void *user, const struct etcd_result *r)
{
	struct state_request *rq = user;
	struct state_watch *s = rq->s;
	rq->op = NULL;
	rq->err = *r->err;
	if (r->err->code != CGN_FINE)
		(void)CGN_FAIL_AS(&rq->err, r->err->code, "etcd did not take the policy: %s", r->err->msg);
	else if (r->revision > s->seen_revision)
		state_policy_seen(s, (struct cgn_str){rq->text, rq->text_bytes});
	state_request_ready(s, rq);
}

static void etcd_policy(struct state_watch *s, struct state_request *rq)
{
	struct cgn_str key = cgn_str_of(s->policy_where), text = {rq->text, rq->text_bytes};
	cgn_rc rc = rq->on ? etcd_put(s->etcd, key, text, 0, policy_done, rq, &rq->op, &rq->err)
			   : etcd_delete(s->etcd, key, policy_done, rq, &rq->op, &rq->err);
	if (!cgn_ok(rc))
		state_request_ready(s, rq);
}

/* ---- open and close ---- */

static CGN_RC etcd_open(struct state_watch *s, const struct config *cfg, struct cgn_err *err)
{
	CGN_TRY(state_etcd_prefix(cfg, s->prefix, sizeof s->prefix, err));
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {.n = 0};
	cgn_buf_fmt(&key, "%srouting/policy", s->prefix);
	s->policy_where = cgn_str_dupz(cgn_buf_view(&key));
	if (key.bad || s->policy_where == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the policy's key");
	CGN_TRY(state_etcd_new(s->loop, cfg, &s->etcd, err));
	return etcd_watch_open(s->etcd, cgn_str_of(s->prefix), &watch_ops, s, &s->etcd_watch, err);
}

static void etcd_begin(struct state_watch *s)
{
	(void)s; /* the watch tells when it has something */
}

static void etcd_close(struct state_watch *s)
{
	etcd_watch_close(&s->etcd_watch);
	etcd_free(&s->etcd);
}

const struct state_backend state_backend_etcd = {
	.where = "in etcd",
	.open = etcd_open,
	.begin = etcd_begin,
	.close = etcd_close,
	.cordon = etcd_cordon,
	.policy = etcd_policy,
};
