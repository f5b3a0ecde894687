/* SPDX-License-Identifier: Apache-2.0 */
/* history: the last hour for the page, in a ring of fixed size (24 KiB). Longer histories are for Prometheus. */
#include "router/control/control/models.h"
#include "router/control/control/router.h"

static void nodes_sum(const struct router *r, struct router_point *p)
{
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++) {
		const struct cluster_node *n = r->members.cluster->by_slot[i];
		if (n == NULL)
			continue;
		p->v[ROUTER_SERIES_INFLIGHT] += (float)cluster_inflight(r->members.cluster, n->slot);
		p->v[ROUTER_SERIES_READY] += n->state == NODE_READY && !n->cordoned ? 1 : 0;
		p->v[ROUTER_SERIES_WATTS] += (float)n->load.gpu_power_mw / 1e3F;
	}
}

struct depths {
	const struct router *r;
	size_t n;
};

static void depth_add(void *user, struct cgn_str model)
{
	struct depths *d = user;
	d->n += gw_admission_depth(d->r->shared.admission, model);
}

static float per_second(const struct metric_totals *now, const struct metric_totals *before, double seconds)
{
	return (float)((double)metric_totals_since(now, before) / seconds);
}

static float quantile_ms(const struct metric_times *now, const struct metric_times *before, double q)
{
	return (float)metric_times_quantile(now, before, q) / (float)CGN_MSEC;
}

static void point_fill(const struct router *r, const struct router_totals *now,
	const struct router_totals *before, struct router_point *p)
{
	struct depths depths = {.r = r};
	double s = (double)(now->at - before->at) / (double)CGN_SEC;
	*p = (struct router_point){.at_ms = cgn_clock_wall_ms()};
	p->v[ROUTER_SERIES_REQUESTS] = per_second(&now->requests, &before->requests, s);
	p->v[ROUTER_SERIES_FAILED] = per_second(&now->failed, &before->failed, s);
	p->v[ROUTER_SERIES_TTFT_P50] = quantile_ms(&now->ttft, &before->ttft, 0.5);
	p->v[ROUTER_SERIES_TTFT_P95] = quantile_ms(&now->ttft, &before->ttft, 0.95);
	p->v[ROUTER_SERIES_ITL_P50] = quantile_ms(&now->itl, &before->itl, 0.5);
	p->v[ROUTER_SERIES_PROMPT] = per_second(&now->prompt, &before->prompt, s);
	p->v[ROUTER_SERIES_COMPLETION] = per_second(&now->completion, &before->completion, s);
	p->v[ROUTER_SERIES_CACHED] = per_second(&now->cached, &before->cached, s);
	p->v[ROUTER_SERIES_PREDICTED] = per_second(&now->predicted, &before->predicted, s);
	router_models_each(r, depth_add, &depths);
	p->v[ROUTER_SERIES_QUEUED] = (float)depths.n;
	nodes_sum(r, p);
}

void router_history_note(struct router *r, const struct router_totals *now)
{
	struct router_history *h = &r->history;
	if (h->before.at > 0 && now->at > h->before.at) {
		point_fill(r, now, &h->before, &h->point[h->next]);
		h->next = (h->next + 1) % ROUTER_POINTS;
		h->n += h->n < ROUTER_POINTS;
	}
	h->before = *now;
}

static const struct router_point *point_at(const struct router_history *h, size_t i)
{
	return &h->point[(h->next + ROUTER_POINTS - h->n + i) % ROUTER_POINTS];
}

static float *series_new(const struct router_history *h, enum router_series series, struct pb_tree *t)
{
	float *v = pb_tree_array(t, h->n, sizeof *v);
	for (size_t i = 0; v != NULL && i < h->n; i++)
		v[i] = point_at(h, i)->v[series];
	return v;
}

void router_history_fill(const struct router *r, struct pb_tree *t, Cognitora__V1__History *to)
{
	const struct router_history *h = &r->history;
	to->seconds_per_point = 10;
	to->at_ms = pb_tree_array(t, h->n, sizeof *to->at_ms);
	to->n_at_ms = to->at_ms != NULL ? h->n : 0;
	for (size_t i = 0; i < to->n_at_ms; i++)
		to->at_ms[i] = point_at(h, i)->at_ms;
#define SERIES(id, member)                                 \
	to->member = series_new(h, ROUTER_SERIES_##id, t); \
	to->n_##member = to->member != NULL ? h->n : 0;
#include "router/control/control/series.def"
#undef SERIES
}
