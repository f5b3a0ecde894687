/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mix/mix.h"
#include "policy/answer/cascade/cascade.h"

#define PRIOR    8.0F   /* Answers that the rate of the wider group counts for. */
#define FORGET   200.0F /* Answers of a cell, after which the older ones count half. */
#define LEAST    20.0F  /* Answers of the pair, before which all are asked for. */
#define EXPLORED 0.05   /* Share that is asked for nevertheless, to notice a change. */

static unsigned length_class(uint64_t tokens)
{
	unsigned n = 0;
	for (; tokens > 1; tokens >>= 1)
		n++;
	return n;
}

static uint16_t cell_of(uint64_t pair, unsigned kind, uint64_t value)
{
	return (uint16_t)(mix64(pair ^ mix64(value + kind * MIX_GOLDEN)) & (CASCADE_CELLS - 1));
}

void cascade_group_of(const struct cascade_request *q, struct cascade_group *out)
{
	const uint64_t values[CASCADE_GROUP] = {0, q->key, q->route, q->prefix, length_class(q->tokens)};
	for (unsigned i = 0; i < CASCADE_GROUP; i++)
		out->cells[i] = cell_of(q->pair, i, values[i]);
}

/* Return the share of the group's answers that did not pass, from 0 to 1. Each group's own rate counts the more the more answers it has; with few, the rate before it does. */
static double group_rate(const struct cascade_rates *r, const struct cascade_group *g)
{
	float rate = 0;
	for (unsigned i = 0; i < CASCADE_GROUP; i++) {
		const struct cascade_cell *c = &r->cells[g->cells[i]];
		float prior = i == 0 ? 0 : PRIOR;
		if (c->asked > 0)
			rate = (c->escalated + rate * prior) / (c->asked + prior);
	}
	return (double)rate;
}

bool cascade_is_hopeless(const struct cascade_rates *r, const struct cascade_group *g, double limit,
	double random)
{
	return r->cells[g->cells[0]].asked >= LEAST && group_rate(r, g) > limit && random >= EXPLORED;
}

void cascade_learn(struct cascade_rates *r, const struct cascade_group *g, bool escalated)
{
	for (unsigned i = 0; i < CASCADE_GROUP; i++) {
		struct cascade_cell *c = &r->cells[g->cells[i]];
		if (c->asked >= FORGET) {
			c->asked /= 2;
			c->escalated /= 2;
		}
		c->asked += 1;
		c->escalated += escalated ? 1 : 0;
	}
}
