/* SPDX-License-Identifier: Apache-2.0 */
/* redfish, inside: values as BMCs write them, and the readings for the owner. */
#pragma once
#include "base/json/json.h"
#include "policy/power/redfish/redfish.h"

struct redfish_visit {
	const struct redfish_link *at;
	const struct redfish_ops *ops;
	void *user;
};

/* ---- value.c ---- */
/* Copy a string member, cut at a character to fit; "" and false when there is none. */
bool redfish_text(struct json_val object, const char *key, char *out, size_t cap);
/* Find the number of a member: a number, a string that is one ("374"), or an object with a member |inner| that is one (a
 * sensor excerpt). The result's raw.p is NULL when there is none; its type is JSON_NULL when the BMC gives none now. */
struct json_val redfish_number(struct json_val object, const char *key, const char *inner);
/* Join the part of |at| and |id| with a slash. */
void redfish_part(const struct redfish_link *at, const char *id, char out[POWER_NAME_BYTES]);
/* Find the component that a PhysicalContext or a name speaks of; |fallback| for none that is known. */
enum power_component redfish_component(const char *text, enum power_component fallback);

struct redfish_thing {
	enum power_component component;
	char part[POWER_NAME_BYTES], kind[24];
	char state[32];    /* Status.State; "": not told */
	bool has_no_input; /* A supply that gets no current */
	struct json_val object;
};
/* Fill in the state, and component and part as of the document. */
struct redfish_thing redfish_thing_of(const struct redfish_visit *v, struct json_val object);
bool redfish_is_absent(const struct redfish_thing *t); /* There is nothing that could be read. */
/* Pass the number |n|, times |scale|, as a reading. Does nothing when n.raw.p is NULL, unless the thing is absent. */
void redfish_emit(const struct redfish_visit *v, const struct redfish_thing *t, enum power_quantity q,
	struct json_val n, double scale);

/* ---- reading.c ---- */
typedef void redfish_reader(const struct redfish_visit *v, struct json_val doc);
redfish_reader redfish_read_power, redfish_read_total, redfish_read_redundancy, redfish_read_supply_metrics,
	redfish_read_environment, redfish_read_thermal, redfish_read_cooling_metrics, redfish_read_sensor,
	redfish_read_supply;
