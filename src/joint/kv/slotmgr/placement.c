/* SPDX-License-Identifier: Apache-2.0 */
/* placement: one request's way into a slot. The request takes an idle slot or waits for one; while the slot that
 * has its prompt is being saved, it waits for that slot; a state that would be lost there is saved first; a stored state that has more of the prompt is restored; then the request is
 * sent on. After a timeout or a failure the request is sent on without these steps. */
#include "base/log/log.h"
#include "joint/kv/slotmgr/states_priv.h"
#include "policy/node/engine/engine.h"
#include "policy/node/proto/proto.h"

void slot_placement_move(struct slot_placement *p, enum placement_state to)
{
	static const unsigned exits[] = {
#define TO(state)                 1U << PLACEMENT_##state
#define PLACEMENT(id, exits, why) [PLACEMENT_##id] = (exits),
#include "joint/kv/slotmgr/states.def"
#undef PLACEMENT
#undef TO
	};
	CGN_MUST((exits[p->state] & 1U << to) != 0);
	p->state = to;
}

static struct slotmgr *placement_manager(const struct slot_placement *p)
{
	CGN_LIVE(p->mgr, SLOTMGR_TAG);
	return p->mgr;
}

bool slot_placement_is_current(const struct slot_placement *p)
{
	return p->mgr->slots != NULL && p->epoch == p->mgr->epoch;
}

void slot_placement_detach(struct slot_placement *p)
{
	cgn_timer_cancel(&p->timeout);
	cgn_list_drop(&p->link);
	slot_save_leave(&p->save);
	slot_restore_leave(&p->restore);
	slot_lookup_cancel(&p->lookup);
}

/* ---- sending on ---- */

/* Send the request on unchanged. The engine chooses the slot; slotmgr_slots_told finds out which. */
static void placement_send_unplaced(struct slot_placement *p)
{
	cgn_log(INFO, "slot.astray", F_STR("request", p->id), F_STR("engine", p->mgr->name),
		F_STR("why", restore_outcome_text(p->outcome)),
		F_DUR("waited", cgn_since(cgn_clock_now(), p->began)));
	slotmgr_count_outcome(p->mgr, p->outcome);
	slot_placement_detach(p);
	slot_placement_move(p, PLACEMENT_OUT);
	p->slot = SLOTS_NONE;
	p->mgr = NULL;
	p->go(p);
}

static size_t common_blocks(const struct slot_placement *p)
{
	return slots_common(p->mgr->slots, p->slot, p->chain, p->n);
}

/* Send the request into its slot, which is idle. */
static void placement_send(struct slot_placement *p)
{
	struct slotmgr *m = placement_manager(p);
	slotmgr_count_outcome(m, p->outcome);
	slot_placement_detach(p);
	slots_begin(m->slots, p->slot, p->at.caches ? common_blocks(p) : 0);
	m->task[p->slot] = -1;
	m->tenants[p->slot] = slot_tenant_of(p->tenant);
	slot_placement_move(p, PLACEMENT_COMPUTING);
	p->go(p);
}

/* Send the request into its slot, which is moving and to which nothing is restored. */
static void placement_send_now(struct slot_placement *p)
{
	slots_moved(placement_manager(p)->slots, p->slot);
	placement_send(p);
}

static bool engine_computes(const struct slotmgr *m)
{
	for (uint32_t i = 0; i < slots_count(m->slots); i++)
		if (slots_at(m->slots, i).use == SLOT_BUSY)
			return true;
	return false;
}

static void placement_give_up_waiting(struct slot_placement *p);

static void on_placement_timeout(struct cgn_timer *t)
{
	struct slot_placement *p = CGN_CONTAINER(t, struct slot_placement, timeout);
	struct slotmgr *m = placement_manager(p);
	if (p->state == PLACEMENT_AWAITING) {
		placement_give_up_waiting(p);
		return;
	}
	/* While the engine computes, the request waits for its turn, as it would inside the engine. */
	if (p->state == PLACEMENT_WAITING && engine_computes(m)) {
		cgn_timer_set(t, m->restore_timeout);
		return;
	}
	p->outcome = RESTORE_FAILED_TIMEOUT;
	if (p->state == PLACEMENT_WAITING) {
		placement_send_unplaced(p);
		return;
	}
	metric_add(METRIC_OF(m->telemetry, SLOT_RESTORES, m->name, "late"), 1);
	m->stats.restore_failures++;
	/* A slot that a save or restore still moves belongs to that save or restore. */
	if (p->state == PLACEMENT_SAVING || p->state == PLACEMENT_RESTORING)
		placement_send_unplaced(p);
	else
		placement_send_now(p);
}

/* ---- restoring; the slot is moving ---- */

static void on_placement_restored(void *user, const struct slot_restore_result *r)
{
	struct slot_placement *p = user;
	p->restore = NULL;
	p->restored = r->ok;
	p->outcome = r->outcome;
	p->restore_ms = r->ms;
	placement_send(p);
}

static void placement_restore(struct slot_placement *p, const struct slot_entry *c, enum slots_from from)
{
	p->state_id = slot_entry_id(c);
	p->state_sum = c->sums[0];
	p->restore = slot_restore_start(placement_manager(p), p->slot, c, from, p->tenant,
		on_placement_restored, p);
	if (p->restore != NULL) {
		slot_placement_move(p, PLACEMENT_RESTORING);
		return;
	}
	p->outcome = RESTORE_FAILED_STORAGE;
	placement_send_now(p);
}

static double block_tokens(const struct slot_placement *p)
{
	const struct slotmgr *m = p->mgr;
	if (p->block_tokens > 0)
		return p->block_tokens;
	if (m->block_tokens > 0)
		return m->block_tokens;
	return (double)m->ops->engine(m->user).block_bytes / ENGINE_TOKEN_BYTES;
}

/* Find the best state in the node's own store. True: restoring the state pays. False: |*outcome| is set to the
 * reason when there is a state. */
static bool find_in_store(const struct slot_placement *p, size_t common, struct slot_directory_find *f,
	enum restore_outcome *outcome)
{
	const struct slotmgr *m = p->mgr;
	*f = slot_directory_find(m->entries.directory, p->chain, p->n);
	if (f->common <= common)
		return false;
	double block = (double)f->entry.prompt / (double)f->entry.n;
	enum restore_outcome worth = slotmgr_refuses(m, &f->entry)
		? RESTORE_SKIPPED_REFUSED
		: slotmgr_worth(m, (uint32_t)(block * (double)(f->common - common)),
			  slot_entry_bytes(&f->entry),
			  f->tier == BLOCK_RAM ? SLOTS_FROM_RAM : SLOTS_FROM_SSD);
	*outcome = worth != RESTORE_NO_STATE ? worth : *outcome;
	return worth == RESTORE_NO_STATE;
}

static void placement_restore_from_store(struct slot_placement *p)
{
	struct slot_directory_find f;
	if (find_in_store(p, common_blocks(p), &f, &p->outcome))
		placement_restore(p, &f.entry, f.tier == BLOCK_RAM ? SLOTS_FROM_RAM : SLOTS_FROM_SSD);
	else
		placement_send_now(p);
}

static void on_placement_lookup(void *user, const struct slot_entry *c, enum restore_outcome outcome)
{
	struct slot_placement *p = user;
	p->lookup = NULL;
	p->outcome = outcome;
	if (c != NULL)
		placement_restore(p, c, SLOTS_FROM_PEER);
	else
		placement_restore_from_store(p);
}

static enum restore_outcome first_outcome(const struct slot_placement *p, size_t held)
{
	const struct slotmgr *m = p->mgr;
	if (!p->at.caches || p->at.adapts)
		return RESTORE_SKIPPED_BY_CLIENT;
	if (block_tokens(p) * (double)(p->n - held) < m->min_tokens)
		return RESTORE_NOT_NEEDED;
	return slotmgr_is_paused(m) ? RESTORE_SKIPPED_PAUSED : RESTORE_NO_STATE;
}

/* Restore the tokens that the slot lacks: from a peer when one may have more than the node's store, else from
 * the node's store. */
static void placement_fill(struct slot_placement *p)
{
	struct slotmgr *m = placement_manager(p);
	struct slot_directory_find f;
	size_t held = common_blocks(p), found = held;
	p->held_tokens = block_tokens(p) * (double)held;
	p->outcome = first_outcome(p, held);
	if (!p->at.caches || held == p->n || p->outcome == RESTORE_SKIPPED_PAUSED) {
		placement_send_now(p);
		return;
	}
	if (find_in_store(p, held, &f, &p->outcome))
		found = f.common;
	bool patient = p->leg == COGNITORA__V1__LEG__LEG_DECODE && found < p->n;
	if ((patient || block_tokens(p) * (double)(p->n - found) >= m->min_tokens) &&
		slotmgr_kvclient(m) != NULL)
		p->lookup = slot_lookup_start(m, p->chain, p->n, found, patient, p->tenant,
			on_placement_lookup, p);
	if (p->lookup != NULL)
		slot_placement_move(p, PLACEMENT_LOOKUP);
	else
		placement_restore_from_store(p);
}

/* ---- a slot ---- */

static void on_slot_saved(void *user)
{
	struct slot_placement *p = user;
	p->save = NULL;
	slots_move(placement_manager(p)->slots, p->slot);
	placement_fill(p);
}

static void placement_prepare(struct slot_placement *p, uint32_t slot, cgn_nsec timeout)
{
	p->slot = slot;
	cgn_list_drop(&p->link);
	cgn_list_push(&p->mgr->preparing, &p->link);
	cgn_timer_set(&p->timeout, timeout);
}

/* Wait for the slot that holds more of the prompt than the idle slots do, |common| blocks, while a save moves it: for
 * no longer than computing the difference takes. False: there is no such slot. */
static bool placement_await(struct slot_placement *p, uint32_t common)
{
	struct slotmgr *m = placement_manager(p);
	size_t most = common;
	uint32_t slot = SLOTS_NONE;
	for (uint32_t i = 0; p->at.caches && i < slots_count(m->slots); i++) {
		size_t n = slots_at(m->slots, i).use == SLOT_MOVING
			? slots_common(m->slots, i, p->chain, p->n)
			: 0;
		if (n <= most)
			continue;
		most = n;
		slot = i;
	}
	if (slot == SLOTS_NONE)
		return false;
	uint32_t spared = (uint32_t)(block_tokens(p) * (double)(most - common));
	if (!slots_await_pays(&m->pace, slots_at(m->slots, slot).tokens, spared) ||
		(p->save = slot_save_await(m, slot, on_slot_saved, p)) == NULL)
		return false;
	double spared_ms = spared * m->pace.prefill_ms;
	bool sooner = spared_ms > 0 && spared_ms < (double)m->restore_timeout / CGN_MSEC;
	placement_prepare(p, slot, sooner ? (cgn_nsec)(spared_ms * CGN_MSEC) : m->restore_timeout);
	slot_placement_move(p, PLACEMENT_AWAITING);
	return true;
}

/* False: no slot is idle. */
static bool placement_take_idle(struct slot_placement *p, struct slots_pick pick)
{
	struct slotmgr *m = placement_manager(p);
	if (pick.slot == SLOTS_NONE)
		return false;
	struct slot_view v = slots_at(m->slots, pick.slot);
	placement_prepare(p, pick.slot, m->restore_timeout);
	if (pick.takes && !slot_save_runs(m, pick.slot) && slots_save_pays(&m->pace, &v, m->min_tokens))
		p->save = slot_save_start(m, p->slot, on_slot_saved, NULL, p);
	if (p->save != NULL) {
		slot_placement_move(p, PLACEMENT_SAVING);
		return true;
	}
	slots_move(m->slots, p->slot);
	placement_fill(p);
	return true;
}

/* False: no slot is idle, and none that the request would await. */
static bool placement_take_slot(struct slot_placement *p)
{
	struct slots_pick pick = slots_choose(placement_manager(p)->slots, p->chain, p->n, cgn_clock_now());
	return placement_await(p, pick.common) || placement_take_idle(p, pick);
}

static void placement_wait(struct slot_placement *p)
{
	struct slotmgr *m = placement_manager(p);
	slot_placement_move(p, PLACEMENT_WAITING);
	cgn_list_push(&m->waiting, &p->link);
	cgn_timer_set(&p->timeout, m->restore_timeout);
}

/* The save takes longer than the request may wait for it. */
static void placement_give_up_waiting(struct slot_placement *p)
{
	struct slotmgr *m = placement_manager(p);
	slot_placement_detach(p);
	if (!cgn_list_empty(&m->waiting) ||
		!placement_take_idle(p, slots_choose(m->slots, p->chain, p->n, cgn_clock_now())))
		placement_wait(p);
}

void slotmgr_place(struct slotmgr *m, struct slot_placement *p)
{
	p->slot = SLOTS_NONE;
	if (m == NULL || m->slots == NULL || !p->at.placeable) {
		/* A request without a chain has no prompt: it asks for tokens or models. */
		if (m != NULL && p->n > 0)
			slotmgr_count_outcome(m,
				m->slots != NULL ? RESTORE_SKIPPED_UNPLACEABLE : RESTORE_SKIPPED_OFF);
		p->go(p);
		return;
	}
	p->n = p->at.adapts ? 0 : p->n;   /* A state with the client's own adapters has no key */
	p->outcome = RESTORE_SKIPPED_OFF; /* Counted if the manager stops before the request's turn */
	p->mgr = m;
	p->epoch = m->epoch;
	p->began = cgn_clock_now();
	cgn_list_init(&p->link);
	cgn_timer_init(&p->timeout, m->loop, on_placement_timeout);
	if (cgn_list_empty(&m->waiting) && placement_take_slot(p))
		return;
	placement_wait(p);
}

void slotmgr_slot_idle(struct slotmgr *m, uint32_t slot)
{
	m->idle_since[slot] = cgn_clock_now();
	struct cgn_link *l;
	/* A request that takes another slot, or awaits one, leaves this one to the next. */
	while ((l = cgn_list_first(&m->waiting)) != NULL)
		if (!placement_take_slot(CGN_CONTAINER(l, struct slot_placement, link)))
			return;
	if (m->idle_timer.at == 0)
		cgn_timer_set(&m->idle_timer, m->idle_timeout);
}

void slotmgr_release_all(struct slotmgr *m)
{
	struct cgn_link *const lists[] = {&m->waiting, &m->preparing};
	for (size_t i = 0; i < CGN_COUNT(lists); i++)
		for (struct cgn_link *l; (l = cgn_list_first(lists[i])) != NULL;)
			placement_send_unplaced(CGN_CONTAINER(l, struct slot_placement, link));
}
