/* SPDX-License-Identifier: Apache-2.0 */
/* arms: requests that follow another policy than most, as router.shadow_share lets them. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "lab/replay/replay_priv.h"

void replay_arms_open(struct replay *r)
{
	struct arms_rules rules = r->cfg->arms;
	if (rules.n == 0 || !(rules.share > 0))
		return;
	rules.live = r->cfg->rules->policy;
	r->arms = arms_new();
	r->units = CGN_NEW(struct unit_counts);
	arms_set(r->arms, &rules);
}

void replay_arms_close(struct replay *r)
{
	arms_free(&r->arms);
	free(r->units);
	r->units = NULL;
}

/* A request that waited is asked again: what it is counted as a unit for twice does not matter. */
struct arms_seat replay_arms_seat(struct replay *r, const struct trace_request *q, struct chooser_ask *ask)
{
	if (r->arms == NULL)
		return (struct arms_seat){.seated = false};
	const struct unit_ask unit = {.session = q->session,
		.chain = ask->chain,
		.blocks = ask->blocks,
		.request = (uint64_t)(q - r->trace->requests)};
	/* Seeds differ in who follows. */
	struct arms_seat s =
		arms_seat(r->arms, mix_seeded(unit_of(r->units, &unit) + r->cfg->seed), q->input);
	ask->follows = true;
	ask->policy = s.policy;
	return s;
}

void replay_arms_end(struct replay *r, const struct replay_flight *f, uint64_t tokens)
{
	if (r->arms == NULL)
		return;
	const struct arms_outcome o = {.ttft_ms =
					       (double)(cgn_since(f->first, f->call.came) + r->cfg->delay) /
			1e6,
		.finish_ms = (double)(cgn_since(r->now, f->call.came) + r->cfg->delay) / 1e6,
		.stream_ms = (double)cgn_since(r->now, f->first) / 1e6,
		.gaps = (double)tokens - 1,
		.cached = f->cached,
		.prompt = f->call.request->input};
	arms_add(r->arms, &f->seat, &o);
}

void replay_arms_sum_up(struct replay *r)
{
	for (size_t i = 0; r->arms != NULL && i < r->cfg->arms.n; i++)
		for (unsigned f = 0; f < ARMS_FIGURES; f++)
			arms_estimate(r->arms, i, (enum arms_figure)f, &r->result->arms[i][f]);
}
