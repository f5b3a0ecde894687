/* SPDX-License-Identifier: Apache-2.0 */
/* directory: which slot states the node's store has whole, and in which tier, so that a state is found by a
 * chain and reported to routers. A state is in RAM when all of its pieces are there; on SSD when some pieces
 * are only there; it is not listed while a piece is missing or its slot entry is not known. Pure; one thread.
 *
 * Memory: a state takes about 150 bytes, plus 19 to 29 for each block of its chain and 1 for each piece; at most
 * SLOT_DIRECTORY_MAX_STATES and SLOT_DIRECTORY_MAX_BLOCKS. */
#pragma once
#include "policy/kv/block/tier.h"
#include "policy/kv/slots/entry.h"

#define SLOT_DIRECTORY_MAX_STATES 65536
#define SLOT_DIRECTORY_MAX_BLOCKS ((size_t)4 * 1024 * 1024)

struct slot_directory;
/* Called when a state that can restore the block from |tier| was added or removed. */
typedef void (*slot_directory_changed)(void *user, uint64_t digest, enum block_tier tier, bool held);
/* Create an empty directory. |held| may be NULL. */
struct slot_directory *slot_directory_new(slot_directory_changed held, void *user);
void slot_directory_free(struct slot_directory **take); /* NULL-safe; does not call |held| */
/* The store reports the tiers of a piece of a state: a mask, 0 when the piece is gone. An entry that is put
 * again is reported as gone in between. Returns true when the state's entry is in the store and not known
 * here: the caller reads it and calls slot_directory_add. Beyond the bounds nothing is recorded, and the
 * result is false. */
bool slot_directory_piece_told(struct slot_directory *s, uint64_t id, uint32_t segment, unsigned tiers);
/* Add a slot entry, which is copied. The known pieces of the state stay. CGN_TOO_LARGE: the directory is
 * full; CGN_NO_MEMORY. */
CGN_RC slot_directory_add(struct slot_directory *s, const struct slot_entry *c, struct cgn_err *err);
/* The store was replaced, or is not reachable */
void slot_directory_clear(struct slot_directory *s);
size_t slot_directory_states(const struct slot_directory *s); /* Whole states only */
size_t slot_directory_blocks(const struct slot_directory *s);

struct slot_directory_find {
	struct slot_entry entry; /* |chain| and |sums| are borrowed until the directory changes */
	enum block_tier tier;
	uint32_t common; /* Leading blocks of the chain that the state has; 0: no state was found */
};
/* Find the state that shares the most blocks with the chain; of several, one in RAM, then the smallest. */
struct slot_directory_find slot_directory_find(const struct slot_directory *s, const uint64_t *chain,
	size_t n);
/* Find the state whose chain ends with the block |id|. False: there is none, or a part of it is missing. */
bool slot_directory_get(const struct slot_directory *s, uint64_t id, struct slot_directory_find *out);
/* Find a state whose whole chain is a proper prefix of |c|'s chain, so that the state is of no use beside
 * |c|. False: there is none. */
bool slot_directory_find_prefix(const struct slot_directory *s, const struct slot_entry *c,
	struct slot_directory_find *out);
