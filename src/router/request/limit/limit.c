/* SPDX-License-Identifier: Apache-2.0 */
/* limit: how many requests and tokens a key, a client address and a tenant may have. A request reserves them
 * once, before it queues, and settles them when it has ended, with the engine's counts. The subject is what
 * the router itself knows: no field of a head names it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "router/request/account/account.h"
#include "router/request/limit/limit_priv.h"

#define LIMITS_TAG      0x64117501U
#define ANSWER_TOKENS   256 /* Tokens of an answer of a model that has not answered yet */
#define BYTES_A_TOKEN   4
#define TEMPLATE_TOKENS 1024 /* Tokens that a chat template adds, at most */

static const char *const unit_texts[LIMIT_UNITS] = {"requests", "tokens"};
static const struct {
	char letter;
	const char *text, *kinds[LIMIT_UNITS];
} subject_rows[LIMIT_SUBJECTS] = {
	[LIMIT_KEY] = {'k', "API key", {"key_requests", "key_tokens"}},
	[LIMIT_ADDRESS] = {'a', "address", {"address_requests", "address_tokens"}},
	[LIMIT_TENANT] = {'t', "tenant", {"tenant_requests", "tenant_tokens"}},
};

/* ---- subjects ---- */

static void limit_add(struct gw_limits *l, const struct gw_shared *shared, enum limit_subject subject,
	enum limit_unit unit, struct cgn_str name, const struct rate *rate, uint64_t units)
{
	if (!rate_is_set(rate))
		return;
	CGN_MUST(l->n < GW_MAX_LIMITS);
	struct gw_limit *to = &l->v[l->n++];
	*to = (struct gw_limit){.subject = subject, .unit = unit, .rate = *rate, .reserved = units};
	/* The name contains the rate, so that a changed rate begins with a full bucket. */
	(void)snprintf(to->name, sizeof to->name, "%c:%.*s:%c:%llu/%llu", subject_rows[subject].letter,
		CGN_STR_ARG(name), unit_texts[unit][0], (unsigned long long)rate->units,
		(unsigned long long)rate->burst);
	struct digest d = digest_keyed(&shared->limit_seed, cgn_str_of(to->name));
	to->key = digest_short(&d);
	to->key += to->key == 0;
}

/* ---- amounts ---- */

static uint64_t prompt_estimate(const struct gw_req *r)
{
	const struct gw_model *row = gw_rules_model(r->w->rules, r->prompt.model);
	double block = row != NULL ? row->block_bytes : GW_BLOCK_BYTES;
	if (r->prompt.tokens > 0)
		return r->prompt.tokens;
	double bytes = r->prompt.chain.length > 0 ? r->prompt.chain.length * block : (double)r->body.bytes.n;
	return (uint64_t)(bytes / BYTES_A_TOKEN) + 1;
}

/* Return the most tokens that the prompt can have: a token has at least a byte of the body, or is one of the template. A
 * tokenizer's count may lack what the template adds. 0: the body does not have all of the prompt. */
static uint64_t prompt_most(const struct gw_req *r)
{
	bool apart = r->prompt.media || r->prompt.facts.previous.raw.p != NULL;
	if (prompt_api_of(r->client.target) == PROMPT_NONE || apart)
		return 0;
	uint64_t most = r->body.bytes.n + TEMPLATE_TOKENS, counted = 2 * r->prompt.tokens + TEMPLATE_TOKENS;
	bool known = r->prompt.tokens > 0 && !r->prompt.tools && !r->prompt.several &&
		r->prompt.chain.n < ROUTE_MAX_BLOCKS;
	return known && counted < most ? counted : most;
}

uint64_t limit_answer_estimate(const struct gw_req *r)
{
	if (prompt_api_of(r->client.target) == PROMPT_NONE || r->client.route->scope != AUTH_CHAT)
		return 0;
	uint32_t mean = gw_series_answer(r->w, r->prompt.model);
	return r->prompt.answer_limit > 0 ? r->prompt.answer_limit : mean > 0 ? mean : ANSWER_TOKENS;
}

/* Return how many tokens to reserve. An estimate never makes a request too large: it reserves at most the
 * whole bucket, and the rest is taken when the request is settled. */
static uint64_t tokens_reserved(const struct gw_req *r, uint64_t burst)
{
	uint64_t known = r->prompt.tokens + (limit_answer_estimate(r) > 0 ? r->prompt.answer_limit : 0);
	uint64_t guess = prompt_estimate(r) + limit_answer_estimate(r);
	if (known > burst)
		return known;
	return guess < burst ? guess : burst;
}

static void limits_add(struct gw_limits *l, const struct gw_req *r, enum limit_subject subject,
	struct cgn_str name, const struct gw_rates *rates)
{
	const struct gw_shared *shared = r->w->shared;
	limit_add(l, shared, subject, LIMIT_REQUESTS, name, &rates->requests, 1);
	if (gw_used_has_tokens(r) && rate_is_set(&rates->tokens))
		limit_add(l, shared, subject, LIMIT_TOKENS, name, &rates->tokens,
			tokens_reserved(r, rates->tokens.burst));
}

/* Return the rates of the request's key, or of all keys and addresses. */
static const struct gw_rates *rates_own(const struct gw_req *r)
{
	return r->identity.rates != NULL ? r->identity.rates : &r->w->rules->rates;
}

static struct gw_limits *limits_of(const struct gw_req *r)
{
	const struct gw_rules *rules = r->w->rules;
	const struct gw_rates *all = &gw_rules_tenant(rules, r->identity.tenant)->rates;
	char address[NET_ADDR_GROUP_MAX];
	struct gw_limits *l = CGN_NEW(struct gw_limits);
	l->tag = LIMITS_TAG;
	l->w = r->w;
	if (r->identity.key_id != NULL) {
		limits_add(l, r, LIMIT_KEY, cgn_str_of(r->identity.key_id), rates_own(r));
	} else {
		net_addr_group(r->client.peer, address);
		limits_add(l, r, LIMIT_ADDRESS, cgn_str_of(address), &rules->rates);
	}
	limits_add(l, r, LIMIT_TENANT, r->identity.tenant, all);
	if (!r->client.quotes) /* a quote uses nothing of a budget */
		gw_budgets_begin(r, l);
	return l;
}

static bool limit_applies(const struct gw_req *r)
{
	const struct gw_rates *own = rates_own(r),
			      *all = &gw_rules_tenant(r->w->rules, r->identity.tenant)->rates;
	return rate_is_set(&own->requests) || rate_is_set(&own->tokens) || rate_is_set(&all->requests) ||
		rate_is_set(&all->tokens) || gw_budgets_apply(r);
}

/* ---- reserving ---- */

static void limits_release(struct gw_limits *l, struct rate_table *table, cgn_nsec now)
{
	for (unsigned i = 0; i < l->n; i++)
		if (l->v[i].answer.granted)
			rate_table_settle(table, l->v[i].key, &l->v[i].rate, now, l->v[i].reserved, 0);
}

/* Ask every bucket, even after one has refused, so that the wait that the client is told is the longest.
 * Reserve in all buckets or in none. */
static bool reserve_here(struct gw_limits *l, struct rate_table *table, cgn_nsec now)
{
	bool granted = true;
	for (unsigned i = 0; i < l->n; i++) {
		struct gw_limit *one = &l->v[i];
		one->answer = rate_table_take(table, one->key, &one->rate, now, one->reserved);
		granted = granted && one->answer.granted;
	}
	granted = gw_budgets_take(l) && granted;
	if (!granted) {
		gw_budgets_settle(l, NULL);
		limits_release(l, table, now);
	}
	l->reserved = granted;
	return granted;
}

/* ---- refusing ---- */

static const struct gw_limit *limit_worst(const struct gw_limits *l)
{
	const struct gw_limit *worst = NULL;
	for (unsigned i = 0; i < l->n; i++)
		if (!l->v[i].answer.granted && (worst == NULL || l->v[i].answer.wait > worst->answer.wait))
			worst = &l->v[i];
	CGN_MUST(worst != NULL);
	return worst;
}

static void rate_text(const struct gw_limit *one, char *out, size_t cap)
{
	if (one->unit == LIMIT_TOKENS)
		(void)snprintf(out, cap, "%llu tokens a minute", (unsigned long long)one->rate.units);
	else
		(void)snprintf(out, cap, "%g requests a second, %llu at once", (double)one->rate.units / 1000,
			(unsigned long long)one->rate.burst);
}

static enum gw_step limit_refuse(struct gw_req *r)
{
	if (gw_budgets_refuse(r))
		return STEP_AGAIN;
	const struct gw_limit *one = limit_worst(r->plan.limits);
	const char *whose = subject_rows[one->subject].text;
	char rate[80];
	bool never = one->answer.wait == RATE_NEVER;
	uint64_t seconds = never ? 0 : (one->answer.wait + CGN_SEC - 1) / CGN_SEC;
	struct gw_refusal how = {
		.status = 429,
		.type = unit_texts[one->unit],
		.code = "rate_limit_exceeded",
		.reason = "rate",
		.by = GW_BY_RATE,
		.retry_after = seconds < UINT32_MAX ? (unsigned)seconds : UINT32_MAX,
	};
	r->plan.limits->never = never;
	rate_text(one, rate, sizeof rate);
	metric_add(METRIC_OF(r->w->shared->telemetry, RATE_LIMITED,
			   subject_rows[one->subject].kinds[one->unit]),
		1);
	if (never)
		return gw_refuse(r, &how,
			"the request is too large: it may take %llu %s, and the %s has %s: shorten the prompt or ask for fewer tokens",
			(unsigned long long)one->reserved, unit_texts[one->unit], whose, rate);
	return gw_refuse(r, &how,
		"rate limit reached: the %s has %s, this request needs %llu; try again in %llu s", whose,
		rate, (unsigned long long)one->reserved, (unsigned long long)seconds);
}

/* Is it an upload, or a request for a batch? */
static bool is_filing(const struct gw_req *r)
{
	return r->client.route->kind == GW_BATCH;
}

static enum gw_step limit_pass(struct gw_req *r)
{
	r->plan.limited = true;
	gw_goto(r, is_filing(r) ? GW_FILES : GW_ROUTE);
	return STEP_AGAIN;
}

static enum gw_step limit_decide(struct gw_req *r)
{
	struct gw_limits *l = r->plan.limits;
	if (!l->stored)
		(void)reserve_here(l, r->w->shared->limits, cgn_loop_now(r->w->loop));
	if (l->reserved)
		return limit_pass(r);
	if (is_filing(r) && r->client.x != NULL)
		http_exchange_resume(r->client.x); /* The rest of a refused upload is dropped. */
	return limit_refuse(r);
}

enum gw_step gw_limit(struct gw_req *r)
{
	bool begun = r->plan.limits != NULL;
	if (!begun) {
		r->plan.prompt_tokens = prompt_estimate(r);
		r->plan.prompt_most = prompt_most(r);
	}
	/* A request of another cluster was counted there, and the router's own ones count nowhere. */
	if (!begun && (r->client.from.peer != NULL || r->identity.own || !limit_applies(r)))
		return limit_pass(r);
	if (!begun)
		r->plan.limits = limits_of(r);
	if (r->plan.limits->asking || (!begun && gw_store_ask(r, r->plan.limits)))
		return gw_park(r, WAIT_STORE, 0); /* the store has a timeout for each call */
	return limit_decide(r);
}

/* ---- settling ---- */

static uint64_t tokens_used(const struct gw_req *r, const struct gw_used *used, uint64_t reserved)
{
	bool unknown = used->estimated && r->attempt.head_seen && !r->answer.event_stream;
	return unknown ? reserved : used->input + used->output;
}

void limit_end(struct gw_limits *l, const uint64_t *used, const struct budget_amounts *spent)
{
	static const uint64_t nothing[GW_MAX_LIMITS];
	CGN_LIVE(l, LIMITS_TAG);
	CGN_MUST(!l->asking);
	if (used == NULL)
		used = nothing;
	if (l->reserved && l->stored)
		gw_store_settle(l->w, l, used, spent);
	if (l->reserved)
		gw_budgets_settle(l, spent);
	for (unsigned i = 0; i < l->n && l->reserved && !l->stored; i++)
		rate_table_settle(l->w->shared->limits, l->v[i].key, &l->v[i].rate, cgn_loop_now(l->w->loop),
			l->v[i].reserved, used[i]);
	l->tag = 0;
	free(l);
}

/* Did the router itself do what the request asks for? An upload counts however it ended: it took a place. */
static bool is_answered_here(const struct gw_req *r)
{
	return is_filing(r) || ((r->client.quotes || r->selecting != NULL) && r->answer.status == 200);
}

void gw_limit_settle(struct gw_req *r)
{
	struct gw_limits *l = r->plan.limits;
	uint64_t used[GW_MAX_LIMITS] = {0};
	struct budget_amounts spent;
	r->plan.limits = NULL;
	if (l == NULL)
		return;
	CGN_LIVE(l, LIMITS_TAG);
	if (l->asking) {
		l->r = NULL;
		return;
	}
	struct gw_used is = gw_used_all(r);
	const uint64_t requests = is_answered_here(r) ? 1 : is.requests;
	is.requests = requests;
	for (unsigned i = 0; i < l->n; i++)
		used[i] = l->v[i].unit == LIMIT_TOKENS ? tokens_used(r, &is, l->v[i].reserved) : requests;
	gw_budgets_spent(&is, &spent);
	limit_end(l, used, &spent);
}

/* ---- fields of the answer ---- */

/* Write |d| as OpenAI does: "120ms", "8.64s", "6m0s". */
void limit_duration(cgn_nsec d, char out[LIMIT_DURATION_MAX])
{
	uint64_t ms = (d + CGN_MSEC - 1) / CGN_MSEC;
	if (ms < 1000)
		(void)snprintf(out, LIMIT_DURATION_MAX, "%llums", (unsigned long long)ms);
	else if (ms < 60000)
		(void)snprintf(out, LIMIT_DURATION_MAX, "%gs", (double)ms / 1000);
	else
		(void)snprintf(out, LIMIT_DURATION_MAX, "%llum%gs", (unsigned long long)(ms / 60000),
			(double)(ms % 60000) / 1000);
}

/* Return the limit of |unit| that is nearest to being reached. */
static const struct gw_limit *limit_tightest(const struct gw_limits *l, enum limit_unit unit)
{
	const struct gw_limit *least = NULL;
	for (unsigned i = 0; i < l->n; i++)
		if (l->v[i].unit == unit && (least == NULL || l->v[i].answer.left < least->answer.left))
			least = &l->v[i];
	return least;
}

static size_t field_put(struct gw_req *r, struct http_field *f, const char *what, enum limit_unit unit,
	const char *value)
{
	const char *name = cgn_arena_fmt(&r->arena, "x-ratelimit-%s-%s", what, unit_texts[unit]);
	const char *copy = cgn_arena_strz(&r->arena, cgn_str_of(value));
	if (name == NULL || copy == NULL)
		return 0;
	*f = (struct http_field){cgn_str_of(name), cgn_str_of(copy)};
	return 1;
}

size_t gw_limit_fields(struct gw_req *r, struct http_field *f)
{
	size_t n = 0;
	char text[LIMIT_DURATION_MAX];
	for (unsigned u = 0; r->plan.limits != NULL && u < LIMIT_UNITS; u++) {
		const struct gw_limit *one = limit_tightest(r->plan.limits, (enum limit_unit)u);
		if (one == NULL)
			continue;
		(void)snprintf(text, sizeof text, "%llu", (unsigned long long)one->rate.burst);
		n += field_put(r, f + n, "limit", one->unit, text);
		(void)snprintf(text, sizeof text, "%llu", (unsigned long long)one->answer.left);
		n += field_put(r, f + n, "remaining", one->unit, text);
		limit_duration(one->answer.full_in, text);
		n += field_put(r, f + n, "reset", one->unit, text);
	}
	n += gw_budgets_fields(r, f + n);
	/* OpenAI's clients read this field before they repeat a request that got 429. */
	if (r->plan.limits != NULL && r->plan.limits->never)
		f[n++] = (struct http_field){CGN_STR("x-should-retry"), CGN_STR("false")};
	return n;
}
