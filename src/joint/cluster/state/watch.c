/* SPDX-License-Identifier: Apache-2.0 */
/* watch: a router's view of membership, the same for each backend. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/cluster/state/state_priv.h"

/* ---- news from backends ---- */

void state_knows(struct state_watch *s, enum state_knowledge k)
{
	if (s->knowledge == k)
		return;
	s->knowledge = k;
	metric_set(METRIC_OF(s->telemetry, STATE_STALE, "members"), k == STATE_STALE);
	if (k == STATE_HEARD) {
		cgn_log(INFO, "state.members_heard", F_U64("nodes", s->nodes.n));
		state_members_changed(s);
	}
	if (s->ops->on_knowledge != NULL)
		s->ops->on_knowledge(s->user, k);
}

/* |e| was heard of, or is gone. Nodes that announce themselves are all known once each node of an earlier run was
 * heard, or its lease has ended. */
static void entry_confirm(struct state_watch *s, struct roster_entry *e)
{
	if (!e->recalled)
		return;
	e->recalled = false;
	s->n_recalled--;
	if (s->n_recalled == 0 && s->backend->renew != NULL)
		state_knows(s, STATE_HEARD);
}

CGN_RC state_node_seen(struct state_watch *s, const Cognitora__V1__Node *node, struct roster_entry **out,
	struct cgn_err *err)
{
	struct roster_entry *e = roster_find(&s->nodes, node->id);
	bool same = e != NULL && proto_node_equal(e->node, node);
	Cognitora__V1__Node *copy = same ? NULL : proto_node_dup(node);
	if (!same && copy == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for node %s", node->id);
	if (e == NULL && s->nodes.n >= STATE_MAX_NODES) {
		proto_node_free(&copy);
		return CGN_FAIL(err, OVERLOADED,
			"node %s is not taken: the cluster has %zu nodes, at most %d are kept", node->id,
			s->nodes.n, STATE_MAX_NODES);
	}
	if (e == NULL)
		e = roster_add(&s->nodes, node->id);
	e->marked = false;
	entry_confirm(s, e);
	*out = e;
	if (same)
		return CGN_OK;
	proto_node_free(&e->node);
	e->node = copy;
	state_members_changed(s);
	s->ops->on_node(s->user, e->node);
	return CGN_OK;
}

void state_node_gone(struct state_watch *s, struct roster_entry *e)
{
	char id[PROTO_MAX_ID + 1];
	(void)cgn_str_copyz(id, sizeof id, cgn_str_of(e->id));
	entry_confirm(s, e);
	roster_drop(&s->nodes, e);
	state_members_changed(s);
	s->ops->on_gone(s->user, id);
}

void state_cordon_seen(struct state_watch *s, const char *id, bool on)
{
	struct roster_entry *e = roster_find(&s->cordons, id);
	if (e != NULL)
		e->marked = false;
	if ((e != NULL) == on)
		return;
	if (!on)
		roster_drop(&s->cordons, e);
	else
		(void)roster_add(&s->cordons, id);
	state_members_changed(s);
	s->ops->on_cordon(s->user, id, on);
}

static const struct {
	const char *name, *title;
	size_t most;
} documents[] = {
	[STATE_POLICY] = {"policy", "a policy document", STATE_MAX_POLICY},
	[STATE_MODELS] = {"models", "the document of wanted models", STATE_MAX_MODELS},
	[STATE_INVITES] = {"invites", "the document of invites", STATE_MAX_INVITES},
};

const char *state_document_name(enum state_document d)
{
	return documents[d].name;
}

const char *state_document_title(enum state_document d)
{
	return documents[d].title;
}

size_t state_document_most(enum state_document d)
{
	return documents[d].most;
}

void state_document_tell(struct state_watch *s, enum state_document d)
{
	void (*tell)(void *user, struct cgn_str text, const char *where) = d == STATE_POLICY
		? s->ops->on_policy
		: d == STATE_MODELS ? s->ops->on_models
				    : s->ops->on_invites;
	if (tell != NULL)
		tell(s->user, cgn_buf_view(&s->documents[d].text), s->documents[d].where);
}

void state_document_seen(struct state_watch *s, enum state_document d, struct cgn_str text)
{
	struct state_text *t = &s->documents[d];
	t->marked = false;
	if (cgn_str_eq(text, cgn_buf_view(&t->text)))
		return;
	if (text.n > state_document_most(d)) {
		cgn_log(ERROR, "state.document_ignored", F_STR("of", documents[d].title),
			F_STR("where", t->where), F_U64("bytes", text.n),
			F_U64("most", state_document_most(d)), F_STR("then", "the last one stays"));
		return;
	}
	t->version++;
	t->text.n = 0;
	cgn_buf_str(&t->text, text);
	if (t->text.bad) { /* No memory: there is no document, as before the first one. */
		cgn_buf_fini(&t->text);
		return;
	}
	state_members_changed(s);
	state_document_tell(s, d);
}

void state_connected(struct state_watch *s, bool connected, const char *why)
{
	if (state_source_changed(&s->source, connected, s->telemetry, "members") &&
		s->ops->on_connected != NULL)
		s->ops->on_connected(s->user, connected, why);
}

static void node_sweep(void *arg, struct roster_entry *e)
{
	state_node_gone(arg, e);
}

static void cordon_sweep(void *arg, struct roster_entry *e)
{
	char id[PROTO_MAX_ID + 1];
	if (cgn_str_copyz(id, sizeof id, cgn_str_of(e->id)))
		state_cordon_seen(arg, id, false);
}

void state_nodes_begin(struct state_watch *s)
{
	roster_mark(&s->nodes);
}

void state_nodes_end(struct state_watch *s)
{
	roster_sweep(&s->nodes, node_sweep, s);
}

void state_written_begin(struct state_watch *s)
{
	roster_mark(&s->cordons);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		s->documents[d].marked = s->documents[d].text.n > 0;
}

void state_written_end(struct state_watch *s)
{
	roster_sweep(&s->cordons, cordon_sweep, s);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		if (s->documents[d].marked)
			state_document_seen(s, (enum state_document)d, (struct cgn_str){NULL, 0});
}

void state_snapshot_begin(struct state_watch *s)
{
	state_nodes_begin(s);
	state_written_begin(s);
}

void state_snapshot_end(struct state_watch *s)
{
	state_nodes_end(s);
	state_written_end(s);
	state_knows(s, STATE_HEARD);
}

/* ---- leases ---- */

struct lease_scan {
	struct state_watch *s;
	cgn_nsec now, next;
};

static void lease_check(void *arg, struct roster_entry *e)
{
	struct lease_scan *scan = arg;
	if (e->lease_end == 0)
		return;
	if (e->lease_end <= scan->now) {
		cgn_log_limited(WARN, "state.lease_ended", F_STR("node", e->id), F_DUR("lease", e->lease));
		state_node_gone(scan->s, e);
	} else if (e->lease_end < scan->next) {
		scan->next = e->lease_end;
	}
}

cgn_nsec state_leases_check(struct state_watch *s)
{
	struct lease_scan scan = {s, cgn_loop_listened(s->loop), UINT64_MAX};
	roster_each(&s->nodes, lease_check, &scan);
	return scan.next != UINT64_MAX ? scan.next - scan.now : 0;
}

/* ---- nodes that announce themselves ---- */

static CGN_RC registry_check(const struct state_watch *s, struct cgn_err *err)
{
	if (s->backend->renew != NULL)
		return CGN_OK;
	return CGN_FAIL(err, UNSUPPORTED, "nodes do not register with this router: its membership is %s",
		s->backend->where);
}

#define REFUSED_LOG_EVERY (60 * CGN_SEC)

/* A node's id belongs to the agent whose lease it is: another one, at another address, is refused until that
 * agent leaves, answers no more, or its lease ends. An agent that was restarted has the same address. */
static CGN_RC owner_check(struct state_watch *s, const Cognitora__V1__Node *node, struct cgn_err *err)
{
	struct roster_entry *e = roster_find(&s->nodes, node->id);
	cgn_nsec now = cgn_loop_now(s->loop);
	if (e == NULL || e->recalled || e->lease_end <= cgn_loop_listened(s->loop) ||
		strcmp(e->node->address, node->address) == 0 ||
		(s->ops->answers != NULL && !s->ops->answers(s->user, node->id)))
		return CGN_OK;
	if (e->refused_at == 0 || cgn_since(now, e->refused_at) >= REFUSED_LOG_EVERY) {
		e->refused_at = now;
		cgn_log(WARN, "state.node_refused", F_STR("node", node->id), F_STR("address", node->address),
			F_STR("registered_at", e->node->address),
			F_STR("do", "give each agent a node id of its own: agent.node_id"));
	}
	return state_id_taken(node->id, e->node->address, err);
}

CGN_RC state_announce_received(struct state_watch *s, const Cognitora__V1__AnnounceRequest *rq,
	uint64_t *lease_ms, struct cgn_err *err)
{
	struct roster_entry *e;
	CGN_LIVE(s, STATE_WATCH_TAG);
	CGN_TRY(registry_check(s, err));
	if (strcmp(rq->cluster, s->cluster) != 0)
		return CGN_FAIL(err, INVALID,
			"this router's cluster is \"%s\" and not \"%.64s\": see cluster.name", s->cluster,
			rq->cluster);
	if (rq->node == NULL)
		return CGN_FAIL(err, INVALID, "AnnounceRequest without a node");
	CGN_TRY(proto_node_check(rq->node, err));
	CGN_TRY(owner_check(s, rq->node, err));
	CGN_TRY(state_node_seen(s, rq->node, &e, err));
	s->backend->renew(s, e, lease_ms);
	return CGN_OK;
}

CGN_RC state_leave_received(struct state_watch *s, const char *id, struct cgn_err *err)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	CGN_TRY(registry_check(s, err));
	struct roster_entry *e = roster_find(&s->nodes, id);
	if (e != NULL)
		state_node_gone(s, e);
	return CGN_OK;
}

/* ---- requests ---- */

static void request_done(struct state_request *rq)
{
	cgn_list_drop(&rq->link);
	if (rq->call != NULL)
		rq->s->backend->drop(rq);
	if (rq->done != NULL)
		rq->done(rq->user, &rq->err);
	free(rq->text);
	free(rq);
}

static void requests_turn(struct cgn_hook *h)
{
	struct state_watch *s = CGN_CONTAINER(h, struct state_watch, turn);
	CGN_LIVE(s, STATE_WATCH_TAG);
	cgn_list_each_safe (it, &s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (rq->ready)
			request_done(rq);
	}
}

void state_request_ready(struct state_watch *s, struct state_request *rq)
{
	rq->ready = true;
	cgn_loop_defer(s->loop, &s->turn);
}

/* Return NULL if there is no memory for a long text. */
static struct state_request *request_new(struct state_watch *s, bool on, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user)
{
	struct state_request *rq = CGN_NEW(struct state_request);
	*rq = (struct state_request){.s = s, .on = on, .done = done, .user = user, .text_bytes = text.n};
	if (text.n > 0 && (rq->text = cgn_str_dupz(text)) == NULL) {
		free(rq);
		return NULL;
	}
	cgn_list_push(&s->requests, &rq->link);
	return rq;
}

CGN_RC state_cordon(struct state_watch *s, const char *id, bool cordoned,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	if (!proto_node_id_ok(cgn_str_of(id)))
		return CGN_FAIL(err, INVALID, "\"%.64s\" can't be a node's id", id);
	struct state_request *rq = request_new(s, cordoned, (struct cgn_str){NULL, 0}, done, user);
	(void)cgn_str_copyz(rq->id, sizeof rq->id, cgn_str_of(id));
	s->backend->cordon(s, rq);
	return CGN_OK;
}

static CGN_RC document_put(struct state_watch *s, enum state_document d, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	if (text.n > state_document_most(d))
		return CGN_FAIL(err, TOO_LARGE, "%s has at most %zu bytes, this one %zu",
			state_document_title(d), state_document_most(d), text.n);
	struct state_request *rq = request_new(s, text.n > 0, text, done, user);
	if (rq == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %s", state_document_title(d));
	rq->document = d;
	rq->base = s->documents[d].version;
	s->backend->put(s, rq);
	return CGN_OK;
}

CGN_RC state_policy_put(struct state_watch *s, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err)
{
	return document_put(s, STATE_POLICY, text, done, user, err);
}

CGN_RC state_models_put(struct state_watch *s, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err)
{
	return document_put(s, STATE_MODELS, text, done, user, err);
}

CGN_RC state_invites_put(struct state_watch *s, struct cgn_str text,
	void (*done)(void *user, const struct cgn_err *err), void *user, struct cgn_err *err)
{
	return document_put(s, STATE_INVITES, text, done, user, err);
}

const char *state_policy_where(const struct state_watch *s)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	return s->documents[STATE_POLICY].where;
}

const char *state_models_where(const struct state_watch *s)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	return s->documents[STATE_MODELS].where;
}

bool state_watch_cordoned(const struct state_watch *s, const char *id)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	return roster_find(&s->cordons, id) != NULL;
}

/* ---- open and close ---- */

static void on_first_turn(struct cgn_timer *t)
{
	struct state_watch *s = CGN_CONTAINER(t, struct state_watch, first_turn);
	CGN_LIVE(s, STATE_WATCH_TAG);
	metric_set(METRIC_OF(s->telemetry, STATE_STALE, "members"), 0);
	s->backend->begin(s);
}

static const struct state_backend *backend_of(const struct config *cfg)
{
	switch (cfg->cluster.state_backend) {
	case STATE_ETCD:
		return &state_backend_etcd;
	case STATE_STATIC:
		return &state_backend_static;
	case STATE_KUBERNETES:
		return &state_backend_kubernetes;
	default:
		return &state_backend_embedded;
	}
}

CGN_RC state_cluster_check(const struct config *cfg, struct cgn_err *err)
{
	const char *name = cfg->cluster.name;
	if (proto_node_id_ok(cgn_str_of(name)) && strlen(name) <= 64)
		return CGN_OK;
	return CGN_FAIL(err, INVALID,
		"cluster.name \"%.80s\": must be visible ASCII without '/', at most 64 characters", name);
}

CGN_RC state_watch_open(struct cgn_loop *l, const struct config *cfg, struct telemetry *t,
	const struct state_watch_ops *ops, void *user, struct state_watch **out, struct cgn_err *err)
{
	CGN_TRY(state_cluster_check(cfg, err));
	CGN_ON_EXIT(state_watch_close) struct state_watch *s = CGN_NEW(struct state_watch);
	*s = (struct state_watch){.tag = STATE_WATCH_TAG,
		.loop = l,
		.telemetry = t,
		.ops = ops,
		.user = user,
		.place = {.fd = -1},
		.backend = backend_of(cfg)};
	(void)cgn_str_copyz(s->cluster, sizeof s->cluster, cgn_str_of(cfg->cluster.name));
	roster_init(&s->nodes);
	roster_init(&s->cordons);
	cgn_list_init(&s->requests);
	cgn_hook_init(&s->turn, requests_turn);
	cgn_timer_init(&s->first_turn, l, on_first_turn);
	state_place_open(&s->place, cfg);
	CGN_TRY(s->backend->open(s, cfg, err));
	cgn_timer_set(&s->first_turn, 1);
	*out = CGN_TAKE(&s);
	return CGN_OK;
}

void state_watch_close(struct state_watch **take)
{
	struct state_watch *s = CGN_TAKE_LIVE(take, STATE_WATCH_TAG);
	if (s == NULL)
		return;
	cgn_hook_drop(&s->turn);
	cgn_timer_cancel(&s->first_turn);
	cgn_list_each_safe (it, &s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (!rq->ready)
			(void)CGN_FAIL_AS(&rq->err, CGN_CANCELLED, "the router is stopping");
		request_done(rq);
	}
	state_members_close(s);
	s->backend->close(s);
	state_place_close(&s->place);
	roster_fini(&s->nodes);
	roster_fini(&s->cordons);
	for (size_t d = 0; d < STATE_DOCUMENTS; d++) {
		cgn_buf_fini(&s->documents[d].text);
		free(s->documents[d].where);
	}
	s->tag = 0;
	free(s);
}

CGN_RC state_watch_reload_tls(struct state_watch *s, struct cgn_err *err)
{
	CGN_LIVE(s, STATE_WATCH_TAG);
	return s->backend->reload_tls != NULL ? s->backend->reload_tls(s, err) : CGN_OK;
}
