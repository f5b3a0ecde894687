/* SPDX-License-Identifier: Apache-2.0 */
/* series: metric cells by model. Models beyond MAX_SERIES share the label "other"; nothing is learned of them. A model that
 * left the cluster loses its series. */
#include <stdlib.h>

#include "router/request/account/series_priv.h"
#include "router/request/tokens/tokens.h"
#include "router/shared/peers/peers.h"

#define MAX_SERIES  512 /* Models of one worker with series of their own */
#define GONE_SURE   (30 * CGN_SEC)
#define GONE_UNSURE (600 * CGN_SEC) /* While a node has not told its models */

/* Find the cells by the label |s->model.p|. */
static void series_cells(struct gw_worker *w, struct gw_series *s)
{
	struct telemetry *t = w->shared->telemetry;
	s->request = METRIC_OF(t, REQUEST_SECONDS, s->model.p);
	s->ttft = METRIC_OF(t, TTFT_SECONDS, s->model.p);
	s->itl = METRIC_OF(t, ITL_SECONDS, s->model.p);
	s->queue = METRIC_OF(t, QUEUE_SECONDS, s->model.p);
	s->n_statuses = 0;
}

static void series_begin(struct gw_worker *w, struct gw_series *s, char *name, size_t n)
{
	*s = (struct gw_series){.model = {name, n}};
	series_cells(w, s);
}

static void series_free(struct gw_series *s)
{
	free((void *)(uintptr_t)s->model.p);
}

static void series_remove(struct gw_worker *w, size_t i)
{
	series_free(&w->series[i]);
	w->series[i] = w->series[--w->n_series];
}

/* Remove the model that was gone first, for the room. False: all models are there. */
static bool series_make_room(struct gw_worker *w)
{
	size_t at = SIZE_MAX;
	for (size_t i = 0; i < w->n_series; i++)
		if (w->series[i].gone_at != 0 &&
			(at == SIZE_MAX || w->series[i].gone_at < w->series[at].gone_at))
			at = i;
	if (at == SIZE_MAX)
		return false;
	series_remove(w, at);
	return true;
}

static struct gw_series *series_new(struct gw_worker *w, struct cgn_str model)
{
	w->series = CGN_GROWN(w->series, w->n_series + 1);
	series_begin(w, &w->series[w->n_series], cgn_str_dupz(model), model.n);
	return &w->series[w->n_series++];
}

static struct gw_series *series_other(struct gw_worker *w)
{
	const struct cgn_str name = CGN_STR("other");
	if (w->other == NULL) {
		w->other = CGN_NEW(struct gw_series);
		series_begin(w, w->other, cgn_str_dupz(name), name.n);
	}
	return w->other;
}

/* Only known models come here, so there are few: a scan beats hashing. */
struct gw_series *series_of(struct gw_worker *w, struct cgn_str model)
{
	for (size_t i = 0; i < w->n_series; i++)
		if (cgn_str_eq(w->series[i].model, model))
			return &w->series[i];
	if (w->n_series < MAX_SERIES || series_make_room(w))
		return series_new(w, model);
	return series_other(w);
}

/* Requests that name no model have a series too, which is never gone. */
static bool model_is_there(const struct gw_worker *w, struct cgn_str name)
{
	return name.n == 0 || view_model_find(w->view, name) != NULL || gw_peers_know(w->shared->peers, name);
}

void gw_series_sweep(struct gw_worker *w, cgn_nsec now)
{
	cgn_nsec most = w->view->settled ? GONE_SURE : GONE_UNSURE;
	for (size_t i = w->n_series; i-- > 0;) {
		struct gw_series *s = &w->series[i];
		bool there = model_is_there(w, s->model);
		if (there && s->gone_at == 0)
			continue;
		if (there) { /* Another worker may have forgotten the series meanwhile. */
			s->gone_at = 0;
			series_cells(w, s);
			gw_tokens_forget(w, s->model);
		} else if (s->gone_at == 0) {
			s->gone_at = now;
		} else if (cgn_since(now, s->gone_at) >= most) {
			telemetry_forget(w->shared->telemetry, "model", s->model.p);
			gw_tokens_forget(w, s->model);
			series_remove(w, i);
		}
	}
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
	if (r->answer.itl == NULL)
		r->answer.itl = series_of(r->w, r->prompt.model)->itl;
	metric_observe(r->answer.itl, gap);
}

uint32_t gw_series_answer(struct gw_worker *w, struct cgn_str model)
{
	const struct gw_series *s = series_of(w, model);
	return s != w->other ? (uint32_t)(s->answer_tokens + 0.5) : 0;
}

uint64_t gw_series_joules(struct gw_worker *w, struct cgn_str model)
{
	const struct gw_series *s = model.n > 0 ? series_of(w, model) : w->other;
	return s != w->other ? (uint64_t)(s->joules * (double)BUDGET_JOULE_SCALE + 0.5) : 0;
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
		series_free(&w->series[i]);
	if (w->other != NULL)
		series_free(w->other);
	free(w->other);
	free(w->series);
	w->other = NULL;
	free(w->tenants);
	w->tenants = NULL;
	w->series = NULL;
	w->n_series = 0;
}
