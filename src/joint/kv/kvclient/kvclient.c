/* SPDX-License-Identifier: Apache-2.0 */
/* The connection: connect, greet, close; and the changes that the store reports. */
#include "joint/kv/kvclient/kvclient_priv.h"

#include <stdlib.h>

#define TIMEOUT       (10 * CGN_SEC)
#define GREETING      (5 * CGN_SEC) /* timeout of WELCOME */
#define BACKOFF_FIRST (50 * CGN_MSEC)
#define BACKOFF_LAST  (2 * CGN_SEC)
#define MAX_QUEUE     ((size_t)8 << 20)
#define CHANGES       256 /* changes per callback */

struct cgn_buf *kvclient_message(struct kvclient *c, const struct kvbulk_msg *m)
{
	c->out.n = 0;
	kvbulk_write(m, &c->out);
	return &c->out;
}

void kvclient_send(struct kvclient *c, int fd)
{
	const struct iovec iov = {c->out.p, c->out.n};
	if (c->conn != NULL && !c->out.bad)
		packet_send(c->conn, &iov, 1, fd);
}

/* ---- watching ---- */
static void client_watch(struct kvclient *c, bool on)
{
	const struct kvbulk_msg m = {.type = KVBULK_WATCH,
		.flags = on ? 0 : KVBULK_STOP,
		.id = ++c->watch_id};
	(void)kvclient_message(c, &m);
	kvclient_send(c, -1);
}

void kvclient_watch(struct kvclient *c, kvclient_watch_fn *on_changes, void *user)
{
	CGN_LIVE(c, KVCLIENT_TAG);
	bool was = c->on_changes != NULL;
	c->on_changes = on_changes;
	c->watch_user = user;
	if (c->ready && (was || on_changes != NULL))
		client_watch(c, on_changes != NULL);
}

static void client_on_changes(struct kvclient *c, const struct kvbulk_msg *m)
{
	struct block_change changes[CHANGES];
	size_t at = 0;
	bool reset = (m->flags & KVBULK_RESET) != 0;
	do {
		size_t n = 0;
		for (; n < CHANGES && at < m->count; at++)
			changes[n++] = kvbulk_change(m, at);
		bool synced = at == m->count && (m->flags & KVBULK_SYNCED) != 0;
		if (c->on_changes != NULL && m->id == c->watch_id)
			c->on_changes(c->watch_user, reset, changes, n, synced);
		reset = false;
	} while (at < m->count);
}

/* ---- connecting ---- */
static void client_welcome(struct kvclient *c, const struct kvbulk_msg *m, int fd)
{
	struct cgn_err err = {0};
	if (m->version == 0 || m->version > KVBULK_VERSION) {
		(void)CGN_FAIL(&err, UNAVAILABLE, "the block store at %s speaks version %u, not 1 to %d",
			c->path, m->version, KVBULK_VERSION);
		kvclient_lose(c, &err);
		return;
	}
	if (m->terms.arena_bytes > 0 && !cgn_ok(kvclient_map_new(fd, m->terms.arena_bytes, &c->map, &err))) {
		kvclient_lose(c, &err);
		return;
	}
	c->version = m->version;
	c->terms = m->terms;
	c->ready = true;
	c->told = false;
	cgn_timer_cancel(&c->timer);
	cgn_backoff_reset(&c->backoff);
	if (c->on_changes != NULL)
		client_watch(c, true);
	if (c->on_state != NULL)
		c->on_state(c->user, true, NULL);
}

static void client_on_greeting(struct kvclient *c, const struct kvbulk_msg *m, int fd)
{
	struct cgn_err why;
	if (m->type == KVBULK_WELCOME) {
		client_welcome(c, m, fd);
		return;
	}
	(void)CGN_FAIL(&why, UNAVAILABLE, "the block store at %s does not let us in: %.*s", c->path,
		m->type == KVBULK_FAILED ? (int)m->text.n : 0, m->text.p);
	kvclient_lose(c, &why);
}

/* Other messages belong to a client, repeat WELCOME, or, as FAILED without an id, end the connection. */
static bool is_answer(const struct kvbulk_msg *m)
{
	return m->type == KVBULK_INFOS || m->type == KVBULK_VALUE || m->type == KVBULK_COUNT ||
		(m->type == KVBULK_FAILED && m->id != 0);
}

static void client_on_packet(struct packet_conn *conn, void *user, const uint8_t *p, size_t n, int *fd)
{
	struct kvclient *c = user;
	struct kvbulk_msg m;
	struct cgn_err err = {0}, why;
	(void)conn;
	CGN_LIVE(c, KVCLIENT_TAG);
	cgn_rc rc = kvbulk_read((struct cgn_str){(const char *)p, n}, &m, &err);
	if (cgn_ok(rc) && !c->ready) {
		client_on_greeting(c, &m, *fd);
	} else if (cgn_ok(rc) && m.type == KVBULK_CHANGES) {
		client_on_changes(c, &m);
	} else if (cgn_ok(rc) && is_answer(&m)) {
		kvclient_calls_answer(c, &m, *fd);
	} else {
		if (cgn_ok(rc))
			(void)CGN_FAIL(&err, INVALID, "%.*s", m.type == KVBULK_FAILED ? (int)m.text.n : 0,
				m.text.p);
		(void)CGN_FAIL(&why, UNAVAILABLE, "the block store at %s ends it: %.250s", c->path, err.msg);
		kvclient_lose(c, &why);
	}
}

/* ---- closing ---- */
void kvclient_lose(struct kvclient *c, const struct cgn_err *why)
{
	struct cgn_err copy = *why;
	bool tell = !c->told;
	copy.code = CGN_UNAVAILABLE;
	c->ready = false;
	c->told = true;
	packet_close(&c->conn);
	kvclient_leases_orphan(c);
	kvclient_map_unref(&c->map);
	cgn_timer_set(&c->timer, cgn_backoff_next(&c->backoff));
	kvclient_calls_fail(c, &copy);
	if (tell && c->on_state != NULL)
		c->on_state(c->user, false, &copy);
}

static void client_on_close(struct packet_conn *conn, void *user, const struct cgn_err *why)
{
	struct kvclient *c = user;
	struct cgn_err lost;
	(void)conn;
	CGN_LIVE(c, KVCLIENT_TAG);
	c->conn = NULL;
	(void)CGN_FAIL(&lost, UNAVAILABLE, "lost the block store at %s: %.200s", c->path, why->msg);
	kvclient_lose(c, &lost);
}

static const struct packet_ops ops = {.on_packet = client_on_packet, .on_close = client_on_close};

static void client_dial(struct kvclient *c)
{
	const struct kvbulk_msg m = {.type = KVBULK_HELLO, .version = KVBULK_VERSION};
	struct cgn_err err = {0};
	if (!cgn_ok(packet_connect(c->loop, c->path, MAX_QUEUE, &ops, c, &c->conn, &err))) {
		kvclient_lose(c, &err);
		return;
	}
	cgn_timer_set(&c->timer, GREETING);
	(void)kvclient_message(c, &m);
	kvclient_send(c, -1);
}

static void client_on_timer(struct cgn_timer *t)
{
	struct kvclient *c = CGN_CONTAINER(t, struct kvclient, timer);
	struct cgn_err why;
	CGN_LIVE(c, KVCLIENT_TAG);
	if (c->conn == NULL) {
		client_dial(c);
		return;
	}
	(void)CGN_FAIL(&why, UNAVAILABLE, "what listens at %s does not greet", c->path);
	kvclient_lose(c, &why);
}

/* ---- create and free ---- */
struct kvclient *kvclient_new(struct cgn_loop *l, const struct kvclient_cfg *cfg)
{
	struct kvclient *c = CGN_NEW(struct kvclient);
	size_t n = strlen(cfg->uds) + sizeof ".bulk";
	char *path = CGN_NEW_ARRAY(char, n);
	(void)snprintf(path, n, "%s.bulk", cfg->uds);
	*c = (struct kvclient){.tag = KVCLIENT_TAG,
		.loop = l,
		.path = path,
		.timeout = cfg->timeout != 0 ? cfg->timeout : TIMEOUT,
		.on_state = cfg->on_state,
		.user = cfg->user,
		.backoff = {.first = BACKOFF_FIRST, .last = BACKOFF_LAST}};
	kvclient_calls_init(c);
	cgn_list_init(&c->leases);
	cgn_hook_init(&c->give_back, kvclient_leases_on_turn_end);
	cgn_timer_init(&c->timer, l, client_on_timer);
	cgn_timer_init(&c->deadline, l, kvclient_calls_on_deadline);
	cgn_timer_set(&c->timer, 0); /* so on_state does not run before this function returns */
	return c;
}

static void client_release(struct cgn_grave *g)
{
	struct kvclient *c = CGN_CONTAINER(g, struct kvclient, grave);
	cgn_buf_fini(&c->out);
	c->tag = 0;
	free(c->path);
	free(c);
}

void kvclient_free(struct kvclient **take)
{
	struct kvclient *c = CGN_TAKE_LIVE(take, KVCLIENT_TAG);
	if (c == NULL)
		return;
	c->ready = false;
	c->on_changes = NULL;
	c->on_state = NULL;
	kvclient_calls_forget(c);
	kvclient_leases_flush(c);
	packet_close(&c->conn);
	kvclient_leases_orphan(c);
	kvclient_map_unref(&c->map);
	cgn_hook_drop(&c->give_back);
	cgn_timer_cancel(&c->timer);
	cgn_timer_cancel(&c->deadline);
	cgn_loop_bury(c->loop, &c->grave, client_release);
}

bool kvclient_ready(const struct kvclient *c)
{
	CGN_LIVE(c, KVCLIENT_TAG);
	return c->ready;
}
