/* SPDX-License-Identifier: Apache-2.0 */
/* gate: where requests wait that no node has room for. The queues belong to the control loop; a worker that
 * finds no room, or somebody waiting for the same model, parks its request and posts a ticket, and goes on
 * when the ticket comes back with a verdict.
 *
 * A verdict ADMISSION_ADMITTED reserves a place on a node until the worker has booked one and settles it. While any
 * ticket of a model is out, that is from the first post until it is settled, newcomers of that model go
 * through the gate too, so that nobody takes what is reserved. A place that is gone all the same (nodes serve
 * several models, others' load is known a moment late) sends the ticket back, before everybody else.
 *
 * A ticket is counted: the request has a reference, the queue has one, each post has one. Memory: a ticket
 * and its names for each request that waits, at most router.admission.max_queue for each model and role; the
 * body that waits with it is within router.max_inflight_body. */
#pragma once
#include "io/loop/loop.h"
#include "policy/queue/queue.h"
#include "router/request/gateway.h"

#define ADMISSION_BUCKETS 1024 /* of models, by hash: two in one only cost each other a detour */

enum admission_role { ADMISSION_GENERATION, ADMISSION_PROMPT_ONLY, ADMISSION_ROLES };
const char *admission_role_text(enum admission_role role);

enum admission_verdict {
	ADMISSION_WAITS,
	ADMISSION_ADMITTED,
	ADMISSION_FULL,
	ADMISSION_UNMEETABLE,
	ADMISSION_NO_NODE,
	ADMISSION_DRAINING
};

struct admission_queue;
struct gw_ticket {
	uint32_t tag;
	_Atomic uint32_t refs;
	struct gw_admission *gate;
	struct gw_worker *w;
	struct cgn_post ask, leave, settle, answer;
	struct cgn_str model, tenant; /* behind this struct */
	enum admission_role role;
	/* the worker's loop */
	struct gw_req *r;            /* NULL: it waits no longer */
	enum admission_verdict seen; /* of |verdict|, once it came */
	/* whose loop the ticket is on */
	struct queue_item item;
	cgn_nsec objective; /* from arrival to deadline */
	cgn_nsec ahead;     /* prompts that the best node has to compute before */
	bool measured;      /* item.need and |ahead| are by nodes' own speeds */
	bool again;         /* it was let in and found no room */
	/* nodes that failed it: it had its turn, and goes first where it has not been */
	uint16_t excluded[GW_MAX_ATTEMPTS];
	uint32_t n_excluded;
	bool pause; /* nobody could be reached: not again at once */
	/* the control loop; the worker's once it was answered */
	struct admission_queue *lane;
	struct cgn_link retry; /* in the lane's retries, if |retries| */
	bool retries;
	cgn_nsec not_before;
	enum admission_verdict verdict;
	uint16_t slot;        /* reserved there, when let in */
	unsigned retry_after; /* seconds; 0: it will never do */
};

struct gw_admission {
	uint32_t tag;
	_Atomic uint32_t refs;    /* the router's and each ticket's */
	struct cgn_loop *loop;    /* the control loop */
	struct router *r;         /* the control loop; NULL: it has ended */
	_Atomic uint32_t waiting; /* tickets that are out, of all models */
	_Atomic uint32_t waiting_of[ADMISSION_BUCKETS];
	_Atomic uint32_t wait_ms[ADMISSION_BUCKETS]; /* for the next one to come, as last thought */
	_Atomic bool room_posted;
	struct cgn_post room;
	/* the control loop */
	struct cgn_link lanes;
	struct cgn_timer poll;
	cgn_nsec drain_until;                 /* 0: nobody drains */
	cgn_nsec ready_at[ADMISSION_BUCKETS]; /* when a node that had the model was last ready */
	uint32_t reserved[ROUTE_MAX_NODES];
	struct route_cand cands[ROUTE_MAX_NODES]; /* scratch */
};

#define GW_TICKET_TAG    0x64710e01U
#define GW_ADMISSION_TAG 0x646a0e01U
void gw_ticket_ref(struct gw_ticket *t);
void gw_ticket_unref(struct gw_ticket *t);
/* queue.c, for the control loop: a verdict has come. */
void gw_ticket_on_answer(struct cgn_loop *l, struct cgn_post *p);
/* gate.c, for workers: run on the control loop. */
void gw_admission_on_enter(struct cgn_loop *l, struct cgn_post *p);
void gw_admission_on_leave(struct cgn_loop *l, struct cgn_post *p);
void gw_admission_on_settle(struct cgn_loop *l, struct cgn_post *p);
void gw_admission_on_room(struct cgn_loop *l, struct cgn_post *p);
