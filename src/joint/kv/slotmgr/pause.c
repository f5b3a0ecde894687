/* SPDX-License-Identifier: Apache-2.0 */
/* pause: conversations that wait for a tool. Their slots are kept for them while others are free; the states are in
 * the store, as those of all idle slots; and a state whose slot was taken meanwhile is restored into a slot that loses
 * nothing, shortly before the conversation is expected back. A state with fewer than kv_save_min_tokens new tokens is
 * not stored again: the earlier one is restored then. */
#include "base/log/log.h"
#include "joint/kv/slotmgr/states_priv.h"

#define RESTORE_AT    0.7 /* Share of the median duration: many calls end sooner */
#define PAUSE_RETRY   (50 * CGN_MSEC)
#define PAUSE_LONGEST (15 * 60 * CGN_SEC)

static void pause_count(struct slotmgr *m, const char *outcome)
{
	metric_add(METRIC_OF(m->telemetry, SLOT_PAUSES, m->name, outcome), 1);
}

/* Return the slot that holds the conversation whose prompt ended with |last|; SLOTS_NONE: none does. */
static uint32_t slot_holding(const struct slotmgr *m, uint64_t last)
{
	for (uint32_t i = 0; i < slots_count(m->slots); i++) {
		struct slot_view v = slots_at(m->slots, i);
		for (size_t k = v.n; k > 0; k--)
			if (v.chain[k - 1] == last)
				return i;
	}
	return SLOTS_NONE;
}

/* Return the idle slot used longest ago of those that lose nothing: empty, or in the store and not kept. */
static uint32_t slot_to_spare(const struct slotmgr *m, cgn_nsec now)
{
	uint32_t best = SLOTS_NONE;
	for (uint32_t i = 0; i < slots_count(m->slots); i++) {
		struct slot_view v = slots_at(m->slots, i);
		bool saved = v.used_at == 0 || (v.tokens > 0 && v.saved >= v.tokens);
		if (v.use == SLOT_IDLE && saved && v.kept_until <= now &&
			(best == SLOTS_NONE || v.used_at < slots_at(m->slots, best).used_at))
			best = i;
	}
	return best;
}

static void on_pause_restored(void *user, const struct slot_restore_result *r)
{
	struct slot_pause *p = user;
	struct slotmgr *m = p->mgr;
	uint32_t slot = p->slot;
	pause_count(m, r->ok ? "restored" : "failed");
	if (r->ok)
		slots_keep(m->slots, slot, p->until);
	p->last = 0;
	p->restoring = false;
	slotmgr_slot_idle(m, slot);
}

/* Return the id of the stored state that is a beginning of the slot's prompt; 0: there is none. */
static uint64_t state_before(const struct slotmgr *m, uint32_t slot)
{
	struct slot_view v = slots_at(m->slots, slot);
	struct slot_directory_find f = slot_directory_find(m->entries.directory, v.chain, v.n);
	return f.common > 0 && f.common == f.entry.n ? slot_entry_id(&f.entry) : 0;
}

static bool pause_state(const struct slotmgr *m, const struct slot_pause *p, struct slot_directory_find *f)
{
	return slot_directory_get(m->entries.directory, p->last, f) ||
		(p->earlier != 0 && slot_directory_get(m->entries.directory, p->earlier, f));
}

/* Restore the state of |p|. False: it cannot be done now. */
static bool pause_restore(struct slotmgr *m, struct slot_pause *p, cgn_nsec now)
{
	struct slot_directory_find f;
	uint32_t slot = slot_to_spare(m, now);
	if (slot == SLOTS_NONE || !cgn_list_empty(&m->waiting) || slotmgr_is_paused(m) ||
		!pause_state(m, p, &f))
		return false;
	enum slots_from from = f.tier == BLOCK_RAM ? SLOTS_FROM_RAM : SLOTS_FROM_SSD;
	if (slotmgr_refuses(m, &f.entry) ||
		slotmgr_worth(m, f.entry.prompt, slot_entry_bytes(&f.entry), from) != RESTORE_NO_STATE)
		return false;
	p->slot = slot;
	slots_move(m->slots, slot);
	p->restoring = slot_restore_start(m, slot, &f.entry, from, (struct cgn_str){0}, on_pause_restored,
			       p) != NULL;
	if (!p->restoring)
		slots_moved(m->slots, slot);
	return p->restoring;
}

/* True when a slot holds the conversation, or what the store has of it: that slot is kept too. */
static bool pause_is_held(struct slotmgr *m, const struct slot_pause *p)
{
	struct slot_directory_find f;
	if (slot_holding(m, p->last) != SLOTS_NONE)
		return true;
	uint32_t slot = pause_state(m, p, &f) ? slot_holding(m, slot_entry_id(&f.entry)) : SLOTS_NONE;
	if (slot != SLOTS_NONE)
		slots_keep(m->slots, slot, p->until);
	return slot != SLOTS_NONE;
}

/* Return when |p| is to be looked at again; 0: never. */
static cgn_nsec pause_step(struct slotmgr *m, struct slot_pause *p, cgn_nsec now)
{
	if (p->last == 0 || p->restoring)
		return 0;
	if (now < p->restore_at)
		return p->restore_at;
	if (pause_is_held(m, p) || now >= p->until) {
		pause_count(m, now < p->until ? "held" : "late");
		p->last = 0;
		return 0;
	}
	return pause_restore(m, p, now) ? 0 : now + PAUSE_RETRY;
}

void slotmgr_on_pause(struct cgn_timer *t)
{
	struct slotmgr *m = CGN_CONTAINER(t, struct slotmgr, pause_timer);
	cgn_nsec now = cgn_clock_now(), next = 0;
	CGN_LIVE(m, SLOTMGR_TAG);
	for (size_t i = 0; m->slots != NULL && i < SLOTMGR_PAUSES; i++) {
		cgn_nsec at = pause_step(m, &m->pauses[i], now);
		next = at > 0 && (next == 0 || at < next) ? at : next;
	}
	if (next > 0)
		cgn_timer_set(t, next > now ? next - now : CGN_MSEC);
}

/* The record of the conversation |last|, or a free one, or that of the conversation that is due first. */
static struct slot_pause *pause_record(struct slotmgr *m, uint64_t last)
{
	struct slot_pause *best = NULL;
	for (size_t i = 0; i < SLOTMGR_PAUSES; i++) {
		struct slot_pause *p = &m->pauses[i];
		if (p->restoring)
			continue;
		if (p->last == last)
			return p;
		if (best == NULL || (best->last != 0 && (p->last == 0 || p->until < best->until)))
			best = p;
	}
	return best;
}

void slotmgr_pause(struct slotmgr *m, uint64_t last, cgn_nsec p50, cgn_nsec p90)
{
	if (m == NULL || m->slots == NULL || last == 0)
		return;
	CGN_LIVE(m, SLOTMGR_TAG);
	uint32_t slot = slot_holding(m, last);
	struct slot_pause *p = pause_record(m, last);
	struct slot_directory_find f;
	if (p == NULL || (slot == SLOTS_NONE && !slot_directory_get(m->entries.directory, last, &f)))
		return; /* Another engine's conversation, or all records are being restored */
	cgn_nsec now = cgn_clock_now(), longest = 2 * p90 < PAUSE_LONGEST ? 2 * p90 : PAUSE_LONGEST;
	*p = (struct slot_pause){.mgr = m,
		.last = last,
		.earlier = slot != SLOTS_NONE ? state_before(m, slot) : 0,
		.restore_at = now + (cgn_nsec)((double)(p50 < longest ? p50 : longest) * RESTORE_AT),
		.until = now + longest};
	if (slot != SLOTS_NONE)
		slots_keep(m->slots, slot, p->until);
	slotmgr_on_pause(&m->pause_timer);
}

void slotmgr_pauses_forget(struct slotmgr *m)
{
	cgn_timer_cancel(&m->pause_timer);
	memset(m->pauses, 0, sizeof m->pauses);
}
