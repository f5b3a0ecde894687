/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/who/share/share.h"

#include "base/core/err.h"

static uint16_t row_find(const struct share *s, uint64_t router)
{
	uint16_t i = 0;
	while (i < SHARE_ROUTERS && s->rows[i].router != router)
		i++;
	return i;
}

static uint16_t row_take(struct share *s, uint64_t router)
{
	uint16_t i = router != 0 ? row_find(s, router) : SHARE_ROUTERS;
	if (router == 0 || i < SHARE_ROUTERS)
		return i;
	i = row_find(s, 0);
	if (i < SHARE_ROUTERS)
		s->rows[i].router = router;
	return i;
}

static void row_enter(struct share_row *r, uint32_t tokens)
{
	r->inflight++;
	r->queued_tokens += tokens;
}

static void row_begin(struct share_row *r, const struct share_ticket *t)
{
	CGN_MUST(r->queued_tokens >= t->tokens && r->wholes >= t->whole);
	r->queued_tokens -= t->tokens;
	r->wholes -= t->whole;
	r->decoding++;
}

static void row_leave(struct share_row *r, const struct share_ticket *t)
{
	CGN_MUST(r->inflight > 0);
	r->inflight--;
	if (t->begun) {
		r->decoding--;
	} else {
		r->queued_tokens -= t->tokens;
		r->wholes -= t->whole;
		r->asides -= t->aside;
	}
	CGN_MUST(r->decoding + r->asides <= r->inflight);
}

void share_enter(struct share *s, uint64_t router, uint32_t tokens, struct share_ticket *t)
{
	CGN_MUST(!t->counted);
	*t = (struct share_ticket){.counted = true, .row = row_take(s, router), .tokens = tokens};
	row_enter(&s->all, tokens);
	if (t->row < SHARE_ROUTERS)
		row_enter(&s->rows[t->row], tokens);
}

void share_whole(struct share *s, struct share_ticket *t, uint32_t prompt_us)
{
	CGN_MUST(t->counted && !t->begun && !t->whole);
	t->whole = true;
	s->all.wholes++;
	s->all.whole_us += prompt_us;
	if (t->row < SHARE_ROUTERS)
		s->rows[t->row].wholes++;
}

void share_aside(struct share *s, struct share_ticket *t)
{
	CGN_MUST(t->counted && !t->begun && !t->aside);
	t->aside = true;
	s->all.asides++;
	if (t->row < SHARE_ROUTERS)
		s->rows[t->row].asides++;
}

void share_begun(struct share *s, struct share_ticket *t)
{
	if (!t->counted || t->begun || t->aside)
		return;
	t->begun = true;
	row_begin(&s->all, t);
	if (t->row < SHARE_ROUTERS)
		row_begin(&s->rows[t->row], t);
}

void share_leave(struct share *s, struct share_ticket *t)
{
	if (!t->counted)
		return;
	row_leave(&s->all, t);
	if (t->row < SHARE_ROUTERS) {
		struct share_row *r = &s->rows[t->row];
		row_leave(r, t);
		if (r->inflight == 0)
			*r = (struct share_row){.router = 0};
	}
	*t = (struct share_ticket){.counted = false};
}

struct share_row share_of(const struct share *s, uint64_t router)
{
	uint16_t i = router != 0 ? row_find(s, router) : SHARE_ROUTERS;
	return i < SHARE_ROUTERS ? s->rows[i] : (struct share_row){.router = router};
}

void share_peak_note(struct share_peak *p, uint32_t inflight)
{
	if (inflight > p->now)
		p->now = inflight;
}

void share_peak_next(struct share_peak *p, uint32_t inflight)
{
	p->before = p->now;
	p->now = inflight;
}

uint32_t share_foreign(struct share_peak *p, uint64_t in_engine)
{
	uint32_t most = p->now > p->before ? p->now : p->before, was = p->beyond;
	uint64_t beyond = in_engine > most ? in_engine - most : 0;
	p->beyond = beyond < UINT32_MAX ? (uint32_t)beyond : UINT32_MAX;
	return p->beyond < was ? p->beyond : was;
}
