/* SPDX-License-Identifier: Apache-2.0 */
/* tls: GnuTLS contexts for servers and clients, TLS 1.2 and 1.3, mutual TLS, replaced while running. A
 * context may be used by many loops; sessions hold the identity they started with, so a reload harms
 * nobody. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "base/core/str.h"

struct tls_ctx;

struct tls_cfg {
	bool server;
	const char *ca_file;   /* server: who may be a client; client: who to trust (NULL: the system's) */
	const char *cert_file; /* PEM chain; client: optional identity */
	const char *key_file;
	bool require_peer_cert;  /* server: mutual TLS */
	const char *const *alpn; /* in order of preference, NULL-terminated; may be NULL */
};

/* CGN_TLS with file name and reason on failure (missing, unreadable, key does not fit, expired). */
CGN_RC tls_ctx_new(const struct tls_cfg *cfg, struct tls_ctx **out, struct cgn_err *err);
/* Read the same files again; on failure the old identity stays and |err| says why. Any thread. */
CGN_RC tls_ctx_reload(struct tls_ctx *c, struct cgn_err *err);
void tls_ctx_ref(struct tls_ctx *c); /* any thread */
void tls_ctx_free(struct tls_ctx **take);
/* When the own leaf certificate holds, Unix seconds; false when there is none. Any thread. */
struct tls_validity {
	uint64_t from, to;
};
bool tls_ctx_validity(struct tls_ctx *c, struct tls_validity *out);

/* Sessions: bytes in, bytes out, no I/O. Used by io/net (TCP) only. */
struct tls_session;
struct tls_session_ops {
	/* Ciphertext to the wire; must take all of it. */
	void (*emit)(void *user, const void *p, size_t n);
	/* Plaintext for the application. Borrowed. The callback may free the session (then tls_feed returns
	 * at once). */
	void (*plain)(void *user, const uint8_t *p, size_t n);
};
CGN_RC tls_session_new(struct tls_ctx *c, const char *server_name, const struct tls_session_ops *ops,
	void *user, struct tls_session **out, struct cgn_err *err);
void tls_session_free(struct tls_session **take);
CGN_RC tls_start(struct tls_session *s, struct cgn_err *err); /* client hello */
CGN_RC tls_feed(struct tls_session *s, const void *p, size_t n, bool *peer_closed, struct cgn_err *err);
CGN_RC tls_write(struct tls_session *s, const void *p, size_t n, struct cgn_err *err);
void tls_shutdown(struct tls_session *s); /* emits close_notify */
bool tls_ready(const struct tls_session *s);
struct cgn_str tls_alpn(const struct tls_session *s);
/* Common name (or first DNS SAN) of the verified peer certificate; empty when none. */
struct cgn_str tls_peer_name(const struct tls_session *s);

/* Guests: sessions of GnuTLS for QUIC, which carries handshake messages itself. TLS 1.3 alone, certificates
 * on both sides, no tickets. Whether the context is a server's does not matter; CGN_TLS when it lacks a
 * certificate or a CA file. |alpn| is the one protocol that both must speak. |server_name|: the name to
 * verify; NULL: we are the server, and the peer needs a client's certificate. */
struct tls_guest;
struct gnutls_session_int;
CGN_RC tls_guest_new(struct tls_ctx *c, const char *alpn, const char *server_name, struct tls_guest **out,
	struct cgn_err *err);
void tls_guest_free(struct tls_guest **take);
struct gnutls_session_int *tls_guest_gnutls(struct tls_guest *g);
/* GnuTLS is content: is the protocol agreed on? Notes the name */
CGN_RC tls_guest_shaken(struct tls_guest *g, struct cgn_err *err);
/* a sentence for a fatal error; CGN_TLS */
cgn_rc tls_guest_refusal(struct tls_guest *g, int gnutls_error, struct cgn_err *err);
struct cgn_str tls_guest_peer_name(const struct tls_guest *g);

/* 32 secret bytes that follow from the private key and |label|: the same after a restart. False without a
 * key. */
bool tls_ctx_secret(struct tls_ctx *c, const char *label, uint8_t out[32]);
