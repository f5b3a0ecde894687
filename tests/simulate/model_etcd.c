/* SPDX-License-Identifier: Apache-2.0 */
/* model_etcd: members, and how they serve. The data is the scenario's memory: a member that is killed has written
 * everything that it acknowledged. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../world/world_priv.h"
#include "base/pb/pb.h"
#include "etcd/etcd.pb-c.h"
#include "io/wire/grpc/grpc.h"
#include "model_etcd.h"
#include "mvcc.h"

#define TICK          (500 * WORLD_MS) /* How often etcd looks for leases that have ended */
#define PROGRESS_LAST (40 * WORLD_SEC)
#define BATCH         64 /* Events in a message of a watch */

struct member {
	struct model_etcd *e;
	size_t number;
	struct world_host *host;
	struct world_proc *proc;
	bool isolated, ends_watches;
	bool ready; /* The process takes SIGUSR1 */
	uint64_t slow;
	size_t applied;   /* Events that this member knows */
	int64_t revision; /* The newest revision in these events */
	/* In the member's own process: */
	struct cgn_loop *loop;
	struct cgn_link watchers;
};
struct model_etcd {
	struct mvcc data, saved;
	struct member members[ETCD_MEMBERS];
	size_t n;
	bool worked; /* At the last tick */
	uint64_t clusters;
};
static struct model_etcd *the_etcd; /* A world has one. */

/* ---- the members' knowledge ---- */

static bool member_works(const struct member *m)
{
	return m->proc != NULL && world_alive(m->proc) && !m->proc->paused && !m->isolated;
}

bool model_etcd_works(const struct model_etcd *e)
{
	size_t n = 0;
	for (size_t i = 0; i < e->n; i++)
		n += member_works(&e->members[i]);
	return n > e->n / 2;
}

/* Is the member one of those that agree? */
static bool member_serves(const struct member *m)
{
	return member_works(m) && model_etcd_works(m->e);
}

static void member_learn(struct member *m)
{
	if (!member_serves(m))
		return;
	m->applied = m->e->data.n;
	m->revision = m->e->data.revision;
}

/* The data has changed: each member that works learns it, and tells its watchers. */
static void members_tell(struct model_etcd *e)
{
	for (size_t i = 0; i < e->n; i++) {
		member_learn(&e->members[i]);
		if (e->members[i].proc != NULL && e->members[i].ready)
			world_signal(e->members[i].proc, SIGUSR1);
	}
}

static void on_tick(void *arg, uint64_t tag)
{
	struct model_etcd *e = arg;
	bool works = model_etcd_works(e);
	if (works && !e->worked)
		mvcc_elect(&e->data, world_now());
	if (works && (mvcc_expire(&e->data, world_now()) > 0 || !e->worked))
		members_tell(e);
	e->worked = works;
	event_at(world_now() + TICK, on_tick, e, tag);
}

/* ---- messages ---- */

static ProtobufCBinaryData data_of(const char *p, size_t n)
{
	return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)p};
}

static struct cgn_str str_of(ProtobufCBinaryData d)
{
	return (struct cgn_str){(const char *)d.data, d.len};
}

static Etcdserverpb__KeyValue kv_of(const struct mvcc_event *e)
{
	Etcdserverpb__KeyValue kv = ETCDSERVERPB__KEY_VALUE__INIT;
	kv.key = data_of(e->key, e->key_n);
	kv.value = data_of(e->value, e->value_n);
	kv.create_revision = e->create;
	kv.mod_revision = e->revision;
	kv.version = e->version;
	kv.lease = e->lease;
	return kv;
}

static Etcdserverpb__ResponseHeader header_of(const struct member *m)
{
	Etcdserverpb__ResponseHeader h = ETCDSERVERPB__RESPONSE_HEADER__INIT;
	h.cluster_id = m->e->data.cluster;
	h.member_id = m->number + 1;
	h.revision = m->revision;
	h.raft_term = m->e->data.term;
	return h;
}

/* ---- calls: a request is read, and its answer written to |out|; else the error's |why| ---- */

struct answer {
	struct member *m;
	struct cgn_buf *out;
	const char *why;
};
#define UNPACK(type, out)                                                                    \
	CGN_ON_EXIT(pb_free) void *unpacked = NULL;                                          \
	struct cgn_err bad;                                                                  \
	if (!cgn_ok(pb_unpack(&etcdserverpb__##type##__descriptor, bytes, &unpacked, &bad))) \
		world_fail("etcd gets a message that it cannot read: %s", bad.msg);          \
	(out) = unpacked
#define REPLY(a, rs)                                             \
	Etcdserverpb__ResponseHeader header = header_of((a)->m); \
	(rs).header = &header;                                   \
	pb_pack(&(rs), (a)->out)

struct range_keys {
	Etcdserverpb__KeyValue kv[MVCC_KEYS], *kvs[MVCC_KEYS];
};

static void range_fill(struct mvcc *data, const struct mvcc_range *r, Etcdserverpb__RangeResponse *rs,
	struct range_keys *keys)
{
	const struct mvcc_event *v[MVCC_KEYS];
	size_t n = mvcc_range(data, r, v);
	rs->count = (int64_t)n;
	rs->more = r->limit > 0 && n > (size_t)r->limit;
	rs->n_kvs = rs->more ? (size_t)r->limit : n;
	for (size_t i = 0; i < rs->n_kvs; i++) {
		keys->kv[i] = kv_of(v[i]);
		keys->kvs[i] = &keys->kv[i];
	}
	rs->kvs = keys->kvs;
}

static struct mvcc_range range_of(const Etcdserverpb__RangeRequest *rq)
{
	return (struct mvcc_range){str_of(rq->key), str_of(rq->range_end), rq->revision, rq->limit};
}

static enum cgn_code range_run(struct answer *a, struct cgn_str bytes)
{
	const Etcdserverpb__RangeRequest *rq;
	Etcdserverpb__RangeResponse rs = ETCDSERVERPB__RANGE_RESPONSE__INIT;
	struct range_keys keys;
	UNPACK(range_request, rq);
	struct mvcc_range r = range_of(rq);
	if (r.revision > 0 && r.revision < a->m->e->data.compacted) {
		a->why = "etcdserver: mvcc: required revision has been compacted";
		return CGN_TOO_LARGE;
	}
	if (r.revision > a->m->e->data.revision) {
		a->why = "etcdserver: mvcc: required revision is a future revision";
		return CGN_TOO_LARGE;
	}
	range_fill(&a->m->e->data, &r, &rs, &keys);
	REPLY(a, rs);
	return CGN_FINE;
}

static bool put_do(struct answer *a, const Etcdserverpb__PutRequest *rq)
{
	if (rq->lease != 0 && mvcc_lease(&a->m->e->data, rq->lease) == NULL) {
		a->why = "etcdserver: requested lease not found";
		return false;
	}
	mvcc_put(&a->m->e->data, str_of(rq->key), str_of(rq->value), rq->lease, world_now());
	member_learn(a->m);
	return true;
}

static enum cgn_code put_run(struct answer *a, struct cgn_str bytes)
{
	const Etcdserverpb__PutRequest *rq;
	Etcdserverpb__PutResponse rs = ETCDSERVERPB__PUT_RESPONSE__INIT;
	UNPACK(put_request, rq);
	if (!put_do(a, rq))
		return CGN_NOT_FOUND;
	REPLY(a, rs);
	return CGN_FINE;
}

static enum cgn_code delete_run(struct answer *a, struct cgn_str bytes)
{
	const Etcdserverpb__DeleteRangeRequest *rq;
	Etcdserverpb__DeleteRangeResponse rs = ETCDSERVERPB__DELETE_RANGE_RESPONSE__INIT;
	UNPACK(delete_range_request, rq);
	struct mvcc_range r = {.key = str_of(rq->key), .end = str_of(rq->range_end)};
	rs.deleted = (int64_t)mvcc_delete(&a->m->e->data, &r, world_now());
	member_learn(a->m);
	REPLY(a, rs);
	return CGN_FINE;
}

/* The one transaction of the product: put the key if it has a revision, else read it. */
static enum cgn_code txn_run(struct answer *a, struct cgn_str bytes)
{
	const Etcdserverpb__TxnRequest *rq;
	Etcdserverpb__TxnResponse rs = ETCDSERVERPB__TXN_RESPONSE__INIT;
	Etcdserverpb__ResponseOp op = ETCDSERVERPB__RESPONSE_OP__INIT, *ops = &op;
	Etcdserverpb__RangeResponse range = ETCDSERVERPB__RANGE_RESPONSE__INIT;
	Etcdserverpb__PutResponse put = ETCDSERVERPB__PUT_RESPONSE__INIT;
	struct range_keys keys;
	UNPACK(txn_request, rq);
	if (rq->n_compare != 1 || rq->n_success != 1 || rq->n_failure != 1)
		world_fail("etcd gets a transaction that the model lacks");
	const struct mvcc_event *had = mvcc_get(&a->m->e->data, str_of(rq->compare[0]->key));
	rs.succeeded = (had != NULL ? had->revision : 0) == rq->compare[0]->mod_revision;
	if (rs.succeeded && !put_do(a, rq->success[0]->request_put))
		return CGN_NOT_FOUND;
	if (!rs.succeeded) {
		struct mvcc_range r = range_of(rq->failure[0]->request_range);
		range_fill(&a->m->e->data, &r, &range, &keys);
		op.response_case = ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE;
		op.response_range = &range;
	} else {
		op.response_case = ETCDSERVERPB__RESPONSE_OP__RESPONSE_RESPONSE_PUT;
		op.response_put = &put;
	}
	rs.n_responses = 1;
	rs.responses = &ops;
	REPLY(a, rs);
	return CGN_FINE;
}

static enum cgn_code grant_run(struct answer *a, struct cgn_str bytes)
{
	const Etcdserverpb__LeaseGrantRequest *rq;
	Etcdserverpb__LeaseGrantResponse rs = ETCDSERVERPB__LEASE_GRANT_RESPONSE__INIT;
	UNPACK(lease_grant_request, rq);
	int64_t id = rq->id != 0 ? rq->id : (int64_t)(1 + world_draw(INT64_MAX - 1));
	(void)mvcc_grant(&a->m->e->data, id, rq->ttl, world_now());
	rs.id = id;
	rs.ttl = rq->ttl;
	rs.error = (char[]){""};
	REPLY(a, rs);
	return CGN_FINE;
}

static enum cgn_code revoke_run(struct answer *a, struct cgn_str bytes)
{
	const Etcdserverpb__LeaseRevokeRequest *rq;
	Etcdserverpb__LeaseRevokeResponse rs = ETCDSERVERPB__LEASE_REVOKE_RESPONSE__INIT;
	UNPACK(lease_revoke_request, rq);
	struct mvcc_lease *l = mvcc_lease(&a->m->e->data, rq->id);
	if (l == NULL) {
		a->why = "etcdserver: requested lease not found";
		return CGN_NOT_FOUND;
	}
	mvcc_revoke(&a->m->e->data, l, world_now());
	member_learn(a->m);
	REPLY(a, rs);
	return CGN_FINE;
}

static enum cgn_code keepalive_run(struct answer *a, struct cgn_str bytes)
{
	const Etcdserverpb__LeaseKeepAliveRequest *rq;
	Etcdserverpb__LeaseKeepAliveResponse rs = ETCDSERVERPB__LEASE_KEEP_ALIVE_RESPONSE__INIT;
	UNPACK(lease_keep_alive_request, rq);
	struct mvcc_lease *l = mvcc_lease(&a->m->e->data, rq->id);
	if (l != NULL)
		l->ends = world_now() + (uint64_t)l->ttl * WORLD_SEC;
	rs.id = rq->id;
	rs.ttl = l != NULL ? l->ttl : 0;
	REPLY(a, rs);
	return CGN_FINE;
}

/* ---- orders: a call, its delay, its answer ---- */

struct order {
	struct member *m;
	struct grpc_call *call;
	struct cgn_timer timer;
	struct cgn_buf request, answer;
	enum cgn_code (*run)(struct answer *a, struct cgn_str bytes);
	enum cgn_code code;
	const char *why;
	bool made; /* The change is made, and the answer is late */
};

static void order_answer(struct order *o)
{
	if (o->code == CGN_FINE)
		grpc_send(o->call, &(struct iovec){o->answer.p, o->answer.n}, o->answer.n > 0);
	grpc_finish(o->call, o->code, o->why);
}

static void order_make(struct order *o)
{
	struct answer a = {.m = o->m, .out = &o->answer};
	size_t events = o->m->e->data.n;
	o->made = true;
	if (!member_serves(o->m)) {
		o->code = CGN_UNAVAILABLE;
		o->why = "etcdserver: no leader";
		return;
	}
	member_learn(o->m);
	o->code = o->run(&a, cgn_buf_view(&o->request));
	o->why = a.why;
	if (o->m->e->data.n != events)
		members_tell(o->m->e);
}

static void on_order_timer(struct cgn_timer *t)
{
	struct order *o = CGN_CONTAINER(t, struct order, timer);
	if (!o->made)
		order_make(o);
	order_answer(o);
}

static void on_order_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct order *o = user;
	(void)c;
	cgn_buf_add(&o->request, p, n);
	if (!member_serves(o->m) && world_chance(2))
		return; /* Without the others it waits for them, longer than the client does */
	if (o->m->slow == 0) {
		order_make(o);
		order_answer(o);
		return;
	}
	if (world_chance(2))
		order_make(o);
	cgn_timer_set(&o->timer, 1 + world_draw(o->m->slow));
}

static void on_half_close(struct grpc_call *c, void *user)
{
	(void)c;
	(void)user;
}

static void on_order_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct order *o = user;
	(void)c;
	(void)why;
	cgn_timer_cancel(&o->timer);
	cgn_buf_fini(&o->request);
	cgn_buf_fini(&o->answer);
	free(o);
}

static void order_begin(struct grpc_call *c, void *user,
	enum cgn_code (*run)(struct answer *a, struct cgn_str bytes))
{
	static const struct grpc_call_ops ops = {.on_message = on_order_message,
		.on_half_close = on_half_close,
		.on_close = on_order_close};
	struct order *o = CGN_NEW(struct order);
	*o = (struct order){.m = user, .call = c, .run = run};
	cgn_timer_init(&o->timer, o->m->loop, on_order_timer);
	grpc_call_take(c, &ops, o);
}

#define CALL(name)                                               \
	static void name##_call(struct grpc_call *c, void *user) \
	{                                                        \
		order_begin(c, user, name##_run);                \
	}
CALL(range)
CALL(put)
CALL(delete)
CALL(txn)
CALL(grant)
CALL(revoke)
CALL(keepalive)

/* ---- watches ---- */

struct watcher {
	struct cgn_link link;
	struct member *m;
	struct grpc_call *call;
	struct cgn_timer
		timer; /* The next batch, when the member is slow; else the next notice of progress */
	bool created, progress;
	char *key, *end;
	struct mvcc_range range;
	int64_t from; /* The first revision that was not sent */
};

static void watch_send(struct watcher *w, Etcdserverpb__WatchResponse *rs)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	Etcdserverpb__ResponseHeader h = header_of(w->m);
	rs->header = &h;
	if (rs->cancel_reason == NULL)
		rs->cancel_reason = (char[]){""};
	pb_pack(rs, &b);
	grpc_send(w->call, &(struct iovec){b.p, b.n}, 1);
}

/* Send the next events that the member knows; all of one revision go together. Returns how many. */
static size_t watch_batch(struct watcher *w)
{
	Etcdserverpb__WatchResponse rs = ETCDSERVERPB__WATCH_RESPONSE__INIT;
	Etcdserverpb__Event events[BATCH + MVCC_KEYS], *list[BATCH + MVCC_KEYS];
	Etcdserverpb__KeyValue kvs[BATCH + MVCC_KEYS];
	const struct mvcc *data = &w->m->e->data;
	for (size_t i = 0; i < w->m->applied; i++) {
		const struct mvcc_event *e = &data->events[i];
		if (e->revision < w->from || !mvcc_in_range(&w->range, (struct cgn_str){e->key, e->key_n}))
			continue;
		if (rs.n_events >= 1 + world_draw(BATCH) && e->revision != kvs[rs.n_events - 1].mod_revision)
			break;
		kvs[rs.n_events] = kv_of(e);
		events[rs.n_events] = (Etcdserverpb__Event)ETCDSERVERPB__EVENT__INIT;
		events[rs.n_events].type = e->put ? ETCDSERVERPB__EVENT__EVENT_TYPE__PUT
						  : ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE;
		events[rs.n_events].kv = &kvs[rs.n_events];
		list[rs.n_events] = &events[rs.n_events];
		rs.n_events++;
	}
	if (rs.n_events == 0)
		return 0;
	rs.events = list;
	w->from = kvs[rs.n_events - 1].mod_revision + 1;
	watch_send(w, &rs);
	return rs.n_events;
}

static void watch_pump(struct watcher *w)
{
	if (!w->created)
		return;
	while (watch_batch(w) > 0)
		if (w->m->slow > 0) {
			cgn_timer_set(&w->timer, 1 + world_draw(w->m->slow));
			return;
		}
	if (w->progress && w->timer.at == 0)
		cgn_timer_set(&w->timer, WORLD_SEC + world_draw(PROGRESS_LAST));
}

static void on_watch_timer(struct cgn_timer *t)
{
	struct watcher *w = CGN_CONTAINER(t, struct watcher, timer);
	Etcdserverpb__WatchResponse rs = ETCDSERVERPB__WATCH_RESPONSE__INIT;
	if (watch_batch(w) == 0 && w->progress && member_serves(w->m) && w->m->slow == 0)
		watch_send(w, &rs);
	watch_pump(w);
}

static void watch_create(struct watcher *w, const Etcdserverpb__WatchCreateRequest *rq)
{
	Etcdserverpb__WatchResponse rs = ETCDSERVERPB__WATCH_RESPONSE__INIT;
	w->key = cgn_str_dupz(str_of(rq->key));
	w->end = cgn_str_dupz(str_of(rq->range_end));
	w->range = (struct mvcc_range){.key = {w->key, rq->key.len}, .end = {w->end, rq->range_end.len}};
	w->progress = rq->progress_notify;
	w->from = rq->start_revision > 0 ? rq->start_revision : w->m->revision + 1;
	rs.created = true;
	watch_send(w, &rs);
	if (w->from <= w->m->e->data.compacted) {
		rs.created = false;
		rs.canceled = true;
		rs.compact_revision = w->m->e->data.compacted;
		watch_send(w, &rs);
		return;
	}
	w->created = true;
	watch_pump(w);
}

static void on_watch_message(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct cgn_str bytes = {(const char *)p, n};
	struct watcher *w = user;
	const Etcdserverpb__WatchRequest *rq;
	(void)c;
	UNPACK(watch_request, rq);
	if (rq->request_union_case == ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST &&
		w->key == NULL)
		watch_create(w, rq->create_request);
}

static void on_watch_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	struct watcher *w = user;
	(void)c;
	(void)why;
	cgn_list_drop(&w->link);
	cgn_timer_cancel(&w->timer);
	free(w->key);
	free(w->end);
	free(w);
}

static void watch_call(struct grpc_call *c, void *user)
{
	static const struct grpc_call_ops ops = {.on_message = on_watch_message,
		.on_half_close = on_half_close,
		.on_close = on_watch_close};
	struct watcher *w = CGN_NEW(struct watcher);
	*w = (struct watcher){.m = user, .call = c};
	cgn_timer_init(&w->timer, w->m->loop, on_watch_timer);
	cgn_list_push(&w->m->watchers, &w->link);
	grpc_call_take(c, &ops, w);
}

/* ---- a member's process ---- */

static void on_news(void *arg, int signo)
{
	struct member *m = arg;
	(void)signo;
	cgn_list_each_safe (l, &m->watchers) {
		struct watcher *w = CGN_CONTAINER(l, struct watcher, link);
		if (m->ends_watches)
			grpc_finish(w->call, CGN_UNAVAILABLE, "etcdserver: server stopped");
		else
			watch_pump(w);
	}
	m->ends_watches = false;
}

static const struct grpc_method methods[] = {{"/etcdserverpb.KV/Range", range_call, 0},
	{"/etcdserverpb.KV/Put", put_call, 0}, {"/etcdserverpb.KV/DeleteRange", delete_call, 0},
	{"/etcdserverpb.KV/Txn", txn_call, 0}, {"/etcdserverpb.Lease/LeaseGrant", grant_call, 0},
	{"/etcdserverpb.Lease/LeaseRevoke", revoke_call, 0},
	{"/etcdserverpb.Lease/LeaseKeepAlive", keepalive_call, 0},
	{"/etcdserverpb.Watch/Watch", watch_call, 0}};

static int member_main(int argc, char **argv)
{
	struct member *m = &the_etcd->members[argc > 1 ? atoi(argv[1]) : 0];
	struct grpc_server *server;
	struct cgn_err err;
	const struct grpc_server_cfg cfg = {.listen = {.addr = "0.0.0.0:2379"},
		.methods = methods,
		.n_methods = CGN_COUNT(methods)};
	cgn_list_init(&m->watchers);
	if (!cgn_ok(cgn_loop_new(&m->loop, &err)) ||
		!cgn_ok(cgn_loop_signal(m->loop, SIGUSR1, on_news, m, &err)) ||
		!cgn_ok(grpc_server_new(m->loop, &cfg, m, &server, &err)))
		world_fail("etcd cannot serve: %s", err.msg);
	m->ready = true;
	cgn_loop_run(m->loop);
	return 0;
}

/* ---- for scenarios ---- */

struct model_etcd *model_etcd_new(struct world_host *const *hosts, size_t n)
{
	struct model_etcd *e = CGN_NEW(struct model_etcd);
	e->n = n;
	mvcc_init(&e->data, 0x1000 + ++e->clusters);
	mvcc_init(&e->saved, 0);
	for (size_t i = 0; i < n; i++)
		e->members[i] = (struct member){.e = e, .number = i, .host = hosts[i], .revision = 1};
	the_etcd = e;
	on_tick(e, 0);
	return e;
}

void model_etcd_start(struct model_etcd *e, size_t member)
{
	char number[24];
	struct member *m = &e->members[member];
	if (m->proc != NULL && world_alive(m->proc))
		return;
	(void)snprintf(number, sizeof number, "%zu", member);
	const char *const argv[] = {"etcd", number, NULL};
	m->isolated = m->ends_watches = m->ready = false;
	m->slow = 0;
	m->proc = world_start(m->host, "etcd", member_main, argv);
	members_tell(e);
}

void model_etcd_kill(struct model_etcd *e, size_t member)
{
	if (e->members[member].proc != NULL)
		world_kill(e->members[member].proc);
}

bool model_etcd_runs(const struct model_etcd *e, size_t member)
{
	return e->members[member].proc != NULL && world_alive(e->members[member].proc);
}

bool model_etcd_healthy(const struct model_etcd *e, size_t member)
{
	return member_serves(&e->members[member]) && e->members[member].slow == 0;
}

void model_etcd_pause(struct model_etcd *e, size_t member, bool paused)
{
	if (model_etcd_runs(e, member))
		world_pause(e->members[member].proc, paused);
	members_tell(e);
}

void model_etcd_isolate(struct model_etcd *e, size_t member, bool isolated)
{
	e->members[member].isolated = isolated;
	world_tell("etcd %zu %s", member,
		isolated ? "hears nothing of the others" : "hears the others again");
	members_tell(e);
}

void model_etcd_slow(struct model_etcd *e, size_t member, uint64_t most)
{
	e->members[member].slow = most;
	world_tell("etcd %zu answers within %.3f s", member, (double)most / 1e9);
}

void model_etcd_end_watches(struct model_etcd *e, size_t member)
{
	e->members[member].ends_watches = true;
	world_tell("etcd %zu ends its watches", member);
	members_tell(e);
}

static void members_must_be_dead(struct model_etcd *e)
{
	for (size_t i = 0; i < e->n; i++) {
		if (model_etcd_runs(e, i))
			world_fail("the scenario changes the data of an etcd that runs");
		e->members[i].applied = 0;
		e->members[i].revision = 1;
	}
}

void model_etcd_wipe(struct model_etcd *e, bool another)
{
	uint64_t cluster = another ? e->data.cluster + 1 : e->data.cluster;
	members_must_be_dead(e);
	world_tell("etcd has lost everything%s", another ? ", and is another cluster" : "");
	mvcc_fini(&e->data);
	mvcc_init(&e->data, cluster);
}

void model_etcd_save(struct model_etcd *e)
{
	mvcc_copy(&e->saved, &e->data);
	world_tell("a backup of etcd is made at revision %lld", (long long)e->data.revision);
}

void model_etcd_restore(struct model_etcd *e)
{
	members_must_be_dead(e);
	if (e->saved.cluster == 0)
		return;
	mvcc_copy(&e->data, &e->saved);
	e->data.term = 2;
	world_tell("etcd is restored from its backup, at revision %lld", (long long)e->data.revision);
}

void model_etcd_compact(struct model_etcd *e, int64_t keep)
{
	int64_t at = e->data.revision - keep;
	if (at > e->data.compacted)
		e->data.compacted = at;
	world_tell("etcd compacts up to revision %lld of %lld", (long long)e->data.compacted,
		(long long)e->data.revision);
}

void model_etcd_put(struct model_etcd *e, const char *key, const char *value)
{
	mvcc_put(&e->data, cgn_str_of(key), cgn_str_of(value), 0, world_now());
	members_tell(e);
}

void model_etcd_delete(struct model_etcd *e, const char *key)
{
	struct mvcc_range one = {.key = cgn_str_of(key)};
	(void)mvcc_delete(&e->data, &one, world_now());
	members_tell(e);
}

void model_etcd_lose(struct model_etcd *e, const char *key)
{
	const struct mvcc_event *had = mvcc_get(&e->data, cgn_str_of(key));
	struct mvcc_lease *l = had != NULL ? mvcc_lease(&e->data, had->lease) : NULL;
	if (l == NULL)
		return;
	world_tell("etcd ends the lease of %s", key);
	mvcc_revoke(&e->data, l, world_now());
	members_tell(e);
}

int64_t model_etcd_revision(const struct model_etcd *e)
{
	return e->data.revision;
}

const char *model_etcd_value(const struct model_etcd *e, const char *key)
{
	const struct mvcc_event *had = mvcc_get(&e->data, cgn_str_of(key));
	return had != NULL ? had->value : NULL;
}

uint64_t model_etcd_gone_at(const struct model_etcd *e, const char *key)
{
	const struct mvcc_event *had = mvcc_last(&e->data, cgn_str_of(key));
	return had != NULL && !had->put ? had->at : 0;
}

static void prefix_end(char *end, size_t n)
{
	end[n - 1] = (char)(end[n - 1] + 1);
}

size_t model_etcd_count(const struct model_etcd *e, const char *prefix)
{
	const struct mvcc_event *v[MVCC_KEYS];
	char *end = cgn_str_dupz(cgn_str_of(prefix));
	prefix_end(end, strlen(end));
	struct mvcc_range r = {.key = cgn_str_of(prefix), .end = cgn_str_of(end)};
	size_t n = mvcc_range(&e->data, &r, v);
	free(end);
	return n;
}
