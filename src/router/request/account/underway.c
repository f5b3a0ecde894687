/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/account/underway.h"

#include <stdlib.h>

#include "base/core/list.h"
#include "router/request/account/account.h"
#include "router/request/account/usage.h"
#include "router/request/account/usageopen.h"

#define WHOLE_EVERY (50 * CGN_MSEC)  /* The time between two records of an answer that comes as a whole. */
#define GAP_MOST    (100 * CGN_MSEC) /* A worker that stood still for longer says nothing of the next time. */
#define IDLE_EVERY  (20 * CGN_MSEC)  /* Requests are looked at this often while none has a record. */

struct gw_underway {
	struct cgn_link link;
	struct gw_req *r;
	struct usage_place place;
	uint64_t bytes; /* The answer's bytes when the record was written. */
	cgn_nsec put_at;
};
struct gw_underways {
	struct cgn_link list;
	struct cgn_timer timer;
	struct cgn_loop *loop;
	cgn_nsec every, looked_at;
};

/* ---- records ---- */

static bool is_due(const struct gw_underway *v, cgn_nsec now)
{
	const struct gw_answer *to = &v->r->answer;
	if (to->event_stream && to->bytes_out > 0)
		return v->place.id == 0 || to->bytes_out != v->bytes;
	return cgn_since(now, v->r->client.started) >= UNDERWAY_WHOLE &&
		cgn_since(now, v->put_at) >= WHOLE_EVERY;
}

/* Write the record as of the middle of the time until the next one, which comes as late as the last one did. */
static void record_put(struct gw_underway *v, cgn_nsec gap, cgn_nsec now)
{
	const struct gw_req *r = v->r;
	const struct gw_used used = gw_used_left(r, (r->answer.event_stream ? gap : WHOLE_EVERY) / 2);
	const struct billing_names names = {r->identity.tenant,
		cgn_str_of(r->identity.key_id != NULL ? r->identity.key_id : "-"), r->prompt.model};
	const struct billing_amounts amounts = {used.requests, used.estimated, used.input, used.cached,
		used.output, used.money, used.joules};
	v->put_at = now;
	v->bytes = r->answer.bytes_out;
	if (used.requests > 0)
		gw_usage_put(r->w->shared->usage, &names, &amounts, &v->place);
}

static void on_underway(struct cgn_timer *t)
{
	struct gw_underways *all = CGN_CONTAINER(t, struct gw_underways, timer);
	cgn_nsec now = cgn_loop_now(all->loop), gap = cgn_since(now, all->looked_at);
	size_t n = 0;
	all->looked_at = now;
	cgn_list_each (l, &all->list) {
		struct gw_underway *v = CGN_CONTAINER(l, struct gw_underway, link);
		if (is_due(v, now))
			record_put(v, gap < GAP_MOST ? gap : GAP_MOST, now);
		n += v->place.id != 0;
	}
	all->every = n == 0                           ? IDLE_EVERY
		: n * UNDERWAY_SHARE > UNDERWAY_EVERY ? n * UNDERWAY_SHARE
						      : UNDERWAY_EVERY;
	if (!cgn_list_empty(&all->list))
		cgn_timer_set(t, all->every);
}

/* ---- requests ---- */

void gw_underway_open(struct gw_worker *w)
{
	w->underway = CGN_NEW(struct gw_underways);
	w->underway->loop = w->loop;
	w->underway->every = IDLE_EVERY;
	cgn_list_init(&w->underway->list);
	cgn_timer_init(&w->underway->timer, w->loop, on_underway);
}

void gw_underway_close(struct gw_worker *w)
{
	if (w->underway == NULL)
		return;
	CGN_MUST(cgn_list_empty(&w->underway->list));
	cgn_timer_cancel(&w->underway->timer);
	free(w->underway);
	w->underway = NULL;
}

void gw_underway_begin(struct gw_req *r)
{
	struct gw_underways *all = r->w->underway;
	if (r->underway != NULL || r->w->shared->usage == NULL || all == NULL || r->identity.own ||
		r->identity.tenant.n == 0 || r->prompt.model.n == 0 || !gw_used_has_tokens(r))
		return;
	r->underway = cgn_arena_zero(&r->arena, sizeof *r->underway);
	if (r->underway == NULL) /* Out of memory: the request has no record. */
		return;
	r->underway->r = r;
	cgn_list_push(&all->list, &r->underway->link);
	if (all->timer.at != 0)
		return;
	all->looked_at = cgn_loop_now(all->loop);
	cgn_timer_set(&all->timer, all->every);
}

void gw_underway_stop(struct gw_req *r)
{
	if (r->underway != NULL)
		cgn_list_drop(&r->underway->link);
}

struct usage_place *gw_underway_place(const struct gw_req *r)
{
	return r->underway != NULL ? &r->underway->place : NULL;
}

void gw_underway_end(struct gw_req *r)
{
	if (r->underway != NULL && r->underway->place.id != 0)
		gw_usage_drop(r->w->shared->usage, &r->underway->place);
}
