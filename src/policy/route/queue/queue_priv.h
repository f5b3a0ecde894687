/* SPDX-License-Identifier: Apache-2.0 */
/* queue, inside: the pairing heap (Fredman et al. 1986) of one tenant's items. */
#pragma once
#include "policy/route/queue/queue.h"

struct queue_item *heap_put(struct queue_item *root, struct queue_item *it); /* Return the new root. */
/* Take |it|, which is in the heap, out. Return the new root. */
struct queue_item *heap_drop(struct queue_item *root, struct queue_item *it);
bool heap_before(const struct queue_item *a, const struct queue_item *b);
