/* SPDX-License-Identifier: Apache-2.0 */
/* pages: memory of a fixed size for values of up to 64 MiB, cut into pages of 64 KiB, which other processes
 * can be allowed to read. A value takes whole pages, in one run if possible, and for the rest a slot: a part
 * of a page that is cut into slots of one size.
 *
 * Internal fragmentation: values below 1 KiB take 1 KiB; up to 32 KiB at most a third is lost (and 1.6 % of
 * the slot's page); above, less than 32 KiB, which is half of a value of 32 KiB plus one byte and 3 % of a
 * value of 1 MiB. No value is refused because free pages are not adjacent. A page that is cut into slots
 * counts as used until its last slot is free.
 *
 * The memory is a sealed memfd (memfd_create(2), fcntl(2)): it neither grows nor shrinks, and since Linux 5.1
 * only this mapping can ever write to it, even if other processes have the descriptor. The seal also forbids punching
 * holes: memory is taken as values come and is then kept. The table takes 24 bytes for each page that was
 * ever used.
 *
 * Threads: the caller holds one lock around everything that changes the pages (pages_take, pages_give,
 * pages_stats); the other functions need no lock. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define PAGES_PAGE      ((uint64_t)65536)
#define PAGES_MAX_VALUE ((uint64_t)64 << 20)
#define PAGES_MAX_RUNS  (PAGES_MAX_VALUE / PAGES_PAGE)

struct pages;
/* |bytes| are rounded down to whole pages; at most 256 TiB. CGN_INVALID: less than a page, or too much.
 * CGN_NO_MEMORY: the kernel refuses. */
CGN_RC pages_new(uint64_t bytes, struct pages **out, struct cgn_err *err);
void pages_free(struct pages **take);

/* Where a value lies; the caller keeps its size. */
struct pages_run {
	uint32_t page, n;
};
struct pages_runs {
	uint32_t n;
	struct pages_run run[];
};
struct pages_place {
	uint32_t page;      /* The first whole page. */
	uint32_t tail_page; /* The page whose slot holds the rest. */
	uint8_t slot;
	/* The whole pages when they form several runs, else NULL. Owned by the place. */
	struct pages_runs *runs;
};
/* Return the bytes that a value of |size| takes. An empty value takes the smallest slot. */
uint64_t pages_footprint(uint64_t size);
/* Take pages for a value of |size| bytes, at most PAGES_MAX_VALUE. Returns false when there is no room (or,
 * for a value in many runs, no memory for their list). |*fresh|: some of the memory was never made ready;
 * call pages_ready before writing to it. */
bool pages_take(struct pages *p, uint64_t size, struct pages_place *out, bool *fresh);
/* Give the pages back; |take| is empty afterwards. */
void pages_give(struct pages *p, uint64_t size, struct pages_place *take);
/* Make the kernel provide the memory now, where it can still be refused; call without the lock. Returns false
 * when the kernel refuses; the refused memory is fresh for its next user. */
bool pages_ready(struct pages *p, uint64_t size, const struct pages_place *at);

/* Return the next piece of the value, in order, from byte |walk.at| on: |*offset| in the memory and
 * |*length|. Returns false at the end. */
struct pages_walk {
	uint64_t at;
	uint32_t run;
	uint64_t run_at; /* Offset in the value at which this run begins. */
};
bool pages_next(const struct pages_place *place, uint64_t size, struct pages_walk *walk, uint64_t *offset,
	uint64_t *length);

char *pages_at(const struct pages *p, uint64_t offset);
uint64_t pages_bytes(const struct pages *p);
/* The descriptor for other processes: they can map it only for reading. Borrowed. -1: this kernel cannot seal
 * it. */
int pages_fd(const struct pages *p);

struct pages_stats {
	uint64_t used_bytes;  /* Bytes of used pages, including cut ones. */
	uint64_t cut_bytes;   /* Part of used_bytes that is cut into slots. */
	uint64_t table_bytes; /* Bytes of the table. */
};
void pages_stats(const struct pages *p, struct pages_stats *out);
