/* SPDX-License-Identifier: Apache-2.0 */
/* evict, inside: evict.c: queues · ghosts.c: who left. */
#pragma once
#include "policy/evict/evict.h"

/* One that left |from|, of a tier with |nodes| of them. */
void ghosts_add(struct evict_ghosts *g, uint64_t hash, enum evict_queue from, uint64_t nodes);
/* False: not known. Else it is forgotten, *from says what it left and *ago how many left the same queue
 * since, to 1/64 of the table. */
bool ghosts_take(struct evict_ghosts *g, uint64_t hash, enum evict_queue *from, uint64_t *ago);
void ghosts_fini(struct evict_ghosts *g);
size_t ghosts_bytes(const struct evict_ghosts *g);
