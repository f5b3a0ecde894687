/* SPDX-License-Identifier: Apache-2.0 */
/* apply: the verbs install and uninstall. A file that was changed since is never written or removed. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ctl/install/install.h"
#include "ctl/run.h"
#include "io/os/disk/disk.h"

/* ---- show ---- */

CGN_RC install_diff(const char *path, const char *old, struct cgn_str text, struct cgn_err *err)
{
	char *argv[] = {(char[]){"diff"}, (char[]){"-u"}, (char[]){"--label"},
		(char *)(uintptr_t)(old != NULL ? path : "/dev/null"), (char[]){"--label"},
		(char *)(uintptr_t)path, (char *)(uintptr_t)(old != NULL ? old : "/dev/null"), (char[]){"-"},
		NULL};
	return ctl_run_shown(argv, &text) <= 1
		? CGN_OK
		: CGN_FAIL(err, UNAVAILABLE, "cannot run diff: install the package diffutils");
}

/* ---- install ---- */

static CGN_RC file_write(const char *place, const struct install_file *f, struct cgn_err *err)
{
	char folder[PATH_MAX];
	(void)snprintf(folder, sizeof folder, "%s", place);
	*strrchr(folder, '/') = '\0';
	CGN_TRY(disk_mkdirs(folder, 0755, err));
	return disk_write_file_atomic(place, cgn_buf_view(&f->text), f->program ? 0755 : 0644, err);
}

static CGN_RC file_install(struct install_job *r, const struct install_file *f, struct cgn_err *err)
{
	char place[PATH_MAX];
	enum install_state state;
	CGN_TRY(install_compare(r->root, f, &r->record, &state, err));
	CGN_TRY(install_place(r->root, f->path, place, err));
	const char *shown = r->few_words ? place : f->path;
	if (state == INSTALL_SAME)
		return CGN_OK;
	if (!r->few_words)
		CGN_TRY(install_diff(f->path, state != INSTALL_ABSENT ? place : NULL, cgn_buf_view(&f->text),
			err));
	if (state == INSTALL_CHANGED) {
		r->kept++;
		printf("keep    %s: it was changed, or not installed by cgn-ctl; move it away to get the new one\n",
			shown);
		return CGN_OK;
	}
	r->changes++;
	printf("%s  %s\n", state == INSTALL_ABSENT ? "create" : "update", shown);
	if (!r->apply)
		return CGN_OK;
	CGN_TRY(file_write(place, f, err));
	return install_record_note(&r->record, r->root, f->path, err);
}

static CGN_RC pki_note(struct install_job *r, const char *folder, struct cgn_err *err)
{
	char path[PATH_MAX];
	cgn_rc rc = CGN_OK;
	DIR *d = opendir(folder);
	if (d == NULL)
		return CGN_FAIL(err, STORAGE, "cannot read %s: %s", folder, strerror(errno));
	for (struct dirent *e; cgn_ok(rc) && (e = readdir(d)) != NULL;) {
		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof path, INSTALL_PKI "/%.200s", e->d_name);
		rc = install_record_note(&r->record, r->root, path, err);
	}
	(void)closedir(d);
	return rc;
}

/* Make CA and certificates by cgn-ctl pki bootstrap, unless there is a CA. */
static CGN_RC pki_install(struct install_job *r, struct cgn_err *err)
{
	char ca[PATH_MAX], folder[PATH_MAX], self[PATH_MAX];
	CGN_TRY(install_place(r->root, INSTALL_PKI "/ca.pem", ca, err));
	CGN_TRY(install_place(r->root, INSTALL_PKI, folder, err));
	if (access(ca, F_OK) == 0)
		return CGN_OK;
	r->changes++;
	printf("create  " INSTALL_PKI ": a CA, and certificates of router, agent, metrics and admin\n");
	if (!r->apply)
		return CGN_OK;
	CGN_TRY(ctl_run_self(self, err));
	char *argv[] = {self, (char[]){"pki"}, (char[]){"bootstrap"}, (char[]){"--out"}, folder,
		(char[]){"--leaf"}, (char[]){"router"}, (char[]){"--leaf"}, (char[]){"agent"},
		(char[]){"--leaf"}, (char[]){"metrics"}, (char[]){"--leaf"}, (char[]){"admin"}, NULL};
	if (ctl_run_shown(argv, NULL) != 0)
		return CGN_FAIL(err, TLS,
			"cgn-ctl pki bootstrap failed: nothing in " INSTALL_PKI " is complete");
	return pki_note(r, folder, err);
}

CGN_RC install_job_files(struct install_job *r, struct cgn_err *err)
{
	for (size_t i = 0; i < r->plan.n; i++)
		CGN_TRY(file_install(r, &r->plan.files[i], err));
	return CGN_OK;
}

static void summary_print(const struct install_job *r)
{
	if (r->changes == 0 && r->kept == 0)
		printf("nothing to do: the machine has these files\n");
	else if (!r->apply)
		printf("nothing was written; with --apply %u would be\n", r->changes);
	else
		printf("next:\n  systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload\n"
		       "  systemctl enable --now cgn-router cgn-agent cgn-metrics cognitora.target\n");
}

CGN_RC install_job_begin(struct install_job *r, const char *record, struct cgn_err *err)
{
	return install_record_read(r->root, record, &r->record, err);
}

/* Write the record; its folder is made when there is something to record. */
static CGN_RC record_save(const struct install_job *r, struct cgn_err *err)
{
	char folder[PATH_MAX];
	if (!r->apply)
		return CGN_OK;
	CGN_TRY(install_place(r->root, r->record.file, folder, err));
	*strrchr(folder, '/') = '\0';
	if (r->record.n > 0)
		CGN_TRY(disk_mkdirs(folder, 0750, err));
	return install_record_write(r->root, &r->record, err);
}

CGN_RC install_job_end(struct install_job *r, cgn_rc rc, struct cgn_err *err)
{
	struct cgn_err why;
	cgn_rc saved = record_save(r, &why);
	install_plan_fini(&r->plan);
	CGN_TRY(rc);
	if (!cgn_ok(saved))
		*err = why;
	return saved;
}

/* End the verb, and say which files were kept. */
static CGN_RC verb_end(struct install_job *r, cgn_rc rc, struct cgn_err *err)
{
	CGN_TRY(install_job_end(r, rc, err));
	if (r->kept == 0)
		return CGN_OK;
	return CGN_FAIL(err, CONFLICT, "%u files were kept as they are; they are named above", r->kept);
}

CGN_RC ctl_install_single_node(const struct ctl_args *a, struct cgn_err *err)
{
	static struct install_job r;
	r = (struct install_job){.root = ctl_flag(a, "--root"), .apply = ctl_switch(a, "--apply")};
	cgn_rc rc = install_job_begin(&r, INSTALL_RECORD, err);
	if (cgn_ok(rc))
		rc = install_render_single(a, &r.plan, err);
	if (cgn_ok(rc))
		rc = pki_install(&r, err);
	if (cgn_ok(rc))
		rc = install_job_files(&r, err);
	if (cgn_ok(rc))
		summary_print(&r);
	return verb_end(&r, rc, err);
}

/* ---- uninstall ---- */

/* Remove the file's folders below |root| as far as they are empty. */
static void folders_remove(const char *root, char *place)
{
	for (char *end; (end = strrchr(place, '/')) != NULL && strlen(place) > strlen(root) + 1;) {
		*end = '\0';
		if (strlen(place) <= strlen(root) || rmdir(place) != 0)
			return;
	}
}

/* Remove row |i| of the record, with its file, if the file is as it was installed. */
static CGN_RC row_remove(struct install_job *r, size_t i, bool *gone, struct cgn_err *err)
{
	char place[PATH_MAX];
	const char *path = r->record.rows[i].path;
	static struct install_record now;
	now.n = 0;
	*gone = false;
	CGN_TRY(install_place(r->root, path, place, err));
	bool there = access(place, F_OK) == 0;
	if (there)
		CGN_TRY(install_record_note(&now, r->root, path, err));
	if (there && strcmp(now.rows[0].sha256, r->record.rows[i].sha256) != 0) {
		r->kept++;
		printf("keep    %s: it was changed since it was installed\n", ctl_shown(path));
		return CGN_OK;
	}
	r->changes++;
	printf("remove  %s%s\n", ctl_shown(path), there ? "" : ": it is gone already");
	if (!r->apply)
		return CGN_OK;
	if (there && unlink(place) != 0)
		return CGN_FAIL(err, STORAGE, "cannot remove %s: %s", place, strerror(errno));
	folders_remove(r->root, place);
	*gone = true;
	return CGN_OK;
}

static CGN_RC all_remove(struct install_job *r, struct cgn_err *err)
{
	for (size_t i = r->record.n; i-- > 0;) {
		bool gone;
		CGN_TRY(row_remove(r, i, &gone, err));
		if (gone)
			r->record.rows[i] = r->record.rows[--r->record.n];
	}
	return CGN_OK;
}

CGN_RC ctl_uninstall(const struct ctl_args *a, struct cgn_err *err)
{
	static struct install_job r;
	r = (struct install_job){.root = ctl_flag(a, "--root"), .apply = ctl_switch(a, "--apply")};
	CGN_TRY(install_job_begin(&r, INSTALL_RECORD, err));
	if (r.record.n == 0)
		return CGN_FAIL(err, NOT_FOUND,
			"%s" INSTALL_RECORD " has no files: cgn-ctl install has written nothing here",
			r.root);
	cgn_rc rc = all_remove(&r, err);
	if (cgn_ok(rc) && !r.apply)
		printf("nothing was removed; with --apply %u would be\n", r.changes);
	return verb_end(&r, rc, err);
}
