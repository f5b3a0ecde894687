/* SPDX-License-Identifier: Apache-2.0 */
/* A loop with a listener whose connections count their callbacks; and plain blocking sockets, on a thread, as
 * peers. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "io/net/net/net.h"
#include "loop_until.h"

struct side {
	struct net_conn *c;
	unsigned accepts, opens, eofs, drains, closes, hangups;
	size_t bytes;
	uint64_t sum; /* Sum of the bytes, weighted by their places. */
	struct cgn_err why;
	bool pause_first, echo, close_on_eof, close_on_data, abort_on_data, bounce_on_eof;
};

struct world {
	struct cgn_loop *l;
	struct net_listener *ln;
	struct side server, client;
	char addr[64];
};

static inline uint8_t pattern(size_t i)
{
	return (uint8_t)(i * 31 + i / 251);
}

static inline void note_bytes(struct side *s, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		s->sum += (s->bytes + i + 1) * p[i];
	s->bytes += n;
}

static inline uint64_t pattern_sum(size_t n)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += (i + 1) * pattern(i);
	return sum;
}

/* Write |n| bytes of the pattern that begins at |from|. */
static inline void write_pattern(struct net_conn *c, size_t from, size_t n)
{
	uint8_t *p = malloc(n);
	assert_non_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = pattern(from + i);
	struct iovec iov[3] = {{p, n / 3}, {p + n / 3, 0}, {p + n / 3, n - n / 3}};
	net_write(c, iov, 3);
	free(p); /* The bytes that were not sent yet were copied. */
}

static void side_open(struct net_conn *c, void *user)
{
	struct side *s = user;
	assert_true(net_is_open(c));
	s->c = c;
	s->opens++;
	if (s->pause_first)
		net_pause(c);
}

static void side_data(struct net_conn *c, void *user, const uint8_t *p, size_t n)
{
	struct side *s = user;
	assert_int_equal(s->eofs, 0);
	note_bytes(s, p, n);
	if (s->echo) { /* Echo the lent bytes themselves: net_write must not overwrite them. */
		struct iovec iov = {.iov_len = n};
		memcpy(&iov.iov_base, &p, sizeof p);
		net_write(c, &iov, 1);
	}
	if (s->close_on_data)
		net_close(c);
	if (s->abort_on_data)
		net_abort(c);
}

static void side_eof(struct net_conn *c, void *user)
{
	struct side *s = user;
	s->eofs++;
	if (s->bounce_on_eof)
		write_pattern(c, 0, 100000);
	if (s->close_on_eof)
		net_close(c);
}

static void side_hangup(struct net_conn *c, void *user)
{
	(void)c;
	((struct side *)user)->hangups++;
}

static void side_drain(struct net_conn *c, void *user)
{
	assert_false(net_over_mark(c));
	((struct side *)user)->drains++;
}

static void side_close(struct net_conn *c, void *user, const struct cgn_err *why)
{
	struct side *s = user;
	assert_false(net_is_open(c));
	s->closes++;
	s->why = *why;
	s->c = NULL;
}

static const struct net_conn_ops side_ops = {
	.on_open = side_open,
	.on_data = side_data,
	.on_eof = side_eof,
	.on_hangup = side_hangup,
	.on_drain = side_drain,
	.on_close = side_close,
};

static void world_accept(void *user, struct net_conn *c)
{
	struct world *w = user;
	w->server.accepts++;
	net_conn_take(c, &side_ops, &w->server);
}

static inline void world_listen(struct world *w, const struct net_listen_cfg *cfg)
{
	struct cgn_err err = {0};
	if (!cgn_ok(net_listen(w->l, cfg, world_accept, w, &w->ln, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", net_listener_port(w->ln));
}

static inline void world_open(struct world *w)
{
	*w = (struct world){0};
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	world_listen(w, &(struct net_listen_cfg){.addr = "127.0.0.1:0"});
}

static inline void world_close(struct world *w)
{
	if (w->server.c != NULL)
		net_abort(w->server.c);
	if (w->client.c != NULL)
		net_abort(w->client.c);
	net_listener_close(&w->ln);
	assert_null(w->ln);
	cgn_loop_free(&w->l);
	assert_true(w->server.c == NULL && w->client.c == NULL); /* Both on_close callbacks came. */
}

static inline void run_until(struct world *w, bool (*done)(struct world *w))
{
	loop_until(w->l, done, w);
}

static inline void world_dial(struct world *w, const struct net_dial *d)
{
	struct cgn_err err = {0};
	if (!cgn_ok(net_connect(w->l, d, &side_ops, &w->client, &w->client.c, &err)))
		fail_msg("%s", err.msg);
	assert_int_equal(w->client.opens + w->client.closes, 0); /* Never inside the call. */
}

static inline bool both_open(struct world *w)
{
	return w->server.opens == 1 && w->client.opens == 1;
}
static inline bool server_opened(struct world *w)
{
	return w->server.opens > 0;
}
static inline bool server_closed(struct world *w)
{
	return w->server.closes > 0;
}
static inline bool client_closed(struct world *w)
{
	return w->client.closes > 0;
}
static inline bool echo_came(struct world *w)
{
	return w->server.bytes > 0 && w->client.bytes == w->server.bytes;
}
static inline bool both_closed(struct world *w)
{
	return server_closed(w) && client_closed(w);
}

/* ---- raw peers ---- */

static inline int raw_connect(unsigned port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CGN_MUST(fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0);
	return fd;
}

static inline void raw_reset(int fd)
{
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
	close(fd);
}

/* Reads to the end on a thread; raw_result joins the thread. */
struct raw_reader {
	pthread_t thread;
	int fd;
	struct side got;
	int error;
};

static void *raw_read_all(void *arg)
{
	struct raw_reader *r = arg;
	uint8_t buf[8192];
	ssize_t n;
	while ((n = read(r->fd, buf, sizeof buf)) > 0)
		note_bytes(&r->got, buf, (size_t)n);
	r->error = n < 0 ? errno : 0;
	return NULL;
}

static inline void raw_read_start(struct raw_reader *r, int fd)
{
	*r = (struct raw_reader){.fd = fd};
	assert_int_equal(pthread_create(&r->thread, NULL, raw_read_all, r), 0);
}

static inline void raw_read_join(struct raw_reader *r)
{
	pthread_join(r->thread, NULL);
	close(r->fd);
}
