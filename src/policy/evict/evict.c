/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/evict/evict_priv.h"

#define EVICT_TAG 0xe51c7000U

enum { QUEUE_SMALL, QUEUE_MAIN };

static_assert(sizeof(struct evict_node) == 24, "what each block pays");

static void ring_init(struct evict_queue *q)
{
	*q = (struct evict_queue){0};
	q->head.next = q->head.prev = &q->head;
}

static struct evict_queue *queue_of(struct evict *e, const struct evict_node *n)
{
	return n->queue == QUEUE_MAIN ? &e->main : &e->small;
}

static void append(struct evict *e, struct evict_node *n, uint8_t queue)
{
	n->queue = queue;
	struct evict_queue *q = queue_of(e, n);
	n->prev = q->head.prev;
	n->next = &q->head;
	n->prev->next = n;
	q->head.prev = n;
	q->bytes += n->bytes;
	q->n++;
}

static void take_out(struct evict *e, struct evict_node *n)
{
	struct evict_queue *q = queue_of(e, n);
	n->prev->next = n->next;
	n->next->prev = n->prev;
	n->next = n->prev = NULL;
	q->bytes -= n->bytes;
	q->n--;
}

void evict_init(struct evict *e, const struct evict_cfg *cfg)
{
	*e = (struct evict){.tag = EVICT_TAG, .cfg = *cfg};
	ring_init(&e->small);
	ring_init(&e->main);
}

void evict_fini(struct evict *e)
{
	CGN_LIVE(e, EVICT_TAG);
	ghosts_fini(&e->ghosts);
	*e = (struct evict){0};
}

/* As many as there are blocks. */
static uint64_t ghost_limit(const struct evict *e)
{
	return e->small.n + e->main.n;
}

void evict_add(struct evict *e, struct evict_node *n, uint32_t bytes)
{
	CGN_LIVE(e, EVICT_TAG);
	CGN_MUST(!evict_has(n));
	*n = (struct evict_node){.bytes = bytes};
	bool back = ghosts_take(&e->ghosts, e->cfg.hash_of(n), ghost_limit(e));
	n->flags = back ? EVICT_CAME_BACK | EVICT_MAIN : 0;
	append(e, n, back ? QUEUE_MAIN : QUEUE_SMALL);
}

/* The first of |q| that may leave; those that may not are passed over. */
static struct evict_node *first_free(struct evict_queue *q, bool (*may_go)(void *user, struct evict_node *n), void *user)
{
	struct evict_node *n = q->head.next;
	while (n != &q->head && may_go != NULL && !may_go(user, n))
		n = n->next;
	return n != &q->head ? n : NULL;
}

/* True: it stays, in the main queue. */
static bool stays(struct evict *e, struct evict_node *n)
{
	uint8_t uses = atomic_load_explicit(&n->uses, memory_order_relaxed);
	if (uses == 0)
		return false;
	atomic_store_explicit(&n->uses, (uint8_t)(n->queue == QUEUE_MAIN ? uses - 1 : 0), memory_order_relaxed);
	n->flags |= EVICT_USED | EVICT_MAIN;
	take_out(e, n);
	append(e, n, QUEUE_MAIN);
	return true;
}

struct evict_node *evict_victim(struct evict *e, bool (*may_go)(void *user, struct evict_node *n), void *user)
{
	CGN_LIVE(e, EVICT_TAG);
	for (;;) {
		bool small = e->small.bytes > e->cfg.bytes / 10;
		struct evict_node *n = first_free(small ? &e->small : &e->main, may_go, user);
		if (n == NULL)
			n = first_free(small ? &e->main : &e->small, may_go, user);
		if (n == NULL)
			return NULL;
		if (stays(e, n))
			continue;
		if (n->queue == QUEUE_SMALL)
			ghosts_add(&e->ghosts, e->cfg.hash_of(n), ghost_limit(e));
		take_out(e, n);
		return n;
	}
}

void evict_drop(struct evict *e, struct evict_node *n)
{
	CGN_LIVE(e, EVICT_TAG);
	if (evict_has(n))
		take_out(e, n);
}

unsigned evict_worth(const struct evict_node *n)
{
	bool used = atomic_load_explicit(&n->uses, memory_order_relaxed) > 0;
	return n->flags | (used ? EVICT_USED : 0U);
}

uint64_t evict_count(const struct evict *e)
{
	return e->small.n + e->main.n;
}

uint64_t evict_held_bytes(const struct evict *e)
{
	return e->small.bytes + e->main.bytes;
}

size_t evict_bytes(const struct evict *e)
{
	return ghosts_bytes(&e->ghosts);
}
