/* SPDX-License-Identifier: Apache-2.0 */
/* power: the readings of this node in the metrics and at /power: RAPL and hwmon, read once a second on the pool, because a
 * sensor behind a slow bus takes tens of milliseconds, and the GPUs of agent/gpu. One loop, its thread. */
#pragma once
#include "agent/gpu/gpu.h"
#include "joint/power/powerpoll/powerpoll.h"

struct node_power;
CGN_RC node_power_open(struct cgn_loop *l, struct telemetry *t, const char *node, const char *sysfs,
	const struct gpus *gpus, struct node_power **out, struct cgn_err *err);
void node_power_close(struct node_power **take);                  /* NULL-safe. */
bool node_power_sum(struct node_power *p, struct power_sum *out); /* The node's power now; false: unknown. */
void node_power_fill(struct node_power *p, struct pb_tree *t, Cognitora__V1__Power *to);
