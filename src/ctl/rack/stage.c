/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rack/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/os/disk/disk.h"

static CGN_RC part_write(const char *dir, const char *path, struct cgn_str text, mode_t mode,
	struct cgn_err *err)
{
	char place[PATH_MAX], folder[PATH_MAX];
	CGN_TRY(install_place(dir, path, place, err));
	(void)cgn_str_copyz(folder, sizeof folder,
		(struct cgn_str){place, (size_t)(strrchr(place, '/') - place)});
	CGN_TRY(disk_mkdirs(folder, 0700, err));
	return disk_write_file_atomic(place, text, mode, err);
}

/* A program is named by a link, which tar follows. */
static CGN_RC program_link(const char *dir, const char *path, const char *source, struct cgn_err *err)
{
	char place[PATH_MAX], folder[PATH_MAX], from[PATH_MAX];
	CGN_TRY(install_place(dir, path, place, err));
	(void)cgn_str_copyz(folder, sizeof folder,
		(struct cgn_str){place, (size_t)(strrchr(place, '/') - place)});
	CGN_TRY(disk_mkdirs(folder, 0700, err));
	return realpath(source, from) != NULL && symlink(from, place) == 0
		? CGN_OK
		: CGN_FAIL(err, STORAGE, "cannot send %s: %s", source, strerror(errno));
}

static CGN_RC files_write(const char *dir, const struct rack_node *node, struct cgn_err *err)
{
	char path[PATH_MAX];
	for (size_t i = 0; i < node->n; i++) {
		const struct rack_file *f = &node->files[i];
		if (f->state != INSTALL_ABSENT && f->state != INSTALL_OURS)
			continue;
		if (f->source != NULL && f->source[0] == '\0')
			continue;
		(void)snprintf(path, sizeof path, "/files%s", f->path);
		if (f->source != NULL)
			CGN_TRY(program_link(dir, path, f->source, err));
		else
			CGN_TRY(part_write(dir, path, cgn_buf_view(&f->text), f->mode, err));
	}
	return CGN_OK;
}

/* The lists of the order put. */
static CGN_RC lists_write(const char *dir, const struct rack_node *node, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf record = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf gone = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf pending = {0};
	install_record_text(&node->record, &record);
	for (size_t i = 0; i < node->n_gone; i++)
		cgn_buf_fmt(&gone, "%s\n", node->gone[i].path);
	for (unsigned i = 0; i < RACK_ROLES; i++)
		if ((node->restart & RACK_BIT(i)) != 0)
			cgn_buf_fmt(&pending, "%s\n", rack_unit((enum rack_role)i));
	if (record.bad || gone.bad || pending.bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the lists of host %s", node->host->name);
	CGN_TRY(part_write(dir, "/record", cgn_buf_view(&record), 0600, err));
	CGN_TRY(part_write(dir, "/remove", cgn_buf_view(&gone), 0600, err));
	return part_write(dir, "/pending", cgn_buf_view(&pending), 0644, err);
}

static CGN_RC tar_make(const char *dir, int to, struct cgn_err *err)
{
	char *argv[] = {(char[]){"tar"}, (char[]){"-C"}, (char *)(uintptr_t)dir, (char[]){"-c"},
		(char[]){"-h"}, (char[]){"--owner=0"}, (char[]){"--group=0"}, (char[]){"--numeric-owner"},
		(char[]){"-f"}, (char[]){"-"}, (char[]){"."}, NULL};
	int pid = fleet_start(argv, STDIN_FILENO, to, STDERR_FILENO);
	return pid > 0 && fleet_wait(pid) == 0
		? CGN_OK
		: CGN_FAIL(err, UNAVAILABLE, "tar failed: it packs what hosts get");
}

static CGN_RC input_write(const struct fleet *f, const char *dir, const struct rack_node *node, int to,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	fleet_first_line(f, node->host, &line);
	CGN_TRY(files_write(dir, node, err));
	CGN_TRY(lists_write(dir, node, err));
	if (line.bad || write(to, line.p, line.n) != (ssize_t)line.n)
		return CGN_FAIL(err, STORAGE, "cannot write below %s: %s", dir, strerror(errno));
	CGN_TRY(tar_make(dir, to, err));
	return lseek(to, 0, SEEK_SET) == 0
		? CGN_OK
		: CGN_FAIL(err, STORAGE, "cannot read what is sent: %s", strerror(errno));
}

CGN_RC rack_stage(const struct fleet *f, const char *folder, const struct rack_node *node, int *out,
	struct cgn_err *err)
{
	char dir[PATH_MAX], file[PATH_MAX];
	if (snprintf(dir, sizeof dir, "%s/%s", folder, node->host->name) >= (int)sizeof dir ||
		snprintf(file, sizeof file, "%s/%s.tar", folder, node->host->name) >= (int)sizeof file)
		return CGN_FAIL(err, INVALID, "--pki is too long");
	int fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return CGN_FAIL(err, STORAGE, "cannot make %s: %s", file, strerror(errno));
	(void)unlink(file);
	cgn_rc rc = input_write(f, dir, node, fd, err);
	fleet_remove(dir);
	if (cgn_ok(rc))
		*out = fd;
	else
		(void)close(fd);
	return rc;
}
