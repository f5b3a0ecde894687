/* SPDX-License-Identifier: Apache-2.0 */
/* recipe new: a copy of a recipe under another name. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/recipe/recipe_priv.h"
#include "io/os/disk/disk.h"

#define NAME_PARTS 3 /* up.sh of every recipe finds the driver three folders above itself. */

static bool part_is_plain(struct cgn_str part)
{
	for (size_t i = 0; i < part.n; i++)
		if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", part.p[i]) ==
			NULL)
			return false;
	return part.n > 0 && part.p[0] != '.' && part.p[0] != '_';
}

static CGN_RC name_check(const char *name, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(name);
	unsigned parts = 0;
	bool plain = true;
	while (rest.p != NULL) {
		plain &= part_is_plain(cgn_str_split(&rest, '/'));
		parts++;
	}
	if (parts != NAME_PARTS || !plain)
		return CGN_FAIL(err, INVALID,
			"'%s' is not a name of a recipe: it has three parts, MODEL/ENGINE/TOPOLOGY, of letters, digits, '.', '_' and '-', such as mine/vllm/agg",
			name);
	return CGN_OK;
}

/* Copy the README under a title of its own. */
static void readme_rename(struct cgn_buf *text, const char *name, const char *from)
{
	struct cgn_str rest = cgn_buf_view(text), title = cgn_str_split(&rest, '\n');
	struct cgn_buf out = {0};
	(void)title;
	cgn_buf_fmt(&out, "# %s\n\nA copy of %s: say here what is different.\n", name, from);
	if (rest.p != NULL)
		cgn_buf_str(&out, rest);
	cgn_buf_fini(text);
	*text = out;
}

static CGN_RC file_copy(const char *from, const char *to, const char *file, const struct ctl_args *a,
	const char *from_name, struct cgn_err *err)
{
	char source[PATH_MAX], target[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct stat st;
	if (snprintf(source, sizeof source, "%s/%s", from, file) >= (int)sizeof source ||
		snprintf(target, sizeof target, "%s/%s", to, file) >= (int)sizeof target)
		return CGN_FAIL(err, INVALID, "path too long: %s/%s", to, file);
	if (stat(source, &st) != 0 || !S_ISREG(st.st_mode))
		return CGN_OK;
	CGN_TRY(disk_read_file(source, RECIPE_FILE_LIMIT, &text, err));
	if (strcmp(file, "README.md") == 0)
		readme_rename(&text, a->words[0], from_name);
	return disk_write_file_atomic(target, cgn_buf_view(&text), st.st_mode & 0777, err);
}

static CGN_RC folder_copy(const char *from, const char *to, const struct ctl_args *a, const char *from_name,
	struct cgn_err *err)
{
	DIR *dir = opendir(from);
	if (dir == NULL)
		return CGN_FAIL(err, STORAGE, "%s: %s", from, strerror(errno));
	cgn_rc rc = CGN_OK;
	for (const struct dirent *e; cgn_ok(rc) && (e = readdir(dir)) != NULL;)
		if (e->d_name[0] != '.')
			rc = file_copy(from, to, e->d_name, a, from_name, err);
	(void)closedir(dir);
	return rc;
}

static CGN_RC tell_next(const struct ctl_args *a, const char *from, const char *to, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	if (a->json) {
		struct json_out o = json_out_to(&out);
		json_open(&o, '{');
		json_key_z(&o, "recipe", a->words[0]);
		json_key_z(&o, "from", from);
		json_key_z(&o, "path", to);
		json_close(&o, '}');
		cgn_buf_char(&out, '\n');
	} else {
		cgn_buf_fmt(&out,
			"%s: a copy of %s\nNext: edit its files, then\n  cgn-ctl config check %s/router.toml\n  cgn-ctl recipe up %s\n",
			to, from, to, a->words[0]);
	}
	return ctl_print(&out, err);
}

CGN_RC ctl_recipe_new(const struct ctl_args *a, struct cgn_err *err)
{
	char root[PATH_MAX], source[PATH_MAX], target[PATH_MAX];
	const char *from = ctl_flag(a, "--from");
	CGN_TRY(name_check(a->words[0], err));
	CGN_TRY(recipe_root(a, root, err));
	CGN_TRY(recipe_dir(a, from, source, err));
	if (snprintf(target, sizeof target, "%s/%s", root, a->words[0]) >= (int)sizeof target)
		return CGN_FAIL(err, INVALID, "path too long: %s/%s", root, a->words[0]);
	struct stat st;
	if (lstat(target, &st) == 0)
		return CGN_FAIL(err, CONFLICT, "%s exists already; choose another name, or remove it",
			target);
	CGN_TRY(disk_mkdirs(target, 0755, err));
	CGN_TRY(folder_copy(source, target, a, from, err));
	return tell_next(a, from, target, err);
}
