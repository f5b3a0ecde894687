/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of evict share. evict.c: queues · ghosts.c: who left. */
#pragma once
#include "policy/evict/evict.h"

/* At most |limit| of the keys that left last are remembered; older ones are no longer found. */
void ghosts_add(struct ghosts *g, uint64_t hash, uint64_t limit);
/* True, and forgotten, when it was there. */
bool ghosts_take(struct ghosts *g, uint64_t hash, uint64_t limit);
void ghosts_fini(struct ghosts *g);
size_t ghosts_bytes(const struct ghosts *g);
