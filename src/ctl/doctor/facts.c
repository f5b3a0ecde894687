/* SPDX-License-Identifier: Apache-2.0 */
/* facts: the settings, the programs of this machine, and the answers of all servers that the settings name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl/doctor/doctor.h"
#include "ctl/run.h"
#include "io/os/disk/disk.h"
#include "policy/fleet/settings/settings.h"
#include "policy/who/identity/identity.h"

#define FILE_LIMIT   ((size_t)1 << 20)
#define DEFAULT_FILE "/etc/cognitora/cognitora.toml"

static const char *settings_path(const struct ctl_args *a)
{
	const char *named = ctl_flag(a, "--config"), *env = getenv("CGN_CONFIG");
	if (named != NULL)
		return named;
	if (env != NULL && *env != '\0')
		return env;
	return access(DEFAULT_FILE, F_OK) == 0 ? DEFAULT_FILE : NULL;
}

/* Paths "credential:NAME" have a folder only inside of a unit: use the folder of a unit that runs. */
static void credentials_find(void)
{
	static const char *const units[] = {"cgn-router", "cgn-agent", "cgn-kvcached", "cgn-metrics"};
	char dir[100] = "/run/credentials";
	for (size_t i = 0; i < CGN_COUNT(units); i++) {
		char try[100];
		(void)snprintf(try, sizeof try, "/run/credentials/%s.service", units[i]);
		if (access(try, F_OK) == 0) {
			(void)snprintf(dir, sizeof dir, "%s", try);
			break;
		}
	}
	(void)setenv("CREDENTIALS_DIRECTORY", dir, 0);
}

static void settings_read(struct doctor *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (d->path != NULL && !cgn_ok(disk_read_file(d->path, FILE_LIMIT, &text, &d->trouble)))
		return;
	cgn_rc rc = settings_load(d->path != NULL ? d->path : "no file", cgn_buf_view(&text),
		(const char *const *)environ, NULL, 0, &d->cfg, &d->trouble);
	if (!cgn_ok(rc))
		d->cfg = NULL;
}

/* The programs are beside cgn-ctl, in the source tree's folders, or in PATH's usual places. */
static void binary_find(struct doctor_program *p)
{
	char own[PATH_MAX];
	(void)!cgn_ok(ctl_run_folder(own, NULL));
	const char *const folder = strchr(p->name, '-') + 1;
	(void)snprintf(p->binary, sizeof p->binary, "%.3000s/%s", own, p->name);
	if (access(p->binary, X_OK) != 0)
		(void)snprintf(p->binary, sizeof p->binary, "%.3000s/../%s/%s", own, folder, p->name);
	if (access(p->binary, X_OK) != 0)
		(void)snprintf(p->binary, sizeof p->binary, "/usr/bin/%s", p->name);
	if (access(p->binary, X_OK) != 0)
		p->binary[0] = '\0';
}

static bool program_named(const struct ctl_args *a, const char *name, bool *any)
{
	const char *word;
	bool found = false;
	for (size_t i = 0; (word = ctl_flag_nth(a, "--program", i)) != NULL; i++) {
		*any = true;
		found = found || strcmp(word, name) == 0 || strcmp(word, strchr(name, '-') + 1) == 0;
	}
	return found;
}

/* Read "KEY=VALUE" of one unit. */
static void unit_line(struct doctor_program *p, struct cgn_str line)
{
	const struct {
		const char *key;
		char *to;
		size_t cap;
	} keys[] = {{"LoadState", p->load, sizeof p->load},
		{"UnitFileState", p->file_state, sizeof p->file_state},
		{"ActiveState", p->active, sizeof p->active}, {"Result", p->why, sizeof p->why}};
	struct cgn_str key = cgn_str_split(&line, '=');
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (cgn_str_is(key, keys[i].key))
			(void)cgn_str_copyz(keys[i].to, keys[i].cap, line);
}

/* systemctl prints a block of lines for each unit, in order, with an empty line between. */
static void units_read(struct doctor *d)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	static const char *const units[] = {"cgn-router.service", "cgn-agent.service", "cgn-kvcached.service",
		"cgn-metrics.service"};
	size_t at = 0;
	d->units = doctor_systemctl(d, units, CGN_COUNT(units),
		"--property=LoadState,UnitFileState,ActiveState,Result", &out);
	for (struct cgn_str rest = cgn_buf_view(&out); d->units && rest.p != NULL && at < DOCTOR_PROGRAMS;) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		if (line.n == 0)
			at++;
		else
			unit_line(&d->programs[at], line);
	}
}

static void programs_find(struct doctor *d)
{
	static const char *const names[] = {"cgn-router", "cgn-agent", "cgn-kvcached", "cgn-metrics"};
	static const char *const sections[] = {"router", "agent", "kv", "metrics"};
	bool any_named = false, any_enabled = false;
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		struct doctor_program *p = &d->programs[i];
		p->name = names[i];
		binary_find(p);
		any_enabled = any_enabled || strcmp(p->file_state, "enabled") == 0;
		p->certain = program_named(d->args, p->name, &any_named);
	}
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		struct doctor_program *p = &d->programs[i];
		if (!any_named && any_enabled)
			p->certain = strcmp(p->file_state, "enabled") == 0;
		p->meant = p->certain ||
			(!any_named && !any_enabled && d->cfg != NULL &&
				(config_is_set(d->cfg, sections[i]) ||
					(i == AGENT && d->cfg->n_engines > 0)));
	}
	if (d->cfg == NULL)
		return;
	d->programs[ROUTER].admin = d->cfg->router.listen_admin;
	d->programs[AGENT].admin = d->cfg->agent.listen_admin;
	d->programs[KVCACHED].admin = d->cfg->kv.listen_admin;
	d->programs[METRICS].admin = d->cfg->metrics.listen;
}

void doctor_read_settings(struct doctor *d)
{
	d->path = settings_path(d->args);
	credentials_find();
	(void)setenv("RES_OPTIONS", "timeout:1 attempts:1",
		0); /* A dead name server must not hold everything up. */
	settings_read(d);
	units_read(d);
	programs_find(d);
}

/* A wildcard address is asked at the loopback address. */
static const char *dial_address(struct doctor *d, const char *listen)
{
	const char *port = strrchr(listen, ':');
	if (cgn_str_starts(cgn_str_of(listen), "0.0.0.0:") || listen[0] == ':')
		return cgn_arena_fmt(&d->arena, "127.0.0.1%s", port);
	if (cgn_str_starts(cgn_str_of(listen), "[::]:"))
		return cgn_arena_fmt(&d->arena, "[::1]%s", port);
	return listen;
}

static void probe_own_tls(const struct doctor *d, struct probe *q)
{
	const char *ca = ctl_flag(d->args, "--ca"), *cert = ctl_flag(d->args, "--cert"),
		   *key = ctl_flag(d->args, "--key");
	q->ca_file = ca != NULL ? ca : d->cfg->security.ca_file;
	q->cert_file = cert != NULL ? cert : d->cfg->security.cert_file;
	q->key_file = key != NULL ? key : d->cfg->security.key_file;
}

static struct probe *admin_ask(struct doctor *d, const char *listen, const char *path)
{
	const char *addr = dial_address(d, listen);
	if (listen[0] == '\0' || strncmp(listen, "unix:", 5) == 0 || addr == NULL)
		return NULL;
	struct probe *q = probe_add(&d->probes, addr, path);
	if (q == NULL)
		return NULL;
	q->bearer = getenv("CGN_API_KEY");
	q->tls = !identity_is_local(cgn_str_of(listen)) && d->cfg->security.cert_file != NULL;
	if (q->tls)
		probe_own_tls(d, q);
	return q;
}

static void programs_ask(struct doctor *d)
{
	static const char *const extras[] = {"/nodes", "/engines", "/peers", "/targets"};
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		struct doctor_program *p = &d->programs[i];
		p->version = admin_ask(d, p->admin, "/version");
		p->ready = admin_ask(d, p->admin, "/readyz");
		p->config = admin_ask(d, p->admin, "/config.json");
		p->extra = admin_ask(d, p->admin, extras[i]);
	}
}

static const char *first_line(struct doctor *d, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (path == NULL || !cgn_ok(disk_read_file(path, FILE_LIMIT, &text, NULL)))
		return NULL;
	struct cgn_str rest = cgn_buf_view(&text);
	return cgn_arena_strz(&d->arena, cgn_str_trim(cgn_str_split(&rest, '\n')));
}

static void engines_ask(struct doctor *d)
{
	for (size_t i = 0; d->programs[AGENT].meant && i < d->cfg->n_engines && i < CGN_COUNT(d->engines);
		i++) {
		const struct config_engine *e = &d->cfg->engines[i];
		struct probe *q =
			e->managed ? NULL : probe_add_url(&d->probes, &d->arena, e->url, "/v1/models");
		if (q != NULL) {
			q->ca_file = e->ca_file;
			q->bearer = first_line(d, e->api_key_file);
		}
		d->engines[i] = q;
	}
}

static void etcd_ask(struct doctor *d)
{
	const struct config_list *list = &d->cfg->cluster.etcd_endpoints;
	for (size_t i = 0; d->cfg->cluster.state_backend == STATE_ETCD && i < list->n && i < 16; i++) {
		d->etcd[i] = probe_add_url(&d->probes, &d->arena, list->v[i], "/health");
		d->members[i] = probe_add_url(&d->probes, &d->arena, list->v[i], "/v3/cluster/member/list");
		struct probe *both[] = {d->etcd[i], d->members[i]};
		for (size_t k = 0; k < 2; k++)
			if (both[k] != NULL) {
				both[k]->ca_file = d->cfg->cluster.etcd_ca_file;
				both[k]->cert_file = d->cfg->cluster.etcd_cert_file;
				both[k]->key_file = d->cfg->cluster.etcd_key_file;
			}
		if (d->members[i] != NULL) {
			d->members[i]->path = "/v3/cluster/member/list";
			d->members[i]->body = "{}";
		}
	}
}

static void routers_ask(struct doctor *d)
{
	const struct config_list *list = &d->cfg->metrics.routers;
	for (size_t i = 0; i < list->n && i < CGN_COUNT(d->routers); i++) {
		const char *at = strchr(list->v[i], '='), *url = at != NULL ? at + 1 : list->v[i];
		d->routers[i] = probe_add_url(&d->probes, &d->arena, url, "/config.json");
		if (d->routers[i] == NULL)
			continue;
		d->routers[i]->bearer = getenv("CGN_API_KEY");
		probe_own_tls(d, d->routers[i]);
		d->routers[i]->ca_file = d->cfg->metrics.routers_ca_file;
	}
	if (d->cfg->cluster.state_backend != STATE_EMBEDDED || !d->programs[AGENT].meant)
		return;
	d->router = probe_add(&d->probes, d->cfg->cluster.router, "/");
	if (d->router == NULL)
		return;
	d->router->h2 = true;
	d->router->tls = d->cfg->security.ca_file != NULL;
	if (d->router->tls)
		probe_own_tls(d, d->router);
}

static void programs_settle(struct doctor *d)
{
	for (size_t i = 0; i < DOCTOR_PROGRAMS; i++) {
		struct doctor_program *p = &d->programs[i];
		struct json_val doc, name;
		p->answers = p->version != NULL && p->version->status == 200 &&
			cgn_ok(json_parse(cgn_buf_view(&p->version->text), &doc, NULL, NULL)) &&
			json_get(doc, "program", &name) && name.raw.n == strlen(p->name) + 2 &&
			memcmp(name.raw.p + 1, p->name, strlen(p->name)) == 0;
		/* Without --program, what runs here belongs here. */
		p->meant = p->meant || (p->answers && ctl_flag(d->args, "--program") == NULL);
	}
}

CGN_RC doctor_gather(struct doctor *d, struct cgn_err *err)
{
	if (d->cfg == NULL)
		return CGN_OK;
	programs_ask(d);
	engines_ask(d);
	etcd_ask(d);
	routers_ask(d);
	CGN_TRY(probes_run(&d->probes, err));
	programs_settle(d);
	return CGN_OK;
}
