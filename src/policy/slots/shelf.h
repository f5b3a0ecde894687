/* SPDX-License-Identifier: Apache-2.0 */
/* shelf: which states of slots the node's store has whole, and in which tier, so that they can be found by a
 * chain and told to routers. A state counts in RAM when all of its pieces are there, on SSD when some are
 * only there, and not at all while one is missing or its card is not known. Pure; one thread.
 *
 * Memory: a state takes about 150 bytes, 32 more for each block of its chain and 1 for each piece; at most
 * SHELF_MAX_STATES and SHELF_MAX_BLOCKS. */
#pragma once
#include "policy/kvindex/tier.h"
#include "policy/slots/card.h"

#define SHELF_MAX_STATES 65536
#define SHELF_MAX_BLOCKS ((size_t)4 * 1024 * 1024)

struct shelf;
/* A block can be brought back from |tier| by one state more, or less. */
typedef void (*shelf_held)(void *user, uint64_t digest, enum kv_tier tier, bool held);
/* |held| may be NULL */
CGN_RC shelf_new(shelf_held held, void *user, struct shelf **out, struct cgn_err *err);
void shelf_free(struct shelf **take); /* NULL-safe; tells nobody */
/* The store tells where a piece of a state is: a mask of tiers, 0 when it is gone (a card that is put again
 * was gone in between, and is another one). True: the state's card is there and not known, so it is to be
 * read and given to shelf_card. Beyond the bounds nothing is kept, and false. */
bool shelf_told(struct shelf *s, uint64_t id, uint32_t segment, unsigned tiers);
/* Copied. CGN_TOO_LARGE: beyond the bounds; CGN_NO_MEMORY. What was known of the state's pieces stays. */
CGN_RC shelf_card(struct shelf *s, const struct card *c, struct cgn_err *err);
void shelf_clear(struct shelf *s);          /* the store is another one, or away */
size_t shelf_states(const struct shelf *s); /* whole ones */
size_t shelf_blocks(const struct shelf *s);

struct shelf_find {
	struct card card; /* chain borrowed until the shelf changes */
	enum kv_tier tier;
	uint32_t common; /* leading blocks of the chain that it has; 0: no state begins alike */
};
/* The state that shares most blocks with the chain; of several one in RAM, and then the smallest. */
struct shelf_find shelf_find(const struct shelf *s, const uint64_t *chain, size_t n);
/* A state all of whose blocks are the beginning of |c|'s, and which so is of no use beside it; false: there
 * is none. */
bool shelf_within(const struct shelf *s, const struct card *c, struct shelf_find *out);
