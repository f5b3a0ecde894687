/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a world in which a gateway worker runs on its own thread, over nodes that a test scripts. Include after
 * cmocka.h. */
#pragma once
#include <stdlib.h>

#include "policy/fleet/settings/settings.h"
#include "router/answer/client/gateway.h"
#include "router/control/control/watch.h"
#include "router/request/limit/limit_priv.h"
#include "router/shared/quotas/quotas.h"

static const struct metric_row gateway_metrics[] = {
#define METRIC METRIC_ROW
#include "router/metrics.def"
#undef METRIC
};

/* A node with one engine, which serves one model. */
struct gateway_node {
	const char *id, *addr, *kind, *model;
	Cognitora__V1__Role role;
	const char *handoff; /* NULL: the engine hands nothing over. */
};

/* Make |d| a ready node of |c|. */
static inline void gateway_join(struct cluster *c, const struct gateway_node *d)
{
	Cognitora__V1__Handoff handoff = COGNITORA__V1__HANDOFF__INIT;
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT, *engines[] = {&e};
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	char *models[] = {(char *)(uintptr_t)d->model};
	handoff.kind = (char *)(uintptr_t)d->handoff;
	handoff.terms = (char *)(uintptr_t)"build=1 block=16";
	handoff.host = (char *)(uintptr_t)"127.0.0.1";
	handoff.port = 8998;
	e.name = (char *)(uintptr_t)"e";
	e.kind = (char *)(uintptr_t)d->kind;
	e.resume = (char *)(uintptr_t)"continue";
	e.models = models;
	e.n_models = 1;
	e.ready = true;
	e.handoff = d->handoff != NULL ? &handoff : NULL;
	n.id = (char *)(uintptr_t)d->id;
	n.address = (char *)(uintptr_t)d->addr;
	n.role = d->role;
	n.engines = engines;
	n.n_engines = 1;
	struct cluster_orders o;
	assert_true(cgn_ok(cluster_node_seen(c, &n, false, &o, NULL)));
	Cognitora__V1__WatchEvent ev = COGNITORA__V1__WATCH_EVENT__INIT;
	ev.seq = 1;
	ev.node = &n;
	cluster_watch_event(c, cluster_find(c, d->id), &ev, 1, &o);
}

static inline struct gw_rules *gateway_rules(const char *toml, const char *keys)
{
	struct config *cfg = NULL;
	struct gw_rules *rules = NULL;
	struct auth_keys *k = NULL;
	const struct digest seed = {{7}};
	struct cgn_err err = {0};
	if (!cgn_ok(settings_load("test.toml", cgn_str_of(toml), NULL, NULL, 0, &cfg, &err)))
		fail_msg("%s", err.msg);
	if (keys != NULL)
		assert_true(cgn_ok(auth_keys_parse("keys", cgn_str_of(keys), &seed, &k, &err)));
	assert_true(cgn_ok(gw_rules_new(cfg, k, &(struct digest){{0}}, &rules, NULL)));
	auth_keys_unref(&k);
	if (!cgn_ok(gw_rules_load_tokenizers(rules, cfg, NULL, false, NULL, NULL, &err)))
		fail_msg("%s", err.msg);
	config_free(&cfg);
	return rules;
}

static inline void gateway_shared_open(struct gw_shared *s, struct cluster *c)
{
	const struct kvindex_cfg index = {.max_bytes = 64 << 20, .max_readers = 1, .seed = 1};
	s->telemetry = telemetry_new(gateway_metrics, CGN_COUNT(gateway_metrics));
	s->choice.stats = c->stats;
	assert_true(cgn_ok(kvindex_new(&index, &s->choice.index, NULL)));
	assert_true(cgn_ok(route_record_new(1 << 20, &s->choice.record, NULL)));
	assert_true(cgn_ok(prompttail_new(1 << 16, &s->tails, NULL)));
	assert_non_null(s->tallies = calloc(ROUTE_MAX_NODES, sizeof *s->tallies));
	s->limits = rate_table_new(1 << 10);
	s->quotas = gw_quotas_open(s->telemetry);
}

static inline void gateway_shared_close(struct gw_shared *s)
{
	kvindex_free(&s->choice.index);
	telemetry_free(&s->telemetry);
	route_record_free(&s->choice.record);
	prompttail_free(&s->tails);
	free(s->tallies);
	rate_table_free(&s->limits);
	gw_quotas_close(&s->quotas);
}

/* Start a worker with rules made of |toml| and |keys|; write the address at which it listens into |addr|. */
static inline struct gw_worker *gateway_worker(struct gw_shared *s, struct cluster *c, const char *toml,
	const char *keys, char addr[32])
{
	struct cluster_view *view = NULL;
	struct gw_worker *worker = NULL;
	struct gw_rules *rules = gateway_rules(toml, keys);
	assert_true(cgn_ok(cluster_view_new(c, NULL, NULL, &view, NULL)));
	struct gw_worker_cfg cfg = {.shared = s,
		.http = {.listen = {.addr = "127.0.0.1:0"}},
		.prompt_cache = 1 << 20};
	assert_true(cgn_ok(gw_worker_new(&cfg, view, rules, &worker, NULL)));
	assert_true(cgn_ok(gw_worker_start(worker, NULL)));
	(void)snprintf(addr, 32, "127.0.0.1:%u", http_server_port(worker->server));
	cluster_view_unref(&view);
	gw_rules_unref(&rules);
	return worker;
}
