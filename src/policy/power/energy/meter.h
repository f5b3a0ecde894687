/* SPDX-License-Identifier: Apache-2.0 */
/* meter: divides the energy of one node among the requests that run there. Pure; one thread.
 *
 * The rule: while anything runs, all of the node's energy belongs to what runs, its idle power included. Each
 * stream that is being answered has one share, and all prompts that are being computed have ENERGY_PROMPT_SHARES
 * together, divided by their tokens + 1 each. While nothing runs, the energy belongs to no request and is counted as idle. So
 * the joules of all requests and the idle joules add up to the counter.
 *
 * The meter keeps two running sums: the joules of one share of a stream (stream_j), and of one token of a
 * prompt (token_j). A request's joules are its tokens + 1 times the rise of token_j until its first byte, and
 * the rise of stream_j from then to its end. Between two readings of the counter the power is what the node's
 * curve expects; each reading is compared with that, and the difference is made up from then on: with at most
 * METER_DEBT of what requests use, so that no single one pays for others, and with all joules that are used
 * while nothing runs. A router tells no request more than its node's highest plausible watts for the time that it was there
 * (energy_board_most_watts). The load leaves out requests for a prompt's tokens or template.
 *
 * The scale is how the node differs from its curve for now (a clock, its temperature). Spans in which requests ran for
 * METER_BUSY of the time or more teach it, by the joules beyond the expected idle part. It holds for loads that are not idle, and
 * stays within METER_SCALE_LEAST and METER_SCALE_MOST: a larger difference is an error of the curve, which learns it. */
#pragma once
#include "policy/power/energy/energy.h"

#define METER_DEBT        0.25
#define METER_BUSY        0.25
#define METER_SCALE_LEAST 0.5
#define METER_SCALE_MOST  2.0
#define METER_SHORT       0.25

struct energy_sums {
	double stream_j, token_j; /* As above; they never fall. */
	double prefill_j, decode_j,
		idle_j; /* The sum is what the counter counted, but for the last moments. */
	double watts;   /* Expected now. */
};
struct energy_meter {
	struct energy_model model;
	struct energy_sums sums;
	cgn_nsec at;
	struct energy_load load;
	double ahead_j; /* Joules given out beyond what the counter counted; negative: too few. */
	double debt_j;  /* Joules still to be given since the last reading; negative: to be held back. */
	struct energy_sample span; /* Since the last reading, for the model. */
	double scale;              /* Counted over expected while requests ran, lately. */
	double counted_w;          /* Mean of the last span; 0: none yet. */
	double short_w; /* So much more was counted than expected of the load: the most lately, which falls by METER_SHORT a span. */
};
void energy_meter_init(struct energy_meter *m, double limit_w, cgn_nsec now);
/* The load is |load| from |now| on: streams that are being answered, and prompts with their tokens to compute. */
void energy_meter_load(struct energy_meter *m, const struct energy_load *load, cgn_nsec now);
/* The counter says that |joules| were used in the |seconds| that end at |now|. The model learns from it. */
void energy_meter_counted(struct energy_meter *m, double joules, double seconds, cgn_nsec now);
/* The counter's span is lost: begin another at |now|. Joules that requests have stay theirs. */
void energy_meter_skip(struct energy_meter *m, cgn_nsec now);
struct energy_sums energy_meter_sums(struct energy_meter *m, cgn_nsec now);
/* Return the factor on the curve by which joules are given out now: the scale, and the part of the debt that is made up
 * for until the next report. */
double energy_meter_pace(const struct energy_meter *m);
