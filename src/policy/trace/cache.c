/* SPDX-License-Identifier: Apache-2.0 */
/* One least-recently-used cache over all requests: a bound to measure choices against, and a check of what reads traces. */
#include <stdlib.h>

#include "policy/trace/trace.h"

#define NONE UINT32_MAX

/* Blocks by number, in the order of their first use; a list of those in the cache, the most recently used first. */
struct cache {
	uint32_t *bucket; /* open addressing: block numbers */
	uint64_t *id;
	uint32_t *next, *prev; /* index n is the list's head */
	bool *in;
	size_t mask, n, held;
	uint32_t head;
};

static bool cache_init(struct cache *c, size_t ids)
{
	size_t buckets = 16;
	while (buckets < ids * 2)
		buckets *= 2;
	*c = (struct cache){.mask = buckets - 1, .head = (uint32_t)ids};
	c->bucket = malloc(buckets * sizeof *c->bucket);
	c->id = malloc(ids * sizeof *c->id);
	c->next = malloc((ids + 1) * sizeof *c->next);
	c->prev = malloc((ids + 1) * sizeof *c->prev);
	c->in = calloc(ids, sizeof *c->in);
	if (c->bucket == NULL || c->id == NULL || c->next == NULL || c->prev == NULL || c->in == NULL)
		return false;
	for (size_t i = 0; i < buckets; i++)
		c->bucket[i] = NONE;
	c->next[c->head] = c->prev[c->head] = c->head;
	return true;
}

static void cache_fini(struct cache *c)
{
	free(c->bucket);
	free(c->id);
	free(c->next);
	free(c->prev);
	free(c->in);
}

static uint32_t number_of(struct cache *c, uint64_t id)
{
	size_t at = trace_digest(id) & c->mask;
	while (c->bucket[at] != NONE && c->id[c->bucket[at]] != id)
		at = (at + 1) & c->mask;
	if (c->bucket[at] == NONE) {
		c->bucket[at] = (uint32_t)c->n;
		c->id[c->n++] = id;
	}
	return c->bucket[at];
}

static void take_out(struct cache *c, uint32_t k)
{
	c->next[c->prev[k]] = c->next[k];
	c->prev[c->next[k]] = c->prev[k];
	c->in[k] = false;
	c->held--;
}

static void put_first(struct cache *c, uint32_t k)
{
	c->prev[k] = c->head;
	c->next[k] = c->next[c->head];
	c->prev[c->next[k]] = k;
	c->next[c->head] = k;
	c->in[k] = true;
	c->held++;
}

/* True: it was there. */
static bool use(struct cache *c, uint64_t id, size_t capacity)
{
	uint32_t k = number_of(c, id);
	bool was = c->in[k];
	if (was)
		take_out(c, k);
	else if (capacity > 0 && c->held == capacity)
		take_out(c, c->prev[c->head]);
	put_first(c, k);
	return was;
}

CGN_RC trace_one_cache(const struct trace *t, size_t capacity, struct trace_found *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cache_fini) struct cache c = {0};
	struct trace_found f = {.blocks = t->n_ids};
	if (!cache_init(&c, t->n_ids))
		return CGN_FAIL(err, NO_MEMORY, "no memory for a cache over %zu blocks", t->n_ids);
	for (size_t i = 0; i < t->n_ids; i++)
		f.found += use(&c, t->ids[i], capacity);
	f.distinct = c.n;
	*out = f;
	return CGN_OK;
}
