/* SPDX-License-Identifier: Apache-2.0 */
/* Over TLS, ALPN decides the version, and both ends have names. */
#include <time.h>

#include "http_world.h"
#include "io/net/pki/pki.h"
#include "io/os/disk/disk.h"

static char folder[64];
static const char *const both[] = {"h2", "http/1.1", NULL}, *const old[] = {"http/1.1", NULL};

static void path_of(char *out, size_t cap, const char *name)
{
	(void)snprintf(out, cap, "%s/%s", folder, name);
}

static void pem_save(const char *name, const struct cgn_buf *pem)
{
	char path[128];
	path_of(path, sizeof path, name);
	assert_true(cgn_ok(disk_write_file_atomic(path, cgn_buf_view(pem), 0600, NULL)));
}

static int make_files(void **state)
{
	(void)state;
	static const char *const names[] = {"127.0.0.1", NULL};
	struct pki_pair ca = {0}, leaf = {0};
	struct pki_validity when = {time(NULL) - 86400, time(NULL) + 86400};
	(void)snprintf(folder, sizeof folder, "/tmp/cgn-httptls-XXXXXX");
	assert_non_null(mkdtemp(folder));
	assert_true(cgn_ok(pki_make_ca("ca", when, &ca, NULL)));
	assert_true(cgn_ok(pki_make_leaf(&ca, "node-1", names, when, &leaf, NULL)));
	pem_save("ca", &ca.cert);
	pem_save("crt", &leaf.cert);
	pem_save("key", &leaf.key);
	pki_pair_fini(&ca);
	pki_pair_fini(&leaf);
	return 0;
}

static int drop_files(void **state)
{
	(void)state;
	char cmd[96];
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	return system(cmd);
}

static struct tls_ctx *ctx_of(bool server, const char *const *alpn)
{
	struct tls_ctx *out = NULL;
	char ca[128], crt[128], key[128];
	path_of(ca, sizeof ca, "ca");
	path_of(crt, sizeof crt, "crt");
	path_of(key, sizeof key, "key");
	struct tls_cfg cfg = {.server = server,
		.ca_file = ca,
		.cert_file = crt,
		.key_file = key,
		.require_peer_cert = server,
		.alpn = alpn};
	assert_true(cgn_ok(tls_ctx_new(&cfg, &out, NULL)));
	return out;
}

static void tls_world(struct world *w, const char *const *server_alpn, const char *const *client_alpn,
	enum http_proto proto)
{
	struct tls_ctx *s = ctx_of(true, server_alpn), *c = ctx_of(false, client_alpn);
	world_open(w, &(struct http_server_cfg){.listen.tls = s});
	world_client(w, &(struct http_client_cfg){.tls = c, .proto = proto});
	tls_ctx_free(&s);
	tls_ctx_free(&c);
}

static void expect_version(const char *const *server_alpn, enum http_proto proto, int version)
{
	struct world w;
	struct story s = {0};
	uint8_t *big = malloc(DEMO_BIG);
	assert_non_null(big);
	for (size_t i = 0; i < DEMO_BIG; i++)
		big[i] = demo_byte(i);
	tls_world(&w, server_alpn, both, proto);
	story_tell(&w, &s, "/hello");
	assert_string_equal(s.text, "hello\n");
	assert_int_equal(w.d.version, version);
	assert_string_equal(w.d.scheme, "https");
	s = (struct story){0};
	story_get(&w, &s, "/hang");
	world_until(&w, w.d.last != NULL);
	assert_true(cgn_str_is(http_exchange_peer_name(w.d.last), "node-1"));
	assert_true(cgn_str_starts(http_exchange_peer(w.d.last), "127.0.0.1:"));
	http_call_cancel(&s.c);
	world_until(&w, w.d.cancelled == 1);
	s = (struct story){0};
	story_start(&w, &s,
		&(struct http_request){.method = "POST",
			.path = "/echo",
			.body = &(struct iovec){big, DEMO_BIG},
			.n_body = 1});
	world_until(&w, s.done);
	assert_int_equal(s.bytes, DEMO_BIG);
	assert_false(s.corrupt);
	free(big);
	world_close(&w);
}

static void alpn_chooses_the_version(void **state)
{
	(void)state;
	expect_version(both, HTTP_AUTO, 20);
	expect_version(old, HTTP_AUTO, 11);
	expect_version(both, HTTP_2, 20);
}

static void a_version_that_is_not_spoken_is_a_connect_failure(void **state)
{
	(void)state;
	struct world w;
	struct story s = {0};
	tls_world(&w, old, old, HTTP_2);
	story_get(&w, &s, "/hello");
	world_until(&w, s.done);
	assert_int_equal(s.stage, HTTP_FAIL_CONNECT);
	assert_int_equal(s.why.code, CGN_UNSUPPORTED);
	assert_int_equal(w.d.requests, 0);
	world_close(&w);
}

static void many_calls_wait_for_one_handshake(void **state)
{
	(void)state;
	struct world w;
	struct story s[20] = {0};
	tls_world(&w, both, both, HTTP_AUTO);
	for (size_t i = 0; i < CGN_COUNT(s); i++)
		story_get(&w, &s[i], "/hello");
	for (size_t i = 0; i < CGN_COUNT(s); i++) {
		world_until(&w, s[i].done);
		assert_int_equal(s[i].ends, 1);
	}
	assert_int_equal(http_server_stats(w.d.server).accepted, 1);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(alpn_chooses_the_version),
		cmocka_unit_test(a_version_that_is_not_spoken_is_a_connect_failure),
		cmocka_unit_test(many_calls_wait_for_one_handshake),
	};
	return cmocka_run_group_tests(tests, make_files, drop_files);
}
