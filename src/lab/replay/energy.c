/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "lab/replay/replay_priv.h"

#define NEVER UINT64_MAX

static double seconds_of(cgn_nsec t)
{
	return (double)t * 1e-9;
}

/* Return the node's share of its highest clock. */
static double clock_of(const struct replay *r, const struct replay_server *n)
{
	bool decodes = n->node->info->role == COGNITORA__V1__ROLE__ROLE_DECODE;
	return decodes && r->cfg->decode_clock > 0 ? r->cfg->decode_clock : 1;
}

static double idle_watts(const struct replay *r, const struct replay_draw *d)
{
	const struct gpu *gpu = r->cfg->gpu;
	return d->state == REPLAY_PARKED    ? gpu->parked_w
		: d->state == REPLAY_WAKING ? gpu->loading_w
					    : (double)gpu->watts.decode[0];
}

/* Give the router the known facts of the node's power. */
static void node_publish(struct replay *r, struct replay_server *n)
{
	unsigned flags = n->draw.state == REPLAY_AWAKE ? 0
		: n->draw.state == REPLAY_LEAVING      ? ENERGY_LEAVING
						       : ENERGY_PARKED;
	struct energy_curve c = n->draw.meter.model.curve;
	if (n->draw.state == REPLAY_PARKED || n->draw.state == REPLAY_WAKING)
		c.decode[0] = (float)idle_watts(r, &n->draw);
	energy_board_set(r->energy, n->node->slot, &c, flags);
}

void energy_open(struct replay *r)
{
	const struct gpu *gpu = r->cfg->gpu;
	r->next_second = NEVER;
	if (gpu == NULL)
		return;
	r->next_second = CGN_SEC;
	r->energy = energy_board_new(ROUTE_MAX_NODES);
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		energy_meter_init(&r->nodes[i].draw.meter, gpu->limit_w, 0);
		energy_counter_init(&r->nodes[i].draw.counter, 0, gpu->limit_w);
		r->nodes[i].draw.idle_from = 1;
		node_publish(r, &r->nodes[i]); /* The usual shape, at the GPU's limit. */
		const struct gpu_clocked clocked = gpu_at_clock(clock_of(r, &r->nodes[i]));
		enginemodel_slow(r->nodes[i].engine, clocked.decode_time, clocked.prefill_time);
	}
}

void energy_close(struct replay *r)
{
	energy_board_free(&r->energy);
	free(r->second_w);
}

/* Add joules that were used evenly from |from| to |to| to the seconds there. */
static void seconds_add(struct replay *r, cgn_nsec from, cgn_nsec to, double joules)
{
	size_t last = (size_t)(to / CGN_SEC), first = (size_t)(from / CGN_SEC);
	if (last >= r->n_seconds) {
		size_t n = 2 * last + 3600;
		double *v = realloc(r->second_w, n * sizeof *v);
		if (v == NULL) {
			r->no_memory = true;
			return;
		}
		memset(v + r->n_seconds, 0, (n - r->n_seconds) * sizeof *v);
		r->second_w = v;
		r->n_seconds = n;
	}
	if (to <= from)
		return;
	for (size_t s = first; s <= last; s++) {
		cgn_nsec a = s * CGN_SEC > from ? s * CGN_SEC : from,
			 b = (s + 1) * CGN_SEC < to ? (s + 1) * CGN_SEC : to;
		r->second_w[s] += joules * seconds_of(b - a) / seconds_of(to - from);
	}
}

/* Count the idle time until |until|. */
static void idle_settle(struct replay *r, struct replay_draw *d, cgn_nsec until)
{
	if (d->idle_from == 0 || until <= d->idle_from)
		return;
	double joules = idle_watts(r, d) * seconds_of(until - d->idle_from);
	seconds_add(r, d->idle_from, until, joules);
	d->joules += joules;
	r->result->energy.idle_j += joules;
	d->idle_from = until;
}

void energy_step(struct replay *r, struct replay_server *n, cgn_nsec until)
{
	const struct gpu *gpu = r->cfg->gpu;
	struct replay_draw *d = &n->draw;
	if (gpu == NULL)
		return;
	idle_settle(r, d, r->now);
	d->idle_from = until == 0 ? r->now + (r->now == 0) : 0;
	if (until == 0)
		return;
	const struct enginemodel_step_parts p = enginemodel_step_parts(n->engine);
	const double idle = (double)gpu->watts.decode[0];
	cgn_nsec all = until - r->now;
	double joules = seconds_of(all) * idle +
		gpu_at_clock(clock_of(r, n)).watts *
			(seconds_of(p.prefill) * ((double)gpu->watts.prefill - idle) +
				seconds_of(p.decode) * (energy_decode_watts(&gpu->watts, p.decodes) - idle));
	seconds_add(r, r->now, until, joules);
	d->joules += joules;
	r->result->energy.busy_s += seconds_of(all);
}

/* ---- the shares of requests, as the agent counts them ---- */

static void load_tell(struct replay *r, struct replay_draw *d)
{
	energy_meter_load(&d->meter, &(struct energy_load){d->streams, d->prompts, d->prompt_tokens}, r->now);
}

static uint32_t prompt_of(const struct replay_flight *f)
{
	return f->leg == REPLAY_DECODE ? 1 : f->call.request->input;
}

void energy_came(struct replay *r, struct replay_flight *f)
{
	struct replay_draw *d = &r->nodes[f->node].draw;
	if (r->cfg->gpu == NULL)
		return;
	f->from_j = energy_meter_sums(&d->meter, r->now).token_j;
	d->prompts++;
	d->prompt_tokens += prompt_of(f);
	d->asked_s += f->ticket.new_tokens / r->cfg->prefill_tokens_per_s;
	load_tell(r, d);
}

void energy_first(struct replay *r, struct replay_flight *f)
{
	struct replay_draw *d = &r->nodes[f->node].draw;
	if (r->cfg->gpu == NULL)
		return;
	const struct energy_sums s = energy_meter_sums(&d->meter, r->now);
	f->joules += (s.token_j - f->from_j) * (prompt_of(f) + 1.0);
	f->from_j = s.stream_j;
	d->prompts--;
	d->prompt_tokens -= prompt_of(f);
	d->streams++;
	load_tell(r, d);
}

void energy_left(struct replay *r, struct replay_flight *f)
{
	struct replay_draw *d = &r->nodes[f->node].draw;
	if (r->cfg->gpu == NULL)
		return;
	double joules = f->joules + energy_meter_sums(&d->meter, r->now).stream_j - f->from_j;
	r->result->energy.requests_j += joules;
	quotes_left(r, f, joules);
	f->joules = 0;
	d->streams--;
	load_tell(r, d);
}

/* ---- once a second ---- */

static void counter_read(struct replay *r, struct replay_server *n)
{
	struct replay_draw *d = &n->draw;
	double joules, seconds;
	idle_settle(r, d, r->now);
	enum energy_counted got =
		energy_counter_read(&d->counter, (uint64_t)(d->joules * 1e6), r->now, &joules, &seconds);
	if (got == ENERGY_SPAN && (d->state == REPLAY_AWAKE || d->state == REPLAY_LEAVING))
		energy_meter_counted(&d->meter, joules, seconds, r->now);
	else
		energy_meter_skip(&d->meter, r->now);
	r->result->energy.awake_s += d->state != REPLAY_PARKED;
}

void energy_node_power(struct replay *r, struct replay_server *n, enum replay_power to)
{
	struct replay_draw *d = &n->draw;
	idle_settle(r, d, r->now);
	d->state = to;
	d->since = r->now;
	d->ready = r->now + r->cfg->wake;
	if (to == REPLAY_PARKED) {
		stores_save(r, n);
		(void)enginemodel_reset(n->engine, false, false);
		replay_report_blocks(n);
		r->result->energy.parked++;
		scale_went(r);
	}
	r->result->energy.woken += to == REPLAY_WAKING;
}

void energy_second(struct replay *r)
{
	r->next_second += CGN_SEC;
	for (uint32_t i = 0; i < r->cfg->nodes; i++)
		counter_read(r, &r->nodes[i]);
	parks_second(r);
	scale_second(r);
	for (uint32_t i = 0; i < r->cfg->nodes; i++)
		node_publish(r, &r->nodes[i]);
}

void energy_sum_up(struct replay *r)
{
	struct replay_energy *e = &r->result->energy;
	double error = 0;
	if (r->cfg->gpu == NULL)
		return;
	for (uint32_t i = 0; i < r->cfg->nodes; i++) {
		idle_settle(r, &r->nodes[i].draw, r->now);
		e->joules += r->nodes[i].draw.joules;
		error += (double)r->nodes[i].draw.meter.model.error;
	}
	e->error = error / r->cfg->nodes;
	hours_sum_up(r);
	for (size_t s = 0; s < r->n_seconds && s < (size_t)(r->now / CGN_SEC); s++)
		e->most_w = r->second_w[s] > e->most_w ? r->second_w[s] : e->most_w;
}
