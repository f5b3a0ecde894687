/* SPDX-License-Identifier: Apache-2.0 */
/* probe: probes of the engine's readiness, and the watch for an engine that has stalled. */
#include "base/log/log.h"
#include "joint/node/engineview/engineview_priv.h"
#include "policy/node/engine/lastwords.h"

#define PROBE_BYTES       ((size_t)1024 * 1024)
#define PROBE_TIMEOUT     (5 * CGN_SEC)
#define PROBE_SLOW        (1800 * CGN_MSEC)
#define TROUBLE_LOG_EVERY (60 * CGN_SEC)
/* A stall is STALL_BEATS beats without a byte and STALL_CHECKS checks without an answer. Events are counted
 * instead of time, so that a program that was itself suspended does not blame the engine. */
#define STALL_BEATS  5
#define STALL_CHECKS 2
#define MUTE_STEP    (2 * CGN_SEC) /* Most that engineview_witness counts at once */

/* ---- probes ---- */

/* The engine answered, with more than a check reads. Its status tells enough. */
static bool answer_is_too_long(const struct webask_answer *r)
{
	return r->err->code == CGN_TOO_LARGE && r->status > 0;
}

/* Judge the answer; |why| gets the reason for people. */
static enum supervise_event probe_verdict(struct engineview *v, const struct webask_answer *r, char *why,
	size_t cap)
{
	why[0] = '\0';
	engineview_answered(v, r->err->code);
	if (r->err->code == CGN_NO_MEMORY && v->ops->is_ready(v->user))
		return SUPERVISE_PROBE_UP; /* This process lacks something, and the engine was not asked. */
	if (r->err->code != CGN_FINE && !answer_is_too_long(r)) {
		engine_text_keep(why, cap, cgn_str_of(r->err->msg));
		return r->refused ? SUPERVISE_PROBE_REFUSED : SUPERVISE_PROBE_DOWN;
	}
	enum engine_readiness readiness = v->kind->readiness(r->status);
	if (readiness == ENGINE_READINESS_UP)
		return SUPERVISE_PROBE_UP;
	(void)snprintf(why, cap, "%s answered %d", v->kind->ready_path, r->status);
	return readiness == ENGINE_READINESS_LOADING ? SUPERVISE_PROBE_LOADING : SUPERVISE_PROBE_DOWN;
}

void engineview_trouble_log(struct engineview *v, const char *state, const char *why)
{
	struct engineview_probe *p = &v->probe;
	cgn_nsec now = cgn_loop_now(v->loop);
	bool told = p->said_at != 0 && cgn_since(now, p->said_at) < TROUBLE_LOG_EVERY &&
		strncmp(p->said, why, sizeof p->said - 1) == 0;
	if (told)
		return;
	p->said_at = now;
	(void)cgn_str_copyz(p->said, sizeof p->said, cgn_str_of(why));
	cgn_log_limited(WARN, "engine.check_failed", F_STR("engine", v->name), F_STR("url", v->at.url->addr),
		F_STR("state", state), F_STR("why", why));
}

static void on_probe(void *user, const struct webask_answer *r)
{
	struct engineview *v = user;
	char why[200];
	v->probe.fetch = NULL;
	cgn_timer_cancel(&v->probe.slow_timer);
	enum supervise_event verdict = probe_verdict(v, r, why, sizeof why);
	if (verdict == SUPERVISE_PROBE_UP)
		v->probe.said[0] = '\0';
	else if (verdict != SUPERVISE_PROBE_REFUSED && !v->ops->is_ready(v->user))
		http_client_shun(v->at.client);
	v->ops->probed(v->user, verdict,
		verdict != SUPERVISE_PROBE_UP    ? why
			: engineview_is_named(v) ? v->models.why
						 : v->named.why);
}

/* The answer may still come, but people should not have to wait for the timeout. */
static void on_slow_probe(struct cgn_timer *t)
{
	struct engineview *v = CGN_CONTAINER(t, struct engineview, probe.slow_timer);
	char text[200];
	if (v->probe.fetch == NULL)
		return;
	(void)snprintf(text, sizeof text, "%.150s: no answer yet to %.30s", v->at.url->addr,
		v->kind->ready_path);
	v->ops->slow(v->user, text);
}

void engineview_probe(struct engineview *v)
{
	struct cgn_err err = {0};
	const struct webask_question ask = {.path = v->kind->ready_path,
		.max_bytes = PROBE_BYTES,
		.timeout = PROBE_TIMEOUT};
	CGN_MUST(v->probe.fetch == NULL);
	cgn_timer_set(&v->probe.slow_timer, PROBE_SLOW);
	engineview_asked(v);
	if (cgn_ok(webask_start(v->loop, &v->at, &ask, on_probe, v, &v->probe.fetch, &err)))
		return;
	cgn_timer_cancel(&v->probe.slow_timer);
	v->ops->probed(v->user, SUPERVISE_PROBE_DOWN, err.msg);
}

void engineview_probe_cancel(struct engineview *v)
{
	cgn_timer_cancel(&v->probe.slow_timer);
	webask_cancel(&v->probe.fetch);
}

/* ---- stalls ---- */

static void probe_heard(struct engineview *v)
{
	v->probe.silent_beats = v->probe.unanswered = 0;
	v->probe.asked_at = v->probe.mute = 0;
}

void engineview_worked(struct engineview *v)
{
	probe_heard(v);
	v->probe.worked_at = cgn_loop_now(v->loop);
}

void engineview_asked(struct engineview *v)
{
	if (v->probe.asked_at == 0)
		v->probe.asked_at = cgn_loop_now(v->loop);
}

struct pulse_witness engineview_witness(struct engineview *v)
{
	struct engineview_probe *p = &v->probe;
	cgn_nsec now = cgn_loop_now(v->loop);
	cgn_nsec more = cgn_since(now, p->asked_at > p->mute_at ? p->asked_at : p->mute_at);
	p->mute = p->asked_at == 0 ? 0 : p->mute + (more < MUTE_STEP ? more : MUTE_STEP);
	p->mute_at = now;
	return (struct pulse_witness){.mute = p->mute,
		.still = p->worked_at != 0 ? cgn_since(now, p->worked_at) : UINT64_MAX};
}

void engineview_answered(struct engineview *v, enum cgn_code code)
{
	if (code == CGN_FINE || code == CGN_TOO_LARGE)
		probe_heard(v);
	else if (code == CGN_DEADLINE)
		v->probe.unanswered++;
	else if (code == CGN_NO_MEMORY)
		v->probe.asked_at = 0;
}

static void on_stall_beat(struct cgn_timer *t)
{
	struct engineview *v = CGN_CONTAINER(t, struct engineview, probe.stall_timer);
	struct engineview_probe *p = &v->probe;
	cgn_timer_set(t, p->stall_timeout / STALL_BEATS);
	if (++p->silent_beats >= STALL_BEATS && p->unanswered >= STALL_CHECKS)
		v->ops->stalled(v->user);
}

void engineview_stall_watch(struct engineview *v, bool on)
{
	struct engineview_probe *p = &v->probe;
	probe_heard(v);
	if (on && p->stall_timeout > 0)
		cgn_timer_set(&p->stall_timer, p->stall_timeout / STALL_BEATS);
	else
		cgn_timer_cancel(&p->stall_timer);
}

static void probe_init(struct engineview *v, cgn_nsec stall_timeout)
{
	cgn_timer_init(&v->probe.stall_timer, v->loop, on_stall_beat);
	cgn_timer_init(&v->probe.slow_timer, v->loop, on_slow_probe);
	v->probe.stall_timeout = stall_timeout;
}

/* ---- the engine ---- */

CGN_RC engineview_init(struct engineview *v, const struct config_engine *ce, struct cgn_err *err)
{
	probe_init(v, ce->stall_timeout);
	engineview_load_init(v);
	(void)cgn_str_copyz(v->feed.text, sizeof v->feed.text, CGN_STR("sent"));
	engineview_named_init(v, ce);
	return engineview_models_init(v, ce, err);
}

void engineview_close(struct engineview *v)
{
	if (v->loop == NULL)
		return;
	cgn_timer_cancel(&v->probe.stall_timer);
	engineview_probe_cancel(v);
	engineview_load_stop(v);
	engineview_named_close(v);
	enginefeed_close(&v->feed.ef);
	cgn_arena_fini(&v->models.arena);
	cgn_arena_fini(&v->models.next_arena);
	v->loop = NULL;
}
