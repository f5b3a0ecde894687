/* SPDX-License-Identifier: Apache-2.0 */
/* power: the measurements of a machine, in one shape for all sources (NVML, RAPL, Redfish, IPMI, hwmon), and
 * what a node draws, without counting a watt twice. A reading that is not fresh is shown as such and never
 * used. Pure; times are instants of the reader's monotonic clock, never of the device's, so a device whose
 * clock is wrong does no harm. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"

/* In the order in which sources are preferred where two measure the same: nearest to the thing measured first. */
enum power_source {
	POWER_FROM_NVML,
	POWER_FROM_DCGM, /* NVML, as NVIDIA's DCGM exporter tells it */
	POWER_FROM_RAPL,
	POWER_FROM_REDFISH,
	POWER_FROM_IPMI,
	POWER_FROM_HWMON,
	POWER_SOURCES
};
enum power_component {
	POWER_NODE,    /* The whole machine, as it tells itself (DCMI) */
	POWER_CHASSIS, /* The whole machine, as its enclosure's meter tells it */
	POWER_PSU,     /* The input of one power supply */
	/* Parts of the machine; the rest is what has no component of its own. */
	POWER_GPU,
	POWER_CPU,
	POWER_DRAM,
	POWER_FAN,
	POWER_DISK,
	POWER_NETWORK,
	POWER_OTHER,
	POWER_COMPONENTS
};
enum power_quantity {
	POWER_WATTS,
	POWER_LIMIT_WATTS,
	POWER_JOULES, /* A counter: only differences mean something (struct power_counter) */
	POWER_CELSIUS,
	POWER_HERTZ,
	POWER_BYTES,
	POWER_SHARE, /* 0 to 1 */
	POWER_FLAG,  /* 0 or 1 */
	POWER_QUANTITIES
};
enum power_state {
	POWER_FRESH,
	POWER_STALE,  /* Was read, too long ago: shown, never used */
	POWER_ABSENT, /* There is nothing to measure: an empty bay, a reading that the device does not have */
	POWER_FAILING, /* There is something, and it could not be read */
	POWER_STATES
};
const char *power_source_name(enum power_source s);       /* "redfish" */
const char *power_component_name(enum power_component c); /* "chassis" */
const char *power_quantity_name(enum power_quantity q);   /* "watts" */
const char *power_state_name(enum power_state s);         /* "fresh" */

#define POWER_NAME_BYTES 64
#define POWER_WHY_BYTES  96
struct power_reading {
	char node[POWER_NAME_BYTES]; /* The node's id in the cluster; "": belongs to no one node */
	char part
		[POWER_NAME_BYTES]; /* Name of one of the component: "0", "PSU2", "GPU-8a56..."; "": the only one */
	char kind[24]; /* A thing of the part: "sm", "memory", "inlet", "hw_slowdown"; "": no need */
	enum power_component component;
	enum power_quantity quantity;
	enum power_source source;
	enum power_state state;    /* As the reader saw it; power_state_now judges the age too */
	double value;              /* Finite when state is FRESH or STALE; else 0 */
	cgn_nsec time;             /* When it was read */
	cgn_nsec max_age;          /* Fresh for so long; 0: never fresh */
	char why[POWER_WHY_BYTES]; /* Not FRESH: the reason, for people */
};

/* Reasons for a GPU's clocks below the highest, by bit, as NVML and DCGM number them. */
struct power_slow_reason {
	uint64_t bit;
	const char *name; /* "hardware_thermal" */
	bool is_heat;     /* By heat or a power brake: the GPU is slower than it was sold */
};
extern const struct power_slow_reason power_slow_reasons[];
extern const size_t power_n_slow_reasons;

/* ---- judge ---- */
/* Return the state at |now|: FRESH readings older than max_age, and those of after |now|, are STALE; a value that is not
 * finite, or negative where that makes no sense, is FAILING. */
enum power_state power_state_now(const struct power_reading *r, cgn_nsec now);
bool power_usable(const struct power_reading *r, cgn_nsec now); /* power_state_now is FRESH. */
/* True when both are of the same thing, whenever it was read. */
bool power_same(const struct power_reading *a, const struct power_reading *b);
/* Return the age at |now|; 0 for a reading of after |now|. */
cgn_nsec power_age(const struct power_reading *r, cgn_nsec now);

/* The power of a node, and the readings that it is known from. */
struct power_sum {
	double watts;
	enum power_component by;  /* NODE, CHASSIS, PSU: the whole machine; OTHER: the sum of its parts */
	enum power_source source; /* The source of |by|; for a sum of parts that of the largest part */
	/* False: a lower bound, because parts that are not measured are not in it */
	bool is_whole;
	size_t n;     /* Readings that were added */
	cgn_nsec age; /* Age of the oldest of them */
};
/* Sum up the watts of |node| from its usable readings among |n|; one with a kind is a part of another one and is not
 * added. The first of these that is there:
 *  1. the reading of the whole machine (NODE, then CHASSIS) of the preferred source. Of several by one source the largest
 *     counts, because the others are parts of it;
 *  2. the power supplies of one source, when each of them is usable or ABSENT;
 *  3. the parts: of each component those of one source, the one with most usable readings.
 * Parts are never added to a whole. Where they draw over a tenth more than the whole, that measures something else, such
 * as the host of GPUs that have a chassis of their own: then the parts count. A whole that is below a tenth less than its parts together measures something else (the
 * host of GPUs that have a chassis of their own): then the parts count. False: nothing usable; |*out| is not touched. */
bool power_sum_of(const struct power_reading *r, size_t n, struct cgn_str node, cgn_nsec now,
	struct power_sum *out);

/* ---- counter.c: energy from a counter that may wrap, go back, or stand still ---- */
struct power_counter {
	uint64_t range_uj; /* Wraps at this value; 0: never wraps */
	double max_watts;  /* More than the part can draw: a step above it is a reset, not energy */
	uint64_t last_uj;
	cgn_nsec last; /* When |last_uj| was read; meaningless before the first step */
	bool has_last;
	double joules;   /* Since power_counter_init; never goes back */
	uint32_t resets; /* Times at which the energy in between is unknown, and was not counted */
};
void power_counter_init(struct power_counter *c, uint64_t range_uj, double max_watts);
/* Take the counter's value at |now|. True with the mean |*watts| since the last call; false when that is not known: the
 * first call, no time has passed or the clock went back, the counter was reset. A counter that went back has wrapped if
 * that gives at most max_watts; else it was reset and counts on from where it is. */
bool power_counter_step(struct power_counter *c, uint64_t uj, cgn_nsec now, double *watts);
