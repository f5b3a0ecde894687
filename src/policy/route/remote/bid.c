/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/remote/bid.h"

#include "policy/who/budget/budget.h"

#define VALID_LEAST     (5 * CGN_SEC)
#define VALID_INTERVALS 5

const char *remote_bid_text(enum remote_bid_source source)
{
	static const char *const texts[REMOTE_BID_SOURCES] = {"measured", "summary", "stale", "demoted",
		"full"};
	return texts[source];
}

uint64_t remote_prompt_tokens(const struct remote_prompt *p, size_t held)
{
	if (p->block_tokens > 0)
		return (uint64_t)held * p->block_tokens;
	return p->blocks > 0 ? p->tokens * held / p->blocks : 0;
}

/* Is there no place for another request, as far as the summary tells, with those that went there since? */
static bool side_is_full(const struct remote_side *s)
{
	uint32_t since = s->open > s->open_then ? s->open - s->open_then : 0;
	return s->load->nodes == 0 || s->load->waiting > 0 || s->load->room <= since;
}

/* Take the costs that the summary tells. */
static void cost_take(const struct remote_load *l, const struct remote_prompt *p, struct remote_bid *bid)
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

static void bid_by_summary(const struct remote_side *s, const struct remote_prompt *p, struct remote_bid *bid)
{
	if (s->load == NULL)
		return;
	size_t held = remote_set_match(s->set, s->shift, p->chain, p->blocks);
	bid->forecast = remote_foresee(s->load, &s->trust, s->way, p->tokens, remote_prompt_tokens(p, held));
	bid->forecast.held = (uint32_t)held;
	cost_take(s->load, p, bid);
	if (side_is_full(s))
		bid->source = REMOTE_BID_FULL;
	else if (bid->forecast.known) {
		bid->source = REMOTE_BID_SUMMARY;
		bid->ttft = bid->forecast.ttft;
	}
}

struct remote_bid remote_bid_of(const struct remote_side *side, const struct remote_prompt *prompt,
	cgn_nsec now)
{
	struct remote_bid bid = {.ttft = side->measured,
		.paid = side->paid,
		.cost = {.priced = side->paid > 0, .price = side->paid}};
	if (remote_is_demoted(&side->trust, now))
		bid.source = REMOTE_BID_DEMOTED;
	else if (side->told && side->valid_to <= now)
		bid.source = REMOTE_BID_STALE;
	else if (side->told)
		bid_by_summary(side, prompt, &bid);
	return bid;
}

enum remote_door remote_bid_door(const struct remote_bid *bid, const struct remote_stay *stay,
	const struct remote_rules *rules, uint32_t open, uint32_t most)
{
	const struct remote_there there = {.ttft = bid->ttft,
		.known = bid->source == REMOTE_BID_SUMMARY,
		.paid = bid->paid > 0,
		.prefill = bid->forecast.prefill,
		.cost = bid->cost};
	if (!remote_worth(stay, &there, rules))
		return REMOTE_DOOR_LATE;
	if (bid->source == REMOTE_BID_FULL)
		return REMOTE_DOOR_FULL;
	return open < most ? REMOTE_DOOR_OPEN : REMOTE_DOOR_BUSY;
}

bool remote_bid_beats(const struct remote_bid *a, const struct remote_bid *b,
	const struct remote_rules *rules, const struct remote_cost *here)
{
	const bool a_lies = a->source == REMOTE_BID_DEMOTED, b_lies = b->source == REMOTE_BID_DEMOTED;
	if (a_lies != b_lies)
		return b_lies;
	if (!(rules->price > 0) && (a->paid < b->paid || b->paid < a->paid))
		return a->paid < b->paid;
	return (double)a->ttft + remote_toll(rules, &a->cost, here) <
		(double)b->ttft + remote_toll(rules, &b->cost, here);
}

cgn_nsec remote_valid_span(cgn_nsec interval)
{
	return VALID_INTERVALS * interval > VALID_LEAST ? VALID_INTERVALS * interval : VALID_LEAST;
}
