/* SPDX-License-Identifier: Apache-2.0 */
/* advertise: the id of this node, and the address under which others reach its servers. */
#include <unistd.h>

#include "io/net/net/net.h"
#include "joint/cluster/state/state.h"
#include "policy/config/config.h"

/* Return "host" of "host:port", with the brackets of IPv6. */
static struct cgn_str host_part(struct cgn_str addr)
{
	while (addr.n > 0 && addr.p[addr.n - 1] != ':')
		addr.n--;
	if (addr.n > 0)
		addr.n--;
	return addr;
}

static bool host_is_any(struct cgn_str host)
{
	return host.n == 0 || cgn_str_is(host, "0.0.0.0") || cgn_str_is(host, "[::]") ||
		cgn_str_is(host, "::") || cgn_str_is(host, "*");
}

/* Any address outside of this machine tells its address in a pod's network. */
static const char *peer_address(const struct config *cfg)
{
	if (cfg->cluster.state_backend == STATE_KUBERNETES)
		return "192.0.2.1:443";
	if (cfg->cluster.state_backend != STATE_ETCD)
		return cfg->cluster.router;
	const char *url = cfg->cluster.etcd_endpoints.v[0], *scheme_end = strstr(url, "://");
	return scheme_end != NULL ? scheme_end + 3 : url;
}

CGN_RC state_advertised(const struct config *cfg, const char *advertise, const char *listen, unsigned port,
	const char *key, char *out, size_t cap, struct cgn_err *err)
{
	struct cgn_str host = host_part(cgn_str_of(listen));
	char source[128];
	struct cgn_err why = {0};
	if (advertise != NULL || cgn_str_starts(cgn_str_of(listen), "unix:")) {
		(void)cgn_str_copyz(out, cap, cgn_str_of(advertise != NULL ? advertise : listen));
		return CGN_OK;
	}
	if (!host_is_any(host)) {
		(void)snprintf(out, cap, "%.*s:%u", CGN_STR_ARG(host), port);
		return CGN_OK;
	}
	if (!cgn_ok(net_route_source(peer_address(cfg), source, sizeof source, &why)))
		return CGN_FAIL_AS(err, why.code, "no address to advertise (%.200s): set %s", why.msg, key);
	(void)snprintf(out, cap, strchr(source, ':') != NULL && source[0] != '[' ? "[%s]:%u" : "%s:%u",
		source, port);
	return CGN_OK;
}

CGN_RC state_node_id(const struct config *cfg, char *out, size_t cap, struct cgn_err *err)
{
	char host[256] = "";
	const char *id = cfg->agent.node_id;
	if (id == NULL) {
		(void)gethostname(host, sizeof host - 1);
		id = host;
	}
	if (!proto_node_id_ok(cgn_str_of(id)))
		return CGN_FAIL(err, INVALID,
			"agent.node_id \"%.140s\" must be 1 to %d visible ASCII characters without a slash",
			id, PROTO_MAX_ID);
	(void)cgn_str_copyz(out, cap, cgn_str_of(id));
	return CGN_OK;
}
