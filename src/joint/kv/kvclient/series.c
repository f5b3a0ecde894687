/* SPDX-License-Identifier: Apache-2.0 */
/* Series: values that belong together, some requested ahead of their turn. */
#include <stdlib.h>

#include "joint/kv/kvclient/kvclient_priv.h"

#define KVCLIENT_SERIES_TAG 0x4b56434fU

enum ahead_state { AHEAD_FREE, AHEAD_ASKED, AHEAD_HERE, AHEAD_FAILED };
struct ahead {
	struct kvclient_series *series;
	enum ahead_state state;
	struct kvclient_call *call;
	struct kvclient_lease *lease;
	struct cgn_err why;
};

struct kvclient_series {
	uint32_t tag;
	struct kvclient *client;
	struct kvclient_series_cfg cfg;
	size_t turn;                               /* the next piece to hand out */
	size_t asked;                              /* pieces below were requested */
	bool due;                                  /* the caller waits for piece |turn| */
	bool alone;                                /* no piece is requested ahead any more */
	struct ahead ahead[KVCLIENT_SERIES_AHEAD]; /* piece i in i % KVCLIENT_SERIES_AHEAD */
	struct cgn_timer tell;                     /* hands out a piece that is here, not inside of a call */
	struct cgn_grave grave;
};

static struct ahead *piece_at(struct kvclient_series *s, size_t i)
{
	return &s->ahead[i % KVCLIENT_SERIES_AHEAD];
}

static void series_on_answer(void *user, const struct kvclient_answer *a);

static CGN_RC piece_request(struct kvclient_series *s, size_t i, struct cgn_err *err)
{
	struct ahead *a = piece_at(s, i);
	struct block_key key;
	s->cfg.key(s->cfg.user, i, &key);
	CGN_TRY(kvclient_get(s->client, &key, s->cfg.worth_ms, s->cfg.tenant, series_on_answer, a, &a->call,
		err));
	a->state = AHEAD_ASKED;
	return CGN_OK;
}

/* Request pieces ahead. A piece that fails is requested again in its turn. */
static void series_request_ahead(struct kvclient_series *s)
{
	for (; !s->alone && s->asked < s->cfg.n && s->asked < s->turn + KVCLIENT_SERIES_AHEAD; s->asked++)
		if (!cgn_ok(piece_request(s, s->asked, NULL)))
			return;
}

/* Runs |done| last, as it may free the series. */
static void series_hand_out(struct kvclient_series *s)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	struct ahead *a = piece_at(s, s->turn);
	const struct cgn_err why = a->state == AHEAD_HERE ? fine : a->why;
	const struct kvclient_answer answer = {.err = &why, .lease = a->lease};
	a->lease = NULL;
	a->state = AHEAD_FREE;
	s->due = false;
	s->turn++;
	s->cfg.done(s->cfg.user, &answer);
}

static void series_on_tell(struct cgn_timer *t)
{
	struct kvclient_series *s = CGN_CONTAINER(t, struct kvclient_series, tell);
	CGN_LIVE(s, KVCLIENT_SERIES_TAG);
	series_hand_out(s);
}

/* There is no room for the current piece: give back the pieces ahead. Returns false when there are none. */
static bool series_give_back(struct kvclient_series *s)
{
	bool any = false;
	for (size_t i = 0; i < KVCLIENT_SERIES_AHEAD && !s->alone; i++) {
		struct ahead *a = &s->ahead[i];
		any = any || a->state == AHEAD_HERE || a->state == AHEAD_ASKED;
		kvclient_lease_release(&a->lease);
		if (a->state == AHEAD_HERE)
			a->state = AHEAD_FREE;
	}
	s->alone = s->alone || any;
	return any;
}

/* Request the current piece once no other piece is in flight, as that would take the room again. */
static void series_request_alone(struct kvclient_series *s)
{
	struct ahead *a = piece_at(s, s->turn);
	for (size_t i = 0; i < KVCLIENT_SERIES_AHEAD; i++)
		if (s->ahead[i].state == AHEAD_ASKED)
			return;
	s->asked = s->turn + 1;
	if (!cgn_ok(piece_request(s, s->turn, &a->why)))
		cgn_timer_set(&s->tell, 0);
}

static void series_on_answer(void *user, const struct kvclient_answer *answer)
{
	struct ahead *a = user;
	struct kvclient_series *s = a->series;
	CGN_LIVE(s, KVCLIENT_SERIES_TAG);
	a->call = NULL;
	a->lease = answer->lease;
	a->why = *answer->err;
	a->state = a->why.code == CGN_FINE ? AHEAD_HERE : AHEAD_FAILED;
	if (s->due && a == piece_at(s, s->turn)) {
		if (a->why.code == CGN_OVERLOADED && series_give_back(s))
			series_request_alone(s);
		else
			series_hand_out(s);
	} else if (s->alone) {
		kvclient_lease_release(&a->lease);
		a->state = AHEAD_FREE;
		series_request_alone(s);
	}
}

/* Wait for the current piece, and request it if needed. A piece that failed ahead of its turn gets its own
 * attempt. */
static void series_await(struct kvclient_series *s)
{
	struct ahead *a = piece_at(s, s->turn);
	s->due = true;
	if (a->state == AHEAD_HERE && kvclient_lease_is_stale(a->lease)) { /* the lease timed out */
		kvclient_lease_release(&a->lease);
		a->state = AHEAD_FREE;
	}
	/* Also after CGN_NOT_FOUND: with reads in flight a peer looks slower than recomputing. */
	if (a->state == AHEAD_FAILED)
		a->state = AHEAD_FREE;
	if (a->state == AHEAD_FREE && !cgn_ok(piece_request(s, s->turn, &a->why)))
		a->state = AHEAD_FAILED;
	if (s->asked <= s->turn)
		s->asked = s->turn + 1;
	if (a->state != AHEAD_ASKED)
		cgn_timer_set(&s->tell, 0);
	series_request_ahead(s);
}

CGN_RC kvclient_series_new(struct kvclient *c, const struct kvclient_series_cfg *cfg,
	struct kvclient_series **out, struct cgn_err *err)
{
	struct kvclient_series *s = CGN_NEW(struct kvclient_series);
	CGN_MUST(cfg->n > 0);
	*s = (struct kvclient_series){.tag = KVCLIENT_SERIES_TAG, .client = c, .cfg = *cfg, .due = true};
	cgn_timer_init(&s->tell, c->loop, series_on_tell);
	for (size_t i = 0; i < KVCLIENT_SERIES_AHEAD; i++)
		s->ahead[i].series = s;
	cgn_rc rc = piece_request(s, 0, err);
	if (!cgn_ok(rc)) {
		free(s);
		return rc;
	}
	s->asked = 1;
	series_request_ahead(s);
	*out = s;
	return CGN_OK;
}

void kvclient_series_next(struct kvclient_series *s)
{
	CGN_LIVE(s, KVCLIENT_SERIES_TAG);
	CGN_MUST(!s->due && s->turn < s->cfg.n);
	series_await(s);
}

static void series_release(struct cgn_grave *g)
{
	free(CGN_CONTAINER(g, struct kvclient_series, grave));
}

void kvclient_series_free(struct kvclient_series **take)
{
	struct kvclient_series *s = CGN_TAKE_LIVE(take, KVCLIENT_SERIES_TAG);
	if (s == NULL)
		return;
	cgn_timer_cancel(&s->tell);
	for (size_t i = 0; i < KVCLIENT_SERIES_AHEAD; i++) {
		kvclient_call_cancel(&s->ahead[i].call);
		kvclient_lease_release(&s->ahead[i].lease);
	}
	s->tag = 0;
	cgn_loop_bury(s->client->loop, &s->grave, series_release);
}
