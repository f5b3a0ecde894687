/* SPDX-License-Identifier: Apache-2.0 */
/* tour: a question that visits each worker on its own loop and is answered on the loop it came from:
 * /metrics, /sim/state, /sim/faults, /sim/blocks, /sim/fill, /reset_prefix_cache. */
#pragma once
#include "sim/fill.h"
#include "sim/worker.h"

struct sim_snapshot { /* of one worker */
	struct sim_counts counts;
	struct enginemodel_stats device;
	struct sim_store_stats store;
};
enum sim_tour_kind {
	SIM_TOUR_METRICS,
	SIM_TOUR_STATE,
	SIM_TOUR_FAULTS,
	SIM_TOUR_BLOCKS,
	SIM_TOUR_FILL,
	SIM_TOUR_RESET
};
struct sim_errand { /* copied */
	enum sim_tour_kind kind;
	struct sim_faults faults; /* for SIM_TOUR_FAULTS */
	struct sim_fill fill;     /* for SIM_TOUR_FILL */
	bool even_running;        /* for SIM_TOUR_RESET */
};
struct sim_tour;
/* Answers |x| later, or now with 500 when memory is short; *out is NULL then. *out must stay where it is
 * until the tour clears it or is forgotten. */
void sim_tour_start(struct sim_worker *w, struct http_exchange *x, const struct sim_errand *errand,
	struct sim_tour **out);
void sim_tour_forget(struct sim_tour *t); /* its exchange is gone */

/* show.c: the answers' texts. */
void sim_show_metrics(const struct sim_cfg *cfg, const struct sim_snapshot *each, unsigned n,
	struct cgn_buf *out);
/* JSON objects, each with a comma behind */
void sim_show_recent(const struct sim_worker *w, struct cgn_buf *out);
void sim_show_blocks(const struct sim_worker *w, struct cgn_buf *out); /* a JSON object with a comma behind */
void sim_show_state(const struct sim_worker *w, const struct sim_snapshot *each, unsigned n,
	struct cgn_str recent, struct cgn_buf *out);
