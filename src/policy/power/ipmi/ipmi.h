/* SPDX-License-Identifier: Apache-2.0 */
/* ipmi: readings in the output of ipmitool, a line at a time. Sensors have no role in IPMI: what one measures is
 * guessed from its name, and a power sensor whose name says nothing is shown as "other" of a kind that is not summed up.
 * Pure; no memory. */
#pragma once
#include "base/core/err.h"
#include "base/core/str.h"
#include "policy/power/power/power.h"

/* Read a line of `ipmitool -c sdr list full` ("PS1 Input Power,400,Watts,ok"), of `-c sensor`, or of the same without
 * -c (columns between bars). True for a sensor of power or temperature: |*out| has all but node, time and max_age. */
bool ipmi_read_sensor(struct cgn_str line, struct power_reading *out);

/* The lines of `ipmitool dcmi power reading` so far; begin with zeros. */
struct ipmi_dcmi {
	bool has_watts, is_off; /* is_off: the BMC says that it does not measure */
	double watts;
};
void ipmi_dcmi_line(struct ipmi_dcmi *d, struct cgn_str line);
/* Make the reading of the whole machine after the last line. */
void ipmi_dcmi_reading(const struct ipmi_dcmi *d, struct power_reading *out);
