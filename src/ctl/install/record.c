/* SPDX-License-Identifier: Apache-2.0 */
/* record: which files were installed, with the sums that they had. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "ctl/install/install.h"
#include "io/os/disk/disk.h"

void install_sum(struct cgn_str bytes, char out[65])
{
	const struct sha256 sum = crypto_sha256(bytes);
	struct cgn_buf hex = cgn_buf_over(out, 65);
	hex_put(&hex, (struct cgn_str){(const char *)sum.b, sizeof sum.b});
	(void)cgn_buf_z(&hex);
}

CGN_RC install_place(const char *root, const char *path, char *out, struct cgn_err *err)
{
	int n = snprintf(out, PATH_MAX, "%s%s", root, path);
	return n > 0 && n < PATH_MAX ? CGN_OK : CGN_FAIL(err, INVALID, "--root is too long");
}

static CGN_RC row_read(struct install_record *r, struct cgn_str line, struct cgn_err *err)
{
	const size_t sum = sizeof r->rows[0].sha256 - 1;
	if (r->n == INSTALL_MAX_FILES || line.n < sum + 3 || line.p[sum] != ' ' || line.p[sum + 1] != ' ' ||
		line.p[sum + 2] != '/' || memmem(line.p, line.n, "/..", 3) != NULL ||
		!cgn_str_copyz(r->rows[r->n].path, sizeof r->rows[0].path,
			(struct cgn_str){line.p + sum + 2, line.n - sum - 2}))
		return CGN_FAIL(err, INVALID,
			"%s: a line is not \"SHA256  /PATH\", or the path goes up: %.*s", r->file,
			CGN_STR_ARG(line));
	memcpy(r->rows[r->n].sha256, line.p, sum);
	r->rows[r->n++].sha256[sum] = '\0';
	return CGN_OK;
}

CGN_RC install_record_parse(struct cgn_str text, struct install_record *out, struct cgn_err *err)
{
	out->n = 0;
	while (text.n > 0)
		CGN_TRY(row_read(out, cgn_str_split(&text, '\n'), err));
	return CGN_OK;
}

CGN_RC install_record_read(const char *root, const char *file, struct install_record *out,
	struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	out->n = 0;
	out->file = file;
	CGN_TRY(install_place(root, file, path, err));
	cgn_rc rc = disk_read_file(path, INSTALL_FILE_LIMIT, &text, err);
	if (rc.code == CGN_NOT_FOUND)
		return CGN_OK;
	CGN_TRY(rc);
	return install_record_parse(cgn_buf_view(&text), out, err);
}

void install_record_text(const struct install_record *r, struct cgn_buf *out)
{
	for (size_t i = 0; i < r->n; i++)
		cgn_buf_fmt(out, "%s  %s\n", r->rows[i].sha256, r->rows[i].path);
}

CGN_RC install_record_write(const char *root, const struct install_record *r, struct cgn_err *err)
{
	char path[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_TRY(install_place(root, r->file, path, err));
	if (r->n == 0)
		return unlink(path) == 0 || errno == ENOENT
			? CGN_OK
			: CGN_FAIL(err, STORAGE, "cannot remove %s: %s", path, strerror(errno));
	install_record_text(r, &text);
	return text.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for the record")
			: disk_write_file_atomic(path, cgn_buf_view(&text), 0644, err);
}

static size_t row_of(const struct install_record *r, const char *path)
{
	size_t i = 0;
	while (i < r->n && strcmp(r->rows[i].path, path) != 0)
		i++;
	return i;
}

const char *install_record_find(const struct install_record *r, const char *path)
{
	size_t i = row_of(r, path);
	return i < r->n ? r->rows[i].sha256 : NULL;
}

CGN_RC install_record_set(struct install_record *r, const char *path, const char *sha256, struct cgn_err *err)
{
	size_t i = row_of(r, path);
	if (i == INSTALL_MAX_FILES ||
		!cgn_str_copyz(r->rows[i].path, sizeof r->rows[i].path, cgn_str_of(path)))
		return CGN_FAIL(err, INVALID, "the record has no room for %s", path);
	(void)cgn_str_copyz(r->rows[i].sha256, sizeof r->rows[i].sha256, cgn_str_of(sha256));
	r->n += i == r->n;
	return CGN_OK;
}

void install_record_drop(struct install_record *r, const char *path)
{
	size_t i = row_of(r, path);
	if (i < r->n)
		memmove(&r->rows[i], &r->rows[i + 1], (--r->n - i) * sizeof r->rows[0]);
}

CGN_RC install_record_note(struct install_record *r, const char *root, const char *path, struct cgn_err *err)
{
	char place[PATH_MAX], sum[65];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf is = {0};
	CGN_TRY(install_place(root, path, place, err));
	CGN_TRY(disk_read_file(place, INSTALL_FILE_LIMIT, &is, err));
	install_sum(cgn_buf_view(&is), sum);
	return install_record_set(r, path, sum, err);
}

enum install_state install_state_of(const char *now, const char *want, const char *noted)
{
	if (now == NULL)
		return INSTALL_ABSENT;
	if (strcmp(now, want) == 0)
		return INSTALL_SAME;
	return noted != NULL && strcmp(noted, now) == 0 ? INSTALL_OURS : INSTALL_CHANGED;
}

CGN_RC install_compare(const char *root, const struct install_file *f, const struct install_record *r,
	enum install_state *out, struct cgn_err *err)
{
	char path[PATH_MAX], now[65], want[65];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf is = {0};
	CGN_TRY(install_place(root, f->path, path, err));
	cgn_rc rc = disk_read_file(path, INSTALL_FILE_LIMIT, &is, err);
	bool there = rc.code != CGN_NOT_FOUND;
	if (there)
		CGN_TRY(rc);
	install_sum(cgn_buf_view(&is), now);
	install_sum(cgn_buf_view(&f->text), want);
	*out = install_state_of(there ? now : NULL, want, install_record_find(r, f->path));
	return CGN_OK;
}
