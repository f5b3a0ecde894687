/* SPDX-License-Identifier: Apache-2.0 */
/* evict, inside: evict.c has the queues, ghosts.c the fingerprints of evicted nodes. */
#pragma once
#include "policy/kv/evict/evict.h"

/* Record a node that left |from|, of a tier with |nodes| nodes. */
void ghosts_add(struct evict_ghosts *g, uint64_t hash, enum evict_queue from, uint64_t nodes);
/* Look up and forget the ghost of |hash|. False: there is none. *from is the queue that the node left; *ago
 * is how many nodes left the same queue since then, to 1/64 of the table. */
bool ghosts_take(struct evict_ghosts *g, uint64_t hash, enum evict_queue *from, uint64_t *ago);
void ghosts_fini(struct evict_ghosts *g);
size_t ghosts_bytes(const struct evict_ghosts *g);
