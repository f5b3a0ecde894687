/* SPDX-License-Identifier: Apache-2.0 */
#include "kvcached/peers/sites.h"

#include <stdlib.h>

#include "base/log/log.h"
#include "io/net/pki/bundle.h"
#include "io/os/disk/disk.h"
#include "kvcached/daemon/metrics.h"

#define PEM_LIMIT ((size_t)1 << 20)

struct kvsites *sites_open(const struct config *cfg)
{
	if (cfg->n_kv_sites == 0)
		return NULL;
	struct kvsites *s = CGN_NEW(struct kvsites);
	CGN_MUST(cfg->n_kv_sites <= BLOCK_SITES);
	for (; s->n < cfg->n_kv_sites; s->n++) {
		const struct config_kv_site *from = &cfg->kv_sites[s->n];
		s->v[s->n] = (struct kvsite){.name = from->name,
			.tenants = from->tenants.v,
			.n_tenants = from->tenants.n,
			.models = from->models.v,
			.n_models = from->models.n};
	}
	return s;
}

/* ---- trust ---- */

/* Fail if an authority that the site is believed by signed this store's own certificate: the holder of any certificate
 * of this cluster would pass for the site. */
static CGN_RC site_check_ca(const struct config_kv_site *s, const struct config *cfg, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf theirs = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf ours = {0};
	CGN_TRY(disk_read_file(s->ca_file, PEM_LIMIT, &theirs, err));
	CGN_TRY(disk_read_file(cfg->security.cert_file, PEM_LIMIT, &ours, err));
	if (pki_bundle_signed(cgn_buf_view(&theirs), pki_first(cgn_buf_view(&ours))))
		return CGN_FAIL(err, INVALID,
			"%.200s has the CA that signed security.cert_file: a site has a CA of its own",
			s->ca_file);
	return CGN_OK;
}

static CGN_RC site_trust(const struct config_kv_site *s, const struct config *cfg, struct tls_ctx **out,
	struct cgn_err *err)
{
	const struct tls_cfg tls = {.server = true,
		.ca_file = s->ca_file,
		.cert_file = s->cert_file != NULL ? s->cert_file : cfg->security.cert_file,
		.key_file = s->cert_file != NULL ? s->key_file : cfg->security.key_file,
		.require_peer_cert = true};
	CGN_TRY(site_check_ca(s, cfg, err));
	return tls_ctx_new(&tls, out, err);
}

static cgn_rc site_named(const struct config_kv_site *s, cgn_rc rc, const struct cgn_err *why,
	struct cgn_err *err)
{
	return cgn_ok(rc) ? rc : CGN_FAIL_AS(err, rc.code, "kv_sites.\"%.40s\": %.400s", s->name, why->msg);
}

CGN_RC sites_trust_open(struct sites_trust *t, const struct config *cfg, struct cgn_err *err)
{
	struct cgn_err why = {0};
	for (; t->n < cfg->n_kv_sites; t->n++) {
		const struct config_kv_site *s = &cfg->kv_sites[t->n];
		CGN_TRY(site_named(s, site_trust(s, cfg, &t->tls[t->n], &why), &why, err));
		t->cfgs[t->n] = (struct kvpeer_site_cfg){.listen = s->listen,
			.tls = t->tls[t->n],
			.peer_name = s->node_name};
	}
	return CGN_OK;
}

CGN_RC sites_trust_reload(struct sites_trust *t, const struct config *cfg, struct cgn_err *err)
{
	cgn_rc all = CGN_OK;
	for (size_t i = 0; i < t->n; i++) {
		const struct config_kv_site *s = &cfg->kv_sites[i];
		struct cgn_err why = {0};
		cgn_rc rc = site_check_ca(s, cfg, &why);
		if (cgn_ok(rc))
			rc = tls_ctx_reload(t->tls[i], &why);
		if (!cgn_ok(rc))
			all = site_named(s, rc, &why, err);
	}
	return all;
}

void sites_trust_close(struct sites_trust *t)
{
	for (size_t i = 0; i < BLOCK_SITES; i++)
		tls_ctx_free(&t->tls[i]);
}

CGN_RC sites_check(const struct config *cfg, struct cgn_err *err)
{
	struct sites_trust t = {.n = 0};
	if (cfg->n_kv_sites > 0 && cfg->security.cert_file == NULL)
		return CGN_FAIL(err, INVALID,
			"[kv_sites] needs security.ca_file, cert_file and key_file: blocks move with certificates on both sides only");
	cgn_rc rc = sites_trust_open(&t, cfg, err);
	sites_trust_close(&t);
	return rc;
}

/* ---- metrics ---- */

void sites_measure(struct sites_trust *t, struct telemetry *m, const struct kvpeer *kp)
{
	for (size_t i = 0; i < kvpeer_sites(kp); i++) {
		struct kvpeer_site_view v;
		kvpeer_site(kp, i, &v);
		metric_set(METRIC_OF(m, KV_SITE_PEERS, v.name, "ready"), (double)v.ready);
		metric_set(METRIC_OF(m, KV_SITE_PEERS, v.name, "down"), (double)(v.peers - v.ready));
		metric_set(METRIC_OF(m, KV_SITE_PEERS, v.name, "guest"), (double)v.guests);
		metrics_count_up(METRIC_OF(m, KV_SITE_HANDSHAKES, v.name, "accepted"), v.quic.accepted);
		metrics_count_up(METRIC_OF(m, KV_SITE_HANDSHAKES, v.name, "dialled"), v.quic.dialled);
		metrics_count_up(METRIC_OF(m, KV_SITE_HANDSHAKES, v.name, "failed"),
			v.quic.handshakes_failed);
		if (v.quic.handshakes_failed != t->failed[i])
			cgn_log_limited(WARN, "kvcached.site_refused", F_STR("site", v.name),
				F_STR("why", v.refusal.msg), F_U64("handshakes", v.quic.handshakes_failed),
				F_STR("then",
					"no blocks move there by that connection; this site's stores go on"));
		t->failed[i] = v.quic.handshakes_failed;
	}
}
