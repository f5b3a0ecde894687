/* SPDX-License-Identifier: Apache-2.0 */
/* arms: the arm of a request, and how the request ended. */
#include "router/request/account/arms.h"

#include "router/request/account/account.h"
#include "router/shared/arms/arms.h"

#define BLOCK_TOKENS 16 /* Tokens in a block of bytes, for the class of the prompt. */

/* Requests that no policy places, or whose outcome is not seen here, have no arm. */
static bool has_arm(const struct gw_req *r, const struct chooser_ask *ask)
{
	return r->w->rules->shadow.arms.share > 0 && r->prompt.parsed && ask->pin == CHOOSER_NO_PIN &&
		r->selecting == NULL && !r->client.quotes && r->plan.cascade == NULL;
}

void gw_arms_follow(struct gw_req *r, struct chooser_ask *ask)
{
	if (!r->plan.seated) {
		if (!has_arm(r, ask))
			return;
		uint32_t block = ask->block_tokens > 0 ? ask->block_tokens : BLOCK_TOKENS;
		uint64_t tokens =
			ask->prompt_tokens > 0 ? ask->prompt_tokens : (uint64_t)(ask->length * block);
		const struct unit_ask unit = {.session = ask->session,
			.chain = ask->chain,
			.blocks = ask->blocks,
			.request = route_hash(r->client.id.p, r->client.id.n)};
		r->plan.seat = gw_arms_seat(r->w->shared->arms, &unit, tokens);
		r->plan.seated = true;
	}
	ask->follows = r->plan.seat.seated && r->plan.seat.arm > 0;
	ask->policy = r->plan.seat.policy;
}

static double ms_between(cgn_nsec from, cgn_nsec to)
{
	return (double)cgn_since(to, from) / 1e6;
}

static bool is_failure(int status)
{
	return status == 429 || status >= 500;
}

void gw_arms_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now)
{
	const struct usage *u = &r->answer.usage;
	if (!r->plan.seated)
		return;
	struct arms_outcome o = {.ttft_ms = -1,
		.finish_ms = -1,
		.stream_ms = -1,
		.cached = -1,
		.failed = is_failure(status)};
	bool answered = status == 200 && r->answer.first_byte > 0;
	if (answered)
		o.ttft_ms = ms_between(r->client.started, r->answer.first_byte);
	if (answered && strcmp(outcome, "ok") == 0)
		o.finish_ms = ms_between(r->client.started, now);
	if (o.finish_ms >= 0 && r->answer.event_stream && u->completion_tokens > 1) {
		o.stream_ms = ms_between(r->answer.first_byte, r->answer.last_byte);
		o.gaps = (double)(u->completion_tokens - 1);
	}
	if (answered && u->has_cached && u->has_prompt) {
		o.cached = (double)u->cached_tokens;
		o.prompt = (double)u->prompt_tokens;
	}
	gw_arms_add(r->w->shared->arms, &r->plan.seat, &o);
}
