/* SPDX-License-Identifier: Apache-2.0 */
/* gateway: who reaches the gateway and the ports for orders, and what each needs for that. */
#include "ctl/doctor/doctor.h"
#include "policy/who/identity/identity.h"

static bool is_open(const char *addr)
{
	return addr[0] != '\0' && !identity_is_local(cgn_str_of(addr));
}

/* Return where the gateway listens: as the running router says, whose flags may differ from the file, else as the file says. */
static const char *gateway_addr(struct doctor *d)
{
	const struct doctor_program *p = &d->programs[ROUTER];
	struct json_val doc, settings, row;
	const char *addr = NULL;
	if (p->config != NULL && p->config->status == 200 &&
		cgn_ok(json_parse(cgn_buf_view(&p->config->text), &doc, NULL, NULL)) &&
		json_get(doc, "settings", &settings))
		for (struct json_iter it = json_iter_of(settings); addr == NULL && json_next_elem(&it, &row);)
			if (cgn_str_is(json_get_str(row, "key", &d->arena), "router.listen"))
				addr = cgn_arena_strz(&d->arena, json_get_str(row, "value", &d->arena));
	return addr != NULL ? addr : d->cfg->router.listen;
}

void check_gateway(struct doctor *d)
{
	const struct config *c = d->cfg;
	const char *listen = gateway_addr(d);
	if (!d->programs[ROUTER].meant) {
		doctor_find(d, DOCTOR_SKIPPED, "no router belongs to this machine");
		return;
	}
	if (!is_open(listen)) {
		doctor_find(d, DOCTOR_OK, "only this machine reaches router.listen %s", listen);
		return;
	}
	if (!c->auth.enabled) {
		doctor_find(d, DOCTOR_PROBLEM,
			"other machines reach the gateway (router.listen %s), and no API key is needed",
			listen);
		doctor_do(d,
			"auth.enabled = true with auth.api_keys_file, and cgn-ctl key create; or router.listen = \"127.0.0.1:8080\"");
	} else if (c->router.tls_cert_file == NULL) {
		doctor_find(d, DOCTOR_WARNING, "clients send their API keys to router.listen %s in clear",
			listen);
		doctor_do(d,
			"set router.tls_cert_file and router.tls_key_file, or let a proxy with TLS stand before it");
	} else
		doctor_find(d, DOCTOR_OK, "clients need an API key, over TLS");
}

void check_insecure(struct doctor *d)
{
	const struct config *c = d->cfg;
	const struct {
		enum doctor_program_index program;
		const char *key, *addr;
	} ports[] = {{ROUTER, "router.listen_grpc", c->router.listen_grpc},
		{ROUTER, "router.listen_admin", c->router.listen_admin},
		{AGENT, "agent.listen", c->agent.listen},
		{AGENT, "agent.listen_admin", c->agent.listen_admin}, {KVCACHED, "kv.listen", c->kv.listen},
		{KVCACHED, "kv.listen_admin", c->kv.listen_admin},
		{METRICS, "metrics.listen", c->metrics.listen}};
	if (!c->security.insecure) {
		doctor_find(d, DOCTOR_OK, "security.insecure is off");
		return;
	}
	for (size_t i = 0; i < CGN_COUNT(ports); i++)
		if (d->programs[ports[i].program].meant && is_open(ports[i].addr)) {
			doctor_find(d, DOCTOR_PROBLEM,
				"security.insecure lets everybody who reaches %s %s give orders",
				ports[i].key, ports[i].addr);
			doctor_do(d,
				"cgn-ctl pki bootstrap, security.require_mtls = true, and remove security.insecure");
		}
	if (doctor_is_fine(d)) {
		doctor_find(d, DOCTOR_WARNING,
			"security.insecure is on, though no port is open to other machines");
		doctor_do(d, "remove security.insecure");
	}
}
