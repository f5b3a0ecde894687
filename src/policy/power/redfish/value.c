/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "redfish_priv.h"

bool redfish_text(struct json_val object, const char *key, char *out, size_t cap)
{
	struct json_val v;
	char room[POWER_NAME_BYTES * 4];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	out[0] = '\0';
	if (!json_get(object, key, &v) || v.type != JSON_STRING)
		return false;
	json_str_to(v, &b);
	if (b.bad) /* A text that is longer than this does not count as a name */
		b.n = 0;
	size_t n = b.n < cap - 1 ? b.n : cap - 1;
	n = cgn_utf8_prefix(room, n);
	memcpy(out, room, n);
	out[n] = '\0';
	return n > 0;
}

/* Look into a string: some BMCs write numbers so. */
static struct json_val string_look(struct json_val v)
{
	struct json_val inside;
	struct cgn_str s = {v.raw.p + 1, v.raw.n - 2};
	s = cgn_str_trim(s);
	if (cgn_ok(json_parse(s, &inside, NULL, NULL)) && inside.type == JSON_NUMBER)
		return inside;
	return v;
}

struct json_val redfish_number(struct json_val object, const char *key, const char *inner)
{
	struct json_val v;
	if (!json_get(object, key, &v))
		return (struct json_val){.raw = {NULL, 0}};
	if (v.type == JSON_OBJECT)
		return redfish_number(v, inner, "");
	return v.type == JSON_STRING ? string_look(v) : v;
}

void redfish_part(const struct redfish_link *at, const char *id, char out[POWER_NAME_BYTES])
{
	char text[2 * POWER_NAME_BYTES];
	int n = snprintf(text, sizeof text, "%s%s%s", at->part,
		at->part[0] != '\0' && id[0] != '\0' ? "/" : "", id);
	size_t keep = n < POWER_NAME_BYTES ? (size_t)n : POWER_NAME_BYTES - 1;
	(void)cgn_str_copyz(out, POWER_NAME_BYTES, (struct cgn_str){text, cgn_utf8_prefix(text, keep)});
}

enum power_component redfish_component(const char *text, enum power_component fallback)
{
	static const struct {
		const char *word;
		enum power_component component;
	} words[] = {
		/* A word that is part of another one comes after it. */
		{"PowerSupply", POWER_PSU},
		{"Power Supply", POWER_PSU},
		{"PSU", POWER_PSU},
		{"GPU", POWER_GPU},
		{"Accelerator", POWER_GPU},
		{"CPU", POWER_CPU},
		{"Processor", POWER_CPU},
		{"Memory", POWER_DRAM},
		{"DIMM", POWER_DRAM},
		{"DRAM", POWER_DRAM},
		{"Fan", POWER_FAN},
		{"Storage", POWER_DISK},
		{"Drive", POWER_DISK},
		{"Network", POWER_NETWORK},
	};
	for (size_t i = 0; i < CGN_COUNT(words); i++)
		if (strstr(text, words[i].word) != NULL)
			return words[i].component;
	return fallback;
}

struct redfish_thing redfish_thing_of(const struct redfish_visit *v, struct json_val object)
{
	struct json_val status;
	struct redfish_thing t = {.component = v->at->component, .object = object};
	memcpy(t.part, v->at->part, sizeof t.part);
	if (json_get(object, "Status", &status) && status.type == JSON_OBJECT)
		(void)redfish_text(status, "State", t.state, sizeof t.state);
	return t;
}

bool redfish_is_absent(const struct redfish_thing *t)
{
	return t->has_no_input || strcmp(t->state, "Absent") == 0;
}

static void value_put(struct power_reading *r, const struct redfish_thing *t, struct json_val n, double scale)
{
	double value = 0;
	bool is_number = n.type == JSON_NUMBER && json_f64(n, &value);
	if (is_number && (value >= 0 || r->quantity == POWER_CELSIUS)) {
		r->value = value * scale;
		return;
	}
	r->state = POWER_FAILING;
	if (is_number)
		(void)snprintf(r->why, sizeof r->why, "the BMC gives a negative number: %.*s",
			n.raw.n > 40 ? 40 : (int)n.raw.n, n.raw.p);
	else if (n.type != JSON_NULL)
		(void)snprintf(r->why, sizeof r->why, "the BMC gives no number: %.*s",
			n.raw.n > 40 ? 40 : (int)n.raw.n, n.raw.p);
	else if (t->state[0] != '\0' && strcmp(t->state, "Enabled") != 0)
		(void)snprintf(r->why, sizeof r->why, "the BMC gives no reading: %s", t->state);
	else
		(void)snprintf(r->why, sizeof r->why, "the BMC gives no reading");
	r->why[cgn_utf8_prefix(r->why, strlen(r->why))] = '\0';
}

void redfish_emit(const struct redfish_visit *v, const struct redfish_thing *t, enum power_quantity q,
	struct json_val n, double scale)
{
	struct power_reading r = {.component = t->component, .quantity = q, .source = POWER_FROM_REDFISH};
	memcpy(r.part, t->part, sizeof r.part);
	memcpy(r.kind, t->kind, sizeof r.kind);
	if (redfish_is_absent(t)) {
		r.state = POWER_ABSENT;
		(void)snprintf(r.why, sizeof r.why, "%s",
			t->has_no_input ? "no input power" : "not installed");
	} else if (n.raw.p == NULL) {
		return;
	} else {
		value_put(&r, t, n, scale);
	}
	v->ops->on_reading(v->user, &r);
}
