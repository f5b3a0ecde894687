/* SPDX-License-Identifier: Apache-2.0 */
/* series: a worker's metric cells of one model. */
#pragma once
#include "policy/node/engine/estimate.h"
#include "router/request/account/account.h"

#define SERIES_MAX_STATUSES 32

struct gw_series {
	struct cgn_str model; /* owned */
	struct metric_cell *request, *ttft, *itl, *queue;
	struct {
		int status;
		struct metric_cell *cell;
	} statuses[SERIES_MAX_STATUSES];
	size_t n_statuses;
	cgn_nsec gone_at;         /* When no node was seen to have the model; 0: some node has it */
	double joules;            /* Moving average of the joules of a request */
	double answer_tokens;     /* Moving average of the tokens of an answer */
	struct estimate estimate; /* Figures for answers that no engine counts */
};

/* Return the series of |model|; w->other, with the label "other", once there are too many. */
struct gw_series *series_of(struct gw_worker *w, struct cgn_str model);
/* Return the counter of answers with |status|. */
struct metric_cell *series_status(struct telemetry *t, struct gw_series *s, int status);
