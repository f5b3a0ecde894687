/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/evict/evict_priv.h"

#define EVICT_TAG 0xe51c7000U

/* Bytes of the small queue: a tenth of the tier at first, as published; at least a fiftieth, at most nine
 * tenths. */
#define SMALL_FIRST(bytes) ((bytes) / 10)
#define SMALL_LEAST(bytes) ((bytes) / 50)
#define SMALL_MOST(bytes)  ((bytes) / 10 * 9)
#define STEP(bytes)        ((bytes) / 1000)

static uint8_t byte_load(const _Atomic uint8_t *p)
{
	return atomic_load_explicit(p, memory_order_relaxed);
}

static void byte_store(_Atomic uint8_t *p, unsigned v)
{
	atomic_store_explicit(p, (uint8_t)v, memory_order_relaxed);
}

static void queue_append(struct evict *e, struct evict_node *n, enum evict_queue queue)
{
	struct evict_ring *r = &e->ring[queue];
	n->queue = (uint8_t)queue;
	n->prev = r->head.prev;
	n->next = &r->head;
	n->prev->next = n;
	r->head.prev = n;
	r->bytes += n->bytes;
	r->n++;
}

static void take_out(struct evict *e, struct evict_node *n)
{
	struct evict_ring *r = &e->ring[n->queue];
	n->prev->next = n->next;
	n->next->prev = n->prev;
	n->next = n->prev = NULL;
	r->bytes -= n->bytes;
	r->n--;
}

void evict_init(struct evict *e, const struct evict_cfg *cfg)
{
	*e = (struct evict){.tag = EVICT_TAG, .cfg = *cfg, .small_bytes = SMALL_FIRST(cfg->bytes)};
	for (enum evict_queue q = 0; q < EVICT_QUEUES; q++)
		e->ring[q].head.next = e->ring[q].head.prev = &e->ring[q].head;
}

void evict_fini(struct evict *e)
{
	if (e == NULL)
		return;
	ghosts_fini(&e->ghosts);
	*e = (struct evict){0};
}

uint64_t evict_count(const struct evict *e)
{
	return e->ring[EVICT_SMALL].n + e->ring[EVICT_MAIN].n;
}

size_t evict_bytes(const struct evict *e)
{
	return ghosts_bytes(&e->ghosts);
}

/* Enlarge the queue |towards|. A node came back soon after it left that queue: it would still be in the tier
 * if that queue had been a fifth of the tier longer. */
static void share_adapt(struct evict *e, enum evict_queue towards, uint32_t bytes)
{
	uint64_t all = e->cfg.bytes, step = STEP(all) > bytes ? STEP(all) : bytes, least = SMALL_LEAST(all),
		 most = SMALL_MOST(all);
	if (towards == EVICT_SMALL)
		e->small_bytes = e->small_bytes + step < most ? e->small_bytes + step : most;
	else
		e->small_bytes = e->small_bytes > least + step ? e->small_bytes - step : least;
}

/* Return true if |n| left the tier a short while ago: it goes to the main queue at once. */
static bool came_back(struct evict *e, struct evict_node *n)
{
	enum evict_queue from = EVICT_SMALL;
	uint64_t ago = 0, nodes = evict_count(e);
	if (!ghosts_take(&e->ghosts, e->cfg.hash_of(n), &from, &ago))
		return false;
	if (ago <= nodes / 5)
		share_adapt(e, from, n->bytes);
	return ago <= (from == EVICT_SMALL ? 2 * nodes : nodes / 2);
}

void evict_add(struct evict *e, struct evict_node *n, uint32_t bytes)
{
	CGN_LIVE(e, EVICT_TAG);
	CGN_MUST(!evict_has(n));
	/* A reader may touch the node of a block whose pin has just ended, so |uses| is stored atomically. */
	n->bytes = bytes;
	byte_store(&n->uses, 0);
	bool back = came_back(e, n);
	byte_store(&n->worth, back ? EVICT_CAME_BACK : 0);
	queue_append(e, n, back ? EVICT_MAIN : EVICT_SMALL);
}

static void note_use(struct evict_node *n, uint8_t uses)
{
	unsigned worth = byte_load(&n->worth);
	bool more = uses > 1 || (worth & EVICT_USED) != 0;
	byte_store(&n->worth, worth | EVICT_USED | (more ? (unsigned)EVICT_USED_MORE : 0U));
}

/* The result of examining the first node of a queue. */
enum turn { GOES, STAYS, PINNED };
static enum turn take_turn(struct evict *e, struct evict_node *n, bool may_go, bool whatever)
{
	uint8_t uses = byte_load(&n->uses);
	bool used = uses > 0;
	if (used)
		note_use(n, uses);
	if (may_go && (!used || whatever))
		return GOES;
	if (used && may_go)
		byte_store(&n->uses, n->queue == EVICT_MAIN ? uses - 1U : 0);
	take_out(e, n);
	queue_append(e, n, EVICT_MAIN);
	return may_go ? STAYS : PINNED;
}

struct evict_node *evict_victim(struct evict *e, bool (*may_go)(void *user, struct evict_node *n), void *user)
{
	CGN_LIVE(e, EVICT_TAG);
	const struct evict_ring *small = &e->ring[EVICT_SMALL], *main = &e->ring[EVICT_MAIN];
	uint64_t pinned = 0, turns = 0, nodes = evict_count(e);
	/* |pinned| counts nodes of the main queue in a row that may not go; a pinned node of the small queue
	 * moves to the main queue. The count ends the loop, because readers may touch nodes as fast as they
	 * are examined. */
	while (small->n > 0 || pinned < main->n) {
		const struct evict_ring *r =
			small->n > 0 && (small->bytes > e->small_bytes || pinned >= main->n) ? small : main;
		struct evict_node *n = r->head.next;
		switch (take_turn(e, n, may_go == NULL || may_go(user, n), ++turns > 4 * nodes)) {
		case GOES:
			ghosts_add(&e->ghosts, e->cfg.hash_of(n), n->queue, nodes);
			take_out(e, n);
			return n;
		case STAYS:
			pinned = 0;
			break;
		case PINNED:
			pinned += r == main;
			break;
		}
	}
	return NULL;
}

void evict_drop(struct evict *e, struct evict_node *n)
{
	CGN_LIVE(e, EVICT_TAG);
	if (evict_has(n))
		take_out(e, n);
}

unsigned evict_worth(const struct evict_node *n)
{
	unsigned worth = byte_load(&n->worth);
	uint8_t uses = byte_load(&n->uses);
	return worth | (uses > 0 ? EVICT_USED : 0U) | (uses > 1 ? EVICT_USED_MORE : 0U);
}

bool evict_sound(const struct evict *e)
{
	for (enum evict_queue q = 0; q < EVICT_QUEUES; q++) {
		const struct evict_ring *r = &e->ring[q];
		uint64_t n = 0, bytes = 0;
		for (const struct evict_node *at = r->head.next; at != &r->head; at = at->next, n++) {
			bytes += at->bytes;
			if (at->queue != q || at->next->prev != at || n > r->n)
				return false;
		}
		if (n != r->n || bytes != r->bytes)
			return false;
	}
	return true;
}
