/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/control/self.h"

#include "io/net/pki/pki.h"
#include "io/os/disk/disk.h"
#include "router/request/calibration/calibration.h"

#define CERT_MOST ((size_t)256 << 10)

/* Return the address by which this process reaches its own gateway: of a wildcard the loopback address. */
static void self_addr(const struct router *r, char out[300])
{
	const char *listen = r->cfg->router.listen;
	unsigned port = http_server_port(r->workers[0]->server);
	const char *colon = strrchr(listen, ':');
	struct cgn_str host = {listen, colon != NULL ? (size_t)(colon - listen) : 0};
	if (cgn_str_starts(cgn_str_of(listen), "unix:"))
		(void)snprintf(out, 300, "%s", listen);
	else if (cgn_str_is(host, "0.0.0.0") || cgn_str_is(host, ""))
		(void)snprintf(out, 300, "127.0.0.1:%u", port);
	else if (cgn_str_is(host, "[::]"))
		(void)snprintf(out, 300, "[::1]:%u", port);
	else
		(void)snprintf(out, 300, "%.*s:%u", CGN_STR_ARG(host), port);
}

/* Trust the gateway's own certificate, and read the name to ask for from it. */
static CGN_RC self_tls(const char *cert_file, char name[256], struct tls_ctx **out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf pem = {0};
	struct pki_info info;
	const struct tls_cfg cfg = {.ca_file = cert_file};
	CGN_TRY(disk_read_file(cert_file, CERT_MOST, &pem, err));
	CGN_TRY(pki_inspect(cgn_buf_view(&pem), &info, err));
	(void)snprintf(name, 256, "%s", info.n_names > 0 ? info.names[0] : info.subject);
	return tls_ctx_new(&cfg, out, err);
}

CGN_RC router_self_find(const struct router *r, struct router_self *out, struct cgn_err *err)
{
	*out = (struct router_self){.name = ""};
	self_addr(r, out->addr);
	if (r->cfg->router.tls_cert_file == NULL)
		return CGN_OK;
	return self_tls(r->cfg->router.tls_cert_file, out->name, &out->tls, err);
}

CGN_RC router_calibration_run(struct router *r, struct cgn_err *err)
{
	struct router_self self;
	if (r->shared.calibrations == NULL)
		return CGN_OK;
	CGN_TRY(router_self_find(r, &self, err));
	const struct gw_calibration_asker_cfg cfg = {.addr = self.addr,
		.tls = self.tls,
		.server_name = self.name[0] != '\0' ? self.name : NULL,
		.judge_model = r->cfg->router.cascade.judge_model,
		.judge_similarity = r->cfg->router.cascade.judge_similarity,
		.shared = &r->shared};
	cgn_rc rc = gw_calibration_asker_new(&cfg, &r->calibration, err);
	tls_ctx_free(&self.tls); /* The client holds its own reference. */
	return rc;
}
