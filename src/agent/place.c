/* SPDX-License-Identifier: Apache-2.0 */
/* place: a request on its way to a slot. It gets one, or waits for one; what lies there is saved first if it
 * is lost else; what is missing is brought if somebody has it; then it goes. Whatever of this takes too long
 * or fails, it goes without. */
#include "agent/slotmgr.h"
#include "base/log/log.h"

#define LEARN_LEAST 32.0 /* tokens of a prompt whose time says something */

static struct keep *placement_manager(const struct slot_placement *p)
{
	CGN_LIVE(p->keep, SLOTMGR_TAG);
	return p->keep;
}

static bool is_of_now(const struct slot_placement *p)
{
	return p->keep->slots != NULL && p->epoch == p->keep->epoch;
}

/* Nothing is done for it any more; what was begun ends by itself. */
static void detach(struct slot_placement *p)
{
	cgn_timer_cancel(&p->deadline);
	cgn_list_drop(&p->link);
	save_leave(&p->save);
	restore_leave(&p->restore);
	lookup_cancel(&p->look);
}

/* ---- why it was computed ---- */

const char *restore_outcome_text(enum restore_outcome how)
{
	static const char *const names[RESTORE_OUTCOMES] = {[RESTORE_NOT_NEEDED] = "held",
		[RESTORE_FROM_RAM] = "ram",
		[RESTORE_FROM_SSD] = "ssd",
		[RESTORE_FROM_PEER] = "peer",
		[RESTORE_NO_STATE] = "none",
		[RESTORE_SKIPPED_SHORT] = "short",
		[RESTORE_SKIPPED_SLOWER] = "slower",
		[RESTORE_SKIPPED_REFUSED] = "refused",
		[RESTORE_FAILED_STATE_GONE] = "gone",
		[RESTORE_FAILED_ENGINE] = "engine",
		[RESTORE_FAILED_TIMEOUT] = "late",
		[RESTORE_FAILED_STORAGE] = "failed",
		[RESTORE_SKIPPED_PAUSED] = "paused",
		[RESTORE_SKIPPED_BY_CLIENT] = "alone",
		[RESTORE_SKIPPED_UNPLACEABLE] = "astray",
		[RESTORE_SKIPPED_OFF] = "off"};
	return names[how];
}

static void count_how(struct keep *k, enum restore_outcome how)
{
	k->hows[how]++;
	metric_add(METRIC_OF(k->e->agent->telemetry, SLOT_PROMPTS, k->e->name, restore_outcome_text(how)), 1);
}

enum restore_outcome slotmgr_worth(const struct keep *k, uint32_t tokens, uint64_t bytes,
	enum slots_from from)
{
	if (tokens < k->least_tokens)
		return RESTORE_SKIPPED_SHORT;
	return slots_restore_pays(&k->pace, tokens, k->least_tokens, bytes, from) ? RESTORE_NO_STATE
										  : RESTORE_SKIPPED_SLOWER;
}

/* One line for a prompt that was computed, all or much of it: where is what was known of its beginning? */
static void tell_computed(const struct slot_placement *p, const struct usage_timings *t)
{
	const struct keep *k = p->keep;
	if (t->prompt_n >= k->least_tokens)
		cgn_log(INFO, "slot.prompt", F_STR("request", p->id), F_STR("engine", k->e->name),
			F_U64("slot", p->slot), F_STR("prefix", restore_outcome_text(p->how)),
			F_U64("computed_tokens", t->prompt_n), F_U64("cached_tokens", t->cache_n),
			F_DUR("took", (cgn_nsec)(t->prompt_ms * 1e6)));
}

/* ---- off it goes ---- */

/* As it came. The engine chooses the slot, and what that holds is found out. */
static void go_astray(struct slot_placement *p)
{
	cgn_log(INFO, "slot.astray", F_STR("request", p->id), F_STR("engine", p->keep->e->name),
		F_STR("why", restore_outcome_text(p->how)), F_DUR("waited", cgn_clock_now() - p->began));
	count_how(p->keep, p->how);
	detach(p);
	p->slot = SLOTS_NONE;
	p->keep = NULL;
	p->go(p);
}

static void go(struct slot_placement *p)
{
	struct keep *k = placement_manager(p);
	struct slot_view v = slots_at(k->slots, p->slot);
	size_t common = 0;
	count_how(k, p->how);
	detach(p);
	while (p->at.caches && common < v.n && common < p->n && v.chain[common] == p->chain[common])
		common++;
	slots_begin(k->slots, p->slot, common);
	k->task[p->slot] = -1;
	p->busy = true;
	p->go(p);
}

/* ---- what is missing ---- */

static bool computes(const struct keep *k)
{
	for (uint32_t i = 0; i < slots_count(k->slots); i++)
		if (slots_at(k->slots, i).use == SLOT_BUSY)
			return true;
	return false;
}

/* A slot that something still moves into is not its own any more; nor does it wait for one when the engine is
 * busy with nothing but that. */
static void on_deadline(struct cgn_timer *t)
{
	struct slot_placement *p = CGN_CONTAINER(t, struct slot_placement, deadline);
	struct keep *k = placement_manager(p);
	if (p->slot == SLOTS_NONE && computes(k)) { /* it waits for its turn, as it would in the engine */
		cgn_timer_set(t, k->timeout);
		return;
	}
	p->how = RESTORE_FAILED_TIMEOUT;
	if (p->slot == SLOTS_NONE) {
		go_astray(p);
		return;
	}
	metric_add(METRIC_OF(k->e->agent->telemetry, SLOT_RESTORES, k->e->name, "late"), 1);
	k->restore_failures++;
	if (p->save != NULL || p->restore != NULL) {
		go_astray(p);
		return;
	}
	slots_moved(k->slots, p->slot);
	go(p);
}

static void on_restored(void *user, const struct restore_result *r)
{
	struct slot_placement *p = user;
	p->restore = NULL;
	p->restored = r->ok;
	p->how = r->how;
	p->restore_ms = r->ms;
	go(p);
}

/* The slot is moving. */
static void restore(struct slot_placement *p, const struct slot_entry *c, enum slots_from from)
{
	struct keep *k = placement_manager(p);
	p->state = slot_entry_id(c);
	p->sum = c->sums[0];
	p->restore = restore_start(k, p->slot, c, from, on_restored, p);
	if (p->restore != NULL)
		return;
	p->how = RESTORE_FAILED_STORAGE;
	slots_moved(k->slots, p->slot);
	go(p);
}

static double block_tokens(const struct slot_placement *p)
{
	const struct keep *k = p->keep;
	if (p->block_tokens > 0)
		return p->block_tokens;
	return k->block_tokens > 0 ? k->block_tokens : (double)k->e->block_bytes / ENGINE_TOKEN_BYTES;
}

static size_t common_of(const struct slot_placement *p)
{
	struct slot_view v = slots_at(p->keep->slots, p->slot);
	size_t i = 0;
	while (i < v.n && i < p->n && v.chain[i] == p->chain[i])
		i++;
	return i;
}

/* What the node's own store has, if that is worth it; else |*how| says more, if there is more to say. */
static bool find_here(const struct slot_placement *p, size_t common, struct slot_directory_find *f,
	enum restore_outcome *how)
{
	const struct keep *k = p->keep;
	*f = slot_directory_find(k->slot_directory, p->chain, p->n);
	if (f->common <= common)
		return false;
	double block = (double)f->slot_entry.prompt / (double)f->slot_entry.n;
	enum restore_outcome worth = slotmgr_refuses(k, &f->slot_entry)
		? RESTORE_SKIPPED_REFUSED
		: slotmgr_worth(k, (uint32_t)(block * (double)(f->common - common)),
			  slot_entry_bytes(&f->slot_entry),
			  f->tier == BLOCK_RAM ? SLOTS_FROM_RAM : SLOTS_FROM_SSD);
	*how = worth != RESTORE_NO_STATE ? worth : *how;
	return worth == RESTORE_NO_STATE;
}

static void bring_from_here(struct slot_placement *p)
{
	struct keep *k = placement_manager(p);
	struct slot_directory_find f;
	if (find_here(p, common_of(p), &f, &p->how)) {
		restore(p, &f.slot_entry, f.tier == BLOCK_RAM ? SLOTS_FROM_RAM : SLOTS_FROM_SSD);
		return;
	}
	slots_moved(k->slots, p->slot);
	go(p);
}

static void on_look(void *user, const struct slot_entry *c, enum restore_outcome how)
{
	struct slot_placement *p = user;
	p->look = NULL;
	p->how = how;
	if (c != NULL)
		restore(p, c, SLOTS_FROM_PEER);
	else
		bring_from_here(p);
}

/* The slot is moving. */
static void bring(struct slot_placement *p)
{
	struct keep *k = placement_manager(p);
	struct slot_directory_find f;
	size_t had = common_of(p), have = had;
	p->had = block_tokens(p) * (double)had;
	p->how = !p->at.caches || p->at.adapts                             ? RESTORE_SKIPPED_BY_CLIENT
		: block_tokens(p) * (double)(p->n - had) < k->least_tokens ? RESTORE_NOT_NEEDED
		: slotmgr_is_paused(k)                                     ? RESTORE_SKIPPED_PAUSED
									   : RESTORE_NO_STATE;
	if (!p->at.caches || had == p->n || p->how == RESTORE_SKIPPED_PAUSED) {
		slots_moved(k->slots, p->slot);
		go(p);
		return;
	}
	if (find_here(p, had, &f, &p->how))
		have = f.common;
	bool patient = p->leg == COGNITORA__V1__LEG__LEG_DECODE && have < p->n;
	if ((patient || block_tokens(p) * (double)(p->n - have) >= k->least_tokens) &&
		slotmgr_kvclient(k) != NULL)
		p->look = lookup_start(k, p->chain, p->n, have, patient, on_look, p);
	if (p->look == NULL)
		bring_from_here(p);
}

/* ---- a slot ---- */

static void on_saved(void *user)
{
	struct slot_placement *p = user;
	struct keep *k = placement_manager(p);
	p->save = NULL;
	slots_move(k->slots, p->slot);
	bring(p);
}

static bool take_slot(struct slot_placement *p)
{
	struct keep *k = placement_manager(p);
	struct slots_pick pick = slots_choose(k->slots, p->chain, p->n);
	if (pick.slot == SLOTS_NONE)
		return false;
	struct slot_view v = slots_at(k->slots, pick.slot);
	p->slot = pick.slot;
	cgn_list_drop(&p->link);
	cgn_list_push(&k->preparing, &p->link);
	cgn_timer_set(&p->deadline, k->timeout);
	if (pick.takes && slots_save_pays(&k->pace, &v, k->least_tokens))
		p->save = save_start(k, p->slot, on_saved, NULL, p);
	if (p->save != NULL)
		return true;
	slots_move(k->slots, p->slot);
	bring(p);
	return true;
}

void slotmgr_place(struct engine *e, struct slot_placement *p)
{
	struct keep *k = e->keep;
	p->slot = SLOTS_NONE;
	if (k != NULL && k->slots != NULL)
		p->at = slot_body_read(p->path, p->body);
	if (!p->at.placeable) {
		if (k != NULL && p->n > 0) /* a prompt, and not what only asks for its tokens */
			count_how(k, k->slots != NULL ? RESTORE_SKIPPED_UNPLACEABLE : RESTORE_SKIPPED_OFF);
		p->go(p);
		return;
	}
	p->n = p->at.adapts ? 0 : p->n; /* what it computes has no name */
	p->how = RESTORE_SKIPPED_OFF;   /* if slots are not kept any more before its turn comes */
	p->keep = k;
	p->epoch = k->epoch;
	p->began = cgn_clock_now();
	cgn_list_init(&p->link);
	cgn_timer_init(&p->deadline, e->agent->loop, on_deadline);
	if (cgn_list_empty(&k->waiting) && take_slot(p))
		return;
	cgn_list_push(&k->waiting, &p->link);
	cgn_timer_set(&p->deadline, k->timeout);
}

void slotmgr_slot_idle(struct keep *k, uint32_t slot)
{
	k->idle_since[slot] = cgn_clock_now();
	struct cgn_link *l = cgn_list_first(&k->waiting);
	if (l != NULL)
		(void)take_slot(CGN_CONTAINER(l, struct slot_placement, link));
	else if (k->idle_timer.at == 0)
		cgn_timer_set(&k->idle_timer, k->idle);
}

void slotmgr_release_all(struct keep *k)
{
	struct cgn_link *const lists[] = {&k->waiting, &k->preparing};
	for (size_t i = 0; i < CGN_COUNT(lists); i++)
		for (struct cgn_link *l; (l = cgn_list_first(lists[i])) != NULL;)
			go_astray(CGN_CONTAINER(l, struct slot_placement, link));
}

/* ---- in the slot ---- */

void slotmgr_prefilled(struct slot_placement *p)
{
	if (p->keep != NULL && p->busy && is_of_now(p))
		slots_prefilled(p->keep->slots, p->slot, p->chain, p->n);
}

static void learn(struct slot_placement *p, const struct usage_timings *t)
{
	struct keep *k = placement_manager(p);
	slots_pace_learn(&k->pace.prefill_ms, t->prompt_ms, (double)t->prompt_n, LEARN_LEAST);
	if (p->n > 0)
		slots_pace_learn(&k->block_tokens, (double)(t->cache_n + t->prompt_n), (double)p->n, 1);
	tell_computed(p, t);
	double more = (double)t->cache_n - p->had;
	/* not what its card says, or the engine does not use what it restores */
	if (p->restored && more <= 0) {
		slotmgr_refuse(k, p->state, p->sum);
		slotmgr_trouble(k, "a state was restored in vain",
			"the engine found nothing of the prompt in it");
	}
	if (!p->restored || more <= 0)
		return;
	double spared = more * k->pace.prefill_ms - p->restore_ms;
	k->restored_tokens += (uint64_t)more;
	k->spared_ms += spared > 0 ? spared : 0;
	metric_add(k->m_restored_tokens, (uint64_t)more);
	metric_observe(k->m_spared, spared > 0 ? (cgn_nsec)(spared * 1e6) : 0);
	cgn_log(INFO, "slot.spared", F_STR("engine", k->e->name), F_U64("slot", p->slot),
		F_U64("tokens", (uint64_t)more), F_U64("cached_tokens", t->cache_n),
		F_U64("prompt_tokens", t->cache_n + t->prompt_n),
		F_DUR("restore", (cgn_nsec)(p->restore_ms * 1e6)),
		F_DUR("spared", spared > 0 ? (cgn_nsec)(spared * 1e6) : 0));
}

/* Of an answer that came whole: what is in the slot now. The last token was given away and not taken in. */
static void count(struct slot_placement *p, struct cgn_str tail)
{
	struct keep *k = placement_manager(p);
	struct usage_timings t = {0};
	struct usage u = {0};
	uint64_t prompt = 0, cached = 0, answer = 0;
	if (usage_find_timings(tail, &t)) {
		prompt = t.cache_n + t.prompt_n;
		cached = t.cache_n;
		answer = t.predicted_n;
		learn(p, &t);
	} else if (usage_find(tail, &u) && u.has_prompt) {
		prompt = u.prompt_tokens;
		cached = u.cached_tokens;
		answer = u.completion_tokens;
	}
	uint64_t tokens = prompt + (answer > 0 ? answer - 1 : 0);
	slots_end(k->slots, p->slot, (uint32_t)prompt, (uint32_t)tokens, (uint32_t)cached);
}

void slotmgr_answer_end(struct slot_placement *p, struct cgn_str tail)
{
	struct keep *k = p->keep;
	if (k == NULL)
		return;
	CGN_LIVE(k, SLOTMGR_TAG);
	bool now = is_of_now(p), moves = p->save != NULL || p->restore != NULL || p->look != NULL;
	bool looks = p->look != NULL;
	detach(p);
	p->keep = NULL;
	if (!now || p->slot == SLOTS_NONE)
		return;
	if (looks) {
		slots_moved(k->slots, p->slot);
	} else if (moves || !p->busy) {
		return; /* what moves makes it idle */
	} else {
		p->keep = k;
		count(p, tail);
		p->keep = NULL;
	}
	slotmgr_slot_idle(k, p->slot);
}

/* ---- what is idle is saved ---- */

static bool is_due(const struct keep *k, uint32_t slot, cgn_nsec now, cgn_nsec *next)
{
	struct slot_view v = slots_at(k->slots, slot);
	if (v.use != SLOT_IDLE || v.n == 0 || v.tokens <= v.saved || v.tokens - v.saved < k->least_tokens)
		return false;
	cgn_nsec at = k->idle_since[slot] + k->idle;
	if (at > now && (*next == 0 || at < *next))
		*next = at;
	return at <= now;
}

/* One at a time: each of them holds the engine's other slots back for a moment. */
void slotmgr_idle_step(struct keep *k)
{
	cgn_nsec now = cgn_clock_now(), next = 0;
	for (uint32_t i = 0; k->slots != NULL && i < slots_count(k->slots); i++) {
		if (!is_due(k, i, now, &next))
			continue;
		if (k->n_saves == 0 && save_start(k, i, NULL, NULL, NULL) != NULL)
			continue;
		next = now + (k->n_saves > 0 ? 10 * CGN_MSEC : CGN_SEC);
	}
	if (next > 0)
		cgn_timer_set(&k->idle_timer, next > now ? next - now : CGN_MSEC);
}

/* ---- a prompt alone ---- */

bool slotmgr_can_store(const struct engine *e)
{
	return e->keep != NULL && e->keep->slots != NULL && !slotmgr_is_paused(e->keep);
}

static void on_stored(void *user, bool ok)
{
	struct slot_placement *p = user;
	p->save = NULL;
	p->stored(p, ok);
}

void slotmgr_store(struct slot_placement *p, struct cgn_str tail,
	void (*stored)(struct slot_placement *p, bool ok))
{
	struct keep *k = p->keep;
	p->stored = stored;
	if (k == NULL || !is_of_now(p) || !p->busy) {
		stored(p, false);
		return;
	}
	count(p, tail);
	p->busy = false;
	struct slot_view v = slots_at(k->slots, p->slot);
	if (v.n > 0 && v.saved >= v.tokens && v.tokens > 0) { /* the store has it */
		slotmgr_slot_idle(k, p->slot);
		stored(p, true);
		return;
	}
	p->save = save_start(k, p->slot, NULL, on_stored, p);
	if (p->save != NULL)
		return;
	slotmgr_slot_idle(k, p->slot);
	stored(p, false);
}
