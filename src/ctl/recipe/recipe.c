/* SPDX-License-Identifier: Apache-2.0 */
/* recipe: folders of TOML profiles with an up.sh. Lists and shows recipes here; scripts start and stop them,
 * so that `bash up.sh` and `cgn-ctl recipe up` do the same. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/recipe/recipe_priv.h"
#include "ctl/run.h"
#include "io/os/disk/disk.h"

#define RECIPE_DEPTH 3 /* model/engine/topology */

static bool has_file(const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat st;
	return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && stat(path, &st) == 0;
}

/* Look upward from this program for the recipes of a source tree, or for PREFIX/share/cognitora/recipes. */
static bool near_program(char *out)
{
	static const char *const tails[] = {"recipes", "share/cognitora/recipes"};
	char dir[PATH_MAX];
	if (!cgn_ok(ctl_run_folder(dir, NULL)))
		return false;
	for (char *slash = dir + strlen(dir); slash != NULL && slash != dir; slash = strrchr(dir, '/')) {
		*slash = '\0';
		for (size_t i = 0; i < CGN_COUNT(tails); i++)
			if (snprintf(out, PATH_MAX, "%s/%s", dir, tails[i]) < PATH_MAX &&
				has_file(out, "_lib/recipe.sh"))
				return true;
	}
	return false;
}

CGN_RC recipe_root(const struct ctl_args *a, char *out, struct cgn_err *err)
{
	const char *named =
		ctl_flag(a, "--recipes") != NULL ? ctl_flag(a, "--recipes") : getenv("CGN_RECIPES");
	if (named != NULL && !has_file(named, "_lib/recipe.sh"))
		return CGN_FAIL(err, NOT_FOUND, "%s is not a folder of recipes: _lib/recipe.sh is missing",
			named);
	if (named == NULL && has_file("recipes", "_lib/recipe.sh"))
		named = "recipes";
	if (named != NULL && realpath(named, out) == NULL)
		return CGN_FAIL(err, NOT_FOUND, "%s: %s", named, strerror(errno));
	if (named == NULL && !near_program(out))
		return CGN_FAIL(err, NOT_FOUND,
			"no recipes found in ./recipes or beside this program; name their folder with --recipes or $CGN_RECIPES");
	return CGN_OK;
}

/* Copy the first line of text after the title of README.md. */
static void summary_of(const char *dir, char *out, size_t cap)
{
	char path[PATH_MAX];
	struct cgn_buf text = {0};
	out[0] = '\0';
	if (snprintf(path, sizeof path, "%s/README.md", dir) >= (int)sizeof path ||
		!cgn_ok(disk_read_file(path, RECIPE_FILE_LIMIT, &text, NULL)))
		return;
	struct cgn_str rest = cgn_buf_view(&text);
	while (rest.p != NULL && out[0] == '\0') {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (line.n > 0 && line.p[0] != '#')
			(void)cgn_str_copyz(out, cap, line);
	}
	cgn_buf_fini(&text);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_visible(const struct dirent *e)
{
	return e->d_name[0] != '.' && e->d_name[0] != '_';
}

static int agents_in(const char *dir)
{
	struct dirent **names = NULL;
	int n = scandir(dir, &names, is_visible, by_name), agents = 0;
	for (int i = 0; i < n; i++) {
		size_t len = strlen(names[i]->d_name);
		agents += strncmp(names[i]->d_name, "agent-", 6) == 0 && len > 5 &&
			strcmp(names[i]->d_name + len - 5, ".toml") == 0;
		free(names[i]);
	}
	free(names);
	return agents;
}

static void list_into(struct ctl_table *t, const char *root, const char *name, int depth)
{
	char dir[PATH_MAX], summary[100];
	if (snprintf(dir, sizeof dir, "%s/%s", root, name) >= (int)sizeof dir)
		return;
	if (has_file(dir, "up.sh")) {
		summary_of(dir, summary, sizeof summary);
		ctl_table_cell(t, "%s", name);
		ctl_table_cell(t, "%d", agents_in(dir));
		ctl_table_cell(t, "%s", summary);
		return;
	}
	struct dirent **names = NULL;
	int n = depth < RECIPE_DEPTH ? scandir(dir, &names, is_visible, by_name) : 0;
	for (int i = 0; i < n; i++) {
		char below[PATH_MAX];
		if (names[i]->d_type == DT_DIR &&
			snprintf(below, sizeof below, "%s%s%s", name, name[0] != '\0' ? "/" : "",
				names[i]->d_name) < (int)sizeof below)
			list_into(t, root, below, depth + 1);
		free(names[i]);
	}
	free(names);
}

CGN_RC ctl_recipe_ls(const struct ctl_args *a, struct cgn_err *err)
{
	char root[PATH_MAX];
	struct ctl_table t = {0};
	CGN_TRY(recipe_root(a, root, err));
	ctl_table_column(&t, "RECIPE", false);
	ctl_table_column(&t, "AGENTS", true);
	ctl_table_column(&t, "ABOUT", false);
	list_into(&t, root, "", 0);
	return ctl_table_print(&t, a->json, err);
}

CGN_RC recipe_dir(const struct ctl_args *a, const char *name, char *out, struct cgn_err *err)
{
	char root[PATH_MAX];
	CGN_TRY(recipe_root(a, root, err));
	if (name[0] == '/' || strstr(name, "..") != NULL ||
		snprintf(out, PATH_MAX, "%s/%s", root, name) >= PATH_MAX || !has_file(out, "up.sh"))
		return CGN_FAIL(err, NOT_FOUND, "there is no recipe '%s' in %s; cgn-ctl recipe ls lists them",
			name, root);
	return CGN_OK;
}

static CGN_RC show_file(const char *dir, const char *name, struct cgn_buf *out, struct cgn_err *err)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
		return CGN_FAIL(err, INVALID, "path too long: %s/%s", dir, name);
	cgn_buf_fmt(out, "\n--- %s ---\n", name);
	return disk_read_file(path, RECIPE_FILE_LIMIT, out, err);
}

static CGN_RC show_toml(const char *dir, struct cgn_buf *out, struct cgn_err *err)
{
	struct dirent **names = NULL;
	int n = scandir(dir, &names, is_visible, by_name);
	cgn_rc rc = CGN_OK;
	for (int i = 0; i < n; i++) {
		const char *dot = strrchr(names[i]->d_name, '.');
		if (cgn_ok(rc) && dot != NULL && strcmp(dot, ".toml") == 0)
			rc = show_file(dir, names[i]->d_name, out, err);
		free(names[i]);
	}
	free(names);
	return rc;
}

static void show_json(const char *name, const char *dir, const struct cgn_buf *text, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_z(&o, "recipe", name);
	json_key_z(&o, "path", dir);
	json_key_str(&o, "text", cgn_buf_view(text));
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

CGN_RC ctl_recipe_show(const struct ctl_args *a, struct cgn_err *err)
{
	char dir[PATH_MAX], readme[PATH_MAX];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, out = {0};
	CGN_TRY(recipe_dir(a, a->words[0], dir, err));
	if (snprintf(readme, sizeof readme, "%s/README.md", dir) < (int)sizeof readme &&
		has_file(dir, "README.md"))
		CGN_TRY(disk_read_file(readme, RECIPE_FILE_LIMIT, &text, err));
	CGN_TRY(show_toml(dir, &text, err));
	if (a->json)
		show_json(a->words[0], dir, &text, &out);
	else
		cgn_buf_str(&out, cgn_buf_view(&text));
	return ctl_print(&out, err);
}

/* Run a script with up to two arguments (NULL: fewer) to its end on our terminal; its failure becomes ours. With
 * |aside|, what it prints goes to stderr. */
static CGN_RC run_script(const char *path, const char *first, const char *second, bool aside,
	struct cgn_err *err)
{
	(void)fflush(NULL);
	pid_t pid = fork();
	if (pid < 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot start a process: %s", strerror(errno));
	if (pid == 0) {
		if (aside)
			(void)dup2(STDERR_FILENO, STDOUT_FILENO);
		(void)execlp("bash", "bash", path, first != NULL ? first : second,
			first != NULL ? second : NULL, (char *)NULL);
		(void)fprintf(stderr, "cgn-ctl: cannot run bash: %s\n", strerror(errno));
		_exit(127);
	}
	int status = 0;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return CGN_FAIL(err, INTERNAL, "cannot wait for %s to end: %s", path,
				strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return CGN_OK;
	if (err != NULL)
		err->msg[0] = '\0'; /* The script has reported its error. */
	return CGN_RC_OF(CGN_INTERNAL);
}

/* Put the folder of this program's siblings, built or installed, into the scripts' environment. */
static void export_programs(void)
{
	char dir[PATH_MAX];
	if (!cgn_ok(ctl_run_folder(dir, NULL)) || getenv("CGN_BIN") != NULL)
		return;
	if (!has_file(dir, "cgn-router")) { /* Build tree: build/X/src/ctl is beside build/X/bin. */
		char bin[PATH_MAX + 16];
		(void)snprintf(bin, sizeof bin, "%s/../../bin", dir);
		if (realpath(bin, dir) == NULL)
			return;
	}
	if (has_file(dir, "cgn-router"))
		(void)setenv("CGN_BIN", dir, 1);
}

/* Run one of the scripts beside the recipes. With -o json it gets --json too, unless |aside|. */
static CGN_RC run_in_tree(const struct ctl_args *a, const char *script, const char *argument, bool aside,
	struct cgn_err *err)
{
	char root[PATH_MAX], path[PATH_MAX];
	CGN_TRY(recipe_root(a, root, err));
	if (snprintf(path, sizeof path, "%s/../scripts/run/%s", root, script) >= (int)sizeof path)
		return CGN_FAIL(err, INVALID, "path too long: %s", root);
	return run_script(path, a->json && !aside ? "--json" : NULL, argument, aside, err);
}

CGN_RC ctl_recipe_up(const struct ctl_args *a, struct cgn_err *err)
{
	char dir[PATH_MAX], path[PATH_MAX];
	CGN_TRY(recipe_dir(a, a->words[0], dir, err));
	if (snprintf(path, sizeof path, "%s/up.sh", dir) >= (int)sizeof path)
		return CGN_FAIL(err, INVALID, "path too long: %s", dir);
	export_programs();
	(void)setenv("CGN_PREBUILT", "1", 1);
	CGN_TRY(run_script(path, NULL, NULL, a->json, err));
	CGN_TRY(run_in_tree(a, "hello.sh", NULL, a->json, err));
	return a->json ? run_in_tree(a, "status.sh", NULL, false, err) : CGN_OK;
}

CGN_RC ctl_recipe_down(const struct ctl_args *a, struct cgn_err *err)
{
	char dir[PATH_MAX];
	if (a->n_words > 0)
		CGN_TRY(recipe_dir(a, a->words[0], dir, err));
	return run_in_tree(a, "down.sh", a->n_words > 0 ? a->words[0] : NULL, false, err);
}

CGN_RC ctl_recipe_status(const struct ctl_args *a, struct cgn_err *err)
{
	return run_in_tree(a, "status.sh", NULL, false, err);
}
