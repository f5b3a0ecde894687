/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/swap/swap.h"

#include <string.h>

struct plan {
	const struct swap_rules *rules;
	const struct swap_model *models;
	size_t n;
	cgn_nsec now;
	struct swap_orders *out;
	bool there[SWAP_MAX]; /* Uses memory after the orders so far. */
};

static uint64_t bit_of(size_t i)
{
	return (uint64_t)1 << i;
}

static void wake_by(struct plan *p, cgn_nsec at)
{
	if (at > p->now && at < p->out->wake_at)
		p->out->wake_at = at;
}

/* ---- room ---- */

/* Return true if |extra| more fits beside the models of |there|. */
static bool is_room_for(const struct plan *p, size_t extra, const bool there[SWAP_MAX])
{
	uint64_t bytes = p->models[extra].bytes;
	uint32_t others = 0;
	for (size_t i = 0; i < p->n; i++) {
		if (!there[i] || i == extra)
			continue;
		others++;
		bytes += p->models[i].bytes;
	}
	bool counted = p->rules->max_loaded == 0 || others < p->rules->max_loaded;
	return counted && (others == 0 || p->rules->memory == 0 || bytes <= p->rules->memory);
}

/* ---- leaving ---- */

static bool is_idle(const struct swap_model *m)
{
	return m->running == 0 && m->waiting == 0;
}

static cgn_nsec linger_of(const struct plan *p, const struct swap_model *m)
{
	cgn_nsec linger = m->load_time / 4;
	linger = linger < SWAP_LINGER_LEAST ? SWAP_LINGER_LEAST : linger;
	linger = linger > SWAP_LINGER_MOST ? SWAP_LINGER_MOST : linger;
	return linger < p->rules->residence ? linger : p->rules->residence;
}

static cgn_nsec starves_at(const struct plan *p, const struct swap_model *m)
{
	return m->waits_since + SWAP_STARVES * p->rules->residence;
}

/* Return the instant from which |m| may leave although it is in use. */
static cgn_nsec in_use_leaves_at(const struct plan *p, const struct swap_model *m,
	const struct swap_model *for_whom)
{
	cgn_nsec resided = m->loaded_at + p->rules->residence, starved = starves_at(p, for_whom);
	if (for_whom->priority > m->priority)
		return p->now;
	return for_whom->priority == m->priority || starved < resided ? resided : starved;
}

/* Return the instant from which |m| may leave for |for_whom|; SWAP_NEVER: time alone does not bring it. */
static cgn_nsec leaves_at(const struct plan *p, const struct swap_model *m, const struct swap_model *for_whom)
{
	if (m->state == SWAP_LOADING)
		return is_idle(m) ? p->now : SWAP_NEVER;
	if (m->state != SWAP_IN)
		return SWAP_NEVER;
	/* A held model, whose time is over, does not linger when its last request has ended. */
	cgn_nsec last = m->used_at > m->loaded_at ? m->used_at : m->loaded_at,
		 idle = is_idle(m) ? last + linger_of(p, m) : SWAP_NEVER,
		 used = in_use_leaves_at(p, m, for_whom);
	return is_idle(m) && (!m->held || idle < used) ? idle : used;
}

/* Return true if |a| leaves rather than |b|. */
static bool leaves_before(const struct swap_model *a, const struct swap_model *b)
{
	if (is_idle(a) != is_idle(b))
		return is_idle(a);
	if (a->priority != b->priority)
		return a->priority < b->priority;
	return a->used_at < b->used_at;
}

/* Return the next model to leave of those in |may|; p->n: there is none. */
static size_t leaver_next(const struct plan *p, const bool may[SWAP_MAX])
{
	size_t best = p->n;
	for (size_t i = 0; i < p->n; i++)
		if (may[i] && (best == p->n || leaves_before(&p->models[i], &p->models[best])))
			best = i;
	return best;
}

/* Choose the models that leave for |target|, in |gone|. False: they would not make enough room. */
static bool leavers_choose(const struct plan *p, size_t target, bool may[SWAP_MAX], bool gone[SWAP_MAX])
{
	bool there[SWAP_MAX];
	memcpy(there, p->there, sizeof there);
	for (size_t i; !is_room_for(p, target, there); there[i] = may[i] = false, gone[i] = true)
		if ((i = leaver_next(p, may)) == p->n)
			return false;
	for (size_t i = 0; i < p->n; i++) { /* A large one may have made room enough alone. */
		there[i] = there[i] || gone[i];
		gone[i] = gone[i] && !is_room_for(p, target, there);
		there[i] = there[i] && !gone[i];
	}
	return true;
}

static void leaver_order(struct plan *p, size_t i)
{
	if (p->models[i].running == 0)
		p->out->unload |= bit_of(i);
	else
		p->out->hold |= bit_of(i);
}

/* Make room for |target|. False: it has to wait for time or for streams. */
static void room_make(struct plan *p, size_t target)
{
	bool may[SWAP_MAX] = {false}, gone[SWAP_MAX] = {false};
	for (size_t i = 0; i < p->n; i++) {
		cgn_nsec at = p->there[i] && i != target ? leaves_at(p, &p->models[i], &p->models[target])
							 : SWAP_NEVER;
		may[i] = at <= p->now;
		wake_by(p, at);
	}
	/* Models that leave already may make the room. */
	bool there[SWAP_MAX];
	memcpy(there, p->there, sizeof there);
	for (size_t i = 0; i < p->n; i++)
		there[i] = there[i] && p->models[i].state != SWAP_LEAVING;
	if (is_room_for(p, target, there) || !leavers_choose(p, target, may, gone))
		return;
	for (size_t i = 0; i < p->n; i++)
		if (gone[i])
			leaver_order(p, i);
}

/* ---- the order of waiting models ---- */

static bool is_wanted(const struct swap_model *m)
{
	return m->state == SWAP_OUT && m->waiting > 0 && !m->barred;
}

static bool comes_before(const struct plan *p, const struct swap_model *a, const struct swap_model *b)
{
	bool starves_a = starves_at(p, a) <= p->now, starves_b = starves_at(p, b) <= p->now;
	if (starves_a != starves_b)
		return starves_a;
	if (!starves_a && a->priority != b->priority)
		return a->priority > b->priority;
	return a->waits_since < b->waits_since;
}

static size_t wanted_next(const struct plan *p, const bool taken[SWAP_MAX])
{
	size_t best = p->n;
	for (size_t i = 0; i < p->n; i++)
		if (is_wanted(&p->models[i]) && !taken[i] &&
			(best == p->n || comes_before(p, &p->models[i], &p->models[best])))
			best = i;
	return best;
}

static void wanted_serve(struct plan *p)
{
	bool taken[SWAP_MAX] = {false};
	for (size_t i; (i = wanted_next(p, taken)) < p->n;) {
		taken[i] = true;
		if (!is_room_for(p, i, p->there)) {
			wake_by(p, starves_at(p, &p->models[i]));
			room_make(p, i);
			return;
		}
		p->out->load |= bit_of(i);
		p->there[i] = true;
	}
}

static void expired_drop(struct plan *p)
{
	for (size_t i = 0; i < p->n; i++) {
		const struct swap_model *m = &p->models[i];
		if (m->state != SWAP_IN || !is_idle(m) || m->expires_at == SWAP_NEVER)
			continue;
		if (m->expires_at <= p->now)
			p->out->unload |= bit_of(i);
		else
			wake_by(p, m->expires_at);
	}
}

void swap_decide(const struct swap_rules *rules, const struct swap_model *models, size_t n, cgn_nsec now,
	struct swap_orders *out)
{
	struct plan p = {.rules = rules, .models = models, .n = n, .now = now, .out = out};
	CGN_MUST(n <= SWAP_MAX);
	*out = (struct swap_orders){.wake_at = SWAP_NEVER};
	for (size_t i = 0; i < n; i++)
		p.there[i] = models[i].state != SWAP_OUT;
	wanted_serve(&p);
	expired_drop(&p);
}

/* ---- forecasts ---- */

static cgn_nsec load_left(const struct swap_model *m, cgn_nsec now)
{
	cgn_nsec passed = cgn_since(now, m->loaded_at);
	return m->load_time > passed ? m->load_time - passed : 0;
}

cgn_nsec swap_forecast(const struct swap_rules *rules, const struct swap_model *models, size_t n, size_t i,
	cgn_nsec now)
{
	struct plan p = {.rules = rules, .models = models, .n = n, .now = now};
	const struct swap_model *m = &models[i];
	if (m->state == SWAP_LOADING)
		return load_left(m, now);
	cgn_nsec sum = m->load_time;
	for (size_t k = 0; k < n; k++)
		p.there[k] = models[k].state != SWAP_OUT;
	if (is_room_for(&p, i, p.there))
		return sum;
	for (size_t k = 0; k < n; k++)
		if (k != i && is_wanted(&models[k]))
			sum += models[k].load_time + rules->residence;
	return sum + rules->residence;
}
