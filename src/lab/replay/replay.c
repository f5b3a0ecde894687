/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "lab/replay/replay_priv.h"

#define PROGRESS_EVERY 64 /* Requests. */
#define NEVER          UINT64_MAX
#define MAX_SPAN       1e18 /* Nanoseconds; longer than any trace at its recorded speed. */

const struct replay_cfg replay_defaults = {
	.nodes = 8,
	.speed = 1,
	.seed = 1,
	.bandwidth = 10.0 * (1U << 30),
	.handoff = CGN_MSEC,
	.publishes = true,
	.report_delay = 5 * CGN_MSEC,
	.load_interval = 250 * CGN_MSEC,
	.max_waiting = 1024,
	.prefill_tokens_per_s = 20000,
	.decode = 12 * CGN_MSEC,
	.batch_effect = 0.01,
	.max_batch = 256,
	.step_tokens = 2048,
	.max_queue = 4096,
};

static cgn_nsec came_at(const struct replay *r, size_t i)
{
	return (cgn_nsec)((double)r->trace->requests[i].at / r->cfg->speed);
}

/* ---- a request ---- */

/* Fill r->chain with the digests of the request's full blocks, the ones that an engine can cache. */
static uint32_t chain_fill(struct replay *r, const struct trace_request *q)
{
	uint32_t full = q->input / r->trace->block_tokens, n = full < q->n ? full : q->n;
	const uint64_t *ids = trace_ids(r->trace, q);
	for (uint32_t i = 0; i < n; i++)
		r->chain[i] = trace_digest(ids[i]);
	return n;
}

static void flight_end(struct replay *r, struct replay_flight *f)
{
	chooser_release(r->chooser, &f->ticket, r->now);
	cgn_list_drop(&f->link);
	free(f);
}

static void refusal_count(struct replay *r, cgn_rc rc)
{
	r->result->refused_too_large += rc.code == CGN_TOO_LARGE;
	r->result->refused_full += rc.code == CGN_OVERLOADED;
}

/* Take |f|, which r->inflight counts once over all of its legs. */
static void engine_take(struct replay *r, struct replay_server *n, struct replay_flight *f, uint32_t blocks)
{
	const struct enginemodel_job_spec spec = {.prompt_tokens = f->call.request->input,
		.answer_tokens = f->leg == REPLAY_PREFILL ? 1 : f->call.request->output,
		.hashes = r->chain,
		.n_hashes = blocks,
		.handed = f->leg == REPLAY_DECODE ? f->call.request->input : 0,
		.user = f};
	cgn_rc rc = enginemodel_submit(n->engine, &spec, &f->job);
	if (cgn_ok(rc)) {
		r->inflight += f->leg != REPLAY_DECODE;
		n->counts->requests++;
		energy_came(r, f);
		return;
	}
	r->inflight -= f->leg == REPLAY_DECODE;
	if (f->call.foreign != NULL)
		r->hooks->refused(r->hooks->user, r, f->call.foreign);
	else
		refusal_count(r, rc);
	r->no_memory |= rc.code == CGN_NO_MEMORY;
	flight_end(r, f);
}
/* Start a step of an idle engine. A step under way takes new jobs along at its end. */
static void engine_kick(struct replay *r, struct replay_server *n)
{
	struct enginemodel_orders orders;
	if (n->wake_at != 0)
		return;
	enginemodel_step(n->engine, r->now, &orders);
	CGN_MUST(orders.n_progress == 0);
	replay_report_blocks(n);
	replay_wake_at(r, n, orders.wake_at);
}

void replay_submit(struct replay *r, struct replay_flight *f, uint32_t blocks)
{
	struct replay_server *n = &r->nodes[f->node];
	if (f->leg != REPLAY_DECODE)
		stores_fetch(r, n, blocks);
	engine_take(r, n, f, blocks);
	engine_kick(r, n);
}

uint32_t replay_node_of(const struct replay *r, uint16_t slot)
{
	for (uint32_t i = slot < r->cfg->nodes ? slot : 0;; i = (i + 1) % r->cfg->nodes)
		if (r->nodes[i].node->slot == slot)
			return i;
}

struct chooser_ask replay_ask(struct replay *r, const struct trace_request *q)
{
	return (struct chooser_ask){
		.rules = r->cfg->rules,
		.model = r->model,
		.chain = r->chain,
		.blocks = chain_fill(r, q),
		.length = (double)q->input / r->trace->block_tokens,
		.block_tokens = r->trace->block_tokens,
		.prompt_tokens = q->input,
		.session = q->session,
		.pin = CHOOSER_NO_PIN,
		.now = r->now,
	};
}

/* Pick the node of a request's first leg. */
static struct chooser_pick_result first_pick(struct replay *r, struct chooser_ask *ask,
	struct replay_flight *f)
{
	struct chooser_split s;
	if (!pools_exist(r))
		return chooser_pick(r->chooser, ask);
	chooser_split(r->chooser, ask, &s);
	ask->continues = s.shape == CHOOSER_CONTINUES;
	if (s.shape != CHOOSER_PAIR)
		return chooser_pick(r->chooser, ask);
	ask->prefill = ask->embeds = true;
	f->leg = REPLAY_PREFILL;
	f->from = s.from;
	f->handoff = s.handoff;
	return s.first;
}

static enum replay_sent why_not_sent(const struct chooser_pick_result *p)
{
	return p->verdict != ROUTE_FULL || p->ask.barred_w <= 0 ? REPLAY_FULL
		: p->ask.never_w > 0                            ? REPLAY_NEVER
								: REPLAY_OVER_BUDGET;
}

enum replay_sent replay_send(struct replay *r, const struct replay_call *c,
	const struct replay_quoted *quoted)
{
	struct chooser_ask ask = replay_ask(r, c->request);
	struct replay_flight draft = {.call = *c};
	draft.seat = replay_arms_seat(r, c->request, &ask);
	struct chooser_pick_result pick = first_pick(r, &ask, &draft);
	if (pick.verdict != ROUTE_PICKED)
		return why_not_sent(&pick);
	if (quoted != NULL)
		draft.quoted = *quoted;
	if (draft.leg == REPLAY_WHOLE)
		quotes_make(r, &ask, &pick, false, &draft.quoted);
	struct replay_flight *f = calloc(1, sizeof *f);
	if (f == NULL) {
		r->no_memory = true;
		return REPLAY_SENT;
	}
	*f = draft;
	cgn_list_push(&r->flights.open, &f->link);
	chooser_book(r->chooser, &ask, &pick, &f->ticket);
	f->node = f->prefill_node = replay_node_of(r, f->ticket.slot);
	r->result->expected_blocks += f->ticket.held;
	r->result->split += f->leg == REPLAY_PREFILL;
	r->result->continued += ask.continues;
	replay_submit(r, f, (uint32_t)ask.blocks);
	return REPLAY_SENT;
}

void replay_place(struct replay *r, const struct replay_call *c)
{
	if (waiting_misses_deadline(r, c->request)) {
		r->result->refused_late++;
		return;
	}
	enum replay_sent sent = admission_waiting(r->admission) == 0 ? replay_send(r, c, NULL) : REPLAY_FULL;
	r->result->refused_power += sent == REPLAY_NEVER;
	if (sent == REPLAY_SENT || sent == REPLAY_NEVER)
		return;
	waiting_add(r, c);
	if (r->inflight == 0)
		waiting_serve(r);
}

static void on_arrival(struct replay *r)
{
	size_t i = r->next++;
	r->result->requests++;
	r->result->prompt_blocks += r->trace->requests[i].n;
	if (r->cfg->progress != NULL && i % PROGRESS_EVERY == 0)
		r->cfg->progress(r->cfg->user, (double)i / (double)r->trace->n);
	const struct replay_call c = {.request = &r->trace->requests[i], .came = came_at(r, i)};
	if (r->hooks == NULL || !r->hooks->leaves(r->hooks->user, r, &c))
		replay_place(r, &c);
}

/* ---- progress of engines ---- */

/* The node has computed the prompt. */
static void on_prompt(struct replay *r, struct replay_flight *f, const struct enginemodel_progress *g)
{
	struct replay_node *counts = r->nodes[f->node].counts;
	f->cached = (uint32_t)g->cached;
	if (f->call.foreign == NULL && !f->call.goes_on)
		r->result->cached_blocks += g->cached / r->trace->block_tokens;
	counts->prompt_tokens += f->call.request->input;
	counts->cached_tokens += g->cached;
	scale_prompt(r, f->call.request->n, g->cached / r->trace->block_tokens);
}

/* The router hears how much of the prompt the engine had. */
static void usage_learn(struct replay *r, const struct replay_flight *f, const struct enginemodel_progress *g)
{
	struct node_stats *stats = &r->cluster->stats[f->ticket.slot];
	node_stats_measure(stats, f->call.request->input,
		(double)f->call.request->input / r->trace->block_tokens);
	node_stats_believe(stats, (uint64_t)f->ticket.held * r->trace->block_tokens, g->cached);
}

static void on_first(struct replay *r, struct replay_flight *f, const struct enginemodel_progress *g)
{
	if (f->leg != REPLAY_DECODE)
		on_prompt(r, f, g);
	chooser_begun(r->chooser, &f->ticket, r->now);
	energy_first(r, f);
	f->first = r->now;
	if (f->leg != REPLAY_PREFILL && f->call.foreign == NULL && !f->call.goes_on) {
		samples_add(&r->result->ttft, cgn_since(r->now, f->call.came) + r->cfg->delay);
		hours_ttft(r, f->call.came, cgn_since(r->now, f->call.came) + r->cfg->delay);
		quotes_first(r, f);
		scale_ttft(r, cgn_since(r->now, f->call.came));
	}
}

static void on_progress(struct replay *r, const struct enginemodel_progress *g)
{
	struct replay_flight *f = g->user;
	if (g->given == 1)
		on_first(r, f, g);
	else {
		if (r->itl_seen++ % r->itl_every == 0)
			samples_add(&r->result->itl, cgn_since(r->now, f->last));
		scale_itl(r, cgn_since(r->now, f->last));
	}
	f->last = r->now;
	if (g->finished && f->leg != REPLAY_DECODE)
		usage_learn(r, f, g);
	if (g->finished)
		energy_left(r, f);
	if (f->leg == REPLAY_PREFILL) {
		pools_prompt_done(r, f);
		return;
	}
	r->nodes[f->node].counts->answer_tokens++;
	if (f->call.foreign != NULL)
		r->hooks->token(r->hooks->user, r, f->call.foreign, g);
	if (!g->finished)
		return;
	if (g->given > 1)
		samples_add(&r->result->per_token, cgn_since(r->now, f->first) / (g->given - 1));
	chooser_done(r->chooser, &f->ticket, &(struct chooser_outcome){.answer_tokens = g->given}, r->now);
	quotes_done(r, f, g->given);
	replay_arms_end(r, f, g->given);
	r->result->done += f->call.foreign == NULL;
	r->inflight--;
	flight_end(r, f);
}

static void on_step(struct replay *r)
{
	struct replay_server *n = &r->nodes[replay_take_woken(r)];
	struct enginemodel_orders orders;
	enginemodel_step(n->engine, r->now, &orders);
	for (size_t i = 0; i < orders.n_progress; i++)
		on_progress(r, &orders.progress[i]);
	replay_report_blocks(n);
	replay_wake_at(r, n, orders.wake_at);
	pools_serve(r);
	waiting_serve(r);
}

/* ---- time ---- */

static cgn_nsec time_min(cgn_nsec a, cgn_nsec b)
{
	return a < b ? a : b;
}

static cgn_nsec arrival_at(const struct replay *r)
{
	return r->next < r->trace->n ? came_at(r, r->next) : NEVER;
}

cgn_nsec replay_next_at(const struct replay *r)
{
	cgn_nsec at = time_min(r->next_load, r->next_second);
	at = time_min(at, r->n_wakes > 0 ? r->wakes[0].at : NEVER);
	at = time_min(at, r->reports != NULL ? r->reports->at : NEVER);
	at = time_min(at, pools_next(r));
	return time_min(at, arrival_at(r));
}

static void on_second(struct replay *r)
{
	energy_second(r);
	waiting_serve(r); /* Nodes may have woken. */
}

/* Events at the same instant run in this order: readings of power, engine steps, arrivals of KV, arrivals of reports, load
 * reports, new requests. */
void replay_turn(struct replay *r)
{
	/* Other clusters may send requests at any time. */
	if (r->hooks == NULL && r->n_wakes == 0 && r->inflight == 0 && admission_waiting(r->admission) == 0 &&
		r->next < r->trace->n)
		replay_idle_until(r, came_at(r, r->next));
	const cgn_nsec now = r->now = replay_next_at(r);
	if (r->next_second == now)
		on_second(r);
	else if (r->n_wakes > 0 && r->wakes[0].at == now)
		on_step(r);
	else if (pools_next(r) == now)
		pools_arrive(r);
	else if (r->reports != NULL && r->reports->at == now)
		replay_receive_report(r);
	else if (r->next_load == now)
		replay_report_load(r);
	else
		on_arrival(r);
}

/* ---- the whole replay ---- */

static double over_mean(const struct replay_result *s,
	double (*of)(const struct replay_cfg *, const struct replay_node *), const struct replay_cfg *cfg)
{
	double most = 0, sum = 0;
	for (uint32_t i = 0; i < s->n_nodes; i++) {
		double v = of(cfg, &s->nodes[i]);
		most = v > most ? v : most;
		sum += v;
	}
	return sum > 0 ? most * s->n_nodes / sum : 1;
}

static double time_of_tokens(const struct replay_cfg *cfg, const struct replay_node *n)
{
	double computed = (double)(n->prompt_tokens - n->cached_tokens), given = (double)n->answer_tokens;
	return (cfg->prefill_tokens_per_s > 0 ? computed * 1e9 / cfg->prefill_tokens_per_s : 0) +
		given * (double)cfg->decode;
}

static double time_of_steps(const struct replay_cfg *cfg, const struct replay_node *n)
{
	(void)cfg;
	return (double)n->busy;
}

static double request_count(const struct replay_cfg *cfg, const struct replay_node *n)
{
	(void)cfg;
	return (double)n->requests;
}

static void sum_up(struct replay *r)
{
	struct replay_result *s = r->result;
	s->ended = r->now;
	for (uint32_t i = 0; i < s->n_nodes; i++)
		s->preempted += enginemodel_stats(r->nodes[i].engine).preempted;
	energy_sum_up(r);
	replay_arms_sum_up(r);
	scale_sum_up(r);
	s->imbalance = over_mean(s, time_of_tokens, r->cfg);
	s->imbalance_busy = over_mean(s, time_of_steps, r->cfg);
	s->imbalance_requests = over_mean(s, request_count, r->cfg);
}

static CGN_RC check_settings(const struct trace *t, const struct replay_cfg *c, struct cgn_err *err)
{
	if (c->nodes < 1 || c->nodes > REPLAY_MAX_NODES)
		return CGN_FAIL(err, INVALID, "%u nodes: 1 to %d are allowed", c->nodes, REPLAY_MAX_NODES);
	if (!(c->speed > 0) || c->speed > 1e6)
		return CGN_FAIL(err, INVALID, "speed %g: above 0, up to 1000000", c->speed);
	if (c->prefill_nodes > 0 && (c->prefill_nodes >= c->nodes || !(c->bandwidth > 0)))
		return CGN_FAIL(err, INVALID,
			"%u prefill nodes of %u, %g bytes/s: at least one node must decode, and the network move something",
			c->prefill_nodes, c->nodes, c->bandwidth);
	if (c->scales && (c->gpu == NULL || c->parks || c->prefill_nodes > 0 || !c->rules->counts_saved))
		return CGN_FAIL(err, INVALID,
			"the autoscaler needs a GPU, nodes of both roles, no parking, and rules that count what caches save");
	if (t->n > 0 && (double)t->requests[t->n - 1].at / c->speed > MAX_SPAN)
		return CGN_FAIL(err, INVALID, "speed %g: the trace would take more than thirty years",
			c->speed);
	if (c->max_batch < 1 || c->step_tokens < c->max_batch || c->max_queue < 1 || c->max_waiting < 1 ||
		c->load_interval < c->nodes)
		return CGN_FAIL(err, INVALID,
			"an engine needs a batch of at least 1, a step of at least the batch, a queue");
	return CGN_OK;
}

static CGN_RC prepare_replay(struct replay *r, struct cgn_err *err)
{
	uint32_t longest = r->longest > 0 ? r->longest : 1;
	uint64_t tokens = 0;
	for (size_t i = 0; i < r->trace->n; i++) {
		longest = r->trace->requests[i].n > longest ? r->trace->requests[i].n : longest;
		tokens += r->trace->requests[i].output;
	}
	r->itl_every = tokens / SAMPLES_MAX + 1;
	r->chain = malloc(longest * sizeof *r->chain);
	if (r->chain == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for a chain of %u blocks", longest);
	CGN_TRY(replay_fleet_init(r, err));
	waiting_open(r);
	r->pending = pending_new(PENDING_BYTES);
	r->hotprefix = hotprefix_new(HOTPREFIX_BYTES);
	r->transfer = transfer_new();
	energy_open(r);
	quotes_open(r);
	replay_arms_open(r);
	CGN_TRY(scale_open(r, err));
	CGN_TRY(stores_open(r, err));
	const struct chooser_shared shared = {r->cluster->stats, r->index, r->record, r->pending,
		r->hotprefix, r->transfer, r->energy};
	return chooser_new(&shared, r->cfg->seed, &r->chooser, err);
}

static void flights_end(struct replay *r, struct cgn_link *list)
{
	cgn_list_each_safe (l, list)
		flight_end(r, CGN_CONTAINER(l, struct replay_flight, link));
}

CGN_RC replay_open(struct replay *r, struct cgn_err *err)
{
	cgn_list_init(&r->flights.open);
	cgn_list_init(&r->decided);
	cgn_list_init(&r->flights.computed);
	cgn_list_init(&r->flights.moving);
	CGN_TRY(check_settings(r->trace, r->cfg, err));
	return prepare_replay(r, err);
}

void replay_close(struct replay *r)
{
	flights_end(r, &r->flights.open);
	flights_end(r, &r->flights.computed);
	flights_end(r, &r->flights.moving);
	waiting_close(r);
	chooser_free(&r->chooser);
	hotprefix_free(&r->hotprefix);
	transfer_free(&r->transfer);
	pending_free(&r->pending);
	energy_close(r);
	quote_book_free(&r->quotes);
	replay_arms_close(r);
	scale_close(r);
	stores_close(r);
	replay_fleet_fini(r);
	free(r->chain);
}

bool replay_is_over(const struct replay *r)
{
	return r->next == r->trace->n && r->inflight == 0 && admission_waiting(r->admission) == 0;
}

CGN_RC replay_run(const struct trace *t, const struct replay_cfg *cfg, struct replay_result *out,
	struct cgn_err *err)
{
	struct replay_result result = {0};
	struct replay r = {.trace = t, .cfg = cfg, .result = &result};
	cgn_rc rc = replay_open(&r, err);
	while (cgn_ok(rc) && !r.no_memory && !replay_is_over(&r))
		replay_turn(&r);
	if (cgn_ok(rc) && r.no_memory)
		rc = CGN_FAIL(err, NO_MEMORY, "no memory to replay with %u nodes of %u blocks", cfg->nodes,
			result.blocks);
	if (cgn_ok(rc))
		sum_up(&r);
	replay_close(&r);
	if (cgn_ok(rc))
		*out = result;
	else
		replay_result_fini(&result);
	return rc;
}

void replay_result_fini(struct replay_result *r)
{
	samples_fini(&r->ttft);
	samples_fini(&r->itl);
	samples_fini(&r->per_token);
	for (unsigned f = 0; f < QUOTE_FIGURES; f++)
		samples_fini(&r->quotes[f].width_share);
	for (size_t h = 0; h < r->n_hours; h++)
		samples_fini(&r->hours[h].ttft);
	free(r->hours);
	free(r->nodes);
	*r = (struct replay_result){0};
}
