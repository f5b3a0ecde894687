/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/peer/bid.h"

#include "policy/who/budget/budget.h"

#define VALID_LEAST     (5 * CGN_SEC)
#define VALID_INTERVALS 5

const char *peer_bid_text(enum peer_bid_source source)
{
	static const char *const texts[PEER_BID_SOURCES] = {"measured", "summary", "stale", "demoted",
		"full"};
	return texts[source];
}

uint64_t peer_prompt_tokens(const struct peer_prompt *p, size_t held)
{
	if (p->block_tokens > 0)
		return (uint64_t)held * p->block_tokens;
	return p->blocks > 0 ? p->tokens * held / p->blocks : 0;
}

/* Is there no place for another request, as far as the summary tells, with those that went there since? */
static bool side_is_full(const struct peer_side *s)
{
	uint32_t since = s->open > s->open_then ? s->open - s->open_then : 0;
	return s->load->nodes == 0 || s->load->waiting > 0 || s->load->room <= since;
}

/* Take the costs that the summary tells. */
static void cost_take(const struct peer_load *l, const struct peer_prompt *p, struct peer_bid *bid)
{
	const uint64_t cached = bid->forecast.cached < p->tokens ? bid->forecast.cached : p->tokens;
	if (!bid->cost.priced && (l->input > 0 || l->output > 0)) {
		bid->cost.priced = true;
		bid->cost.price =
			((double)l->input * (double)p->tokens + (double)l->output * (double)p->answer) /
			(double)BUDGET_PRICE_SCALE;
	}
	bid->cost.powered = l->prefill_uj > 0;
	bid->cost.joules = (double)l->prefill_uj * (double)(p->tokens - cached) / 1e6;
}

static void bid_by_summary(const struct peer_side *s, const struct peer_prompt *p, struct peer_bid *bid)
{
	if (s->load == NULL)
		return;
	size_t held = peer_set_match(s->set, s->shift, p->chain, p->blocks);
	bid->forecast = peer_foresee(s->load, &s->trust, s->way, p->tokens, peer_prompt_tokens(p, held));
	bid->forecast.held = (uint32_t)held;
	cost_take(s->load, p, bid);
	if (side_is_full(s))
		bid->source = PEER_BID_FULL;
	else if (bid->forecast.known) {
		bid->source = PEER_BID_SUMMARY;
		bid->ttft = bid->forecast.ttft;
	}
}

struct peer_bid peer_bid_of(const struct peer_side *side, const struct peer_prompt *prompt, cgn_nsec now)
{
	struct peer_bid bid = {.ttft = side->measured,
		.paid = side->paid,
		.cost = {.priced = side->paid > 0, .price = side->paid}};
	if (peer_is_demoted(&side->trust, now))
		bid.source = PEER_BID_DEMOTED;
	else if (side->told && side->valid_to <= now)
		bid.source = PEER_BID_STALE;
	else if (side->told)
		bid_by_summary(side, prompt, &bid);
	return bid;
}

enum peer_door peer_bid_door(const struct peer_bid *bid, const struct peer_stay *stay,
	const struct peer_rules *rules, uint32_t open, uint32_t most)
{
	const struct peer_there there = {.ttft = bid->ttft,
		.known = bid->source == PEER_BID_SUMMARY,
		.paid = bid->paid > 0,
		.prefill = bid->forecast.prefill,
		.cost = bid->cost};
	if (!peer_worth(stay, &there, rules))
		return PEER_DOOR_LATE;
	if (bid->source == PEER_BID_FULL)
		return PEER_DOOR_FULL;
	return open < most ? PEER_DOOR_OPEN : PEER_DOOR_BUSY;
}

bool peer_bid_beats(const struct peer_bid *a, const struct peer_bid *b, const struct peer_rules *rules,
	const struct peer_cost *here)
{
	const bool a_lies = a->source == PEER_BID_DEMOTED, b_lies = b->source == PEER_BID_DEMOTED;
	if (a_lies != b_lies)
		return b_lies;
	if (!(rules->price > 0) && (a->paid < b->paid || b->paid < a->paid))
		return a->paid < b->paid;
	return (double)a->ttft + peer_toll(rules, &a->cost, here) <
		(double)b->ttft + peer_toll(rules, &b->cost, here);
}

cgn_nsec peer_valid_span(cgn_nsec interval)
{
	return VALID_INTERVALS * interval > VALID_LEAST ? VALID_INTERVALS * interval : VALID_LEAST;
}
