/* SPDX-License-Identifier: Apache-2.0 */
/* traffic: totals of all workers: of about the last minute for cluster status, and of the last hour for the page. On
 * the control loop. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "joint/report/telemetry/telemetry.h"

struct router;

/* The series of /history. */
enum router_series {
#define SERIES(id, member) ROUTER_SERIES_##id,
#include "router/control/control/series.def"
#undef SERIES
	ROUTER_SERIES
};

/* Totals since the start, noted every ten seconds: the oldest of |note| is about a minute old. traffic.c */
#define ROUTER_NOTES 7
struct router_totals {
	cgn_nsec at;
	struct metric_totals requests, failed, refused, prompt, completion, cached, predicted;
	struct metric_times ttft, itl;
};
struct router_traffic {
	struct router_totals note[ROUTER_NOTES];
	size_t n, next;
};

/* The last hour, one point for every ten seconds. history.c */
#define ROUTER_POINTS 360
struct router_point {
	uint64_t at_ms; /* Unix time of its end. */
	float v[ROUTER_SERIES];
};
struct router_history {
	struct router_totals before; /* Totals at the end of the newest point. */
	struct router_point point[ROUTER_POINTS];
	size_t n, next;
};

/* traffic.c: note totals when it is time; fill the traffic since the oldest note, at most the last 70 seconds. */
void router_traffic_note(struct router *r);
void router_traffic_fill(struct router *r, Cognitora__V1__TrafficStatus *to);
/* history.c: add a point from |now|, ten seconds after the one before; fill all points, oldest first. */
void router_history_note(struct router *r, const struct router_totals *now);
void router_history_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__History *to);
