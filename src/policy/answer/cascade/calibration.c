/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/cascade/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRIFT_SIGMAS 4.0 /* By chance one comparison in 16,000 is that far off. */
#define ECE_BINS     10

double calibration_error_of(const struct calibration_curve *c, double doubt)
{
	uint32_t i = 0;
	while (i + 1 < c->n && doubt > (double)c->upto[i])
		i++;
	return c->n > 0 ? (double)c->error[i] : 1;
}

/* ---- the curve ---- */

static int by_doubt(const void *a, const void *b)
{
	float x = ((const struct calibration_pair *)a)->doubt,
	      y = ((const struct calibration_pair *)b)->doubt;
	return (x > y) - (x < y);
}

struct group {
	double wrong, n, upto;
};

/* Join groups until the shares of errors rise. Returns how many are left. */
static size_t groups_pool(struct group *g, size_t n)
{
	size_t top = 0;
	for (size_t i = 0; i < n; i++) {
		g[top] = g[i];
		while (top > 0 && g[top - 1].wrong * g[top].n >= g[top].wrong * g[top - 1].n) {
			g[top - 1].wrong += g[top].wrong;
			g[top - 1].n += g[top].n;
			g[top - 1].upto = g[top].upto;
			top--;
		}
		top++;
	}
	return top;
}

static void curve_make(struct calibration *c)
{
	struct calibration_pair sorted[CALIBRATION_PAIRS];
	struct group g[CALIBRATION_GROUPS] = {0};
	memcpy(sorted, c->pairs, c->n * sizeof *sorted);
	qsort(sorted, c->n, sizeof *sorted, by_doubt);
	for (uint32_t i = 0; i < c->n; i++) {
		struct group *to = &g[(uint64_t)i * CALIBRATION_GROUPS / c->n];
		to->wrong += sorted[i].wrong;
		to->n += 1;
		to->upto = (double)sorted[i].doubt;
	}
	c->curve.n = (uint32_t)groups_pool(g, CALIBRATION_GROUPS);
	for (uint32_t i = 0; i < c->curve.n; i++) {
		c->curve.upto[i] = (float)g[i].upto;
		c->curve.error[i] = (float)(g[i].wrong / g[i].n);
	}
}

/* ---- drift ---- */

/* The comparison |back| before the next one, from 1. */
static const struct calibration_pair *pair_before(const struct calibration *c, uint32_t back)
{
	return &c->pairs[(c->next + CALIBRATION_PAIRS - back) % CALIBRATION_PAIRS];
}

/* Are there more or fewer errors among the last comparisons than chance explains? One error counts as expected in any case,
 * because a curve that tells 0 is made from few answers. */
static bool has_drifted(const struct calibration *c)
{
	double off = 0, variance = 1;
	if (c->n < CALIBRATION_RECENT)
		return false;
	for (uint32_t i = 1; i <= CALIBRATION_RECENT; i++) {
		const struct calibration_pair *p = pair_before(c, i);
		double told = (double)p->told;
		if (told < 0)
			return false;
		off += (p->wrong ? 1 : 0) - told;
		variance += told * (1 - told);
	}
	return fabs(off) > DRIFT_SIGMAS * sqrt(variance);
}

void calibration_recall(struct calibration *c)
{
	if (c->n < CALIBRATION_LEAST)
		return;
	curve_make(c);
	c->state = CALIBRATION_HOLDS;
}

static void pair_push(struct calibration *c, struct calibration_pair p)
{
	c->pairs[c->next] = p;
	c->next = (c->next + 1) % CALIBRATION_PAIRS;
	c->n += c->n < CALIBRATION_PAIRS;
}

bool calibration_remember(struct calibration *c, struct calibration_pair p)
{
	if (c->n == CALIBRATION_PAIRS)
		return false;
	pair_push(c, p);
	return true;
}

bool calibration_add(struct calibration *c, double doubt, bool wrong)
{
	enum calibration_state before = c->state;
	double told = c->curve.n > 0 ? calibration_error_of(&c->curve, doubt) : -1;
	pair_push(c, (struct calibration_pair){(float)doubt, (float)told, wrong});
	if (has_drifted(c))
		*c = (struct calibration){.state = CALIBRATION_DRIFTED};
	else
		calibration_recall(c);
	return c->state != before;
}

double calibration_ece(const struct calibration *c)
{
	double told[ECE_BINS] = {0}, wrong[ECE_BINS] = {0}, sum = 0;
	uint32_t n = 0;
	for (uint32_t i = 1; i <= c->n; i++) {
		const struct calibration_pair *p = pair_before(c, i);
		double f = (double)p->told;
		if (f < 0)
			continue;
		unsigned bin = f < 1 ? (unsigned)(f * ECE_BINS) : ECE_BINS - 1;
		told[bin] += f;
		wrong[bin] += p->wrong;
		n++;
	}
	for (unsigned i = 0; i < ECE_BINS; i++)
		sum += fabs(told[i] - wrong[i]);
	return n > 0 ? sum / n : -1;
}
