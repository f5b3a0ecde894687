/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/slots/slots.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_TAG 0x51075001U

struct slot {
	enum slot_use use;
	uint64_t *chain;
	size_t n, cap;
	uint32_t prompt, tokens, saved;
	uint64_t used_at;
	cgn_nsec kept_until;
};

struct slots {
	uint32_t tag;
	size_t n;
	uint64_t uses;
	slots_changed held;
	void *user;
	struct slot slot[];
};

static struct slot *slot_at(struct slots *s, uint32_t i)
{
	CGN_LIVE(s, SLOTS_TAG);
	CGN_MUST(i < s->n);
	return &s->slot[i];
}

static size_t slot_common(const struct slot *t, const uint64_t *chain, size_t n)
{
	size_t i = 0;
	while (i < t->n && i < n && t->chain[i] == chain[i])
		i++;
	return i;
}

struct slots *slots_new(size_t n, slots_changed held, void *user)
{
	CGN_MUST(n >= 1 && n <= SLOTS_MAX);
	struct slots *s = cgn_zeroed(1, sizeof *s + n * sizeof s->slot[0], CGN_HERE);
	s->tag = SLOTS_TAG;
	s->n = n;
	s->held = held;
	s->user = user;
	return s;
}

void slots_free(struct slots **take)
{
	struct slots *s = CGN_TAKE_LIVE(take, SLOTS_TAG);
	if (s == NULL)
		return;
	for (size_t i = 0; i < s->n; i++)
		free(s->slot[i].chain);
	s->tag = 0;
	free(s);
}

size_t slots_count(const struct slots *s)
{
	CGN_LIVE(s, SLOTS_TAG);
	return s->n;
}

struct slot_view slots_at(const struct slots *s, uint32_t slot)
{
	CGN_LIVE(s, SLOTS_TAG);
	CGN_MUST(slot < s->n);
	const struct slot *t = &s->slot[slot];
	return (struct slot_view){.use = t->use,
		.chain = t->chain,
		.n = t->n,
		.tokens = t->tokens,
		.prompt = t->prompt,
		.saved = t->saved,
		.used_at = t->used_at,
		.kept_until = t->kept_until};
}

/* ---- choosing ---- */

static bool slot_is_saved(const struct slot *t)
{
	return t->tokens > 0 && t->saved >= t->tokens;
}

/* Return the share of the slots that were used no later than this slot. */
static double slot_recency(const struct slots *s, const struct slot *t)
{
	size_t older = 0;
	for (size_t i = 0; i < s->n; i++)
		older += s->slot[i].used_at <= t->used_at;
	return (double)older / (double)s->n;
}

struct slots_pick slots_choose(const struct slots *s, const uint64_t *chain, size_t n, cgn_nsec now)
{
	struct slots_pick best = {.slot = SLOTS_NONE};
	double least = 0;
	CGN_LIVE(s, SLOTS_TAG);
	for (size_t i = 0; i < s->n; i++) {
		const struct slot *t = &s->slot[i];
		if (t->use != SLOT_IDLE)
			continue;
		size_t common = slot_common(t, chain, n), lost = t->n - common;
		/* A prompt shorter than a block, or content that is not known, counts as half a block. */
		double recency = t->kept_until > now ? 1 : slot_recency(s, t);
		double weight = recency * (slot_is_saved(t) ? 0.25 : 1);
		double cost = (double)(n - common) + ((double)lost + (t->used_at > 0 ? 0.5 : 0)) * weight;
		if (best.slot != SLOTS_NONE && cost >= least)
			continue;
		least = cost;
		best = (struct slots_pick){.slot = (uint32_t)i,
			.common = (uint32_t)common,
			.takes = lost > 0};
	}
	return best;
}

size_t slots_common(const struct slots *s, uint32_t slot, const uint64_t *chain, size_t n)
{
	CGN_LIVE(s, SLOTS_TAG);
	CGN_MUST(slot < s->n);
	return slot_common(&s->slot[slot], chain, n);
}

void slots_keep(struct slots *s, uint32_t slot, cgn_nsec until)
{
	slot_at(s, slot)->kept_until = until;
}

/* ---- changes of a slot ---- */

static void slots_report(struct slots *s, uint64_t digest, bool held)
{
	if (s->held != NULL)
		s->held(s->user, digest, held);
}

static void slot_cut(struct slots *s, struct slot *t, size_t n)
{
	while (t->n > n)
		slots_report(s, t->chain[--t->n], false);
}

static void slot_reserve(struct slot *t, size_t n)
{
	if (n <= t->cap)
		return;
	t->chain = CGN_GROWN(t->chain, n);
	t->cap = n;
}

static void slot_hold(struct slots *s, struct slot *t, const uint64_t *chain, size_t n)
{
	slot_cut(s, t, slot_common(t, chain, n));
	n = n < SLOTS_MAX_CHAIN ? n : SLOTS_MAX_CHAIN;
	slot_reserve(t, n);
	while (t->n < n) {
		t->chain[t->n] = chain[t->n];
		slots_report(s, t->chain[t->n++], true);
	}
}

void slots_begin(struct slots *s, uint32_t slot, size_t common)
{
	struct slot *t = slot_at(s, slot);
	CGN_MUST(t->use == SLOT_IDLE && common <= t->n);
	t->use = SLOT_BUSY;
	t->kept_until = 0;
	t->used_at = ++s->uses;
	slot_cut(s, t, common);
}

void slots_prefilled(struct slots *s, uint32_t slot, const uint64_t *chain, size_t n)
{
	struct slot *t = slot_at(s, slot);
	CGN_MUST(t->use == SLOT_BUSY);
	slot_hold(s, t, chain, n);
}

void slots_end(struct slots *s, uint32_t slot, uint32_t prompt, uint32_t tokens, uint32_t cached)
{
	struct slot *t = slot_at(s, slot);
	CGN_MUST(t->use == SLOT_BUSY);
	t->use = SLOT_IDLE;
	t->used_at = ++s->uses;
	t->prompt = prompt;
	t->tokens = tokens;
	t->saved = t->saved < cached ? t->saved : cached;
}

void slots_move(struct slots *s, uint32_t slot)
{
	struct slot *t = slot_at(s, slot);
	CGN_MUST(t->use == SLOT_IDLE);
	t->use = SLOT_MOVING;
}

void slots_moved(struct slots *s, uint32_t slot)
{
	struct slot *t = slot_at(s, slot);
	CGN_MUST(t->use == SLOT_MOVING);
	t->use = SLOT_IDLE;
}

void slots_stored(struct slots *s, uint32_t slot, uint64_t used_at, uint32_t tokens)
{
	struct slot *t = slot_at(s, slot);
	if (t->used_at == used_at)
		t->tokens = t->saved = tokens;
}

void slots_counted(struct slots *s, uint32_t slot, uint32_t tokens)
{
	struct slot *t = slot_at(s, slot);
	if (t->use == SLOT_IDLE && t->tokens == 0 && t->n > 0)
		t->tokens = tokens;
}

void slots_restored(struct slots *s, uint32_t slot, const uint64_t *chain, size_t n, uint32_t prompt,
	uint32_t tokens)
{
	struct slot *t = slot_at(s, slot);
	CGN_MUST(t->use == SLOT_MOVING);
	t->use = SLOT_IDLE;
	t->used_at = ++s->uses;
	slot_hold(s, t, chain, n);
	t->prompt = prompt;
	t->tokens = t->saved = tokens;
}

void slots_forget(struct slots *s, uint32_t slot)
{
	struct slot *t = slot_at(s, slot);
	slot_cut(s, t, 0);
	t->prompt = t->tokens = t->saved = 0;
	t->kept_until = 0;
}

void slots_forget_all(struct slots *s)
{
	CGN_LIVE(s, SLOTS_TAG);
	for (uint32_t i = 0; i < s->n; i++) {
		slots_forget(s, i);
		s->slot[i].use = SLOT_IDLE;
		s->slot[i].used_at = 0;
	}
}

/* ---- cost and benefit ---- */

#define LEARN    0.3 /* Weight of a new measurement */
#define FIXED_MS 2.0 /* Fixed cost of a restore: asking the store, a file, a request to the engine */

void slots_pace_learn(double *pace, double ms, double amount, double least)
{
	if (!(ms >= 0) || !(amount >= least) || !(amount > 0))
		return;
	double now = ms / amount;
	*pace = *pace > 0 ? *pace + LEARN * (now - *pace) : now;
}

double slots_restore_ms(const struct slots_pace *p, uint64_t bytes, enum slots_from from)
{
	return FIXED_MS + (double)bytes / SLOTS_MIB * (p->fetch_ms[from] + p->load_ms);
}

bool slots_restore_pays(const struct slots_pace *p, uint32_t tokens, uint32_t least, uint64_t bytes,
	enum slots_from from)
{
	if (tokens == 0 || tokens < least)
		return false;
	return !(p->prefill_ms > 0) || (double)tokens * p->prefill_ms > slots_restore_ms(p, bytes, from);
}

static bool slots_save_is_measured(const struct slots_pace *p)
{
	return p->prefill_ms > 0 && p->save_ms > 0;
}

static double slots_save_ms(const struct slots_pace *p, uint32_t tokens)
{
	return tokens * p->token_bytes / SLOTS_MIB * p->save_ms;
}

bool slots_save_pays(const struct slots_pace *p, const struct slot_view *v, uint32_t least)
{
	if (v->use != SLOT_IDLE || v->n == 0 || v->tokens <= v->saved || v->tokens - v->saved < least)
		return false;
	return !slots_save_is_measured(p) || slots_save_ms(p, v->tokens) < v->tokens * p->prefill_ms / 4;
}

bool slots_await_pays(const struct slots_pace *p, uint32_t held, uint32_t spared)
{
	return spared > 0 && (!slots_save_is_measured(p) || slots_save_ms(p, held) < spared * p->prefill_ms);
}
