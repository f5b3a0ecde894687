/* SPDX-License-Identifier: Apache-2.0 */
/* report: the readings as JSON. */
#include "powerpoll_priv.h"

static double seconds_of(cgn_nsec t)
{
	return (double)t / (double)CGN_SEC;
}

static void reading_put(struct json_out *o, const struct power_reading *r, cgn_nsec now)
{
	enum power_state state = power_state_now(r, now);
	json_open(o, '{');
	json_key_z(o, "component", power_component_name(r->component));
	json_key_z(o, "part", r->part);
	if (r->kind[0] != '\0')
		json_key_z(o, "kind", r->kind);
	json_key_z(o, "quantity", power_quantity_name(r->quantity));
	json_key_z(o, "source", power_source_name(r->source));
	json_key_z(o, "state", power_state_name(state));
	if (state == POWER_FRESH || state == POWER_STALE)
		json_key_f64(o, "value", r->value);
	else
		json_key_z(o, "why", r->why);
	json_key_f64(o, "age_seconds", seconds_of(power_age(r, now)));
	json_close(o, '}');
}

static void source_put(struct json_out *o, const struct powerpoll_source *s, cgn_nsec now)
{
	json_open(o, '{');
	json_key_z(o, "node", s->node);
	json_key_z(o, "source", s->name);
	json_key_bool(o, "up", s->is_up);
	json_key_z(o, "why", s->why);
	json_key(o, "age_seconds");
	if (s->last != 0)
		json_put_f64(o, seconds_of(cgn_since(now, s->last)));
	else
		json_put_null(o);
	json_key_open(o, "readings", '[');
	for (size_t i = 0; i < s->n; i++)
		reading_put(o, &s->reading[i], now);
	json_close(o, ']');
	json_close(o, '}');
}

static void node_put(struct powerpoll *p, struct json_out *o, const struct powerpoll_source *first,
	cgn_nsec now)
{
	struct power_sum sum;
	json_open(o, '{');
	json_key_z(o, "node", first->node);
	json_key(o, "watts");
	if (powerpoll_sum_at(p, first, now, &sum)) {
		json_put_f64(o, sum.watts);
		json_key_z(o, "by", power_component_name(sum.by));
		json_key_z(o, "source", power_source_name(sum.source));
		json_key_bool(o, "whole", sum.is_whole);
		json_key_u64(o, "readings", sum.n);
		json_key_f64(o, "age_seconds", seconds_of(sum.age));
	} else {
		json_put_null(o); /* Not known, which is not 0 */
	}
	json_close(o, '}');
}

void powerpoll_report(struct powerpoll *p, struct json_out *o)
{
	cgn_nsec now = cgn_loop_now(p->loop);
	CGN_LIVE(p, POWERPOLL_TAG);
	for (struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		powerpoll_look(s, now);
	json_open(o, '{');
	json_key_open(o, "nodes", '[');
	for (const struct powerpoll_source *s = p->first; s != NULL; s = powerpoll_node_after(s))
		node_put(p, o, s, now);
	json_close(o, ']');
	json_key_open(o, "sources", '[');
	for (const struct powerpoll_source *s = p->first; s != NULL; s = s->next)
		source_put(o, s, now);
	json_close(o, ']');
	json_close(o, '}');
}
