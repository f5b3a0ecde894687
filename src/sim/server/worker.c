/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/server/worker.h"

#include "base/log/log.h"
#include "base/mix/mix.h"

#define WORKER_TAG 0x51b0aaaaU

static cgn_nsec virtual_now(const struct sim_worker *w)
{
	if (w->scale <= 0)
		return w->virtual_now;
	return (cgn_nsec)((double)cgn_since(cgn_loop_now(w->loop), w->began) / w->scale);
}

/* Publish one batch of events for each step that changed something. */
static void tell_events(struct sim_worker *w)
{
	if (w->publisher != NULL && sim_publisher_flush(w->publisher))
		(void)enginemodel_reset(w->model, true, true);
}

/* Run all steps that are due; without time scale, until the device is idle. True when it waits for the
 * timer. */
static void run_steps(struct sim_worker *w)
{
	struct enginemodel_orders orders;
	cgn_nsec now = virtual_now(w);
	for (;;) {
		enginemodel_step(w->model, now, &orders);
		for (size_t i = 0; i < orders.n_progress; i++)
			sim_call_progress(&orders.progress[i]);
		tell_events(w);
		if (orders.wake_at == 0) {
			cgn_timer_cancel(&w->step_timer);
			return;
		}
		if (w->scale <= 0)
			now = w->virtual_now = orders.wake_at;
		else if (orders.wake_at > now)
			break;
	}
	cgn_timer_set(&w->step_timer, (cgn_nsec)((double)(orders.wake_at - now) * w->scale));
}

static void next_turn(struct cgn_loop *l, struct cgn_post *p)
{
	(void)l;
	struct sim_worker *w = CGN_CONTAINER(p, struct sim_worker, again);
	CGN_LIVE(w, WORKER_TAG);
	w->again_posted = false;
	sim_worker_run(w);
}

void sim_worker_run(struct sim_worker *w)
{
	CGN_LIVE(w, WORKER_TAG);
	if (w->running_model)
		return; /* Called from a callback of run_steps, which continues anyway. */
	w->running_model = true;
	run_steps(w);
	struct cgn_link batch; /* Calls that become dirty again while being pumped wait for the next turn. */
	cgn_list_init(&batch);
	while (!cgn_list_empty(&w->dirty)) {
		struct cgn_link *l = w->dirty.next;
		cgn_list_drop(l);
		cgn_list_push(&batch, l);
	}
	while (!cgn_list_empty(&batch)) {
		struct cgn_link *l = batch.next;
		cgn_list_drop(l);
		sim_call_pump(sim_call_of_dirty(l));
	}
	w->running_model = false;
	if (!cgn_list_empty(&w->dirty) && !w->again_posted) {
		w->again_posted = true;
		cgn_loop_post(w->loop, &w->again, next_turn);
	}
}

static void step_due(struct cgn_timer *t)
{
	sim_worker_run(CGN_CONTAINER(t, struct sim_worker, step_timer));
}

void sim_worker_new_id(struct sim_worker *w, char out[33])
{
	uint64_t n = ++w->id_count;
	(void)snprintf(out, 33, "%016llx%016llx", (unsigned long long)mix64(w->id_seed + n),
		(unsigned long long)mix64(w->id_seed ^ mix64(n)));
}

static CGN_RC start_publisher(struct sim_worker *w, struct cgn_err *err)
{
	const struct sim_cfg *cfg = w->cfg;
	char endpoint[300];
	const struct sim_events_cfg events = {cfg->dialect, cfg->hash_bytes, cfg->kv_groups,
		cfg->block_tokens, w->rank, cfg->models};
	const struct sim_publisher_cfg p = {cfg->events.endpoint, cfg->events.replay, cfg->events.topic,
		w->rank, cfg->events.buffer, sim_dialect_replays_topic(cfg->dialect)};
	if (!sim_has_events(cfg))
		return CGN_OK;
	sim_events_init(&w->events, &events);
	CGN_TRY(sim_publisher_new(w->loop, &p, &w->events, &w->faults, &w->publisher, err));
	sim_publisher_endpoint(w->publisher, false, endpoint);
	cgn_log(INFO, "sim.kv_events", F_STR("endpoint", endpoint), F_U64("rank", w->rank),
		F_STR("format", sim_dialect_name(cfg->dialect)));
	return CGN_OK;
}

static enum enginemodel_note_kind notes_of(const struct sim_cfg *cfg)
{
	bool below = cfg->lower_blocks[ENGINEMODEL_TIER_CPU] > 0 ||
		cfg->lower_blocks[ENGINEMODEL_TIER_STORAGE] > 0;
	bool described = cfg->events.describes || sim_dialect_describes(cfg->dialect);
	if (!sim_keeps_contents(cfg))
		return ENGINEMODEL_NOTE_NONE;
	return sim_has_events(cfg) && below && described ? ENGINEMODEL_NOTE_FULL : ENGINEMODEL_NOTE_DIGEST;
}

/* ---- the block store ---- */

static void on_stored(void *arg, const struct enginemodel_run *run)
{
	struct sim_worker *w = arg;
	if (w->tell.stored != NULL)
		w->tell.stored(w->tell.arg, run);
	if (!w->filling)
		sim_store_put(w->store, run);
}

static void on_moved(void *arg, enum enginemodel_tier to, uint64_t hash, const struct enginemodel_note *note)
{
	const struct sim_worker *w = arg;
	if (w->tell.moved != NULL)
		w->tell.moved(w->tell.arg, to, hash, note);
}

static void on_removed(void *arg, enum enginemodel_tier from, uint64_t hash)
{
	const struct sim_worker *w = arg;
	if (w->tell.removed != NULL)
		w->tell.removed(w->tell.arg, from, hash);
}

static void on_cleared(void *arg)
{
	const struct sim_worker *w = arg;
	if (w->tell.cleared != NULL)
		w->tell.cleared(w->tell.arg);
}

static void start_store(struct sim_worker *w)
{
	const struct sim_cfg *cfg = w->cfg;
	const struct sim_store_cfg store = {cfg->kv_uds, cfg->models, cfg->kv_block_bytes, cfg->block_tokens,
		cfg->prefill_tokens_per_s > 0 ? cfg->block_tokens * 1e3 / cfg->prefill_tokens_per_s : 0};
	if (sim_has_store(cfg))
		w->store = sim_store_new(w->loop, &store);
}

static CGN_RC start_device(struct sim_worker *w, struct cgn_err *err)
{
	const struct sim_cfg *cfg = w->cfg;
	struct enginemodel_cfg m = {
		.prefill_tokens_per_s = cfg->prefill_tokens_per_s,
		.decode = (cgn_nsec)(cfg->decode_ms * 1e6),
		.batch_effect = cfg->batch_effect,
		.terms = cfg->terms,
		.fixed_step = cfg->token_interval_us * CGN_USEC,
		.max_batch = cfg->max_batch,
		.step_tokens = cfg->step_tokens,
		.max_queue = cfg->max_queue,
		.kv_blocks = cfg->kv_blocks,
		.block_tokens = cfg->block_tokens,
		.keeps_none = cfg->no_prefix_caching,
	};
	for (enum enginemodel_tier t = ENGINEMODEL_TIER_CPU; t < ENGINEMODEL_TIER_COUNT; t++) {
		m.lower_blocks[t] = cfg->lower_blocks[t];
		m.restore[t] = (cgn_nsec)(cfg->restore_us[t] * 1e3);
	}
	m.notes = notes_of(cfg);
	if (w->publisher != NULL)
		m.listener = sim_events_listener(&w->events);
	if (w->store != NULL) {
		w->tell = m.listener;
		m.listener = (struct enginemodel_listener){on_stored, on_moved, on_removed, on_cleared, w};
	}
	if (cfg->token_interval_us > 0)
		m.step_tokens = UINT32_MAX; /* With a token interval, prefill takes no time. */
	if (!cgn_ok(enginemodel_new(&m, &w->model)))
		return CGN_FAIL(err, NO_MEMORY, "no memory for %u blocks and a batch of %u", cfg->kv_blocks,
			cfg->max_batch);
	return CGN_OK;
}

static CGN_RC start_server(struct sim_worker *w, struct cgn_err *err)
{
	char addr[300];
	const char *listen = w->cfg->listen;
	const char *colon = strrchr(listen, ':');
	bool first = w->rank == 0 || colon == NULL || strncmp(listen, "unix:", 5) == 0;
	if (first)
		(void)snprintf(addr, sizeof addr, "%s", listen);
	else /* The port that the first worker got. */
		(void)snprintf(addr, sizeof addr, "%.*s:%u", (int)(colon - listen), listen, w->team->port);
	struct http_server_cfg cfg = {
		.listen = {.addr = addr, .reuse_port = w->team->n > 1},
	};
	CGN_TRY(http_server_new(w->loop, &cfg, &sim_call_ops, w, &w->server, err));
	if (w->rank == 0)
		w->team->port = http_server_port(w->server);
	return CGN_OK;
}

static void host_fill(struct sim_team *team)
{
	const char *colon = strrchr(team->cfg->listen, ':');
	struct cgn_str host = {team->cfg->listen, colon != NULL ? (size_t)(colon - team->cfg->listen) : 0};
	if (team->cfg->handoff.host != NULL && team->cfg->handoff.host[0] != '\0')
		host = cgn_str_of(team->cfg->handoff.host);
	else if (host.n > 2 && host.p[0] == '[')
		host = (struct cgn_str){host.p + 1, host.n - 2};
	(void)cgn_str_copyz(team->host, sizeof team->host, host);
}

CGN_RC sim_worker_start(struct sim_worker *w, struct sim_team *team, unsigned rank, struct cgn_err *err)
{
	*w = (struct sim_worker){.tag = WORKER_TAG, .rank = rank, .cfg = team->cfg, .team = team};
	cgn_list_init(&w->calls);
	cgn_list_init(&w->dirty);
	w->faults = team->cfg->faults;
	w->faults.rng = mix64(team->cfg->seed + rank);
	/* A token interval is in real microseconds. */
	w->scale = team->cfg->token_interval_us > 0 ? 1 : team->cfg->time_scale;
	cgn_random(&w->id_seed, sizeof w->id_seed);
	cgn_arena_init(&w->arena, 4 * SIM_BODY_MAX);
	CGN_TRY(cgn_loop_new(&w->loop, err));
	w->began = cgn_clock_now();
	cgn_timer_init(&w->step_timer, w->loop, step_due);
	if (team->vocab != NULL)
		w->reader = sim_reader_new(team->vocab);
	CGN_TRY(start_publisher(w, err));
	start_store(w);
	host_fill(team);
	if (w->cfg->handoff.kind != HANDOFF_NONE)
		w->handoff = sim_handoff_new(w->loop, w->cfg, w->id_seed);
	CGN_TRY(start_device(w, err));
	return start_server(w, err);
}

void sim_worker_stop(struct sim_worker *w)
{
	CGN_LIVE(w, WORKER_TAG);
	w->stopping = true;
	http_server_free(&w->server);
	sim_store_free(&w->store);
	sim_handoff_free(&w->handoff);
	sim_publisher_free(&w->publisher);
	cgn_timer_cancel(&w->step_timer);
	cgn_loop_stop(w->loop);
}

void sim_worker_fini(struct sim_worker *w)
{
	if (w->tag != WORKER_TAG)
		return;
	sim_store_free(&w->store); /* Needed when the worker never ran. */
	sim_handoff_free(&w->handoff);
	cgn_loop_free(&w->loop);
	enginemodel_free(&w->model);
	sim_events_fini(&w->events);
	sim_reader_free(&w->reader);
	cgn_arena_fini(&w->arena);
	cgn_buf_fini(&w->scratch);
	w->tag = 0;
}
