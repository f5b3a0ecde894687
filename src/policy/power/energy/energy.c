/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/energy.h"

#include <string.h>

#define LIMIT_W    700.0
#define MOST_W     1e6
#define LEAST_GAIN 0.05 /* Share of the error that a knot takes once it has many samples. */
#define ERROR_SPAN 32   /* Samples in the mean of the error. */
#define TRUST      4.0  /* A sample counts for at most this many times the expected value. */
#define PREFILL    ENERGY_KNOTS
#define KNOWN_FROM 0.5F /* Weight from which a knot counts as learned. */

/* Shares of a GPU's power limit. */
static const struct energy_curve usual_shape = {
	.decode = {0.17F, 0.38F, 0.43F, 0.48F, 0.53F, 0.58F, 0.64F, 0.69F, 0.74F, 0.79F},
	.prefill = 0.97F,
};

static double knot_streams(size_t k)
{
	return k == 0 ? 0 : (double)(1U << (k - 1));
}

/* Find the knot at or below |streams| and the share of the next one. */
static size_t knot_below(double streams, double *share)
{
	size_t k = 0;
	while (k + 2 < ENERGY_KNOTS && streams >= knot_streams(k + 1))
		k++;
	double from = knot_streams(k), to = knot_streams(k + 1), part = (streams - from) / (to - from);
	*share = part > 0 ? (part < 1 ? part : 1) : 0;
	return k;
}

double energy_decode_watts(const struct energy_curve *c, double streams)
{
	double share;
	size_t k = knot_below(streams, &share);
	return (double)c->decode[k] * (1 - share) + (double)c->decode[k + 1] * share;
}

cgn_nsec energy_load_lasts(const struct energy_load *l, cgn_nsec most)
{
	if (l->prompts > l->wholes || l->wholes == 0 || !(l->prompt_s > 0) ||
		!(l->prompt_s * 1e9 < (double)most))
		return most;
	return (cgn_nsec)(l->prompt_s * 1e9) + 1;
}

void energy_load_pass(struct energy_load *l, double seconds)
{
	l->prompt_s = l->wholes > 0 && l->prompt_s > seconds ? l->prompt_s - seconds : 0;
}

double energy_load_watts(const struct energy_curve *c, const struct energy_load *load)
{
	return energy_load_computes(load) ? (double)c->prefill
					  : energy_decode_watts(c, (double)load->streams + load->wholes);
}

double energy_share(const struct energy_load *load, double joules, double *stream_j, double *token_j)
{
	double shares = load->streams + (load->prompts > 0 ? (double)ENERGY_PROMPT_SHARES : 0);
	double one = shares > 0 ? joules / shares : 0;
	*stream_j += one;
	if (load->prompts > 0)
		*token_j += one * ENERGY_PROMPT_SHARES / (double)(load->prompt_tokens + load->prompts);
	return one;
}

/* ---- counters ---- */

void energy_counter_init(struct energy_counter *c, uint64_t range_uj, double limit_w)
{
	*c = (struct energy_counter){.then = 0};
	power_counter_init(&c->counter, range_uj, 2 * limit_w);
}

static enum energy_counted span_begin(struct energy_counter *c, cgn_nsec now, enum energy_counted why)
{
	c->then_j = c->counter.joules;
	c->then = now;
	return why;
}

enum energy_counted energy_counter_read(struct energy_counter *c, uint64_t uj, cgn_nsec now, double *joules,
	double *seconds)
{
	double watts = 0;
	bool stands = c->counter.has_last && uj == c->counter.last_uj;
	if (stands && now > c->then) /* The time counts once the counter moves. */
		return cgn_since(now, c->then) < ENERGY_STOP ? ENERGY_WAITING : ENERGY_STOPPED;
	if (!power_counter_step(&c->counter, uj, now, &watts) || cgn_since(now, c->then) >= ENERGY_STOP)
		return span_begin(c, now, ENERGY_FIRST);
	*joules = c->counter.joules - c->then_j;
	*seconds = (double)(now - c->then) * 1e-9;
	return span_begin(c, now, ENERGY_SPAN);
}

/* ---- learning ---- */

/* Return by which factor the learned knots differ from the prior around knot |k|. */
static float factor_near(const struct energy_model *m, const struct energy_curve *prior, size_t k)
{
	for (size_t d = 1; d < ENERGY_KNOTS; d++) {
		if (k + d < ENERGY_KNOTS && m->weight[k + d] >= KNOWN_FROM)
			return m->knot[k + d] / prior->decode[k + d];
		/* The idle knot tells little of the others. */
		if (k > d && m->weight[k - d] >= KNOWN_FROM)
			return m->knot[k - d] / prior->decode[k - d];
	}
	return m->weight[PREFILL] >= KNOWN_FROM ? m->prefill / prior->prefill : m->knot[k] / prior->decode[k];
}

static float limit_apply(const struct energy_model *m, float watts)
{
	return m->limit > 0 && watts > m->limit ? m->limit : watts;
}

/* Note up to which load the curve is a measurement. From a number of streams to twice as many, measured power rises by little. */
static void measured_note(struct energy_model *m)
{
	m->curve.most = 1;
	for (size_t k = 1; k < ENERGY_KNOTS; k++)
		if (m->weight[k] >= KNOWN_FROM)
			m->curve.most = 2 * (float)knot_streams(k);
	bool alone = m->weight[0] >= KNOWN_FROM && m->weight[1] >= KNOWN_FROM;
	m->curve.measured = (alone ? ENERGY_MEASURED_ALONE : 0) |
		(m->weight[PREFILL] >= KNOWN_FROM ? ENERGY_MEASURED_PREFILL : 0) |
		(m->limit > 0 ? ENERGY_LIMITED : 0);
}

static void curve_compile(struct energy_model *m)
{
	struct energy_curve *c = &m->curve;
	for (size_t k = 0; k < ENERGY_KNOTS; k++) {
		bool known = m->weight[k] >= KNOWN_FROM || k == 0;
		c->decode[k] = known
			? m->knot[k]
			: limit_apply(m, usual_shape.decode[k] * factor_near(m, &usual_shape, k));
		if (k > 0 && c->decode[k] < c->decode[k - 1])
			c->decode[k] = c->decode[k - 1];
	}
	c->prefill = m->weight[PREFILL] >= KNOWN_FROM
		? m->prefill
		: limit_apply(m, usual_shape.prefill * c->decode[4] / usual_shape.decode[4]);
	if (c->prefill < c->decode[1])
		c->prefill = c->decode[1];
	measured_note(m);
}

void energy_model_init(struct energy_model *m, double limit_w)
{
	bool known = limit_w > 0 && limit_w < MOST_W;
	float limit = (float)(known ? limit_w : LIMIT_W);
	*m = (struct energy_model){.prefill = usual_shape.prefill * limit, .limit = known ? limit : 0};
	for (size_t k = 0; k < ENERGY_KNOTS; k++)
		m->knot[k] = usual_shape.decode[k] * limit;
	curve_compile(m);
}

static double idle_of(const struct energy_sample *s)
{
	double rest = s->seconds - s->prefill_s - s->decode_s;
	return rest > 0 ? rest : 0;
}

double energy_expected_idle(const struct energy_curve *c, const struct energy_sample *s)
{
	return idle_of(s) * (double)c->decode[0];
}

double energy_expected(const struct energy_curve *c, const struct energy_sample *s)
{
	double streams = s->decode_s > 0 ? s->streams_s / s->decode_s : 0;
	return energy_expected_idle(c, s) + s->decode_s * energy_decode_watts(c, streams) +
		s->prefill_s * (double)c->prefill;
}

static bool is_sample(const struct energy_sample *s)
{
	double slack = s->seconds * 1.01;
	return s->seconds >= 1e-3 && s->seconds < 3600 && s->joules > 0 && s->joules < MOST_W * s->seconds &&
		s->prefill_s >= 0 && s->decode_s >= 0 && s->prefill_s + s->decode_s <= slack &&
		s->streams_s >= 0 && s->streams_s < 1e6 * s->seconds;
}

/* Fill |x| with the share of the span that each knot has. */
static void shares_fill(const struct energy_sample *s, double x[ENERGY_KNOTS + 1])
{
	double share, streams = s->decode_s > 0 ? s->streams_s / s->decode_s : 0;
	size_t k = knot_below(streams, &share);
	memset(x, 0, (ENERGY_KNOTS + 1) * sizeof x[0]);
	x[0] = idle_of(s) / s->seconds;
	x[k] += s->decode_s / s->seconds * (1 - share);
	x[k + 1] += s->decode_s / s->seconds * share;
	x[PREFILL] = s->prefill_s / s->seconds;
}

/* Take the share of the error of |knot| whose share of the span is |x|. */
static void knot_learn(float *knot, float *weight, float from, double x, double error, double square)
{
	if (x <= 0)
		return;
	double gain = 1.0 / (1 + (double)*weight);
	if (*weight < KNOWN_FROM) /* Go on from what the curve said. */
		*knot = from;
	gain = gain > LEAST_GAIN ? gain : LEAST_GAIN;
	double now = (double)*knot + gain * error * x / square;
	*knot = (float)(now > 0.1 ? now : 0.1);
	*weight += (float)x;
}

void energy_learn(struct energy_model *m, const struct energy_sample *s)
{
	double x[ENERGY_KNOTS + 1], square = 0;
	if (!is_sample(s))
		return;
	double expected = energy_expected(&m->curve, s) / s->seconds, counted = s->joules / s->seconds,
	       most = expected * TRUST;
	double error = (counted < most ? counted : most) - expected, share = error / counted;
	share = share < 0 ? -share : share;
	m->samples++;
	if (m->samples > 1)
		m->error += ((float)share - m->error) /
			(float)(m->samples - 1 < ERROR_SPAN ? m->samples - 1 : ERROR_SPAN);
	shares_fill(s, x);
	for (size_t k = 0; k <= ENERGY_KNOTS; k++)
		square += x[k] * x[k];
	for (size_t k = 0; k < ENERGY_KNOTS; k++)
		knot_learn(&m->knot[k], &m->weight[k], m->curve.decode[k], x[k], error, square);
	knot_learn(&m->prefill, &m->weight[PREFILL], m->curve.prefill, x[PREFILL], error, square);
	curve_compile(m);
}

/* ---- decisions ---- */

double energy_marginal(const struct energy_curve *c, const struct energy_ask *a)
{
	double idle = (double)c->decode[0], before = energy_decode_watts(c, a->streams),
	       after = energy_decode_watts(c, a->streams + 1);
	double prompt = a->prefill_ms * ((double)c->prefill - idle);
	double answer = a->answer_tokens * (a->step_ms + a->batch_ms * a->streams) * (after - before);
	double others = a->streams > 0 ? a->answer_tokens * a->batch_ms * (before - idle) : 0;
	return (prompt + answer + others) * 1e-3;
}

static double joules_per_token(const struct energy_curve *c, double streams, double step_ms, double batch_ms)
{
	return energy_decode_watts(c, streams) * (step_ms + batch_ms * (streams - 1)) * 1e-3 / streams;
}

uint32_t energy_knee(const struct energy_curve *c, double step_ms, double batch_ms, uint32_t most,
	double slack)
{
	double least = joules_per_token(c, 1, step_ms, batch_ms);
	for (uint32_t b = 2; b <= most; b++) {
		double j = joules_per_token(c, b, step_ms, batch_ms);
		least = j < least ? j : least;
	}
	for (uint32_t b = 1; b < most; b++)
		if (joules_per_token(c, b, step_ms, batch_ms) <= least * (1 + slack))
			return b;
	return most;
}
