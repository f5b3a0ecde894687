/* SPDX-License-Identifier: Apache-2.0 */
/* slots: pages cut into parts of one size, for the rest of a value behind its whole pages. */
#include "io/os/pages/pages_priv.h"

/* Slots per page; each size is a multiple of a cache line. The step from one size to the next is at most a
 * half. */
static const uint8_t per_page[PAGES_CLASSES] = {64, 48, 32, 24, 16, 12, 10, 8, 7, 6, 5, 4, 3, 2};

uint64_t slot_bytes(unsigned class)
{
	return PAGES_PAGE / per_page[class] & ~(uint64_t)63;
}

unsigned slot_class(uint64_t tail)
{
	unsigned class = 0;
	while (slot_bytes(class) < tail)
		class ++;
	return class;
}

static uint64_t all_free(unsigned class)
{
	return UINT64_MAX >> (64 - per_page[class]);
}

static uint32_t page_cut(struct pages *p, unsigned class, bool *fresh)
{
	uint32_t at = run_take(p, 1, fresh).page;
	struct page *page = &p->table[at];
	page->state = PAGE_CUT;
	page->class = (uint8_t)class;
	page->free_slots = all_free(class);
	page_push(p, &p->partial[class], at);
	p->n_cut++;
	return at;
}

void slot_take(struct pages *p, unsigned class, struct pages_place *out, bool *fresh)
{
	uint32_t at = p->partial[class];
	if (at == PAGES_NONE)
		at = page_cut(p, class, fresh);
	struct page *page = &p->table[at];
	/* The taker of the page's first slot may not have made it ready yet, or may be refused. */
	*fresh |= !atomic_load_explicit(&page->ready, memory_order_relaxed);
	out->tail_page = at;
	out->slot = (uint8_t)__builtin_ctzll(page->free_slots);
	page->free_slots &= page->free_slots - 1;
	if (page->free_slots == 0)
		page_drop(p, &p->partial[class], at);
}

void slot_give(struct pages *p, uint32_t at, unsigned slot)
{
	struct page *page = &p->table[at];
	CGN_MUST(page->state == PAGE_CUT && (page->free_slots >> slot & 1) == 0);
	if (page->free_slots == 0)
		page_push(p, &p->partial[page->class], at);
	page->free_slots |= (uint64_t)1 << slot;
	if (page->free_slots != all_free(page->class))
		return;
	page_drop(p, &p->partial[page->class], at);
	p->n_cut--;
	run_give(p, (struct pages_run){at, 1});
}
