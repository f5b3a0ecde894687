/* SPDX-License-Identifier: Apache-2.0 */
/* timer: the heap behind cgn_timer. Every request sets and cancels a timer or two, so both must be cheap. */
#include "loop_priv.h"

#include <stdlib.h>

#define ARITY 4

static void heap_place(struct timer_heap *h, size_t slot, struct cgn_timer *t)
{
	h->slots[slot] = t;
	t->heap_slot = slot;
}

static void sift_up(struct timer_heap *h, size_t slot, struct cgn_timer *t)
{
	while (slot > 0) {
		size_t parent = (slot - 1) / ARITY;
		if (h->slots[parent]->at <= t->at)
			break;
		heap_place(h, slot, h->slots[parent]);
		slot = parent;
	}
	heap_place(h, slot, t);
}

/* Return the earliest child of |slot|, or h->n when it has none. */
static size_t first_child(const struct timer_heap *h, size_t slot)
{
	size_t from = slot * ARITY + 1, best = h->n;
	for (size_t i = from; i < from + ARITY && i < h->n; i++)
		if (best == h->n || h->slots[i]->at < h->slots[best]->at)
			best = i;
	return best;
}

static void sift_down(struct timer_heap *h, size_t slot, struct cgn_timer *t)
{
	for (size_t child; (child = first_child(h, slot)) < h->n; slot = child) {
		if (h->slots[child]->at >= t->at)
			break;
		heap_place(h, slot, h->slots[child]);
	}
	heap_place(h, slot, t);
}

static void heap_grow(struct timer_heap *h)
{
	h->cap = h->cap > 0 ? h->cap * 2 : 64;
	h->slots = CGN_GROWN(h->slots, h->cap);
}

void timer_heap_put(struct timer_heap *h, struct cgn_timer *t)
{
	if (h->n == h->cap)
		heap_grow(h);
	sift_up(h, h->n++, t);
}

void timer_heap_move(struct timer_heap *h, struct cgn_timer *t)
{
	size_t slot = t->heap_slot;
	CGN_MUST(slot < h->n && h->slots[slot] == t);
	if (slot > 0 && h->slots[(slot - 1) / ARITY]->at > t->at)
		sift_up(h, slot, t);
	else
		sift_down(h, slot, t);
}

void timer_heap_drop(struct timer_heap *h, struct cgn_timer *t)
{
	size_t slot = t->heap_slot;
	CGN_MUST(slot < h->n && h->slots[slot] == t);
	struct cgn_timer *last = h->slots[--h->n];
	if (last == t)
		return;
	heap_place(h, slot, last);
	timer_heap_move(h, last);
}

struct cgn_timer *timer_heap_first(const struct timer_heap *h)
{
	return h->n > 0 ? h->slots[0] : NULL;
}

void timer_heap_fini(struct timer_heap *h)
{
	free(h->slots);
	*h = (struct timer_heap){0};
}
