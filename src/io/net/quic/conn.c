/* SPDX-License-Identifier: Apache-2.0 */
/* conn: one connection from its first packet to on_close, and for a while longer, so that late packets are
 * recognised. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/gnutls.h>

#include "quic_priv.h"

#define QUIC_CONN_TAG 0x9c57c0a2U
#define LINGER_PTOS   3 /* RFC 9000, 10.2 */

static void on_timer(struct cgn_timer *t);

/* Allocated apart: the pool may still use it after the connection was given up. */
struct quic_resolving {
	struct quic_conn *c; /* NULL: the connection was given up. */
	struct net_addr addr;
	struct addrinfo *list;
	cgn_nsec began;
	int rc;
};

/* ---- states ---- */

static const uint8_t state_exits[] = {
#define TO(id)                1U << QUIC_##id
#define STATE(id, exits, why) [QUIC_##id] = (exits),
#include "io/net/quic/states.def"
#undef STATE
#undef TO
};

/* Change the state and its counters together. */
static void conn_move(struct quic_conn *c, enum quic_state to)
{
	struct quic_stats *st = &c->ep->stats;
	CGN_MUST((state_exits[c->state] & 1U << to) != 0);
	if (c->counted && to != QUIC_SHAKING) {
		c->counted = false;
		st->handshakes--;
	}
	if (to == QUIC_CLOSING || to == QUIC_GONE) {
		/* The timer could otherwise free events that are not reported yet. */
		cgn_timer_cancel(&c->timer);
		st->conns--;
		if (c->state != QUIC_OPEN && c->why != NULL && !c->ep->closing) {
			st->handshakes_failed++;
			c->ep->refusal = *c->why;
			c->ep->refused_at = cgn_clock_now();
		}
	}
	c->state = (uint8_t)to;
}

bool quic_conn_alive(const struct quic_conn *c)
{
	return c->state == QUIC_SHAKING || c->state == QUIC_OPEN;
}

/* ---- making and unmaking ---- */

static struct quic_conn *conn_new(struct quic_endpoint *ep, const struct quic_conn_ops *ops, void *user)
{
	struct quic_conn *c = CGN_NEW(struct quic_conn);
	c->tag = QUIC_CONN_TAG;
	c->ep = ep;
	c->ops = ops;
	c->user = user;
	cgn_timer_init(&c->timer, ep->loop, on_timer);
	cgn_list_init(&c->turn);
	cgn_list_init(&c->cids);
	cgn_list_init(&c->streams);
	cgn_list_init(&c->due);
	for (unsigned i = 0; i < QUIC_PRIORITIES; i++)
		cgn_list_init(&c->ready[i]);
	ngtcp2_ccerr_default(&c->ccerr);
	cgn_list_push(&ep->conns, &c->all);
	ep->n_records++;
	ep->stats.conns++;
	return c;
}

static void release_conn(struct cgn_grave *g)
{
	free(CGN_CONTAINER(g, struct quic_conn, grave));
}

static void conn_free(struct quic_conn *c)
{
	struct quic_endpoint *ep = c->ep;
	cgn_timer_cancel(&c->timer);
	quic_pieces_release(c);
	if (c->resolving != NULL)
		c->resolving->c = NULL;
	quic_cids_drop_all(&ep->cids, c);
	if (c->ngtcp2 != NULL)
		ngtcp2_conn_del(c->ngtcp2);
	tls_guest_free(&c->tls);
	net_name_free(&c->name);
	cgn_list_drop(&c->all);
	cgn_list_drop(&c->turn);
	free(c->why);
	free(c->server_name);
	free(c->last);
	c->tag = 0;
	cgn_loop_bury(ep->loop, &c->grave, release_conn);
	ep->n_records--;
	quic_endpoint_left(ep);
}

static void keep_reason(struct quic_conn *c, const struct cgn_err *why)
{
	if (c->why != NULL)
		return;
	c->why = CGN_NEW(struct cgn_err);
	*c->why = *why;
}

static void wants_turn(struct quic_conn *c)
{
	quic_endpoint_wants_turn(c->ep, c);
}

/* ---- ends ---- */

/* Close with the reason in c->ccerr, which is sent to the peer. */
static void close_with(struct quic_conn *c)
{
	conn_move(c, QUIC_CLOSING);
	wants_turn(c);
}

/* End without telling the peer. |linger|: late packets are expected. */
static void conn_lose(struct quic_conn *c, bool linger)
{
	c->lingers = linger;
	if (c->name != NULL && c->state == QUIC_SHAKING) { /* The next connection tries another address. */
		net_name_shun(c->name, c->peer);
		net_name_fails(c->name);
	}
	conn_move(c, QUIC_GONE);
	wants_turn(c);
}

static void set_sentence(struct quic_conn *c, const char *text)
{
	(void)cgn_str_copyz(c->sentence, sizeof c->sentence, cgn_str_of(text));
}

void quic_conn_close(struct quic_conn *c, uint64_t code, const char *sentence)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	CGN_MUST(code <= QUIC_CODE_MOST);
	if (c->state == QUIC_RESOLVING) {
		conn_lose(c, false);
		return;
	}
	if (!quic_conn_alive(c))
		return;
	set_sentence(c, sentence != NULL ? sentence : "");
	ngtcp2_ccerr_set_application_error(&c->ccerr, code, (uint8_t *)c->sentence, strlen(c->sentence));
	close_with(c);
}

void quic_conn_drop(struct quic_conn *c, const struct cgn_err *why)
{
	if (c->state == QUIC_CLOSING || c->state == QUIC_GONE) {
		wants_turn(c);
		return;
	}
	keep_reason(c, why);
	quic_conn_close(c, 0, "going away");
}

void quic_conn_shake_failed(struct quic_conn *c, const struct cgn_err *why)
{
	struct cgn_err who;
	(void)CGN_FAIL_AS(&who, why->code, "QUIC with %s: %.300s", c->peer, why->msg);
	keep_reason(c, &who);
}

static void close_log(struct quic_conn *c, enum cgn_code code, const char *text)
{
	struct cgn_err why;
	(void)CGN_FAIL_AS(&why, code, "QUIC with %s: %s", c->peer, text);
	keep_reason(c, &why);
}

static bool is_alert(uint64_t code)
{
	return code >= NGTCP2_CRYPTO_ERROR && code < NGTCP2_CRYPTO_ERROR + 256;
}

static void peer_refused(struct quic_conn *c, uint64_t code)
{
	struct cgn_err why;
	const char *name = gnutls_alert_get_name((gnutls_alert_description_t)(code - NGTCP2_CRYPTO_ERROR));
	(void)CGN_FAIL(&why, TLS, "QUIC with %s: the peer refused with the alert \"%s\"", c->peer,
		name != NULL ? name : "unknown");
	keep_reason(c, &why);
}

/* Keep only printable characters, because the text comes from outside. */
static void copy_reason(const ngtcp2_ccerr *e, char *out, size_t cap)
{
	size_t n = 0;
	for (; n < e->reasonlen && n + 1 < cap; n++)
		out[n] = e->reason[n] >= ' ' && e->reason[n] < 0x7f ? (char)e->reason[n] : '?';
	out[n] = '\0';
}

static void peer_closed(struct quic_conn *c)
{
	const ngtcp2_ccerr *e = ngtcp2_conn_get_ccerr(c->ngtcp2);
	struct cgn_err why;
	char text[200];
	copy_reason(e, text, sizeof text);
	if (c->forgotten) {
		c->ep->stats.resets_got++;
		close_log(c, CGN_UNAVAILABLE,
			"the peer knows nothing of this connection any more (it was restarted?)");
	} else if (e->type == NGTCP2_CCERR_TYPE_APPLICATION) {
		(void)CGN_FAIL(&why, CANCELLED, "%s closed the connection with code %llu%s%s", c->peer,
			(unsigned long long)e->error_code, text[0] != '\0' ? ": " : "", text);
		if (e->error_code != 0)
			keep_reason(c, &why);
	} else if (is_alert(e->error_code)) {
		peer_refused(c, e->error_code);
	} else if (e->error_code != NGTCP2_NO_ERROR) {
		(void)CGN_FAIL(&why, UNAVAILABLE, "%s closed the connection with QUIC's error 0x%llx%s%s",
			c->peer, (unsigned long long)e->error_code, text[0] != '\0' ? ": " : "", text);
		keep_reason(c, &why);
	}
	conn_lose(c, true);
}

static void closed_by_us(struct quic_conn *c, int rc)
{
	if (rc == NGTCP2_ERR_CRYPTO) {
		close_log(c, CGN_TLS, "the TLS handshake failed");
		ngtcp2_ccerr_set_tls_alert(&c->ccerr, ngtcp2_conn_get_tls_alert(c->ngtcp2), NULL, 0);
	} else {
		close_log(c, rc == NGTCP2_ERR_NOMEM ? CGN_NO_MEMORY : CGN_UNAVAILABLE, ngtcp2_strerror(rc));
		ngtcp2_ccerr_set_liberr(&c->ccerr, rc, NULL, 0);
	}
	close_with(c);
}

void quic_conn_fail(struct quic_conn *c, int rc)
{
	if (!quic_conn_alive(c))
		return;
	switch (rc) {
	case NGTCP2_ERR_DRAINING:
		peer_closed(c);
		break;
	case NGTCP2_ERR_IDLE_CLOSE:
		close_log(c, CGN_DEADLINE, "the peer has been silent for the idle timeout");
		conn_lose(c, false);
		break;
	case NGTCP2_ERR_HANDSHAKE_TIMEOUT:
		close_log(c, CGN_DEADLINE, "no handshake within its timeout");
		conn_lose(c, false);
		break;
	case NGTCP2_ERR_RECV_VERSION_NEGOTIATION:
		close_log(c, CGN_UNAVAILABLE, "the peer does not speak QUIC version 1");
		conn_lose(c, false);
		break;
	case NGTCP2_ERR_DROP_CONN:
	case NGTCP2_ERR_RETRY:
		close_log(c, CGN_UNAVAILABLE, "a handshake that can't be answered");
		conn_lose(c, false);
		break;
	default:
		closed_by_us(c, rc);
	}
}

/* ---- opening ---- */

void quic_conn_opened(struct quic_conn *c)
{
	struct quic_endpoint *ep = c->ep;
	if (c->state != QUIC_SHAKING)
		return;
	conn_move(c, QUIC_OPEN);
	if (!c->server) {
		ep->stats.dialled++;
		if (c->ops != NULL && c->ops->on_open != NULL)
			c->ops->on_open(c, c->user);
		return;
	}
	ep->stats.accepted++;
	ep->on_accept(ep->user, c);
	if (!c->taken)
		quic_conn_close(c, 0, NULL);
}

void quic_conn_accept(struct quic_endpoint *ep, const struct quic_first *first, const ngtcp2_path *path,
	uint8_t ecn, const uint8_t *p, size_t n)
{
	struct quic_conn *c = conn_new(ep, NULL, NULL);
	struct cgn_err why;
	c->server = true;
	c->counted = true;
	ep->stats.handshakes++;
	conn_move(c, QUIC_SHAKING);
	net_addr_text((const struct sockaddr *)path->remote.addr, c->peer, sizeof c->peer);
	if (cgn_ok(quic_shake_accept(c, first, path, &why))) {
		quic_conn_packet(c, path, ecn, p, n);
		return;
	}
	quic_conn_shake_failed(c, &why);
	conn_lose(c, false);
}

static void conn_dial(struct quic_conn *c, const union net_sockaddr *to)
{
	struct sockaddr_storage remote = {0}, local;
	socklen_t remote_len = net_sockaddr_len(to), local_len;
	unsigned mtu;
	struct cgn_err why;
	memcpy(&remote, to, remote_len);
	quic_socket_adapt(c->ep->socket, &remote, &remote_len);
	cgn_rc rc = quic_socket_route(c->ep->socket, &remote, remote_len, &local, &local_len, &mtu, &why);
	if (!cgn_ok(rc)) {
		close_log(c, CGN_UNAVAILABLE, why.msg);
		conn_lose(c, false);
		return;
	}
	ngtcp2_path path = {.local = {(ngtcp2_sockaddr *)&local, local_len},
		.remote = {(ngtcp2_sockaddr *)&remote, remote_len}};
	net_addr_text((struct sockaddr *)&remote, c->peer, sizeof c->peer);
	if (cgn_ok(quic_shake_dial(c, &path, &why))) {
		conn_move(c, QUIC_SHAKING);
		wants_turn(c);
		return;
	}
	keep_reason(c, &why);
	conn_lose(c, false);
}

static void resolve_work(void *arg)
{
	struct quic_resolving *r = arg;
	r->rc = net_addr_resolve(&r->addr, false, false, &r->list);
}

static void resolve_done(void *arg)
{
	struct quic_resolving *r = arg;
	struct quic_conn *c = r->c;
	struct net_addresses all;
	if (c != NULL) {
		c->resolving = NULL;
		bool known = net_name_told(c->name, r->began, r->rc, r->list, &all);
		if (c->state == QUIC_RESOLVING && known) {
			conn_dial(c, &all.at[0]);
		} else if (c->state == QUIC_RESOLVING) {
			struct cgn_err why;
			(void)CGN_FAIL(&why, UNAVAILABLE, "cannot resolve %s: %s", r->addr.host,
				r->rc != 0 ? gai_strerror(r->rc) : "it has no address of IPv4 or IPv6");
			keep_reason(c, &why);
			conn_lose(c, false);
		}
	}
	if (r->rc == 0)
		freeaddrinfo(r->list);
	free(r);
}

static void start_resolving(struct quic_conn *c, const struct net_addr *a)
{
	struct quic_resolving *r = c->resolving = CGN_NEW(struct quic_resolving);
	r->c = c;
	r->addr = *a;
	r->began = cgn_loop_now(c->ep->loop);
	cgn_loop_work(c->ep->loop, resolve_work, resolve_done, r);
}

/* Network failures are reported through on_close, so that a caller handles them in one place. */
static void conn_start(struct quic_conn *c, const struct net_addr *a)
{
	struct addrinfo *list = NULL;
	struct net_addresses all;
	if (net_addr_resolve(a, true, false, &list) == 0) {
		net_addresses_take(&all, list);
		freeaddrinfo(list);
		conn_dial(c, &all.at[0]);
		return;
	}
	c->name = net_name_get(a);
	if (net_name_addresses(c->name, cgn_loop_now(c->ep->loop), &all))
		conn_dial(c, &all.at[0]);
	else
		start_resolving(c, a);
}

CGN_RC quic_connect(struct quic_endpoint *ep, const char *addr, const char *server_name,
	const struct quic_conn_ops *ops, void *user, struct quic_conn **out, struct cgn_err *err)
{
	struct net_addr a;
	CGN_TRY(net_addr_parse(addr, &a, err));
	if (a.local || a.host[0] == '\0' || strcmp(a.port, "0") == 0)
		return CGN_FAIL(err, INVALID, "cannot connect to \"%s\": a host and a port are needed", addr);
	if (ep->n_records >= ep->cfg.max_conns)
		return CGN_FAIL(err, OVERLOADED, "%u QUIC connections are all that this endpoint may have",
			ep->cfg.max_conns);
	struct quic_conn *c = conn_new(ep, ops, user);
	c->taken = true;
	(void)cgn_str_copyz(c->peer, sizeof c->peer, cgn_str_of(addr));
	c->server_name = cgn_str_dupz(cgn_str_of(server_name != NULL ? server_name : a.host));
	conn_start(c, &a);
	*out = c;
	return CGN_OK;
}

/* ---- packets and time ---- */

/* Send the closing packet again to a peer that missed it: at its first, second, fourth, eighth packet and so
 * on. */
static void repeat_close(struct quic_conn *c, const ngtcp2_path *path)
{
	struct quic_socket *s = c->ep->socket;
	c->late++;
	if (c->last == NULL || (c->late & (c->late - 1)) != 0)
		return;
	uint8_t *at = quic_socket_room(s, c->last_n);
	if (at == NULL)
		return;
	memcpy(at, c->last, c->last_n);
	quic_socket_commit(s, c->last_n, path, 0);
	wants_turn(c);
}

/* Returns false when the peer's certificate was revoked since the handshake; the connection is then closing. */
static bool peer_recheck(struct quic_conn *c)
{
	struct cgn_err why;
	if (c->tls == NULL || cgn_ok(tls_guest_recheck(c->tls, &why)))
		return true;
	quic_conn_shake_failed(c, &why);
	ngtcp2_ccerr_set_tls_alert(&c->ccerr, GNUTLS_A_CERTIFICATE_REVOKED, NULL, 0);
	close_with(c);
	return false;
}

void quic_conn_packet(struct quic_conn *c, const ngtcp2_path *path, uint8_t ecn, const uint8_t *p, size_t n)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	ngtcp2_pkt_info pi = {.ecn = ecn};
	if (c->state == QUIC_CLOSING)
		repeat_close(c, path);
	if (!quic_conn_alive(c) || !peer_recheck(c))
		return;
	int rc = ngtcp2_conn_read_pkt(c->ngtcp2, path, &pi, p, n, cgn_clock_now());
	if (rc != 0)
		quic_conn_fail(c, rc);
	wants_turn(c);
}

static void on_timer(struct cgn_timer *t)
{
	struct quic_conn *c = CGN_CONTAINER(t, struct quic_conn, timer);
	CGN_LIVE(c, QUIC_CONN_TAG);
	if (!quic_conn_alive(c)) {
		conn_free(c);
		return;
	}
	int rc = ngtcp2_conn_handle_expiry(c->ngtcp2, cgn_clock_now());
	if (rc != 0)
		quic_conn_fail(c, rc);
	wants_turn(c);
}

static void timer_arm(struct quic_conn *c)
{
	ngtcp2_tstamp at = ngtcp2_conn_get_expiry(c->ngtcp2);
	cgn_nsec now = cgn_loop_now(c->ep->loop); /* The instant that cgn_timer_set adds to. */
	if (at == UINT64_MAX)
		cgn_timer_cancel(&c->timer);
	else
		cgn_timer_set(&c->timer, at > now ? at - now : 0);
}

/* ---- the end of the turn ---- */

static void report_end(struct quic_conn *c)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	const struct cgn_err why = c->why != NULL ? *c->why : fine;
	struct cgn_err streams = why;
	c->reported = true;
	if (why.code == CGN_FINE)
		(void)CGN_FAIL(&streams, UNAVAILABLE, "the connection with %s was closed", c->peer);
	quic_streams_end(c, &streams);
	if (c->ops != NULL && c->ops->on_close != NULL)
		c->ops->on_close(c, c->user, &why);
	c->ops = NULL;
	quic_pieces_release(c);
}

static void end_turn(struct quic_conn *c)
{
	if (c->state == QUIC_CLOSING && !c->told) {
		c->told = true;
		quic_write_close(c);
	}
	if (!c->reported)
		report_end(c);
	bool linger = c->ngtcp2 != NULL && !c->ep->closing && (c->state == QUIC_CLOSING || c->lingers);
	if (!linger)
		conn_free(c);
	else if (!c->resting)
		cgn_timer_set(&c->timer, LINGER_PTOS * ngtcp2_conn_get_pto(c->ngtcp2));
	c->resting = true;
}

static void report_room(struct quic_conn *c)
{
	bool due = c->has_room && c->wants_room && c->state == QUIC_OPEN;
	c->has_room = false;
	if (!due)
		return;
	c->wants_room = false;
	if (c->ops != NULL && c->ops->on_room != NULL)
		c->ops->on_room(c, c->user);
}

bool quic_conn_turn(struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	bool more = false;
	if (quic_conn_alive(c)) {
		quic_streams_report(c);
		report_room(c);
		quic_pieces_release(c);
	}
	if (quic_conn_alive(c))
		more = quic_write(c);
	if (quic_conn_alive(c))
		timer_arm(c);
	else if (c->state != QUIC_RESOLVING)
		end_turn(c);
	return more;
}

/* ---- questions ---- */

void quic_conn_take(struct quic_conn *c, const struct quic_conn_ops *ops, void *user)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	c->taken = true;
	c->ops = ops;
	c->user = user;
}

bool quic_conn_is_open(const struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	return c->state == QUIC_OPEN;
}

struct quic_endpoint *quic_conn_endpoint(const struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	return c->ep;
}

bool quic_conn_is_moved(struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	if (c->name == NULL || c->state != QUIC_OPEN)
		return false;
	net_name_refresh(c->name, c->ep->loop);
	return !net_name_is(c->name, c->peer, &c->name_version);
}

struct cgn_str quic_conn_peer(const struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	return cgn_str_of(c->peer);
}

struct cgn_str quic_conn_peer_name(const struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	return c->tls != NULL ? tls_guest_peer_name(c->tls) : CGN_STR("");
}

struct cgn_str quic_conn_peer_uris(const struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	return c->tls != NULL ? tls_guest_peer_uris(c->tls) : CGN_STR("");
}

cgn_nsec quic_conn_rtt(const struct quic_conn *c)
{
	CGN_LIVE(c, QUIC_CONN_TAG);
	ngtcp2_conn_info info;
	if (c->ngtcp2 == NULL)
		return c->ep->cfg.initial_rtt;
	ngtcp2_conn_get_conn_info(c->ngtcp2, &info);
	return info.smoothed_rtt;
}
