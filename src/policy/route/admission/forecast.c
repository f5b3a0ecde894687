/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "policy/route/admission/admission.h"

#define LONGEST_MS  1e9
#define MOST_TOKENS 1000000000U

unsigned admission_retry_after(cgn_nsec t)
{
	cgn_nsec s = (t + CGN_SEC - 1) / CGN_SEC;
	return s < 1 ? 1 : s < ADMISSION_RETRY_MAX ? (unsigned)s : ADMISSION_RETRY_MAX;
}

struct admission_forecast admission_forecast_of(const struct chooser_pick_result *p,
	const struct node_stats *stats, uint64_t prompt_tokens)
{
	double now = HUGE_VAL, idle = HUGE_VAL, tokens = HUGE_VAL;
	bool measured = p->n > 0;
	for (size_t i = 0; i < p->n; i++) {
		struct route_terms t;
		route_terms(&p->ask, &p->cands[i], &t);
		double own = t.prefill_ms + t.fetch_ms;
		measured &= node_stats_speed(&stats[p->cands[i].slot]).prefill_ms > 0;
		now = fmin(now, own + t.queue_ms);
		idle = fmin(idle, own);
		tokens = fmin(tokens, (double)p->cands[i].uncached_tokens);
	}
	if (p->n == 0)
		now = idle = 0;
	if (p->n == 0 || tokens > MOST_TOKENS)
		tokens = (double)(prompt_tokens < MOST_TOKENS ? prompt_tokens : MOST_TOKENS);
	return (struct admission_forecast){(cgn_nsec)(fmin(now, LONGEST_MS) * 1e6),
		(cgn_nsec)(fmin(idle, LONGEST_MS) * 1e6), (uint32_t)tokens, measured};
}

bool admission_misses_budget(const struct admission_forecast *f, const struct admission_budget *b,
	unsigned *retry_after)
{
	if (b->total == 0 || !f->measured || b->spent + f->now <= b->total)
		return false;
	bool never = f->idle > b->total;
	/* a long prompt is served as well as possible, and so is a request that has waited */
	if (!b->firm && (never || b->waited))
		return false;
	*retry_after = never ? 0 : admission_retry_after(f->now - f->idle);
	return true;
}

bool admission_must_wait(const struct admission_facts *f)
{
	if (f->verdict == ROUTE_FULL)
		return true;
	if (f->tried) /* if no node could be reached, the node may only be restarting */
		return f->verdict == ROUTE_NONE && f->unreachable;
	if (f->verdict == ROUTE_PICKED)
		return !f->waited && f->others_wait;
	return f->model == NULL || f->model->n_ready == 0; /* nodes may be back within node_wait */
}
