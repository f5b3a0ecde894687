/* SPDX-License-Identifier: Apache-2.0 */
/* ring: a position counts all bytes ever written and lies at position % size. An entry is never split at the
 * ring's end. */
#include <stdlib.h>

#include "base/mix/mix.h"
#include "policy/route/explain/explain_priv.h"

#define RING_TAG 0xe8914e01U
/* Bytes of entries per chain. */
#define CHAIN_BYTES 512

struct explain_ring {
	uint32_t tag;
	uint64_t seed;
	uint8_t *bytes;
	size_t size;          /* A multiple of 8. */
	uint64_t *chains;     /* 1 + position of the newest entry; 0: none. */
	size_t n_chains;      /* A power of two. */
	uint64_t first, next; /* Positions of the oldest entry and of the next one. */
	uint64_t newest;      /* 1 + position of the last entry; 0: none. */
	uint64_t entries, decisions;
};

CGN_RC explain_ring_new(size_t bytes, uint64_t seed, struct explain_ring **out, struct cgn_err *err)
{
	if (bytes < EXPLAIN_LEAST)
		return CGN_FAIL(err, INVALID, "a record of decisions of %zu bytes: it needs at least %zu",
			bytes, EXPLAIN_LEAST);
	struct explain_ring *r = CGN_NEW(struct explain_ring);
	*r = (struct explain_ring){.tag = RING_TAG, .seed = seed, .n_chains = 1};
	while (r->n_chains * 2 * CHAIN_BYTES <= bytes)
		r->n_chains *= 2;
	r->size = (bytes - r->n_chains * sizeof *r->chains) & ~(size_t)7;
	r->bytes = malloc(r->size);
	r->chains = calloc(r->n_chains, sizeof *r->chains);
	if (r->bytes == NULL || r->chains == NULL) {
		explain_ring_free(&r);
		return CGN_FAIL(err, NO_MEMORY, "no memory for the record of decisions");
	}
	*out = r;
	return CGN_OK;
}

void explain_ring_free(struct explain_ring **take)
{
	struct explain_ring *r = CGN_TAKE_LIVE(take, RING_TAG);
	if (r == NULL)
		return;
	free(r->bytes);
	free(r->chains);
	r->tag = 0;
	free(r);
}

static struct explain_head *entry_at(const struct explain_ring *r, uint64_t place)
{
	return (struct explain_head *)(void *)(r->bytes + place % r->size);
}

/* Return the entry at |link|, or NULL if it was overwritten. */
static const struct explain_head *entry_is_linked(const struct explain_ring *r, uint64_t link)
{
	return link > r->first ? entry_at(r, link - 1) : NULL;
}

static uint64_t hash_id(const struct explain_ring *r, struct cgn_str id)
{
	uint64_t h = r->seed;
	size_t n = id.n <= EXPLAIN_TEXT ? id.n : EXPLAIN_TEXT;
	for (size_t i = 0; i < n; i += 8) {
		uint64_t word = 0;
		memcpy(&word, id.p + i, n - i < 8 ? n - i : 8);
		h = mix_golden(h ^ word);
		h ^= h >> 29;
	}
	return mix64(h ^ n);
}

/* Drop the oldest entries until |n| contiguous bytes are free at |next|. */
static void make_room(struct explain_ring *r, size_t n)
{
	size_t to_end = r->size - (size_t)(r->next % r->size);
	size_t want = to_end < n ? to_end + n : n;
	while (r->next + want - r->first > r->size) {
		const struct explain_head *h = entry_at(r, r->first);
		r->entries -= h->kind != EXPLAIN_FILLER;
		r->first += h->bytes;
	}
	if (to_end >= n)
		return;
	/* At least 8 bytes, the only part of a filler's head that is read. */
	struct explain_head *filler = entry_at(r, r->next);
	filler->bytes = (uint32_t)to_end;
	filler->kind = EXPLAIN_FILLER;
	r->next += to_end;
}

static struct explain_head *entry_begin(struct explain_ring *r)
{
	CGN_LIVE(r, RING_TAG);
	make_room(r, EXPLAIN_ENTRY);
	return entry_at(r, r->next);
}

static void entry_finish(struct explain_ring *r, struct explain_head *h, enum explain_kind kind,
	struct cgn_str id, size_t body)
{
	h->kind = kind;
	h->bytes = (uint32_t)((sizeof *h + body + 7) & ~(size_t)7);
	h->id_hash = hash_id(r, id);
	uint64_t *chain = &r->chains[h->id_hash & (r->n_chains - 1)];
	h->older = *chain;
	h->before = r->newest;
	*chain = r->newest = r->next + 1;
	r->next += h->bytes;
	r->entries++;
}

void explain_ring_decide(struct explain_ring *r, const struct explain_decision *d)
{
	struct explain_head *h = entry_begin(r);
	h->request = d->request;
	h->at_ms = d->at_ms;
	entry_finish(r, h, EXPLAIN_DECIDED, d->id, explain_put_decision((uint8_t *)(h + 1), d));
	r->decisions++;
}

void explain_ring_end(struct explain_ring *r, const struct explain_end *e)
{
	struct explain_head *h = entry_begin(r);
	h->request = e->request;
	h->at_ms = e->at_ms;
	entry_finish(r, h, EXPLAIN_ENDED, e->id, explain_put_end((uint8_t *)(h + 1), e));
}

void explain_ring_reach(const struct explain_ring *r, struct explain_reach *out)
{
	CGN_LIVE(r, RING_TAG);
	*out = (struct explain_reach){.decisions = r->decisions,
		.entries = r->entries,
		.bytes = r->size + r->n_chains * sizeof *r->chains};
	uint64_t place = r->first;
	while (place < r->next && entry_at(r, place)->kind == EXPLAIN_FILLER)
		place += entry_at(r, place)->bytes;
	if (place < r->next)
		out->oldest_ms = entry_at(r, place)->at_ms;
}

/* ---- looking ---- */

struct seen { /* Requests already in the answer. */
	uint64_t request[EXPLAIN_REQUESTS];
	size_t n, most;
};

/* Return true when the request is in the answer, or was added. */
static bool seen_add(struct seen *s, uint64_t request)
{
	for (size_t i = s->n; i > 0; i--)
		if (s->request[i - 1] == request)
			return true;
	if (s->n >= s->most)
		return false;
	s->request[s->n++] = request;
	return true;
}

static struct seen seen_of(size_t most)
{
	return (struct seen){.most = most < EXPLAIN_REQUESTS ? most : EXPLAIN_REQUESTS};
}

static void copy_out(const struct explain_head *h, struct cgn_buf *out)
{
	cgn_buf_add(out, h, h->bytes);
}

void explain_ring_find(const struct explain_ring *r, struct cgn_str id, size_t most, struct cgn_buf *out)
{
	CGN_LIVE(r, RING_TAG);
	struct seen seen = seen_of(most);
	uint64_t hash = hash_id(r, id);
	const struct explain_head *h = entry_is_linked(r, r->chains[hash & (r->n_chains - 1)]);
	if (id.n > EXPLAIN_TEXT)
		id.n = EXPLAIN_TEXT;
	for (size_t steps = 0; h != NULL && steps < EXPLAIN_WALK && !out->bad;
		steps++, h = entry_is_linked(r, h->older))
		if (h->id_hash == hash && cgn_str_eq(explain_id_of(h), id) && seen_add(&seen, h->request))
			copy_out(h, out);
}

/* Copy the entries of one request; all are in one chain. */
static void copy_request(const struct explain_ring *r, const struct explain_head *newest, size_t *steps,
	struct cgn_buf *out)
{
	const struct explain_head *h = newest;
	for (; h != NULL && *steps < EXPLAIN_WALK && !out->bad; ++*steps, h = entry_is_linked(r, h->older))
		if (h->request == newest->request && h->id_hash == newest->id_hash)
			copy_out(h, out);
}

/* |session|: only the requests that ended as its own; empty: all. */
static bool is_of_session(const struct explain_head *h, struct cgn_str session)
{
	struct explain_end e;
	if (session.n == 0)
		return true;
	if (h->kind != EXPLAIN_ENDED)
		return false;
	explain_get_end(h, &e);
	return cgn_str_eq(e.session, session);
}

void explain_ring_last(const struct explain_ring *r, struct cgn_str session, size_t most, struct cgn_buf *out)
{
	CGN_LIVE(r, RING_TAG);
	struct seen seen = seen_of(most);
	const struct explain_head *h = entry_is_linked(r, r->newest);
	for (size_t steps = 0; h != NULL && steps < EXPLAIN_WALK && seen.n < seen.most && !out->bad;
		steps++) {
		size_t had = seen.n;
		if (is_of_session(h, session) && seen_add(&seen, h->request) && seen.n > had)
			copy_request(r, h, &steps, out);
		h = entry_is_linked(r, h->before);
	}
}
