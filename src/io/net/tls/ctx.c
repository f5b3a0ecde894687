/* SPDX-License-Identifier: Apache-2.0 */
/* ctx: read credentials from files, and replace them while running. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gnutls/crypto.h>
#include <gnutls/x509.h>

#include "io/os/disk/disk.h"
#include "tls_priv.h"

#define TLS_CTX_TAG 0x715c7c7cU
#define PEM_LIMIT   ((size_t)4 << 20)
#define ALPN_MOST   8

/* The groups of Mozilla's profile "intermediate". The side that connects chooses: with ffdhe8192, secp521r1 or X448 it
 * could make a handshake cost the other side many times as much. */
#define GROUPS "-GROUP-ALL:+GROUP-X25519:+GROUP-SECP256R1:+GROUP-SECP384R1:"

/* Only suites with forward secrecy and authenticated encryption, as HTTP/2 demands of TLS 1.2 (RFC 9113,
 * 9.2.2). */
static const char priorities[] =
	"NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:-DHE-RSA:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:"
	"+CHACHA20-POLY1305:" GROUPS "%SERVER_PRECEDENCE";

/* RFC 9001 forbids TLS 1.2 and the record layer's compatibility mode. */
static const char quic_priorities[] =
	"NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305:" GROUPS
	"%DISABLE_TLS13_COMPAT_MODE";

struct tls_ctx {
	uint32_t tag;
	atomic_uint refs;
	bool server, require_peer_cert, ask_peer_cert, has_pin, has_ca_pin, sends_ca;
	uint8_t pin[TLS_PIN_BYTES], ca_pin[TLS_PIN_BYTES];
	const char *peer_uri, *peer_uri_of;
	char *ca_file, *cert_file, *key_file;
	char *alpn_text[ALPN_MOST];
	gnutls_datum_t alpn[ALPN_MOST];
	unsigned n_alpn;
	gnutls_priority_t priority, quic_priority;
	/* Taken for a few instructions once per session and once per reload; a bare atomic pointer could not
	 * be referenced safely. */
	pthread_mutex_t lock;
	struct tls_identity *identity;
	struct tls_crl *crl; /* NULL: none. */
};

/* ---- identity ---- */

void tls_identity_unref(struct tls_identity **take)
{
	struct tls_identity *id = CGN_TAKE(take);
	if (id == NULL || atomic_fetch_sub(&id->refs, 1) > 1)
		return;
	if (id->cred != NULL)
		gnutls_certificate_free_credentials(id->cred);
	if (id->ticket_key.data != NULL)
		gnutls_memset(id->ticket_key.data, 0, id->ticket_key.size);
	gnutls_free(id->ticket_key.data);
	gnutls_memset(id->seed, 0, sizeof id->seed);
	free(id);
}

/* Key material must not stay behind in the heap. */
static void buf_wipe(struct cgn_buf *b)
{
	if (b->p != NULL)
		gnutls_memset(b->p, 0, b->cap);
	cgn_buf_fini(b);
}

static CGN_RC read_pem(const char *file, struct cgn_buf *b, gnutls_datum_t *out, struct cgn_err *err)
{
	cgn_rc rc = disk_read_file(file, PEM_LIMIT, b, err);
	if (!cgn_ok(rc)) {
		if (err != NULL)
			err->code = CGN_TLS; /* The message is set already. */
		return CGN_RC_OF(CGN_TLS);
	}
	*out = (gnutls_datum_t){(unsigned char *)b->p, (unsigned)b->n};
	return CGN_OK;
}

static CGN_RC load_ca(const struct tls_ctx *c, struct tls_identity *id, struct cgn_err *err)
{
	CGN_ON_EXIT(buf_wipe) struct cgn_buf b = {0};
	gnutls_datum_t pem;
	if (c->has_pin || c->has_ca_pin || (c->ca_file == NULL && c->server))
		return CGN_OK;
	if (c->ca_file == NULL) {
		int n = gnutls_certificate_set_x509_system_trust(id->cred);
		return n > 0
			? CGN_OK
			: CGN_FAIL(err, TLS,
				  "no certificate authorities on this system: install ca-certificates or name a CA file");
	}
	CGN_TRY(read_pem(c->ca_file, &b, &pem, err));
	int n = gnutls_certificate_set_x509_trust_mem(id->cred, &pem, GNUTLS_X509_FMT_PEM);
	if (n <= 0)
		return CGN_FAIL(err, TLS, "%s: no PEM certificate in it: %s", c->ca_file, gnutls_strerror(n));
	return CGN_OK;
}

static CGN_RC load_key(const struct tls_ctx *c, struct tls_identity *id, struct cgn_err *err)
{
	CGN_ON_EXIT(buf_wipe) struct cgn_buf cert_text = {0};
	CGN_ON_EXIT(buf_wipe) struct cgn_buf key_text = {0};
	gnutls_datum_t cert, key;
	if (c->cert_file == NULL)
		return CGN_OK;
	CGN_TRY(read_pem(c->cert_file, &cert_text, &cert, err));
	if (c->sends_ca) /* The file follows our own certificate. */
		CGN_TRY(read_pem(c->ca_file, &cert_text, &cert, err));
	CGN_TRY(read_pem(c->key_file, &key_text, &key, err));
	CGN_TRY(tls_leaf_check(c->cert_file, &cert, (int64_t)time(NULL), &id->valid, err));
	int rc = gnutls_certificate_set_x509_key_mem2(id->cred, &cert, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
	if (rc == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
		return CGN_FAIL(err, TLS, "%s: the key does not belong to the certificate in %s", c->key_file,
			c->cert_file);
	if (rc == GNUTLS_E_DECRYPTION_FAILED)
		return CGN_FAIL(err, TLS, "%s: the key is encrypted; give one without a passphrase",
			c->key_file);
	if (rc < 0)
		return CGN_FAIL(err, TLS, "%s: no usable PEM key: %s", c->key_file, gnutls_strerror(rc));
	if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key.data, key.size, id->seed) < 0)
		return CGN_FAIL(err, TLS, "this GnuTLS lacks SHA-256");
	return CGN_OK;
}

static CGN_RC identity_load(const struct tls_ctx *c, struct tls_identity **out, struct cgn_err *err)
{
	CGN_ON_EXIT(tls_identity_unref) struct tls_identity *id = CGN_NEW(struct tls_identity);
	atomic_init(&id->refs, 1);
	if (gnutls_certificate_allocate_credentials(&id->cred) < 0)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a TLS identity");
	CGN_TRY(load_ca(c, id, err));
	CGN_TRY(load_key(c, id, err));
	/* With client certificates every session authenticates again, so there are no tickets. */
	if (c->server && !c->require_peer_cert && !c->ask_peer_cert &&
		gnutls_session_ticket_key_generate(&id->ticket_key) < 0)
		return CGN_FAIL(err, TLS, "cannot make a session ticket key");
	*out = CGN_TAKE(&id);
	return CGN_OK;
}

struct tls_identity *tls_identity_of(struct tls_ctx *c)
{
	CGN_LIVE(c, TLS_CTX_TAG);
	pthread_mutex_lock(&c->lock);
	struct tls_identity *id = c->identity;
	atomic_fetch_add(&id->refs, 1);
	pthread_mutex_unlock(&c->lock);
	return id;
}

/* ---- context ---- */

static CGN_RC check_cfg(const struct tls_cfg *cfg, struct cgn_err *err)
{
	if ((cfg->cert_file == NULL) != (cfg->key_file == NULL))
		return CGN_FAIL(err, TLS,
			"a certificate needs its key and a key its certificate: only %s is given",
			cfg->cert_file != NULL ? cfg->cert_file : cfg->key_file);
	uint8_t pin[TLS_PIN_BYTES];
	if (cfg->pin != NULL && !tls_pin_read(cgn_str_of(cfg->pin), pin))
		return CGN_FAIL(err, TLS,
			"\"%s\" is not a SHA-256 fingerprint of a certificate: 64 hexadecimal digits",
			cfg->pin);
	if (cfg->ca_pin != NULL && !tls_pin_read(cgn_str_of(cfg->ca_pin), pin))
		return CGN_FAIL(err, TLS,
			"\"%s\" is not a SHA-256 fingerprint of an authority: 64 hexadecimal digits",
			cfg->ca_pin);
	if (cfg->sends_ca && (!cfg->server || cfg->ca_file == NULL))
		return CGN_FAIL(err, TLS, "only a server that has a CA file can send it");
	if (cfg->server && cfg->cert_file == NULL)
		return CGN_FAIL(err, TLS, "a TLS server needs a certificate and its key");
	if (cfg->crl_file != NULL && cfg->ca_file == NULL)
		return CGN_FAIL(err, TLS, "%s: a revocation list needs a CA file", cfg->crl_file);
	if (cfg->server && (cfg->require_peer_cert || cfg->ask_peer_cert) && cfg->ca_file == NULL)
		return CGN_FAIL(err, TLS,
			"mutual TLS needs a CA file: without it no client could be accepted");
	return CGN_OK;
}

static void copy_alpn(struct tls_ctx *c, const char *const *alpn)
{
	for (; alpn != NULL && *alpn != NULL; alpn++) {
		CGN_MUST(c->n_alpn < ALPN_MOST);
		char *copy = cgn_str_dupz(cgn_str_of(*alpn));
		c->alpn_text[c->n_alpn] = copy;
		c->alpn[c->n_alpn++] = (gnutls_datum_t){(unsigned char *)copy, (unsigned)strlen(copy)};
	}
}

static CGN_RC identity_fill(struct tls_ctx *c, const struct tls_cfg *cfg, struct cgn_err *err)
{
	c->server = cfg->server;
	c->require_peer_cert = cfg->require_peer_cert;
	c->ask_peer_cert = cfg->ask_peer_cert;
	c->sends_ca = cfg->sends_ca;
	c->peer_uri = cfg->peer_uri;
	c->peer_uri_of = cfg->peer_uri_of;
	c->has_ca_pin = cfg->ca_pin != NULL && tls_pin_read(cgn_str_of(cfg->ca_pin), c->ca_pin);
	c->has_pin = cfg->pin != NULL && tls_pin_read(cgn_str_of(cfg->pin), c->pin);
	c->ca_file = cgn_str_dup_maybe(cfg->ca_file);
	c->cert_file = cgn_str_dup_maybe(cfg->cert_file);
	c->key_file = cgn_str_dup_maybe(cfg->key_file);
	copy_alpn(c, cfg->alpn);
	int rc = gnutls_priority_init(&c->priority, priorities, NULL);
	if (rc == 0)
		rc = gnutls_priority_init(&c->quic_priority, quic_priorities, NULL);
	if (rc < 0)
		return CGN_FAIL(err, TLS, "this GnuTLS lacks the ciphers we need: %s", gnutls_strerror(rc));
	CGN_TRY(identity_load(c, &c->identity, err));
	return cfg->crl_file != NULL ? tls_crl_get(cfg->crl_file, cfg->ca_file, &c->crl, err) : CGN_OK;
}

CGN_RC tls_ctx_new(const struct tls_cfg *cfg, struct tls_ctx **out, struct cgn_err *err)
{
	CGN_TRY(check_cfg(cfg, err));
	CGN_ON_EXIT(tls_ctx_free) struct tls_ctx *c = CGN_NEW(struct tls_ctx);
	c->tag = TLS_CTX_TAG;
	atomic_init(&c->refs, 1);
	CGN_MUST(pthread_mutex_init(&c->lock, NULL) == 0);
	CGN_TRY(identity_fill(c, cfg, err));
	*out = CGN_TAKE(&c);
	return CGN_OK;
}

CGN_RC tls_ctx_reload(struct tls_ctx *c, struct cgn_err *err)
{
	CGN_LIVE(c, TLS_CTX_TAG);
	CGN_ON_EXIT(tls_identity_unref) struct tls_identity *fresh = NULL;
	CGN_TRY(identity_load(c, &fresh, err));
	pthread_mutex_lock(&c->lock);
	struct tls_identity *old = c->identity;
	c->identity = fresh;
	pthread_mutex_unlock(&c->lock);
	fresh = old; /* The sessions of the old identity keep it alive. */
	return CGN_OK;
}

void tls_ctx_ref(struct tls_ctx *c)
{
	CGN_LIVE(c, TLS_CTX_TAG);
	atomic_fetch_add(&c->refs, 1);
}

void tls_ctx_free(struct tls_ctx **take)
{
	struct tls_ctx *c = CGN_TAKE_LIVE(take, TLS_CTX_TAG);
	if (c == NULL)
		return;
	if (atomic_fetch_sub(&c->refs, 1) > 1)
		return;
	tls_identity_unref(&c->identity);
	tls_crl_free(&c->crl);
	if (c->priority != NULL)
		gnutls_priority_deinit(c->priority);
	if (c->quic_priority != NULL)
		gnutls_priority_deinit(c->quic_priority);
	for (unsigned i = 0; i < c->n_alpn; i++)
		free(c->alpn_text[i]);
	free(c->ca_file);
	free(c->cert_file);
	free(c->key_file);
	pthread_mutex_destroy(&c->lock);
	c->tag = 0;
	free(c);
}

bool tls_ctx_validity(struct tls_ctx *c, struct tls_validity *out)
{
	CGN_ON_EXIT(tls_identity_unref) struct tls_identity *id = tls_identity_of(c);
	*out = id->valid;
	return id->valid.to != 0;
}

bool tls_ctx_server(const struct tls_ctx *c)
{
	return c->server;
}

const uint8_t *tls_ctx_pin(const struct tls_ctx *c)
{
	return c->has_pin ? c->pin : NULL;
}

const uint8_t *tls_ctx_ca_pin(const struct tls_ctx *c)
{
	return c->has_ca_pin ? c->ca_pin : NULL;
}

const char *tls_ctx_peer_uri(const struct tls_ctx *c)
{
	return c->peer_uri;
}

const char *tls_ctx_peer_uri_of(const struct tls_ctx *c)
{
	return c->peer_uri_of;
}

bool tls_ctx_mutual(const struct tls_ctx *c)
{
	return c->server && c->require_peer_cert;
}

bool tls_ctx_asks(const struct tls_ctx *c)
{
	return c->server && c->ask_peer_cert;
}

gnutls_priority_t tls_ctx_priority(const struct tls_ctx *c)
{
	return c->priority;
}

gnutls_priority_t tls_ctx_quic_priority(const struct tls_ctx *c)
{
	return c->quic_priority;
}

bool tls_ctx_proves_both(const struct tls_ctx *c)
{
	return c->ca_file != NULL && c->cert_file != NULL;
}

struct tls_crl *tls_ctx_crl(const struct tls_ctx *c)
{
	return c->crl;
}

const gnutls_datum_t *tls_ctx_alpn(const struct tls_ctx *c, unsigned *n)
{
	*n = c->n_alpn;
	return c->alpn;
}
