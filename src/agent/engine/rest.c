/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/rest.h"

#include "agent/engine/engine.h"
#include "base/log/log.h"

#define CHANGE_TIMEOUT (120 * CGN_SEC) /* Weights of a large model are copied from or to host memory. */
#define RETRY_FIRST    (2 * CGN_SEC)
#define RETRY_LAST     (60 * CGN_SEC)
#define SAVE_LONGEST   (60 * CGN_SEC)

#define WANTED_RUN    COGNITORA__V1__WANTED_STATE__WANTED_LOADED
#define WANTED_ASLEEP COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP
#define WANTED_STOP   COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED

static bool is_kind_that_sleeps(const struct engine *e)
{
	return e->ops->changes != NULL;
}

static bool is_up(const struct engine *e)
{
	return e->process.sup.state == SUPERVISE_READY;
}

static bool is_down(const struct engine *e)
{
	return e->unit.name != NULL ? e->unit.stopped : e->process.sup.state == SUPERVISE_STOPPED;
}

static void state_set(struct engine *e, enum rest_state state)
{
	e->rest.state = state;
	e->rest.since = cgn_loop_now(e->host->loop);
	e->rest.saving_since = 0;
	e->host->ops->changed(e->host->user);
}

/* The next request is due at once. */
static void rest_renew(struct engine_rest *r)
{
	r->failures = 0;
	r->retry_at = 0;
	r->why[0] = '\0';
}

void engine_rest_want(struct engine *e, const Cognitora__V1__WantedModel *m,
	Cognitora__V1__WantedState wanted, bool patient)
{
	struct engine_rest *r = &e->rest;
	if (r->revision == m->revision)
		return;
	/* The order is older than this agent: the engine may sleep already. */
	if (r->revision == 0 && !is_up(e) && r->state == REST_RUNS && is_kind_that_sleeps(e))
		r->state = REST_UNKNOWN;
	rest_renew(r);
	r->revision = m->revision;
	r->wanted = wanted;
	r->patient = patient;
	e->host->ops->changed(e->host->user);
}

bool engine_rest_hides(const struct engine *e)
{
	const struct engine_rest *r = &e->rest;
	bool rests = r->wanted == WANTED_ASLEEP || r->wanted == WANTED_STOP;
	return r->state != REST_RUNS || (rests && r->why[0] == '\0');
}

const char *engine_rest_text(const struct engine *e)
{
	const struct engine_rest *r = &e->rest;
	if (r->why[0] != '\0')
		return "failed";
	switch (r->state) {
	case REST_DRAINING:
		return r->fetch != NULL ? "falling asleep" : "draining";
	case REST_ASLEEP:
	case REST_UNKNOWN:
		return engine_wanted(e) == WANTED_ASLEEP && r->fetch == NULL ? "asleep" : "waking";
	case REST_STOPPED:
		return is_down(e) ? "stopped" : "stopping";
	case REST_RUNS:
		break;
	}
	return "";
}

void engine_rest_forget(struct engine *e)
{
	struct engine_rest *r = &e->rest;
	webask_cancel(&r->fetch);
	if (r->state != REST_STOPPED && r->state != REST_RUNS)
		state_set(e, REST_RUNS);
}

void engine_rest_close(struct engine *e)
{
	webask_cancel(&e->rest.fetch);
}

/* ---- requests to the engine ---- */

static void retry_note(struct engine_rest *r, cgn_nsec now)
{
	cgn_nsec pause = r->failures < 5 ? RETRY_FIRST << r->failures : RETRY_LAST;
	r->failures++;
	r->retry_at = now + pause;
}

static void rest_refused(struct engine *e, bool sleeps, const struct webask_answer *a)
{
	struct engine_rest *r = &e->rest;
	char why[200];
	engine_answer_text(a, why, sizeof why);
	bool unknown = a->err->code == CGN_FINE && (a->status == 404 || a->status == 405);
	(void)snprintf(r->why, sizeof r->why, "%s%s", why,
		unknown ? "; it was not started so that it can sleep (docs/laptop/models.md)" : "");
	retry_note(r, cgn_loop_now(e->host->loop));
	if (unknown)
		r->retry_at = UINT64_MAX; /* A new order asks again. */
	cgn_log(WARN, sleeps ? "engine.sleep_failed" : "engine.wake_failed", F_STR("engine", e->name),
		F_STR("why", r->why));
}

static void rest_answered(struct engine *e, bool sleeps, const struct webask_answer *a)
{
	CGN_LIVE(e, ENGINE_TAG);
	e->rest.fetch = NULL;
	bool is_so = a->err->code == CGN_FINE &&
		engine_change_is_so(sleeps ? ENGINE_SLEEP : ENGINE_WAKE, CGN_STR(""), a->status, a->body);
	if (webask_is_ok(a) || is_so) {
		rest_renew(&e->rest);
		cgn_log(INFO, sleeps ? "engine.asleep" : "engine.awake", F_STR("engine", e->name));
		if (sleeps)
			engine_residency_clear(e); /* The KV cache is gone. */
		state_set(e, sleeps ? REST_ASLEEP : REST_RUNS);
	} else {
		rest_refused(e, sleeps, a);
		if (sleeps)
			state_set(e, REST_RUNS); /* The engine serves on. */
	}
	e->host->ops->changed(e->host->user);
}

static void on_asleep(void *user, const struct webask_answer *a)
{
	rest_answered(user, true, a);
}

static void on_awake(void *user, const struct webask_answer *a)
{
	rest_answered(user, false, a);
}

static void change_ask(struct engine *e, bool sleeps)
{
	struct engine_rest *r = &e->rest;
	if (r->fetch == NULL && cgn_loop_now(e->host->loop) >= r->retry_at)
		(void)engine_change_start(e, sleeps ? ENGINE_SLEEP : ENGINE_WAKE, CGN_STR(""), CGN_STR(""),
			CHANGE_TIMEOUT, sleeps ? on_asleep : on_awake, &r->fetch);
}

/* ---- units of systemd ---- */

void engine_rest_unit_done(struct engine *e, bool starts, const char *why)
{
	struct engine_rest *r = &e->rest;
	if (why == NULL) {
		rest_renew(r);
		e->unit.stopped = !starts;
		e->unit.started = starts ? r->revision : e->unit.started;
		state_set(e, starts ? REST_RUNS : REST_STOPPED);
		return;
	}
	(void)snprintf(r->why, sizeof r->why, "%s", why);
	retry_note(r, cgn_loop_now(e->host->loop));
	cgn_log(WARN, "engine.unit_failed", F_STR("engine", e->name), F_STR("unit", e->unit.name),
		F_STR("why", why), F_STR("then", "it is tried again"));
	if (!starts)
		state_set(e, REST_RUNS); /* The engine serves on. */
	e->host->ops->changed(e->host->user);
}

static void unit_step(struct engine *e, bool start)
{
	if (cgn_loop_now(e->host->loop) >= e->rest.retry_at)
		engine_unit_ask(e, start);
}

/* ---- steps ---- */

/* True when no request is left, or they had their time. */
static bool is_drained(struct engine *e)
{
	if (engine_is_offered(e)) /* agent/swap holds requests back, and none is left. */
		return true;
	if (e->rest.state == REST_RUNS)
		state_set(e, REST_DRAINING);
	uint32_t inflight = e->requests.inflight + e->requests.direct;
	if (e->rest.state == REST_DRAINING && e->rest.patient && inflight > 0)
		return false;
	return e->rest.state != REST_DRAINING || engine_drained(e, e->rest.since, inflight);
}

/* Save the content of the engine's slots before it is stopped: other nodes fetch it from the store, which
 * goes on. True: it is saved, or cannot be. For engines on demand agent/swap has done it. */
static bool is_saved(struct engine *e)
{
	struct engine_rest *r = &e->rest;
	cgn_nsec now = cgn_loop_now(e->host->loop);
	if (engine_is_offered(e))
		return true;
	if (r->saving_since == 0) {
		r->saving_since = now;
		slotmgr_flush_begin(e->slots);
	}
	return slotmgr_flush_step(e->slots) || cgn_since(now, r->saving_since) >= SAVE_LONGEST;
}

static void engine_begin(struct engine *e)
{
	cgn_log(INFO, "engine.wanted", F_STR("engine", e->name), F_STR("then", "it is started"));
	state_set(e, REST_RUNS);
	engine_step(e, SUPERVISE_START);
}

static bool run_step(struct engine *e)
{
	switch (e->rest.state) {
	case REST_STOPPED:
		if (e->unit.name != NULL)
			unit_step(e, true);
		else if (is_down(e))
			engine_begin(e);
		return true;
	case REST_ASLEEP:
	case REST_UNKNOWN:
		if (is_up(e))
			change_ask(e, false);
		return true;
	case REST_DRAINING:
		if (e->rest.fetch == NULL)
			state_set(e, REST_RUNS);
		return true;
	case REST_RUNS:
		/* An agent before this one may have stopped the unit. */
		if (e->unit.name == NULL || is_up(e) || e->unit.started == e->rest.revision)
			break;
		unit_step(e, true);
		return true;
	}
	return false;
}

/* The engine cannot obey and serves on. */
static void rest_unable(struct engine *e, const char *why)
{
	if (e->rest.why[0] != '\0')
		return;
	(void)snprintf(e->rest.why, sizeof e->rest.why, "%s", why);
	cgn_log(WARN, "engine.unable", F_STR("engine", e->name), F_STR("why", why),
		F_STR("then", "it serves on"));
	e->host->ops->changed(e->host->user);
}

static bool sleep_step(struct engine *e)
{
	if (!is_kind_that_sleeps(e)) {
		rest_unable(e, "engines of its kind cannot sleep (vllm and sglang can)");
		return false;
	}
	if (e->rest.state == REST_STOPPED) {
		if (is_down(e))
			engine_begin(e);
		return true;
	}
	if (e->rest.state == REST_ASLEEP || !is_up(e) || !e->view.models.known)
		return e->rest.state != REST_ASLEEP;
	if (cgn_loop_now(e->host->loop) >= e->rest.retry_at && is_drained(e))
		change_ask(e, true);
	return true;
}

static bool stop_step(struct engine *e)
{
	struct engine_rest *r = &e->rest;
	if (!e->process.sup.cfg.managed && e->unit.name == NULL) {
		rest_unable(e, "its agent does not manage it: stop it where it was started");
		return false;
	}
	if (r->state == REST_STOPPED && is_down(e))
		return false;
	if (r->state == REST_STOPPED || (is_up(e) && (!is_drained(e) || !is_saved(e))))
		return true;
	if (e->unit.name != NULL) {
		unit_step(e, false);
		return true;
	}
	cgn_log(INFO, "engine.wanted", F_STR("engine", e->name), F_STR("then", "it is stopped"));
	webask_cancel(&r->fetch);
	state_set(e, REST_STOPPED);
	if (!is_down(e))
		engine_stop(e);
	return !is_down(e);
}

bool engine_rest_step(struct engine *e)
{
	const Cognitora__V1__WantedState wanted = engine_wanted(e);
	if (wanted == WANTED_RUN)
		return run_step(e);
	if (wanted == WANTED_ASLEEP)
		return sleep_step(e);
	return wanted == WANTED_STOP && stop_step(e);
}
