/* SPDX-License-Identifier: Apache-2.0 */
/* learn: a quote beside what the request took. */
#include "quote_priv.h"
#include "router/request/account/account.h"

static double ms_since(const struct gw_req *r, cgn_nsec at)
{
	return (double)(at - r->client.started) / 1e6;
}

/* Compare one figure of the quote with its actual value. The first intervals are wide by rule and not counted. */
static void figure_learn(struct gw_req *r, enum quote_figure f, double actual)
{
	struct gw_quoted *q = r->plan.quoted;
	struct gw_quotes *all = r->w->shared->quotes;
	if (!q->quote.known[f])
		return;
	q->actual[f] = actual;
	enum quote_side side = quote_learn(all->book, &q->quote, f, actual, q->coverage);
	if (q->quote.samples[f] < QUOTE_LEAST)
		return;
	metric_add(all->sides[f][side], 1);
	if (all->widths[f] != NULL)
		metric_observe(all->widths[f], (cgn_nsec)((q->quote.v[f].high - q->quote.v[f].low) * 1e6));
}

/* Return true if the client got a whole answer at its engine's pace. */
static bool is_whole(const struct gw_req *r)
{
	return r->answer.outcome == NULL && r->client.why.code == CGN_FINE && !r->answer.was_paused &&
		r->answer.last_byte > 0;
}

static void whole_learn(struct gw_req *r)
{
	const struct gw_used used = gw_used_of(r);
	const struct chooser_energy e = gw_attempt_joules(&r->attempt);
	if (used.output > 0 && !r->prompt.several)
		quote_answer_learn(r->w->shared->quotes->book, &r->plan.quoted->quote.key, used.output);
	figure_learn(r, QUOTE_FINISH, ms_since(r, r->answer.last_byte));
	figure_learn(r, QUOTE_COST, (double)used.money);
	if (e.counted)
		figure_learn(r, QUOTE_JOULES, e.prefill_j + e.decode_j);
}

void gw_quote_learn(struct gw_req *r)
{
	struct gw_quotes *all = r->w->shared->quotes;
	const struct gw_quoted *q = r->plan.quoted;
	/* A quote is of the nodes here. */
	if (r->attempt.peer != NULL || r->plan.away.tried != 0)
		return;
	if (q == NULL || q->state == GW_QUOTE_NO_NODE || r->client.quotes || r->answer.status != 200 ||
		r->answer.first_byte == 0)
		return;
	(void)pthread_mutex_lock(&all->lock);
	figure_learn(r, QUOTE_TTFT, ms_since(r, r->answer.first_byte));
	if (is_whole(r))
		whole_learn(r);
	(void)pthread_mutex_unlock(&all->lock);
}
