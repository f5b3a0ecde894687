/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/meter.h"

#define SCALE_GAIN 0.3
#define PACE_S     0.25 /* Routers are told so often while requests run. */

void energy_meter_init(struct energy_meter *m, double limit_w, cgn_nsec now)
{
	*m = (struct energy_meter){.at = now, .scale = 1};
	energy_model_init(&m->model, limit_w);
}

static bool load_runs(const struct energy_load *l)
{
	return l->streams > 0 || l->prompts > 0;
}

static double watts_now(const struct energy_meter *m)
{
	return (load_runs(&m->load) ? m->scale : 1) * energy_load_watts(&m->model.curve, &m->load);
}

/* Give |joules| to what runs. */
static void joules_give(struct energy_meter *m, double joules)
{
	struct energy_sums *s = &m->sums;
	m->ahead_j += joules;
	double one = energy_share(&m->load, joules, &s->stream_j, &s->token_j);
	s->decode_j += one * m->load.streams;
	s->prefill_j += m->load.prompts > 0 ? one * ENERGY_PROMPT_SHARES : 0;
	s->idle_j += one > 0 ? 0 : joules;
}

/* Return the part of the debt that is settled beside |joules|. */
static double debt_part(struct energy_meter *m, double joules)
{
	double most = load_runs(&m->load) ? METER_DEBT * joules : m->debt_j > 0 ? m->debt_j : joules;
	double part = m->debt_j > most ? most : m->debt_j < -most ? -most : m->debt_j;
	m->debt_j -= part;
	return part;
}

/* Let |span| pass, in which the load draws the same. */
static void phase_pass(struct energy_meter *m, cgn_nsec span)
{
	double s = (double)span * 1e-9, joules = s * watts_now(m);
	m->at += span;
	m->span.seconds += s;
	if (energy_load_computes(&m->load)) {
		m->span.prefill_s += s;
	} else if (load_runs(&m->load)) {
		m->span.decode_s += s;
		m->span.streams_s += s * ((double)m->load.streams + m->load.wholes);
	}
	joules_give(m, joules + debt_part(m, joules));
	energy_load_pass(&m->load, s);
}

static void time_pass(struct energy_meter *m, cgn_nsec now)
{
	while (now > m->at)
		phase_pass(m, energy_load_lasts(&m->load, cgn_since(now, m->at)));
}

void energy_meter_load(struct energy_meter *m, const struct energy_load *load, cgn_nsec now)
{
	time_pass(m, now);
	double left_s = m->load.prompt_s;
	uint64_t more_us = load->whole_us > m->load.whole_us ? load->whole_us - m->load.whole_us : 0;
	m->load = *load;
	m->load.prompt_s = load->wholes > 0 ? left_s + (double)more_us * 1e-6 : 0;
}

static double value_within(double v, double least, double most)
{
	return v > least ? (v < most ? v : most) : least;
}

static void scale_learn(struct energy_meter *m, const struct energy_sample *s)
{
	double busy = (s->prefill_s + s->decode_s) / s->seconds,
	       idle_j = energy_expected_idle(&m->model.curve, s),
	       expected = energy_expected(&m->model.curve, s) - idle_j;
	if (!(busy >= METER_BUSY) || !(expected > 0))
		return;
	double is = value_within((s->joules - idle_j) / expected, METER_SCALE_LEAST, METER_SCALE_MOST);
	m->scale += SCALE_GAIN * value_within(busy, 0, 1) * (is - m->scale);
}

/* Note the mean power of the span |s|, and by how much the curve expects too little of the span. */
static void short_note(struct energy_meter *m, const struct energy_sample *s)
{
	double idle_j = energy_expected_idle(&m->model.curve, s);
	double expected_j = idle_j + m->scale * (energy_expected(&m->model.curve, s) - idle_j);
	double now_w = (s->joules - expected_j) / s->seconds, lately_w = m->short_w * (1 - METER_SHORT);
	m->counted_w = s->joules / s->seconds;
	m->short_w = now_w > lately_w ? now_w : lately_w;
}

static void span_learn(struct energy_meter *m, double joules, double seconds)
{
	struct energy_sample s = m->span;
	if (!(seconds > 0) || s.seconds < 0.5 * seconds || s.seconds > 2 * seconds)
		return;
	s.joules = joules * s.seconds / seconds;
	energy_learn(&m->model, &s);
	scale_learn(m, &s);
	short_note(m, &s);
}

void energy_meter_counted(struct energy_meter *m, double joules, double seconds, cgn_nsec now)
{
	time_pass(m, now);
	span_learn(m, joules, seconds);
	m->span = (struct energy_sample){0};
	m->ahead_j -= joules;
	m->debt_j = -m->ahead_j;
}

void energy_meter_skip(struct energy_meter *m, cgn_nsec now)
{
	time_pass(m, now);
	m->ahead_j = m->debt_j = 0;
	m->span = (struct energy_sample){0};
}

struct energy_sums energy_meter_sums(struct energy_meter *m, cgn_nsec now)
{
	time_pass(m, now);
	m->sums.watts = watts_now(m);
	return m->sums;
}

double energy_meter_pace(const struct energy_meter *m)
{
	double share = m->debt_j / (watts_now(m) * PACE_S);
	share = share > METER_DEBT ? METER_DEBT : share < -METER_DEBT ? -METER_DEBT : share;
	return m->scale * (1 + share);
}
