/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/fleet/autoscale/autoscale.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define TREND_TIME  120.0  /* As AUTOSCALE_LEVEL_TIME, of the slope. */
#define AHEAD_MOST  300.0  /* Seconds that a trend is trusted for. */
#define SLOW_TIME   1800.0 /* The same of the load that a floor is compared with. */
#define FLOOR_TIME  (7200 * CGN_SEC)
#define FLOOR_SHARE 0.75
#define WORST_RATIO 2.0 /* An objective that is missed by more adds no more replicas. */
#define ROUNDING    0.02

const char *autoscale_action_text(enum autoscale_action a)
{
	return a == AUTOSCALE_UP ? "up" : a == AUTOSCALE_DOWN ? "down" : "stay";
}

static double seconds_of(cgn_nsec t)
{
	return (double)t / (double)CGN_SEC;
}

__attribute__((format(printf, 2, 3))) static void why_say(struct autoscale_decision *d, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(d->why, sizeof d->why, fmt, ap);
	va_end(ap);
}

/* ---- words for one and for several ---- */

static const char *noun_end(uint32_t n)
{
	return n == 1 ? "" : "s";
}

static const char *verb_end(uint32_t n)
{
	return n == 1 ? "s" : "";
}

static const char *is_or_are(uint32_t n)
{
	return n == 1 ? "is" : "are";
}

/* ---- the load ---- */

static void level_follow(struct autoscale *a, double load, double dt)
{
	double before = a->level, gain = 1 - exp(-dt / AUTOSCALE_LEVEL_TIME),
	       slope = 1 - exp(-dt / TREND_TIME);
	a->level += gain * (load - a->level);
	a->slow += (1 - exp(-dt / SLOW_TIME)) * (load - a->slow);
	a->trend += slope * ((a->level - before) / dt - a->trend);
}

static void peak_note(struct autoscale *a, const struct autoscale_cfg *cfg, double load, cgn_nsec now)
{
	if (now >= a->slot_end) {
		a->slot = (a->slot + 1) % AUTOSCALE_SLOTS;
		a->slot_end = now + cfg->down_window / AUTOSCALE_SLOTS + 1;
		a->peak[a->slot] = 0;
	}
	a->peak[a->slot] = load > a->peak[a->slot] ? load : a->peak[a->slot];
}

static double peak_of(const struct autoscale *a)
{
	double most = 0;
	for (uint32_t i = 0; i < AUTOSCALE_SLOTS; i++)
		most = a->peak[i] > most ? a->peak[i] : most;
	return most;
}

static void load_follow(struct autoscale *a, const struct autoscale_signals *s, cgn_nsec now)
{
	double load = s->load > 0 ? s->load : 0, dt = a->at > 0 ? seconds_of(cgn_since(now, a->at)) : 0;
	if (a->begun == 0) {
		a->begun = a->busy_at = now;
		a->level = a->slow = load;
	}
	if (dt > 0)
		level_follow(a, load, dt);
	if (now >= a->floor_until || a->slow < a->floor_level * FLOOR_SHARE)
		a->floor = 0;
	if (s->inflight > 0 || s->waiting > 0)
		a->busy_at = now;
	a->at = now;
}

/* ---- needs ---- */

static uint32_t replicas_for(double load, double each)
{
	double n = ceil(load / each - ROUNDING);
	return n < 1 ? load > 0 : n < 1e6 ? (uint32_t)n : 1000000;
}

/* The objective that is missed by most. */
struct autoscale_miss {
	const char *name;
	cgn_nsec is, objective;
	double ratio; /* |is| / |objective|; 0: there is no objective. */
};

static struct autoscale_miss miss_of(const char *name, cgn_nsec is, cgn_nsec objective)
{
	return (struct autoscale_miss){.name = name,
		.is = is,
		.objective = objective,
		.ratio = objective > 0 ? fmin((double)is / (double)objective, WORST_RATIO) : 0};
}

/* Return the worst miss. Its ratio is at most 1 where more replicas would not help: they come already, or those that are
 * there have little to do. */
static struct autoscale_miss miss_find(const struct autoscale *a, const struct autoscale_cfg *cfg,
	const struct autoscale_signals *s)
{
	struct autoscale_miss m = miss_of("TTFT", s->ttft, cfg->ttft), itl = miss_of("ITL", s->itl, cfg->itl);
	double each = s->ready > 0 ? a->level / s->ready : 0;
	if (itl.ratio > m.ratio)
		m = itl;
	if (s->coming > 0 || each < cfg->target / 2)
		m.ratio = fmin(m.ratio, 1);
	return m;
}

/* Return the replicas that are needed now; more than there are: say why. */
static uint32_t need_now(const struct autoscale *a, const struct autoscale_cfg *cfg,
	const struct autoscale_signals *s, struct autoscale_decision *d)
{
	const struct autoscale_miss m = miss_find(a, cfg, s);
	uint32_t have = s->ready + s->coming, need = replicas_for(d->forecast, cfg->target);
	uint32_t open = s->waiting + s->inflight;
	if (open == 0 && have == 0 &&
		!d->by_season) /* The smoothed load never becomes 0, and its rest needs nothing. */
		need = 0;
	if (need == 0 && (s->waiting > 0 || (open > 0 && have == 0)))
		need = 1;
	if (need > have && d->by_season)
		why_say(d,
			"the load of %.2f is usually %.2f at this time of day or in %.0f s, which needs %u replica%s for %.2f each; there %s %u",
			a->level, d->forecast, seconds_of(autoscale_lead(cfg, s->wake)), need, noun_end(need),
			cfg->target, is_or_are(have), have);
	else if (need > have && have == 0)
		why_say(d, "%u request%s wait%s or run%s, and no replica is there", open, noun_end(open),
			verb_end(open), verb_end(open));
	else if (need > have)
		why_say(d, "the load of %.2f, %.2f in %.0f s, needs %u replica%s for %.2f each; there %s %u",
			a->level, d->forecast, seconds_of(s->wake), need, noun_end(need), cfg->target,
			is_or_are(have), have);
	else if (m.ratio > 1) {
		need = have + replicas_for((m.ratio - 1) * have, 1);
		why_say(d,
			"the 90th percentile of %s is %.0f ms, above its objective of %.0f ms; load %.2f on %u replica%s",
			m.name, seconds_of(m.is) * 1e3, seconds_of(m.objective) * 1e3, a->level, have,
			noun_end(have));
	} else if (s->waiting > 0 && s->coming == 0) {
		need = have + 1;
		why_say(d, "%u request%s wait%s for room on %u replica%s", s->waiting, noun_end(s->waiting),
			verb_end(s->waiting), have, noun_end(have));
	}
	return need;
}

/* Return the replicas that the highest load of the window needs, with some slack. */
static uint32_t need_before(const struct autoscale *a, const struct autoscale_cfg *cfg, cgn_nsec now,
	const struct autoscale_decision *d)
{
	uint32_t need = replicas_for(peak_of(a), cfg->target * AUTOSCALE_SLACK);
	if (cgn_since(now, a->busy_at) >= cfg->idle && !d->by_season)
		return 0;
	need = need > a->floor ? need : a->floor;
	return need > 0 ? need : 1;
}

static uint32_t within_limits(const struct autoscale_cfg *cfg, uint32_t n)
{
	return n < cfg->least ? cfg->least : n > cfg->most ? cfg->most : n;
}

/* ---- the decision ---- */

static void decide_up(struct autoscale *a, const struct autoscale_cfg *cfg, uint32_t have, cgn_nsec now,
	struct autoscale_decision *d)
{
	uint32_t most = cfg->up_step > 0 ? cfg->up_step : have > 0 ? have : 1;
	if (a->up_since == 0)
		a->up_since = now;
	if (have > 0 && cgn_since(now, a->up_since) < cfg->up_window)
		return;
	d->action = AUTOSCALE_UP;
	d->by = d->want - have < most ? d->want - have : most;
	if (replicas_for(d->forecast, cfg->target) <= have) { /* The load alone did not say so. */
		a->floor = have + d->by;
		a->floor_level = a->slow;
		a->floor_until = now + FLOOR_TIME;
	}
	a->changed_at = now;
	a->up_since = 0;
}

static void decide_down(struct autoscale *a, const struct autoscale_cfg *cfg, uint32_t have, cgn_nsec now,
	struct autoscale_decision *d)
{
	if (cgn_since(now, a->begun) < cfg->down_window)
		why_say(d, "%u of %u replica%s would do, but the load is not known for long enough", d->want,
			have, noun_end(have));
	else if (a->changed_at > 0 && cgn_since(now, a->changed_at) < cfg->down_window / AUTOSCALE_SLOTS)
		why_say(d, "%u of %u replica%s would do; the last change was %.0f s ago", d->want, have,
			noun_end(have), seconds_of(cgn_since(now, a->changed_at)));
	else {
		d->action = AUTOSCALE_DOWN;
		d->by = have - d->want < cfg->down_step ? have - d->want : cfg->down_step;
		a->changed_at = now;
		if (d->want == 0)
			why_say(d, "no request ran or waited for %.0f s",
				seconds_of(cgn_since(now, a->busy_at)));
		else
			why_say(d,
				"the highest load of the last %.0f s, %.2f, needs %u replica%s; there %s %u",
				seconds_of(cfg->down_window), peak_of(a), d->want, noun_end(d->want),
				is_or_are(have), have);
	}
}

static void over_limits(const struct autoscale_cfg *cfg, uint32_t have, struct autoscale_decision *d)
{
	d->action = have < cfg->least ? AUTOSCALE_UP : AUTOSCALE_DOWN;
	d->want = within_limits(cfg, have);
	d->by = have < cfg->least ? cfg->least - have : have - cfg->most;
	why_say(d,
		have < cfg->least ? "there %s %u replica%s, and at least %u %s to be"
				  : "there %s %u replica%s, and at most %u %s allowed",
		is_or_are(have), have, noun_end(have), d->want, is_or_are(d->want));
}

cgn_nsec autoscale_lead(const struct autoscale_cfg *cfg, cgn_nsec wake)
{
	return wake + cfg->up_window;
}

static void forecast_make(const struct autoscale *a, const struct autoscale_signals *s,
	struct autoscale_decision *d)
{
	double forecast = a->level + fmax(a->trend, 0) * fmin(seconds_of(s->wake), AHEAD_MOST);
	d->by_season = s->expected > forecast;
	d->forecast = fmax(forecast, s->expected);
}

void autoscale_step(struct autoscale *a, const struct autoscale_cfg *cfg, const struct autoscale_signals *s,
	cgn_nsec now, struct autoscale_decision *out)
{
	uint32_t have = s->ready + s->coming;
	*out = (struct autoscale_decision){.action = AUTOSCALE_STAY};
	load_follow(a, s, now);
	forecast_make(a, s, out);
	peak_note(a, cfg, out->forecast, now);
	uint32_t up = need_now(a, cfg, s, out), down = need_before(a, cfg, now, out);
	out->want = within_limits(cfg, up > have ? up : down < have ? down : have);
	if (have < cfg->least || have > cfg->most)
		over_limits(cfg, have, out);
	else if (up > have && out->want == have)
		why_say(out, "%u replica%s %s needed, and at most %u %s allowed", up, noun_end(up),
			is_or_are(up), cfg->most, is_or_are(cfg->most));
	else if (up > have)
		decide_up(a, cfg, have, now, out);
	else if (out->want < have)
		decide_down(a, cfg, have, now, out);
	else
		why_say(out, "load %.2f on %u replica%s, for %.2f each", a->level, have, noun_end(have),
			cfg->target);
	if (up <= have)
		a->up_since = 0;
}
