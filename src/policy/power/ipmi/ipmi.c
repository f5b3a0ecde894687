/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/ipmi/ipmi.h"

#include <ctype.h>
#include <string.h>

#include "base/json/json.h"

/* Read a decimal number; ipmitool writes them as JSON does. */
static bool number_of(struct cgn_str s, double *out)
{
	struct json_val v;
	return cgn_ok(json_parse(s, &v, NULL, NULL)) && v.type == JSON_NUMBER && json_f64(v, out);
}

/* ---- names of sensors ---- */

struct name_rule {
	const char *words; /* All of these, lower-case, separated by spaces, are in the name */
	enum power_component component;
	const char *kind;
};

/* The first rule that fits counts. Names are those of Dell, HPE, Lenovo, Supermicro, Inspur and OpenBMC. */
static const struct name_rule power_rules[] = {
	{"ps out", POWER_PSU, "output"},
	{"ps pout", POWER_PSU, "output"},
	{"psu", POWER_PSU, ""},
	{"ps in", POWER_PSU, ""},
	{"ps pin", POWER_PSU, ""},
	{"power supply", POWER_PSU, ""},
	{"gpu", POWER_GPU, ""},
	{"cpu", POWER_CPU, ""},
	{"mem", POWER_DRAM, ""},
	{"dimm", POWER_DRAM, ""},
	{"dram", POWER_DRAM, ""},
	{"fan", POWER_FAN, ""},
	{"hdd", POWER_DISK, ""},
	{"disk", POWER_DISK, ""},
	{"pwr consumption", POWER_NODE, ""},
	{"power consumption", POWER_NODE, ""},
	{"power meter", POWER_NODE, ""},
	{"total", POWER_NODE, ""},
	{"sys power", POWER_NODE, ""},
	{"system power", POWER_NODE, ""},
	{"sys pwr", POWER_NODE, ""},
	{"", POWER_OTHER, "sensor"},
};
static const struct name_rule temperature_rules[] = {
	{"gpu", POWER_GPU, ""},
	{"cpu", POWER_CPU, ""},
	{"dimm", POWER_DRAM, ""},
	{"mem", POWER_DRAM, ""},
	{"psu", POWER_PSU, ""},
	{"inlet", POWER_OTHER, "intake"},
	{"intake", POWER_OTHER, "intake"},
	{"ambient", POWER_OTHER, "ambient"},
	{"exhaust", POWER_OTHER, "exhaust"},
	{"", POWER_OTHER, ""},
};

static bool words_are_in(const char *words, const char *name)
{
	struct cgn_str rest = cgn_str_of(words);
	while (rest.n > 0) {
		struct cgn_str word = cgn_str_split(&rest, ' ');
		if (memmem(name, strlen(name), word.p, word.n) == NULL)
			return false;
	}
	return true;
}

static void name_judge(const struct name_rule *rules, struct power_reading *r)
{
	char name[POWER_NAME_BYTES];
	size_t i = 0;
	for (; r->part[i] != '\0'; i++) {
		int c = tolower((unsigned char)r->part[i]);
		name[i] = (char)(c == '_' || c == '-' ? ' ' : c);
	}
	name[i] = '\0';
	while (!words_are_in(rules->words, name))
		rules++;
	r->component = rules->component;
	(void)snprintf(r->kind, sizeof r->kind, "%s", rules->kind);
}

/* ---- lines ---- */

enum { COLUMN_NAME, COLUMN_VALUE, COLUMN_UNIT, COLUMN_STATUS, COLUMNS };

/* Cut a line into its first columns; `ipmitool sdr` has value and unit in one. */
static bool line_split(struct cgn_str line, struct cgn_str out[COLUMNS])
{
	char sep = memchr(line.p, '|', line.n) != NULL ? '|' : ',';
	size_t n = 0;
	for (; n < COLUMNS && line.p != NULL; n++)
		out[n] = cgn_str_trim(cgn_str_split(&line, sep));
	if (n == COLUMNS)
		return true;
	if (n != COLUMNS - 1 || sep != '|')
		return false;
	out[COLUMN_STATUS] = out[COLUMN_UNIT];
	struct cgn_str rest = out[COLUMN_VALUE];
	out[COLUMN_VALUE] = cgn_str_split(&rest, ' ');
	out[COLUMN_UNIT] = rest;
	return true;
}

static bool unit_judge(struct cgn_str unit, struct power_reading *r)
{
	if (cgn_str_is(unit, "Watts")) {
		r->quantity = POWER_WATTS;
		name_judge(power_rules, r);
		return true;
	}
	r->quantity = POWER_CELSIUS;
	name_judge(temperature_rules, r);
	return cgn_str_is(unit, "degrees C");
}

bool ipmi_read_sensor(struct cgn_str line, struct power_reading *out)
{
	struct cgn_str column[COLUMNS];
	struct power_reading r = {.source = POWER_FROM_IPMI};
	if (line.n == 0 || !line_split(line, column) || column[COLUMN_NAME].n == 0)
		return false;
	if (!cgn_utf8_valid(column[COLUMN_NAME].p, column[COLUMN_NAME].n) ||
		!cgn_str_copyz(r.part, sizeof r.part, column[COLUMN_NAME]))
		return false;
	if (!unit_judge(column[COLUMN_UNIT], &r))
		return false; /* A sensor that is switched off has no unit either */
	if (!number_of(column[COLUMN_VALUE], &r.value)) {
		r.value = 0;
		r.state = POWER_ABSENT;
		(void)snprintf(r.why, sizeof r.why, "the sensor gives no reading");
	} else if (cgn_str_is(column[COLUMN_STATUS], "ns") || cgn_str_is(column[COLUMN_STATUS], "na")) {
		r.value = 0;
		r.state = POWER_ABSENT;
		(void)snprintf(r.why, sizeof r.why, "the sensor is off or not installed");
	}
	*out = r;
	return true;
}

/* ---- DCMI ---- */

void ipmi_dcmi_line(struct ipmi_dcmi *d, struct cgn_str line)
{
	struct cgn_str rest = line;
	struct cgn_str key = cgn_str_trim(cgn_str_split(&rest, ':'));
	struct cgn_str value = cgn_str_trim(rest);
	if (cgn_str_is(key, "Instantaneous power reading")) {
		struct cgn_str number = cgn_str_split(&value, ' ');
		d->has_watts = cgn_str_is(cgn_str_trim(value), "Watts") && number_of(number, &d->watts);
	} else if (cgn_str_is(key, "Power reading state is")) {
		d->is_off = !cgn_str_is(value, "activated");
	}
}

void ipmi_dcmi_reading(const struct ipmi_dcmi *d, struct power_reading *out)
{
	*out = (struct power_reading){.component = POWER_NODE,
		.source = POWER_FROM_IPMI,
		.quantity = POWER_WATTS};
	if (d->has_watts && !d->is_off) {
		out->value = d->watts;
		return;
	}
	out->state = POWER_ABSENT;
	(void)snprintf(out->why, sizeof out->why, "%s",
		d->has_watts ? "the BMC says that it does not measure power (DCMI: deactivated)"
			     : "the BMC does not tell its power by DCMI");
}
