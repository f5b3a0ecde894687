/* SPDX-License-Identifier: Apache-2.0 */
/* bulk: the descriptor path (policy/kv/kvbulk) on `<kv.uds>.bulk`. Memory beside the RAM tier, per client: at
 * most BULK_MAX_CALLS replies of up to 18 KiB that its socket did not take, and one packet. A client whose
 * socket is full is not read. */
#include "kvcached/bulk/bulk_priv.h"

#include <libgen.h>
#include <stdlib.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"

#define FEEDS_EVERY (20 * CGN_MSEC)
#define MAX_QUEUE   ((size_t)(BULK_MAX_CALLS + 4) * 20 * 1024 + PACKET_MAX)

/* ---- replies ---- */
void bulk_send(struct bulk_client *c, int fd)
{
	struct cgn_buf *b = &c->bulk->out;
	CGN_MUST(!b->bad && b->n <= KVBULK_MAX_MESSAGE);
	const struct iovec iov = {b->p, b->n};
	if (c->conn != NULL)
		packet_send(c->conn, &iov, 1, fd);
}

static struct cgn_buf *bulk_reply(struct bulk_client *c, const struct kvbulk_msg *m)
{
	struct cgn_buf *b = &c->bulk->out;
	b->n = 0;
	kvbulk_write(m, b);
	return b;
}

void bulk_fail(struct bulk_client *c, uint64_t id, const struct cgn_err *why)
{
	const struct kvbulk_msg m = {.type = KVBULK_FAILED,
		.id = id,
		.number = (uint32_t)cgn_code_grpc(why->code),
		.text = cgn_str_of(why->msg)};
	(void)bulk_reply(c, &m);
	bulk_send(c, -1);
}

void bulk_send_info(struct bulk_client *c, uint64_t id, const struct block_info *info)
{
	const struct kvbulk_msg m = {.type = KVBULK_INFOS, .count = 1, .id = id};
	kvbulk_add_info(bulk_reply(c, &m), info);
	bulk_send(c, -1);
}

/* ---- back-pressure ---- */
static void bulk_pace(struct bulk_client *c)
{
	if (c->conn == NULL)
		return;
	bool full = c->n_calls >= BULK_MAX_CALLS || packet_queued(c->conn) > 0;
	if (full != c->paused)
		(full ? packet_pause : packet_resume)(c->conn);
	c->paused = full;
}

void bulk_call_begin(struct bulk_client *c, struct bulk_call *call, enum bulk_call_kind kind, uint64_t id)
{
	call->kind = kind;
	call->client = c;
	call->id = id;
	cgn_list_push(&c->calls, &call->link);
	c->n_calls++;
	c->bulk->waiting++;
}

void bulk_call_end(struct bulk_call *call)
{
	struct bulk_client *c = call->client;
	if (c == NULL)
		return;
	cgn_list_drop(&call->link);
	c->n_calls--;
	c->bulk->waiting--;
	bulk_pace(c);
}

/* ---- the end of a client ---- */
static void client_release(struct cgn_grave *g)
{
	struct bulk_client *c = CGN_CONTAINER(g, struct bulk_client, grave);
	c->tag = 0;
	free(c->slots);
	free(c);
}

static void drop_calls(struct bulk_client *c)
{
	cgn_list_each_safe (it, &c->calls) {
		struct bulk_call *call = CGN_CONTAINER(it, struct bulk_call, link);
		bulk_call_end(call);
		call->client = NULL;
		if (call->kind == BULK_GET) {
			value_read_cancel(&call->read);
			free(call);
		} /* a call on the pool is freed by its job */
	}
}

static void client_close(struct bulk_client *c)
{
	CGN_LIVE(c, BULK_CLIENT_TAG);
	packet_close(&c->conn);
	drop_calls(c);
	bulk_release_all(c);
	c->bulk->watchers -= c->watching;
	c->watching = false;
	cgn_list_drop(&c->link);
	cgn_loop_bury(c->bulk->w->loop, &c->grave, client_release);
}

/* Close a client that broke the protocol, with a reply that says why. */
static void client_expel(struct bulk_client *c, const struct cgn_err *why)
{
	bulk_fail(c, 0, why);
	cgn_log_limited(WARN, "kvcached.bulk_client", F_STR("why", why->msg), F_STR("then", "it is cut off"));
	client_close(c);
}

static void on_close(struct packet_conn *conn, void *user, const struct cgn_err *why)
{
	struct bulk_client *c = user;
	(void)conn;
	CGN_LIVE(c, BULK_CLIENT_TAG);
	if (why->code != CGN_UNAVAILABLE)
		cgn_log_limited(WARN, "kvcached.bulk_client", F_STR("why", why->msg),
			F_STR("then", "it is cut off"));
	c->conn = NULL;
	client_close(c);
}

/* ---- requests ---- */
static void request_lookup(struct bulk_client *c, const struct kvbulk_msg *m)
{
	struct kvcached *d = c->bulk->w->daemon;
	const struct kvbulk_msg head = {.type = KVBULK_INFOS, .count = m->count, .id = m->id};
	const uint16_t sites = kvsites_of_tenant(d->sites, m->tenant);
	struct cgn_buf *b = bulk_reply(c, &head);
	for (size_t i = 0; i < m->count; i++) {
		const struct block_key k = kvbulk_key(m, i);
		struct block_info info;
		(void)value_lookup(d, &k, (m->flags & KVBULK_PEERS) != 0, sites, &info);
		kvbulk_add_info(b, &info);
	}
	bulk_send(c, -1);
}

static void on_read(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct bulk_call *call = user;
	struct bulk_client *c = call->client;
	call->read = NULL;
	if (*take != NULL)
		bulk_lend(c, call->id, take);
	else
		bulk_fail(c, call->id, why);
	bulk_call_end(call);
	free(call);
}

static void release_leases(struct bulk_client *c, const struct kvbulk_msg *m)
{
	for (size_t i = 0; i < m->count; i++)
		bulk_release(c, kvbulk_lease(m, i));
}

static void request_get(struct bulk_client *c, const struct kvbulk_msg *m)
{
	struct kvcached *d = c->bulk->w->daemon;
	release_leases(c, m);
	/* Without the flag the client compares the checksum. */
	struct kvstore_block *b = kvstore_get_ram(d->store, &m->key, (m->flags & KVBULK_VERIFY) != 0);
	if (b != NULL) {
		bulk_lend(c, m->id, &b);
		return;
	}
	struct bulk_call *call = CGN_NEW(struct bulk_call);
	call->read = value_get(d, c->bulk->w->loop, &m->key,
		value_worth((m->flags & KVBULK_PEERS) != 0, m->budget_ms),
		kvsites_of_tenant(d->sites, m->tenant), on_read, call);
	bulk_call_begin(c, call, BULK_GET, m->id);
}

static void remove_keys(struct bulk_client *c, const struct kvbulk_msg *m)
{
	struct kvbulk_msg r = {.type = KVBULK_COUNT, .id = m->id};
	for (size_t i = 0; i < m->count; i++) {
		const struct block_key k = kvbulk_key(m, i);
		r.number += kvstore_remove(c->bulk->w->daemon->store, &k);
	}
	(void)bulk_reply(c, &r);
	bulk_send(c, -1);
}

static void request_pin(struct bulk_client *c, const struct kvbulk_msg *m)
{
	struct kvcached *d = c->bulk->w->daemon;
	struct cgn_err err = {0};
	struct block_info info;
	if (!cgn_ok(kvstore_pin(d->store, &m->key, value_pin_until(m->for_ms), &err))) {
		bulk_fail(c, m->id, &err);
		return;
	}
	(void)kvstore_lookup(d->store, &m->key, &info);
	bulk_send_info(c, m->id, &info);
}

static void watch_feed(struct bulk_client *c)
{
	struct feed_step step;
	while (c->watching && c->conn != NULL && packet_queued(c->conn) == 0 && feed_next(&c->feed, &step)) {
		const struct kvbulk_msg head = {.type = KVBULK_CHANGES,
			.id = c->watch_id,
			.count = (uint16_t)step.n,
			.flags = (uint8_t)((step.reset ? KVBULK_RESET : 0) |
				(step.synced ? KVBULK_SYNCED : 0))};
		struct cgn_buf *b = bulk_reply(c, &head);
		for (size_t i = 0; i < step.n; i++)
			kvbulk_add_change(b, &step.changes[i]);
		bulk_send(c, -1);
	}
}

static void on_feeds(struct cgn_timer *t)
{
	struct bulk *b = CGN_CONTAINER(t, struct bulk, feeds);
	CGN_LIVE(b, BULK_TAG);
	cgn_list_each (it, &b->clients)
		watch_feed(CGN_CONTAINER(it, struct bulk_client, link));
	if (b->watchers > 0)
		cgn_timer_set(t, FEEDS_EVERY);
}

static void request_watch(struct bulk_client *c, const struct kvbulk_msg *m)
{
	struct bulk *b = c->bulk;
	bool on = (m->flags & KVBULK_STOP) == 0;
	b->watchers = b->watchers - c->watching + on;
	c->watching = on;
	c->watch_id = m->id;
	c->feed = (struct feed_cursor){.store = b->w->daemon->store};
	if (on && b->feeds.at == 0)
		cgn_timer_set(&b->feeds, 0);
}

static void request_hello(struct bulk_client *c, const struct kvbulk_msg *m)
{
	struct bulk *b = c->bulk;
	struct cgn_err err;
	if (kvbulk_common(m->version) == 0) {
		(void)CGN_FAIL(&err, UNSUPPORTED, "this daemon speaks versions 1 to %d, not %u",
			KVBULK_VERSION, m->version);
		client_expel(c, &err);
		return;
	}
	struct kvbulk_msg w = {.type = KVBULK_WELCOME,
		.id = m->id,
		.version = kvbulk_common(m->version),
		.terms = {.max_calls = BULK_MAX_CALLS,
			.max_leases = BULK_MAX_LEASES,
			.max_inline = KVBULK_MAX_INLINE,
			.lease_bytes = b->client_bytes,
			.lease_ms = b->lease_timeout / CGN_MSEC}};
	int arena = kvstore_arena(b->w->daemon->store, &w.terms.arena_bytes);
	c->greeted = true;
	(void)bulk_reply(c, &w);
	bulk_send(c, arena);
}

static void request_run(struct bulk_client *c, const struct kvbulk_msg *m, int *fd)
{
	switch (m->type) {
	case KVBULK_LOOKUP:
		request_lookup(c, m);
		break;
	case KVBULK_GET:
		request_get(c, m);
		break;
	case KVBULK_RELEASE:
		release_leases(c, m);
		break;
	case KVBULK_PUT:
		bulk_put(c, m, fd);
		break;
	case KVBULK_REMOVE:
		remove_keys(c, m);
		break;
	case KVBULK_PIN:
		request_pin(c, m);
		break;
	case KVBULK_WATCH:
		request_watch(c, m);
		break;
	case KVBULK_HELLO:
	case KVBULK_WELCOME:
	case KVBULK_INFOS:
	case KVBULK_VALUE:
	case KVBULK_COUNT:
	case KVBULK_FAILED:
	case KVBULK_CHANGES:
		break; /* on_packet refuses these */
	}
}

static CGN_RC in_turn(const struct bulk_client *c, const struct kvbulk_msg *m, struct cgn_err *err)
{
	if (m->type >= KVBULK_WELCOME)
		return CGN_FAIL(err, INVALID, "a client's message cannot be of type %d", (int)m->type);
	if (c->greeted == (m->type == KVBULK_HELLO))
		return CGN_FAIL(err, INVALID, "HELLO comes first, and once");
	return CGN_OK;
}

static void on_packet(struct packet_conn *conn, void *user, const uint8_t *p, size_t n, int *fd)
{
	struct bulk_client *c = user;
	struct kvbulk_msg m;
	struct cgn_err err = {0};
	(void)conn;
	CGN_LIVE(c, BULK_CLIENT_TAG);
	cgn_rc rc = kvbulk_read((struct cgn_str){(const char *)p, n}, &m, &err);
	if (cgn_ok(rc))
		rc = in_turn(c, &m, &err);
	if (!cgn_ok(rc))
		client_expel(c, &err);
	else if (m.type == KVBULK_HELLO)
		request_hello(c, &m);
	else
		request_run(c, &m, fd);
	bulk_pace(c);
}

static void on_drained(struct packet_conn *conn, void *user)
{
	struct bulk_client *c = user;
	(void)conn;
	CGN_LIVE(c, BULK_CLIENT_TAG);
	watch_feed(c);
	bulk_pace(c);
}

static const struct packet_ops ops = {.on_packet = on_packet, .on_drain = on_drained, .on_close = on_close};

static void on_accept(void *user, struct packet_conn *conn)
{
	struct bulk *b = user;
	struct bulk_client *c = CGN_NEW(struct bulk_client);
	CGN_LIVE(b, BULK_TAG);
	*c = (struct bulk_client){.tag = BULK_CLIENT_TAG, .bulk = b, .conn = conn};
	cgn_list_init(&c->calls);
	cgn_list_init(&c->leases);
	cgn_list_push(&b->clients, &c->link);
	packet_take(conn, &ops, c);
}

/* ---- overdue leases ---- */
static void on_sweep(struct cgn_timer *t)
{
	struct bulk *b = CGN_CONTAINER(t, struct bulk, sweep);
	struct cgn_err err;
	CGN_LIVE(b, BULK_TAG);
	(void)CGN_FAIL(&err, DEADLINE, "a lease was not released within kv.lease_timeout, %llu ms",
		(unsigned long long)(b->lease_timeout / CGN_MSEC));
	cgn_list_each_safe (it, &b->clients) {
		struct bulk_client *c = CGN_CONTAINER(it, struct bulk_client, link);
		if (bulk_is_overdue(c, cgn_loop_now(b->w->loop)))
			client_expel(c, &err);
	}
	cgn_timer_set(t, b->lease_timeout / 4);
}

/* ---- the port ---- */
static CGN_RC listen_at(struct bulk *b, const char *uds, struct cgn_err *err)
{
	char path[128], dir[128];
	const struct bulk *first =
		b->w->index > 0 ? b->w->daemon->workers[0].ports[KVCACHED_PORT_bulk] : NULL;
	(void)snprintf(path, sizeof path, "%s.bulk", uds);
	(void)cgn_str_copyz(dir, sizeof dir, cgn_str_of(uds));
	if (first == NULL)
		CGN_TRY(cgn_err_of(disk_mkdirs(dirname(dir), 0755, err), "kv.uds", err));
	const struct packet_listen_cfg cfg = {.path = path,
		.max_queue = MAX_QUEUE,
		.with = first != NULL ? first->listener : NULL};
	return cgn_err_of(packet_listen(b->w->loop, &cfg, on_accept, b, &b->listener, err), "kv.uds", err);
}

static void bulk_close(void **take)
{
	struct bulk *b = CGN_TAKE(take);
	if (b == NULL)
		return;
	CGN_LIVE(b, BULK_TAG);
	cgn_timer_cancel(&b->sweep);
	cgn_timer_cancel(&b->feeds);
	packet_listener_close(&b->listener);
	cgn_list_each_safe (it, &b->clients)
		client_close(CGN_CONTAINER(it, struct bulk_client, link));
	cgn_buf_fini(&b->out);
	b->tag = 0;
	free(b);
}

static CGN_RC bulk_open(struct kvcached_worker *w, void **out, struct cgn_err *err)
{
	const struct config *cfg = w->daemon->cfg;
	if (cfg->kv.uds == NULL || cfg->kv.uds[0] == '\0')
		return CGN_OK;
	struct bulk *b = CGN_NEW(struct bulk);
	*b = (struct bulk){.tag = BULK_TAG,
		.w = w,
		.lease_timeout = cfg->kv.lease_timeout,
		.client_bytes = cfg->kv.ram / 4};
	cgn_list_init(&b->clients);
	cgn_timer_init(&b->sweep, w->loop, on_sweep);
	cgn_timer_init(&b->feeds, w->loop, on_feeds);
	cgn_rc rc = listen_at(b, cfg->kv.uds, err);
	*out = b;
	if (!cgn_ok(rc))
		bulk_close(out);
	else
		cgn_timer_set(&b->sweep, b->lease_timeout / 4);
	return rc;
}

static void bulk_drain(void *port)
{
	struct bulk *b = port;
	CGN_LIVE(b, BULK_TAG);
	packet_listener_close(&b->listener);
}

static bool bulk_idle(const void *port)
{
	const struct bulk *b = port;
	CGN_LIVE(b, BULK_TAG);
	return b->waiting == 0;
}

const struct kvcached_port kvcached_port_bulk = {.name = "bulk",
	.open = bulk_open,
	.drain = bulk_drain,
	.idle = bulk_idle,
	.close = bulk_close};
