/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/replay/federation_priv.h"
#include "policy/route/peer/beat.h"

#define TOKEN_BYTES  4 /* A token's share of a prompt's text. */
#define HEAD_BYTES   600
#define ANSWER_BYTES 600
#define AFTER        (10 * CGN_SEC) /* A cut's consequences are looked for. */

static struct federation_peer *peer_of(struct federation *f, const struct federation_call *c)
{
	return &f->v[c->from].peers[c->to];
}

static void call_end(struct federation *f, struct federation_call *c)
{
	c->over = true;
	cgn_list_drop(&c->open);
	peer_of(f, c)->open--;
	f->open--;
}

/* Send the event that |c| met at its peer back to the cluster it came from. */
static cgn_nsec call_back(struct federation *f, struct federation_call *c, enum federation_kind kind,
	uint64_t number)
{
	cgn_nsec at = wan_arrival(&f->wan, c->to, c->from, ANSWER_BYTES, f->now);
	struct federation_message m =
		federation_to(kind, c->from, c->to, at > c->first_at ? at : c->first_at);
	m.call = c;
	m.number = number;
	federation_push(f, m);
	return m.at;
}

/* ---- leaving ---- */

static void cuts_count(struct federation *f, const struct federation_call *c)
{
	for (size_t i = 0; i < f->cfg->n_cuts; i++) {
		const struct federation_cut *cut = &f->cfg->cuts[i];
		struct federation_cut_result *r = &f->out->cuts[i];
		if (!((c->from == cut->a && c->to == cut->b) || (c->from == cut->b && c->to == cut->a)))
			continue;
		if (f->counts[i].second != f->now / CGN_SEC)
			f->counts[i].n = 0;
		f->counts[i].second = f->now / CGN_SEC;
		const uint64_t n = ++f->counts[i].n;
		if (f->now < cut->from)
			r->most_before = n > r->most_before ? n : r->most_before;
		else if (f->now < cut->to)
			r->left_for_ns = cgn_since(f->now, cut->from);
		else if (f->now < cut->to + AFTER)
			r->most_after = n > r->most_after ? n : r->most_after;
	}
}

static void call_send(struct federation *f, const struct federation_call *draft)
{
	const cgn_nsec now = f->now;
	struct federation_call *c = malloc(sizeof *c);
	if (c == NULL) {
		f->no_memory = true;
		return;
	}
	*c = *draft;
	struct federation_peer *p = peer_of(f, c);
	cgn_list_push(&f->calls, &c->all);
	cgn_list_push(&p->calls, &c->open);
	p->open++;
	f->open++;
	f->out->left++;
	f->out->left_from[c->from]++;
	cuts_count(f, c);
	size_t bytes = HEAD_BYTES + (size_t)c->own.request->input * TOKEN_BYTES;
	struct federation_message m = federation_to(FEDERATION_REQUEST, c->from, c->to,
		wan_arrival(&f->wan, c->from, c->to, bytes, now));
	m.call = c;
	federation_push(f, m);
	m = federation_to(FEDERATION_TIMEOUT, c->from, c->to, now + f->cfg->first_byte_timeout);
	m.call = c;
	federation_push(f, m);
}

static struct peer_stay stay_of(struct replay *r, const struct trace_request *q, struct peer_prompt *prompt)
{
	const struct chooser_ask ask = replay_ask(r, q);
	const struct chooser_pick_result here = chooser_pick(r->chooser, &ask);
	const struct admission_facts facts = {.verdict = here.verdict,
		.model = r->model,
		.others_wait = admission_waiting(r->admission) > 0};
	const struct admission_forecast f = admission_forecast_of(&here, r->cluster->stats, q->input);
	*prompt = (struct peer_prompt){.chain = r->chain,
		.blocks = ask.blocks,
		.tokens = q->input,
		.block_tokens = r->trace->block_tokens};
	return peer_stay_of(here.verdict, &f, admission_must_wait(&facts), r->wait);
}

static struct peer_bid bid_of(const struct federation *f, const struct federation_peer *p,
	const struct peer_prompt *prompt)
{
	const struct peer_side side = {.measured = p->ttft > 0 ? p->ttft : f->cfg->expected_ttft,
		.way = p->rtt,
		.trust = p->trust,
		.told = p->told,
		.valid_to = p->valid_to,
		.load = p->told && p->load.nodes > 0 ? &p->load : NULL,
		.set = p->known.set,
		.shift = p->known.shift,
		.open = p->open,
		.open_then = p->open_then};
	return peer_bid_of(&side, prompt, f->now);
}

/* Let the request at cluster |at| leave, if it may and a peer is worth it. */
static bool call_leave(struct federation *f, uint32_t at, const struct replay_call *own,
	struct federation_call *parent, uint32_t tried)
{
	struct federation_cluster *x = &f->v[at];
	struct peer_prompt prompt;
	struct peer_bid best = {0};
	uint32_t to = FEDERATION_CLUSTERS;
	if (!f->cfg->forwards || (parent != NULL && parent->hops >= f->cfg->max_hops))
		return false;
	x->r.now = f->now;
	const struct peer_stay stay = stay_of(&x->r, own->request, &prompt);
	if (!peer_may_be_worth(&stay, &f->cfg->rules))
		return false;
	for (uint32_t i = 0; i < f->cfg->clusters; i++) {
		const struct federation_peer *p = &x->peers[i];
		if (i == at || (tried & 1U << i) != 0 || p->lost || p->rest_until > f->now)
			continue;
		const struct peer_bid bid = bid_of(f, p, &prompt);
		if (peer_bid_door(&bid, &stay, &f->cfg->rules, p->open, f->cfg->max_concurrent) ==
				PEER_DOOR_OPEN &&
			(to == FEDERATION_CLUSTERS ||
				peer_bid_beats(&bid, &best, &f->cfg->rules, &stay.cost))) {
			best = bid;
			to = i;
		}
	}
	if (to == FEDERATION_CLUSTERS)
		return false;
	f->out->left_by[best.source]++;
	const struct federation_call draft = {.from = (uint8_t)at,
		.to = (uint8_t)to,
		.hops = (uint8_t)(parent != NULL ? parent->hops + 1 : 1),
		.tried = tried,
		.own = *own,
		.parent = parent,
		.forecast = best.source == PEER_BID_SUMMARY ? best.forecast : (struct peer_forecast){0},
		.sent_at = f->now};
	call_send(f, &draft);
	return true;
}

/* A node of cluster |at| gets the request, which another cluster sent. Such requests do not wait. */
static void foreign_place(struct federation *f, uint32_t at, const struct replay_call *own)
{
	struct replay *r = &f->v[at].r;
	r->now = f->now;
	if (admission_waiting(r->admission) > 0 || replay_send(r, own, NULL) != REPLAY_SENT)
		(void)call_back(f, own->foreign, FEDERATION_REFUSED, 0);
}

static void own_place(struct federation *f, uint32_t at, const struct replay_call *own)
{
	f->v[at].r.now = f->now;
	replay_place(&f->v[at].r, own);
}

/* The call has failed before its first byte: another peer, or the cluster itself. */
static void call_again(struct federation *f, struct federation_call *c)
{
	call_end(f, c);
	if (call_leave(f, c->from, &c->own, c->parent, c->tried | 1U << c->to))
		return;
	if (c->parent != NULL)
		foreign_place(f, c->from, &c->own);
	else
		own_place(f, c->from, &c->own);
}

/* The answer broke off: continue it at the cluster that the request came to first. */
static void call_break(struct federation *f, struct federation_call *c)
{
	call_end(f, c);
	if (c->parent != NULL) {
		(void)call_back(f, c->parent, FEDERATION_BROKEN, 0);
		return;
	}
	if (!f->cfg->resumes) {
		f->out->broken++;
		return;
	}
	c->rest = *c->own.request;
	c->rest.input += c->given;
	c->rest.output = c->rest.output > c->given ? c->rest.output - c->given : 1;
	f->out->resumed++;
	own_place(f, c->from, &(struct replay_call){&c->rest, c->own.came, NULL, true});
}

void fedcall_lost(struct federation *f, uint32_t from, uint32_t to)
{
	struct cgn_link calls, *l;
	struct federation_peer *p = &f->v[from].peers[to];
	cgn_list_init(&calls);
	while ((l = cgn_list_first(&p->calls)) != NULL) {
		cgn_list_drop(l);
		cgn_list_push(&calls, l);
	}
	while ((l = cgn_list_first(&calls)) != NULL) {
		struct federation_call *c = CGN_CONTAINER(l, struct federation_call, open);
		f->out->returned += !c->begun;
		(c->begun ? call_break : call_again)(f, c);
	}
}

/* ---- answers ---- */

static void call_first(struct federation *f, struct federation_call *c, uint64_t cached)
{
	struct federation_peer *p = peer_of(f, c);
	c->begun = true;
	c->shown = (struct peer_shown){.ttft = cgn_since(f->now, c->sent_at),
		.counted = true,
		.cached = cached,
		.tokens = c->own.request->input};
	p->ttft = peer_ttft_learn(p->ttft, c->shown.ttft);
	if (c->parent != NULL) {
		c->parent->first_at = call_back(f, c->parent, FEDERATION_FIRST, cached);
		return;
	}
	samples_add(&f->out->ttft, cgn_since(f->now, c->own.came));
	f->out->cached_blocks += cached / f->v[0].r.trace->block_tokens;
}

static void forecast_settle(struct federation *f, struct federation_call *c)
{
	struct peer_trust *t = &peer_of(f, c)->trust;
	const uint64_t bad = t->bad;
	if (!c->forecast.known)
		return;
	f->out->demotions += peer_trust_learn(t, &c->forecast, &c->shown, f->now);
	f->out->predicted++;
	f->out->mispredicted += t->bad - bad;
	f->out->held_predicted += c->forecast.cached;
	f->out->held_found += c->shown.cached;
}

static void call_done(struct federation *f, struct federation_call *c)
{
	forecast_settle(f, c);
	call_end(f, c);
	if (c->parent != NULL)
		(void)call_back(f, c->parent, FEDERATION_DONE, 0);
	else
		f->out->done++;
}

static void call_arrive(struct federation *f, struct federation_call *c)
{
	const struct replay_call here = {.request = c->own.request, .came = f->now, .foreign = c};
	if (!call_leave(f, c->to, &here, c, c->tried | 1U << c->from))
		foreign_place(f, c->to, &here);
}

void fedcall_receive(struct federation *f, const struct federation_message *m)
{
	struct federation_call *c = m->call;
	if (c->over)
		return;
	if (m->kind == FEDERATION_REQUEST)
		call_arrive(f, c);
	else if (m->kind == FEDERATION_FIRST)
		call_first(f, c, m->number);
	else if (m->kind == FEDERATION_DONE)
		call_done(f, c);
	else if (m->kind == FEDERATION_BROKEN)
		call_break(f, c);
	else if (m->kind == FEDERATION_REFUSED) {
		f->out->bounced++;
		peer_of(f, c)->rest_until = f->now + PEER_REST_LEAST;
		call_again(f, c);
	} else if (!c->begun) { /* FEDERATION_TIMEOUT */
		f->out->returned++;
		call_again(f, c);
	}
}

/* ---- hooks of the clusters ---- */

static void follow_time(struct federation *f, const struct replay *r)
{
	f->now = r->now;
}

static bool on_leave(void *user, struct replay *r, const struct replay_call *c)
{
	struct federation *f = user;
	const uint32_t at = (uint32_t)(CGN_CONTAINER(r, struct federation_cluster, r) - f->v);
	follow_time(f, r);
	f->out->by_cluster[at]++;
	return call_leave(f, at, c, NULL, 0);
}

/* A token of |c| is on its way. */
static void token_hear(struct federation *f, const struct federation_call *c)
{
	const cgn_nsec at = f->now + wan_round_trip(f->cfg, c->from, c->to) / 2;
	if (!c->over && !wan_is_cut(f->cfg, c->from, c->to, f->now) &&
		!wan_is_cut(f->cfg, c->from, c->to, at))
		peer_of(f, c)->heard = at;
}

static void on_token(void *user, struct replay *r, void *foreign, const struct enginemodel_progress *g)
{
	struct federation *f = user;
	struct federation_call *c = foreign;
	follow_time(f, r);
	c->given = g->given;
	token_hear(f, c);
	if (g->given == 1)
		c->first_at = call_back(f, c, FEDERATION_FIRST, g->cached);
	if (g->finished)
		(void)call_back(f, c, FEDERATION_DONE, 0);
}

static void on_refused(void *user, struct replay *r, void *foreign)
{
	struct federation *f = user;
	follow_time(f, r);
	(void)call_back(f, foreign, FEDERATION_REFUSED, 0);
}

struct replay_hooks fedcall_hooks(struct federation *f)
{
	return (struct replay_hooks){.leaves = on_leave, .token = on_token, .refused = on_refused, .user = f};
}
