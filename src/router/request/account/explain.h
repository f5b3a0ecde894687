/* SPDX-License-Identifier: Apache-2.0 */
/* explain: the record of a worker's decisions, its part that a client gets for its own request, and the
 * choices of shadow policies. */
#pragma once
#include "router/request/request/request.h"

/* Open the record of a worker. |bytes|: its size; 0: no record. INVALID: the size is too small; NO_MEMORY. */
CGN_RC gw_explain_open(struct gw_worker *w, size_t bytes, struct cgn_err *err);
void gw_explain_close(struct gw_worker *w);
/* Record the decision |p| on |ask|: a node, or none. Call before the next pick: |p| borrows the chooser's
 * candidates. |took|: time of the pick. */
void gw_explain_pick(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	cgn_nsec took);
void gw_explain_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now);
