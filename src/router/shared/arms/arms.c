/* SPDX-License-Identifier: Apache-2.0 */
#include "router/shared/arms/arms.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/core/alloc.h"
#include "base/core/err.h"

#define GW_ARMS_TAG 0x6a3501a7U

struct gw_arms {
	uint32_t tag;
	pthread_mutex_t lock; /* Over all members below. */
	struct arms *arms;
	struct unit_counts counts;
};

struct gw_arms *gw_arms_open(void)
{
	struct gw_arms *a = CGN_NEW(struct gw_arms);
	a->tag = GW_ARMS_TAG;
	(void)pthread_mutex_init(&a->lock, NULL);
	a->arms = arms_new();
	return a;
}

void gw_arms_close(struct gw_arms **take)
{
	struct gw_arms *a = CGN_TAKE_LIVE(take, GW_ARMS_TAG);
	if (a == NULL)
		return;
	arms_free(&a->arms);
	(void)pthread_mutex_destroy(&a->lock);
	a->tag = 0;
	free(a);
}

void gw_arms_set(struct gw_arms *a, const struct arms_rules *rules)
{
	CGN_LIVE(a, GW_ARMS_TAG);
	(void)pthread_mutex_lock(&a->lock);
	arms_set(a->arms, rules);
	(void)pthread_mutex_unlock(&a->lock);
}

struct arms_seat gw_arms_seat(struct gw_arms *a, const struct unit_ask *ask, uint64_t tokens)
{
	CGN_LIVE(a, GW_ARMS_TAG);
	(void)pthread_mutex_lock(&a->lock);
	struct arms_seat s = arms_seat(a->arms, unit_of(&a->counts, ask), tokens);
	(void)pthread_mutex_unlock(&a->lock);
	return s;
}

void gw_arms_add(struct gw_arms *a, const struct arms_seat *seat, const struct arms_outcome *o)
{
	CGN_LIVE(a, GW_ARMS_TAG);
	(void)pthread_mutex_lock(&a->lock);
	arms_add(a->arms, seat, o);
	(void)pthread_mutex_unlock(&a->lock);
}

void gw_arms_estimate(struct gw_arms *a, size_t i, struct arms_estimate out[ARMS_FIGURES])
{
	CGN_LIVE(a, GW_ARMS_TAG);
	(void)pthread_mutex_lock(&a->lock);
	for (unsigned f = 0; f < ARMS_FIGURES; f++)
		arms_estimate(a->arms, i, (enum arms_figure)f, &out[f]);
	(void)pthread_mutex_unlock(&a->lock);
}
