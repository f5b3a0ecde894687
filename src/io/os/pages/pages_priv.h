/* SPDX-License-Identifier: Apache-2.0 */
/* pages, inside: the table, runs and slots. */
#pragma once
#include <stdatomic.h>

#include "io/os/pages/pages.h"

#define PAGES_TAG     0x50414745U
#define PAGES_NONE    UINT32_MAX
#define PAGES_BINS    1025 /* Bins of free runs: by length up to 1023 pages, and one for longer runs. */
#define PAGES_CLASSES 14   /* Sizes of slots. */

enum page_state { PAGE_FREE, PAGE_WHOLE, PAGE_CUT };
/* A page's row in the table. The first and the last page of a free run hold its length. */
struct page {
	union {
		uint64_t free_slots; /* Bit mask of free slots, in a cut page. */
		uint64_t run;        /* Length in pages, at the ends of a free run. */
	};
	/* Neighbours, by number, in the ring of its bin (first page of a run) or class (cut page with free
	 * slots). */
	uint32_t next, prev;
	uint8_t state;
	uint8_t class;
	/* The kernel has provided the memory: set by pages_ready, possibly at this moment by the holder of
	 * another slot. */
	_Atomic bool ready;
};

struct pages {
	uint32_t tag;
	int fd, reader_fd;
	char *memory;
	struct page *table;
	uint32_t n, n_free, n_cut;
	_Atomic uint32_t n_ready;
	uint32_t bins[PAGES_BINS]; /* The first page of each ring. */
	uint64_t bin_bits[(PAGES_BINS + 63) / 64];
	uint32_t partial[PAGES_CLASSES];
};

void page_push(struct pages *p, uint32_t *head, uint32_t page);
void page_drop(struct pages *p, uint32_t *head, uint32_t page);

/* Whole runs. Take at most |want| pages in one run: that many, or the longest run there is. There must be a
 * free page. */
/* |*fresh|: at least one of the pages is not ready. */
struct pages_run run_take(struct pages *p, uint32_t want, bool *fresh);
void run_give(struct pages *p, struct pages_run run);
/* Put free pages into their bin; they are in no bin, and their neighbours are not free. */
void run_in(struct pages *p, uint32_t first, uint64_t n);

/* Slots. */
uint64_t slot_bytes(unsigned class);
unsigned slot_class(uint64_t tail); /* |tail|: 1 to slot_bytes(PAGES_CLASSES - 1) bytes. */
void slot_take(struct pages *p, unsigned class, struct pages_place *out, bool *fresh);
void slot_give(struct pages *p, uint32_t page, unsigned slot);
