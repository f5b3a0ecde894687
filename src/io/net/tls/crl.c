/* SPDX-License-Identifier: Apache-2.0 */
/* crl: reads lists of revoked certificates, and finds the certificates of peers in them. */
#include "io/net/tls/crl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gnutls/crypto.h>
#include <gnutls/x509.h>
#include <sys/stat.h>

#include "base/log/log.h"
#include "io/net/pki/crl.h"
#include "io/os/disk/disk.h"
#include "tls_priv.h"

#define TLS_CRL_TAG 0x71c71157U
#define PEM_LIMIT   ((size_t)4 << 20)
#define SERIAL_MOST 64
#define SKEW        300 /* Allowance in seconds for clocks of other machines that are ahead. */

/* SHA-256 of issuer and serial number. */
struct crl_key {
	uint8_t digest[32];
};

/* The content of a file, immutable. */
struct crl_set {
	struct crl_key *key; /* Sorted. */
	size_t n, room;
	uint64_t made, ends;
};

struct crl_stamp {
	struct timespec changed;
	off_t size;
	ino_t inode;
};

struct tls_crl {
	uint32_t tag;
	unsigned refs;        /* Guarded by the table's lock. */
	struct tls_crl *next; /* Guarded by the table's lock. */
	char *file, *ca_file;
	atomic_uint generation;
	atomic_uint_fast64_t refused;
	pthread_mutex_t
		lock; /* Guards the fields below. Taken once per handshake, and per session after a reload. */
	struct crl_set set;
	struct crl_stamp stamp;
};

/* Objects by their files, so that contexts made in different places share one. */
static struct {
	pthread_mutex_t lock;
	struct tls_crl *first;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct crl_stamp stamp_of(const char *file)
{
	struct stat st;
	if (stat(file, &st) != 0)
		return (struct crl_stamp){.size = -1};
	return (struct crl_stamp){st.st_mtim, st.st_size, st.st_ino};
}

/* ---- reading ---- */

static void set_fini(struct crl_set *s)
{
	free(s->key);
	*s = (struct crl_set){0};
}

static bool key_make(const gnutls_datum_t *issuer, const void *serial, size_t n, struct crl_key *out)
{
	gnutls_hash_hd_t h;
	if (gnutls_hash_init(&h, GNUTLS_DIG_SHA256) < 0)
		return false;
	bool done = gnutls_hash(h, issuer->data, issuer->size) == 0 && gnutls_hash(h, serial, n) == 0;
	gnutls_hash_deinit(h, out->digest);
	return done;
}

static int key_compare(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct crl_key));
}

static CGN_RC set_add(struct crl_set *s, const gnutls_datum_t *issuer, const void *serial, size_t n,
	struct cgn_err *err)
{
	if (s->n == s->room) {
		size_t room = s->room > 0 ? 2 * s->room : 64;
		struct crl_key *more = reallocarray(s->key, room, sizeof *more);
		if (more == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for a revocation list");
		s->key = more;
		s->room = room;
	}
	if (!key_make(issuer, serial, n, &s->key[s->n]))
		return CGN_FAIL(err, TLS, "this GnuTLS lacks SHA-256");
	s->n++;
	return CGN_OK;
}

static CGN_RC set_add_entries(struct crl_set *s, const char *file, gnutls_x509_crl_t crl, struct cgn_err *err)
{
	gnutls_datum_t issuer = {0};
	gnutls_x509_crl_iter_t iter = NULL;
	if (gnutls_x509_crl_get_raw_issuer_dn(crl, &issuer) < 0)
		return CGN_FAIL(err, TLS, "%s: a revocation list without an issuer", file);
	cgn_rc rc = CGN_OK;
	for (int got = 0; got == 0 && cgn_ok(rc);) {
		uint8_t serial[SERIAL_MOST];
		size_t n = sizeof serial;
		got = gnutls_x509_crl_iter_crt_serial(crl, &iter, serial, &n, NULL);
		if (got == 0)
			rc = set_add(s, &issuer, serial, n, err);
		else if (got != GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
			rc = CGN_FAIL(err, TLS, "%s: an entry that cannot be read: %s", file,
				gnutls_strerror(got));
	}
	gnutls_x509_crl_iter_deinit(iter);
	gnutls_free(issuer.data);
	return rc;
}

/* Refuse lists that hold only a part, or change another list: their critical extensions say so. */
static CGN_RC crl_check_whole(const char *file, gnutls_x509_crl_t crl, struct cgn_err *err)
{
	char oid[128];
	unsigned critical = 0;
	for (unsigned i = 0;; i++) {
		size_t n = sizeof oid;
		if (gnutls_x509_crl_get_extension_info(crl, i, oid, &n, &critical) < 0)
			return CGN_OK;
		if (critical != 0)
			return CGN_FAIL(err, TLS,
				"%s: a revocation list with the critical extension %.100s, which this program does not know (a partial list?): use a whole one",
				file, oid);
	}
}

static CGN_RC crl_check_dates(struct crl_set *s, const char *file, gnutls_x509_crl_t crl, struct cgn_err *err)
{
	time_t made = gnutls_x509_crl_get_this_update(crl), ends = gnutls_x509_crl_get_next_update(crl);
	if (made == (time_t)-1)
		return CGN_FAIL(err, TLS, "%s: a revocation list without a date", file);
	if (made > time(NULL) + SKEW)
		return CGN_FAIL(err, TLS, "%s: the revocation list is of the future; is the clock right?",
			file);
	if (ends != (time_t)-1 && (s->ends == 0 || (uint64_t)ends < s->ends)) {
		s->ends = (uint64_t)ends;
		s->made = (uint64_t)made;
	}
	return CGN_OK;
}

struct crl_files {
	gnutls_x509_crt_t *ca;
	gnutls_x509_crl_t *crl;
	unsigned n_ca, n_crl;
};

static void files_fini(struct crl_files *f)
{
	for (unsigned i = 0; i < f->n_ca; i++)
		gnutls_x509_crt_deinit(f->ca[i]);
	for (unsigned i = 0; i < f->n_crl; i++)
		gnutls_x509_crl_deinit(f->crl[i]);
	gnutls_free(f->ca);
	gnutls_free(f->crl);
}

static CGN_RC files_read(const char *file, const char *ca_file, struct crl_files *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf list = {0}, authority = {0};
	struct cgn_err why;
	if (!cgn_ok(disk_read_file(file, PEM_LIMIT, &list, &why)))
		return CGN_FAIL(err, TLS, "%.350s; cgn-ctl pki crl makes a revocation list", why.msg);
	if (!cgn_ok(disk_read_file(ca_file, PEM_LIMIT, &authority, &why)))
		return CGN_FAIL(err, TLS, "%.400s", why.msg);
	gnutls_datum_t text = {(unsigned char *)list.p, (unsigned)list.n};
	int rc = gnutls_x509_crl_list_import2(&out->crl, &out->n_crl, &text, GNUTLS_X509_FMT_PEM, 0);
	if (rc < 0 || out->n_crl == 0)
		return CGN_FAIL(err, TLS,
			"%s: no PEM revocation list (X509 CRL) in it: %s; cgn-ctl pki crl makes one", file,
			gnutls_strerror(rc));
	text = (gnutls_datum_t){(unsigned char *)authority.p, (unsigned)authority.n};
	rc = gnutls_x509_crt_list_import2(&out->ca, &out->n_ca, &text, GNUTLS_X509_FMT_PEM, 0);
	return rc < 0 ? CGN_FAIL(err, TLS, "%s: no PEM certificate in it: %s", ca_file, gnutls_strerror(rc))
		      : CGN_OK;
}

static CGN_RC set_add_list(struct crl_set *s, const char *file, const char *ca_file,
	const struct crl_files *f, gnutls_x509_crl_t crl, struct cgn_err *err)
{
	unsigned status = 0;
	int rc = gnutls_x509_crl_verify(crl, f->ca, f->n_ca, GNUTLS_VERIFY_DISABLE_TIME_CHECKS, &status);
	if (rc < 0 || !pki_crl_is_signed(status))
		return CGN_FAIL(err, TLS,
			"%s: the revocation list is not signed by an authority of %s; sign it with cgn-ctl pki crl --renew",
			file, ca_file);
	CGN_TRY(crl_check_whole(file, crl, err));
	CGN_TRY(crl_check_dates(s, file, crl, err));
	return set_add_entries(s, file, crl, err);
}

static CGN_RC set_read(const char *file, const char *ca_file, struct crl_set *out, struct cgn_err *err)
{
	CGN_ON_EXIT(files_fini) struct crl_files f = {0};
	CGN_ON_EXIT(set_fini) struct crl_set s = {0};
	CGN_TRY(files_read(file, ca_file, &f, err));
	for (unsigned i = 0; i < f.n_crl; i++)
		CGN_TRY(set_add_list(&s, file, ca_file, &f, f.crl[i], err));
	if (s.n > 0)
		qsort(s.key, s.n, sizeof *s.key, key_compare);
	*out = s;
	s = (struct crl_set){0};
	return CGN_OK;
}

/* ---- life ---- */

static void crl_destroy(struct tls_crl *c)
{
	set_fini(&c->set);
	free(c->file);
	free(c->ca_file);
	pthread_mutex_destroy(&c->lock);
	c->tag = 0;
	free(c);
}

static CGN_RC crl_new(const char *file, const char *ca_file, struct tls_crl **out, struct cgn_err *err)
{
	struct tls_crl *c = CGN_NEW(struct tls_crl);
	c->tag = TLS_CRL_TAG;
	c->refs = 1;
	CGN_MUST(pthread_mutex_init(&c->lock, NULL) == 0);
	c->file = cgn_str_dupz(cgn_str_of(file));
	c->ca_file = cgn_str_dupz(cgn_str_of(ca_file));
	c->stamp = stamp_of(file);
	cgn_rc rc = set_read(file, ca_file, &c->set, err);
	if (cgn_ok(rc))
		*out = c;
	else
		crl_destroy(c);
	return rc;
}

static struct tls_crl *table_find(const char *file, const char *ca_file)
{
	struct tls_crl *c = table.first;
	while (c != NULL && (strcmp(c->file, file) != 0 || strcmp(c->ca_file, ca_file) != 0))
		c = c->next;
	return c;
}

CGN_RC tls_crl_get(const char *file, const char *ca_file, struct tls_crl **out, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	pthread_mutex_lock(&table.lock);
	struct tls_crl *c = table_find(file, ca_file);
	if (c != NULL) {
		c->refs++;
	} else {
		rc = crl_new(file, ca_file, &c, err);
		if (cgn_ok(rc)) {
			c->next = table.first;
			table.first = c;
		}
	}
	pthread_mutex_unlock(&table.lock);
	if (cgn_ok(rc))
		*out = c;
	return rc;
}

void tls_crl_ref(struct tls_crl *c)
{
	CGN_LIVE(c, TLS_CRL_TAG);
	pthread_mutex_lock(&table.lock);
	c->refs++;
	pthread_mutex_unlock(&table.lock);
}

void tls_crl_free(struct tls_crl **take)
{
	struct tls_crl *c = CGN_TAKE_LIVE(take, TLS_CRL_TAG);
	if (c == NULL)
		return;
	pthread_mutex_lock(&table.lock);
	bool last = --c->refs == 0;
	for (struct tls_crl **at = &table.first; last && *at != NULL; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	pthread_mutex_unlock(&table.lock);
	if (last)
		crl_destroy(c);
}

bool tls_crl_changed(struct tls_crl *c)
{
	CGN_LIVE(c, TLS_CRL_TAG);
	struct crl_stamp now = stamp_of(c->file);
	pthread_mutex_lock(&c->lock);
	const struct crl_stamp *was = &c->stamp;
	bool same = now.size == was->size && now.inode == was->inode &&
		now.changed.tv_sec == was->changed.tv_sec && now.changed.tv_nsec == was->changed.tv_nsec;
	pthread_mutex_unlock(&c->lock);
	return !same;
}

CGN_RC tls_crl_reload(struct tls_crl *c, struct cgn_err *err)
{
	CGN_ON_EXIT(set_fini) struct crl_set fresh = {0};
	CGN_LIVE(c, TLS_CRL_TAG);
	struct crl_stamp stamp = stamp_of(c->file);
	pthread_mutex_lock(&c->lock);
	c->stamp = stamp; /* A file that is refused is not read again until it changes. */
	pthread_mutex_unlock(&c->lock);
	CGN_TRY(set_read(c->file, c->ca_file, &fresh, err));
	if (fresh.ends != 0 && fresh.ends < (uint64_t)time(NULL))
		return CGN_FAIL(err, TLS,
			"%s: the revocation list is over (its next update is in the past); sign it again with cgn-ctl pki crl --renew",
			c->file);
	pthread_mutex_lock(&c->lock);
	struct crl_set old = c->set;
	c->set = fresh;
	pthread_mutex_unlock(&c->lock);
	fresh = old;
	atomic_fetch_add(&c->generation, 1);
	return CGN_OK;
}

struct tls_crl_facts tls_crl_facts(struct tls_crl *c)
{
	CGN_LIVE(c, TLS_CRL_TAG);
	pthread_mutex_lock(&c->lock);
	struct tls_crl_facts out = {.made = c->set.made, .ends = c->set.ends, .revoked = c->set.n};
	pthread_mutex_unlock(&c->lock);
	out.refused = atomic_load(&c->refused);
	return out;
}

/* ---- asking ---- */

static bool set_has(const struct crl_set *s, gnutls_x509_crt_t crt)
{
	struct crl_key key;
	gnutls_datum_t issuer = {0};
	uint8_t serial[SERIAL_MOST];
	size_t n = sizeof serial;
	if (s->n == 0)
		return false;
	/* A certificate whose names cannot be read cannot be cleared either. */
	bool found = gnutls_x509_crt_get_serial(crt, serial, &n) < 0 ||
		gnutls_x509_crt_get_raw_issuer_dn(crt, &issuer) < 0 || !key_make(&issuer, serial, n, &key) ||
		bsearch(&key, s->key, s->n, sizeof key, key_compare) != NULL;
	gnutls_free(issuer.data);
	return found;
}

static bool crl_has(struct tls_crl *c, const gnutls_datum_t *der)
{
	gnutls_x509_crt_t crt;
	if (gnutls_x509_crt_init(&crt) != 0)
		return true;
	bool found = gnutls_x509_crt_import(crt, der, GNUTLS_X509_FMT_DER) < 0;
	pthread_mutex_lock(&c->lock);
	found = found || set_has(&c->set, crt);
	pthread_mutex_unlock(&c->lock);
	gnutls_x509_crt_deinit(crt);
	return found;
}

CGN_RC tls_crl_judge(struct tls_crl *c, unsigned *seen, gnutls_session_t s, const char *who,
	struct cgn_err *err)
{
	CGN_LIVE(c, TLS_CRL_TAG);
	unsigned n = 0, now = atomic_load(&c->generation);
	char name[128] = "";
	bool found = false;
	const gnutls_datum_t *chain = gnutls_certificate_get_peers(s, &n);
	for (unsigned i = 0; chain != NULL && i < n && !found; i++)
		found = crl_has(c, &chain[i]);
	*seen = now;
	if (!found)
		return CGN_OK;
	atomic_fetch_add(&c->refused, 1);
	tls_peer_note_name(s, name, sizeof name);
	cgn_log_limited(WARN, "tls.revoked", F_STR("peer", name), F_STR("list", c->file),
		F_STR("then", "the connection is ended"));
	return CGN_FAIL(err, TLS, "TLS with %s: the certificate of %.100s is revoked (%.200s)", who,
		name[0] != '\0' ? name : "the peer", c->file);
}

unsigned tls_crl_generation(const struct tls_crl *c)
{
	return atomic_load_explicit(&c->generation, memory_order_acquire);
}
