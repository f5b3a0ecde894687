/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rack/plan.h"

#include <stdio.h>
#include <unistd.h>

#include "io/os/disk/disk.h"

#define PROGRAM_LIMIT ((size_t)1 << 30)
#define SETTINGS      "/etc/cognitora/cognitora.toml"
#define ETCD_ENV      "/etc/cognitora/etcd.env"
#define ETCD_JOIN_ENV "/run/cognitora-join.env" /* units.sh writes it while a member joins. */
#define ETCD_DROP_IN  "/etc/systemd/system/etcd.service.d/cognitora.conf"

/* ---- programs ---- */

static const char *program_name(size_t i)
{
	return i == RACK_CTL ? "cgn-ctl" : i == RACK_LAB ? "cgn-lab" : rack_unit((enum rack_role)i);
}

static CGN_RC program_sum(const char *path, char out[65], struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bytes = {0};
	CGN_TRY(disk_read_file(path, PROGRAM_LIMIT, &bytes, err));
	install_sum(cgn_buf_view(&bytes), out);
	return CGN_OK;
}

CGN_RC rack_programs_find(const char *dir, struct rack_programs *out, struct cgn_err *err)
{
	for (size_t i = 0; i < RACK_ALL_PROGRAMS; i++) {
		out->of[i].source[0] = '\0';
		if (i == RACK_ETCD)
			continue;
		int n = snprintf(out->of[i].source, sizeof out->of[i].source, "%s/%s", dir, program_name(i));
		if (n >= (int)sizeof out->of[i].source)
			return CGN_FAIL(err, INVALID, "--programs is too long");
		if (access(out->of[i].source, X_OK) != 0)
			out->of[i].source[0] = '\0';
		else
			CGN_TRY(program_sum(out->of[i].source, out->of[i].sha256, err));
	}
	return CGN_OK;
}

/* ---- files ---- */

static struct rack_file *file_add(struct rack_node *node, const char *path, unsigned mode, unsigned roles)
{
	CGN_MUST(node->n < RACK_MAX_FILES);
	struct rack_file *f = &node->files[node->n++];
	*f = (struct rack_file){.mode = mode, .roles = roles, .text.limit = INSTALL_FILE_LIMIT};
	(void)snprintf(f->path, sizeof f->path, "%s", path);
	return f;
}

static void unit_add(struct rack_node *node, const char *name, unsigned roles)
{
	char place[200];
	const char *text = install_unit(name, place, sizeof place);
	CGN_MUST(text != NULL);
	cgn_buf_putz(&file_add(node, place, 0644, roles)->text, text);
}

/* The unit of a role with its certificate. The store has the certificate of the agent. */
static void service_add(struct rack_node *node, enum rack_role role)
{
	char name[100], path[200];
	const char *cert = role == RACK_STORE ? rack_role_name(RACK_AGENT) : rack_role_name(role);
	(void)snprintf(name, sizeof name, "%s.service", rack_unit(role));
	unit_add(node, name, RACK_BIT(role));
	(void)snprintf(path, sizeof path, "/etc/systemd/system/%s.d/credentials.conf", name);
	install_credentials(cert, "program", &file_add(node, path, 0644, RACK_BIT(role))->text);
}

/* The unit is that of the package etcd-server. It starts before the addresses of the host are there, and once, so that a member that cannot
 * listen yet stays down. */
static void etcd_add(const struct rack *r, struct rack_node *node)
{
	struct cgn_buf *b = &file_add(node, ETCD_DROP_IN, 0644, RACK_BIT(RACK_ETCD))->text;
	cgn_buf_putz(b,
		"[Unit]\nWants=network-online.target\nAfter=network-online.target\nStartLimitIntervalSec=0\n\n");
	install_credentials("etcd", "etcd", b);
	cgn_buf_putz(b, "Restart=always\nRestartSec=1s\n");
	cgn_buf_putz(b, "EnvironmentFile=" ETCD_ENV "\nEnvironmentFile=-" ETCD_JOIN_ENV "\n");
	for (size_t i = 0; i < 2; i++) {
		const char *peer = i == 0 ? "" : "PEER_";
		cgn_buf_fmt(b,
			"Environment=ETCD_%sTRUSTED_CA_FILE=%%d/ca.pem\nEnvironment=ETCD_%sCERT_FILE=%%d/etcd.pem\n"
			"Environment=ETCD_%sKEY_FILE=%%d/etcd.key\n",
			peer, peer, peer);
	}
	rack_etcd_env(r, node->host, &file_add(node, ETCD_ENV, 0644, RACK_BIT(RACK_ETCD))->text);
}

static void program_add(struct rack_node *node, const struct rack_programs *p, size_t i, unsigned roles)
{
	char path[100];
	(void)snprintf(path, sizeof path, RACK_PROGRAMS "%s", program_name(i));
	struct rack_file *f = file_add(node, path, 0755, roles);
	f->source = p->of[i].source;
	(void)snprintf(f->sha256, sizeof f->sha256, "%s", p->of[i].sha256);
}

static CGN_RC cert_add(struct rack_pki *pki, struct rack_node *node, enum rack_cert c, struct cgn_err *err)
{
	char path[200];
	struct pki_pair pair = {.cert = {0}};
	unsigned roles = rack_cert_roles(c) & node->host->roles;
	CGN_TRY(rack_pki_pair(pki, node->host, c, &pair, err));
	(void)snprintf(path, sizeof path, INSTALL_PKI "/%s.pem", rack_cert_name(c));
	cgn_buf_str(&file_add(node, path, 0644, roles)->text, cgn_buf_view(&pair.cert));
	(void)snprintf(path, sizeof path, INSTALL_PKI "/%s.key", rack_cert_name(c));
	cgn_buf_str(&file_add(node, path, 0600, roles)->text, cgn_buf_view(&pair.key));
	pki_pair_fini(&pair);
	return CGN_OK;
}

static CGN_RC certs_add(struct rack_pki *pki, struct rack_node *node, struct cgn_err *err)
{
	struct rack_file *ca = file_add(node, INSTALL_PKI "/ca.pem", 0644, node->host->roles);
	cgn_buf_str(&ca->text, cgn_buf_view(&pki->ca.cert));
	for (unsigned c = 0; c < RACK_CERTS; c++)
		if ((rack_cert_roles((enum rack_cert)c) & node->host->roles) != 0)
			CGN_TRY(cert_add(pki, node, (enum rack_cert)c, err));
	return CGN_OK;
}

CGN_RC rack_plan_files(struct rack *r, struct rack_pki *pki, const struct rack_programs *programs,
	struct rack_node *node, struct cgn_err *err)
{
	const struct rack_host *h = node->host;
	unsigned ours = h->roles & ~RACK_BIT(RACK_ETCD);
	CGN_TRY(certs_add(pki, node, err));
	if (rack_has(h, RACK_ETCD))
		etcd_add(r, node);
	if (ours != 0) {
		CGN_TRY(rack_settings(r, h, &file_add(node, SETTINGS, 0644, ours)->text, err));
		unit_add(node, "cognitora.sysusers", 0);
		unit_add(node, "cognitora.tmpfiles", 0);
		unit_add(node, "cognitora.target", 0);
		program_add(node, programs, RACK_CTL, 0);
		program_add(node, programs, RACK_LAB, 0);
	}
	for (unsigned i = 0; i < RACK_ROLES; i++)
		if ((ours & RACK_BIT(i)) != 0) {
			service_add(node, (enum rack_role)i);
			program_add(node, programs, i, RACK_BIT(i));
		}
	for (size_t i = 0; i < node->n; i++) {
		struct rack_file *f = &node->files[i];
		if (f->text.bad)
			return CGN_FAIL(err, TOO_LARGE, "host %s: %s is too large", h->name, f->path);
		if (f->source == NULL && f->text.n > 0)
			install_sum(cgn_buf_view(&f->text), f->sha256);
	}
	return CGN_OK;
}

/* ---- the comparison ---- */

static CGN_RC record_read(struct rack_node *node, struct cgn_err *err)
{
	const struct rack_seen_file *f = rack_seen_find(&node->seen, INSTALL_RECORD);
	node->record.n = 0;
	node->record.file = INSTALL_RECORD;
	return f != NULL ? install_record_parse(f->text, &node->record, err) : CGN_OK;
}

/* A program that is not ours to change: it is used as it is. */
static bool file_is_left(const struct rack_file *f)
{
	return f->source != NULL && (f->source[0] == '\0' || f->state == INSTALL_CHANGED);
}

static CGN_RC program_check(const struct rack_node *node, const struct rack_file *f, const char *now,
	struct cgn_err *err)
{
	if (f->source == NULL || f->source[0] != '\0' || now != NULL || f->roles == 0)
		return CGN_OK;
	return CGN_FAIL(err, NOT_FOUND,
		"host %s has no %s, and there is none to copy: name the folder of the programs with --programs",
		node->host->name, f->path);
}

/* Return the roles whose programs must start again because of the file. */
static unsigned file_readers(const struct rack_node *node, const struct rack_file *f)
{
	const struct rack_seen_file *old = rack_seen_find(&node->seen, f->path);
	if (strcmp(f->path, ETCD_ENV) == 0 && old != NULL && old->text.p != NULL)
		return rack_etcd_changed(old->text, cgn_buf_view(&f->text)) ? f->roles : 0;
	if (strcmp(f->path, SETTINGS) != 0 || old == NULL || old->text.p == NULL)
		return f->roles;
	return rack_changed(old->text, cgn_buf_view(&f->text)) & f->roles;
}

static CGN_RC file_compare(struct rack_node *node, struct rack_file *f, struct cgn_err *err)
{
	char sum[65] = "", had[65] = "";
	const struct rack_seen_file *seen = rack_seen_find(&node->seen, f->path);
	const char *noted = install_record_find(&node->record, f->path);
	if (noted != NULL)
		noted = memcpy(had, noted, sizeof had);
	if (seen != NULL)
		(void)cgn_str_copyz(sum, sizeof sum, seen->sha256);
	const char *now = seen != NULL ? sum : NULL;
	CGN_TRY(program_check(node, f, now, err));
	f->state = install_state_of(now, f->sha256, noted);
	if (file_is_left(f))
		return CGN_OK;
	if (f->state == INSTALL_CHANGED) {
		node->kept++;
		return CGN_OK;
	}
	if (f->state == INSTALL_SAME && (noted == NULL || strcmp(noted, now) == 0) &&
		(noted != NULL || !node->seen.interrupted))
		return CGN_OK;
	if (f->state == INSTALL_SAME) {
		node->noted = true;
	} else {
		node->writes++;
		node->restart |= file_readers(node, f);
	}
	return install_record_set(&node->record, f->path, f->sha256, err);
}

static bool path_is_planned(const struct rack_node *node, const char *path)
{
	for (size_t i = 0; i < node->n; i++)
		if (strcmp(node->files[i].path, path) == 0)
			return true;
	return false;
}

/* A recorded file that is not wanted any more goes, if it is as it was installed. */
static void row_compare(struct rack_node *node, const char *path, const char *noted)
{
	const struct rack_seen_file *seen = rack_seen_find(&node->seen, path);
	if (seen != NULL && !cgn_str_is(seen->sha256, noted)) {
		node->kept++;
		return;
	}
	if (seen != NULL)
		(void)cgn_str_copyz(node->gone[node->n_gone++].path, sizeof node->gone[0].path,
			cgn_str_of(path));
	node->noted = true;
}

static void rows_compare(struct rack_node *node)
{
	static struct install_record was;
	was = node->record;
	for (size_t i = 0; i < was.n; i++) {
		unsigned kept = node->kept;
		if (path_is_planned(node, was.rows[i].path))
			continue;
		row_compare(node, was.rows[i].path, was.rows[i].sha256);
		if (node->kept == kept)
			install_record_drop(&node->record, was.rows[i].path);
	}
}

/* Is the unit one of ours? Other units are not stopped. */
static bool unit_is_recorded(const struct rack_node *node, enum rack_role role)
{
	char path[200];
	(void)snprintf(path, sizeof path, "/etc/systemd/system/%s.service", rack_unit(role));
	return install_record_find(&node->record, role == RACK_ETCD ? ETCD_DROP_IN : path) != NULL;
}

static void units_compare(struct rack_node *node, unsigned recorded)
{
	const struct rack_seen *s = &node->seen;
	unsigned wanted = node->n > 0 ? node->host->roles : 0;
	node->disable = recorded & ~wanted & (s->enabled | s->active);
	node->restart = (node->restart | s->pending) & wanted & s->active;
	node->start = wanted & ~s->active;
	node->enable = wanted & ~s->enabled;
}

CGN_RC rack_plan_compare(struct rack_node *node, struct cgn_err *err)
{
	unsigned recorded = 0;
	CGN_TRY(cgn_err_of(rack_report_read(cgn_buf_view(&node->report), &node->seen, err), node->host->name,
		err));
	CGN_TRY(cgn_err_of(record_read(node, err), node->host->name, err));
	for (unsigned i = 0; i < RACK_ROLES; i++)
		recorded |= unit_is_recorded(node, (enum rack_role)i) ? RACK_BIT(i) : 0;
	for (size_t i = 0; i < node->n; i++)
		CGN_TRY(file_compare(node, &node->files[i], err));
	rows_compare(node);
	units_compare(node, recorded);
	if (node->n > 0 && rack_has(node->host, RACK_ETCD) && !node->seen.etcd)
		return CGN_FAIL(err, NOT_FOUND,
			"host %s has no /usr/bin/etcd: apt-get install etcd-server there", node->host->name);
	return CGN_OK;
}

bool rack_plan_writes(const struct rack_node *node)
{
	return node->writes > 0 || node->n_gone > 0 || node->noted;
}

bool rack_plan_is_empty(const struct rack_node *node)
{
	unsigned units = node->start | node->restart | node->enable | node->disable;
	return !rack_plan_writes(node) && !node->seen.interrupted && (units == 0 || !node->seen.systemd);
}

void rack_node_fini(struct rack_node *node)
{
	for (size_t i = 0; i < node->n; i++)
		cgn_buf_fini(&node->files[i].text);
	cgn_buf_fini(&node->report);
}
