/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/engine.h"
#include "base/log/log.h"

#define PROBE_BYTES       ((size_t)1024 * 1024)
#define PROBE_TIMEOUT     (5 * CGN_SEC)
#define PROBE_SLOW        (1800 * CGN_MSEC)
#define TROUBLE_LOG_EVERY (60 * CGN_SEC)
/* A stall is STALL_BEATS beats without a byte and STALL_CHECKS checks without an answer. Events are counted
 * instead of time, so that an agent that was itself suspended does not blame the engine. */
#define STALL_BEATS  5
#define STALL_CHECKS 2

void engine_trouble_set(struct engine *e, const char *what)
{
	const char *ended = e->process.ended;
	char text[sizeof e->health.trouble];
	/* In a crash loop, how the last process ended says more than how the next one starts. */
	bool both = what[0] != '\0' && ended[0] != '\0' && strcmp(what, ended) != 0;
	(void)snprintf(text, sizeof text, both ? "%.180s; before: %s" : "%s", what, ended);
	engine_text_keep(e->health.trouble, sizeof e->health.trouble, cgn_str_of(text));
}

/* ---- probes ---- */

static enum supervise_event probe_verdict(struct engine *e, const struct enginefetch_answer *r)
{
	if (r->err->code == CGN_DEADLINE)
		engine_unanswered(e);
	if (r->err->code == CGN_FINE)
		engine_heard(e);
	if (r->err->code == CGN_NO_MEMORY && engine_is_ready(e))
		return SUPERVISE_PROBE_UP; /* The agent lacks something, and the engine was not asked. */
	if (r->err->code != CGN_FINE) {
		engine_trouble_set(e, r->err->msg);
		return r->refused ? SUPERVISE_PROBE_REFUSED : SUPERVISE_PROBE_DOWN;
	}
	enum engine_readiness readiness = e->ops->readiness(r->status);
	if (readiness == ENGINE_READINESS_UP)
		return SUPERVISE_PROBE_UP;
	char text[160];
	(void)snprintf(text, sizeof text, "%s answered %d", e->ops->ready_path, r->status);
	engine_trouble_set(e, text);
	return readiness == ENGINE_READINESS_LOADING ? SUPERVISE_PROBE_LOADING : SUPERVISE_PROBE_DOWN;
}

/* Tell at once that a check of the engine failed, again when the reason changes, and each minute. A managed engine that is being started
 * is silent by nature; it has engine.start_failed, and a timeout. */
static void trouble_log(struct engine *e)
{
	struct engine_checks *h = &e->health;
	cgn_nsec now = cgn_loop_now(e->host->loop);
	const struct supervise *s = &e->process.sup;
	bool told = h->said_at != 0 && now - h->said_at < TROUBLE_LOG_EVERY &&
		strncmp(h->said, h->trouble, sizeof h->said - 1) == 0;
	if ((s->cfg.managed && s->state == SUPERVISE_STARTING) || told)
		return;
	h->said_at = now;
	(void)cgn_str_copyz(h->said, sizeof h->said, cgn_str_of(h->trouble));
	cgn_log_limited(WARN, "engine.check_failed", F_STR("engine", e->name), F_STR("url", e->url.addr),
		F_STR("state", supervise_state_name(s->state)), F_STR("why", h->trouble));
}

static void on_probe(void *user, const struct enginefetch_answer *r)
{
	struct engine *e = user;
	char before[sizeof e->health.trouble];
	CGN_LIVE(e, ENGINE_TAG);
	e->health.probe = NULL;
	cgn_timer_cancel(&e->health.slow_timer);
	(void)cgn_str_copyz(before, sizeof before, cgn_str_of(e->health.trouble));
	enum supervise_event verdict = probe_verdict(e, r);
	if (verdict == SUPERVISE_PROBE_UP) {
		e->health.said[0] = '\0';
		engine_trouble_set(e, "");
		engine_output_well(e);
	} else {
		trouble_log(e);
	}
	engine_step(e, verdict);
	if (strcmp(before, e->health.trouble) != 0)
		e->host->ops->changed(e->host->user); /* Routers show the reason. */
}

/* The answer may still come, but people should not have to wait for the timeout. */
static void on_slow_probe(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, health.slow_timer);
	char text[sizeof e->health.said];
	CGN_LIVE(e, ENGINE_TAG);
	if (e->health.probe == NULL || e->process.sup.state == SUPERVISE_READY)
		return;
	(void)snprintf(text, sizeof text, "%.150s: no answer yet to %.30s", e->url.addr, e->ops->ready_path);
	engine_trouble_set(e, text);
	trouble_log(e);
	e->host->ops->changed(e->host->user);
}

void engine_probe(struct engine *e)
{
	struct cgn_err err = {0};
	const struct enginefetch_ask ask = {.path = e->ops->ready_path,
		.max_bytes = PROBE_BYTES,
		.timeout = PROBE_TIMEOUT};
	CGN_MUST(e->health.probe == NULL);
	cgn_timer_set(&e->health.slow_timer, PROBE_SLOW);
	if (cgn_ok(enginefetch_start(e->host->loop, &e->endpoint, &ask, on_probe, e, &e->health.probe, &err)))
		return;
	cgn_timer_cancel(&e->health.slow_timer);
	engine_trouble_set(e, err.msg);
	engine_step(e, SUPERVISE_PROBE_DOWN);
}

void engine_probe_cancel(struct engine *e)
{
	cgn_timer_cancel(&e->health.slow_timer);
	enginefetch_cancel(&e->health.probe);
}

/* ---- stalls ---- */

void engine_heard(struct engine *e)
{
	e->health.silent_beats = e->health.unanswered = 0;
}

void engine_unanswered(struct engine *e)
{
	e->health.unanswered++;
}

static void on_stall_beat(struct cgn_timer *t)
{
	struct engine *e = CGN_CONTAINER(t, struct engine, health.stall_timer);
	struct engine_checks *h = &e->health;
	char text[sizeof h->trouble];
	CGN_LIVE(e, ENGINE_TAG);
	cgn_timer_set(t, h->stall_timeout / STALL_BEATS);
	if (++h->silent_beats < STALL_BEATS || h->unanswered < STALL_CHECKS)
		return;
	(void)snprintf(text, sizeof text,
		"stalled: it answers no check and brings no byte (%u requests there)",
		e->requests.inflight + e->requests.direct);
	engine_trouble_set(e, text);
	/* Routers learn of the stall first, so that they send the requests that end here elsewhere. */
	engine_step(e, SUPERVISE_STALLED);
	e->host->ops->stalled(e->host->user, e);
}

void engine_stall_watch(struct engine *e, bool on)
{
	struct engine_checks *h = &e->health;
	engine_heard(e);
	if (on && h->stall_timeout > 0)
		cgn_timer_set(&h->stall_timer, h->stall_timeout / STALL_BEATS);
	else
		cgn_timer_cancel(&h->stall_timer);
}

void engine_health_init(struct engine *e, cgn_nsec stall_timeout)
{
	cgn_timer_init(&e->health.stall_timer, e->host->loop, on_stall_beat);
	cgn_timer_init(&e->health.slow_timer, e->host->loop, on_slow_probe);
	e->health.stall_timeout = stall_timeout;
	engine_trouble_set(e, "not started");
}

void engine_health_close(struct engine *e)
{
	cgn_timer_cancel(&e->health.stall_timer);
	engine_probe_cancel(e);
}
