/* SPDX-License-Identifier: Apache-2.0 */
/* reading: the numbers of each kind of document. */
#include <ctype.h>
#include <string.h>

#include "redfish_priv.h"

#define JOULES_PER_KWH 3.6e6

/* Walk the objects of an array member. */
static bool array_begin(struct json_val doc, const char *key, struct json_iter *it)
{
	struct json_val list;
	if (!json_get(doc, key, &list) || list.type != JSON_ARRAY)
		return false;
	*it = json_iter_of(list);
	return true;
}

static bool array_next(struct json_iter *it, struct json_val *object)
{
	while (json_next_elem(it, object))
		if (object->type == JSON_OBJECT)
			return true;
	return false;
}

/* Name a thing by the first of its members that is there. */
static void thing_name(const struct redfish_visit *v, struct redfish_thing *t)
{
	char id[POWER_NAME_BYTES];
	if (redfish_text(t->object, "MemberId", id, sizeof id) ||
		redfish_text(t->object, "Id", id, sizeof id) ||
		redfish_text(t->object, "Name", id, sizeof id) ||
		redfish_text(t->object, "DeviceName", id, sizeof id))
		redfish_part(v->at, id, t->part);
}

/* ---- Power ---- */

/* Some BMCs list subsystems (CPU, memory) beside the total, which comes first. */
static void total_read(const struct redfish_visit *v, struct json_val object, unsigned index)
{
	struct redfish_thing t = redfish_thing_of(v, object);
	struct json_val limit;
	char text[POWER_NAME_BYTES];
	if (!redfish_text(object, "PhysicalContext", text, sizeof text) && index > 0)
		(void)redfish_text(object, "Name", text, sizeof text);
	t.component = redfish_component(text, t.component);
	if (index > 0) {
		thing_name(v, &t);
		if (t.component == v->at->component)
			(void)snprintf(t.kind, sizeof t.kind, "subsystem");
	}
	redfish_emit(v, &t, POWER_WATTS, redfish_number(object, "PowerConsumedWatts", "Reading"), 1);
	if (json_get(object, "PowerLimit", &limit)) {
		struct json_val n = redfish_number(limit, "LimitInWatts", "Reading");
		if (n.type != JSON_NULL || n.raw.p == NULL) /* null: there is no limit */
			redfish_emit(v, &t, POWER_LIMIT_WATTS, n, 1);
	}
}

void redfish_read_total(const struct redfish_visit *v, struct json_val doc)
{
	struct json_iter it;
	struct json_val object;
	unsigned index = 0;
	if (array_begin(doc, "PowerControl", &it))
		while (array_next(&it, &object))
			total_read(v, object, index++);
}

/* A supply that gets no current draws none: there is nothing to read, which does not count as a failure. */
static void supply_judge(struct redfish_thing *t, struct json_val input)
{
	char line[32];
	t->has_no_input = input.type != JSON_NUMBER &&
		redfish_text(t->object, "LineInputStatus", line, sizeof line) &&
		(strcmp(line, "LossOfInput") == 0 || strcmp(line, "NoInput") == 0);
}

static void supply_read(const struct redfish_visit *v, struct json_val object)
{
	struct redfish_thing t = redfish_thing_of(v, object);
	t.component = POWER_PSU;
	thing_name(v, &t);
	struct json_val input = redfish_number(object, "PowerInputWatts", "Reading");
	supply_judge(&t, input);
	if (input.raw.p == NULL && !redfish_is_absent(&t)) {
		/* Input is unknown, and output is less: shown, but of a kind that is not summed up. */
		struct json_val output = redfish_number(object, "PowerOutputWatts", "Reading");
		if (output.raw.p == NULL)
			output = redfish_number(object, "LastPowerOutputWatts", "Reading");
		(void)snprintf(t.kind, sizeof t.kind, "output");
		redfish_emit(v, &t, POWER_WATTS, output, 1);
		return;
	}
	redfish_emit(v, &t, POWER_WATTS, input, 1);
}

static bool is_any(const char *text, const char *const *of, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(text, of[i]) == 0)
			return true;
	return false;
}

static void redundancy_read(const struct redfish_visit *v, struct json_val object, unsigned index)
{
	static const char *const none[] = {"NotRedundant", "NonRedundant", "NotApplicable"};
	static const char *const fine[] = {"", "Enabled", "StandbyOffline", "StandbySpare"};
	struct redfish_thing t = redfish_thing_of(v, object);
	struct json_val status;
	char health[32] = "", mode[32], id[12];
	if (redfish_is_absent(&t))
		return;
	if (json_get(object, "Status", &status))
		(void)redfish_text(status, "Health", health, sizeof health);
	if (!redfish_text(object, "RedundancyType", mode, sizeof mode))
		(void)redfish_text(object, "Mode", mode, sizeof mode);
	bool is_whole = !is_any(mode, none, CGN_COUNT(none)) && is_any(t.state, fine, CGN_COUNT(fine)) &&
		(health[0] == '\0' || strcmp(health, "OK") == 0);
	struct power_reading r = {.component = POWER_PSU,
		.quantity = POWER_FLAG,
		.source = POWER_FROM_REDFISH,
		.kind = "redundant",
		.value = is_whole ? 1 : 0};
	(void)snprintf(id, sizeof id, "%u", index);
	redfish_part(v->at, id, r.part);
	v->ops->on_reading(v->user, &r);
}

void redfish_read_redundancy(const struct redfish_visit *v, struct json_val doc)
{
	struct json_iter it;
	struct json_val object;
	unsigned index = 0;
	if (array_begin(doc, "PowerSupplyRedundancy", &it) || array_begin(doc, "Redundancy", &it))
		while (array_next(&it, &object))
			redundancy_read(v, object, index++);
}

void redfish_read_power(const struct redfish_visit *v, struct json_val doc)
{
	struct json_iter it;
	struct json_val object;
	redfish_read_total(v, doc);
	if (array_begin(doc, "PowerSupplies", &it))
		while (array_next(&it, &object))
			supply_read(v, object);
	redfish_read_redundancy(v, doc);
}

/* ---- PowerSupply and its metrics ---- */

void redfish_read_supply(const struct redfish_visit *v, struct json_val doc)
{
	struct redfish_thing t = redfish_thing_of(v, doc);
	const struct json_val none = {.raw = {NULL, 0}};
	/* Only a missing supply is reported here; the numbers are in the metrics. */
	supply_judge(&t, none);
	if (redfish_is_absent(&t))
		redfish_emit(v, &t, POWER_WATTS, none, 1);
}

static void energy_read(const struct redfish_visit *v, const struct redfish_thing *t)
{
	struct json_val joules = redfish_number(t->object, "EnergyJoules", "Reading");
	struct json_val kwh = redfish_number(t->object, "EnergykWh", "Reading");
	if (joules.type == JSON_NUMBER)
		redfish_emit(v, t, POWER_JOULES, joules, 1);
	else if (kwh.type == JSON_NUMBER)
		redfish_emit(v, t, POWER_JOULES, kwh, JOULES_PER_KWH);
}

void redfish_read_supply_metrics(const struct redfish_visit *v, struct json_val doc)
{
	struct redfish_thing t = redfish_thing_of(v, doc);
	redfish_emit(v, &t, POWER_WATTS, redfish_number(doc, "InputPowerWatts", "Reading"), 1);
	redfish_emit(v, &t, POWER_CELSIUS, redfish_number(doc, "TemperatureCelsius", "Reading"), 1);
	energy_read(v, &t);
}

/* ---- EnvironmentMetrics ---- */

void redfish_read_environment(const struct redfish_visit *v, struct json_val doc)
{
	struct redfish_thing t = redfish_thing_of(v, doc);
	redfish_emit(v, &t, POWER_WATTS, redfish_number(doc, "PowerWatts", "Reading"), 1);
	redfish_emit(v, &t, POWER_CELSIUS, redfish_number(doc, "TemperatureCelsius", "Reading"), 1);
	struct json_val limit = redfish_number(doc, "PowerLimitWatts", "SetPoint");
	if (limit.type == JSON_NUMBER)
		redfish_emit(v, &t, POWER_LIMIT_WATTS, limit, 1);
	energy_read(v, &t);
}

/* ---- Thermal ---- */

/* Write a PhysicalContext as the kind of a reading: "Intake" becomes "intake". */
static void kind_of(struct redfish_thing *t, const char *context)
{
	size_t n = strnlen(context, sizeof t->kind - 1);
	for (size_t i = 0; i < n; i++)
		t->kind[i] = (char)tolower((unsigned char)context[i]);
	t->kind[cgn_utf8_prefix(t->kind, n)] = '\0';
}

static void temperature_read(const struct redfish_visit *v, struct json_val object, const char *key)
{
	struct redfish_thing t = redfish_thing_of(v, object);
	char context[POWER_NAME_BYTES];
	thing_name(v, &t);
	if (redfish_text(object, "PhysicalContext", context, sizeof context)) {
		t.component = redfish_component(context, POWER_OTHER);
		if (t.component == POWER_OTHER)
			kind_of(&t, context);
	} else {
		(void)redfish_text(object, "Name", context, sizeof context);
		t.component = redfish_component(context, POWER_OTHER);
	}
	redfish_emit(v, &t, POWER_CELSIUS, redfish_number(object, key, "Reading"), 1);
}

void redfish_read_thermal(const struct redfish_visit *v, struct json_val doc)
{
	struct json_iter it;
	struct json_val object;
	if (array_begin(doc, "Temperatures", &it))
		while (array_next(&it, &object))
			temperature_read(v, object, "ReadingCelsius");
}

static void summary_read(const struct redfish_visit *v, struct json_val doc)
{
	static const char *const places[] = {"Internal", "Intake", "Ambient", "Exhaust"};
	struct json_val summary;
	if (!json_get(doc, "TemperatureSummaryCelsius", &summary))
		return;
	for (size_t i = 0; i < CGN_COUNT(places); i++) {
		struct redfish_thing t = redfish_thing_of(v, doc);
		kind_of(&t, places[i]);
		redfish_emit(v, &t, POWER_CELSIUS, redfish_number(summary, places[i], "Reading"), 1);
	}
}

void redfish_read_cooling_metrics(const struct redfish_visit *v, struct json_val doc)
{
	struct json_iter it;
	struct json_val object;
	summary_read(v, doc);
	if (array_begin(doc, "TemperatureReadingsCelsius", &it))
		while (array_next(&it, &object))
			temperature_read(v, object, "Reading");
}

/* ---- Sensor ---- */

/* A sensor of a supply or of the whole is in another document too; it is shown, but of a kind that is not summed up. So
 * is a sensor of memory on a GPU. */
static void sensor_judge(struct redfish_thing *t, enum power_component whole)
{
	char id[POWER_NAME_BYTES];
	(void)redfish_text(t->object, "Id", id, sizeof id);
	if (t->component == whole || t->component == POWER_PSU)
		(void)snprintf(t->kind, sizeof t->kind, "sensor");
	else if (t->component == POWER_GPU && (strstr(id, "DRAM") != NULL || strstr(id, "Memory") != NULL))
		(void)snprintf(t->kind, sizeof t->kind, "memory");
}

void redfish_read_sensor(const struct redfish_visit *v, struct json_val doc)
{
	static const struct {
		const char *type;
		enum power_quantity quantity;
		double scale;
	} types[] = {{"Power", POWER_WATTS, 1}, {"EnergyJoules", POWER_JOULES, 1},
		{"EnergykWh", POWER_JOULES, JOULES_PER_KWH}, {"Temperature", POWER_CELSIUS, 1}};
	struct redfish_thing t = redfish_thing_of(v, doc);
	char type[32], context[POWER_NAME_BYTES];
	(void)redfish_text(doc, "ReadingType", type, sizeof type);
	if (redfish_text(doc, "PhysicalContext", context, sizeof context))
		t.component = redfish_component(context, t.component);
	thing_name(v, &t);
	sensor_judge(&t, v->at->component);
	if (strcmp(type, "Temperature") == 0 && t.component != POWER_CPU && t.component != POWER_GPU &&
		t.component != POWER_DRAM)
		return; /* The other temperatures are in Thermal or ThermalMetrics */
	for (size_t i = 0; i < CGN_COUNT(types); i++)
		if (strcmp(type, types[i].type) == 0)
			redfish_emit(v, &t, types[i].quantity, redfish_number(doc, "Reading", "Reading"),
				types[i].scale);
}
