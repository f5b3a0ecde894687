/* SPDX-License-Identifier: Apache-2.0 */
/* settings: the BMCs and texts of [metrics] and [bmcs."NODE"]. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "powerpoll_priv.h"

/* The BMC of [metrics] has the keys of a row, under other names. */
static struct config_bmc own_bmc(const struct config *cfg, char host[64])
{
	struct config_bmc b = {.name = cfg->metrics.node,
		.url = cfg->metrics.redfish_url,
		.user = cfg->metrics.redfish_user,
		.password_file = cfg->metrics.redfish_password_file,
		.ca_file = cfg->metrics.redfish_ca_file,
		.fingerprint = cfg->metrics.redfish_fingerprint,
		.metrics_url = cfg->metrics.dcgm_url,
		.metrics_ca_file = cfg->metrics.dcgm_ca_file,
		.metrics_fingerprint = cfg->metrics.dcgm_fingerprint};
	if (cfg->metrics.ipmi == CONFIG_IPMI_LANPLUS) {
		b.ipmi_host = cfg->metrics.ipmi_host;
		b.ipmi_user = cfg->metrics.ipmi_user;
		b.ipmi_password_file = cfg->metrics.ipmi_password_file;
	}
	if (b.name == NULL) {
		if (gethostname(host, 64) != 0)
			host[0] = '\0';
		host[63] = '\0';
		b.name = host[0] != '\0' ? host : "local";
	}
	return b;
}

static struct redfish_bmc_cfg redfish_of(const struct config *cfg, const struct config_bmc *b)
{
	return (struct redfish_bmc_cfg){.url = b->url,
		.node = b->name,
		.user = b->user,
		.password_file = b->password_file,
		.ca_file = b->ca_file,
		.fingerprint = b->fingerprint,
		.timeout = cfg->metrics.power_timeout,
		.interval = cfg->metrics.power_interval};
}

/* Split HOST:PORT; "[v6]:port" and a bare IPv6 address too. */
static CGN_RC ipmi_of(const struct config *cfg, const struct config_bmc *b, char host[256],
	struct ipmi_bmc_cfg *out, struct cgn_err *err)
{
	struct cgn_str s = cgn_str_of(b->ipmi_host);
	uint64_t port = 623;
	*out = (struct ipmi_bmc_cfg){.program = cfg->metrics.ipmitool,
		.user = b->ipmi_user,
		.password_file = b->ipmi_password_file,
		.node = b->name,
		.timeout = cfg->metrics.power_timeout,
		.interval = cfg->metrics.power_interval};
	if (b->ipmi_host == NULL)
		return CGN_OK;
	const char *colon = strrchr(b->ipmi_host, ':');
	bool is_bare_v6 = colon != NULL && strchr(b->ipmi_host, ':') != colon && s.p[0] != '[';
	if (colon != NULL && !is_bare_v6 && colon[1] != '\0' && strchr(colon, ']') == NULL) {
		s.n = (size_t)(colon - s.p);
		if (!cgn_str_u64(cgn_str_of(colon + 1), &port) || port == 0 || port > 65535)
			return CGN_FAIL(err, INVALID, "\"%s\" is not a HOST or HOST:PORT", b->ipmi_host);
	}
	if (s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']')
		s = (struct cgn_str){s.p + 1, s.n - 2};
	if (!cgn_str_copyz(host, 256, s) || host[0] == '\0' || host[0] == '-')
		return CGN_FAIL(err, INVALID, "\"%s\" is not a HOST or HOST:PORT", b->ipmi_host);
	if (b->ipmi_password_file == NULL) /* Without a file ipmitool would ask for the password */
		return CGN_FAIL(err, INVALID, "%s needs a password file", b->ipmi_host);
	out->host = host;
	out->port = (unsigned)port;
	return CGN_OK;
}

static struct powerfetch_cfg text_of(const struct config *cfg, const struct config_bmc *b)
{
	return (struct powerfetch_cfg){.url = b->metrics_url,
		.node = b->name,
		.ca_file = b->metrics_ca_file,
		.fingerprint = b->metrics_fingerprint,
		.timeout = cfg->metrics.power_timeout,
		.interval = cfg->metrics.power_interval};
}

/* ---- keys ---- */

static void key_add(struct cgn_buf *key, const char *text)
{
	cgn_buf_fmt(key, "%zu %s,", text != NULL ? strlen(text) : 0, text != NULL ? text : "");
}

/* A file that was replaced is another file under the same name. */
static void key_add_file(struct cgn_buf *key, const char *path)
{
	struct stat st;
	key_add(key, path);
	if (path != NULL && stat(path, &st) == 0)
		cgn_buf_fmt(key, "%llu %lld %lld.%09ld,", (unsigned long long)st.st_ino,
			(long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

/* Write all that the sources of a row are opened with. Password files are read in each round. */
static void key_make(const struct config *cfg, const struct config_bmc *b, const char *source,
	struct cgn_buf *key)
{
	const char *const texts[] = {source, b->name, b->url, b->user, b->password_file, b->fingerprint,
		b->ipmi_host, b->ipmi_user, b->ipmi_password_file, b->metrics_url, b->metrics_fingerprint,
		cfg->metrics.ipmitool};
	for (size_t i = 0; i < CGN_COUNT(texts); i++)
		key_add(key, texts[i]);
	key_add_file(key, b->ca_file);
	key_add_file(key, b->metrics_ca_file);
	cgn_buf_fmt(key, "%llu %llu", (unsigned long long)cfg->metrics.power_timeout,
		(unsigned long long)cfg->metrics.power_interval);
}

/* ---- rows ---- */

struct bmc_visit {
	struct powerpoll *p; /* NULL: check only */
	const struct config *cfg;
	struct svc_problems *problems;
};

static CGN_RC bmc_ipmi(const struct bmc_visit *v, const struct config_bmc *b, bool is_local,
	const char *setting, struct cgn_err *err)
{
	char host[256];
	struct ipmi_bmc_cfg ipmi;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	if (b->ipmi_host == NULL && !is_local)
		return CGN_OK;
	key_make(v->cfg, b, "ipmi", &key);
	cgn_rc rc = ipmi_of(v->cfg, b, host, &ipmi, err);
	if (cgn_ok(rc) && v->p != NULL)
		rc = powerpoll_want_ipmi(v->p, &ipmi, cgn_buf_z(&key), err);
	return cgn_err_of(rc, setting, err);
}

static CGN_RC bmc_redfish(const struct bmc_visit *v, const struct config_bmc *b, const char *setting,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	if (b->url == NULL)
		return CGN_OK;
	const struct redfish_bmc_cfg redfish = redfish_of(v->cfg, b);
	key_make(v->cfg, b, "redfish", &key);
	cgn_rc rc = v->p != NULL ? powerpoll_want_redfish(v->p, &redfish, cgn_buf_z(&key), err)
				 : redfish_bmc_check(&redfish, err);
	return cgn_err_of(rc, setting, err);
}

static CGN_RC bmc_text(const struct bmc_visit *v, const struct config_bmc *b, const char *setting,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	if (b->metrics_url == NULL)
		return CGN_OK;
	const struct powerfetch_cfg text = text_of(v->cfg, b);
	key_make(v->cfg, b, "text", &key);
	cgn_rc rc = v->p != NULL ? powerpoll_want_text(v->p, &text, cgn_buf_z(&key), err)
				 : powerfetch_check(&text, err);
	return cgn_err_of(rc, setting, err);
}

/* Visit one BMC; a check goes on after a problem. */
static CGN_RC bmc_visit(const struct bmc_visit *v, const struct config_bmc *b, bool is_local,
	const char *setting, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	for (unsigned i = 0; i < 3; i++) {
		rc = i == 0      ? bmc_redfish(v, b, setting, err)
			: i == 1 ? bmc_ipmi(v, b, is_local, setting, err)
				 : bmc_text(v, b, setting, err);
		if (v->problems == NULL)
			CGN_TRY(rc);
		else
			svc_problem(v->problems, rc, err);
	}
	return CGN_OK;
}

static CGN_RC bmcs_visit(const struct bmc_visit *v, struct cgn_err *err)
{
	char host[64], setting[100];
	const struct config *cfg = v->cfg;
	const struct config_bmc own = own_bmc(cfg, host);
	if (cfg->metrics.ipmi == CONFIG_IPMI_LANPLUS && own.ipmi_host == NULL)
		return CGN_FAIL(err, INVALID, "metrics.ipmi = \"lanplus\" needs metrics.ipmi_host");
	CGN_TRY(bmc_visit(v, &own, cfg->metrics.ipmi == CONFIG_IPMI_LOCAL, "metrics", err));
	for (size_t i = 0; i < cfg->n_bmcs; i++) {
		(void)snprintf(setting, sizeof setting, "bmcs.\"%s\"", cfg->bmcs[i].name);
		if (cfg->bmcs[i].url == NULL && cfg->bmcs[i].ipmi_host == NULL &&
			cfg->bmcs[i].metrics_url == NULL)
			return CGN_FAIL(err, INVALID,
				"%s: a node's power needs url (Redfish), ipmi_host or metrics_url", setting);
		CGN_TRY(bmc_visit(v, &cfg->bmcs[i], false, setting, err));
	}
	return CGN_OK;
}

CGN_RC powerpoll_configure(struct powerpoll *p, const struct config *cfg, struct cgn_err *err)
{
	const struct bmc_visit v = {.p = p, .cfg = cfg};
	powerpoll_want_none(p);
	cgn_rc rc = bmcs_visit(&v, err);
	powerpoll_want_end(p, cgn_ok(rc));
	return rc;
}

void powerpoll_check(const struct config *cfg, struct svc_problems *out)
{
	struct cgn_err err = {0};
	const struct bmc_visit v = {.cfg = cfg, .problems = out};
	svc_problem(out, bmcs_visit(&v, &err), &err);
}
