/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/breaker/pulse.h"

#define GET(field)    atomic_load_explicit(&(field), memory_order_relaxed)
#define SET(field, v) atomic_store_explicit(&(field), (v), memory_order_relaxed)

void pulse_beat(struct pulse *p, cgn_nsec now)
{
	cgn_nsec was = GET(p->heard_at);
	if (was == 0 || now >= was + PULSE_GRAIN)
		SET(p->heard_at, now);
	if (GET(p->stalled_at) != 0)
		SET(p->stalled_at, 0);
}

/* When two threads add gaps at once, the smaller gap may win; the next gap corrects this. */
void pulse_gap(struct pulse *p, cgn_nsec gap)
{
	uint64_t ms = gap / CGN_MSEC;
	if (ms > GET(p->gap_ms))
		SET(p->gap_ms, ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX);
}

void pulse_stop(struct pulse *p, cgn_nsec now)
{
	SET(p->stalled_at, now);
}

bool pulse_stopped(const struct pulse *p, cgn_nsec since)
{
	return GET(p->stalled_at) > since;
}

void pulse_lose_agent(struct pulse *p, cgn_nsec now)
{
	SET(p->gone_at, now);
}

bool pulse_agent_lost(const struct pulse *p, cgn_nsec since)
{
	return GET(p->gone_at) > since;
}

cgn_nsec pulse_heard(const struct pulse *p)
{
	return GET(p->heard_at);
}

cgn_nsec pulse_limit(const struct pulse *p, cgn_nsec base, uint64_t tokens)
{
	if (base == 0)
		return UINT64_MAX;
	cgn_nsec gaps = PULSE_GAPS * GET(p->gap_ms) * CGN_MSEC;
	if (tokens > UINT32_MAX)
		tokens = UINT32_MAX;
	return (gaps > base ? gaps : base) + tokens * (CGN_SEC / PULSE_PREFILL);
}

void pulse_told(struct pulse *p, cgn_nsec now, const struct pulse_witness *w)
{
	uint64_t mute_ms = w->mute / CGN_MSEC;
	SET(p->mute_ms, mute_ms < UINT32_MAX ? (uint32_t)mute_ms : UINT32_MAX);
	SET(p->told_at, now);
	cgn_nsec worked_at = cgn_since(now, w->still);
	if (worked_at > GET(p->worked_at))
		SET(p->worked_at, worked_at);
}

bool pulse_lives(const struct pulse *p, cgn_nsec now, cgn_nsec base)
{
	cgn_nsec told_at = GET(p->told_at), patience = base > PULSE_WITNESS ? base : PULSE_WITNESS;
	return told_at != 0 && cgn_since(now, told_at) < patience && GET(p->mute_ms) * CGN_MSEC < base;
}

static bool is_within(cgn_nsec now, cgn_nsec then, cgn_nsec within)
{
	return then != 0 && cgn_since(now, then) < within;
}

bool pulse_works(const struct pulse *p, cgn_nsec now, cgn_nsec within)
{
	return is_within(now, GET(p->heard_at), within) || is_within(now, GET(p->worked_at), within);
}

void pulse_fade(struct pulse *p)
{
	uint32_t was = GET(p->gap_ms);
	if (was > 0)
		SET(p->gap_ms, (uint32_t)((double)was * PULSE_FADE));
}

void pulse_reset(struct pulse *p)
{
	SET(p->heard_at, 0);
	SET(p->stalled_at, 0);
	SET(p->gone_at, 0);
	SET(p->gap_ms, 0);
	SET(p->mute_ms, 0);
	SET(p->told_at, 0);
	SET(p->worked_at, 0);
}
