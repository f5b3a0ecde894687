/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/power/power.h"

#include <math.h>

/* Parts are read at another instant than the whole, which is mostly a mean: so parts may exceed it by so
 * much. */
#define PARTS_MOST 1.1

const char *power_source_name(enum power_source s)
{
	static const char *const names[POWER_SOURCES] = {[POWER_FROM_NVML] = "nvml",
		[POWER_FROM_DCGM] = "dcgm",
		[POWER_FROM_RAPL] = "rapl",
		[POWER_FROM_REDFISH] = "redfish",
		[POWER_FROM_IPMI] = "ipmi",
		[POWER_FROM_HWMON] = "hwmon"};
	CGN_MUST(s < POWER_SOURCES);
	return names[s];
}

const char *power_component_name(enum power_component c)
{
	static const char *const names[POWER_COMPONENTS] = {[POWER_NODE] = "node",
		[POWER_CHASSIS] = "chassis",
		[POWER_PSU] = "psu",
		[POWER_GPU] = "gpu",
		[POWER_CPU] = "cpu",
		[POWER_DRAM] = "dram",
		[POWER_FAN] = "fan",
		[POWER_DISK] = "disk",
		[POWER_NETWORK] = "network",
		[POWER_OTHER] = "other"};
	CGN_MUST(c < POWER_COMPONENTS);
	return names[c];
}

const char *power_quantity_name(enum power_quantity q)
{
	static const char *const names[POWER_QUANTITIES] = {[POWER_WATTS] = "watts",
		[POWER_LIMIT_WATTS] = "limit_watts",
		[POWER_JOULES] = "joules",
		[POWER_CELSIUS] = "celsius",
		[POWER_HERTZ] = "hertz",
		[POWER_BYTES] = "bytes",
		[POWER_SHARE] = "share",
		[POWER_FLAG] = "flag"};
	CGN_MUST(q < POWER_QUANTITIES);
	return names[q];
}

const char *power_state_name(enum power_state s)
{
	static const char *const names[POWER_STATES] = {[POWER_FRESH] = "fresh",
		[POWER_STALE] = "stale",
		[POWER_ABSENT] = "absent",
		[POWER_FAILING] = "failing"};
	CGN_MUST(s < POWER_STATES);
	return names[s];
}

const struct power_slow_reason power_slow_reasons[] = {
	{0x1, "idle", false},
	{0x2, "clock_setting", false},
	{0x4, "power_cap", false},
	{0x8, "hardware", true},
	{0x10, "sync_boost", false},
	{0x20, "thermal", true},
	{0x40, "hardware_thermal", true},
	{0x80, "power_brake", true},
	{0x100, "display_clock", false},
};
const size_t power_n_slow_reasons = CGN_COUNT(power_slow_reasons);

enum power_state power_state_now(const struct power_reading *r, cgn_nsec now)
{
	if (r->state == POWER_ABSENT || r->state == POWER_FAILING)
		return r->state;
	if (!isfinite(r->value) || (r->value < 0 && r->quantity != POWER_CELSIUS))
		return POWER_FAILING;
	if (r->state == POWER_STALE || r->time > now || cgn_since(now, r->time) >= r->max_age)
		return POWER_STALE;
	return POWER_FRESH;
}

bool power_usable(const struct power_reading *r, cgn_nsec now)
{
	return power_state_now(r, now) == POWER_FRESH;
}

bool power_same(const struct power_reading *a, const struct power_reading *b)
{
	return a->component == b->component && a->quantity == b->quantity && a->source == b->source &&
		strcmp(a->part, b->part) == 0 && strcmp(a->kind, b->kind) == 0 &&
		strcmp(a->node, b->node) == 0;
}

cgn_nsec power_age(const struct power_reading *r, cgn_nsec now)
{
	return cgn_since(now, r->time);
}

/* ---- the sum of a node ---- */

/* The watts of one component of one source. */
struct power_tally {
	double total, largest;
	size_t n, unusable; /* ABSENT ones are in neither */
	cgn_nsec age;
};
typedef struct power_tally tally_table[POWER_COMPONENTS][POWER_SOURCES];

static void tally_add(struct power_tally *t, const struct power_reading *r, cgn_nsec now)
{
	enum power_state s = power_state_now(r, now);
	if (s == POWER_ABSENT)
		return;
	if (s != POWER_FRESH) {
		t->unusable++;
		return;
	}
	t->n++;
	t->total += r->value;
	if (r->value > t->largest)
		t->largest = r->value;
	if (power_age(r, now) > t->age)
		t->age = power_age(r, now);
}

static void sum_add(struct power_sum *s, const struct power_tally *t)
{
	s->watts += t->total;
	s->n += t->n;
	if (t->age > s->age)
		s->age = t->age;
}

static bool sum_by_whole(tally_table of, enum power_component by, struct power_sum *out)
{
	for (unsigned s = 0; s < POWER_SOURCES; s++) {
		const struct power_tally *t = &of[by][s];
		if (t->n == 0)
			continue;
		*out = (struct power_sum){.watts = t->largest,
			.by = by,
			.source = (enum power_source)s,
			.is_whole = true,
			.n = 1,
			.age = t->age};
		return true;
	}
	return false;
}

static bool sum_by_supplies(tally_table of, struct power_sum *out)
{
	for (unsigned s = 0; s < POWER_SOURCES; s++) {
		const struct power_tally *t = &of[POWER_PSU][s];
		if (t->n == 0 || t->unusable > 0)
			continue;
		*out = (struct power_sum){.by = POWER_PSU, .source = (enum power_source)s, .is_whole = true};
		sum_add(out, t);
		return true;
	}
	return false;
}

static bool sum_by_parts(tally_table of, struct power_sum *out)
{
	struct power_sum sum = {.by = POWER_OTHER};
	double largest = -1;
	for (unsigned c = POWER_GPU; c < POWER_COMPONENTS; c++) {
		unsigned best = 0;
		for (unsigned s = 1; s < POWER_SOURCES; s++)
			if (of[c][s].n > of[c][best].n)
				best = s;
		if (of[c][best].n == 0)
			continue;
		sum_add(&sum, &of[c][best]);
		if (of[c][best].total > largest) {
			largest = of[c][best].total;
			sum.source = (enum power_source)best;
		}
	}
	if (sum.n > 0)
		*out = sum;
	return sum.n > 0;
}

bool power_sum_of(const struct power_reading *r, size_t n, struct cgn_str node, cgn_nsec now,
	struct power_sum *out)
{
	tally_table of = {{{0}}};
	for (size_t i = 0; i < n; i++)
		if (r[i].quantity == POWER_WATTS && r[i].kind[0] == '\0' && cgn_str_is(node, r[i].node))
			tally_add(&of[r[i].component][r[i].source], &r[i], now);
	struct power_sum whole, parts;
	bool has_whole = sum_by_whole(of, POWER_NODE, &whole) || sum_by_whole(of, POWER_CHASSIS, &whole) ||
		sum_by_supplies(of, &whole);
	bool has_parts = sum_by_parts(of, &parts);
	if (has_whole && (!has_parts || parts.watts <= PARTS_MOST * whole.watts))
		*out = whole;
	else if (has_parts)
		*out = parts;
	return has_whole || has_parts;
}
