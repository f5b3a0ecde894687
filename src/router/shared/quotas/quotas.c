/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/quotas/quotas.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "router/metrics.h"

#define QUOTAS_TAG 0x64900a7U

struct gw_quotas {
	uint32_t tag;
	struct telemetry *telemetry;
	pthread_mutex_t lock;
	struct quota_table *table;
	uint64_t size[QUOTA_KINDS]; /* Sizes of the supplies at the last question. */
};

struct gw_quotas *gw_quotas_open(struct telemetry *t)
{
	struct gw_quotas *q = CGN_NEW(struct gw_quotas);
	q->tag = QUOTAS_TAG;
	q->telemetry = t;
	(void)pthread_mutex_init(&q->lock, NULL);
	q->table = quota_table_new();
	return q;
}

void gw_quotas_close(struct gw_quotas **take)
{
	struct gw_quotas *q = CGN_TAKE_LIVE(take, QUOTAS_TAG);
	if (q == NULL)
		return;
	quota_table_free(&q->table);
	(void)pthread_mutex_destroy(&q->lock);
	q->tag = 0;
	free(q);
}

/* With the lock. */
static bool taker_may(const struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t n, uint64_t free,
	struct quota_told *told)
{
	const struct quota_ask ask = {who->holder.kind, who->alone, quota_held(q->table, &who->holder), free,
		n};
	return quota_judge(&ask, told);
}

/* With the lock. */
static bool taker_take(struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t n, uint64_t free,
	struct quota_told *told)
{
	bool may = taker_may(q, who, n, free, told);
	if (may)
		quota_add(q->table, &who->holder, n);
	return may;
}

bool gw_quotas_take(struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t n, uint64_t size,
	struct quota_told *told)
{
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	uint64_t total = quota_total(q->table, who->holder.kind);
	q->size[who->holder.kind] = size;
	bool may = taker_take(q, who, n, size > total ? size - total : 0, told);
	(void)pthread_mutex_unlock(&q->lock);
	return may;
}

bool gw_quotas_take_free(struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t free,
	struct quota_told *told)
{
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	q->size[who->holder.kind] = quota_total(q->table, who->holder.kind) + free;
	bool may = taker_take(q, who, 1, free, told);
	(void)pthread_mutex_unlock(&q->lock);
	return may;
}

bool gw_quotas_may(struct gw_quotas *q, const struct gw_quota_taker *who, uint64_t free,
	struct quota_told *told)
{
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	bool may = taker_may(q, who, 1, free, told);
	(void)pthread_mutex_unlock(&q->lock);
	return may;
}

void gw_quotas_add(struct gw_quotas *q, const struct quota_holder *h)
{
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	quota_add(q->table, h, 1);
	(void)pthread_mutex_unlock(&q->lock);
}

void gw_quotas_give(struct gw_quotas *q, const struct quota_holder *h, uint64_t n)
{
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	quota_give(q->table, h, n);
	(void)pthread_mutex_unlock(&q->lock);
}

void gw_quotas_refused(struct gw_quotas *q, const struct quota_holder *h, const struct quota_told *told,
	char text[GW_QUOTA_TEXT])
{
	char tenant[QUOTA_NAME_MAX + 1];
	CGN_LIVE(q, QUOTAS_TAG);
	(void)snprintf(tenant, sizeof tenant, "%.*s", CGN_STR_ARG(h->tenant));
	metric_add(METRIC_OF(q->telemetry, SHARE_REFUSED, tenant, quota_name(h->kind)), 1);
	(void)snprintf(text, GW_QUOTA_TEXT, "%s holds %llu of its %llu %s", tenant,
		(unsigned long long)told->held, (unsigned long long)told->limit, quota_nouns(h->kind));
}

struct quota_told gw_quotas_of(struct gw_quotas *q, enum quota_kind kind, struct cgn_str tenant)
{
	struct quota_told out = {0};
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	uint64_t total = quota_total(q->table, kind), size = q->size[kind];
	out.held = quota_tenant(q->table, kind, tenant);
	if (size > 0)
		out.limit = quota_limit(kind, out.held, size > total ? size - total : 0);
	(void)pthread_mutex_unlock(&q->lock);
	return out;
}

size_t gw_quotas_tenants(struct gw_quotas *q, struct quota_name_of *out, size_t max)
{
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	size_t n = quota_tenants(q->table, out, max);
	(void)pthread_mutex_unlock(&q->lock);
	return n;
}

void gw_quotas_report(struct gw_quotas *q)
{
	uint64_t total[QUOTA_KINDS];
	CGN_LIVE(q, QUOTAS_TAG);
	(void)pthread_mutex_lock(&q->lock);
	for (size_t i = 0; i < QUOTA_KINDS; i++)
		total[i] = quota_total(q->table, (enum quota_kind)i);
	(void)pthread_mutex_unlock(&q->lock);
	for (size_t i = 0; i < QUOTA_KINDS; i++)
		metric_set(METRIC_OF(q->telemetry, SHARE_HELD, quota_name((enum quota_kind)i)),
			(double)total[i]);
}
