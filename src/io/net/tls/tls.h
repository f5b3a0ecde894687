/* SPDX-License-Identifier: Apache-2.0 */
/* tls: GnuTLS contexts for servers and clients: TLS 1.2 and 1.3, mutual TLS, certificates that are replaced
 * while running. Many loops may use one context. A session keeps the identity it started with, so a reload
 * does not disturb it. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "base/core/str.h"

struct tls_ctx;

struct tls_cfg {
	bool server;
	/* Server: authorities of clients. Client: trusted authorities (NULL: the system's). */
	const char *ca_file;
	/* Client: the SHA-256 of the server's certificate (DER), 64 hexadecimal digits, colons allowed. A server with this
	 * certificate is trusted, whatever its name, dates and issuer; no other one is. NULL: authorities judge. */
	const char *pin;
	/* Client, instead of ca_file: the SHA-256 of an authority's certificate, as |pin|. The server must send that
	 * certificate in its chain (sends_ca), and have one that the authority signed for its name. NULL: not used. */
	const char *ca_pin;
	/* Client: one of the server's URI names must have this text in it; borrowed as long as the context. NULL: any. */
	const char *peer_uri;
	/* Judge |peer_uri| only where one of the server's URI names begins with this, borrowed as |peer_uri|, and look for it
	 * behind that: certificates of another authority say nothing of roles. NULL: always. */
	const char *peer_uri_of;
	bool sends_ca;         /* Server: the certificates of ca_file follow ours in the chain. */
	const char *cert_file; /* A PEM chain. Client: its identity, optional. */
	const char *key_file;
	/* Lists of revoked certificates (io/net/tls/crl.h): peers in them are refused, and their open sessions end when the
	 * list is read again. Needs ca_file; NULL: none. */
	const char *crl_file;
	bool require_peer_cert; /* Server: require a client certificate (mutual TLS). */
	bool ask_peer_cert; /* Server: ask for one, which must be valid, and serve clients without one too. */
	const char *const *alpn; /* In order of preference, NULL-terminated; may be NULL. */
};

#define TLS_PIN_BYTES 32
/* Read a fingerprint as tls_cfg.pin has it; false for anything else. */
bool tls_pin_read(struct cgn_str text, uint8_t out[TLS_PIN_BYTES]);
/* Returns CGN_TLS, with file name and reason, when a file is missing or unreadable, the key does not fit, or
 * the certificate is expired. */
CGN_RC tls_ctx_new(const struct tls_cfg *cfg, struct tls_ctx **out, struct cgn_err *err);
/* Read the same files again. On failure the old identity stays and |err| says why. Any thread. */
CGN_RC tls_ctx_reload(struct tls_ctx *c, struct cgn_err *err);
void tls_ctx_ref(struct tls_ctx *c); /* Any thread. */
void tls_ctx_free(struct tls_ctx **take);
/* Get the period in which our leaf certificate is valid, in Unix seconds. Returns false when there is no
 * certificate. Any thread. */
struct tls_validity {
	uint64_t from, to;
};
bool tls_ctx_validity(struct tls_ctx *c, struct tls_validity *out);

/* Sessions transform bytes and do no I/O. Only io/net/net (TCP) uses them. */
struct tls_session;
struct tls_session_ops {
	/* Send ciphertext to the wire; must take all of it. */
	void (*emit)(void *user, const void *p, size_t n);
	/* Plaintext for the application; borrowed. The callback may free the session (then tls_feed returns
	 * at once). */
	void (*plain)(void *user, const uint8_t *p, size_t n);
};
CGN_RC tls_session_new(struct tls_ctx *c, const char *server_name, const struct tls_session_ops *ops,
	void *user, struct tls_session **out, struct cgn_err *err);
void tls_session_free(struct tls_session **take);
CGN_RC tls_start(struct tls_session *s, struct cgn_err *err); /* Emit the client hello. */
CGN_RC tls_feed(struct tls_session *s, const void *p, size_t n, bool *peer_closed, struct cgn_err *err);
CGN_RC tls_write(struct tls_session *s, const void *p, size_t n, struct cgn_err *err);
void tls_shutdown(struct tls_session *s); /* Emit close_notify. */
bool tls_ready(const struct tls_session *s);
struct cgn_str tls_alpn(const struct tls_session *s);
/* Return the common name (or first DNS SAN) of the verified peer certificate; empty when there is none. */
struct cgn_str tls_peer_name(const struct tls_session *s);
/* Return the URI names of that certificate, with a space between them; empty when there are none. */
struct cgn_str tls_peer_uris(const struct tls_session *s);
/* Can the peer be revoked while the session is open? True when it is ready, verified, and there is a list. */
bool tls_is_revocable(const struct tls_session *s);
/* CGN_TLS: the peer was revoked since the handshake; an alert is emitted. tls_feed asks too; call it for sessions
 * that may be silent. Cheap while the list is the same. */
CGN_RC tls_recheck(struct tls_session *s, struct cgn_err *err);

/* Guests: GnuTLS sessions for QUIC, which carries handshake messages itself. TLS 1.3 only, certificates on
 * both sides, no tickets. The context may be a server's or a client's; CGN_TLS when it lacks a certificate or
 * a CA file. |alpn|: the one protocol that both sides must speak. |server_name|: the name to verify; NULL:
 * this side is the server, and the peer needs a client certificate. */
struct tls_guest;
struct gnutls_session_int;
CGN_RC tls_guest_new(struct tls_ctx *c, const char *alpn, const char *server_name, struct tls_guest **out,
	struct cgn_err *err);
void tls_guest_free(struct tls_guest **take);
struct gnutls_session_int *tls_guest_gnutls(struct tls_guest *g);
/* Call when GnuTLS has completed the handshake: checks the agreed protocol and stores the peer's name. */
CGN_RC tls_guest_shaken(struct tls_guest *g, struct cgn_err *err);
/* Describe a fatal GnuTLS error in |err|; returns CGN_TLS. */
cgn_rc tls_guest_refusal(struct tls_guest *g, int gnutls_error, struct cgn_err *err);
struct cgn_str tls_guest_peer_name(const struct tls_guest *g);
/* As tls_recheck, without an alert; call after tls_guest_shaken and for each packet. */
CGN_RC tls_guest_recheck(struct tls_guest *g, struct cgn_err *err);
struct cgn_str tls_guest_peer_uris(const struct tls_guest *g); /* As tls_peer_uris. */

/* Derive 32 secret bytes from the private key and |label|; the result survives a restart. Returns false
 * without a key. */
bool tls_ctx_secret(struct tls_ctx *c, const char *label, uint8_t out[32]);
