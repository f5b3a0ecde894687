/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/ipmi/ipmi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void expect_reading(const char *line, const char *want)
{
	struct power_reading r;
	char text[256] = "nothing";
	if (ipmi_read_sensor(cgn_str_of(line), &r)) {
		int n = snprintf(text, sizeof text, "%s[%s]%s%s %s ", power_component_name(r.component),
			r.part, r.kind[0] != '\0' ? "." : "", r.kind, power_quantity_name(r.quantity));
		if (r.state == POWER_FRESH)
			(void)snprintf(text + n, sizeof text - (size_t)n, "%g", r.value);
		else
			(void)snprintf(text + n, sizeof text - (size_t)n, "%s", power_state_name(r.state));
	}
	assert_string_equal(text, want);
}

static void test_the_forms_of_a_line(void **state)
{
	(void)state;
	expect_reading("PS1 Input Power,400,Watts,ok", "psu[PS1 Input Power] watts 400");
	expect_reading("PS1 Input Power,400.000,Watts,ok,na,na,na", "psu[PS1 Input Power] watts 400");
	expect_reading("PS1 Input Power  | 400 Watts         | ok", "psu[PS1 Input Power] watts 400");
	expect_reading("CPU1 Temp        | -3.5      | degrees C  | ok    | na",
		"cpu[CPU1 Temp] celsius -3.5");
	expect_reading("CPU1 Temp        | 45 degrees C      | cr", "cpu[CPU1 Temp] celsius 45");
}

static void test_names_of_vendors(void **state)
{
	(void)state;
	expect_reading("Pwr Consumption,220,Watts,ok", "node[Pwr Consumption] watts 220");
	expect_reading("Power Meter,220,Watts,ok", "node[Power Meter] watts 220");
	expect_reading("Sys_Power,220,Watts,ok", "node[Sys_Power] watts 220");
	expect_reading("Total_Power,220,Watts,ok", "node[Total_Power] watts 220");
	expect_reading("PSU1_PIN,220,Watts,ok", "psu[PSU1_PIN] watts 220");
	expect_reading("PSU1_POUT,220,Watts,ok", "psu[PSU1_POUT].output watts 220");
	expect_reading("PS2 Output,220,Watts,ok", "psu[PS2 Output].output watts 220");
	expect_reading("GPU Power 3,300,Watts,ok", "gpu[GPU Power 3] watts 300");
	expect_reading("CPU_Power,95,Watts,ok", "cpu[CPU_Power] watts 95");
	expect_reading("MEM Power,15,Watts,ok", "dram[MEM Power] watts 15");
	expect_reading("FAN_Power,20,Watts,ok", "fan[FAN_Power] watts 20");
	expect_reading("Slot 7,12,Watts,ok",
		"other[Slot 7].sensor watts 12"); /* A part of what, is not known */
	expect_reading("Inlet Temp,22,degrees C,ok", "other[Inlet Temp].intake celsius 22");
	expect_reading("Exhaust Temp,38,degrees C,ok", "other[Exhaust Temp].exhaust celsius 38");
}

static void test_sensors_without_a_reading(void **state)
{
	(void)state;
	expect_reading("PS2 Input Power,,Watts,ns", "psu[PS2 Input Power] watts absent");
	expect_reading("PS2 Input Power | na | Watts | na", "psu[PS2 Input Power] watts absent");
	expect_reading("PS2 Input Power,0,Watts,ns", "psu[PS2 Input Power] watts absent");
	expect_reading("PS2 Input Power,0x1f,Watts,ok", "psu[PS2 Input Power] watts absent");
}

static void test_lines_of_other_things(void **state)
{
	(void)state;
	expect_reading("", "nothing");
	expect_reading("Fan1,5000,RPM,ok", "nothing");
	expect_reading("GPU1 Power,,,ns", "nothing");
	expect_reading("garbage", "nothing");
	expect_reading("a,b", "nothing");
	expect_reading("a|b", "nothing");
	expect_reading(",400,Watts,ok", "nothing");
	expect_reading("\xff\xfe,400,Watts,ok", "nothing");
	expect_reading(
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,400,Watts,ok",
		"nothing");
}

static struct power_reading dcmi_reading(const char *text)
{
	struct ipmi_dcmi d = {0};
	struct power_reading r;
	for (struct cgn_str rest = cgn_str_of(text); rest.p != NULL;)
		ipmi_dcmi_line(&d, cgn_str_split(&rest, '\n'));
	ipmi_dcmi_reading(&d, &r);
	assert_int_equal(r.component, POWER_NODE);
	assert_int_equal(r.source, POWER_FROM_IPMI);
	return r;
}

static void test_dcmi(void **state)
{
	(void)state;
	struct power_reading r =
		dcmi_reading("\n"
			     "    Instantaneous power reading:                   220 Watts\n"
			     "    Minimum during sampling period:                 58 Watts\n"
			     "    Maximum during sampling period:                311 Watts\n"
			     "    Average power reading over sample period:      110 Watts\n"
			     "    IPMI timestamp:                           Thu Jan  1 00:00:00 1970\n"
			     "    Sampling period:                          00000001 Seconds.\n"
			     "    Power reading state is:                   activated\n\n");
	assert_int_equal(r.state, POWER_FRESH);
	assert_true(fabs(r.value - 220) < 1e-9);
	r = dcmi_reading("Instantaneous power reading: 0 Watts\nPower reading state is: deactivated\n");
	assert_int_equal(r.state, POWER_ABSENT);
	assert_non_null(strstr(r.why, "deactivated"));
	r = dcmi_reading("    DCMI request failed because: Invalid command (c1)");
	assert_int_equal(r.state, POWER_ABSENT);
	r = dcmi_reading("Instantaneous power reading: many Watts");
	assert_int_equal(r.state, POWER_ABSENT);
	r = dcmi_reading("Instantaneous power reading: 7 BTU");
	assert_int_equal(r.state, POWER_ABSENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_forms_of_a_line),
		cmocka_unit_test(test_names_of_vendors),
		cmocka_unit_test(test_sensors_without_a_reading),
		cmocka_unit_test(test_lines_of_other_things),
		cmocka_unit_test(test_dcmi),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
