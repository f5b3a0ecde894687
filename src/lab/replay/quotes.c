/* SPDX-License-Identifier: Apache-2.0 */
/* quotes: the router's quote for each request, beside the time and energy that it took. Requests that two
 * nodes share are not quoted. */
#include "lab/replay/replay_priv.h"
#include "policy/route/quote/guess.h"

#define COVERAGE 0.9
#define MODEL    1

void quotes_open(struct replay *r)
{
	if (r->cfg->quotes)
		r->quotes = quote_book_new();
}

void quotes_make(struct replay *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	bool waits, struct replay_quoted *out)
{
	struct energy_curve curve = {.prefill = 0};
	struct quote_guess g;
	const struct route_cand *c = quote_candidate(p);
	if (r->quotes == NULL || c == NULL || out->made)
		return;
	if (r->energy != NULL)
		(void)energy_board_get(r->energy, c->slot, &curve);
	const struct quote_inputs in = {.before_ms = waits ? (double)r->wait / 1e6 : 0, .curve = &curve};
	const struct quote_key key = {.model = MODEL,
		.holder = MODEL,
		.session = ask->session,
		.family = quote_family(ask),
		.limited = ask->answer_tokens > 0,
		.place = waits ? QUOTE_QUEUED : QUOTE_READY};
	quote_guess_fill(ask, p, c, &in, &g);
	quote_make(r->quotes, &key, &g, COVERAGE, &out->quote);
	out->made = true;
}

/* Count the width as a share of the expected value, 1 as a millisecond. */
static void width_count(struct replay_quotes *to, const struct quote_range *v)
{
	double share = v->expected > 0 ? (v->high - v->low) / v->expected : 0;
	samples_add(&to->width_share, (cgn_nsec)(share * (double)CGN_MSEC));
}

static void class_count(struct replay_quotes *to, uint64_t tenant, bool inside)
{
	uint32_t i = 0;
	while (i < to->n_classes && i + 1 < REPLAY_QUOTE_CLASSES && to->classes[i].tenant != tenant)
		i++;
	if (i == to->n_classes)
		to->classes[to->n_classes++].tenant = tenant;
	to->classes[i].inside += inside;
	to->classes[i].all++;
}

static void figure_learn(struct replay *r, const struct replay_flight *f, enum quote_figure figure,
	double actual)
{
	const struct quote *q = &f->quoted.quote;
	struct replay_quotes *to = &r->result->quotes[figure];
	if (!q->known[figure])
		return;
	enum quote_side side = quote_learn(r->quotes, q, figure, actual, COVERAGE);
	if (q->samples[figure] < QUOTE_LEAST)
		return;
	to->sides[side]++;
	class_count(to, f->call.request->tenant, side == QUOTE_INSIDE);
	width_count(to, &q->v[figure]);
}

void quotes_first(struct replay *r, const struct replay_flight *f)
{
	if (f->quoted.made)
		figure_learn(r, f, QUOTE_TTFT, (double)cgn_since(r->now, f->call.came) / 1e6);
}

void quotes_left(struct replay *r, const struct replay_flight *f, double joules)
{
	if (f->quoted.made)
		figure_learn(r, f, QUOTE_JOULES, joules);
}

void quotes_done(struct replay *r, const struct replay_flight *f, uint64_t tokens)
{
	if (!f->quoted.made)
		return;
	quote_answer_learn(r->quotes, &f->quoted.quote.key, tokens);
	figure_learn(r, f, QUOTE_FINISH, (double)cgn_since(r->now, f->call.came) / 1e6);
}
