/* SPDX-License-Identifier: Apache-2.0 */
/* list: intrusive, doubly linked, circular with a head. A link that is on no list points to itself. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/core/err.h"

struct cgn_link {
	struct cgn_link *next, *prev;
};

static inline void cgn_list_init(struct cgn_link *l)
{
	l->next = l->prev = l;
}
static inline bool cgn_list_empty(const struct cgn_link *l)
{
	return l->next == l;
}
static inline void cgn_list_push(struct cgn_link *head, struct cgn_link *l) /* Append at the tail. */
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}
static inline void cgn_list_push_front(struct cgn_link *head, struct cgn_link *l)
{
	cgn_list_push(head->next, l);
}
static inline void cgn_list_drop(struct cgn_link *l) /* Does nothing for a link that is on no list. */
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	cgn_list_init(l);
}
static inline struct cgn_link *cgn_list_first(struct cgn_link *head) /* NULL when the list is empty. */
{
	return head->next != head ? head->next : NULL;
}
#define cgn_list_each(it, head) for (struct cgn_link *it = (head)->next; it != (head); it = it->next)
#define cgn_list_each_safe(it, head)                                                  \
	for (struct cgn_link *it = (head)->next, *it##_next = it->next; it != (head); \
		it = it##_next, it##_next = it->next)
