/* SPDX-License-Identifier: Apache-2.0 */
/* admission: where requests wait that no node has room for. policy/route/admission decides on the control loop. A
 * worker that finds no room, or finds requests of the same model waiting, parks its request and posts a
 * ticket; the request continues when the ticket comes back with a verdict.
 *
 * ADMISSION_ADMITTED reserves a place on a node until the worker has booked one and settles the ticket. While
 * any ticket of a model is out, from its first post until it is settled, new requests of that model wait too,
 * so that none takes a reserved place. A place that is gone all the same (nodes serve several models, the load
 * of other routers is known a moment late) sends the ticket back, in front of the queue.
 *
 * Tickets are counted: the request has a reference, the queue has one, each post has one. Memory: a ticket and
 * its names for each request that waits, at most router.admission.max_queue for each model and role; the body
 * that waits with it is within router.max_inflight_body. */
#pragma once
#include "base/pb/pb_tree.h"
#include "cognitora/v1/control.pb-c.h"
#include "io/os/loop/loop.h"
#include "policy/route/admission/admission.h"
#include "router/shared/quotas/quotas.h"
#include "router/shared/worker/worker.h"

struct gw_ticket {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct gw_admission *admission;
	struct gw_worker *w;
	struct cgn_post ask, leave, settle, answer;
	/* Receives |answer| on the worker's loop when a verdict has come. */
	void (*on_verdict)(struct cgn_loop *l, struct cgn_post *p);
	bool has_place; /* The request has a place in its tenant's share, or needs none. */
	bool placed;    /* The ticket has one for it: admission took it with the verdict. */
	/* Belongs to the loop that the ticket is on. Its names are behind this struct. */
	struct admission_ticket policy;
	/* The worker's loop: */
	struct gw_req *r;            /* NULL: the request has ended. */
	enum admission_verdict seen; /* The last verdict that came back. */
};

struct gw_admission {
	uint32_t tag;
	_Atomic uint32_t refs; /* References of the router and of each ticket. */
	struct cgn_loop *loop; /* The control loop. */
	struct telemetry *telemetry;
	struct gw_quotas *quotas;
	_Atomic uint32_t waiting; /* Tickets that are out, of all models. */
	_Atomic uint32_t waiting_of[ADMISSION_BUCKETS];
	_Atomic uint32_t wait_ms[ADMISSION_BUCKETS]; /* Predicted for the next request of the model. */
	_Atomic bool room_posted;
	struct cgn_post room;
	/* The control loop: */
	struct admission *policy; /* NULL: closed. */
	struct cgn_timer poll;
};

#define GW_TICKET_TAG    0x64710e01U
#define GW_ADMISSION_TAG 0x646a0e01U

/* ---- for the control loop ---- */

/* Open admission on |loop|. |stats| and |view| are borrowed; of |shared| the telemetry and the quotas. */
struct gw_admission *gw_admission_open(struct cgn_loop *loop, const struct gw_shared *shared,
	const struct gw_rules *rules, const struct node_stats *stats, const struct cluster_view *view,
	cgn_nsec now);
/* Close admission after the workers have ended; tickets still on their way are dropped when they arrive. */
void gw_admission_close(struct gw_admission **take);
/* Use |view| from now on; the view before is borrowed until this returns. */
void gw_admission_view_set(struct gw_admission *g, const struct cluster_view *view);
void gw_admission_tune(struct gw_admission *g, const struct gw_rules *rules);
/* As admission_expect. */
void gw_admission_expect(struct gw_admission *g, struct cgn_str model, cgn_nsec ready_at, cgn_nsec until);
/* Admit the requests for which there is room. Call when nodes or their load have changed. */
void gw_admission_serve(struct gw_admission *g);
/* Refuse whatever still waits after |grace|. */
void gw_admission_drain(struct gw_admission *g, cgn_nsec grace);
size_t gw_admission_depth(const struct gw_admission *g, struct cgn_str model);
/* Fill in each queue and who waits there. */
void gw_admission_fill(const struct gw_admission *g, struct pb_tree *t, Cognitora__V1__Queues *to);

/* ---- for workers ---- */

void gw_ticket_ref(struct gw_ticket *t);
/* Return the ticket's tenant as the holder of a place. */
struct quota_holder gw_ticket_holder(const struct gw_ticket *t);
void gw_ticket_unref(struct gw_ticket *t);
void gw_admission_unref(struct gw_admission **take);
/* Posts to the control loop. */
void gw_admission_on_enter(struct cgn_loop *l, struct cgn_post *p);
void gw_admission_on_leave(struct cgn_loop *l, struct cgn_post *p);
void gw_admission_on_settle(struct cgn_loop *l, struct cgn_post *p);
void gw_admission_on_room(struct cgn_loop *l, struct cgn_post *p);
