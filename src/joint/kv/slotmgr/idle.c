/* SPDX-License-Identifier: Apache-2.0 */
/* idle: slots that have been idle for kv_save_idle are saved, one after the other, since each save delays the
 * engine's other slots. */
#include "joint/kv/slotmgr/states_priv.h"

#define SAVE_RETRY_DELAY CGN_SEC         /* After a save that could not begin */
#define SAVE_WAIT_DELAY  (10 * CGN_MSEC) /* While another save is under way */

/* |*next| becomes the earliest instant at which a slot will be due. */
static bool slot_is_due(const struct slotmgr *m, uint32_t slot, cgn_nsec now, cgn_nsec *next)
{
	struct slot_view v = slots_at(m->slots, slot);
	if (v.use != SLOT_IDLE || v.n == 0 || v.tokens <= v.saved || v.tokens - v.saved < m->min_tokens)
		return false;
	cgn_nsec at = m->idle_since[slot] + m->idle_timeout;
	if (at > now && (*next == 0 || at < *next))
		*next = at;
	return at <= now;
}

/* Return true if the slot has a state worth storing that the store does not have. */
static bool slot_is_unsaved(const struct slotmgr *m, uint32_t slot)
{
	struct slot_view v = slots_at(m->slots, slot);
	return v.n > 0 && v.tokens > v.saved && v.tokens >= m->min_tokens;
}

void slotmgr_flush_begin(struct slotmgr *m)
{
	if (m != NULL)
		m->flush_failures = m->stats.save_failures;
}

bool slotmgr_flush_step(struct slotmgr *m)
{
	if (m == NULL || m->slots == NULL)
		return true;
	CGN_LIVE(m, SLOTMGR_TAG);
	if (m->n_saves > 0)
		return false;
	if (m->stats.save_failures > m->flush_failures)
		return true;
	for (uint32_t i = 0; i < slots_count(m->slots); i++)
		if (slots_at(m->slots, i).use == SLOT_IDLE && slot_is_unsaved(m, i))
			return slot_save_start(m, i, NULL, NULL, NULL) == NULL;
	return true;
}

void slotmgr_on_idle(struct cgn_timer *t)
{
	struct slotmgr *m = CGN_CONTAINER(t, struct slotmgr, idle_timer);
	cgn_nsec now = cgn_clock_now(), next = 0;
	CGN_LIVE(m, SLOTMGR_TAG);
	for (uint32_t i = 0; m->slots != NULL && i < slots_count(m->slots); i++) {
		if (!slot_is_due(m, i, now, &next))
			continue;
		if (m->n_saves == 0 && slot_save_start(m, i, NULL, NULL, NULL) != NULL)
			continue;
		next = now + (m->n_saves > 0 ? SAVE_WAIT_DELAY : SAVE_RETRY_DELAY);
	}
	if (next > 0)
		cgn_timer_set(&m->idle_timer, next > now ? next - now : CGN_MSEC);
}
