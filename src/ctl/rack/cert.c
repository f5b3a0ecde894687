/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rack/cert.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/install/install.h"
#include "ctl/keys/holder.h"
#include "ctl/keys/pki_folder.h"
#include "ctl/run.h"
#include "io/net/pki/crl.h"
#include "io/os/disk/disk.h"

#define VALID_DAYS 365

static const struct {
	const char *name, *leaf;
	unsigned roles;
} certs[RACK_CERTS] = {
	[RACK_CERT_ROUTER] = {"router", "router", RACK_BIT(RACK_ROUTER)},
	[RACK_CERT_AGENT] = {"agent", "agent+kvcached", RACK_BIT(RACK_AGENT) | RACK_BIT(RACK_STORE)},
	[RACK_CERT_METRICS] = {"metrics", "metrics", RACK_BIT(RACK_METRICS)},
	[RACK_CERT_ETCD] = {"etcd", "none", RACK_BIT(RACK_ETCD)},
};

const char *rack_cert_name(enum rack_cert c)
{
	return certs[c].name;
}

unsigned rack_cert_roles(enum rack_cert c)
{
	return certs[c].roles;
}

/* ---- the CA ---- */

static CGN_RC ca_make(const struct rack_pki *p, struct cgn_err *err)
{
	char self[PATH_MAX];
	CGN_TRY(ctl_run_self(self, err));
	printf("create  %s: a CA, and the certificate of admin\n", p->dir);
	char *argv[] = {self, (char[]){"pki"}, (char[]){"bootstrap"}, (char[]){"--out"},
		(char *)(uintptr_t)p->dir, (char[]){"--name"}, (char *)(uintptr_t)p->cluster,
		(char[]){"--leaf"}, (char[]){"admin"}, NULL};
	return ctl_run_shown(argv, NULL) == 0
		? CGN_OK
		: CGN_FAIL(err, TLS, "cgn-ctl pki bootstrap --out %s failed", p->dir);
}

CGN_RC rack_pki_open(struct rack_pki *p, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(pki_path(p->dir, "ca", ".pem", path, err));
	if (access(path, F_OK) != 0 && !p->make)
		return CGN_OK;
	if (access(path, F_OK) != 0)
		CGN_TRY(ca_make(p, err));
	return pki_read_pair(p->dir, "ca", &p->ca, err);
}

void rack_pki_close(struct rack_pki *p)
{
	pki_pair_fini(&p->ca);
}

/* ---- certificates ---- */

/* May the certificate be used as it is? */
static bool pair_is_good(const struct rack_pki *p, const struct rack_host *h, const struct pki_pair *pair)
{
	struct pki_info in;
	struct cgn_err err;
	bool ours = false;
	struct cgn_str pem = cgn_buf_view(&pair->cert);
	return cgn_ok(pki_inspect(pem, &in, &err)) && pki_info_has(&in, h->address) &&
		in.when.to - pki_now() > (int64_t)RACK_RENEW_DAYS * PKI_DAY &&
		cgn_ok(pki_signed_by(cgn_buf_view(&p->ca.cert), pem, &ours, &err)) && ours;
}

static CGN_RC pair_make(const struct rack_pki *p, const struct rack_host *h, enum rack_cert c,
	const char *name, struct pki_pair *out, struct cgn_err *err)
{
	char leaf[400];
	struct holder holder;
	struct pki_info authority;
	int64_t now = pki_now(), end = now + (int64_t)VALID_DAYS * PKI_DAY;
	const char *names[HOLDER_MAX_ROLES + 6] = {"localhost", "127.0.0.1", "::1", h->address};
	size_t n = 4;
	(void)snprintf(leaf, sizeof leaf, "%s=%s@%s", name, certs[c].leaf, h->name);
	CGN_TRY(holder_read(leaf, p->cluster, h->name, &holder, err));
	CGN_TRY(pki_inspect(cgn_buf_view(&p->ca.cert), &authority, err));
	if (strchr(h->name, '_') == NULL && strcmp(h->name, h->address) != 0)
		names[n++] = h->name;
	for (size_t i = 0; i < holder.n_uris; i++)
		names[n++] = holder.uris[i];
	CGN_TRY(pki_make_leaf(&p->ca, name, names,
		(struct pki_validity){now, end < authority.when.to ? end : authority.when.to}, out, err));
	return pki_write_pair(p->dir, name, out, err);
}

CGN_RC rack_pki_pair(struct rack_pki *p, const struct rack_host *h, enum rack_cert c, struct pki_pair *out,
	struct cgn_err *err)
{
	char name[RACK_NAME_MAX + 20], path[PATH_MAX];
	if (p->ca.cert.n == 0)
		return CGN_OK;
	(void)snprintf(name, sizeof name, "%s.%s", h->name, certs[c].name);
	CGN_TRY(pki_path(p->dir, name, ".pem", path, err));
	if (access(path, F_OK) == 0) {
		CGN_TRY(pki_read_pair(p->dir, name, out, err));
		if (pair_is_good(p, h, out))
			return CGN_OK;
		pki_pair_fini(out);
		*out = (struct pki_pair){.cert = {0}};
	}
	return p->make ? pair_make(p, h, c, name, out, err) : CGN_OK;
}
