/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the document of the peers that requests leave for, for operators. */
#include "router/control/control/peers.h"

#include "router/shared/peers/peers.h"

#include "router/control/control/router.h"
#include "router/request/limit/budgets.h"
#include "router/shared/peers/summaries.h"

static uint64_t spent_today(const struct gw_peer *p, struct gw_budgets *budgets)
{
	struct budget_account a;
	return gw_budgets_get(budgets, p->account, &a) ? a.spells[BUDGET_DAY][0].spent.v[BUDGET_MONEY] : 0;
}

static double money_of(uint64_t amount)
{
	return (double)amount / (double)BUDGET_MONEY_SCALE;
}

static void model_fill(const struct gw_known_model *m, struct pb_tree *t, Cognitora__V1__PeerModel *to)
{
	const struct peer_load *l = &m->load;
	to->model = pb_tree_text(t, l->name);
	to->nodes = l->nodes;
	to->inflight = l->inflight;
	to->room = l->room;
	to->waiting = l->waiting;
	to->wait_ms = (double)l->wait_us / 1e3;
	to->prefill_ms_per_token = (double)l->prefill_ns / 1e6;
	to->input = (double)l->input / 1e6;
	to->output = (double)l->output / 1e6;
	to->joules_per_token = (double)l->prefill_uj / 1e6;
}

static void trust_fill(const struct gw_peer *p, cgn_nsec now, Cognitora__V1__PeerTrust *to)
{
	const struct peer_trust trust = gw_summaries_trust(p->summaries);
	to->trust = peer_trust_share(&trust, now);
	to->demoted_for_s = trust.until > now ? (double)(trust.until - now) / (double)CGN_SEC : 0;
	to->good = trust.good;
	to->bad = trust.bad;
	to->late_ms = trust.late_ms;
}

static void summary_fill(const struct gw_known *k, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__PeerSummary *to)
{
	to->generation = k->generation;
	to->blocks = k->set->n;
	to->sampled_1_in = UINT64_C(1) << k->shift;
	to->summary_bytes = k->bytes;
	to->summary_whole = k->whole;
	to->summary_age_s = (double)cgn_since(now, k->at) / (double)CGN_SEC;
	for (size_t i = 0; i < k->n_models; i++)
		model_fill(&k->models[i], t, PB_ADD(t, to, models, peer_model));
}

/* Fill in the summary of a peer, and how far it is trusted. */
static void known_fill(const struct gw_peer *p, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__PeerStatus *to)
{
	CGN_ON_EXIT(gw_known_unref) struct gw_known *k = gw_summaries_known(p->summaries);
	to->trust = PB_NEW(t, peer_trust);
	trust_fill(p, now, to->trust);
	to->summary = k != NULL ? PB_NEW(t, peer_summary) : NULL;
	if (k != NULL)
		summary_fill(k, now, t, to->summary);
}

static const char *state_text(const struct router *r, const struct gw_peer *p, bool exhausted, cgn_nsec now)
{
	uint64_t breaker =
		atomic_load_explicit(&r->shared.choice.stats[p->slot].breaker, memory_order_relaxed);
	return p->url == NULL                                                      ? "only sends"
		: atomic_load_explicit(&p->lost, memory_order_relaxed)             ? "lost"
		: breaker_state(breaker, now) == BREAKER_OPEN                      ? "failed"
		: atomic_load_explicit(&p->rest_until, memory_order_relaxed) > now ? "resting"
		: exhausted                                                        ? "budget exhausted"
										   : "ready";
}

static void peer_fill(const struct router *r, const struct gw_peer *p, struct pb_tree *t,
	Cognitora__V1__PeerStatus *to)
{
	const cgn_nsec now = cgn_loop_now(r->loop);
	uint64_t spent = spent_today(p, r->shared.budgets),
		 limit = p->budgets.n > 0 ? p->budgets.v[0].limit : 0;
	cgn_nsec ttft = atomic_load_explicit(&p->ttft, memory_order_relaxed);
	to->peer = pb_text(p->name);
	to->kind = pb_text(config_enum_text(p->kind));
	to->url = pb_text(p->url != NULL ? p->url : "");
	to->state = pb_text(state_text(r, p, limit > 0 && spent >= limit, now));
	to->open = atomic_load_explicit(&p->open, memory_order_relaxed);
	to->ttft_ms = (double)(ttft > 0 ? ttft : p->expected_ttft) / (double)CGN_MSEC;
	to->measured = ttft > 0;
	to->rtt_ms = (double)atomic_load_explicit(&p->rtt, memory_order_relaxed) / (double)CGN_MSEC;
	to->spent_today = money_of(spent);
	to->daily_budget = money_of(limit);
	to->left_today = money_of(limit > spent ? limit - spent : 0);
	if (p->summaries != NULL && p->url != NULL)
		known_fill(p, now, t, to);
}

void router_peers_fill(struct router *r, struct pb_tree *t, Cognitora__V1__PeersResponse *to)
{
	const struct gw_peers *peers = r->shared.peers;
	to->currency = pb_text(r->cfg->router.currency);
	for (size_t i = 0; peers != NULL && i < peers->n; i++)
		peer_fill(r, &peers->v[i], t, PB_ADD(t, to, peers, peer_status));
}

static void summary_report(const struct router *r, const struct gw_peer *p)
{
	CGN_ON_EXIT(gw_known_unref) struct gw_known *k = gw_summaries_known(p->summaries);
	const struct peer_trust trust = gw_summaries_trust(p->summaries);
	const cgn_nsec now = cgn_loop_now(r->loop);
	struct telemetry *t = r->shared.telemetry;
	metric_set(METRIC_OF(t, FED_TRUST, p->name), peer_trust_share(&trust, now));
	metric_set(METRIC_OF(t, FED_BLOCKS, p->name), k != NULL ? k->set->n : 0);
	metric_set(METRIC_OF(t, FED_AGE, p->name),
		k != NULL ? (double)cgn_since(now, k->at) / (double)CGN_SEC : -1);
}

void router_peers_report(const struct router *r)
{
	const struct gw_peers *peers = r->shared.peers;
	struct telemetry *t = r->shared.telemetry;
	for (size_t i = 0; peers != NULL && i < peers->n; i++) {
		const struct gw_peer *p = &peers->v[i];
		cgn_nsec ttft = atomic_load_explicit(&p->ttft, memory_order_relaxed);
		metric_set(METRIC_OF(t, AWAY_OPEN, p->name),
			atomic_load_explicit(&p->open, memory_order_relaxed));
		metric_set(METRIC_OF(t, AWAY_TTFT, p->name),
			(double)(ttft > 0 ? ttft : p->expected_ttft) / (double)CGN_SEC);
		if (p->summaries != NULL && p->url != NULL)
			summary_report(r, p);
		if (p->budgets.n > 0)
			metric_set(METRIC_OF(t, AWAY_BUDGET, p->name),
				(double)spent_today(p, r->shared.budgets) / (double)p->budgets.v[0].limit);
	}
}
