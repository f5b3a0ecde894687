/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "policy/fleet/autoscale/autoscale.h"

static double worth_kept(cgn_nsec since, cgn_nsec now)
{
	return now > since ? exp2(-(double)cgn_since(now, since) / (double)AUTOSCALE_HALF) : 1;
}

void autoscale_worth_note(struct autoscale_worth *w, uint64_t total, cgn_nsec now)
{
	if (w->at == 0 || total < w->seen)
		*w = (struct autoscale_worth){.seen = total, .at = now};
	w->tokens = w->tokens * worth_kept(w->at, now) + (double)(total - w->seen);
	w->seen = total;
	w->at = now;
}

double autoscale_worth_rate(const struct autoscale_worth *w, cgn_nsec now)
{
	/* A steady rate fills the decayed sum to rate * half / ln 2. */
	return w->tokens * worth_kept(w->at, now) * M_LN2 / ((double)AUTOSCALE_HALF / (double)CGN_SEC);
}

static bool is_worth_less(const struct autoscale_replica *a, const struct autoscale_replica *b)
{
	if (a->worth < b->worth || a->worth > b->worth)
		return a->worth < b->worth;
	if (a->held != b->held)
		return a->held < b->held;
	if (a->requests != b->requests)
		return a->requests < b->requests;
	return strcmp(a->id, b->id) > 0;
}

size_t autoscale_least_worth(const struct autoscale_replica *r, size_t n)
{
	size_t best = n;
	for (size_t i = 0; i < n; i++)
		if (!r[i].fixed && (best == n || is_worth_less(&r[i], &r[best])))
			best = i;
	return best;
}
