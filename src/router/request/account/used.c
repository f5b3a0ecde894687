/* SPDX-License-Identifier: Apache-2.0 */
/* used: the usage of a request: the engine's own counts, or, for an answer that was cut or has none, the
 * prompt's expected tokens and the events that went to the client. */
#include "base/sse/sse.h"
#include "router/request/account/account.h"
#include "router/shared/peers/peers.h"

#define USED_TIMES_ASKED 2 /* Tokens that are charged: this many times those asked for, and USED_MORE */
#define USED_MORE        64

bool gw_used_has_tokens(const struct gw_req *r)
{
	enum gw_route_kind kind = r->client.route->kind;
	return kind != GW_MEDIA && kind != GW_COUNT && kind != GW_STORED && !r->client.quotes &&
		kind != GW_ABOUT && !cgn_str_starts(r->client.target, "/tokenize") &&
		!cgn_str_starts(r->client.target, "/apply-template") &&
		!cgn_str_starts(r->client.target, "/detokenize");
}

/* Count an event as a token, for streams without usage: OpenAI's have it only when the client asks. */
void gw_used_relayed(struct gw_req *r, struct cgn_str data)
{
	if (r->answer.event_stream)
		r->answer.events += sse_marks(&r->answer.mark_begun, data);
}

static bool was_served(const struct gw_req *r)
{
	return r->attempt.head_seen || (r->client.why.code != CGN_FINE && plan_attempts(&r->plan.legs) > 0);
}

uint64_t gw_used_price(const struct gw_req *r, struct cgn_str model, uint64_t input, uint64_t cached,
	uint64_t output)
{
	const struct gw_price *p = gw_rules_price(r->w->rules, model);
	if (p == NULL)
		return 0;
	return budget_of_prices((budget_prices)(input - cached) * p->input +
		(budget_prices)cached * p->cached_input + (budget_prices)output * p->output);
}

/* Return the most tokens that the answer can have, 0: not known. After a resume the limit is that of the rest. */
static uint64_t most_tokens(const struct gw_req *r)
{
	uint64_t asked = r->prompt.several ? 0 : r->prompt.answer_limit;
	return asked > 0 && r->plan.legs.resumes > 0 ? asked + r->answer.events : asked;
}

/* No answer has more tokens than were asked for: a few events of a stream carry none, and an engine may
 * report a number that it did not make. */
static uint64_t answer_tokens(const struct gw_req *r, uint64_t told)
{
	uint64_t most = most_tokens(r);
	return most > 0 && most < told ? most : told;
}

/* A hosted peer bills the tokens of its reasoning too, but is not believed that it made many more than were asked for. */
static uint64_t reported_tokens(const struct gw_req *r)
{
	uint64_t told = r->answer.usage.completion_tokens,
		 most = USED_TIMES_ASKED * most_tokens(r) + USED_MORE;
	if (r->attempt.peer == NULL)
		return answer_tokens(r, told);
	return most > USED_MORE && told > most ? most : told;
}

static void tokens_fill(const struct gw_req *r, struct gw_used *out)
{
	const struct usage *u = &r->answer.usage;
	bool other = r->attempt.opening.reader.says == OPENING_OTHER,
	     counted = u->has_prompt || u->has_completion;
	if (!gw_used_has_tokens(r) || gw_attempt_is_error(&r->attempt) || (other && !counted))
		return;
	bool cut = r->answer.event_stream && (r->client.why.code != CGN_FINE || r->answer.outcome != NULL);
	out->input = u->has_prompt ? u->prompt_tokens : r->plan.prompt_tokens;
	out->cached = u->cached_tokens < out->input ? u->cached_tokens : out->input;
	out->output = reported_tokens(r);
	out->estimated = cut || !counted;
	/* Anthropic's streams begin with a usage that has one token of the answer. */
	if (out->estimated && out->output < answer_tokens(r, r->answer.events))
		out->output = answer_tokens(r, r->answer.events);
}

struct gw_used gw_used_of(const struct gw_req *r)
{
	struct gw_used used = {0};
	const struct chooser_energy e = gw_attempt_joules(&r->attempt);
	double joules = e.prefill_j + e.decode_j;
	if (!was_served(r))
		return used;
	used.requests = 1;
	tokens_fill(r, &used);
	used.money = r->attempt.peer != NULL
		? gw_peer_price(r->attempt.peer, used.input, used.output)
		: gw_used_price(r, r->prompt.model, used.input, used.cached, used.output);
	if (e.counted && joules > 0)
		used.joules = (uint64_t)(joules * (double)BUDGET_JOULE_SCALE + 0.5);
	return used;
}
