/* SPDX-License-Identifier: Apache-2.0 */
/* quote: from a decision's inputs to a quote. */
#include <stdlib.h>

#include "policy/route/quote/guess.h"
#include "quote_priv.h"
#include "router/request/account/account.h"
#include "router/request/admission/admission.h"
#include "router/request/permit/permit.h"

#define PRICED_TOKENS 1000 /* Tokens whose price is divided by their number: the price of one is rounded. */
#define TEXT_MAX      1024

/* ---- the book ---- */

struct gw_quotes *gw_quotes_open(struct telemetry *t)
{
	static const char *const sides[] =
		{[QUOTE_INSIDE] = "inside", [QUOTE_BELOW] = "below", [QUOTE_ABOVE] = "above"};
	struct gw_quotes *q = CGN_NEW(struct gw_quotes);
	q->tag = GW_QUOTES_TAG;
	(void)pthread_mutex_init(&q->lock, NULL);
	for (unsigned f = 0; f < QUOTE_FIGURES; f++) {
		const char *name = quote_figure_label((enum quote_figure)f);
		for (unsigned s = 0; s < CGN_COUNT(sides); s++)
			q->sides[f][s] = METRIC_OF(t, QUOTE_COVERED, name, sides[s]);
		if (f == QUOTE_TTFT || f == QUOTE_FINISH)
			q->widths[f] = METRIC_OF(t, QUOTE_WIDTH, name);
	}
	q->book = quote_book_new();
	return q;
}

void gw_quotes_close(struct gw_quotes **take)
{
	struct gw_quotes *q = CGN_TAKE_LIVE(take, GW_QUOTES_TAG);
	if (q == NULL)
		return;
	quote_book_free(&q->book);
	(void)pthread_mutex_destroy(&q->lock);
	q->tag = 0;
	free(q);
}

bool gw_quotes_are_made(const struct gw_req *r)
{
	return r->w->rules->quote.on && r->w->shared->quotes != NULL;
}

/* ---- the guess ---- */

static double wait_ms(const struct gw_req *r)
{
	const struct gw_admission *a = r->w->shared->admission;
	return a != NULL ? (double)atomic_load_explicit(&a->wait_ms[admission_bucket(r->prompt.model)],
				   memory_order_relaxed)
			 : 0;
}

/* Return the time from the request's arrival until it is sent. */
static double before_ms(const struct gw_req *r, bool waits)
{
	return (double)cgn_since(cgn_loop_now(r->w->loop), r->client.started) / 1e6 +
		(waits ? wait_ms(r) : 0);
}

static struct quote_line cost_line(const struct gw_req *r, uint64_t input, uint64_t cached)
{
	uint64_t prompt = gw_used_price(r, r->prompt.model, input, cached, 0),
		 more = gw_used_price(r, r->prompt.model, input, cached, PRICED_TOKENS);
	return (struct quote_line){gw_rules_price(r->w->rules, r->prompt.model) != NULL, (double)prompt,
		(double)(more - prompt) / PRICED_TOKENS};
}

static void guess_fill(const struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, const struct route_cand *c, struct gw_quoted *q,
	struct quote_guess *g)
{
	uint64_t input = r->prompt.tokens > 0 ? r->prompt.tokens : r->plan.prompt_tokens;
	struct energy_curve curve;
	(void)energy_board_get(r->w->shared->choice.energy, c->slot, &curve);
	q->cached = quote_cached(ask, c, input);
	/* gw_prefill_predict has the time of a pair. */
	const struct quote_inputs in = {.before_ms = q->before_ms,
		.pair_ms = r->w->rules->route.disagg.enabled ? (double)r->plan.ttft.now / 1e6 : 0,
		.curve = &curve,
		.cost = cost_line(r, input, q->cached)};
	quote_guess_fill(ask, p, c, &in, g);
}

/* ---- the quote ---- */

static enum gw_quote_state state_of(const struct chooser_pick_result *p, bool waits)
{
	if (p->n == 0)
		return GW_QUOTE_NO_NODE;
	if (p->verdict != ROUTE_PICKED)
		return GW_QUOTE_FULL;
	return waits ? GW_QUOTE_QUEUED : GW_QUOTE_READY;
}

static void quote_fill(const struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, struct gw_quoted *q)
{
	const struct route_cand *c = quote_candidate(p);
	const bool waits = q->state != GW_QUOTE_READY;
	const struct quote_key key = {.model = route_hash(r->prompt.model.p, r->prompt.model.n),
		.holder = gw_permit_holder(r),
		.session = ask->session,
		.family = quote_family(ask),
		.limited = ask->answer_tokens > 0,
		.place = waits ? QUOTE_QUEUED : QUOTE_READY,
		.whole = ask->whole && !ask->embeds};
	struct quote_guess g;
	struct gw_quotes *all = r->w->shared->quotes;
	q->before_ms = before_ms(r, waits);
	guess_fill(r, ask, p, c, q, &g);
	if (!waits && view_node_at(r->w->view, c->slot) != NULL)
		q->node = view_node_at(r->w->view, c->slot)->id;
	(void)pthread_mutex_lock(&all->lock);
	quote_make(all->book, &key, &g, r->w->rules->quote.coverage, &q->quote);
	(void)pthread_mutex_unlock(&all->lock);
}

/* Make the quote; NULL: no memory. */
static struct gw_quoted *quote_new(struct gw_req *r, const struct chooser_ask *ask,
	const struct chooser_pick_result *p, bool waits)
{
	const struct gw_admission *a = r->w->shared->admission;
	struct gw_quoted *q = cgn_arena_zero(&r->arena, sizeof *q);
	if (q == NULL)
		return NULL;
	q->state = state_of(p, waits);
	q->coverage = r->w->rules->quote.coverage;
	for (unsigned f = 0; f < QUOTE_FIGURES; f++)
		q->actual[f] = -1;
	if (a != NULL && q->state != GW_QUOTE_READY)
		q->waiting = atomic_load_explicit(&a->waiting_of[admission_bucket(r->prompt.model)],
			memory_order_relaxed);
	if (q->state != GW_QUOTE_NO_NODE)
		quote_fill(r, ask, p, q);
	return q;
}

/* Keep the quote for the head of the client's answer. */
static void text_keep(struct gw_req *r)
{
	char text[TEXT_MAX];
	struct cgn_buf b = cgn_buf_over(text, sizeof text);
	struct json_out j = json_out_to(&b);
	gw_quote_json(r, &j);
	if (!b.bad)
		r->plan.quoted->text = cgn_arena_str(&r->arena, cgn_buf_view(&b));
}

void gw_quote_note(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits)
{
	if (!gw_quotes_are_made(r) || r->plan.quoted != NULL || plan_attempts(&r->plan.legs) > 0)
		return;
	r->plan.quoted = quote_new(r, ask, p, waits);
	if (r->plan.quoted != NULL && r->client.quote_asked)
		text_keep(r);
}

void gw_quote_promise(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits)
{
	struct gw_quotes *all = r->w->shared->quotes;
	struct admission_forecast *f = &r->plan.ttft;
	const double confidence = r->w->rules->quote.deadline_confidence;
	if (!gw_quotes_are_made(r) || !(confidence > 0) || p->n == 0 || f->now == 0)
		return;
	gw_quote_note(r, ask, p, waits);
	if (r->plan.quoted == NULL || !r->plan.quoted->quote.known[QUOTE_TTFT])
		return;
	(void)pthread_mutex_lock(&all->lock);
	double ms = quote_first_ms(all->book, &r->plan.quoted->quote, confidence);
	(void)pthread_mutex_unlock(&all->lock);
	/* Admission adds the time that was spent, and the wait, to the forecast. */
	ms -= r->plan.quoted->before_ms;
	cgn_nsec now = ms > 0 ? (cgn_nsec)(ms * 1e6) : 0;
	double load = (double)cgn_since(f->now, f->idle) / (double)f->now;
	f->idle = (cgn_nsec)((double)now * (1 - load));
	f->now = now;
}
