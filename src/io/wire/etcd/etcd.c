/* SPDX-License-Identifier: Apache-2.0 */
/* etcd: the client itself: endpoints and certificates. */

#include "io/wire/etcd/etcd_priv.h"

void etcd_move_on(struct etcd *e, size_t used)
{
	if (e->current == used)
		e->current = (used + 1) % e->n_channels;
}

struct cgn_backoff etcd_backoff(void)
{
	return (struct cgn_backoff){.first = 50 * CGN_MSEC, .last = 2 * CGN_SEC};
}

/* Turn "https://host:2379/" into "host:2379" and |*secure|. */
static CGN_RC read_endpoint(const char *text, char *addr, size_t cap, bool *secure, struct cgn_err *err)
{
	struct cgn_str s = cgn_str_of(text);
	*secure = cgn_str_starts(s, "https://");
	size_t skip = *secure ? strlen("https://") : cgn_str_starts(s, "http://") ? strlen("http://") : 0;
	s = (struct cgn_str){s.p + skip, s.n - skip};
	while (s.n > 0 && s.p[s.n - 1] == '/')
		s.n--;
	if (!cgn_str_copyz(addr, cap, s))
		return CGN_FAIL(err, INVALID, "etcd endpoint %.80s...: too long", text);
	struct cgn_err why;
	if (!cgn_ok(net_addr_check(addr, &why)))
		return CGN_FAIL(err, INVALID,
			"etcd endpoint %s: write it as http://host:port or https://host:port (%s)", text,
			why.msg);
	return CGN_OK;
}

static CGN_RC make_tls(struct etcd *e, const struct etcd_cfg *cfg, struct cgn_err *err)
{
	static const char *const alpn[] = {"h2", NULL};
	const struct tls_cfg tls = {.ca_file = cfg->ca_file,
		.cert_file = cfg->cert_file,
		.key_file = cfg->key_file,
		.alpn = alpn};
	return e->tls != NULL ? CGN_OK : tls_ctx_new(&tls, &e->tls, err);
}

static CGN_RC add_endpoint(struct etcd *e, const struct etcd_cfg *cfg, const char *text, struct cgn_err *err)
{
	char addr[300];
	bool secure;
	CGN_TRY(read_endpoint(text, addr, sizeof addr, &secure, err));
	if (secure)
		CGN_TRY(make_tls(e, cfg, err));
	const struct grpc_channel_cfg channel = {
		.addr = addr,
		.tls = secure ? e->tls : NULL,
		.connect_timeout = e->timeout,
		.keepalive = 10 * CGN_SEC,
		.follow = true,
	};
	CGN_TRY(grpc_channel_new(e->loop, &channel, &e->channels[e->n_channels], err));
	e->n_channels++;
	return CGN_OK;
}

CGN_RC etcd_new(struct cgn_loop *l, const struct etcd_cfg *cfg, struct etcd **out, struct cgn_err *err)
{
	if (cfg->n_endpoints == 0 || cfg->n_endpoints > ETCD_MAX_ENDPOINTS)
		return CGN_FAIL(err, INVALID, "%zu etcd endpoints: between 1 and %d belong here",
			cfg->n_endpoints, ETCD_MAX_ENDPOINTS);
	CGN_ON_EXIT(etcd_free) struct etcd *e = CGN_NEW(struct etcd);
	e->tag = ETCD_TAG;
	e->loop = l;
	e->timeout = cfg->timeout != 0 ? cfg->timeout : 5 * CGN_SEC;
	cgn_list_init(&e->ops);
	for (size_t i = 0; i < cfg->n_endpoints; i++)
		CGN_TRY(add_endpoint(e, cfg, cfg->endpoints[i], err));
	*out = CGN_TAKE(&e);
	return CGN_OK;
}

CGN_RC etcd_reload_tls(struct etcd *e, struct cgn_err *err)
{
	CGN_LIVE(e, ETCD_TAG);
	return e->tls != NULL ? tls_ctx_reload(e->tls, err) : CGN_OK;
}
