/* SPDX-License-Identifier: Apache-2.0 */
/* pages: which pages a value gets. Free runs of pages lie in bins by length and merge with their neighbours
 * at once, so that taking and giving back cost the same however many pages there are. */
#include "base/unlikely/unlikely.h"
#include "io/os/pages/pages_priv.h"

#include <stdlib.h>

/* ---- rings of pages ---- */
void page_push(struct pages *p, uint32_t *head, uint32_t at)
{
	struct page *page = &p->table[at];
	page->next = page->prev = at;
	if (*head != PAGES_NONE) {
		page->next = *head;
		page->prev = p->table[*head].prev;
		p->table[page->prev].next = at;
		p->table[*head].prev = at;
	}
	*head = at;
}

void page_drop(struct pages *p, uint32_t *head, uint32_t at)
{
	struct page *page = &p->table[at];
	p->table[page->prev].next = page->next;
	p->table[page->next].prev = page->prev;
	if (*head == at)
		*head = page->next != at ? page->next : PAGES_NONE;
}

/* ---- free runs ---- */
static uint32_t bin_of(uint64_t run)
{
	return run < PAGES_BINS ? (uint32_t)run : PAGES_BINS - 1;
}

void run_in(struct pages *p, uint32_t first, uint64_t n)
{
	uint32_t bin = bin_of(n);
	p->table[first].run = p->table[first + n - 1].run = n;
	page_push(p, &p->bins[bin], first);
	p->bin_bits[bin / 64] |= (uint64_t)1 << bin % 64;
	p->n_free += (uint32_t)n;
}

static void run_out(struct pages *p, uint32_t first)
{
	uint64_t n = p->table[first].run;
	uint32_t bin = bin_of(n);
	page_drop(p, &p->bins[bin], first);
	if (p->bins[bin] == PAGES_NONE)
		p->bin_bits[bin / 64] &= ~((uint64_t)1 << bin % 64);
	p->n_free -= (uint32_t)n;
}

/* Return the lowest bin, from |from| on, that has a run; 0: none. */
static uint32_t bin_from(const struct pages *p, uint32_t from)
{
	uint64_t bits = p->bin_bits[from / 64] & UINT64_MAX << from % 64;
	for (size_t i = from / 64;; bits = p->bin_bits[i]) {
		if (bits != 0)
			return (uint32_t)i * 64 + (uint32_t)__builtin_ctzll(bits);
		if (++i == CGN_COUNT(p->bin_bits))
			return 0;
	}
}

static uint32_t highest_bin(const struct pages *p)
{
	size_t i = CGN_COUNT(p->bin_bits) - 1;
	while (p->bin_bits[i] == 0)
		CGN_MUST(i-- > 0);
	return (uint32_t)i * 64 + 63 - (uint32_t)__builtin_clzll(p->bin_bits[i]);
}

struct pages_run run_take(struct pages *p, uint32_t want, bool *fresh)
{
	uint32_t bin = bin_from(p, bin_of(want));
	uint32_t first = p->bins[bin != 0 ? bin : highest_bin(p)];
	uint64_t had = p->table[first].run;
	uint32_t n = had < want ? (uint32_t)had : want;
	run_out(p, first);
	if (had > n)
		run_in(p, first + n, had - n);
	for (uint32_t i = first; i < first + n; i++) {
		*fresh |= !atomic_load_explicit(&p->table[i].ready, memory_order_relaxed);
		p->table[i].state = PAGE_WHOLE;
	}
	return (struct pages_run){first, n};
}

void run_give(struct pages *p, struct pages_run run)
{
	uint64_t first = run.page, n = run.n;
	for (uint32_t i = run.page; i < run.page + run.n; i++) {
		CGN_MUST(p->table[i].state != PAGE_FREE);
		p->table[i].state = PAGE_FREE;
	}
	if (first > 0 && p->table[first - 1].state == PAGE_FREE) {
		uint64_t before = p->table[first - 1].run;
		run_out(p, (uint32_t)(first - before));
		first -= before;
		n += before;
	}
	if (first + n < p->n && p->table[first + n].state == PAGE_FREE) {
		uint64_t behind = p->table[first + n].run;
		run_out(p, (uint32_t)(first + n));
		n += behind;
	}
	run_in(p, (uint32_t)first, n);
}

/* ---- values ---- */
/* How a size is divided into whole pages and a slot. */
struct parts {
	uint32_t whole;
	bool slot;
	unsigned class;
};
static struct parts parts_of(uint64_t size)
{
	uint64_t tail = size % PAGES_PAGE;
	struct parts parts = {.whole = (uint32_t)(size / PAGES_PAGE)};
	if (tail > slot_bytes(PAGES_CLASSES - 1))
		parts.whole++;
	else
		parts.slot = tail > 0 || size == 0;
	if (parts.slot)
		parts.class = slot_class(tail);
	return parts;
}

uint64_t pages_footprint(uint64_t size)
{
	struct parts parts = parts_of(size);
	return parts.whole * PAGES_PAGE + (parts.slot ? slot_bytes(parts.class) : 0);
}

static void give_runs(struct pages *p, const struct pages_run *run, size_t n)
{
	for (size_t i = 0; i < n; i++)
		run_give(p, run[i]);
}

static void take_whole(struct pages *p, uint32_t want, struct pages_place *out, bool *fresh)
{
	struct pages_run run[PAGES_MAX_RUNS];
	uint32_t n = 0;
	for (uint32_t got = 0; got < want; got += run[n++].n)
		run[n] = run_take(p, unlikely_way(UNLIKELY_page_alone) ? 1 : want - got, fresh);
	out->page = n > 0 ? run[0].page : 0;
	if (n <= 1)
		return;
	out->runs = cgn_zeroed(1, sizeof *out->runs + n * sizeof *run, CGN_HERE);
	out->runs->n = n;
	for (uint32_t i = 0; i < n; i++)
		out->runs->run[i] = run[i];
}

bool pages_take(struct pages *p, uint64_t size, struct pages_place *out, bool *fresh)
{
	CGN_LIVE(p, PAGES_TAG);
	CGN_MUST(size <= PAGES_MAX_VALUE);
	struct parts parts = parts_of(size);
	*out = (struct pages_place){0};
	*fresh = false;
	if (parts.whole + (parts.slot && p->partial[parts.class] == PAGES_NONE) > p->n_free)
		return false;
	take_whole(p, parts.whole, out, fresh);
	if (parts.slot)
		slot_take(p, parts.class, out, fresh);
	return true;
}

void pages_give(struct pages *p, uint64_t size, struct pages_place *take)
{
	CGN_LIVE(p, PAGES_TAG);
	struct parts parts = parts_of(size);
	if (take->runs != NULL)
		give_runs(p, take->runs->run, take->runs->n);
	else if (parts.whole > 0)
		run_give(p, (struct pages_run){take->page, parts.whole});
	if (parts.slot)
		slot_give(p, take->tail_page, take->slot);
	free(take->runs);
	*take = (struct pages_place){0};
}

/* ---- where it lies ---- */
/* Return the run that contains byte |at|, which must lie in a whole page; w->run_at is where the run begins
 * in the value. */
static struct pages_run run_at(const struct pages_place *place, uint32_t whole, struct pages_walk *w)
{
	if (place->runs == NULL)
		return (struct pages_run){place->page, whole};
	while (w->at >= w->run_at + place->runs->run[w->run].n * PAGES_PAGE)
		w->run_at += place->runs->run[w->run++].n * PAGES_PAGE;
	return place->runs->run[w->run];
}

bool pages_next(const struct pages_place *place, uint64_t size, struct pages_walk *w, uint64_t *offset,
	uint64_t *length)
{
	struct parts parts = parts_of(size);
	if (w->at >= size)
		return false;
	uint64_t end = size;
	if (w->at < parts.whole * PAGES_PAGE) {
		struct pages_run run = run_at(place, parts.whole, w);
		uint64_t run_end = w->run_at + run.n * PAGES_PAGE;
		end = run_end < size ? run_end : size;
		*offset = run.page * PAGES_PAGE + (w->at - w->run_at);
	} else {
		*offset = place->tail_page * PAGES_PAGE + place->slot * slot_bytes(parts.class) +
			(w->at - parts.whole * PAGES_PAGE);
	}
	*length = end - w->at;
	w->at = end;
	return true;
}

void pages_stats(const struct pages *p, struct pages_stats *out)
{
	CGN_LIVE(p, PAGES_TAG);
	*out = (struct pages_stats){.used_bytes = (p->n - p->n_free) * PAGES_PAGE,
		.cut_bytes = p->n_cut * PAGES_PAGE,
		.table_bytes = p->n_ready * sizeof(struct page)};
}
