/* SPDX-License-Identifier: Apache-2.0 */
/* status: the router, its nodes and its models, as Control.Status, /nodes and /models tell them. */
#include "router/control/control/enginenodes.h"
#include "router/control/control/isolation.h"
#include "router/control/control/models.h"
#include "router/control/control/policy.h"
#include "router/control/control/watch.h"
#include "router/control/service/documents.h"
#include "router/request/admission/admission.h"
#include "router/shared/rules/tokenizer_set.h"

/* ---- a node ---- */

static void cache_fill(const struct router *r, const struct cluster_node *n, struct pb_tree *t,
	Cognitora__V1__NodeStatus *to)
{
	Cognitora__V1__NodeCache *k = PB_NEW(t, node_cache);
	uint64_t *tiers = pb_tree_array(t, BLOCK_TIERS, sizeof *tiers);
	to->cache = k;
	if (tiers == NULL)
		return;
	router_cache_fill(r, n, t, k);
	const uint64_t held[BLOCK_TIERS] = {[BLOCK_GPU] = k->gpu,
		[BLOCK_RAM] = k->ram,
		[BLOCK_SSD] = k->ssd,
		[BLOCK_REMOTE] = k->remote};
	memcpy(tiers, held, sizeof held);
	to->source = k->source;
	to->stale_ms = (uint64_t)(k->staleness_seconds * 1e3 + 0.5);
	to->trust = (float)k->trust;
	to->n_tier_blocks = BLOCK_TIERS;
	to->tier_blocks = tiers;
}

static void breaker_fill(const struct router *r, const struct cluster_node *n, struct pb_tree *t,
	Cognitora__V1__NodeStatus *to)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	cgn_nsec now = cgn_loop_now(r->loop);
	uint64_t word =
		atomic_load_explicit(&r->members.cluster->stats[n->slot].breaker, memory_order_relaxed);
	Cognitora__V1__NodeBreaker *b = PB_NEW(t, node_breaker);
	breaker_text(word, now, &text);
	b->state = pb_text(breaker_state_text(breaker_state(word, now)));
	b->why = pb_text(breaker_reason_label(breaker_why(word)));
	b->left_ms = breaker_left(word, now) / CGN_MSEC;
	b->text = pb_tree_text(t, cgn_buf_view(&text));
	to->circuit = b;
}

/* Fill in the node's measured and learned power. */
static void watts_fill(const struct router *r, const struct cluster_node *n, struct pb_tree *t,
	Cognitora__V1__NodeStatus *to)
{
	struct energy_curve c;
	const struct energy_board *board = r->shared.choice.energy;
	double measured = energy_board_node_watts(board, n->slot, cgn_loop_now(r->loop));
	to->node_watts = measured > 0 ? measured : 0;
	unsigned flags = energy_board_get(board, n->slot, &c);
	if (!energy_known(&c))
		return;
	Cognitora__V1__NodeWatts *w = PB_NEW(t, node_watts);
	double *decode = pb_tree_array(t, ENERGY_KNOTS, sizeof *decode);
	if (decode == NULL)
		return;
	w->idle = (double)c.decode[0];
	for (w->decode = decode; w->n_decode + 1 < ENERGY_KNOTS; w->n_decode++)
		decode[w->n_decode] = (double)c.decode[w->n_decode + 1];
	w->prefill = (double)c.prefill;
	w->hot = (flags & ENERGY_HOT) != 0;
	to->watts = w;
}

static void others_fill(const struct node_stats *stats, struct pb_tree *t, Cognitora__V1__NodeStatus *to)
{
	to->others = PB_NEW(t, others_load);
	to->others->inflight = atomic_load_explicit(&stats->others, memory_order_relaxed);
	to->others->queued_tokens = atomic_load_explicit(&stats->others_tokens, memory_order_relaxed);
	to->others->decoding = atomic_load_explicit(&stats->others_decoding, memory_order_relaxed);
}

static char *reason_text(const struct router *r, const struct cluster_node *n, struct pb_tree *t)
{
	char reason[ROUTER_REASON_BYTES];
	router_watch_reason(r, n, reason, sizeof reason);
	return pb_tree_text(t, cgn_str_of(reason));
}

static void node_fill(struct router *r, const struct cluster_node *n, struct pb_tree *t,
	Cognitora__V1__NodeStatus *to)
{
	to->node = n->info;
	to->origin = pb_text(router_watch_origin(r, n));
	to->load = (Cognitora__V1__Load *)(uintptr_t)&n->load; /* Only packed and printed. */
	to->state = pb_text(node_state_text(n->state));
	to->cordoned = n->cordoned;
	to->last_seen_ms = n->heard_at > 0 ? cgn_since(cgn_loop_now(r->loop), n->heard_at) / CGN_MSEC : 0;
	to->load_age_ms = router_load_age(r, n) / CGN_MSEC;
	cache_fill(r, n, t, to);
	breaker_fill(r, n, t, to);
	watts_fill(r, n, t, to);
	others_fill(&r->members.cluster->stats[n->slot], t, to);
#define COLUMN(...)
#define FIELD(field, header, number, wide, format, value) to->field = (value);
#include "policy/node/proto/node_columns.def"
#undef COLUMN
#undef FIELD
}

/* ---- a model ---- */

static void prompts_fill(const struct gw_tokenizer_set *k, struct pb_tree *t, Cognitora__V1__ModelStatus *to)
{
	to->prompts = PB_NEW(t, model_prompts);
	to->prompts->tokenizer = pb_tree_text(t, k->tokenizer_from);
	to->prompts->chat_template = pb_text(k->template_from != NULL ? k->template_from : "");
	to->prompts->content_format = pb_text(k->chat.format == PROMPT_PARTS ? "openai" : "string");
}

static void model_fill(struct router *r, struct cgn_str name, struct pb_tree *t,
	Cognitora__V1__ModelStatus *to)
{
	struct router_model m = router_model_of(r, name);
	to->name = pb_tree_text(t, name);
	to->tokens = pb_text(gw_tokens_text(m.mode));
	to->why = pb_text(m.why);
	to->block = m.mode == GW_BYTES ? m.block_bytes : m.block_tokens;
	to->cut_case = m.mode == GW_BYTES ? COGNITORA__V1__MODEL_STATUS__CUT_BLOCK_BYTES
					  : COGNITORA__V1__MODEL_STATUS__CUT_BLOCK_TOKENS;
	*(m.mode == GW_BYTES ? &to->block_bytes : &to->block_tokens) = to->block;
	to->ready_nodes = (uint32_t)m.n_ready;
	to->queued = (uint32_t)gw_admission_depth(r->shared.admission, name);
	if (m.tokenizers != NULL)
		prompts_fill(m.tokenizers, t, to);
}

struct model_listing {
	struct router *r;
	struct pb_tree *t;
	Cognitora__V1__ModelList *to;
};

static void listed_fill(void *user, struct cgn_str name)
{
	const struct model_listing *l = user;
	model_fill(l->r, name, l->t, PB_ADD(l->t, l->to, models, model_status));
}

bool router_fill_model_list(const struct document_query *q, Cognitora__V1__ModelList *to)
{
	router_models_each(q->r, listed_fill, &(struct model_listing){q->r, q->t, to});
	return true;
}

/* ---- the router ---- */

static void models_fill(struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *to)
{
	const struct cluster_view *v = r->published.view;
	size_t n = v != NULL ? v->n_models : 0;
	to->models = pb_tree_array(t, n + 1, sizeof *to->models);
	for (size_t i = 0; i < n && !t->bad; i++) {
		Cognitora__V1__ModelStatus *m = PB_ADD(t, to, model_status, model_status);
		model_fill(r, v->models[i].name, t, m);
		to->models[to->n_models++] = m->name;
	}
}

static void nodes_fill(struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *to)
{
	for (uint16_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *n = r->members.cluster->by_slot[i];
		if (n != NULL)
			node_fill(r, n, t, PB_ADD(t, to, nodes, node_status));
	}
}

/* Fill in the ports that are open to everybody, and the engines that do not keep tenants apart. */
static void warnings_fill(struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *to)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf open = {.limit = 1024}, leaky = {.limit = 1024};
	svc_open_ports(r->svc, &open);
	router_isolation_leaky(r, &leaky);
	to->insecure = pb_tree_text(t, cgn_str_of(cgn_buf_z(&open)));
	to->not_isolated = pb_tree_text(t, cgn_str_of(cgn_buf_z(&leaky)));
}

static void power_fill(struct router *r, struct pb_tree *t, Cognitora__V1__StatusResponse *to)
{
	double budget = r->cfg->router.energy.budget;
	cgn_nsec now = cgn_loop_now(r->loop);
	if (!(budget > 0) || r->cfg->router.energy.mode != ENERGY_MODE_ON)
		return;
	to->power = PB_NEW(t, power_status);
	to->power->budget_watts = budget;
	to->power->limit_watts = chooser_budget(budget);
	to->power->watts = chooser_watts(&r->shared.choice, now);
	to->power->least_watts = chooser_watts_least(&r->shared.choice, now);
	to->power->measured_watts = chooser_watts_measured(&r->shared.choice, now);
}

bool router_fill_status_response(const struct document_query *q, Cognitora__V1__StatusResponse *to)
{
	struct router *r = q->r;
	struct pb_tree *t = q->t;
	to->cluster = r->cluster_name;
	to->router_version = pb_text(CGN_VERSION);
	to->state_backend = pb_text(r->members.backend);
	to->state_connected = r->members.connected;
	to->state_stale = r->members.knowledge == STATE_STALE;
	to->uptime_ms = cgn_since(cgn_loop_now(r->loop), r->started) / CGN_MSEC;
	to->policy = PB_NEW(t, policy_status);
	router_policy_fill(r, to->policy);
	to->traffic = PB_NEW(t, traffic_status);
	router_traffic_fill(r, to->traffic);
	power_fill(r, t, to);
	warnings_fill(r, t, to);
	router_shadows_fill(r, t, to);
	router_pools_fill(r, t, to);
	nodes_fill(r, t, to);
	models_fill(r, t, to);
	return true;
}
