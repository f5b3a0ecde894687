/* SPDX-License-Identifier: Apache-2.0 */
/* slots: which conversation lies in which slot of an engine whose slots its agent assigns, and which one the
 * next request gets. A chain is the digests of a prompt's full blocks, first 8 bytes each, as routers make
 * them. Pure; one thread.
 *
 * Memory: 8 bytes a block of each slot's chain, at most SLOTS_MAX_CHAIN of them; what lies behind is held but
 * not known. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/err.h"

#define SLOTS_MAX       1024
#define SLOTS_MAX_CHAIN 65536
#define SLOTS_NONE      UINT32_MAX

enum slot_use {
	SLOT_IDLE,
	SLOT_BUSY,   /* it computes an answer */
	SLOT_MOVING, /* its state is being saved or restored */
};
struct slot_view {
	enum slot_use use;
	const uint64_t *chain; /* what it certainly holds */
	size_t n;
	uint32_t tokens;  /* in it, prompt and answer; 0: not known */
	uint32_t prompt;  /* of them, of the prompt that the chain is of; 0: not known */
	uint32_t saved;   /* of them, those that lie in the store too */
	uint64_t used_at; /* number of its last use: higher is later; 0: never */
};

struct slots;
/* A block came into slot's GPU tier, or is there no more. */
typedef void (*slots_changed)(void *user, uint64_t digest, bool held);
/* |n| from 1 to SLOTS_MAX, all of them idle and empty. |held| may be NULL. CGN_NO_MEMORY. */
CGN_RC slots_new(size_t n, slots_changed held, void *user, struct slots **out, struct cgn_err *err);
void slots_free(struct slots **take); /* NULL-safe; tells nobody */
size_t slots_count(const struct slots *s);
struct slot_view slots_at(const struct slots *s, uint32_t slot);

struct slots_pick {
	uint32_t slot;   /* SLOTS_NONE: none is idle */
	uint32_t common; /* leading blocks of the chain that it holds */
	bool takes;      /* it holds more than those, which will be lost */
};
/* The idle slot that costs least: blocks to compute there, and blocks of others that are lost by it. A lost
 * one weighs 1 in the slot that was used last and less the longer ago that was, down to 1/n in the oldest of
 * n; a quarter of that where the store has it too. */
struct slots_pick slots_choose(const struct slots *s, const uint64_t *chain, size_t n);

/* A request goes to an idle slot: of what it holds, the first |common| blocks stay. */
void slots_begin(struct slots *s, uint32_t slot, size_t common);
/* Its prompt is computed: the slot holds the chain. Of one that is too long for memory, less. */
void slots_prefilled(struct slots *s, uint32_t slot, const uint64_t *chain, size_t n);
/* The answer is over; idle again. |tokens| in the slot now, |prompt| of them the prompt's, of which |cached|
 * were there when it began; 0: not known. */
void slots_end(struct slots *s, uint32_t slot, uint32_t prompt, uint32_t tokens, uint32_t cached);
/* It is being saved or restored: idle to moving. */
void slots_move(struct slots *s, uint32_t slot);
/* Moving to idle: it holds what it held. */
void slots_moved(struct slots *s, uint32_t slot);
/* What it held after its use |used_at|, |tokens| of them, lies in the store now. Nothing when it was used
 * since. */
void slots_stored(struct slots *s, uint32_t slot, uint64_t used_at, uint32_t tokens);
/* The engine says how much is in an idle slot of which that was not known. */
void slots_counted(struct slots *s, uint32_t slot, uint32_t tokens);
/* Moving to idle: it holds this state, which is in the store. |n| 0: it holds nothing any more. */
void slots_restored(struct slots *s, uint32_t slot, const uint64_t *chain, size_t n, uint32_t prompt,
	uint32_t tokens);
/* Whatever it holds is not what was thought. In any use. */
void slots_forget(struct slots *s, uint32_t slot);
void slots_forget_all(struct slots *s); /* the engine is another one now: all are idle and empty */

/* ---- is it worth it? ---- */
/* Measured: moving averages, each 0 until something was measured. */
struct slots_pace {
	double prefill_ms;  /* a token's computation in a prompt */
	double token_bytes; /* a token's state */
	double save_ms;     /* a MiB of a state, from the engine to a file */
	double load_ms;     /* a MiB of it, from a file to the engine */
	double fetch_ms[3]; /* a MiB of it from the store, by where it lies: RAM, SSD, a peer */
};
enum slots_from { SLOTS_FROM_RAM, SLOTS_FROM_SSD, SLOTS_FROM_PEER };
#define SLOTS_MIB 1048576.0
/* One more measurement: ms for |amount| (of tokens, or MiB). Nothing of less than |least|, where fixed costs
 * rule. */
void slots_pace_learn(double *pace, double ms, double amount, double least);
/* Expected cost of a restore, ms. */
double slots_restore_ms(const struct slots_pace *p, uint64_t bytes, enum slots_from from);
/* Does bringing back |bytes|, which spares |tokens| of prompt, beat computing them? |least|: fewer tokens
 * never do. What was never measured is taken as worth a try. */
bool slots_restore_pays(const struct slots_pace *p, uint32_t tokens, uint32_t least, uint64_t bytes,
	enum slots_from from);
/* Is a slot worth saving before another conversation gets it, which waits for that? When it takes less than a
 * quarter of what it would take to compute it again. */
bool slots_save_pays(const struct slots_pace *p, const struct slot_view *v, uint32_t least);
