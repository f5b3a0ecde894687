/* SPDX-License-Identifier: Apache-2.0 */
/* direct: the engine as an attempt's other end, and the way back to the agent when it can't be reached. */
#include "router/request/attempt/direct.h"

#include "base/log/log.h"
#include "base/unlikely/unlikely.h"

#define AWAY_TIME (10 * CGN_SEC) /* After an engine could not be reached, its requests go by the agent */

static struct node_stats *stats_of(const struct gw_attempt *a)
{
	return &a->w->shared->choice.stats[a->call.slot];
}

/* ---- counting ---- */

static void direct_count(struct gw_attempt *a)
{
	struct node_stats *stats = stats_of(a);
	a->direct.counted = true;
	a->direct.begun = false;
	a->direct.tokens = a->ticket.new_tokens;
	a->call.link->direct++;
	atomic_fetch_add_explicit(&stats->direct, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&stats->direct_tokens, a->direct.tokens, memory_order_relaxed);
	a->direct.whole = a->ticket.prompt_us > 0;
	atomic_fetch_add_explicit(&stats->direct_wholes, a->direct.whole, memory_order_relaxed);
	atomic_fetch_add_explicit(&stats->direct_whole_us, a->ticket.prompt_us, memory_order_relaxed);
}

/* The request is no more one without a byte. */
static void direct_prompt_end(struct gw_attempt *a)
{
	struct node_stats *stats = stats_of(a);
	atomic_fetch_sub_explicit(&stats->direct_tokens, a->direct.tokens, memory_order_relaxed);
	atomic_fetch_sub_explicit(&stats->direct_wholes, a->direct.whole, memory_order_relaxed);
}

static void direct_begun(struct gw_attempt *a)
{
	struct node_stats *stats = stats_of(a);
	atomic_fetch_add_explicit(&stats->direct_heard, 1, memory_order_relaxed);
	if (a->direct.begun)
		return;
	a->direct.begun = true;
	direct_prompt_end(a);
	atomic_fetch_add_explicit(&stats->direct_decoding, 1, memory_order_relaxed);
}

static void direct_uncount(struct gw_attempt *a)
{
	struct node_stats *stats = stats_of(a);
	if (!a->direct.counted)
		return;
	a->direct.counted = false;
	a->call.link->direct--;
	atomic_fetch_sub_explicit(&stats->direct, 1, memory_order_relaxed);
	if (a->direct.begun)
		atomic_fetch_sub_explicit(&stats->direct_decoding, 1, memory_order_relaxed);
	else
		direct_prompt_end(a);
}

/* ---- the answer ---- */

/* Hand the gathered bytes on. False: the owner has ended the attempt, or began another one. */
static bool gathered_pass(struct gw_attempt *a)
{
	uint32_t turn = a->turn;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = enginecall_gather_take(&a->direct.gather);
	if (b.n > 0)
		a->ops->on_data(a->user, cgn_buf_view(&b));
	return a->turn == turn && (a->call.link != NULL || a->leaves);
}

static void on_turn_end(struct cgn_hook *h)
{
	(void)gathered_pass(CGN_CONTAINER(h, struct gw_attempt, direct.gather.hook));
}

void gw_direct_head(struct gw_attempt *a, const struct http_head *h)
{
	struct proto_header *to = cgn_arena_get(a->head, PROTO_MAX_HEADERS * sizeof *to);
	size_t n = to != NULL ? enginecall_head(h, to) : 0;
	bool kept = to != NULL;
	for (size_t i = 0; i < n; i++) {
		to[i] = (struct proto_header){cgn_arena_str(a->head, to[i].name),
			cgn_arena_str(a->head, to[i].value)};
		kept = kept && to[i].name.p != NULL && to[i].value.p != NULL;
	}
	if (!kept)
		gw_attempt_refuse(a, CGN_NO_MEMORY);
	else
		gw_attempt_head(a, h->status, to, n);
}

static void on_head(struct http_call *call, void *user, const struct http_head *h)
{
	(void)call;
	struct gw_attempt *a = user;
	a->call.link->direct_away = false;
	gw_direct_head(a, h);
}

void gw_direct_body(struct http_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	struct gw_attempt *a = user;
	if (a->direct.counted)
		direct_begun(a);
	if (a->events && enginecall_gather_add(&a->direct.gather, p, n))
		return;
	if (gathered_pass(a) && a->call.http != NULL)
		a->ops->on_data(a->user, (struct cgn_str){(const char *)p, n});
}

void gw_direct_over(struct gw_attempt *a, const struct cgn_err *why)
{
	direct_uncount(a);
	if (!gathered_pass(a))
		return;
	gw_call_on_close(&a->call, why);
	a->ops->on_event(a->user);
}

void gw_direct_done(struct http_call *call, void *user, const struct http_field *trailers, size_t n)
{
	(void)call;
	(void)trailers;
	(void)n;
	struct gw_attempt *a = user;
	const struct cgn_err fine = {.code = CGN_FINE};
	a->call.http = NULL;
	gw_direct_over(a, &fine);
}

void gw_direct_gather(struct gw_attempt *a)
{
	a->direct.gather = (struct enginecall_gather){.loop = a->w->loop};
	cgn_hook_init(&a->direct.gather.hook, on_turn_end);
}

/* ---- the way back to the agent ---- */

static void agent_count(const struct gw_attempt *a, const char *outcome)
{
	metric_add(METRIC_OF(a->w->shared->telemetry, DIRECT, outcome), 1);
}

/* The agent knows more of an engine that can't be reached: its answer says what the node is worth. */
static void agent_ask(struct gw_attempt *a, const struct cgn_err *why)
{
	struct gw_link *l = a->call.link;
	direct_uncount(a);
	agent_count(a, "agent");
	if (!l->direct_away)
		cgn_log(WARN, "gateway.direct_away", F_STR("node", a->call.node_id),
			F_STR("engine", l->engine_address), F_STR("why", why->msg),
			F_STR("then", "its requests go by the agent"));
	l->direct_away = true;
	l->direct_after = cgn_loop_now(a->w->loop) + AWAY_TIME;
	a->by_engine = false;
	gw_attempt_by_agent(a, a->direct.sent);
	if (a->call.closed)
		a->ops->on_event(a->user);
}

void gw_direct_avoid(struct gw_worker *w, uint16_t slot)
{
	struct gw_link *l = w->links[slot];
	if (l != NULL && l->channel != NULL)
		l->direct_after = cgn_loop_now(w->loop) + AWAY_TIME;
}

static bool engine_ask(struct gw_attempt *a, struct cgn_err *err);

static void on_fail(struct http_call *call, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	(void)call;
	struct gw_attempt *a = user;
	struct cgn_err said;
	a->call.http = NULL;
	bool unsent =
		a->call.lends && !a->head_seen && stage <= (a->once ? HTTP_FAIL_CONNECT : HTTP_FAIL_STALE);
	a->begun_unseen = a->once && stage > HTTP_FAIL_CONNECT;
	bool has_agent = a->call.link->channel != NULL;
	if (unsent && stage == HTTP_FAIL_STALE && !a->direct.retried) {
		a->direct.retried = true;
		if (engine_ask(a, &said))
			return;
	}
	if (unsent && has_agent) {
		agent_ask(a, why);
		return;
	}
	enginecall_failed(a->call.node_id, stage, why, &said);
	if (!a->once)
		enginecall_hung_up(stage, a->direct.retried, &said);
	gw_direct_over(a, &said);
}

static const struct http_call_ops engine_ops = {.on_head = on_head,
	.on_body = gw_direct_body,
	.on_end = gw_direct_done,
	.on_fail = on_fail};

/* ---- the request ---- */

static bool engine_ask(struct gw_attempt *a, struct cgn_err *err)
{
	return cgn_ok(gw_call_by_engine(&a->call, a->direct.sent, &engine_ops, a, err));
}

/* Return true if the agent has nothing to add to |g|, and the router may and can reach the engine. */
static bool may_start(const struct gw_attempt *a, const struct view_node *node,
	const struct proto_generate *g)
{
	const struct view_direct *d = &node->direct;
	const struct gw_link *l = a->call.link;
	const struct gw_shared *shared = a->w->shared;
	if (d->address == NULL || d->door != NULL || l == NULL ||
		g->facts.leg != COGNITORA__V1__LEG__LEG_WHOLE || unlikely_way(UNLIKELY_agent_asked))
		return false;
	if (d->host[0] != '\0' && strcmp(d->host, shared->host_id) != 0)
		return false;
	uint32_t most = d->connections / shared->workers;
	return l->direct < (most > 0 ? most : 1) && cgn_loop_now(a->w->loop) >= l->direct_after &&
		!engine_lacks(d->kind, g->path) && cgn_ok(enginecall_check(g, NULL));
}

static bool name_keep(struct cgn_str *name, struct cgn_arena *arena)
{
	if (name->p == NULL)
		return true;
	*name = cgn_arena_str(arena, *name);
	return name->p != NULL;
}

/* Send |g| to the engine of the attempt's link. CGN_NO_MEMORY, or why the HTTP client does not take it. */
static CGN_RC direct_send(struct gw_attempt *a, struct cgn_arena *arena, const struct proto_generate *g,
	struct cgn_err *err)
{
	struct proto_generate *sent = cgn_arena_get(arena, sizeof *sent);
	if (sent == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a call to node %s", a->call.node_id);
	*sent = *g;
	/* The names are the view's, which may be replaced before the agent is asked instead. */
	if (!gw_call_swap_keep(&sent->swap, arena) || !name_keep(&sent->facts.model, arena) ||
		!name_keep(&sent->facts.engine, arena))
		return CGN_FAIL(err, NO_MEMORY, "no memory for a call to node %s", a->call.node_id);
	a->direct.sent = sent;
	gw_direct_gather(a);
	if (!engine_ask(a, err))
		return CGN_RC_OF(err->code);
	direct_count(a);
	agent_count(a, "engine");
	a->by_engine = true;
	return CGN_OK;
}

bool gw_direct_start(struct gw_attempt *a, const struct view_node *node, struct cgn_arena *arena,
	const struct proto_generate *g)
{
	struct cgn_err err;
	return may_start(a, node, g) && gw_link_engine(a->w, a->call.link, node) &&
		cgn_ok(direct_send(a, arena, g, &err));
}

/* Check that an engine without an agent can do all that |g| asks for. */
static CGN_RC bare_check(const struct gw_attempt *a, const struct view_node *node,
	const struct proto_generate *g, struct cgn_err *err)
{
	const struct view_direct *d = &node->direct;
	uint32_t most = d->connections / a->w->shared->workers;
	if (g->facts.leg != COGNITORA__V1__LEG__LEG_WHOLE)
		return CGN_FAIL(err, UNAVAILABLE,
			"node %s has no agent: it neither hands prompts over nor takes them", node->id);
	if (a->call.link->direct >= (most > 0 ? most : 1))
		return CGN_FAIL(err, OVERLOADED, "node %s has as many requests of this router as it takes",
			node->id);
	return enginecall_check(g, err);
}

void gw_direct_bare(struct gw_attempt *a, const struct view_node *node, struct cgn_arena *arena,
	const struct proto_generate *g)
{
	struct cgn_err *err = &a->call.why;
	cgn_rc rc = bare_check(a, node, g, err);
	if (cgn_ok(rc) && !gw_link_engine(a->w, a->call.link, node))
		rc = CGN_FAIL(err, UNAVAILABLE, "node %s: its engine is at another address now", node->id);
	if (cgn_ok(rc))
		rc = direct_send(a, arena, g, err);
	a->call.closed = !cgn_ok(rc);
}

void gw_direct_end(struct gw_attempt *a)
{
	if (a->direct.sent == NULL || a->call.link == NULL)
		return;
	struct cgn_buf b = enginecall_gather_take(&a->direct.gather);
	cgn_buf_fini(&b);
	direct_uncount(a);
}
