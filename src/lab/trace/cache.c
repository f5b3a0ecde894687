/* SPDX-License-Identifier: Apache-2.0 */
/* A single least-recently-used cache for all requests: an upper bound for choices of nodes, and a check of trace
 * readers. */
#include <stdlib.h>

#include "lab/trace/trace.h"

/* Blocks by number, in the order of their first use, and a list of the cached ones, the most recently used
 * first. */
struct cache {
	struct trace_numbers numbers;
	uint32_t *next, *prev; /* Index n is the list's head. */
	bool *in;
	size_t held;
	uint32_t head;
};

static bool cache_init(struct cache *c, size_t ids)
{
	*c = (struct cache){.head = (uint32_t)ids};
	c->next = malloc((ids + 1) * sizeof *c->next);
	c->prev = malloc((ids + 1) * sizeof *c->prev);
	c->in = calloc(ids, sizeof *c->in);
	if (c->next == NULL || c->prev == NULL || c->in == NULL)
		return false;
	c->next[c->head] = c->prev[c->head] = c->head;
	return true;
}

static void cache_fini(struct cache *c)
{
	trace_numbers_fini(&c->numbers);
	free(c->next);
	free(c->prev);
	free(c->in);
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

/* Move block |k| to the front, evicting the last one when full. True when the block was cached before. */
static bool cache_use(struct cache *c, uint32_t k, size_t capacity)
{
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
	for (size_t i = 0; i < t->n_ids; i++) {
		uint32_t k = trace_number(&c.numbers, t->ids[i]);
		if (k == TRACE_NO_NUMBER)
			return CGN_FAIL(err, NO_MEMORY, "no memory for a cache over %zu blocks", t->n_ids);
		f.found += cache_use(&c, k, capacity);
	}
	f.distinct = c.numbers.n;
	*out = f;
	return CGN_OK;
}
