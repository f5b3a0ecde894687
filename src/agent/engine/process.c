/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "agent/engine/engine.h"
#include "agent/engine/launch.h"
#include "base/digest/digest.h"
#include "base/log/log.h"

#define LOCAL_CHECK_EVERY (1500 * CGN_MSEC)

/* ---- the process ---- */

static void on_process_line(void *user, bool is_stderr, struct cgn_str line, unsigned long dropped)
{
	engine_output_line(user, is_stderr, line, dropped);
}

/* Compose the sentence that routers and people get. */
static void end_tell(struct engine *e, const struct proc_exit *why)
{
	struct engine_process *p = &e->process;
	char text[sizeof p->ended], how[128];
	if (p->killed_because != NULL)
		(void)snprintf(text, sizeof text, "%s%s%s", p->killed_because,
			p->output.words.last[0] != '\0' ? "; its last words: " : "", p->output.words.last);
	else
		engine_output_end(e, why, text, sizeof text);
	p->failures++;
	if (p->failures > 1)
		(void)snprintf(p->ended, sizeof p->ended, "failed %u times in a row: %.350s", p->failures,
			text);
	else
		(void)snprintf(p->ended, sizeof p->ended, "%s", text);
	engine_output_tell(e);
	cgn_log(WARN, "engine.exit", F_STR("engine", e->name),
		F_STR("how", proc_exit_text(why, how, sizeof how)), F_STR("why", p->ended),
		F_STR("state", supervise_state_name(p->sup.state)));
	engine_trouble_set(e, p->ended);
}

/* The program has ended, and what it left is being killed: nothing may be sent there any more. */
static void on_process_ended(void *user, const struct proc_exit *why)
{
	struct engine *e = user;
	CGN_LIVE(e, ENGINE_TAG);
	engineview_probe_cancel(&e->view);
	if (e->process.sup.state != SUPERVISE_STOPPING && !e->process.sup.ending)
		end_tell(e, why);
	engine_step(e, SUPERVISE_ENDING);
}

static void on_process_exit(void *user, const struct proc_exit *why)
{
	struct engine *e = user;
	struct engine_process *p = &e->process;
	char text[128];
	CGN_LIVE(e, ENGINE_TAG);
	bool told = p->sup.ending; /* By on_process_ended */
	p->proc = NULL;
	if (p->sup.state == SUPERVISE_STOPPING) {
		cgn_log(INFO, "engine.exit", F_STR("engine", e->name),
			F_STR("how", proc_exit_text(why, text, sizeof text)));
		engine_output_end(e, why, p->ended, sizeof p->ended);
	} else if (!told) {
		end_tell(e, why);
	}
	p->killed_because = NULL;
	engineview_probe_cancel(&e->view);
	engine_step(e, SUPERVISE_EXITED);
}

static const struct proc_ops process_ops = {.on_line = on_process_line,
	.on_ended = on_process_ended,
	.on_exit = on_process_exit};

/* Adopt the process that an earlier agent left, if there is one. CGN_NOT_FOUND: there is none. */
static CGN_RC process_adopt(struct engine *e, struct cgn_err *err)
{
	struct engine_process *p = &e->process;
	struct proc_orphan orphan;
	if (p->place[0] == '\0')
		return CGN_FAIL(err, NOT_FOUND, "engine %s has no place", e->name);
	CGN_TRY(proc_adopt(e->host->loop, p->place, &process_ops, e, &p->proc, &orphan, err));
	if (p->orphan_time > 0 && strcmp(orphan.word, p->word) == 0) {
		cgn_log(INFO, "engine.adopted", F_STR("engine", e->name), F_I64("pid", proc_pid(p->proc)),
			F_U64("output_lost", orphan.unread));
		engine_output_begin(e, "adopted by a new agent");
		engine_step(e, SUPERVISE_ADOPTED);
		return CGN_OK;
	}
	cgn_log(INFO, "engine.not_adopted", F_STR("engine", e->name), F_I64("pid", proc_pid(p->proc)),
		F_STR("why", "its launch settings changed while no agent ran"),
		F_STR("then", "it is stopped and started with its new settings"));
	engine_trouble_set(e, "an engine with other launch settings is being stopped");
	engine_output_begin(e, "found by a new agent with other launch settings, and stopped");
	proc_stop(p->proc);
	engine_step(e, SUPERVISE_ENDING); /* Nothing is asked of it any more. */
	return CGN_OK;
}

static CGN_RC process_launch(struct engine *e, struct cgn_err *err)
{
	struct engine_process *p = &e->process;
	char text[300];
	const struct proc_cfg cfg = {.argv = p->launch.argv,
		.env = p->launch.env,
		.grace = p->stop_grace,
		.place = p->place[0] != '\0' ? p->place : NULL,
		.orphan_time = p->orphan_time,
		.word = p->word};
	size_t strays = p->place[0] != '\0' ? proc_end_strays(p->place) : 0;
	if (strays > 0)
		cgn_log(WARN, "engine.strays_killed", F_STR("engine", e->name), F_U64("processes", strays),
			F_STR("why", "their agent and their keeper were killed"));
	CGN_TRY(proc_spawn(e->host->loop, &cfg, &process_ops, e, &p->proc, err));
	cgn_log(INFO, "engine.start", F_STR("engine", e->name), F_STR("program", p->launch.argv[0]),
		F_U64("restarts", p->sup.restarts));
	if (p->orphan_time > 0 && !proc_outlives(p->proc))
		cgn_log(WARN, "engine.ends_with_agent", F_STR("engine", e->name),
			F_STR("why",
				p->place[0] != '\0' ? "no socket can be made in agent.engine_dir"
						    : "agent.engine_dir cannot be used"),
			F_STR("then", "it does not outlive this agent, in spite of orphan_time"));
	(void)snprintf(text, sizeof text, "the engine starts: %.250s", p->launch.argv[0]);
	engine_output_begin(e, text);
	return CGN_OK;
}

static void process_spawn(struct engine *e)
{
	struct engine_process *p = &e->process;
	struct cgn_err err = {0};
	engineview_probe_cancel(&e->view);
	engine_trouble_set(e, "starting");
	if (p->sup.restarts > 0)
		metric_add(p->restarts, 1);
	cgn_rc rc = process_adopt(e, &err);
	if (rc.code == CGN_NOT_FOUND)
		rc = process_launch(e, &err);
	if (cgn_ok(rc))
		return;
	cgn_log(ERROR, "engine.start_failed", F_STR("engine", e->name), F_STR("why", err.msg));
	p->failures++;
	(void)snprintf(p->ended, sizeof p->ended, "it cannot be started: %s", err.msg);
	engine_trouble_set(e, p->ended);
	engine_step(e, SUPERVISE_SPAWN_FAILED);
}

/* ---- readiness ---- */

static void process_ready_changed(struct engine *e, bool ready)
{
	enum supervise_state state = e->process.sup.state;
	engineview_stall_watch(&e->view, ready);
	engine_adapters_forget(e);
	if (!ready)
		engine_rest_forget(e);
	if (ready) {
		e->health.stalled = false;
		e->process.ended[0] = '\0';
		engine_trouble_set(e, "");
		cgn_log(INFO, "engine.ready", F_STR("engine", e->name), F_STR("url", e->door.url.addr));
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
	if (p->sup.state == SUPERVISE_READY && cgn_since(now, p->sup.ready_since) >= SUPERVISE_HEALTHY_MINUTE)
		p->failures = 0;
	if (o.kill && p->proc != NULL) {
		if (p->sup.state != SUPERVISE_STOPPING)
			p->killed_because = p->sup.state == SUPERVISE_STARTING
				? "it was not ready within engine.ready_timeout, and was ended"
				: "it did not recover, and was ended";
		cgn_log(INFO, "engine.stop", F_STR("engine", e->name),
			F_STR("state", supervise_state_name(p->sup.state)), F_STR("last", e->health.trouble));
		proc_stop(p->proc);
	}
	if (o.probe)
		engineview_probe(&e->view);
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

/* Name the file of the engine in the node's folder. A name may hold anything. */
static void place_choose(struct engine *e)
{
	struct engine_process *p = &e->process;
	if (e->host->dir == NULL)
		return;
	int n = snprintf(p->place, sizeof p->place, "%s/", e->host->dir);
	if (n < 0 || (size_t)n + strlen(e->name) >= sizeof p->place) {
		p->place[0] = '\0';
		return;
	}
	for (const char *c = e->name; *c != '\0'; c++)
		p->place[n++] = config_file_char(*c);
	p->place[n] = '\0';
}

/* Two launch plans with the same word start the same engine. */
static void process_fingerprint(struct engine_process *p)
{
	struct digest_stream s;
	digest_stream_start(&s);
	for (size_t i = 0; i < p->launch.n_args; i++)
		digest_stream_add(&s, (struct cgn_str){p->launch.argv[i], strlen(p->launch.argv[i]) + 1});
	digest_stream_add(&s, (struct cgn_str){"", 1});
	for (size_t i = 0; i < p->launch.n_env; i++)
		digest_stream_add(&s, (struct cgn_str){p->launch.env[i], strlen(p->launch.env[i]) + 1});
	for (size_t i = 0; i < p->launch.n_files; i++) {
		digest_stream_add(&s,
			(struct cgn_str){p->launch.files[i].path, strlen(p->launch.files[i].path) + 1});
		digest_stream_add(&s,
			(struct cgn_str){p->launch.files[i].text, strlen(p->launch.files[i].text) + 1});
	}
	struct digest d = digest_stream_end(&s);
	(void)snprintf(p->word, sizeof p->word, "%016llx", (unsigned long long)digest_short(&d));
}

/* Hosted APIs (https) are asked rarely. An engine that can be asked for nothing is asked often, so that its end is said
 * within two seconds. */
static cgn_nsec check_interval(const struct engine *e)
{
	return e->door.url.tls || e->ops->check_every < LOCAL_CHECK_EVERY ? e->ops->check_every
									  : LOCAL_CHECK_EVERY;
}

static CGN_RC order_read(struct engine *e, const struct config_engine *ce, struct cgn_err *err)
{
	struct engine_process *p = &e->process;
	size_t n = ce->start_after.n;
	if (n == 0)
		return CGN_OK;
	p->start_after = cgn_arena_get(&e->arena, n * sizeof *p->start_after);
	for (size_t i = 0; p->start_after != NULL && i < n; i++)
		if ((p->start_after[i] = cgn_arena_strz(&e->arena, cgn_str_of(ce->start_after.v[i]))) == NULL)
			p->start_after = NULL;
	if (p->start_after == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for engine %s", e->name);
	p->n_start_after = n;
	p->waits = true;
	return CGN_OK;
}

CGN_RC engine_process_open(struct engine *e, const struct config *cfg, const struct config_engine *ce,
	struct cgn_err *err)
{
	struct engine_process *p = &e->process;
	const struct supervise_cfg sup = {
		.managed = ce->managed,
		.ready_timeout = ce->ready_timeout,
		.ready_interval = ce->ready_interval,
		.check_interval = check_interval(e),
		.backoff = ce->restart_backoff,
	};
	cgn_timer_init(&p->wake, e->host->loop, on_process_wake);
	p->ready = METRIC_OF(e->host->telemetry, ENGINE_READY, e->name);
	p->restarts = METRIC_OF(e->host->telemetry, ENGINE_RESTARTS, e->name);
	metric_set(p->ready, 0);
	supervise_init(&p->sup, &sup);
	p->stop_grace = ce->stop_grace > 0 ? ce->stop_grace : CGN_MSEC;
	p->orphan_time = ce->orphan_time;
	engine_output_init(e, cfg);
	if (!ce->managed)
		return CGN_OK;
	place_choose(e);
	CGN_TRY(order_read(e, ce, err));
	p->launch.arena = &e->arena;
	CGN_TRY(engine_plan(cfg, ce, &e->door.url, &p->launch, err));
	CGN_TRY(engine_plan_write(&p->launch, cfg->cluster.state_dir, err));
	process_fingerprint(p);
	return CGN_OK;
}

void engine_process_close(struct engine *e)
{
	cgn_timer_cancel(&e->process.wake);
	proc_free(&e->process.proc);
	engine_output_close(e);
}

void engine_stop(struct engine *e)
{
	CGN_LIVE(e, ENGINE_TAG);
	engineview_probe_cancel(&e->view);
	e->process.waits = false;
	engine_step(e, SUPERVISE_STOP);
}
