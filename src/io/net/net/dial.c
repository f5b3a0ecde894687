/* SPDX-License-Identifier: Apache-2.0 */
/* dial: find the addresses of the name (name.h; on the pool, if it must be looked up), then try each in turn. The time that is
 * left is shared among the addresses that are left. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uv.h>

#include "net_priv.h"

/* Allocated apart: the pool may still use it after the connection was given up. */
struct resolving {
	struct net_conn *c; /* NULL: the connection was given up. */
	struct net_addr addr;
	struct addrinfo *list;
	cgn_nsec began;
	int rc;
};

struct net_dialing {
	struct net_addr addr;
	struct tls_ctx *tls;
	struct resolving *resolving;
	struct net_addresses list;
	size_t next; /* Index in |list| of the address to try next. */
	struct sockaddr_un local;
	struct sockaddr_storage peer;
	struct net_wire *wire;
	/* Timeout of one attempt; the connection's own timer bounds all attempts together. */
	struct cgn_timer timer;
	struct net_conn *c;
	cgn_nsec deadline;
	char *server_name;
	char text[280];
	struct cgn_err last;
};

static void try_next(struct net_dialing *d);

void net_dial_cancel(struct net_conn *c)
{
	struct net_dialing *d = c->dialing;
	c->dialing = NULL;
	if (d == NULL)
		return;
	if (d->resolving != NULL)
		d->resolving->c = NULL;
	cgn_timer_cancel(&d->timer);
	net_wire_close(&d->wire, true);
	tls_ctx_free(&d->tls);
	free(d->server_name);
	free(d);
}

/* Return true for an error that says that this process or machine lacks something, and nothing of the peer. */
static bool is_shortage(int e)
{
	return e == EMFILE || e == ENFILE || e == ENOMEM || e == ENOBUFS || e == EADDRNOTAVAIL;
}

static void attempt_failed(struct net_dialing *d, int e)
{
	char peer[64];
	net_addr_text((struct sockaddr *)&d->peer, peer, sizeof peer);
	cgn_timer_cancel(&d->timer);
	net_wire_close(&d->wire, true);
	bool same = d->addr.local || strcmp(peer, d->text) == 0;
	(void)CGN_FAIL(&d->last, UNAVAILABLE, "cannot connect to %s%s%s%s: %s", d->text, same ? "" : " (",
		same ? "" : peer, same ? "" : ")", strerror(e));
	d->last.code = is_shortage(e) ? CGN_NO_MEMORY : e == ETIMEDOUT ? CGN_DEADLINE : CGN_UNAVAILABLE;
	d->last.sys_errno = e;
	try_next(d);
}

static void on_attempt_timeout(struct cgn_timer *t)
{
	attempt_failed(CGN_CONTAINER(t, struct net_dialing, timer), ETIMEDOUT);
}

/* Hand the wire over to the connection. |d| lives until the connection is open, for the message of a timeout
 * and the name to verify. */
static void on_connected(struct net_dialing *d)
{
	struct net_wire *w = d->wire;
	d->wire = NULL;
	cgn_timer_cancel(&d->timer);
	if (d->c->name != NULL)
		net_name_works(d->c->name, &d->list.at[0], &d->list.at[d->next - 1]);
	net_conn_connected(d->c, &w, (struct sockaddr *)&d->peer, d->tls, d->server_name);
}

static void on_connect(void *arg, int status, int events)
{
	struct net_dialing *d = arg;
	int e = 0;
	socklen_t len = sizeof e;
	(void)events;
	if (getsockopt(net_wire_fd(d->wire), SOL_SOCKET, SO_ERROR, &e, &len) != 0)
		e = errno;
	if (e != 0 || status < 0)
		attempt_failed(d, e != 0 ? e : ECONNREFUSED);
	else
		on_connected(d);
}

/* Return 0 when the attempt is in flight (on_connect follows), else an errno. */
static int attempt_begin(struct net_dialing *d, const struct sockaddr *sa, socklen_t len)
{
	int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return errno;
	if (sa->sa_family != AF_UNIX)
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	if (connect(fd, sa, len) != 0 && errno != EINPROGRESS) {
		int e = errno;
		close(fd);
		return e;
	}
	if (!cgn_ok(net_wire_open(d->c->loop, fd, on_connect, d, &d->wire, NULL)))
		return ENOMEM;
	net_wire_watch(d->wire, UV_WRITABLE);
	return 0;
}

static void give_up(struct net_dialing *d)
{
	struct cgn_err why = d->last;
	if (d->c->name != NULL && why.code != CGN_NO_MEMORY)
		net_name_fails(d->c->name);
	net_conn_fail(d->c, &why, true);
}

static void try_next(struct net_dialing *d)
{
	if (d->next >= d->list.n) {
		give_up(d);
		return;
	}
	cgn_nsec now = cgn_loop_now(d->c->loop);
	cgn_nsec share = d->deadline > now ? (d->deadline - now) / (d->list.n - d->next) : 0;
	const union net_sockaddr *a = &d->list.at[d->next++];
	socklen_t len = net_sockaddr_len(a);
	memcpy(&d->peer, a, len);
	cgn_timer_set(&d->timer, share);
	int e = attempt_begin(d, &a->any, len);
	if (e != 0)
		attempt_failed(d, e);
}

static void resolve_work(void *arg)
{
	struct resolving *r = arg;
	r->rc = net_addr_resolve(&r->addr, false, false, &r->list);
}

static void resolve_done(void *arg)
{
	struct resolving *r = arg;
	struct net_dialing *d = r->c != NULL ? r->c->dialing : NULL;
	if (d != NULL) {
		d->resolving = NULL;
		if (net_name_told(r->c->name, r->began, r->rc, r->list, &d->list)) {
			try_next(d);
		} else {
			(void)CGN_FAIL(&d->last, UNAVAILABLE, "cannot resolve %s: %s", d->addr.host,
				r->rc != 0 ? gai_strerror(r->rc) : "it has no address of IPv4 or IPv6");
			if (r->rc == EAI_MEMORY || r->rc == EAI_SYSTEM)
				d->last.code = CGN_NO_MEMORY;
			give_up(d);
		}
	}
	if (r->rc == 0)
		freeaddrinfo(r->list);
	free(r);
}

static void start_resolving(struct net_dialing *d)
{
	struct resolving *r = d->resolving = CGN_NEW(struct resolving);
	r->c = d->c;
	r->addr = d->addr;
	r->began = cgn_loop_now(d->c->loop);
	cgn_loop_work(d->c->loop, resolve_work, resolve_done, r);
}

static void start_named(struct net_dialing *d)
{
	d->c->name = net_name_get(&d->addr);
	if (net_name_addresses(d->c->name, cgn_loop_now(d->c->loop), &d->list))
		try_next(d);
	else
		start_resolving(d);
}

static void start_local(struct net_dialing *d)
{
	net_addr_unix(&d->addr, &d->local);
	d->peer.ss_family = AF_UNIX;
	int e = attempt_begin(d, (struct sockaddr *)&d->local, sizeof d->local);
	if (e != 0)
		attempt_failed(d, e);
}

/* Network failures are reported through on_close, so that a caller handles them in one place. */
static void dial_start(struct net_dialing *d)
{
	struct addrinfo *list = NULL;
	if (d->addr.local) {
		start_local(d);
		return;
	}
	if (net_addr_resolve(&d->addr, true, false, &list) != 0) {
		start_named(d);
		return;
	}
	net_addresses_take(&d->list, list);
	freeaddrinfo(list);
	try_next(d);
}

static CGN_RC dialing_new(struct net_conn *c, const struct net_dial *cfg, struct cgn_err *err)
{
	struct net_dialing *d = c->dialing = CGN_NEW(struct net_dialing);
	d->c = c;
	cgn_timer_init(&d->timer, c->loop, on_attempt_timeout);
	CGN_TRY(net_addr_parse(cfg->addr, &d->addr, err));
	if (!d->addr.local && (d->addr.host[0] == '\0' || strcmp(d->addr.port, "0") == 0))
		return CGN_FAIL(err, INVALID, "cannot connect to \"%s\": a host and a port are needed",
			cfg->addr);
	(void)cgn_str_copyz(d->text, sizeof d->text, cgn_str_of(cfg->addr));
	d->server_name = cgn_str_dupz(cgn_str_of(cfg->server_name != NULL ? cfg->server_name : d->addr.host));
	if (cfg->tls != NULL) {
		tls_ctx_ref(cfg->tls);
		d->tls = cfg->tls;
	}
	return CGN_OK;
}

static void dial_discard(struct net_conn *c)
{
	net_dial_cancel(c);
	net_name_free(&c->name);
	free(c);
}

CGN_RC net_connect(struct cgn_loop *l, const struct net_dial *cfg, const struct net_conn_ops *ops, void *user,
	struct net_conn **out, struct cgn_err *err)
{
	struct net_conn *c = net_conn_new(l, ops, user);
	cgn_rc rc = dialing_new(c, cfg, err);
	if (!cgn_ok(rc)) {
		dial_discard(c);
		return rc;
	}
	cgn_nsec timeout = cfg->connect_timeout != 0 ? cfg->connect_timeout : 5 * CGN_SEC;
	c->dialing->deadline = cgn_loop_now(l) + timeout;
	(void)cgn_str_copyz(c->peer, sizeof c->peer, cgn_str_of(cfg->addr));
	cgn_timer_set(&c->timer, timeout);
	dial_start(c->dialing);
	*out = c;
	return CGN_OK;
}
