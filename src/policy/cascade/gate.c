/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/cascade/cascade.h"

#define SEEN_PER_TOKEN 4 /* An answer that is nearly all structure is judged by what it has. */

static bool is_due(const struct cascade_answer *a)
{
	return a->n >= a->most || a->ended ||
		(!a->thinking && a->n > 0 && a->seen >= SEEN_PER_TOKEN * a->most);
}

enum cascade_verdict cascade_judge(const struct cascade_gate *g, const struct cascade_answer *a, bool whole)
{
	if (!whole && !is_due(a))
		return CASCADE_WAIT;
	return a->n > 0 && cascade_confidence(a) >= g->threshold ? CASCADE_RELEASE : CASCADE_ESCALATE;
}
