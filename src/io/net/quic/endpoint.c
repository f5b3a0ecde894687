/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint: one socket, its connections, and the connections with work at the end of the turn. */
#include <stdlib.h>
#include <string.h>

#include "quic_priv.h"

#define QUIC_ENDPOINT_TAG 0x9c57e9d0U

static void on_turn_end(struct cgn_hook *h);
static void on_again(struct cgn_timer *t);

/* ---- packets ---- */

static void front_answer(struct quic_endpoint *ep, const ngtcp2_path *path, const struct quic_first *first)
{
	uint8_t *at = first->n > 0 ? quic_socket_room(ep->socket, first->n) : NULL;
	if (at == NULL)
		return;
	memcpy(at, first->out, first->n);
	quic_socket_commit(ep->socket, first->n, path, 0);
	cgn_loop_defer(ep->loop, &ep->hook);
}

static bool has_token(const struct quic_conn *c, const uint8_t *token)
{
	ngtcp2_cid_token ids[8];
	size_t n = ngtcp2_conn_get_active_dcid(c->ngtcp2, NULL);
	if (n > CGN_COUNT(ids))
		return false;
	n = ngtcp2_conn_get_active_dcid(c->ngtcp2, ids);
	for (size_t i = 0; i < n; i++)
		if (ids[i].token_present != 0 &&
			memcmp(ids[i].token, token, NGTCP2_STATELESS_RESET_TOKENLEN) == 0)
			return true;
	return false;
}

/* A stateless reset looks like a short packet for an id that was never issued, and ends in a token that the
 * peer gave us. */
static struct quic_conn *reset_of(struct quic_endpoint *ep, const ngtcp2_path *path, const uint8_t *p,
	size_t n)
{
	if (n < NGTCP2_STATELESS_RESET_TOKENLEN + 5 || (p[0] & 0x80) != 0)
		return NULL;
	cgn_list_each (l, &ep->conns) {
		struct quic_conn *c = CGN_CONTAINER(l, struct quic_conn, all);
		const ngtcp2_path *at = quic_conn_alive(c) ? ngtcp2_conn_get_path(c->ngtcp2) : NULL;
		if (at != NULL && at->remote.addrlen == path->remote.addrlen &&
			memcmp(at->remote.addr, path->remote.addr, path->remote.addrlen) == 0 &&
			has_token(c, p + n - NGTCP2_STATELESS_RESET_TOKENLEN))
			return c;
	}
	return NULL;
}

static enum quic_verdict front_judge(struct quic_endpoint *ep, const ngtcp2_path *path, const uint8_t *p,
	size_t n, struct quic_first *first)
{
	const struct quic_endpoint_cfg *cfg = &ep->cfg;
	struct quic_front f = {.secret = ep->secret,
		.accepts = ep->on_accept != NULL,
		.full = ep->n_records >= cfg->max_conns || ep->stats.handshakes >= cfg->max_handshakes,
		.validate = cfg->retry_always || ep->stats.handshakes >= cfg->retry_above,
		.remote = (const struct sockaddr *)path->remote.addr,
		.remote_len = path->remote.addrlen,
		.now = cgn_clock_now()};
	return quic_front_judge(&f, p, n, first);
}

static void packet_unknown(struct quic_endpoint *ep, const ngtcp2_path *path, uint8_t ecn, const uint8_t *p,
	size_t n)
{
	struct quic_first first;
	struct quic_conn *c = reset_of(ep, path, p, n);
	if (c != NULL) {
		quic_conn_packet(c, path, ecn, p, n);
		return;
	}
	switch (front_judge(ep, path, p, n, &first)) {
	case QUIC_JUNK:
		ep->stats.packets_junk++;
		return;
	case QUIC_REFUSED:
		ep->stats.refused++;
		return;
	case QUIC_ACCEPT:
		quic_conn_accept(ep, &first, path, ecn, p, n);
		return;
	case QUIC_VERSION:
		ep->stats.versions_sent++;
		break;
	case QUIC_RETRY:
		ep->stats.retries_sent++;
		break;
	case QUIC_BAD_TOKEN:
		ep->stats.tokens_refused++;
		break;
	case QUIC_RESET:
		ep->stats.resets_sent++;
		break;
	}
	front_answer(ep, path, &first);
}

static void on_packet(void *arg, const ngtcp2_path *path, uint8_t ecn, const uint8_t *p, size_t n)
{
	struct quic_endpoint *ep = arg;
	ngtcp2_version_cid vc;
	CGN_LIVE(ep, QUIC_ENDPOINT_TAG);
	if (ep->closing)
		return;
	int rc = ngtcp2_pkt_decode_version_cid(&vc, p, n, QUIC_CID_BYTES);
	struct quic_conn *c = rc == 0 ? quic_cids_find(&ep->cids, vc.dcid, vc.dcidlen) : NULL;
	if (c != NULL)
		quic_conn_packet(c, path, ecn, p, n);
	else
		packet_unknown(ep, path, ecn, p, n);
}

static void on_writable(void *arg)
{
	struct quic_endpoint *ep = arg;
	cgn_loop_defer(ep->loop, &ep->hook);
}

static const struct quic_socket_ops socket_ops = {.on_packet = on_packet, .on_writable = on_writable};

/* ---- turns ---- */

void quic_endpoint_wants_turn(struct quic_endpoint *ep, struct quic_conn *c)
{
	if (cgn_list_empty(&c->turn))
		cgn_list_push(&ep->turns, &c->turn);
	if (!quic_socket_blocked(ep->socket) || !quic_conn_alive(c))
		cgn_loop_defer(ep->loop, &ep->hook);
}

/* Run each connection once; one with more to write continues in the next turn, after reading new packets. */
static void on_turn_end(struct cgn_hook *h)
{
	struct quic_endpoint *ep = CGN_CONTAINER(h, struct quic_endpoint, hook);
	CGN_LIVE(ep, QUIC_ENDPOINT_TAG);
	struct cgn_link now, again;
	cgn_list_init(&now);
	cgn_list_init(&again);
	for (struct cgn_link *l; (l = cgn_list_first(&ep->turns)) != NULL;) {
		cgn_list_drop(l);
		cgn_list_push(&now, l);
	}
	ep->n_records++; /* The record stays until the turn is over. */
	for (struct cgn_link *l; (l = cgn_list_first(&now)) != NULL;) {
		struct quic_conn *c = CGN_CONTAINER(l, struct quic_conn, turn);
		cgn_list_drop(l);
		if (quic_conn_turn(c) && cgn_list_empty(&c->turn))
			cgn_list_push(&again, &c->turn);
	}
	quic_socket_flush(ep->socket);
	if (!cgn_list_empty(&again) && !quic_socket_blocked(ep->socket))
		cgn_timer_set(&ep->again, 0);
	for (struct cgn_link *l; (l = cgn_list_first(&again)) != NULL;) {
		cgn_list_drop(l);
		cgn_list_push(&ep->turns, l);
	}
	ep->n_records--;
	quic_endpoint_left(ep);
}

static void on_again(struct cgn_timer *t)
{
	struct quic_endpoint *ep = CGN_CONTAINER(t, struct quic_endpoint, again);
	cgn_loop_defer(ep->loop, &ep->hook);
}

/* ---- making ---- */

static void cfg_defaults(struct quic_endpoint_cfg *c)
{
#define DEFAULT(field, value) c->field = c->field != 0 ? c->field : (value)
	DEFAULT(initial_rtt, CGN_MSEC);
	DEFAULT(idle_timeout, 30 * CGN_SEC);
	DEFAULT(handshake_timeout, 5 * CGN_SEC);
	DEFAULT(max_conns, 1024);
	DEFAULT(max_handshakes, 256);
	DEFAULT(retry_above, 32);
	DEFAULT(max_streams, 256);
	DEFAULT(stream_window, (size_t)4 << 20);
	DEFAULT(conn_window, (size_t)16 << 20);
	DEFAULT(max_datagram, 8952);
	DEFAULT(socket_buffer, (size_t)4 << 20);
#undef DEFAULT
}

static CGN_RC cfg_check(const struct quic_endpoint_cfg *c, struct cgn_err *err)
{
	if (c->alpn == NULL || c->alpn[0] == '\0' || strlen(c->alpn) > 31)
		return CGN_FAIL(err, INVALID, "QUIC needs the name of a protocol of 1 to 31 bytes");
	if (c->max_datagram < QUIC_DATAGRAM_MIN || c->max_datagram > QUIC_DATAGRAM_MAX)
		return CGN_FAIL(err, INVALID, "datagrams of at most %zu bytes: %d to %d are possible",
			c->max_datagram, QUIC_DATAGRAM_MIN, QUIC_DATAGRAM_MAX);
	if (c->conn_window < c->stream_window)
		return CGN_FAIL(err, INVALID,
			"a connection's window of %zu bytes is smaller than a stream's of %zu",
			c->conn_window, c->stream_window);
	if (c->keepalive >= c->idle_timeout)
		return CGN_FAIL(err, INVALID,
			"a keepalive that is not shorter than the idle timeout keeps nothing alive");
	return CGN_OK;
}

/* Derive the secret of tokens and resets from the key, so that they outlive a restart and peers of the
 * previous process learn at once that it ended. Another endpoint with the same certificate has another
 * secret: an attacker who diverts packets to it must not obtain resets for this one's connections (RFC 9000,
 * 21.11). */
static void make_secret(struct quic_endpoint *ep)
{
	char label[48];
	(void)snprintf(label, sizeof label, "quic resets and tokens %u", quic_socket_port(ep->socket));
	if (!tls_ctx_secret(ep->tls, label, ep->secret))
		cgn_random(ep->secret, sizeof ep->secret);
}

static void endpoint_init(struct quic_endpoint *ep, struct cgn_loop *l, const struct quic_endpoint_cfg *cfg,
	quic_accept_fn *on_accept, void *user)
{
	ep->tag = QUIC_ENDPOINT_TAG;
	ep->loop = l;
	ep->cfg = *cfg;
	ep->tls = cfg->tls;
	tls_ctx_ref(ep->tls);
	ep->on_accept = on_accept;
	ep->user = user;
	(void)cgn_str_copyz(ep->alpn, sizeof ep->alpn, cgn_str_of(cfg->alpn));
	ep->cfg.addr = ep->cfg.alpn = NULL;
	cgn_list_init(&ep->conns);
	cgn_list_init(&ep->turns);
	cgn_hook_init(&ep->hook, on_turn_end);
	cgn_timer_init(&ep->again, l, on_again);
}

static void endpoint_fini(struct quic_endpoint *ep)
{
	cgn_timer_cancel(&ep->again);
	cgn_hook_drop(&ep->hook);
	if (ep->cids.buckets != NULL)
		quic_cids_fini(&ep->cids);
	quic_socket_close(&ep->socket);
	tls_ctx_free(&ep->tls);
	ep->tag = 0;
}

CGN_RC quic_endpoint_new(struct cgn_loop *l, const struct quic_endpoint_cfg *given, quic_accept_fn *on_accept,
	void *user, struct quic_endpoint **out, struct cgn_err *err)
{
	struct quic_endpoint_cfg cfg = *given;
	struct tls_guest *probe = NULL;
	cfg_defaults(&cfg);
	CGN_TRY(cfg_check(&cfg, err));
	/* Fail now rather than at the first peer. */
	CGN_TRY(tls_guest_new(cfg.tls, cfg.alpn, NULL, &probe, err));
	tls_guest_free(&probe);
	struct quic_endpoint *ep = CGN_NEW(struct quic_endpoint);
	endpoint_init(ep, l, &cfg, on_accept, user);
	quic_cids_init(&ep->cids, cfg.max_conns);
	cgn_rc rc = quic_socket_open(l, cfg.addr, cfg.socket_buffer, &socket_ops, ep, &ep->socket, err);
	if (!cgn_ok(rc)) {
		endpoint_fini(ep);
		free(ep);
		return rc;
	}
	make_secret(ep);
	*out = ep;
	return CGN_OK;
}

unsigned quic_endpoint_port(const struct quic_endpoint *ep)
{
	CGN_LIVE(ep, QUIC_ENDPOINT_TAG);
	return quic_socket_port(ep->socket);
}

/* ---- the end ---- */

static void release_endpoint(struct cgn_grave *g)
{
	free(CGN_CONTAINER(g, struct quic_endpoint, grave));
}

void quic_endpoint_left(struct quic_endpoint *ep)
{
	if (!ep->closing || ep->n_records > 0)
		return;
	endpoint_fini(ep);
	cgn_loop_bury(ep->loop, &ep->grave, release_endpoint);
}

void quic_endpoint_close(struct quic_endpoint **take)
{
	struct quic_endpoint *ep = *take;
	struct cgn_err why;
	*take = NULL;
	if (ep == NULL)
		return;
	CGN_LIVE(ep, QUIC_ENDPOINT_TAG);
	CGN_MUST(!ep->closing);
	ep->closing = true;
	(void)CGN_FAIL(&why, UNAVAILABLE, "this endpoint was closed");
	cgn_list_each (l, &ep->conns)
		quic_conn_drop(CGN_CONTAINER(l, struct quic_conn, all), &why);
	cgn_loop_defer(ep->loop, &ep->hook);
}

struct quic_stats quic_endpoint_stats(const struct quic_endpoint *ep)
{
	CGN_LIVE(ep, QUIC_ENDPOINT_TAG);
	struct quic_stats st = ep->stats;
	struct quic_socket_counts n = quic_socket_counts(ep->socket);
	st.packets_in = n.packets_in;
	st.packets_out = n.packets_out;
	st.bytes_in = n.bytes_in;
	st.bytes_out = n.bytes_out;
	st.sends = n.sends;
	st.receives = n.receives;
	st.gso = n.gso;
	st.gro = n.gro;
	return st;
}

void quic_endpoint_refusal(const struct quic_endpoint *ep, struct cgn_err *out, cgn_nsec *at)
{
	CGN_LIVE(ep, QUIC_ENDPOINT_TAG);
	*out = ep->refusal;
	*at = ep->refused_at;
}
