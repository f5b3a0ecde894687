/* SPDX-License-Identifier: Apache-2.0 */
/* shelf: which states of slots the node's store has whole, and in which tier, so that they can be found by a
 * chain and told to routers. A state counts in RAM when all of its pieces are there, on SSD when some are
 * only there, and not at all while one is missing or its card is not known. Pure; one thread.
 *
 * Memory: a state takes about 150 bytes, 32 more for each block of its chain and 1 for each piece; at most
 * SLOT_DIRECTORY_MAX_STATES and SLOT_DIRECTORY_MAX_BLOCKS. */
#pragma once
#include "policy/block/tier.h"
#include "policy/slots/entry.h"

#define SLOT_DIRECTORY_MAX_STATES 65536
#define SLOT_DIRECTORY_MAX_BLOCKS ((size_t)4 * 1024 * 1024)

struct slot_directory;
/* A block can be brought back from |tier| by one state more, or less. */
typedef void (*slot_directory_changed)(void *user, uint64_t digest, enum block_tier tier, bool held);
/* |held| may be NULL */
CGN_RC slot_directory_new(slot_directory_changed held, void *user, struct slot_directory **out,
	struct cgn_err *err);
void slot_directory_free(struct slot_directory **take); /* NULL-safe; tells nobody */
/* The store tells where a piece of a state is: a mask of tiers, 0 when it is gone (a card that is put again
 * was gone in between, and is another one). True: the state's card is there and not known, so it is to be
 * read and given to slot_directory_add. Beyond the bounds nothing is kept, and false. */
bool slot_directory_piece_told(struct slot_directory *s, uint64_t id, uint32_t segment, unsigned tiers);
/* Copied. CGN_TOO_LARGE: beyond the bounds; CGN_NO_MEMORY. What was known of the state's pieces stays. */
CGN_RC slot_directory_add(struct slot_directory *s, const struct slot_entry *c, struct cgn_err *err);
void slot_directory_clear(struct slot_directory *s);          /* the store is another one, or away */
size_t slot_directory_states(const struct slot_directory *s); /* whole ones */
size_t slot_directory_blocks(const struct slot_directory *s);

struct slot_directory_find {
	struct slot_entry slot_entry; /* chain borrowed until the shelf changes */
	enum block_tier tier;
	uint32_t common; /* leading blocks of the chain that it has; 0: no state begins alike */
};
/* The state that shares most blocks with the chain; of several one in RAM, and then the smallest. */
struct slot_directory_find slot_directory_find(const struct slot_directory *s, const uint64_t *chain,
	size_t n);
/* A state all of whose blocks are the beginning of |c|'s, and which so is of no use beside it; false: there
 * is none. */
bool slot_directory_find_prefix(const struct slot_directory *s, const struct slot_entry *c,
	struct slot_directory_find *out);
