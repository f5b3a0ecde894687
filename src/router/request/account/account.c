/* SPDX-License-Identifier: Apache-2.0 */
/* account: the end of a request in metrics, in the nodes' measured speeds, and in the log. */
#include "base/log/log.h"
#include "io/os/linefile/linefile.h"
#include "policy/answer/opening/opening.h"
#include "router/request/account/arms.h"
#include "router/request/account/explain.h"
#include "router/request/account/series_priv.h"
#include "router/request/account/sessions.h"
#include "router/request/request/cascade.h"
#include "router/request/trace/trace.h"
#include "router/shared/peers/peers.h"

static void joules_learn(struct gw_series *s, const struct chooser_energy *e)
{
	double j = e->prefill_j + e->decode_j;
	if (e->counted && j > 0)
		s->joules += s->joules > 0 ? (j - s->joules) / 16 : j;
}

static void answer_learn(struct gw_series *s, const struct gw_req *r)
{
	double n = (double)r->answer.usage.completion_tokens;
	gw_used_learn(r, s);
	if (r->answer.usage.has_completion && r->answer.status == 200 && !r->prompt.several)
		s->answer_tokens += s->answer_tokens > 0 ? (n - s->answer_tokens) / 16 : n;
}

/* Return the prompt's length in blocks. For blocks of tokens the engine's own count is used. */
static double chain_length(const struct gw_req *r)
{
	return r->prompt.block_tokens > 0 ? (double)r->answer.usage.prompt_tokens / r->prompt.block_tokens
					  : r->plan.prediction.length;
}

/* Return the tokens at the node after the request that ended with the held prefix: its prompt and its answer,
 * except the answer's last token, which was never computed on. */
static uint64_t tail_tokens(const struct gw_req *r)
{
	const struct prompttail *t = &r->plan.prediction.tail;
	double share = node_stats_answer_share(&r->w->shared->choice.stats[r->attempt.call.slot]);
	return t->prompt > 0 && t->answer > 0 ? t->prompt + (uint64_t)((double)(t->answer - 1) * share + 0.5)
					      : t->prompt;
}

/* Return how many tokens of the prompt the node was predicted to have cached: the held blocks' share of the
 * engine's count, or the tokens of the request that ended with the held prefix if more are known. Engines
 * always compute at least the last token, and reuse whole blocks of their own. */
static uint64_t cached_predicted(const struct gw_req *r)
{
	const struct gw_prediction *g = &r->plan.prediction;
	uint64_t prompt = r->answer.usage.prompt_tokens, most = prompt > 0 ? prompt - 1 : 0;
	if (plan_last(&r->plan.legs)->held == 0 || !(chain_length(r) > 0))
		return 0;
	uint64_t tokens = (uint64_t)((double)prompt * plan_last(&r->plan.legs)->held / chain_length(r) + 0.5);
	if (tail_tokens(r) > tokens)
		tokens = tail_tokens(r);
	if (tokens > most)
		tokens = most;
	return g->kv_block > 1 ? tokens - tokens % g->kv_block : tokens;
}

/* Drop from the record what a node of low trust did not have: such a node does not keep what it computes, so
 * the prompt must not count as held until it proves otherwise. A trusted node has just computed what it
 * lacked, and holds it now. */
static void record_correct(const struct gw_req *r, uint64_t actual)
{
	const struct gw_prediction *g = &r->plan.prediction;
	if (g->chain == NULL || node_stats_trust(&r->w->shared->choice.stats[r->attempt.call.slot]) > 0.5)
		return;
	double had = (double)actual * chain_length(r) / (double)(r->answer.usage.prompt_tokens + 1);
	size_t keep = had < plan_last(&r->plan.legs)->held ? (size_t)had : plan_last(&r->plan.legs)->held;
	route_record_drop(r->w->shared->choice.record, g->chain + keep, plan_last(&r->plan.legs)->held - keep,
		r->attempt.call.slot);
}

static void tail_keep(const struct gw_req *r)
{
	const struct usage *u = &r->answer.usage;
	if (!r->prompt.several && !r->plan.prediction.fed && r->plan.prediction.last != 0 &&
		u->has_completion)
		prompttail_put(r->w->shared->tails, r->plan.prediction.last, r->plan.prediction.node,
			(struct prompttail){u->prompt_tokens, u->completion_tokens});
}

/* Less than the prompt cached means that the cache lost it, which says nothing about answers. */
static void tail_learn(const struct gw_req *r, struct node_stats *stats)
{
	const struct prompttail *t = &r->plan.prediction.tail;
	if (!r->prompt.several && t->prompt > 0 && t->answer > 1 &&
		r->answer.usage.cached_tokens >= t->prompt)
		node_stats_answer(stats, t->answer - 1, r->answer.usage.cached_tokens - t->prompt);
}

/* Learn the node's speed from an answer that is complete and was not slowed by its client. */
static void speed_learn(struct gw_req *r)
{
	const struct usage *u = &r->answer.usage;
	uint64_t seen =
		u->completion_tokens < r->answer.bytes_out ? u->completion_tokens : r->answer.bytes_out;
	const struct chooser_outcome o = {.answer_tokens = u->has_completion ? seen : 0};
	if (!r->prompt.several && r->answer.outcome == NULL && !r->answer.was_paused)
		chooser_done(r->w->chooser, &r->attempt.ticket, &o, r->answer.last_byte);
}

/* Compare predicted with actual cached tokens, and learn from the difference. */
static void cache_learn(struct gw_req *r)
{
	struct node_stats *stats = &r->w->shared->choice.stats[r->attempt.call.slot];
	const struct usage *u = &r->answer.usage;
	const struct view_node *node = view_node_at(r->w->view, r->attempt.call.slot);
	/* The node may have left while a slow client read: don't blame the next node in its slot. */
	if (node == NULL || node->node_id_hash != r->plan.prediction.node)
		return;
	if (r->prompt.block_tokens == 0 && !(node_stats_block_tokens(stats) > 0))
		node_stats_recount(stats, r->attempt.ticket.new_tokens,
			(double)u->prompt_tokens - (double)u->cached_tokens);
	node_stats_measure(stats, u->prompt_tokens, chain_length(r));
	tail_keep(r);
	speed_learn(r);
	if (!u->has_cached || r->plan.handed)
		return; /* another engine computed the prompt: the number is not about this node's cache */
	uint64_t predicted = r->plan.prediction.cached = cached_predicted(r);
	metric_add(r->attempt.actual, u->cached_tokens);
	metric_add(r->attempt.predicted, predicted);
	tail_learn(r, stats);
	node_stats_believe(stats, predicted, u->cached_tokens);
	if (u->cached_tokens < predicted)
		record_correct(r, u->cached_tokens);
}

/* A client that closes behind the last event of its stream has all of the answer, whatever the engine's connection still
 * brings. */
static void client_settle(struct gw_req *r)
{
	struct cgn_str tail = usage_tail_view(&r->answer.tail);
	if (r->client.why.code != CGN_FINE && r->answer.event_stream && r->answer.outcome == NULL &&
		!r->answer.paused && opening_tail_is_last(tail, tail.n == r->answer.bytes_out))
		r->client.why = (struct cgn_err){.code = CGN_FINE};
}

static void usage_take(struct gw_req *r)
{
	struct usage *u = &r->answer.usage;
	*u = gw_used_told(r);
	if (gw_used_bound(r, u, r->answer.bytes_out))
		gw_used_untrue(r);
}

void gw_account_usage(struct gw_req *r)
{
	const struct usage *u = &r->answer.usage;
	if (r->answer.tail.n > 0) {
		client_settle(r);
		usage_take(r);
	}
	gw_used_settle(r);
	if (r->answer.tail.n == 0)
		return;
	/* Learn from answers of one leg only, and not from one that was to be resumed and never began. */
	if (u->has_prompt && r->attempt.predicted != NULL && r->answer.status == 200 &&
		r->plan.legs.resumes == 0 && !r->attempt.ticket.prefilling)
		cache_learn(r);
}

/* Return the status for the log: 499 if the client left before it had all of the answer, 408 if its body was
 * late. */
static int final_status(const struct gw_req *r)
{
	if (r->client.why.code == CGN_FINE ||
		(r->answer.outcome != NULL && strcmp(r->answer.outcome, "cut") == 0))
		return r->answer.status;
	return r->client.why.code == CGN_REQUEST_TIMEOUT && !r->answer.head_sent ? 408 : 499;
}

static const char *final_outcome(const struct gw_req *r, int status)
{
	const char *fine = r->plan.legs.resumes > 0 ? "resumed" : "ok";
	return r->answer.outcome != NULL ? r->answer.outcome
		: status == 499          ? "client_gone"
		: status == 408          ? "client_slow"
					 : fine;
}

static bool access_wanted(const struct gw_req *r, int status, const char *outcome)
{
	const struct gw_rules *rules = r->w->rules;
	bool failed = status >= 400 || strcmp(outcome, "ok") != 0;
	/* Peers look all the time whether this cluster is there, and how it is. */
	if (!failed && r->client.from.peer != NULL &&
		(r->client.route->kind == GW_HEALTHZ || r->client.route->kind == GW_SUMMARY))
		return false;
	if (rules->access.to == GW_ACCESS_OFF ||
		(rules->access.to == GW_ACCESS_STDERR && !log_wants(LOG_INFO)))
		return false;
	return failed || rules->access.sample >= 1 || gw_random(r->w) < rules->access.sample;
}

/* Return the time until the first byte of the answer; 0 without one, or when no node was asked. */
static cgn_nsec first_byte_took(const struct gw_req *r)
{
	if (r->answer.first_byte == 0 || plan_attempts(&r->plan.legs) == 0)
		return 0;
	return cgn_since(r->answer.first_byte, r->client.started);
}

static void access_write(const struct gw_req *r, const struct log_field *fields, size_t n)
{
	struct linefile *file = atomic_load_explicit(&r->w->shared->access, memory_order_acquire);
	if (r->w->rules->access.to != GW_ACCESS_FILE || file == NULL) {
		log_event(LOG_INFO, "gateway.request", fields, n);
		return;
	}
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {0};
	log_line(&line, LOG_INFO, "gateway.request", fields, n);
	if (!line.bad)
		linefile_add(file, cgn_buf_view(&line));
}

static void access_log(const struct gw_req *r, int status, const char *outcome,
	const struct chooser_energy *joules, cgn_nsec now)
{
	if (!access_wanted(r, status, outcome))
		return;
	struct cgn_str rest = r->client.path, path = cgn_str_split(&rest, '?');
	const struct plan *legs = &r->plan.legs;
	const struct plan_leg *last = plan_last(legs), *prefill = plan_prefilled(legs);
	const struct gw_cascade *c = r->plan.cascade;
	const struct gw_used *used = &r->answer.used;
	const struct log_field fields[] = {F_STRN("id", r->client.id),
		F_STRN("own_id",
			cgn_str_eq(r->client.id, r->client.own) ? (struct cgn_str){0} : r->client.own),
		F_STRN("method", r->client.method), F_STRN("path", path), F_STRN("model", r->prompt.model),
		F_STR("node", r->attempt.call.node_id), F_BOOL("direct", r->attempt.by_engine),
		F_I64("status", status), F_STR("outcome", outcome), F_U64("bytes", r->answer.bytes_out),
		F_DUR("ttft", first_byte_took(r)), F_DUR("total", cgn_since(now, r->client.started)),
		F_DUR("pick", r->plan.pick_took), F_DUR("queued", r->plan.queued),
		F_U64("blocks_held", last->held), F_U64("blocks", last->blocks),
		F_U64("tries", plan_attempts(legs)), F_STR("retried", legs->last_retry),
		F_U64("resumes", legs->resumes),
		F_STR("not_resumed", r->answer.cut_for != NULL ? r->answer.unresumable : NULL),
		F_STR("cascade", c != NULL ? c->outcome : NULL),
		F_U64("cascade_step", c != NULL ? c->step + 1U : 0),
		F_U64("wasted_tokens", gw_used_wasted(r)), F_STR("disagg", r->plan.disagg),
		F_STR("prefill_node", prefill != NULL ? prefill->node : r->plan.beside_node),
		F_DUR("prefill", prefill != NULL ? prefill->took : r->plan.beside_took),
		F_U64("prompt_tokens", used->input), F_U64("completion_tokens", used->output),
		F_U64("cached_tokens", used->cached), F_BOOL("estimated", used->estimated),
		F_U64("cached_predicted", r->plan.prediction.cached),
		F_F64("joules", joules->prefill_j + joules->decode_j),
		F_BOOL("stream", r->answer.event_stream), F_STR("tokens", r->prompt.unit),
		F_STR("key", r->identity.key_id), F_STRN("tenant", r->identity.tenant),
		F_STRN("session", r->client.session.id), F_U64("turn", r->client.turn.number),
		F_STRN("peer", r->client.peer),
		F_STR("from", r->client.from.peer != NULL ? r->client.from.peer->name : NULL),
		F_STR("away", r->attempt.peer != NULL ? r->attempt.peer->name : NULL),
		F_F64("away_cost", (double)r->plan.away.money / (double)BUDGET_MONEY_SCALE)};
	access_write(r, fields, CGN_COUNT(fields));
}

void gw_account_end(struct gw_req *r)
{
	cgn_nsec now = cgn_loop_now(r->w->loop);
	int status = final_status(r);
	const struct chooser_energy joules = gw_attempt_joules(&r->attempt);
	struct gw_series *s = series_of(r->w, r->prompt.model);
	answer_learn(s, r);
	joules_learn(s, &joules);
	metric_add(series_status(r->w->shared->telemetry, s, status), 1);
	metric_observe(s->request, cgn_since(now, r->client.started));
	if (r->plan.queued_at > 0)
		metric_observe(s->queue, r->plan.queued);
	if (first_byte_took(r) > 0)
		metric_observe(s->ttft, first_byte_took(r));
	gw_tenant_count(r);
	gw_session_end(r);
	gw_cascade_count(r);
	gw_trace_end(r, status, final_outcome(r, status), now);
	gw_joules_count(r, &joules);
	gw_explain_end(r, status, final_outcome(r, status), now);
	gw_arms_end(r, status, final_outcome(r, status), now);
	access_log(r, status, final_outcome(r, status), &joules, now);
}
