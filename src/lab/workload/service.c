/* SPDX-License-Identifier: Apache-2.0 */
/* Long prompts described by their blocks alone: one first block shared by all, and conversations that return
 * with their earlier blocks and more. */
#include "lab/workload/workload_priv.h"

#define MAX_CHAIN 250
#define RECENT    4000 /* Conversations that may continue. */

/* Draw a number of blocks, at least 1, about |mean| on average, rarely large. */
static size_t some_blocks(struct workload_rng *d, size_t mean)
{
	size_t n = 1;
	while (n < MAX_CHAIN && workload_rng_next(d) % mean != 0)
		n++;
	return n;
}

/* Continue an earlier request: copy its blocks without the last one, which was not full. */
static size_t go_back(struct workload_run *w, uint64_t *ids, uint64_t *session)
{
	const struct trace *t = w->trace;
	size_t back = (size_t)(workload_rng_next(&w->rng) % (t->n < RECENT ? t->n : RECENT));
	const struct trace_request *of = &t->requests[t->n - 1 - back];
	memcpy(ids, trace_ids(t, of), (of->n - 1) * sizeof *ids);
	*session = of->session;
	return of->n - 1;
}

CGN_RC workload_service_make(struct workload_run *w)
{
	uint64_t next = 1, sessions = 1, ids[MAX_CHAIN];
	double at = 0;
	w->trace->block_tokens = TRACE_BLOCK_TOKENS;
	while (w->trace->n < w->cfg->requests) {
		struct trace_request r = {.at = workload_time(at)};
		size_t n = 0, mean = 18;
		if (w->trace->n > 0 && workload_rng_next(&w->rng) % 100 < 45) {
			n = go_back(w, ids, &r.session);
			mean = 8;
		} else {
			r.session = sessions++;
		}
		for (size_t more = some_blocks(&w->rng, mean); more > 0 && n < MAX_CHAIN; more--, n++)
			ids[n] = n == 0 ? 0 : next++;
		r.input = (uint32_t)((n - 1) * TRACE_BLOCK_TOKENS + 1 +
			workload_rng_below(&w->rng, TRACE_BLOCK_TOKENS));
		r.output = 1 + (uint32_t)(workload_rng_exponential(&w->rng) * 340);
		CGN_TRY(trace_add(w->trace, &r, ids, n));
		at += workload_rng_exponential(&w->rng) * 1e9 / w->cfg->rate;
	}
	return CGN_OK;
}
