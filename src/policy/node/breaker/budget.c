/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/breaker/budget.h"

void retry_budget_add(struct retry_budget *b, double share)
{
	b->saved += share;
	if (b->saved > BUDGET_MOST)
		b->saved = BUDGET_MOST;
}

static void reserve_fill(struct retry_budget *b, cgn_nsec now)
{
	double more =
		b->at == 0 ? BUDGET_RESERVE : (double)cgn_since(now, b->at) / (double)CGN_SEC * BUDGET_RATE;
	b->reserve = b->reserve + more < BUDGET_RESERVE ? b->reserve + more : BUDGET_RESERVE;
	b->at = now;
}

bool retry_budget_take(struct retry_budget *b, cgn_nsec now)
{
	reserve_fill(b, now);
	double *from = b->saved >= 1 ? &b->saved : &b->reserve;
	if (*from < 1)
		return false;
	*from -= 1;
	return true;
}
