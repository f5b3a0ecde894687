/* SPDX-License-Identifier: Apache-2.0 */
#include "queue_priv.h"

bool heap_before(const struct queue_item *a, const struct queue_item *b)
{
	return a->key != b->key ? a->key < b->key : a->seq < b->seq;
}

/* |prev| is the left sibling, or the parent for a first child. */
static struct queue_item *heap_meld(struct queue_item *a, struct queue_item *b)
{
	if (a == NULL || b == NULL)
		return a != NULL ? a : b;
	struct queue_item *top = heap_before(b, a) ? b : a, *low = top == a ? b : a;
	low->prev = top;
	low->next = top->child;
	if (low->next != NULL)
		low->next->prev = low;
	top->child = low;
	top->next = top->prev = NULL;
	return top;
}

/* Meld siblings by twos from the left, then all pairs from the right. This order makes removal
 * logarithmic. */
static struct queue_item *heap_merge_children(struct queue_item *first)
{
	struct queue_item *done = NULL, *root = NULL;
	while (first != NULL) {
		struct queue_item *a = first, *b = a->next;
		first = b != NULL ? b->next : NULL;
		a->next = a->prev = NULL;
		if (b != NULL)
			b->next = b->prev = NULL;
		a = heap_meld(a, b);
		a->next = done;
		done = a;
	}
	while (done != NULL) {
		struct queue_item *a = done;
		done = a->next;
		a->next = NULL;
		root = heap_meld(root, a);
	}
	return root;
}

struct queue_item *heap_put(struct queue_item *root, struct queue_item *it)
{
	it->child = it->next = it->prev = NULL;
	return heap_meld(root, it);
}

struct queue_item *heap_drop(struct queue_item *root, struct queue_item *it)
{
	struct queue_item *rest = heap_merge_children(it->child);
	if (it != root) {
		if (it->prev->child == it)
			it->prev->child = it->next;
		else
			it->prev->next = it->next;
		if (it->next != NULL)
			it->next->prev = it->prev;
		rest = heap_meld(root, rest);
	}
	it->child = it->next = it->prev = NULL;
	return rest;
}
