/* SPDX-License-Identifier: Apache-2.0 */
/* report: the readings as a message. */
#include <math.h>

#include "powerpoll_priv.h"

static double seconds_of(cgn_nsec t)
{
	return (double)t / (double)CGN_SEC;
}

static void reading_fill(const struct power_reading *r, cgn_nsec now, Cognitora__V1__PowerReading *to)
{
	enum power_state state = power_state_now(r, now);
	to->component = pb_text(power_component_name(r->component));
	to->part = pb_text(r->part);
	to->kind = pb_text(r->kind);
	to->quantity = pb_text(power_quantity_name(r->quantity));
	to->source = pb_text(power_source_name(r->source));
	to->state = pb_text(power_state_name(state));
	if (state == POWER_FRESH || state == POWER_STALE) {
		to->told_case = COGNITORA__V1__POWER_READING__TOLD_VALUE;
		to->value = r->value;
	} else {
		to->told_case = COGNITORA__V1__POWER_READING__TOLD_WHY;
		to->why = pb_text(r->why);
	}
	to->age_seconds = seconds_of(power_age(r, now));
}

static void source_fill(const struct powerpoll_source *s, cgn_nsec now, struct pb_tree *t,
	Cognitora__V1__PowerSource *to)
{
	to->node = pb_text(s->node);
	to->source = pb_text(s->name);
	to->up = s->is_up;
	to->why = pb_text(s->why);
	to->age_seconds = s->last != 0 ? seconds_of(cgn_since(now, s->last)) : (double)NAN;
	for (size_t i = 0; i < s->n; i++)
		reading_fill(&s->reading[i], now, PB_ADD(t, to, readings, power_reading));
}

static void sum_fill(const struct power_sum *sum, Cognitora__V1__PowerSum *to)
{
	to->by = pb_text(power_component_name(sum->by));
	to->source = pb_text(power_source_name(sum->source));
	to->whole = sum->is_whole;
	to->readings = (uint32_t)sum->n;
	to->age_seconds = seconds_of(sum->age);
}

static void node_fill(struct powerpoll *p, const struct powerpoll_source *first, cgn_nsec now,
	struct pb_tree *t, Cognitora__V1__NodePower *to)
{
	struct power_sum sum;
	bool known = powerpoll_sum_at(p, first, now, &sum);
	to->node = pb_text(first->node);
	to->watts = known ? sum.watts : (double)NAN; /* Not known, which is not 0 */
	if (known)
		sum_fill(&sum, to->sum = PB_NEW(t, power_sum));
}

void powerpoll_fill(struct powerpoll *p, struct pb_tree *t, Cognitora__V1__Power *to)
{
	cgn_nsec now = cgn_loop_now(p->loop);
	CGN_LIVE(p, POWERPOLL_TAG);
	for (struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		powerpoll_look(s, now);
	for (const struct powerpoll_source *s = p->first; s != NULL; s = powerpoll_node_after(s))
		node_fill(p, s, now, t, PB_ADD(t, to, nodes, node_power));
	for (const struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		source_fill(s, now, t, PB_ADD(t, to, sources, power_source));
}
