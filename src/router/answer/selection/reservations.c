/* SPDX-License-Identifier: Apache-2.0 */
#include "router/answer/selection/reservations.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/core/list.h"
#include "base/log/log.h"
#include "router/metrics.h"

#define BUCKETS     4096
#define SWEEP_EVERY CGN_SEC

struct held {
	struct cgn_link link, order;
	uint64_t holder;
	cgn_nsec touched;
	struct chooser_ticket ticket;
	char id[SELECTION_ID_MAX + 1];
	uint64_t place;
	char tenant[QUOTA_NAME_MAX + 1]; /* Holds it. */
};

#define GW_RESERVATIONS_TAG 0x4e5e4701U
struct gw_reservations {
	uint32_t tag;
	struct gw_reservations_cfg cfg;
	pthread_mutex_t lock;
	struct cgn_link buckets[BUCKETS];
	struct cgn_link order; /* By |touched|, oldest first. */
	uint32_t n;
	cgn_nsec swept;
};

struct gw_reservations *gw_reservations_open(const struct gw_reservations_cfg *cfg)
{
	struct gw_reservations *t = CGN_NEW(struct gw_reservations);
	t->tag = GW_RESERVATIONS_TAG;
	t->cfg = *cfg;
	(void)pthread_mutex_init(&t->lock, NULL);
	cgn_list_init(&t->order);
	for (size_t i = 0; i < BUCKETS; i++)
		cgn_list_init(&t->buckets[i]);
	return t;
}

static void held_free(struct gw_reservations *t, struct held *h)
{
	gw_quotas_give(t->cfg.quotas, &(struct quota_holder){QUOTA_RESERVATIONS, cgn_str_of(h->tenant), 0},
		1);
	if (h->place != 0)
		gw_quotas_give(t->cfg.quotas,
			&(struct quota_holder){QUOTA_REQUESTS, cgn_str_of(h->tenant), h->place}, 1);
	cgn_list_drop(&h->link);
	cgn_list_drop(&h->order);
	t->n--;
	metric_set(METRIC_ONE(t->cfg.telemetry, RESERVATIONS), (double)t->n);
	free(h);
}

void gw_reservations_close(struct gw_reservations **take)
{
	struct gw_reservations *t = CGN_TAKE_LIVE(take, GW_RESERVATIONS_TAG);
	if (t == NULL)
		return;
	cgn_list_each_safe (it, &t->order)
		held_free(t, CGN_CONTAINER(it, struct held, order));
	(void)pthread_mutex_destroy(&t->lock);
	t->tag = 0;
	free(t);
}

static struct cgn_link *bucket_of(struct gw_reservations *t, const struct gw_reservation_name *name)
{
	return &t->buckets[route_hash(name->id.p, name->id.n) % BUCKETS];
}

/* With the lock. */
static struct held *held_find(struct gw_reservations *t, const struct gw_reservation_name *name)
{
	cgn_list_each (it, bucket_of(t, name)) {
		struct held *h = CGN_CONTAINER(it, struct held, link);
		if (h->holder == name->holder && cgn_str_is(name->id, h->id))
			return h;
	}
	return NULL;
}

/* With the lock. */
static CGN_RC held_add(struct gw_reservations *t, const struct gw_reservation_name *name,
	const struct gw_reservation_new *of, struct quota_told *told, struct cgn_err *err)
{
	if (held_find(t, name) != NULL)
		return CGN_FAIL(err, CONFLICT, "there is a reservation %.*s already", CGN_STR_ARG(name->id));
	if (!gw_quotas_take(t->cfg.quotas, of->who, 1, t->cfg.max, told))
		return CGN_FAIL(err, OVERLOADED,
			"there are %u reservations (router.selection.max): end those whose request is over",
			t->n);
	struct held *h = CGN_NEW(struct held);
	h->holder = name->holder;
	h->touched = of->now;
	h->place = of->place;
	h->ticket = *of->ticket;
	(void)cgn_str_copyz(h->tenant, sizeof h->tenant, of->who->holder.tenant);
	(void)cgn_str_copyz(h->id, sizeof h->id, name->id);
	cgn_list_push(bucket_of(t, name), &h->link);
	cgn_list_push(&t->order, &h->order);
	t->n++;
	metric_set(METRIC_ONE(t->cfg.telemetry, RESERVATIONS), (double)t->n);
	return CGN_OK;
}

CGN_RC gw_reservations_add(struct gw_reservations *t, const struct gw_reservation_name *name,
	const struct gw_reservation_new *of, struct quota_told *told, struct cgn_err *err)
{
	CGN_LIVE(t, GW_RESERVATIONS_TAG);
	*told = (struct quota_told){0};
	CGN_MUST(selection_id_is_ok(name->id));
	(void)pthread_mutex_lock(&t->lock);
	cgn_rc rc = held_add(t, name, of, told, err);
	(void)pthread_mutex_unlock(&t->lock);
	return rc;
}

static void held_touch(struct gw_reservations *t, struct held *h, cgn_nsec now)
{
	/* At the end of |order|, which stays sorted by time: the sweep stops at the first that is young
	 * enough. */
	h->touched = now;
	cgn_list_drop(&h->order);
	cgn_list_push(&t->order, &h->order);
}

bool gw_reservations_begun(struct gw_reservations *t, struct chooser *c,
	const struct gw_reservation_name *name, cgn_nsec now)
{
	CGN_LIVE(t, GW_RESERVATIONS_TAG);
	(void)pthread_mutex_lock(&t->lock);
	struct held *h = held_find(t, name);
	if (h != NULL) {
		chooser_begun(c, &h->ticket, now);
		held_touch(t, h, now);
	}
	(void)pthread_mutex_unlock(&t->lock);
	return h != NULL;
}

bool gw_reservations_touch(struct gw_reservations *t, const struct gw_reservation_name *name, cgn_nsec now)
{
	CGN_LIVE(t, GW_RESERVATIONS_TAG);
	(void)pthread_mutex_lock(&t->lock);
	struct held *h = held_find(t, name);
	if (h != NULL)
		held_touch(t, h, now);
	(void)pthread_mutex_unlock(&t->lock);
	return h != NULL;
}

static void held_end(struct gw_reservations *t, struct chooser *c, struct held *h, const char *outcome,
	uint64_t answer_tokens, cgn_nsec now)
{
	const bool failed = strcmp(outcome, "done") != 0;
	const struct chooser_outcome o = {.answer_tokens = failed ? 0 : answer_tokens};
	chooser_done(c, &h->ticket, &o, now);
	metric_add(METRIC_OF(t->cfg.telemetry, RESERVATIONS_ENDED, outcome), 1);
	held_free(t, h);
}

bool gw_reservations_end(struct gw_reservations *t, struct chooser *c, const struct gw_reservation_name *name,
	bool failed, uint64_t answer_tokens, cgn_nsec now)
{
	CGN_LIVE(t, GW_RESERVATIONS_TAG);
	(void)pthread_mutex_lock(&t->lock);
	struct held *h = held_find(t, name);
	if (h != NULL)
		held_end(t, c, h, failed ? "failed" : "done", answer_tokens, now);
	(void)pthread_mutex_unlock(&t->lock);
	return h != NULL;
}

size_t gw_reservations_sweep(struct gw_reservations *t, struct chooser *c, cgn_nsec now)
{
	size_t ended = 0;
	struct cgn_link *first;
	CGN_LIVE(t, GW_RESERVATIONS_TAG);
	(void)pthread_mutex_lock(&t->lock);
	bool due = cgn_since(now, t->swept) >= SWEEP_EVERY;
	t->swept = due ? now : t->swept;
	while (due && (first = cgn_list_first(&t->order)) != NULL) {
		struct held *h = CGN_CONTAINER(first, struct held, order);
		if (cgn_since(now, h->touched) < t->cfg.lease)
			break;
		cgn_log_limited(WARN, "selection.lease_over", F_STR("reservation", h->id),
			F_STR("then", "its load counts no more"));
		held_end(t, c, h, "expired", 0, now);
		ended++;
	}
	(void)pthread_mutex_unlock(&t->lock);
	return ended;
}
