/* SPDX-License-Identifier: Apache-2.0 */
/* show: the readings as metrics. */
#include <stdlib.h>
#include <string.h>

#include "base/sum/sum.h"
#include "powerpoll_priv.h"

/* ---- readings ---- */

/* Has a source of the node before |s| the same reading? Two ways may lead to one sensor, which counts once. */
static bool is_repeated(const struct powerpoll *p, const struct powerpoll_source *s,
	const struct power_reading *r, cgn_nsec now)
{
	for (const struct powerpoll_source *k = p->first; k != NULL && k != s; k = k->next)
		for (size_t i = 0; i < k->n && strcmp(k->node, s->node) == 0; i++)
			if (power_same(&k->reading[i], r) && power_usable(&k->reading[i], now))
				return true;
	return false;
}

static uint64_t key_of(const struct power_reading *r)
{
	char text[200];
	int n = snprintf(text, sizeof text, "%d/%d/%d/%s/%s", (int)r->component, (int)r->quantity,
		(int)r->source, r->part, r->kind);
	return sum64(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1) | 1;
}

static struct powerpoll_energy *energy_of(struct powerpoll_source *s, uint64_t key)
{
	for (size_t i = 0; i < POWERPOLL_COUNTERS; i++) {
		struct powerpoll_energy *e = &s->energy[i];
		if (e->key == key)
			return e;
		if (e->key != 0)
			continue;
		e->key = key;
		/* Coarse counters take large steps (1 kWh at once), so only a step back is a reset. */
		power_counter_init(&e->counter, 0, 1e12);
		return e;
	}
	return NULL; /* No more series of energy than these */
}

void powerpoll_counters_renew(struct powerpoll_source *s)
{
	for (size_t i = 0; i < POWERPOLL_COUNTERS; i++) {
		s->energy[i].cell = NULL;
		s->energy[i].told = 0;
	}
	s->shown = 0;
}

static void energy_show(struct powerpoll *p, struct powerpoll_source *s, const struct power_reading *r,
	const char *const *labels)
{
	struct powerpoll_energy *e = energy_of(s, key_of(r));
	double watts = 0;
	if (e == NULL || r->value > 1e13)
		return;
	if (e->cell == NULL)
		e->cell = metric_get(p->telemetry, METRIC_POWER_ENERGY, labels, 4);
	(void)power_counter_step(&e->counter, (uint64_t)(r->value * 1e6), r->time, &watts);
	uint64_t joules = (uint64_t)e->counter.joules;
	metric_add(e->cell, joules - e->told);
	e->told = joules;
}

/* Power of a kind is a part of another reading, and would be counted twice by a sum of the series. */
static bool is_shown(const struct power_reading *r)
{
	switch (r->quantity) {
	case POWER_WATTS:
	case POWER_LIMIT_WATTS:
	case POWER_JOULES:
		return r->kind[0] == '\0';
	case POWER_CELSIUS:
		return true;
	case POWER_FLAG:
		return strcmp(r->kind, "redundant") == 0;
	case POWER_HERTZ:
	case POWER_BYTES:
	case POWER_SHARE:
	case POWER_QUANTITIES:
		break;
	}
	return false;
}

static void reading_show(struct powerpoll *p, struct powerpoll_source *s, const struct power_reading *r)
{
	char part[POWER_NAME_BYTES + 26];
	const char *const labels[] = {s->node, power_component_name(r->component), part,
		power_source_name(r->source)};
	(void)snprintf(part, sizeof part, "%s%s%s", r->part,
		r->part[0] != '\0' && r->kind[0] != '\0' ? "/" : "",
		r->quantity == POWER_CELSIUS ? r->kind : "");
	if (r->quantity == POWER_JOULES)
		energy_show(p, s, r, labels);
	else if (r->quantity == POWER_FLAG)
		metric_set(METRIC_OF(p->telemetry, POWER_REDUNDANT, s->node, r->part), r->value);
	else
		metric_set(metric_get(p->telemetry,
				   r->quantity == POWER_WATTS             ? METRIC_POWER_WATTS
					   : r->quantity == POWER_CELSIUS ? METRIC_POWER_CELSIUS
									  : METRIC_POWER_LIMIT,
				   labels, 4),
			r->value);
}

/* ---- a source ---- */

static void source_show(struct powerpoll *p, struct powerpoll_source *s, cgn_nsec now)
{
	size_t count[POWER_STATES] = {0};
	for (size_t i = 0; i < s->n; i++) {
		enum power_state state = power_state_now(&s->reading[i], now);
		count[state]++;
		if (state == POWER_FRESH && is_shown(&s->reading[i]) &&
			!(s->reading[i].quantity == POWER_JOULES && is_repeated(p, s, &s->reading[i], now)))
			reading_show(p, s, &s->reading[i]);
	}
	for (size_t i = 0; i < POWER_STATES; i++)
		metric_set(METRIC_OF(p->telemetry, POWER_READINGS, s->node, s->name,
				   power_state_name((enum power_state)i)),
			(double)count[i]);
	cgn_nsec since = s->last != 0 ? s->last : s->since;
	metric_set(METRIC_OF(p->telemetry, POWER_UP, s->node, s->name), s->is_up ? 1 : 0);
	metric_set(METRIC_OF(p->telemetry, POWER_AGE, s->node, s->name),
		(double)cgn_since(now, since) / (double)CGN_SEC);
}

/* When a reading is not fresh any more, the gauges of its node are forgotten; those that are fresh are set again. */
static void stale_forget(struct powerpoll *p, struct powerpoll_source *s, cgn_nsec now)
{
	static const unsigned gauges[] = {METRIC_POWER_WATTS, METRIC_POWER_LIMIT, METRIC_POWER_CELSIUS,
		METRIC_POWER_REDUNDANT};
	uint64_t shown = 0;
	for (size_t i = 0; i < s->n; i++)
		if (power_usable(&s->reading[i], now) && is_shown(&s->reading[i]))
			shown += key_of(&s->reading[i]);
	if (shown == s->shown)
		return;
	s->shown = shown;
	for (size_t i = 0; i < CGN_COUNT(gauges); i++)
		metric_forget(p->telemetry, gauges[i], "node", s->node);
}

/* ---- nodes ---- */

struct powerpoll_source *powerpoll_node_after(const struct powerpoll_source *s)
{
	const char *node = s->node;
	struct powerpoll_source *k = s->next;
	while (k != NULL && strcmp(k->node, node) == 0)
		k = k->next;
	return k;
}

static void room_add(struct powerpoll *p, const struct power_reading *r)
{
	if (p->n_room == p->cap_room) {
		p->cap_room += 64;
		p->room = CGN_GROWN(p->room, p->cap_room);
	}
	p->room[p->n_room++] = *r;
}

bool powerpoll_sum_at(struct powerpoll *p, const struct powerpoll_source *first, cgn_nsec now,
	struct power_sum *out)
{
	p->n_room = 0;
	for (const struct powerpoll_source *s = first; s != powerpoll_node_after(first); s = s->next)
		for (size_t i = 0; i < s->n; i++)
			if (s->reading[i].quantity == POWER_WATTS && !is_repeated(p, s, &s->reading[i], now))
				room_add(p, &s->reading[i]);
	return power_sum_of(p->room, p->n_room, cgn_str_of(first->node), now, out);
}

bool powerpoll_sum(struct powerpoll *p, const char *node, struct power_sum *out)
{
	cgn_nsec now = cgn_loop_now(p->loop);
	CGN_LIVE(p, POWERPOLL_TAG);
	struct powerpoll_source *first = p->first;
	while (first != NULL && strcmp(first->node, node) != 0)
		first = powerpoll_node_after(first);
	for (struct powerpoll_source *s = first; s != NULL && s != powerpoll_node_after(first); s = s->next)
		powerpoll_look(s, now);
	return first != NULL && powerpoll_sum_at(p, first, now, out);
}

static void node_show(struct powerpoll *p, const struct powerpoll_source *first, cgn_nsec now)
{
	struct power_sum sum;
	metric_forget(p->telemetry, METRIC_POWER_NODE, "node", first->node);
	if (powerpoll_sum_at(p, first, now, &sum))
		metric_set(METRIC_OF(p->telemetry, POWER_NODE, first->node, power_component_name(sum.by),
				   power_source_name(sum.source)),
			sum.watts);
}

void powerpoll_show(struct powerpoll *p, cgn_nsec now)
{
	for (struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		stale_forget(p, s, now);
	for (struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		source_show(p, s, now);
	for (const struct powerpoll_source *s = p->first; s != NULL; s = powerpoll_node_after(s))
		node_show(p, s, now);
}
