/* SPDX-License-Identifier: Apache-2.0 */
/* show: the plan of one host as text. */
#include <stdio.h>
#include <unistd.h>

#include <sys/mman.h>

#include "ctl/rack/plan.h"

/* Print the difference between what the host has and |f|. A key or program is not shown. */
static CGN_RC text_show(const struct rack_node *node, const struct rack_file *f, struct cgn_err *err)
{
	char old[40] = "";
	const struct rack_seen_file *seen = rack_seen_find(&node->seen, f->path);
	if (f->source != NULL || f->mode == 0600 || f->text.n == 0)
		return CGN_OK;
	if (seen == NULL)
		return install_diff(f->path, NULL, cgn_buf_view(&f->text), err);
	int fd = seen->text.p != NULL ? memfd_create("old", 0) : -1; /* diff inherits it. */
	if (fd < 0)
		return CGN_OK;
	(void)snprintf(old, sizeof old, "/proc/self/fd/%d", fd);
	cgn_rc rc = write(fd, seen->text.p, seen->text.n) == (ssize_t)seen->text.n
		? install_diff(f->path, old, cgn_buf_view(&f->text), err)
		: CGN_FAIL(err, STORAGE, "cannot keep %s in memory", f->path);
	(void)close(fd);
	return rc;
}

static CGN_RC file_show(const struct rack_node *node, const struct rack_file *f, struct cgn_err *err)
{
	bool left = f->source != NULL && (f->source[0] == '\0' || f->state == INSTALL_CHANGED);
	if (f->state == INSTALL_SAME || (left && f->source[0] == '\0'))
		return CGN_OK;
	if (left) {
		printf("leave   %s: cgn-ctl did not install it, perhaps a package did: upgrade it there\n",
			f->path);
		return CGN_OK;
	}
	CGN_TRY(text_show(node, f, err));
	if (f->state == INSTALL_CHANGED)
		printf("keep    %s: it was changed, or not installed by cgn-ctl; move it away to get the new one\n",
			f->path);
	else
		printf("%s  %s%s\n", f->state == INSTALL_ABSENT ? "create" : "update", f->path,
			f->source != NULL         ? ": a program"
				: f->text.n == 0  ? ": made with --apply"
				: f->mode == 0600 ? ": a key, not shown"
						  : "");
	return CGN_OK;
}

static bool is_kept_row(const struct rack_node *node, const char *path)
{
	for (size_t i = 0; i < node->n; i++)
		if (strcmp(node->files[i].path, path) == 0)
			return false;
	return true;
}

static void gone_show(const struct rack_node *node)
{
	for (size_t i = 0; i < node->n_gone; i++)
		printf("remove  %s\n", ctl_shown(node->gone[i].path));
	for (size_t i = 0; i < node->record.n; i++)
		if (is_kept_row(node, node->record.rows[i].path))
			printf("keep    %s: it was changed since it was installed\n",
				ctl_shown(node->record.rows[i].path));
}

void rack_units_put(unsigned roles, struct cgn_buf *out)
{
	for (unsigned i = 0; i < RACK_ROLES; i++)
		if ((roles & RACK_BIT(i)) != 0)
			cgn_buf_fmt(out, " %s", rack_unit((enum rack_role)i));
}

static void units_show(const char *what, unsigned roles)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf units = {0};
	rack_units_put(roles, &units);
	if (roles != 0)
		printf("%s%s\n", what, cgn_buf_z(&units));
}

CGN_RC rack_plan_show(const struct rack_node *node, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf ports = {0};
	if (rack_plan_is_empty(node) && node->kept == 0) {
		printf("== %s: nothing to do\n", node->host->name);
		return CGN_OK;
	}
	printf("== %s (%s)\n", node->host->name, node->host->address);
	for (size_t i = 0; i < node->n; i++)
		CGN_TRY(file_show(node, &node->files[i], err));
	gone_show(node);
	if (node->seen.systemd) {
		units_show("enable ", node->enable);
		units_show("start  ", node->start);
		units_show("restart", node->restart);
		units_show("stop   ", node->disable);
	}
	rack_ports(node->host, &ports);
	if (node->n > 0)
		printf("ports   %s: the firewall is left as it is\n", cgn_buf_z(&ports));
	return CGN_OK;
}
