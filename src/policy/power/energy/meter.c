/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/meter.h"

#define SCALE_GAIN 0.3
#define SCALE_MOST 4.0
#define PACE_S     0.25 /* Routers are told so often while requests run. */

void energy_meter_init(struct energy_meter *m, double limit_w, cgn_nsec now)
{
	*m = (struct energy_meter){.at = now, .scale = 1};
	energy_model_init(&m->model, limit_w);
}

static double watts_now(const struct energy_meter *m)
{
	return m->scale * energy_load_watts(&m->model.curve, &m->load);
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
	bool busy = m->load.streams > 0 || m->load.prompts > 0;
	double most = busy ? METER_DEBT * joules : m->debt_j > 0 ? m->debt_j : joules;
	double part = m->debt_j > most ? most : m->debt_j < -most ? -most : m->debt_j;
	m->debt_j -= part;
	return part;
}

static void time_pass(struct energy_meter *m, cgn_nsec now)
{
	if (now <= m->at)
		return;
	double s = (double)cgn_since(now, m->at) * 1e-9, joules = s * watts_now(m);
	m->at = now;
	m->span.seconds += s;
	if (m->load.prompts > 0) {
		m->span.prefill_s += s;
	} else if (m->load.streams > 0) {
		m->span.decode_s += s;
		m->span.streams_s += s * m->load.streams;
	}
	joules_give(m, joules + debt_part(m, joules));
}

void energy_meter_load(struct energy_meter *m, const struct energy_load *load, cgn_nsec now)
{
	time_pass(m, now);
	m->load = *load;
}

static void span_learn(struct energy_meter *m, double joules, double seconds)
{
	struct energy_sample s = m->span;
	if (!(seconds > 0) || s.seconds < 0.5 * seconds || s.seconds > 2 * seconds)
		return;
	s.joules = joules * s.seconds / seconds;
	energy_learn(&m->model, &s);
	double scale = m->scale + SCALE_GAIN * (s.joules / energy_expected(&m->model.curve, &s) - m->scale);
	m->scale = scale < 1 / SCALE_MOST ? 1 / SCALE_MOST : scale > SCALE_MOST ? SCALE_MOST : scale;
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
