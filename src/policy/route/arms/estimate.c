/* SPDX-License-Identifier: Apache-2.0 */
/* arms: the difference of two arms and its interval. */
#include <math.h>

#include "arms_priv.h"
#include "base/core/err.h"

#define GROUPS_A_CLASS 4    /* Groups of each arm that a class needs to count. */
#define UNITS_LEAST    8.0  /* Equally large groups of each arm, at least. */
#define TIGHTEST       1000 /* Requests of the smaller arm at which the interval is narrowest, for its time. */

static const struct {
	const char *name, *unit;
	bool less;
} figures[ARMS_FIGURES] = {
#define FIGURE(id, name, unit, less, help) {name, unit, less},
#include "policy/route/arms/figures.def"
#undef FIGURE
};

const char *arms_figure_text(enum arms_figure f)
{
	return figures[f].name;
}

const char *arms_figure_unit(enum arms_figure f)
{
	return figures[f].unit;
}

const char *arms_verdict_text(enum arms_verdict v)
{
	static const char *const texts[] = {"too few", "unclear", "better", "worse"};
	return texts[v];
}

/* A figure of one arm. */
struct arm_view {
	const struct arms_sums *s;
	enum arms_figure f;
	double weight[ARMS_CLASSES]; /* Weight of each class; 0: it does not count. */
	double mean, variance, units;
};

static double class_over(const struct arms_sums *s, enum arms_figure f, size_t c, size_t without)
{
	double over = 0;
	for (size_t g = 0; g < ARMS_GROUPS; g++)
		over += g != without ? s->cells[g][c].over[f] : 0;
	return over;
}

static double class_mean(const struct arms_sums *s, enum arms_figure f, size_t c, size_t without)
{
	double sum = 0;
	for (size_t g = 0; g < ARMS_GROUPS; g++)
		sum += g != without ? s->cells[g][c].sum[f] : 0;
	return sum / class_over(s, f, c, without);
}

static bool class_counts(const struct arms_sums *s, enum arms_figure f, size_t c)
{
	size_t n = 0;
	for (size_t g = 0; g < ARMS_GROUPS; g++)
		n += s->cells[g][c].over[f] > 0;
	return n >= GROUPS_A_CLASS;
}

/* Weigh the classes by how much of them both arms have. */
static bool weights_fill(struct arm_view *a, struct arm_view *b)
{
	double all = 0;
	for (size_t c = 0; c < ARMS_CLASSES; c++) {
		bool counts = class_counts(a->s, a->f, c) && class_counts(b->s, b->f, c);
		a->weight[c] = counts
			? class_over(a->s, a->f, c, ARMS_GROUPS) + class_over(b->s, b->f, c, ARMS_GROUPS)
			: 0;
		all += a->weight[c];
	}
	for (size_t c = 0; c < ARMS_CLASSES; c++)
		b->weight[c] = a->weight[c] = all > 0 ? a->weight[c] / all : 0;
	return all > 0;
}

/* Return the weighted mean of all groups but one. */
static double arm_mean(const struct arm_view *v, size_t without)
{
	double mean = 0;
	for (size_t c = 0; c < ARMS_CLASSES; c++)
		if (v->weight[c] > 0)
			mean += v->weight[c] * class_mean(v->s, v->f, c, without);
	return mean;
}

static double group_over(const struct arm_view *v, size_t g)
{
	double over = 0;
	for (size_t c = 0; c < ARMS_CLASSES; c++)
		over += v->weight[c] > 0 ? v->s->cells[g][c].over[v->f] : 0;
	return over;
}

/* Leave out each group once: how far the means move is the error of the mean (jackknife). */
static void arm_look(struct arm_view *v)
{
	double means[ARMS_GROUPS], sum = 0, square = 0, over = 0, over_square = 0;
	size_t n = 0;
	for (size_t g = 0; g < ARMS_GROUPS; g++) {
		double size = group_over(v, g);
		if (!(size > 0))
			continue;
		means[n] = arm_mean(v, g);
		sum += means[n++];
		over += size;
		over_square += size * size;
	}
	for (size_t i = 0; i < n; i++)
		square += (means[i] - sum / (double)n) * (means[i] - sum / (double)n);
	v->mean = arm_mean(v, ARMS_GROUPS);
	v->variance = square * (double)(n - 1) / (double)n;
	v->units = over * over / over_square;
}

/* Return how many standard errors the interval reaches to each side, with |n| requests in the smaller arm, at all
 * times. The error itself comes from few groups: |freedom| widens the interval as Student's distribution does. */
static double interval_reach(double n, double freedom)
{
	const double log_square = -2 * log(ARMS_ALPHA);
	double rho = (log_square + log(log_square) + 1) / TIGHTEST * n;
	double z = sqrt((1 + 1 / rho) * (log(rho + 1) + log_square));
	return z + (z * z * z + z) / (4 * freedom);
}

static double freedom_of(const struct arm_view *a, const struct arm_view *b)
{
	double both = a->variance + b->variance;
	double parts =
		a->variance * a->variance / (a->units - 1) + b->variance * b->variance / (b->units - 1);
	return parts > 0 ? both * both / parts : a->units - 1;
}

static enum arms_verdict verdict_of(const struct arms_estimate *e, bool less)
{
	if (e->low > 0)
		return less ? ARMS_WORSE : ARMS_BETTER;
	if (e->high < 0)
		return less ? ARMS_BETTER : ARMS_WORSE;
	return ARMS_UNCLEAR;
}

void arms_estimate(const struct arms *a, size_t i, enum arms_figure f, struct arms_estimate *out)
{
	CGN_LIVE(a, ARMS_TAG);
	CGN_MUST(i < a->rules.n);
	struct arm_view live = {.s = &a->by_arm[0], .f = f}, shadow = {.s = &a->by_arm[1 + i], .f = f};
	*out = (struct arms_estimate){.n_live = live.s->n[f],
		.n_shadow = shadow.s->n[f],
		.live = (double)NAN,
		.shadow = (double)NAN,
		.low = (double)NAN,
		.high = (double)NAN};
	if (!weights_fill(&live, &shadow))
		return;
	arm_look(&live);
	arm_look(&shadow);
	out->live = live.mean;
	out->shadow = shadow.mean;
	out->units_live = live.units;
	out->units_shadow = shadow.units;
	uint64_t n = out->n_live < out->n_shadow ? out->n_live : out->n_shadow;
	if (n < ARMS_LEAST || live.units < UNITS_LEAST || shadow.units < UNITS_LEAST)
		return;
	double reach =
		interval_reach((double)n, freedom_of(&live, &shadow)) * sqrt(live.variance + shadow.variance);
	out->low = out->shadow - out->live - reach;
	out->high = out->shadow - out->live + reach;
	out->verdict = verdict_of(out, figures[f].less);
}
