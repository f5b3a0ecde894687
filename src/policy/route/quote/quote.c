/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/mix/mix.h"
#include "quote_priv.h"

#define NO_ANSWERS_LEAST 1.0 /* Tokens of an answer of which nothing is known. */
#define NO_ANSWERS_MOST  4096.0
#define NO_ANSWERS       256.0
#define KIND_LEAST       64 /* Requests of a kind before their errors are looked at alone. */
#define LENGTHS_LEAST    8  /* Fewer answers of a group say less than those of a larger group. */

static const struct {
	const char *label, *member;
	double scale, floor, back;
} figures[QUOTE_FIGURES] = {
#define FIGURE(id, label, member, scale, floor, back) {label, member, scale, floor, back},
#include "policy/route/quote/figures.def"
#undef FIGURE
};

const char *quote_figure_label(enum quote_figure f)
{
	return figures[f].label;
}

const char *quote_figure_member(enum quote_figure f)
{
	return figures[f].member;
}

double quote_figure_scale(enum quote_figure f)
{
	return figures[f].scale;
}

/* ---- lengths of answers ---- */

/* Groups of requests whose answers may be alike, the narrowest first. */
enum group { GROUP_SESSION, GROUP_FAMILY, GROUP_HOLDER, GROUP_MODEL, GROUPS };

/* Return the name of the request's group; 0: it has none of this kind. Sessions and prompts of other holders are not looked at. */
static uint64_t group_name(const struct quote_key *k, enum group g)
{
	const uint64_t own[GROUPS] = {[GROUP_SESSION] = k->session, [GROUP_FAMILY] = k->family};
	uint64_t name = mix64(k->model ^ mix64((uint64_t)g * 2 + k->limited));
	if (g == GROUP_MODEL)
		return name;
	name = mix64(name ^ mix64(k->holder));
	if (g == GROUP_HOLDER)
		return name;
	return own[g] != 0 ? mix64(name ^ own[g]) : 0;
}

static void lengths_add(struct quote_lengths *h, uint32_t tokens)
{
	uint32_t n = h->n, to = 0;
	if (n == QUOTE_LENGTHS) {
		uint32_t old = 0;
		while (h->sorted[old] != h->ring[h->next])
			old++;
		memmove(h->sorted + old, h->sorted + old + 1, (n - old - 1) * sizeof *h->sorted);
		n--;
	}
	while (to < n && h->sorted[to] < tokens)
		to++;
	memmove(h->sorted + to + 1, h->sorted + to, (n - to) * sizeof *h->sorted);
	h->sorted[to] = h->ring[h->next] = tokens;
	h->next = (h->next + 1) % QUOTE_LENGTHS;
	h->n = n + 1;
}

void quote_answer_learn(struct quote_book *b, const struct quote_key *key, uint64_t tokens)
{
	uint32_t n = tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
	for (enum group g = 0; g < GROUPS; g++) {
		uint64_t name = group_name(key, g);
		if (name != 0)
			lengths_add(quote_lengths_of(b, name, true), n);
	}
}

static double length_at(const struct quote_lengths *h, double part)
{
	return (double)h->sorted[(uint32_t)(part * (h->n - 1) + 0.5)];
}

/* Return the lengths of the narrowest group that is known, and set key->narrow; NULL: none is. */
static const struct quote_lengths *lengths_find(struct quote_book *b, struct quote_key *key)
{
	for (enum group g = 0; g < GROUPS; g++) {
		uint64_t name = group_name(key, g);
		const struct quote_lengths *h = name != 0 ? quote_lengths_of(b, name, false) : NULL;
		key->narrow = g < GROUP_HOLDER;
		if (h != NULL && h->n >= LENGTHS_LEAST)
			return h;
	}
	return NULL;
}

static struct quote_range answer_guess(struct quote_book *b, struct quote_key *key,
	const struct quote_guess *g, double miss)
{
	struct quote_range a = {NO_ANSWERS_LEAST, NO_ANSWERS, NO_ANSWERS_MOST};
	const double most = g->answer_limit > 0 ? (double)g->answer_limit : HUGE_VAL;
	if (!g->answers)
		return (struct quote_range){0, 0, 0};
	const struct quote_lengths *h = lengths_find(b, key);
	if (h != NULL)
		a = (struct quote_range){length_at(h, miss), length_at(h, 0.5), length_at(h, 1 - miss)};
	return (struct quote_range){fmin(a.low, most), fmin(a.expected, most), fmin(a.high, most)};
}

/* ---- quotes ---- */

static double line_at(const struct quote_line *l, double tokens)
{
	double v = l->base + l->per_token * tokens;
	return v > 0 ? v : 0;
}

static double floor_scale(double guess, double factor, double floor)
{
	return fmax(0, (guess + floor) * factor - floor);
}

/* Put the interval around the guess. Without a track nothing was learned, and the interval is wide. */
static void range_make(const struct quote_track *t, const struct quote_range *guess, double floor,
	double miss, struct quote_range *out)
{
	static const struct quote_track nothing;
	t = t != NULL ? t : &nothing;
	*out = (struct quote_range){floor_scale(guess->low, quote_track_factor(t, QUOTE_LOW, miss), floor),
		floor_scale(guess->expected, quote_track_part(t, 0.5), floor),
		floor_scale(guess->high, quote_track_factor(t, QUOTE_HIGH, miss), floor)};
	out->high = fmax(out->high, out->low);
	out->expected = fmin(fmax(out->expected, out->low), out->high);
}

/* Return the errors of requests of this kind, or of all kinds until there are enough of them. */
static struct quote_track *track_find(struct quote_book *b, const struct quote_key *key, enum quote_figure f)
{
	struct quote_track *own = quote_track_of(b, key, f, true, false);
	return own != NULL && own->n >= KIND_LEAST ? own : quote_track_of(b, key, f, false, false);
}

void quote_make(struct quote_book *b, const struct quote_key *key, const struct quote_guess *g,
	double coverage, struct quote *out)
{
	double miss = (1 - coverage) / 2;
	*out = (struct quote){.key = *key};
	out->key.narrow = false;
	out->answer = answer_guess(b, &out->key, g, miss);
	const struct quote_range *a = &out->answer;
	for (unsigned f = 0; f < QUOTE_FIGURES; f++) {
		const struct quote_line *l = &g->v[f];
		const struct quote_track *t = track_find(b, &out->key, (enum quote_figure)f);
		out->known[f] = l->known;
		if (!l->known)
			continue;
		out->guess[f] = (struct quote_range){line_at(l, a->low), line_at(l, a->expected),
			line_at(l, a->high)};
		out->samples[f] = t != NULL ? t->n : 0;
		range_make(t, &out->guess[f], figures[f].floor, miss, &out->v[f]);
	}
}

double quote_first_ms(struct quote_book *b, const struct quote *q, double confidence)
{
	const struct quote_track *t = track_find(b, &q->key, QUOTE_TTFT);
	double guess = q->guess[QUOTE_TTFT].expected;
	return t != NULL ? floor_scale(guess, quote_track_part(t, confidence), figures[QUOTE_TTFT].floor)
			 : guess;
}

static float ratio_log(double actual, double guess, double floor)
{
	double r = log((actual + floor) / (guess + floor));
	return (float)fmax(-20, fmin(20, r)); /* NaN becomes a bound. */
}

/* The end |e| of a quote was missed, or held. Many quotes are open when an end turns out to be wrong, and the end has moved when
 * they are judged. So the end of today is judged: all of them would move it too far. Requests that wait are answered so late that
 * the end of today knows what the quote could not: their misses count too. */
static void end_told(struct quote_track *t, enum quote_end e, bool missed, bool waited, double ratio,
	double miss, double back)
{
	double now = log(quote_track_factor(t, e, miss));
	bool misses = e == QUOTE_LOW ? ratio < now : ratio > now;
	quote_track_told(t, e, misses || (waited && missed), miss, back);
}

static void track_learn(struct quote_track *t, const struct quote *q, enum quote_side side,
	const float logs[QUOTE_ENDS], double miss, double back)
{
	const bool waited = q->key.place == QUOTE_QUEUED;
	if (t->n >= QUOTE_LEAST) { /* The wide intervals of the first requests say nothing about the ends. */
		end_told(t, QUOTE_LOW, side == QUOTE_BELOW, waited, (double)logs[QUOTE_LOW], miss, back);
		end_told(t, QUOTE_HIGH, side == QUOTE_ABOVE, waited, (double)logs[QUOTE_HIGH], miss, back);
	}
	quote_track_add(t, logs);
}

enum quote_side quote_learn(struct quote_book *b, const struct quote *q, enum quote_figure f, double actual,
	double coverage)
{
	const struct quote_range *g = &q->guess[f], *v = &q->v[f];
	const double miss = (1 - coverage) / 2, floor = figures[f].floor;
	/* A difference that arithmetic makes is none. */
	const double slack = 1e-9 * (fabs(actual) + floor);
	enum quote_side side = actual < v->low - slack ? QUOTE_BELOW
		: actual > v->high + slack             ? QUOTE_ABOVE
						       : QUOTE_INSIDE;
	CGN_MUST(q->known[f]);
	if (!(actual >= 0))
		return side;
	const float logs[QUOTE_ENDS] = {ratio_log(actual, g->low, floor),
		ratio_log(actual, g->expected, floor), ratio_log(actual, g->high, floor)};
	track_learn(quote_track_of(b, &q->key, f, false, true), q, side, logs, miss, figures[f].back);
	track_learn(quote_track_of(b, &q->key, f, true, true), q, side, logs, miss, figures[f].back);
	return side;
}
