/* SPDX-License-Identifier: Apache-2.0 */
/* redfish: readings and links in the documents of a BMC that speaks Redfish (DMTF DSP0266, DSP0268). Documents are read
 * by the role in which they were linked, not by @odata.type, which some BMCs lack. Nothing but the service root is found
 * by a fixed path. What a BMC leaves out is left out; null, and numbers that cannot be read, are told as failing readings;
 * OEM members are ignored. Pure; memory: some 3 KB of stack. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/power/power/power.h"

#define REDFISH_ROOT       "/redfish/v1/"
#define REDFISH_PATH_BYTES 256

enum redfish_role {
	REDFISH_SERVICE, /* The service root */
	REDFISH_CHASSIS_LIST,
	REDFISH_CHASSIS,
	REDFISH_POWER,       /* Power: the total, the supplies, their redundancy */
	REDFISH_POWER_TOTAL, /* Power, of which only the total is read: the supplies are in PowerSubsystem */
	REDFISH_SUBSYSTEM,   /* PowerSubsystem */
	REDFISH_SUPPLY_LIST,
	REDFISH_SUPPLY,
	REDFISH_SUPPLY_METRICS,
	REDFISH_ENVIRONMENT, /* EnvironmentMetrics */
	REDFISH_THERMAL,     /* Thermal */
	REDFISH_COOLING,     /* ThermalSubsystem */
	REDFISH_COOLING_METRICS,
	REDFISH_SENSOR_LIST,
	REDFISH_SENSOR,
	REDFISH_SESSION_LIST, /* Is linked by the service root; new sessions are made there */
	REDFISH_ROLES
};
const char *redfish_role_name(enum redfish_role r); /* "PowerSubsystem" */

/* A document of the BMC. */
struct redfish_link {
	enum redfish_role role;
	enum power_component component; /* Readings without a context belong to it */
	char path[REDFISH_PATH_BYTES];  /* Begins with one slash; printable ASCII without spaces */
	char part[POWER_NAME_BYTES];    /* "1U", "1U/Bay1"; "" until a chassis is reached */
};
struct redfish_ops {
	/* Both are called during redfish_read, in the order of the document. */
	void (*on_link)(void *user, const struct redfish_link *link);
	/* Node, time and max_age are left to the owner. */
	void (*on_reading)(void *user, const struct power_reading *r);
};
/* Read the body of |at|. A link whose path is missing, too long, or of another host is skipped. CGN_INVALID: not JSON, or
 * no object; nothing was called. */
CGN_RC redfish_read(const struct redfish_link *at, struct cgn_str body, const struct redfish_ops *ops,
	void *user, struct cgn_err *err);
/* Copy |text|, as it stands in a document, to |out| without its fragment ("#/PowerControl/0"). False: it cannot be
 * requested from the same BMC. */
bool redfish_path(struct cgn_str text, char out[REDFISH_PATH_BYTES]);
