/* SPDX-License-Identifier: Apache-2.0 */
/* reservations: the load of requests that their client sends to a node itself: booked at the node as those that the
 * router sends, until the client says that the request has ended, or says nothing for |lease|. All workers share one
 * table under a lock that is held for some microseconds. Memory: at most |max| reservations of 560 bytes; of them a tenant has its share
 * (policy/who/quota). */
#pragma once
#include "policy/route/chooser/chooser.h"
#include "policy/route/selection/selection.h"
#include "router/shared/quotas/quotas.h"

struct telemetry;
struct gw_reservations;
struct gw_reservations_cfg {
	uint32_t max;
	cgn_nsec lease;
	struct telemetry *telemetry;
	struct gw_quotas *quotas;
};
struct gw_reservations *gw_reservations_open(const struct gw_reservations_cfg *cfg);
void gw_reservations_close(struct gw_reservations **take); /* NULL-safe; no worker runs. */

/* The name of a reservation: other holders do not see it. */
struct gw_reservation_name {
	struct cgn_str id;
	uint64_t holder;
};
/* A new reservation: |ticket| is taken, |who| holds it. */
struct gw_reservation_new {
	const struct chooser_ticket *ticket;
	const struct gw_quota_taker *who;
	uint64_t place; /* The request's place (plan/place.h), which the reservation takes over; 0: none. */
	cgn_nsec now;
};
/* Keep a reservation. Fails with CONFLICT: the id is in use; OVERLOADED: the table is full, or the holder has its share, as |told|
 * says; then the caller releases the ticket. */
CGN_RC gw_reservations_add(struct gw_reservations *t, const struct gw_reservation_name *name,
	const struct gw_reservation_new *of, struct quota_told *told, struct cgn_err *err);
/* The prompt is computed. False: there is no such reservation. */
bool gw_reservations_begun(struct gw_reservations *t, struct chooser *c,
	const struct gw_reservation_name *name, cgn_nsec now);
/* The request goes on: the lease begins again. False as above. */
bool gw_reservations_touch(struct gw_reservations *t, const struct gw_reservation_name *name, cgn_nsec now);
/* The request has ended. |answer_tokens| 0: not known. False as above. */
bool gw_reservations_end(struct gw_reservations *t, struct chooser *c, const struct gw_reservation_name *name,
	bool failed, uint64_t answer_tokens, cgn_nsec now);
/* End those whose lease is over, if a second has passed since the last time. Returns how many. */
size_t gw_reservations_sweep(struct gw_reservations *t, struct chooser *c, cgn_nsec now);
