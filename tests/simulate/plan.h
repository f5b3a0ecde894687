/* SPDX-License-Identifier: Apache-2.0 */
/* plan: the choices of a seed: the cluster, its load and its faults. Each knob is drawn from the seed and its own
 * name, so that setting one by hand leaves the others as they are. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum odd {
#define ODD(id, fault, harmless, meaning) ODD_##id,
#include "odd.def"
#undef ODD
	ODD_COUNT
};
enum dialect {
#define HANDOFF(id, name) DIALECT_##id,
#include "handoffs.def"
#undef HANDOFF
	DIALECT_COUNT
};
enum knob {
#define KNOB(name, least, drawn, meaning) KNOB_##name,
#include "knobs.def"
#undef KNOB
	KNOB_COUNT
};
struct plan {
	uint64_t seed;
	uint64_t at[KNOB_COUNT];
	bool set[KNOB_COUNT]; /* By hand */
};
extern struct plan plan;
#define PLAN(name) (plan.at[KNOB_##name])

/* Draw the knobs that are not set. */
void plan_draw(uint64_t seed);
/* Set a knob by "name=value". False: there is no such knob. */
bool plan_set(const char *text);
const char *knob_name(enum knob k);
uint64_t knob_least(enum knob k); /* The value at which the run is simplest */
const char *knob_meaning(enum knob k);
const char *odd_fault(
	enum odd o); /* Name of a fault of cgn-sim; empty: a proxy does it, or nothing is wrong */
bool odd_is_harmless(enum odd o);
const char *handoff_name(enum dialect d);
/* Print the knobs that differ from their simplest values. */
void plan_print(void);
