/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "agent/engine/engine.h"
#include "base/log/log.h"

#define STOP_GRACE (10 * CGN_SEC)

/* ---- the process ---- */

static void output_keep(struct engine_output *o, struct cgn_str line)
{
	char *to = o->line[o->n++ % ENGINE_LAST_LINES];
	if (line.n >= ENGINE_LAST_BYTES)
		line.n = cgn_utf8_prefix(line.p, ENGINE_LAST_BYTES - 1);
	(void)cgn_str_copyz(to, ENGINE_LAST_BYTES, line);
}

/* Log the last lines of an engine that has failed: they say why. */
static void output_tell(const struct engine *e, struct engine_output *o)
{
	unsigned from = o->n > ENGINE_LAST_LINES ? o->n - ENGINE_LAST_LINES : 0;
	for (unsigned i = from; i < o->n; i++)
		cgn_log(WARN, "engine.output", F_STR("engine", e->name),
			F_STR("line", o->line[i % ENGINE_LAST_LINES]));
	o->n = 0;
}

static void on_process_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	struct engine *e = user;
	if (dropped > 0)
		cgn_log(WARN, "engine.output_dropped", F_STR("engine", e->name), F_U64("lines", dropped));
	enum log_level level = (enum log_level)e->host->output_level;
	const struct log_field fields[] = {F_STR("engine", e->name),
		F_STR("stream", is_stderr ? "stderr" : "stdout"), F_STRN("line", line)};
	if (log_wants(level))
		log_event(level, "engine.output", fields, CGN_COUNT(fields));
	else
		output_keep(&e->process.last, line);
}

static void on_process_exit(void *user, const struct proc_exit *why)
{
	struct engine *e = user;
	char text[128];
	CGN_LIVE(e, ENGINE_TAG);
	e->process.proc = NULL;
	(void)proc_exit_text(why, text, sizeof text);
	if (e->process.sup.state == SUPERVISE_STOPPING)
		cgn_log(INFO, "engine.exit", F_STR("engine", e->name), F_STR("how", text));
	else {
		output_tell(e, &e->process.last);
		cgn_log(WARN, "engine.exit", F_STR("engine", e->name), F_STR("how", text),
			F_STR("state", supervise_state_name(e->process.sup.state)));
	}
	engine_trouble_set(e, text);
	engine_probe_cancel(e);
	engine_step(e, SUPERVISE_EXITED);
}

static void process_spawn(struct engine *e)
{
	static const struct proc_ops ops = {.on_line = on_process_line, .on_exit = on_process_exit};
	struct engine_process *p = &e->process;
	struct cgn_err err = {0};
	const struct proc_cfg cfg = {.argv = p->launch.argv, .env = p->launch.env, .grace = STOP_GRACE};
	engine_probe_cancel(e);
	engine_trouble_set(e, "starting");
	if (p->sup.restarts > 0)
		metric_add(p->restarts, 1);
	if (cgn_ok(proc_spawn(e->host->loop, &cfg, &ops, e, &p->proc, &err))) {
		cgn_log(INFO, "engine.start", F_STR("engine", e->name), F_STR("program", p->launch.argv[0]),
			F_U64("restarts", p->sup.restarts));
		return;
	}
	cgn_log(ERROR, "engine.start_failed", F_STR("engine", e->name), F_STR("why", err.msg));
	engine_trouble_set(e, err.msg);
	engine_step(e, SUPERVISE_SPAWN_FAILED);
}

/* ---- readiness ---- */

static void process_ready_changed(struct engine *e, bool ready)
{
	enum supervise_state state = e->process.sup.state;
	engine_stall_watch(e, ready);
	if (ready) {
		engine_trouble_set(e, "");
		cgn_log(INFO, "engine.ready", F_STR("engine", e->name), F_STR("url", e->url.addr));
		engine_load_start(e);
	} else {
		if (state != SUPERVISE_STOPPING && state != SUPERVISE_STOPPED)
			cgn_log(WARN, "engine.unready", F_STR("engine", e->name),
				F_STR("why", e->health.trouble));
		engine_load_stop(e);
		/* Most often the engine has died and holds nothing. */
		engine_residency_clear(e);
	}
	slotmgr_engine_ready(e->slots, ready);
	metric_set(e->process.ready, ready ? 1 : 0);
}

/* ---- the state machine ---- */

void engine_step(struct engine *e, enum supervise_event ev)
{
	struct engine_process *p = &e->process;
	struct supervise_orders o;
	enum supervise_state before = p->sup.state;
	cgn_nsec now = cgn_loop_now(e->host->loop);
	supervise_step(&p->sup, ev, now, &o);
	if (o.wake_at != 0)
		cgn_timer_set(&p->wake, o.wake_at > now ? o.wake_at - now : 0);
	else
		cgn_timer_cancel(&p->wake);
	if (before != p->sup.state && (before == SUPERVISE_READY || p->sup.state == SUPERVISE_READY))
		process_ready_changed(e, p->sup.state == SUPERVISE_READY);
	if (before != p->sup.state)
		e->host->ops->changed(e->host->user);
	if (o.kill && p->proc != NULL) {
		cgn_log(INFO, "engine.stop", F_STR("engine", e->name),
			F_STR("state", supervise_state_name(p->sup.state)), F_STR("last", e->health.trouble));
		proc_stop(p->proc);
	}
	if (o.probe)
		engine_probe(e);
	if (o.spawn)
		process_spawn(e); /* Last, since a failure calls engine_step again */
}

static void on_process_wake(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, process.wake);
	CGN_LIVE(e, ENGINE_TAG);
	engine_step(e, SUPERVISE_TICK);
}

void engine_check_soon(struct engine *e)
{
	struct supervise *s = &e->process.sup;
	CGN_LIVE(e, ENGINE_TAG);
	if (s->state != SUPERVISE_READY || s->probing)
		return;
	s->next_probe = cgn_loop_now(e->host->loop);
	engine_step(e, SUPERVISE_TICK);
}

/* ---- open and close ---- */

/* True when the slot manager will keep this engine's slots: the store that it needs is on this machine. */
static bool slots_will_be_kept(const struct config *cfg, const struct config_engine *ce)
{
	char path[128];
	if (ce->kind != ENGINE_LLAMA_CPP || ce->slot_dir == NULL || cfg->agent.kv_uds[0] == '\0')
		return false;
	(void)snprintf(path, sizeof path, "%s.bulk", cfg->agent.kv_uds);
	return access(path, F_OK) == 0;
}

CGN_RC engine_process_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err)
{
	struct engine_process *p = &e->process;
	const struct supervise_cfg sup = {
		.managed = ce->managed,
		.ready_timeout = ce->ready_timeout,
		.ready_interval = ce->ready_interval,
		.check_interval = e->ops->check_every,
		.backoff = ce->restart_backoff,
	};
	cgn_timer_init(&p->wake, e->host->loop, on_process_wake);
	p->ready = METRIC_OF(e->host->telemetry, ENGINE_READY, e->name);
	p->restarts = METRIC_OF(e->host->telemetry, ENGINE_RESTARTS, e->name);
	metric_set(p->ready, 0);
	supervise_init(&p->sup, &sup);
	if (!ce->managed)
		return CGN_OK;
	const struct engine_launch_ask ask = {.engine = ce,
		.url = &e->url,
		.gpu_index = cfg->agent.gpu_index,
		.slots_are_kept = slots_will_be_kept(cfg, ce)};
	p->launch.arena = &e->arena;
	return engine_launch_make(&ask, &p->launch, err);
}

void engine_process_close(struct engine *e)
{
	cgn_timer_cancel(&e->process.wake);
	proc_free(&e->process.proc);
}
