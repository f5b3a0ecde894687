/* SPDX-License-Identifier: Apache-2.0 */
/* redfish: the links of each kind of document, and the members that are read in it. */
#include <string.h>

#include "redfish_priv.h"

/* ---- paths ---- */

bool redfish_path(struct cgn_str text, char out[REDFISH_PATH_BYTES])
{
	text = cgn_str_split(&text, '#');
	if (text.n == 0 || text.n >= REDFISH_PATH_BYTES || text.p[0] != '/' ||
		(text.n > 1 && text.p[1] == '/'))
		return false;
	for (size_t i = 0; i < text.n; i++)
		if (text.p[i] <= ' ' || text.p[i] > '~')
			return false;
	return cgn_str_copyz(out, REDFISH_PATH_BYTES, text);
}

static bool link_path(struct json_val object, char out[REDFISH_PATH_BYTES])
{
	struct json_val id;
	char room[REDFISH_PATH_BYTES * 2];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	if (!json_get(object, "@odata.id", &id) || id.type != JSON_STRING)
		return false;
	json_str_to(id, &b);
	return !b.bad && redfish_path(cgn_buf_view(&b), out);
}

/* Return the last segment of a path. */
static const char *path_name(char path[REDFISH_PATH_BYTES], char out[POWER_NAME_BYTES])
{
	struct cgn_str rest = cgn_str_of(path), last = {NULL, 0};
	while (rest.p != NULL) {
		struct cgn_str one = cgn_str_split(&rest, '/');
		last = one.n > 0 ? one : last;
	}
	(void)cgn_str_copyz(out, POWER_NAME_BYTES, last);
	return out;
}

/* ---- links ---- */

/* A part of the tree has its own name: chassis, supplies and sensors do. */
static bool role_is_named(enum redfish_role r)
{
	return r == REDFISH_CHASSIS || r == REDFISH_SUPPLY;
}

static bool link_follow(const struct redfish_visit *v, struct json_val object, enum redfish_role role)
{
	char name[POWER_NAME_BYTES];
	struct redfish_link link = *v->at;
	link.role = role;
	if (object.type != JSON_OBJECT || !link_path(object, link.path))
		return false;
	if (role_is_named(role))
		redfish_part(v->at, path_name(link.path, name), link.part);
	if (role == REDFISH_SUPPLY)
		link.component = POWER_PSU;
	v->ops->on_link(v->user, &link);
	return true;
}

static bool member_follow(const struct redfish_visit *v, struct json_val doc, const char *key,
	enum redfish_role role)
{
	struct json_val object;
	return json_get(doc, key, &object) && link_follow(v, object, role);
}

static void list_read(const struct redfish_visit *v, struct json_val doc, enum redfish_role of)
{
	static const char *const next[] = {"Members@odata.nextLink", "@odata.nextLink"};
	struct json_val members, one;
	if (json_get(doc, "Members", &members) && members.type == JSON_ARRAY)
		for (struct json_iter it = json_iter_of(members); json_next_elem(&it, &one);)
			(void)link_follow(v, one, of);
	for (size_t i = 0; i < CGN_COUNT(next); i++) {
		struct redfish_link link = *v->at;
		char path[REDFISH_PATH_BYTES];
		if (json_get(doc, next[i], &one) && one.type == JSON_OBJECT &&
			link_follow(v, one, v->at->role))
			return;
		if (!redfish_text(doc, next[i], path, sizeof path) ||
			!redfish_path(cgn_str_of(path), link.path))
			continue;
		v->ops->on_link(v->user, &link);
		return;
	}
}

/* A BMC that links only its session service has the list at the place that the standard names. */
static void sessions_follow(const struct redfish_visit *v, struct json_val doc)
{
	struct json_val links, service;
	struct redfish_link link = *v->at;
	char path[REDFISH_PATH_BYTES];
	link.role = REDFISH_SESSION_LIST;
	if (json_get(doc, "Links", &links) && member_follow(v, links, "Sessions", REDFISH_SESSION_LIST))
		return;
	if (!json_get(doc, "SessionService", &service) || !link_path(service, path))
		return;
	size_t n = strlen(path);
	if (path[n - 1] == '/')
		path[--n] = '\0';
	if (snprintf(link.path, sizeof link.path, "%s/Sessions", path) < (int)sizeof link.path)
		v->ops->on_link(v->user, &link);
}

static void read_service(const struct redfish_visit *v, struct json_val doc)
{
	(void)member_follow(v, doc, "Chassis", REDFISH_CHASSIS_LIST);
	sessions_follow(v, doc);
}

static void read_chassis_list(const struct redfish_visit *v, struct json_val doc)
{
	list_read(v, doc, REDFISH_CHASSIS);
}

/* A chassis may be one module of a machine: a GPU, a tray. */
static enum power_component chassis_component(struct json_val doc, const char *part)
{
	static const char *const modules[] = {"Module", "Component", "Card"};
	char type[32];
	(void)redfish_text(doc, "ChassisType", type, sizeof type);
	for (size_t i = 0; i < CGN_COUNT(modules); i++)
		if (strcmp(type, modules[i]) == 0)
			return redfish_component(part, POWER_CHASSIS);
	return POWER_CHASSIS;
}

static void read_chassis(const struct redfish_visit *v, struct json_val doc)
{
	struct redfish_link here = *v->at;
	const struct redfish_visit in = {.at = &here, .ops = v->ops, .user = v->user};
	here.component = chassis_component(doc, here.part);
	bool has_supplies = member_follow(&in, doc, "PowerSubsystem", REDFISH_SUBSYSTEM);
	bool has_cooling = member_follow(&in, doc, "ThermalSubsystem", REDFISH_COOLING);
	(void)member_follow(&in, doc, "Power", has_supplies ? REDFISH_POWER_TOTAL : REDFISH_POWER);
	if (!has_cooling)
		(void)member_follow(&in, doc, "Thermal", REDFISH_THERMAL);
	(void)member_follow(&in, doc, "EnvironmentMetrics", REDFISH_ENVIRONMENT);
	(void)member_follow(&in, doc, "Sensors", REDFISH_SENSOR_LIST);
}

static void read_subsystem(const struct redfish_visit *v, struct json_val doc)
{
	redfish_read_redundancy(v, doc);
	(void)member_follow(v, doc, "PowerSupplies", REDFISH_SUPPLY_LIST);
}

static void read_supply_list(const struct redfish_visit *v, struct json_val doc)
{
	list_read(v, doc, REDFISH_SUPPLY);
}

static void read_supply(const struct redfish_visit *v, struct json_val doc)
{
	redfish_read_supply(v, doc);
	(void)member_follow(v, doc, "Metrics", REDFISH_SUPPLY_METRICS);
}

static void read_cooling(const struct redfish_visit *v, struct json_val doc)
{
	(void)member_follow(v, doc, "ThermalMetrics", REDFISH_COOLING_METRICS);
}

static void read_sensor_list(const struct redfish_visit *v, struct json_val doc)
{
	list_read(v, doc, REDFISH_SENSOR);
}

static void read_nothing(const struct redfish_visit *v, struct json_val doc)
{
	(void)v;
	(void)doc;
}

/* ---- documents ---- */

static const struct {
	const char *name;
	redfish_reader *read;
} roles[REDFISH_ROLES] = {
	[REDFISH_SERVICE] = {"ServiceRoot", read_service},
	[REDFISH_CHASSIS_LIST] = {"ChassisCollection", read_chassis_list},
	[REDFISH_CHASSIS] = {"Chassis", read_chassis},
	[REDFISH_POWER] = {"Power", redfish_read_power},
	[REDFISH_POWER_TOTAL] = {"Power", redfish_read_total},
	[REDFISH_SUBSYSTEM] = {"PowerSubsystem", read_subsystem},
	[REDFISH_SUPPLY_LIST] = {"PowerSupplyCollection", read_supply_list},
	[REDFISH_SUPPLY] = {"PowerSupply", read_supply},
	[REDFISH_SUPPLY_METRICS] = {"PowerSupplyMetrics", redfish_read_supply_metrics},
	[REDFISH_ENVIRONMENT] = {"EnvironmentMetrics", redfish_read_environment},
	[REDFISH_THERMAL] = {"Thermal", redfish_read_thermal},
	[REDFISH_COOLING] = {"ThermalSubsystem", read_cooling},
	[REDFISH_COOLING_METRICS] = {"ThermalMetrics", redfish_read_cooling_metrics},
	[REDFISH_SENSOR_LIST] = {"SensorCollection", read_sensor_list},
	[REDFISH_SENSOR] = {"Sensor", redfish_read_sensor},
	[REDFISH_SESSION_LIST] = {"SessionCollection", read_nothing},
};

const char *redfish_role_name(enum redfish_role r)
{
	CGN_MUST(r < REDFISH_ROLES);
	return roles[r].name;
}

CGN_RC redfish_read(const struct redfish_link *at, struct cgn_str body, const struct redfish_ops *ops,
	void *user, struct cgn_err *err)
{
	const struct redfish_visit v = {.at = at, .ops = ops, .user = user};
	struct json_val doc;
	CGN_TRY(cgn_err_of(json_parse(body, &doc, NULL, err), at->path, err));
	if (doc.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "%s: the document is not a JSON object", at->path);
	roles[at->role].read(&v, doc);
	return CGN_OK;
}
