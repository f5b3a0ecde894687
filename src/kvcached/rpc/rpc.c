/* SPDX-License-Identifier: Apache-2.0 */
/* rpc: the gRPC service Kv on kv.listen (over TLS), and on the Unix socket kv.uds. Memory beside the RAM
 * tier, per worker: RPC_MAX_CALLS calls, each with an incomplete message of at most 1 MiB and a write queue
 * of 256 KiB. Blocks and writers that calls hold count against value_hold. */
#include <libgen.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/state/state.h"
#include "joint/report/telemetry/scrape.h"
#include "kvcached/rpc/rpc_priv.h"
#include "policy/node/proto/proto.h"

#define FEEDS_EVERY (20 * CGN_MSEC)
#define MAX_STREAMS 256 /* per connection */
#define MAX_CONNS   16384

/* ---- shared by all methods ---- */
void rpc_send(struct rpc_call *c, const void *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	pb_pack(message, &b);
	if (b.bad) {
		rpc_finish(c, &(struct cgn_err){.code = CGN_NO_MEMORY, .msg = "no memory for an answer"});
		return;
	}
	rpc_send_packed(c, cgn_buf_view(&b));
}

void rpc_send_packed(struct rpc_call *c, struct cgn_str packed)
{
	struct iovec iov = {.iov_len = packed.n};
	memcpy(&iov.iov_base, &packed.p, sizeof packed.p); /* only read */
	if (c->call != NULL)
		grpc_send(c->call, &iov, 1);
}

/* Give up what the call holds of the store. The call may live longer, until its client takes the end. */
static void let_go_of_value(struct rpc_call *c)
{
	if (c->method->on_gone != NULL)
		c->method->on_gone(c);
	if (c->held > 0)
		value_unhold(c->port->w->daemon, c->held);
	c->held = 0;
}

void rpc_finish(struct rpc_call *c, const struct cgn_err *why)
{
	if (c->finished || c->call == NULL)
		return;
	c->finished = true;
	c->progress = 0;
	c->ended = why != NULL ? why->code : CGN_FINE;
	grpc_finish(c->call, why != NULL ? why->code : CGN_FINE, why != NULL ? why->msg : "");
	if (!c->on_pool)
		let_go_of_value(c);
}

void rpc_reply(struct rpc_call *c, const void *message)
{
	rpc_send(c, message);
	rpc_finish(c, NULL);
}

void rpc_moved(struct rpc_call *c)
{
	c->progress = cgn_loop_now(c->port->w->loop);
}

CGN_RC rpc_hold(struct rpc_call *c, uint64_t bytes, struct cgn_err *err)
{
	if (!value_hold(c->port->w->daemon, bytes))
		return CGN_FAIL(err, OVERLOADED, "half of the RAM tier is being read or written by clients");
	c->held += bytes;
	return CGN_OK;
}

CGN_RC rpc_key(const Cognitora__V1__KvKey *k, struct block_key *out, struct cgn_err *err)
{
	if (k == NULL)
		return CGN_FAIL(err, INVALID, "the request has no key");
	if (k->digest.len != DIGEST_BYTES)
		return CGN_FAIL(err, INVALID, "KvKey.digest has %zu bytes, not %d", k->digest.len,
			DIGEST_BYTES);
	memcpy(&out->digest, k->digest.data, DIGEST_BYTES);
	out->segment = k->segment;
	return CGN_OK;
}

/* A protobuf string must be UTF-8. */
static char *entry_text(char *to, size_t cap, struct cgn_str s)
{
	(void)cgn_str_copyz(to, cap, (struct cgn_str){s.p, cgn_utf8_prefix(s.p, s.n < cap ? s.n : cap - 1)});
	return to;
}

uint16_t rpc_sites(const struct rpc_call *c, const char *tenant)
{
	return kvsites_of_tenant(c->port->w->daemon->sites, cgn_str_of(tenant));
}

void rpc_entry(struct rpc_entry *e, const struct block_key *k, const struct block_info *info,
	const struct kvstore_block *block)
{
	cognitora__v1__kv_entry__init(&e->m);
	cognitora__v1__kv_key__init(&e->key);
	e->digest = *k;
	e->key.digest = (ProtobufCBinaryData){DIGEST_BYTES, e->digest.digest.b};
	e->key.segment = k->segment;
	e->m.key = &e->key;
	e->m.tiers = info->tiers;
	e->m.size = info->size;
	e->m.checksum = info->checksum;
	e->m.tokens = info->tokens;
	e->m.created_unix_ms = info->created_unix_ms;
	e->m.expires_unix_ms = info->expires_unix_ms;
	e->m.pinned = info->pinned;
	const struct cgn_str none = {.n = 0};
	e->m.model = entry_text(e->model, sizeof e->model, block != NULL ? kvstore_block_model(block) : none);
	e->m.tenant =
		entry_text(e->tenant, sizeof e->tenant, block != NULL ? kvstore_block_tenant(block) : none);
}

/* ---- the life of a call ---- */
static void call_release(struct cgn_grave *g)
{
	struct rpc_call *c = CGN_CONTAINER(g, struct rpc_call, grave);
	c->tag = 0;
	free(c);
}

static void let_go(struct rpc_call *c)
{
	rpc_trace_end(c);
	value_read_cancel(&c->read);
	let_go_of_value(c);
	cgn_list_drop(&c->link);
	c->port->n_calls--;
	cgn_loop_bury(c->port->w->loop, &c->grave, call_release);
}

void rpc_pool(struct rpc_call *c, void (*work)(void *call), void (*done)(void *call))
{
	c->progress = 0; /* the client waits for this store */
	c->on_pool = true;
	cgn_loop_work(c->port->w->loop, work, done, c);
}

bool rpc_pooled(struct rpc_call *c)
{
	CGN_LIVE(c, RPC_CALL_TAG);
	c->on_pool = false;
	if (c->finished && !c->gone)
		let_go_of_value(c);
	if (!c->gone)
		return true;
	struct rpc_port *g = c->port;
	let_go(c);
	if (g->closing && g->n_calls == 0)
		free(g);
	return false;
}

static void on_message(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	struct rpc_call *c = user;
	struct cgn_err err = {0};
	CGN_ON_EXIT(pb_free) void *request = NULL;
	(void)call;
	CGN_LIVE(c, RPC_CALL_TAG);
	if (c->finished)
		return;
	cgn_rc rc = c->asked && !c->method->many
		? CGN_FAIL(&err, INVALID, "a second %s: this method takes one",
			  c->method->request->short_name)
		: pb_unpack(c->method->request, (struct cgn_str){(const char *)p, n}, &request, &err);
	c->asked = true;
	if (cgn_ok(rc))
		rc = c->method->on_request(c, request, &err);
	if (!cgn_ok(rc))
		rpc_finish(c, &err);
}

static void on_half_close(struct grpc_call *call, void *user)
{
	struct rpc_call *c = user;
	struct cgn_err err = {0};
	(void)call;
	CGN_LIVE(c, RPC_CALL_TAG);
	if (c->finished)
		return;
	cgn_rc rc = CGN_OK;
	if (!c->asked)
		rc = CGN_FAIL(&err, INVALID, "the call has no %s", c->method->request->short_name);
	else if (c->method->on_end != NULL)
		rc = c->method->on_end(c, &err);
	if (!cgn_ok(rc))
		rpc_finish(c, &err);
}

static void on_drain(struct grpc_call *call, void *user)
{
	struct rpc_call *c = user;
	(void)call;
	CGN_LIVE(c, RPC_CALL_TAG);
	if (!c->finished && c->method->on_drain != NULL)
		c->method->on_drain(c);
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	struct rpc_call *c = user;
	(void)call;
	(void)why;
	CGN_LIVE(c, RPC_CALL_TAG);
	c->call = NULL;
	c->gone = c->finished = true;
	c->progress = 0;
	if (!c->on_pool)
		let_go(c);
}

static void call_begin(struct grpc_call *call, struct rpc_port *g, const struct rpc_method *m,
	const char *name)
{
	static const struct grpc_call_ops ops = {.on_message = on_message,
		.on_half_close = on_half_close,
		.on_drain = on_drain,
		.on_close = on_close};
	CGN_LIVE(g, RPC_TAG);
	if (g->n_calls == RPC_MAX_CALLS) {
		grpc_refuse(call, CGN_OVERLOADED, "as many calls as this store takes are under way");
		return;
	}
	struct rpc_call *c = CGN_NEW(struct rpc_call);
	*c = (struct rpc_call){.tag = RPC_CALL_TAG, .method = m, .port = g, .call = call};
	rpc_moved(c);
	rpc_trace_begin(c, name);
	cgn_list_push(&g->calls, &c->link);
	g->n_calls++;
	grpc_call_take(call, &ops, c);
}

#define METHOD(name)                                              \
	static void on_##name(struct grpc_call *call, void *port) \
	{                                                         \
		call_begin(call, port, &rpc_##name, "kv " #name); \
	}
METHOD(lookup)
METHOD(batch_lookup)
METHOD(get)
METHOD(put)
METHOD(pin)
METHOD(promote)
METHOD(remove)
METHOD(stats)
METHOD(peers)
METHOD(watch)
#undef METHOD

static void on_scrape(struct grpc_call *c, void *server_user)
{
	scrape_answer(c, ((struct rpc_port *)server_user)->w->daemon->telemetry);
}

static const struct grpc_method methods[] = {
	{PROTO_KV "Lookup", on_lookup, ACTION_KV_READ},
	{PROTO_KV "BatchLookup", on_batch_lookup, ACTION_KV_READ},
	{PROTO_KV "Get", on_get, ACTION_KV_READ},
	{PROTO_KV "Put", on_put, ACTION_KV_WRITE},
	{PROTO_KV "Pin", on_pin, ACTION_KV_WRITE},
	{PROTO_KV "Promote", on_promote, ACTION_KV_WRITE},
	{PROTO_KV "Remove", on_remove, ACTION_KV_ADMIN},
	{PROTO_KV "Stats", on_stats, ACTION_STATUS_READ},
	{PROTO_KV "Peers", on_peers, ACTION_STATUS_READ},
	{PROTO_KV "Watch", on_watch, ACTION_KV_READ},
	{SCRAPE_PATH, on_scrape, ACTION_METRICS_READ},
};

/* ---- timeouts and watchers ---- */
static void on_sweep(struct cgn_timer *t)
{
	struct rpc_port *g = CGN_CONTAINER(t, struct rpc_port, sweep);
	cgn_nsec now = cgn_loop_now(g->w->loop);
	struct cgn_err err;
	CGN_LIVE(g, RPC_TAG);
	(void)CGN_FAIL(&err, REQUEST_TIMEOUT,
		"nothing of the value was taken or brought for kv.lease_timeout, %llu ms",
		(unsigned long long)(g->patience / CGN_MSEC));
	cgn_list_each_safe (it, &g->calls) {
		struct rpc_call *c = CGN_CONTAINER(it, struct rpc_call, link);
		if (c->progress == 0 || c->progress + g->patience >= now)
			continue;
		bool takes_nothing = c->call != NULL && grpc_over_mark(c->call);
		rpc_finish(c, &err);
		if (takes_nothing) /* the client does not take the error either, so its queue is dropped */
			grpc_abort(c->call, CGN_REQUEST_TIMEOUT);
	}
	cgn_timer_set(t, g->patience / 4);
}

static void on_feeds(struct cgn_timer *t)
{
	struct rpc_port *g = CGN_CONTAINER(t, struct rpc_port, feeds);
	bool any = false;
	CGN_LIVE(g, RPC_TAG);
	cgn_list_each_safe (it, &g->calls) {
		struct rpc_call *c = CGN_CONTAINER(it, struct rpc_call, link);
		if (c->method != &rpc_watch || c->finished)
			continue;
		any = true;
		rpc_watch.on_drain(c);
	}
	if (any)
		cgn_timer_set(t, FEEDS_EVERY);
}

/* ---- the port ---- */
static struct net_listener *listener_of(const struct grpc_server *s)
{
	return s != NULL ? grpc_server_listener(s) : NULL;
}

static CGN_RC port_serve(struct rpc_port *g, const struct net_listen_cfg *listen, struct grpc_server **out,
	struct cgn_err *err)
{
	const struct grpc_server_cfg cfg = {.listen = *listen,
		.max_message = RPC_MAX_MESSAGE,
		.max_streams = MAX_STREAMS,
		.methods = methods,
		.n_methods = CGN_COUNT(methods),
		.admit = access_admit,
		.gate = svc_access(g->w->daemon->svc),
		.health = true};
	CGN_TRY(grpc_server_new(g->w->loop, &cfg, g, out, err));
	grpc_server_serving(*out, true);
	return CGN_OK;
}

static CGN_RC serve_uds(struct rpc_port *g, const char *path, struct cgn_err *err)
{
	char addr[128], dir[128];
	const struct rpc_port *first =
		g->w->index > 0 ? g->w->daemon->workers[0].ports[KVCACHED_PORT_grpc] : NULL;
	(void)snprintf(addr, sizeof addr, "unix:%s", path);
	(void)cgn_str_copyz(dir, sizeof dir, cgn_str_of(path));
	if (first == NULL)
		CGN_TRY(cgn_err_of(disk_mkdirs(dirname(dir), 0755, err), "kv.uds", err));
	const struct net_listen_cfg listen = {.addr = addr,
		.setting = "kv.uds",
		.max_conns = MAX_CONNS,
		.with = first != NULL ? listener_of(first->uds) : NULL};
	return port_serve(g, &listen, &g->uds, err);
}

static CGN_RC serve_all(struct rpc_port *g, const struct config *cfg, struct cgn_err *err)
{
	if (cfg->kv.listen != NULL && cfg->kv.listen[0] != '\0') {
		const struct net_listen_cfg listen = {.addr = cfg->kv.listen,
			.setting = "kv.listen",
			.tls = g->w->daemon->tls,
			.reuse_port = true,
			.max_conns = MAX_CONNS};
		CGN_TRY(port_serve(g, &listen, &g->tcp, err));
	}
	if (cfg->kv.uds != NULL && cfg->kv.uds[0] != '\0')
		CGN_TRY(serve_uds(g, cfg->kv.uds, err));
	return CGN_OK;
}

static void kvg_close(void **take)
{
	struct rpc_port *g = CGN_TAKE(take);
	if (g == NULL)
		return;
	CGN_LIVE(g, RPC_TAG);
	cgn_timer_cancel(&g->sweep);
	cgn_timer_cancel(&g->feeds);
	grpc_server_free(&g->tcp);
	grpc_server_free(&g->uds);
	g->closing = true;
	if (g->n_calls == 0) /* jobs on the pool still have calls: the last one frees it */
		free(g);
}

/* Note where other machines reach the port, for the node's description. */
static void address_note(struct rpc_port *g)
{
	struct kvcached *d = g->w->daemon;
	struct cgn_err err;
	if (g->tcp == NULL || g->w->index != 0)
		return;
	if (!cgn_ok(state_advertised(d->cfg, NULL, d->cfg->kv.listen, grpc_server_port(g->tcp), "kv.listen",
		    d->grpc_address, sizeof d->grpc_address, &err)))
		cgn_log(INFO, "kvcached.no_grpc_address", F_STR("why", err.msg),
			F_STR("then", "cgn-metrics does not find this store by itself"));
}

static CGN_RC kvg_open(struct kvcached_worker *w, void **out, struct cgn_err *err)
{
	struct rpc_port *g = CGN_NEW(struct rpc_port);
	*g = (struct rpc_port){.tag = RPC_TAG, .w = w, .patience = w->daemon->cfg->kv.lease_timeout};
	const char *node = w->daemon->cfg->agent.node_id;
	if (node != NULL)
		(void)cgn_str_copyz(g->node, sizeof g->node, cgn_str_of(node));
	else
		(void)gethostname(g->node, sizeof g->node - 1);
	cgn_list_init(&g->calls);
	cgn_timer_init(&g->sweep, w->loop, on_sweep);
	cgn_timer_init(&g->feeds, w->loop, on_feeds);
	*out = g;
	cgn_rc rc = serve_all(g, w->daemon->cfg, err);
	if (!cgn_ok(rc))
		kvg_close(out);
	else
		cgn_timer_set(&g->sweep, g->patience / 4);
	if (cgn_ok(rc))
		address_note(g);
	return rc;
}

static void on_idle(void *arg)
{
	((struct rpc_port *)arg)->draining--;
}

static void kvg_drain(void *port)
{
	struct rpc_port *g = port;
	struct cgn_err err;
	CGN_LIVE(g, RPC_TAG);
	(void)CGN_FAIL(&err, UNAVAILABLE, "the store goes away");
	cgn_list_each_safe (it, &g->calls) {
		struct rpc_call *c = CGN_CONTAINER(it, struct rpc_call, link);
		if (c->method == &rpc_watch)
			rpc_finish(c, &err);
	}
	g->draining = (g->tcp != NULL ? 1U : 0U) + (g->uds != NULL ? 1U : 0U);
	if (g->tcp != NULL)
		grpc_server_drain(g->tcp, on_idle, g);
	if (g->uds != NULL)
		grpc_server_drain(g->uds, on_idle, g);
}

static bool kvg_idle(const void *port)
{
	const struct rpc_port *g = port;
	CGN_LIVE(g, RPC_TAG);
	return g->draining == 0;
}

const struct kvcached_port kvcached_port_grpc = {.name = "grpc",
	.open = kvg_open,
	.drain = kvg_drain,
	.idle = kvg_idle,
	.close = kvg_close};
