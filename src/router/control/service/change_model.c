/* SPDX-License-Identifier: Apache-2.0 */
/* change_model: Control.ChangeModel: says where a LoRA adapter is wanted, or what engines shall do with their own models,
 * and tells how far the nodes are. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/control/service/service_priv.h"

#define MODELS_MOST 4096 /* In one answer */
#define WHY_BYTES   400

typedef Cognitora__V1__ChangeModelRequest change_request;
static CGN_RC order_put(struct router_call *k, struct cgn_err *err);

/* ---- the answer ---- */

static void name_add(char **names, size_t *n, char *name)
{
	for (size_t i = 0; i < *n; i++)
		if (strcmp(names[i], name) == 0)
			return;
	if (*n < MODELS_MOST)
		names[(*n)++] = name;
}

static size_t names_find(const struct router *r, char **names)
{
	size_t n = 0;
	for (size_t i = 0; r->wanted.doc != NULL && i < r->wanted.doc->n_models; i++)
		name_add(names, &n, r->wanted.doc->models[i]->name);
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *node = r->members.cluster->by_slot[s];
		for (size_t e = 0; node != NULL && e < node->info->n_engines; e++)
			for (size_t m = 0; m < node->info->engines[e]->n_models; m++)
				name_add(names, &n, node->info->engines[e]->models[m]);
	}
	return n;
}

/* Append the place of the model on a node, if there is something to tell. False: |a| is too small. */
static bool place_add(const struct cluster_node *node, struct cgn_arena *a, Cognitora__V1__ModelPlaces *to)
{
	Cognitora__V1__ModelPlace place, *row = NULL;
	char why[WHY_BYTES];
	if (!wanted_place(node->info, node->heard, to->name, to->wanted, why, sizeof why, &place))
		return true;
	if ((row = cgn_arena_get(a, sizeof *row)) == NULL)
		return false;
	*row = place;
	row->why = cgn_arena_strz(a, cgn_str_of(place.why)); /* |why| ends with this call. */
	to->places[to->n_places++] = row;
	return row->why != NULL;
}

static bool places_fill(const struct router *r, size_t n_nodes, struct cgn_arena *a,
	Cognitora__V1__ModelPlaces *to)
{
	to->places = cgn_arena_get(a, (n_nodes + 1) * sizeof *to->places);
	for (size_t s = 0; to->places != NULL && s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *node = r->members.cluster->by_slot[s];
		if (node != NULL && !place_add(node, a, to))
			return false;
	}
	return to->places != NULL;
}

static bool models_fill(const struct router *r, struct cgn_arena *a, Cognitora__V1__ModelsResponse *rs)
{
	char **names = cgn_arena_get(a, MODELS_MOST * sizeof *names);
	size_t n = names != NULL ? names_find(r, names) : 0, n_nodes = 0;
	Cognitora__V1__ModelPlaces *rows = cgn_arena_get(a, (n + 1) * sizeof *rows);
	rs->models = cgn_arena_get(a, (n + 1) * sizeof *rs->models);
	if (names == NULL || rows == NULL || rs->models == NULL)
		return false;
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++)
		n_nodes += r->members.cluster->by_slot[s] != NULL;
	for (size_t i = 0; i < n; i++) {
		cognitora__v1__model_places__init(&rows[i]);
		rows[i].name = names[i];
		/* Only packed. */
		rows[i].wanted =
			(Cognitora__V1__WantedModel *)(uintptr_t)wanted_find(r->wanted.doc, names[i]);
		if (!places_fill(r, n_nodes, a, &rows[i]))
			return false;
		rs->models[rs->n_models++] = &rows[i];
	}
	return true;
}

static void models_send(struct router_call *k)
{
	Cognitora__V1__ModelsResponse rs = COGNITORA__V1__MODELS_RESPONSE__INIT;
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena a;
	cgn_arena_init(&a, (size_t)8 * 1024 * 1024);
	rs.revision = k->r->wanted.doc != NULL ? k->r->wanted.doc->revision : 0;
	rs.where = pb_text(state_models_where(k->r->members.state));
	rs.trouble = k->r->wanted.trouble;
	if (!models_fill(k->r, &a, &rs)) {
		router_call_finish(k, CGN_TOO_LARGE, "too many models and nodes for one answer");
		return;
	}
	router_call_send(k, &rs);
	router_call_finish(k, CGN_FINE, "");
}

/* ---- the order ---- */

/* Is the order about an engine's own model? */
static bool is_own(const change_request *rq)
{
	return rq->base_model[0] == '\0';
}

static CGN_RC able_check(const change_request *rq, const struct cluster_node *n, struct cgn_err *err)
{
	if (n->door != NULL)
		return CGN_FAIL(err, UNSUPPORTED,
			"it is an engine without an agent, which would obey the order (docs/fleet/engines/engine-nodes.md)");
	return is_own(rq) ? wanted_able_own(n->info, rq->name, rq->state, err)
			  : wanted_able(n->info, rq->base_model, err);
}

static CGN_RC nodes_check(const struct router *r, const change_request *rq, struct cgn_err *err)
{
	for (size_t i = 0; i < rq->n_nodes; i++) {
		const struct cluster_node *n = cluster_find(r->members.cluster, rq->nodes[i]);
		struct cgn_err why;
		if (n == NULL)
			return CGN_FAIL(err, NOT_FOUND, "no node %.128s is known here", rq->nodes[i]);
		if (n->heard && !cgn_ok(able_check(rq, n, &why)))
			return CGN_FAIL(err, UNSUPPORTED, "node %s cannot do it: %.300s", n->info->id,
				why.msg);
	}
	return CGN_OK;
}

/* With --all, one node that can is enough, and none is needed while no agent answers. */
static CGN_RC cluster_check(const struct router *r, const change_request *rq, struct cgn_err *err)
{
	struct cgn_err why = {.code = CGN_FINE};
	const char *unable = NULL;
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *n = r->members.cluster->by_slot[s];
		struct cgn_err this;
		if (n == NULL || !n->heard)
			continue;
		if (cgn_ok(able_check(rq, n, &this)))
			return CGN_OK;
		bool serves = strstr(this.msg, "none of its engines") == NULL;
		if (unable == NULL ||
			serves) { /* The engine's kind says more than that others lack the model. */
			why = this;
			unable = n->info->id;
		}
	}
	return unable == NULL ? CGN_OK
			      : CGN_FAIL(err, UNSUPPORTED, "no node can do it; %s: %.300s", unable, why.msg);
}

/* An order for an adapter names path and base; one without both is about an adapter that was loaded before, or about an
 * engine's own model. */
static CGN_RC order_check(const struct router *r, const change_request *rq, struct cgn_err *err)
{
	bool loads = rq->state == COGNITORA__V1__WANTED_STATE__WANTED_LOADED,
	     unloads = rq->state == COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED;
	if (!loads && !unloads && rq->state != COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP)
		return CGN_FAIL(err, INVALID, "the order says neither loaded, unloaded nor asleep");
	if (loads && (rq->base_model[0] == '\0') != (rq->lora_path[0] == '\0'))
		return CGN_FAIL(err, INVALID,
			"a LoRA adapter needs its path (--lora) and its base model (--base)");
	if (!is_own(rq) && !loads && !unloads)
		return CGN_FAIL(err, UNSUPPORTED,
			"%.200s is a LoRA adapter: it is loaded or unloaded, and does not sleep", rq->name);
	if (strcmp(rq->base_model, rq->name) == 0)
		return CGN_FAIL(err, INVALID, "the adapter %.200s has the name of its base model", rq->name);
	if (rq->replicas > 0 && (!loads || !is_own(rq) || rq->n_nodes > 0))
		return CGN_FAIL(err, INVALID,
			"a number of replicas goes with the load of an engine's own model, without named nodes");
	if (!is_own(rq) && unloads)
		return CGN_OK; /* The adapter may be of nodes that have left. */
	return rq->n_nodes > 0 ? nodes_check(r, rq, err) : cluster_check(r, rq, err);
}

/* Fill in base and path of an adapter that was loaded before. */
static void order_complete(const struct router *r, change_request *rq)
{
	const Cognitora__V1__WantedModel *old = wanted_find(r->wanted.doc, rq->name);
	if (old == NULL || old->base_model[0] == '\0' || !is_own(rq) || rq->lora_path[0] != '\0')
		return;
	const struct wanted_adapter a = wanted_adapter_on(old, rq->n_nodes == 1 ? rq->nodes[0] : "");
	rq->base_model = cgn_str_dupz(cgn_str_of(a.base));
	rq->lora_path = cgn_str_dupz(cgn_str_of(a.path));
}

/* Choose the nodes of rq->replicas. */
static CGN_RC replicas_choose(const struct router *r, change_request *rq, struct cgn_err *err)
{
	const Cognitora__V1__Node *able[ROUTE_MAX_NODES];
	size_t n = 0;
	struct cgn_err why;
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *node = r->members.cluster->by_slot[s];
		if (node != NULL && node->heard && cgn_ok(able_check(rq, node, &why)))
			able[n++] = node->info;
	}
	if (n < rq->replicas)
		return CGN_FAIL(err, UNSUPPORTED, "%u replicas are wanted, and %zu nodes have the model",
			rq->replicas, n);
	if (rq->replicas > WANTED_MAX_NODES)
		return CGN_FAIL(err, UNSUPPORTED, "at most %d replicas can be chosen", WANTED_MAX_NODES);
	wanted_rank(able, n, rq->name);
	rq->nodes = CGN_NEW_ARRAY(char *, rq->replicas);
	for (; rq->n_nodes < rq->replicas; rq->n_nodes++)
		rq->nodes[rq->n_nodes] = cgn_str_dupz(cgn_str_of(able[rq->n_nodes]->id));
	return CGN_OK;
}

/* Log the order once it is known whether it was stored. */
static void order_log(const struct router_call *k, const struct cgn_err *err)
{
	const char *state = wanted_state_text(k->order->state);
	char object[512];
	(void)snprintf(object, sizeof object, "%s %s", k->order->name, state);
	router_order_note(k, "model.change", object, err);
	if (err->code == CGN_FINE)
		cgn_log(INFO, "router.change_model", F_STR("model", k->order->name), F_STR("wanted", state),
			F_STR("base", k->order->base_model), F_STR("path", k->order->lora_path),
			F_U64("nodes", k->order->n_nodes), F_STR("by", k->by), F_STR("from", k->from));
	else
		cgn_log(ERROR, "router.change_model_failed", F_STR("model", k->order->name),
			F_STR("wanted", state), F_STR("by", k->by), F_STR("from", k->from),
			F_STR("why", err->msg), F_STR("then", "what is wanted stays as it was"));
}

static void order_done(void *user, const struct cgn_err *err)
{
	struct router_call *k = user;
	struct cgn_err again;
	CGN_LIVE(k, ROUTER_CALL_TAG);
	k->pending = false;
	if (err->code == CGN_CONFLICT && ++k->tries < ROUTER_CALL_TRIES) {
		if (cgn_ok(order_put(k, &again)))
			return;
		err = &again;
	}
	order_log(k, err);
	if (err->code == CGN_FINE && k->c != NULL)
		models_send(k);
	else
		router_call_finish(k, err->code, err->msg);
	router_call_release(k);
}

static CGN_RC order_put(struct router_call *k, struct cgn_err *err)
{
	const change_request *rq = k->order;
	const Cognitora__V1__WantedModel *old = wanted_find(k->r->wanted.doc, rq->name);
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	bool loads = rq->state == COGNITORA__V1__WANTED_STATE__WANTED_LOADED;
	const struct wanted_change c = {.name = rq->name,
		.base = loads || old == NULL ? rq->base_model : old->base_model,
		.lora_path = loads || old == NULL ? rq->lora_path : old->lora_path,
		.state = rq->state,
		.elsewhere_unloaded = rq->replicas > 0,
		.nodes = (const char *const *)rq->nodes,
		.n_nodes = rq->n_nodes,
		.by = k->by,
		.now_ms = cgn_clock_wall_ms()};
	CGN_TRY(wanted_write(k->r->wanted.doc, &c, &text, err));
	CGN_TRY(state_models_put(k->r->members.state, cgn_buf_view(&text), order_done, k, err));
	k->pending = true; /* order_done never runs inline. */
	return CGN_OK;
}

void router_change_model(struct router_call *k, struct cgn_str message)
{
	struct cgn_err err;
	cgn_rc rc = pb_unpack(&cognitora__v1__change_model_request__descriptor, message, &k->order, &err);
	if (cgn_ok(rc) && k->order->name[0] == '\0') {
		models_send(k);
		return;
	}
	if (cgn_ok(rc))
		rc = router_call_may(k, ACTION_MODEL_CHANGE, k->order->name, &err);
	if (cgn_ok(rc)) {
		order_complete(k->r, k->order);
		rc = order_check(k->r, k->order, &err);
	}
	if (cgn_ok(rc) && k->order->replicas > 0)
		rc = replicas_choose(k->r, k->order, &err);
	if (cgn_ok(rc))
		rc = order_put(k, &err);
	if (!cgn_ok(rc))
		router_call_finish(k, rc.code, err.msg);
}
