/* SPDX-License-Identifier: Apache-2.0 */
/* settings: the BMCs of [metrics] and [bmcs."NODE"]. */
#include <string.h>
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
		.fingerprint = cfg->metrics.redfish_fingerprint};
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
			return CGN_FAIL(err, INVALID, "\"%s\" is no HOST or HOST:PORT", b->ipmi_host);
	}
	if (s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']')
		s = (struct cgn_str){s.p + 1, s.n - 2};
	if (!cgn_str_copyz(host, 256, s) || host[0] == '\0' || host[0] == '-')
		return CGN_FAIL(err, INVALID, "\"%s\" is no HOST or HOST:PORT", b->ipmi_host);
	if (b->ipmi_password_file == NULL) /* Without a file ipmitool would ask for the password */
		return CGN_FAIL(err, INVALID, "%s needs a password file", b->ipmi_host);
	out->host = host;
	out->port = (unsigned)port;
	return CGN_OK;
}

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
	if (b->ipmi_host == NULL && !is_local)
		return CGN_OK;
	cgn_rc rc = ipmi_of(v->cfg, b, host, &ipmi, err);
	if (cgn_ok(rc) && v->p != NULL)
		rc = powerpoll_add_ipmi(v->p, &ipmi, err);
	return cgn_err_of(rc, setting, err);
}

static CGN_RC bmc_redfish(const struct bmc_visit *v, const struct config_bmc *b, const char *setting,
	struct cgn_err *err)
{
	if (b->url == NULL)
		return CGN_OK;
	const struct redfish_bmc_cfg redfish = redfish_of(v->cfg, b);
	cgn_rc rc =
		v->p != NULL ? powerpoll_add_redfish(v->p, &redfish, err) : redfish_bmc_check(&redfish, err);
	return cgn_err_of(rc, setting, err);
}

/* Visit one BMC; a check goes on after a problem. */
static CGN_RC bmc_visit(const struct bmc_visit *v, const struct config_bmc *b, bool is_local,
	const char *setting, struct cgn_err *err)
{
	cgn_rc redfish = bmc_redfish(v, b, setting, err);
	if (v->problems == NULL)
		CGN_TRY(redfish);
	else
		svc_problem(v->problems, redfish, err);
	cgn_rc ipmi = bmc_ipmi(v, b, is_local, setting, err);
	if (v->problems != NULL)
		svc_problem(v->problems, ipmi, err);
	return v->problems != NULL ? CGN_OK : ipmi;
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
		if (cfg->bmcs[i].url == NULL && cfg->bmcs[i].ipmi_host == NULL)
			return CGN_FAIL(err, INVALID, "%s: a BMC needs url (Redfish) or ipmi_host", setting);
		CGN_TRY(bmc_visit(v, &cfg->bmcs[i], false, setting, err));
	}
	return CGN_OK;
}

CGN_RC powerpoll_configure(struct powerpoll *p, const struct config *cfg, struct cgn_err *err)
{
	const struct bmc_visit v = {.p = p, .cfg = cfg};
	return bmcs_visit(&v, err);
}

void powerpoll_check(const struct config *cfg, struct svc_problems *out)
{
	struct cgn_err err = {0};
	const struct bmc_visit v = {.cfg = cfg, .problems = out};
	svc_problem(out, bmcs_visit(&v, &err), &err);
}
