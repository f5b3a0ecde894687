/* SPDX-License-Identifier: Apache-2.0 */
/* kube_watch: membership in Kubernetes. The agents' Leases are watched, and the Secret with cordons and documents. */
#include <stdlib.h>

#include "base/codec/codec.h"
#include "base/log/log.h"
#include "joint/cluster/state/kube_priv.h"

#define PATIENCE CGN_SEC /* As long is waited for an answer; then the membership of an earlier run is used. */
/* A Lease that was not renewed for so many of its durations by this machine's clock is left over from an agent that is
 * gone: it is ignored. Clocks that differ by less do no harm. */
#define LEFT_OVER 20

struct kube_members {
	struct kube_place place;
	struct state_watch *s;
	struct k8s_watch *leases, *written;
	struct kube_slices slices;
	bool leases_connected, written_connected, leases_heard, written_heard;
	int64_t written_version; /* Newest version of the Secret that was taken; 0: there is none. */
	cgn_nsec lease;
	struct cgn_timer patience, expiry;
	char secret[KUBE_NAME];
};

static struct kube_members *members_of(const struct state_watch *s)
{
	return s->own;
}

/* ---- leases ---- */

/* Without the API server no agent can renew its Lease, so that none ends. */
static void on_expiry(struct cgn_timer *t)
{
	struct kube_members *own = CGN_CONTAINER(t, struct kube_members, expiry);
	cgn_nsec next = own->leases_connected ? state_leases_check(own->s) : 0;
	if (next != 0)
		cgn_timer_set(t, next);
}

static cgn_nsec lease_duration(const struct kube_members *own, struct json_val lease)
{
	struct json_val v;
	uint64_t s;
	if (!kube_get2(lease, "spec", "leaseDurationSeconds", &v) || !json_u64(v, &s) || s == 0 || s > 3600)
		return own->lease;
	return s * CGN_SEC;
}

static bool lease_left_over(const struct kube_members *own, struct json_val lease)
{
	struct json_val v;
	if (!kube_get2(lease, "spec", "renewTime", &v) || v.type != JSON_STRING)
		return true;
	int64_t at = kube_seconds((struct cgn_str){v.raw.p + 1, v.raw.n - 2}),
		now = (int64_t)(cgn_clock_wall_ms() / 1000);
	return at < 0 || now - at > (int64_t)(LEFT_OVER * (lease_duration(own, lease) / CGN_SEC));
}

/* Read the node of a Lease. False: there is none that is valid. */
static bool lease_node(struct json_val lease, Cognitora__V1__Node **out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	struct json_val meta, v;
	struct cgn_str name = k8s_meta(lease, "name");
	struct cgn_err err = {.msg = "it has no annotation " KUBE_NODE};
	if (json_get(lease, "metadata", &meta) && kube_get2(meta, "annotations", KUBE_NODE, &v) &&
		v.type == JSON_STRING) {
		json_str_to(v, &text);
		if (cgn_ok(proto_node_from_json(cgn_buf_view(&text), out, &err)))
			return true;
	}
	cgn_log_limited(WARN, "state.lease_ignored", F_STRN("lease", name), F_STR("why", err.msg));
	return false;
}

static void on_lease(void *user, struct json_val lease)
{
	struct state_watch *s = user;
	struct kube_members *own = members_of(s);
	CGN_ON_EXIT(proto_node_free) Cognitora__V1__Node *node = NULL;
	struct roster_entry *e;
	struct cgn_err err;
	CGN_LIVE(s, STATE_WATCH_TAG);
	if (lease_left_over(own, lease) || !lease_node(lease, &node))
		return;
	if (!cgn_ok(state_node_seen(s, node, &e, &err))) {
		cgn_log_limited(WARN, "state.node_ignored", F_STR("node", node->id), F_STR("why", err.msg));
		return;
	}
	e->lease = lease_duration(own, lease);
	e->lease_end = cgn_loop_listened(s->loop) + e->lease;
	if (own->expiry.at == 0)
		cgn_timer_set(&own->expiry, lease_duration(own, lease));
}

static void on_lease_gone(void *user, struct json_val lease)
{
	struct state_watch *s = user;
	CGN_ON_EXIT(proto_node_free) Cognitora__V1__Node *node = NULL;
	CGN_LIVE(s, STATE_WATCH_TAG);
	struct roster_entry *e = lease_node(lease, &node) ? roster_find(&s->nodes, node->id) : NULL;
	if (e != NULL)
		state_node_gone(s, e);
}

static void knowledge_check(struct state_watch *s)
{
	if (members_of(s)->leases_heard && members_of(s)->written_heard)
		state_knows(s, STATE_HEARD);
}

static void on_leases_begin(void *user)
{
	state_nodes_begin(user);
}

static void on_leases_end(void *user)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	state_nodes_end(s);
	members_of(s)->leases_heard = true;
	knowledge_check(s);
}

static void connected_check(struct state_watch *s, const char *why)
{
	const struct kube_members *own = members_of(s);
	bool connected = own->leases_connected && own->written_connected;
	if (connected)
		cgn_log(INFO, "state.kubernetes_connected", F_U64("nodes", s->nodes.n));
	else if (why[0] != '\0')
		cgn_log(WARN, "state.kubernetes_lost", F_STR("why", why), F_U64("nodes_kept", s->nodes.n));
	if (connected || why[0] != '\0')
		state_connected(s, connected, why);
	if (why[0] != '\0')
		state_members_recall(s);
}

/* After an outage each Lease gets its whole duration again. */
static void lease_extend(void *arg, struct roster_entry *e)
{
	const struct state_watch *s = arg;
	if (e->lease_end != 0)
		e->lease_end = cgn_loop_listened(s->loop) + e->lease;
}

static void on_leases_connected(void *user, bool connected, const char *why)
{
	struct state_watch *s = user;
	struct kube_members *own = members_of(s);
	CGN_LIVE(s, STATE_WATCH_TAG);
	own->leases_connected = connected;
	if (connected) {
		roster_each(&s->nodes, lease_extend, s);
		cgn_timer_set(&own->expiry, 0);
	}
	connected_check(s, why);
}

static const struct k8s_watch_ops lease_ops = {.news = {on_leases_begin, on_leases_end, on_leases_connected},
	.on_object = on_lease,
	.on_gone = on_lease_gone};

/* ---- the Secret with cordons and documents ---- */

static void entry_read(struct state_watch *s, struct cgn_str key, struct json_val value)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf coded = {.n = 0}, text = {.n = 0};
	char id[PROTO_MAX_ID + 1];
	if (kube_cordon_id(key, id)) {
		state_cordon_seen(s, id, true);
		return;
	}
	for (size_t d = 0; d < STATE_DOCUMENTS; d++) {
		if (!cgn_str_is(key, state_document_name((enum state_document)d)) ||
			value.type != JSON_STRING)
			continue;
		json_str_to(value, &coded);
		if (base64_get(&text, cgn_buf_view(&coded)))
			state_document_seen(s, (enum state_document)d, cgn_buf_view(&text));
	}
}

/* Take all of the Secret. An answer to a write may come before the events of earlier writes: those are skipped. */
static void secret_take(struct state_watch *s, struct json_val secret)
{
	struct json_val data, value;
	struct cgn_str key;
	int64_t version = k8s_version(secret);
	if (version <= members_of(s)->written_version)
		return;
	members_of(s)->written_version = version;
	state_written_begin(s);
	if (json_get(secret, "data", &data) && data.type == JSON_OBJECT)
		for (struct json_iter it = json_iter_of(data); json_next_member(&it, &key, &value);)
			entry_read(s, key, value);
	state_written_end(s);
}

static void on_secret(void *user, struct json_val secret)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	secret_take(s, secret);
}

static void secret_empty(struct state_watch *s)
{
	state_written_begin(s);
	state_written_end(s);
}

static void on_secret_gone(void *user, struct json_val secret)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	if (k8s_version(secret) > members_of(s)->written_version)
		members_of(s)->written_version = k8s_version(secret);
	secret_empty(s);
}

static void on_written_begin(void *user)
{
	members_of(user)->written_version = 0;
}

static void on_written_end(void *user)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	if (members_of(s)->written_version == 0) /* The list is empty. */
		secret_empty(s);
	members_of(s)->written_heard = true;
	knowledge_check(s);
}

static void on_written_connected(void *user, bool connected, const char *why)
{
	struct state_watch *s = user;
	CGN_LIVE(s, STATE_WATCH_TAG);
	members_of(s)->written_connected = connected;
	connected_check(s, why);
}

static const struct k8s_watch_ops written_ops = {.news = {on_written_begin, on_written_end,
							 on_written_connected},
	.on_object = on_secret,
	.on_gone = on_secret_gone};

/* ---- requests ---- */

/* A write of one key of the Secret. */
struct kube_write {
	struct state_request *rq;
	struct k8s_call *call;
	bool created; /* The Secret was not there: this write created it, or found that another one did. */
	char key[KUBE_NAME];
};

static void write_send(struct kube_write *w);

static void write_free(struct kube_write *w)
{
	k8s_call_drop(&w->call);
	free(w);
}

static void write_over(struct kube_write *w, const struct cgn_err *err)
{
	struct state_request *rq = w->rq;
	rq->err = *err;
	if (err->code != CGN_FINE)
		(void)CGN_FAIL_AS(&rq->err, err->code == CGN_CONFLICT ? CGN_CONFLICT : CGN_UNAVAILABLE,
			"Kubernetes did not take the change of Secret %s: %.200s", members_of(rq->s)->secret,
			err->msg);
	rq->call = NULL;
	write_free(w);
	state_request_ready(rq->s, rq);
}

static struct cgn_str write_text(const struct kube_write *w)
{
	return w->rq->id[0] != '\0' ? CGN_STR("true") : (struct cgn_str){w->rq->text, w->rq->text_bytes};
}

static void value_put(struct json_out *o, struct cgn_str text)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf coded = {.n = 0};
	base64_put(&coded, text);
	o->b->bad = o->b->bad || coded.bad;
	json_put_str(o, cgn_buf_view(&coded));
}

static void created_done(void *user, const struct k8s_answer *a)
{
	struct kube_write *w = user;
	w->call = NULL;
	if (a->err->code == CGN_CONFLICT) {
		write_send(w); /* Another router created it meanwhile. */
		return;
	}
	if (a->err->code == CGN_FINE)
		secret_take(w->rq->s, a->object);
	write_over(w, a->err);
}

static void secret_create(struct kube_write *w)
{
	struct kube_members *own = members_of(w->rq->s);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct json_out o = json_out_to(&b);
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory"};
	char path[KUBE_MAX_PATH];
	kube_secrets_path(&own->place, path);
	json_open(&o, '{');
	json_key_open(&o, "metadata", '{');
	json_key_z(&o, "name", own->secret);
	json_key_open(&o, "labels", '{');
	json_key_z(&o, KUBE_CLUSTER, own->place.cluster);
	json_close(&o, '}');
	json_close(&o, '}');
	json_key_open(&o, "data", '{');
	json_key(&o, "format");
	value_put(&o, CGN_STR(KUBE_FORMAT));
	json_key(&o, w->key);
	value_put(&o, write_text(w));
	json_close(&o, '}');
	json_close(&o, '}');
	const struct k8s_request rq = {.method = "POST", .path = path, .body = cgn_buf_view(&b)};
	w->created = true;
	if (b.bad || !cgn_ok(k8s_call_start(own->place.k8s, &rq, created_done, w, &w->call, &err)))
		write_over(w, &err);
}

static void write_done(void *user, const struct k8s_answer *a)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	struct kube_write *w = user;
	w->call = NULL;
	if (a->err->code == CGN_FINE)
		secret_take(w->rq->s, a->object);
	if (a->err->code != CGN_NOT_FOUND)
		write_over(w, a->err);
	else if (!w->rq->on)
		write_over(w, &fine); /* There is nothing to remove. */
	else if (!w->created)
		secret_create(w);
	else
		write_over(w, a->err);
}

/* A document that routers change is only replaced if it is what this router was told last. */
static void tested_put(const struct kube_write *w, struct cgn_buf *b)
{
	const struct state_text *last = &w->rq->s->documents[w->rq->document];
	struct json_out o = json_out_to(b);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf path = {.n = 0};
	cgn_buf_fmt(&path, "/data/%s", w->key);
	json_open(&o, '[');
	json_open(&o, '{');
	json_key_z(&o, "op", "test");
	json_key_z(&o, "path", cgn_buf_z(&path));
	json_key(&o, "value");
	if (last->text.n > 0)
		value_put(&o, cgn_buf_view(&last->text));
	else
		json_put_null(&o);
	json_close(&o, '}');
	if (w->rq->on || last->text.n > 0) {
		json_open(&o, '{');
		json_key_z(&o, "op", w->rq->on ? "add" : "remove");
		json_key_z(&o, "path", cgn_buf_z(&path));
		if (w->rq->on) {
			json_key(&o, "value");
			value_put(&o, write_text(w));
		}
		json_close(&o, '}');
	}
	json_close(&o, ']');
}

static void merge_put(const struct kube_write *w, struct cgn_buf *b)
{
	struct json_out o = json_out_to(b);
	json_open(&o, '{');
	json_key_open(&o, "data", '{');
	json_key(&o, w->key);
	if (w->rq->on)
		value_put(&o, write_text(w));
	else
		json_put_null(&o);
	json_close(&o, '}');
	json_close(&o, '}');
}

static void write_send(struct kube_write *w)
{
	struct kube_members *own = members_of(w->rq->s);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct cgn_err err = {.code = CGN_NO_MEMORY, .msg = "no memory"};
	char path[KUBE_MAX_PATH];
	/* A reset of the policy depends on nothing that was read. */
	bool tested = w->rq->id[0] == '\0' && (w->rq->document != STATE_POLICY || w->rq->on);
	kube_secrets_path(&own->place, path);
	size_t n = strlen(path);
	(void)snprintf(path + n, sizeof path - n, "/%s", own->secret);
	if (tested)
		tested_put(w, &b);
	else
		merge_put(w, &b);
	const struct k8s_request rq = {.method = "PATCH",
		.path = path,
		.type = tested ? K8S_JSON_PATCH : K8S_MERGE_PATCH,
		.body = cgn_buf_view(&b)};
	if (b.bad || !cgn_ok(k8s_call_start(own->place.k8s, &rq, write_done, w, &w->call, &err)))
		write_over(w, &err);
}

static struct kube_write *write_new(struct state_request *rq)
{
	struct kube_write *w = CGN_NEW(struct kube_write);
	w->rq = rq;
	rq->call = w;
	return w;
}

static void kube_cordon(struct state_watch *s, struct state_request *rq)
{
	(void)s;
	struct kube_write *w = write_new(rq);
	static const struct cgn_err large = {.code = CGN_INVALID,
		.msg = "the node's id has too many characters that are not letters or digits"};
	if (kube_cordon_key(rq->id, w->key))
		write_send(w);
	else
		write_over(w, &large);
}

static void kube_document(struct state_watch *s, struct state_request *rq)
{
	(void)s;
	struct kube_write *w = write_new(rq);
	(void)cgn_str_copyz(w->key, sizeof w->key, cgn_str_of(state_document_name(rq->document)));
	write_send(w);
}

static void request_drop(struct state_request *rq)
{
	struct kube_write *w = rq->call;
	rq->call = NULL;
	write_free(w);
}

/* ---- addresses that left ---- */

struct address_scan {
	struct state_watch *s;
	const char *address;
};

static void address_check(void *arg, struct roster_entry *e)
{
	const struct address_scan *scan = arg;
	const char *port = strrchr(e->node->address, ':');
	struct cgn_str host = {e->node->address, port != NULL ? (size_t)(port - e->node->address) : 0};
	if (host.n > 2 && host.p[0] == '[')
		host = (struct cgn_str){host.p + 1, host.n - 2};
	if (!cgn_str_is(host, scan->address))
		return;
	cgn_log_limited(INFO, "state.address_gone", F_STR("node", e->id), F_STR("address", scan->address));
	state_node_gone(scan->s, e);
}

/* A new pod with the same address announces itself again. */
static void on_address_gone(void *user, const char *address)
{
	struct address_scan scan = {user, address};
	roster_each(&scan.s->nodes, address_check, &scan);
}

/* ---- open and close ---- */

static void on_patience_over(struct cgn_timer *t)
{
	state_members_recall(CGN_CONTAINER(t, struct kube_members, patience)->s);
}

static void documents_name(struct state_watch *s)
{
	for (size_t d = 0; d < STATE_DOCUMENTS; d++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf where = {.n = 0};
		cgn_buf_fmt(&where, "Secret %s/%s, key %s", members_of(s)->place.space, members_of(s)->secret,
			state_document_name((enum state_document)d));
		s->documents[d].where = cgn_str_dupz(cgn_buf_view(&where));
	}
}

static CGN_RC watches_open(struct state_watch *s, struct cgn_err *err)
{
	struct kube_members *own = members_of(s);
	char path[KUBE_MAX_PATH], query[512];
	kube_leases_path(&own->place, path);
	(void)snprintf(query, sizeof query,
		"labelSelector=cognitora.dev%%2Fcluster%%3D%s%%2Ccognitora.dev%%2Frecord%%3Dnode",
		own->place.cluster);
	CGN_TRY(k8s_watch_open(own->place.k8s, path, query, &lease_ops, s, &own->leases, err));
	kube_secrets_path(&own->place, path);
	(void)snprintf(query, sizeof query, "fieldSelector=metadata.name%%3D%s", own->secret);
	return k8s_watch_open(own->place.k8s, path, query, &written_ops, s, &own->written, err);
}

static CGN_RC kube_open(struct state_watch *s, const struct config *cfg, struct cgn_err *err)
{
	struct kube_members *own = CGN_NEW(struct kube_members);
	s->own = own;
	own->s = s;
	own->lease = cfg->cluster.lease;
	cgn_timer_init(&own->patience, s->loop, on_patience_over);
	cgn_timer_init(&own->expiry, s->loop, on_expiry);
	roster_init(&own->slices.addresses);
	state_members_open(s, cfg, false);
	CGN_TRY(kube_place_open(s->loop, cfg, &own->place, err));
	(void)snprintf(own->secret, sizeof own->secret, "%s.state", own->place.cluster);
	documents_name(s);
	if (cfg->cluster.kubernetes_service != NULL)
		CGN_TRY(kube_slices_open(&own->slices, &own->place, cfg->cluster.kubernetes_service,
			on_address_gone, s, err));
	return watches_open(s, err);
}

static void kube_begin(struct state_watch *s)
{
	if (s->knowledge == STATE_UNHEARD)
		cgn_timer_set(&members_of(s)->patience, PATIENCE);
}

static CGN_RC kube_certificates(struct state_watch *s, struct cgn_err *err)
{
	return k8s_reload_tls(members_of(s)->place.k8s, err);
}

static void kube_close(struct state_watch *s)
{
	struct kube_members *own = s->own;
	if (own == NULL)
		return;
	cgn_timer_cancel(&own->patience);
	cgn_timer_cancel(&own->expiry);
	k8s_watch_close(&own->leases);
	k8s_watch_close(&own->written);
	kube_slices_close(&own->slices);
	kube_place_close(&own->place);
	free(own);
}

const struct state_backend state_backend_kubernetes = {
	.where = "in Kubernetes",
	.open = kube_open,
	.begin = kube_begin,
	.close = kube_close,
	.cordon = kube_cordon,
	.put = kube_document,
	.drop = request_drop,
	.reload_tls = kube_certificates,
};
