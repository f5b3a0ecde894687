/* SPDX-License-Identifier: Apache-2.0 */
/* answer: a placed request while the engine computes, and what its slot holds afterwards. */
#include "base/log/log.h"
#include "joint/kv/slotmgr/states_priv.h"

#define LEARN_MIN_TOKENS 32.0 /* The time of a shorter prompt says little about the engine's pace */

void slotmgr_prefilled(struct slot_placement *p)
{
	if (p->state == PLACEMENT_COMPUTING && slot_placement_is_current(p))
		slots_prefilled(p->mgr->slots, p->slot, p->chain, p->n);
}

/* ---- the engine's timings ---- */

static void log_computed(const struct slot_placement *p, const struct usage_timings *t)
{
	const struct slotmgr *m = p->mgr;
	if (t->prompt_n >= m->min_tokens)
		cgn_log(INFO, "slot.prompt", F_STR("request", p->id), F_STR("engine", m->name),
			F_U64("slot", p->slot), F_STR("prefix", restore_outcome_text(p->outcome)),
			F_U64("computed_tokens", t->prompt_n), F_U64("cached_tokens", t->cache_n),
			F_DUR("took", (cgn_nsec)(t->prompt_ms * 1e6)));
}

/* Count the time that the restore saved: |more| tokens that the slot did not hold before. */
static void count_spared(struct slot_placement *p, const struct usage_timings *t, double more)
{
	struct slotmgr *m = p->mgr;
	double spared = more * m->pace.prefill_ms - p->restore_ms;
	spared = spared > 0 ? spared : 0;
	m->stats.restored_tokens += (uint64_t)more;
	m->stats.spared_ms += spared;
	metric_add(m->stats.restored_tokens_cell, (uint64_t)more);
	metric_observe(m->stats.spared_seconds, (cgn_nsec)(spared * 1e6));
	cgn_log(INFO, "slot.spared", F_STR("engine", m->name), F_U64("slot", p->slot),
		F_U64("tokens", (uint64_t)more), F_U64("cached_tokens", t->cache_n),
		F_U64("prompt_tokens", t->cache_n + t->prompt_n),
		F_DUR("restore", (cgn_nsec)(p->restore_ms * 1e6)), F_DUR("spared", (cgn_nsec)(spared * 1e6)));
}

static void learn_timings(struct slot_placement *p, const struct usage_timings *t)
{
	struct slotmgr *m = p->mgr;
	slots_pace_learn(&m->pace.prefill_ms, t->prompt_ms, (double)t->prompt_n, LEARN_MIN_TOKENS);
	if (p->n > 0)
		slots_pace_learn(&m->block_tokens, (double)(t->cache_n + t->prompt_n), (double)p->n, 1);
	log_computed(p, t);
	double more = (double)t->cache_n - p->held_tokens;
	if (p->restored && more > 0) {
		count_spared(p, t, more);
	} else if (p->restored) {
		/* The state is not the one of its entry, or the engine does not use what it restores. */
		slotmgr_refuse(m, p->state_id, p->state_sum);
		slotmgr_trouble(m, "a state was restored without effect",
			"the engine found nothing of the prompt in it");
	}
}

/* Record the tokens in the slot after a complete answer. The engine does not take the last token in. */
static void record_answer(struct slot_placement *p, const struct usagescan *told)
{
	uint64_t prompt = 0, cached = 0, answer = 0;
	if (told != NULL && told->found_timings) {
		prompt = told->timings.cache_n + told->timings.prompt_n;
		cached = told->timings.cache_n;
		answer = told->timings.predicted_n;
		learn_timings(p, &told->timings);
	} else if (told != NULL && told->found && told->usage.has_prompt) {
		prompt = told->usage.prompt_tokens;
		cached = told->usage.cached_tokens;
		answer = told->usage.completion_tokens;
	}
	uint64_t tokens = prompt + (answer > 0 ? answer - 1 : 0);
	slots_end(p->mgr->slots, p->slot, (uint32_t)prompt, (uint32_t)tokens, (uint32_t)cached);
}

/* ---- the end ---- */

void slotmgr_answer_end(struct slot_placement *p, const struct usagescan *answer)
{
	struct slotmgr *m = p->mgr;
	if (m == NULL)
		return;
	CGN_LIVE(m, SLOTMGR_TAG);
	bool has_slot = slot_placement_is_current(p) && p->slot != SLOTS_NONE;
	/* A save or restore makes the slot idle at its own end. */
	bool looks_up = p->state == PLACEMENT_LOOKUP;
	bool frees = has_slot && (looks_up || p->state == PLACEMENT_COMPUTING);
	slot_placement_detach(p);
	slot_placement_move(p, PLACEMENT_OUT);
	if (frees && looks_up)
		slots_moved(m->slots, p->slot);
	else if (frees)
		record_answer(p, answer);
	p->mgr = NULL;
	if (frees)
		slotmgr_slot_idle(m, p->slot);
}

/* ---- a prompt without an answer ---- */

bool slotmgr_can_store(const struct slotmgr *m)
{
	return m != NULL && m->slots != NULL && !slotmgr_is_paused(m);
}

static void on_prompt_stored(void *user, bool ok)
{
	struct slot_placement *p = user;
	p->save = NULL;
	slot_placement_move(p, PLACEMENT_DONE);
	p->stored(p, ok);
}

void slotmgr_store(struct slot_placement *p, const struct usagescan *answer,
	void (*stored)(struct slot_placement *p, bool ok))
{
	struct slotmgr *m = p->mgr;
	p->stored = stored;
	if (m == NULL || !slot_placement_is_current(p) || p->state != PLACEMENT_COMPUTING) {
		stored(p, false);
		return;
	}
	record_answer(p, answer);
	struct slot_view v = slots_at(m->slots, p->slot);
	bool is_stored = v.n > 0 && v.saved >= v.tokens && v.tokens > 0;
	if (!is_stored)
		p->save = slot_save_start(m, p->slot, NULL, on_prompt_stored, p);
	slot_placement_move(p, p->save != NULL ? PLACEMENT_STORING : PLACEMENT_DONE);
	if (p->save != NULL)
		return;
	slotmgr_slot_idle(m, p->slot);
	stored(p, is_stored);
}
