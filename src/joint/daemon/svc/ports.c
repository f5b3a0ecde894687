/* SPDX-License-Identifier: Apache-2.0 */
/* ports: refuses to open a port for orders to everybody who reaches this machine. */
#include "base/log/log.h"
#include "joint/daemon/svc/svc_priv.h"

static bool is_open(const struct svc_port *p, const struct config *cfg)
{
	const char *addr = p->addr != NULL ? p->addr(cfg) : NULL;
	return addr != NULL && addr[0] != '\0' && !identity_is_local(cgn_str_of(addr));
}

static CGN_RC port_refuse(const struct svc_port *p, const struct config *cfg, const char *what,
	struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID,
		"%s %.200s can be reached from other machines, and everybody there could give orders: %s, or listen on 127.0.0.1, or set security.insecure = true if everybody who reaches it may do everything",
		p->key, p->addr(cfg), what);
}

/* Does an admin port that other machines reach use TLS, and ask callers for a certificate or a key? */
static bool admin_asks(const struct config *cfg)
{
	return cfg->security.cert_file != NULL &&
		(cfg->security.ca_file != NULL || cfg->security.admin_keys_file != NULL);
}

CGN_RC svc_ports_check(const struct svc_program *p, const struct config *cfg, struct cgn_err *err)
{
	if (cfg->security.insecure)
		return CGN_OK;
	if (is_open(&p->grpc, cfg) && !cfg->security.require_mtls)
		return port_refuse(&p->grpc, cfg,
			"set security.require_mtls with a certificate (cgn-ctl pki makes them)", err);
	if (is_open(&p->admin, cfg) && !admin_asks(cfg))
		return port_refuse(&p->admin, cfg,
			"set security.cert_file and key_file, and ca_file or admin_keys_file for the callers",
			err);
	return CGN_OK;
}

void svc_ports_open(const struct svc_program *p, const struct config *cfg, struct cgn_buf *out)
{
	const struct svc_port *const ports[] = {&p->grpc, &p->admin};
	for (size_t i = 0; i < CGN_COUNT(ports); i++)
		if (cfg->security.insecure && is_open(ports[i], cfg))
			cgn_buf_fmt(out, "%s%s %s", out->n > 0 ? ", " : "", ports[i]->key,
				ports[i]->addr(cfg));
}

void svc_ports_warn(const struct svc_program *p, const struct config *cfg)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf open = {.limit = 1024};
	svc_ports_open(p, cfg, &open);
	if (open.n > 0)
		cgn_log(WARN, "svc.insecure", F_STR("ports", cgn_buf_z(&open)),
			F_STR("why",
				"security.insecure is set: everybody who reaches these ports may do everything there"));
}
