/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints on a loop, and flows: streams on which the dialler sends a given number of bytes and asks for
 * a given number back. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "io/net/quic/quic_priv.h"
#include "loop_until.h"
#include "quic_certs.h"

#define ALPN "test/1"

/* ---- flows ---- */

static inline uint8_t pattern(uint64_t seed, size_t i)
{
	return (uint8_t)(seed * 7 + i * 31 + i / 251 + i / 65521);
}

struct flow {
	struct world *w;
	struct quic_stream *s;
	uint64_t seed;
	size_t got, want; /* Received bytes. */
	size_t up, down;
	uint8_t head[24]; /* Seed, bytes up, bytes down: the dialler sends these first. */
	uint8_t *data;    /* Sent bytes; the flow's own until they are released. */
	bool server, fin, closed, stalled;
	unsigned releases, drains, place /* |place|: position among the ended flows. */;
	uint64_t code;
	struct cgn_err why;
	struct flow *next;
};

struct side {
	struct quic_endpoint *ep;
	struct quic_conn *c;
	unsigned opens, streams, rooms, closes;
	struct cgn_err why;
	struct world *world; /* World of the flow's own dialler. */
};

struct world {
	struct cgn_loop *l;
	struct side server, client;
	struct flow *flows; /* Flows of both sides. */
	/* Flows made by the dialler; made by the other side; ended; buffers that are lent. */
	unsigned n_flows, served, closed, lent;
	uint64_t bytes;
	char addr[64];
	bool many; /* Many connections to the server. */
	/* Where the dialler closes: 1: in on_open, 2: in on_stream, 3: in on_data, 4: in a stream's
	 * on_close. */
	unsigned close_at;
	cgn_nsec until;
};

static inline void maybe_close(struct world *w, unsigned at)
{
	if (w->close_at == at && w->client.c != NULL)
		quic_conn_close(w->client.c, at, NULL);
}

static void flow_released(void *arg)
{
	struct flow *f = arg;
	f->releases++;
	f->w->lent--;
	free(f->data);
	f->data = NULL;
}

static inline void flow_send(struct flow *f, const uint8_t *head, size_t head_n, size_t n)
{
	struct iovec iov[3];
	if (head_n > 0) {
		memcpy(&iov[0].iov_base, &head, sizeof head);
		iov[0].iov_len = head_n;
		quic_send(f->s, iov, 1, false, NULL, NULL);
	}
	f->data = malloc(n + 1);
	assert_non_null(f->data);
	for (size_t i = 0; i < n; i++)
		f->data[i] = pattern(f->seed, i);
	iov[0] = (struct iovec){f->data, n / 3};
	iov[1] = (struct iovec){f->data + n / 3, 0};
	iov[2] = (struct iovec){f->data + n / 3, n - n / 3};
	f->w->lent++;
	quic_send(f->s, iov, 3, true, flow_released, f);
	assert_int_equal(f->releases, 0); /* Never inside the call. */
}

static inline void flow_take(struct flow *f, const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != pattern(f->seed, f->got + i))
			fail_msg("byte %zu of flow %llu is wrong", f->got + i, (unsigned long long)f->seed);
	f->got += n;
	f->w->bytes += n;
}

static void flow_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct flow *f = user;
	assert_ptr_equal(s, f->s);
	assert_false(f->fin || f->closed);
	size_t head = f->server && f->want < sizeof f->head ? sizeof f->head - f->want : 0;
	if (head > 0) { /* |want| counts the head's bytes first. */
		size_t k = n < head ? n : head;
		memcpy(f->head + f->want, p, k);
		f->want += k;
		p += k;
		n -= k;
		if (f->want == sizeof f->head) {
			memcpy(&f->seed, f->head, 8);
			memcpy(&f->up, f->head + 8, 8);
			memcpy(&f->down, f->head + 16, 8);
		}
	}
	flow_take(f, p, n);
	if (!f->server)
		maybe_close(f->w, 3);
	if (!fin)
		return;
	f->fin = true;
	assert_int_equal(f->got, f->server ? f->up : f->down);
	if (f->server)
		flow_send(f, NULL, 0, f->down);
}

static void flow_drain(struct quic_stream *s, void *user)
{
	assert_false(quic_over_mark(s));
	((struct flow *)user)->drains++;
}

static void flow_close(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct flow *f = user;
	assert_ptr_equal(s, f->s);
	assert_false(f->closed);
	f->closed = true;
	f->why = *why;
	f->code = code;
	f->s = NULL;
	f->place = f->w->closed++;
	if (why->code == CGN_FINE)
		assert_true(f->fin);
	if (!f->server)
		maybe_close(f->w, 4);
}

static const struct quic_stream_ops flow_ops = {.on_data = flow_data,
	.on_drain = flow_drain,
	.on_close = flow_close};

static inline struct flow *flow_new(struct world *w)
{
	struct flow *f = calloc(1, sizeof *f);
	assert_non_null(f);
	f->w = w;
	f->next = w->flows;
	w->flows = f;
	return f;
}

static inline struct flow *flow_open(struct world *w, uint64_t seed)
{
	struct flow *f = flow_new(w);
	struct cgn_err err = {0};
	f->seed = seed;
	if (!cgn_ok(quic_stream_open(w->client.c, &flow_ops, f, &f->s, &err)))
		fail_msg("%s", err.msg);
	w->n_flows++;
	return f;
}

static inline void flow_ask(struct flow *f, size_t up, size_t down)
{
	f->up = up;
	f->down = down;
	memcpy(f->head, &f->seed, 8);
	memcpy(f->head + 8, &up, 8);
	memcpy(f->head + 16, &down, 8);
	flow_send(f, f->head, sizeof f->head, up);
}

/* ---- connections ---- */

static void side_open(struct quic_conn *c, void *user)
{
	struct side *s = user;
	assert_true(quic_conn_is_open(c));
	assert_ptr_equal(s->c, c);
	s->opens++;
	if (s->world != NULL)
		maybe_close(s->world, 1);
}

static void side_stream(struct quic_conn *c, void *user, struct quic_stream *st)
{
	struct side *s = user;
	struct world *w = CGN_CONTAINER(s, struct world, server);
	struct flow *f = flow_new(w);
	assert_ptr_equal(s->c, c);
	s->streams++;
	w->served++;
	maybe_close(w, 2);
	f->server = true;
	f->s = st;
	quic_stream_take(st, &flow_ops, f);
}

static void side_room(struct quic_conn *c, void *user)
{
	assert_true(ngtcp2_conn_get_streams_bidi_left(c->ngtcp2) > 0);
	((struct side *)user)->rooms++;
}

static void side_close(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	struct side *s = user;
	assert_false(quic_conn_is_open(c));
	s->closes++;
	s->why = *why;
	s->c = NULL;
}

static const struct quic_conn_ops side_ops = {.on_open = side_open,
	.on_stream = side_stream,
	.on_room = side_room,
	.on_close = side_close};

static void world_accept(void *user, struct quic_conn *c)
{
	struct world *w = user;
	assert_true(quic_conn_is_open(c));
	assert_true(quic_conn_peer_name(c).n > 0); /* The name is verified by now. */
	w->server.opens++;
	if (!w->many)
		w->server.c = c;
	quic_conn_take(c, w->many ? NULL : &side_ops, &w->server);
}

static inline struct quic_endpoint *endpoint_on(struct cgn_loop *l, const struct quic_endpoint_cfg *cfg,
	quic_accept_fn *fn, void *user)
{
	struct quic_endpoint_cfg c = cfg != NULL ? *cfg : (struct quic_endpoint_cfg){0};
	struct quic_endpoint *ep = NULL;
	struct cgn_err err = {0};
	c.addr = c.addr != NULL ? c.addr : "127.0.0.1:0";
	c.tls = c.tls != NULL ? c.tls : node_tls;
	c.alpn = c.alpn != NULL ? c.alpn : ALPN;
	if (!cgn_ok(quic_endpoint_new(l, &c, fn, user, &ep, &err)))
		fail_msg("%s", err.msg);
	return ep;
}

static inline void world_serve(struct world *w, const struct quic_endpoint_cfg *cfg)
{
	w->server.ep = endpoint_on(w->l, cfg, world_accept, w);
	(void)snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", quic_endpoint_port(w->server.ep));
}

/* |cfg| is the accepting side's; its NULL fields get the defaults of the tests. */
static inline void world_open(struct world *w, const struct quic_endpoint_cfg *cfg)
{
	*w = (struct world){0};
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	world_serve(w, cfg);
}

static inline void dial_as(struct world *w, const struct quic_endpoint_cfg *cfg, const char *name)
{
	struct cgn_err err = {0};
	if (w->client.ep == NULL)
		w->client.ep = endpoint_on(w->l, cfg, NULL, NULL);
	w->client.world = w;
	if (!cgn_ok(quic_connect(w->client.ep, w->addr, name, &side_ops, &w->client, &w->client.c, &err)))
		fail_msg("%s", err.msg);
	assert_int_equal(w->client.opens + w->client.closes, 0); /* Never inside the call. */
}

static inline void world_dial(struct world *w, const struct quic_endpoint_cfg *cfg)
{
	dial_as(w, cfg, NULL);
}

static inline void world_dial_again(struct world *w, const char *name)
{
	w->client.opens = w->client.closes = 0;
	dial_as(w, NULL, name);
}

static inline void flows_free(struct world *w)
{
	assert_int_equal(w->lent, 0);
	for (struct flow *f; (f = w->flows) != NULL;) {
		w->flows = f->next;
		assert_true(f->s == NULL && f->data == NULL);
		free(f);
	}
}

static inline void world_close(struct world *w)
{
	quic_endpoint_close(&w->client.ep);
	quic_endpoint_close(&w->server.ep);
	assert_null(w->server.ep);
	cgn_loop_free(&w->l);
	assert_null(w->l);
	assert_true(w->server.c == NULL && w->client.c == NULL); /* Both on_close callbacks came. */
	flows_free(w);
}

static inline void run_until(struct world *w, bool (*done)(struct world *w))
{
	loop_until(w->l, done, w);
}

static inline bool both_open(struct world *w)
{
	return w->server.opens == 1 && w->client.opens == 1;
}
static inline bool client_closed(struct world *w)
{
	return w->client.closes == 1;
}
static inline bool server_closed(struct world *w)
{
	return w->server.closes == 1;
}
static inline bool both_closed(struct world *w)
{
	return client_closed(w) && server_closed(w);
}
static inline bool flows_done(struct world *w)
{
	return w->closed == w->n_flows * 2;
}
static inline bool records_gone(struct world *w)
{
	return w->server.ep->n_records == 0 && w->client.ep->n_records == 0;
}
