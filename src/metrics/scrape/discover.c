/* SPDX-License-Identifier: Apache-2.0 */
/* discover: the routers of metrics.scrape_routers, and the agents and stores of the nodes in their lists. */
#include <stdlib.h>
#include <string.h>

#include "base/log/log.h"
#include "base/pb/pb.h"
#include "cognitora/v1/control.pb-c.h"
#include "metrics/scrape/scrape_priv.h"
#include "policy/node/proto/proto.h"

#define NODES_BYTES ((uint32_t)64 << 20) /* Longest answer of a router */

/* Asks one router for its nodes. */
struct scrape_finder {
	struct scrape *all;
	struct grpc_channel *channel;
	struct cgn_timer timer;
	bool closing;
};

static void found_add(struct scrape *s, enum scrape_kind kind, const char *node, const char *address)
{
	char name[SCRAPE_NAME_BYTES];
	struct cgn_err err;
	(void)snprintf(name, sizeof name, "%s/%s", scrape_kinds[kind], node);
	const struct scrape_where w = {.kind = kind, .name = name, .url = address};
	struct scrape_target *t = scrape_target_find(s, name);
	if (t != NULL && !scrape_target_is(t, &w)) { /* The node came back elsewhere. */
		scrape_target_drop(t);
		t = NULL;
	}
	if (t == NULL && !cgn_ok(scrape_target_add(s, &w, &t, &err))) {
		cgn_log_limited(WARN, "metrics.target_refused", F_STR("target", name), F_STR("why", err.msg),
			F_STR("then", "it is not scraped"));
		return;
	}
	t->seen_at = s->discovered_at;
}

/* Drop the agents and stores of which no router has told for three intervals, while one answers. */
static void lost_drop(struct scrape *s)
{
	cgn_list_each_safe (l, &s->targets) {
		struct scrape_target *t = CGN_CONTAINER(l, struct scrape_target, link);
		bool found = t->where.kind == SCRAPE_AGENT || t->where.kind == SCRAPE_STORE;
		if (found && cgn_since(s->discovered_at, t->seen_at) > 3 * s->limits.interval)
			scrape_target_drop(t);
	}
}

static void nodes_take(struct scrape *s, const Cognitora__V1__StatusResponse *m)
{
	s->discovered_at = cgn_loop_now(s->loop);
	for (size_t i = 0; i < m->n_nodes; i++) {
		const Cognitora__V1__Node *n = m->nodes[i]->node;
		struct cgn_err err;
		if (n == NULL || !cgn_ok(proto_node_check(n, &err)))
			continue;
		if (m->nodes[i]->origin[0] == '\0') /* Others have no agent. */
			found_add(s, SCRAPE_AGENT, n->id, n->address);
		if (n->store_address[0] != '\0')
			found_add(s, SCRAPE_STORE, n->id, n->store_address);
	}
	lost_drop(s);
}

/* A router that cannot be reached is shown as a target; here nothing is to be said. */
static void on_nodes(void *user, const struct grpc_unary_result *r)
{
	struct scrape_finder *f = user;
	CGN_ON_EXIT(pb_free) Cognitora__V1__StatusResponse *m = NULL;
	if (f->closing)
		return;
	if (r->err->code == CGN_FINE &&
		cgn_ok(pb_unpack(&cognitora__v1__status_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &m, NULL)))
		nodes_take(f->all, m);
	cgn_timer_set(&f->timer, m != NULL ? f->all->limits.interval : CGN_SEC);
}

static void on_find_timer(struct cgn_timer *t)
{
	struct scrape_finder *f = CGN_CONTAINER(t, struct scrape_finder, timer);
	if (!cgn_ok(grpc_unary(f->channel, PROTO_CONTROL_STATUS, (struct cgn_str){"", 0},
		    f->all->limits.timeout, on_nodes, f, NULL)))
		cgn_timer_set(t, CGN_SEC);
}

static CGN_RC router_add(struct scrape *s, const char *address, struct cgn_err *err)
{
	char name[SCRAPE_NAME_BYTES];
	struct scrape_target *t = NULL;
	struct scrape_finder *f = &s->finder[s->n_finders];
	const struct grpc_channel_cfg cfg = {.addr = address,
		.tls = s->tls,
		.max_message = NODES_BYTES,
		.wide = true};
	(void)snprintf(name, sizeof name, "router/%s", address);
	const struct scrape_where w = {.kind = SCRAPE_ROUTER, .name = name, .url = address};
	CGN_TRY(scrape_target_add(s, &w, &t, err));
	*f = (struct scrape_finder){.all = s};
	cgn_timer_init(&f->timer, s->loop, on_find_timer);
	CGN_TRY(grpc_channel_new(s->loop, &cfg, &f->channel, err));
	s->n_finders++;
	cgn_timer_set(&f->timer, 0);
	return CGN_OK;
}

CGN_RC scrape_discover_open(struct scrape *s, const struct config *cfg, struct cgn_err *err)
{
	const struct config_list *routers = &cfg->metrics.scrape_routers;
	size_t n = routers->n > 0 ? routers->n : 1;
	if (!cfg->metrics.discover)
		return CGN_OK;
	s->finder = CGN_NEW_ARRAY(struct scrape_finder, n);
	for (size_t i = 0; i < n; i++)
		CGN_TRY(cgn_err_of(router_add(s, routers->n > 0 ? routers->v[i] : cfg->cluster.router, err),
			"metrics.scrape_routers", err));
	return CGN_OK;
}

void scrape_discover_close(struct scrape *s)
{
	for (size_t i = 0; i < s->n_finders; i++) {
		s->finder[i].closing = true;
		cgn_timer_cancel(&s->finder[i].timer);
		grpc_channel_free(&s->finder[i].channel);
	}
	free(s->finder);
	s->finder = NULL;
	s->n_finders = 0;
}
