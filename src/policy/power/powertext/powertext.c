/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/powertext/powertext.h"

#include <math.h>

#include "policy/node/engine/prom.h"

/* More than any part has; DCGM writes 140737488355328 and 9223372036854775792 for "blank". */
static const double most_of[POWER_QUANTITIES] = {[POWER_WATTS] = 1e6,
	[POWER_LIMIT_WATTS] = 1e6,
	[POWER_JOULES] = 1e13,
	[POWER_CELSIUS] = 1e3,
	[POWER_HERTZ] = 1e12,
	[POWER_BYTES] = 1e15,
	[POWER_SHARE] = 1,
	[POWER_FLAG] = 1};

/* ---- labels ---- */

/* Copy a label's value without its escapes, as far as it fits and is UTF-8. False: there is no such label. */
static bool label_get(const struct prom_sample *s, const char *name, char *out, size_t cap)
{
	struct cgn_str raw;
	size_t n = 0;
	out[0] = '\0';
	if (!prom_label(s, name, &raw))
		return false;
	for (size_t i = 0; i < raw.n && n < cap - 1; i++) {
		if (raw.p[i] == '\\' && i + 1 < raw.n)
			i++;
		out[n++] = raw.p[i];
	}
	out[cgn_utf8_prefix(out, n)] = '\0';
	return true;
}

/* Find a label's value among the |n| names that |name_of| gives. */
static bool label_find(const struct prom_sample *s, const char *label, unsigned n,
	const char *(*name_of)(unsigned i), unsigned *out)
{
	struct cgn_str value;
	if (!prom_label(s, label, &value))
		return false;
	for (unsigned i = 0; i < n; i++)
		if (cgn_str_is(value, name_of(i))) {
			*out = i;
			return true;
		}
	return false;
}

/* ---- readings ---- */

static bool is_known(const struct powertext *t, const struct power_reading *r)
{
	for (size_t i = 0; i < t->n; i++)
		if (power_same(&t->out[i], r))
			return true;
	return false;
}

static void reading_add(struct powertext *t, struct power_reading *r, double value)
{
	r->time = t->time;
	r->max_age = t->max_age;
	r->value = value;
	if (!isfinite(value) || fabs(value) > most_of[r->quantity]) {
		r->state = POWER_FAILING;
		r->value = 0;
		(void)snprintf(r->why, sizeof r->why, "the exporter writes a value that no device has");
	}
	if (is_known(t, r))
		return;
	if (t->n < t->cap)
		t->out[t->n++] = *r;
	else
		t->dropped++;
}

/* ---- DCGM ---- */

static const struct dcgm_field {
	const char *name; /* After DCGM_FI_DEV_ */
	enum power_quantity quantity;
	const char *kind;
	double scale;
} dcgm_fields[] = {
	{"POWER_USAGE", POWER_WATTS, "", 1},
	{"POWER_USAGE_INSTANT", POWER_WATTS, "", 1},
	{"ENFORCED_POWER_LIMIT", POWER_LIMIT_WATTS, "", 1},
	{"POWER_MGMT_LIMIT", POWER_LIMIT_WATTS, "", 1},
	{"TOTAL_ENERGY_CONSUMPTION", POWER_JOULES, "", 1e-3},
	{"GPU_TEMP", POWER_CELSIUS, "", 1},
	{"MEMORY_TEMP", POWER_CELSIUS, "memory", 1},
	{"SM_CLOCK", POWER_HERTZ, "sm", 1e6},
	{"MEM_CLOCK", POWER_HERTZ, "memory", 1e6},
	{"FB_USED", POWER_BYTES, "used", 1048576},
	{"FB_TOTAL", POWER_BYTES, "total", 1048576},
	{"GPU_UTIL", POWER_SHARE, "sm", 1e-2},
	{"MEM_COPY_UTIL", POWER_SHARE, "memory", 1e-2},
};
/* DCGM 3.3 renamed the first one to the second one. */
static const char *const dcgm_slow[] = {"CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"};

static void dcgm_flags(struct powertext *t, const struct power_reading *like, double value)
{
	bool is_mask = isfinite(value) && value >= 0 && value < 9e15;
	for (size_t i = 0; i < power_n_slow_reasons && is_mask; i++) {
		struct power_reading r = *like;
		r.quantity = POWER_FLAG;
		(void)snprintf(r.kind, sizeof r.kind, "%s", power_slow_reasons[i].name);
		reading_add(t, &r, ((uint64_t)value & power_slow_reasons[i].bit) != 0 ? 1 : 0);
	}
}

/* An exporter describes its own host; a text of several hosts was put together by someone. */
static bool dcgm_is_of_host(struct powertext *t, const struct prom_sample *s, char host[POWER_NAME_BYTES])
{
	char name[POWER_NAME_BYTES];
	if (!label_get(s, "Hostname", name, sizeof name) || name[0] == '\0')
		return true;
	if (host[0] == '\0')
		memcpy(host, name, sizeof name);
	if (strcmp(host, name) == 0)
		return true;
	(void)snprintf(t->why, sizeof t->why, "has GPUs of several hosts: %.20s is read, %.20s is left out",
		host, name);
	return false;
}

static void dcgm_take(struct powertext *t, const struct prom_sample *s, struct cgn_str field)
{
	struct power_reading r = {.component = POWER_GPU, .source = POWER_FROM_DCGM};
	(void)cgn_str_copyz(r.node, sizeof r.node, cgn_str_of(t->node != NULL ? t->node : ""));
	if (!label_get(s, "UUID", r.part, sizeof r.part) || r.part[0] == '\0')
		(void)label_get(s, "gpu", r.part, sizeof r.part);
	for (size_t i = 0; i < CGN_COUNT(dcgm_slow); i++)
		if (cgn_str_is(field, dcgm_slow[i]))
			dcgm_flags(t, &r, s->value);
	for (size_t i = 0; i < CGN_COUNT(dcgm_fields); i++) {
		const struct dcgm_field *f = &dcgm_fields[i];
		if (!cgn_str_is(field, f->name))
			continue;
		r.quantity = f->quantity;
		(void)snprintf(r.kind, sizeof r.kind, "%s", f->kind);
		reading_add(t, &r, s->value * f->scale);
	}
}

/* ---- Cognitora ---- */

static const struct {
	const char *name;
	enum power_quantity quantity;
} own_series[] = {
	{"cgn_power_watts", POWER_WATTS},
	{"cgn_power_limit_watts", POWER_LIMIT_WATTS},
	{"cgn_energy_joules_total", POWER_JOULES},
	{"cgn_temperature_celsius", POWER_CELSIUS},
};

static const char *component_name(unsigned i)
{
	return power_component_name((enum power_component)i);
}

static const char *source_name(unsigned i)
{
	return power_source_name((enum power_source)i);
}

static bool own_take(struct powertext *t, const struct prom_sample *s, enum power_quantity q,
	char node[POWER_NAME_BYTES])
{
	struct power_reading r = {.quantity = q};
	unsigned component = 0, source = 0;
	if (!label_find(s, "component", POWER_COMPONENTS, component_name, &component) ||
		!label_find(s, "source", POWER_SOURCES, source_name, &source) ||
		!label_get(s, "node", r.node, sizeof r.node))
		return false;
	if (node[0] == '\0')
		memcpy(node, r.node, sizeof r.node);
	if (strcmp(node, r.node) != 0) {
		(void)snprintf(t->why, sizeof t->why,
			"tells of several nodes: %.20s is read, %.20s is left out", node, r.node);
		return true;
	}
	r.component = (enum power_component)component;
	r.source = (enum power_source)source;
	(void)label_get(s, "part", r.part, sizeof r.part);
	reading_add(t, &r, s->value);
	return true;
}

bool powertext_read(struct cgn_str text, struct powertext *t)
{
	static const char dcgm[] = "DCGM_FI_DEV_";
	struct prom_reader reader = prom_reader_of(text);
	struct prom_sample s;
	char host[POWER_NAME_BYTES] = "", node[POWER_NAME_BYTES];
	bool is_power = false;
	(void)cgn_str_copyz(node, sizeof node, cgn_str_of(t->node != NULL ? t->node : ""));
	t->n = t->dropped = 0;
	t->why[0] = '\0';
	while (prom_next(&reader, &s)) {
		if (cgn_str_starts(s.name, dcgm)) {
			struct cgn_str field = {s.name.p + sizeof dcgm - 1, s.name.n - (sizeof dcgm - 1)};
			is_power = true;
			if (dcgm_is_of_host(t, &s, host))
				dcgm_take(t, &s, field);
			continue;
		}
		for (size_t i = 0; i < CGN_COUNT(own_series); i++)
			if (cgn_str_is(s.name, own_series[i].name))
				is_power |= own_take(t, &s, own_series[i].quantity, node);
	}
	if (t->dropped > 0 && t->why[0] == '\0')
		(void)snprintf(t->why, sizeof t->why, "has more than %zu readings; the rest is left out",
			t->cap);
	return is_power;
}
