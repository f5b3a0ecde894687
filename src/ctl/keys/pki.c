/* SPDX-License-Identifier: Apache-2.0 */
/* pki bootstrap: creates a cluster CA and a certificate for each program. Reuses an existing CA, so that more
 * certificates can be created later. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "io/disk/disk.h"
#include "io/loop/loop.h"
#include "io/pki/pki.h"

#define PEM_LIMIT   ((size_t)256 << 10)
#define DAY         86400
#define SKEW        300 /* Allowance in seconds for clocks of other machines that are behind. */
#define FIXED_NAMES 4

static CGN_RC path_of(const char *dir, const char *name, const char *suffix, char *out, struct cgn_err *err)
{
	return snprintf(out, PATH_MAX, "%s/%s%s", dir, name, suffix) < PATH_MAX
		? CGN_OK
		: CGN_FAIL(err, INVALID, "path too long: %s", dir);
}

static CGN_RC write_pair(const char *dir, const char *name, const struct pki_pair *pair, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(path_of(dir, name, ".key", path, err));
	CGN_TRY(disk_write_file_atomic(path, cgn_buf_view(&pair->key), 0600, err));
	CGN_TRY(path_of(dir, name, ".pem", path, err));
	return disk_write_file_atomic(path, cgn_buf_view(&pair->cert), 0644, err);
}

static CGN_RC read_pair(const char *dir, const char *name, struct pki_pair *pair, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_TRY(path_of(dir, name, ".pem", path, err));
	CGN_TRY(disk_read_file(path, PEM_LIMIT, &pair->cert, err));
	CGN_TRY(path_of(dir, name, ".key", path, err));
	CGN_TRY(disk_read_file(path, PEM_LIMIT, &pair->key, err));
	(void)cgn_buf_z(&pair->cert);
	(void)cgn_buf_z(&pair->key);
	return CGN_OK;
}

/* Load the CA of |dir|, or create one. */
static CGN_RC load_authority(const struct ctl_args *a, const char *dir, uint64_t days, struct pki_pair *ca,
	bool *made, struct cgn_err *err)
{
	char cert[PATH_MAX], common_name[128];
	CGN_TRY(path_of(dir, "ca", ".pem", cert, err));
	*made = access(cert, F_OK) != 0;
	if (!*made)
		return read_pair(dir, "ca", ca, err);
	int64_t now = (int64_t)(cgn_clock_wall_ms() / 1000);
	(void)snprintf(common_name, sizeof common_name, "%.100s cluster CA", ctl_flag(a, "--name"));
	CGN_TRY(pki_make_ca(common_name, (struct pki_validity){now - SKEW, now + (int64_t)days * 10 * DAY},
		ca, err));
	return write_pair(dir, "ca", ca, err);
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
		if (n == PKI_MAX_NAMES)
			return CGN_FAIL(err, INVALID, "more than %d names", PKI_MAX_NAMES - FIXED_NAMES);
		names[n++] = san;
	}
	names[n] = NULL;
	return CGN_OK;
}

static bool name_ok(const char *name)
{
	return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strcmp(name, "ca") != 0;
}

static CGN_RC make_leaf(const char *dir, const char *name, const char *const *names, uint64_t days,
	const struct pki_pair *ca, struct ctl_table *t, struct cgn_err *err)
{
	struct pki_pair pair = {0};
	struct pki_info authority = {0};
	int64_t now = (int64_t)(cgn_clock_wall_ms() / 1000), until = now + (int64_t)days * DAY;
	if (!name_ok(name))
		return CGN_FAIL(err, INVALID,
			"'%s' cannot be the name of a certificate: it must not be 'ca', begin with '.' or contain '/'",
			name);
	cgn_rc rc = pki_inspect(cgn_buf_view(&ca->cert), &authority, err);
	if (cgn_ok(rc) && until > authority.when.to)
		return CGN_FAIL(err, INVALID,
			"--days %llu is longer than the rest of the CA's validity in %s: %lld days",
			(unsigned long long)days, dir, (long long)(authority.when.to - now) / DAY);
	if (cgn_ok(rc))
		rc = pki_make_leaf(ca, name, names, (struct pki_validity){now, until}, &pair, err);
	if (cgn_ok(rc))
		rc = write_pair(dir, name, &pair, err);
	pki_pair_fini(&pair);
	ctl_table_cell(t, "%s/%s.pem", dir, name);
	ctl_table_cell(t, "%s/%s.key", dir, name);
	ctl_table_cell(t, "%llu", (unsigned long long)days);
	return rc;
}

static CGN_RC make_leaves(const struct ctl_args *a, const char *dir, uint64_t days, const struct pki_pair *ca,
	struct ctl_table *t, struct cgn_err *err)
{
	static const char *const usual[] = {"router", "agent", "admin"};
	const char *names[PKI_MAX_NAMES + 1], *name;
	char host[256] = {0};
	CGN_TRY(names_of(a, host, sizeof host - 1, names, err));
	for (size_t i = 0; (name = ctl_flag_nth(a, "--leaf", i)) != NULL; i++)
		CGN_TRY(make_leaf(dir, name, names, days, ca, t, err));
	for (size_t i = 0; ctl_flag_nth(a, "--leaf", 0) == NULL && i < CGN_COUNT(usual); i++)
		CGN_TRY(make_leaf(dir, usual[i], names, days, ca, t, err));
	return CGN_OK;
}

CGN_RC ctl_pki_bootstrap(const struct ctl_args *a, struct cgn_err *err)
{
	const char *dir = ctl_flag(a, "--out");
	uint64_t days = 0;
	bool made = false;
	struct pki_pair ca = {0};
	struct ctl_table t = {0};
	CGN_TRY(ctl_flag_u64(a, "--days", 1, 36500, &days, err));
	CGN_TRY(disk_mkdirs(dir, 0700, err));
	ctl_table_column(&t, "CERTIFICATE", false);
	ctl_table_column(&t, "KEY", false);
	ctl_table_column(&t, "DAYS", true);
	cgn_rc rc = load_authority(a, dir, days, &ca, &made, err);
	if (cgn_ok(rc) && made) {
		ctl_table_cell(&t, "%s/ca.pem", dir);
		ctl_table_cell(&t, "%s/ca.key", dir);
		ctl_table_cell(&t, "%llu", (unsigned long long)days * 10);
	}
	if (cgn_ok(rc))
		rc = make_leaves(a, dir, days, &ca, &t, err);
	pki_pair_fini(&ca);
	if (cgn_ok(rc))
		return ctl_table_print(&t, a->json, err);
	cgn_buf_fini(&t.text);
	return rc;
}
