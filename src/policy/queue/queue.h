/* SPDX-License-Identifier: Apache-2.0 */
/* queue: requests that wait for room, and which of them is next. A pure data structure: time is an argument;
 * items are the caller's memory.
 *
 * Next is decided in three steps:
 * 1. The class of priority whose oldest item has the least arrived - priority * QUEUE_STEP. So a higher class
 * goes first, and nothing starves:
 *    an item of priority p competes as the oldest of all once it is (QUEUE_PRIORITIES - 1 - p) * QUEUE_STEP
 *    old, 27 s at most.
 * 2. Within the class, the tenant whose turn it is: deficit round robin (Shreedhar, Varghese 1995) with a
 * quantum of QUEUE_QUANTUM tokens times
 *    the tenant's weight. An item costs the prompt tokens that must be computed and the answer tokens that
 *    are expected, QUEUE_MAX_COST at most,
 *    and no less than the quantum, so that small ones alternate one by one.
 *    Between two tenants a and b that both wait all the time, |served(a) / weight(a) - served(b) / weight(b)|
 *    stays below
 *    QUEUE_QUANTUM + QUEUE_MAX_COST / weight(a) + QUEUE_MAX_COST / weight(b).
 * 3. Within the tenant, the least key, and of equal keys the first that came:
 *    fcfs arrived
 *    wspt arrived + new_tokens * QUEUE_TOKEN, at most QUEUE_PATIENCE: weighted shortest predicted task.
 *    Weights are step 2's; within a tenant
 *              all weigh the same. It is passed by nobody who came more than QUEUE_PATIENCE after it.
 *    deadline its deadline, without one arrived + QUEUE_PATIENCE. One that can no longer be met (now + need
 *    is later) is refused if it is firm;
 *              if not it goes behind all whose deadline is within QUEUE_PATIENCE.
 *
 * Cost: put, take and drop are O(log n) amortised (a pairing heap a tenant), the 10 classes and at most
 * QUEUE_MAX_COST / QUEUE_QUANTUM turns of step 2 an item being constants. A put into a full queue,
 * queue_ahead and queue_each look at each tenant that waits; queue_tune at each item. Memory: the items
 * (QUEUE_ITEM_BYTES each, at most |max| of them), one flow for each tenant and priority that waits
 * (QUEUE_FLOW_BYTES), 8 KiB. */
#pragma once
#include "base/core/err.h"
#include "base/core/list.h"
#include "base/core/str.h"

#define QUEUE_PRIORITIES 10 /* 9 goes first */
#define QUEUE_LOW        2
#define QUEUE_NORMAL     5
#define QUEUE_HIGH       8
#define QUEUE_STEP       (3 * CGN_SEC)
#define QUEUE_QUANTUM    256
#define QUEUE_MAX_COST   131072
#define QUEUE_TOKEN      (2 * CGN_MSEC)
#define QUEUE_PATIENCE   (10 * CGN_SEC)
#define QUEUE_ITEM_BYTES 184
#define QUEUE_FLOW_BYTES 104

enum queue_policy { QUEUE_FCFS, QUEUE_WSPT, QUEUE_DEADLINE };
/* Return whether |text| names a policy, as in router.admission.queue_policy. */
bool queue_policy_find(struct cgn_str text, enum queue_policy *out);

struct queue_rules {
	enum queue_policy policy;
	size_t max; /* items; 0: nobody waits */
};

struct queue_flow;
/* The first part is the caller's to set before queue_put, and to leave alone until the item is out again. */
struct queue_item {
	struct cgn_str tenant; /* borrowed while the item is in */
	uint32_t weight;       /* of the tenant; 0 counts as 1. The last one put says for all of its items */
	unsigned priority;     /* below QUEUE_PRIORITIES */
	uint32_t new_tokens, answer_tokens;
	cgn_nsec arrived;
	cgn_nsec deadline; /* of the first byte; 0: none */
	cgn_nsec need;     /* from the grant to the first byte, predicted */
	bool firm;         /* useless after its deadline: then it is refused */

	/* private */
	struct queue_flow *flow; /* NULL: not in a flow */
	struct cgn_link by_age, in_flow;
	struct queue_item *child, *next, *prev; /* of the heap */
	cgn_nsec key;
	uint64_t seq;
	bool late, returned;
};

struct queue;
CGN_RC queue_new(const struct queue_rules *rules, struct queue **out, struct cgn_err *err); /* NO_MEMORY */
void queue_free(struct queue **take); /* what still waits is out, without a word */
/* Other rules from now on. More items than the new |max| stay. */
void queue_tune(struct queue *q, const struct queue_rules *rules);

/* QUEUE_FULL: it is not in. When it is full, a newcomer takes the place of the newest item of the tenant that
 * waits with the most items in the least class, if that class is below its own, or the same and that tenant
 * has at least two items more than its own: then QUEUE_PUT_FOR, and
 * |*out_displaced| is out. QUEUE_PUT otherwise. */
enum queue_put { QUEUE_PUT, QUEUE_PUT_FOR, QUEUE_FULL, QUEUE_NO_MEMORY };
enum queue_put queue_put(struct queue *q, struct queue_item *it, struct queue_item **out_displaced);
/* It was taken and could not be served after all: it goes before everybody, and is counted beyond |max|. */
void queue_return(struct queue *q, struct queue_item *it);
/* It leaves. Nothing when it is not in. */
void queue_drop(struct queue *q, struct queue_item *it);
/* The next one, which is out then. QUEUE_LATE: it is firm and can no longer be met; ask again for another. */
enum queue_take { QUEUE_NONE, QUEUE_GO, QUEUE_LATE };
enum queue_take queue_take(struct queue *q, cgn_nsec now, struct queue_item **out);

bool queue_has(const struct queue_item *it);
size_t queue_len(const struct queue *q);
uint64_t queue_tokens(const struct queue *q); /* of all that wait: prompts and answers, as the items say */
/* About how many go before |it|, which is in: those of higher classes and returned ones; of its own class, of
 * each tenant as many as go before it in its own. */
size_t queue_ahead(const struct queue *q, const struct queue_item *it);

struct queue_share {
	struct cgn_str tenant;
	unsigned priority;
	size_t items;
	uint64_t tokens;
	cgn_nsec oldest; /* when it arrived */
};
/* Each tenant of each class. Returned items are not told of. */
void queue_each(const struct queue *q, void (*fn)(void *user, const struct queue_share *s), void *user);

/* ---- how fast it moves ---- */
/* Items that left for good per second of the time that somebody waited; what is older than QUEUE_RATE_WINDOW counts
 * less and less. All zero at first. */
#define QUEUE_RATE_WINDOW (10 * CGN_SEC)
struct queue_rate {
	double items, seconds;
	cgn_nsec at; /* 0: nobody waits */
};
/* somebody waits from now on; nothing when so already */
void queue_rate_start(struct queue_rate *p, cgn_nsec now);
void queue_rate_stop(struct queue_rate *p, cgn_nsec now);
void queue_rate_count(struct queue_rate *p, cgn_nsec now);   /* one left */
void queue_rate_uncount(struct queue_rate *p, cgn_nsec now); /* one that was counted a moment ago is back */
bool queue_rate_known(const struct queue_rate *p);
/* Until |items| more will have left. When none ever did, as if one did now. */
cgn_nsec queue_rate_time(const struct queue_rate *p, size_t items, cgn_nsec now);
