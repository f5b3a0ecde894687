/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates of a cluster's CA and of a stranger's CA, in a folder of their own. Include after cmocka.h. */
#pragma once
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "io/net/pki/pki.h"
#include "io/net/tls/tls.h"
#include "io/os/disk/disk.h"

#define DAY ((int64_t)86400)

static char folder[64];
static struct tls_ctx *node_tls, *second_tls, *stranger_tls;

static inline const char *in_folder(const char *name)
{
	static char paths[4][128];
	static unsigned turn;
	char *out = paths[turn++ % 4];
	(void)snprintf(out, sizeof paths[0], "%s/%s", folder, name);
	return out;
}

static inline void put_file(const char *name, struct cgn_buf *b)
{
	assert_true(cgn_ok(disk_write_file_atomic(in_folder(name), cgn_buf_view(b), 0600, NULL)));
}

static inline void put_leaf(const struct pki_pair *ca, const char *cn, const char *name,
	struct pki_validity when)
{
	static const char *const names[] = {"node.example", "127.0.0.1", NULL};
	struct pki_pair leaf = {0};
	char file[32];
	assert_true(cgn_ok(pki_make_leaf(ca, cn, names, when, &leaf, NULL)));
	(void)snprintf(file, sizeof file, "%s.crt", name);
	put_file(file, &leaf.cert);
	(void)snprintf(file, sizeof file, "%s.key", name);
	put_file(file, &leaf.key);
	pki_pair_fini(&leaf);
}

static inline struct tls_ctx *ctx_of(const char *ca, const char *name)
{
	char ca_path[128], crt[128], key[128];
	struct tls_ctx *c = NULL;
	struct cgn_err err = {0};
	(void)snprintf(ca_path, sizeof ca_path, "%s/%s", folder, ca);
	(void)snprintf(crt, sizeof crt, "%s/%s.crt", folder, name);
	(void)snprintf(key, sizeof key, "%s/%s.key", folder, name);
	struct tls_cfg cfg = {.server = true,
		.ca_file = ca_path,
		.cert_file = crt,
		.key_file = key,
		.require_peer_cert = true};
	if (!cgn_ok(tls_ctx_new(&cfg, &c, &err)))
		fail_msg("%s", err.msg);
	return c;
}

static struct pki_pair our_ca, other_ca;

static int make_tls(void **state)
{
	(void)state;
	int64_t now = time(NULL);
	struct pki_validity when = {now - DAY, now + DAY};
	(void)snprintf(folder, sizeof folder, "/tmp/cgn-quic-XXXXXX");
	assert_non_null(mkdtemp(folder));
	assert_true(cgn_ok(pki_make_ca("ca", when, &our_ca, NULL)));
	assert_true(cgn_ok(pki_make_ca("other", when, &other_ca, NULL)));
	put_file("ca", &our_ca.cert);
	put_file("other", &other_ca.cert);
	put_leaf(&our_ca, "node-1", "node", when);
	put_leaf(&our_ca, "node-2", "second", when);
	put_leaf(&other_ca, "stranger", "stranger", when);
	node_tls = ctx_of("ca", "node");
	second_tls = ctx_of("ca", "second");
	/* The stranger trusts us, but we don't trust the stranger. */
	stranger_tls = ctx_of("ca", "stranger");
	return 0;
}

static int drop_tls(void **state)
{
	(void)state;
	char cmd[96];
	tls_ctx_free(&node_tls);
	tls_ctx_free(&second_tls);
	tls_ctx_free(&stranger_tls);
	pki_pair_fini(&our_ca);
	pki_pair_fini(&other_ca);
	(void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
	return system(cmd);
}
