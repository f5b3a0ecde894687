/* SPDX-License-Identifier: Apache-2.0 */
/* Series: values that belong together, some asked for ahead of their turn. */
#include <stdlib.h>

#include "joint/kvclient/kvclient_priv.h"

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
	size_t turn;                               /* the piece that is told next */
	size_t asked;                              /* pieces below were asked for */
	bool due;                                  /* it is waited for */
	bool alone;                                /* nothing is asked for ahead any more */
	struct ahead ahead[KVCLIENT_SERIES_AHEAD]; /* piece i in i % KVCLIENT_SERIES_AHEAD */
	struct cgn_timer tell;                     /* it is here already: not from inside a call */
	struct cgn_grave grave;
};

static struct ahead *place(struct kvclient_series *s, size_t i)
{
	return &s->ahead[i % KVCLIENT_SERIES_AHEAD];
}

static void on_answer(void *user, const struct kvclient_answer *a);

static CGN_RC ask(struct kvclient_series *s, size_t i, struct cgn_err *err)
{
	struct ahead *a = place(s, i);
	struct block_key key;
	s->cfg.key(s->cfg.user, i, &key);
	CGN_TRY(kvclient_get(s->client, &key, s->cfg.worth_ms, on_answer, a, &a->call, err));
	a->state = AHEAD_ASKED;
	return CGN_OK;
}

/* What can't be asked for ahead is asked for in its turn. */
static void ask_ahead(struct kvclient_series *s)
{
	for (; !s->alone && s->asked < s->cfg.n && s->asked < s->turn + KVCLIENT_SERIES_AHEAD; s->asked++)
		if (!cgn_ok(ask(s, s->asked, NULL)))
			return;
}

/* Last of all: the other side may free the series. */
static void tell(struct kvclient_series *s)
{
	static const struct cgn_err fine = {.code = CGN_FINE};
	struct ahead *a = place(s, s->turn);
	const struct cgn_err why = a->state == AHEAD_HERE ? fine : a->why;
	const struct kvclient_answer answer = {.err = &why, .lease = a->lease};
	a->lease = NULL;
	a->state = AHEAD_FREE;
	s->due = false;
	s->turn++;
	s->cfg.done(s->cfg.user, &answer);
}

static void on_tell(struct cgn_timer *t)
{
	struct kvclient_series *s = CGN_CONTAINER(t, struct kvclient_series, tell);
	CGN_LIVE(s, KVCLIENT_SERIES_TAG);
	tell(s);
}

/* There was no room for the piece whose turn it is: what came ahead of it makes some. False: nothing did. */
static bool give_way(struct kvclient_series *s)
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

/* Once no other is on its way, which would take the room again. */
static void ask_alone(struct kvclient_series *s)
{
	struct ahead *a = place(s, s->turn);
	for (size_t i = 0; i < KVCLIENT_SERIES_AHEAD; i++)
		if (s->ahead[i].state == AHEAD_ASKED)
			return;
	s->asked = s->turn + 1;
	if (!cgn_ok(ask(s, s->turn, &a->why)))
		cgn_timer_set(&s->tell, 0);
}

static void on_answer(void *user, const struct kvclient_answer *answer)
{
	struct ahead *a = user;
	struct kvclient_series *s = a->series;
	CGN_LIVE(s, KVCLIENT_SERIES_TAG);
	a->call = NULL;
	a->lease = answer->lease;
	a->why = *answer->err;
	a->state = a->why.code == CGN_FINE ? AHEAD_HERE : AHEAD_FAILED;
	if (s->due && a == place(s, s->turn)) {
		if (a->why.code == CGN_OVERLOADED && give_way(s))
			ask_alone(s);
		else
			tell(s);
	} else if (s->alone) {
		kvclient_lease_release(&a->lease);
		a->state = AHEAD_FREE;
		ask_alone(s);
	}
}

/* The piece whose turn it is: here, on its way, or to be asked for now; one that failed ahead of its turn
 * gets its own try. */
static void await(struct kvclient_series *s)
{
	struct ahead *a = place(s, s->turn);
	s->due = true;
	if (a->state == AHEAD_HERE && kvclient_lease_is_stale(a->lease)) { /* it waited for too long */
		kvclient_lease_release(&a->lease);
		a->state = AHEAD_FREE;
	}
	/* also CGN_NOT_FOUND: what is under way makes a peer look slower than computing anew */
	if (a->state == AHEAD_FAILED)
		a->state = AHEAD_FREE;
	if (a->state == AHEAD_FREE && !cgn_ok(ask(s, s->turn, &a->why)))
		a->state = AHEAD_FAILED;
	if (s->asked <= s->turn)
		s->asked = s->turn + 1;
	if (a->state != AHEAD_ASKED)
		cgn_timer_set(&s->tell, 0);
	ask_ahead(s);
}

CGN_RC kvclient_series_new(struct kvclient *c, const struct kvclient_series_cfg *cfg,
	struct kvclient_series **out, struct cgn_err *err)
{
	struct kvclient_series *s = calloc(1, sizeof *s);
	CGN_MUST(cfg->n > 0);
	if (s == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for pieces of a value");
	*s = (struct kvclient_series){.tag = KVCLIENT_SERIES_TAG, .client = c, .cfg = *cfg, .due = true};
	cgn_timer_init(&s->tell, c->loop, on_tell);
	for (size_t i = 0; i < KVCLIENT_SERIES_AHEAD; i++)
		s->ahead[i].series = s;
	cgn_rc rc = ask(s, 0, err);
	if (!cgn_ok(rc)) {
		free(s);
		return rc;
	}
	s->asked = 1;
	ask_ahead(s);
	*out = s;
	return CGN_OK;
}

void kvclient_series_next(struct kvclient_series *s)
{
	CGN_LIVE(s, KVCLIENT_SERIES_TAG);
	CGN_MUST(!s->due && s->turn < s->cfg.n);
	await(s);
}

static void release(struct cgn_grave *g)
{
	free(CGN_CONTAINER(g, struct kvclient_series, grave));
}

void kvclient_series_free(struct kvclient_series **take)
{
	struct kvclient_series *s = *take;
	*take = NULL;
	if (s == NULL)
		return;
	CGN_LIVE(s, KVCLIENT_SERIES_TAG);
	cgn_timer_cancel(&s->tell);
	for (size_t i = 0; i < KVCLIENT_SERIES_AHEAD; i++) {
		kvclient_call_cancel(&s->ahead[i].call);
		kvclient_lease_release(&s->ahead[i].lease);
	}
	s->tag = 0;
	cgn_loop_bury(s->client->loop, &s->grave, release);
}
