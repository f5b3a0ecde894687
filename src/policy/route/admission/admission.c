/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "policy/route/admission/admission_priv.h"

#define ADMISSION_TAG 0x64ad0e01U
#define RETRY_WAIT    (250 * CGN_MSEC) /* between attempts when no node can be reached */
#define QUEUE_IDLE    (300 * CGN_SEC)  /* an empty queue and its rate are kept so long */

const char *admission_role_text(enum admission_role role)
{
	return role == ADMISSION_GENERATION ? "generation" : "prompt_only";
}

/* ---- queues ---- */

static struct queue_rules order_rules(const struct admission *a)
{
	return (struct queue_rules){a->rules.policy, a->rules.max_queue};
}

static void queue_release(struct admission_queue *q)
{
	queue_free(&q->order);
	free(q->model);
	free(q);
}

static bool tenant_may(void *user, struct cgn_str tenant)
{
	const struct admission_queue *q = user;
	return q->of->ops->may(q->of->user, cgn_str_of(q->model), tenant, q->of->free);
}

static struct admission_queue *queue_add(struct admission *a, const struct admission_ticket *t)
{
	struct queue_rules rules = order_rules(a);
	struct admission_queue *q = CGN_NEW(struct admission_queue);
	q->model = cgn_str_dupz(t->model);
	q->of = a;
	q->order = queue_new(&rules);
	if (a->ops->may != NULL)
		queue_gate(q->order, tenant_may, q);
	cgn_list_init(&q->retries);
	q->bucket = admission_bucket(t->model);
	q->role = t->role;
	cgn_list_push(&a->queues, &q->link);
	return q;
}

/* Only known models have queues, so they are few: a scan beats hashing. */
static struct admission_queue *queue_of(struct admission *a, const struct admission_ticket *t)
{
	cgn_list_each (k, &a->queues) {
		struct admission_queue *q = CGN_CONTAINER(k, struct admission_queue, link);
		if (q->role == t->role && cgn_str_is(t->model, q->model))
			return q;
	}
	return queue_add(a, t);
}

size_t admission_queue_len(const struct admission_queue *q)
{
	return queue_len(q->order) + q->n_retries;
}

static bool has_no_node(const struct admission *a, const struct admission_queue *q)
{
	const struct view_model *m = admission_queue_model(a, q);
	return m == NULL || m->n_ready == 0;
}

static bool is_node_expected(const struct admission *a, const struct admission_queue *q)
{
	return a->now < a->expected[q->bucket].until && has_no_node(a, q);
}

/* Return how long the |n|th request waits. */
static cgn_nsec queue_time(const struct admission *a, const struct admission_queue *q, size_t n)
{
	cgn_nsec ready_at = a->expected[q->bucket].ready_at;
	if (is_node_expected(a, q))
		return ready_at > a->now ? ready_at - a->now : CGN_SEC;
	return queue_rate_time(&q->rate, n, a->now);
}

/* How long a request waits that has |ahead| others before it. */
cgn_nsec admission_queue_wait(const struct admission *a, const struct admission_queue *q, size_t ahead)
{
	return queue_time(a, q, ahead + 1);
}

void admission_queue_changed(struct admission *a, struct admission_queue *q, int by)
{
	size_t n = admission_queue_len(q);
	a->waiting += (size_t)by;
	if (n == 0)
		queue_rate_stop(&q->rate, a->now);
	else
		queue_rate_start(&q->rate, a->now);
	if (n > 0)
		q->idle_since = 0;
	else if (q->idle_since == 0)
		q->idle_since = a->now;
	a->ops->on_change(a->user, q->model, by, admission_queue_wait(a, q, n));
}

const struct view_model *admission_queue_model(const struct admission *a, const struct admission_queue *q)
{
	return a->view != NULL ? view_model_find(a->view, cgn_str_of(q->model)) : NULL;
}

static void retry_add(struct admission_queue *q, struct admission_ticket *t)
{
	t->retrying = true;
	cgn_list_push(&q->retries, &t->retry);
	q->n_retries++;
}

void admission_retry_drop(struct admission_queue *q, struct admission_ticket *t)
{
	t->retrying = false;
	cgn_list_drop(&t->retry);
	q->n_retries--;
}

/* Take any ticket out of |q|, whether there is room for it or not; NULL: |q| is empty. */
static struct admission_ticket *ticket_pull(struct admission_queue *q)
{
	if (q->n_retries > 0) {
		struct admission_ticket *t = CGN_CONTAINER(q->retries.next, struct admission_ticket, retry);
		admission_retry_drop(q, t);
		return t;
	}
	struct queue_item *it = queue_pull(q->order);
	return it != NULL ? CGN_CONTAINER(it, struct admission_ticket, item) : NULL;
}

/* ---- verdicts ---- */

void admission_answer(struct admission *a, struct admission_ticket *t, enum admission_verdict verdict,
	unsigned retry_after)
{
	t->verdict = verdict;
	t->retry_after = retry_after;
	t->queue = NULL;
	a->ops->on_verdict(a->user, t);
}

static cgn_nsec ticket_budget(const struct admission_ticket *t)
{
	return t->item.deadline != 0 ? t->item.deadline - t->item.arrived : 0;
}

unsigned admission_met_after(const struct admission_ticket *t, cgn_nsec wait)
{
	return t->item.need > ticket_budget(t) ? 0 : admission_retry_after(wait);
}

static void refuse_full(struct admission *a, const struct admission_queue *q, struct admission_ticket *t)
{
	admission_answer(a, t, ADMISSION_FULL,
		admission_retry_after(queue_time(a, q, admission_queue_len(q))));
}

/* Refuse |t|, which waits, if its deadline cannot be met. A long prompt without a firm deadline is served
 * all the same. */
static void refuse_if_late(struct admission *a, struct admission_queue *q, struct admission_ticket *t)
{
	cgn_nsec budget = ticket_budget(t), wait = 0;
	if (budget == 0 || !t->measured || (t->item.need > budget && !t->item.firm))
		return;
	if (queue_rate_known(&q->rate))
		wait = admission_queue_wait(a, q, queue_ahead(q->order, &t->item));
	wait = wait > t->ahead ? wait : t->ahead; /* prompts on the nodes go before all that waits here */
	if (a->now + wait + t->item.need <= t->item.deadline)
		return;
	queue_drop(q->order, &t->item);
	admission_answer(a, t, ADMISSION_UNMEETABLE, admission_met_after(t, wait));
	admission_queue_changed(a, q, -1);
}

static void refuse_all(struct admission *a, struct admission_queue *q, enum admission_verdict verdict,
	unsigned retry_after)
{
	struct admission_ticket *t;
	while ((t = ticket_pull(q)) != NULL) {
		admission_answer(a, t, verdict, retry_after);
		admission_queue_changed(a, q, -1);
	}
}

/* A node that restarts is back within a moment: the requests of its model wait for node_wait. */
static bool queue_is_abandoned(const struct admission *a, const struct admission_queue *q)
{
	cgn_nsec last = a->ready_at[q->bucket] > a->started ? a->ready_at[q->bucket] : a->started;
	return has_no_node(a, q) && !is_node_expected(a, q) && a->now >= last + a->rules.node_wait;
}

/* ---- tickets ---- */

/* Others may have no better luck: let them follow slowly. A request that excludes nodes says nothing of others. */
static void bounced_wait(const struct admission *a, struct admission_queue *q, struct admission_ticket *t)
{
	cgn_nsec until = a->now + ADMISSION_BOUNCE_WAIT;
	if (t->n_excluded > 0) {
		t->not_before = until;
		return;
	}
	q->not_before = until;
	q->window = q->left = 1;
	q->window_end = until + ADMISSION_BOUNCE_WAIT;
}

static void ticket_readmit(struct admission *a, struct admission_queue *q, struct admission_ticket *t)
{
	if (t->bounced) {
		a->reserved[t->slot]--;
		queue_rate_uncount(&q->rate, a->now);
		bounced_wait(a, q, t);
	}
	if (t->pause)
		t->not_before = a->now + RETRY_WAIT;
	t->bounced = false;
	if (t->n_excluded > 0)
		retry_add(q, t);
	else
		queue_return(q->order, &t->item);
	admission_queue_changed(a, q, 1);
	admission_serve_all(a);
}

static void ticket_enqueue(struct admission *a, struct admission_queue *q, struct admission_ticket *t)
{
	struct queue_item *displaced = NULL;
	if (queue_put(q->order, &t->item, &displaced) == QUEUE_FULL) {
		refuse_full(a, q, t);
		return;
	}
	admission_queue_changed(a, q, 1);
	if (displaced != NULL) {
		refuse_full(a, q, CGN_CONTAINER(displaced, struct admission_ticket, item));
		admission_queue_changed(a, q, -1);
	}
	admission_serve_all(a);
	if (queue_has(&t->item))
		refuse_if_late(a, q, t);
}

void admission_enter(struct admission *a, struct admission_ticket *t, cgn_nsec now)
{
	CGN_LIVE(a, ADMISSION_TAG);
	a->now = now;
	struct admission_queue *q = queue_of(a, t);
	t->queue = q;
	if (t->n_excluded > 0 || t->bounced)
		ticket_readmit(a, q, t);
	else if (queue_is_abandoned(a, q))
		admission_answer(a, t, ADMISSION_NO_NODE, ADMISSION_RETRY_NO_NODE);
	else
		ticket_enqueue(a, q, t);
}

bool admission_leave(struct admission *a, struct admission_ticket *t, cgn_nsec now)
{
	CGN_LIVE(a, ADMISSION_TAG);
	struct admission_queue *q = t->queue;
	if (q == NULL)
		return false;
	a->now = now;
	if (t->retrying)
		admission_retry_drop(q, t);
	else
		queue_drop(q->order, &t->item);
	t->queue = NULL;
	admission_queue_changed(a, q, -1);
	return true;
}

void admission_settle(struct admission *a, uint16_t slot, cgn_nsec now)
{
	CGN_LIVE(a, ADMISSION_TAG);
	CGN_MUST(a->reserved[slot] > 0);
	a->reserved[slot]--;
	admission_serve(a, now);
}

/* ---- all of them ---- */

struct admission *admission_new(const struct admission_rules *rules, const struct node_stats *stats,
	const struct admission_ops *ops, void *user, cgn_nsec now)
{
	struct admission *a = CGN_NEW(struct admission);
	a->tag = ADMISSION_TAG;
	a->rules = *rules;
	a->ops = ops;
	a->user = user;
	a->stats = stats;
	a->started = a->now = now;
	cgn_list_init(&a->queues);
	return a;
}

struct admission_ticket *admission_pull(struct admission *a)
{
	CGN_LIVE(a, ADMISSION_TAG);
	cgn_list_each (k, &a->queues) {
		struct admission_queue *q = CGN_CONTAINER(k, struct admission_queue, link);
		struct admission_ticket *t = ticket_pull(q);
		if (t != NULL) {
			t->queue = NULL;
			admission_queue_changed(a, q, -1);
			return t;
		}
	}
	return NULL;
}

void admission_free(struct admission **take)
{
	struct admission *a = CGN_TAKE_LIVE(take, ADMISSION_TAG);
	if (a == NULL)
		return;
	cgn_list_each_safe (k, &a->queues)
		queue_release(CGN_CONTAINER(k, struct admission_queue, link));
	a->tag = 0;
	free(a);
}

void admission_view_set(struct admission *a, const struct cluster_view *view, cgn_nsec now)
{
	CGN_LIVE(a, ADMISSION_TAG);
	for (size_t i = 0; a->view != NULL && i < a->view->n_models; i++)
		if (a->view->models[i].n_ready > 0)
			a->ready_at[admission_bucket(a->view->models[i].name)] = now;
	a->view = view;
	admission_serve(a, now);
}

void admission_tune(struct admission *a, const struct admission_rules *rules, cgn_nsec now)
{
	CGN_LIVE(a, ADMISSION_TAG);
	a->rules = *rules;
	struct queue_rules order = order_rules(a);
	cgn_list_each (k, &a->queues)
		queue_tune(CGN_CONTAINER(k, struct admission_queue, link)->order, &order);
	admission_serve(a, now);
}

void admission_expect(struct admission *a, struct cgn_str model, cgn_nsec ready_at, cgn_nsec until)
{
	CGN_LIVE(a, ADMISSION_TAG);
	size_t bucket = admission_bucket(model);
	a->expected[bucket].ready_at = ready_at;
	a->expected[bucket].until = until;
}

void admission_drain(struct admission *a, cgn_nsec at)
{
	CGN_LIVE(a, ADMISSION_TAG);
	a->drain_at = at;
}

void admission_serve(struct admission *a, cgn_nsec now)
{
	CGN_LIVE(a, ADMISSION_TAG);
	a->now = now;
	admission_serve_all(a);
}

static void queue_poll(struct admission *a, struct admission_queue *q)
{
	if (admission_queue_len(q) > 0 && a->drain_at != 0 && a->now >= a->drain_at)
		refuse_all(a, q, ADMISSION_DRAINING, 1);
	if (admission_queue_len(q) > 0 && queue_is_abandoned(a, q))
		refuse_all(a, q, ADMISSION_NO_NODE, ADMISSION_RETRY_NO_NODE);
	admission_queue_changed(a, q, 0);
	if (admission_queue_len(q) > 0 || a->now < q->idle_since + QUEUE_IDLE)
		return;
	cgn_list_drop(&q->link);
	queue_release(q);
}

void admission_poll(struct admission *a, cgn_nsec now)
{
	CGN_LIVE(a, ADMISSION_TAG);
	a->now = now;
	cgn_list_each_safe (k, &a->queues)
		queue_poll(a, CGN_CONTAINER(k, struct admission_queue, link));
	admission_serve_all(a);
}

size_t admission_waiting(const struct admission *a)
{
	CGN_LIVE(a, ADMISSION_TAG);
	return a->waiting;
}

size_t admission_depth(const struct admission *a, struct cgn_str model)
{
	size_t n = 0;
	cgn_list_each (k, &a->queues) {
		const struct admission_queue *q = CGN_CONTAINER(k, struct admission_queue, link);
		n += cgn_str_is(model, q->model) ? admission_queue_len(q) : 0;
	}
	return n;
}

void admission_each(const struct admission *a, cgn_nsec now,
	void (*fn)(void *user, const struct admission_status *s), void *user)
{
	cgn_list_each (k, &a->queues) {
		const struct admission_queue *q = CGN_CONTAINER(k, struct admission_queue, link);
		size_t n = admission_queue_len(q);
		fn(user,
			&(struct admission_status){.model = q->model,
				.role = q->role,
				.requests = n,
				.retries = q->n_retries,
				.tokens = queue_tokens(q->order),
				.wait = queue_rate_time(&q->rate, n + 1, now),
				.order = q->order});
	}
}
