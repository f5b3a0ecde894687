/* SPDX-License-Identifier: Apache-2.0 */
/* pki: creates a cluster CA and a certificate for each program (bootstrap), renews certificates and shows how
 * long they are valid. An existing CA is used again, and an existing certificate keeps its names. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/core/utc.h"
#include "ctl/ctl.h"
#include "ctl/keys/holder.h"
#include "ctl/keys/pki_folder.h"
#include "io/net/pki/crl.h"
#include "io/net/pki/pki.h"
#include "io/os/disk/disk.h"
#include "io/os/loop/loop.h"

#define FIXED_NAMES (4 + HOLDER_MAX_ROLES)

CGN_RC pki_path(const char *dir, const char *name, const char *suffix, char *out, struct cgn_err *err)
{
	return snprintf(out, PATH_MAX, "%s/%s%s", dir, name, suffix) < PATH_MAX
		? CGN_OK
		: CGN_FAIL(err, INVALID, "path too long: %s", dir);
}

int64_t pki_now(void)
{
	return (int64_t)(cgn_clock_wall_ms() / 1000);
}

int64_t pki_days_left(int64_t end)
{
	int64_t left = end - pki_now();
	return left < 0 ? (left - PKI_DAY + 1) / PKI_DAY : left / PKI_DAY;
}

/* The program that reads the file must still be able to. */
CGN_RC pki_write(const char *path, const struct cgn_buf *text, mode_t mode, struct cgn_err *err)
{
	struct stat before;
	bool there = stat(path, &before) == 0;
	CGN_TRY(disk_write_file_atomic(path, cgn_buf_view(text), there ? before.st_mode & 0777 : mode, err));
	if (there && (before.st_uid != geteuid() || before.st_gid != getegid()) &&
		chown(path, before.st_uid, before.st_gid) != 0)
		return CGN_FAIL(err, STORAGE, "%s was written, but its owner is another now: %s", path,
			strerror(errno));
	return CGN_OK;
}

CGN_RC pki_write_pair(const char *dir, const char *name, const struct pki_pair *pair, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(pki_path(dir, name, ".key", path, err));
	CGN_TRY(pki_write(path, &pair->key, 0600, err));
	CGN_TRY(pki_path(dir, name, ".pem", path, err));
	return pki_write(path, &pair->cert, 0644, err);
}

CGN_RC pki_read_pair(const char *dir, const char *name, struct pki_pair *pair, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(pki_path(dir, name, ".pem", path, err));
	CGN_TRY(disk_read_file(path, PKI_PEM_LIMIT, &pair->cert, err));
	CGN_TRY(pki_path(dir, name, ".key", path, err));
	CGN_TRY(disk_read_file(path, PKI_PEM_LIMIT, &pair->key, err));
	(void)cgn_buf_z(&pair->cert);
	(void)cgn_buf_z(&pair->key);
	return CGN_OK;
}

/* Load the CA of |dir|, or make one, which is not written yet. */
static CGN_RC load_authority(const struct ctl_args *a, const char *dir, uint64_t days, struct pki_pair *ca,
	bool *made, struct cgn_err *err)
{
	char cert[PATH_MAX], common_name[128];
	CGN_TRY(pki_path(dir, "ca", ".pem", cert, err));
	*made = access(cert, F_OK) != 0;
	if (!*made)
		return pki_read_pair(dir, "ca", ca, err);
	int64_t now = pki_now();
	(void)snprintf(common_name, sizeof common_name, "%.100s cluster CA", ctl_flag(a, "--name"));
	return pki_make_ca(common_name,
		(struct pki_validity){now - PKI_SKEW, now + (int64_t)days * 10 * PKI_DAY}, ca, err);
}

/* Collect the names of the certificates: this host, loopback, and each --san. */
static CGN_RC names_of(const struct ctl_args *a, char *host, size_t cap, const char **names,
	struct cgn_err *err)
{
	static const char *const loopback[] = {"localhost", "127.0.0.1", "::1"};
	size_t n = 0;
	for (size_t i = 0; i < CGN_COUNT(loopback); i++)
		names[n++] = loopback[i];
	if (gethostname(host, cap) == 0 && host[0] != '\0' && strcmp(host, "localhost") != 0)
		names[n++] = host;
	const char *san;
	for (size_t i = 0; (san = ctl_flag_nth(a, "--san", i)) != NULL; i++) {
		if (n == PKI_MAX_NAMES - HOLDER_MAX_ROLES)
			return CGN_FAIL(err, INVALID, "more than %d names", PKI_MAX_NAMES - FIXED_NAMES);
		names[n++] = san;
	}
	names[n] = NULL;
	return CGN_OK;
}

/* Read the facts of NAME.pem and, if |text| is not NULL, its text. */
static CGN_RC inspect_leaf(const char *dir, const char *name, struct cgn_buf *text, struct pki_info *out,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf own = {0};
	struct cgn_buf *to = text != NULL ? text : &own;
	char path[PATH_MAX];
	CGN_TRY(pki_path(dir, name, ".pem", path, err));
	CGN_TRY(disk_read_file(path, PKI_PEM_LIMIT, to, err));
	return cgn_err_of(pki_inspect(cgn_buf_view(to), out, err), path, err);
}

static bool leaf_exists(const char *dir, const char *name)
{
	char path[PATH_MAX];
	return cgn_ok(pki_path(dir, name, ".pem", path, NULL)) && access(path, F_OK) == 0;
}

/* A certificate of a table, and the texts of its roles, node and names. */
struct leaf_listed {
	const char *dir, *name;
	struct pki_info in;
	struct cgn_buf roles, node, names;
};

static void holder_cells(struct ctl_table *t, const struct leaf_listed *l)
{
	CTL_CELL(t, "ROLES", "%s", l->roles.p);
	CTL_CELL(t, "NODE", "%s", l->node.p);
	CTL_CELL(t, "NAMES", "%s", l->names.p);
}

/* The row of a certificate that was written. */
static void leaf_row(struct ctl_table *t, const void *of)
{
	const struct leaf_listed *l = of;
	CTL_CELL(t, "CERTIFICATE", "%s/%s.pem", l->dir, l->name);
	CTL_CELL(t, "KEY", "%s/%s.key", l->dir, l->name);
	CTL_CELL(t, "DAYS", "%lld", (long long)(l->in.when.to - pki_now() + PKI_DAY / 2) / PKI_DAY);
	holder_cells(t, l);
}

/* Add the row of NAME.pem in |dir|. */
static CGN_RC listed_add(const char *dir, const char *name, ctl_row *row, struct ctl_table *t,
	struct cgn_err *err)
{
	struct leaf_listed l = {.dir = dir, .name = name};
	struct cgn_buf *const texts[] = {&l.roles, &l.node, &l.names};
	CGN_TRY(inspect_leaf(dir, name, NULL, &l.in, err));
	holder_show(&l.in, &l.roles, &l.node, &l.names);
	for (size_t i = 0; i < CGN_COUNT(texts); i++)
		(void)cgn_buf_z(texts[i]);
	row(t, &l);
	for (size_t i = 0; i < CGN_COUNT(texts); i++)
		cgn_buf_fini(texts[i]);
	return CGN_OK;
}

static CGN_RC check_days(const char *dir, uint64_t days, const struct pki_info *authority,
	struct cgn_err *err)
{
	int64_t now = pki_now();
	return now + (int64_t)days * PKI_DAY <= authority->when.to
		? CGN_OK
		: CGN_FAIL(err, INVALID,
			  "--days %llu is longer than the rest of the CA's validity in %s: %lld days",
			  (unsigned long long)days, dir, (long long)(authority->when.to - now) / PKI_DAY);
}

/* A certificate that bootstrap made. */
struct made {
	char name[HOLDER_FILE_MAX];
	struct pki_pair pair;
	bool there; /* Files of this name were there already. */
};

/* The certificates that bootstrap makes. They are written when all of them are made. */
struct making {
	const char *dir, *cluster, *node; /* |node|: that of agent and kvcached. */
	uint64_t days;
	struct pki_pair ca;
	const char *names[PKI_MAX_NAMES + 1];
	size_t n_names; /* Without the URIs of a certificate. */
	struct made *leaves;
	size_t n_leaves;
	struct ctl_table table;
};

static void making_fini(struct making *m)
{
	for (size_t i = 0; i < m->n_leaves; i++)
		pki_pair_fini(&m->leaves[i].pair);
	free(m->leaves);
	pki_pair_fini(&m->ca);
	cgn_buf_fini(&m->table.text);
}

/* Create a certificate, or renew the one that is there, with its names and those of |m| and |h|. */
static CGN_RC sign_leaf(struct making *m, struct holder *h, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf old = {0};
	struct pki_info in = {0};
	struct made *made = &m->leaves[m->n_leaves++];
	char key[PATH_MAX];
	int64_t now = pki_now();
	const struct pki_validity when = {now, now + (int64_t)m->days * PKI_DAY};
	bool again = leaf_exists(m->dir, h->file);
	if (again) {
		CGN_TRY(inspect_leaf(m->dir, h->file, &old, &in, err));
		CGN_TRY(holder_match(&in, h, err));
	}
	size_t n = m->n_names;
	for (size_t i = 0; i < h->n_uris; i++)
		m->names[n++] = h->uris[i];
	m->names[n] = NULL;
	if (again)
		CGN_TRY(cgn_err_of(pki_renew_leaf(&m->ca, cgn_buf_view(&old), m->names, when, &made->pair,
					   err),
			h->file, err));
	else
		CGN_TRY(pki_make_leaf(&m->ca, h->file, m->names, when, &made->pair, err));
	memcpy(made->name, h->file, sizeof made->name);
	CGN_TRY(pki_path(m->dir, h->file, ".key", key, err));
	made->there = again || access(key, F_OK) == 0;
	return CGN_OK;
}

static CGN_RC make_leaf(struct making *m, const char *leaf, struct cgn_err *err)
{
	struct pki_info in = {0};
	struct holder h;
	CGN_TRY(holder_read(leaf, m->cluster, m->node, &h, err));
	CGN_TRY(pki_inspect(cgn_buf_view(&m->ca.cert), &in, err));
	CGN_TRY(check_days(m->dir, m->days, &in, err));
	return sign_leaf(m, &h, err);
}

static CGN_RC make_leaves(const struct ctl_args *a, struct making *m, struct cgn_err *err)
{
	static const char *const usual[] = {"router", "agent", "admin"};
	const char *leaf;
	char host[256] = {0};
	CGN_TRY(names_of(a, host, sizeof host - 1, m->names, err));
	for (m->n_names = 0; m->names[m->n_names] != NULL;)
		m->n_names++;
	if ((m->node = ctl_flag(a, "--node")) == NULL)
		m->node = host;
	size_t n = 0;
	while (ctl_flag_nth(a, "--leaf", n) != NULL)
		n++;
	m->leaves = CGN_NEW_ARRAY(struct made, n > 0 ? n : CGN_COUNT(usual));
	for (size_t i = 0; (leaf = ctl_flag_nth(a, "--leaf", i)) != NULL; i++)
		CGN_TRY(make_leaf(m, leaf, err));
	for (size_t i = 0; n == 0 && i < CGN_COUNT(usual); i++)
		CGN_TRY(make_leaf(m, usual[i], err));
	return CGN_OK;
}

static void pair_remove(const char *dir, const char *name)
{
	char path[PATH_MAX];
	if (cgn_ok(pki_path(dir, name, ".pem", path, NULL)))
		(void)unlink(path);
	if (cgn_ok(pki_path(dir, name, ".key", path, NULL)))
		(void)unlink(path);
}

/* Write the CA, if it is new, and the first |*n| certificates; set |*n| to how many were tried. */
static CGN_RC pairs_write(const struct making *m, bool new_ca, size_t *n, struct cgn_err *err)
{
	size_t all = *n;
	*n = 0;
	if (new_ca)
		CGN_TRY(pki_write_pair(m->dir, "ca", &m->ca, err));
	while (*n < all) {
		const struct made *leaf = &m->leaves[(*n)++];
		CGN_TRY(pki_write_pair(m->dir, leaf->name, &leaf->pair, err));
	}
	return CGN_OK;
}

/* Write all, or nothing new: a CA whose certificates could not be written is removed, unless files of its certificates were
 * there before. */
static CGN_RC making_write(const struct making *m, bool new_ca, struct cgn_err *err)
{
	size_t n = m->n_leaves;
	cgn_rc rc = pairs_write(m, new_ca, &n, err);
	if (cgn_ok(rc))
		return rc;
	for (size_t i = 0; i + 1 < n; i++) /* The last one failed. */
		if (m->leaves[i].there)
			return rc;
	for (size_t i = 0; i < n; i++)
		if (!m->leaves[i].there)
			pair_remove(m->dir, m->leaves[i].name);
	if (new_ca)
		pair_remove(m->dir, "ca");
	return rc;
}

CGN_RC ctl_pki_bootstrap(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(making_fini)
	struct making m = {.dir = ctl_flag(a, "--out"), .cluster = ctl_flag(a, "--name")};
	bool made = false;
	CGN_TRY(ctl_flag_u64(a, "--days", 1, 36500, &m.days, err));
	CGN_TRY(disk_mkdirs(m.dir, 0700, err));
	ctl_table_head(&m.table, leaf_row);
	CGN_TRY(load_authority(a, m.dir, m.days, &m.ca, &made, err));
	CGN_TRY(make_leaves(a, &m, err));
	CGN_TRY(making_write(&m, made, err));
	if (made)
		CGN_TRY(listed_add(m.dir, "ca", leaf_row, &m.table, err));
	for (size_t i = 0; i < m.n_leaves; i++)
		CGN_TRY(listed_add(m.dir, m.leaves[i].name, leaf_row, &m.table, err));
	return ctl_table_print(&m.table, a->json, err);
}

/* ---- renew, show ---- */

static int is_certificate(const struct dirent *e)
{
	size_t n = strlen(e->d_name);
	return n > 4 && e->d_name[0] != '.' && strcmp(e->d_name + n - 4, ".pem") == 0 &&
		strcmp(e->d_name, "crl.pem") != 0;
}

/* Call |each| with the name of each certificate of |dir|, the CA's too, in alphabetical order. */
static CGN_RC each_certificate(const char *dir,
	CGN_RC (*each)(void *user, const char *name, struct cgn_err *err), void *user, struct cgn_err *err)
{
	struct dirent **list = NULL;
	int n = scandir(dir, &list, is_certificate, alphasort);
	cgn_rc rc = CGN_OK;
	if (n < 0)
		return CGN_FAIL(err, NOT_FOUND, "%s: %s; name the folder with --dir", dir, strerror(errno));
	for (int i = 0; i < n; i++) {
		list[i]->d_name[strlen(list[i]->d_name) - 4] = '\0';
		if (cgn_ok(rc))
			rc = each(user, list[i]->d_name, err);
		free(list[i]);
	}
	free(list);
	return rc;
}

struct renewal {
	const char *dir;
	struct pki_pair ca;
	struct pki_info authority;
	uint64_t days, within; /* 0: as long as before; 0: all. */
	bool strangers;        /* Only those that |ca| did not sign. */
	struct ctl_table table;
};

static void renewal_fini(struct renewal *r)
{
	pki_pair_fini(&r->ca);
	cgn_buf_fini(&r->table.text);
}

/* Return when the new certificate ends. Without --days it is valid as long as the old one, but not longer than
 * the CA, which is said. */
static CGN_RC renewal_end(const struct renewal *r, const char *name, const struct pki_info *old, int64_t now,
	int64_t *out, struct cgn_err *err)
{
	*out = now + (r->days > 0 ? (int64_t)r->days * PKI_DAY : old->when.to - old->when.from);
	if (r->days > 0)
		return check_days(r->dir, r->days, &r->authority, err);
	if (*out > r->authority.when.to) {
		*out = r->authority.when.to;
		(void)fprintf(stderr,
			"cgn-ctl: %s/%s.pem ends with the CA, in %lld days: make a new CA soon\n", r->dir,
			name, (long long)(*out - now) / PKI_DAY);
	}
	return CGN_OK;
}

static CGN_RC renew_leaf(struct renewal *r, const char *name, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair pair = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf old = {0};
	struct pki_info in;
	struct pki_validity when = {.from = pki_now()};
	CGN_TRY(inspect_leaf(r->dir, name, &old, &in, err));
	if (r->within > 0 && in.when.to - when.from > (int64_t)r->within * PKI_DAY)
		return CGN_OK;
	bool ours = false;
	CGN_TRY(pki_signed_by(cgn_buf_view(&r->ca.cert), cgn_buf_view(&old), &ours, err));
	if (r->strangers && ours)
		return CGN_OK;
	CGN_TRY(renewal_end(r, name, &in, when.from, &when.to, err));
	CGN_TRY(cgn_err_of(pki_renew_leaf(&r->ca, cgn_buf_view(&old), NULL, when, &pair, err), name, err));
	CGN_TRY(pki_write_pair(r->dir, name, &pair, err));
	return listed_add(r->dir, name, leaf_row, &r->table, err);
}

/* Renew a leaf of "all": certificates without a key beside them are others' (another CA, a trust store). */
static CGN_RC renew_found(void *user, const char *name, struct cgn_err *err)
{
	struct renewal *r = user;
	char key[PATH_MAX];
	CGN_TRY(pki_path(r->dir, name, ".key", key, err));
	return strcmp(name, "ca") == 0 || access(key, F_OK) != 0 ? CGN_OK : renew_leaf(r, name, err);
}

static CGN_RC renew_named(const struct ctl_args *a, struct renewal *r, struct cgn_err *err)
{
	for (size_t i = 0; i < a->n_words; i++)
		if (!holder_file_ok(a->words[i]) || !leaf_exists(r->dir, a->words[i]))
			return CGN_FAIL(err, NOT_FOUND,
				"there is no certificate %s/%.100s.pem; cgn-ctl pki show --dir %s lists them",
				r->dir, a->words[i], r->dir);
	for (size_t i = 0; i < a->n_words; i++)
		CGN_TRY(renew_leaf(r, a->words[i], err));
	return CGN_OK;
}

static CGN_RC renew_run(const struct ctl_args *a, struct renewal *r, struct cgn_err *err)
{
	if (ctl_flag(a, "--days") != NULL)
		CGN_TRY(ctl_flag_u64(a, "--days", 1, 36500, &r->days, err));
	if (ctl_flag(a, "--within") != NULL)
		CGN_TRY(ctl_flag_u64(a, "--within", 1, 36500, &r->within, err));
	CGN_TRY(pki_read_pair(r->dir, "ca", &r->ca, err));
	CGN_TRY(pki_inspect(cgn_buf_view(&r->ca.cert), &r->authority, err));
	ctl_table_head(&r->table, leaf_row);
	return a->n_words > 0 ? renew_named(a, r, err) : each_certificate(r->dir, renew_found, r, err);
}

CGN_RC ctl_pki_renew(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(renewal_fini) struct renewal r = {.dir = ctl_flag(a, "--dir")};
	CGN_TRY(renew_run(a, &r, err));
	return ctl_table_print(&r.table, a->json, err);
}

struct showing {
	const char *dir;
	struct ctl_table table;
};

static void showing_fini(struct showing *s)
{
	cgn_buf_fini(&s->table.text);
}

static void show_row(struct ctl_table *t, const void *of)
{
	const struct leaf_listed *l = of;
	char ends[40] = "";
	if (!t->heading)
		(void)cgn_utc_text(l->in.when.to, "%Y-%m-%d %H:%M:%S", ends, sizeof ends);
	CTL_CELL(t, "CERTIFICATE", "%s.pem", l->name);
	CTL_CELL(t, "KIND", "%s", l->in.is_ca ? "ca" : "leaf");
	CTL_CELL(t, "SUBJECT", "%s", l->in.subject);
	CTL_CELL(t, "DAYS LEFT", "%lld", (long long)pki_days_left(l->in.when.to));
	CTL_CELL(t, "ENDS UTC", "%s", ends);
	CTL_CELL_WIDE(t, "ISSUER", "%s", l->in.issuer);
	CTL_CELL_WIDE(t, "SERIAL", "%s", l->in.serial);
	holder_cells(t, l);
}

static CGN_RC show_certificate(void *user, const char *name, struct cgn_err *err)
{
	struct showing *s = user;
	return listed_add(s->dir, name, show_row, &s->table, err);
}

CGN_RC ctl_pki_show(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(showing_fini)
	struct showing s = {.dir = ctl_flag(a, "--dir"), .table = {.wide = a->wide}};
	ctl_table_head(&s.table, show_row);
	CGN_TRY(each_certificate(s.dir, show_certificate, &s, err));
	return ctl_table_print(&s.table, a->json, err);
}

/* ---- for the other verbs ---- */

CGN_RC pki_renew_strangers(const char *dir, bool json, struct cgn_err *err)
{
	CGN_ON_EXIT(renewal_fini) struct renewal r = {.dir = dir, .strangers = true};
	CGN_TRY(pki_read_pair(dir, "ca", &r.ca, err));
	CGN_TRY(pki_inspect(cgn_buf_view(&r.ca.cert), &r.authority, err));
	ctl_table_head(&r.table, leaf_row);
	CGN_TRY(each_certificate(dir, renew_found, &r, err));
	return ctl_table_print(&r.table, json, err);
}

static CGN_RC stranger_refuse(void *user, const char *name, struct cgn_err *err)
{
	const struct renewal *r = user;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf pem = {0};
	struct pki_info in;
	bool ours = false;
	CGN_TRY(inspect_leaf(r->dir, name, &pem, &in, err));
	CGN_TRY(pki_signed_by(cgn_buf_view(&r->ca.cert), cgn_buf_view(&pem), &ours, err));
	return ours || in.is_ca
		? CGN_OK
		: CGN_FAIL(err, INVALID, "%s/%s.pem is not of the new CA: renew it first", r->dir, name);
}

CGN_RC pki_refuse_strangers(const char *dir, struct cgn_err *err)
{
	CGN_ON_EXIT(renewal_fini) struct renewal r = {.dir = dir};
	CGN_TRY(pki_read_pair(dir, "ca", &r.ca, err));
	return each_certificate(dir, stranger_refuse, &r, err);
}
