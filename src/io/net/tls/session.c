/* SPDX-License-Identifier: Apache-2.0 */
/* session: one TLS connection as a transformer of bytes. GnuTLS reads from the input of tls_feed and writes
 * through emit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tls_priv.h"

#define TLS_SESSION_TAG 0x715e5510U

struct tls_session {
	uint32_t tag;
	bool is_pinned, ready, feeding, doomed; /* doomed: a callback of tls_feed freed the session. */
	gnutls_session_t gnutls;
	struct tls_identity *identity;
	struct tls_session_ops ops;
	void *user;
	const uint8_t *in; /* Input of tls_feed that GnuTLS has not taken yet. */
	size_t in_n;
	char *server_name;
	char *peer_uris;                 /* NULL: none. */
	gnutls_typed_vdata_st expect[2]; /* GnuTLS keeps the pointer until the handshake is done. */
	char alpn[32], peer_name[128];
	struct tls_crl *crl;      /* NULL: the peer cannot be revoked. */
	unsigned crl_seen;        /* Generation of the lists that the peer was looked for in. */
	const char *peer_uri;     /* NULL: any. */
	const char *peer_uri_of;  /* NULL: always. */
	struct tls_ca_pin ca_pin; /* For GnuTLS, as |pin|. */
	bool ca_is_pinned;
	uint8_t pin[TLS_PIN_BYTES]; /* For GnuTLS, which keeps the pointer */
};

/* ---- GnuTLS's transport ---- */

static ssize_t transport_pull(gnutls_transport_ptr_t arg, void *to, size_t n)
{
	struct tls_session *s = arg;
	if (s->in_n == 0) {
		gnutls_transport_set_errno(s->gnutls, EAGAIN);
		return -1;
	}
	n = n < s->in_n ? n : s->in_n;
	memcpy(to, s->in, n);
	s->in += n;
	s->in_n -= n;
	return (ssize_t)n;
}

static int pull_timeout(gnutls_transport_ptr_t arg, unsigned ms)
{
	const struct tls_session *s = arg;
	(void)ms; /* The caller keeps the time. */
	return s->in_n > 0;
}

static ssize_t transport_push(gnutls_transport_ptr_t arg, const void *p, size_t n)
{
	struct tls_session *s = arg;
	s->ops.emit(s->user, p, n);
	return (ssize_t)n;
}

/* ---- making ---- */

static int session_configure(struct tls_session *s, const struct tls_ctx *c)
{
	unsigned n_alpn = 0;
	const gnutls_datum_t *alpn = tls_ctx_alpn(c, &n_alpn);
	gnutls_transport_set_ptr(s->gnutls, s);
	gnutls_transport_set_pull_function(s->gnutls, transport_pull);
	gnutls_transport_set_pull_timeout_function(s->gnutls, pull_timeout);
	gnutls_transport_set_push_function(s->gnutls, transport_push);
	gnutls_handshake_set_timeout(s->gnutls, GNUTLS_INDEFINITE_TIMEOUT);
	int rc = gnutls_priority_set(s->gnutls, tls_ctx_priority(c));
	if (rc == 0)
		rc = gnutls_credentials_set(s->gnutls, GNUTLS_CRD_CERTIFICATE, s->identity->cred);
	if (rc == 0 && n_alpn > 0)
		rc = gnutls_alpn_set_protocols(s->gnutls, alpn, n_alpn,
			tls_ctx_server(c) ? GNUTLS_ALPN_SERVER_PRECEDENCE : 0);
	if (rc == 0 && s->identity->ticket_key.data != NULL)
		rc = gnutls_session_ticket_enable_server(s->gnutls, &s->identity->ticket_key);
	if (rc == 0 && s->server_name != NULL)
		rc = tls_peer_ask_for(s->gnutls, s->server_name);
	return rc;
}

static void ca_pin_expect(struct tls_session *s, const struct tls_ctx *c)
{
	s->ca_is_pinned = true;
	memcpy(s->ca_pin.digest, tls_ctx_ca_pin(c), sizeof s->ca_pin.digest);
	tls_peer_expect(s->gnutls, false, s->server_name, s->ca_pin.expect);
	tls_peer_pin_ca(s->gnutls, &s->ca_pin);
}

static CGN_RC session_fill(struct tls_session *s, struct tls_ctx *c, const char *server_name,
	struct cgn_err *err)
{
	unsigned flags =
		GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | (tls_ctx_server(c) ? GNUTLS_SERVER : GNUTLS_CLIENT);
	s->identity = tls_identity_of(c);
	if (!tls_ctx_server(c)) {
		CGN_MUST(server_name != NULL); /* A client without a name to verify would accept any peer. */
		s->server_name = cgn_str_dupz(cgn_str_of(server_name));
	}
	int rc = gnutls_init(&s->gnutls, flags);
	if (rc == 0)
		rc = session_configure(s, c);
	if (rc != 0)
		return CGN_FAIL(err, TLS, "cannot set up TLS: %s", gnutls_strerror(rc));
	s->peer_uri = tls_ctx_peer_uri(c);
	s->peer_uri_of = tls_ctx_peer_uri_of(c);
	s->is_pinned = tls_ctx_pin(c) != NULL;
	if (s->is_pinned)
		tls_peer_pin(s->gnutls, memcpy(s->pin, tls_ctx_pin(c), sizeof s->pin));
	else if (tls_ctx_ca_pin(c) != NULL)
		ca_pin_expect(s, c);
	else if (!tls_ctx_server(c) || tls_ctx_mutual(c))
		tls_peer_expect(s->gnutls, tls_ctx_server(c), s->server_name, s->expect);
	if (tls_ctx_mutual(c))
		tls_peer_require(s->gnutls);
	else if (tls_ctx_asks(c))
		tls_peer_invite(s->gnutls);
	if (!s->is_pinned && tls_ctx_crl(c) != NULL)
		tls_crl_ref(s->crl = tls_ctx_crl(c));
	return CGN_OK;
}

static void session_destroy(struct tls_session *s)
{
	if (s->gnutls != NULL)
		gnutls_deinit(s->gnutls);
	tls_identity_unref(&s->identity);
	tls_crl_free(&s->crl);
	free(s->server_name);
	free(s->peer_uris);
	s->tag = 0;
	free(s);
}

CGN_RC tls_session_new(struct tls_ctx *c, const char *server_name, const struct tls_session_ops *ops,
	void *user, struct tls_session **out, struct cgn_err *err)
{
	CGN_ON_EXIT(tls_session_free) struct tls_session *s = CGN_NEW(struct tls_session);
	s->tag = TLS_SESSION_TAG;
	s->ops = *ops;
	s->user = user;
	CGN_TRY(session_fill(s, c, server_name, err));
	*out = CGN_TAKE(&s);
	return CGN_OK;
}

void tls_session_free(struct tls_session **take)
{
	struct tls_session *s = CGN_TAKE_LIVE(take, TLS_SESSION_TAG);
	if (s == NULL)
		return;
	if (s->feeding)
		s->doomed = true;
	else
		session_destroy(s);
}

/* ---- handshake ---- */

static void note_alpn(struct tls_session *s)
{
	gnutls_datum_t chosen;
	if (gnutls_alpn_get_selected_protocol(s->gnutls, &chosen) == 0)
		(void)cgn_str_copyz(s->alpn, sizeof s->alpn,
			(struct cgn_str){(const char *)chosen.data, chosen.size});
}

/* Turn a fatal result into a sentence, and send the peer an alert where the protocol has one. */
static CGN_RC failure_explain(struct tls_session *s, int rc, struct cgn_err *err)
{
	if (rc != GNUTLS_E_FATAL_ALERT_RECEIVED)
		(void)gnutls_alert_send_appropriate(s->gnutls, rc);
	if (rc == GNUTLS_E_CERTIFICATE_ERROR && s->is_pinned)
		return tls_pin_refusal(s->gnutls, s->server_name, err);
	if (rc == GNUTLS_E_CERTIFICATE_ERROR && s->ca_is_pinned)
		return tls_ca_pin_refusal(&s->ca_pin, s->server_name, err);
	return tls_peer_refusal(s->gnutls, s->server_name, rc, err);
}

/* Do the URI names of the server's certificate, with a space between them, have what the client expects? */
static bool uris_fit(const struct tls_session *s)
{
	bool judged = s->peer_uri_of == NULL;
	struct cgn_str rest = cgn_str_of(s->peer_uris != NULL ? s->peer_uris : "");
	while (rest.n > 0) {
		struct cgn_str one = cgn_str_split(&rest, ' ');
		bool counts = s->peer_uri_of == NULL || cgn_str_starts(one, s->peer_uri_of);
		size_t begin = counts && s->peer_uri_of != NULL ? strlen(s->peer_uri_of) : 0;
		if (counts && memmem(one.p + begin, one.n - begin, s->peer_uri, strlen(s->peer_uri)) != NULL)
			return true;
		judged = judged || counts;
	}
	return !judged;
}

static CGN_RC uris_check(struct tls_session *s, struct cgn_err *err)
{
	if (s->peer_uri == NULL || uris_fit(s))
		return CGN_OK;
	(void)gnutls_alert_send(s->gnutls, GNUTLS_AL_FATAL, GNUTLS_A_ACCESS_DENIED);
	return CGN_FAIL(err, TLS, "TLS with %s: no URI name of the peer's certificate has %s in it",
		s->server_name != NULL ? s->server_name : "the client", s->peer_uri);
}

static CGN_RC peer_judge(struct tls_session *s, struct cgn_err *err)
{
	const char *who = s->server_name != NULL ? s->server_name : "the client";
	cgn_rc rc = tls_crl_judge(s->crl, &s->crl_seen, s->gnutls, who, err);
	if (!cgn_ok(rc))
		(void)gnutls_alert_send(s->gnutls, GNUTLS_AL_FATAL, GNUTLS_A_CERTIFICATE_REVOKED);
	return rc;
}

static CGN_RC handshake_step(struct tls_session *s, struct cgn_err *err)
{
	int rc;
	do
		rc = gnutls_handshake(s->gnutls);
	while (rc < 0 && rc != GNUTLS_E_AGAIN && gnutls_error_is_fatal(rc) == 0);
	if (rc == GNUTLS_E_AGAIN)
		return CGN_OK;
	if (rc < 0)
		return failure_explain(s, rc, err);
	if (s->crl != NULL)
		CGN_TRY(peer_judge(s, err));
	free(s->peer_uris);
	s->peer_uris = tls_peer_uris_of(s->gnutls);
	CGN_TRY(uris_check(s, err));
	s->ready = true;
	note_alpn(s);
	tls_peer_note_name(s->gnutls, s->peer_name, sizeof s->peer_name);
	return CGN_OK;
}

CGN_RC tls_start(struct tls_session *s, struct cgn_err *err)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	return handshake_step(s, err);
}

/* ---- data ---- */

static void packet_deliver(struct tls_session *s, gnutls_packet_t packet)
{
	gnutls_datum_t d;
	gnutls_packet_get(packet, &d, NULL);
	if (d.size > 0)
		s->ops.plain(s->user, d.data, d.size);
	gnutls_packet_deinit(packet);
}

/* Read records until the input is used up. */
static CGN_RC read_records(struct tls_session *s, bool *peer_closed, struct cgn_err *err)
{
	while (!s->doomed) {
		gnutls_packet_t packet = NULL;
		size_t before = s->in_n;
		ssize_t n = gnutls_record_recv_packet(s->gnutls, &packet);
		if (n > 0)
			packet_deliver(s, packet);
		else if (packet != NULL)
			gnutls_packet_deinit(packet);
		if (n == 0) {
			*peer_closed = true;
			return CGN_OK;
		}
		/* GnuTLS also returns this after a session ticket or key update, with input left. */
		if (n == GNUTLS_E_AGAIN && (s->in_n == 0 || s->in_n == before))
			return CGN_OK;
		/* GNUTLS_E_REHANDSHAKE is not fatal for GnuTLS; here renegotiation is refused. */
		if (n < 0 && (n == GNUTLS_E_REHANDSHAKE || gnutls_error_is_fatal((int)n) != 0))
			return failure_explain(s, (int)n, err);
	}
	return CGN_OK;
}

CGN_RC tls_feed(struct tls_session *s, const void *p, size_t n, bool *peer_closed, struct cgn_err *err)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	CGN_MUST(!s->feeding);
	s->feeding = true;
	s->in = p;
	s->in_n = n;
	*peer_closed = false;
	cgn_rc rc = s->ready ? tls_recheck(s, err) : handshake_step(s, err);
	if (cgn_ok(rc) && s->ready && !s->doomed)
		rc = read_records(s, peer_closed, err);
	s->in = NULL;
	s->in_n = 0;
	s->feeding = false;
	if (s->doomed) {
		session_destroy(s);
		return CGN_OK;
	}
	return rc;
}

CGN_RC tls_write(struct tls_session *s, const void *p, size_t n, struct cgn_err *err)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	CGN_MUST(s->ready);
	for (const uint8_t *at = p; n > 0;) {
		ssize_t took = gnutls_record_send(s->gnutls, at, n);
		if (took < 0 && gnutls_error_is_fatal((int)took) != 0)
			return failure_explain(s, (int)took, err);
		if (took > 0) {
			at += took;
			n -= (size_t)took;
		}
	}
	return CGN_OK;
}

void tls_shutdown(struct tls_session *s)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	if (s->ready)
		(void)gnutls_bye(s->gnutls, GNUTLS_SHUT_WR);
}

bool tls_ready(const struct tls_session *s)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	return s->ready;
}

bool tls_is_revocable(const struct tls_session *s)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	return s->ready && s->crl != NULL;
}

CGN_RC tls_recheck(struct tls_session *s, struct cgn_err *err)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	return !tls_is_revocable(s) || tls_crl_generation(s->crl) == s->crl_seen ? CGN_OK
										 : peer_judge(s, err);
}

struct cgn_str tls_alpn(const struct tls_session *s)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	return cgn_str_of(s->alpn);
}

struct cgn_str tls_peer_name(const struct tls_session *s)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	return cgn_str_of(s->peer_name);
}

struct cgn_str tls_peer_uris(const struct tls_session *s)
{
	CGN_LIVE(s, TLS_SESSION_TAG);
	return cgn_str_of(s->peer_uris);
}
