/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/autoscale/autoscale.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define LEVEL_TIME  20.0   /* Seconds after which a step of the load counts for two thirds. */
#define TREND_TIME  120.0  /* The same of its slope. */
#define AHEAD_MOST  300.0  /* Seconds that a trend is trusted for. */
#define SLOW_TIME   1800.0 /* As LEVEL_TIME, of the load that a floor is compared with. */
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

/* ---- the load ---- */

static void level_follow(struct autoscale *a, double load, double dt)
{
	double before = a->level, gain = 1 - exp(-dt / LEVEL_TIME), slope = 1 - exp(-dt / TREND_TIME);
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
	double load = s->load > 0 ? s->load : 0, dt = a->at > 0 ? seconds_of(now - a->at) : 0;
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
	if (s->waiting > 0 && need == 0)
		need = 1;
	if (need > have && have == 0)
		why_say(d, "%u requests wait or run, and no replica is there", s->waiting + s->inflight);
	else if (need > have)
		why_say(d, "the load of %.2f, %.2f in %.0f s, needs %u replicas for %.2f each; there are %u",
			a->level, d->forecast, seconds_of(s->wake), need, cfg->target, have);
	else if (m.ratio > 1) {
		need = have + replicas_for((m.ratio - 1) * have, 1);
		why_say(d,
			"the 90th percentile of %s is %.0f ms, above its objective of %.0f ms; load %.2f on %u replicas",
			m.name, seconds_of(m.is) * 1e3, seconds_of(m.objective) * 1e3, a->level, have);
	} else if (s->waiting > 0 && s->coming == 0) {
		need = have + 1;
		why_say(d, "%u requests wait for room on %u replicas", s->waiting, have);
	}
	return need;
}

/* Return the replicas that the highest load of the window needs, with some slack. */
static uint32_t need_before(const struct autoscale *a, const struct autoscale_cfg *cfg, cgn_nsec now)
{
	uint32_t need = replicas_for(peak_of(a), cfg->target * AUTOSCALE_SLACK);
	if (now - a->busy_at >= cfg->idle)
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
	if (have > 0 && now - a->up_since < cfg->up_window)
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
	if (now - a->begun < cfg->down_window)
		why_say(d, "%u of %u replicas would do, but the load is not known for long enough", d->want,
			have);
	else if (a->changed_at > 0 && now - a->changed_at < cfg->down_window / AUTOSCALE_SLOTS)
		why_say(d, "%u of %u replicas would do; the last change was %.0f s ago", d->want, have,
			seconds_of(now - a->changed_at));
	else {
		d->action = AUTOSCALE_DOWN;
		d->by = have - d->want < cfg->down_step ? have - d->want : cfg->down_step;
		a->changed_at = now;
		if (d->want == 0)
			why_say(d, "no request ran or waited for %.0f s", seconds_of(now - a->busy_at));
		else
			why_say(d,
				"the highest load of the last %.0f s, %.2f, needs %u replicas; there are %u",
				seconds_of(cfg->down_window), peak_of(a), d->want, have);
	}
}

static void over_limits(const struct autoscale_cfg *cfg, uint32_t have, struct autoscale_decision *d)
{
	d->action = have < cfg->least ? AUTOSCALE_UP : AUTOSCALE_DOWN;
	d->want = within_limits(cfg, have);
	d->by = have < cfg->least ? cfg->least - have : have - cfg->most;
	why_say(d,
		have < cfg->least ? "there are %u replicas, and at least %u are to be"
				  : "there are %u replicas, and at most %u may be",
		have, d->want);
}

void autoscale_step(struct autoscale *a, const struct autoscale_cfg *cfg, const struct autoscale_signals *s,
	cgn_nsec now, struct autoscale_decision *out)
{
	uint32_t have = s->ready + s->coming;
	*out = (struct autoscale_decision){.action = AUTOSCALE_STAY};
	load_follow(a, s, now);
	out->forecast = a->level + fmax(a->trend, 0) * fmin(seconds_of(s->wake), AHEAD_MOST);
	peak_note(a, cfg, out->forecast, now);
	uint32_t up = need_now(a, cfg, s, out), down = need_before(a, cfg, now);
	out->want = within_limits(cfg, up > have ? up : down < have ? down : have);
	if (have < cfg->least || have > cfg->most)
		over_limits(cfg, have, out);
	else if (up > have && out->want == have)
		why_say(out, "%u replicas are needed, and at most %u may be", up, cfg->most);
	else if (up > have)
		decide_up(a, cfg, have, now, out);
	else if (out->want < have)
		decide_down(a, cfg, have, now, out);
	else
		why_say(out, "load %.2f on %u replicas, for %.2f each", a->level, have, cfg->target);
	if (up <= have)
		a->up_since = 0;
}
