/* SPDX-License-Identifier: Apache-2.0 */
/* certificates: those that the settings name, and those of the folder that pki bootstrap wrote. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "ctl/doctor/doctor.h"
#include "io/net/net/addr.h"
#include "io/net/pki/crl.h"
#include "io/net/pki/pki.h"
#include "io/net/pki/request.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"
#include "policy/who/identity/identity.h"

#define PEM_LIMIT ((size_t)4 << 20)
#define DAY       (24 * 3600)
#define SOON      (30 * DAY)
#define MAX_CERTS 160

/* A certificate and the files that belong to it; key and ca may be NULL. */
struct certificate {
	const char *setting, *path, *key, *ca;
};
struct certificates {
	struct certificate list[MAX_CERTS];
	size_t n;
};

static void certificate_add(struct certificates *all, const char *setting, const char *path, const char *key,
	const char *ca)
{
	if (path != NULL && all->n < MAX_CERTS)
		all->list[all->n++] = (struct certificate){setting, path, key, ca};
}

static void certificates_of_folder(struct doctor *d, struct certificates *all)
{
	DIR *dir = opendir(DOCTOR_PKI);
	for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
		size_t n = strlen(e->d_name);
		if (n < 4 || strcmp(e->d_name + n - 4, ".pem") != 0 || strcmp(e->d_name, "crl.pem") == 0)
			continue;
		bool is_ca = strcmp(e->d_name, "ca.pem") == 0;
		certificate_add(all, "the cluster's certificates",
			cgn_arena_fmt(&d->arena, DOCTOR_PKI "/%s", e->d_name),
			is_ca ? NULL
			      : cgn_arena_fmt(&d->arena, DOCTOR_PKI "/%.*s.key", (int)n - 4, e->d_name),
			is_ca ? NULL : DOCTOR_PKI "/ca.pem");
	}
	if (dir != NULL)
		(void)closedir(dir);
}

static void certificates_find(struct doctor *d, struct certificates *all)
{
	const struct config *c = d->cfg;
	certificate_add(all, "security.cert_file", c->security.cert_file, c->security.key_file,
		c->security.ca_file);
	certificate_add(all, "security.ca_file", c->security.ca_file, NULL, NULL);
	certificate_add(all, "router.tls_cert_file", c->router.tls_cert_file, c->router.tls_key_file, NULL);
	certificate_add(all, "cluster.etcd_cert_file", c->cluster.etcd_cert_file, c->cluster.etcd_key_file,
		NULL);
	certificate_add(all, "cluster.etcd_ca_file", c->cluster.etcd_ca_file, NULL, NULL);
	for (size_t i = 0; i < c->n_peers; i++)
		certificate_add(all, "peers.NAME.cert_file", c->peers[i].cert_file, c->peers[i].key_file,
			NULL);
	certificates_of_folder(d, all);
}

static bool pem_read(const char *path, struct cgn_buf *out)
{
	return path != NULL && cgn_ok(disk_read_file(path, PEM_LIMIT, out, NULL));
}

/* Call |look| for each certificate that can be read; what cannot is told by the check "files". */
static void certificates_each(struct doctor *d,
	bool (*look)(struct doctor *d, const struct certificate *c, struct cgn_str pem,
		const struct pki_info *info),
	const char *fine)
{
	struct certificates all = {.n = 0};
	struct pki_info info;
	size_t seen = 0;
	certificates_find(d, &all);
	for (size_t i = 0; i < all.n; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf pem = {0};
		if (pem_read(all.list[i].path, &pem) && cgn_ok(pki_inspect(cgn_buf_view(&pem), &info, NULL)))
			seen += look(d, &all.list[i], cgn_buf_view(&pem), &info);
	}
	if (seen == 0)
		doctor_find(d, DOCTOR_SKIPPED, "there is no such certificate that can be read");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "%s (%zu)", fine, seen);
}

static void renewal_advise(struct doctor *d, const struct certificate *c, const struct pki_info *info)
{
	const char *slash = strrchr(c->path, '/'), *name = slash != NULL ? slash + 1 : c->path;
	int dir = slash != NULL ? (int)(slash - c->path) : 1;
	const char *from = slash != NULL ? c->path : ".";
	if (strncmp(c->path, "/run/credentials/", 17) == 0) { /* A copy of a unit. */
		from = DOCTOR_PKI;
		dir = (int)strlen(DOCTOR_PKI);
	}
	if (info->is_ca)
		doctor_do(d, "cgn-ctl pki rotate --ca prepare --dir %.*s", dir, from);
	else if (from == c->path && strlen(name) > 4 && strcmp(name + strlen(name) - 4, ".pem") == 0)
		doctor_do(d, "cgn-ctl pki renew %.*s --dir %.*s, then restart its program",
			(int)strlen(name) - 4, name, dir, from);
	else
		doctor_do(d, "cgn-ctl pki renew --dir %.*s, then restart its program", dir, from);
}

static bool end_look(struct doctor *d, const struct certificate *c, struct cgn_str pem,
	const struct pki_info *info)
{
	int64_t now = (int64_t)(cgn_clock_wall_ms() / 1000);
	(void)pem;
	if (info->when.to <= now)
		doctor_find(d, DOCTOR_PROBLEM, "%s (%s) ended %lld days ago", c->path, c->setting,
			(long long)(now - info->when.to) / DAY);
	else if (info->when.from > now)
		doctor_find(d, DOCTOR_PROBLEM,
			"%s (%s) is not valid yet: begins in %lld hours; is the clock right?", c->path,
			c->setting, (long long)(info->when.from - now) / 3600);
	else if (info->when.to - now < SOON)
		doctor_find(d, DOCTOR_WARNING, "%s (%s) ends in %lld days", c->path, c->setting,
			(long long)(info->when.to - now) / DAY);
	else
		return true;
	renewal_advise(d, c, info);
	return true;
}

void check_certificate_end(struct doctor *d)
{
	certificates_each(d, end_look, "all certificates are valid for 30 days or more");
}

static bool key_look(struct doctor *d, const struct certificate *c, struct cgn_str pem,
	const struct pki_info *info)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	(void)info;
	if (!pem_read(c->key, &key))
		return false;
	if (!pki_is_pair(pem, cgn_buf_view(&key))) {
		doctor_find(d, DOCTOR_PROBLEM, "%s is not the key of %s (%s)", c->key, c->path, c->setting);
		doctor_do(d, "copy certificate and key from the same run of cgn-ctl pki bootstrap or renew");
	}
	return true;
}

void check_certificate_key(struct doctor *d)
{
	certificates_each(d, key_look, "all keys belong to their certificates");
}

static bool ca_look(struct doctor *d, const struct certificate *c, struct cgn_str pem,
	const struct pki_info *info)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf ca = {0};
	bool signed_by = false;
	if (!pem_read(c->ca, &ca) || !cgn_ok(pki_signed_by(cgn_buf_view(&ca), pem, &signed_by, NULL)))
		return false;
	if (!signed_by) {
		doctor_find(d, DOCTOR_PROBLEM, "%s (%s) was signed by \"%s\", not by the CA in %s", c->path,
			c->setting, info->issuer, c->ca);
		doctor_do(d, "use the ca.pem of the same cgn-ctl pki bootstrap on all machines");
	}
	return true;
}

void check_certificate_ca(struct doctor *d)
{
	certificates_each(d, ca_look, "all certificates are signed by the configured CA");
}

/* ---- names ---- */

static bool info_has_name(const struct pki_info *info, const char *host)
{
	for (size_t i = 0; i < info->n_names; i++) {
		const char *name = info->names[i], *dot = strchr(host, '.');
		if (strcasecmp(name, host) == 0 ||
			(strncmp(name, "*.", 2) == 0 && dot != NULL && strcasecmp(name + 1, dot) == 0))
			return true;
	}
	return false;
}

static void name_look(struct doctor *d, const struct pki_info *info, const char *setting, const char *addr)
{
	struct net_addr a;
	if (addr == NULL || !cgn_ok(net_addr_parse(addr, &a, NULL)) || a.local || a.host[0] == '\0' ||
		info_has_name(info, a.host))
		return;
	doctor_find(d, DOCTOR_PROBLEM, "%s lacks the name \"%s\" of %s, so that others refuse this machine",
		d->cfg->security.cert_file, a.host, setting);
	doctor_do(d, "cgn-ctl pki bootstrap --out FOLDER --san %s, which renews it with that name", a.host);
}

void check_certificate_name(struct doctor *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf pem = {0};
	struct pki_info info;
	const struct config *c = d->cfg;
	if (!pem_read(c->security.cert_file, &pem) || !cgn_ok(pki_inspect(cgn_buf_view(&pem), &info, NULL))) {
		doctor_find(d, DOCTOR_SKIPPED, "security.cert_file is not set or cannot be read");
		return;
	}
	if (d->programs[AGENT].meant)
		name_look(d, &info, "agent.advertise", c->agent.advertise);
	if (d->programs[KVCACHED].meant)
		name_look(d, &info, "kv.advertise", c->kv.advertise);
	/* The embedded registry has one router: where its program runs, the address is this machine's. */
	if (d->programs[ROUTER].meant && c->cluster.state_backend == STATE_EMBEDDED)
		name_look(d, &info, "cluster.router", c->cluster.router);
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "%s has the names of this machine", c->security.cert_file);
}

/* ---- revoked certificates ---- */

struct revoked {
	struct doctor *d;
	struct pki_info own;
	bool has_own;
};

static CGN_RC on_crl_list(void *user, const struct pki_crl_info *info, struct cgn_err *err)
{
	struct revoked *r = user;
	int64_t now = (int64_t)(cgn_clock_wall_ms() / 1000);
	(void)err;
	if (info->when.to > 0 && info->when.to <= now) {
		doctor_find(r->d, DOCTOR_WARNING,
			"the list %s is over: its next update was due %lld days ago",
			r->d->cfg->security.crl_file, (long long)(now - info->when.to) / DAY);
		doctor_do(r->d,
			"cgn-ctl pki crl --renew --dir FOLDER-OF-THE-CA, then copy crl.pem to all machines");
	}
	return CGN_OK;
}

static CGN_RC on_crl_entry(void *user, const char *serial, int64_t when, struct cgn_err *err)
{
	struct revoked *r = user;
	(void)when;
	(void)err;
	if (r->has_own && strcasecmp(serial, r->own.serial) == 0) {
		doctor_find(r->d, DOCTOR_PROBLEM, "%s is revoked: all other programs refuse it",
			r->d->cfg->security.cert_file);
		doctor_do(r->d,
			"cgn-ctl pki renew --dir FOLDER-OF-THE-CA, and install the new certificate here");
	}
	return CGN_OK;
}

void check_revoked(struct doctor *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf list = {0}, pem = {0};
	struct revoked r = {.d = d};
	struct cgn_err err;
	const struct pki_crl_reader reader = {on_crl_list, on_crl_entry, &r};
	if (!pem_read(d->cfg->security.crl_file, &list)) {
		doctor_find(d, DOCTOR_SKIPPED, "security.crl_file is not set or cannot be read");
		return;
	}
	r.has_own = pem_read(d->cfg->security.cert_file, &pem) &&
		cgn_ok(pki_inspect(cgn_buf_view(&pem), &r.own, NULL));
	if (!cgn_ok(pki_crl_read(cgn_buf_view(&list), &reader, &err))) {
		doctor_find(d, DOCTOR_PROBLEM, "%s: %s", d->cfg->security.crl_file, err.msg);
		doctor_do(d, "copy the crl.pem that cgn-ctl pki revoke or pki crl wrote");
	} else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "the list is in force and has no certificate of this machine");
}
