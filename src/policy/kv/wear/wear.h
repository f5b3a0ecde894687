/* SPDX-License-Identifier: Apache-2.0 */
/* wear: whether a block is worth a write to SSD. Pure.
 *
 * An SSD endures a number of writes. A day's budget is spent by writes and comes back evenly over the day; at
 * most one day's is saved up. While the tier has free room and an eighth of the budget is left, every block
 * is written. Otherwise measurements decide. Blocks are divided into classes by their use in RAM. The yield
 * of a class is the bytes read from SSD for each byte of it that was written there, lately (as long as it
 * takes to write the tier twice). A class is written when its yield is an eighth at least, and half of the
 * average; the best class may use up the budget, the others leave an eighth of it at most, so in the long run
 * the budget goes to the best classes. One block in 32 of the other classes is written too, to measure them.
 *
 * Threads: the caller's lock. Memory: the struct. */
#pragma once
#include "base/core/err.h"

enum wear_class {
	WEAR_ONCE,  /* Not used since it came to RAM. */
	WEAR_USED,  /* Used since. */
	WEAR_OFTEN, /* Used at least twice. */
	WEAR_BACK,  /* Put again soon after its eviction from RAM. */
	WEAR_CLASSES
};

struct wear {
	uint64_t tier_bytes, day_bytes;
	double left; /* Bytes of the budget. */
	cgn_nsec at; /* The time of |left|. */
	double wrote[WEAR_CLASSES], read[WEAR_CLASSES];
	uint32_t refused; /* Counts to the next sample. */
};

/* |day_bytes|: bytes that may be written a day; 0: no limit. The whole budget is there at first. */
void wear_init(struct wear *w, uint64_t tier_bytes, uint64_t day_bytes, cgn_nsec now);
/* Go on with |left| bytes of the budget, as it was |away| ago. */
void wear_resume(struct wear *w, double left, cgn_nsec away);
/* |worth|: as evict_worth returns it. */
enum wear_class wear_class_of(unsigned worth);
/* Whether to write a block of |bytes|. |room|: the tier takes it without giving up other blocks. A block may be
 * asked for again later, in the same or another class. */
bool wear_admits(struct wear *w, enum wear_class c, uint64_t bytes, bool room, cgn_nsec now);
/* A block was written: |bytes| of value, |spent| bytes on the medium for whatever reason since the last call. */
void wear_wrote(struct wear *w, enum wear_class c, uint64_t bytes);
void wear_spent(struct wear *w, uint64_t bytes);
/* A block that was written in class |c| was read from SSD. */
void wear_read(struct wear *w, enum wear_class c, uint64_t bytes);
