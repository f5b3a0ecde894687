/* SPDX-License-Identifier: Apache-2.0 */
/* packet, listening: one socket from which several loops may accept. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>
#include <uv.h>

#include "io/net/net/packet.h"
#include "net_priv.h"

#define LISTENER_TAG 0x0e7fac38U
#define BACKLOG      4096
#define ACCEPT_BATCH 16
#define REST         (100 * CGN_MSEC)

struct packet_listener {
	uint32_t tag;
	unsigned refs, open, max_conns; /* refs: the owner, and each connection. */
	size_t max_queue;
	struct cgn_loop *loop;
	struct net_wire *wire;
	struct cgn_timer rest;
	void (*on_accept)(void *user, struct packet_conn *c);
	void *user;
	struct net_addr addr;
	ino_t inode; /* 0: the file belongs to another listener. */
};

static void listener_unref(struct packet_listener *ln)
{
	if (--ln->refs > 0)
		return;
	ln->tag = 0;
	free(ln);
}

static void on_left(void *arg)
{
	struct packet_listener *ln = arg;
	CGN_LIVE(ln, LISTENER_TAG);
	ln->open--;
	listener_unref(ln);
}

static void conn_welcome(struct packet_listener *ln, int fd)
{
	struct packet_conn *c = NULL;
	if (ln->open >= ln->max_conns) {
		close(fd);
		return;
	}
	if (!cgn_ok(packet_conn_open(ln->loop, fd, ln->max_queue, on_left, ln, &c, NULL)))
		return;
	ln->refs++;
	ln->open++;
	ln->on_accept(ln->user, c);
	if (!packet_conn_taken(c))
		packet_close(&c);
}

static void on_rested(struct cgn_timer *t)
{
	net_wire_watch(CGN_CONTAINER(t, struct packet_listener, rest)->wire, UV_READABLE);
}

/* Return false when no connection waits. */
static bool accept_one(struct packet_listener *ln)
{
	int fd = accept4(net_wire_fd(ln->wire), NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		conn_welcome(ln, fd);
		return true;
	}
	/* The kernel would report the connection again at once. */
	if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
		net_wire_watch(ln->wire, 0);
		cgn_timer_set(&ln->rest, REST);
	}
	return errno == ECONNABORTED || errno == EINTR;
}

static void on_listen(void *arg, int status, int events)
{
	struct packet_listener *ln = arg;
	(void)events;
	CGN_LIVE(ln, LISTENER_TAG);
	if (status < 0)
		net_wire_lost(ln->wire);
	ln->refs++; /* on_accept may close the listener. */
	for (int i = 0; i < ACCEPT_BATCH && ln->wire != NULL && accept_one(ln); i++)
		;
	if (ln->wire != NULL && ln->rest.at == 0)
		net_wire_watch(ln->wire, UV_READABLE);
	listener_unref(ln);
}

static CGN_RC listen_failed(const struct packet_listener *ln, int e, struct cgn_err *err)
{
	if (e == EADDRINUSE && !net_unix_is_socket(&ln->addr))
		return CGN_FAIL(err, INVALID,
			"cannot listen on unix:%s: it is there and no socket; remove it or choose another path",
			ln->addr.path);
	if (e == EADDRINUSE)
		return CGN_FAIL(err, ADDRESS_IN_USE,
			"cannot listen on unix:%s: somebody listens there; stop that or choose another path",
			ln->addr.path);
	return CGN_FAIL_AS(err, cgn_code_from_errno(e), "cannot listen on unix:%s: %s", ln->addr.path,
		strerror(e));
}

static int bind_own(struct packet_listener *ln, mode_t mode, int *fd)
{
	*fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int e = *fd < 0 ? errno : net_unix_bind(&ln->addr, *fd, mode != 0 ? mode : 0660, &ln->inode);
	return e == 0 && listen(*fd, BACKLOG) != 0 ? errno : e;
}

static CGN_RC open_socket(struct packet_listener *ln, const struct packet_listen_cfg *cfg,
	struct cgn_err *err)
{
	int fd = -1, e = 0;
	if (!cgn_str_copyz(ln->addr.path, sizeof ln->addr.path, cgn_str_of(cfg->path)))
		return CGN_FAIL(err, INVALID, "the path of a Unix socket has at most %zu bytes: %.200s",
			sizeof ln->addr.path - 1, cfg->path);
	if (cfg->with != NULL)
		e = (fd = fcntl(net_wire_fd(cfg->with->wire), F_DUPFD_CLOEXEC, 0)) < 0 ? errno : 0;
	else
		e = bind_own(ln, cfg->mode, &fd);
	if (e != 0) {
		if (fd >= 0)
			close(fd);
		return listen_failed(ln, e, err);
	}
	CGN_TRY(net_wire_open(ln->loop, fd, on_listen, ln, &ln->wire, err));
	net_wire_watch(ln->wire, UV_READABLE);
	return CGN_OK;
}

CGN_RC packet_listen(struct cgn_loop *l, const struct packet_listen_cfg *cfg,
	void (*on_accept)(void *user, struct packet_conn *c), void *user, struct packet_listener **out,
	struct cgn_err *err)
{
	struct packet_listener *ln = CGN_NEW(struct packet_listener);
	*ln = (struct packet_listener){.tag = LISTENER_TAG,
		.refs = 1,
		.loop = l,
		.on_accept = on_accept,
		.user = user,
		.max_queue = cfg->max_queue,
		.max_conns = cfg->max_conns != 0 ? cfg->max_conns : 16384,
		.addr.local = true};
	cgn_timer_init(&ln->rest, l, on_rested);
	cgn_rc rc = open_socket(ln, cfg, err);
	if (!cgn_ok(rc)) {
		packet_listener_close(&ln);
		return rc;
	}
	*out = ln;
	return CGN_OK;
}

void packet_listener_close(struct packet_listener **take)
{
	struct packet_listener *ln = CGN_TAKE_LIVE(take, LISTENER_TAG);
	if (ln == NULL)
		return;
	cgn_timer_cancel(&ln->rest);
	if (ln->wire != NULL)
		net_unix_unlink(&ln->addr, ln->inode);
	net_wire_close(&ln->wire, false);
	listener_unref(ln);
}
