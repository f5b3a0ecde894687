/* SPDX-License-Identifier: Apache-2.0 */
/* pages: memory of a fixed size for values of up to 64 MiB, cut in pages of 64 KiB, which other processes can
 * be let read. A value takes whole pages, in one run where there is one, and for what is left of it a slot: a
 * part of a page that is cut into slots of one size.
 *
 * What is lost inside a value: under 1 KiB below that size, a third of it (and 1.6 % of the slot's page) up
 * to 32 KiB; above, less than 32 KiB, which is half of a value of 32 KiB and a byte and 3 % of one of 1 MiB.
 * No value is refused because free pages do not lie side by side. A page that is cut counts as in use until
 * its last slot is free.
 *
 * The memory is a sealed memfd (memfd_create(2), fcntl(2)): it neither grows nor shrinks, and from Linux 5.1
 * on nobody but this mapping can ever write to it, whoever has its descriptor. That seal also forbids to
 * punch holes: memory is taken as values come and is then kept. Beside it, 24 bytes for each page that was
 * ever used.
 *
 * Threads: the caller holds one lock around everything that changes (pages_take, pages_give, pages_stats);
 * the rest needs none. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define PAGES_PAGE      ((uint64_t)65536)
#define PAGES_MAX_VALUE ((uint64_t)64 << 20)
#define PAGES_MAX_RUNS  (PAGES_MAX_VALUE / PAGES_PAGE)

struct pages;
/* |bytes| are rounded down to whole pages; at most 256 TiB. CGN_INVALID: less than a page or too much;
 * CGN_NO_MEMORY: the kernel refuses. */
CGN_RC pages_new(uint64_t bytes, struct pages **out, struct cgn_err *err);
void pages_free(struct pages **take);

/* Where a value of a size that the caller keeps lies. */
struct pages_run {
	uint32_t page, n;
};
struct pages_runs {
	uint32_t n;
	struct pages_run run[];
};
struct pages_place {
	uint32_t page;      /* the first whole one */
	uint32_t tail_page; /* what is left lies in this one's */
	uint8_t slot;
	/* the whole ones, when they lie in several runs; else NULL. Owned by the place */
	struct pages_runs *runs;
};
/* What a value of |size| takes. A value of no bytes takes the smallest slot. */
uint64_t pages_footprint(uint64_t size);
/* False: there is no room (or, for a value in many runs, no memory to note them). |*fresh|: there is memory
 * among it that pages_ready never had: say so before it is written. |size| is at most PAGES_MAX_VALUE. */
bool pages_take(struct pages *p, uint64_t size, struct pages_place *out, bool *fresh);
void pages_give(struct pages *p, uint64_t size, struct pages_place *take); /* |take| is empty then */
/* Without the lock: has the kernel provide the memory now, at once and where it can still be refused. False:
 * there is none, and what was refused is fresh to whoever takes it next. */
bool pages_ready(struct pages *p, uint64_t size, const struct pages_place *at);

/* The value's pieces in order, from byte |walk.at| on: |*offset| in the memory, |*length|. False: that was
 * all. */
struct pages_walk {
	uint64_t at;
	uint32_t run;
	uint64_t run_at; /* where in the value this run begins */
};
bool pages_next(const struct pages_place *place, uint64_t size, struct pages_walk *walk, uint64_t *offset,
	uint64_t *length);

char *pages_at(const struct pages *p, uint64_t offset);
uint64_t pages_bytes(const struct pages *p);
/* To be sent to others: they can map it for reading only. Borrowed. -1: this kernel can't seal it. */
int pages_fd(const struct pages *p);

struct pages_stats {
	uint64_t used_bytes;  /* of whole pages, those that are cut included */
	uint64_t cut_bytes;   /* of them, cut into slots */
	uint64_t table_bytes; /* beside them */
};
void pages_stats(const struct pages *p, struct pages_stats *out);
