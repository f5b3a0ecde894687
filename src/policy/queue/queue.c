/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/queue/queue.h"

#include <stdlib.h>

#include "policy/routing/routing.h"
#include "queue_priv.h"

#define QUEUE_TAG 0x90e0e01U
#define BUCKETS   1024 /* 64 flows each when 65536 tenants wait */

_Static_assert(sizeof(struct queue_item) <= QUEUE_ITEM_BYTES, "the header says so");

/* One tenant's items of one priority. Lives while it has any. */
struct queue_flow {
	struct queue_flow *chain; /* of its bucket */
	struct cgn_link turn;     /* of its class */
	struct cgn_link items;    /* as they came */
	struct queue_item *heap;
	uint64_t hash, tokens;
	size_t n;
	uint64_t deficit;
	uint32_t weight;
	unsigned priority;
	bool on_turn; /* got this turn's quantum */
};
_Static_assert(sizeof(struct queue_flow) <= QUEUE_FLOW_BYTES, "the header says so");

struct class
{
	struct cgn_link turns;  /* flows; the first is on turn */
	struct cgn_link by_age; /* items */
	size_t n;
};

struct queue {
	uint32_t tag;
	struct queue_rules rules;
	struct class classes[QUEUE_PRIORITIES];
	struct cgn_link returned; /* items, by_age */
	size_t n;
	uint64_t tokens, seq;
	struct queue_flow *buckets[BUCKETS];
};

bool queue_policy_find(struct cgn_str text, enum queue_policy *out)
{
	static const char *const names[] =
		{[QUEUE_FCFS] = "fcfs", [QUEUE_WSPT] = "wspt", [QUEUE_DEADLINE] = "deadline"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_is(text, names[i])) {
			*out = (enum queue_policy)i;
			return true;
		}
	return false;
}

CGN_RC queue_new(const struct queue_rules *rules, struct queue **out, struct cgn_err *err)
{
	struct queue *q = calloc(1, sizeof *q);
	if (q == NULL)
		return CGN_FAIL(err, NO_MEMORY, "queue: out of memory");
	q->tag = QUEUE_TAG;
	q->rules = *rules;
	cgn_list_init(&q->returned);
	for (size_t i = 0; i < QUEUE_PRIORITIES; i++) {
		cgn_list_init(&q->classes[i].turns);
		cgn_list_init(&q->classes[i].by_age);
	}
	*out = q;
	return CGN_OK;
}

static uint64_t tokens_of(const struct queue_item *it)
{
	return (uint64_t)it->new_tokens + it->answer_tokens;
}

static uint32_t cost_of(const struct queue_item *it)
{
	uint64_t cost = tokens_of(it);
	return cost < QUEUE_QUANTUM ? QUEUE_QUANTUM : cost < QUEUE_MAX_COST ? (uint32_t)cost : QUEUE_MAX_COST;
}

static cgn_nsec key_of(enum queue_policy policy, const struct queue_item *it)
{
	cgn_nsec work = it->new_tokens * QUEUE_TOKEN;
	switch (policy) {
	case QUEUE_WSPT:
		return it->arrived + (work < QUEUE_PATIENCE ? work : QUEUE_PATIENCE);
	case QUEUE_DEADLINE:
		return it->deadline != 0 ? it->deadline : it->arrived + QUEUE_PATIENCE;
	case QUEUE_FCFS:
		break;
	}
	return it->arrived;
}

/* ---- flows ---- */

static struct queue_item *first_of(const struct queue_flow *f)
{
	return CGN_CONTAINER(f->items.next, struct queue_item, in_flow);
}

static struct queue_flow *flow_find(const struct queue *q, const struct queue_item *it, uint64_t hash)
{
	for (struct queue_flow *f = q->buckets[hash % BUCKETS]; f != NULL; f = f->chain)
		if (f->hash == hash && f->priority == it->priority &&
			cgn_str_eq(first_of(f)->tenant, it->tenant))
			return f;
	return NULL;
}

static struct queue_flow *flow_new(struct queue *q, const struct queue_item *it, uint64_t hash)
{
	struct queue_flow *f = calloc(1, sizeof *f);
	if (f == NULL)
		return NULL;
	f->hash = hash;
	f->priority = it->priority;
	cgn_list_init(&f->items);
	f->chain = q->buckets[hash % BUCKETS];
	q->buckets[hash % BUCKETS] = f;
	cgn_list_push(&q->classes[f->priority].turns, &f->turn);
	return f;
}

static void flow_free(struct queue *q, struct queue_flow *f)
{
	struct queue_flow **at = &q->buckets[f->hash % BUCKETS];
	while (*at != f)
		at = &(*at)->chain;
	*at = f->chain;
	cgn_list_drop(&f->turn);
	free(f);
}

static void insert(struct queue *q, struct queue_flow *f, struct queue_item *it)
{
	it->flow = f;
	it->seq = q->seq++;
	it->late = false;
	it->key = key_of(q->rules.policy, it);
	f->heap = heap_put(f->heap, it);
	f->weight = it->weight > 0 ? it->weight : 1;
	f->n++;
	f->tokens += tokens_of(it);
	cgn_list_push(&f->items, &it->in_flow);
	cgn_list_push(&q->classes[f->priority].by_age, &it->by_age);
	q->classes[f->priority].n++;
	q->n++;
	q->tokens += tokens_of(it);
}

static void extract(struct queue *q, struct queue_item *it)
{
	struct queue_flow *f = it->flow;
	f->heap = heap_drop(f->heap, it);
	f->n--;
	f->tokens -= tokens_of(it);
	cgn_list_drop(&it->in_flow);
	cgn_list_drop(&it->by_age);
	q->classes[f->priority].n--;
	q->n--;
	q->tokens -= tokens_of(it);
	it->flow = NULL;
	if (f->n == 0)
		flow_free(q, f); /* and its deficit with it, or idleness would be saved up */
}

/* ---- in and out ---- */

/* Whom a newcomer may displace; NULL: nobody. */
static struct queue_item *victim(struct queue *q, const struct queue_item *it, size_t own)
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
		out = victim(q, it, f != NULL ? f->n : 0);
		if (out == NULL)
			return QUEUE_FULL;
	}
	if (f == NULL && (f = flow_new(q, it, hash)) == NULL)
		return QUEUE_NO_MEMORY;
	insert(q, f, it);
	if (out == NULL)
		return QUEUE_PUT;
	extract(q, out);
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
	q->tokens += tokens_of(it);
}

static void unreturn(struct queue *q, struct queue_item *it)
{
	it->returned = false;
	cgn_list_drop(&it->by_age);
	q->n--;
	q->tokens -= tokens_of(it);
}

void queue_drop(struct queue *q, struct queue_item *it)
{
	CGN_LIVE(q, QUEUE_TAG);
	if (it->returned)
		unreturn(q, it);
	else if (it->flow != NULL)
		extract(q, it);
}

/* The oldest of a class, aged by what its priority lacks; of equal ones the higher class. */
static struct class *class_next(struct queue *q)
{
	struct class *best = NULL;
	cgn_nsec least = 0;
	for (unsigned p = QUEUE_PRIORITIES; p-- > 0;) {
		struct class *c = &q->classes[p];
		if (c->n == 0)
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

static struct queue_flow *flow_next(struct class *c)
{
	for (;;) {
		struct queue_flow *f = CGN_CONTAINER(c->turns.next, struct queue_flow, turn);
		if (!f->on_turn)
			f->deficit += (uint64_t)QUEUE_QUANTUM * f->weight;
		f->on_turn = true;
		if (f->deficit >= cost_of(f->heap))
			return f;
		f->on_turn = false;
		cgn_list_drop(&f->turn);
		cgn_list_push(&c->turns, &f->turn);
	}
}

static bool is_late(const struct queue_item *it, cgn_nsec now)
{
	return it->deadline != 0 && now + it->need > it->deadline;
}

static void put_off(struct queue_flow *f, struct queue_item *it, cgn_nsec now)
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
		unreturn(q, *out);
		return is_late(*out, now) && (*out)->firm ? QUEUE_LATE : QUEUE_GO;
	}
	for (struct class *c; (c = class_next(q)) != NULL;) {
		struct queue_flow *f = flow_next(c);
		struct queue_item *it = f->heap;
		bool late = is_late(it, now);
		if (late && !it->firm && q->rules.policy == QUEUE_DEADLINE && !it->late) {
			put_off(f, it, now);
			continue;
		}
		if (!(late && it->firm))
			f->deficit -= cost_of(it);
		extract(q, it);
		*out = it;
		return late && it->firm ? QUEUE_LATE : QUEUE_GO;
	}
	return QUEUE_NONE;
}

/* ---- looking ---- */

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
				&(struct queue_share){first_of(f)->tenant, p, f->n, f->tokens,
					first_of(f)->arrived});
		}
	}
}

/* ---- as a whole ---- */

static void resort(struct queue *q, struct queue_flow *f)
{
	f->heap = NULL;
	cgn_list_each (l, &f->items) {
		struct queue_item *it = CGN_CONTAINER(l, struct queue_item, in_flow);
		it->late = false;
		it->key = key_of(q->rules.policy, it);
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
			resort(q, CGN_CONTAINER(l, struct queue_flow, turn));
}

void queue_free(struct queue **take)
{
	struct queue *q = *take;
	*take = NULL;
	if (q == NULL)
		return;
	CGN_LIVE(q, QUEUE_TAG);
	while (!cgn_list_empty(&q->returned))
		unreturn(q, CGN_CONTAINER(cgn_list_first(&q->returned), struct queue_item, by_age));
	for (size_t p = 0; p < QUEUE_PRIORITIES; p++)
		while (q->classes[p].n > 0)
			extract(q, CGN_CONTAINER(q->classes[p].by_age.next, struct queue_item, by_age));
	q->tag = 0;
	free(q);
}
