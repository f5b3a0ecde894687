/* SPDX-License-Identifier: Apache-2.0 */
/* quote: the forecast of a request before it is sent (POST /v1/quote, X-Cgn-Quote), which is later compared
 * with the outcome. All workers share one book (policy/route/quote) under a lock that is held for some
 * microseconds. */
#pragma once
#include "router/request/request/request.h"

struct gw_quotes;
struct gw_quotes *gw_quotes_open(struct telemetry *t);
void gw_quotes_close(struct gw_quotes **take); /* NULL-safe; no worker runs. */

/* Let a request for /v1/quote be of the route that its query names, so that it is read as that request would be.
 * Leaves GW_AUTH when it names none. Other requests are left alone. */
enum gw_step gw_quote_route(struct gw_req *r);

/* Quote the request, once: |p| is a pick for |ask|, and |waits| says that the request has to wait for room. Books
 * nothing. No effect while router.quote.enabled is off. */
void gw_quote_note(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits);
/* Let plan.ttft, which deadlines are compared with, be the time that the quote promises with
 * router.admission.deadline_confidence. After gw_queue_predict; |p| and |waits| as in gw_quote_note. */
void gw_quote_promise(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits);
/* Answer with the quote that was noted, or else with that of |p|. Goes to GW_ANSWER. */
enum gw_step gw_quote_reply(struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, bool waits);
/* The request has ended: learn from what it took. Call once, after gw_account_usage. */
void gw_quote_learn(struct gw_req *r);
