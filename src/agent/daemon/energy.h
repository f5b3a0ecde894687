/* SPDX-License-Identifier: Apache-2.0 */
/* energy: the node's energy as its GPUs and RAPL count it, and the share of it that streams and prompts have
 * (policy/power/energy). One loop. */
#pragma once
#include "agent/gpu/gpu.h"
#include "cognitora/v1/agent.pb-c.h"
#include "joint/power/powersrc/powersrc.h"
#include "policy/power/energy/meter.h"

struct node_energy {
	struct telemetry *telemetry;
	struct energy_meter meter;
	struct energy_counter counter;
	struct energy_load load;
	double told_j[3];    /* Whole joules in the metrics: prefill, decode, idle. */
	bool known;          /* The counter moves: routers are told. */
	bool begun, stopped; /* |stopped|: said in the log. */
	bool hot;
	double node_w; /* Measured; 0: unknown. */
	/* Mean of the watts that the machine's meter shows beyond the counters; 0: it has none. */
	double extra_w;
	bool is_told; /* Routers have had heat or watts: they get changes. */
};
void node_energy_init(struct node_energy *e, struct telemetry *t, cgn_nsec now);
/* Read the counters; call about once a second. |sum|: the node's power now; NULL: unknown. */
void node_energy_read(struct node_energy *e, const struct gpus *g, const struct powersrc *p,
	const struct power_sum *sum, cgn_nsec now);
/* Is there anything to tell routers: energy, heat, or watts? */
bool node_energy_speaks(const struct node_energy *e);
void node_energy_load(struct node_energy *e, const struct energy_load *load, cgn_nsec now);
/* Fill the report for routers; |watts| has room for ENERGY_KNOTS + 1 numbers, which |out| borrows. */
void node_energy_tell(struct node_energy *e, Cognitora__V1__Energy *out, float *watts, cgn_nsec now);
