/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the document of the peers that requests leave for, for operators. */
#include "router/control/control/peers.h"

#include "router/shared/peers/peers.h"

#include "router/control/control/router.h"
#include "router/request/limit/budgets.h"
#include "router/shared/peers/remote.h"

static uint64_t spent_today(const struct gw_peer *p, struct gw_budgets *budgets)
{
	struct budget_account a;
	return gw_budgets_get(budgets, p->account, &a) ? a.spells[BUDGET_DAY][0].spent.v[BUDGET_MONEY] : 0;
}

static double money_of(uint64_t amount)
{
	return (double)amount / (double)BUDGET_MONEY_SCALE;
}

static void model_put(const struct gw_known_model *m, struct json_out *j)
{
	const struct remote_load *l = &m->load;
	json_open(j, '{');
	json_key_str(j, "model", l->name);
	json_key_u64(j, "nodes", l->nodes);
	json_key_u64(j, "inflight", l->inflight);
	json_key_u64(j, "room", l->room);
	json_key_u64(j, "waiting", l->waiting);
	json_key_f64(j, "wait_ms", (double)l->wait_us / 1e3);
	json_key_f64(j, "prefill_ms_per_token", (double)l->prefill_ns / 1e6);
	json_key_f64(j, "input", (double)l->input / 1e6);
	json_key_f64(j, "output", (double)l->output / 1e6);
	json_key_f64(j, "joules_per_token", (double)l->prefill_uj / 1e6);
	json_close(j, '}');
}

/* Show the peer's summary. */
static void summary_put(const struct gw_peer *p, cgn_nsec now, struct json_out *j)
{
	CGN_ON_EXIT(gw_known_unref) struct gw_known *k = gw_remote_known(p->remote);
	const struct remote_trust trust = gw_remote_trust(p->remote);
	json_key_f64(j, "trust", remote_trust_share(&trust, now));
	json_key_f64(j, "demoted_for_s",
		trust.until > now ? (double)(trust.until - now) / (double)CGN_SEC : 0);
	json_key_u64(j, "good", trust.good);
	json_key_u64(j, "bad", trust.bad);
	json_key_f64(j, "late_ms", trust.late_ms);
	if (k == NULL)
		return;
	json_key_u64(j, "generation", k->generation);
	json_key_u64(j, "blocks", k->set->n);
	json_key_u64(j, "sampled_1_in", UINT64_C(1) << k->shift);
	json_key_u64(j, "summary_bytes", k->bytes);
	json_key_bool(j, "summary_whole", k->whole);
	json_key_f64(j, "summary_age_s", (double)cgn_since(now, k->at) / (double)CGN_SEC);
	json_key_open(j, "models", '[');
	for (size_t i = 0; i < k->n_models; i++)
		model_put(&k->models[i], j);
	json_close(j, ']');
}

static void peer_put(const struct router *r, const struct gw_peer *p, struct json_out *j)
{
	const cgn_nsec now = cgn_loop_now(r->loop);
	uint64_t spent = spent_today(p, r->shared.budgets),
		 limit = p->budgets.n > 0 ? p->budgets.v[0].limit : 0;
	cgn_nsec ttft = atomic_load_explicit(&p->ttft, memory_order_relaxed);
	uint64_t breaker =
		atomic_load_explicit(&r->shared.choice.stats[p->slot].breaker, memory_order_relaxed);
	cgn_nsec rest = atomic_load_explicit(&p->rest_until, memory_order_relaxed);
	json_open(j, '{');
	json_key_z(j, "peer", p->name);
	json_key_z(j, "kind", config_enum_text(p->kind));
	json_key_z(j, "url", p->url != NULL ? p->url : "");
	json_key_z(j, "state",
		p->url == NULL                                                 ? "only sends"
			: atomic_load_explicit(&p->lost, memory_order_relaxed) ? "lost"
			: breaker_state(breaker, now) == BREAKER_OPEN          ? "failed"
			: rest > now                                           ? "resting"
			: limit > 0 && spent >= limit                          ? "budget exhausted"
									       : "ready");
	json_key_u64(j, "open", atomic_load_explicit(&p->open, memory_order_relaxed));
	json_key_f64(j, "ttft_ms", (double)(ttft > 0 ? ttft : p->expected_ttft) / (double)CGN_MSEC);
	json_key_bool(j, "measured", ttft > 0);
	json_key_f64(j, "rtt_ms",
		(double)atomic_load_explicit(&p->rtt, memory_order_relaxed) / (double)CGN_MSEC);
	json_key_f64(j, "spent_today", money_of(spent));
	json_key_f64(j, "daily_budget", money_of(limit));
	json_key_f64(j, "left_today", money_of(limit > spent ? limit - spent : 0));
	if (p->remote != NULL && p->url != NULL)
		summary_put(p, now, j);
	json_close(j, '}');
}

void router_peers_json(const struct router *r, struct json_out *j)
{
	const struct gw_peers *peers = r->shared.peers;
	json_open(j, '{');
	json_key_z(j, "currency", r->cfg->router.currency);
	json_key_open(j, "peers", '[');
	for (size_t i = 0; peers != NULL && i < peers->n; i++)
		peer_put(r, &peers->v[i], j);
	json_close(j, ']');
	json_close(j, '}');
}

static void summary_report(const struct router *r, const struct gw_peer *p)
{
	CGN_ON_EXIT(gw_known_unref) struct gw_known *k = gw_remote_known(p->remote);
	const struct remote_trust trust = gw_remote_trust(p->remote);
	const cgn_nsec now = cgn_loop_now(r->loop);
	struct telemetry *t = r->shared.telemetry;
	metric_set(METRIC_OF(t, FED_TRUST, p->name), remote_trust_share(&trust, now));
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
		if (p->remote != NULL && p->url != NULL)
			summary_report(r, p);
		if (p->budgets.n > 0)
			metric_set(METRIC_OF(t, AWAY_BUDGET, p->name),
				(double)spent_today(p, r->shared.budgets) / (double)p->budgets.v[0].limit);
	}
}
