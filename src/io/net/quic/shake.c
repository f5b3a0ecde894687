/* SPDX-License-Identifier: Apache-2.0 */
/* shake: ngtcp2's callbacks of a connection, and the GnuTLS handshake that it carries. */
#include <stdlib.h>
#include <string.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <ngtcp2/ngtcp2_crypto_gnutls.h>

#include "quic_priv.h"

#define FIRST_CID_BYTES 16
/* The RFC's 25 ms would be the longest part of repairing a lost tail on a LAN. */
#define ACK_DELAY         (2 * CGN_MSEC)
#define CIDS_MOST         4
#define ONE_WAY_WINDOW    65536
#define ALERT_NO_PROTOCOL 120
#define HEADERS_V4        28 /* Headers of IP and UDP. */
#define HEADERS_V6        48

static ngtcp2_conn *conn_of(ngtcp2_crypto_conn_ref *ref)
{
	return ((struct quic_conn *)ref->user_data)->ngtcp2;
}

/* ---- ngtcp2 asks ---- */

static void on_rand(uint8_t *p, size_t n, const ngtcp2_rand_ctx *ctx)
{
	(void)ctx;
	CGN_MUST(gnutls_rnd(GNUTLS_RND_NONCE, p, n) == 0);
}

static int on_new_cid(ngtcp2_conn *q, ngtcp2_cid *cid, uint8_t *token, size_t n, void *user)
{
	struct quic_conn *c = user;
	(void)q;
	cid->datalen = n;
	cgn_random(cid->data, n);
	if (ngtcp2_crypto_generate_stateless_reset_token(token, c->ep->secret, QUIC_SECRET_BYTES, cid) != 0)
		return NGTCP2_ERR_CALLBACK_FAILURE;
	return quic_cids_put(&c->ep->cids, cid, c) ? 0 : NGTCP2_ERR_CALLBACK_FAILURE;
}

static int on_old_cid(ngtcp2_conn *q, const ngtcp2_cid *cid, void *user)
{
	struct quic_conn *c = user;
	(void)q;
	quic_cids_drop(&c->ep->cids, cid);
	return 0;
}

static int on_reset(ngtcp2_conn *q, const ngtcp2_pkt_stateless_reset *sr, void *user)
{
	struct quic_conn *c = user;
	(void)q;
	(void)sr;
	c->forgotten = true;
	return 0;
}

static int on_room(ngtcp2_conn *q, uint64_t most, void *user)
{
	struct quic_conn *c = user;
	(void)q;
	(void)most;
	c->has_room = true;
	return 0;
}

static int on_shaken(ngtcp2_conn *q, void *user)
{
	struct quic_conn *c = user;
	if (c->ep->cfg.keepalive > 0)
		ngtcp2_conn_set_keep_alive_timeout(q, c->ep->cfg.keepalive);
	quic_conn_opened(c);
	return 0;
}

/* ---- TLS ---- */

static int handshake_refuse(struct quic_conn *c, const struct cgn_err *why)
{
	quic_conn_shake_failed(c, why);
	return NGTCP2_ERR_CRYPTO;
}

/* Tell the peer the exact reason: GnuTLS has one alert for every fault of a certificate. The alert is stored
 * in ngtcp2's tls_alert. */
static void send_alert(gnutls_session_t tls, int rc)
{
	unsigned status = rc == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR
		? gnutls_session_get_verify_cert_status(tls)
		: 0;
	if ((status & GNUTLS_CERT_EXPIRED) != 0)
		(void)gnutls_alert_send(tls, GNUTLS_AL_FATAL, GNUTLS_A_CERTIFICATE_EXPIRED);
	else if ((status & GNUTLS_CERT_SIGNER_NOT_FOUND) != 0)
		(void)gnutls_alert_send(tls, GNUTLS_AL_FATAL, GNUTLS_A_UNKNOWN_CA);
	else
		(void)gnutls_alert_send_appropriate(tls, rc);
}

/* Run the handshake; the peer's certificate is judged here, before the handshake can be complete. */
static int handshake_step(struct quic_conn *c, gnutls_session_t tls)
{
	struct cgn_err why;
	int rc = gnutls_handshake(tls);
	if (rc < 0 && gnutls_error_is_fatal(rc) == 0)
		return 0; /* The handshake needs more bytes. */
	if (rc < 0) {
		if (rc != GNUTLS_E_FATAL_ALERT_RECEIVED)
			send_alert(tls, rc);
		(void)tls_guest_refusal(c->tls, rc, &why);
		return handshake_refuse(c, &why);
	}
	if (!cgn_ok(tls_guest_shaken(c->tls, &why))) {
		ngtcp2_conn_set_tls_alert(c->ngtcp2, ALERT_NO_PROTOCOL);
		return handshake_refuse(c, &why);
	}
	if (!cgn_ok(tls_guest_recheck(c->tls, &why))) {
		ngtcp2_conn_set_tls_alert(c->ngtcp2, GNUTLS_A_CERTIFICATE_REVOKED);
		return handshake_refuse(c, &why);
	}
	ngtcp2_conn_tls_handshake_completed(c->ngtcp2);
	return 0;
}

/* Used instead of ngtcp2_crypto_recv_crypto_data_cb, which drops GnuTLS' reason for a refusal. */
static int on_crypto(ngtcp2_conn *q, ngtcp2_encryption_level level, uint64_t offset, const uint8_t *p,
	size_t n, void *user)
{
	struct quic_conn *c = user;
	struct cgn_err why;
	gnutls_session_t tls = tls_guest_gnutls(c->tls);
	(void)offset;
	int rc = gnutls_handshake_write(tls, ngtcp2_crypto_gnutls_from_ngtcp2_encryption_level(level), p, n);
	if (rc < 0 && gnutls_error_is_fatal(rc) != 0) {
		(void)gnutls_alert_send_appropriate(tls, rc);
		(void)tls_guest_refusal(c->tls, rc, &why);
		return handshake_refuse(c, &why);
	}
	if (ngtcp2_conn_get_handshake_completed(q) != 0)
		return 0;
	rc = handshake_step(c, tls);
	int also = ngtcp2_conn_get_tls_error(q); /* Bad transport parameters, or no memory. */
	return rc != 0 && also != 0 ? also : rc;
}

static const ngtcp2_callbacks callbacks = {
	.client_initial = ngtcp2_crypto_client_initial_cb,
	.recv_client_initial = ngtcp2_crypto_recv_client_initial_cb,
	.recv_crypto_data = on_crypto,
	.handshake_completed = on_shaken,
	.encrypt = ngtcp2_crypto_encrypt_cb,
	.decrypt = ngtcp2_crypto_decrypt_cb,
	.hp_mask = ngtcp2_crypto_hp_mask_cb,
	.recv_stream_data = quic_stream_on_data,
	.acked_stream_data_offset = quic_stream_on_acked,
	.stream_open = quic_stream_on_open,
	.stream_close = quic_stream_on_close,
	.recv_stateless_reset = on_reset,
	.recv_retry = ngtcp2_crypto_recv_retry_cb,
	.extend_max_local_streams_bidi = on_room,
	.rand = on_rand,
	.get_new_connection_id = on_new_cid,
	.remove_connection_id = on_old_cid,
	.update_key = ngtcp2_crypto_update_key_cb,
	.stream_reset = quic_stream_on_reset,
	.extend_max_stream_data = quic_stream_on_credit,
	.delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
	.delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
	.get_path_challenge_data = ngtcp2_crypto_get_path_challenge_data_cb,
	.version_negotiation = ngtcp2_crypto_version_negotiation_cb,
};

/* ---- settings ---- */

static ngtcp2_cc_algo cc_algorithm(enum quic_cc cc)
{
	switch (cc) {
	case QUIC_CC_BBR:
		return NGTCP2_CC_ALGO_BBR;
	case QUIC_CC_RENO:
		return NGTCP2_CC_ALGO_RENO;
	case QUIC_CC_CUBIC:
		break;
	}
	return NGTCP2_CC_ALGO_CUBIC;
}

/* Choose the sizes to probe, the largest first: the size that the first hop carries is mostly the size that
 * the path carries. */
static void choose_probes(struct quic_conn *c, const ngtcp2_path *path)
{
	static const uint16_t usual[] = {8952, 1452, 1352};
	size_t headers = path->remote.addr->sa_family == AF_INET6 ? HEADERS_V6 : HEADERS_V4;
	struct sockaddr_storage remote = {0}, local;
	socklen_t local_len;
	unsigned mtu = 0;
	size_t most = c->ep->cfg.max_datagram;
	memcpy(&remote, path->remote.addr, path->remote.addrlen);
	if (cgn_ok(quic_socket_route(c->ep->socket, &remote, path->remote.addrlen, &local, &local_len, &mtu,
		    NULL)) &&
		mtu > headers && mtu - headers < most)
		most = mtu - headers;
	c->n_probes = 0;
	if (most > QUIC_DATAGRAM_MIN)
		c->probes[c->n_probes++] = (uint16_t)most;
	for (size_t i = 0; i < CGN_COUNT(usual); i++)
		if (usual[i] < most)
			c->probes[c->n_probes++] = usual[i];
}

static void fill_settings(struct quic_conn *c, ngtcp2_settings *st)
{
	ngtcp2_settings_default(st);
	st->cc_algo = cc_algorithm(c->ep->cfg.cc);
	st->initial_ts = cgn_clock_now();
	st->initial_rtt = c->ep->cfg.initial_rtt;
	st->handshake_timeout = c->ep->cfg.handshake_timeout;
	st->max_tx_udp_payload_size = c->n_probes > 0 ? c->probes[0] : QUIC_DATAGRAM_MIN;
	st->no_pmtud = c->n_probes == 0;
	st->pmtud_probes = c->probes;
	st->pmtud_probeslen = c->n_probes;
}

static void fill_params(const struct quic_conn *c, ngtcp2_transport_params *p)
{
	const struct quic_endpoint_cfg *cfg = &c->ep->cfg;
	ngtcp2_transport_params_default(p);
	p->initial_max_stream_data_bidi_local = p->initial_max_stream_data_bidi_remote = cfg->stream_window;
	p->initial_max_data = cfg->conn_window;
	p->initial_max_streams_bidi = cfg->max_streams;
	p->initial_max_streams_uni = cfg->max_one_way;
	p->initial_max_stream_data_uni = cfg->max_one_way > 0 ? ONE_WAY_WINDOW : 0;
	p->max_idle_timeout = cfg->idle_timeout;
	p->max_ack_delay = ACK_DELAY;
	p->active_connection_id_limit = CIDS_MOST;
}

static void random_cid(ngtcp2_cid *cid, size_t n)
{
	cid->datalen = n;
	cgn_random(cid->data, n);
}

static CGN_RC ngtcp2_failed(const struct quic_conn *c, int rc, struct cgn_err *err)
{
	return CGN_FAIL(err, INTERNAL, "no QUIC connection with %s: %s", c->peer, ngtcp2_strerror(rc));
}

static CGN_RC bind_tls(struct quic_conn *c, const char *server_name, struct cgn_err *err)
{
	CGN_TRY(tls_guest_new(c->ep->tls, c->ep->alpn, server_name, &c->tls, err));
	gnutls_session_t tls = tls_guest_gnutls(c->tls);
	c->ref = (ngtcp2_crypto_conn_ref){conn_of, c};
	gnutls_session_set_ptr(tls, &c->ref);
	int rc = server_name == NULL ? ngtcp2_crypto_gnutls_configure_server_session(tls)
				     : ngtcp2_crypto_gnutls_configure_client_session(tls);
	if (rc != 0)
		return CGN_FAIL(err, TLS, "cannot set up TLS for QUIC");
	ngtcp2_conn_set_tls_native_handle(c->ngtcp2, tls);
	return CGN_OK;
}

CGN_RC quic_shake_dial(struct quic_conn *c, const ngtcp2_path *path, struct cgn_err *err)
{
	ngtcp2_settings st;
	ngtcp2_transport_params params;
	ngtcp2_cid dcid, scid;
	choose_probes(c, path);
	fill_settings(c, &st);
	fill_params(c, &params);
	random_cid(&dcid, FIRST_CID_BYTES);
	random_cid(&scid, QUIC_CID_BYTES);
	if (!quic_cids_put(&c->ep->cids, &scid, c))
		return ngtcp2_failed(c, NGTCP2_ERR_NOMEM, err);
	int rc = ngtcp2_conn_client_new(&c->ngtcp2, &dcid, &scid, path, NGTCP2_PROTO_VER_V1, &callbacks, &st,
		&params, NULL, c);
	return rc == 0 ? bind_tls(c, c->server_name, err) : ngtcp2_failed(c, rc, err);
}

CGN_RC quic_shake_accept(struct quic_conn *c, const struct quic_first *first, const ngtcp2_path *path,
	struct cgn_err *err)
{
	ngtcp2_settings st;
	ngtcp2_transport_params params;
	ngtcp2_cid scid;
	choose_probes(c, path);
	fill_settings(c, &st);
	fill_params(c, &params);
	random_cid(&scid, QUIC_CID_BYTES);
	params.original_dcid = first->odcid;
	params.original_dcid_present = 1;
	if (first->retried) {
		params.retry_scid = first->hd.dcid;
		params.retry_scid_present = 1;
		st.token = first->hd.token;
		st.tokenlen = first->hd.tokenlen;
		st.token_type = NGTCP2_TOKEN_TYPE_RETRY;
	}
	params.stateless_reset_token_present = 1;
	if (ngtcp2_crypto_generate_stateless_reset_token(params.stateless_reset_token, c->ep->secret,
		    QUIC_SECRET_BYTES, &scid) != 0 ||
		!quic_cids_put(&c->ep->cids, &scid, c) || !quic_cids_put(&c->ep->cids, &first->hd.dcid, c))
		return ngtcp2_failed(c, NGTCP2_ERR_NOMEM, err);
	int rc = ngtcp2_conn_server_new(&c->ngtcp2, &first->hd.scid, &scid, path, first->hd.version,
		&callbacks, &st, &params, NULL, c);
	return rc == 0 ? bind_tls(c, NULL, err) : ngtcp2_failed(c, rc, err);
}
