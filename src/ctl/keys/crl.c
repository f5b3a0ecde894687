/* SPDX-License-Identifier: Apache-2.0 */
/* crl: the list of revoked certificates beside a CA: pki revoke extends it, pki crl shows it and signs it again. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/core/utc.h"
#include "ctl/ctl.h"
#include "ctl/keys/pki_folder.h"
#include "io/net/pki/crl.h"
#include "io/os/disk/disk.h"

#define LIST_LIMIT ((size_t)4 << 20) /* The limit of io/net/tls/crl.h. */

static void time_text(int64_t at, char *out, size_t cap)
{
	out[0] = '\0';
	if (at >= 0)
		(void)cgn_utc_text(at, "%Y-%m-%d %H:%M:%S", out, cap);
}

/* ---- the file ---- */

struct crl_folder {
	const char *dir;
	char file[PATH_MAX];
	struct pki_pair ca, last; /* |last|: the CA that is being replaced (pki rotate --ca); empty: none. */
	struct cgn_buf old;       /* Empty: there is no list yet. */
};

static void folder_fini(struct crl_folder *f)
{
	pki_pair_fini(&f->ca);
	pki_pair_fini(&f->last);
	cgn_buf_fini(&f->old);
}

static CGN_RC folder_read_list(const struct ctl_args *a, struct crl_folder *f, struct cgn_err *err)
{
	f->dir = ctl_flag(a, "--dir");
	CGN_TRY(pki_path(f->dir, "crl", ".pem", f->file, err));
	return access(f->file, F_OK) == 0 ? disk_read_file(f->file, LIST_LIMIT, &f->old, err) : CGN_OK;
}

static CGN_RC folder_read_ca(struct crl_folder *f, struct cgn_err *err)
{
	struct cgn_err why;
	char last[PATH_MAX];
	CGN_TRY(pki_path(f->dir, "old", "", last, err));
	if (cgn_ok(pki_read_pair(f->dir, "ca", &f->ca, &why))) {
		if (!cgn_ok(pki_read_pair(last, "ca", &f->last, NULL)))
			pki_pair_fini(&f->last);
		return CGN_OK;
	}
	return CGN_FAIL(err, NOT_FOUND,
		"%.350s; the list is signed where the CA's key is: name that folder with --dir", why.msg);
}

/* Make the next list of |ca| in f->old, with |serials| in it too. */
static CGN_RC list_next(struct crl_folder *f, const struct pki_pair *ca, const char *const *serials,
	struct pki_validity when, size_t *added, struct cgn_err *err)
{
	struct cgn_buf list = {0};
	size_t n = 0;
	cgn_rc rc = pki_crl_make(ca, cgn_buf_view(&f->old), serials, when, &list, &n, err);
	if (!cgn_ok(rc)) {
		cgn_buf_fini(&list);
		return rc;
	}
	cgn_buf_fini(&f->old);
	f->old = list;
	*added += n;
	return CGN_OK;
}

/* Sign the next list, with |serials| in it too, and write it; while the CA is replaced, that of the last CA with
 * |last_serials|. */
static CGN_RC folder_sign(const struct ctl_args *a, struct crl_folder *f, const char *const *serials,
	const char *const *last_serials, size_t *added, struct cgn_err *err)
{
	uint64_t days = 0;
	int64_t now = pki_now();
	CGN_TRY(ctl_flag_u64(a, "--days", 1, 3650, &days, err));
	struct pki_validity when = {now, now + (int64_t)days * PKI_DAY};
	if (f->last.cert.n > 0)
		CGN_TRY(list_next(f, &f->last, last_serials, when, added, err));
	CGN_TRY(list_next(f, &f->ca, serials, when, added, err));
	return pki_write(f->file, &f->old, 0644, err);
}

/* ---- crl ---- */

static void list_row(struct ctl_table *t, const void *of)
{
	const struct pki_crl_info *in = of;
	char made[40] = "", ends[40] = "";
	if (!t->heading) {
		time_text(in->when.from, made, sizeof made);
		time_text(in->when.to, ends, sizeof ends);
	}
	CTL_CELL(t, "CA", "%s", in->issuer);
	CTL_CELL(t, "NUMBER", "%llu", (unsigned long long)in->number);
	CTL_CELL(t, "REVOKED", "%zu", in->n);
	CTL_CELL(t, "MADE UTC", "%s", made);
	CTL_CELL(t, "NEXT UPDATE UTC", "%s", ends);
	CTL_CELL(t, "DAYS LEFT", "%lld", (long long)pki_days_left(in->when.to));
}

static CGN_RC list_found(void *user, const struct pki_crl_info *in, struct cgn_err *err)
{
	char ends[40];
	(void)err;
	list_row(user, in);
	time_text(in->when.to, ends, sizeof ends);
	if (in->when.to < pki_now())
		(void)fprintf(stderr,
			"cgn-ctl: the list of %s is over since %s UTC: sign it again with cgn-ctl pki crl --renew\n",
			ctl_shown(in->issuer), ends);
	return CGN_OK;
}

static CGN_RC list_skip(void *user, const struct pki_crl_info *in, struct cgn_err *err)
{
	(void)user;
	(void)in;
	(void)err;
	return CGN_OK;
}

/* A serial number in a list, and since when, as text. */
struct revoked {
	const char *serial;
	char since[40];
};

static void entry_row(struct ctl_table *t, const void *of)
{
	const struct revoked *r = of;
	CTL_CELL(t, "SERIAL", "%s", r->serial);
	CTL_CELL(t, "REVOKED UTC", "%s", r->since);
}

static CGN_RC entry_found(void *user, const char *serial, int64_t when, struct cgn_err *err)
{
	struct revoked r = {.serial = serial};
	(void)err;
	time_text(when, r.since, sizeof r.since);
	entry_row(user, &r);
	return CGN_OK;
}

static CGN_RC list_show(const struct ctl_args *a, const struct crl_folder *f, struct cgn_err *err)
{
	struct ctl_table t = {0};
	struct pki_crl_reader reader = {.list = list_found, .user = &t};
	if (ctl_switch(a, "--serials")) {
		reader.list = list_skip;
		reader.entry = entry_found;
	}
	ctl_table_head(&t, reader.entry != NULL ? entry_row : list_row);
	cgn_rc rc = cgn_err_of(pki_crl_read(cgn_buf_view(&f->old), &reader, err), f->file, err);
	if (cgn_ok(rc))
		return ctl_table_print(&t, a->json, err);
	cgn_buf_fini(&t.text);
	return rc;
}

CGN_RC ctl_pki_crl(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(folder_fini) struct crl_folder f = {0};
	size_t added = 0;
	CGN_TRY(folder_read_list(a, &f, err));
	if (ctl_switch(a, "--renew")) {
		CGN_TRY(folder_read_ca(&f, err));
		CGN_TRY(folder_sign(a, &f, NULL, NULL, &added, err));
	}
	if (f.old.n == 0)
		return CGN_FAIL(err, NOT_FOUND,
			"there is no list %s; cgn-ctl pki crl --renew --dir %s makes an empty one", f.file,
			f.dir);
	return list_show(a, &f, err);
}

/* ---- revoke ---- */

static bool is_file_name(const char *word)
{
	size_t n = strlen(word);
	return strchr(word, '/') != NULL || (n > 4 && strcmp(word + n - 4, ".pem") == 0);
}

/* Read the certificate that |word| names: a file, or a name in the folder. Returns false when it names none. */
static bool word_file(const struct crl_folder *f, const char *word, char file[PATH_MAX])
{
	if (is_file_name(word))
		return cgn_str_copyz(file, PATH_MAX, cgn_str_of(word));
	return cgn_ok(pki_path(f->dir, word, ".pem", file, NULL)) && access(file, F_OK) == 0;
}

struct revocation {
	char serial[CTL_MAX_WORDS][48], subject[CTL_MAX_WORDS][256];
	const char *serials[CTL_MAX_WORDS + 1],
		*last[CTL_MAX_WORDS + 1]; /* |last|: for the list of the CA that is being replaced. */
	size_t n, n_last;
};

/* *last: the CA that is being replaced signed it. */
static CGN_RC certificate_check(const struct crl_folder *f, const char *file, const struct pki_info *in,
	struct cgn_str pem, bool *last, struct cgn_err *err)
{
	bool ours = false;
	CGN_TRY(pki_signed_by(cgn_buf_view(&f->ca.cert), pem, &ours, err));
	if (!ours && f->last.cert.n > 0)
		CGN_TRY(pki_signed_by(cgn_buf_view(&f->last.cert), pem, last, err));
	if (in->is_ca)
		return CGN_FAIL(err, INVALID,
			"%s is the certificate of an authority: take it out of ca.pem instead", file);
	return ours || *last
		? CGN_OK
		: CGN_FAIL(err, INVALID,
			  "%s is not of the CA in %s: only the CA that signed a certificate can revoke it",
			  file, f->dir);
}

static CGN_RC word_resolve(const struct crl_folder *f, const char *word, struct revocation *r, size_t i,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf pem = {0};
	char file[PATH_MAX];
	struct pki_info in;
	bool last = false;
	if (!word_file(f, word, file)) {
		if (!cgn_str_copyz(r->serial[i], sizeof r->serial[i], cgn_str_of(word)))
			return CGN_FAIL(err, INVALID,
				"\"%.80s\" is neither a certificate nor a serial number", word);
		/* A number alone does not tell its CA: it goes into both lists. */
		r->serials[r->n++] = r->last[r->n_last++] = r->serial[i];
		return CGN_OK;
	}
	CGN_TRY(disk_read_file(file, PKI_PEM_LIMIT, &pem, err));
	CGN_TRY(cgn_err_of(pki_inspect(cgn_buf_view(&pem), &in, err), file, err));
	CGN_TRY(certificate_check(f, file, &in, cgn_buf_view(&pem), &last, err));
	(void)cgn_str_copyz(r->serial[i], sizeof r->serial[i], cgn_str_of(in.serial));
	(void)cgn_str_copyz(r->subject[i], sizeof r->subject[i], cgn_str_of(in.subject));
	if (last)
		r->last[r->n_last++] = r->serial[i];
	else
		r->serials[r->n++] = r->serial[i];
	return CGN_OK;
}

CGN_RC ctl_pki_revoke(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(folder_fini) struct crl_folder f = {0};
	struct revocation r = {0};
	struct ctl_table t = {0};
	size_t added = 0;
	if (a->n_words == 0)
		return CGN_FAIL(err, INVALID, "name what to revoke: a certificate or a serial number");
	CGN_TRY(folder_read_list(a, &f, err));
	CGN_TRY(folder_read_ca(&f, err));
	for (size_t i = 0; i < a->n_words; i++)
		CGN_TRY(word_resolve(&f, a->words[i], &r, i, err));
	CGN_TRY(folder_sign(a, &f, r.serials, r.last, &added, err));
	for (size_t i = 0; i < a->n_words; i++) {
		CTL_CELL(&t, "SERIAL", "%s", r.serial[i]);
		CTL_CELL(&t, "SUBJECT", "%s", r.subject[i]);
		CTL_CELL(&t, "LIST", "%s", f.file);
	}
	if (!a->json)
		(void)fprintf(stderr,
			"cgn-ctl: %zu new in the list. Copy %s to each machine, where security.crl_file names it; programs read it within seconds\n",
			added, f.file);
	return ctl_table_print(&t, a->json, err);
}
