/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/fleet/autoscale/season.h"

#include <math.h>

#define SEEN_LEAST  2 /* Days or weeks that make a usual load. */
#define SEEN_MOST   1000000
#define LEAD_MOST   3600 /* Seconds. */
#define TODAY_MOST  1.5
#define PER_REPLICA 1000.0 /* Unit of a cell's load. */

/* Return the usual load of a quarter; negative: unknown. */
static double slot_load(const struct autoscale_season *s, uint64_t slot)
{
	const struct autoscale_season_cell *week = &s->week[slot % AUTOSCALE_SEASON_WEEK];
	const struct autoscale_season_cell *day = &s->day[slot % AUTOSCALE_SEASON_DAY];
	const struct autoscale_season_cell *c = week->seen >= SEEN_LEAST ? week : day;
	return c->seen >= SEEN_LEAST ? c->load / PER_REPLICA : -1;
}

/* ---- learning ---- */

static void cell_learn(struct autoscale_season_cell *c, double load)
{
	c->seen += c->seen < SEEN_MOST;
	double gain = fmax(1.0 / c->seen, AUTOSCALE_SEASON_GAIN);
	c->load = (uint32_t)lround(c->load + gain * (load * PER_REPLICA - c->load));
}

/* Compare the quarter that has ended with the usual one. Small loads say little: the addend lets their ratio be about 1. */
static double today_compare(double usual, double load)
{
	return usual < 0
		? 0
		: fmin((load + AUTOSCALE_SEASON_LEAST) / (usual + AUTOSCALE_SEASON_LEAST), TODAY_MOST);
}

/* The quarter |s->slot| has ended. True: enough of it was seen. */
static bool slot_end(struct autoscale_season *s, uint64_t next)
{
	bool counts = s->n >= AUTOSCALE_SEASON_SLOT / 2;
	s->today = counts ? today_compare(slot_load(s, s->slot), s->most) : 0;
	if (counts) {
		cell_learn(&s->day[s->slot % AUTOSCALE_SEASON_DAY], s->most);
		cell_learn(&s->week[s->slot % AUTOSCALE_SEASON_WEEK], s->most);
	}
	s->slot = next;
	s->most = 0;
	s->n = 0;
	return counts;
}

bool autoscale_season_note(struct autoscale_season *s, double load, uint64_t unix_s)
{
	uint64_t slot = unix_s / AUTOSCALE_SEASON_SLOT;
	bool counts = slot != s->slot && slot_end(s, slot);
	load = fmin(fmax(load, 0), AUTOSCALE_SEASON_MOST / PER_REPLICA);
	s->level += (1 - exp(-1 / AUTOSCALE_LEVEL_TIME)) * (load - s->level);
	s->most = fmax(s->most, s->level);
	s->n++;
	return counts;
}

/* ---- the forecast ---- */

double autoscale_season_expect(const struct autoscale_season *s, uint64_t unix_s, cgn_nsec lead)
{
	uint64_t ahead = lead / CGN_SEC < LEAD_MOST ? lead / CGN_SEC : LEAD_MOST;
	double usual = 0;
	for (uint64_t slot = unix_s / AUTOSCALE_SEASON_SLOT; slot <= (unix_s + ahead) / AUTOSCALE_SEASON_SLOT;
		slot++)
		usual = fmax(usual, slot_load(s, slot));
	double load = usual * (s->today > 0 ? s->today : 1);
	return load < AUTOSCALE_SEASON_LEAST ? 0 : load;
}

/* ---- lines ---- */

static void cells_put(const struct autoscale_season_cell *c, size_t n, const char *name, struct cgn_buf *out)
{
	for (size_t i = 0; i < n; i++)
		if (c[i].seen > 0)
			cgn_buf_fmt(out, "%s %zu %u %u\n", name, i, c[i].load, c[i].seen);
}

void autoscale_season_put(const struct autoscale_season *s, struct cgn_buf *out)
{
	cells_put(s->day, AUTOSCALE_SEASON_DAY, "day", out);
	cells_put(s->week, AUTOSCALE_SEASON_WEEK, "week", out);
}

CGN_RC autoscale_season_take(struct autoscale_season *s, struct cgn_str line, struct cgn_err *err)
{
	struct cgn_str rest = line, name = cgn_str_split(&rest, ' ');
	bool day = cgn_str_eq(name, CGN_STR("day"));
	uint64_t slot, load, seen;
	if ((!day && !cgn_str_eq(name, CGN_STR("week"))) || !cgn_str_u64(cgn_str_split(&rest, ' '), &slot) ||
		!cgn_str_u64(cgn_str_split(&rest, ' '), &load) || !cgn_str_u64(rest, &seen) ||
		slot >= (day ? AUTOSCALE_SEASON_DAY : AUTOSCALE_SEASON_WEEK) ||
		load > AUTOSCALE_SEASON_MOST || seen == 0 || seen > SEEN_MOST)
		return CGN_FAIL(err, INVALID, "no load of a time of the day or week: %.*s",
			(int)(line.n < 60 ? line.n : 60), line.p);
	*(day ? &s->day[slot] : &s->week[slot]) =
		(struct autoscale_season_cell){(uint32_t)load, (uint32_t)seen};
	return CGN_OK;
}
