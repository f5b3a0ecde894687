/* SPDX-License-Identifier: Apache-2.0 */
/* The port: listeners, connections, the tick, and waking the connections that wait for room. */
#include "kvcached/resp/resp_priv.h"

#include <stdlib.h>

#include "base/crypto/crypto.h"
#include "base/log/log.h"
#include "io/os/disk/disk.h"

#define TICK         CGN_SEC
#define MAX_PASSWORD 4096
#define WAKE_TRIES   16 /* failed attempts per turn; then there is no room */

/* ---- shared by all workers ---- */

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

static CGN_RC role_check(const struct config *cfg, struct cgn_err *err)
{
	CGN_ON_EXIT(identity_roles_unref) struct identity_roles *t = NULL;
	uint64_t bit;
	CGN_TRY(identity_roles_new(cfg, &t, err));
	return identity_role_find(t, cgn_str_of(cfg->kv.resp_role), &bit)
		? CGN_OK
		: CGN_FAIL(err, INVALID,
			  "kv.resp_role \"%s\" is not a role: use one of docs/reference/permissions.md, or define [roles.\"%s\"]",
			  cfg->kv.resp_role, cfg->kv.resp_role);
}

static CGN_RC shared_new(const struct config *cfg, struct resp_shared **out, struct cgn_err *err)
{
	struct resp_shared *s = CGN_NEW(struct resp_shared);
	cgn_rc rc = role_check(cfg, err);
	if (cgn_ok(rc))
		rc = password_read(cfg->kv.resp_password_file, s, err);
	if (cgn_ok(rc) && !s->has_password && cfg->kv.resp_listen[0] != '\0' &&
		!identity_is_local(cgn_str_of(cfg->kv.resp_listen)))
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

CGN_RC resp_check(const struct config *cfg, struct cgn_err *err)
{
	struct resp_shared *s = NULL;
	CGN_TRY(shared_new(cfg, &s, err));
	free(s);
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

static void port_on_accept(void *user, struct net_conn *net)
{
	struct resp_port *p = user;
	CGN_LIVE(p, RESP_PORT_TAG);
	if (atomic_fetch_add(&p->shared->conns, 1) >= atomic_load(&p->worker->daemon->max_connections)) {
		static const char full[] = "-ERR max number of clients reached\r\n";
		atomic_fetch_sub(&p->shared->conns, 1);
		net_write_parts(net, &(struct net_part){full, sizeof full - 1, NULL}, 1);
		return; /* not taken: io/net/net closes it */
	}
	struct resp_conn *c = resp_conn_new(p, net);
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

static void port_on_tick(struct cgn_timer *t)
{
	struct resp_port *p = CGN_CONTAINER(t, struct resp_port, tick);
	CGN_LIVE(p, RESP_PORT_TAG);
	cgn_nsec now = cgn_loop_now(p->loop);
	resp_hold_freed(p); /* other workers may have freed memory */
	p->cutting = true;
	cgn_list_each_safe (l, &p->conns)
		resp_conn_check(CGN_CONTAINER(l, struct resp_conn, link), now);
	p->cutting = false;
	if (p->n_conns > 0)
		cgn_timer_set(t, p->draining || resp_hold_any_waits(p) ? RESP_SHORT_TICK : TICK);
}

/* ---- connections that wait for room ---- */

/* Resume waiting connections in order, each once. A connection that finds no room waits at the end again.
 * Returns the attempts that are left. */
static unsigned port_wake_rank(struct resp_port *p, enum resp_rank rank, unsigned tries)
{
	const struct cgn_link *last = p->waiting[rank].prev, *l = NULL;
	while (tries > 0 && l != last && !cgn_list_empty(&p->waiting[rank])) {
		struct resp_conn *c =
			CGN_CONTAINER(cgn_list_first(&p->waiting[rank]), struct resp_conn, wait);
		l = &c->wait;
		resp_hold_wait_end(c);
		resp_conn_resume(c);
		tries -= !cgn_list_empty(&c->wait);
	}
	return tries;
}

static void port_on_wake(struct cgn_hook *h)
{
	struct resp_port *p = CGN_CONTAINER(h, struct resp_port, wake);
	unsigned tries = WAKE_TRIES;
	CGN_LIVE(p, RESP_PORT_TAG);
	for (enum resp_rank rank = 0; rank < RESP_RANKS; rank++)
		tries = port_wake_rank(p, rank, tries);
}

/* ---- open and close ---- */

static CGN_RC port_listen(struct resp_port *p, const struct resp_port *first, struct cgn_err *err)
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
		CGN_TRY(net_listen(p->loop, &tcp, port_on_accept, p, &p->tcp, err));
	if (cfg->kv.uds[0] == '\0')
		return CGN_OK;
	(void)snprintf(path, sizeof path, "unix:%.200s.resp", cfg->kv.uds);
	return net_listen(p->loop, &local, port_on_accept, p, &p->local, err);
}

static void port_close(void **take)
{
	struct resp_port *p = CGN_TAKE(take);
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
	struct resp_port *p = CGN_NEW(struct resp_port);
	p->tag = RESP_PORT_TAG;
	p->worker = w;
	p->loop = w->loop;
	p->store = w->daemon->store;
	cgn_list_init(&p->conns);
	for (size_t i = 0; i < RESP_RANKS; i++)
		cgn_list_init(&p->waiting[i]);
	cgn_timer_init(&p->tick, w->loop, port_on_tick);
	cgn_hook_init(&p->wake, port_on_wake);
	*out = p;
	if (first != NULL)
		p->shared = first->shared;
	else
		CGN_TRY(shared_new(w->daemon->cfg, &p->shared, err));
	atomic_fetch_add(&p->shared->refs, 1);
	CGN_TRY(port_listen(p, first, err));
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
