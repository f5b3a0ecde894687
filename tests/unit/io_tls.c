/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <time.h>
#include <unistd.h>

#include "base/core/buf.h"
#include "io/net/pki/crl.h"
#include "io/net/pki/pki.h"
#include "io/net/tls/crl.h"
#include "io/net/tls/tls.h"
#include "io/os/disk/disk.h"

/* ---- files: ca, srv, cli, other (another CA's), old (expired), early (not yet valid) ---- */

static char folder[64];
static struct pki_pair authority, stranger;
#define DAY ((int64_t)86400)

static const char *in_folder(const char *name)
{
	static char paths[8][128];
	static unsigned turn;
	char *out = paths[turn++ % 8];
	(void)snprintf(out, sizeof paths[0], "%s/%s", folder, name);
	return out;
}

static void file_put(const char *name, const char *kind, const struct cgn_buf *b)
{
	char file[64];
	(void)snprintf(file, sizeof file, "%s.%s", name, kind);
	assert_true(cgn_ok(disk_write_file_atomic(in_folder(file), cgn_buf_view(b), 0600, NULL)));
}

static void make_leaf(const struct pki_pair *ca, const char *name, const char *san, int64_t from, int64_t to)
{
	struct pki_pair p = {0};
	const char *names[] = {san, "127.0.0.1", NULL};
	assert_true(cgn_ok(pki_make_leaf(ca, name, names, (struct pki_validity){from, to}, &p, NULL)));
	file_put(name, "crt", &p.cert);
	file_put(name, "key", &p.key);
	pki_pair_fini(&p);
}

static int make_files(void **state)
{
	(void)state;
	struct pki_pair ca = {0}, other = {0};
	int64_t now = time(NULL);
	(void)snprintf(folder, sizeof folder, "/tmp/cgn-tls-XXXXXX");
	assert_non_null(mkdtemp(folder));
	struct pki_validity decade = {now - 100 * DAY, now + 3650 * DAY};
	assert_true(cgn_ok(pki_make_ca("ca", decade, &ca, NULL)));
	assert_true(cgn_ok(pki_make_ca("other", decade, &other, NULL)));
	file_put("ca", "crt", &ca.cert);
	file_put("other", "crt", &other.cert);
	make_leaf(&ca, "srv", "srv.example", now - DAY, now + 30 * DAY);
	make_leaf(&ca, "srv2", "srv.example", now - DAY, now + 60 * DAY);
	make_leaf(&ca, "cli", "cli.example", now - DAY, now + 30 * DAY);
	make_leaf(&other, "alien", "srv.example", now - DAY, now + 30 * DAY);
	make_leaf(&ca, "old", "srv.example", now - 9 * DAY, now - DAY);
	make_leaf(&ca, "early", "srv.example", now + DAY, now + 9 * DAY);
	authority = ca;
	stranger = other;
	return 0;
}

static int drop_files(void **state)
{
	(void)state;
	char cmd[96];
	pki_pair_fini(&authority);
	pki_pair_fini(&stranger);
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	return system(cmd);
}

static struct tls_ctx *ctx_of(bool server, const char *ca, const char *name, bool mutual,
	const char *const *alpn)
{
	char crt[64], key[64];
	struct tls_ctx *c = NULL;
	struct cgn_err err = {0};
	(void)snprintf(crt, sizeof crt, "%s.crt", name != NULL ? name : "");
	(void)snprintf(key, sizeof key, "%s.key", name != NULL ? name : "");
	struct tls_cfg cfg = {.server = server, .require_peer_cert = mutual, .alpn = alpn};
	cfg.ca_file = ca != NULL ? in_folder(ca) : NULL;
	cfg.cert_file = name != NULL ? in_folder(crt) : NULL;
	cfg.key_file = name != NULL ? in_folder(key) : NULL;
	if (!cgn_ok(tls_ctx_new(&cfg, &c, &err)))
		fail_msg("%s", err.msg);
	return c;
}

/* ---- two sessions and the wires between them ---- */

struct end {
	struct tls_session *s;
	struct cgn_buf out, plain; /* |out|: ciphertext for the other side; |plain|: received plain text. */
	size_t emits;
	bool eof, free_on_plain;
	struct cgn_err err;
};

static void on_emit(void *user, const void *p, size_t n)
{
	struct end *e = user;
	e->emits++;
	cgn_buf_add(&e->out, p, n);
}

static void on_plain(void *user, const uint8_t *p, size_t n)
{
	struct end *e = user;
	cgn_buf_add(&e->plain, p, n);
	if (e->free_on_plain)
		tls_session_free(&e->s);
}

static const struct tls_session_ops ops = {on_emit, on_plain};

struct pair {
	struct end srv, cli;
};

/* Move the bytes that |from| emitted into |to|, in pieces of at most |piece| bytes. False when nothing
 * moved. */
static bool end_carry(struct end *from, struct end *to, size_t piece)
{
	if (from->out.n == 0 || to->s == NULL || to->err.code != CGN_FINE)
		return false;
	size_t n = from->out.n < piece ? from->out.n : piece;
	uint8_t *copy = malloc(n); /* Exact size, so that a sanitizer sees a read beyond it. */
	assert_non_null(copy);
	memcpy(copy, from->out.p, n);
	cgn_buf_eat(&from->out, n);
	bool closed = false;
	if (!cgn_ok(tls_feed(to->s, copy, n, &closed, &to->err)))
		assert_int_equal(to->err.code, CGN_TLS);
	to->eof |= closed;
	free(copy);
	return true;
}

static void pair_settle(struct pair *p, size_t piece)
{
	while (end_carry(&p->cli, &p->srv, piece) || end_carry(&p->srv, &p->cli, piece))
		;
}

static void pair_open(struct pair *p, struct tls_ctx *srv, struct tls_ctx *cli, const char *name,
	size_t piece)
{
	*p = (struct pair){0};
	assert_true(cgn_ok(tls_session_new(srv, NULL, &ops, &p->srv, &p->srv.s, NULL)));
	assert_true(cgn_ok(tls_session_new(cli, name, &ops, &p->cli, &p->cli.s, NULL)));
	assert_true(cgn_ok(tls_start(p->cli.s, NULL)));
	pair_settle(p, piece);
}

static void end_fini(struct end *e)
{
	tls_session_free(&e->s);
	cgn_buf_fini(&e->out);
	cgn_buf_fini(&e->plain);
}

static void pair_close(struct pair *p)
{
	end_fini(&p->srv);
	end_fini(&p->cli);
}

static void end_say(struct pair *p, struct end *from, struct end *to, size_t n, size_t piece)
{
	uint8_t *bytes = malloc(n);
	assert_non_null(bytes);
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)(i * 31 + i / 251);
	to->plain.n = 0;
	assert_true(cgn_ok(tls_write(from->s, bytes, n, NULL)));
	pair_settle(p, piece);
	assert_int_equal(to->plain.n, n);
	assert_memory_equal(to->plain.p, bytes, n);
	free(bytes);
}

/* ---- tests ---- */

static void bytes_survive_any_cutting(void **state)
{
	(void)state;
	static const char *const alpn[] = {"h2", "http/1.1", NULL};
	static const size_t pieces[] = {1, 2, 5, 1000, 100000};
	struct tls_ctx *srv = ctx_of(true, NULL, "srv", false, alpn),
		       *cli = ctx_of(false, "ca.crt", NULL, false, alpn);
	for (size_t i = 0; i < CGN_COUNT(pieces); i++) {
		struct pair p;
		pair_open(&p, srv, cli, "srv.example", pieces[i]);
		assert_true(tls_ready(p.srv.s) && tls_ready(p.cli.s));
		assert_true(cgn_str_is(tls_alpn(p.srv.s), "h2") && cgn_str_is(tls_alpn(p.cli.s), "h2"));
		assert_true(cgn_str_is(tls_peer_name(p.cli.s), "srv"));
		assert_int_equal(tls_peer_name(p.srv.s).n, 0);
		end_say(&p, &p.cli, &p.srv, 1, pieces[i]);
		end_say(&p, &p.srv, &p.cli, 50000, pieces[i]);
		tls_shutdown(p.cli.s);
		pair_settle(&p, pieces[i]);
		assert_true(p.srv.eof);
		/* Half-closed: the other direction still works. */
		end_say(&p, &p.srv, &p.cli, 100, pieces[i]);
		pair_close(&p);
	}
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
}

static void alpn_follows_the_servers_preference(void **state)
{
	(void)state;
	static const char *const old_first[] = {"http/1.1", "h2", NULL},
				 *const h2_first[] = {"h2", "http/1.1", NULL};
	static const char *const strange[] = {"spdy/3", NULL};
	struct tls_ctx *srv = ctx_of(true, NULL, "srv", false, h2_first),
		       *cli = ctx_of(false, "ca.crt", NULL, false, old_first);
	struct tls_ctx *odd = ctx_of(false, "ca.crt", NULL, false, strange);
	struct pair p;
	pair_open(&p, srv, cli, "srv.example", 4096);
	assert_true(cgn_str_is(tls_alpn(p.cli.s), "h2"));
	pair_close(&p);
	pair_open(&p, srv, odd, "srv.example", 4096);
	assert_true(tls_ready(p.srv.s));
	assert_int_equal(tls_alpn(p.srv.s).n, 0);
	pair_close(&p);
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
	tls_ctx_free(&odd);
}

static void expect_refused(struct tls_ctx *srv, struct tls_ctx *cli, const char *name, bool by_client,
	const char *expect)
{
	struct pair p;
	pair_open(&p, srv, cli, name, 4096);
	struct end *judge = by_client ? &p.cli : &p.srv, *judged = by_client ? &p.srv : &p.cli;
	assert_int_equal(judge->err.code, CGN_TLS);
	if (strstr(judge->err.msg, expect) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", judge->err.msg, expect);
	/* The other side received the reason. */
	assert_int_equal(judged->err.code, CGN_TLS);
	assert_non_null(strstr(judged->err.msg, "alert"));
	pair_close(&p);
}

static void a_client_checks_the_server(void **state)
{
	(void)state;
	struct tls_ctx *srv = ctx_of(true, NULL, "srv", false, NULL),
		       *alien = ctx_of(true, NULL, "alien", false, NULL);
	struct tls_ctx *cli = ctx_of(false, "ca.crt", NULL, false, NULL),
		       *sys = ctx_of(false, NULL, NULL, false, NULL);
	struct pair p;
	expect_refused(srv, cli, "wrong.example", true, "another name");
	expect_refused(srv, cli, "127.0.0.2", true, "another name");
	expect_refused(alien, cli, "srv.example", true, "issuer is unknown");
	expect_refused(srv, sys, "srv.example", true,
		"issuer is unknown"); /* The system does not trust the test's CA. */
	pair_open(&p, srv, cli, "127.0.0.1", 4096);
	assert_true(tls_ready(p.srv.s));
	pair_close(&p);
	tls_ctx_free(&srv);
	tls_ctx_free(&alien);
	tls_ctx_free(&cli);
	tls_ctx_free(&sys);
}

/* Read the fingerprint that a refusal tells. */
static void pin_of(struct tls_ctx *srv, char out[65])
{
	struct pair p;
	struct tls_ctx *cli = NULL;
	char none[65];
	memset(none, '0', 64);
	none[64] = '\0';
	const struct tls_cfg cfg = {.pin = none};
	assert_true(cgn_ok(tls_ctx_new(&cfg, &cli, NULL)));
	pair_open(&p, srv, cli, "bmc.example", 1000);
	assert_int_equal(p.cli.err.code, CGN_TLS);
	const char *at = strstr(p.cli.err.msg, "its fingerprint is ");
	assert_non_null(at);
	(void)cgn_str_copyz(out, 65, cgn_str_of(at + strlen("its fingerprint is ")));
	pair_close(&p);
	tls_ctx_free(&cli);
}

static void a_pinned_certificate_is_trusted_for_itself(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "abc",
		"::", "g000000000000000000000000000000000000000000000000000000000000000"};
	struct tls_ctx *alien = ctx_of(true, NULL, "alien", false, NULL), *cli = NULL;
	struct pair p;
	struct cgn_err err = {0};
	char pin[65];
	pin_of(alien, pin);
	const struct tls_cfg cfg = {.pin = pin};
	assert_true(cgn_ok(tls_ctx_new(&cfg, &cli, NULL)));
	pair_open(&p, alien, cli, "another.example", 1000); /* Neither its issuer nor its name is checked */
	assert_true(tls_ready(p.cli.s));
	end_say(&p, &p.cli, &p.srv, 100, 1000);
	pair_close(&p);
	struct tls_ctx *srv = ctx_of(true, NULL, "srv", false, NULL);
	pair_open(&p, srv, cli, "srv.example", 1000); /* A certificate that is not pinned is refused */
	assert_int_equal(p.cli.err.code, CGN_TLS);
	pair_close(&p);
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
	tls_ctx_free(&alien);
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		const struct tls_cfg wrong = {.pin = bad[i]};
		assert_int_equal(tls_ctx_new(&wrong, &cli, &err).code, CGN_TLS);
		assert_non_null(strstr(err.msg, "fingerprint"));
	}
	uint8_t bytes[TLS_PIN_BYTES];
	assert_true(tls_pin_read(CGN_STR("00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:"
					 "00:01:02:03:04:05:06:07:08:09:0a:0b:0c:0d:0e:0f"),
		bytes));
	assert_int_equal(bytes[31], 15);
}

static void mutual_tls_knows_its_clients(void **state)
{
	(void)state;
	struct tls_ctx *srv = ctx_of(true, "ca.crt", "srv", true, NULL);
	struct tls_ctx *cli = ctx_of(false, "ca.crt", "cli", false, NULL),
		       *nobody = ctx_of(false, "ca.crt", NULL, false, NULL);
	struct tls_ctx *alien = ctx_of(false, "ca.crt", "alien", false, NULL);
	struct pair p;
	pair_open(&p, srv, cli, "srv.example", 4096);
	assert_true(tls_ready(p.srv.s));
	assert_true(cgn_str_is(tls_peer_name(p.srv.s), "cli"));
	end_say(&p, &p.cli, &p.srv, 1000, 4096);
	pair_close(&p);
	expect_refused(srv, nobody, "srv.example", false, "gave no certificate");
	expect_refused(srv, alien, "srv.example", false, "issuer is unknown");
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
	tls_ctx_free(&nobody);
	tls_ctx_free(&alien);
}

/* ---- reload, and invalid files ---- */

static void copy_file(const char *from, const char *to)
{
	struct cgn_buf b = {0};
	assert_true(cgn_ok(disk_read_file(in_folder(from), 1 << 20, &b, NULL)));
	assert_true(cgn_ok(disk_write_file_atomic(in_folder(to), cgn_buf_view(&b), 0600, NULL)));
	cgn_buf_fini(&b);
}

static void cert_install(const char *name)
{
	char crt[64], key[64];
	(void)snprintf(crt, sizeof crt, "%s.crt", name);
	(void)snprintf(key, sizeof key, "%s.key", name);
	copy_file(crt, "live.crt");
	copy_file(key, "live.key");
}

static void a_reload_is_for_new_sessions(void **state)
{
	(void)state;
	struct pair before, after;
	struct cgn_err err = {0};
	cert_install("srv");
	struct tls_ctx *srv = ctx_of(true, NULL, "live", false, NULL),
		       *cli = ctx_of(false, "ca.crt", NULL, false, NULL);
	struct tls_validity first, second;
	assert_true(tls_ctx_validity(srv, &first));
	assert_true(
		first.from <= (uint64_t)time(NULL) && first.to > (uint64_t)time(NULL) + 29 * (uint64_t)DAY);
	assert_false(tls_ctx_validity(cli, &second));
	pair_open(&before, srv, cli, "srv.example", 4096);
	cert_install("srv2");
	assert_true(cgn_ok(tls_ctx_reload(srv, &err)));
	assert_true(tls_ctx_validity(srv, &second) && second.to > first.to);
	pair_open(&after, srv, cli, "srv.example", 4096);
	assert_true(cgn_str_is(tls_peer_name(before.cli.s), "srv"));
	assert_true(cgn_str_is(tls_peer_name(after.cli.s), "srv2"));
	end_say(&before, &before.cli, &before.srv, 20000, 4096); /* The old session still works. */
	end_say(&after, &after.cli, &after.srv, 20000, 4096);
	pair_close(&after);
	/* A failed reload changes nothing. */
	copy_file("srv.key", "live.key");
	assert_int_equal(tls_ctx_reload(srv, &err).code, CGN_TLS);
	assert_non_null(strstr(err.msg, "live.key"));
	pair_open(&after, srv, cli, "srv.example", 4096);
	assert_true(cgn_str_is(tls_peer_name(after.cli.s), "srv2"));
	pair_close(&after);
	tls_ctx_ref(srv);
	struct tls_ctx *again = srv;
	tls_ctx_free(&again);
	tls_ctx_free(&srv); /* The session holds its own references. */
	end_say(&before, &before.srv, &before.cli, 100, 4096);
	pair_close(&before);
	tls_ctx_free(&cli);
}

static void ctx_fails(const struct tls_cfg *cfg, const char *expect)
{
	struct tls_ctx *c = NULL;
	struct cgn_err err = {0};
	assert_int_equal(tls_ctx_new(cfg, &c, &err).code, CGN_TLS);
	assert_null(c);
	if (strstr(err.msg, expect) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", err.msg, expect);
}

static void bad_files_are_named_with_the_reason(void **state)
{
	(void)state;
	const char *crt = in_folder("srv.crt"), *key = in_folder("srv.key"), *other = in_folder("srv2.key");
	struct tls_cfg cfg = {.server = true, .cert_file = in_folder("missing.crt"), .key_file = key};
	ctx_fails(&cfg, "missing.crt: No such file");
	cfg.cert_file = crt;
	cfg.key_file = other;
	ctx_fails(&cfg, "srv2.key: the key does not belong to the certificate");
	cfg.key_file = crt;
	ctx_fails(&cfg, "srv.crt: no usable PEM key");
	cfg.cert_file = cfg.key_file = key;
	ctx_fails(&cfg, "srv.key: no PEM certificate");
	cfg = (struct tls_cfg){.server = true,
		.cert_file = in_folder("old.crt"),
		.key_file = in_folder("old.key")};
	ctx_fails(&cfg, "old.crt: the certificate expired on 2");
	cfg = (struct tls_cfg){.server = true,
		.cert_file = in_folder("early.crt"),
		.key_file = in_folder("early.key")};
	ctx_fails(&cfg, "early.crt: the certificate is not valid before 2");
	cfg = (struct tls_cfg){.ca_file = key};
	ctx_fails(&cfg, "srv.key: no PEM certificate");
	cfg = (struct tls_cfg){.ca_file = folder};
	ctx_fails(&cfg, "it is a folder");
	cfg = (struct tls_cfg){.cert_file = crt};
	ctx_fails(&cfg, "srv.crt");
	cfg = (struct tls_cfg){.server = true};
	ctx_fails(&cfg, "needs a certificate");
	cfg = (struct tls_cfg){.server = true, .cert_file = crt, .key_file = key, .require_peer_cert = true};
	ctx_fails(&cfg, "CA file");
}

/* ---- hostile bytes ---- */

static void garbage_ends_the_session_only(void **state)
{
	(void)state;
	struct tls_ctx *srv = ctx_of(true, NULL, "srv", false, NULL),
		       *cli = ctx_of(false, "ca.crt", NULL, false, NULL);
	srand(11);
	for (int round = 0; round < 300; round++) {
		struct pair p = {0};
		bool closed = false;
		uint8_t junk[200];
		assert_true(cgn_ok(tls_session_new(srv, NULL, &ops, &p.srv, &p.srv.s, NULL)));
		for (size_t i = 0; i < sizeof junk; i++)
			junk[i] = (uint8_t)rand();
		if (round % 2 == 0)
			memcpy(junk, "\x16\x03\x01\x00\xc3\x01", 6); /* Looks like a ClientHello. */
		cgn_rc rc = tls_feed(p.srv.s, junk, sizeof junk, &closed, &p.srv.err);
		assert_false(tls_ready(p.srv.s));
		assert_true(rc.code == CGN_TLS || rc.code == CGN_FINE);
		pair_close(&p);
	}
	/* A flipped bit anywhere in a record is noticed. */
	for (size_t at = 0; at < 60; at++) {
		struct pair p;
		bool closed = false;
		pair_open(&p, srv, cli, "srv.example", 4096);
		assert_true(cgn_ok(tls_write(p.cli.s, "forty bytes of text, more or less, here", 39, NULL)));
		assert_true(p.cli.out.n >= 60);
		p.cli.out.p[at] ^= 4;
		/* A longer length field: the session waits for more bytes. */
		if (cgn_ok(tls_feed(p.srv.s, p.cli.out.p, p.cli.out.n, &closed, &p.srv.err)))
			assert_true(at == 3 || at == 4);
		assert_int_equal(p.srv.plain.n, 0);
		assert_false(closed);
		pair_close(&p);
	}
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
}

static void a_session_may_be_freed_by_its_callback(void **state)
{
	(void)state;
	struct tls_ctx *srv = ctx_of(true, NULL, "srv", false, NULL),
		       *cli = ctx_of(false, "ca.crt", NULL, false, NULL);
	struct pair p;
	pair_open(&p, srv, cli, "srv.example", 100000);
	p.srv.free_on_plain = true;
	for (int i = 0; i < 3; i++)
		assert_true(cgn_ok(tls_write(p.cli.s, "abc", 3, NULL)));
	assert_true(end_carry(&p.cli, &p.srv, 100000)); /* Three records in one feed. */
	assert_null(p.srv.s);
	assert_int_equal(p.srv.plain.n, 3);
	pair_close(&p);
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
}

/* ---- revocation ---- */

/* Write a list of |ca| that ends in |ends| seconds, with the certificate |name| in it (NULL: none). */
static void put_list(const struct pki_pair *ca, const char *name, int64_t ends)
{
	const char *serials[2] = {NULL, NULL};
	char file[64];
	struct pki_info in;
	struct cgn_buf pem = {0}, list = {0};
	size_t added = 0;
	int64_t now = time(NULL);
	if (name != NULL) {
		(void)snprintf(file, sizeof file, "%s.crt", name);
		assert_true(cgn_ok(disk_read_file(in_folder(file), 65536, &pem, NULL)));
		assert_true(cgn_ok(pki_inspect(cgn_buf_view(&pem), &in, NULL)));
		serials[0] = in.serial;
	}
	assert_true(cgn_ok(pki_crl_make(ca, CGN_STR(""), serials, (struct pki_validity){now - 9, now + ends},
		&list, &added, NULL)));
	file_put("list", "pem", &list);
	cgn_buf_fini(&pem);
	cgn_buf_fini(&list);
}

static struct tls_ctx *listed_ctx(bool server, const char *name, struct cgn_err *err)
{
	char crt[128], key[128];
	struct tls_ctx *c = NULL;
	(void)snprintf(crt, sizeof crt, "%s/%s.crt", folder, name);
	(void)snprintf(key, sizeof key, "%s/%s.key", folder, name);
	struct tls_cfg cfg = {.server = server,
		.require_peer_cert = server,
		.ca_file = in_folder("ca.crt"),
		.cert_file = crt,
		.key_file = key,
		.crl_file = in_folder("list.pem")};
	return cgn_ok(tls_ctx_new(&cfg, &c, err)) ? c : NULL;
}

static void revoked_peers_are_refused_on_both_sides(void **state)
{
	(void)state;
	put_list(&authority, "cli", DAY);
	struct tls_ctx *srv = listed_ctx(true, "srv", NULL),
		       *cli = ctx_of(false, "ca.crt", "cli", false, NULL),
		       *other = ctx_of(false, "ca.crt", "srv2", false, NULL);
	struct pair p;
	expect_refused(srv, cli, "srv.example", false, "certificate of cli is revoked");
	pair_open(&p, srv, other, "srv.example", 4096);
	assert_true(tls_ready(p.srv.s));
	end_say(&p, &p.cli, &p.srv, 100, 4096);
	pair_close(&p);
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
	tls_ctx_free(&other);
	put_list(&authority, "srv", DAY);
	srv = ctx_of(true, "ca.crt", "srv", true, NULL);
	cli = listed_ctx(false, "cli", NULL);
	expect_refused(srv, cli, "srv.example", true, "certificate of srv is revoked");
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
}

static void a_list_that_is_read_again_ends_open_sessions(void **state)
{
	(void)state;
	put_list(&authority, NULL, DAY);
	struct tls_ctx *srv = listed_ctx(true, "srv", NULL),
		       *cli = ctx_of(false, "ca.crt", "cli", false, NULL),
		       *other = ctx_of(false, "ca.crt", "srv2", false, NULL);
	struct tls_crl *list = NULL;
	struct pair p, q;
	assert_true(cgn_ok(tls_crl_get(in_folder("list.pem"), in_folder("ca.crt"), &list, NULL)));
	pair_open(&p, srv, cli, "srv.example", 4096);
	pair_open(&q, srv, other, "srv.example", 4096);
	end_say(&p, &p.cli, &p.srv, 100, 4096);
	assert_true(tls_is_revocable(p.srv.s) && !tls_is_revocable(p.cli.s));
	assert_false(tls_crl_changed(list));
	put_list(&authority, "cli", DAY);
	assert_true(tls_crl_changed(list));
	assert_true(cgn_ok(tls_recheck(p.srv.s, NULL))); /* The file alone changes nothing. */
	assert_true(cgn_ok(tls_crl_reload(list, NULL)));
	assert_false(tls_crl_changed(list));
	p.srv.plain.n = 0;
	assert_true(cgn_ok(tls_write(p.cli.s, "abc", 3, NULL)));
	pair_settle(&p, 4096);
	assert_int_equal(p.srv.plain.n, 0);
	assert_non_null(strstr(p.srv.err.msg, "is revoked"));
	assert_non_null(strstr(p.cli.err.msg, "alert"));
	assert_true(cgn_ok(tls_recheck(q.srv.s, NULL)));
	end_say(&q, &q.cli, &q.srv, 100, 4096);
	assert_true(tls_crl_facts(list).refused == 1 && tls_crl_facts(list).revoked == 1);
	pair_close(&p);
	pair_close(&q);
	tls_crl_free(&list);
	tls_ctx_free(&srv);
	tls_ctx_free(&cli);
	tls_ctx_free(&other);
}

static void expect_list_kept(struct tls_crl *list, const char *why)
{
	struct cgn_err err = {0};
	assert_int_equal(tls_crl_reload(list, &err).code, CGN_TLS);
	if (strstr(err.msg, why) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", err.msg, why);
	assert_int_equal(tls_crl_facts(list).revoked, 1);
}

static void a_bad_list_is_refused_and_the_old_one_stays(void **state)
{
	(void)state;
	struct tls_crl *list = NULL;
	struct cgn_err err = {0};
	put_list(&authority, "cli", -5); /* A list that is over is better than none. */
	assert_true(cgn_ok(tls_crl_get(in_folder("list.pem"), in_folder("ca.crt"), &list, NULL)));
	expect_list_kept(list, "is over");
	put_list(&stranger, NULL, DAY);
	expect_list_kept(list, "not signed by an authority");
	struct cgn_buf junk = {0};
	cgn_buf_putz(&junk, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
	file_put("list", "pem", &junk);
	cgn_buf_fini(&junk);
	expect_list_kept(list, "no PEM revocation list");
	assert_int_equal(unlink(in_folder("list.pem")), 0);
	expect_list_kept(list, "cgn-ctl pki crl makes");
	tls_crl_free(&list);
	assert_int_equal(tls_crl_get(in_folder("list.pem"), in_folder("ca.crt"), &list, &err).code, CGN_TLS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_survive_any_cutting),
		cmocka_unit_test(alpn_follows_the_servers_preference),
		cmocka_unit_test(a_client_checks_the_server),
		cmocka_unit_test(a_pinned_certificate_is_trusted_for_itself),
		cmocka_unit_test(mutual_tls_knows_its_clients),
		cmocka_unit_test(a_reload_is_for_new_sessions),
		cmocka_unit_test(bad_files_are_named_with_the_reason),
		cmocka_unit_test(garbage_ends_the_session_only),
		cmocka_unit_test(a_session_may_be_freed_by_its_callback),
		cmocka_unit_test(revoked_peers_are_refused_on_both_sides),
		cmocka_unit_test(a_list_that_is_read_again_ends_open_sessions),
		cmocka_unit_test(a_bad_list_is_refused_and_the_old_one_stays),
	};
	return cmocka_run_group_tests(tests, make_files, drop_files);
}
