/* SPDX-License-Identifier: Apache-2.0 */
/* request: the driver of its states. */
#include "router/request/request/request.h"

#include "router/shared/quotas/quotas.h"

/* Add the time since the last change to the state that |r| is in. */
static void times_add(struct gw_req *r)
{
	cgn_nsec now = cgn_loop_now(r->w->loop);
	r->times.us[r->state] += (uint32_t)(cgn_since(now, r->times.since) / CGN_USEC);
	r->times.since = now;
}

void gw_goto(struct gw_req *r, enum gw_state next)
{
	CGN_LIVE(r, GW_REQ_TAG);
	CGN_MUST(r->machine[r->state].exits & 1U << next);
	times_add(r);
	r->state = next;
}

enum gw_step gw_park(struct gw_req *r, enum gw_wait what, cgn_nsec delay)
{
	r->armed = what;
	cgn_timer_cancel(&r->timer);
	if (delay > 0)
		cgn_timer_set(&r->timer, delay);
	return STEP_PARK;
}

/* A callback may come while a handler runs, such as the end of an exchange that the handler answers. */
void gw_wake(struct gw_req *r)
{
	CGN_LIVE(r, GW_REQ_TAG);
	r->event = true;
	if (r->waking)
		return;
	r->waking = true;
	enum gw_step s = STEP_AGAIN;
	while (s == STEP_AGAIN || (s == STEP_PARK && r->event)) {
		if (r->client.x == NULL && r->state != GW_FINISH)
			gw_goto(r, GW_FINISH); /* a request ends with its client, in every state */
		r->event = false;
		r->armed = WAIT_NONE;
		s = r->machine[r->state].run(r);
	}
	if (s == STEP_END)
		return;
	CGN_MUST(r->armed != WAIT_NONE); /* a request that waits for nothing hangs */
	r->waking = false;
}

static void on_timer(struct cgn_timer *t)
{
	gw_wake(CGN_CONTAINER(t, struct gw_req, timer));
}

void gw_req_start(struct gw_req *r, const struct gw_state_row *machine)
{
	r->machine = machine;
	r->state = GW_AUTH;
	r->times.since = cgn_loop_now(r->w->loop);
	cgn_timer_init(&r->timer, r->w->loop, on_timer);
}

struct gw_body_bound gw_body_bound(const struct gw_req *r)
{
	return (struct gw_body_bound){&r->w->shared->body_bytes, r->w->rules->max_body,
		r->w->rules->max_inflight_body};
}

/* Book memory as it grows, not as the head claims a length: a claim must not use up what other bodies need. */
enum cgn_code gw_body_append(const struct gw_body_bound *b, struct cgn_buf *to, uint64_t *booked,
	struct cgn_str bytes)
{
	if (bytes.n > b->max_body || to->n > b->max_body - bytes.n)
		return CGN_TOO_LARGE;
	if (atomic_load_explicit(b->used, memory_order_relaxed) + bytes.n > b->max_inflight)
		return CGN_OVERLOADED;
	cgn_buf_str(to, bytes);
	if (to->bad)
		return CGN_NO_MEMORY;
	if (to->cap > *booked) {
		atomic_fetch_add_explicit(b->used, to->cap - *booked, memory_order_relaxed);
		*booked = to->cap;
	}
	return CGN_FINE;
}

void gw_body_fit(const struct gw_body_bound *b, struct cgn_buf *to, uint64_t *booked)
{
	cgn_buf_fit(to);
	uint64_t spare = *booked - to->cap;
	CGN_MUST(spare <= *booked);
	atomic_fetch_sub_explicit(b->used, spare, memory_order_relaxed);
	*booked -= spare;
}

static void body_share_give(struct gw_req *r)
{
	const struct quota_holder h = {QUOTA_BODIES, gw_identity_label(&r->identity), 0};
	if (r->body.shared > 0)
		gw_quotas_give(r->w->shared->quotas, &h, r->body.shared);
	r->body.shared = 0;
}

void gw_body_drop(struct gw_req *r)
{
	gw_call_keep(&r->attempt.call);
	gw_call_keep(&r->beside.call);
	cgn_buf_fini(&r->body.leg);
	cgn_buf_fini(&r->body.beside);
	if (r->body.booked > 0)
		atomic_fetch_sub_explicit(&r->w->shared->body_bytes, r->body.booked, memory_order_relaxed);
	r->body.booked = 0;
	body_share_give(r);
	cgn_buf_fini(&r->body.bytes);
}

void gw_body_replace(struct gw_req *r, struct cgn_buf *own)
{
	gw_body_drop(r);
	r->body.bytes = *own;
	*own = (struct cgn_buf){0};
	r->body.booked = r->body.bytes.cap;
	atomic_fetch_add_explicit(&r->w->shared->body_bytes, r->body.booked, memory_order_relaxed);
}
