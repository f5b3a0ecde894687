/* SPDX-License-Identifier: Apache-2.0 */
/* slots: which conversation each slot of an engine holds, and which slot the next request gets. A chain is
 * the digests of a prompt's full blocks, first 8 bytes each, as routers compute them. Pure; one thread.
 *
 * Memory: 8 bytes for each block of a slot's chain, at most SLOTS_MAX_CHAIN blocks; the blocks behind are
 * held but not known. */
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
	SLOT_BUSY,   /* The engine computes an answer in the slot */
	SLOT_MOVING, /* The slot's state is being saved or restored */
};
struct slot_view {
	enum slot_use use;
	const uint64_t *chain; /* Blocks that the slot certainly holds */
	size_t n;
	uint32_t tokens;     /* Tokens in the slot, prompt and answer; 0: not known */
	uint32_t prompt;     /* Tokens of the prompt to which |chain| belongs; 0: not known */
	uint32_t saved;      /* Tokens that the store has too */
	uint64_t used_at;    /* Number of the slot's last use: higher is later; 0: never used */
	cgn_nsec kept_until; /* Until then the conversation is expected back; 0: it is not */
};

struct slots;
/* A block entered a slot, or left it. */
typedef void (*slots_changed)(void *user, uint64_t digest, bool held);
/* Create |n| slots, 1 to SLOTS_MAX, idle and empty. |held| may be NULL. */
struct slots *slots_new(size_t n, slots_changed held, void *user);
void slots_free(struct slots **take); /* NULL-safe; does not call |held| */
size_t slots_count(const struct slots *s);
struct slot_view slots_at(const struct slots *s, uint32_t slot);

struct slots_pick {
	uint32_t slot;   /* SLOTS_NONE: no slot is idle */
	uint32_t common; /* Leading blocks of the chain that the slot holds */
	bool takes;      /* The slot holds more than the common blocks, which will be lost */
};
/* Choose the idle slot with the lowest cost: the blocks to compute there plus the other blocks lost there. A
 * lost block weighs 1 in the slot used last, less in slots used earlier, down to 1/n in the oldest of n; a
 * quarter of that when the store has it too. A slot that is kept at |now| counts as the one used last. */
struct slots_pick slots_choose(const struct slots *s, const uint64_t *chain, size_t n, cgn_nsec now);
/* Return how many leading blocks of the chain the slot holds, whatever its use. */
size_t slots_common(const struct slots *s, uint32_t slot, const uint64_t *chain, size_t n);
/* The conversation in the slot is expected back by |until|. Its next use ends that. */
void slots_keep(struct slots *s, uint32_t slot, cgn_nsec until);

/* A request enters an idle slot. The first |common| blocks of the slot's content stay. */
void slots_begin(struct slots *s, uint32_t slot, size_t common);
/* The request's prompt is computed: the slot holds the chain, or the beginning of it when memory is short. */
void slots_prefilled(struct slots *s, uint32_t slot, const uint64_t *chain, size_t n);
/* The answer has ended; the slot is idle. |tokens| are in the slot now, |prompt| of them belong to the
 * prompt, and |cached| of those were there at the beginning; 0: not known. */
void slots_end(struct slots *s, uint32_t slot, uint32_t prompt, uint32_t tokens, uint32_t cached);
/* A save or restore of the slot begins: idle to moving. */
void slots_move(struct slots *s, uint32_t slot);
/* The save or restore ends: moving to idle, with the slot's content unchanged. */
void slots_moved(struct slots *s, uint32_t slot);
/* The |tokens| tokens that the slot held after its use |used_at| are in the store now. Does nothing when the
 * slot was used since. */
void slots_stored(struct slots *s, uint32_t slot, uint64_t used_at, uint32_t tokens);
/* The engine reports the number of tokens in a slot. Used only for an idle slot of which the number is not
 * known. */
void slots_counted(struct slots *s, uint32_t slot, uint32_t tokens);
/* A restore ends: moving to idle, with this state, which is in the store. |n| 0: the slot is empty. */
void slots_restored(struct slots *s, uint32_t slot, const uint64_t *chain, size_t n, uint32_t prompt,
	uint32_t tokens);
/* The slot's content is not known. Allowed in any use. */
void slots_forget(struct slots *s, uint32_t slot);
void slots_forget_all(struct slots *s); /* The engine was replaced: all slots are idle and empty */

/* ---- cost and benefit ---- */
/* Measured costs in ms, and bytes: moving averages, 0 until measured. */
struct slots_pace {
	double prefill_ms;  /* To compute a token of a prompt */
	double token_bytes; /* Bytes of a token's state */
	double save_ms;     /* To write a MiB of a state from the engine to a file */
	double load_ms;     /* To read a MiB from a file into the engine */
	double fetch_ms[3]; /* To get a MiB from the store, by place: RAM, SSD, a peer */
};
enum slots_from { SLOTS_FROM_RAM, SLOTS_FROM_SSD, SLOTS_FROM_PEER };
#define SLOTS_MIB 1048576.0
/* Take in a measurement: |ms| for |amount| tokens or MiB. Amounts below |least| are ignored, because fixed
 * costs dominate. */
void slots_pace_learn(double *pace, double ms, double amount, double least);
/* Return the expected duration of a restore, in ms. */
double slots_restore_ms(const struct slots_pace *p, uint64_t bytes, enum slots_from from);
/* True when restoring |bytes|, which saves computing |tokens| tokens, is faster than computing them. Fewer
 * than |least| tokens never pay. A cost that was never measured counts as worth a try. */
bool slots_restore_pays(const struct slots_pace *p, uint32_t tokens, uint32_t least, uint64_t bytes,
	enum slots_from from);
/* True when a slot is worth saving while the next request waits for it: the save takes less than a quarter of
 * the time to compute the slot's content again. */
bool slots_save_pays(const struct slots_pace *p, const struct slot_view *v, uint32_t least);
/* True when a request gains by waiting until a slot of |held| tokens is saved, because it need not compute |spared|
 * tokens: the save is expected to take less time than they do. A cost that was never measured counts as worth a
 * try. */
bool slots_await_pays(const struct slots_pace *p, uint32_t held, uint32_t spared);
