/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/cascade/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRIFT_SIGMAS 4.0 /* By chance one comparison in 16,000 is that far off. */
#define DRIFT_SUM \
	9.2 /* logarithm of 10,000: comparisons to a false alarm, at least, where the curve is right */
#define DRIFT_LEAST \
	0.05 /* errors that are expected in any case, because a curve that tells 0 is made from few answers */
/* Times as many errors, which are noticed too: at the sum WORSE_SUM; from WORSE_ASKS on all prompts are compared. Only where the surest
 * answers are told to be wrong at most at the share WORSE_UPTO, because others hardly pass, and only by comparisons that a curve of
 * WORSE_CURVE others judged. */
#define WORSE       2.0
#define WORSE_UPTO  0.2
#define WORSE_CURVE 256
#define WORSE_SUM   7.0
#define WORSE_ASKS  1.5
#define DOUBTS_APART \
	0.34 /* Kolmogorov and Smirnov's distance of two samples of CALIBRATION_SEEN: by chance one in a million */
#define DOUBTS_EVERY 16    /* answers between two looks at it */
#define SURER_SHARE  0.125 /* the surest answers, as a share of those before, whose number is watched */
#define SURER_SUM \
	13.8 /* logarithm of a million: answers to a false suspicion, at least, where nothing changes */
#define BOUND_SIGMAS 2.0  /* one-sided: 97.7 % */
#define SHARE_SHORT  0.16 /* share that is compared while credit is short: earns more than passes */
#define ECE_BINS     10

double calibration_error_of(const struct calibration_curve *c, double doubt)
{
	uint32_t i = 0;
	while (i + 1 < c->n && doubt > (double)c->upto[i])
		i++;
	return c->n > 0 ? (double)c->error[i] : 1;
}

bool calibration_passes(const struct calibration_curve *c, double doubt, double max_error)
{
	uint32_t i = c->n;
	while (i > 0 && ((double)c->error[i - 1] > max_error || (double)c->bound[i - 1] > max_error))
		i--;
	return i > 0 && doubt <= (double)c->upto[i - 1];
}

/* Return Wilson's upper bound of a share of which |n| samples have |wrong|. */
static double share_bound(double wrong, double n)
{
	double z2 = BOUND_SIGMAS * BOUND_SIGMAS, p = wrong / n;
	double off = BOUND_SIGMAS * sqrt(p * (1 - p) / n + z2 / (4 * n * n));
	return (p + z2 / (2 * n) + off) / (1 + z2 / n);
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
	struct group g[CALIBRATION_GROUPS] = {0}, all = {0};
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
		all.wrong += g[i].wrong;
		all.n += g[i].n;
		c->curve.bound[i] = (float)share_bound(all.wrong, all.n);
	}
}

/* ---- drift ---- */

/* The comparison |back| before the next one, from 1. */
static const struct calibration_pair *pair_before(const struct calibration *c, uint32_t back)
{
	return &c->pairs[(c->next + CALIBRATION_PAIRS - back) % CALIBRATION_PAIRS];
}

/* Add to |sum| how much more the comparison speaks for the probability |other| of an error than for |told|: Page's cumulative sum
 * (1954) of the logarithms of the likelihood ratio. */
static double sum_next(double sum, bool wrong, double told, double other)
{
	return fmax(0, sum + (wrong ? log(other / told) : log((1 - other) / (1 - told))));
}

/* Did errors come that the curve does not explain, but halfway to always wrong does (four errors in a row of answers that were told
 * to be right), or errors twice as often? */
static bool has_broken(struct calibration *c)
{
	const bool may_pass = c->curve.n > 0 && (double)c->curve.error[0] <= WORSE_UPTO;
	double broken = 0, worse = 0;
	for (uint32_t i = c->n; i > 0 && broken <= DRIFT_SUM && worse <= WORSE_SUM; i--) {
		const struct calibration_pair *p = pair_before(c, i);
		double told = fmax((double)p->told, DRIFT_LEAST), half = (1 + told) / 2;
		if (p->told < 0 || told >= 1)
			continue;
		broken = sum_next(broken, p->wrong, told, half);
		if (may_pass && c->n - i >= WORSE_CURVE)
			worse = sum_next(worse, p->wrong, told, fmin(half, WORSE * told));
	}
	c->worse = worse;
	return broken > DRIFT_SUM || worse > WORSE_SUM;
}

/* Are there more or fewer errors among the last comparisons than chance explains? One error counts as expected in any case,
 * because a curve that tells 0 is made from few answers. */
static bool has_shifted(const struct calibration *c)
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
	c->suspect -= c->suspect > 0;
	c->credit = c->credit + CALIBRATION_EARNED < CALIBRATION_CREDIT ? c->credit + CALIBRATION_EARNED
									: CALIBRATION_CREDIT;
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
	if (has_broken(c) || has_shifted(c))
		*c = (struct calibration){.state = CALIBRATION_DRIFTED};
	else
		calibration_recall(c);
	return c->state != before;
}

double calibration_needed(double max_error)
{
	double n = ceil(
		BOUND_SIGMAS * BOUND_SIGMAS * (1 / max_error - 1)); /* where share_bound of no error is it */
	return n > CALIBRATION_LEAST ? n : CALIBRATION_LEAST;
}

/* Return how much a comparison speaks for |other| on average, where |error| is true and |told| was told. */
static double drift_of(double error, double told, double other)
{
	return error * log(other / told) + (1 - error) * log((1 - other) / (1 - told));
}

double calibration_noticed_after(double share, double from, double to)
{
	const double told = fmax(from, DRIFT_LEAST), half = (1 + told) / 2;
	const double broken = drift_of(to, told, half), worse = drift_of(to, told, fmin(half, WORSE * told));
	const double least = fmax(share, 1.0 / CALIBRATION_EARNED); /* Answers that pass cost comparisons. */
	double after = (double)INFINITY;
	if (worse > 0)
		after = WORSE_ASKS / (least * worse) + (WORSE_SUM - WORSE_ASKS) / worse;
	return broken > 0 ? fmin(after, DRIFT_SUM / (least * broken)) : after;
}

/* ---- the answers to clients ---- */

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* Return the greatest difference of the two samples' distributions, from 0 to 1. */
static double doubts_distance(const struct calibration_doubts *d)
{
	float a[CALIBRATION_SEEN], b[CALIBRATION_SEEN];
	uint32_t i = 0, j = 0;
	double most = 0;
	memcpy(a, d->first, sizeof a);
	memcpy(b, d->last, sizeof b);
	qsort(a, CALIBRATION_SEEN, sizeof *a, by_value);
	qsort(b, CALIBRATION_SEEN, sizeof *b, by_value);
	while (i < CALIBRATION_SEEN && j < CALIBRATION_SEEN) {
		float at = fminf(a[i], b[j]);
		while (i < CALIBRATION_SEEN && a[i] <= at)
			i++;
		while (j < CALIBRATION_SEEN && b[j] <= at)
			j++;
		most = fmax(most, fabs((double)i - (double)j) / CALIBRATION_SEEN);
	}
	return most;
}

static bool doubts_moved(struct calibration_doubts *d, double doubt)
{
	float *room = d->n < CALIBRATION_SEEN ? d->first : d->last;
	room[d->n % CALIBRATION_SEEN] = (float)doubt;
	if (++d->n == 3 * CALIBRATION_SEEN)
		d->n = 2 * CALIBRATION_SEEN; /* Does not overflow. */
	return d->n >= 2 * CALIBRATION_SEEN && d->n % DOUBTS_EVERY == 0 && doubts_distance(d) > DOUBTS_APART;
}

/* Take the doubt. Return true if more answers than before are sure: the cumulative sum for one more answer in eight among those
 * that are as sure as the surest eighth was. */
static bool has_got_surer(struct calibration_surest *s, double doubt)
{
	const double before = SURER_SHARE, after = before + (1 - before) * SURER_SHARE;
	if (s->n < CALIBRATION_SURE) {
		s->first[s->n++] = (float)doubt;
		if (s->n == CALIBRATION_SURE) {
			qsort(s->first, CALIBRATION_SURE, sizeof *s->first, by_value);
			s->edge = s->first[(uint32_t)(before * CALIBRATION_SURE)];
		}
		return false;
	}
	s->sum = sum_next(s->sum, doubt < (double)s->edge, before, after);
	return s->sum > SURER_SUM;
}

bool calibration_saw(struct calibration *c, double doubt, bool passed)
{
	if (c->state != CALIBRATION_HOLDS)
		return false; /* The answer began before the state was another one. */
	if (passed && c->credit > 0)
		c->credit--;
	if (has_got_surer(&c->surest, doubt)) {
		c->surest = (struct calibration_surest){.n = 0};
		c->suspect = CALIBRATION_SUSPECT;
	}
	if (!doubts_moved(&c->seen, doubt))
		return false;
	*c = (struct calibration){.state = CALIBRATION_DRIFTED};
	return true;
}

enum calibration_trust calibration_trust_of(const struct calibration *c, double max_error)
{
	if (c->state == CALIBRATION_DRIFTED)
		return CALIBRATION_MOVED;
	if (!calibration_passes(&c->curve, 0, max_error))
		return CALIBRATION_UNPROVEN;
	return c->credit > 0 ? CALIBRATION_TRUSTED : CALIBRATION_UNSEEN;
}

double calibration_share_of(const struct calibration *c, double asked, double max_error)
{
	if (calibration_trust_of(c, max_error) != CALIBRATION_TRUSTED)
		return c->n < CALIBRATION_PAIRS || c->credit == 0 ? 1 : asked;
	if (c->suspect > 0 || c->worse > WORSE_ASKS)
		return 1;
	return c->credit < CALIBRATION_CREDIT / 2 ? fmax(asked, SHARE_SHORT) : asked;
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
