/* SPDX-License-Identifier: Apache-2.0 */
/* render: the settings and units of one machine. */
#include <stdio.h>
#include <stdlib.h>

#include "ctl/install/install.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"

#define UNITS "systemd/"

/* The place of a file of deploy/systemd. */
static void unit_place(const char *name, char *out, size_t cap)
{
	name += strlen(UNITS);
	if (strcmp(name, "cognitora.sysusers") == 0)
		(void)snprintf(out, cap, "/etc/sysusers.d/cognitora.conf");
	else if (strcmp(name, "cognitora.tmpfiles") == 0)
		(void)snprintf(out, cap, "/etc/tmpfiles.d/cognitora.conf");
	else
		(void)snprintf(out, cap, "/etc/systemd/system/%s", name);
}

struct cgn_buf *install_plan_add(struct install_plan *p, const char *path)
{
	CGN_MUST(p->n < INSTALL_MAX_FILES);
	struct install_file *f = &p->files[p->n++];
	f->path = cgn_str_dupz(cgn_str_of(path));
	f->text = (struct cgn_buf){.limit = INSTALL_FILE_LIMIT};
	return &f->text;
}

static void put_setting(struct cgn_buf *b, const char *key, const char *value)
{
	struct json_out o = json_out_to(b); /* A string of JSON is one of TOML. */
	if (value == NULL)
		return;
	cgn_buf_fmt(b, "%s = ", key);
	json_put_str(&o, cgn_str_of(value));
	cgn_buf_char(b, '\n');
}

static void settings_write(const struct ctl_args *a, struct cgn_buf *b)
{
	cgn_buf_putz(b,
		"# Written by cgn-ctl install single-node. cgn-ctl uninstall keeps this file if you change it.\n"
		"[cluster]\nstate_backend = \"embedded\"\nrouter = \"127.0.0.1:9090\"\n\n"
		"# Each unit gets the files of its own certificate by LoadCredential=.\n"
		"[security]\nrequire_mtls = true\nca_file = \"credential:ca.pem\"\n"
		"cert_file = \"credential:program.pem\"\nkey_file = \"credential:program.key\"\n\n[router]\n");
	put_setting(b, "listen", ctl_flag(a, "--listen"));
	cgn_buf_putz(b,
		"listen_grpc = \"127.0.0.1:9090\"\n\n[agent]\nlisten = \"127.0.0.1:7080\"\n\n"
		"[kv]\nlisten = \"127.0.0.1:7090\"\n");
	put_setting(b, "ram", ctl_flag(a, "--store-ram"));
	cgn_buf_putz(b, "\n[metrics]\nlisten = \"127.0.0.1:9092\"\n\n[engine]\nmanaged = false\n");
	put_setting(b, "kind", ctl_flag(a, "--engine"));
	put_setting(b, "url", ctl_flag(a, "--engine-url"));
	put_setting(b, "model", ctl_flag(a, "--model"));
}

static CGN_RC settings_check(struct cgn_buf *text, struct cgn_err *err)
{
	static const char *const env[] = {"CREDENTIALS_DIRECTORY=/run/credentials", NULL};
	CGN_ON_EXIT(config_free) struct config *cfg = NULL;
	return settings_load("cognitora.toml", cgn_buf_view(text), env, NULL, 0, &cfg, err);
}

const char *install_unit(const char *name, char *place, size_t cap)
{
	char source[200];
	(void)snprintf(source, sizeof source, UNITS "%s", name);
	unit_place(source, place, cap);
	return install_source_text(source);
}

void install_credentials(const char *name, const char *as, struct cgn_buf *out)
{
	cgn_buf_fmt(out,
		"[Service]\nLoadCredential=ca.pem:" INSTALL_PKI "/ca.pem\n"
		"LoadCredential=%s.pem:" INSTALL_PKI "/%s.pem\n"
		"LoadCredential=%s.key:" INSTALL_PKI "/%s.key\n",
		as, name, as, name);
}

/* A drop-in gives the unit its certificate. The names of roles are those of cgn-ctl pki bootstrap. */
static void credentials_add(struct install_plan *p, const char *program, const char *role)
{
	char path[200];
	(void)snprintf(path, sizeof path, "/etc/systemd/system/%s.service.d/credentials.conf", program);
	install_credentials(role, "program", install_plan_add(p, path));
}

CGN_RC install_render_single(const struct ctl_args *a, struct install_plan *out, struct cgn_err *err)
{
	static const struct {
		const char *program, *role;
	} holders[] = {{"cgn-router", "router"}, {"cgn-agent", "agent"}, {"cgn-kvcached", "agent"},
		{"cgn-metrics", "metrics"}};
	struct cgn_buf *b = install_plan_add(out, "/etc/cognitora/cognitora.toml");
	char path[200];
	settings_write(a, b);
	CGN_TRY(settings_check(b, err));
	for (const struct install_source *f = NULL; (f = install_source_next(UNITS, f)) != NULL;) {
		unit_place(f->name, path, sizeof path);
		cgn_buf_putz(install_plan_add(out, path), f->text);
	}
	for (size_t i = 0; i < CGN_COUNT(holders); i++)
		credentials_add(out, holders[i].program, holders[i].role);
	return CGN_OK;
}

void install_plan_fini(struct install_plan *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free((void *)(uintptr_t)p->files[i].path);
		cgn_buf_fini(&p->files[i].text);
	}
	p->n = 0;
}
