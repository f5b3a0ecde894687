/* SPDX-License-Identifier: Apache-2.0 */
/* account: what is counted and written down of a request. Prompts, answers and keys are in neither. */
#include <stdlib.h>

#include "base/log/log.h"
#include "router/request/gateway.h"

#define MAX_SERIES  512 /* models of one worker with series of their own */
#define MAX_CODES   32
#define MOST_UNSEEN 65536 /* tokens of an answer that its client is not shown, but pays for: reasoning */

struct gw_series {
	struct cgn_str model; /* owned */
	struct metric_cell *request, *ttft, *itl, *queue;
	struct {
		int status;
		struct metric_cell *cell;
	} codes[MAX_CODES];
	size_t n_codes;
	double answer_tokens; /* moving average */
};

void gw_count_rejected(const struct gw_req *r, const char *reason)
{
	metric_add(METRIC_OF(r->w->shared->telemetry, REJECTED, reason), 1);
}

void gw_count_retry(const struct gw_req *r, const char *reason)
{
	metric_add(METRIC_OF(r->w->shared->telemetry, RETRIES, reason), 1);
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
		.request = METRIC_OF(w->shared->telemetry, REQUEST_SECONDS, name),
		.ttft = METRIC_OF(w->shared->telemetry, TTFT_SECONDS, name),
		.itl = METRIC_OF(w->shared->telemetry, ITL_SECONDS, name),
		.queue = METRIC_OF(w->shared->telemetry, QUEUE_SECONDS, name),
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

static struct metric_cell *code_cell(struct telemetry *t, struct gw_series *s, int status)
{
	for (size_t i = 0; i < s->n_codes; i++)
		if (s->codes[i].status == status)
			return s->codes[i].cell;
	char text[16];
	(void)snprintf(text, sizeof text, "%d", status);
	struct metric_cell *cell = METRIC_OF(t, REQUESTS, s->model.p, text);
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

uint32_t gw_series_answer(struct gw_worker *w, struct cgn_str model)
{
	const struct gw_series *s = series_of(w, model);
	return s != NULL ? (uint32_t)(s->answer_tokens + 0.5) : 0;
}

/* Tokens of the answer that the engine counted, as far as that can be true: each of them is at least a byte,
 * but for |unseen| ones. */
static uint64_t answer_tokens(const struct gw_req *r, uint64_t unseen)
{
	uint64_t n = r->usage.has_completion ? r->usage.completion_tokens : 0, most = r->bytes_out + unseen;
	return n < most ? n : most;
}

static void answer_learn(struct gw_series *s, const struct gw_req *r)
{
	double n = (double)answer_tokens(r, MOST_UNSEEN);
	if (r->usage.has_completion && r->status == 200 && !r->several)
		s->answer_tokens += s->answer_tokens > 0 ? (n - s->answer_tokens) / 16 : n;
}

/* In blocks: of tokens, the engine says how many there are. */
static double chain_length(const struct gw_req *r)
{
	return r->block_tokens > 0 ? (double)r->usage.prompt_tokens / r->block_tokens : r->guess.length;
}

/* What it held when it had answered the prompt that ended there: all but the answer's last token, which it
 * gave away and did not take in. */
static uint64_t tail_tokens(const struct gw_req *r)
{
	const struct prompttail *t = &r->guess.tail;
	double share = node_stats_answer_share(&r->w->shared->choice.cells[r->t.slot]);
	return t->prompt > 0 && t->answer > 0 ? t->prompt + (uint64_t)((double)(t->answer - 1) * share + 0.5)
					      : t->prompt;
}

/* Tokens of the prompt that the node was thought to hold: the held blocks' share of it, as the engine counted
 * it, or what it held after the request that ended there, if that is known. Engines compute at least the last
 * token anew and reuse whole blocks of their own. */
static uint64_t cached_predicted(const struct gw_req *r)
{
	const struct gw_guess *g = &r->guess;
	uint64_t prompt = r->usage.prompt_tokens, most = prompt > 0 ? prompt - 1 : 0;
	if (r->held == 0 || !(chain_length(r) > 0))
		return 0;
	uint64_t tokens = (uint64_t)((double)prompt * r->held / chain_length(r) + 0.5);
	if (tail_tokens(r) > tokens)
		tokens = tail_tokens(r);
	if (tokens > most)
		tokens = most;
	return g->kv_block > 1 ? tokens - tokens % g->kv_block : tokens;
}

/* A node that is believed has just computed what it had lost, and so holds it now. One that is not, does not
 * keep what it is sent: what it did not have is dropped, so that it does not count as held until it proves
 * otherwise. */
static void record_correct(const struct gw_req *r, uint64_t actual)
{
	const struct gw_guess *g = &r->guess;
	if (g->chain == NULL || node_stats_trust(&r->w->shared->choice.cells[r->t.slot]) > 0.5)
		return;
	double had = (double)actual * chain_length(r) / (double)(r->usage.prompt_tokens + 1);
	size_t keep = had < r->held ? (size_t)had : r->held;
	route_record_drop(r->w->shared->choice.record, g->chain + keep, r->held - keep, r->t.slot);
}

static void tail_keep(const struct gw_req *r)
{
	const struct usage *u = &r->usage;
	if (!r->several && !r->guess.fed && r->guess.last != 0 && u->has_completion)
		prompttail_put(r->w->shared->tails, r->guess.last, r->guess.node,
			(struct prompttail){u->prompt_tokens, u->completion_tokens});
}

/* Less than its prompt means that the cache lost it: that says nothing of answers. */
static void tail_learn(const struct gw_req *r, struct node_stats *cell)
{
	const struct prompttail *t = &r->guess.tail;
	if (!r->several && t->prompt > 0 && t->answer > 1 && r->usage.cached_tokens >= t->prompt)
		node_stats_answer(cell, t->answer - 1, r->usage.cached_tokens - t->prompt);
}

/* The node's pace, of one answer that came whole; and not of a client's, who read it more slowly than it
 * came. */
static void speed_learn(struct gw_req *r)
{
	const struct chooser_outcome o = {.answer_tokens = answer_tokens(r, 0)};
	if (!r->several && r->outcome == NULL && !r->was_paused)
		chooser_done(r->w->chooser, &r->t.ticket, &o, r->last_byte);
}

/* Predicted and actual, side by side, of one answered request; and what is to be learned from it. */
static void cache_learn(struct gw_req *r)
{
	struct node_stats *cell = &r->w->shared->choice.cells[r->t.slot];
	const struct usage *u = &r->usage;
	const struct view_node *node = view_node_at(r->w->view, r->t.slot);
	/* a client so slow that the node has gone: its successor in the slot is not to be blamed */
	if (node == NULL || node->node_id_hash != r->guess.node)
		return;
	node_stats_measure(cell, u->prompt_tokens, chain_length(r));
	tail_keep(r);
	speed_learn(r);
	if (!u->has_cached)
		return;
	uint64_t predicted = r->cached_predicted = cached_predicted(r);
	metric_add(r->t.actual, u->cached_tokens);
	metric_add(r->t.predicted, predicted);
	tail_learn(r, cell);
	node_stats_believe(cell, predicted, u->cached_tokens);
	if (u->cached_tokens < predicted)
		record_correct(r, u->cached_tokens);
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
	/* of one try alone, and not of one that was to go on with another's answer and never began */
	if (u->has_prompt && r->t.predicted != NULL && r->status == 200 && r->resumes == 0 &&
		!r->t.ticket.prefilling)
		cache_learn(r);
}

/* As the client saw it; one that went before it had all of an answer is 499, which nobody saw. */
static int final_status(const struct gw_req *r)
{
	if (r->client_why.code == CGN_FINE || (r->outcome != NULL && strcmp(r->outcome, "cut") == 0))
		return r->status;
	return r->client_why.code == CGN_REQUEST_TIMEOUT && !r->head_sent ? 408 : 499;
}

static const char *final_outcome(const struct gw_req *r, int status)
{
	const char *fine = r->resumes > 0 ? "resumed" : "ok";
	return r->outcome != NULL ? r->outcome
		: status == 499   ? "client_gone"
		: status == 408   ? "client_slow"
				  : fine;
}

static void access_log(const struct gw_req *r, int status, const char *outcome, cgn_nsec now)
{
	struct cgn_str rest = r->path, path = cgn_str_split(&rest, '?');
	cgn_log(INFO, "gateway.request", F_STRN("id", r->id), F_STRN("method", r->method),
		F_STRN("path", path), F_STRN("model", r->model), F_STR("node", r->t.node_id),
		F_I64("status", status), F_STR("outcome", outcome), F_U64("bytes", r->bytes_out),
		F_DUR("ttft", r->first_byte > 0 ? r->first_byte - r->started : 0),
		F_DUR("total", now - r->started), F_DUR("pick", r->took), F_DUR("queued", r->queued),
		F_U64("blocks_held", r->held), F_U64("blocks", r->blocks), F_U64("tries", r->tries),
		F_STR("retried", r->last_retry), F_U64("resumes", r->resumes), F_STR("disagg", r->disagg),
		F_STR("prefill_node", r->prefill_node), F_DUR("prefill", r->prefill_took),
		F_U64("prompt_tokens", r->usage.prompt_tokens),
		F_U64("completion_tokens", r->usage.completion_tokens),
		F_U64("cached_tokens", r->usage.cached_tokens),
		F_U64("cached_predicted", r->cached_predicted), F_BOOL("stream", r->event_stream),
		F_STR("tokens", r->tokens), F_STR("key", r->key_id), F_STRN("tenant", r->tenant),
		F_STRN("peer", r->peer));
}

void gw_account(struct gw_req *r)
{
	cgn_nsec now = cgn_loop_now(r->w->loop);
	int status = final_status(r);
	struct gw_series *s = series_of(r->w, r->model);
	if (r->tail.n > 0)
		count_tokens(r);
	gw_limit_settle(r);
	if (s != NULL) {
		answer_learn(s, r);
		metric_add(code_cell(r->w->shared->telemetry, s, status), 1);
		metric_observe(s->request, now - r->started);
		if (r->queued_at > 0)
			metric_observe(s->queue, r->queued);
		if (r->tries > 0 && r->first_byte > 0)
			metric_observe(s->ttft, r->first_byte - r->started);
	}
	gw_explain_end(r, status, final_outcome(r, status), now);
	access_log(r, status, final_outcome(r, status), now);
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
	w->series = NULL;
	w->n_series = 0;
}
