/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/swap/swap.h"

#include <unistd.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"

#define STEP_EVERY   (20 * CGN_MSEC) /* While an engine is on its way */
#define TELL_EVERY   (5 * CGN_SEC)
#define SAVE_LONGEST (60 * CGN_SEC)
#define SLOTS_WAIT   (3 * CGN_SEC) /* For the slot manager of an engine that is ready */
#define FAILURES     2             /* Ends of a process during one load */
#define RETRY_FIRST  (10 * CGN_SEC)
#define RETRY_LAST   (300 * CGN_SEC)
#define SHARE_STEP   10 /* Routers get a load's progress in steps of so many hundredths. */

#define WANTED_RUN    COGNITORA__V1__WANTED_STATE__WANTED_LOADED
#define WANTED_ASLEEP COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP
#define WANTED_STOP   COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED

static void phase_set(struct swap *s, struct engine *e, enum ondemand_phase phase)
{
	struct engine_ondemand *d = &e->ondemand;
	d->phase = phase;
	d->phase_at = d->told_at = cgn_loop_now(s->loop);
	d->told_share = 0;
	e->host->ops->changed(e->host->user);
}

static void took_note(const struct swap *s, const struct engine *e, const char *part, cgn_nsec took)
{
	metric_observe(METRIC_OF(s->telemetry, SWAP_SECONDS, e->name, part), took);
}

/* ---- refusals ---- */

static unsigned seconds_of(cgn_nsec t)
{
	cgn_nsec s = (t + CGN_SEC - 1) / CGN_SEC;
	return s < 1 ? 1 : s > 3600 ? 3600 : (unsigned)s;
}

/* Tell why |e| cannot be loaded now, and when to try again. */
static void failure_tell(const struct swap *s, const struct engine *e, char *why, size_t cap,
	struct engine_refusal *no)
{
	const struct engine_ondemand *d = &e->ondemand;
	cgn_nsec now = cgn_loop_now(s->loop);
	*no = (struct engine_refusal){.why = why,
		.retry_after = seconds_of(d->retry_at > now ? d->retry_at - now : 0)};
	if (engine_is_ordered_to_rest(e))
		(void)snprintf(why, cap, "engine %s is kept unloaded by an operator (cgn-ctl model load %s)",
			e->name, engineview_first(&e->view));
	else
		(void)snprintf(why, cap, "engine %s could not be loaded: %s; it can be tried again in %u s",
			e->name, d->why, no->retry_after);
}

static uint64_t waiting_sum(const struct swap *s)
{
	uint64_t waiting = 0;
	for (size_t i = 0; i < s->n_engines; i++)
		waiting += s->engines[i].ondemand.waiting;
	return waiting;
}

/* ---- loading ---- */

static void load_begin(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	cgn_nsec since = engine_waits_since(e);
	cgn_log(INFO, "swap.load", F_STR("engine", e->name), F_U64("waiting", d->waiting),
		F_DUR("waited_for_room", cgn_since(cgn_loop_now(s->loop), since)),
		F_DUR("expected", d->load_time));
	took_note(s, e, "room", cgn_since(cgn_loop_now(s->loop), since));
	d->wanted = WANTED_RUN;
	d->ready_at = 0;
	d->failures_before = e->process.failures;
	phase_set(s, e, ONDEMAND_LOADING);
}

/* The process's memory, as far as one process has it all. */
static void memory_measure(struct engine *e)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	char path[64];
	unsigned long long size = 0, resident = 0;
	if (!e->ondemand.measures || e->process.proc == NULL)
		return;
	(void)snprintf(path, sizeof path, "/proc/%d/statm", (int)proc_pid(e->process.proc));
	if (!cgn_ok(disk_read_file(path, 4096, &text, NULL)) ||
		sscanf(cgn_buf_z(&text), "%llu %llu", &size, &resident) != 2)
		return;
	uint64_t bytes = resident * (uint64_t)sysconf(_SC_PAGESIZE);
	if (bytes > e->ondemand.bytes)
		e->ondemand.bytes = bytes;
}

static void load_done(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	cgn_nsec now = cgn_loop_now(s->loop), took = cgn_since(now, d->phase_at);
	d->load_time = d->load_time == 0 || d->loaded_at == 0 ? took : (3 * d->load_time + took) / 4;
	d->loaded_at = now;
	d->failed = 0;
	d->retry_at = 0;
	d->why[0] = '\0';
	memory_measure(e);
	cgn_log(INFO, "swap.loaded", F_STR("engine", e->name), F_DUR("took", took),
		F_U64("waiting", d->waiting), F_U64("bytes", d->bytes));
	took_note(s, e, "load", took);
	metric_add(d->loads_ok, 1);
	if (e->rest.wanted == WANTED_RUN)
		d->ordered = e->rest.revision;
	phase_set(s, e, ONDEMAND_IN);
}

/* The load has failed for now: others get the room, and waiting requests an answer. */
static void load_fail(struct swap *s, struct engine *e, const char *what)
{
	struct engine_ondemand *d = &e->ondemand;
	char why[600];
	struct engine_refusal no;
	cgn_nsec pause = d->failed < 5 ? RETRY_FIRST << d->failed : RETRY_LAST;
	(void)snprintf(d->why, sizeof d->why, "%s%s%.300s", what, e->health.trouble[0] != '\0' ? ": " : "",
		e->process.ended[0] != '\0' ? e->process.ended : e->health.trouble);
	d->failed++;
	d->retry_at = cgn_loop_now(s->loop) + pause;
	d->wanted = WANTED_STOP;
	if (e->rest.wanted == WANTED_RUN)
		d->ordered = e->rest.revision;
	cgn_log(WARN, "swap.load_failed", F_STR("engine", e->name), F_STR("why", d->why),
		F_U64("waiting", d->waiting), F_DUR("retry_after", pause));
	metric_add(d->loads_failed, 1);
	phase_set(s, e, ONDEMAND_STOPPING);
	failure_tell(s, e, why, sizeof why, &no);
	engine_waiters_end(e, &no);
}

static void load_tell(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	cgn_nsec now = cgn_loop_now(s->loop);
	unsigned share = engine_load_share(e) / SHARE_STEP * SHARE_STEP;
	if (share != d->told_share) {
		d->told_share = share;
		e->host->ops->changed(e->host->user);
	}
	if (cgn_since(now, d->told_at) < TELL_EVERY)
		return;
	d->told_at = now;
	cgn_log(INFO, "swap.loading", F_STR("engine", e->name), F_DUR("since", cgn_since(now, d->phase_at)),
		F_DUR("expected", d->load_time), F_U64("waiting", d->waiting),
		F_STR("state", supervise_state_name(e->process.sup.state)));
}

static void loading_step(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	cgn_nsec now = cgn_loop_now(s->loop);
	if (engine_is_ready(e) && e->rest.state == REST_RUNS) {
		d->ready_at = d->ready_at == 0 ? now : d->ready_at;
		if (slotmgr_is_settled(e->slots) || cgn_since(now, d->ready_at) >= SLOTS_WAIT) {
			load_done(s, e);
			return;
		}
	} else if (e->process.failures >= d->failures_before + FAILURES) {
		load_fail(s, e, "its process ended while it was loaded");
		return;
	} else if (cgn_since(now, d->phase_at) >= d->ready_timeout) {
		load_fail(s, e, "it was not ready within engine.ready_timeout");
		return;
	}
	load_tell(s, e);
}

/* ---- unloading ---- */

static bool is_able_to_sleep(const struct engine *e)
{
	return !e->ondemand.cannot_sleep && e->ops->changes != NULL;
}

static void unload_begin(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	cgn_log(INFO, "swap.unload", F_STR("engine", e->name),
		F_DUR("loaded_for", cgn_since(cgn_loop_now(s->loop), d->loaded_at)),
		F_DUR("idle_for", cgn_since(cgn_loop_now(s->loop), d->used_at)));
	if (d->phase == ONDEMAND_LOADING) {
		d->wanted = WANTED_STOP;
		phase_set(s, e, ONDEMAND_STOPPING);
		return;
	}
	slotmgr_flush_begin(e->slots);
	phase_set(s, e, ONDEMAND_SAVING);
}

static void saving_step(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	cgn_nsec took = cgn_since(cgn_loop_now(s->loop), d->phase_at);
	if (!slotmgr_flush_step(e->slots) && took < SAVE_LONGEST)
		return;
	took_note(s, e, "save", took);
	cgn_log(INFO, "swap.saved", F_STR("engine", e->name), F_DUR("took", took));
	d->wanted = is_able_to_sleep(e) ? WANTED_ASLEEP : WANTED_STOP;
	phase_set(s, e, ONDEMAND_STOPPING);
}

static void stopping_step(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	if (d->wanted == WANTED_ASLEEP && e->rest.why[0] != '\0') {
		e->rest.why[0] = '\0';
		d->cannot_sleep = true;
		d->wanted = WANTED_STOP;
	}
	bool asleep = e->rest.state == REST_ASLEEP;
	if (!asleep && !(e->rest.state == REST_STOPPED && engine_is_stopped(e)))
		return;
	cgn_nsec took = cgn_since(cgn_loop_now(s->loop), d->phase_at);
	took_note(s, e, "stop", took);
	cgn_log(INFO, "swap.unloaded", F_STR("engine", e->name), F_DUR("took", took),
		F_STR("by", asleep ? "sleep" : "stop"));
	phase_set(s, e, ONDEMAND_OUT);
}

/* ---- where engines are ---- */

/* Note the engine's changes, and bring it one step on. */
static void engine_follow(struct swap *s, struct engine *e)
{
	struct engine_ondemand *d = &e->ondemand;
	(void)engine_rest_step(e);
	if (engine_is_ordered_to_rest(e)) {
		if (d->phase != ONDEMAND_OUT)
			phase_set(s, e, ONDEMAND_OUT);
		d->wanted = WANTED_STOP;
		return;
	}
	switch (d->phase) {
	case ONDEMAND_OUT:
		break;
	case ONDEMAND_LOADING:
		loading_step(s, e);
		break;
	case ONDEMAND_IN:
		if (engine_is_ready(e))
			break;
		/* The supervisor restarts an engine that failed. */
		d->ready_at = 0;
		d->failures_before = e->process.failures;
		phase_set(s, e, ONDEMAND_LOADING);
		break;
	case ONDEMAND_SAVING:
		saving_step(s, e);
		break;
	case ONDEMAND_STOPPING:
		stopping_step(s, e);
		break;
	}
}

static enum swap_state state_of(const struct engine *e)
{
	static const enum swap_state states[] = {
		[ONDEMAND_OUT] = SWAP_OUT,
		[ONDEMAND_LOADING] = SWAP_LOADING,
		[ONDEMAND_IN] = SWAP_IN,
		[ONDEMAND_SAVING] = SWAP_LEAVING,
		[ONDEMAND_STOPPING] = SWAP_LEAVING,
	};
	return states[e->ondemand.phase];
}

static struct swap_model model_of(const struct engine *e)
{
	const struct engine_ondemand *d = &e->ondemand;
	bool ordered = e->rest.wanted == WANTED_RUN && e->rest.revision != d->ordered;
	uint32_t all = e->requests.inflight + e->requests.direct;
	return (struct swap_model){.bytes = d->bytes,
		.priority = d->priority,
		.state = state_of(e),
		.barred = !engine_is_loadable(e),
		.held = d->held,
		.waiting = d->waiting + ordered,
		.running = all > d->waiting ? all - d->waiting : 0,
		.waits_since = engine_waits_since(e),
		.loaded_at = d->phase == ONDEMAND_LOADING ? d->phase_at : d->loaded_at,
		.used_at = d->used_at,
		.expires_at = engine_expires_at(e),
		.load_time = d->load_time};
}

/* Fill |models| with the engines that are on demand, and |at| with them. */
static size_t models_fill(const struct swap *s, struct swap_model models[SWAP_MAX],
	struct engine *at[SWAP_MAX])
{
	size_t n = 0;
	for (size_t i = 0; i < s->n_engines && n < SWAP_MAX; i++) {
		if (!s->engines[i].ondemand.on)
			continue;
		at[n] = &s->engines[i];
		models[n] = model_of(&s->engines[i]);
		n++;
	}
	return n;
}

static bool is_moving(const struct engine *e)
{
	return e->ondemand.phase != ONDEMAND_OUT && e->ondemand.phase != ONDEMAND_IN;
}

static void timer_arm(struct swap *s, cgn_nsec wake_at)
{
	cgn_nsec now = cgn_loop_now(s->loop), at = wake_at;
	for (size_t i = 0; i < s->n_engines; i++) {
		const struct engine_ondemand *d = &s->engines[i].ondemand;
		if (d->on && is_moving(&s->engines[i]))
			at = now + STEP_EVERY < at ? now + STEP_EVERY : at;
		if (d->on && d->retry_at > now && d->retry_at < at)
			at = d->retry_at; /* Routers are told that it can be loaded again. */
	}
	if (at == SWAP_NEVER)
		cgn_timer_cancel(&s->timer);
	else
		cgn_timer_set(&s->timer, at > now ? at - now : 0);
}

static void held_set(struct engine *e, bool held)
{
	if (e->ondemand.held == held)
		return;
	e->ondemand.held = held;
	e->host->ops->changed(e->host->user); /* Routers learn that requests wait now. */
}

static void orders_obey(struct swap *s, struct engine *const at[SWAP_MAX], size_t n,
	const struct swap_orders *o)
{
	for (size_t i = 0; i < n; i++) {
		held_set(at[i], (o->hold >> i & 1) != 0);
		if ((o->unload >> i & 1) != 0)
			unload_begin(s, at[i]);
		else if ((o->load >> i & 1) != 0 && !s->over)
			load_begin(s, at[i]);
	}
	for (size_t i = 0; i < n; i++)
		if (engine_takes_requests(at[i]))
			engine_waiters_end(at[i], NULL);
}

static void waiters_refuse(struct swap *s, struct engine *e)
{
	char why[600];
	struct engine_refusal no;
	if (e->ondemand.waiting == 0 || e->ondemand.phase != ONDEMAND_OUT || engine_is_loadable(e))
		return;
	failure_tell(s, e, why, sizeof why, &no);
	engine_waiters_end(e, &no);
}

static void step_once(struct swap *s)
{
	struct swap_model models[SWAP_MAX];
	struct engine *at[SWAP_MAX];
	struct swap_orders o;
	for (size_t i = 0; i < s->n_engines; i++)
		if (s->engines[i].ondemand.on)
			engine_follow(s, &s->engines[i]);
	size_t n = models_fill(s, models, at);
	swap_decide(&s->rules, models, n, cgn_loop_now(s->loop), &o);
	orders_obey(s, at, n, &o);
	for (size_t i = 0; i < n; i++)
		waiters_refuse(s, at[i]);
	timer_arm(s, o.wake_at);
}

void swap_step(struct swap *s)
{
	if (!s->on || s->n_engines == 0)
		return;
	s->again = true;
	if (s->stepping)
		return; /* Steps change engines, which leads here again. */
	s->stepping = true;
	for (unsigned i = 0; s->again && i < 8; i++) {
		s->again = false;
		step_once(s);
	}
	s->stepping = false;
	if (s->again)
		cgn_timer_set(&s->timer, 0);
}

static void on_swap_timer(struct cgn_timer *t)
{
	struct swap *s = CGN_CONTAINER(t, struct swap, timer);
	bool told = false;
	for (size_t i = 0; i < s->n_engines && !told; i++)
		told = s->engines[i].ondemand.on && s->engines[i].ondemand.phase == ONDEMAND_OUT &&
			s->engines[i].ondemand.failed > 0;
	if (told) /* A pause after a failed load may be over. */
		s->engines[0].host->ops->changed(s->engines[0].host->user);
	swap_step(s);
}

bool swap_refuses(const struct swap *s, const struct engine *e, char *why, size_t cap,
	struct engine_refusal *no)
{
	struct swap_model models[SWAP_MAX];
	struct engine *at[SWAP_MAX];
	if (!e->ondemand.on || engine_takes_requests(e))
		return false;
	if (!engine_is_loadable(e)) {
		failure_tell(s, e, why, cap, no);
		return true;
	}
	if (waiting_sum(s) < s->max_waiting)
		return false;
	size_t n = models_fill(s, models, at), i = 0;
	while (i < n && at[i] != e)
		i++;
	CGN_MUST(i < n);
	*no = (struct engine_refusal){.why = why,
		.retry_after = seconds_of(swap_forecast(&s->rules, models, n, i, cgn_loop_now(s->loop)))};
	(void)snprintf(why, cap,
		"%u requests wait for engines to be loaded, as many as agent.max_waiting allows",
		s->max_waiting);
	return true;
}

/* ---- open and close ---- */

void swap_follow(struct swap *s, const struct config *cfg)
{
	s->rules.residence = cfg->agent.swap_residence;
	s->max_waiting = cfg->agent.max_waiting;
}

void swap_open(struct swap *s, struct cgn_loop *l, struct telemetry *t, const struct config *cfg)
{
	*s = (struct swap){.loop = l,
		.telemetry = t,
		.rules = {.memory = cfg->agent.memory, .max_loaded = cfg->agent.max_loaded}};
	swap_follow(s, cfg);
	cgn_timer_init(&s->timer, l, on_swap_timer);
}

void swap_begin(struct swap *s, struct engine *engines, size_t n)
{
	s->engines = engines;
	s->n_engines = n;
	for (size_t i = 0; i < n; i++)
		s->on = s->on || engines[i].ondemand.on;
	swap_step(s);
}

void swap_end(struct swap *s)
{
	s->over = true;
	s->on = false;
	if (s->loop != NULL)
		cgn_timer_cancel(&s->timer);
}
