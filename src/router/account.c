/* SPDX-License-Identifier: Apache-2.0 */
/* account: what is counted and written down of a request. Prompts, answers and keys are in neither. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/gateway.h"

#define MAX_SERIES 512 /* models of one worker with series of their own */
#define MAX_CODES  32

struct gw_series {
	struct cgn_str model; /* owned */
	struct metric_cell *request, *ttft, *itl;
	struct {
		int status;
		struct metric_cell *cell;
	} codes[MAX_CODES];
	size_t n_codes;
};

void gw_count_rejected(const char *reason)
{
	metric_add(METRIC_OF(REJECTED, reason), 1);
}

void gw_count_retry(const char *reason)
{
	metric_add(METRIC_OF(RETRIES, reason), 1);
}

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
		.request = METRIC_OF(REQUEST_SECONDS, name),
		.ttft = METRIC_OF(TTFT_SECONDS, name),
		.itl = METRIC_OF(ITL_SECONDS, name),
	};
	return s;
}

/* Models are known ones, so they are few; a scan beats hashing. */
static struct gw_series *series_of(struct gw_worker *w, struct cgn_str model)
{
	for (size_t i = 0; i < w->n_series; i++)
		if (cgn_str_eq(w->series[i].model, model))
			return &w->series[i];
	if (w->n_series < MAX_SERIES)
		return series_new(w, model);
	return &w->series[0];
}

static struct metric_cell *code_cell(struct gw_series *s, int status)
{
	for (size_t i = 0; i < s->n_codes; i++)
		if (s->codes[i].status == status)
			return s->codes[i].cell;
	char text[16];
	(void)snprintf(text, sizeof text, "%d", status);
	struct metric_cell *cell = METRIC_OF(REQUESTS, s->model.p, text);
	if (s->n_codes < MAX_CODES) {
		s->codes[s->n_codes].status = status;
		s->codes[s->n_codes++].cell = cell;
	}
	return cell;
}

void gw_series_itl(struct gw_req *r, cgn_nsec gap)
{
	if (r->itl == NULL) {
		struct gw_series *s = series_of(r->w, r->model);
		if (s == NULL)
			return;
		r->itl = s->itl;
	}
	metric_observe(r->itl, gap);
}

static void count_tokens(struct gw_req *r)
{
	struct gw_worker *w = r->w;
	const struct usage *u = &r->usage;
	(void)usage_find(usage_tail_view(&r->tail), &r->usage);
	if (u->has_prompt)
		metric_add(w->prompt_tokens, u->prompt_tokens);
	if (u->has_completion)
		metric_add(w->completion_tokens, u->completion_tokens);
	if (u->has_cached)
		metric_add(w->cached_actual, u->cached_tokens);
	if (u->has_prompt && r->blocks > 0)
		metric_add(w->cached_predicted, u->prompt_tokens * r->held / r->blocks);
}

/* As the client saw it; one that went before it had all of an answer is 499, which nobody saw. */
static int final_status(const struct gw_req *r)
{
	if (r->client_why.code == CGN_FINE || (r->outcome != NULL && strcmp(r->outcome, "cut") == 0))
		return r->status;
	return r->client_why.code == CGN_REQUEST_TIMEOUT && !r->head_sent ? 408 : 499;
}

static void access_log(const struct gw_req *r, int status, cgn_nsec now)
{
	const char *outcome = r->outcome != NULL ? r->outcome
			      : status == 499    ? "client_gone"
			      : status == 408    ? "client_slow"
						 : "ok";
	struct cgn_str rest = r->path, path = cgn_str_split(&rest, '?');
	cgn_log(INFO, "gateway.request", F_STRN("id", r->id), F_STRN("method", r->method),
		F_STRN("path", path), F_STRN("model", r->model), F_STR("node", r->t.node_id),
		F_I64("status", status), F_STR("outcome", outcome), F_U64("bytes", r->bytes_out),
		F_DUR("ttft", r->first_byte > 0 ? r->first_byte - r->started : 0),
		F_DUR("total", now - r->started), F_DUR("pick", r->took), F_U64("blocks_held", r->held),
		F_U64("blocks", r->blocks), F_U64("tries", r->tries), F_STR("retried", r->last_retry),
		F_U64("prompt_tokens", r->usage.prompt_tokens),
		F_U64("completion_tokens", r->usage.completion_tokens),
		F_U64("cached_tokens", r->usage.cached_tokens), F_BOOL("stream", r->event_stream), F_STR("tokens", r->tokens),
		F_STR("key", r->key_id), F_STRN("peer", r->peer));
}

void gw_account(struct gw_req *r)
{
	cgn_nsec now = cgn_loop_now(r->w->loop);
	int status = final_status(r);
	struct gw_series *s = series_of(r->w, r->model);
	if (r->tail.n > 0)
		count_tokens(r);
	if (s != NULL) {
		metric_add(code_cell(s, status), 1);
		metric_observe(s->request, now - r->started);
		if (r->tries > 0 && r->first_byte > 0)
			metric_observe(s->ttft, r->first_byte - r->started);
	}
	access_log(r, status, now);
}

void gw_account_open(struct gw_worker *w)
{
	w->pick_seconds = METRIC_ONE(PICK_SECONDS);
	w->prompt_tokens = METRIC_OF(TOKENS, "prompt");
	w->completion_tokens = METRIC_OF(TOKENS, "completion");
	w->cached_predicted = METRIC_OF(CACHED_TOKENS, "predicted");
	w->cached_actual = METRIC_OF(CACHED_TOKENS, "actual");
}

void gw_account_close(struct gw_worker *w)
{
	for (size_t i = 0; i < w->n_series; i++)
		free((void *)(uintptr_t)w->series[i].model.p);
	free(w->series);
	w->series = NULL;
	w->n_series = 0;
}
