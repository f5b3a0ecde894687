/* SPDX-License-Identifier: Apache-2.0 */
/* metrics: the ids of the metrics in metrics.def, behind those of joint. */
#pragma once
#include "joint/report/telemetry/telemetry.h"

enum kvcached_metric {
	KVCACHED_METRIC_BEFORE = METRIC_JOINT_COUNT - 1,
#define METRIC METRIC_ID
#include "kvcached/daemon/metrics.def"
#undef METRIC
};

/* Raise a counter to |now|, which is counted elsewhere. */
static inline void metrics_count_up(struct metric_cell *c, uint64_t now)
{
	metric_add(c, now - metric_count(c));
}
