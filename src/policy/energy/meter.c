/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/energy/meter.h"

#define SCALE_GAIN 0.3
#define SCALE_MOST 4.0

void energy_meter_init(struct energy_meter *m, double limit_w, cgn_nsec now)
{
	*m = (struct energy_meter){.at = now, .scale = 1};
	energy_model_init(&m->model, limit_w);
}

static double watts_now(const struct energy_meter *m)
{
	const struct energy_curve *c = &m->model.curve;
	return m->scale * (m->prompts ? (double)c->prefill : energy_decode_watts(c, m->streams));
}

/* Give |joules| to what runs. */
static void joules_give(struct energy_meter *m, double joules)
{
	struct energy_sums *s = &m->sums;
	double shares = m->streams + (m->prompts ? (double)ENERGY_PROMPT_SHARES : 0);
	m->ahead_j += joules;
	if (shares <= 0) {
		s->idle_j += joules;
		return;
	}
	double one = joules / shares;
	s->stream_j += one;
	s->decode_j += one * m->streams;
	if (!m->prompts)
		return;
	s->prefill_j += one * ENERGY_PROMPT_SHARES;
	s->token_j += one * ENERGY_PROMPT_SHARES / (double)(m->prompt_tokens > 0 ? m->prompt_tokens : 1);
}

static void time_pass(struct energy_meter *m, cgn_nsec now)
{
	if (now <= m->at)
		return;
	double s = (double)(now - m->at) * 1e-9, joules = s * watts_now(m);
	m->at = now;
	m->span.seconds += s;
	if (m->prompts) {
		m->span.prefill_s += s;
	} else if (m->streams > 0) {
		m->span.decode_s += s;
		m->span.streams_s += s * m->streams;
	}
	/* Joules that were given out too many are held back first. */
	double held = joules < m->hold_j ? joules : m->hold_j;
	m->hold_j -= held;
	joules_give(m, joules - held);
}

void energy_meter_load(struct energy_meter *m, uint32_t streams, uint32_t prompts, uint64_t prompt_tokens,
	cgn_nsec now)
{
	time_pass(m, now);
	m->streams = streams;
	m->prompts = prompts > 0;
	m->prompt_tokens = prompt_tokens;
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
	if (m->ahead_j < 0)
		joules_give(m, -m->ahead_j);
	m->hold_j = m->ahead_j;
}

void energy_meter_skip(struct energy_meter *m, cgn_nsec now)
{
	time_pass(m, now);
	m->ahead_j = m->hold_j = 0;
	m->span = (struct energy_sample){0};
}

struct energy_sums energy_meter_sums(struct energy_meter *m, cgn_nsec now)
{
	time_pass(m, now);
	m->sums.watts = watts_now(m);
	return m->sums;
}
