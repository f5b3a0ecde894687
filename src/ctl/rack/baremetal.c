/* SPDX-License-Identifier: Apache-2.0 */
/* baremetal: the verbs install baremetal and uninstall baremetal. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/file.h>

#include "base/toml/toml.h"
#include "ctl/rack/roll.h"
#include "ctl/run.h"
#include "io/os/disk/disk.h"

struct job {
	const struct ctl_args *args;
	bool apply, undo;
	struct rack *rack;
	struct rack_pki pki;
	struct rack_programs programs;
	struct fleet fleet;
	struct rack_etcd etcd;
	char folder[PATH_MAX], dir[PATH_MAX]; /* Folders of the inventory and of the PKI. */
	struct rack_node *nodes[RACK_MAX_HOSTS];
	size_t n;
	int lock;
};

/* ---- the command line ---- */

static CGN_RC inventory_read(struct job *j, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char copy[PATH_MAX];
	const char *file = ctl_flag(j->args, "--inventory");
	if (file == NULL)
		return CGN_FAIL(err, INVALID,
			"--inventory FILE is missing; cgn-ctl install baremetal --example prints one");
	CGN_TRY(disk_read_file(file, TOML_MAX_BYTES, &text, err));
	if (snprintf(copy, sizeof copy, "%s", file) >= (int)sizeof copy)
		return CGN_FAIL(err, INVALID, "--inventory is too long");
	(void)snprintf(j->folder, sizeof j->folder, "%s", dirname(copy));
	return rack_read(file, cgn_buf_view(&text), &j->rack, err);
}

static void node_add(struct job *j, const struct rack_host *h)
{
	for (size_t i = 0; i < j->n; i++)
		if (j->nodes[i]->host == h)
			return;
	j->nodes[j->n] = CGN_NEW(struct rack_node);
	j->nodes[j->n++]->host = h;
}

/* The hosts of --limit, or all. */
static CGN_RC hosts_choose(struct job *j, struct cgn_err *err)
{
	struct cgn_str rest = cgn_str_of(ctl_flag(j->args, "--limit"));
	for (size_t i = 0; rest.p == NULL && i < j->rack->n; i++)
		node_add(j, &j->rack->hosts[i]);
	while (rest.n > 0) {
		struct cgn_str name = cgn_str_split(&rest, ',');
		const struct rack_host *h = rack_find(j->rack, name);
		if (h == NULL)
			return CGN_FAIL(err, NOT_FOUND, "--limit: %s has no host %.*s", j->rack->file,
				CGN_STR_ARG(name));
		node_add(j, h);
	}
	return CGN_OK;
}

/* Lock the folder of the PKI until this program ends, so that one installation runs at a time. */
static CGN_RC pki_lock(struct job *j, struct cgn_err *err)
{
	char path[PATH_MAX];
	if (!j->apply)
		return CGN_OK;
	CGN_TRY(disk_mkdirs(j->dir, 0700, err));
	if (snprintf(path, sizeof path, "%s/.lock", j->dir) >= (int)sizeof path)
		return CGN_FAIL(err, INVALID, "--pki is too long");
	j->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (j->lock < 0)
		return CGN_FAIL(err, STORAGE, "cannot open %s: %s", path, strerror(errno));
	return flock(j->lock, LOCK_EX | LOCK_NB) == 0
		? CGN_OK
		: CGN_FAIL(err, CONFLICT, "%s is locked: another cgn-ctl install baremetal runs", path);
}

static CGN_RC pki_begin(struct job *j, struct cgn_err *err)
{
	const char *dir = ctl_flag(j->args, "--pki");
	int n = dir != NULL ? snprintf(j->dir, sizeof j->dir, "%s", dir)
			    : snprintf(j->dir, sizeof j->dir, "%s/pki", j->folder);
	if (n >= (int)sizeof j->dir)
		return CGN_FAIL(err, INVALID, "--pki is too long");
	CGN_TRY(pki_lock(j, err));
	j->pki = (struct rack_pki){.dir = j->dir, .cluster = j->rack->cluster, .make = j->apply};
	return j->undo ? CGN_OK : rack_pki_open(&j->pki, err);
}

static CGN_RC programs_find(struct job *j, struct cgn_err *err)
{
	char self[PATH_MAX];
	const char *dir = j->undo ? NULL : ctl_flag(j->args, "--programs");
	if (j->undo)
		return CGN_OK;
	CGN_TRY(ctl_run_folder(self, err));
	dir = dir != NULL ? dir : self;
	CGN_TRY(rack_programs_find(dir, &j->programs, err));
	if (j->programs.of[RACK_CTL].source[0] != '\0' && j->programs.of[RACK_LAB].source[0] == '\0')
		(void)fprintf(stderr,
			"%s has no cgn-lab: the hosts get none, and cgn-ctl bench needs it there\n", dir);
	return CGN_OK;
}

/* ---- the plan ---- */

static void wanted_paths(const struct rack_node *node, struct cgn_buf *out)
{
	cgn_buf_putz(out, INSTALL_RECORD "\n");
	for (size_t i = 0; i < node->n; i++)
		cgn_buf_fmt(out, "%s\n", node->files[i].path);
}

static CGN_RC hosts_ask(struct job *j, struct cgn_err *err)
{
	struct fleet_call *calls = CGN_NEW_ARRAY(struct fleet_call, j->n);
	for (size_t i = 0; i < j->n; i++) {
		calls[i] = (struct fleet_call){.host = j->nodes[i]->host, .order = "state"};
		wanted_paths(j->nodes[i], &calls[i].input);
	}
	cgn_rc rc = fleet_run(&j->fleet, calls, j->n, err);
	for (size_t i = 0; i < j->n; i++) {
		j->nodes[i]->report = calls[i].output;
		calls[i].output = (struct cgn_buf){0};
		fleet_call_fini(&calls[i]);
	}
	free(calls);
	return rc;
}

static CGN_RC hosts_compare(struct job *j, struct cgn_err *err)
{
	for (size_t i = 0; i < j->n; i++)
		CGN_TRY(rack_plan_compare(j->nodes[i], err));
	for (size_t i = 0; i < j->n; i++) {
		if (j->apply && j->fleet.root[0] == '\0' && !j->nodes[i]->seen.systemd)
			return CGN_FAIL(err, UNAVAILABLE,
				"host %s has no systemctl: cgn-ctl installs units of systemd; nothing was written",
				j->nodes[i]->host->name);
		CGN_TRY(rack_plan_show(j->nodes[i], err));
	}
	return CGN_OK;
}

/* With --root no host runs anything; uninstalling needs no members. */
static CGN_RC members_compare(struct job *j, struct cgn_err *err)
{
	j->etcd = (struct rack_etcd){.rack = j->rack, .pki = j->dir};
	if (j->undo || j->fleet.root[0] != '\0')
		return CGN_OK;
	CGN_TRY(rack_etcd_open(&j->etcd, j->nodes, j->n, err));
	rack_etcd_show(&j->etcd);
	return CGN_OK;
}

/* ---- carrying it out ---- */

static void progress_show(const struct job *j)
{
	(void)fprintf(stderr, "done before the failure:\n");
	for (size_t i = 0; i < j->n; i++) {
		const struct rack_node *node = j->nodes[i];
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf units = {0};
		rack_units_put(node->started & (node->start | node->restart), &units);
		(void)fprintf(stderr, "  %s: %s%s%s\n", node->host->name,
			node->written                    ? "files written"
				: rack_plan_writes(node) ? "nothing written"
							 : "files were right already",
			units.n > 0 ? ", started:" : "", cgn_buf_z(&units));
	}
	(void)fprintf(stderr, "the same command again goes on from there\n");
}

static CGN_RC roll_apply(struct job *j, struct cgn_err *err)
{
	static struct rack_roll roll; /* Large for a stack. */
	roll = (struct rack_roll){.fleet = &j->fleet,
		.nodes = j->nodes,
		.n = j->n,
		.gate = {.rack = j->rack, .pki = j->dir},
		.etcd = &j->etcd};
	if (!j->undo) {
		cgn_nsec drain;
		CGN_TRY(ctl_flag_duration(j->args, "--drain-timeout", &drain, err));
		CGN_TRY(ctl_flag_duration(j->args, "--ready-timeout", &roll.gate.ready_timeout, err));
		roll.gate.drain_timeout = ctl_flag(j->args, "--drain-timeout");
	}
	if (snprintf(roll.stage, sizeof roll.stage, "%s/.stage", j->dir) >= (int)sizeof roll.stage)
		return CGN_FAIL(err, INVALID, "--pki is too long");
	cgn_rc rc = rack_roll_apply(&roll, err);
	if (!cgn_ok(rc))
		progress_show(j);
	return rc;
}

static CGN_RC summary_print(const struct job *j, struct cgn_err *err)
{
	unsigned busy = 0, kept = 0;
	for (size_t i = 0; i < j->n; i++) {
		busy += !rack_plan_is_empty(j->nodes[i]);
		kept += j->nodes[i]->kept;
	}
	bool moves = !rack_moves_are_none(&j->etcd.moves);
	if (busy == 0 && kept == 0 && !moves)
		printf("nothing to do: %s\n",
			j->undo ? "no host has files of an installation"
				: "all hosts are as the inventory says");
	else if (!j->apply)
		printf("nothing was changed; with --apply %u of %zu hosts would be%s\n", busy, j->n,
			moves ? ", and the members of etcd" : "");
	else if (j->undo)
		printf("removed; certificates and keys stay in %s, state in /var/lib of the hosts\n", j->dir);
	else
		printf("done; next: cgn-ctl cluster nodes --router HOST:9090 --ca %s/ca.pem --cert %s/admin.pem --key %s/admin.key\n",
			j->dir, j->dir, j->dir);
	return kept == 0
		? CGN_OK
		: CGN_FAIL(err, CONFLICT, "%u files were kept as they are; they are named above", kept);
}

static CGN_RC job_run(struct job *j, struct cgn_err *err)
{
	bool busy = false;
	CGN_TRY(pki_begin(j, err));
	CGN_TRY(programs_find(j, err));
	for (size_t i = 0; !j->undo && i < j->n; i++)
		CGN_TRY(rack_plan_files(j->rack, &j->pki, &j->programs, j->nodes[i], err));
	CGN_TRY(hosts_ask(j, err));
	CGN_TRY(hosts_compare(j, err));
	CGN_TRY(members_compare(j, err));
	for (size_t i = 0; i < j->n; i++)
		busy = busy || !rack_plan_is_empty(j->nodes[i]);
	busy = busy || !rack_moves_are_none(&j->etcd.moves);
	if (j->apply && busy)
		CGN_TRY(roll_apply(j, err));
	return summary_print(j, err);
}

static CGN_RC fleet_begin(struct job *j, struct cgn_err *err)
{
	char root[PATH_MAX];
	const char *given = ctl_flag(j->args, "--root");
	CGN_TRY(ctl_flag_u64(j->args, "--parallel", 1, 64, &j->fleet.parallel, err));
	if (given[0] != '\0' && realpath(given, root) == NULL)
		return CGN_FAIL(err, NOT_FOUND, "--root %s: %s", given, strerror(errno));
	j->fleet.root = given[0] != '\0' ? cgn_arena_strz(&j->rack->arena, cgn_str_of(root)) : "";
	j->fleet.folder = j->folder;
	if (j->fleet.root == NULL || strchr(j->fleet.root, '\n') != NULL)
		return CGN_FAIL(err, INVALID, "--root must be one line");
	return fleet_open(&j->fleet, err);
}

static void job_end(struct job *j)
{
	const struct rack_host *hosts[RACK_MAX_HOSTS];
	for (size_t i = 0; i < j->n; i++)
		hosts[i] = j->nodes[i]->host;
	if (j->fleet.work[0] != '\0')
		fleet_close(&j->fleet, hosts, j->n);
	for (size_t i = 0; i < j->n; i++) {
		rack_node_fini(j->nodes[i]);
		free(j->nodes[i]);
	}
	rack_etcd_close(&j->etcd);
	rack_pki_close(&j->pki);
	if (j->lock > 0)
		(void)close(j->lock);
	rack_free(&j->rack);
}

static CGN_RC job_do(const struct ctl_args *a, bool undo, struct cgn_err *err)
{
	static struct job j; /* Too large for the stack. */
	j = (struct job){.args = a, .apply = ctl_switch(a, "--apply"), .undo = undo};
	cgn_rc rc = inventory_read(&j, err);
	if (cgn_ok(rc))
		rc = hosts_choose(&j, err);
	if (cgn_ok(rc))
		rc = fleet_begin(&j, err);
	if (cgn_ok(rc))
		rc = job_run(&j, err);
	job_end(&j);
	return rc;
}

CGN_RC ctl_install_baremetal(const struct ctl_args *a, struct cgn_err *err)
{
	if (!ctl_switch(a, "--example"))
		return job_do(a, false, err);
	(void)fputs(install_source_text("rack/inventory.example.toml"), stdout);
	return CGN_OK;
}

CGN_RC ctl_uninstall_baremetal(const struct ctl_args *a, struct cgn_err *err)
{
	return job_do(a, true, err);
}
