/* SPDX-License-Identifier: Apache-2.0 */
/* svc: problems, and the checks of files that several programs need. */
#include <stdio.h>

#include "io/os/disk/disk.h"
#include "io/wire/k8s/k8s.h"
#include "joint/daemon/svc/svc_priv.h"

#define PEM_LIMIT ((size_t)4 << 20)

void svc_problem(struct svc_problems *p, cgn_rc rc, const struct cgn_err *err)
{
	if (cgn_ok(rc))
		return;
	if (p->n++ == 0)
		p->first = rc.code;
	cgn_buf_fmt(&p->text, "%s\n", err->msg);
}

void svc_remark(struct svc_problems *p, struct cgn_str line)
{
	if (line.n > 0)
		cgn_buf_fmt(&p->text, "%.*s\n", CGN_STR_ARG(line));
}

/* Returns true when the file is not set or can be read. */
static bool check_file(struct svc_problems *p, const char *prefix, const char *key, const char *path)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why, err;
	if (path == NULL || cgn_ok(disk_read_file(path, PEM_LIMIT, &text, &why)))
		return true;
	svc_problem(p, CGN_FAIL(&err, TLS, "%s%s: %.350s", prefix, key, why.msg), &err);
	return false;
}

void svc_check_tls(struct svc_problems *p, const char *prefix, const struct tls_cfg *tls)
{
	struct tls_ctx *made = NULL;
	struct cgn_err err;
	bool ca = check_file(p, prefix, "ca_file", tls->ca_file),
	     cert = check_file(p, prefix, "cert_file", tls->cert_file),
	     key = check_file(p, prefix, "key_file", tls->key_file),
	     crl = check_file(p, prefix, "crl_file", tls->crl_file);
	if (!ca || !cert || !key || !crl ||
		(tls->ca_file == NULL && tls->cert_file == NULL && tls->key_file == NULL))
		return;
	svc_problem(p, tls_ctx_new(tls, &made, &err), &err);
	tls_ctx_free(&made);
}

void svc_check_cluster(struct svc_problems *p, const struct config *cfg)
{
	const struct tls_cfg own = {.ca_file = cfg->security.ca_file,
		.cert_file = cfg->security.cert_file,
		.key_file = cfg->security.key_file,
		.crl_file = cfg->security.crl_file};
	const struct tls_cfg etcd = {.ca_file = cfg->cluster.etcd_ca_file,
		.cert_file = cfg->cluster.etcd_cert_file,
		.key_file = cfg->cluster.etcd_key_file};
	struct cgn_err err;
	svc_check_tls(p, "security.", &own);
	if (cfg->cluster.state_backend == STATE_ETCD)
		svc_check_tls(p, "cluster.etcd_", &etcd);
	if (cfg->cluster.state_backend == STATE_KUBERNETES && cfg->cluster.kubernetes_config != NULL)
		svc_problem(p,
			cgn_err_of(k8s_check(cfg->cluster.kubernetes_config, &err),
				"cluster.kubernetes_config", &err),
			&err);
}

void svc_check_provider(struct svc_problems *p, const struct config *cfg)
{
	const struct tls_cfg provider = {.ca_file = cfg->auth.oidc_ca_file};
	struct signin *people = NULL;
	struct cgn_err err;
	if (cfg->auth.oidc_issuer == NULL)
		return;
	svc_check_tls(p, "auth.oidc_", &provider);
	svc_problem(p, oidc_check(cfg, &err), &err);
	if (cfg->auth.oidc_client_id != NULL)
		svc_problem(p, signin_open(NULL, NULL, cfg, &people, &err), &err);
	signin_close(&people);
}
