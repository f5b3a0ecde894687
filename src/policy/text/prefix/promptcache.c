/* SPDX-License-Identifier: Apache-2.0 */
/* promptcache: a hash table of entries and one list by use. The list's last entry never has children. */
#include "policy/text/prefix/promptcache.h"

#include <stdlib.h>
#include <string.h>

#include "base/core/list.h"
#include "base/unlikely/unlikely.h"

#define CACHE_TAG        0x9c0ac4e1U
#define ENTRY_TAG        0x9c0ac4e2U
#define MALLOC_OVERHEAD  16
#define BYTES_PER_BUCKET 1024 /* Budget per bucket: entries are 200 bytes or more. */
#define BUCKETS_MAX      ((size_t)1 << 24)

struct promptcache_entry {
	uint32_t tag;
	uint32_t n_left;
	struct promptcache_key key;
	struct promptcache_entry *next;   /* In its bucket. */
	struct promptcache_entry *parent; /* The parent entry, which lives longer. */
	struct cgn_link use;              /* Link in cache->use, most recent first. */
	uint32_t children;
	uint32_t n_own; /* Digests of its own. */
	size_t n;       /* Digests, including the parents'. */
	uint64_t n_tokens;
	size_t bytes;
	struct digest last;
	uint64_t own[]; /* n_own digests, then n_left ids. */
};

struct promptcache {
	uint32_t tag;
	size_t budget, n_buckets; /* n_buckets: a power of two. */
	struct promptcache_entry **buckets;
	struct cgn_link use;
	struct promptcache_stats stats;
};

struct promptcache *promptcache_new(size_t budget_bytes)
{
	struct promptcache *c = CGN_NEW(struct promptcache);
	size_t n = 1;
	while (n < budget_bytes / BYTES_PER_BUCKET && n < BUCKETS_MAX)
		n *= 2;
	c->buckets = calloc(n, sizeof(struct promptcache_entry *));
	if (c->buckets == NULL) {
		free(c);
		return NULL;
	}
	c->tag = CACHE_TAG;
	c->n_buckets = n;
	c->budget = budget_bytes;
	c->stats.bytes = n * sizeof(struct promptcache_entry *);
	cgn_list_init(&c->use);
	return c;
}

static struct promptcache_entry *of_use(struct cgn_link *l)
{
	return CGN_CONTAINER(l, struct promptcache_entry, use);
}

static size_t bucket_of(const struct promptcache *c, const struct promptcache_key *key)
{
	uint64_t v = 0;
	memcpy(&v, key->b, sizeof v);
	return (size_t)v & (c->n_buckets - 1);
}

static struct promptcache_entry *entry_lookup(const struct promptcache *c, const struct promptcache_key *key)
{
	struct promptcache_entry *e = c->buckets[bucket_of(c, key)];
	while (e != NULL && memcmp(&e->key, key, sizeof *key) != 0)
		e = e->next;
	return e;
}

static void entry_drop(struct promptcache *c, struct promptcache_entry *e)
{
	CGN_LIVE(e, ENTRY_TAG);
	CGN_MUST(e->children == 0);
	struct promptcache_entry **at = &c->buckets[bucket_of(c, &e->key)];
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	cgn_list_drop(&e->use);
	if (e->parent != NULL)
		e->parent->children--;
	c->stats.bytes -= e->bytes;
	c->stats.entries--;
	e->tag = 0;
	free(e);
}

void promptcache_free(struct promptcache **take)
{
	struct promptcache *c = CGN_TAKE_LIVE(take, CACHE_TAG);
	if (c == NULL)
		return;
	while (!cgn_list_empty(&c->use))
		entry_drop(c, of_use(c->use.prev));
	c->tag = 0;
	free(c->buckets);
	free(c);
}

struct promptcache_stats promptcache_stats(const struct promptcache *c)
{
	CGN_LIVE(c, CACHE_TAG);
	return c->stats;
}

/* Touch the entry and then its parents, so that each is more recent than its children. */
static void entry_touch(struct promptcache *c, struct promptcache_entry *e)
{
	for (; e != NULL; e = e->parent) {
		cgn_list_drop(&e->use);
		cgn_list_push_front(&c->use, &e->use);
	}
}

/* A prefix of a cached text is usually cached too. Prefixes that other texts cached in part are an exception,
 * which costs more tokenising. */
struct promptcache_entry *promptcache_find(struct promptcache *c, const struct promptcache_key *keys,
	size_t n, size_t *index)
{
	struct promptcache_entry *found = NULL;
	CGN_LIVE(c, CACHE_TAG);
	n = unlikely_way(UNLIKELY_prompt_misses) ? 0 : n;
	for (size_t lo = 0, hi = n; lo < hi;) {
		size_t mid = lo + (hi - lo) / 2;
		struct promptcache_entry *e = entry_lookup(c, &keys[mid]);
		if (e == NULL) {
			hi = mid;
			continue;
		}
		found = e;
		*index = mid;
		lo = mid + 1;
	}
	c->stats.hits += found != NULL;
	c->stats.misses += found == NULL;
	entry_touch(c, found);
	return found;
}

struct promptcache_entry *promptcache_get(struct promptcache *c, const struct promptcache_key *key)
{
	CGN_LIVE(c, CACHE_TAG);
	struct promptcache_entry *e = entry_lookup(c, key);
	entry_touch(c, e);
	return e;
}

size_t promptcache_blocks(const struct promptcache_entry *e)
{
	CGN_LIVE(e, ENTRY_TAG);
	return e->n;
}

void promptcache_load(const struct promptcache_entry *e, struct prefix_tokens *chain)
{
	CGN_LIVE(e, ENTRY_TAG);
	chain->last = e->last;
	chain->n_tokens = e->n_tokens;
	chain->n_left = e->n_left;
	chain->n = e->n < chain->cap ? e->n : chain->cap;
	CGN_MUST(e->n_left < chain->block_tokens);
	memcpy(chain->left, e->own + e->n_own, e->n_left * sizeof chain->left[0]);
	for (; e != NULL; e = e->parent) {
		size_t from = e->n - e->n_own, end = e->n < chain->n ? e->n : chain->n;
		if (end > from)
			memcpy(chain->short_digests + from, e->own,
				(end - from) * sizeof chain->short_digests[0]);
	}
}

/* Return false when only |keep| itself is left to evict. */
static bool make_room(struct promptcache *c, size_t bytes, const struct promptcache_entry *keep)
{
	while (c->stats.bytes + bytes > c->budget) {
		if (cgn_list_empty(&c->use) || of_use(c->use.prev) == keep)
			return false;
		entry_drop(c, of_use(c->use.prev));
		c->stats.evictions++;
	}
	return true;
}

static struct promptcache_entry *entry_of(const struct promptcache_key *key, struct promptcache_entry *parent,
	const struct prefix_tokens *chain, size_t bytes)
{
	size_t before = parent != NULL ? parent->n : 0;
	struct promptcache_entry *e = malloc(bytes);
	if (e == NULL)
		return NULL;
	*e = (struct promptcache_entry){
		.tag = ENTRY_TAG,
		.n_left = chain->n_left,
		.key = *key,
		.parent = parent,
		.n_own = (uint32_t)(chain->n - before),
		.n = chain->n,
		.n_tokens = chain->n_tokens,
		.bytes = bytes + MALLOC_OVERHEAD,
		.last = chain->last,
	};
	memcpy(e->own, chain->short_digests + before, (chain->n - before) * sizeof e->own[0]);
	memcpy(e->own + e->n_own, chain->left, chain->n_left * sizeof chain->left[0]);
	cgn_list_init(&e->use);
	return e;
}

struct promptcache_entry *promptcache_put(struct promptcache *c, const struct promptcache_key *key,
	struct promptcache_entry *parent, const struct prefix_tokens *chain)
{
	CGN_LIVE(c, CACHE_TAG);
	struct promptcache_entry *e = entry_lookup(c, key);
	size_t before = parent != NULL ? parent->n : 0;
	CGN_MUST(before <= chain->n && chain->n - before <= UINT32_MAX);
	if (e != NULL) {
		entry_touch(c, e);
		return e;
	}
	entry_touch(c, parent);
	size_t bytes =
		sizeof *e + (chain->n - before) * sizeof e->own[0] + chain->n_left * sizeof chain->left[0];
	if (unlikely_way(UNLIKELY_prompt_not_kept) || !make_room(c, bytes + MALLOC_OVERHEAD, parent))
		return NULL;
	e = entry_of(key, parent, chain, bytes);
	if (e == NULL)
		return NULL;
	struct promptcache_entry **bucket = &c->buckets[bucket_of(c, key)];
	e->next = *bucket;
	*bucket = e;
	if (parent != NULL)
		parent->children++;
	c->stats.bytes += e->bytes;
	c->stats.entries++;
	entry_touch(c, e);
	return e;
}
