/* SPDX-License-Identifier: Apache-2.0 */
/* conn: one byte stream from open to on_close. Callbacks may pause, write, close or abort; nothing is freed
 * before the end of the turn. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "base/unlikely/unlikely.h"
#include "net_priv.h"

#define NET_CONN_TAG   0x0e7c0115U
#define FLUSH_PATIENCE (5 * CGN_SEC)
#define QUEUE_LIMIT    (8 * NET_QUEUE_MARK)
#define READ_SMALL     7
#define READS_A_TURN   4

static void on_turn_end(struct cgn_hook *h);
static void on_timeout(struct cgn_timer *t);
static void on_wire(void *arg, int status, int events);

/* ---- states ---- */

static const uint8_t state_exits[] = {
#define TO(id)                1U << NET_##id
#define STATE(id, exits, why) [NET_##id] = (exits),
#include "io/net/net/states.def"
#undef STATE
#undef TO
};

static void conn_move(struct net_conn *c, enum net_state to)
{
	CGN_MUST((state_exits[c->state] & 1U << to) != 0);
	c->state = (uint8_t)to;
}

bool net_conn_alive(const struct net_conn *c)
{
	return c->state != NET_ENDED;
}

/* Only the reader pauses; the handshake before it always reads. */
static bool conn_is_reading(const struct net_conn *c)
{
	return !c->eof && (c->state == NET_HANDSHAKE || (c->state == NET_OPEN && !c->paused));
}

/* Return the events to watch. A paused reader still learns of a FIN (UV_DISCONNECT). Once the FIN is known,
 * UV_PRIORITIZED keeps the socket registered, so that the kernel reports a reset. Urgent data shows up there
 * too and stops that watch; no supported peer sends any. */
static int wanted_events(const struct net_conn *c)
{
	int events = c->out.bytes > 0 && !c->corked ? UV_WRITABLE : 0;
	if (c->state == NET_FLUSHING)
		return events;
	if (conn_is_reading(c))
		return events | UV_READABLE;
	if (!c->eof && !c->hung_up)
		return events | UV_DISCONNECT;
	return events != 0 || c->mute ? events : UV_PRIORITIZED;
}

static void wire_watch(struct net_conn *c)
{
	if (c->wire != NULL)
		net_wire_watch(c->wire, wanted_events(c));
}

/* ---- life ---- */

static void on_loop_exit(struct cgn_hook *h)
{
	struct net_conn *c = CGN_CONTAINER(h, struct net_conn, exit);
	struct cgn_err why;
	(void)CGN_FAIL(&why, UNAVAILABLE, "%s had not finished the TLS handshake when this program ended",
		c->peer);
	net_conn_fail(c, &why, true);
}

struct net_conn *net_conn_new(struct cgn_loop *l, const struct net_conn_ops *ops, void *user)
{
	struct net_conn *c = CGN_NEW(struct net_conn);
	c->tag = NET_CONN_TAG;
	c->loop = l;
	c->ops = ops;
	c->user = user;
	cgn_timer_init(&c->timer, l, on_timeout);
	cgn_hook_init(&c->hook, on_turn_end);
	cgn_hook_init(&c->exit, on_loop_exit);
	return c;
}

void net_conn_connected(struct net_conn *c, struct net_wire **wire, const struct sockaddr *peer,
	struct tls_ctx *tls, const char *server_name)
{
	c->wire = *wire;
	*wire = NULL;
	net_wire_owner(c->wire, on_wire, c);
	net_addr_text(peer, c->peer, sizeof c->peer);
	if (tls == NULL) {
		net_conn_opened(c);
		return;
	}
	conn_move(c, NET_HANDSHAKE);
	wire_watch(c);
	net_secure_start(c, tls, server_name);
}

void net_conn_opened(struct net_conn *c)
{
	net_dial_cancel(c);
	cgn_timer_cancel(&c->timer);
	conn_move(c, NET_OPEN);
	c->was_open = true;
	if (c->listener != NULL)
		net_listener_ready(c->listener, c);
	if (net_conn_alive(c))
		wire_watch(c);
	net_secure_guard(c);
	if (c->state == NET_OPEN && c->ops != NULL && c->ops->on_open != NULL)
		c->ops->on_open(c, c->user);
}

/* The only way into NET_ENDED. */
static void conn_end(struct net_conn *c)
{
	conn_move(c, NET_ENDED);
	net_dial_cancel(c);
	cgn_timer_cancel(&c->timer);
	net_queue_fini(&c->out);
	cgn_loop_defer(c->loop, &c->hook);
}

static void keep_reason(struct net_conn *c, const struct cgn_err *why)
{
	if (c->why != NULL)
		return;
	c->why = CGN_NEW(struct cgn_err);
	*c->why = *why;
}

/* The peer ended the connection, or it broke: the peer may be at another address now. */
static void peer_left(struct net_conn *c)
{
	if (c->name != NULL && c->state == NET_OPEN)
		net_name_fails(c->name);
}

void net_conn_fail(struct net_conn *c, const struct cgn_err *why, bool reset)
{
	if (!net_conn_alive(c))
		return;
	peer_left(c);
	keep_reason(c, why);
	net_wire_close(&c->wire, reset);
	conn_end(c);
}

static void fail_errno(struct net_conn *c, const char *doing, int e)
{
	struct cgn_err why;
	(void)CGN_FAIL(&why, UNAVAILABLE, "%s %s: %s", doing, c->peer, strerror(e));
	why.sys_errno = e;
	net_conn_fail(c, &why, true);
}

void net_conn_fail_memory(struct net_conn *c)
{
	struct cgn_err why;
	(void)CGN_FAIL(&why, NO_MEMORY, "no memory for the connection with %s", c->peer);
	net_conn_fail(c, &why, true);
}

static void conn_fini(struct net_conn *c)
{
	net_secure_fini(c);
	net_name_free(&c->name);
	if (c->held != NULL)
		cgn_buf_fini(c->held);
	free(c->held);
	free(c->why);
	if (c->listener != NULL)
		net_listener_left(c->listener, !c->was_open);
	cgn_hook_drop(&c->hook);
	cgn_hook_drop(&c->exit);
	c->tag = 0;
	free(c);
}

static void report_end(struct net_conn *c)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	if (c->ops != NULL && c->ops->on_close != NULL)
		c->ops->on_close(c, c->user, c->why != NULL ? c->why : &fine);
	conn_fini(c);
}

/* Everything queued is with the kernel. */
static void on_flushed(struct net_conn *c)
{
	(void)shutdown(net_wire_fd(c->wire), SHUT_WR);
	if (!c->eof && !c->hung_up)
		net_linger(c->loop, &c->wire);
	else
		net_wire_close(&c->wire, false);
	conn_end(c);
}

void net_conn_finish(struct net_conn *c, const struct cgn_err *why)
{
	if (c->state != NET_OPEN && c->state != NET_HANDSHAKE)
		return;
	if (why != NULL)
		keep_reason(c, why);
	conn_move(c, NET_FLUSHING);
	cgn_timer_set(&c->timer, FLUSH_PATIENCE);
	if (c->out.bytes == 0)
		on_flushed(c);
	else
		wire_watch(c);
}

static void on_timeout(struct cgn_timer *t)
{
	struct net_conn *c = CGN_CONTAINER(t, struct net_conn, timer);
	CGN_LIVE(c, NET_CONN_TAG);
	struct cgn_err why;
	if (c->state == NET_OPEN) {
		net_secure_recheck(c);
		return;
	}
	if (c->state == NET_DIALING)
		(void)CGN_FAIL(&why, DEADLINE, "no connection with %s within the connect timeout", c->peer);
	else if (c->state == NET_FLUSHING)
		(void)CGN_FAIL(&why, DEADLINE, "%s took none of the last %zu bytes for 5 s", c->peer,
			c->out.bytes);
	else
		(void)CGN_FAIL(&why, DEADLINE, "%s did not finish the TLS handshake in time", c->peer);
	net_conn_fail(c, &why, true);
}

/* ---- writing ---- */

static void queue_overflow(struct net_conn *c)
{
	struct cgn_err why;
	(void)CGN_FAIL(&why, OVERLOADED, "%s does not read: %zu bytes wait for it", c->peer, c->out.bytes);
	net_conn_fail(c, &why, true);
}

void net_conn_queued(struct net_conn *c)
{
	if (c->out.bytes > NET_QUEUE_MARK)
		c->above = true;
	if (c->out.bytes - c->out.lent > QUEUE_LIMIT)
		queue_overflow(c);
	else
		wire_watch(c);
}

/* Queue the rest of |iov| after the first |sent| bytes. */
static void queue_rest(struct net_conn *c, const struct iovec *iov, size_t n, size_t sent)
{
	for (size_t i = 0; i < n; i++) {
		size_t skip = sent < iov[i].iov_len ? sent : iov[i].iov_len;
		sent -= skip;
		if (!net_queue_add(&c->out, (const uint8_t *)iov[i].iov_base + skip, iov[i].iov_len - skip)) {
			net_conn_fail_memory(c);
			return;
		}
	}
	net_conn_queued(c);
}

bool net_conn_try(struct net_conn *c, const struct iovec *iov, size_t n, size_t *sent)
{
	*sent = 0;
	if (c->out.bytes > 0 || c->corked || unlikely_way(UNLIKELY_write_queued))
		return true;
	struct msghdr m = {.msg_iovlen = n < IOV_MAX ? n : IOV_MAX};
	/* sendmsg takes a pointer to non-const and does not write through it. */
	memcpy(&m.msg_iov, &iov, sizeof iov);
	ssize_t got = sendmsg(net_wire_fd(c->wire), &m, MSG_NOSIGNAL);
	if (got < 0 && errno != EAGAIN && errno != EINTR) {
		fail_errno(c, "cannot write to", errno);
		return false;
	}
	*sent = got > 0 ? (size_t)got : 0;
	return true;
}

void net_conn_send(struct net_conn *c, const struct iovec *iov, size_t n)
{
	size_t sent = 0, all = cgn_iov_bytes(iov, n);
	if (all > 0 && net_conn_try(c, iov, n, &sent) && sent < all)
		queue_rest(c, iov, n, sent);
}

void net_write(struct net_conn *c, const struct iovec *iov, size_t n)
{
	CGN_LIVE(c, NET_CONN_TAG);
	CGN_MUST(c->state != NET_DIALING && c->state != NET_HANDSHAKE); /* A caller must wait for on_open. */
	if (c->state != NET_OPEN)
		return;
	if (c->tls != NULL)
		net_secure_write(c, iov, n);
	else
		net_conn_send(c, iov, n);
}

/* Send the queued bytes; no callback. */
static void queue_flush(struct net_conn *c)
{
	size_t sent = 0;
	int e = net_queue_send(&c->out, net_wire_fd(c->wire), &sent);
	if (e != 0) {
		fail_errno(c, "cannot write to", e);
		return;
	}
	if (c->state == NET_FLUSHING && c->out.bytes == 0) {
		on_flushed(c);
		return;
	}
	if (c->state == NET_FLUSHING && sent > 0)
		cgn_timer_set(&c->timer, FLUSH_PATIENCE);
	wire_watch(c);
}

static bool on_drained(const struct net_conn *c)
{
	return c->above && c->out.bytes <= NET_QUEUE_MARK / 2;
}

static void report_drain(struct net_conn *c)
{
	if (!on_drained(c) || c->state != NET_OPEN)
		return;
	c->above = false;
	if (c->ops != NULL && c->ops->on_drain != NULL)
		c->ops->on_drain(c, c->user);
}

static void on_writable(struct net_conn *c)
{
	queue_flush(c);
	report_drain(c);
}

void net_conn_flush(struct net_conn *c)
{
	if (!net_conn_alive(c))
		return;
	queue_flush(c);
	if (net_conn_alive(c) && on_drained(c))
		cgn_loop_defer(c->loop, &c->hook);
}

/* ---- reading ---- */

/* Keep plaintext that was decoded when a pause came. A connection in clear holds none, because one read is
 * one on_data. */
static void plain_hold(struct net_conn *c, const uint8_t *p, size_t n)
{
	if (c->held == NULL)
		c->held = CGN_NEW(struct cgn_buf);
	cgn_buf_add(c->held, p, n);
	if (c->held->bad)
		net_conn_fail_memory(c);
}

void net_conn_plain(struct net_conn *c, const uint8_t *p, size_t n)
{
	if (n == 0 || c->state != NET_OPEN)
		return;
	if (c->paused || c->held != NULL)
		plain_hold(c, p, n);
	else if (c->ops != NULL && c->ops->on_data != NULL)
		c->ops->on_data(c, c->user, p, n);
}

void net_conn_eof(struct net_conn *c)
{
	c->eof = true;
	if (c->state != NET_OPEN)
		return;
	peer_left(c);
	wire_watch(c);
	if (c->held != NULL)
		c->held_eof = true;
	else if (c->ops != NULL && c->ops->on_eof != NULL)
		c->ops->on_eof(c, c->user);
	else
		net_close(c);
}

static void release_held(struct net_conn *c)
{
	if (c->paused || c->held == NULL)
		return;
	struct cgn_buf *b = c->held;
	c->held = NULL;
	net_conn_plain(c, (const uint8_t *)b->p, b->n);
	cgn_buf_fini(b);
	free(b);
	if (c->held_eof && net_conn_alive(c)) {
		c->held_eof = false;
		net_conn_eof(c);
	}
}

/* Handle the end of the wire. In TLS, an end without close_notify may be an attacker's cut. */
static void wire_ended(struct net_conn *c)
{
	if (c->tls == NULL) {
		net_conn_eof(c);
		return;
	}
	struct cgn_err why;
	(void)CGN_FAIL(&why, TLS, "%s ended the connection %s", c->peer,
		c->state == NET_OPEN ? "without TLS close_notify" : "during the TLS handshake");
	net_conn_fail(c, &why, false);
}

/* Return true when the read filled the buffer, so that more is likely waiting. */
static bool read_once(struct net_conn *c)
{
	uint8_t *scratch = cgn_loop_scratch(c->loop);
	size_t most = unlikely_way(UNLIKELY_read_small) ? READ_SMALL : CGN_LOOP_SCRATCH;
	ssize_t n = recv(net_wire_fd(c->wire), scratch, most, 0);
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		fail_errno(c, "lost the connection with", errno);
	else if (n == 0)
		wire_ended(c);
	else if (n > 0 && c->tls != NULL)
		net_secure_read(c, scratch, (size_t)n);
	else if (n > 0)
		net_conn_plain(c, scratch, (size_t)n);
	return n == CGN_LOOP_SCRATCH && c->tls == NULL && conn_is_reading(c);
}

static void on_readable(struct net_conn *c)
{
	if (!conn_is_reading(c)) {
		wire_watch(c); /* A pause costs its system call only when data came. */
		return;
	}
	for (int i = 0; i < READS_A_TURN && read_once(c); i++)
		;
}

/* A FIN came while paused: an end when nothing is unread before it, else a hint that the reader may use. */
static void on_hung_up(struct net_conn *c)
{
	uint8_t byte;
	c->hung_up = true;
	if (recv(net_wire_fd(c->wire), &byte, 1, MSG_PEEK) == 0) {
		wire_ended(c);
		return;
	}
	wire_watch(c);
	if (c->state == NET_OPEN && c->ops != NULL && c->ops->on_hangup != NULL)
		c->ops->on_hangup(c, c->user);
}

static int socket_error(int fd)
{
	int e = 0;
	socklen_t len = sizeof e;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) == 0 ? e : errno;
}

/* Only the kernel's error and hang-up bits, or urgent data, lead here. */
static void on_oddity(struct net_conn *c)
{
	int e = socket_error(net_wire_fd(c->wire));
	if (e != 0) {
		fail_errno(c, "lost the connection with", e);
		return;
	}
	c->mute = true;
	wire_watch(c);
}

/* libuv stops watching on POLLERR. An active reader gets the unread bytes before the error; a paused one gets
 * only the error. */
static void on_wire_error(struct net_conn *c)
{
	net_wire_lost(c->wire);
	if (conn_is_reading(c)) {
		on_readable(c);
		if (net_conn_alive(c))
			wire_watch(c);
		return;
	}
	int e = socket_error(net_wire_fd(c->wire));
	fail_errno(c, "lost the connection with", e != 0 ? e : ECONNRESET);
}

static void on_wire(void *arg, int status, int events)
{
	struct net_conn *c = arg;
	CGN_LIVE(c, NET_CONN_TAG);
	if (status < 0) {
		on_wire_error(c);
		return;
	}
	if ((events & UV_WRITABLE) != 0)
		on_writable(c);
	if ((events & UV_READABLE) != 0 && net_conn_alive(c))
		on_readable(c);
	if ((events & UV_DISCONNECT) != 0 && net_conn_alive(c) && c->paused && !c->hung_up)
		on_hung_up(c);
	if ((events & UV_PRIORITIZED) != 0 && net_conn_alive(c))
		on_oddity(c);
}

static void on_turn_end(struct cgn_hook *h)
{
	struct net_conn *c = CGN_CONTAINER(h, struct net_conn, hook);
	CGN_LIVE(c, NET_CONN_TAG);
	if (!net_conn_alive(c)) {
		report_end(c);
		return;
	}
	report_drain(c);
	release_held(c);
}

/* ---- the rest of the contract ---- */

void net_conn_take(struct net_conn *c, const struct net_conn_ops *ops, void *user)
{
	CGN_LIVE(c, NET_CONN_TAG);
	c->ops = ops;
	c->user = user;
}

void net_pause(struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	c->paused = true;
}

void net_resume(struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	if (!c->paused)
		return;
	c->paused = false;
	if (!net_conn_alive(c))
		return;
	if (c->held != NULL)
		cgn_loop_defer(c->loop, &c->hook);
	wire_watch(c);
}

void net_close(struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	if (c->state == NET_DIALING || c->state == NET_HANDSHAKE) {
		net_abort(c);
		return;
	}
	if (c->state == NET_OPEN && c->tls != NULL)
		net_secure_end(c);
	net_conn_finish(c, NULL);
}

void net_abort(struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	struct cgn_err why;
	(void)CGN_FAIL(&why, CANCELLED, "connection with %s given up here",
		c->peer[0] != '\0' ? c->peer : "its address");
	net_conn_fail(c, &why, true);
}

size_t net_queued(const struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	return c->out.bytes;
}

bool net_over_mark(const struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	return c->above;
}

bool net_is_open(const struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	return c->state == NET_OPEN;
}

bool net_is_moved(struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	if (c->name == NULL || c->state != NET_OPEN)
		return false;
	net_name_refresh(c->name, c->loop);
	return !net_name_is(c->name, c->peer, &c->name_version);
}

void net_shun(const char *addr, const char *peer)
{
	struct net_addr a;
	if (!cgn_ok(net_addr_parse(addr, &a, NULL)) || a.local || net_host_is_ip(a.host))
		return;
	struct net_name *n = net_name_get(&a);
	net_name_shun(n, peer);
	net_name_free(&n);
}

struct cgn_str net_peer(const struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	return cgn_str_of(c->peer);
}

struct cgn_loop *net_loop(const struct net_conn *c)
{
	CGN_LIVE(c, NET_CONN_TAG);
	return c->loop;
}
