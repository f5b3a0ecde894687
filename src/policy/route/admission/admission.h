/* SPDX-License-Identifier: Apache-2.0 */
/* admission: decides which requests wait for room on the nodes of their model, which one is admitted next, and
 * which are refused. Pure: time is an argument, and each decision is given to the caller through
 * admission_ops. The router performs the decisions (router/request/admission); the replay plays them (lab/replay).
 *
 * Each model and role has one queue (policy/route/queue decides its order). Requests that a node failed wait in front
 * of it. Room is what route_room leaves on the nodes that the chooser would offer, less the places reserved for
 * admitted requests. Queues take room in turns, so that models that share nodes share their room.
 *
 * Belongs to one thread. Memory: some KiB for each model, and scratch for the candidates; tickets are the
 * caller's. */
#pragma once
#include "policy/route/chooser/chooser.h"
#include "policy/route/queue/queue.h"

#define ADMISSION_BUCKETS       1024 /* Buckets of models, by hash of the name. */
#define ADMISSION_MAX_EXCLUDED  16
#define ADMISSION_POLL_INTERVAL (50 * CGN_MSEC)
#define ADMISSION_RETRY_MAX     600 /* Seconds. */
#define ADMISSION_RETRY_NO_NODE 2   /* Seconds. */

enum admission_role { ADMISSION_GENERATION, ADMISSION_PROMPT_ONLY, ADMISSION_ROLES };
const char *admission_role_text(enum admission_role role);

enum admission_verdict {
	ADMISSION_WAITS,
	ADMISSION_ADMITTED,   /* A place on a node is reserved. */
	ADMISSION_FULL,       /* The queue is full. */
	ADMISSION_UNMEETABLE, /* No node can begin the answer before the deadline. */
	ADMISSION_NO_NODE,    /* The model has had no ready node for node_wait. */
	ADMISSION_DRAINING,
};

/* Return |t| as whole seconds for Retry-After, 1 to ADMISSION_RETRY_MAX. */
unsigned admission_retry_after(cgn_nsec t);
static inline size_t admission_bucket(struct cgn_str model)
{
	return route_hash(model.p, model.n) % ADMISSION_BUCKETS;
}

/* ---- decisions about one request, before it waits ---- */

/* Predicted time to first token. */
struct admission_forecast {
	cgn_nsec now;    /* On the best node with its present load. */
	cgn_nsec idle;   /* On the best node without load. */
	uint32_t tokens; /* Prompt tokens that the best node has to compute. */
	bool measured;   /* The speeds of all candidates are measured, not assumed. */
};
/* Return the forecast for the candidates of |p|, those without room included. |prompt_tokens| counts when
 * there is no candidate. */
struct admission_forecast admission_forecast_of(const struct chooser_pick_result *p,
	const struct node_stats *stats, uint64_t prompt_tokens);

/* The time that a request has from its arrival to the first byte of its answer. */
struct admission_budget {
	cgn_nsec total; /* 0: unlimited. */
	cgn_nsec spent;
	bool firm;   /* The client named the budget: an answer after it is useless. */
	bool waited; /* The request was admitted from a queue. */
};
/* Return whether the request that |f| is for is to be refused because it misses its budget. |*retry_after|:
 * seconds until the budget could be met; 0: never. A request without a firm budget is refused only if it
 * would be met later and the request has not waited yet. */
bool admission_misses_budget(const struct admission_forecast *f, const struct admission_budget *b,
	unsigned *retry_after);

struct admission_facts {
	enum route_verdict verdict; /* The chooser's verdict for this request now. */
	const struct view_model *model;
	bool tried;       /* A node had the request and failed it. */
	bool unreachable; /* No node could be reached, and the client has received nothing yet. */
	bool waited;      /* The request was admitted from the queue. */
	bool others_wait; /* Requests of its model wait. */
};
/* Return whether the request has to enter the queue of its model. */
bool admission_must_wait(const struct admission_facts *f);

/* ---- queues ---- */

struct admission_queue;
/* A request that waits. The caller owns the ticket and keeps it alive from admission_enter until that call has
 * returned and the verdict is given, or until admission_leave. */
struct admission_ticket {
	/* Set by the caller: */
	struct cgn_str model;
	enum admission_role role;
	struct queue_item item;
	cgn_nsec ahead; /* Time that the best node needs for the prompts before this one. */
	bool measured;  /* |item.need| and |ahead| come from measured speeds. */
	bool bounced;   /* The reserved place was gone; |slot| still names it. */
	bool pause;     /* No node could be reached: wait before the next attempt. */
	uint16_t excluded[ADMISSION_MAX_EXCLUDED]; /* Slots of the nodes that failed the request. */
	uint32_t n_excluded;
	/* The decision: */
	enum admission_verdict verdict;
	uint16_t slot;        /* Node of the reserved place. */
	unsigned retry_after; /* Seconds; 0: never. */
	/* Private: */
	struct admission_queue *queue; /* NULL: not waiting. */
	struct cgn_link retry;
	bool retrying; /* Linked in the queue's retries. */
	cgn_nsec not_before;
};

/* Callbacks run inside admission functions and must not call any of them. */
struct admission_ops {
	/* The verdict of |t| is set; |t| does not wait any more. */
	void (*on_verdict)(void *user, struct admission_ticket *t);
	/* May a request of |tenant| be admitted for |model| while |free| places are free? NULL: all may. A request that came back, or that a
	 * node failed, may without a question. */
	bool (*may)(void *user, struct cgn_str model, struct cgn_str tenant, uint64_t free);
	/* |by| more requests wait for |model|; the next request would wait about |wait|. */
	void (*on_change)(void *user, const char *model, int by, cgn_nsec wait);
};

struct admission_rules {
	enum queue_policy policy;
	uint32_t max_queue;    /* Requests that wait, for each queue. */
	uint32_t max_inflight; /* Requests on one node. */
	cgn_nsec node_wait;    /* Time that a queue outlives the last ready node of its model. */
	/* Where no other node has room, prefill nodes that can answer whole requests do (chooser.h, CHOOSER_CONTINUES). */
	bool prefill_answers;
};

struct admission;
/* |stats| and |ops| are borrowed. */
struct admission *admission_new(const struct admission_rules *rules, const struct node_stats *stats,
	const struct admission_ops *ops, void *user, cgn_nsec now);
/* Waiting tickets get no verdict; take them out before with admission_pull. */
void admission_free(struct admission **take);
/* Return any ticket that waits, which then waits no more and gets no verdict; NULL: none waits. */
struct admission_ticket *admission_pull(struct admission *a);

/* Use |view| from now on. It is borrowed, as the one before is until this returns. */
void admission_view_set(struct admission *a, const struct cluster_view *view, cgn_nsec now);
void admission_tune(struct admission *a, const struct admission_rules *rules, cgn_nsec now);
/* |model| has no ready node, and one is expected to be ready at |ready_at|. Until |until| its requests wait for that,
 * whatever node_wait says, and those that are refused are told how long it takes. */
void admission_expect(struct admission *a, struct cgn_str model, cgn_nsec ready_at, cgn_nsec until);
/* From |at| on, requests that still wait are refused. */
void admission_drain(struct admission *a, cgn_nsec at);

/* Add |t| to its queue, again if it is bounced or was failed by nodes. Its verdict may be given before this
 * returns. */
void admission_enter(struct admission *a, struct admission_ticket *t, cgn_nsec now);
/* Take |t| out, if it waits. Return whether it did. */
bool admission_leave(struct admission *a, struct admission_ticket *t, cgn_nsec now);
/* The place on node |slot| that was reserved for an admitted request is booked, or not needed. */
void admission_settle(struct admission *a, uint16_t slot, cgn_nsec now);
/* Admit the requests for which there is room. Call when a node, its load, or a booking has changed. */
void admission_serve(struct admission *a, cgn_nsec now);
/* Refuse requests that can no longer be admitted, forget queues that are long idle, and serve. Call every
 * ADMISSION_POLL_INTERVAL while any request waits. */
void admission_poll(struct admission *a, cgn_nsec now);

size_t admission_waiting(const struct admission *a); /* Waiting requests of all models. */
size_t admission_depth(const struct admission *a, struct cgn_str model);
struct admission_status {
	const char *model;
	enum admission_role role;
	size_t requests, retries; /* All waiting requests; those that a node failed. */
	uint64_t tokens;
	cgn_nsec wait; /* Predicted for the next request. */
	const struct queue *order;
};
void admission_each(const struct admission *a, cgn_nsec now,
	void (*fn)(void *user, const struct admission_status *s), void *user);
