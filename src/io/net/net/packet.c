/* SPDX-License-Identifier: Apache-2.0 */
/* packet: one connection. */
#include "io/net/net/packet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/core/list.h"
#include "net_priv.h"

#define PACKET_TAG     0x0e7fac37U
#define PACKETS_A_TURN 32 /* Packets read in a turn before other connections get theirs. */

struct queued {
	struct cgn_link link;
	int fd;
	size_t n;
	uint8_t bytes[];
};

struct packet_conn {
	uint32_t tag;
	bool paused, failed;
	struct cgn_loop *loop;
	struct net_wire *wire;
	const struct packet_ops *ops;
	void *user;
	size_t queued, max_queue;
	struct cgn_link queue;
	struct cgn_hook end;
	struct cgn_err why;
	struct cgn_grave grave;
	void (*left)(void *arg); /* The listener's callback. */
	void *left_arg;
};

/* ---- the end ---- */
static void drop_queued(struct queued *q)
{
	cgn_list_drop(&q->link);
	if (q->fd >= 0)
		close(q->fd);
	free(q);
}

static void packet_release(struct cgn_grave *g)
{
	struct packet_conn *c = CGN_CONTAINER(g, struct packet_conn, grave);
	c->tag = 0;
	free(c);
}

void packet_close(struct packet_conn **take)
{
	struct packet_conn *c = CGN_TAKE_LIVE(take, PACKET_TAG);
	if (c == NULL)
		return;
	c->failed = true;
	c->ops = NULL;
	cgn_hook_drop(&c->end);
	net_wire_close(&c->wire, false);
	cgn_list_each_safe (it, &c->queue)
		drop_queued(CGN_CONTAINER(it, struct queued, link));
	c->queued = 0;
	if (c->left != NULL)
		c->left(c->left_arg);
	c->left = NULL;
	cgn_loop_bury(c->loop, &c->grave, packet_release);
}

static void on_end(struct cgn_hook *h)
{
	struct packet_conn *c = CGN_CONTAINER(h, struct packet_conn, end);
	const struct packet_ops *ops = c->ops;
	CGN_LIVE(c, PACKET_TAG);
	if (ops != NULL)
		ops->on_close(c, c->user, &c->why);
	packet_close(&c);
}

static void packet_fail(struct packet_conn *c, enum cgn_code code, const char *sentence)
{
	if (c->failed)
		return;
	c->failed = true;
	(void)CGN_FAIL_AS(&c->why, code, "%s", sentence);
	net_wire_watch(c->wire, 0);
	cgn_loop_defer(c->loop, &c->end);
}

static void fail_errno(struct packet_conn *c, const char *doing, int e)
{
	char sentence[160];
	(void)snprintf(sentence, sizeof sentence, "%s: %s", doing, strerror(e));
	packet_fail(c, CGN_UNAVAILABLE, sentence);
}

static void packet_watch(struct packet_conn *c)
{
	if (!c->failed)
		net_wire_watch(c->wire,
			(c->paused ? UV_DISCONNECT : UV_READABLE | UV_DISCONNECT) |
				(cgn_list_empty(&c->queue) ? 0 : UV_WRITABLE));
}

/* ---- writing ---- */
union control {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(sizeof(int))];
};

/* Return 0 or errno. */
static int try_send(const struct packet_conn *c, const struct iovec *iov, size_t n, int fd)
{
	union control control = {0};
	struct msghdr m = {.msg_iovlen = n};
	/* A pointer to non-const that sendmsg does not write through. */
	memcpy(&m.msg_iov, &iov, sizeof iov);
	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = sizeof control;
		control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd),
			.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
	}
	for (;;) {
		if (sendmsg(net_wire_fd(c->wire), &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno != EINTR)
			return errno;
	}
}

static void packet_enqueue(struct packet_conn *c, const struct iovec *iov, size_t n, int fd)
{
	size_t bytes = cgn_iov_bytes(iov, n), at = 0;
	if (c->queued + bytes > c->max_queue) {
		packet_fail(c, CGN_OVERLOADED, "the peer does not read what is sent to it");
		return;
	}
	struct queued *q = malloc(sizeof *q + bytes);
	if (q == NULL) {
		packet_fail(c, CGN_NO_MEMORY, "no memory for a packet");
		return;
	}
	*q = (struct queued){.fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1, .n = bytes};
	cgn_list_init(&q->link);
	if (fd >= 0 && q->fd < 0) {
		free(q);
		fail_errno(c, "no descriptor for a packet", errno);
		return;
	}
	for (size_t i = 0; i < n; at += iov[i++].iov_len)
		memcpy(q->bytes + at, iov[i].iov_base, iov[i].iov_len);
	cgn_list_push(&c->queue, &q->link);
	c->queued += bytes;
	packet_watch(c);
}

void packet_send(struct packet_conn *c, const struct iovec *iov, size_t n, int fd)
{
	CGN_LIVE(c, PACKET_TAG);
	CGN_MUST(cgn_iov_bytes(iov, n) <= PACKET_MAX);
	if (c->failed)
		return;
	int e = cgn_list_empty(&c->queue) ? try_send(c, iov, n, fd) : EAGAIN;
	if (e == EAGAIN || e == ENOBUFS || e == ETOOMANYREFS)
		packet_enqueue(c, iov, n, fd);
	else if (e != 0)
		fail_errno(c, "cannot send a packet", e);
}

static void on_writable(struct packet_conn *c)
{
	struct cgn_link *l;
	while (!c->failed && (l = cgn_list_first(&c->queue)) != NULL) {
		struct queued *q = CGN_CONTAINER(l, struct queued, link);
		const struct iovec iov = {q->bytes, q->n};
		int e = try_send(c, &iov, 1, q->fd);
		if (e == EAGAIN || e == ENOBUFS || e == ETOOMANYREFS)
			return;
		if (e != 0) {
			fail_errno(c, "cannot send a packet", e);
			return;
		}
		c->queued -= q->n;
		drop_queued(q);
	}
	packet_watch(c);
	if (!c->failed && c->ops != NULL && c->ops->on_drain != NULL)
		c->ops->on_drain(c, c->user);
}

size_t packet_queued(const struct packet_conn *c)
{
	CGN_LIVE(c, PACKET_TAG);
	return c->queued;
}

/* ---- reading ---- */
static int descriptor_of(struct msghdr *m)
{
	const struct cmsghdr *h = CMSG_FIRSTHDR(m);
	int fd = -1;
	if (h != NULL && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS &&
		h->cmsg_len == CMSG_LEN(sizeof fd))
		memcpy(&fd, CMSG_DATA(h), sizeof fd);
	return fd;
}

/* Return false when nothing more can be read now. */
static bool read_one(struct packet_conn *c)
{
	union control control;
	uint8_t *p = cgn_loop_scratch(c->loop);
	struct iovec iov = {p, PACKET_MAX};
	/* The size without padding, so that no second descriptor fits in. */
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_LEN(sizeof(int))};
	ssize_t n = recvmsg(net_wire_fd(c->wire), &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && errno == EINTR)
		return true;
	if (n < 0 && errno == EAGAIN)
		return false;
	int fd = n >= 0 ? descriptor_of(&m) : -1;
	if (n < 0)
		fail_errno(c, "cannot receive a packet", errno);
	else if ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
		packet_fail(c, CGN_INVALID, "a packet was too long, or brought more than one descriptor");
	else if (n == 0)
		packet_fail(c, CGN_UNAVAILABLE, "the peer closed the connection");
	else if (c->ops != NULL)
		c->ops->on_packet(c, c->user, p, (size_t)n, &fd);
	if (fd >= 0)
		close(fd);
	return true;
}

static void on_events(void *arg, int status, int events)
{
	struct packet_conn *c = arg;
	CGN_LIVE(c, PACKET_TAG);
	if (status < 0) {
		net_wire_lost(c->wire);
		fail_errno(c, "lost the connection", -status);
		return;
	}
	if ((events & UV_WRITABLE) != 0 && !c->failed)
		on_writable(c);
	for (int i = 0; i < PACKETS_A_TURN && c->wire != NULL && !c->failed && !c->paused && read_one(c); i++)
		;
	/* While paused, nothing reads up to the end, and unread packets of a peer that is gone need no
	 * answer. */
	if (c->wire != NULL && c->paused && (events & UV_DISCONNECT) != 0)
		packet_fail(c, CGN_UNAVAILABLE, "the peer closed the connection");
}

void packet_pause(struct packet_conn *c)
{
	CGN_LIVE(c, PACKET_TAG);
	c->paused = true;
	packet_watch(c);
}

void packet_resume(struct packet_conn *c)
{
	CGN_LIVE(c, PACKET_TAG);
	c->paused = false;
	packet_watch(c);
}

/* ---- the beginning ---- */
CGN_RC packet_conn_open(struct cgn_loop *l, int fd, size_t max_queue, void (*left)(void *arg), void *left_arg,
	struct packet_conn **out, struct cgn_err *err)
{
	struct packet_conn *c = CGN_NEW(struct packet_conn);
	*c = (struct packet_conn){.tag = PACKET_TAG, .loop = l, .max_queue = max_queue};
	cgn_list_init(&c->queue);
	cgn_hook_init(&c->end, on_end);
	cgn_rc rc = net_wire_open(l, fd, on_events, c, &c->wire, err);
	if (!cgn_ok(rc)) {
		free(c);
		return rc;
	}
	c->left = left;
	c->left_arg = left_arg;
	packet_watch(c);
	*out = c;
	return CGN_OK;
}

bool packet_conn_taken(const struct packet_conn *c)
{
	return c->ops != NULL;
}

void packet_take(struct packet_conn *c, const struct packet_ops *ops, void *user)
{
	CGN_LIVE(c, PACKET_TAG);
	c->ops = ops;
	c->user = user;
}

CGN_RC packet_connect(struct cgn_loop *l, const char *path, size_t max_queue, const struct packet_ops *ops,
	void *user, struct packet_conn **out, struct cgn_err *err)
{
	struct net_addr a = {.local = true};
	struct sockaddr_un sa;
	if (!cgn_str_copyz(a.path, sizeof a.path, cgn_str_of(path)))
		return CGN_FAIL(err, INVALID, "the path of a Unix socket has at most %zu bytes: %.200s",
			sizeof a.path - 1, path);
	net_addr_unix(&a, &sa);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return CGN_FAIL(err, UNAVAILABLE, "no socket: %s", strerror(errno));
	if (connect(fd, (const struct sockaddr *)&sa, sizeof sa) != 0) {
		int e = errno;
		close(fd);
		return CGN_FAIL(err, UNAVAILABLE, "cannot connect to %.200s: %s", path, strerror(e));
	}
	CGN_TRY(packet_conn_open(l, fd, max_queue, NULL, NULL, out, err));
	packet_take(*out, ops, user);
	return CGN_OK;
}
