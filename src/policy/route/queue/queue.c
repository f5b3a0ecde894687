/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/queue/queue.h"

#include <stdlib.h>

#include "policy/route/routing/routing.h"
#include "queue_priv.h"

#define QUEUE_TAG    0x90e0e01U
#define FLOW_BUCKETS 1024 /* About 64 flows each when 65536 tenants wait. */

_Static_assert(sizeof(struct queue_item) <= QUEUE_ITEM_BYTES, "the header says so");

/* The waiting items of one tenant and priority. Exists while it has any. */
struct queue_flow {
	struct queue_flow *chain; /* Next flow of the bucket. */
	struct cgn_link turn;     /* In the turns of its class. */
	struct cgn_link items;    /* In order of arrival. */
	struct queue_item *heap;
	uint64_t hash, tokens;
	size_t n;
	uint64_t deficit;
	uint32_t weight;
	unsigned priority;
	bool on_turn; /* The flow has received the quantum of its turn. */
};
_Static_assert(sizeof(struct queue_flow) <= QUEUE_FLOW_BYTES, "the header says so");

struct queue_class {
	struct cgn_link turns;  /* Flows; the first has the turn. */
	struct cgn_link by_age; /* Items in order of arrival. */
	size_t n;
};

struct queue {
	uint32_t tag;
	struct queue_rules rules;
	struct queue_class classes[QUEUE_PRIORITIES];
	struct cgn_link returned; /* Items, linked by by_age. */
	size_t n;
	uint64_t tokens, seq;
	queue_may *may; /* NULL: all tenants may go. */
	void *user;
	struct queue_flow *buckets[FLOW_BUCKETS];
};

bool queue_policy_find(struct cgn_str text, enum queue_policy *out)
{
	static const char *const names[] = {[QUEUE_FCFS] = "fcfs",
		[QUEUE_WSPT] = "wspt",
		[QUEUE_DEADLINE] = "deadline",
		[QUEUE_SESSIONS] = "sessions"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_is(text, names[i])) {
			*out = (enum queue_policy)i;
			return true;
		}
	return false;
}

struct queue *queue_new(const struct queue_rules *rules)
{
	struct queue *q = CGN_NEW(struct queue);
	q->tag = QUEUE_TAG;
	q->rules = *rules;
	cgn_list_init(&q->returned);
	for (size_t i = 0; i < QUEUE_PRIORITIES; i++) {
		cgn_list_init(&q->classes[i].turns);
		cgn_list_init(&q->classes[i].by_age);
	}
	return q;
}

static uint64_t item_tokens(const struct queue_item *it)
{
	return (uint64_t)it->new_tokens + it->answer_tokens;
}

static uint32_t item_cost(const struct queue_item *it)
{
	uint64_t cost = item_tokens(it);
	return cost < QUEUE_QUANTUM ? QUEUE_QUANTUM : cost < QUEUE_MAX_COST ? (uint32_t)cost : QUEUE_MAX_COST;
}

static cgn_nsec item_key(enum queue_policy policy, const struct queue_item *it)
{
	cgn_nsec work = it->new_tokens * QUEUE_TOKEN, served = it->attained * QUEUE_SERVED;
	switch (policy) {
	case QUEUE_WSPT:
		return it->arrived + (work < QUEUE_PATIENCE ? work : QUEUE_PATIENCE);
	case QUEUE_DEADLINE:
		return it->deadline != 0 ? it->deadline : it->arrived + QUEUE_PATIENCE;
	case QUEUE_SESSIONS:
		return it->arrived + (served < QUEUE_SERVED_PATIENCE ? served : QUEUE_SERVED_PATIENCE);
	case QUEUE_FCFS:
		break;
	}
	return it->arrived;
}

/* ---- flows ---- */

static struct queue_item *flow_first(const struct queue_flow *f)
{
	return CGN_CONTAINER(f->items.next, struct queue_item, in_flow);
}

static struct queue_flow *flow_find(const struct queue *q, const struct queue_item *it, uint64_t hash)
{
	for (struct queue_flow *f = q->buckets[hash % FLOW_BUCKETS]; f != NULL; f = f->chain)
		if (f->hash == hash && f->priority == it->priority &&
			cgn_str_eq(flow_first(f)->tenant, it->tenant))
			return f;
	return NULL;
}

static struct queue_flow *flow_new(struct queue *q, const struct queue_item *it, uint64_t hash)
{
	struct queue_flow *f = CGN_NEW(struct queue_flow);
	f->hash = hash;
	f->priority = it->priority;
	cgn_list_init(&f->items);
	f->chain = q->buckets[hash % FLOW_BUCKETS];
	q->buckets[hash % FLOW_BUCKETS] = f;
	cgn_list_push(&q->classes[f->priority].turns, &f->turn);
	return f;
}

static void flow_free(struct queue *q, struct queue_flow *f)
{
	struct queue_flow **at = &q->buckets[f->hash % FLOW_BUCKETS];
	while (*at != f)
		at = &(*at)->chain;
	*at = f->chain;
	cgn_list_drop(&f->turn);
	free(f);
}

static void item_insert(struct queue *q, struct queue_flow *f, struct queue_item *it)
{
	it->flow = f;
	it->seq = q->seq++;
	it->late = false;
	it->key = item_key(q->rules.policy, it);
	f->heap = heap_put(f->heap, it);
	f->weight = it->weight > 0 ? it->weight : 1;
	f->n++;
	f->tokens += item_tokens(it);
	cgn_list_push(&f->items, &it->in_flow);
	cgn_list_push(&q->classes[f->priority].by_age, &it->by_age);
	q->classes[f->priority].n++;
	q->n++;
	q->tokens += item_tokens(it);
}

static void item_extract(struct queue *q, struct queue_item *it)
{
	struct queue_flow *f = it->flow;
	f->heap = heap_drop(f->heap, it);
	f->n--;
	f->tokens -= item_tokens(it);
	cgn_list_drop(&it->in_flow);
	cgn_list_drop(&it->by_age);
	q->classes[f->priority].n--;
	q->n--;
	q->tokens -= item_tokens(it);
	it->flow = NULL;
	if (f->n == 0)
		flow_free(q, f); /* The deficit goes with the flow: an idle tenant saves nothing up. */
}

/* ---- in and out ---- */

/* Return the item that a newcomer may displace; NULL: none. */
static struct queue_item *displaced_item(struct queue *q, const struct queue_item *it, size_t own)
{
	unsigned low = 0;
	struct queue_flow *most = NULL;
	while (low < it->priority && q->classes[low].n == 0)
		low++;
	cgn_list_each (l, &q->classes[low].turns) {
		struct queue_flow *f = CGN_CONTAINER(l, struct queue_flow, turn);
		if (most == NULL || f->n > most->n)
			most = f;
	}
	if (most == NULL || (low == it->priority && most->n < own + 2))
		return NULL;
	return CGN_CONTAINER(most->items.prev, struct queue_item, in_flow);
}

enum queue_put queue_put(struct queue *q, struct queue_item *it, struct queue_item **out_displaced)
{
	CGN_LIVE(q, QUEUE_TAG);
	CGN_MUST(it->priority < QUEUE_PRIORITIES && !queue_has(it));
	uint64_t hash = route_hash(it->tenant.p, it->tenant.n);
	struct queue_flow *f = flow_find(q, it, hash);
	struct queue_item *out = NULL;
	if (q->rules.max == 0)
		return QUEUE_FULL;
	if (q->n >= q->rules.max) {
		out = displaced_item(q, it, f != NULL ? f->n : 0);
		if (out == NULL)
			return QUEUE_FULL;
	}
	item_insert(q, f != NULL ? f : flow_new(q, it, hash), it);
	if (out == NULL)
		return QUEUE_PUT;
	item_extract(q, out);
	*out_displaced = out;
	return QUEUE_PUT_FOR;
}

void queue_return(struct queue *q, struct queue_item *it)
{
	CGN_LIVE(q, QUEUE_TAG);
	CGN_MUST(!queue_has(it));
	it->returned = true;
	cgn_list_push(&q->returned, &it->by_age);
	q->n++;
	q->tokens += item_tokens(it);
}

static void item_unreturn(struct queue *q, struct queue_item *it)
{
	it->returned = false;
	cgn_list_drop(&it->by_age);
	q->n--;
	q->tokens -= item_tokens(it);
}

void queue_drop(struct queue *q, struct queue_item *it)
{
	CGN_LIVE(q, QUEUE_TAG);
	if (it->returned)
		item_unreturn(q, it);
	else if (it->flow != NULL)
		item_extract(q, it);
}

static bool flow_may(const struct queue *q, const struct queue_flow *f)
{
	return q->may == NULL || q->may(q->user, flow_first(f)->tenant);
}

static bool class_may(const struct queue *q, const struct queue_class *c)
{
	cgn_list_each (l, &c->turns)
		if (flow_may(q, CGN_CONTAINER(l, struct queue_flow, turn)))
			return true;
	return false;
}

/* Return the class whose oldest item is the oldest after aging by priority; of equal ones the higher
 * class. */
static struct queue_class *class_next(struct queue *q)
{
	struct queue_class *best = NULL;
	cgn_nsec least = 0;
	for (unsigned p = QUEUE_PRIORITIES; p-- > 0;) {
		struct queue_class *c = &q->classes[p];
		if (c->n == 0 || !class_may(q, c))
			continue;
		cgn_nsec key = CGN_CONTAINER(c->by_age.next, struct queue_item, by_age)->arrived +
			(QUEUE_PRIORITIES - 1 - p) * QUEUE_STEP;
		if (best != NULL && key >= least)
			continue;
		best = c;
		least = key;
	}
	return best;
}

/* Return the flow whose turn it is, of those that may go, of which there is one. */
static struct queue_flow *flow_next(const struct queue *q, struct queue_class *c)
{
	for (;;) {
		struct queue_flow *f = CGN_CONTAINER(c->turns.next, struct queue_flow, turn);
		if (!flow_may(q, f)) {
			cgn_list_drop(&f->turn);
			cgn_list_push(&c->turns, &f->turn);
			continue;
		}
		if (!f->on_turn)
			f->deficit += (uint64_t)QUEUE_QUANTUM * f->weight;
		f->on_turn = true;
		if (f->deficit >= item_cost(f->heap))
			return f;
		f->on_turn = false;
		cgn_list_drop(&f->turn);
		cgn_list_push(&c->turns, &f->turn);
	}
}

static bool item_is_late(const struct queue_item *it, cgn_nsec now)
{
	return it->deadline != 0 && now + it->need > it->deadline;
}

static void item_postpone(struct queue_flow *f, struct queue_item *it, cgn_nsec now)
{
	f->heap = heap_drop(f->heap, it);
	it->late = true;
	it->key = now + QUEUE_PATIENCE;
	f->heap = heap_put(f->heap, it);
}

enum queue_take queue_take(struct queue *q, cgn_nsec now, struct queue_item **out)
{
	CGN_LIVE(q, QUEUE_TAG);
	if (!cgn_list_empty(&q->returned)) {
		*out = CGN_CONTAINER(cgn_list_first(&q->returned), struct queue_item, by_age);
		item_unreturn(q, *out);
		return item_is_late(*out, now) && (*out)->firm ? QUEUE_LATE : QUEUE_GO;
	}
	for (struct queue_class *c; (c = class_next(q)) != NULL;) {
		struct queue_flow *f = flow_next(q, c);
		struct queue_item *it = f->heap;
		bool late = item_is_late(it, now);
		if (late && !it->firm && q->rules.policy == QUEUE_DEADLINE && !it->late) {
			item_postpone(f, it, now);
			continue;
		}
		if (!(late && it->firm))
			f->deficit -= item_cost(it);
		item_extract(q, it);
		*out = it;
		return late && it->firm ? QUEUE_LATE : QUEUE_GO;
	}
	return QUEUE_NONE;
}

void queue_gate(struct queue *q, queue_may *may, void *user)
{
	CGN_LIVE(q, QUEUE_TAG);
	q->may = may;
	q->user = user;
}

struct queue_item *queue_pull(struct queue *q)
{
	struct queue_item *it = NULL;
	CGN_LIVE(q, QUEUE_TAG);
	queue_may *may = q->may;
	q->may = NULL;
	(void)queue_take(q, 0, &it);
	q->may = may;
	return it;
}

/* ---- inspection ---- */

bool queue_has(const struct queue_item *it)
{
	return it->flow != NULL || it->returned;
}

size_t queue_len(const struct queue *q)
{
	CGN_LIVE(q, QUEUE_TAG);
	return q->n;
}

uint64_t queue_tokens(const struct queue *q)
{
	CGN_LIVE(q, QUEUE_TAG);
	return q->tokens;
}

size_t queue_ahead(const struct queue *q, const struct queue_item *it)
{
	CGN_LIVE(q, QUEUE_TAG);
	size_t ahead = 0, own = 0;
	if (it->flow == NULL)
		return 0;
	cgn_list_each (l, &q->returned)
		ahead++;
	for (unsigned p = it->priority + 1; p < QUEUE_PRIORITIES; p++)
		ahead += q->classes[p].n;
	cgn_list_each (l, &it->flow->items)
		own += heap_before(CGN_CONTAINER(l, struct queue_item, in_flow), it);
	cgn_list_each (l, &q->classes[it->priority].turns) {
		const struct queue_flow *f = CGN_CONTAINER(l, struct queue_flow, turn);
		ahead += f == it->flow || f->n > own ? own : f->n;
	}
	return ahead;
}

void queue_each(const struct queue *q, void (*fn)(void *user, const struct queue_share *s), void *user)
{
	CGN_LIVE(q, QUEUE_TAG);
	for (unsigned p = QUEUE_PRIORITIES; p-- > 0;) {
		cgn_list_each (l, &q->classes[p].turns) {
			const struct queue_flow *f = CGN_CONTAINER(l, struct queue_flow, turn);
			fn(user,
				&(struct queue_share){flow_first(f)->tenant, p, f->n, f->tokens,
					flow_first(f)->arrived});
		}
	}
}

/* ---- the whole queue ---- */

static void flow_resort(struct queue *q, struct queue_flow *f)
{
	f->heap = NULL;
	cgn_list_each (l, &f->items) {
		struct queue_item *it = CGN_CONTAINER(l, struct queue_item, in_flow);
		it->late = false;
		it->key = item_key(q->rules.policy, it);
		f->heap = heap_put(f->heap, it);
	}
}

void queue_tune(struct queue *q, const struct queue_rules *rules)
{
	CGN_LIVE(q, QUEUE_TAG);
	bool other = q->rules.policy != rules->policy;
	q->rules = *rules;
	for (size_t p = 0; other && p < QUEUE_PRIORITIES; p++)
		cgn_list_each (l, &q->classes[p].turns)
			flow_resort(q, CGN_CONTAINER(l, struct queue_flow, turn));
}

void queue_free(struct queue **take)
{
	struct queue *q = CGN_TAKE_LIVE(take, QUEUE_TAG);
	if (q == NULL)
		return;
	while (!cgn_list_empty(&q->returned))
		item_unreturn(q, CGN_CONTAINER(cgn_list_first(&q->returned), struct queue_item, by_age));
	for (size_t p = 0; p < QUEUE_PRIORITIES; p++)
		while (q->classes[p].n > 0)
			item_extract(q, CGN_CONTAINER(q->classes[p].by_age.next, struct queue_item, by_age));
	q->tag = 0;
	free(q);
}

bool queue_priority_read(struct cgn_str text, unsigned *out)
{
	static const struct {
		const char *name;
		unsigned value;
	} names[] = {{"high", QUEUE_HIGH}, {"normal", QUEUE_NORMAL}, {"low", QUEUE_LOW}};
	if (text.n == 1 && text.p[0] >= '0' && text.p[0] <= '9') {
		*out = (unsigned)(text.p[0] - '0');
		return true;
	}
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_eq_nocase(text, cgn_str_of(names[i].name))) {
			*out = names[i].value;
			return true;
		}
	return false;
}
