/* SPDX-License-Identifier: Apache-2.0 */
/* cluster: the registry, the nodes and models that the router knows, and other routers. */
#include <string.h>

#include "ctl/doctor/doctor.h"

#define SHOWN_KEYS 5

/* Read an answer of status 200 as JSON. */
static bool answer_read(const struct probe *q, struct json_val *out)
{
	return q != NULL && q->status == 200 && cgn_ok(json_parse(cgn_buf_view(&q->text), out, NULL, NULL));
}

static bool nodes_read(struct doctor *d, struct json_val *nodes)
{
	struct json_val doc;
	const struct doctor_program *p = &d->programs[ROUTER];
	if (p->meant && p->answers && answer_read(p->extra, &doc) && json_get(doc, "nodes", nodes))
		return true;
	doctor_find(d, DOCTOR_SKIPPED, "no router of this machine shows its nodes");
	return false;
}

static const char *text_of(struct doctor *d, struct json_val object, const char *key)
{
	struct cgn_str s = json_get_str(object, key, &d->arena);
	const char *z = cgn_arena_strz(&d->arena, s);
	return z != NULL ? z : "";
}

void check_router(struct doctor *d)
{
	if (d->router == NULL) {
		doctor_find(d, DOCTOR_SKIPPED, "no agent here announces itself at cluster.router");
		return;
	}
	if (d->router->status != 0) {
		doctor_find(d, DOCTOR_OK, "%s answers", d->router->addr);
		return;
	}
	doctor_find(d, DOCTOR_PROBLEM, "cluster.router: %s", d->router->why.msg);
	doctor_do(d,
		d->router->why.code == CGN_TLS
			? "compare the certificates of both machines: cgn-ctl pki show; the router's needs the name of %s"
			: "start the router, open its port, or correct cluster.router %s",
		d->router->addr);
}

/* Look at lists of models that were too long. */
static void lists_look(struct doctor *d, struct json_val node, const char *id)
{
	struct json_val engines, engine;
	if (!json_get(node, "engines", &engines))
		return;
	for (struct json_iter it = json_iter_of(engines); json_next_elem(&it, &engine);) {
		uint64_t n = json_get_u64(engine, "models_left_out", 0);
		if (n == 0)
			continue;
		doctor_find(d, DOCTOR_WARNING,
			"%s: %llu names of its engine's list of models are not taken: requests for them are answered 404",
			id, (unsigned long long)n);
		doctor_do(d, "let the engine list fewer models, or set its model (docs/laptop/models.md)");
	}
}

static void node_look(struct doctor *d, struct json_val node)
{
	const char *id = text_of(d, node, "id"), *state = text_of(d, node, "state"),
		   *reason = text_of(d, node, "reason");
	struct json_val breaker;
	lists_look(d, node, id);
	if (json_get_bool(node, "cordoned", false)) {
		doctor_find(d, DOCTOR_WARNING, "%s is cordoned: it gets no new requests", id);
		doctor_do(d, "cgn-ctl cluster uncordon %s", id);
	} else if (strcmp(state, "ready") != 0) {
		bool agent = text_of(d, node, "origin")[0] == '\0';
		doctor_find(d, DOCTOR_PROBLEM, "%s is %s%s%s", id, state, reason[0] != '\0' ? ": " : "",
			reason);
		if (agent)
			doctor_do(d, "on that node: cgn-ctl doctor --program agent");
		else
			doctor_do(d, "look at the engine itself, at %s: no agent is beside it",
				text_of(d, node, "address"));
	} else if (json_get(node, "breaker", &breaker) &&
		strcmp(text_of(d, breaker, "state"), "closed") != 0) {
		doctor_find(d, DOCTOR_WARNING, "%s failed several times and gets few requests (breaker %s)",
			id, text_of(d, breaker, "text"));
		doctor_do(d, "cgn-ctl explain --last 20 shows what failed");
	}
}

/* Look at the pools whose pods are nodes without an agent. Returns how many there are. */
static size_t pools_look(struct doctor *d)
{
	struct json_val doc, pools, pool;
	size_t n = 0;
	if (!answer_read(d->programs[ROUTER].extra, &doc) || !json_get(doc, "pools", &pools))
		return 0;
	for (struct json_iter it = json_iter_of(pools); json_next_elem(&it, &pool); n++) {
		const char *name = text_of(d, pool, "name"), *why = text_of(d, pool, "why");
		if (why[0] == '\0')
			continue;
		doctor_find(d, DOCTOR_PROBLEM, "InferencePool %s: %s", name, why);
		doctor_do(d,
			"look at the pool, its pods and the router's rights: docs/fleet/install/inference-gateway.md");
	}
	return n;
}

void check_nodes(struct doctor *d)
{
	struct json_val nodes, node;
	size_t n = 0;
	if (!nodes_read(d, &nodes))
		return;
	struct json_iter it = json_iter_of(nodes);
	for (; json_next_elem(&it, &node); n++)
		node_look(d, node);
	if (pools_look(d) > 0 && n == 0)
		return;
	if (n == 0) {
		doctor_find(d, DOCTOR_PROBLEM, "the router knows no node");
		doctor_do(d,
			"start an agent with cluster.router (or etcd) of this cluster: systemctl start cgn-agent");
	} else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "all %zu nodes are ready", n);
}

/* ---- models ---- */

static bool node_has_model(struct doctor *d, struct json_val node, const char *name)
{
	struct json_val engines, engine, models, model;
	if (strcmp(text_of(d, node, "state"), "ready") != 0 || !json_get(node, "engines", &engines))
		return false;
	struct json_iter it = json_iter_of(engines);
	while (json_next_elem(&it, &engine)) {
		if (!json_get_bool(engine, "ready", false) || !json_get(engine, "models", &models))
			continue;
		struct json_iter in = json_iter_of(models);
		while (json_next_elem(&in, &model))
			if (cgn_str_is(json_str(model, &d->arena), name))
				return true;
	}
	return false;
}

static bool model_is_served(struct doctor *d, struct json_val nodes, const struct config_model *m)
{
	struct json_val node;
	struct json_iter it = json_iter_of(nodes);
	while (json_next_elem(&it, &node)) {
		if (node_has_model(d, node, m->name))
			return true;
		for (size_t i = 0; i < m->aliases.n; i++)
			if (node_has_model(d, node, m->aliases.v[i]))
				return true;
	}
	return false;
}

void check_models(struct doctor *d)
{
	struct json_val nodes;
	if (!nodes_read(d, &nodes))
		return;
	for (size_t i = 0; i < d->cfg->n_models; i++)
		if (!model_is_served(d, nodes, &d->cfg->models[i])) {
			doctor_find(d, DOCTOR_PROBLEM,
				"model \"%s\" is configured, and no ready engine has it",
				d->cfg->models[i].name);
			doctor_do(d,
				"compare with GET /v1/models; add the engine's name to models.\"%s\".aliases, or start such an engine",
				d->cfg->models[i].name);
		}
	if (d->cfg->n_models == 0)
		doctor_find(d, DOCTOR_SKIPPED, "the settings name no models");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "all configured models have a ready node");
}

/* ---- KV events ---- */

static size_t events_look(struct doctor *d, struct json_val node)
{
	struct json_val engines, engine, cache, load;
	size_t seen = 0;
	const char *id = text_of(d, node, "id");
	if (!json_get(node, "engines", &engines))
		return 0;
	struct json_iter it = json_iter_of(engines);
	while (json_next_elem(&it, &engine)) {
		const char *residency = text_of(d, engine, "residency");
		seen += strncmp(residency, "sent", 4) != 0 && residency[0] != '\0';
		if (strncmp(residency, "demoted", 7) == 0 || strncmp(residency, "events: partial", 15) == 0) {
			doctor_find(d, DOCTOR_WARNING, "%s, engine %s: %s", id, text_of(d, engine, "name"),
				residency);
			doctor_do(d,
				"compare engine.kv_events with the engine's --kv-events-config, and open its port");
		}
	}
	if (json_get(node, "cache", &cache) && json_get(node, "load", &load) &&
		strcmp(text_of(d, cache, "source"), "events") == 0 && json_get_u64(cache, "blocks", 1) == 0 &&
		json_get_u64(load, "requests_total", 0) > 20) {
		doctor_find(d, DOCTOR_WARNING,
			"%s answered %llu requests, and no event said that it holds a block", id,
			(unsigned long long)json_get_u64(load, "requests_total", 0));
		doctor_do(d, "let the engine cache prefixes and publish events: docs/concepts/residency.md");
	}
	return seen;
}

void check_kv_events(struct doctor *d)
{
	struct json_val nodes, node;
	size_t seen = 0;
	if (!nodes_read(d, &nodes))
		return;
	struct json_iter it = json_iter_of(nodes);
	while (json_next_elem(&it, &node))
		seen += events_look(d, node);
	if (!doctor_is_fine(d))
		return;
	if (seen > 0)
		doctor_find(d, DOCTOR_OK, "the events of the engines arrive");
	else
		doctor_find(d, DOCTOR_SKIPPED, "no engine publishes KV events");
}

/* ---- several routers ---- */

/* Addresses and sizes may differ between machines; what decides about requests may not. */
static bool key_is_shared(struct cgn_str key)
{
	static const char *const shared[] = {"router.policy", "router.score_weights.", "router.tier_weights.",
		"router.admission.", "router.retry.", "router.resume", "router.disagg", "router.rate_limit.",
		"auth.enabled", "security.require_mtls", "security.insecure", "security.isolation",
		"cluster.name", "cluster.state_backend", "cluster.etcd_endpoints", "cluster.lease", "models.",
		"tenants.", "roles.", "prices."};
	static const char *const own[] = {"security.isolation_secret_file",
		"router.rate_limit.redis_ca_file"};
	struct cgn_str bare = {key.p + 1, key.n - 2}; /* Without its quotes. */
	for (size_t i = 0; i < CGN_COUNT(own); i++)
		if (cgn_str_is(bare, own[i]))
			return false;
	for (size_t i = 0; i < CGN_COUNT(shared); i++)
		if (cgn_str_starts(bare, shared[i]))
			return true;
	return false;
}

static bool value_find(struct json_val settings, struct json_val key, struct json_val *out)
{
	struct json_val row, k;
	struct json_iter it = json_iter_of(settings);
	while (json_next_elem(&it, &row))
		if (json_get(row, "key", &k) && cgn_str_eq(k.raw, key.raw))
			return json_get(row, "value", out);
	return false;
}

static void routers_compare(struct doctor *d, const char *name, struct json_val one, const char *other_name,
	struct json_val other)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf keys = {0};
	struct json_val row, key, value, there;
	struct json_iter it = json_iter_of(one);
	size_t n = 0;
	while (json_next_elem(&it, &row)) {
		if (!json_get(row, "key", &key) || !json_get(row, "value", &value) || !key_is_shared(key.raw))
			continue;
		bool has = value_find(other, key, &there);
		if (has && cgn_str_eq(there.raw, value.raw))
			continue;
		if (n++ < SHOWN_KEYS)
			cgn_buf_fmt(&keys, "%s%.*s %.*s and %.*s", n > 1 ? "; " : "", (int)key.raw.n - 2,
				key.raw.p + 1, CGN_STR_ARG(value.raw), has ? (int)there.raw.n : 5,
				has ? there.raw.p : "unset");
	}
	if (n == 0)
		return;
	doctor_find(d, DOCTOR_WARNING, "the routers %s and %s differ in %zu settings: %s", name, other_name,
		n, cgn_buf_z(&keys));
	doctor_do(d, "give both the same file, then systemctl reload cgn-router on both");
}

void check_routers(struct doctor *d)
{
	const struct config_list *list = &d->cfg->metrics.routers;
	struct json_val doc, first = {.type = JSON_NULL}, settings;
	const char *name = NULL;
	size_t asked = 0;
	for (size_t i = 0; i < list->n && i < CGN_COUNT(d->routers); i++) {
		const struct probe *q = d->routers[i];
		if (!answer_read(q, &doc) || !json_get(doc, "settings", &settings)) {
			doctor_find(d, DOCTOR_WARNING, "metrics.routers: %s does not show its settings: %s",
				list->v[i],
				q == NULL                ? "it is not a URL"
					: q->status != 0 ? "refused"
							 : q->why.msg);
			doctor_do(d, "start that router, or set CGN_API_KEY to a key with the scope admin");
			continue;
		}
		if (asked++ == 0) {
			first = settings;
			name = list->v[i];
		} else
			routers_compare(d, name, first, list->v[i], settings);
	}
	if (list->n < 2)
		doctor_find(d, DOCTOR_SKIPPED, "metrics.routers does not list two routers or more");
	else if (doctor_is_fine(d))
		doctor_find(d, DOCTOR_OK, "the routers have the same settings");
}
