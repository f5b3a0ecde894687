/* SPDX-License-Identifier: Apache-2.0 */
/* metrics: the ids of the metrics in metrics.def, behind those of joint. */
#pragma once
#include "joint/report/telemetry/telemetry.h"

enum operator_metric {
	OPERATOR_METRIC_BEFORE = METRIC_JOINT_COUNT - 1,
#define METRIC METRIC_ID
#include "operator/metrics.def"
#undef METRIC
};
