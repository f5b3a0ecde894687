/* SPDX-License-Identifier: Apache-2.0 */
/* listen: listening sockets. Connections are accepted in small batches, so that the loop's other work is not
 * starved; accepting rests when descriptors ran out. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <uv.h>

#include "base/unlikely/unlikely.h"
#include "net_priv.h"

#define LISTENER_TAG   0x0e711573U
#define BACKLOG        4096
#define ACCEPT_BATCH   64
#define SHARED_BATCH   4 /* Batch size when other loops accept from the same socket. */
#define EXHAUSTED_REST (100 * CGN_MSEC)
/* Descriptors that listeners leave for others: at most so many, and at most an eighth of the limit. */
#define SPARE_FILES 32

struct net_listener {
	uint32_t tag;
	/* References: the owner, and each connection, which counts against max_conns until it is gone. */
	unsigned refs;
	struct cgn_loop *loop;
	struct net_wire *wire;
	struct cgn_timer rest;
	void (*on_accept)(void *user, struct net_conn *c);
	void *user;
	struct tls_ctx *tls;
	unsigned max_conns, port, batch;
	bool essential;
	bool low; /* Few descriptors were left when this listener looked last. */
	cgn_nsec tls_timeout;
	struct net_listener_stats stats;
	struct net_addr addr;
	ino_t inode; /* Inode of a Unix socket: only our own file is unlinked on close. */
};

/* Atomic, for metrics of the whole process. */
static _Atomic uint64_t exhausted_total;

static void on_listen(void *arg, int status, int events);

/* ---- life ---- */

static void listener_unref(struct net_listener *ln)
{
	if (--ln->refs > 0)
		return;
	tls_ctx_free(&ln->tls);
	ln->tag = 0;
	free(ln);
}

void net_listener_left(struct net_listener *ln, bool tls_failed)
{
	CGN_LIVE(ln, LISTENER_TAG);
	ln->stats.tls_failed += tls_failed;
	ln->stats.open--;
	listener_unref(ln);
}

void net_unix_unlink(const struct net_addr *a, ino_t inode)
{
	struct stat st;
	if (a->local && inode != 0 && stat(a->path, &st) == 0 && st.st_ino == inode)
		(void)unlink(a->path);
}

void net_listener_close(struct net_listener **take)
{
	struct net_listener *ln = CGN_TAKE_LIVE(take, LISTENER_TAG);
	if (ln == NULL)
		return;
	cgn_timer_cancel(&ln->rest);
	if (ln->wire != NULL)
		net_unix_unlink(&ln->addr, ln->inode);
	net_wire_close(&ln->wire, false);
	ln->on_accept = NULL;
	listener_unref(ln);
}

unsigned net_listener_port(const struct net_listener *ln)
{
	CGN_LIVE(ln, LISTENER_TAG);
	return ln->port;
}

uint64_t net_exhausted_total(void)
{
	return atomic_load_explicit(&exhausted_total, memory_order_relaxed);
}

struct net_listener_stats net_listener_stats(const struct net_listener *ln)
{
	CGN_LIVE(ln, LISTENER_TAG);
	return ln->stats;
}

/* ---- accepting ---- */

static void on_rested(struct cgn_timer *t)
{
	struct net_listener *ln = CGN_CONTAINER(t, struct net_listener, rest);
	net_wire_watch(ln->wire, UV_READABLE);
}

/* No descriptor is left for the connection, and the kernel would report it again at once. Stop accepting for
 * a while; the backlog keeps it. */
static void take_rest(struct net_listener *ln)
{
	if (ln->wire == NULL)
		return; /* on_accept has closed the listener */
	ln->low = true;
	ln->stats.exhausted++;
	atomic_fetch_add_explicit(&exhausted_total, 1, memory_order_relaxed);
	net_wire_watch(ln->wire, 0);
	cgn_timer_set(&ln->rest, EXHAUSTED_REST);
}

/* The kernel gives the lowest free number, so a high one says that nearly all are in use. */
static bool is_spare(const struct net_listener *ln, int fd)
{
	struct rlimit most;
	if (ln->essential || getrlimit(RLIMIT_NOFILE, &most) != 0)
		return false;
	rlim_t spare = most.rlim_cur / 8 < SPARE_FILES ? most.rlim_cur / 8 : SPARE_FILES;
	return (rlim_t)fd >= most.rlim_cur - spare;
}

/* After a rest: are there descriptors again? No connection is taken to find out. */
static bool has_descriptors(struct net_listener *ln)
{
	if (!ln->low)
		return true;
	int fd = fcntl(net_wire_fd(ln->wire), F_DUPFD_CLOEXEC, 0);
	ln->low = fd < 0 || is_spare(ln, fd);
	if (fd >= 0)
		close(fd);
	return !ln->low;
}

void net_listener_ready(struct net_listener *ln, struct net_conn *c)
{
	CGN_LIVE(ln, LISTENER_TAG);
	cgn_hook_drop(&c->exit);
	if (ln->on_accept != NULL)
		ln->on_accept(ln->user, c);
	if (c->ops == NULL)
		net_close(c);
}

static void conn_welcome(struct net_listener *ln, int fd, const struct sockaddr *peer)
{
	struct net_wire *w = NULL;
	if (ln->stats.open >= ln->max_conns) {
		ln->stats.refused++;
		close(fd);
		return;
	}
	struct net_conn *c = net_conn_new(ln->loop, NULL, NULL);
	c->listener = ln;
	ln->refs++;
	ln->stats.open++;
	ln->stats.accepted++;
	cgn_loop_at_exit(ln->loop, &c->exit); /* Until net_listener_ready it has no other owner. */
	if (peer->sa_family != AF_UNIX)
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	struct cgn_err err;
	if (!cgn_ok(net_wire_open(ln->loop, fd, NULL, NULL, &w, &err))) {
		net_conn_fail(c, &err, true);
		return;
	}
	if (ln->tls != NULL)
		cgn_timer_set(&c->timer, ln->tls_timeout);
	net_conn_connected(c, &w, peer, ln->tls, NULL);
}

/* Return false when no connection waits. */
static bool accept_one(struct net_listener *ln)
{
	struct sockaddr_storage peer = {.ss_family = AF_UNIX};
	socklen_t len = sizeof peer;
	int fd = accept4(net_wire_fd(ln->wire), (struct sockaddr *)&peer, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		bool spare = is_spare(ln, fd);
		conn_welcome(ln, fd, (struct sockaddr *)&peer);
		if (spare)
			take_rest(ln);
		return !spare;
	}
	if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
		take_rest(ln);
	return errno == ECONNABORTED || errno == EINTR ||
		errno == EPROTO; /* The connection is gone already; the next one may be good. */
}

void net_listener_empty(struct net_listener *ln)
{
	CGN_LIVE(ln, LISTENER_TAG);
	ln->refs++; /* on_accept may close the listener. */
	for (unsigned i = 0; i < BACKLOG && ln->wire != NULL && has_descriptors(ln) && accept_one(ln); i++)
		;
	listener_unref(ln);
}

static void on_listen(void *arg, int status, int events)
{
	struct net_listener *ln = arg;
	CGN_LIVE(ln, LISTENER_TAG);
	(void)events;
	if (status < 0)
		net_wire_lost(ln->wire);
	if (ln->wire != NULL && !has_descriptors(ln)) {
		take_rest(ln);
		return;
	}
	ln->refs++; /* on_accept may close the listener. */
	unsigned most = unlikely_way(UNLIKELY_accept_one) ? 1 : ln->batch;
	for (unsigned i = 0; i < most && ln->wire != NULL && accept_one(ln); i++)
		;
	if (ln->wire != NULL && ln->rest.at == 0)
		net_wire_watch(ln->wire, UV_READABLE);
	listener_unref(ln);
}

/* ---- binding ---- */

static CGN_RC in_use(const char *addr, const char *who, struct cgn_err *err)
{
	return CGN_FAIL(err, ADDRESS_IN_USE,
		"cannot listen on %s: the address is in use%s%s; stop that or choose another", addr,
		who[0] != '\0' ? " by " : "", who);
}

static CGN_RC bind_failed(const struct net_listener *ln, const char *addr, int e, struct cgn_err *err)
{
	char who[96] = "";
	if (e == EADDRINUSE && ln->addr.local && !net_unix_is_socket(&ln->addr))
		return CGN_FAIL(err, INVALID,
			"cannot listen on %s: it is there and no socket; remove it or choose another path",
			addr);
	if (e == EADDRINUSE && !ln->addr.local)
		(void)net_port_owner((unsigned)strtoul(ln->addr.port, NULL, 10), who, sizeof who);
	if (e == EADDRINUSE)
		return in_use(addr, who, err);
	return CGN_FAIL_AS(err, cgn_code_from_errno(e), "cannot listen on %s: %s", addr, strerror(e));
}

/* Return 0 or errno. |share|: set SO_REUSEPORT. */
static int try_bind(const struct net_listener *ln, const struct addrinfo *ai, bool share, int *out)
{
	int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (share)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &(int){1}, sizeof(int));
	/* ":port" means every address, IPv4 too; "[::]:port" means IPv6 only. */
	if (ai->ai_family == AF_INET6)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ln->addr.host[0] != '\0'},
			sizeof(int));
	if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0) {
		int e = errno;
		close(fd);
		return e;
	}
	*out = fd;
	return 0;
}

/* Check that the port is free before binding with SO_REUSEPORT: a second program of the same user would
 * otherwise share our port silently and take half of its connections. Sockets of our own workers do not
 * count. */
static int bind_alone(const struct net_listener *ln, const struct addrinfo *ai, unsigned port)
{
	int fd = -1;
	char who[96];
	int e = try_bind(ln, ai, false, &fd);
	if (e == 0)
		close(fd);
	if (e != EADDRINUSE)
		return e;
	return net_port_owner(port, who, sizeof who) == NET_OWNER_SELF ? 0 : e;
}

static int bind_tcp(const struct net_listener *ln, const struct addrinfo *ai, bool share, int *fd)
{
	unsigned port = (unsigned)strtoul(ln->addr.port, NULL, 10);
	int e = share && port != 0 ? bind_alone(ln, ai, port) : 0;
	return e != 0 ? e : try_bind(ln, ai, share, fd);
}

/* Use a socket that the service manager kept, if one is bound to the address. */
static bool inherit_tcp(struct net_listener *ln, const struct addrinfo *ai, int *fd)
{
	bool shared = false;
	*fd = net_inherit_find(ai, ai->ai_family == AF_INET6 && ln->addr.host[0] != '\0', &shared);
	if (shared)
		ln->batch = SHARED_BATCH;
	return *fd >= 0;
}

static int obtain_tcp(struct net_listener *ln, const struct net_listen_cfg *cfg, const struct addrinfo *ai,
	int *fd)
{
	return cfg->keep && inherit_tcp(ln, ai, fd) ? 0 : bind_tcp(ln, ai, cfg->reuse_port, fd);
}

static CGN_RC open_tcp(struct net_listener *ln, const struct net_listen_cfg *cfg, int *fd,
	struct cgn_err *err)
{
	struct addrinfo *list = NULL;
	bool any = ln->addr.host[0] == '\0';
	int rc = net_addr_resolve(&ln->addr, any, any, &list);
	if (rc != 0)
		return CGN_FAIL(err, INVALID, "cannot listen on %s: %s", cfg->addr, gai_strerror(rc));
	const struct addrinfo *ai = list;
	for (const struct addrinfo *v6 = list; any && v6 != NULL; v6 = v6->ai_next)
		if (v6->ai_family == AF_INET6)
			ai = v6; /* A single dual-stack socket serves both families. */
	int e = obtain_tcp(ln, cfg, ai, fd);
	if (e == EAFNOSUPPORT && ai != list)
		e = obtain_tcp(ln, cfg, list, fd);
	freeaddrinfo(list);
	return e == 0 ? CGN_OK : bind_failed(ln, cfg->addr, e, err);
}

bool net_unix_is_socket(const struct net_addr *a)
{
	struct stat st;
	return stat(a->path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* Is the socket file a leftover of a crash? No process answers at it then. */
static bool is_stale(const struct sockaddr_un *sa)
{
	struct stat st;
	if (stat(sa->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
		return false;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return false;
	bool refused = connect(fd, (const struct sockaddr *)sa, sizeof *sa) != 0 && errno == ECONNREFUSED;
	close(fd);
	return refused;
}

int net_unix_bind(const struct net_addr *a, int fd, mode_t mode, ino_t *inode)
{
	struct sockaddr_un sa;
	struct stat st;
	net_addr_unix(a, &sa);
	if (is_stale(&sa))
		(void)unlink(sa.sun_path);
	if (bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0)
		return errno;
	/* Nothing can connect before listen(2), so the mode is never wider than asked. */
	if (chmod(sa.sun_path, mode) != 0 || stat(sa.sun_path, &st) != 0)
		return errno;
	*inode = st.st_ino;
	return 0;
}

static CGN_RC open_unix(struct net_listener *ln, const struct net_listen_cfg *cfg, int *fd,
	struct cgn_err *err)
{
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int e = *fd < 0
		? errno
		: net_unix_bind(&ln->addr, *fd, cfg->unix_mode != 0 ? cfg->unix_mode : 0660, &ln->inode);
	if (e == 0)
		return CGN_OK;
	if (*fd >= 0)
		close(*fd);
	return bind_failed(ln, cfg->addr, e, err);
}

static unsigned bound_port(int fd)
{
	struct sockaddr_storage sa = {0};
	socklen_t len = sizeof sa;
	struct sockaddr_in in;
	if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0 ||
		(sa.ss_family != AF_INET && sa.ss_family != AF_INET6))
		return 0;
	memcpy(&in, &sa, sizeof in); /* The port is at the same offset in both structures. */
	return ntohs(in.sin_port);
}

/* Accept from another loop's socket: both share one queue of connections, and this loop watches it through a
 * descriptor of its own. */
static CGN_RC open_shared(struct net_listener *ln, const struct net_listen_cfg *cfg, struct cgn_err *err)
{
	struct net_listener *with = cfg->with;
	CGN_LIVE(with, LISTENER_TAG);
	CGN_MUST(with->wire != NULL);
	int fd = fcntl(net_wire_fd(with->wire), F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return bind_failed(ln, cfg->addr, errno, err);
	ln->port = with->port;
	ln->batch = with->batch = SHARED_BATCH;
	return net_wire_open(ln->loop, fd, on_listen, ln, &ln->wire, err);
}

static CGN_RC open_socket(struct net_listener *ln, const struct net_listen_cfg *cfg, struct cgn_err *err)
{
	int fd = -1;
	CGN_TRY(net_addr_parse(cfg->addr, &ln->addr, err));
	if (cfg->with != NULL)
		return open_shared(ln, cfg, err);
	if (ln->addr.local)
		CGN_TRY(open_unix(ln, cfg, &fd, err));
	else
		CGN_TRY(open_tcp(ln, cfg, &fd, err));
	if (listen(fd, BACKLOG) != 0) {
		int e = errno;
		close(fd);
		return bind_failed(ln, cfg->addr, e, err);
	}
	ln->port = bound_port(fd);
	if (cfg->keep && !ln->addr.local)
		net_inherit_offered(fd);
	return net_wire_open(ln->loop, fd, on_listen, ln, &ln->wire, err);
}

CGN_RC net_listen(struct cgn_loop *l, const struct net_listen_cfg *cfg,
	void (*on_accept)(void *user, struct net_conn *c), void *user, struct net_listener **out,
	struct cgn_err *err)
{
	struct net_listener *ln = CGN_NEW(struct net_listener);
	*ln = (struct net_listener){.tag = LISTENER_TAG,
		.refs = 1,
		.loop = l,
		.on_accept = on_accept,
		.user = user};
	ln->batch = ACCEPT_BATCH;
	ln->essential = cfg->essential;
	ln->max_conns = cfg->max_conns != 0 ? cfg->max_conns : 65536;
	ln->tls_timeout = cfg->tls_timeout != 0 ? cfg->tls_timeout : 5 * CGN_SEC;
	cgn_timer_init(&ln->rest, l, on_rested);
	if (cfg->tls != NULL) {
		tls_ctx_ref(cfg->tls);
		ln->tls = cfg->tls;
	}
	cgn_rc rc = cgn_err_of(open_socket(ln, cfg, err), cfg->setting, err);
	if (!cgn_ok(rc)) {
		net_listener_close(&ln);
		return rc;
	}
	net_wire_watch(ln->wire, UV_READABLE);
	*out = ln;
	return CGN_OK;
}
