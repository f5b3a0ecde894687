/* SPDX-License-Identifier: Apache-2.0 */
/* series: metric cells by model. */
#include <stdlib.h>

#include "router/account/series_priv.h"

#define MAX_SERIES 512 /* Models of one worker with series of their own */

static struct gw_series *series_new(struct gw_worker *w, struct cgn_str model)
{
	struct gw_series *v = realloc(w->series, (w->n_series + 1) * sizeof *v);
	char *name = cgn_str_dupz(model);
	if (v != NULL)
		w->series = v;
	if (v == NULL || name == NULL) {
		free(name);
		return NULL;
	}
	struct gw_series *s = &v[w->n_series++];
	*s = (struct gw_series){
		.model = {name, model.n},
		.request = METRIC_OF(w->shared->telemetry, REQUEST_SECONDS, name),
		.ttft = METRIC_OF(w->shared->telemetry, TTFT_SECONDS, name),
		.itl = METRIC_OF(w->shared->telemetry, ITL_SECONDS, name),
		.queue = METRIC_OF(w->shared->telemetry, QUEUE_SECONDS, name),
	};
	return s;
}

/* Only known models come here, so there are few: a scan beats hashing. */
struct gw_series *series_of(struct gw_worker *w, struct cgn_str model)
{
	for (size_t i = 0; i < w->n_series; i++)
		if (cgn_str_eq(w->series[i].model, model))
			return &w->series[i];
	if (w->n_series < MAX_SERIES)
		return series_new(w, model);
	return &w->series[0];
}

struct metric_cell *series_status(struct telemetry *t, struct gw_series *s, int status)
{
	for (size_t i = 0; i < s->n_statuses; i++)
		if (s->statuses[i].status == status)
			return s->statuses[i].cell;
	char text[16];
	(void)snprintf(text, sizeof text, "%d", status);
	struct metric_cell *cell = METRIC_OF(t, REQUESTS, s->model.p, text);
	if (s->n_statuses < SERIES_MAX_STATUSES) {
		s->statuses[s->n_statuses].status = status;
		s->statuses[s->n_statuses++].cell = cell;
	}
	return cell;
}

void gw_series_itl(struct gw_req *r, cgn_nsec gap)
{
	if (r->answer.itl == NULL) {
		struct gw_series *s = series_of(r->w, r->prompt.model);
		if (s == NULL)
			return;
		r->answer.itl = s->itl;
	}
	metric_observe(r->answer.itl, gap);
}

uint32_t gw_series_answer(struct gw_worker *w, struct cgn_str model)
{
	const struct gw_series *s = series_of(w, model);
	return s != NULL ? (uint32_t)(s->answer_tokens + 0.5) : 0;
}

uint64_t gw_series_joules(struct gw_worker *w, struct cgn_str model)
{
	const struct gw_series *s = series_of(w, model);
	return s != NULL ? (uint64_t)(s->joules * (double)BUDGET_JOULE_SCALE + 0.5) : 0;
}

void gw_account_open(struct gw_worker *w)
{
	w->pick_seconds = METRIC_ONE(w->shared->telemetry, PICK_SECONDS);
	w->prompt_tokens = METRIC_OF(w->shared->telemetry, TOKENS, "prompt");
	w->completion_tokens = METRIC_OF(w->shared->telemetry, TOKENS, "completion");
}

void gw_account_close(struct gw_worker *w)
{
	for (size_t i = 0; i < w->n_series; i++)
		free((void *)(uintptr_t)w->series[i].model.p);
	free(w->series);
	free(w->tenants);
	w->tenants = NULL;
	w->series = NULL;
	w->n_series = 0;
}
