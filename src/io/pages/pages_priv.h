/* SPDX-License-Identifier: Apache-2.0 */
/* Inside pages. */
#pragma once
#include <stdatomic.h>

#include "io/pages/pages.h"

#define PAGES_TAG     0x50414745U
#define PAGES_NONE    UINT32_MAX
#define PAGES_BINS    1025 /* of free runs: by length up to 1023 pages, and one for those that are longer */
#define PAGES_CLASSES 14   /* of slots */

enum page_state { PAGE_FREE, PAGE_WHOLE, PAGE_CUT };
/* A page's row in the table. The first and the last of a free run know its length. */
struct page {
	union {
		uint64_t free_slots; /* of one that is cut: a bit each */
		uint64_t run;        /* of a free run's ends: pages */
	};
	/* in the ring of its bin (the first of a run) or class (cut, with free slots); by number */
	uint32_t next, prev;
	uint8_t state;
	uint8_t class;
	/* the kernel has given memory for it: pages_ready said so, perhaps to the holder of another slot at
	 * this moment */
	_Atomic bool ready;
};

struct pages {
	uint32_t tag;
	int fd, reader_fd;
	char *memory;
	struct page *table;
	uint32_t n, n_free, n_cut;
	_Atomic uint32_t n_ready;
	uint32_t bins[PAGES_BINS]; /* the first of each ring */
	uint64_t bin_bits[(PAGES_BINS + 63) / 64];
	uint32_t partial[PAGES_CLASSES];
};

void page_push(struct pages *p, uint32_t *head, uint32_t page);
void page_drop(struct pages *p, uint32_t *head, uint32_t page);

/* Whole runs. At most |want| pages in one run: as many, or the longest that there is. There must be a free
 * page. */
/* |*fresh|: one of them is not ready */
struct pages_run run_take(struct pages *p, uint32_t want, bool *fresh);
void run_give(struct pages *p, struct pages_run run);
/* free pages that stand in no bin, and no free ones beside them */
void run_in(struct pages *p, uint32_t first, uint64_t n);

/* Slots. */
uint64_t slot_bytes(unsigned class);
unsigned slot_class(uint64_t tail); /* of 1 to slot_bytes(PAGES_CLASSES - 1) bytes */
void slot_take(struct pages *p, unsigned class, struct pages_place *out, bool *fresh);
void slot_give(struct pages *p, uint32_t page, unsigned slot);
