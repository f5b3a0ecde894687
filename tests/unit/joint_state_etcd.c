/* SPDX-License-Identifier: Apache-2.0 */
/* Membership in etcd, against a small etcd that can refuse: what routers, agents and block stores read and write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/pb/pb.h"
#include "etcd/etcd.pb-c.h"
#include "io/wire/grpc/grpc.h"
#include "joint/cluster/state/state.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "state_told.h"
#include "telemetry_world.h"

#define KEYS 16
#define NODE "/cognitora/cognitora/nodes/"

struct entry {
	char key[96], value[512];
	int64_t revision, lease;
};

struct world {
	struct cgn_loop *l;
	struct cgn_timer tick; /* Ends a turn soon even when nothing arrives. */
	struct config *cfg;
	char dir[64];
	/* etcd */
	struct grpc_server *server;
	char addr[64];
	struct entry keys[KEYS]; /* An entry without a key is free. */
	int64_t revision, lease;
	struct grpc_call *watch;
	enum cgn_code refuse; /* Answer of writes; CGN_FINE: they are done. */
	unsigned refused, grants, revoked;
	bool lease_is_gone; /* The next renewal says so. */
	/* The programs note the events that they get here. */
	struct cgn_buf told;
	unsigned done;
};

static void forget_told(struct world *w)
{
	w->told.n = 0;
}

/* ---- etcd ---- */

static struct entry *key_find(struct world *w, const char *key)
{
	for (size_t i = 0; i < KEYS; i++)
		if (w->keys[i].key[0] != '\0' && strcmp(w->keys[i].key, key) == 0)
			return &w->keys[i];
	return NULL;
}

static Etcdserverpb__KeyValue kv_of(struct entry *e)
{
	Etcdserverpb__KeyValue kv = ETCDSERVERPB__KEY_VALUE__INIT;
	kv.key = (ProtobufCBinaryData){strlen(e->key), (uint8_t *)e->key};
	kv.value = (ProtobufCBinaryData){strlen(e->value), (uint8_t *)e->value};
	kv.mod_revision = e->revision;
	kv.lease = e->lease;
	return kv;
}

static Etcdserverpb__ResponseHeader header_of(const struct world *w)
{
	Etcdserverpb__ResponseHeader h = ETCDSERVERPB__RESPONSE_HEADER__INIT;
	h.cluster_id = 1;
	h.revision = w->revision;
	return h;
}

static void message_send(struct grpc_call *c, const void *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	pb_pack(message, &b);
	grpc_send(c, &(struct iovec){b.p, b.n}, b.n > 0);
}

static void reply_send(struct grpc_call *c, const void *message)
{
	message_send(c, message);
	grpc_finish(c, CGN_FINE, NULL);
}

static void watch_tell(struct world *w, struct entry *e, bool put)
{
	Etcdserverpb__WatchResponse m = ETCDSERVERPB__WATCH_RESPONSE__INIT;
	Etcdserverpb__ResponseHeader h = header_of(w);
	Etcdserverpb__KeyValue kv = kv_of(e);
	Etcdserverpb__Event event = ETCDSERVERPB__EVENT__INIT, *events = &event;
	if (w->watch == NULL)
		return;
	event.type = put ? ETCDSERVERPB__EVENT__EVENT_TYPE__PUT : ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE;
	event.kv = &kv;
	m.header = &h;
	m.n_events = 1;
	m.events = &events;
	message_send(w->watch, &m);
}

static void key_put(struct world *w, const char *key, const char *value, int64_t lease)
{
	struct entry *e = key_find(w, key);
	for (size_t i = 0; e == NULL; i++) {
		assert_true(i < KEYS);
		e = w->keys[i].key[0] == '\0' ? &w->keys[i] : NULL;
	}
	*e = (struct entry){.revision = ++w->revision, .lease = lease};
	(void)cgn_str_copyz(e->key, sizeof e->key, cgn_str_of(key));
	assert_true(cgn_str_copyz(e->value, sizeof e->value, cgn_str_of(value)));
	watch_tell(w, e, true);
}

static void key_delete(struct world *w, const char *key)
{
	struct entry *e = key_find(w, key);
	if (e == NULL)
		return;
	e->revision = ++w->revision;
	e->value[0] = '\0';
	watch_tell(w, e, false);
	e->key[0] = '\0';
}

static const char *value_of(struct world *w, const char *key)
{
	const struct entry *e = key_find(w, key);
	return e != NULL ? e->value : "";
}

static char *text_of(ProtobufCBinaryData d)
{
	static char text[2][512];
	static unsigned at;
	char *t = text[at++ % 2];
	assert_true(cgn_str_copyz(t, sizeof text[0], (struct cgn_str){(const char *)d.data, d.len}));
	return t;
}

static bool is_refused(struct world *w, struct grpc_call *c)
{
	if (w->refuse == CGN_FINE)
		return false;
	w->refused++;
	grpc_finish(c, w->refuse, "not now");
	return true;
}

#define UNPACK(type, out)                                                 \
	CGN_ON_EXIT(pb_free) void *unpacked = NULL;                       \
	assert_true(cgn_ok(pb_unpack(&etcdserverpb__##type##__descriptor, \
		(struct cgn_str){(const char *)p, n}, &unpacked, NULL))); \
	(out) = unpacked

static void on_range(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__RangeRequest *rq;
	Etcdserverpb__RangeResponse rs = ETCDSERVERPB__RANGE_RESPONSE__INIT;
	Etcdserverpb__ResponseHeader h = header_of(w);
	Etcdserverpb__KeyValue kv[KEYS], *kvs[KEYS];
	UNPACK(range_request, rq);
	for (size_t i = 0; i < KEYS; i++)
		if (w->keys[i].key[0] != '\0' && strcmp(w->keys[i].key, text_of(rq->key)) >= 0) {
			kv[rs.n_kvs] = kv_of(&w->keys[i]);
			kvs[rs.n_kvs] = &kv[rs.n_kvs];
			rs.n_kvs++;
		}
	rs.kvs = kvs;
	rs.header = &h;
	reply_send(c, &rs);
}

static void on_put(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__PutRequest *rq;
	Etcdserverpb__PutResponse rs = ETCDSERVERPB__PUT_RESPONSE__INIT;
	UNPACK(put_request, rq);
	if (is_refused(w, c))
		return;
	key_put(w, text_of(rq->key), text_of(rq->value), rq->lease);
	Etcdserverpb__ResponseHeader h = header_of(w);
	rs.header = &h;
	reply_send(c, &rs);
}

static void on_delete(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__DeleteRangeRequest *rq;
	Etcdserverpb__DeleteRangeResponse rs = ETCDSERVERPB__DELETE_RANGE_RESPONSE__INIT;
	UNPACK(delete_range_request, rq);
	if (is_refused(w, c))
		return;
	key_delete(w, text_of(rq->key));
	Etcdserverpb__ResponseHeader h = header_of(w);
	rs.header = &h;
	reply_send(c, &rs);
}

static void on_txn(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__TxnRequest *rq;
	Etcdserverpb__TxnResponse rs = ETCDSERVERPB__TXN_RESPONSE__INIT;
	Etcdserverpb__ResponseOp op = ETCDSERVERPB__RESPONSE_OP__INIT, *ops = &op;
	Etcdserverpb__RangeResponse range = ETCDSERVERPB__RANGE_RESPONSE__INIT;
	Etcdserverpb__KeyValue kv, *kvs = &kv;
	UNPACK(txn_request, rq);
	if (is_refused(w, c))
		return;
	struct entry *e = key_find(w, text_of(rq->compare[0]->key));
	rs.succeeded = (e != NULL ? e->revision : 0) == rq->compare[0]->mod_revision;
	if (rs.succeeded) {
		const Etcdserverpb__PutRequest *put = rq->success[0]->request_put;
		key_put(w, text_of(put->key), text_of(put->value), put->lease);
	} else if (e != NULL) {
		kv = kv_of(e);
		range.n_kvs = 1;
		range.kvs = &kvs;
	}
	op.response_case = ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE;
	op.response_range = &range;
	rs.n_responses = rs.succeeded ? 0 : 1;
	rs.responses = &ops;
	Etcdserverpb__ResponseHeader h = header_of(w);
	rs.header = &h;
	reply_send(c, &rs);
}

static void on_grant(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__LeaseGrantRequest *rq;
	Etcdserverpb__LeaseGrantResponse rs = ETCDSERVERPB__LEASE_GRANT_RESPONSE__INIT;
	UNPACK(lease_grant_request, rq);
	w->grants++;
	rs.id = ++w->lease;
	rs.ttl = rq->ttl;
	reply_send(c, &rs);
}

static void on_revoke(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__LeaseRevokeRequest *rq;
	Etcdserverpb__LeaseRevokeResponse rs = ETCDSERVERPB__LEASE_REVOKE_RESPONSE__INIT;
	UNPACK(lease_revoke_request, rq);
	w->revoked++;
	for (size_t i = 0; i < KEYS; i++)
		if (w->keys[i].key[0] != '\0' && w->keys[i].lease == rq->id)
			key_delete(w, w->keys[i].key);
	reply_send(c, &rs);
}

static void on_keepalive(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__LeaseKeepAliveRequest *rq;
	Etcdserverpb__LeaseKeepAliveResponse rs = ETCDSERVERPB__LEASE_KEEP_ALIVE_RESPONSE__INIT;
	UNPACK(lease_keep_alive_request, rq);
	rs.id = rq->id;
	rs.ttl = w->lease_is_gone ? 0 : 1;
	w->lease_is_gone = false;
	reply_send(c, &rs);
}

static void on_watch(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	const Etcdserverpb__WatchRequest *rq;
	Etcdserverpb__WatchResponse rs = ETCDSERVERPB__WATCH_RESPONSE__INIT;
	Etcdserverpb__ResponseHeader h = header_of(w);
	UNPACK(watch_request, rq);
	(void)rq;
	w->watch = c;
	rs.header = &h;
	rs.created = true;
	message_send(c, &rs);
}

static void on_half_close(struct grpc_call *c, void *user)
{
	(void)c;
	(void)user;
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct world *w = user;
	(void)why;
	if (w->watch == c)
		w->watch = NULL;
}

#define CALL(name)                                                                \
	static void name##_call(struct grpc_call *c, void *user)                  \
	{                                                                         \
		static const struct grpc_call_ops ops = {.on_message = on_##name, \
			.on_half_close = on_half_close,                           \
			.on_close = on_close};                                    \
		grpc_call_take(c, &ops, user);                                    \
	}
CALL(range)
CALL(put)
CALL(delete)
CALL(txn)
CALL(grant)
CALL(revoke)
CALL(keepalive)
CALL(watch)

static void etcd_start(struct world *w)
{
	static const struct grpc_method methods[] = {{"/etcdserverpb.KV/Range", range_call},
		{"/etcdserverpb.KV/Put", put_call}, {"/etcdserverpb.KV/DeleteRange", delete_call},
		{"/etcdserverpb.KV/Txn", txn_call}, {"/etcdserverpb.Lease/LeaseGrant", grant_call},
		{"/etcdserverpb.Lease/LeaseRevoke", revoke_call},
		{"/etcdserverpb.Lease/LeaseKeepAlive", keepalive_call},
		{"/etcdserverpb.Watch/Watch", watch_call}};
	struct cgn_err err;
	const struct grpc_server_cfg cfg = {.listen = {.addr = w->addr},
		.methods = methods,
		.n_methods = CGN_COUNT(methods)};
	if (!cgn_ok(grpc_server_new(w->l, &cfg, w, &w->server, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", grpc_server_port(w->server));
}

/* ---- the world ---- */

static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	struct cgn_err err;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	assert_non_null(w);
	(void)snprintf(w->dir, sizeof w->dir, "/tmp/cgn-state-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	cgn_timer_init(&w->tick, w->l, world_tick);
	cgn_timer_set(&w->tick, 1);
	w->revision = 1;
	(void)cgn_str_copyz(w->addr, sizeof w->addr, CGN_STR("127.0.0.1:0"));
	etcd_start(w);
	cgn_buf_fmt(&text,
		"[cluster]\nstate_backend = \"etcd\"\netcd_endpoints = [\"http://%s\"]\nstate_dir = \"%s\"\n"
		"lease = \"1s\"\n[agent]\nheartbeat = \"300ms\"\n",
		w->addr, w->dir);
	if (!cgn_ok(settings_load("test.toml", cgn_buf_view(&text), NULL, NULL, 0, &w->cfg, &err)))
		fail_msg("%s", err.msg);
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;
	char path[128];
	grpc_server_free(&w->server);
	cgn_timer_cancel(&w->tick);
	cgn_loop_free(&w->l);
	config_free(&w->cfg);
	cgn_buf_fini(&w->told);
	(void)snprintf(path, sizeof path, "%s/cognitora.members", w->dir);
	(void)remove(path);
	(void)snprintf(path, sizeof path, "%s/cognitora.lock", w->dir);
	(void)remove(path);
	assert_int_equal(remove(w->dir), 0);
	free(w);
	return 0;
}

/* ---- agents ---- */

static void on_announced(void *user, bool connected, const char *why)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, connected ? "up%s " : "down: %s; ", why);
}

static const struct state_announce_ops announce_ops = {on_announced};

static struct state_announce *agent_start(struct world *w, const char *address)
{
	struct state_announce *a = NULL;
	struct cgn_err err;
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	if (!cgn_ok(state_announce_open(w->l, w->cfg, test_telemetry(), &announce_ops, w, &a, &err)))
		fail_msg("%s", err.msg);
	n.id = (char[]){"n1"};
	n.address = (char *)(uintptr_t)address;
	state_announce_update(a, &n);
	return a;
}

static void agent_says(struct state_announce *a, const char *address)
{
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	n.id = (char[]){"n1"};
	n.address = (char *)(uintptr_t)address;
	state_announce_update(a, &n);
}

static bool is_at(struct world *w, const char *address)
{
	return strstr(value_of(w, NODE "n1"), address) != NULL;
}

static void on_left(void *arg)
{
	((struct world *)arg)->done++;
}

static void a_node_is_a_key_under_a_lease(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "h:1");
	until(w, was_told(&w->told, "up "));
	assert_true(is_at(w, "\"h:1\""));
	assert_int_equal(key_find(w, NODE "n1")->lease, w->lease);
	agent_says(a, "h:2");
	until(w, is_at(w, "\"h:2\""));
	agent_says(a, "h:3");
	agent_says(a, "h:4");
	until(w, is_at(w, "\"h:4\""));
	state_announce_leave(a, on_left, w);
	assert_int_equal(w->done, 0);
	until(w, w->done == 1);
	assert_int_equal(w->revoked, 1);
	assert_null(key_find(w, NODE "n1"));
	state_announce_close(&a);
	assert_string_equal(cgn_buf_z(&w->told), "up ");
	assert_int_equal(w->grants, 1);
}

static void a_put_that_fails_is_tried_again(void **state)
{
	struct world *w = *state;
	w->refuse = CGN_UNAVAILABLE;
	struct state_announce *a = agent_start(w, "h:1");
	until(w, w->refused == 2);
	assert_non_null(strstr(cgn_buf_z(&w->told), "down: "));
	w->refuse = CGN_FINE;
	until(w, was_told(&w->told, "up "));
	assert_true(is_at(w, "\"h:1\""));
	w->refuse = CGN_UNAVAILABLE; /* A change is not lost either. */
	forget_told(w);
	agent_says(a, "h:2");
	until(w, was_told(&w->told, "down: "));
	w->refuse = CGN_FINE;
	until(w, was_told(&w->told, "up "));
	assert_true(is_at(w, "\"h:2\""));
	state_announce_close(&a);
}

static void a_lease_that_is_lost_is_granted_anew(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "h:1");
	until(w, was_told(&w->told, "up "));
	key_delete(w, NODE "n1"); /* As etcd does when a lease ends. */
	w->lease_is_gone = true;  /* Noticed at the renewal. */
	until(w, is_at(w, "\"h:1\""));
	assert_int_equal(w->grants, 2);
	assert_int_equal(key_find(w, NODE "n1")->lease, w->lease);
	w->refuse = CGN_NOT_FOUND; /* Noticed at a put: "requested lease not found". */
	agent_says(a, "h:2");
	until(w, w->refused > 0);
	w->refuse = CGN_FINE;
	until(w, is_at(w, "\"h:2\""));
	assert_int_equal(key_find(w, NODE "n1")->lease, w->lease);
	assert_true(w->grants >= 3);
	state_announce_close(&a);
}

static void an_id_of_another_agent_is_taken_when_it_is_free(void **state)
{
	struct world *w = *state;
	key_put(w, NODE "n1", "{\"id\":\"n1\",\"address\":\"other:1\"}", 900);
	struct state_announce *a = agent_start(w, "h:1");
	until(w, was_told(&w->told, "down: "));
	assert_non_null(strstr(cgn_buf_z(&w->told), "\"n1\" is taken by the agent at other:1"));
	assert_true(is_at(w, "other:1"));
	key_delete(w, NODE "n1"); /* The other agent left. */
	until(w, was_told(&w->told, "up "));
	assert_true(is_at(w, "\"h:1\""));
	assert_int_equal(key_find(w, NODE "n1")->lease, w->lease);
	state_announce_close(&a);
}

static void a_restarted_agent_takes_its_own_key_over(void **state)
{
	struct world *w = *state;
	key_put(w, NODE "n1", "{\"id\":\"n1\",\"address\":\"h:1\"}", 900);
	struct state_announce *a = agent_start(w, "h:1");
	until(w, was_told(&w->told, "up "));
	assert_int_equal(key_find(w, NODE "n1")->lease, w->lease);
	key_put(w, NODE "n1", "no node", 901); /* Someone wrote over it. */
	agent_says(a, "h:2");
	until(w, is_at(w, "\"h:2\""));
	assert_string_equal(cgn_buf_z(&w->told), "up ");
	state_announce_close(&a);
}

static void leaving_without_a_lease_ends_too(void **state)
{
	struct world *w = *state;
	grpc_server_free(&w->server);
	struct state_announce *a = agent_start(w, "h:1");
	until(w, was_told(&w->told, "down: "));
	state_announce_leave(a, on_left, w);
	until(w, w->done == 1);
	assert_int_equal(w->revoked, 0);
	state_announce_close(&a);
}

/* ---- routers ---- */

static void on_node(void *user, const Cognitora__V1__Node *node)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "+%s@%s ", node->id, node->address);
}

static void on_gone(void *user, const char *id)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "-%s ", id);
}

static void on_cordon(void *user, const char *id, bool on)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "%s:%s ", on ? "cordon" : "uncordon", id);
}

static void on_connected(void *user, bool connected, const char *why)
{
	struct world *w = user;
	(void)why;
	cgn_buf_putz(&w->told, connected ? "up " : "down ");
}

static void on_policy(void *user, struct cgn_str text, const char *where)
{
	struct world *w = user;
	assert_string_equal(where, "/cognitora/cognitora/routing/policy");
	cgn_buf_fmt(&w->told, "policy:%.*s ", CGN_STR_ARG(text));
}

static void on_knowledge(void *user, enum state_knowledge k)
{
	struct world *w = user;
	cgn_buf_putz(&w->told, k == STATE_HEARD ? "heard " : k == STATE_STALE ? "stale " : "unheard ");
}

static const struct state_watch_ops watch_ops = {.on_node = on_node,
	.on_gone = on_gone,
	.on_cordon = on_cordon,
	.on_connected = on_connected,
	.on_policy = on_policy,
	.on_knowledge = on_knowledge};

static struct state_watch *router_start(struct world *w)
{
	struct state_watch *s = NULL;
	struct cgn_err err;
	forget_told(w);
	if (!cgn_ok(state_watch_open(w->l, w->cfg, test_telemetry(), &watch_ops, w, &s, &err)))
		fail_msg("%s", err.msg);
	return s;
}

static void on_done(void *user, const struct cgn_err *err)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "done:%s ", cgn_code_name(err->code));
	if (err->code != CGN_FINE)
		cgn_buf_fmt(&w->told, "(%s) ", err->msg);
}

static void nodes_in_etcd_come_change_and_go(void **state)
{
	struct world *w = *state;
	key_put(w, NODE "n1", "{\"id\":\"n1\",\"address\":\"h:1\"}", 0);
	key_put(w, "/cognitora/cognitora/cordon/n1", "true", 0);
	key_put(w, "/cognitora/cognitora/routing/policy", "{}", 0);
	struct state_watch *s = router_start(w);
	until(w, was_told(&w->told, "heard ") && w->watch != NULL && was_told(&w->told, "up "));
	assert_true(was_told(&w->told, "+n1@h:1 cordon:n1 policy:{} "));
	assert_true(state_watch_cordoned(s, "n1"));
	forget_told(w);
	key_put(w, NODE "n2", "{\"id\":\"other\",\"address\":\"h:2\"}", 0); /* Neither of these is a node. */
	key_put(w, NODE "n3", "nonsense", 0);
	key_put(w, NODE "n2", "{\"id\":\"n2\",\"address\":\"h:2\"}", 0);
	key_put(w, NODE "n2", "{\"id\":\"n2\",\"address\":\"h:3\"}", 0);
	key_delete(w, NODE "n2");
	key_delete(w, NODE "n3");
	key_delete(w, "/cognitora/cognitora/cordon/n1");
	key_delete(w, "/cognitora/cognitora/routing/policy");
	until(w, was_told(&w->told, "policy: "));
	assert_string_equal(cgn_buf_z(&w->told), "+n2@h:2 +n2@h:3 -n2 uncordon:n1 policy: ");
	state_watch_close(&s);
}

static void cordons_and_policies_are_written_to_etcd(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	struct state_watch *s = router_start(w);
	until(w, w->watch != NULL && was_told(&w->told, "up "));
	forget_told(w);
	assert_true(cgn_ok(state_cordon(s, "n1", true, on_done, w, &err)));
	assert_int_equal(w->told.n, 0); /* Never inline. */
	until(w, was_told(&w->told, "done:FINE "));
	assert_string_equal(cgn_buf_z(&w->told),
		"cordon:n1 done:FINE "); /* The cordon comes before |done|, and once. */
	assert_string_equal(value_of(w, "/cognitora/cognitora/cordon/n1"), "true");
	forget_told(w);
	assert_true(cgn_ok(state_policy_put(s, CGN_STR("{\"x\":1}"), on_done, w, &err)));
	until(w, was_told(&w->told, "done:FINE "));
	assert_string_equal(cgn_buf_z(&w->told), "policy:{\"x\":1} done:FINE ");
	assert_string_equal(value_of(w, state_policy_where(s)), "{\"x\":1}");
	forget_told(w);
	/* The second change was computed from a policy that the first one replaced. */
	assert_true(cgn_ok(state_policy_put(s, CGN_STR("{\"x\":2}"), on_done, w, &err)));
	assert_true(cgn_ok(state_policy_put(s, CGN_STR("{\"x\":3}"), on_done, w, &err)));
	until(w, was_told(&w->told, "done:CONFLICT "));
	assert_non_null(strstr(cgn_buf_z(&w->told), "policy:{\"x\":2} done:FINE "));
	assert_string_equal(value_of(w, state_policy_where(s)), "{\"x\":2}");
	forget_told(w);
	assert_true(cgn_ok(state_cordon(s, "n1", false, on_done, w, &err)));
	until(w, was_told(&w->told, "done:FINE "));
	assert_string_equal(cgn_buf_z(&w->told), "uncordon:n1 done:FINE ");
	assert_null(key_find(w, "/cognitora/cognitora/cordon/n1"));
	w->refuse = CGN_UNAVAILABLE;
	forget_told(w);
	assert_true(cgn_ok(state_cordon(s, "n2", true, on_done, w, &err)));
	until(w, was_told(&w->told, "done:UNAVAILABLE "));
	assert_non_null(strstr(cgn_buf_z(&w->told), "etcd did not take the cordon: "));
	assert_false(state_watch_cordoned(s, "n2"));
	forget_told(w);
	assert_true(cgn_ok(state_policy_put(s, CGN_STR(""), on_done, w, &err)));
	state_watch_close(&s); /* Requests under way end with it. */
	assert_non_null(strstr(cgn_buf_z(&w->told), "done:CANCELLED "));
}

static void a_router_that_starts_without_etcd_knows_the_last_membership(void **state)
{
	struct world *w = *state;
	key_put(w, NODE "n1", "{\"id\":\"n1\",\"address\":\"h:1\"}", 0);
	key_put(w, NODE "n2", "{\"id\":\"n2\",\"address\":\"h:2\"}", 0);
	key_put(w, "/cognitora/cognitora/cordon/n2", "true", 0);
	key_put(w, "/cognitora/cognitora/cordon/n4", "true", 0);
	key_put(w, "/cognitora/cognitora/routing/policy", "{}", 0);
	struct state_watch *s = router_start(w);
	until(w, was_told(&w->told, "heard "));
	state_watch_close(&s); /* Writes due records. */
	until(w, w->watch == NULL);
	grpc_server_free(&w->server);
	s = router_start(w);
	until(w, was_told(&w->told, "stale "));
	assert_true(was_told(&w->told, "+n1@h:1 ") && was_told(&w->told, "+n2@h:2 ") &&
		was_told(&w->told, "policy:{} "));
	assert_true(state_watch_cordoned(s, "n2") && state_watch_cordoned(s, "n4"));
	key_delete(w, NODE "n1"); /* While it is away. */
	key_delete(w, "/cognitora/cognitora/cordon/n2");
	forget_told(w);
	etcd_start(w);
	until(w, was_told(&w->told, "heard "));
	assert_true(was_told(&w->told, "-n1 ") && was_told(&w->told, "uncordon:n2 "));
	assert_false(was_told(&w->told, "n4 ") || was_told(&w->told, "n2@") || was_told(&w->told, "policy"));
	state_watch_close(&s);
}

/* The policy is removed while the router can't hear of it. */
static void a_policy_that_is_gone_when_etcd_comes_back_holds_no_more(void **state)
{
	struct world *w = *state;
	key_put(w, NODE "n1", "{\"id\":\"n1\",\"address\":\"h:1\"}", 0);
	key_put(w, "/cognitora/cognitora/routing/policy", "{}", 0);
	struct state_watch *s = router_start(w);
	until(w, was_told(&w->told, "heard "));
	state_watch_close(&s);
	until(w, w->watch == NULL);
	grpc_server_free(&w->server);
	s = router_start(w);
	until(w, was_told(&w->told, "stale "));
	assert_true(was_told(&w->told, "policy:{} "));
	key_delete(w, "/cognitora/cognitora/routing/policy");
	forget_told(w);
	etcd_start(w);
	until(w, was_told(&w->told, "heard "));
	assert_true(was_told(&w->told, "policy: "));
	state_watch_close(&s);
}

/* ---- stores ---- */

static void on_store(void *user, const struct state_store *s)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "+%s@%s ", s->node_id, s->address);
}

static const struct state_stores_ops stores_ops = {on_store, on_gone};

static void stores_are_those_of_nodes_in_use(void **state)
{
	struct world *w = *state;
	struct state_stores *s = NULL;
	static const char n1[] = "{\"id\":\"n1\",\"address\":\"h:1\",\"kv\":{\"quicAddress\":\"h:9\"}}";
	key_put(w, NODE "n1", n1, 0);
	key_put(w, NODE "n2", "{\"id\":\"n2\",\"address\":\"h:2\"}", 0); /* This one has no store. */
	assert_true(cgn_ok(state_stores_open(w->l, w->cfg, test_telemetry(), &stores_ops, w, &s, NULL)));
	until(w, was_told(&w->told, "+n1@h:9 ") && w->watch != NULL);
	forget_told(w);
	key_put(w, "/cognitora/cognitora/cordon/n1", "true", 0);
	until(w, was_told(&w->told, "-n1 "));
	forget_told(w);
	key_delete(w, "/cognitora/cognitora/cordon/n1");
	until(w, was_told(&w->told, "+n1@h:9 "));
	forget_told(w);
	key_put(w, NODE "n1",
		"{\"id\":\"n1\",\"address\":\"h:1\",\"draining\":true,\"kv\":{\"quicAddress\":\"h:9\"}}", 0);
	until(w, was_told(&w->told, "-n1 "));
	forget_told(w);
	key_put(w, NODE "n1", n1, 0);
	until(w, was_told(&w->told, "+n1@h:9 "));
	key_delete(w, NODE "n2");
	key_delete(w, NODE "n1");
	until(w, was_told(&w->told, "-n1 "));
	assert_string_equal(cgn_buf_z(&w->told), "+n1@h:9 -n1 ");
	state_stores_close(&s);
}

/* ---- the leader ---- */

#define LEADER "/cognitora/cognitora/autoscaler/leader"

static void one_router_leads_until_its_lease_ends(void **state)
{
	struct world *w = *state;
	struct state_leader *a = NULL, *b = NULL;
	struct cgn_err err;
	assert_true(cgn_ok(state_leader_open(w->l, w->cfg, "router-a", &a, &err)));
	assert_false(state_leader_is(a)); /* Not before etcd said so. */
	until(w, state_leader_is(a));
	assert_string_equal(value_of(w, LEADER), "router-a");
	assert_true(cgn_ok(state_leader_open(w->l, w->cfg, "router-b", &b, &err)));
	until(w, w->grants == 2);
	assert_false(state_leader_is(b));
	state_leader_close(&a);
	key_delete(w, LEADER); /* The lease has ended. */
	until(w, state_leader_is(b));
	assert_string_equal(value_of(w, LEADER), "router-b");
	w->lease_is_gone = true;
	until(w, w->grants == 3 && !state_leader_is(b)); /* The key is of the lease that is lost. */
	key_delete(w, LEADER);
	until(w, state_leader_is(b));
	state_leader_close(&b);
}

static void a_router_without_etcd_leads_no_longer_than_its_lease(void **state)
{
	struct world *w = *state;
	struct state_leader *a = NULL;
	assert_true(cgn_ok(state_leader_open(w->l, w->cfg, "router-a", &a, NULL)));
	until(w, state_leader_is(a));
	grpc_server_free(&w->server);
	until(w, !state_leader_is(a));
	state_leader_close(&a);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_node_is_a_key_under_a_lease),
		TEST(a_put_that_fails_is_tried_again),
		TEST(a_lease_that_is_lost_is_granted_anew),
		TEST(an_id_of_another_agent_is_taken_when_it_is_free),
		TEST(a_restarted_agent_takes_its_own_key_over),
		TEST(leaving_without_a_lease_ends_too),
		TEST(nodes_in_etcd_come_change_and_go),
		TEST(cordons_and_policies_are_written_to_etcd),
		TEST(a_router_that_starts_without_etcd_knows_the_last_membership),
		TEST(a_policy_that_is_gone_when_etcd_comes_back_holds_no_more),
		TEST(stores_are_those_of_nodes_in_use),
		TEST(one_router_leads_until_its_lease_ends),
		TEST(a_router_without_etcd_leads_no_longer_than_its_lease),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
