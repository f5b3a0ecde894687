/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/supervise.h"

const char *supervise_state_name(enum supervise_state s)
{
	static const char *const names[] = {
		[SUPERVISE_STOPPED] = "stopped",
		[SUPERVISE_STARTING] = "starting",
		[SUPERVISE_READY] = "ready",
		[SUPERVISE_UNHEALTHY] = "unhealthy",
		[SUPERVISE_BACKOFF] = "backoff",
		[SUPERVISE_STOPPING] = "stopping",
	};
	CGN_MUST(s < CGN_COUNT(names));
	return names[s];
}

void supervise_init(struct supervise *s, const struct supervise_cfg *cfg)
{
	*s = (struct supervise){.cfg = *cfg, .backoff = cfg->backoff};
}

static bool is_watched(const struct supervise *s)
{
	return s->state == SUPERVISE_STARTING || s->state == SUPERVISE_READY ||
		s->state == SUPERVISE_UNHEALTHY;
}

/* A managed engine's first probe waits, since no process answers right after its spawn. */
static void enter_starting(struct supervise *s, cgn_nsec now, struct supervise_orders *out)
{
	s->state = SUPERVISE_STARTING;
	s->fails = 0;
	s->killing = s->probing = s->ending = false;
	s->has_process = s->cfg.managed;
	s->deadline = s->cfg.managed ? now + s->cfg.ready_timeout : 0;
	s->next_probe = s->cfg.managed ? now + s->cfg.ready_interval : now;
	out->spawn = s->cfg.managed;
}

static void enter_ready(struct supervise *s, cgn_nsec now)
{
	s->state = SUPERVISE_READY;
	s->ready_since = now;
	s->deadline = 0;
	s->fails = 0;
	s->next_probe = now + s->cfg.check_interval;
}

static void enter_unhealthy(struct supervise *s, cgn_nsec now)
{
	s->state = SUPERVISE_UNHEALTHY;
	s->deadline = s->cfg.managed ? now + SUPERVISE_SICK_LIMIT : 0;
	s->next_probe = now + s->cfg.ready_interval;
}

static void supervise_kill(struct supervise *s, struct supervise_orders *out)
{
	if (!s->killing)
		out->kill = true;
	s->killing = true;
}

static bool was_healthy_long(const struct supervise *s, cgn_nsec now)
{
	return s->ready_since != 0 && cgn_since(now, s->ready_since) >= SUPERVISE_HEALTHY_MINUTE;
}

static void process_gone(struct supervise *s, cgn_nsec now)
{
	bool ended = s->state == SUPERVISE_STOPPING;
	s->has_process = s->probing = s->killing = s->ending = false;
	s->next_probe = 0;
	if (ended) {
		s->state = SUPERVISE_STOPPED;
		s->deadline = 0;
		return;
	}
	if (was_healthy_long(s, now))
		s->backoff = s->cfg.backoff;
	s->state = SUPERVISE_BACKOFF;
	s->deadline = now + s->backoff;
	s->ready_since = 0;
	s->backoff = s->backoff > SUPERVISE_BACKOFF_MAX / 2 ? SUPERVISE_BACKOFF_MAX : s->backoff * 2;
}

/* Until all of the process is gone, nothing is asked, killed or started. */
static void process_ending(struct supervise *s, cgn_nsec now)
{
	if (!s->has_process || s->state == SUPERVISE_STOPPING)
		return;
	s->ending = true;
	if (s->state == SUPERVISE_READY)
		enter_unhealthy(s, now);
	s->killing = true;
	s->probing = false;
	s->deadline = s->next_probe = 0;
}

static void supervise_stop(struct supervise *s, struct supervise_orders *out)
{
	s->deadline = s->next_probe = 0;
	s->probing = false;
	if (!s->has_process) {
		s->state = SUPERVISE_STOPPED;
		return;
	}
	s->state = SUPERVISE_STOPPING;
	supervise_kill(s, out);
}

static void supervise_tick(struct supervise *s, cgn_nsec now, struct supervise_orders *out)
{
	bool due = s->deadline != 0 && now >= s->deadline;
	if (s->state == SUPERVISE_BACKOFF && due) {
		s->restarts++;
		enter_starting(s, now, out);
		return;
	}
	if (!is_watched(s) || s->killing)
		return;
	if (due) {
		s->deadline = 0;
		supervise_kill(s, out);
		return;
	}
	if (!s->probing && s->next_probe != 0 && now >= s->next_probe) {
		s->probing = true;
		out->probe = true;
	}
}

static void supervise_probed(struct supervise *s, enum supervise_event ev, cgn_nsec now)
{
	if (!s->probing || !is_watched(s))
		return;
	s->probing = false;
	if (s->killing)
		return;
	if (ev == SUPERVISE_PROBE_UP && s->state != SUPERVISE_READY) {
		enter_ready(s, now);
		return;
	}
	if (ev == SUPERVISE_PROBE_UP) {
		s->fails = 0;
		s->next_probe = now + s->cfg.check_interval;
		return;
	}
	s->next_probe = now + s->cfg.ready_interval;
	if (s->state != SUPERVISE_READY)
		return;
	s->fails++;
	if (ev != SUPERVISE_PROBE_DOWN || s->fails >= SUPERVISE_FAILS)
		enter_unhealthy(s, now);
}

static cgn_nsec earliest_wake(const struct supervise *s)
{
	cgn_nsec probe = s->probing || s->killing ? 0 : s->next_probe;
	if (s->deadline == 0 || (probe != 0 && probe < s->deadline))
		return probe;
	return s->deadline;
}

void supervise_step(struct supervise *s, enum supervise_event ev, cgn_nsec now, struct supervise_orders *out)
{
	*out = (struct supervise_orders){0};
	switch (ev) {
	case SUPERVISE_START:
		if (s->state == SUPERVISE_STOPPED)
			enter_starting(s, now, out);
		break;
	case SUPERVISE_TICK:
		supervise_tick(s, now, out);
		break;
	case SUPERVISE_ADOPTED:
		if (s->state == SUPERVISE_STARTING)
			s->next_probe = now;
		break;
	case SUPERVISE_ENDING:
		process_ending(s, now);
		break;
	case SUPERVISE_SPAWN_FAILED:
	case SUPERVISE_EXITED:
		if (s->has_process)
			process_gone(s, now);
		break;
	case SUPERVISE_PROBE_UP:
	case SUPERVISE_PROBE_LOADING:
	case SUPERVISE_PROBE_DOWN:
	case SUPERVISE_PROBE_REFUSED:
		supervise_probed(s, ev, now);
		break;
	case SUPERVISE_STALLED:
		if (s->state == SUPERVISE_READY && !s->killing)
			enter_unhealthy(s, now);
		break;
	case SUPERVISE_STOP:
		supervise_stop(s, out);
		break;
	}
	out->wake_at = earliest_wake(s);
}
