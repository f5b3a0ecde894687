/* SPDX-License-Identifier: Apache-2.0 */
/* traffic: requests, cached tokens and times to first byte of about the last minute, from the counters that all
 * workers share. Totals are noted every ten seconds. */
#include "router/control/control/router.h"
#include "router/metrics.h"

#define NOTE_EVERY (10 * CGN_SEC)

/* Count the answers by which router and engines failed. */
static void failed_total(struct telemetry *t, struct metric_totals *out)
{
	static const char *const codes[] = {"500", "502", "503", "504"};
	*out = (struct metric_totals){.count = 0};
	for (size_t i = 0; i < CGN_COUNT(codes); i++) {
		struct metric_totals one;
		metric_total(t, METRIC_REQUESTS, codes[i], &one);
		out->count += one.count;
	}
}

static void totals_take(struct router *r, struct router_totals *out)
{
	struct telemetry *t = r->shared.telemetry;
	out->at = cgn_loop_now(r->loop);
	metric_total(t, METRIC_REQUESTS, NULL, &out->requests);
	metric_times_total(t, METRIC_TTFT_SECONDS, NULL, &out->ttft);
	metric_times_total(t, METRIC_ITL_SECONDS, NULL, &out->itl);
	metric_total(t, METRIC_TOKENS, "prompt", &out->prompt);
	metric_total(t, METRIC_TOKENS, "completion", &out->completion);
	metric_total(t, METRIC_CACHED_TOKENS, "actual", &out->cached);
	metric_total(t, METRIC_CACHED_TOKENS, "predicted", &out->predicted);
	failed_total(t, &out->failed);
	metric_total(t, METRIC_REJECTED, NULL, &out->refused);
}

static const struct router_totals *totals_before(const struct router *r, const struct router_totals *none)
{
	const struct router_traffic *t = &r->traffic;
	return t->n < ROUTER_NOTES ? none : &t->note[t->next];
}

static double seconds_at(const struct metric_times *now, const struct metric_times *before, double q)
{
	return (double)metric_times_quantile(now, before, q) / (double)CGN_SEC;
}

/* Show the quantiles that /history and cluster status tell to readers of /metrics too. */
static void quantiles_show(const struct router *r, const struct router_totals *now)
{
	static const struct {
		double q;
		const char *text;
	} rows[] = {{0.5, "0.5"}, {0.95, "0.95"}, {0.99, "0.99"}};
	const struct router_totals none = {.at = r->started}, *before = totals_before(r, &none);
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		metric_set(METRIC_OF(r->shared.telemetry, TTFT_QUANTILE, rows[i].text),
			seconds_at(&now->ttft, &before->ttft, rows[i].q));
		metric_set(METRIC_OF(r->shared.telemetry, ITL_QUANTILE, rows[i].text),
			seconds_at(&now->itl, &before->itl, rows[i].q));
	}
}

void router_traffic_note(struct router *r)
{
	struct router_traffic *t = &r->traffic;
	if (t->n > 0 &&
		cgn_loop_now(r->loop) < t->note[(t->next + ROUTER_NOTES - 1) % ROUTER_NOTES].at + NOTE_EVERY)
		return;
	struct router_totals now;
	totals_take(r, &now);
	quantiles_show(r, &now);
	t->note[t->next] = now;
	router_history_note(r, &t->note[t->next]);
	t->next = (t->next + 1) % ROUTER_NOTES;
	t->n += t->n < ROUTER_NOTES;
}

void router_traffic_fill(struct router *r, Cognitora__V1__TrafficStatus *to)
{
	const struct router_totals none = {.at = r->started}, *before = totals_before(r, &none);
	struct router_totals now;
	cognitora__v1__traffic_status__init(to);
	totals_take(r, &now);
	to->window_ms = (now.at - before->at) / CGN_MSEC;
	to->requests = metric_totals_since(&now.requests, &before->requests);
	to->failed = metric_totals_since(&now.failed, &before->failed);
	to->refused = metric_totals_since(&now.refused, &before->refused);
	to->prompt_tokens = metric_totals_since(&now.prompt, &before->prompt);
	to->cached_tokens = metric_totals_since(&now.cached, &before->cached);
	to->requests_per_second = to->window_ms > 0 ? (double)to->requests * 1e3 / (double)to->window_ms : 0;
	to->ttft_p50_ms = 1e3 * seconds_at(&now.ttft, &before->ttft, 0.5);
	to->ttft_p95_ms = 1e3 * seconds_at(&now.ttft, &before->ttft, 0.95);
}
