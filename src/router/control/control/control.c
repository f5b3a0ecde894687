/* SPDX-License-Identifier: Apache-2.0 */
/* control: applies changes of the cluster, the configuration and the key file. */
#include <stdlib.h>

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "base/unlikely/unlikely.h"
#include "router/answer/client/gateway.h"
#include "router/control/control/access.h"
#include "router/control/control/budgets.h"
#include "router/control/control/isolation.h"
#include "router/control/control/models.h"
#include "router/control/control/parking.h"
#include "router/control/control/policy.h"
#include "router/control/control/price.h"
#include "router/control/control/watch.h"
#include "router/request/admission/admission.h"
#include "router/request/calibration/calibration.h"
#include "router/shared/enginenodes/enginenodes.h"
#include "router/shared/peers/peers.h"

#define TICK CGN_SEC
/* Assumed tokens in a block of the chain until engines have counted some: 256 bytes of 4 bytes a token. */
#define BLOCK_TOKENS 64

/* ---- orders of the cluster ---- */

static void capacity_set(struct router *r, const struct cluster_node *n)
{
	double tokens = node_stats_block_tokens(&r->members.cluster->stats[n->slot]);
	double blocks = (double)cluster_node_kv_tokens(n) / (tokens > 0 ? tokens : BLOCK_TOKENS);
	route_record_capacity(r->shared.choice.record, n->slot, (uint64_t)blocks);
}

static double jitter_random(struct router *r)
{
	if (r->jitter_state == 0)
		cgn_random(&r->jitter_state, sizeof r->jitter_state);
	return (double)(mix_splitmix(&r->jitter_state) >> 11) * 0x1p-53;
}

/* Apply the cordon of a node. A static node has two names and may be cordoned by either. */
static void cordon_refresh(struct router *r, struct cluster_node *n)
{
	struct cluster_orders o;
	bool want = state_watch_cordoned(r->members.state, n->member_id) ||
		state_watch_cordoned(r->members.state, n->info->id);
	if (want != n->cordoned && cluster_cordon(r->members.cluster, n->member_id, want, &o))
		cgn_loop_defer(r->loop, &r->published.hook);
}

void router_breaker_step(struct router *r, const struct cluster_node *n, enum breaker_event ev,
	enum breaker_reason why)
{
	const struct breaker_input in = {.event = ev,
		.reason = why,
		.now = cgn_loop_now(r->loop),
		.jitter = jitter_random(r)};
	(void)gw_breaker_step(r->shared.telemetry, &r->members.cluster->stats[n->slot],
		&r->published.rules->breaker, n->info->id, &in);
}

void router_orders_apply(struct router *r, const struct cluster_orders *o)
{
	struct cluster_node *n = r->members.cluster->by_slot[o->slot];
	if (o->forget)
		route_record_forget(r->shared.choice.record, o->slot);
	if (o->had_index_id)
		router_residency_remove(r, o->index_id);
	if (n != NULL && o->recovered)
		router_breaker_step(r, n, BREAKER_HINT, BREAKER_FOR_NOTHING);
	if (n != NULL && o->publish) {
		capacity_set(r, n);
		cordon_refresh(r, n);
	}
	if (o->publish)
		cgn_loop_defer(r->loop, &r->published.hook);
	switch (o->watch) {
	case WATCH_KEEP:
		break;
	case WATCH_OPEN:
		router_watch_open(r, n);
		break;
	case WATCH_AGAIN:
		router_watch_restart(r, n);
		break;
	case WATCH_CLOSE:
		router_watch_close(r, o->slot);
		break;
	}
}

/* ---- publishing ---- */

static void node_state_report(struct router_watch *w, const struct cluster_node *n)
{
	const char *id = n->info->id;
	if (w->shown == n->state && w->shown_id != NULL && strcmp(w->shown_id, id) == 0)
		return;
	cgn_log_limited(INFO, "router.node_state", F_STR("node", id), F_STR("address", n->address),
		F_STR("state", node_state_text(n->state)));
	if (w->shown_id != NULL && strcmp(w->shown_id, id) != 0)
		telemetry_forget(w->r->shared.telemetry, "node", w->shown_id);
	free(w->shown_id);
	w->shown_id = cgn_str_dupz(cgn_str_of(id));
	w->shown = n->state;
	for (unsigned s = 0; s < NODE_STATE_COUNT; s++)
		metric_set(METRIC_OF(w->r->shared.telemetry, NODE_STATE, id,
				   node_state_text((enum node_state)s)),
			s == (unsigned)n->state ? 1 : 0);
}

/* Give |v|, which is taken, and |rules| (NULL: unchanged) to all workers at once: the view's models have the names
 * that the rules give them. */
static void view_distribute(struct router *r, struct cluster_view *v, struct gw_rules *rules)
{
	gw_calibrations_follow(r->shared.calibrations, v,
		&(rules != NULL ? rules : r->published.rules)->cascade);
	for (size_t i = 0; i < r->n_workers; i++)
		gw_worker_update(r->workers[i], v, rules);
	gw_admission_view_set(r->shared.admission, v);
	cluster_view_unref(&r->published.view);
	r->published.view = v;
}

/* Make the view of the membership for |rules|. */
static CGN_RC view_make(const struct router *r, const struct gw_rules *rules, struct cluster_view **out,
	struct cgn_err *err)
{
	CGN_TRY(cluster_view_new(r->members.cluster, gw_rules_name_of, rules, out, err));
	for (size_t i = 0; i < (*out)->n_models; i++)
		(*out)->models[i].wakes =
			r->model_wakes != NULL && r->model_wakes(r->scaler, (*out)->models[i].name);
	return CGN_OK;
}

static void view_publish(struct cgn_hook *h)
{
	struct router *r = CGN_CONTAINER(h, struct router, published.hook);
	struct cgn_err err;
	struct cluster_view *v = NULL;
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (r->members.watches[i] != NULL && r->members.cluster->by_slot[i] != NULL)
			node_state_report(r->members.watches[i], r->members.cluster->by_slot[i]);
	if (!cgn_ok(view_make(r, r->published.rules, &v, &err))) {
		cgn_log(ERROR, "router.publish_failed", F_STR("why", err.msg));
		return;
	}
	view_distribute(r, v, NULL);
	router_models_log_changes(r);
	router_isolation_log_changes(r);
	router_blocks_compare(r);
}

/* ---- membership ---- */

static void on_node(void *user, const Cognitora__V1__Node *node)
{
	struct router *r = user;
	struct cluster_orders o;
	struct cgn_err err;
	CGN_LIVE(r, ROUTER_TAG);
	const struct cluster_node *known = cluster_find(r->members.cluster, node->id);
	if (known != NULL && known->door != NULL) {
		cgn_log_limited(ERROR, "router.node_refused", F_STR("node", node->id),
			F_STR("why", "an engine without an agent has the id (engine_nodes)"));
		return;
	}
	if (cgn_ok(cluster_node_seen(r->members.cluster, node,
		    state_watch_cordoned(r->members.state, node->id), &o, &err)))
		router_orders_apply(r, &o);
	else
		cgn_log_limited(ERROR, "router.node_refused", F_STR("node", node->id), F_STR("why", err.msg));
}

void router_node_gone(struct router *r, const char *id)
{
	struct cluster_orders o;
	const struct cluster_node *n = cluster_find(r->members.cluster, id);
	if (n == NULL)
		return;
	cgn_log_limited(INFO, "router.node_gone", F_STR("node", n->info->id));
	telemetry_forget(r->shared.telemetry, "node", n->info->id);
	if (cluster_node_gone(r->members.cluster, n->member_id, &o))
		router_orders_apply(r, &o);
}

static void on_gone(void *user, const char *id)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	const struct cluster_node *n = cluster_find(r->members.cluster, id);
	if (n != NULL && n->door == NULL)
		router_node_gone(r, id);
}

static void on_cordon(void *user, const char *id, bool cordoned)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	struct cluster_node *n = cluster_find(r->members.cluster, id);
	(void)cordoned;
	if (n != NULL)
		cordon_refresh(r, n);
}

static void on_connected(void *user, bool connected, const char *why)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	r->members.connected = connected;
	r->members.lost = !connected;
	router_heard_update(r);
	if (!connected)
		cgn_log(WARN, "router.state_away", F_STR("why", why),
			F_STR("then", "the last known membership stays"));
}

void router_heard_update(struct router *r)
{
	r->members.cluster->heard =
		r->members.knowledge == STATE_HEARD && engine_nodes_are_heard(r->members.engine_nodes);
	r->members.cluster->away = r->members.lost || engine_nodes_are_away(r->members.engine_nodes);
	cgn_loop_defer(r->loop, &r->published.hook);
}

static void on_knowledge(void *user, enum state_knowledge knowledge)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	r->members.knowledge = knowledge;
	router_heard_update(r);
}

static void on_policy(void *user, struct cgn_str text, const char *where)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	router_policy_update(r, text, where);
}

static void on_models(void *user, struct cgn_str text, const char *where)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	router_wanted_update(r, text, where);
}

static void on_invites(void *user, struct cgn_str text, const char *where)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	(void)where;
	r->invites.n = 0;
	cgn_buf_str(&r->invites, text);
}

static bool on_answers(void *user, const char *id)
{
	struct router *r = user;
	CGN_LIVE(r, ROUTER_TAG);
	const struct cluster_node *n = cluster_find(r->members.cluster, id);
	return n != NULL && n->heard;
}

const struct state_watch_ops router_state_ops = {
	.on_node = on_node,
	.on_gone = on_gone,
	.on_cordon = on_cordon,
	.on_connected = on_connected,
	.on_knowledge = on_knowledge,
	.on_policy = on_policy,
	.on_models = on_models,
	.on_invites = on_invites,
	.answers = on_answers,
};

/* ---- rules ---- */

static void tokenizers_refused(void *user, const char *model, bool has_old, const struct cgn_err *why)
{
	struct router *r = user;
	svc_reload_refused(r->svc, why->msg);
	cgn_log(ERROR, "router.tokenizer_refused", F_STR("model", model), F_STR("why", why->msg),
		F_STR("then", has_old ? "the old one stays" : "it has none"));
}

CGN_RC router_rules_load(struct router *r, struct cgn_err *err)
{
	struct gw_rules *rules = NULL;
	if (router_wants_keys(r->cfg) && r->keys.set == NULL)
		return CGN_FAIL(err, UNAVAILABLE, "auth.enabled is true, but no keys are loaded yet");
	CGN_TRY(gw_extra_routes_check(r->cfg, err));
	CGN_TRY(gw_rules_new(r->cfg, router_wants_keys(r->cfg) ? r->keys.set : NULL, &r->isolation.secret,
		&rules, err));
	gw_rules_take_tokens(rules, svc_oidc(r->svc));
	gw_rules_take_machine(rules, r->machine);
	route_document_apply(&r->policy.document, &rules->route);
	cgn_rc rc = gw_rules_load_tokenizers(rules, r->cfg, r->published.rules, r->published.rules != NULL,
		tokenizers_refused, r, err);
	/* The workers are opened with the first rules, and with the view that is made for them. */
	struct cluster_view *view = NULL;
	if (cgn_ok(rc) && r->published.view != NULL)
		rc = view_make(r, rules, &view, err);
	if (!cgn_ok(rc)) {
		gw_rules_unref(&rules);
		return rc;
	}
	router_shadows_follow(r, rules);
	if (view != NULL)
		view_distribute(r, view, rules);
	CGN_ON_EXIT(gw_rules_unref) struct gw_rules *before = r->published.rules;
	r->published.rules = rules;
	router_budgets_changed(r, before);
	gw_admission_tune(r->shared.admission, r->published.rules);
	router_models_log_changes(r);
	router_isolation_log_changes(r);
	router_blocks_compare(r);
	return CGN_OK;
}

void router_rules_refresh(struct router *r)
{
	struct cgn_err err;
	if (cgn_ok(router_rules_load(r, &err)))
		return;
	cgn_log(ERROR, "router.rules_refused", F_STR("why", err.msg), F_STR("then", "the old rules stay"));
	svc_reload_refused(r->svc, err.msg);
}

static void certificates_refused(struct router *r, const char *what, const struct cgn_err *why)
{
	cgn_log(ERROR, "router.certificates_refused", F_STR("of", what), F_STR("why", why->msg),
		F_STR("then", "the old ones stay"));
	svc_reload_refused(r->svc, why->msg);
}

static void tls_reload(struct router *r, const char *what, struct tls_ctx *c)
{
	struct cgn_err err;
	if (c != NULL && !cgn_ok(tls_ctx_reload(c, &err)))
		certificates_refused(r, what, &err);
}

static void peers_reload(struct router *r)
{
	struct gw_peers *peers = r->shared.peers;
	for (size_t i = 0; peers != NULL && i < peers->n; i++) {
		tls_reload(r, "calls to a peer", peers->v[i].tls);
		tls_reload(r, "the port of a peer", peers->v[i].gate);
	}
}

void router_reload(void *state, const struct config *cfg)
{
	struct router *r = state;
	struct cgn_err err;
	CGN_LIVE(r, ROUTER_TAG);
	if (r->cfg->auth.enabled)
		router_gateway_warn(cfg);
	r->cfg = cfg;
	router_access_reload(r);    /* Before the rules that send lines there. */
	router_isolation_reload(r); /* Before the rules that use the secret. */
	router_keys_reload(r);
	tls_reload(r, "the gateway", r->ports.http_tls);
	tls_reload(r, "the gRPC port", r->ports.grpc_tls);
	tls_reload(r, "the port where machines join", r->ports.join_tls);
	peers_reload(r);
	tls_reload(r, "Redis", r->store.tls);
	tls_reload(r, "calls to agents", r->shared.agent_tls);
	if (!cgn_ok(state_watch_reload_tls(r->members.state, &err)))
		certificates_refused(r, "etcd", &err);
	if (!cgn_ok(engine_nodes_reload_tls(r->members.engine_nodes, &err)))
		certificates_refused(r, "the Kubernetes API", &err);
}

/* ---- once a second ---- */

cgn_nsec router_load_age(const struct router *r, const struct cluster_node *n)
{
	return n->load_at > 0 ? cgn_since(cgn_loop_now(r->loop), n->load_at) : 0;
}

static void load_report(const struct router *r, const struct cluster_node *n)
{
	const struct node_stats *stats = &r->members.cluster->stats[n->slot];
	const char *id = n->info->id;
	metric_set(METRIC_OF(r->shared.telemetry, INFLIGHT, id),
		cluster_inflight(r->members.cluster, n->slot));
	metric_set(METRIC_OF(r->shared.telemetry, OTHERS_INFLIGHT, id),
		atomic_load_explicit(&stats->others, memory_order_relaxed));
	metric_set(METRIC_OF(r->shared.telemetry, LOAD_AGE, id),
		(double)router_load_age(r, n) / (double)CGN_SEC);
}

/* Restart the watch of a node that keeps its connection but reports nothing: its agent is stopped or out of
 * CPU. */
static void silent_check(struct router *r, struct cluster_node *n)
{
	struct cluster_orders o;
	cluster_watch_quiet(r->members.cluster, n, TICK, &o);
	if (o.watch != WATCH_AGAIN)
		return;
	cgn_log_limited(WARN, "router.agent_silent", F_STR("node", n->info->id),
		F_DUR("load_age", router_load_age(r, n)),
		F_STR("then", "its load is unknown: it gets nothing until it answers a new watch"));
	/* Give up the requests that it relays, unless they still bring data. */
	pulse_lose_agent(&r->members.cluster->stats[n->slot].pulse, cgn_loop_now(r->loop));
	router_breaker_step(r, n, BREAKER_TRIP, BREAKER_FOR_SILENT);
	router_orders_apply(r, &o);
}

static void breaker_report(struct router *r, const struct cluster_node *n)
{
	struct node_stats *stats = &r->members.cluster->stats[n->slot];
	pulse_fade(&stats->pulse);
	gw_breaker_show(r->shared.telemetry, n->info->id,
		atomic_load_explicit(&stats->breaker, memory_order_relaxed), cgn_loop_now(r->loop));
}

static void limits_report(struct router *r)
{
	uint64_t forgotten = rate_table_forgotten(r->shared.limits);
	metric_add(METRIC_ONE(r->shared.telemetry, RATE_LIMIT_FORGOTTEN), forgotten - r->reported.forgotten);
	r->reported.forgotten = forgotten;
}

static void on_tick(struct cgn_timer *t)
{
	struct router *r = CGN_CONTAINER(t, struct router, tick);
	uint64_t connections = 0;
	(void)router_keys_refresh(r, false);
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (r->members.cluster->by_slot[i] != NULL) {
			load_report(r, r->members.cluster->by_slot[i]);
			capacity_set(r, r->members.cluster->by_slot[i]);
			silent_check(r, r->members.cluster->by_slot[i]);
			breaker_report(r, r->members.cluster->by_slot[i]);
		}
	router_outliers_check(r);
	if (unlikely_way(UNLIKELY_view_again))
		cgn_loop_defer(r->loop, &r->published.hook);
	for (size_t i = 0; i < r->n_workers; i++)
		connections += atomic_load_explicit(&r->workers[i]->connections, memory_order_relaxed);
	metric_set(METRIC_OF(r->shared.telemetry, CONNECTIONS, "http"), (double)connections);
	router_residency_metrics(r);
	limits_report(r);
	router_budgets_report(r);
	gw_calibrations_follow(r->shared.calibrations, r->published.view, &r->published.rules->cascade);
	router_traffic_note(r);
	router_shadows_note(r);
	router_access_report(r);
	router_energy_follow(r, cgn_loop_now(r->loop));
	router_parking_follow(r, cgn_loop_now(r->loop));
	cgn_timer_set(t, TICK);
}

void router_control_open(struct router *r)
{
	cgn_hook_init(&r->published.hook, view_publish);
	cgn_timer_init(&r->tick, r->loop, on_tick);
	cgn_timer_set(&r->tick, TICK);
	router_residency_init(r);
	router_direct_init(r);
}

void router_control_close(struct router *r)
{
	cgn_timer_cancel(&r->tick);
	cgn_timer_cancel(&r->sweep);
	cgn_timer_cancel(&r->direct_timer);
	cgn_hook_drop(&r->published.hook);
}
