/* SPDX-License-Identifier: Apache-2.0 */
/* gpu: the node's NVIDIA GPUs in the metrics, the load and /gpus. Readings come from io/os/nvml, once a second;
 * values that were not read lately are left out. One loop, its thread. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/engines.pb-c.h"
#include "cognitora/v1/node.pb-c.h"
#include "io/os/loop/loop.h"
#include "io/os/nvml/nvml.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"
#include "policy/power/power/power.h"

/* The series of one GPU. */
struct gpu_series {
	char uuid[96];      /* "": the series are not shown */
	uint64_t energy_mj; /* The counter has the whole joules of it */
	cgn_nsec energy_at; /* Last reading of it */
	struct metric_cell *energy;
	struct power_counter counter;
	cgn_nsec power_at; /* Last reading of power, of a GPU that counts no energy */
};
struct gpus {
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	struct nvml *nvml; /* NULL: GPUs are not read */
	struct cgn_timer timer;
	struct nvml_view view;
	char said[200];       /* The fault that the log told last; "": none */
	bool told, is_silent; /* is_silent: the library does not return */
	struct gpu_series series[NVML_MAX_GPUS];
	double joules; /* Energy of all GPUs since the agent began */
};
void gpus_open(struct gpus *g, struct cgn_loop *l, struct telemetry *t, const struct config *cfg);
void gpus_close(struct gpus *g);           /* Does nothing when not opened. */
bool gpus_are_known(const struct gpus *g); /* True when the readings in |view| are those of now. */
/* Fill in the sums over the GPUs that are read now. */
void gpus_load(const struct gpus *g, Cognitora__V1__Load *out);
double gpus_limit_watts(const struct gpus *g); /* Return the sum of the power limits; 0: unknown. */
double gpus_most_watts(
	const struct gpus *g); /* The same, and GPU_MOST_WATTS for each GPU whose limit is not known. */
/* Return true when a GPU is slowed down by heat or a power brake, or is as hot as that. */
bool gpus_hot(const struct gpus *g);
void gpus_fill(const struct gpus *g, struct pb_tree *t, Cognitora__V1__Gpus *to);
