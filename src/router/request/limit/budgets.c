/* SPDX-License-Identifier: Apache-2.0 */
/* budgets: a request's share of the budgets of its key and its tenant. */
#include "router/request/limit/budgets.h"

#include "base/core/utc.h"
#include "router/request/limit/limit_priv.h"

#define WORTH_A_RETRY (60 * CGN_SEC) /* OpenAI's clients wait no longer for Retry-After. */

static const char letters[LIMIT_SUBJECTS] = {'k', 'a', 't'};
static const char *const nouns[LIMIT_SUBJECTS] = {"API key", "address", "tenant"};

bool gw_budgets_apply(const struct gw_req *r)
{
	return gw_rules_tenant(r->w->rules, r->identity.tenant)->budgets.n > 0 ||
		(r->identity.budgets != NULL && r->identity.budgets->n > 0);
}

/* An estimate never makes a request too large: at most the smallest budget is reserved for it. */
static uint64_t want_of(const struct budget_set *s, enum budget_unit unit, uint64_t known, uint64_t guess)
{
	uint64_t least = BUDGET_AMOUNT_MAX;
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].unit == unit && s->v[i].limit < least)
			least = s->v[i].limit;
	if (known > least)
		return known;
	return guess < least ? guess : least;
}

static void want_fill(const struct gw_req *r, struct gw_spender *s)
{
	uint64_t prompt = r->plan.prompt_tokens, answer = limit_answer_estimate(r);
	uint64_t sure = answer > 0 ? r->prompt.answer_limit : 0,
		 joules = gw_series_joules(r->w, r->prompt.model);
	s->want.v[BUDGET_REQUESTS] = 1;
	if (gw_used_has_tokens(r)) {
		s->want.v[BUDGET_TOKENS] =
			want_of(&s->set, BUDGET_TOKENS, r->prompt.tokens + sure, prompt + answer);
		s->want.v[BUDGET_MONEY] = want_of(&s->set, BUDGET_MONEY,
			gw_used_price(r, gw_used_dearest(r), r->prompt.tokens, r->prompt.tokens, sure),
			gw_used_price(r, gw_used_dearest(r), prompt, 0, answer));
	}
	s->want.v[BUDGET_JOULES] = want_of(&s->set, BUDGET_JOULES, 0, joules);
}

static void spender_add(const struct gw_req *r, struct gw_limits *l, enum limit_subject subject,
	struct cgn_str name, const struct budget_set *set)
{
	if (set == NULL || set->n == 0)
		return;
	struct gw_spender *s = &l->spenders[l->n_spenders++];
	*s = (struct gw_spender){.subject = subject, .set = *set};
	(void)snprintf(s->name, sizeof s->name, "%c:%.*s", letters[subject], CGN_STR_ARG(name));
	want_fill(r, s);
}

void gw_budgets_begin(const struct gw_req *r, struct gw_limits *l)
{
	if (r->identity.key_id != NULL)
		spender_add(r, l, LIMIT_KEY, cgn_str_of(r->identity.key_id), r->identity.budgets);
	spender_add(r, l, LIMIT_TENANT, r->identity.tenant,
		&gw_rules_tenant(r->w->rules, r->identity.tenant)->budgets);
}

/* Ask every subject, even after one has refused, so that the client is told the longest wait. */
bool gw_budgets_take(struct gw_limits *l)
{
	bool granted = true;
	for (unsigned i = 0; i < l->n_spenders; i++) {
		struct gw_spender *s = &l->spenders[i];
		granted = gw_budgets_reserve(l->w->shared->budgets, cgn_str_of(s->name), &s->set, &s->want,
				  s->answers, &s->held) &&
			granted;
	}
	return granted;
}

void gw_budgets_mirror(struct gw_limits *l)
{
	for (unsigned k = 0; k < l->n_spenders; k++) {
		struct gw_spender *s = &l->spenders[k];
		s->held.amounts = s->want;
		for (size_t i = 0; i < s->set.n; i++)
			gw_budgets_learn(l->w->shared->budgets, cgn_str_of(s->name), &s->set.v[i],
				s->held.number[s->set.v[i].window], s->answers[i].spent);
	}
}

void gw_budgets_settle(struct gw_limits *l, const struct budget_amounts *spent)
{
	static const struct budget_amounts nothing;
	for (unsigned i = 0; i < l->n_spenders; i++) {
		struct gw_spender *s = &l->spenders[i];
		gw_budgets_return(l->w->shared->budgets, cgn_str_of(s->name), &s->held,
			spent != NULL ? spent : &nothing);
		s->held = (struct budget_held){0};
	}
}

void gw_budgets_spent(const struct gw_used *used, struct budget_amounts *out)
{
	*out = (struct budget_amounts){.v = {[BUDGET_REQUESTS] = used->requests,
					       [BUDGET_TOKENS] = used->input + used->output,
					       [BUDGET_MONEY] = used->money,
					       [BUDGET_JOULES] = used->joules}};
}

/* ---- refusals ---- */

/* A budget of a request, and the answer for it. */
struct budget_pick {
	const struct gw_spender *s;
	size_t i;
};

static cgn_nsec time_left(const struct gw_spender *s, size_t i)
{
	uint64_t now = cgn_clock_wall_ms(), end = s->answers[i].ends_at * 1000;
	return (end > now ? end - now : 1) * CGN_MSEC;
}

static bool never_fits(const struct gw_spender *s, size_t i)
{
	return s->want.v[s->set.v[i].unit] > s->set.v[i].limit;
}

bool gw_budgets_never(const struct gw_limits *l)
{
	for (unsigned k = 0; k < l->n_spenders; k++)
		for (size_t i = 0; i < l->spenders[k].set.n; i++)
			if (never_fits(&l->spenders[k], i))
				return true;
	return false;
}

/* Return the budget that refuses for the longest time; |s| NULL: none does. */
static struct budget_pick budget_worst(const struct gw_limits *l)
{
	struct budget_pick worst = {0};
	for (unsigned k = 0; k < l->n_spenders; k++)
		for (size_t i = 0; i < l->spenders[k].set.n; i++) {
			const struct gw_spender *s = &l->spenders[k];
			if (s->answers[i].ends_at != 0 && !s->answers[i].granted &&
				(worst.s == NULL || never_fits(s, i) ||
					(!never_fits(worst.s, worst.i) &&
						time_left(s, i) > time_left(worst.s, worst.i))))
				worst = (struct budget_pick){s, i};
		}
	return worst;
}

bool gw_budgets_refuse(struct gw_req *r)
{
	struct gw_limits *l = r->plan.limits;
	const struct budget_pick worst = budget_worst(l);
	if (worst.s == NULL)
		return false;
	const struct gw_spender *s = worst.s;
	const struct budget *b = &s->set.v[worst.i];
	char budget[BUDGET_TEXT_MAX], spent[BUDGET_TEXT_MAX], need[BUDGET_TEXT_MAX], when[40];
	bool never = never_fits(s, worst.i);
	cgn_nsec wait = time_left(s, worst.i);
	struct gw_refusal how = {
		.status = 429,
		.type = "insufficient_quota",
		.code = "insufficient_quota",
		.reason = "budget",
		.by = GW_BY_BUDGET,
		.retry_after = never ? 0 : (unsigned)((wait + CGN_SEC - 1) / CGN_SEC),
	};
	l->never = never || wait > WORTH_A_RETRY;
	budget_text(b, budget);
	budget_amount_text(b->unit, s->answers[worst.i].spent, spent);
	budget_amount_text(b->unit, s->want.v[b->unit], need);
	(void)cgn_utc_text((int64_t)s->answers[worst.i].ends_at, "%Y-%m-%d %H:%M:%S UTC", when, sizeof when);
	metric_add(METRIC_OF(r->w->shared->telemetry, BUDGET_REFUSED,
			   s->subject == LIMIT_KEY ? "key" : "tenant",
			   b->unit == BUDGET_MONEY ? "money" : budget_unit_text(b),
			   budget_window_text(b->window)),
		1);
	if (never)
		(void)gw_refuse(r, &how,
			"the request is too large: it may use %s %s, and the %s %s has a budget of %s: shorten the prompt or ask for fewer tokens",
			need, budget_unit_text(b), nouns[s->subject], s->name + 2, budget);
	else
		(void)gw_refuse(r, &how,
			"budget exhausted: the %s %s has %s, of which %s are spent, and this request may use %s; it resets at %s",
			nouns[s->subject], s->name + 2, budget, spent, need, when);
	return true;
}

/* Return the budget of which the least share is left. */
static struct budget_pick budget_tightest(const struct gw_limits *l)
{
	struct budget_pick least = {0};
	double least_share = 2;
	for (unsigned k = 0; k < l->n_spenders; k++)
		for (size_t i = 0; i < l->spenders[k].set.n; i++) {
			const struct gw_spender *s = &l->spenders[k];
			double share = 1 - (double)s->answers[i].spent / (double)s->set.v[i].limit;
			if (s->answers[i].ends_at == 0 || share >= least_share)
				continue;
			least_share = share;
			least = (struct budget_pick){s, i};
		}
	return least;
}

static size_t field_put(struct gw_req *r, struct http_field *f, const char *name, const char *value)
{
	const char *copy = cgn_arena_strz(&r->arena, cgn_str_of(value));
	if (copy == NULL)
		return 0;
	*f = (struct http_field){cgn_str_of(name), cgn_str_of(copy)};
	return 1;
}

size_t gw_budgets_fields(struct gw_req *r, struct http_field *f)
{
	size_t n = 0;
	char text[BUDGET_TEXT_MAX], duration[LIMIT_DURATION_MAX];
	if (r->plan.limits == NULL)
		return 0;
	const struct budget_pick least = budget_tightest(r->plan.limits);
	if (least.s == NULL)
		return 0;
	const struct budget *b = &least.s->set.v[least.i];
	uint64_t spent = least.s->answers[least.i].spent;
	budget_text(b, text);
	n += field_put(r, f + n, "x-budget-limit", text);
	budget_amount_text(b->unit, spent < b->limit ? b->limit - spent : 0, text);
	n += field_put(r, f + n, "x-budget-remaining", text);
	limit_duration(time_left(least.s, least.i), duration);
	n += field_put(r, f + n, "x-budget-reset", duration);
	return n;
}
