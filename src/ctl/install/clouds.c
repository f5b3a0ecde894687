/* SPDX-License-Identifier: Apache-2.0 */
/* clouds: machines of a cloud by Terraform or OpenTofu. A folder of the user's has the modules, the settings and the
 * state; the plan of the tool is the diff. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "ctl/install/install.h"
#include "ctl/run.h"
#include "io/os/disk/disk.h"

#define RECORD   "/.cognitora-files.sha256" /* In the folder: the modules as they were written. */
#define SETTINGS "cluster.auto.tfvars"      /* Terraform reads it by itself. */

#define PLAN "cognitora.plan"

/* Results of `plan -detailed-exitcode`. */
enum { PLAN_EMPTY = 0, PLAN_CHANGES = 2 };

struct cloud {
	const char *name, *folder, *tool;
	char chdir[PATH_MAX + 8];
};

/* ---- the folder ---- */

static void modules_add(struct install_plan *p, const char *source, const char *to)
{
	char path[200];
	for (const struct install_source *f = NULL; (f = install_source_next(source, f)) != NULL;) {
		const char *name = strrchr(f->name, '/') + 1;
		if (strstr(name, ".tfvars") != NULL)
			continue;
		(void)snprintf(path, sizeof path, "/%s/%s", to, name);
		cgn_buf_putz(install_plan_add(p, path), f->text);
		p->files[p->n - 1].program = strncmp(f->text, "#!", 2) == 0;
	}
}

/* Append |text| with the first |from| replaced. The example's text has it. */
static void put_replaced(struct cgn_buf *out, const char *text, const char *from, const char *to)
{
	const char *at = strstr(text, from);
	CGN_MUST(at != NULL);
	cgn_buf_str(out, (struct cgn_str){text, (size_t)(at - text)});
	cgn_buf_putz(out, to);
	cgn_buf_putz(out, at + strlen(from));
}

/* The settings of an example, with the release of this program. */
static CGN_RC settings_write(const char *example, const char *url, struct cgn_buf *out, struct cgn_err *err)
{
	char digits[65];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf versioned = {0}, placed = {0};
	const struct sha256 sum = crypto_sha256(cgn_str_of(install_source_text("installer/install.sh")));
	struct cgn_buf hex = cgn_buf_over(digits, sizeof digits);
	hex_put(&hex, (struct cgn_str){(const char *)sum.b, sizeof sum.b});
	(void)cgn_buf_z(&hex);
	put_replaced(&versioned, example, "\"0.1.0\"", "\"" CGN_VERSION "\"");
	put_replaced(&placed, cgn_buf_z(&versioned), "https://example.net/cognitora", url);
	put_replaced(out, cgn_buf_z(&placed),
		"0000000000000000000000000000000000000000000000000000000000000000", digits);
	return out->bad || placed.bad || versioned.bad
		? CGN_FAIL(err, NO_MEMORY, "no memory for the settings")
		: CGN_OK;
}

/* Make the settings of the example, unless there are some. */
static CGN_RC settings_make(const struct cloud *c, const struct ctl_args *a, bool *made, struct cgn_err *err)
{
	char path[PATH_MAX], name[100];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	(void)snprintf(name, sizeof name, "/%s/" SETTINGS, c->name);
	CGN_TRY(install_place(c->folder, name, path, err));
	*made = access(path, F_OK) != 0;
	if (!*made)
		return CGN_OK;
	(void)snprintf(name, sizeof name, "terraform/%s/%s.tfvars", c->name,
		ctl_switch(a, "--fleet") ? "fleet" : "one-node");
	CGN_TRY(settings_write(install_source_text(name), ctl_flag(a, "--release-url"), &text, err));
	CGN_TRY(disk_write_file_atomic(path, cgn_buf_view(&text), 0644, err));
	printf("create  %s\n", path);
	return CGN_OK;
}

/* Name the values of the examples that are still there; |n|: how many. */
static CGN_RC settings_look(const struct cloud *c, unsigned *n, struct cgn_err *err)
{
	static const char *const examples[] = {"203.0.113.", "ami-0123456789abcdef0", "00000000-0000-0000",
		"AAAA me", "my-project"};
	char path[PATH_MAX], name[100];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	(void)snprintf(name, sizeof name, "/%s/" SETTINGS, c->name);
	CGN_TRY(install_place(c->folder, name, path, err));
	CGN_TRY(disk_read_file(path, INSTALL_FILE_LIMIT, &text, err));
	struct cgn_str rest = cgn_buf_view(&text);
	*n = 0;
	for (unsigned at = 1; rest.n > 0; at++) {
		struct cgn_str line = cgn_str_trim(cgn_str_split(&rest, '\n'));
		for (size_t i = 0; i < CGN_COUNT(examples); i++)
			if (line.n > 0 && line.p[0] != '#' &&
				memmem(line.p, line.n, examples[i], strlen(examples[i])) != NULL) {
				printf("edit    %s:%u: %.*s\n", path, at, CGN_STR_ARG(line));
				++*n;
				break;
			}
	}
	return CGN_OK;
}

static CGN_RC folder_fill(const struct cloud *c, struct cgn_err *err)
{
	static struct install_job r;
	char shared[40];
	r = (struct install_job){.root = c->folder, .apply = true, .few_words = true};
	(void)snprintf(shared, sizeof shared, "terraform/%s/", c->name);
	cgn_rc rc = install_job_begin(&r, RECORD, err);
	modules_add(&r.plan, shared, c->name);
	modules_add(&r.plan, "terraform/shared/", "shared");
	if (cgn_ok(rc))
		rc = install_job_files(&r, err);
	return install_job_end(&r, rc, err);
}

/* ---- the tool ---- */

static CGN_RC tool_find(struct cloud *c, struct cgn_err *err)
{
	static const char *const names[] = {"terraform", "tofu"};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	for (size_t i = 0; i < CGN_COUNT(names); i++) {
		const char *const argv[] = {names[i], "version", NULL};
		if (ctl_run_read(argv, 30 * CGN_SEC, &text) == 0) {
			c->tool = names[i];
			(void)snprintf(c->chdir, sizeof c->chdir, "-chdir=%s/%s", c->folder, c->name);
			return CGN_OK;
		}
	}
	return CGN_FAIL(err, UNAVAILABLE,
		"neither terraform nor tofu can be run: install OpenTofu or Terraform 1.6 or later, or copy the "
		"folder %s to a machine that has it",
		c->folder);
}

/* Run the tool's command in the cloud's folder, with up to six arguments that end with NULL. */
static int tool_run(const struct cloud *c, const char *command, const char *const *args)
{
	const char *argv[12] = {c->tool, c->chdir, command, "-input=false"};
	size_t n = 4;
	if (!ctl_is_terminal(STDOUT_FILENO))
		argv[n++] = "-no-color";
	for (size_t i = 0; args[i] != NULL && i < 6; i++)
		argv[n++] = args[i];
	return ctl_run_shown((char **)(uintptr_t)argv, NULL);
}

/* Show the changes, and make them if |apply|. */
static CGN_RC plan_carry_out(const struct cloud *c, bool destroy, bool apply, bool *done, struct cgn_err *err)
{
	const char *const none[] = {NULL}, *const change[] = {PLAN, NULL};
	const char *const show[] = {"-detailed-exitcode", "-out=" PLAN, destroy ? "-destroy" : NULL, NULL};
	char plan[PATH_MAX], name[100];
	*done = false;
	if (tool_run(c, "init", none) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "%s init failed; what it says is above", c->tool);
	int status = tool_run(c, "plan", show);
	if (status != PLAN_EMPTY && status != PLAN_CHANGES)
		return CGN_FAIL(err, UNAVAILABLE, "%s plan failed; what it says is above", c->tool);
	bool fine = status == PLAN_EMPTY || !apply || tool_run(c, "apply", change) == 0;
	(void)snprintf(name, sizeof name, "/%s/" PLAN, c->name);
	CGN_TRY(install_place(c->folder, name, plan, err));
	(void)unlink(plan); /* The plan has the values of all settings. */
	if (!fine)
		return CGN_FAIL(err, UNAVAILABLE,
			"%s apply failed; what it says is above. What was made is in the state: run this "
			"again to go on, or cgn-ctl uninstall %s to remove it",
			c->tool, c->name);
	*done = status == PLAN_CHANGES && apply;
	if (status == PLAN_EMPTY)
		printf("nothing to do: the cloud has what the folder says\n");
	else if (!apply)
		printf("nothing was changed in the cloud; with --apply this plan would be carried out\n");
	return CGN_OK;
}

/* ---- the verbs ---- */

static struct cloud cloud_of(const struct ctl_args *a, char *usual, size_t cap)
{
	struct cloud c = {.name = strrchr(a->verb->path, ' ') + 1, .folder = ctl_flag(a, "--dir")};
	(void)snprintf(usual, cap, "cognitora-%s", c.name);
	if (c.folder == NULL)
		c.folder = usual;
	return c;
}

CGN_RC ctl_install_cloud(const struct ctl_args *a, struct cgn_err *err)
{
	char usual[40];
	bool made, done;
	unsigned examples;
	struct cloud c = cloud_of(a, usual, sizeof usual);
	CGN_TRY(disk_mkdirs(c.folder, 0755, err));
	CGN_TRY(folder_fill(&c, err));
	CGN_TRY(settings_make(&c, a, &made, err));
	CGN_TRY(settings_look(&c, &examples, err));
	if (made) {
		printf("next: edit %s/%s/" SETTINGS
		       ", then run cgn-ctl install %s again: it shows the plan\n",
			c.folder, c.name, c.name);
		return CGN_OK;
	}
	if (examples > 0)
		return CGN_FAIL(err, INVALID,
			"%u lines of %s/%s/" SETTINGS " have values of the example; they are named above",
			examples, c.folder, c.name);
	CGN_TRY(tool_find(&c, err));
	CGN_TRY(plan_carry_out(&c, false, ctl_switch(a, "--apply"), &done, err));
	if (done)
		printf("next: cd %s/%s; a fleet's machines join by: %s output -raw join | sh\n", c.folder,
			c.name, c.tool);
	return CGN_OK;
}

CGN_RC ctl_uninstall_cloud(const struct ctl_args *a, struct cgn_err *err)
{
	char usual[40], path[PATH_MAX], name[100];
	bool done;
	struct cloud c = cloud_of(a, usual, sizeof usual);
	(void)snprintf(name, sizeof name, "/%s/main.tf", c.name);
	CGN_TRY(install_place(c.folder, name, path, err));
	if (access(path, F_OK) != 0)
		return CGN_FAIL(err, NOT_FOUND,
			"there is no %s: cgn-ctl install %s made no folder here; --dir names it", path,
			c.name);
	CGN_TRY(tool_find(&c, err));
	CGN_TRY(plan_carry_out(&c, true, ctl_switch(a, "--apply"), &done, err));
	if (done)
		printf("next: %s keeps your settings, and a state without machines; remove it if you do not need it\n",
			c.folder);
	return CGN_OK;
}
