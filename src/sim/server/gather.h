/* SPDX-License-Identifier: Apache-2.0 */
/* tour: a question that visits each worker on its own loop and is answered on the loop it came from:
 * /metrics, /sim/state, /sim/faults, /sim/blocks, /sim/fill, /reset_prefix_cache. */
#pragma once
#include "sim/server/fill.h"
#include "sim/server/worker.h"

struct sim_snapshot { /* of one worker */
	struct sim_counts counts;
	struct enginemodel_stats device;
	struct sim_store_stats store;
};
enum sim_gather_kind {
	SIM_GATHER_METRICS,
	SIM_GATHER_STATE,
	SIM_GATHER_FAULTS,
	SIM_GATHER_BLOCKS,
	SIM_GATHER_FILL,
	SIM_GATHER_RESET
};
struct sim_gather_task { /* copied */
	enum sim_gather_kind kind;
	struct sim_faults faults; /* for SIM_GATHER_FAULTS */
	struct sim_fill fill;     /* for SIM_GATHER_FILL */
	bool even_running;        /* for SIM_GATHER_RESET */
};
struct sim_gather;
/* Answers |x| later, or now with 500 when memory is short; *out is NULL then. *out must stay where it is
 * until the tour clears it or is forgotten. */
void sim_gather_start(struct sim_worker *w, struct http_exchange *x, const struct sim_gather_task *errand,
	struct sim_gather **out);
void sim_gather_forget(struct sim_gather *t); /* its exchange is gone */

/* show.c: the answers' texts. */
void sim_report_metrics(const struct sim_cfg *cfg, const struct sim_snapshot *each, unsigned n,
	struct cgn_buf *out);
/* JSON objects, each with a comma behind */
void sim_report_recent(const struct sim_worker *w, struct cgn_buf *out);
void sim_report_blocks(const struct sim_worker *w,
	struct cgn_buf *out); /* a JSON object with a comma behind */
void sim_report_state(const struct sim_worker *w, const struct sim_snapshot *each, unsigned n,
	struct cgn_str recent, struct cgn_buf *out);
