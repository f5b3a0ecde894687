/* SPDX-License-Identifier: Apache-2.0 */
/* rotate: replaces the certificates of a folder that end soon, or its CA, in three steps between which the files are
 * copied to the machines. DIR/next has the CA that comes, DIR/old the one that goes. Each step can be repeated after a
 * failure. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/keys/pki_folder.h"
#include "io/net/pki/bundle.h"
#include "io/net/pki/crl.h"
#include "io/os/disk/disk.h"

#define CA_DAYS      3650
#define OLD_CRL_DAYS 365

struct rotation {
	const char *dir;
	char next[PATH_MAX], old[PATH_MAX];
	bool has_next, has_old;
};

static CGN_RC folder_look(const char *dir, const char *name, char out[PATH_MAX], bool *has,
	struct cgn_err *err)
{
	char file[PATH_MAX];
	CGN_TRY(pki_path(dir, name, "", out, err));
	CGN_TRY(pki_path(out, "ca", ".pem", file, err));
	*has = access(file, F_OK) == 0;
	return CGN_OK;
}

static CGN_RC rotation_look(const struct ctl_args *a, struct rotation *r, struct cgn_err *err)
{
	r->dir = ctl_flag(a, "--dir");
	CGN_TRY(folder_look(r->dir, "next", r->next, &r->has_next, err));
	return folder_look(r->dir, "old", r->old, &r->has_old, err);
}

static CGN_RC bundle_write(const char *dir, const struct cgn_buf *first, const struct cgn_buf *second,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char file[PATH_MAX];
	CGN_TRY(pki_path(dir, "ca", ".pem", file, err));
	cgn_buf_str(&text, pki_first(cgn_buf_view(first)));
	if (second != NULL)
		cgn_buf_str(&text, pki_first(cgn_buf_view(second)));
	return text.bad ? CGN_FAIL(err, NO_MEMORY, "out of memory") : pki_write(file, &text, 0644, err);
}

static void folder_remove(const char *dir)
{
	static const char *const names[] = {".pem", ".key"};
	char file[PATH_MAX];
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_ok(pki_path(dir, "ca", names[i], file, NULL)))
			(void)unlink(file);
	(void)rmdir(dir);
}

/* ---- the list of revoked certificates ---- */

static CGN_RC list_read(const struct rotation *r, char file[PATH_MAX], struct cgn_buf *out,
	struct cgn_err *err)
{
	CGN_TRY(pki_path(r->dir, "crl", ".pem", file, err));
	return access(file, F_OK) == 0 ? disk_read_file(file, (size_t)4 << 20, out, err) : CGN_OK;
}

/* Sign the list of |ca| again in |text|. */
static CGN_RC list_sign(const struct pki_pair *ca, int64_t days, struct cgn_buf *text, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf next = {0};
	int64_t now = pki_now();
	size_t added = 0;
	struct pki_validity when = {now, now + days * PKI_DAY};
	CGN_TRY(pki_crl_make(ca, cgn_buf_view(text), NULL, when, &next, &added, err));
	cgn_buf_fini(text);
	*text = next;
	next = (struct cgn_buf){0};
	return CGN_OK;
}

/* Where there is a list, the new CA gets one too; the old CA's is valid until its certificates are gone. */
static CGN_RC lists_switch(const struct rotation *r, const struct pki_pair *old, const struct pki_pair *next,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char file[PATH_MAX];
	CGN_TRY(list_read(r, file, &text, err));
	if (text.n == 0)
		return CGN_OK;
	CGN_TRY(list_sign(old, OLD_CRL_DAYS, &text, err));
	CGN_TRY(list_sign(next, 30, &text, err));
	return pki_write(file, &text, 0644, err);
}

static CGN_RC lists_finish(const struct rotation *r, const struct pki_pair *ca, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, own = {0};
	char file[PATH_MAX];
	CGN_TRY(list_read(r, file, &text, err));
	if (text.n == 0)
		return CGN_OK;
	CGN_TRY(list_sign(ca, 30, &text, err));
	cgn_buf_str(&own, pki_first(cgn_buf_view(&text)));
	return pki_write(file, &own, 0644, err);
}

/* ---- the steps ---- */

static CGN_RC next_make(const struct rotation *r, const struct pki_pair *now, struct pki_pair *out,
	struct cgn_err *err)
{
	struct pki_info in;
	char name[128];
	int64_t at = pki_now();
	if (r->has_next)
		return pki_read_pair(r->next, "ca", out, err);
	CGN_TRY(pki_inspect(cgn_buf_view(&now->cert), &in, err));
	pki_next_name(in.subject, name, sizeof name);
	CGN_TRY(pki_make_ca(name, (struct pki_validity){at - PKI_SKEW, at + (int64_t)CA_DAYS * PKI_DAY}, out,
		err));
	CGN_TRY(disk_mkdirs(r->next, 0700, err));
	return pki_write_pair(r->next, "ca", out, err);
}

static CGN_RC step_prepare(const struct rotation *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair now = {0}, next = {0};
	if (r->has_old)
		return CGN_FAIL(err, CONFLICT,
			"the last CA is still in %s: end that rotation first, with --ca finish", r->old);
	CGN_TRY(pki_read_pair(r->dir, "ca", &now, err));
	CGN_TRY(next_make(r, &now, &next, err));
	CGN_TRY(bundle_write(r->dir, &now.cert, &next.cert, err));
	(void)printf("%s/ca.pem has the old and the new CA; the old one still signs.\n"
		     "Next: copy ca.pem to every machine and send SIGHUP to the programs; then --ca switch\n",
		r->dir);
	return CGN_OK;
}

static CGN_RC old_keep(const struct rotation *r, struct pki_pair *out, struct cgn_err *err)
{
	if (r->has_old) /* An earlier attempt kept it. */
		return pki_read_pair(r->old, "ca", out, err);
	CGN_TRY(pki_read_pair(r->dir, "ca", out, err));
	out->cert.n = pki_first(cgn_buf_view(&out->cert)).n;
	(void)cgn_buf_z(&out->cert);
	CGN_TRY(disk_mkdirs(r->old, 0700, err));
	return pki_write_pair(r->old, "ca", out, err);
}

static CGN_RC step_switch(const struct ctl_args *a, const struct rotation *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair old = {0}, next = {0};
	if (!r->has_next)
		return CGN_FAIL(err, CONFLICT, "no new CA is prepared in %s: first --ca prepare", r->next);
	CGN_TRY(pki_read_pair(r->next, "ca", &next, err));
	CGN_TRY(old_keep(r, &old, err));
	CGN_TRY(pki_write_pair(r->dir, "ca", &next, err));
	CGN_TRY(bundle_write(r->dir, &next.cert, &old.cert, err));
	CGN_TRY(lists_switch(r, &old, &next, err));
	CGN_TRY(pki_renew_strangers(r->dir, a->json, err));
	folder_remove(r->next);
	(void)fprintf(stderr,
		"cgn-ctl: the new CA signs. Next: copy ca.pem (and crl.pem), certificates and keys to their machines and send SIGHUP; machines that joined by a token join again (cgn-ctl node join --replace); then --ca finish\n");
	return CGN_OK;
}

static CGN_RC step_finish(const struct rotation *r, struct cgn_err *err)
{
	CGN_ON_EXIT(pki_pair_fini) struct pki_pair ca = {0};
	if (r->has_next || !r->has_old)
		return CGN_FAIL(err, CONFLICT,
			"no CA was replaced in %s: first --ca prepare, then --ca switch", r->dir);
	CGN_TRY(pki_refuse_strangers(r->dir, err));
	CGN_TRY(pki_read_pair(r->dir, "ca", &ca, err));
	CGN_TRY(lists_finish(r, &ca, err));
	CGN_TRY(bundle_write(r->dir, &ca.cert, NULL, err));
	folder_remove(r->old);
	(void)printf(
		"%s/ca.pem has the new CA only, and the old one's key is gone.\n"
		"Next: copy ca.pem (and crl.pem) to every machine and send SIGHUP: what the old CA signed is refused from then on\n",
		r->dir);
	return CGN_OK;
}

CGN_RC ctl_pki_rotate(const struct ctl_args *a, struct cgn_err *err)
{
	struct rotation r = {.dir = NULL};
	const char *step = ctl_flag(a, "--ca");
	if (step == NULL)
		return ctl_pki_renew(a, err);
	CGN_TRY(rotation_look(a, &r, err));
	if (strcmp(step, "prepare") == 0)
		return step_prepare(&r, err);
	if (strcmp(step, "switch") == 0)
		return step_switch(a, &r, err);
	if (strcmp(step, "finish") == 0)
		return step_finish(&r, err);
	return CGN_FAIL(err, INVALID, "--ca is prepare, switch or finish, in this order, not \"%.40s\"",
		step);
}
