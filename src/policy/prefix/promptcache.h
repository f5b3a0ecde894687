/* SPDX-License-Identifier: Apache-2.0 */
/* promptcache: prompts that were tokenised before, so that turn N of a conversation costs its new text only.
 *
 * An entry is the state of a prefix_tokens behind a text: the digests of its blocks, the tokens that are left
 * over, how many there are. It is named by a key over that text and everything else that its tokens depend
 * on. The entry of a longer text stands on the entry of the shorter one (its parent) and holds only the
 * digests in between, so the turns of a conversation share memory. A parent is always used later than its
 * children and is never dropped before them: whoever finds an entry finds all of its prefix.
 *
 * Memory: |budget_bytes| for everything, the least recently used out first. Pure; one thread: each worker of
 * a router has its own, since a lock on every request would cost more than a conversation that comes to
 * another worker (it is tokenised once more there). */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "policy/prefix/tokens.h"

struct promptcache_key {
	uint8_t b[16]; /* of a BLAKE3 digest: nobody can make another text of the same name */
};
struct promptcache_stats {
	uint64_t hits, misses, evictions;
	size_t bytes, entries;
};
struct promptcache;
struct promptcache_entry; /* borrowed until the next put */

/* |budget_bytes| 0: nothing is ever kept. CGN_NO_MEMORY. */
CGN_RC promptcache_new(size_t budget_bytes, struct promptcache **out, struct cgn_err *err);
void promptcache_free(struct promptcache **take);
struct promptcache_stats promptcache_stats(const struct promptcache *c);

/* The last of |keys|, which name longer and longer prefixes of one text, that is known; NULL: none. |*index|
 * is its place. One hit or miss; the entry and what it stands on become the youngest. */
struct promptcache_entry *promptcache_find(struct promptcache *c, const struct promptcache_key *keys,
	size_t n, size_t *index);
/* That one entry, not counted; NULL: not there. */
struct promptcache_entry *promptcache_get(struct promptcache *c, const struct promptcache_key *key);
size_t promptcache_blocks(const struct promptcache_entry *e); /* digests in it */
/* Set |chain|, which was started with the same block size, to the state behind |e|'s text; beyond chain->cap
 * it is cut. */
void promptcache_load(const struct promptcache_entry *e, struct prefix_tokens *chain);
/* Keep the state of |chain| under |key|, standing on |parent| (NULL: on nothing), which must be a prefix of
 * it and be kept still. NULL: it has no room, or there is no memory. A key that is known already is not
 * changed. */
struct promptcache_entry *promptcache_put(struct promptcache *c, const struct promptcache_key *key,
	struct promptcache_entry *parent, const struct prefix_tokens *chain);
