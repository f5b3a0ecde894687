/* SPDX-License-Identifier: Apache-2.0 */
/* board: the power of a cluster's nodes, for all threads of a router: their curves, and the sums of their meters
 * (meter.h) carried on from each report to the next.
 *
 * A router that knows when its requests begin and end divides the joules between two reports as the agent does. Each
 * change of the load first gives out the joules of the load before it; a report then replaces the expected sums by the
 * agent's. So the joules of a request are the rise of the sums between its begin and its end, and those of all requests
 * add up to the agent's.
 *
 * A seat's curve is atomic. Its sums have a lock that is held for a few additions. */
#pragma once
#include <stdatomic.h>

#include "policy/power/energy/energy.h"

/* The time in which prompts were computed is kept for so many turns, of a second less one. */
#define ENERGY_LATELY 9
#define ENERGY_TURN   (CGN_SEC / (ENERGY_LATELY - 1))

/* The sums of a node's meter at an instant. */
struct energy_instant {
	double stream_j, token_j;
	cgn_nsec at; /* 0: unknown. */
};
/* All but |locked| only while it is set. */
struct energy_tally {
	atomic_flag locked;
	struct energy_load ours, others;
	double whole_tokens; /* Prompt tokens that the node's stats count as queued for whole answers of |ours|. */
	float computed_s[ENERGY_LATELY]; /* Seconds in which prompts were computed, by turns of a ring. */
	uint64_t turn;                   /* The latest one. */
	struct energy_instant told;      /* The last report; at 0: none since the node is there. */
	struct energy_instant
		base; /* The difference between |sums| and a report when the agent's meter began. */
	struct energy_instant
		sums; /* Expected. They fall where a report says less than was expected before it. */
};
struct energy_seat {
	_Atomic uint32_t decode[ENERGY_KNOTS], prefill, most, parts;
	_Atomic uint32_t flags;    /* enum energy_flag. */
	_Atomic uint32_t scale;    /* Factor on the curve until the next report. */
	_Atomic uint32_t pace;     /* The same, of the joules that requests are given (energy_meter_pace). */
	_Atomic uint64_t reported; /* Time of the last report. */
	_Atomic uint32_t node_w, extra_w, counted_w,
		short_w;         /* Measured at |measured|: struct energy_measured. */
	_Atomic uint32_t most_w; /* The highest |counted_w| since the node is there. */
	_Atomic uint32_t load_w; /* Watts of the usual curve at the load of |measured|. */
	_Atomic uint64_t measured;
	struct energy_tally tally;
};
enum energy_flag {
	ENERGY_HOT = 1,    /* The node slows down because of heat or power. */
	ENERGY_PARKED = 2, /* The engine is not there; the node takes no requests. */
	ENERGY_LEAVING = 4 /* The node answers what it has, takes no more, and counts with its load. */
};
/* All nodes of a cluster, by slot. */
struct energy_board {
	struct energy_seat *seat; /* Owned. */
	uint32_t n;
	_Atomic uint32_t top;   /* Seats from here on were never set. */
	_Atomic uint32_t price; /* Price of a joule, in times the usual one. */
};
struct energy_board *energy_board_new(uint32_t n);
void energy_board_free(struct energy_board **take);
void energy_board_price(struct energy_board *b, double times); /* 1 at first. */
double energy_board_price_of(const struct energy_board *b);
void energy_board_set(struct energy_board *b, uint32_t slot, const struct energy_curve *c, unsigned flags);
/* An agent's report of its meter. */
struct energy_report {
	struct energy_instant sums;
	double scale,
		pace; /* Factors on the curve: of the watts, and of the joules that requests are given. */
	/* The load that this router does not count; but |prompt_s| is of all. */
	struct energy_load others;
};
void energy_board_sums(struct energy_board *b, uint32_t slot, const struct energy_report *r);
void energy_board_clear(struct energy_board *b, uint32_t slot); /* The node is gone, or counts no more. */
/* A change of this router's load at a node. */
struct energy_change {
	struct energy_load less, more;
	double whole_tokens; /* Prompt tokens that the node's stats count as queued more, for whole answers. */
};
/* The load changes at |now|. Return the sums until then; at 0: unknown, or no report for ENERGY_STOP. */
struct energy_instant energy_board_count(struct energy_board *b, uint32_t slot,
	const struct energy_change *change, cgn_nsec now);
/* Return for how much of a second the node computes prompts, as the budget counts it: the time in the last second or so
 * in which it did, and the seconds that take |queued_tokens| of node_stats, at |token_ms| each. */
double energy_board_prefill(const struct energy_board *b, uint32_t slot, double queued_tokens,
	double token_ms, cgn_nsec now);
/* The power that an agent measured. 0: unknown. */
struct energy_measured {
	double node_w;    /* The power of the machine. */
	double extra_w;   /* The part of |node_w| that is not in the counters. */
	double counted_w; /* Mean of the counters' last span, about a second. */
	double short_w; /* The difference by which the curve said too little of a span, the largest lately. */
};
/* The agent's report of |at|. */
void energy_board_measured(struct energy_board *b, uint32_t slot, const struct energy_measured *m,
	cgn_nsec at);
/* Return the mean watts of a node that answers |streams| and computes prompts in the share |prefill| of the time, as the curve
 * says: times the scale of its last report, and with what its meter showed beyond its counters. Of more streams than the curve was
 * measured near, the watts of prefill. A report counts for ENERGY_STOP. Without a curve, the measured power. 0: unknown. */
double energy_board_expected(const struct energy_board *b, uint32_t slot, double streams, double prefill,
	cgn_nsec now);
/* The same and |short_w|, but at least the measured power of the last span. Without a curve, the measured power, and as many watts
 * more as the usual curve rises from the load of then to that of now. */
double energy_board_watts(const struct energy_board *b, uint32_t slot, double streams, double prefill,
	cgn_nsec now);
double energy_board_node_watts(const struct energy_board *b, uint32_t slot,
	cgn_nsec now); /* Measured; 0: unknown. */
/* Return the mean of the last second or so as the counters say, and what the meter shows beyond them; without counters as
 * energy_board_node_watts. */
double energy_board_measured_watts(const struct energy_board *b, uint32_t slot, cgn_nsec now);
/* Return the highest watts of the node that are plausible: those of its curve, which begins at its limit, or of a span that was
 * counted, whichever are more. No request is told more joules than these for its time at the node. 0: unknown. */
double energy_board_most_watts(const struct energy_board *b, uint32_t slot);
/* Fill |out|, and return the flags. A curve that is written meanwhile may be half old. */
unsigned energy_board_get(const struct energy_board *b, uint32_t slot, struct energy_curve *out);
/* Return the power of a prompt on the node beyond that of an idle node; 0: unknown. |b| may be NULL. */
double energy_prompt_watts(const struct energy_board *b, uint32_t slot);
