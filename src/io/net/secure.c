/* SPDX-License-Identifier: Apache-2.0 */
/* secure: TLS between wire and reader. Records made in one go are corked into one write. */
#include <string.h>

#include "net_priv.h"

/* One full TLS record of plaintext: what fits is encrypted as one and sent at once, without a copy into the
 * queue. */
#define RECORD_MOST ((size_t)16384)

static void on_emit(void *user, const void *p, size_t n)
{
	struct net_conn *c = user;
	struct iovec iov = net_iov(p, n);
	if (c->wire != NULL)
		net_conn_send(c, &iov, 1);
}

static void on_plain(void *user, const uint8_t *p, size_t n)
{
	struct net_conn *c = user;
	if (c->state == NET_HANDSHAKE) /* the last flight of the handshake and first data came together */
		net_conn_opened(c);
	net_conn_plain(c, p, n);
}

static void fail(struct net_conn *c, const struct cgn_err *err)
{
	struct cgn_err why;
	(void)CGN_FAIL(&why, TLS, "%s (%s)", err->msg, c->peer);
	net_conn_finish(c, &why); /* not a reset: the alert should arrive */
}

static void cork(struct net_conn *c)
{
	c->corked = true;
}

static void uncork(struct net_conn *c)
{
	c->corked = false;
	net_conn_flush(c);
}

void net_secure_start(struct net_conn *c, struct tls_ctx *tls, const char *server_name)
{
	static const struct tls_session_ops session_ops = {on_emit, on_plain};
	struct cgn_err err;
	if (!cgn_ok(tls_session_new(tls, server_name, &session_ops, c, &c->tls, &err))) {
		net_conn_fail(c, &err, true);
		return;
	}
	if (c->listener != NULL)
		return; /* the client speaks first */
	cork(c);
	cgn_rc rc = tls_start(c->tls, &err);
	uncork(c);
	if (!cgn_ok(rc))
		fail(c, &err);
}

void net_secure_read(struct net_conn *c, const uint8_t *p, size_t n)
{
	bool peer_closed = false;
	struct cgn_err err;
	cork(c);
	cgn_rc rc = tls_feed(c->tls, p, n, &peer_closed, &err);
	uncork(c);
	if (!net_conn_alive(c))
		return;
	if (!cgn_ok(rc)) {
		fail(c, &err);
		return;
	}
	if (c->state == NET_HANDSHAKE && tls_ready(c->tls))
		net_conn_opened(c);
	if (peer_closed && net_conn_alive(c))
		net_conn_eof(c);
}

static void encrypt(struct net_conn *c, const void *p, size_t n)
{
	struct cgn_err err;
	if (net_conn_alive(c) && n > 0 && !cgn_ok(tls_write(c->tls, p, n, &err)))
		net_conn_fail(c, &err, true);
}

/* Small pieces become one record: each record costs 22 bytes and a pass of the cipher's setup. */
static void write_gathered(struct net_conn *c, const struct iovec *iov, size_t n)
{
	uint8_t record[RECORD_MOST];
	size_t have = 0;
	for (size_t i = 0; i < n; i++) {
		const uint8_t *p = iov[i].iov_base;
		for (size_t left = iov[i].iov_len; left > 0;) {
			size_t take = RECORD_MOST - have < left ? RECORD_MOST - have : left;
			memcpy(record + have, p, take);
			have += take;
			p += take;
			left -= take;
			if (have == RECORD_MOST) {
				encrypt(c, record, have);
				have = 0;
			}
		}
	}
	encrypt(c, record, have);
}

void net_secure_write(struct net_conn *c, const struct iovec *iov, size_t n)
{
	size_t all = 0;
	for (size_t i = 0; i < n; i++)
		all += iov[i].iov_len;
	bool several = all > RECORD_MOST && !c->corked;
	if (several)
		cork(c);
	if (n == 1)
		encrypt(c, iov[0].iov_base, iov[0].iov_len);
	else
		write_gathered(c, iov, n);
	if (several)
		uncork(c);
}

void net_secure_end(struct net_conn *c)
{
	tls_shutdown(c->tls);
}

void net_secure_fini(struct net_conn *c)
{
	tls_session_free(&c->tls);
}

struct cgn_str net_alpn(const struct net_conn *c)
{
	return c->tls != NULL ? tls_alpn(c->tls) : (struct cgn_str){0};
}

struct cgn_str net_peer_name(const struct net_conn *c)
{
	return c->tls != NULL ? tls_peer_name(c->tls) : (struct cgn_str){0};
}
