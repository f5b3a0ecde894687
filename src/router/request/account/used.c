/* SPDX-License-Identifier: Apache-2.0 */
/* used: the usage of a request: the engine's own counts, as far as they can be; or, for an answer that was cut or has
 * none, the prompt's expected tokens and an estimate from what came of the answer and from its time. */
#include "base/log/log.h"
#include "base/sse/sse.h"
#include "policy/text/prompt/prompt.h"
#include "router/request/account/series_priv.h"
#include "router/shared/peers/peers.h"

#define USED_TIMES_ASKED 2 /* Tokens that a peer may charge: this many times those asked for, and USED_MORE */
#define USED_MORE        64
#define UNSEEN_LEAST     64  /* Tokens that an answer may have beside those that its bytes show, and */
#define UNSEEN_A_MS      8   /* this many for each millisecond */
#define ANSWER_TOKENS    256 /* Tokens of an answer of a model that has not answered yet */
#define SEEN_LEAST       8   /* Tokens that tell the pace of a stream */
#define WHOLE_LEAST      64  /* Tokens of a document that tell the pace of a node */

bool gw_used_has_tokens(const struct gw_req *r)
{
	enum gw_route_kind kind = r->client.route->kind;
	return kind != GW_MEDIA && kind != GW_COUNT && kind != GW_STORED && !r->client.quotes &&
		kind != GW_ABOUT && kind != GW_BATCH && !cgn_str_starts(r->client.target, "/tokenize") &&
		!cgn_str_starts(r->client.target, "/apply-template") &&
		!cgn_str_starts(r->client.target, "/detokenize");
}

/* Count an event as a token, for streams without usage: OpenAI's have it only when the client asks. */
void gw_used_relayed(struct gw_req *r, struct cgn_str data)
{
	if (r->answer.event_stream)
		r->answer.events += sse_marks(&r->answer.mark_begun, data);
}

/* The end of a request, or one that it is taken to have. */
struct used_end {
	struct usage told;
	bool left;      /* The client left. */
	cgn_nsec ahead; /* The time from now until then. */
};

static bool was_served(const struct gw_req *r, const struct used_end *end)
{
	return r->attempt.head_seen || (end->left && plan_attempts(&r->plan.legs) > 0);
}

uint64_t gw_used_price(const struct gw_req *r, struct cgn_str model, uint64_t input, uint64_t cached,
	uint64_t output)
{
	const struct gw_price *p = gw_rules_price(r->w->rules, model);
	if (p == NULL)
		return 0;
	return budget_of_prices((budget_prices)(input - cached) * p->input +
		(budget_prices)cached * p->cached_input + (budget_prices)output * p->output);
}

/* Return the most tokens that the answer can have, 0: not known. After a resume the limit is that of the rest. */
static uint64_t tokens_asked(const struct gw_req *r)
{
	uint64_t asked = r->prompt.several ? 0 : r->prompt.answer_limit;
	return asked > 0 && r->plan.legs.resumes > 0 ? asked + r->answer.events : asked;
}

/* ---- counts of engines ---- */

struct usage gw_used_told(const struct gw_req *r)
{
	const struct usagescan *told = &r->answer.told;
	bool own = r->client.route->kind == GW_NATIVE || r->answer.event_stream;
	return told->found ? told->usage : told->found_own && own ? told->own : (struct usage){0};
}

/* Return the most tokens that |bytes| bytes of an answer can tell. A token that is seen has at least a byte; one that is
 * not, such as reasoning, takes its time. A hosted peer bills reasoning in addition to the tokens asked for. */
static uint64_t completion_most(const struct gw_req *r, uint64_t bytes)
{
	uint64_t ms = cgn_since(cgn_loop_now(r->w->loop), r->attempt.sent_at) / CGN_MSEC;
	uint64_t held = bytes + UNSEEN_LEAST + UNSEEN_A_MS * ms, asked = tokens_asked(r);
	if (asked > 0 && r->attempt.peer != NULL)
		asked = USED_TIMES_ASKED * asked + USED_MORE;
	return asked > 0 && asked < held ? asked : held;
}

static struct node_stats *stats_of(const struct gw_req *r)
{
	return &r->w->shared->choice.stats[r->attempt.call.slot];
}

static _Atomic uint64_t *untrue_until(const struct gw_req *r)
{
	return &stats_of(r)->untrue_until;
}

bool gw_used_bound(const struct gw_req *r, struct usage *io, uint64_t bytes)
{
	bool doubted = cgn_loop_now(r->w->loop) < atomic_load_explicit(untrue_until(r), memory_order_relaxed);
	bool prompt = io->has_prompt && r->plan.prompt_most > 0 && io->prompt_tokens > r->plan.prompt_most,
	     answer = io->has_completion && io->completion_tokens > completion_most(r, bytes),
	     untrue = prompt || answer || io->absurd;
	if (untrue || doubted)
		*io = (struct usage){.absurd = true};
	return untrue;
}

void gw_used_untrue(const struct gw_req *r)
{
	const char *node = r->attempt.peer != NULL ? r->attempt.peer->name : r->attempt.call.node_id;
	metric_add(METRIC_OF(r->w->shared->telemetry, USAGE_UNTRUE, node), 1);
	atomic_store_explicit(untrue_until(r), cgn_loop_now(r->w->loop) + GW_UNTRUE_FOR,
		memory_order_relaxed);
	cgn_log_limited(WARN, "gateway.usage_untrue", F_STRN("id", r->client.id), F_STR("node", node),
		F_STRN("model", r->prompt.model), F_U64("asked", tokens_asked(r)),
		F_U64("bytes", r->answer.bytes_out),
		F_STR("then", "its answers are estimated for 10 minutes"));
}

/* ---- estimates ---- */

static bool has_answer(const struct gw_req *r)
{
	enum prompt_api api = prompt_api_of(r->client.target);
	return r->answer.event_stream || (api != PROMPT_NONE && api != PROMPT_EMBEDDINGS);
}

/* Return the text that came. Of an answer that cannot be decoded, all bytes count. */
static struct estimate_seen answer_seen(const struct gw_req *r)
{
	const struct gw_answer *to = &r->answer;
	return to->unread ? (struct estimate_seen){0, to->bytes_out} : usagescan_seen(&to->told);
}

/* Return how long a token of the answer takes: as those before it did, or those of other answers of the node or peer. */
static double token_ms(const struct gw_req *r, uint64_t seen)
{
	const struct gw_answer *to = &r->answer;
	if (to->event_stream && seen >= SEEN_LEAST && to->last_byte > to->first_byte)
		return (double)cgn_since(to->last_byte, to->first_byte) / 1e6 / (double)seen;
	double ms = node_stats_pace(stats_of(r));
	return ms > 0 ? ms : (double)(ROUTE_SPEED_DEFAULT).step_ms;
}

/* Return how long the engine computed tokens of a document until |end|, without the time for the prompt. */
static cgn_nsec whole_time(const struct gw_req *r, cgn_nsec end)
{
	const struct route_speed speed = node_stats_speed(&r->w->shared->choice.stats[r->attempt.call.slot]);
	cgn_nsec prompt = (cgn_nsec)((double)speed.prefill_ms * (double)r->attempt.ticket.new_tokens * 1e6);
	cgn_nsec took = cgn_since(end, r->attempt.sent_at);
	return took > prompt ? took - prompt : 0;
}

/* Return how long the engine computed tokens that the client, which left, has not seen. */
static cgn_nsec unseen_time(const struct gw_req *r)
{
	const struct gw_answer *to = &r->answer;
	cgn_nsec now = cgn_loop_now(r->w->loop);
	if (to->event_stream)
		return cgn_since(now, to->last_byte);
	return r->prompt.stream ? 0 : whole_time(r, to->first_byte > 0 ? to->first_byte : now);
}

/* Return how many tokens the engine computed until it was cancelled that the client has not seen, at most as many as an
 * answer has. A stream that was not held back brings its tokens event by event. */
static uint64_t unseen_tokens(const struct gw_req *r, const struct gw_series *s, const struct used_end *end,
	uint64_t seen)
{
	uint64_t most = tokens_asked(r), event = (uint64_t)s->estimate.event_tokens;
	if (!end->left || r->answer.outcome != NULL)
		return 0;
	if (most == 0)
		most = s->answer_tokens > ANSWER_TOKENS ? (uint64_t)s->answer_tokens : ANSWER_TOKENS;
	most = most > seen ? most - seen : 0;
	if (r->answer.event_stream && !r->answer.paused && most > (event > 1 ? event : 1))
		most = event > 1 ? event : 1;
	double n = (double)unseen_time(r) / 1e6 / token_ms(r, seen);
	return n < (double)most ? (uint64_t)n : most;
}

/* Return how many tokens of a stream come in the time ahead. */
static uint64_t ahead_tokens(const struct gw_req *r, const struct used_end *end, uint64_t seen)
{
	if (end->ahead == 0 || !r->answer.event_stream || r->answer.paused || seen == 0)
		return 0;
	return (uint64_t)((double)end->ahead / 1e6 / token_ms(r, seen) + 0.5);
}

static uint64_t tokens_guess(const struct gw_req *r, const struct used_end *end)
{
	const struct gw_series *s = series_of(r->w, r->prompt.model);
	const struct estimate_seen seen = answer_seen(r);
	uint64_t asked = tokens_asked(r);
	if (!has_answer(r))
		return 0;
	uint64_t n = estimate_tokens(&s->estimate, &seen);
	n += unseen_tokens(r, s, end, n) + ahead_tokens(r, end, n);
	return asked > 0 && asked < n ? asked : n;
}

/* The first token of a stream, and the overhead of a short document, say little of the pace. */
static void pace_learn(const struct gw_req *r, uint64_t tokens)
{
	const struct gw_answer *to = &r->answer;
	if (r->prompt.several || to->was_paused || r->plan.legs.resumes > 0)
		return;
	if (to->event_stream && tokens > SEEN_LEAST)
		node_stats_paced(stats_of(r), (double)cgn_since(to->last_byte, to->first_byte) / 1e6,
			tokens - 1);
	else if (!to->event_stream && tokens >= WHOLE_LEAST)
		node_stats_paced(stats_of(r), (double)whole_time(r, to->first_byte) / 1e6, tokens);
}

void gw_used_learn(const struct gw_req *r, struct gw_series *s)
{
	const struct usage *u = &r->answer.usage;
	if (!u->has_completion || u->completion_tokens == 0 || r->answer.status != 200 || !has_answer(r) ||
		r->client.why.code != CGN_FINE || r->answer.outcome != NULL)
		return;
	pace_learn(r, u->completion_tokens);
	const struct estimate_seen seen = answer_seen(r);
	estimate_learn(&s->estimate, &seen, u->completion_tokens);
}

/* ---- the request ---- */

uint64_t gw_used_cached(const struct gw_req *r, uint64_t input)
{
	const struct plan_leg *leg = plan_last(&r->plan.legs);
	uint64_t block = r->prompt.block_tokens, held = leg->held;
	if (r->attempt.peer != NULL || held == 0 || leg->blocks == 0 || input == 0)
		return 0;
	uint64_t cached = block > 0 ? held * block : input * held / leg->blocks;
	return cached < input ? cached : block > 0 && cached >= block ? cached - block : input - 1;
}

static void tokens_fill(const struct gw_req *r, const struct used_end *end, struct gw_used *out)
{
	const struct usage *u = &end->told;
	bool other = r->attempt.opening.reader.says == OPENING_OTHER,
	     counted = u->has_prompt || u->has_completion;
	if (!gw_used_has_tokens(r) || gw_attempt_is_error(&r->attempt) || (other && !counted))
		return;
	bool cut = r->answer.event_stream && (end->left || r->answer.outcome != NULL);
	out->input = u->has_prompt ? u->prompt_tokens : r->plan.prompt_tokens;
	uint64_t cached =
		u->has_cached || u->has_completion ? u->cached_tokens : gw_used_cached(r, out->input);
	out->cached = cached < out->input ? cached : out->input;
	out->output = u->has_completion ? u->completion_tokens : 0;
	out->estimated = cut || !counted;
	/* Anthropic's streams begin with a usage that has one token of the answer. */
	uint64_t guess = out->estimated ? tokens_guess(r, end) : 0;
	if (out->output < guess)
		out->output = guess;
}

static struct gw_used used_by(const struct gw_req *r, const struct used_end *end)
{
	struct gw_used used = {0};
	const struct chooser_energy e = gw_attempt_joules(&r->attempt);
	double joules = e.prefill_j + e.decode_j;
	if (!was_served(r, end))
		return used;
	used.requests = 1;
	tokens_fill(r, end, &used);
	used.money = r->attempt.peer != NULL
		? gw_peer_price(r->attempt.peer, used.input, used.output)
		: gw_used_price(r, r->prompt.model, used.input, used.cached, used.output);
	if (e.counted && joules > 0)
		used.joules = (uint64_t)(joules * (double)BUDGET_JOULE_SCALE + 0.5);
	return used;
}

static struct gw_used used_now(const struct gw_req *r)
{
	return used_by(r,
		&(struct used_end){.told = r->answer.usage, .left = r->client.why.code != CGN_FINE});
}

struct gw_used gw_used_left(const struct gw_req *r, cgn_nsec ahead)
{
	struct used_end end = {.told = gw_used_told(r), .left = true, .ahead = ahead};
	(void)gw_used_bound(r, &end.told, r->answer.bytes_out);
	return used_by(r, &end);
}

struct gw_used gw_used_of(const struct gw_req *r)
{
	return r->answer.is_counted ? r->answer.used : used_now(r);
}

void gw_used_settle(struct gw_req *r)
{
	r->answer.used = used_now(r);
	r->answer.is_counted = true;
}
