/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/workload/workload.h"

#include <stdlib.h>

#include "lab/workload/workload_priv.h"

#define MAX_CONTEXT 32768 /* Tokens; a session ends before its context is longer. */
#define MAX_SECONDS 1e9   /* Also the longest time that a trace may span. */

/* Sessions under way, a heap by (at, number). */
struct session_heap {
	struct workload_session *v;
	size_t n, cap;
};

bool workload_find(struct cgn_str text, enum workload_kind *out)
{
	for (enum workload_kind k = 0; k < WORKLOAD_KINDS; k++)
		if (cgn_str_is(text, workload_kinds[k].text)) {
			*out = k;
			return true;
		}
	return false;
}

const char *workload_text(enum workload_kind k)
{
	CGN_MUST(k < WORKLOAD_KINDS);
	return workload_kinds[k].text;
}

const char *workload_help(enum workload_kind k)
{
	CGN_MUST(k < WORKLOAD_KINDS);
	return workload_kinds[k].help;
}

/* ---- a session ---- */

void workload_session_put(struct workload_session *t, uint64_t key, uint32_t tokens)
{
	if (t->n == t->cap) {
		uint32_t cap = t->cap > 0 ? t->cap * 2 : 8;
		struct workload_piece *v = reallocarray(t->pieces, cap, sizeof *v);
		if (v == NULL) {
			t->no_memory = true;
			return;
		}
		t->pieces = v;
		t->cap = cap;
	}
	t->pieces[t->n++] = (struct workload_piece){key, tokens};
	t->tokens += tokens;
}

void workload_session_say(struct workload_run *w, struct workload_session *t, uint32_t tokens)
{
	workload_session_put(t, UINT64_C(1) << 63 | w->keys++, tokens);
}

static bool session_copy(struct workload_session *to, const struct workload_session *from)
{
	to->n = 0;
	to->tokens = 0;
	for (uint32_t i = 0; i < from->n; i++)
		workload_session_put(to, from->pieces[i].key, from->pieces[i].tokens);
	return !to->no_memory;
}

/* ---- a request of a session ---- */

cgn_nsec workload_time(double ns)
{
	return (cgn_nsec)(ns / 1e6) * CGN_MSEC;
}

/* Append the names of the prefixes that end with each block of the session's pieces. */
static void name_blocks(const struct workload_session *t, uint32_t block, struct cgn_buf *out)
{
	uint64_t name = 0;
	uint32_t room = block;
	for (uint32_t i = 0; i < t->n; i++) {
		const struct workload_piece *p = &t->pieces[i];
		for (uint32_t done = 0; done < p->tokens;) {
			uint32_t take = p->tokens - done < room ? p->tokens - done : room;
			name = workload_rng_mix(name ^
				workload_rng_mix(p->key + workload_rng_mix((uint64_t)done << 32 | take)));
			done += take;
			room -= take;
			if (room == 0) {
				cgn_buf_add(out, &name, sizeof name);
				room = block;
			}
		}
	}
	if (room < block)
		cgn_buf_add(out, &name, sizeof name);
}

static CGN_RC add_request(struct workload_run *w, struct trace_numbers *numbers,
	const struct workload_session *t)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf names = {0};
	name_blocks(t, w->trace->block_tokens, &names);
	size_t n = names.n / sizeof(uint64_t);
	uint64_t *ids = (uint64_t *)(void *)names.p;
	for (size_t i = 0; i < n; i++) {
		uint32_t number = trace_number(numbers, ids[i]);
		if (number == TRACE_NO_NUMBER)
			return CGN_RC_OF(CGN_NO_MEMORY);
		ids[i] = number;
	}
	if (names.bad || t->no_memory)
		return CGN_RC_OF(CGN_NO_MEMORY);
	const struct trace_request r = {.at = workload_time((double)t->at),
		.session = t->number,
		.input = (uint32_t)t->tokens,
		.output = t->answer};
	return trace_add(w->trace, &r, ids, n);
}

/* ---- all sessions ---- */

static bool session_is_before(const struct workload_session *a, const struct workload_session *b)
{
	return a->at != b->at ? a->at < b->at : a->number < b->number;
}

static void session_swap(struct workload_session *a, struct workload_session *b)
{
	struct workload_session was = *a;
	*a = *b;
	*b = was;
}

static bool talks_push(struct session_heap *h, const struct workload_session *t)
{
	if (h->n == h->cap) {
		size_t cap = h->cap > 0 ? h->cap * 2 : 64;
		struct workload_session *v = reallocarray(h->v, cap, sizeof *v);
		if (v == NULL)
			return false;
		h->v = v;
		h->cap = cap;
	}
	size_t i = h->n++;
	h->v[i] = *t;
	for (; i > 0 && session_is_before(&h->v[i], &h->v[(i - 1) / 2]); i = (i - 1) / 2)
		session_swap(&h->v[i], &h->v[(i - 1) / 2]);
	return true;
}

static struct workload_session talks_pop(struct session_heap *h)
{
	struct workload_session first = h->v[0];
	h->v[0] = h->v[--h->n];
	for (size_t i = 0;;) {
		size_t k = 2 * i + 1;
		if (k + 1 < h->n && session_is_before(&h->v[k + 1], &h->v[k]))
			k++;
		if (k >= h->n || !session_is_before(&h->v[k], &h->v[i]))
			return first;
		session_swap(&h->v[i], &h->v[k]);
		i = k;
	}
}

/* Append the next turn of |t|; false when the session has none left. */
static CGN_RC go_on(struct workload_run *w, const struct workload_kind_row *k, struct trace_numbers *numbers,
	struct workload_session *t, bool *more)
{
	k->turn(w, t);
	CGN_TRY(add_request(w, numbers, t));
	workload_session_say(w, t, t->answer);
	t->at += k->pause(w, t);
	*more = --t->left > 0 && t->tokens < MAX_CONTEXT;
	return CGN_OK;
}

static CGN_RC session_begin(struct workload_run *w, const struct workload_kind_row *k, struct session_heap *h,
	uint64_t number, cgn_nsec at)
{
	struct workload_session t = {.number = number, .at = at};
	k->begin(w, &t);
	if (session_copy(&w->last, &t) && !t.no_memory && talks_push(h, &t))
		return CGN_OK;
	free(t.pieces);
	return CGN_RC_OF(CGN_NO_MEMORY);
}

static CGN_RC session_all(struct workload_run *w, struct session_heap *h, struct trace_numbers *numbers)
{
	const struct workload_kind_row *k = &workload_kinds[w->cfg->kind];
	double mean_gap = k->turns / w->cfg->rate * 1e9;
	cgn_nsec next = 0;
	uint64_t number = 1;
	while (w->trace->n < w->cfg->requests) {
		if (h->n == 0 || next <= h->v[0].at) {
			CGN_TRY(session_begin(w, k, h, number++, next));
			next += (cgn_nsec)(workload_rng_exponential(&w->rng) * mean_gap);
			continue;
		}
		struct workload_session t = talks_pop(h);
		bool more = false;
		cgn_rc rc = go_on(w, k, numbers, &t, &more);
		if (cgn_ok(rc) && more && !talks_push(h, &t))
			rc = CGN_RC_OF(CGN_NO_MEMORY);
		if (!cgn_ok(rc) || !more)
			free(t.pieces);
		CGN_TRY(rc);
	}
	return CGN_OK;
}

static CGN_RC talks_make(struct workload_run *w)
{
	struct session_heap h = {0};
	struct trace_numbers numbers = {0};
	cgn_rc rc = session_all(w, &h, &numbers);
	for (size_t i = 0; i < h.n; i++)
		free(h.v[i].pieces);
	free(h.v);
	free(w->last.pieces);
	trace_numbers_fini(&numbers);
	return rc;
}

CGN_RC workload_make(const struct workload_cfg *cfg, struct trace *out, struct cgn_err *err)
{
	struct trace t = {.block_tokens = cfg->block_tokens > 0 ? cfg->block_tokens : WORKLOAD_BLOCK_TOKENS};
	struct workload_run w = {.cfg = cfg, .rng = {workload_rng_mix(cfg->seed) | 1}, .trace = &t};
	if (cfg->kind >= WORKLOAD_KINDS || cfg->requests < 1 || cfg->requests > TRACE_MAX_REQUESTS ||
		!(cfg->rate > 0) || cfg->rate > 1e9)
		return CGN_FAIL(err, INVALID,
			"a workload has 1 to %zu requests at a rate above 0 and up to 1e9 a second",
			TRACE_MAX_REQUESTS);
	if ((double)cfg->requests / cfg->rate > MAX_SECONDS)
		return CGN_FAIL(err, INVALID, "%zu requests at %g a second would take more than thirty years",
			cfg->requests, cfg->rate);
	cgn_rc rc = cfg->kind == WORKLOAD_SERVICE ? workload_service_make(&w) : talks_make(&w);
	if (cgn_ok(rc))
		*out = t;
	else
		trace_fini(&t);
	return cgn_ok(rc) ? rc
			  : CGN_FAIL_AS(err, rc.code, "no room for %zu requests of %s", cfg->requests,
				    workload_text(cfg->kind));
}
