/* SPDX-License-Identifier: Apache-2.0 */
/* site: this site and the others. Each has an endpoint, which believes its CA alone. */
#include "joint/kv/kvpeer/kvpeer_priv.h"
#include "joint/report/telemetry/telemetry.h"

#define KEEPALIVE    CGN_SEC
#define IDLE_TIMEOUT (5 * CGN_SEC) /* time until a stopped or unplugged peer counts as lost */

static CGN_RC site_open(struct kvpeer *kp, struct kvpeer_site *s, const char *listen, struct tls_ctx *tls,
	quic_accept_fn *on_accept, struct cgn_err *err)
{
	const struct quic_endpoint_cfg quic = {
		.addr = listen != NULL ? listen : ":0",
		.tls = tls,
		.alpn = KVFRAME_ALPN,
		.idle_timeout = IDLE_TIMEOUT,
		.keepalive = KEEPALIVE,
		.max_conns = KVPEER_MAX + KVPEER_MAX_GUESTS,
	};
	s->listens = listen != NULL;
	return quic_endpoint_new(kp->loop, &quic, s->listens ? on_accept : NULL, kp, &s->ep, err);
}

CGN_RC kvpeer_sites_open(struct kvpeer *kp, const struct kvpeer_cfg *cfg, quic_accept_fn *on_accept,
	struct cgn_err *err)
{
	struct cgn_err why;
	for (unsigned i = 0; i <= BLOCK_SITES; i++)
		kp->site[i].index = i;
	struct kvpeer_site *here = kvpeer_site_here(kp);
	here->peer_name = cfg->peer_name;
	CGN_TRY(site_open(kp, here, cfg->listen, cfg->tls, on_accept, err));
	for (size_t i = 0; cfg->sites != NULL && i < cfg->sites->n; i++) {
		const struct kvpeer_site_cfg *from = &cfg->site_cfgs[i];
		struct kvpeer_site *s = &kp->site[i];
		s->name = cfg->sites->v[i].name;
		s->peer_name = from->peer_name;
		cgn_random(&s->salt, sizeof s->salt);
		cgn_rc rc = site_open(kp, s, from->listen, from->tls, on_accept, &why);
		if (!cgn_ok(rc))
			return CGN_FAIL_AS(err, rc.code, "kv_sites.\"%.40s\": %.400s", s->name, why.msg);
	}
	kp->sites = cfg->sites;
	return CGN_OK;
}

void kvpeer_sites_close(struct kvpeer *kp)
{
	for (size_t i = 0; i <= BLOCK_SITES; i++)
		quic_endpoint_close(&kp->site[i].ep);
}

struct kvpeer_site *kvpeer_site_of(struct kvpeer *kp, const struct quic_conn *c)
{
	const struct quic_endpoint *ep = quic_conn_endpoint(c);
	size_t i = 0;
	while (i < BLOCK_SITES && kp->site[i].ep != ep)
		i++;
	CGN_MUST(kp->site[i].ep == ep); /* Each connection is of an endpoint of ours. */
	return &kp->site[i];
}

bool kvpeer_site_may(struct kvpeer *kp, struct kvpeer_site *s, struct block_leave leave)
{
	if (kvpeer_is_here(s))
		return true;
	enum kvsite_why why = kvsite_why(leave, s->index);
	if (why == KVSITE_MAY)
		return true;
	s->withheld[why]++;
	metric_add(METRIC_OF(kp->telemetry, KV_SITE_WITHHELD, s->name, kvsite_why_text(why)), 1);
	return false;
}

/* A peer of an earlier version does not say the tenant. It was asked for one that may be asked for there, and without a
 * tenant the block stays here. */
bool kvpeer_site_takes_in(const struct kvpeer *kp, const struct kvpeer_site *s, struct cgn_str tenant,
	struct cgn_str model)
{
	if (kvpeer_is_here(s))
		return true;
	return kvsite_takes_model(&kp->sites->v[s->index], model) &&
		(tenant.n == 0 || (kvsites_of_tenant(kp->sites, tenant) & 1U << s->index) != 0);
}

void kvpeer_site_count(struct kvpeer *kp, struct kvpeer_site *s, bool in, uint64_t bytes)
{
	*(in ? &s->bytes_in : &s->bytes_out) += bytes;
	metric_add(METRIC_OF(kp->telemetry, KV_PEER_BYTES, in ? "in" : "out"), bytes);
	if (!kvpeer_is_here(s))
		metric_add(METRIC_OF(kp->telemetry, KV_SITE_BYTES, s->name, in ? "in" : "out"), bytes);
}

/* ---- status ---- */

size_t kvpeer_sites(const struct kvpeer *kp)
{
	CGN_LIVE(kp, KVPEER_TAG);
	return kp->sites != NULL ? kp->sites->n : 0;
}

void kvpeer_site(const struct kvpeer *kp, size_t i, struct kvpeer_site_view *out)
{
	CGN_MUST(i < kvpeer_sites(kp));
	const struct kvpeer_site *s = &kp->site[i];
	const struct kvsite *lists = &kp->sites->v[i];
	*out = (struct kvpeer_site_view){.name = s->name,
		.port = s->listens ? quic_endpoint_port(s->ep) : 0,
		.takes = lists->n_tenants > 0 && lists->n_models > 0,
		.guests = s->guests,
		.bytes_in = s->bytes_in,
		.bytes_out = s->bytes_out,
		.quic = quic_endpoint_stats(s->ep)};
	memcpy(out->withheld, s->withheld, sizeof out->withheld);
	quic_endpoint_refusal(s->ep, &out->refusal, &out->refused_at);
	cgn_list_each (it, &kp->peers) {
		const struct kvpeer_peer *p = CGN_CONTAINER(it, struct kvpeer_peer, link);
		out->peers += p->site == s && p->state != PEER_LEFT_ALONE;
		out->ready += p->site == s && p->state == PEER_READY;
	}
}
