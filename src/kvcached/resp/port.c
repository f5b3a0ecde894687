/* SPDX-License-Identifier: Apache-2.0 */
/* The port: listeners, who is connected, and what all of a worker's connections may hold together. */
#include "kvcached/resp/resp_priv.h"

#include <stdlib.h>

#include "base/crypto/crypto.h"
#include "base/log/log.h"
#include "io/disk/disk.h"

#define TICK         CGN_SEC
#define SHORT_TICK   (20 * CGN_MSEC) /* while somebody waits for what others hold, and while draining */
#define MAX_PASSWORD 4096
#define WAKE_TRIES   16 /* when so many found no room, there is none */

/* ---- what is shared ---- */

static CGN_RC password_read(const char *path, struct resp_shared *s, struct cgn_err *err)
{
	struct cgn_buf b = {0};
	if (path == NULL)
		return CGN_OK;
	CGN_TRY(cgn_err_of(disk_read_file(path, MAX_PASSWORD, &b, err), "kv.resp_password_file", err));
	struct cgn_str text = cgn_buf_view(&b);
	while (text.n > 0 && (text.p[text.n - 1] == '\n' || text.p[text.n - 1] == '\r'))
		text.n--;
	struct sha256 sum = crypto_sha256(text);
	memcpy(s->password, sum.b, sizeof s->password);
	s->has_password = text.n > 0;
	if (b.n > 0)
		crypto_wipe(b.p, b.n);
	cgn_buf_fini(&b);
	return s->has_password
		? CGN_OK
		: CGN_FAIL(err, INVALID, "kv.resp_password_file %s has no password in its first line", path);
}

static void shared_unref(struct resp_shared *s)
{
	if (s != NULL && atomic_fetch_sub(&s->refs, 1) == 1)
		free(s);
}

static bool is_loopback(const char *addr)
{
	struct cgn_str s = cgn_str_of(addr);
	return cgn_str_starts(s, "127.") || cgn_str_starts(s, "localhost:") || cgn_str_starts(s, "[::1]:");
}

static CGN_RC shared_new(const struct config *cfg, struct resp_shared **out, struct cgn_err *err)
{
	struct resp_shared *s = calloc(1, sizeof *s);
	if (s == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the Redis port");
	cgn_rc rc = password_read(cfg->kv.resp_password_file, s, err);
	if (cgn_ok(rc) && !s->has_password && cfg->kv.resp_listen[0] != '\0' &&
		!is_loopback(cfg->kv.resp_listen))
		rc = CGN_FAIL(err, INVALID,
			"kv.resp_listen %s can be reached from other machines: set kv.resp_password_file, or listen on 127.0.0.1",
			cfg->kv.resp_listen);
	if (!cgn_ok(rc)) {
		free(s);
		return rc;
	}
	*out = s;
	return CGN_OK;
}

/* ---- connections ---- */

static void port_release(struct cgn_grave *g)
{
	struct resp_port *p = CGN_CONTAINER(g, struct resp_port, grave);
	shared_unref(p->shared);
	cgn_hook_drop(&p->wake);
	p->tag = 0;
	free(p);
}

static void on_accept(void *user, struct net_conn *net)
{
	struct resp_port *p = user;
	CGN_LIVE(p, RESP_PORT_TAG);
	if (atomic_fetch_add(&p->shared->conns, 1) >= atomic_load(&p->worker->daemon->max_connections)) {
		static const char full[] = "-ERR max number of clients reached\r\n";
		atomic_fetch_sub(&p->shared->conns, 1);
		net_write_parts(net, &(struct net_part){full, sizeof full - 1, NULL}, 1);
		return; /* nobody takes it: closed */
	}
	struct resp_conn *c = resp_conn_new(p, net);
	if (c == NULL) {
		atomic_fetch_sub(&p->shared->conns, 1);
		return;
	}
	cgn_list_push(&p->conns, &c->link);
	if (p->n_conns++ == 0)
		cgn_timer_set(&p->tick, TICK);
	net_conn_take(net, &resp_conn_ops, c);
}

void resp_conn_left(struct resp_conn *c)
{
	struct resp_port *p = c->port;
	cgn_list_drop(&c->link);
	p->n_conns--;
	atomic_fetch_sub(&p->shared->conns, 1);
	if (p->closed && p->n_conns == 0)
		cgn_loop_bury(p->loop, &p->grave, port_release);
}

static bool any_waits(const struct resp_port *p)
{
	return !cgn_list_empty(&p->waiting[RESP_PROVEN]) || !cgn_list_empty(&p->waiting[RESP_NEW]);
}

static void on_tick(struct cgn_timer *t)
{
	struct resp_port *p = CGN_CONTAINER(t, struct resp_port, tick);
	CGN_LIVE(p, RESP_PORT_TAG);
	cgn_nsec now = cgn_loop_now(p->loop);
	resp_port_freed(p); /* others may have let go */
	p->cutting = true;
	cgn_list_each_safe (l, &p->conns)
		resp_conn_check(CGN_CONTAINER(l, struct resp_conn, link), now);
	p->cutting = false;
	if (p->n_conns > 0)
		cgn_timer_set(t, p->draining || any_waits(p) ? SHORT_TICK : TICK);
}

/* ---- who waits for room ---- */

/* Sooner, never later: whoever comes would put off for all that those who stall are cut. */
static void tick_soon(struct resp_port *p)
{
	if (p->tick.at == 0 || p->tick.at > cgn_loop_now(p->loop) + SHORT_TICK)
		cgn_timer_set(&p->tick, SHORT_TICK);
}

static void wait_for_room(struct resp_conn *c, enum resp_hold what)
{
	struct resp_shared *all = c->port->shared;
	if (!cgn_list_empty(&c->wait))
		return;
	c->wait_rank = c->proven ? RESP_PROVEN : RESP_NEW;
	c->wait_what = what;
	cgn_list_push(&c->port->waiting[c->wait_rank], &c->wait);
	atomic_fetch_add(&all->waiting, 1);
	atomic_fetch_add(&all->proven_waiting[what], c->wait_rank == RESP_PROVEN);
	tick_soon(c->port);
}

void resp_port_done_waiting(struct resp_conn *c)
{
	struct resp_shared *all = c->port->shared;
	if (cgn_list_empty(&c->wait))
		return;
	cgn_list_drop(&c->wait);
	atomic_fetch_sub(&all->waiting, 1);
	atomic_fetch_sub(&all->proven_waiting[c->wait_what], c->wait_rank == RESP_PROVEN);
}

static bool hold(struct resp_port *p, enum resp_hold what, uint64_t want, uint64_t most)
{
	if (atomic_fetch_add(&p->shared->held[what], want) + want <= most &&
		value_hold(p->worker->daemon, want))
		return true;
	atomic_fetch_sub(&p->shared->held[what], want);
	return false;
}

bool resp_hold_now(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held)
{
	uint64_t most = c->port->worker->daemon->held_max / 4 * 3;
	uint64_t want = n < most ? n : most; /* the largest values have to come and go too, one at a time */
	bool got = hold(c->port, what, want, most);
	*held = got ? want : 0;
	return got;
}

bool resp_hold(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held)
{
	bool behind = !c->proven && atomic_load(&c->port->shared->proven_waiting[what]) > 0;
	bool got = !behind && resp_hold_now(c, what, n, held);
	if (!got)
		wait_for_room(c, what);
	return got;
}

void resp_unhold(struct resp_port *p, enum resp_hold what, uint64_t n)
{
	if (n == 0)
		return;
	atomic_fetch_sub(&p->shared->held[what], n);
	value_unhold(p->worker->daemon, n);
	resp_port_freed(p);
}

/* What is free because somebody was cut is for the next tick: other workers' turn may come before. */
void resp_port_freed(struct resp_port *p)
{
	if (any_waits(p) && !p->cutting)
		cgn_loop_defer(p->loop, &p->wake);
}

/* In their order, each once: who still finds no room comes to the end again. How many more may be tried. */
static unsigned wake_rank(struct resp_port *p, enum resp_rank rank, unsigned tries)
{
	const struct cgn_link *last = p->waiting[rank].prev, *l = NULL;
	while (tries > 0 && l != last && !cgn_list_empty(&p->waiting[rank])) {
		struct resp_conn *c =
			CGN_CONTAINER(cgn_list_first(&p->waiting[rank]), struct resp_conn, wait);
		l = &c->wait;
		resp_port_done_waiting(c);
		resp_conn_resume(c);
		tries -= !cgn_list_empty(&c->wait);
	}
	return tries;
}

static void on_wake(struct cgn_hook *h)
{
	struct resp_port *p = CGN_CONTAINER(h, struct resp_port, wake);
	unsigned tries = WAKE_TRIES;
	CGN_LIVE(p, RESP_PORT_TAG);
	for (enum resp_rank rank = 0; rank < RESP_RANKS; rank++)
		tries = wake_rank(p, rank, tries);
}

/* ---- the beginning and the end ---- */

static CGN_RC listen_on(struct resp_port *p, const struct resp_port *first, struct cgn_err *err)
{
	const struct config *cfg = p->worker->daemon->cfg;
	char path[256];
	struct net_listen_cfg tcp = {.addr = cfg->kv.resp_listen,
		.setting = "kv.resp_listen",
		.reuse_port = true};
	struct net_listen_cfg local = {.addr = path,
		.setting = "kv.uds",
		.unix_mode = 0660,
		.with = first != NULL ? first->local : NULL};
	if (cfg->kv.resp_listen[0] != '\0')
		CGN_TRY(net_listen(p->loop, &tcp, on_accept, p, &p->tcp, err));
	if (cfg->kv.uds[0] == '\0')
		return CGN_OK;
	(void)snprintf(path, sizeof path, "unix:%.200s.resp", cfg->kv.uds);
	return net_listen(p->loop, &local, on_accept, p, &p->local, err);
}

static void port_close(void **take)
{
	struct resp_port *p = *take;
	*take = NULL;
	if (p == NULL)
		return;
	CGN_LIVE(p, RESP_PORT_TAG);
	net_listener_close(&p->tcp);
	net_listener_close(&p->local);
	cgn_timer_cancel(&p->tick);
	cgn_list_each_safe (l, &p->conns) {
		struct resp_conn *c = CGN_CONTAINER(l, struct resp_conn, link);
		net_abort(c->net);
	}
	p->closed = true;
	if (p->n_conns == 0)
		cgn_loop_bury(p->loop, &p->grave, port_release);
}

static void port_drain(void *port)
{
	struct resp_port *p = port;
	CGN_LIVE(p, RESP_PORT_TAG);
	p->draining = true;
	net_listener_close(&p->tcp);
	net_listener_close(&p->local);
	if (p->n_conns > 0)
		cgn_timer_set(&p->tick, 0);
}

static bool port_idle(const void *port)
{
	const struct resp_port *p = port;
	CGN_LIVE(p, RESP_PORT_TAG);
	return p->n_conns == 0;
}

static CGN_RC port_open(struct kvcached_worker *w, void **out, struct cgn_err *err)
{
	const struct resp_port *first = w->index > 0 ? w->daemon->workers[0].ports[KVCACHED_PORT_resp] : NULL;
	struct resp_port *p = calloc(1, sizeof *p);
	if (p == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the Redis port");
	p->tag = RESP_PORT_TAG;
	p->worker = w;
	p->loop = w->loop;
	p->store = w->daemon->store;
	cgn_list_init(&p->conns);
	for (size_t i = 0; i < RESP_RANKS; i++)
		cgn_list_init(&p->waiting[i]);
	cgn_timer_init(&p->tick, w->loop, on_tick);
	cgn_hook_init(&p->wake, on_wake);
	*out = p;
	if (first != NULL)
		p->shared = first->shared;
	else
		CGN_TRY(shared_new(w->daemon->cfg, &p->shared, err));
	atomic_fetch_add(&p->shared->refs, 1);
	CGN_TRY(listen_on(p, first, err));
	if (first == NULL)
		cgn_log(INFO, "resp.listen", F_STR("addr", w->daemon->cfg->kv.resp_listen),
			F_STR("uds", w->daemon->cfg->kv.uds));
	return CGN_OK;
}

const struct kvcached_port kvcached_port_resp = {.name = "resp",
	.open = port_open,
	.drain = port_drain,
	.idle = port_idle,
	.close = port_close};
