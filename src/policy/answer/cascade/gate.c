/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/cascade/cascade.h"

#define SEEN_PER_TOKEN 4 /* An answer that is nearly all structure is judged by what it has. */

static bool is_due(const struct cascade_answer *a)
{
	return a->n >= a->most || a->ended ||
		(!a->thinking && a->n > 0 && a->seen >= SEEN_PER_TOKEN * a->most);
}

static bool is_good(const struct cascade_gate *g, const struct cascade_answer *a)
{
	return g->curve != NULL ? calibration_passes(g->curve, cascade_doubt(a), g->max_error)
				: cascade_confidence(a) >= g->threshold;
}

enum cascade_verdict cascade_judge(const struct cascade_gate *g, const struct cascade_answer *a, bool whole)
{
	if (a->broken)
		return CASCADE_ESCALATE;
	if (!whole && !is_due(a))
		return CASCADE_WAIT;
	return a->n > 0 && is_good(g, a) ? CASCADE_RELEASE : CASCADE_ESCALATE;
}
