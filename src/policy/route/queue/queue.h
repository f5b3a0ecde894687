/* SPDX-License-Identifier: Apache-2.0 */
/* queue: the requests that wait for room, and the order in which they leave. A pure data structure: time is
 * an argument; items are the caller's memory.
 *
 * The next item is chosen in three steps:
 *
 * 1. The priority class whose oldest item has the least arrived - priority * QUEUE_STEP. A higher class goes
 * first, but nothing starves: an item of priority p competes as the oldest of all once it is
 * (QUEUE_PRIORITIES - 1 - p) * QUEUE_STEP old, 27 s at most.
 *
 * 2. Within the class, the tenant whose turn it is, by deficit round robin (Shreedhar, Varghese 1995) with a
 * quantum of QUEUE_QUANTUM tokens times the tenant's weight. An item costs its prompt tokens to compute and
 * its expected answer tokens, at most QUEUE_MAX_COST and at least the quantum, so that small items alternate
 * one by one. Between two tenants a and b that always wait, |served(a) / weight(a) - served(b) / weight(b)|
 * stays below QUEUE_QUANTUM + QUEUE_MAX_COST / weight(a) + QUEUE_MAX_COST / weight(b).
 *
 * 3. Within the tenant, the least key; of equal keys the first that arrived. The policy defines the key:
 *
 * fcfs: arrived.
 *
 * wspt: arrived + new_tokens * QUEUE_TOKEN, with at most QUEUE_PATIENCE added (weighted shortest predicted
 * task; weights count in step 2). No item is passed by one that arrived more than QUEUE_PATIENCE later.
 *
 * deadline: the deadline, or arrived + QUEUE_PATIENCE without one. When a deadline can no longer be met (now
 * + need is later), a firm item is refused; any other goes behind all items whose deadline is within
 * QUEUE_PATIENCE.
 *
 * sessions: arrived + attained * QUEUE_SERVED, with at most QUEUE_SERVED_PATIENCE added (least attained service): the
 * sessions of agents that have used little lately go before those that have used much. No item is passed by one that
 * arrived more than QUEUE_SERVED_PATIENCE later.
 *
 * 4. A tenant that may not go (queue_gate) is passed over, keeps its turn, and is credited nothing meanwhile.
 *
 * Cost: put, take and drop are O(log n) amortised (a pairing heap for each tenant); the 10 classes and the
 * QUEUE_MAX_COST / QUEUE_QUANTUM turns of step 2 are constants. A put into a full queue, queue_ahead and
 * queue_each visit each waiting tenant; queue_tune visits each item. Memory: the items (QUEUE_ITEM_BYTES
 * each, at most |max| of them), one flow for each waiting tenant and priority (QUEUE_FLOW_BYTES), 8 KiB. */
#pragma once
#include "base/core/err.h"
#include "base/core/list.h"
#include "base/core/str.h"

#define QUEUE_PRIORITIES      10 /* Priority 9 goes first. */
#define QUEUE_LOW             2
#define QUEUE_NORMAL          5
#define QUEUE_HIGH            8
#define QUEUE_STEP            (3 * CGN_SEC)
#define QUEUE_QUANTUM         256
#define QUEUE_MAX_COST        131072
#define QUEUE_TOKEN           (2 * CGN_MSEC)
#define QUEUE_PATIENCE        (10 * CGN_SEC)
#define QUEUE_SERVED          CGN_MSEC
#define QUEUE_SERVED_PATIENCE (30 * CGN_SEC)
#define QUEUE_ITEM_BYTES      184
#define QUEUE_FLOW_BYTES      104

/* Read a priority as X-Cgn-Priority names it: high, normal, low in any case, or a digit. False: it is none. */
bool queue_priority_read(struct cgn_str text, unsigned *out);

enum queue_policy { QUEUE_FCFS, QUEUE_WSPT, QUEUE_DEADLINE, QUEUE_SESSIONS };
/* Return whether |text| names a policy, as in router.admission.queue_policy. */
bool queue_policy_find(struct cgn_str text, enum queue_policy *out);

struct queue_rules {
	enum queue_policy policy;
	size_t max; /* Items; 0: the queue takes none. */
};

struct queue_flow;
/* The caller sets the first part before queue_put and does not change it while the item is in the queue. */
struct queue_item {
	struct cgn_str tenant; /* Borrowed while the item is in. */
	/* Weight of the tenant; 0 counts as 1. The last item put sets the weight for all items of its
	 * tenant. */
	uint32_t weight;
	unsigned priority; /* Below QUEUE_PRIORITIES. */
	uint32_t new_tokens, answer_tokens;
	cgn_nsec arrived;
	cgn_nsec deadline; /* Deadline of the first byte; 0: none. */
	cgn_nsec need;     /* Predicted time from admission to the first byte. */
	bool firm;         /* Useless after the deadline, and refused then. */
	uint32_t attained; /* Tokens that the item's session has used lately. */

	/* Private: */
	struct queue_flow *flow; /* NULL: not in a flow. */
	struct cgn_link by_age, in_flow;
	struct queue_item *child, *next, *prev; /* Links of the heap. */
	cgn_nsec key;
	uint64_t seq;
	bool late, returned;
};

struct queue;
struct queue *queue_new(const struct queue_rules *rules);
void queue_free(struct queue **take); /* Items that still wait are taken out silently. */
/* Use other rules from now on. Items beyond a smaller |max| stay. */
void queue_tune(struct queue *q, const struct queue_rules *rules);

/* Put |it| into the queue. QUEUE_PUT: it is in. QUEUE_PUT_FOR: the queue was full, |it| is in, and
 * |*out_displaced| was taken out for it. QUEUE_FULL: it is not in.
 *
 * A newcomer displaces the newest item of the tenant with the most items in the lowest class, if that class
 * is below its own, or if it is the same class and that tenant has at least two items more than its own. */
enum queue_put { QUEUE_PUT, QUEUE_PUT_FOR, QUEUE_FULL };
enum queue_put queue_put(struct queue *q, struct queue_item *it, struct queue_item **out_displaced);
/* Put |it|, which was taken but could not be served, back in front of all others. It counts beyond |max|. */
void queue_return(struct queue *q, struct queue_item *it);
/* Take |it| out; does nothing when it is not in. */
void queue_drop(struct queue *q, struct queue_item *it);
/* From now on only items of tenants that |may| grants go, and items that came back; NULL: all. |may| must not call the queue. */
typedef bool queue_may(void *user, struct cgn_str tenant);
void queue_gate(struct queue *q, queue_may *may, void *user);
/* Take the next item out that may go. QUEUE_LATE: the item is firm and can no longer meet its deadline; call again for
 * another. */
enum queue_take { QUEUE_NONE, QUEUE_GO, QUEUE_LATE };
enum queue_take queue_take(struct queue *q, cgn_nsec now, struct queue_item **out);

/* Take any item out, whether it may go or not. NULL: there is none. */
struct queue_item *queue_pull(struct queue *q);

bool queue_has(const struct queue_item *it);
size_t queue_len(const struct queue *q);
uint64_t queue_tokens(const struct queue *q); /* Tokens of all waiting items, prompts and answers. */
/* Return about how many items leave before |it|, which is in: those of higher classes and returned ones; in
 * its own class, for each tenant as many as leave before |it| in its own tenant. */
size_t queue_ahead(const struct queue *q, const struct queue_item *it);

struct queue_share {
	struct cgn_str tenant;
	unsigned priority;
	size_t items;
	uint64_t tokens;
	cgn_nsec oldest; /* Arrival of the oldest item. */
};
/* Call |fn| for each tenant of each class. Returned items are left out. */
void queue_each(const struct queue *q, void (*fn)(void *user, const struct queue_share *s), void *user);

/* ---- drain rate ---- */
/* Items that left for good per second of the time in which any item waited. Older time counts less, with a
 * time constant of QUEUE_RATE_WINDOW. All zero is the initial state. */
#define QUEUE_RATE_WINDOW (10 * CGN_SEC)
struct queue_rate {
	double items, seconds;
	cgn_nsec at; /* Time of the last update; 0: no item waits. */
};
/* An item waits from now on. Does nothing when one waited already. */
void queue_rate_start(struct queue_rate *p, cgn_nsec now);
void queue_rate_stop(struct queue_rate *p, cgn_nsec now);
void queue_rate_count(struct queue_rate *p, cgn_nsec now);   /* An item left for good. */
void queue_rate_uncount(struct queue_rate *p, cgn_nsec now); /* An item that was just counted is back. */
bool queue_rate_known(const struct queue_rate *p);
/* Return the time until |items| more have left. Before any item has left, it is computed as if one left
 * now. */
cgn_nsec queue_rate_time(const struct queue_rate *p, size_t items, cgn_nsec now);
