/* SPDX-License-Identifier: Apache-2.0 */
/* secure: TLS between wire and reader. Records made in one call are corked into one write. */
#include <string.h>

#include "base/unlikely/unlikely.h"
#include "net_priv.h"

/* A full TLS record of plaintext: data that fits is encrypted as one record and sent at once, without a
 * copy into the queue. */
#define RECORD_SMALL 64
#define RECORD_MOST  ((size_t)16384)

/* A revoked peer that is silent is found within this time; one that sends, at once. */
#define RECHECK_EVERY CGN_SEC

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
	/* The last flight of the handshake and the first data came together. */
	if (c->state == NET_HANDSHAKE)
		net_conn_opened(c);
	net_conn_plain(c, p, n);
}

static void secure_fail(struct net_conn *c, const struct cgn_err *err)
{
	struct cgn_err why;
	(void)CGN_FAIL(&why, TLS, "%s (%s)", err->msg, c->peer);
	net_conn_finish(c, &why); /* No reset: the alert should reach the peer. */
}

static void wire_cork(struct net_conn *c)
{
	c->corked = true;
}

static void wire_uncork(struct net_conn *c)
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
		return; /* The client speaks first. */
	wire_cork(c);
	cgn_rc rc = tls_start(c->tls, &err);
	wire_uncork(c);
	if (!cgn_ok(rc))
		secure_fail(c, &err);
}

void net_secure_read(struct net_conn *c, const uint8_t *p, size_t n)
{
	bool peer_closed = false;
	struct cgn_err err;
	wire_cork(c);
	cgn_rc rc = tls_feed(c->tls, p, n, &peer_closed, &err);
	wire_uncork(c);
	if (!net_conn_alive(c))
		return;
	if (!cgn_ok(rc)) {
		secure_fail(c, &err);
		return;
	}
	if (c->state == NET_HANDSHAKE && tls_ready(c->tls))
		net_conn_opened(c);
	if (peer_closed && net_conn_alive(c))
		net_conn_eof(c);
}

void net_secure_recheck(struct net_conn *c)
{
	struct cgn_err err;
	wire_cork(c);
	cgn_rc rc = tls_recheck(c->tls, &err);
	wire_uncork(c);
	if (cgn_ok(rc))
		net_secure_guard(c);
	else if (c->out.bytes == 0)
		secure_fail(c, &err);
	else
		net_conn_fail(c, &err, true); /* A revoked peer gets none of what waits for it. */
}

void net_secure_guard(struct net_conn *c)
{
	if (net_conn_alive(c) && c->tls != NULL && tls_is_revocable(c->tls))
		cgn_timer_set(&c->timer,
			unlikely_way(UNLIKELY_recheck_soon) ? RECHECK_EVERY / 100 : RECHECK_EVERY);
}

static void parts_encrypt(struct net_conn *c, const void *p, size_t n)
{
	struct cgn_err err;
	if (net_conn_alive(c) && n > 0 && !cgn_ok(tls_write(c->tls, p, n, &err)))
		net_conn_fail(c, &err, true);
}

/* Merge small pieces into one record: each record costs 22 bytes and one setup of the cipher. */
static void write_gathered(struct net_conn *c, const struct iovec *iov, size_t n, size_t most)
{
	uint8_t record[RECORD_MOST];
	size_t have = 0;
	for (size_t i = 0; i < n; i++) {
		const uint8_t *p = iov[i].iov_base;
		for (size_t left = iov[i].iov_len; left > 0;) {
			size_t take = most - have < left ? most - have : left;
			memcpy(record + have, p, take);
			have += take;
			p += take;
			left -= take;
			if (have == most) {
				parts_encrypt(c, record, have);
				have = 0;
			}
		}
	}
	parts_encrypt(c, record, have);
}

void net_secure_write(struct net_conn *c, const struct iovec *iov, size_t n)
{
	size_t all = 0;
	for (size_t i = 0; i < n; i++)
		all += iov[i].iov_len;
	const size_t most = unlikely_way(UNLIKELY_record_small) ? RECORD_SMALL : RECORD_MOST;
	bool several = all > most && !c->corked;
	if (several)
		wire_cork(c);
	if (n == 1 && most == RECORD_MOST)
		parts_encrypt(c, iov[0].iov_base, iov[0].iov_len);
	else
		write_gathered(c, iov, n, most);
	if (several)
		wire_uncork(c);
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

struct cgn_str net_peer_uris(const struct net_conn *c)
{
	return c->tls != NULL ? tls_peer_uris(c->tls) : (struct cgn_str){0};
}
