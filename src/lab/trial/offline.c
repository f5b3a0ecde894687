/* SPDX-License-Identifier: Apache-2.0 */
/* The cached blocks as a heap: on top the block whose next use is last, and of one prompt the deepest. */
#include <stdlib.h>

#include "lab/trial/trial_priv.h"

#define NEVER UINT32_MAX

struct place {
	uint32_t next, depth; /* Request of the next use; index in its prompt. */
	uint32_t at;          /* Index in the heap; NEVER: not cached. */
};
struct offline {
	const struct trace *trace;
	const uint32_t *of;
	uint32_t *next; /* For each position of the trace, the request of the block's next use, or NEVER. */
	struct place *place;
	uint32_t *heap, n;
};

static CGN_RC offline_init(struct offline *o, const struct trace *t, const uint32_t *of, uint32_t distinct,
	struct cgn_err *err)
{
	*o = (struct offline){.trace = t, .of = of};
	o->next = malloc(t->n_ids * sizeof *o->next);
	o->place = malloc(distinct * sizeof *o->place);
	o->heap = malloc(distinct * sizeof *o->heap);
	if (o->next == NULL || o->place == NULL || o->heap == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the optimum over %u blocks", distinct);
	for (uint32_t i = 0; i < distinct; i++)
		o->place[i] = (struct place){NEVER, 0, NEVER};
	for (size_t r = t->n; r-- > 0;) {
		for (size_t i = t->requests[r].first; i < t->requests[r].first + t->requests[r].n; i++)
			o->next[i] = o->place[of[i]].next;
		for (size_t i = t->requests[r].first; i < t->requests[r].first + t->requests[r].n; i++)
			o->place[of[i]].next = (uint32_t)r;
	}
	return CGN_OK;
}

static void offline_fini(struct offline *o)
{
	free(o->next);
	free(o->place);
	free(o->heap);
}

static bool leaves_before(const struct offline *o, uint32_t a, uint32_t b)
{
	const struct place *p = &o->place[a], *q = &o->place[b];
	return p->next != q->next ? p->next > q->next : p->depth > q->depth;
}

static void heap_put(struct offline *o, uint32_t at, uint32_t k)
{
	o->heap[at] = k;
	o->place[k].at = at;
}

static void heap_rise(struct offline *o, uint32_t at)
{
	uint32_t k = o->heap[at];
	while (at > 0 && leaves_before(o, k, o->heap[(at - 1) / 2])) {
		heap_put(o, at, o->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_put(o, at, k);
}

static void heap_sink(struct offline *o, uint32_t at)
{
	uint32_t k = o->heap[at], child;
	while ((child = 2 * at + 1) < o->n) {
		child += child + 1 < o->n && leaves_before(o, o->heap[child + 1], o->heap[child]);
		if (!leaves_before(o, o->heap[child], k))
			break;
		heap_put(o, at, o->heap[child]);
		at = child;
	}
	heap_put(o, at, k);
}

static void heap_drop(struct offline *o, uint32_t k)
{
	uint32_t at = o->place[k].at;
	o->place[k].at = NEVER;
	uint32_t last = o->heap[--o->n];
	if (last == k)
		return;
	heap_put(o, at, last);
	heap_rise(o, at);
	heap_sink(o, o->place[last].at);
}

/* Cache block |k|, whose next use is by request |next|; it is block |depth| of that prompt. */
static void keep_block(struct offline *o, uint32_t k, uint32_t next, uint32_t depth)
{
	if (o->place[k].at != NEVER)
		heap_drop(o, k);
	if (next == NEVER)
		return;
	o->place[k].next = next;
	o->place[k].depth = depth;
	heap_put(o, o->n, k);
	heap_rise(o, o->n++);
}

static void play_request(struct offline *o, const struct trace_request *r, uint32_t blocks,
	struct trial_result *out)
{
	uint32_t found = 0;
	while (found < r->n && o->place[o->of[r->first + found]].at != NEVER)
		found++;
	out->found += found;
	for (uint32_t i = found; i < r->n; i++)
		out->behind_gap += o->place[o->of[r->first + i]].at != NEVER;
	for (uint32_t i = 0; i < r->n; i++)
		keep_block(o, o->of[r->first + i], o->next[r->first + i], i);
	while (o->n > blocks) {
		heap_drop(o, o->heap[0]);
		out->evicted++;
	}
}

CGN_RC trial_offline(const struct trace *t, const uint32_t *of, uint32_t distinct, uint32_t blocks,
	struct trial_result *out, struct cgn_err *err)
{
	CGN_ON_EXIT(offline_fini) struct offline o;
	CGN_TRY(offline_init(&o, t, of, distinct, err));
	for (size_t r = 0; r < t->n; r++)
		play_request(&o, &t->requests[r], blocks, out);
	return CGN_OK;
}
