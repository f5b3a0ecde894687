/* SPDX-License-Identifier: Apache-2.0 */
#include "router/control/control/parking.h"

#include "base/log/log.h"
#include "router/control/control/rest.h"
#include "router/metrics.h"
#include "router/request/admission/admission.h"

#define KNEE_STREAMS 256 /* Most streams that a node is filled with. */
#define KNEE_SLACK   0.1
#define WAKE_MOST    (300 * CGN_SEC) /* A node that is not ready by then counts no more: another one wakes. */
#define BLIND_MOST   (60 * CGN_SEC)  /* Without counted energy for so long, all wake. */

#define WANTED_RUN    COGNITORA__V1__WANTED_STATE__WANTED_LOADED
#define WANTED_ASLEEP COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP
#define WANTED_STOP   COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED

/* Sums up the nodes of one model. */
struct park_view {
	const Cognitora__V1__WantedModel *wanted; /* NULL: there was no order. */
	const struct cluster_node *to_park, *to_wake;
	uint32_t all, awake, parked;
	double load;
	bool counted; /* Every node that is awake counts its energy. */
};

/* ---- nodes ---- */

static Cognitora__V1__WantedState rest_of(const struct router *r)
{
	return r->cfg->router.energy.park == CONFIG_PARK_UNLOAD ? WANTED_STOP : WANTED_ASLEEP;
}

/* Return the load of the node, in nodes: its prompts' share of the last second, and its streams. */
static double load_of(const struct router *r, const struct cluster_node *n, const struct energy_curve *curve,
	cgn_nsec now)
{
	const struct node_stats *s = &r->shared.choice.stats[n->slot];
	const struct route_speed own = node_stats_speed(s), plain = ROUTE_SPEED_DEFAULT;
	const struct route_speed *speed = own.step_ms > 0 ? &own : &plain;
	double streams = atomic_load_explicit(&s->decoding, memory_order_relaxed) +
		(double)atomic_load_explicit(&s->others_decoding, memory_order_relaxed);
	cgn_nsec busy = node_stats_busy(s, now), before = r->parking.busy[n->slot];
	double share = r->parking.at > 0 && now > r->parking.at && busy > before
		? (double)(busy - before) / (double)cgn_since(now, r->parking.at)
		: 0;
	return (share < 1 ? share : 1) +
		streams /
		energy_knee(curve, (double)speed->step_ms, (double)speed->batch_ms, KNEE_STREAMS, KNEE_SLACK);
}

static void node_view(struct router *r, const struct cluster_node *n, const char *model, struct park_view *v,
	cgn_nsec now)
{
	struct energy_curve curve;
	cgn_nsec woken = r->parking.woken[n->slot];
	bool rests = router_rest_wanted(v->wanted, n->info->id),
	     ours = router_rest_is_ours(v->wanted, n->info->id);
	const struct node_stats *stats = r->shared.choice.stats;
	v->all++;
	v->parked += rests && ours;
	if (rests && ours && v->to_wake == NULL)
		v->to_wake = n;
	bool ready = !rests && router_node_serves(n, model);
	v->awake += ready || (!rests && woken > 0 && cgn_since(now, woken) < WAKE_MOST);
	if (!ready)
		return;
	r->parking.woken[n->slot] = 0;
	(void)energy_board_get(r->shared.choice.energy, n->slot, &curve);
	v->counted = v->counted && energy_known(&curve);
	if (energy_known(&curve))
		v->load += load_of(r, n, &curve, now);
	if (ours &&
		(v->to_park == NULL ||
			node_stats_requests(&stats[n->slot]) <=
				node_stats_requests(&stats[v->to_park->slot])))
		v->to_park = n;
}

static struct park_view model_view(struct router *r, const char *name, cgn_nsec now)
{
	struct park_view v = {.wanted = wanted_find(r->wanted.doc, name), .counted = true};
	struct cgn_err err;
	for (size_t s = 0; s < ROUTE_MAX_NODES; s++) {
		const struct cluster_node *n = r->members.cluster->by_slot[s];
		if (n != NULL && n->heard && cgn_ok(wanted_able_own(n->info, name, rest_of(r), &err)))
			node_view(r, n, name, &v, now);
	}
	return v;
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

/* Decide nothing while the load is not known; when that lasts, wake the nodes one by one. */
static bool is_blind(struct router *r, struct router_parked_model *m, const struct park_view *v, cgn_nsec now)
{
	if (v->counted)
		m->blind_since = 0;
	else if (m->blind_since == 0)
		m->blind_since = now;
	else if (cgn_since(now, m->blind_since) > BLIND_MOST && v->to_wake != NULL && !r->parking.pending)
		node_order(r, m->name, v->to_wake->info->id, WANTED_RUN);
	return !v->counted;
}

static void model_park(struct router *r, const char *name, cgn_nsec now)
{
	const struct park_view v = model_view(r, name, now);
	struct router_parked_model *m = v.all > 0 ? model_find(&r->parking, name) : NULL;
	if (m == NULL || is_blind(r, m, &v, now))
		return;
	const struct energy_park_cfg cfg = {.spare = r->cfg->router.energy.park_spare,
		.least = r->cfg->router.energy.park_least,
		.window = r->cfg->router.energy.park_window};
	/* Requests queue under the router's name for the model. */
	const struct cgn_str shown = gw_rules_name_of(r->published.rules, cgn_str_of(name));
	bool pressed = r->shared.admission != NULL && gw_admission_depth(r->shared.admission, shown) > 0;
	uint32_t want = energy_park_step(&m->park, &cfg, v.load, pressed, v.awake, v.all, now);
	metric_set(METRIC_OF(r->shared.telemetry, ENERGY_WANTED, name), want);
	metric_set(METRIC_OF(r->shared.telemetry, ENERGY_PARKED_NODES, name), v.parked);
	if (r->cfg->router.energy.mode != ENERGY_MODE_ON || r->parking.pending)
		return;
	if (v.awake < want && v.to_wake != NULL)
		node_order(r, name, v.to_wake->info->id, WANTED_RUN);
	else if (v.awake > want && v.to_park != NULL)
		node_order(r, name, v.to_park->info->id, rest_of(r));
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
