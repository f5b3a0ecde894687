/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/plan/plan.h"

void plan_begin(struct plan *p, struct plan_leg *legs, unsigned cap, struct cgn_str model)
{
	CGN_MUST(cap >= PLAN_LEGS(1));
	*p = (struct plan){.legs = legs, .cap = cap, .n = 1};
	p->legs[0] = (struct plan_leg){.model = model, .slot = PLAN_NO_SLOT, .target = {.untried = true}};
}

struct plan_leg *plan_leg(struct plan *p)
{
	CGN_MUST(p->n > 0);
	return &p->legs[p->n - 1];
}

static const struct plan_leg *leg_current(const struct plan *p)
{
	CGN_MUST(p->n > 0);
	return &p->legs[p->n - 1];
}

struct plan_leg plan_prefill_leg(const struct plan *p)
{
	struct plan_leg l = *leg_current(p);
	CGN_MUST(l.state == LEG_PLANNED);
	l.role = LEG_PREFILL;
	l.bytes = LEG_DROP;
	l.then = LEG_LEADS_ON;
	l.target.untried = false;
	return l;
}

void plan_cascade(struct plan *p, const struct cgn_str *models, unsigned n)
{
	struct plan_leg *l = plan_leg(p);
	CGN_MUST(l->state == LEG_PLANNED && n >= 2 && n <= PLAN_TRIALS + 1);
	p->models = models;
	p->n_models = n;
	l->model = models[0];
	l->bytes = LEG_HOLD;
	l->then = LEG_LEADS_ON;
}

/* The leg takes the current one's place: plan_follow makes the answer leg again, as the prefill leg's end has it. */
void plan_prefill_first(struct plan *p, const struct plan_leg *leg)
{
	CGN_MUST(plan_leg(p)->state == LEG_PLANNED && leg->then == LEG_LEADS_ON);
	*plan_leg(p) = *leg;
}

void plan_let_prefill_answer(struct plan *p)
{
	CGN_MUST(plan_leg(p)->state == LEG_PLANNED && plan_leg(p)->role == LEG_WHOLE);
	plan_leg(p)->target.continues = true;
}

void plan_sent(struct plan *p, uint16_t slot, uint32_t held, uint32_t blocks, cgn_nsec now)
{
	struct plan_leg *l = plan_leg(p);
	CGN_MUST(l->state == LEG_PLANNED);
	l->state = LEG_SENT;
	l->slot = slot;
	l->held = held;
	l->blocks = blocks;
	l->sent_at = now;
}

/* Make |l| a leg of the next model. Its nodes may be those of the legs before: they were asked for another model. */
static void leg_step(const struct plan *p, struct plan_leg *l)
{
	l->step++;
	CGN_MUST(l->step < p->n_models);
	l->model = p->models[l->step];
	if (l->step == p->n_models - 1) {
		l->bytes = LEG_SHOW;
		l->then = LEG_ENDS_ANSWER;
	}
}

void plan_skip(struct plan *p)
{
	struct plan_leg *l = plan_leg(p);
	CGN_MUST(l->state == LEG_PLANNED && l->bytes == LEG_HOLD);
	leg_step(p, l);
}

void plan_release(struct plan *p)
{
	struct plan_leg *l = plan_leg(p);
	CGN_MUST(l->state == LEG_SENT && l->bytes == LEG_HOLD);
	l->bytes = LEG_SHOW;
	l->then = LEG_ENDS_ANSWER;
}

static void leg_reset(struct plan_leg *l)
{
	l->state = LEG_PLANNED;
	l->slot = PLAN_NO_SLOT;
	l->node = NULL;
	l->sent_at = l->took = 0;
	l->held = l->blocks = 0;
	l->target.continues = false;
}

void plan_withdraw(struct plan *p)
{
	CGN_MUST(plan_leg(p)->state == LEG_SENT);
	leg_reset(plan_leg(p));
}

void plan_died(struct plan *p)
{
	p->deaths++;
}

void plan_ended(struct plan *p, bool well, cgn_nsec now)
{
	struct plan_leg *l = plan_leg(p);
	CGN_MUST(l->state == LEG_SENT);
	l->state = well ? LEG_SUCCEEDED : LEG_FAILED;
	l->took = cgn_since(now, l->sent_at);
}

/* ---- transitions ---- */

/* A plan has room for PLAN_PREFILLS legs that do not count as attempts: the prefill legs. */
static bool may_attempt(const struct plan *p, const struct plan_rules *rules)
{
	uint32_t n = plan_attempts(p);
	return n < rules->attempts && PLAN_LEGS(n) < p->cap;
}

static bool may_retry(const struct plan *p, const struct plan_rules *rules, enum breaker_failure how)
{
	return how != BREAKER_FAILURES && p->deaths < PLAN_DEATHS && (rules->retry_on & 1U << how) != 0 &&
		may_attempt(p, rules);
}

static const char *retry_reason(const struct leg_outcome *o)
{
	if (o->end == LEG_END_STATUS)
		return o->how == BREAKER_FULL       ? "engine_429"
			: o->how == BREAKER_ERROR   ? "engine_error"
			: o->how == BREAKER_REFUSED ? "engine_refused"
						    : "engine_5xx";
	if (o->how == BREAKER_ERROR)
		return "engine_error";
	if (o->how == BREAKER_FULL)
		return "node_full";
	return o->how == BREAKER_STALL || o->how == BREAKER_TIMEOUT ? breaker_failure_text(o->how) : "failed";
}

/* Another leg like the current one, if the rules allow a retry of |how|; else |otherwise|. */
static void step_retry(const struct plan *p, const struct plan_rules *rules, enum breaker_failure how,
	const char *reason, struct plan_step *out)
{
	if (!may_retry(p, rules, how)) {
		out->next = out->otherwise;
		return;
	}
	out->next = PLAN_LEG;
	out->costs_retry = true;
	out->reason = reason;
	out->leg = *leg_current(p);
}

static void step_resume(const struct plan *p, const struct plan_rules *rules, struct plan_step *out)
{
	if (!may_attempt(p, rules))
		return;
	out->next = PLAN_LEG;
	out->costs_retry = true;
	out->leg = *leg_current(p);
	out->leg.edit = LEG_CONTINUES;
	out->leg.target.resuming = true;
	out->leg.stage++;
}

/* The answer leg behind a prefill leg, whatever became of that. */
static void step_lead_on(const struct plan *p, bool prefilled, struct plan_step *out)
{
	out->next = PLAN_LEG;
	out->leg = *leg_current(p);
	out->leg.role = prefilled ? LEG_DECODE : LEG_WHOLE;
	out->leg.bytes = LEG_SHOW;
	out->leg.then = LEG_ENDS_ANSWER;
	out->leg.target.untried = true;
	out->leg.stage++;
}

void plan_follow(const struct plan *p, const struct plan_rules *rules, const struct leg_outcome *o,
	struct plan_step *out)
{
	const struct plan_leg *l = leg_current(p);
	enum breaker_failure how = o->how;
	*out = (struct plan_step){.next = PLAN_FAIL, .otherwise = PLAN_FAIL};
	if (l->bytes == LEG_HOLD) {
		out->next = PLAN_LEG;
		out->leg = *l;
		out->leg.stage++;
		leg_step(p, &out->leg);
	} else if (l->then == LEG_LEADS_ON) {
		step_lead_on(p, o->end == LEG_END_FINE, out);
	} else if (o->end == LEG_END_FINE) {
		out->next = PLAN_OVER;
	} else if (o->end == LEG_END_FAILED) {
		step_retry(p, rules, how, retry_reason(o), out);
	} else if (o->end == LEG_END_STATUS) {
		/* a body cannot be shown behind another: only the first answer leg can be relayed */
		out->otherwise = l->edit == LEG_AS_SENT ? PLAN_RELAY : PLAN_FAIL;
		step_retry(p, rules, how, retry_reason(o), out);
	} else if (o->end == LEG_END_MISFIT) {
		step_retry(p, rules, how == BREAKER_FAILURES ? BREAKER_STATUS : how, "resume", out);
	} else if (o->missing == PLAN_MISSES_NOTHING) {
		out->next = PLAN_OVER;
	} else if (o->missing == PLAN_MISSES_MORE) {
		step_resume(p, rules, out);
	}
	if (out->next == PLAN_LEG)
		leg_reset(&out->leg);
}

void plan_take(struct plan *p, const struct plan_step *step)
{
	CGN_MUST(step->next == PLAN_LEG && p->n < p->cap);
	CGN_MUST(leg_current(p)->state == LEG_SUCCEEDED || leg_current(p)->state == LEG_FAILED);
	p->legs[p->n++] = step->leg;
	if (step->reason != NULL)
		p->last_retry = step->reason;
}

/* ---- queries ---- */

static bool leg_was_tried(const struct plan_leg *l)
{
	return l->state != LEG_PLANNED && l->role != LEG_PREFILL && l->bytes != LEG_HOLD;
}

bool plan_is_held(const struct plan *p)
{
	return p->n > 0 && leg_current(p)->bytes == LEG_HOLD;
}

const struct plan_leg *plan_last(const struct plan *p)
{
	static const struct plan_leg none;
	unsigned n = p->n;
	while (n > 0 && p->legs[n - 1].state == LEG_PLANNED)
		n--;
	return n > 0 ? &p->legs[n - 1] : &none;
}

uint32_t plan_attempts(const struct plan *p)
{
	uint32_t n = 0;
	for (unsigned i = 0; i < p->n; i++)
		n += leg_was_tried(&p->legs[i]);
	return n;
}

size_t plan_tried(const struct plan *p, uint16_t *out)
{
	size_t n = 0;
	for (unsigned i = 0; i < p->n; i++)
		if (leg_was_tried(&p->legs[i]))
			out[n++] = p->legs[i].slot;
	return n;
}

bool plan_has_tried(const struct plan *p, uint16_t slot)
{
	for (unsigned i = 0; i < p->n; i++)
		if (leg_was_tried(&p->legs[i]) && p->legs[i].slot == slot)
			return true;
	return false;
}

void plan_forgive(struct plan *p)
{
	for (unsigned i = 0; i < p->n; i++)
		p->legs[i].slot = PLAN_NO_SLOT;
}

const struct plan_leg *plan_prefilled(const struct plan *p)
{
	for (unsigned i = 0; i < p->n; i++)
		if (p->legs[i].role == LEG_PREFILL && p->legs[i].state == LEG_SUCCEEDED)
			return &p->legs[i];
	return NULL;
}
