/* SPDX-License-Identifier: Apache-2.0 */
/* gather: runs a task on every worker's loop and answers with the collected results on the caller's loop:
 * /metrics, /sim/state, /sim/faults, /sim/blocks, /sim/fill, /sim/clock, /reset_prefix_cache. */
#pragma once
#include "sim/server/fill.h"
#include "sim/server/worker.h"

struct sim_snapshot { /* State of one worker. */
	struct sim_counts counts;
	struct enginemodel_stats device;
	struct sim_store_stats store;
	struct sim_handoff_stats handoff;
};
enum sim_gather_kind {
	SIM_GATHER_METRICS,
	SIM_GATHER_STATE,
	SIM_GATHER_FAULTS,
	SIM_GATHER_BLOCKS,
	SIM_GATHER_FILL,
	SIM_GATHER_RESET,
	SIM_GATHER_CLOCK
};
struct sim_gather_task { /* Copied. */
	enum sim_gather_kind kind;
	struct sim_faults faults; /* For SIM_GATHER_FAULTS. */
	struct sim_fill fill;     /* For SIM_GATHER_FILL. */
	bool even_running;        /* For SIM_GATHER_RESET. */
	double clock_share;       /* For SIM_GATHER_CLOCK. */
};
struct sim_gather;
/* Start the task; |x| is answered when all workers are done, or at once with 500 and |*out| NULL when memory
 * is short.
 * |*out| must not move until it is cleared at the end or sim_gather_forget is called. */
void sim_gather_start(struct sim_worker *w, struct http_exchange *x, const struct sim_gather_task *task,
	struct sim_gather **out);
void sim_gather_forget(struct sim_gather *t); /* Call when the exchange is closed. */

/* report.c: bodies of the answers. */
void sim_report_metrics(const struct sim_cfg *cfg, const struct sim_snapshot *each, unsigned n,
	struct cgn_buf *out);
/* Append JSON objects, each followed by a comma. */
void sim_report_recent(const struct sim_worker *w, struct cgn_buf *out);
void sim_report_blocks(const struct sim_worker *w,
	struct cgn_buf *out); /* Append a JSON object and a comma. */
void sim_report_state(const struct sim_worker *w, const struct sim_snapshot *each, unsigned n,
	struct cgn_str recent, struct cgn_buf *out);
