/* SPDX-License-Identifier: Apache-2.0 */
#include "certs.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "io/net/pki/crl.h"

#define LIST_S (30 * 86400)

static void certs_must(cgn_rc rc, const struct cgn_err *err)
{
	if (!cgn_ok(rc))
		world_fail("certificates: %s", err->msg);
}

int64_t certs_now(void)
{
	return (int64_t)time(NULL);
}

static void pem_put(struct world_host *h, const char *folder, const char *name, const char *suffix,
	const struct cgn_buf *b)
{
	char path[256];
	(void)snprintf(path, sizeof path, "%s/%s%s", folder, name, suffix);
	world_file_put(h, path, b->p, b->n);
}

void certs_begin(struct certs *c, const char *cluster, int64_t from, int64_t to)
{
	struct cgn_err err;
	*c = (struct certs){.from = from, .to = to};
	(void)snprintf(c->cluster, sizeof c->cluster, "%s", cluster);
	certs_must(pki_make_ca(cluster, (struct pki_validity){from, to}, &c->ca, &err), &err);
}

void certs_ca_put(struct certs *c, struct world_host *h, const char *folder)
{
	pem_put(h, folder, c->cluster, "-ca.pem", &c->ca.cert);
}

void certs_leaf(struct certs *c, struct world_host *h, const char *host_name, const char *folder,
	const char *name, const char *role, int64_t from, int64_t to)
{
	char uri[2][128];
	struct cgn_err err;
	struct pki_pair pair = {0};
	(void)snprintf(uri[0], sizeof uri[0], "cognitora://%s/%s/%s", c->cluster, role, host_name);
	(void)snprintf(uri[1], sizeof uri[1], "cognitora://%s/kvcached/%s", c->cluster, host_name);
	const char *names[] = {host_name, world_host_address(h), "localhost", "127.0.0.1", uri[0],
		strcmp(role, "agent") == 0 ? uri[1] : NULL, NULL};
	from = from > c->from ? from : c->from;
	to = to < c->to ? to : c->to;
	certs_must(pki_make_leaf(&c->ca, name, names, (struct pki_validity){from, to}, &pair, &err), &err);
	pem_put(h, folder, name, ".pem", &pair.cert);
	pem_put(h, folder, name, ".key", &pair.key);
	certs_ca_put(c, h, folder);
	pki_pair_fini(&pair);
}

void certs_revoke(struct certs *c, struct world_host *h, const char *folder, const char *name)
{
	char path[256];
	size_t n = 0, added = 0;
	struct cgn_err err;
	struct pki_info info;
	struct cgn_buf list = {0};
	(void)snprintf(path, sizeof path, "%s/%s.pem", folder, name);
	const char *pem = world_file_get(h, path, &n);
	certs_must(pki_inspect((struct cgn_str){pem, n}, &info, &err), &err);
	const char *const serials[] = {info.serial, NULL};
	struct pki_validity when = {certs_now(), certs_now() + LIST_S};
	certs_must(pki_crl_make(&c->ca, cgn_buf_view(&c->crl), serials, when, &list, &added, &err), &err);
	cgn_buf_fini(&c->crl);
	c->crl = list;
}

void certs_crl_put(struct certs *c, struct world_host *h, const char *folder)
{
	struct cgn_err err;
	size_t added = 0;
	static const char *const none[] = {NULL};
	if (c->crl.n == 0)
		certs_must(pki_crl_make(&c->ca, (struct cgn_str){0}, none,
				   (struct pki_validity){certs_now(), certs_now() + LIST_S}, &c->crl, &added,
				   &err),
			&err);
	pem_put(h, folder, c->cluster, "-crl.pem", &c->crl);
}
