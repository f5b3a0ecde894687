/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/daemon/energy.h"

#include "agent/metrics.h"
#include "base/log/log.h"

#define EXTRA_GAIN 0.2

static const char *const phases[] = {"prefill", "decode", "idle"};

void node_energy_init(struct node_energy *e, struct telemetry *t, cgn_nsec now)
{
	*e = (struct node_energy){.telemetry = t};
	energy_meter_init(&e->meter, 0, now);
}

/* The first span shows which parts there are: the curve begins at their limits. */
static void meter_begin(struct node_energy *e, double limit_w, cgn_nsec now)
{
	e->begun = true;
	energy_meter_init(&e->meter, limit_w, now);
	e->meter.load.whole_us = e->load.whole_us; /* Prompts of before are computed. */
	energy_meter_load(&e->meter, &e->load, now);
	cgn_log(INFO, "agent.energy", F_F64("limit_watts", limit_w));
}

/* Count whole joules; the rest stays for the next reading. */
static void metrics_set(struct node_energy *e, cgn_nsec now)
{
	const struct energy_sums s = energy_meter_sums(&e->meter, now);
	const double joules[] = {s.prefill_j, s.decode_j, s.idle_j};
	for (size_t i = 0; i < CGN_COUNT(phases); i++) {
		uint64_t whole = joules[i] > e->told_j[i] ? (uint64_t)(joules[i] - e->told_j[i]) : 0;
		metric_add(METRIC_OF(e->telemetry, NODE_JOULES, phases[i]), whole);
		e->told_j[i] += (double)whole;
	}
	metric_set(METRIC_ONE(e->telemetry, NODE_WATTS), s.watts);
	metric_set(METRIC_ONE(e->telemetry, ENERGY_ERROR), (double)e->meter.model.error);
}

static void counter_stopped(struct node_energy *e, cgn_nsec now)
{
	energy_meter_skip(&e->meter, now);
	if (e->known)
		cgn_log_limited(WARN, "agent.energy_stopped",
			F_STR("why", "no counter of energy has moved for 10 s"),
			F_STR("then", "joules are not counted until one moves"));
	e->known = false;
}

/* A meter is a mean over some time, so what it shows beyond the counters is one too. */
static void extra_learn(struct node_energy *e, const struct power_sum *sum, double counted_w)
{
	double extra = sum != NULL && sum->is_whole && sum->watts > counted_w ? sum->watts - counted_w : 0;
	e->extra_w = sum == NULL || !sum->is_whole ? 0
		: e->extra_w > 0                   ? e->extra_w + EXTRA_GAIN * (extra - e->extra_w)
						   : extra;
}

void node_energy_read(struct node_energy *e, const struct gpus *g, const struct powersrc *p,
	const struct power_sum *sum, cgn_nsec now)
{
	double joules = g->joules + p->joules, limit = gpus_limit_watts(g) + powersrc_limit_watts(p),
	       most = gpus_most_watts(g) + powersrc_most_watts(p), span = 0, seconds = 0;
	e->hot = gpus_hot(g);
	e->node_w = sum != NULL ? sum->watts : 0;
	e->is_told = e->is_told || e->hot || e->node_w > 0;
	if (!(joules > 0))
		return;
	if (e->counter.counter.max_watts <= 0)
		energy_counter_init(&e->counter, 0, most > 0 ? most : 1e5);
	switch (energy_counter_read(&e->counter, (uint64_t)(joules * 1e6), now, &span, &seconds)) {
	case ENERGY_SPAN:
		extra_learn(e, sum, span / seconds);
		if (!e->begun)
			meter_begin(e, limit, now);
		else
			energy_meter_counted(&e->meter, span, seconds, now);
		e->known = true;
		break;
	case ENERGY_FIRST:
		energy_meter_skip(&e->meter, now);
		break;
	case ENERGY_STOPPED:
		counter_stopped(e, now);
		break;
	case ENERGY_WAITING:
		break;
	}
	if (e->known)
		metrics_set(e, now);
}

void node_energy_load(struct node_energy *e, const struct energy_load *load, cgn_nsec now)
{
	e->load = *load;
	if (e->begun)
		energy_meter_load(&e->meter, load, now);
}

void node_energy_tell(struct node_energy *e, Cognitora__V1__Energy *out, float *watts, cgn_nsec now)
{
	cognitora__v1__energy__init(out);
	out->hot = e->hot;
	out->node_watts = (float)e->node_w;
	if (!e->known)
		return;
	out->extra_watts = (float)e->extra_w;
	const struct energy_sums s = energy_meter_sums(&e->meter, now);
	const struct energy_curve *c = &e->meter.model.curve;
	memcpy(watts, c->decode, sizeof c->decode);
	watts[ENERGY_KNOTS] = c->prefill;
	out->watts = watts;
	out->n_watts = ENERGY_KNOTS + 1;
	out->error = e->meter.model.error;
	out->stream_joules = s.stream_j;
	out->token_joules = s.token_j;
	out->scale = (float)e->meter.scale;
	out->pace = (float)energy_meter_pace(&e->meter);
	out->counted_watts = (float)e->meter.counted_w;
	out->short_watts = (float)e->meter.short_w;
	out->most_streams = c->most;
	out->measured = c->measured;
	out->prompt_s = (float)e->meter.load.prompt_s;
}

bool node_energy_speaks(const struct node_energy *e)
{
	return e->begun || e->is_told;
}
