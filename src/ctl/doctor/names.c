/* SPDX-License-Identifier: Apache-2.0 */
/* names: the host names in the settings. Each look-up takes a second at most for each name server (RES_OPTIONS). */
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/weburl/weburl.h"
#include "ctl/doctor/doctor.h"
#include "io/net/net/addr.h"
#include "joint/ctl/line/progress.h"
#include "policy/node/engine/engine.h"

#define MAX_NAMES 32 /* Further host names are not looked up. */

struct names {
	char host[MAX_NAMES][256];
	size_t n;
};

static bool host_is_new(struct names *all, const char *host)
{
	for (size_t i = 0; i < all->n; i++)
		if (strcmp(all->host[i], host) == 0)
			return false;
	if (all->n == MAX_NAMES || host[0] == '\0')
		return false;
	(void)snprintf(all->host[all->n++], sizeof all->host[0], "%s", host);
	return true;
}

static void host_look(struct doctor *d, struct names *all, const char *key, const char *host)
{
	struct addrinfo *found = NULL;
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	if (!host_is_new(all, host))
		return;
	ctl_progress("resolving %s", host);
	int rc = getaddrinfo(host, NULL, &hints, &found);
	if (rc == 0) {
		freeaddrinfo(found);
		return;
	}
	doctor_find(d, DOCTOR_PROBLEM, "%s has the host name \"%s\": %s", key, host, gai_strerror(rc));
	doctor_do(d, "correct %s, or add the name to DNS or /etc/hosts", key);
}

static void address_look(struct doctor *d, struct names *all, const char *key, const char *addr)
{
	struct net_addr a;
	if (addr != NULL && cgn_ok(net_addr_parse(addr, &a, NULL)) && !a.local)
		host_look(d, all, key, a.host);
}

static void url_look(struct doctor *d, struct names *all, const char *key, const char *url)
{
	struct weburl u;
	const char *at = url != NULL ? strstr(url, "://") : NULL;
	if (at == NULL)
		return;
	const char *name = memrchr(url, '=', (size_t)(at - url)); /* "NAME=URL" */
	if (cgn_ok(weburl_parse(name != NULL ? name + 1 : url, &u, NULL)))
		host_look(d, all, key, u.host);
}

void check_names(struct doctor *d)
{
	const struct config *c = d->cfg;
	struct names all = {.n = 0};
	if (c->cluster.state_backend == STATE_EMBEDDED)
		address_look(d, &all, "cluster.router", c->cluster.router);
	for (size_t i = 0; i < c->cluster.nodes.n; i++)
		address_look(d, &all, "cluster.nodes", c->cluster.nodes.v[i]);
	for (size_t i = 0; i < c->cluster.etcd_endpoints.n; i++)
		url_look(d, &all, "cluster.etcd_endpoints", c->cluster.etcd_endpoints.v[i]);
	address_look(d, &all, "agent.advertise", c->agent.advertise);
	address_look(d, &all, "kv.advertise", c->kv.advertise);
	for (size_t i = 0; i < c->kv.peers.n; i++)
		address_look(d, &all, "kv.peers", c->kv.peers.v[i]);
	for (size_t i = 0; i < c->n_engines; i++)
		url_look(d, &all, "engine.url", c->engines[i].url);
	for (size_t i = 0; i < c->metrics.routers.n; i++)
		url_look(d, &all, "metrics.routers", c->metrics.routers.v[i]);
	for (size_t i = 0; i < c->n_peers; i++)
		url_look(d, &all, "peers.NAME.url", c->peers[i].url);
	if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "all host names are known");
}
