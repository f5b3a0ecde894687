/* SPDX-License-Identifier: Apache-2.0 */
/* ratios: how far actual values were from their guesses, and how far out the ends of an interval have to be. */
#include <math.h>
#include <string.h>

#include "quote_priv.h"

#define GAIN   0.01 /* Step of the share beyond an end, for each answer. */
#define MOST   0.25 /* Greatest and least value of that share. */
#define LEAST  (-1.0)
#define BEYOND 2.0  /* Most that an end lies beyond all ratios: a factor of 7. */
#define REACH  0.05 /* So far beyond all ratios an end lies as the outermost ratio is from the median. */

/* Return the first place in |v| whose value is not below |x|. */
static uint32_t sorted_place(const float *v, uint32_t n, float x)
{
	uint32_t lo = 0, hi = n;
	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		if (v[mid] < x)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void ratios_add(struct quote_ratios *r, uint32_t n, uint32_t at, float x)
{
	if (n == QUOTE_WINDOW) {
		uint32_t old = sorted_place(r->sorted, n, r->ring[at]);
		memmove(r->sorted + old, r->sorted + old + 1, (n - old - 1) * sizeof *r->sorted);
		n--;
	}
	uint32_t to = sorted_place(r->sorted, n, x);
	memmove(r->sorted + to + 1, r->sorted + to, (n - to) * sizeof *r->sorted);
	r->sorted[to] = r->ring[at] = x;
}

void quote_track_add(struct quote_track *t, const float logs[QUOTE_ENDS])
{
	for (unsigned e = 0; e < QUOTE_ENDS; e++)
		ratios_add(&t->ends[e], t->n, t->next, logs[e]);
	t->next = (t->next + 1) % QUOTE_WINDOW;
	t->n += t->n < QUOTE_WINDOW;
}

/* Return the ratio that the share |part| is not above; outside of the ratios that there are it is extrapolated. */
static double ratios_at(const struct quote_ratios *r, uint32_t n, double part)
{
	double at = part * (n + 1) - 1, last = (double)n - 1, middle = (double)r->sorted[n / 2];
	double first = (double)r->sorted[0], end = (double)r->sorted[n - 1];
	if (at > last)
		return end + fmin(BEYOND, (at - last) / (n + 1) / REACH * (end - middle));
	if (at < 0)
		return first - fmin(BEYOND, -at / (n + 1) / REACH * (middle - first));
	uint32_t i = (uint32_t)at;
	double above = (double)r->sorted[i + 1 < n ? i + 1 : i];
	return (double)r->sorted[i] + (at - i) * (above - (double)r->sorted[i]);
}

double quote_track_factor(const struct quote_track *t, enum quote_end e, double miss)
{
	const struct quote_ratios *r = &t->ends[e];
	double sign = e == QUOTE_LOW ? -1 : 1, wide = sign * log(QUOTE_WIDE);
	if (t->n == 0)
		return exp(wide);
	double out = r->out != 0 ? r->out : miss;
	double log_ratio = ratios_at(r, t->n, e == QUOTE_LOW ? out : 1 - out);
	if (t->n < QUOTE_LEAST)
		log_ratio = e == QUOTE_LOW ? fmin(log_ratio, wide) : fmax(log_ratio, wide);
	return exp(log_ratio);
}

double quote_track_part(const struct quote_track *t, double part)
{
	return t->n < QUOTE_LEAST ? 1 : exp(ratios_at(&t->ends[QUOTE_MIDDLE], t->n, part));
}

void quote_track_told(struct quote_track *t, enum quote_end e, bool missed, double miss, double back)
{
	struct quote_ratios *r = &t->ends[e];
	double step = missed ? miss - 1 : r->out < 0 ? back * miss : miss;
	double out = (r->out != 0 ? r->out : miss) + GAIN * step;
	r->out = fmax(LEAST, fmin(MOST, out));
	if (r->out == 0)
		r->out = 1e-9; /* 0 says that nothing was learned. */
}
