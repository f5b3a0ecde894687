/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/bid/bid.h"

#include "base/log/log.h"
#include "router/metrics.h"
#include "router/shared/peers/peers.h"
#include "router/shared/peers/summaries.h"

static cgn_nsec ttft_measured(const struct gw_peer *p)
{
	cgn_nsec measured = atomic_load_explicit(&p->ttft, memory_order_relaxed);
	return measured > 0 ? measured : p->expected_ttft;
}

static uint64_t prompt_tokens(const struct gw_req *r)
{
	return r->prompt.tokens > 0 ? r->prompt.tokens : r->plan.prompt_tokens;
}

static struct peer_prompt prompt_of(const struct gw_req *r)
{
	return (struct peer_prompt){.chain = r->prompt.chain.short_digests,
		.blocks = r->prompt.chain.n,
		.tokens = prompt_tokens(r),
		.block_tokens = r->prompt.block_tokens};
}

struct gw_bid gw_bid_of(const struct gw_req *r, struct gw_peer *peer, struct gw_peer_model *model,
	uint64_t answer)
{
	struct gw_bid bid = {.peer = peer, .model = model};
	struct peer_side side = {.measured = ttft_measured(peer),
		.paid = (double)gw_peer_price(peer, r->plan.prompt_tokens, answer) /
			(double)BUDGET_MONEY_SCALE};
	struct peer_prompt prompt = prompt_of(r);
	prompt.answer = answer;
	CGN_ON_EXIT(gw_known_unref) struct gw_known *k = NULL;
	if (peer->summaries != NULL) {
		side.trust = gw_summaries_trust(peer->summaries);
		k = gw_summaries_known(peer->summaries);
	}
	const struct gw_known_model *m = k != NULL ? gw_known_model(k, model->theirs) : NULL;
	if (k != NULL) {
		side.told = true;
		side.valid_to = k->valid_to;
		side.set = k->set;
		side.shift = k->shift;
		side.way = atomic_load_explicit(&peer->rtt, memory_order_relaxed);
	}
	if (m != NULL) {
		side.load = &m->load;
		side.open = atomic_load_explicit(&model->open, memory_order_relaxed);
		side.open_then = m->open;
	}
	bid.told = peer_bid_of(&side, &prompt, cgn_loop_now(r->w->loop));
	return bid;
}

/* ---- the audit ---- */

static bool cache_hit_read(struct cgn_str text, uint64_t *held)
{
	return cgn_str_u64(cgn_str_split(&text, '/'), held);
}

void gw_bid_begun(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	const struct peer_prompt prompt = prompt_of(r);
	struct peer_shown *shown = &r->plan.away.shown;
	uint64_t held;
	for (size_t i = 0; i < a->n_headers; i++)
		if (cgn_str_eq_nocase(a->headers[i].name, CGN_STR("x-cgn-cache-hit")) &&
			cache_hit_read(a->headers[i].value, &held) && held <= r->prompt.chain.n) {
			shown->counted = true;
			shown->cached = peer_prompt_tokens(&prompt, held);
		}
	if (a->events)
		shown->ttft = cgn_since(cgn_loop_now(r->w->loop), a->sent_at);
}

void gw_bid_settle(struct gw_req *r)
{
	const struct gw_away *away = &r->plan.away;
	struct peer_shown shown = away->shown;
	const struct peer_forecast *f = &away->forecast;
	const struct usage *u = &r->answer.usage;
	struct telemetry *t = r->w->shared->telemetry;
	if (!f->known || away->peer->summaries == NULL)
		return;
	shown.tokens = u->has_prompt ? u->prompt_tokens : f->tokens;
	if (u->has_cached) { /* The engine counted; its router only expected. */
		shown.counted = true;
		shown.cached = u->cached_tokens;
	}
	const struct peer_trust before = gw_summaries_trust(away->peer->summaries);
	bool demoted = gw_summaries_learn(away->peer->summaries, f, &shown, cgn_loop_now(r->w->loop));
	const struct peer_trust now = gw_summaries_trust(away->peer->summaries);
	metric_add(METRIC_OF(t, FED_PREDICTIONS, away->peer->name, now.bad > before.bad ? "bad" : "good"), 1);
	if (shown.counted) {
		metric_add(METRIC_OF(t, FED_CACHED, away->peer->name, "predicted"), f->cached);
		metric_add(METRIC_OF(t, FED_CACHED, away->peer->name, "actual"), shown.cached);
	}
	if (!demoted)
		return;
	metric_add(METRIC_OF(t, FED_DEMOTIONS, away->peer->name), 1);
	cgn_log(WARN, "router.peer_demoted", F_STR("peer", away->peer->name), F_STRN("id", r->client.id),
		F_U64("cached_predicted", f->cached), F_U64("cached", shown.cached),
		F_DUR("ttft_predicted", f->ttft), F_DUR("ttft", shown.ttft),
		F_DUR("pause", now.until - cgn_loop_now(r->w->loop)),
		F_STR("then",
			"its summary does not count meanwhile: it is judged by its measured time to first token"));
}
