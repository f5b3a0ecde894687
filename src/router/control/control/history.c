/* SPDX-License-Identifier: Apache-2.0 */
/* history: the last hour for the page, in a ring of fixed size (24 KiB). Longer histories are for Prometheus. */
#include "router/control/control/models.h"
#include "router/control/control/router.h"

static const char *const names[ROUTER_SERIES] = {
#define SERIES(id, name, help) name,
#include "router/control/control/series.def"
#undef SERIES
};

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

static float quantile_ms(const struct metric_totals *now, const struct metric_totals *before, double q)
{
	return (float)metric_totals_quantile(now, before, q) / (float)CGN_MSEC;
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

void router_history_json(const struct router *r, struct json_out *j)
{
	const struct router_history *h = &r->history;
	json_open(j, '{');
	json_key_u64(j, "seconds_per_point", 10);
	json_key_open(j, "at_ms", '[');
	for (size_t i = 0; i < h->n; i++)
		json_put_u64(j, point_at(h, i)->at_ms);
	json_close(j, ']');
	for (size_t s = 0; s < ROUTER_SERIES; s++) {
		json_key_open(j, names[s], '[');
		for (size_t i = 0; i < h->n; i++)
			json_put_f64(j, (double)point_at(h, i)->v[s]);
		json_close(j, ']');
	}
	json_close(j, '}');
}
