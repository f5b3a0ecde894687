/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/control/parking.h"

#include "base/log/log.h"
#include "router/control/control/rest.h"
#include "router/metrics.h"
#include "router/request/admission/admission.h"

#define KNEE_STREAMS 256             /* Most streams that a node is filled with. */
#define WAKE_MOST    (300 * CGN_SEC) /* A node that is not ready by then counts no more: another one wakes. */
#define BLIND_MOST   (60 * CGN_SEC)  /* Without counted energy for so long, all wake. */

#define WANTED_RUN    COGNITORA__V1__WANTED_STATE__WANTED_LOADED
#define WANTED_ASLEEP COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP
#define WANTED_STOP   COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED

/* Sums up the nodes of one model. */
struct park_view {
	const Cognitora__V1__WantedModel *wanted; /* NULL: there was no order. */
	struct energy_pool_view pool[ENERGY_POOLS];
	const struct cluster_node *to_park[ENERGY_POOLS], *to_wake[ENERGY_POOLS];
	uint32_t all, parked;
	bool counted;              /* Every node that is awake counts its energy. */
	struct energy_curve curve; /* A curve of these. */
	double parked_w;           /* Measured, of all parked nodes. */
	double others_w;           /* Measured, of all nodes without the model. */
};

/* ---- nodes ---- */

static Cognitora__V1__WantedState rest_of(const struct router *r)
{
	return r->cfg->router.energy.park == CONFIG_PARK_UNLOAD ? WANTED_STOP : WANTED_ASLEEP;
}

/* Return the share of the last second in which the node computed prompts. */
static double prompts_of(const struct router *r, const struct cluster_node *n, cgn_nsec now)
{
	cgn_nsec busy = node_stats_busy(&r->shared.choice.stats[n->slot], now),
		 before = r->parking.busy[n->slot];
	double share = r->parking.at > 0 && now > r->parking.at && busy > before
		? (double)(busy - before) / (double)cgn_since(now, r->parking.at)
		: 0;
	return share < 1 ? share : 1;
}

/* Return the streams of the node, in nodes. */
static double streams_of(const struct router *r, const struct cluster_node *n,
	const struct energy_curve *curve)
{
	const struct node_stats *s = &r->shared.choice.stats[n->slot];
	const struct route_speed own = node_stats_speed(s), plain = ROUTE_SPEED_DEFAULT;
	const struct route_speed *speed = own.step_ms > 0 ? &own : &plain;
	double streams = atomic_load_explicit(&s->decoding, memory_order_relaxed) +
		(double)atomic_load_explicit(&s->others_decoding, memory_order_relaxed);
	return streams /
		energy_knee(curve, (double)speed->step_ms, (double)speed->batch_ms, KNEE_STREAMS,
			ENERGY_PARK_SLACK);
}

/* Note the load and the state of a node that serves the model. */
static void ready_view(struct router *r, const struct cluster_node *n, enum energy_pool pool,
	struct park_view *v, cgn_nsec now)
{
	struct energy_curve curve;
	r->parking.woken[n->slot] = 0;
	(void)energy_board_get(r->shared.choice.energy, n->slot, &curve);
	v->counted = v->counted && energy_known(&curve);
	v->pool[pool].late &= node_stats_queue_ms(&r->shared.choice.stats[n->slot]) >
		(double)r->cfg->router.energy.ttft * 1e-6;
	if (!energy_known(&curve))
		return;
	v->curve = curve;
	v->pool[ENERGY_PROMPTS].load += prompts_of(r, n, now);
	v->pool[ENERGY_ANSWERS].load += streams_of(r, n, &curve);
}

static void node_view(struct router *r, const struct cluster_node *n, const char *model, struct park_view *v,
	cgn_nsec now)
{
	const enum energy_pool pool =
		n->info->role == COGNITORA__V1__ROLE__ROLE_PREFILL ? ENERGY_PROMPTS : ENERGY_ANSWERS;
	cgn_nsec woken = r->parking.woken[n->slot];
	bool rests = router_rest_wanted(v->wanted, n->info->id),
	     ours = router_rest_is_ours(v->wanted, n->info->id),
	     ready = !rests && router_node_serves(n, model);
	const struct node_stats *stats = r->shared.choice.stats;
	const struct cluster_node **park = &v->to_park[pool];
	v->all++;
	v->pool[pool].all++;
	v->pool[pool].awake += ready || (!rests && woken > 0 && cgn_since(now, woken) < WAKE_MOST);
	if (rests && ours) {
		v->parked++;
		v->parked_w += energy_board_node_watts(r->shared.choice.energy, n->slot, now);
		v->to_wake[pool] = v->to_wake[pool] != NULL ? v->to_wake[pool] : n;
	}
	if (!ready)
		return;
	ready_view(r, n, pool, v, now);
	if (ours &&
		(*park == NULL ||
			node_stats_requests(&stats[n->slot]) <= node_stats_requests(&stats[(*park)->slot])))
		*park = n;
}

static struct park_view model_view(struct router *r, const char *name, cgn_nsec now)
{
	struct park_view v = {.wanted = wanted_find(r->wanted.doc, name), .counted = true};
	struct cgn_err err;
	for (enum energy_pool p = 0; p < ENERGY_POOLS; p++)
		v.pool[p].late = r->cfg->router.energy.ttft > 0;
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *n = r->members.cluster->by_slot[s];
		if (n != NULL && n->heard && cgn_ok(wanted_able_own(n->info, name, rest_of(r), &err)))
			node_view(r, n, name, &v, now);
		else if (n != NULL)
			v.others_w += energy_board_node_watts(r->shared.choice.energy, n->slot, now);
	}
	return v;
}

/* Return how many nodes of the model the budget has power for. */
static uint32_t most_of(const struct router *r, const struct park_view *v)
{
	double budget = r->cfg->router.energy.budget, idle = (double)v->curve.decode[0];
	if (!(budget > 0))
		return v->all;
	double parked = v->parked > 0 && v->parked_w > 0 ? v->parked_w / v->parked : idle,
	       left = budget - v->others_w;
	return left > 0 ? energy_park_most(&v->curve, left, parked, v->all) : 1;
}

/* ---- orders ---- */

static void order_done(void *user, const struct cgn_err *err)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	r->parking.pending = false;
	if (err->code != CGN_FINE && err->code != CGN_CONFLICT)
		cgn_log_limited(WARN, "router.park_failed", F_STR("why", err->msg),
			F_STR("then", "decided again"));
}

/* Note that a node is to wake: it counts as awake until it is ready, so that no other one wakes for it. */
static void wake_note(struct router *r, const char *node)
{
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++)
		if (r->members.cluster->by_slot[s] != NULL &&
			strcmp(r->members.cluster->by_slot[s]->info->id, node) == 0)
			r->parking.woken[s] = cgn_loop_now(r->loop);
}

static void node_order(struct router *r, const char *model, const char *node,
	Cognitora__V1__WantedState state)
{
	struct cgn_err err;
	const struct router_rest_order o = {.model = model,
		.state = state,
		.nodes = &node,
		.n = 1,
		.by = "router.energy.park"};
	cgn_rc rc = router_rest_order(r, &o, order_done, &err);
	r->parking.pending = cgn_ok(rc);
	if (!cgn_ok(rc)) {
		order_done(r, &err);
		return;
	}
	if (state == WANTED_RUN)
		wake_note(r, node);
	cgn_log(INFO, state == WANTED_RUN ? "router.unpark" : "router.park", F_STR("model", model),
		F_STR("node", node), F_STR("wanted", wanted_state_text(state)));
}

/* ---- models ---- */

static struct router_parked_model *model_find(struct router_parking *p, const char *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (strcmp(p->model[i].name, name) == 0)
			return &p->model[i];
	if (p->n == PARK_MODELS || strlen(name) > WANTED_MAX_NAME)
		return NULL;
	struct router_parked_model *m = &p->model[p->n++];
	*m = (struct router_parked_model){.name = ""};
	(void)cgn_str_copyz(m->name, sizeof m->name, cgn_str_of(name));
	return m;
}

/* Wake a node, of those that answer first. */
static void node_wake(struct router *r, const char *name, const struct park_view *v)
{
	const struct cluster_node *n =
		v->to_wake[ENERGY_ANSWERS] != NULL ? v->to_wake[ENERGY_ANSWERS] : v->to_wake[ENERGY_PROMPTS];
	if (n != NULL && !r->parking.pending)
		node_order(r, name, n->info->id, WANTED_RUN);
}

/* Decide nothing while the load is not known; when that lasts, wake the nodes one by one. */
static bool is_blind(struct router *r, struct router_parked_model *m, const struct park_view *v, cgn_nsec now)
{
	if (v->counted)
		m->blind_since = 0;
	else if (m->blind_since == 0)
		m->blind_since = now;
	else if (cgn_since(now, m->blind_since) > BLIND_MOST)
		node_wake(r, m->name, v);
	return !v->counted;
}

/* Park or wake a node of the pool. Return whether there is an order. */
static bool pool_follow(struct router *r, const char *name, const struct park_view *v, enum energy_pool p,
	uint32_t want)
{
	const struct cluster_node *wake = v->to_wake[p], *park = v->to_park[p];
	if (v->pool[p].awake < want && wake != NULL)
		node_order(r, name, wake->info->id, WANTED_RUN);
	else if (v->pool[p].awake > want && park != NULL)
		node_order(r, name, park->info->id, rest_of(r));
	return r->parking.pending;
}

static void model_park(struct router *r, const char *name, cgn_nsec now)
{
	struct park_view v = model_view(r, name, now);
	uint32_t want[ENERGY_POOLS];
	struct router_parked_model *m = v.all > 0 ? model_find(&r->parking, name) : NULL;
	if (m == NULL || is_blind(r, m, &v, now))
		return;
	const struct energy_park_cfg cfg = {.spare = r->cfg->router.energy.park_spare,
		.least = r->cfg->router.energy.park_least,
		.window = r->cfg->router.energy.park_window};
	/* Requests queue under the router's name for the model. */
	const struct cgn_str shown = gw_rules_name_of(r->published.rules, cgn_str_of(name));
	v.pool[ENERGY_PROMPTS].pressed = v.pool[ENERGY_ANSWERS].pressed =
		r->shared.admission != NULL && gw_admission_depth(r->shared.admission, shown) > 0;
	energy_pools_step(&m->park, &cfg, v.pool, now, want);
	energy_pools_within(&m->park, &cfg, most_of(r, &v), now, want);
	metric_set(METRIC_OF(r->shared.telemetry, ENERGY_WANTED, name),
		want[ENERGY_PROMPTS] + want[ENERGY_ANSWERS]);
	metric_set(METRIC_OF(r->shared.telemetry, ENERGY_PARKED_NODES, name), v.parked);
	if (r->cfg->router.energy.mode != ENERGY_MODE_ON || r->parking.pending)
		return;
	if (!pool_follow(r, name, &v, ENERGY_ANSWERS, want[ENERGY_ANSWERS]))
		(void)pool_follow(r, name, &v, ENERGY_PROMPTS, want[ENERGY_PROMPTS]);
}

/* Find a node that was parked and still rests. False: there is none. */
static bool parked_find(const Cognitora__V1__WantedModels *doc, char model[WANTED_MAX_NAME + 1],
	char node[PROTO_MAX_ID + 1])
{
	for (size_t i = 0; doc != NULL && i < doc->n_models; i++) {
		const Cognitora__V1__WantedModel *m = doc->models[i];
		for (size_t k = 0; k < m->n_nodes; k++)
			if (m->nodes[k]->parked && router_rest_wanted(m, m->nodes[k]->id))
				return cgn_str_copyz(model, WANTED_MAX_NAME + 1, cgn_str_of(m->name)) &&
					cgn_str_copyz(node, PROTO_MAX_ID + 1, cgn_str_of(m->nodes[k]->id));
	}
	return false;
}

/* Wake one node that was parked, when parking is off now. An order replaces the document, so the names are copies. */
static void parked_wake(struct router *r)
{
	char model[WANTED_MAX_NAME + 1], node[PROTO_MAX_ID + 1];
	if (!r->parking.pending && parked_find(r->wanted.doc, model, node))
		node_order(r, model, node, WANTED_RUN);
}

/* An engine lists its own model first. */
static void models_park(struct router *r, cgn_nsec now)
{
	const char *seen[PARK_MODELS];
	size_t n = 0;
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *node = r->members.cluster->by_slot[s];
		for (size_t e = 0; node != NULL && node->heard && e < node->info->n_engines; e++) {
			const Cognitora__V1__Engine *engine = node->info->engines[e];
			size_t k = 0;
			while (engine->n_models > 0 && k < n && strcmp(seen[k], engine->models[0]) != 0)
				k++;
			if (engine->n_models == 0 || k < n || n == PARK_MODELS)
				continue;
			seen[n++] = engine->models[0];
			model_park(r, engine->models[0], now);
		}
	}
}

static void slot_note(struct router *r, size_t slot, cgn_nsec now)
{
	r->parking.busy[slot] = node_stats_busy(&r->shared.choice.stats[slot], now);
	if (r->members.cluster->by_slot[slot] == NULL)
		r->parking.woken[slot] = 0; /* The next node in the slot was not woken. */
}

void router_parking_follow(struct router *r, cgn_nsec now)
{
	struct router_parking *p = &r->parking;
	if (r->cfg->router.energy.park == CONFIG_PARK_OFF || r->cfg->router.energy.mode == ENERGY_MODE_OFF) {
		if (!r->cfg->router.autoscaler.enabled || r->cfg->router.autoscaler.mode != CONFIG_SCALE_ON)
			parked_wake(r);
		p->at = 0;
		return;
	}
	if (p->at > 0 && cgn_since(now, p->at) < CGN_SEC)
		return;
	models_park(r, now);
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++)
		slot_note(r, s, now);
	p->at = now;
}
