/* SPDX-License-Identifier: Apache-2.0 */
/* fedsplit: the regions of a trace's requests, and the days of the regions. */
#include <math.h>
#include <stdlib.h>

#include "base/mix/mix.h"
#include "lab/replay/federation.h"

#define RARE 100 /* A block that more than one in so many requests have names no conversation. */

/* Return how many requests have each id, by its number in |ids|. */
static uint32_t *uses_count(const struct trace *t, struct trace_numbers *ids)
{
	uint32_t *uses = calloc(t->n_ids + 1, sizeof *uses);
	for (size_t i = 0; uses != NULL && i < t->n_ids; i++) {
		uint32_t n = trace_number(ids, t->ids[i]);
		if (n == TRACE_NO_NUMBER) {
			free(uses);
			return NULL;
		}
		uses[n]++;
	}
	return uses;
}

static uint64_t owner_of(const struct trace *t, const struct trace_request *q, struct trace_numbers *ids,
	const uint32_t *uses)
{
	const uint64_t *v = trace_ids(t, q);
	if (q->session != 0)
		return q->session;
	if (q->tenant != 0)
		return q->tenant;
	for (uint32_t i = 0; i < q->n; i++)
		if ((uint64_t)uses[trace_number(ids, v[i])] * RARE < t->n)
			return v[i];
	return q->n > 0 ? v[q->n - 1] : 0;
}

/* Return when the region's day has come to the share |x| of its requests. The rate is 1 + swing * sin(2 pi (time - late)):
 * its integral is inverted by halving. */
static double day_time(double x, double late, double swing)
{
	const double turn = 2 * M_PI;
	double lo = 0, hi = 1;
	for (unsigned i = 0; i < 50; i++) {
		double mid = (lo + hi) / 2;
		double done = mid + swing / turn * (cos(turn * late) - cos(turn * (mid - late)));
		*(done < x ? &lo : &hi) = mid;
	}
	return lo;
}

struct dated {
	cgn_nsec at;
	uint32_t index;
};

static int dated_compare(const void *a, const void *b)
{
	const struct dated *x = a, *y = b;
	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

static cgn_nsec moved_at(const struct trace *t, size_t i, double late, double swing)
{
	const double day = (double)t->requests[t->n - 1].at + 1;
	if (!(swing > 0))
		return t->requests[i].at;
	double at = day * day_time((double)t->requests[i].at / day, late, swing);
	return (cgn_nsec)(at / 1e3) * 1000; /* Whole microseconds, which libraries for sines agree on. */
}

static void requests_sort(const struct trace *t, struct dated *order, uint8_t *region,
	struct federation_trace *out)
{
	qsort(order, t->n, sizeof *order, dated_compare);
	for (size_t i = 0; i < t->n; i++) {
		out->all.requests[i] = t->requests[order[i].index];
		out->all.requests[i].at = order[i].at;
		out->region[i] = region[order[i].index];
	}
}

CGN_RC federation_split(const struct trace *t, uint32_t clusters, double swing, struct federation_trace *out,
	struct cgn_err *err)
{
	struct trace_numbers ids = {0};
	uint32_t *uses = uses_count(t, &ids);
	struct dated *order = calloc(t->n, sizeof *order);
	uint8_t *region = calloc(t->n, 1);
	*out = (struct federation_trace){.all = *t};
	out->all.requests = calloc(t->n, sizeof *out->all.requests);
	out->region = calloc(t->n, 1);
	bool fine = uses != NULL && order != NULL && region != NULL && out->all.requests != NULL &&
		out->region != NULL;
	for (size_t i = 0; fine && i < t->n; i++) {
		region[i] = (uint8_t)(mix_seeded(owner_of(t, &t->requests[i], &ids, uses)) % clusters);
		order[i] = (struct dated){moved_at(t, i, (double)region[i] / clusters, swing), (uint32_t)i};
	}
	if (fine)
		requests_sort(t, order, region, out);
	trace_numbers_fini(&ids);
	free(uses);
	free(order);
	free(region);
	if (fine)
		return CGN_OK;
	federation_trace_fini(out);
	return CGN_FAIL(err, NO_MEMORY, "no memory to cut a trace of %zu requests", t->n);
}

void federation_trace_fini(struct federation_trace *f)
{
	free(f->all.requests);
	free(f->region);
	*f = (struct federation_trace){0};
}
