/* SPDX-License-Identifier: Apache-2.0 */
/* promptcache: caches tokenised prompts, so that a turn of a conversation only tokenises its new text.
 *
 * An entry is the state of a prefix_tokens after a text: the digests of its blocks, the leftover tokens, and
 * their number. Its key covers that text and everything else that its tokens depend on. The entry of a longer
 * text refers to the entry of the shorter one (its parent) and holds only the digests in between, so the
 * turns of a conversation share memory. A parent counts as used after its children and is never evicted
 * before them: an entry that is found always has its whole prefix.
 *
 * Memory: |budget_bytes| in all, least recently used entries evicted first. Pure; one thread. Each worker of
 * a router has its own cache: a lock on every request would cost more than tokenising a conversation again
 * when it moves to another worker. */
#pragma once
#include <stdbool.h>

#include "base/core/err.h"
#include "policy/text/prefix/tokens.h"

struct promptcache_key {
	/* Part of a BLAKE3 digest, so that no client can make another text with the same key. */
	uint8_t b[16];
};
struct promptcache_stats {
	uint64_t hits, misses, evictions;
	size_t bytes, entries;
};
struct promptcache;
struct promptcache_entry; /* Borrowed until the next put. */

/* |budget_bytes| 0: nothing is cached. NULL: there is no memory for the table of so many bytes, which an operator chose. */
struct promptcache *promptcache_new(size_t budget_bytes);
void promptcache_free(struct promptcache **take);
struct promptcache_stats promptcache_stats(const struct promptcache *c);

/* Return the entry of the last key in |keys| that is cached, or NULL. The keys name longer and longer
 * prefixes of one text. |*index| is the key's index. Counts one hit or miss; the entry and its parents become
 * the most recently used. */
struct promptcache_entry *promptcache_find(struct promptcache *c, const struct promptcache_key *keys,
	size_t n, size_t *index);
/* Return the entry of |key| without counting it, or NULL. */
struct promptcache_entry *promptcache_get(struct promptcache *c, const struct promptcache_key *key);
size_t promptcache_blocks(const struct promptcache_entry *e); /* Digests in the entry. */
/* Set |chain|, started with the same block size, to the state after the entry's text, cut at chain->cap. */
void promptcache_load(const struct promptcache_entry *e, struct prefix_tokens *chain);
/* Cache the state of |chain| under |key|. |parent| (or NULL) must be a prefix of it and still be cached.
 * Return NULL when the entry does not fit or there is no memory. A key that is already cached stays
 * unchanged. */
struct promptcache_entry *promptcache_put(struct promptcache *c, const struct promptcache_key *key,
	struct promptcache_entry *parent, const struct prefix_tokens *chain);
