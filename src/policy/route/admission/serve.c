/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/breaker/breaker.h"
#include "policy/route/admission/admission_priv.h"

#define WINDOW_MOST 64

/* A node that waits for a probe takes one request, whatever room it has. */
static uint32_t node_room(const struct admission *a, const struct route_cand *c)
{
	uint32_t reserved = a->reserved[c->slot];
	uint32_t room = route_room(a->rules.max_inflight, c->width, c->inflight + reserved, c->others);
	uint64_t word = atomic_load_explicit(&a->stats[c->slot].breaker, memory_order_relaxed);
	if (room > 0 && breaker_gate(word, a->now) == BREAKER_PROBE)
		return reserved == 0;
	return room;
}

/* Return the most room of the |n| candidates, and its slot. */
static uint32_t room_most(struct admission *a, size_t n, uint16_t *slot)
{
	uint32_t most = 0;
	a->free = 0;
	for (size_t i = 0; i < n; i++) {
		uint32_t room = node_room(a, &a->cands[i]);
		a->free += room;
		if (room <= most)
			continue;
		most = room;
		*slot = a->cands[i].slot;
	}
	return most;
}

/* Keep the prefill nodes that can answer whole requests. */
static size_t prefill_alone(struct route_cand *cands, size_t n)
{
	size_t kept = 0;
	for (size_t i = 0; i < n; i++)
		if (cands[i].alone &&
			chooser_role_fits(&(struct chooser_ask){.continues = true}, cands[i].role))
			cands[kept++] = cands[i];
	return kept;
}

/* Find the node with the most room among those that the chooser would offer to |q|, without the nodes that
 * failed |t| (NULL: any request, which a prefill node may answer where the others are full). False: there is none. */
static bool room_find(struct admission *a, const struct admission_queue *q, const struct admission_ticket *t,
	uint16_t *slot)
{
	const struct view_model *m = admission_queue_model(a, q);
	const struct view_ask ask = {.excluded = t != NULL ? t->excluded : NULL,
		.n_excluded = t != NULL ? t->n_excluded : 0,
		.now = a->now};
	size_t n = m != NULL ? view_candidates(m, a->stats, &ask, a->cands) : 0;
	n = chooser_roles(&(struct chooser_ask){.embeds = q->role == ADMISSION_PROMPT_ONLY}, a->cands, n);
	if (room_most(a, n, slot) > 0)
		return true;
	if (n == 0 || t != NULL || q->role != ADMISSION_GENERATION || !a->rules.prefill_answers)
		return false;
	n = prefill_alone(a->cands, view_candidates(m, a->stats, &ask, a->cands));
	return room_most(a, n, slot) > 0;
}

static void ticket_admit(struct admission *a, struct admission_queue *q, struct admission_ticket *t,
	uint16_t slot)
{
	a->reserved[slot]++;
	t->slot = slot;
	queue_rate_count(&q->rate, a->now);
	admission_answer(a, t, ADMISSION_ADMITTED, 0);
	admission_queue_changed(a, q, -1);
}

static bool retries_serve(struct admission *a, struct admission_queue *q)
{
	uint16_t slot = 0;
	cgn_list_each (k, &q->retries) {
		struct admission_ticket *t = CGN_CONTAINER(k, struct admission_ticket, retry);
		if (a->now < t->not_before || !room_find(a, q, t, &slot))
			continue;
		admission_retry_drop(q, t);
		ticket_admit(a, q, t, slot);
		return true;
	}
	return false;
}

/* May another request be admitted in this window? A window without one that came back doubles the next. */
static bool window_has_room(const struct admission *a, struct admission_queue *q)
{
	if (q->window != 0 && a->now >= q->window_end) {
		q->window = q->window < WINDOW_MOST ? 2 * q->window : 0;
		q->left = q->window;
		q->window_end = a->now + ADMISSION_BOUNCE_WAIT;
	}
	return q->window == 0 || q->left > 0;
}

/* Decide about the next request of |q|, if there is room for it. False: there is nothing to decide. */
static bool queue_serve(struct admission *a, struct admission_queue *q)
{
	struct queue_item *it = NULL;
	uint16_t slot = 0;
	if (q->n_retries > 0 && retries_serve(a, q))
		return true;
	if (queue_len(q->order) == 0 || a->now < q->not_before || !window_has_room(a, q) ||
		!room_find(a, q, NULL, &slot))
		return false;
	enum queue_take got = queue_take(q->order, a->now, &it);
	if (got == QUEUE_NONE)
		return false;
	struct admission_ticket *t = CGN_CONTAINER(it, struct admission_ticket, item);
	if (got == QUEUE_GO) {
		q->left -= q->left > 0;
		ticket_admit(a, q, t, slot);
		return true;
	}
	admission_answer(a, t, ADMISSION_UNMEETABLE,
		admission_met_after(t, admission_queue_wait(a, q, admission_queue_len(q))));
	admission_queue_changed(a, q, -1);
	return true;
}

void admission_serve_all(struct admission *a)
{
	for (bool any = true; any;) {
		any = false;
		cgn_list_each (k, &a->queues)
			any |= queue_serve(a, CGN_CONTAINER(k, struct admission_queue, link));
	}
	struct cgn_link *first = cgn_list_first(&a->queues);
	if (first != NULL) { /* another queue is first the next time that a single place is left */
		cgn_list_drop(first);
		cgn_list_push(&a->queues, first);
	}
}
