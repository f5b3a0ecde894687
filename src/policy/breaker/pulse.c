/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/breaker/pulse.h"

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
	SET(p->gap_ms, 0);
}
