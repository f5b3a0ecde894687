/* SPDX-License-Identifier: Apache-2.0 */
/* states: saves a slot's state, restores one, and looks for one. */
#pragma once
#include "joint/kv/slotmgr/slotmgr_priv.h"

/* ---- save.c: a slot's state into the store ---- */
/* Save an idle slot, which is moving until |moved|. |moved| is called once the slot is idle again, |stored|
 * when the store has the state or the save failed; neither inline, and neither after slot_save_leave. NULL: the
 * save could not begin, and the slot is idle. */
struct slot_save *slot_save_start(struct slotmgr *m, uint32_t slot, void (*moved)(void *user),
	void (*stored)(void *user, bool ok), void *user);
/* True when a save of what the slot holds now is under way. */
bool slot_save_runs(const struct slotmgr *m, uint32_t slot);
/* Wait until the slot that a save is moving is idle again, then |moved| is called, as slot_save_start says. NULL: no
 * save moves the slot, or another request waits for it. */
struct slot_save *slot_save_await(struct slotmgr *m, uint32_t slot, void (*moved)(void *user), void *user);
void slot_save_leave(struct slot_save **take); /* The save continues without callbacks; NULL-safe */
/* Abort a save in the manager's list. |stored| is called, |moved| is not. */
void slot_save_stop(struct cgn_link *link);

/* ---- restore.c: a state into a slot ---- */
struct slot_restore_result {
	bool ok;
	enum restore_outcome outcome;
	uint32_t tokens;
	double ms;
};
typedef void slot_restore_done(void *user, const struct slot_restore_result *r);
/* Restore a state into a slot that is moving, for |tenant|, which matters where it comes from a peer; the slot is idle when |done| is called, never inline. NULL: the
 * restore could not begin. */
struct slot_restore *slot_restore_start(struct slotmgr *m, uint32_t slot, const struct slot_entry *c,
	enum slots_from from, struct cgn_str tenant, slot_restore_done *done, void *user);
/* The restore continues without a callback and makes the slot idle at its end; NULL-safe. */
void slot_restore_leave(struct slot_restore **take);
/* Abort a restore in the manager's list; |done| is not called. */
void slot_restore_stop(struct cgn_link *link);

/* ---- lookup.c: a state in the stores of the node and its peers ---- */
typedef void slot_lookup_done(void *user, const struct slot_entry *c, enum restore_outcome outcome);
/* Look for a state that has more than |common| blocks of the chain. |done| is called once, never inline, with
 * the entry, or with NULL and the reason. |patient|: repeat until some store has the whole chain. NULL: the
 * lookup could not begin. Stores of other sites are asked as far as |tenant|, which is copied, lets them. */
struct slot_lookup *slot_lookup_start(struct slotmgr *m, const uint64_t *chain, size_t n, size_t common,
	bool patient, struct cgn_str tenant, slot_lookup_done *done, void *user);
void slot_lookup_cancel(struct slot_lookup **take); /* NULL-safe */
