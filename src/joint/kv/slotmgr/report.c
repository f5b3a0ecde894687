/* SPDX-License-Identifier: Apache-2.0 */
/* report: the slot manager's part of the admin port's /engines. */
#include "joint/kv/slotmgr/slotmgr_priv.h"

static void slot_fill(const struct slot_view *v, Cognitora__V1__KeptSlot *to)
{
	static const char *const uses[] =
		{[SLOT_IDLE] = "idle", [SLOT_BUSY] = "busy", [SLOT_MOVING] = "moving"};
	to->use = pb_text(uses[v->use]);
	to->blocks = v->n;
	to->tokens = v->tokens;
	to->stored = v->saved;
}

static void prompts_fill(const struct slot_stats *s, Cognitora__V1__KeptPrompts *to)
{
	to->held = s->outcomes[RESTORE_NOT_NEEDED];
	to->ram = s->outcomes[RESTORE_FROM_RAM];
	to->ssd = s->outcomes[RESTORE_FROM_SSD];
	to->peer = s->outcomes[RESTORE_FROM_PEER];
	to->none = s->outcomes[RESTORE_NO_STATE];
	to->short_ = s->outcomes[RESTORE_SKIPPED_SHORT];
	to->slower = s->outcomes[RESTORE_SKIPPED_SLOWER];
	to->refused = s->outcomes[RESTORE_SKIPPED_REFUSED];
	to->gone = s->outcomes[RESTORE_FAILED_STATE_GONE];
	to->engine = s->outcomes[RESTORE_FAILED_ENGINE];
	to->late = s->outcomes[RESTORE_FAILED_TIMEOUT];
	to->failed = s->outcomes[RESTORE_FAILED_STORAGE];
	to->paused = s->outcomes[RESTORE_SKIPPED_PAUSED];
	to->alone = s->outcomes[RESTORE_SKIPPED_BY_CLIENT];
	to->astray = s->outcomes[RESTORE_SKIPPED_UNPLACEABLE];
	to->off = s->outcomes[RESTORE_SKIPPED_OFF];
}

static void stats_fill(const struct slotmgr *m, Cognitora__V1__KeptSlots *to)
{
	const struct slot_stats *s = &m->stats;
	to->states = slot_directory_states(m->entries.directory);
	to->state_blocks = slot_directory_blocks(m->entries.directory);
	to->saves = s->saves;
	to->save_failures = s->save_failures;
	to->restores = s->restores;
	to->restore_failures = s->restore_failures;
	to->restored_tokens = s->restored_tokens;
	to->spared_ms = s->spared_ms;
	to->strays = s->strays;
}

Cognitora__V1__KeptSlots *slotmgr_report_new(const struct slotmgr *m, struct pb_tree *t)
{
	if (m == NULL)
		return NULL;
	Cognitora__V1__KeptSlots *to = PB_NEW(t, kept_slots);
	to->at_work = m->slots != NULL;
	to->trouble = pb_text(m->trouble);
	to->build = pb_text(m->fingerprint.build);
	stats_fill(m, to);
	prompts_fill(&m->stats, to->prompts = PB_NEW(t, kept_prompts));
	to->paused = slotmgr_is_paused(m);
	to->prefill_ms_per_token = m->pace.prefill_ms;
	to->bytes_per_token = m->pace.token_bytes;
	to->save_ms_per_mib = m->pace.save_ms;
	to->load_ms_per_mib = m->pace.load_ms;
	for (uint32_t i = 0; m->slots != NULL && i < slots_count(m->slots); i++) {
		struct slot_view v = slots_at(m->slots, i);
		slot_fill(&v, PB_ADD(t, to, slots, kept_slot));
	}
	return to;
}
