/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/redfish/redfish.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Lines, one for each link and reading. */
struct seen {
	char text[4096];
	size_t n;
};

static void note_link(void *user, const struct redfish_link *l)
{
	struct seen *s = user;
	s->n += (size_t)snprintf(s->text + s->n, sizeof s->text - s->n, "%s %s [%s]\n",
		redfish_role_name(l->role), l->path, l->part);
}

static void note_reading(void *user, const struct power_reading *r)
{
	struct seen *s = user;
	assert_int_equal(r->source, POWER_FROM_REDFISH);
	s->n += (size_t)snprintf(s->text + s->n, sizeof s->text - s->n, "%s[%s]%s%s %s ",
		power_component_name(r->component), r->part, r->kind[0] != '\0' ? "." : "", r->kind,
		power_quantity_name(r->quantity));
	if (r->state == POWER_FRESH)
		s->n += (size_t)snprintf(s->text + s->n, sizeof s->text - s->n, "%g\n", r->value);
	else
		s->n += (size_t)snprintf(s->text + s->n, sizeof s->text - s->n, "%s: %s\n",
			power_state_name(r->state), r->why);
}

static const struct redfish_ops ops = {.on_link = note_link, .on_reading = note_reading};

/* Read |json| as a document of the chassis 1U; |want| has the lines that must come. */
static void expect_lines(enum redfish_role role, const char *json, const char *want)
{
	struct seen s = {.text = ""};
	struct cgn_err err = {0};
	struct redfish_link at = {.role = role,
		.component = POWER_CHASSIS,
		.path = "/redfish/v1/x",
		.part = "1U"};
	if (role == REDFISH_SUPPLY || role == REDFISH_SUPPLY_METRICS) {
		at.component = POWER_PSU;
		(void)snprintf(at.part, sizeof at.part, "1U/Bay1");
	}
	if (role == REDFISH_SERVICE || role == REDFISH_CHASSIS_LIST)
		at.part[0] = '\0';
	if (!cgn_ok(redfish_read(&at, cgn_str_of(json), &ops, &s, &err)))
		fail_msg("%s", err.msg);
	assert_string_equal(s.text, want);
}

static void test_the_way_to_the_chassis(void **state)
{
	(void)state;
	expect_lines(REDFISH_SERVICE,
		"{\"Chassis\":{\"@odata.id\":\"/redfish/v1/Chassis\"},"
		"\"Links\":{\"Sessions\":{\"@odata.id\":\"/redfish/v1/SessionService/Sessions\"}},\"Oem\":{\"X\":[1]}}",
		"ChassisCollection /redfish/v1/Chassis []\n"
		"SessionCollection /redfish/v1/SessionService/Sessions []\n");
	expect_lines(REDFISH_CHASSIS_LIST,
		"{\"Members\":[{\"@odata.id\":\"/redfish/v1/Chassis/1U\"},{\"@odata.id\":\"/redfish/v1/Chassis/Tray/\"}],"
		"\"Members@odata.nextLink\":\"/redfish/v1/Chassis?$skip=2\"}",
		"Chassis /redfish/v1/Chassis/1U [1U]\nChassis /redfish/v1/Chassis/Tray/ [Tray]\n"
		"ChassisCollection /redfish/v1/Chassis?$skip=2 []\n");
	expect_lines(REDFISH_CHASSIS_LIST,
		"{\"Members\":[],\"@odata.nextLink\":{\"@odata.id\":\"/redfish/v1/n\"}}",
		"ChassisCollection /redfish/v1/n []\n");
}

static void test_where_sessions_are_made(void **state)
{
	(void)state;
	expect_lines(REDFISH_SERVICE, "{\"SessionService\":{\"@odata.id\":\"/redfish/v1/SessionService/\"}}",
		"SessionCollection /redfish/v1/SessionService/Sessions []\n");
	expect_lines(REDFISH_SERVICE,
		"{\"SessionService\":{\"@odata.id\":\"/redfish/v1/SessionService\"},\"Links\":{\"Sessions\":{\"@odata.id\":\"/s\"}}}",
		"SessionCollection /s []\n");
	expect_lines(REDFISH_SERVICE, "{\"SessionService\":{},\"Links\":7}", "");
}

static void test_links_that_lead_away(void **state)
{
	(void)state;
	expect_lines(REDFISH_CHASSIS_LIST,
		"{\"Members\":[{\"@odata.id\":\"https://other/redfish/v1/Chassis/1\"},{\"@odata.id\":\"//other/x\"},"
		"{\"@odata.id\":\"relative\"},{\"@odata.id\":\"\"},{\"@odata.id\":7},{},null,4,"
		"{\"@odata.id\":\"/a b\"},{\"@odata.id\":\"/a\\r\\nHost: x\"},{\"@odata.id\":\"/\\u00e9\"},"
		"{\"href\":\"/redfish/v1/Chassis/1\"},{\"@odata.id\":\"/redfish/v1/Chassis/ok#/Links\"}],"
		"\"@odata.nextLink\":\"https://other/next\"}",
		"Chassis /redfish/v1/Chassis/ok [ok]\n");
	char out[REDFISH_PATH_BYTES], deep[REDFISH_PATH_BYTES + 1];
	memset(deep, 'a', sizeof deep);
	deep[0] = '/';
	assert_true(redfish_path((struct cgn_str){deep, REDFISH_PATH_BYTES - 1}, out));
	assert_false(redfish_path((struct cgn_str){deep, REDFISH_PATH_BYTES}, out));
}

static void test_a_chassis_old_and_new(void **state)
{
	(void)state;
	expect_lines(REDFISH_CHASSIS,
		"{\"ChassisType\":\"RackMount\",\"Power\":{\"@odata.id\":\"/p\"},\"Thermal\":{\"@odata.id\":\"/t\"}}",
		"Power /p [1U]\nThermal /t [1U]\n");
	expect_lines(REDFISH_CHASSIS,
		"{\"PowerSubsystem\":{\"@odata.id\":\"/ps\"},\"ThermalSubsystem\":{\"@odata.id\":\"/ts\"},"
		"\"Power\":{\"@odata.id\":\"/p\"},\"Thermal\":{\"@odata.id\":\"/t\"},"
		"\"EnvironmentMetrics\":{\"@odata.id\":\"/e\"},\"Sensors\":{\"@odata.id\":\"/s\"}}",
		"PowerSubsystem /ps [1U]\nThermalSubsystem /ts [1U]\nPower /p [1U]\nEnvironmentMetrics /e [1U]\n"
		"SensorCollection /s [1U]\n");
}

static void test_power(void **state)
{
	(void)state;
	expect_lines(REDFISH_POWER,
		"{\"PowerControl\":[{\"MemberId\":\"0\",\"Name\":\"Server Power Control\",\"PowerConsumedWatts\":344,"
		"\"PowerLimit\":{\"LimitInWatts\":500}},{\"MemberId\":\"1\",\"Name\":\"CPU Sub-system Power\","
		"\"PowerConsumedWatts\":100},{\"MemberId\":\"2\",\"Name\":\"Misc\",\"PowerConsumedWatts\":9}],"
		"\"PowerSupplies\":[{\"MemberId\":\"0\",\"PowerInputWatts\":170,\"LastPowerOutputWatts\":160},"
		"{\"MemberId\":\"1\",\"LastPowerOutputWatts\":165},{\"MemberId\":\"2\",\"PowerInputWatts\":null,"
		"\"Status\":{\"State\":\"UnavailableOffline\"}},{\"MemberId\":\"3\",\"Status\":{\"State\":\"Absent\"}},"
		"{\"MemberId\":\"4\",\"PowerInputWatts\":null,\"LineInputStatus\":\"LossOfInput\"}],"
		"\"Redundancy\":[{\"Mode\":\"N+m\",\"Status\":{\"State\":\"Enabled\",\"Health\":\"OK\"}},"
		"{\"Mode\":\"N+m\",\"Status\":{\"State\":\"Enabled\",\"Health\":\"Critical\"}},"
		"{\"Mode\":\"NotRedundant\"},{\"Status\":{\"State\":\"Absent\"}}]}",
		"chassis[1U] watts 344\nchassis[1U] limit_watts 500\ncpu[1U/1] watts 100\n"
		"chassis[1U/2].subsystem watts 9\npsu[1U/0] watts 170\npsu[1U/1].output watts 165\n"
		"psu[1U/2] watts failing: the BMC gives no reading: UnavailableOffline\n"
		"psu[1U/3] watts absent: not installed\npsu[1U/4] watts absent: no input power\n"
		"psu[1U/0].redundant flag 1\npsu[1U/1].redundant flag 0\npsu[1U/2].redundant flag 0\n");
	expect_lines(REDFISH_POWER_TOTAL,
		"{\"PowerControl\":[{\"PowerConsumedWatts\":\"344\",\"PowerLimit\":{\"LimitInWatts\":null}}],"
		"\"PowerSupplies\":[{\"PowerInputWatts\":170}]}",
		"chassis[1U] watts 344\n");
}

static void test_numbers_as_bmcs_write_them(void **state)
{
	(void)state;
	expect_lines(REDFISH_ENVIRONMENT, "{\"PowerWatts\":{\"Reading\":374.5,\"DataSourceUri\":\"/x\"}}",
		"chassis[1U] watts 374.5\n");
	expect_lines(REDFISH_ENVIRONMENT, "{\"PowerWatts\":\" 3.5e2 \"}", "chassis[1U] watts 350\n");
	expect_lines(REDFISH_ENVIRONMENT, "{\"PowerWatts\":{\"Reading\":null}}",
		"chassis[1U] watts failing: the BMC gives no reading\n");
	expect_lines(REDFISH_ENVIRONMENT, "{\"PowerWatts\":\"374 W\"}",
		"chassis[1U] watts failing: the BMC gives no number: \"374 W\"\n");
	expect_lines(REDFISH_ENVIRONMENT, "{\"PowerWatts\":1e999}",
		"chassis[1U] watts failing: the BMC gives no number: 1e999\n");
	expect_lines(REDFISH_ENVIRONMENT, "{\"PowerWatts\":[1]}",
		"chassis[1U] watts failing: the BMC gives no number: [1]\n");
	expect_lines(REDFISH_ENVIRONMENT, "{\"PowerWatts\":{\"Reading\":{\"\":4}}}", "chassis[1U] watts 4\n");
	expect_lines(REDFISH_ENVIRONMENT, "{}", "");
	expect_lines(REDFISH_ENVIRONMENT,
		"{\"PowerLimitWatts\":{\"SetPoint\":500},\"TemperatureCelsius\":{\"Reading\":-3},"
		"\"EnergykWh\":{\"Reading\":2}}",
		"chassis[1U] celsius -3\nchassis[1U] limit_watts 500\nchassis[1U] joules 7.2e+06\n");
	expect_lines(REDFISH_ENVIRONMENT, "{\"EnergykWh\":{\"Reading\":2},\"EnergyJoules\":{\"Reading\":7}}",
		"chassis[1U] joules 7\n");
	expect_lines(REDFISH_ENVIRONMENT,
		"{\"EnergyJoules\":{\"Reading\":-7},\"PowerWatts\":-0.5,\"TemperatureCelsius\":-1}",
		"chassis[1U] watts failing: the BMC gives a negative number: -0.5\nchassis[1U] celsius -1\n"
		"chassis[1U] joules failing: the BMC gives a negative number: -7\n");
}

static void test_supplies(void **state)
{
	(void)state;
	expect_lines(REDFISH_SUBSYSTEM,
		"{\"PowerSupplyRedundancy\":[{\"RedundancyType\":\"Failover\",\"Status\":{\"State\":\"UnavailableOffline\","
		"\"Health\":\"OK\"}}],\"PowerSupplies\":{\"@odata.id\":\"/list\"}}",
		"psu[1U/0].redundant flag 0\nPowerSupplyCollection /list [1U]\n");
	expect_lines(REDFISH_SUPPLY_LIST, "{\"Members\":[{\"@odata.id\":\"/s/Bay1\"}]}",
		"PowerSupply /s/Bay1 [1U/Bay1]\n");
	expect_lines(REDFISH_SUPPLY,
		"{\"Metrics\":{\"@odata.id\":\"/m\"},\"Status\":{\"State\":\"Enabled\"}}",
		"PowerSupplyMetrics /m [1U/Bay1]\n");
	expect_lines(REDFISH_SUPPLY, "{\"Status\":{\"State\":\"Absent\"}}",
		"psu[1U/Bay1] watts absent: not installed\n");
	expect_lines(REDFISH_SUPPLY_METRICS,
		"{\"InputPowerWatts\":{\"Reading\":937.4},\"EnergykWh\":{\"Reading\":0.5},"
		"\"TemperatureCelsius\":{\"Reading\":43}}",
		"psu[1U/Bay1] watts 937.4\npsu[1U/Bay1] celsius 43\npsu[1U/Bay1] joules 1.8e+06\n");
}

static void test_temperatures(void **state)
{
	(void)state;
	expect_lines(REDFISH_THERMAL,
		"{\"Temperatures\":[{\"MemberId\":\"0\",\"Name\":\"CPU Temp\",\"PhysicalContext\":\"CPU\",\"ReadingCelsius\":41},"
		"{\"Name\":\"Inlet\",\"PhysicalContext\":\"Intake\",\"ReadingCelsius\":25},"
		"{\"Name\":\"GPU 3 Temp\",\"ReadingCelsius\":61},{\"Name\":\"Bay\",\"ReadingCelsius\":null,"
		"\"Status\":{\"State\":\"Absent\"}}]}",
		"cpu[1U/0] celsius 41\nother[1U/Inlet].intake celsius 25\ngpu[1U/GPU 3 Temp] celsius 61\n"
		"other[1U/Bay] celsius absent: not installed\n");
	expect_lines(REDFISH_COOLING_METRICS,
		"{\"TemperatureSummaryCelsius\":{\"Intake\":{\"Reading\":24.8},\"Exhaust\":{\"Reading\":null}},"
		"\"TemperatureReadingsCelsius\":[{\"DeviceName\":\"DIMM 1\",\"Reading\":40}]}",
		"chassis[1U].intake celsius 24.8\nchassis[1U].exhaust celsius failing: the BMC gives no reading\n"
		"other[1U/DIMM 1] celsius 40\n");
}

static void test_sensors(void **state)
{
	(void)state;
	expect_lines(REDFISH_SENSOR,
		"{\"Id\":\"CPU1Power\",\"ReadingType\":\"Power\",\"Reading\":90,\"PhysicalContext\":\"CPU\"}",
		"cpu[1U/CPU1Power] watts 90\n");
	/* The total and the supplies are in other documents; they must not be added twice. */
	expect_lines(REDFISH_SENSOR, "{\"Id\":\"TotalPower\",\"ReadingType\":\"Power\",\"Reading\":374}",
		"chassis[1U/TotalPower].sensor watts 374\n");
	expect_lines(REDFISH_SENSOR,
		"{\"Id\":\"PS1In\",\"ReadingType\":\"Power\",\"Reading\":374,\"PhysicalContext\":\"PowerSupplyBay\"}",
		"psu[1U/PS1In].sensor watts 374\n");
	expect_lines(REDFISH_SENSOR,
		"{\"Id\":\"GPU_1_DRAM_Power\",\"ReadingType\":\"Power\",\"Reading\":74,\"PhysicalContext\":\"GPU\"}",
		"gpu[1U/GPU_1_DRAM_Power].memory watts 74\n");
	expect_lines(REDFISH_SENSOR, "{\"Id\":\"Fan1\",\"ReadingType\":\"Rotational\",\"Reading\":9000}", "");
	expect_lines(REDFISH_SENSOR,
		"{\"Id\":\"T1\",\"ReadingType\":\"Temperature\",\"Reading\":30,\"PhysicalContext\":\"Intake\"}",
		"");
}

static void test_names_are_cut_at_a_character(void **state)
{
	struct seen s = {.text = ""};
	(void)state;
	const struct redfish_link at = {.role = REDFISH_SENSOR, .part = "1U"};
	const char *json = "{\"Id\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3\xa9\","
			   "\"ReadingType\":\"Power\",\"PhysicalContext\":\"CPU\",\"Reading\":1}";
	assert_true(cgn_ok(redfish_read(&at, cgn_str_of(json), &ops, &s, NULL)));
	assert_string_equal(s.text,
		"cpu[1U/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa] watts 1\n");
}

static void test_no_documents(void **state)
{
	static const char *const bad[] = {"", "<html>", "[]", "7", "{\"a\":", "null", "{} {}"};
	const struct redfish_link at = {.role = REDFISH_SERVICE, .path = REDFISH_ROOT};
	struct seen s = {.text = ""};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		struct cgn_err err = {0};
		assert_int_equal(redfish_read(&at, cgn_str_of(bad[i]), &ops, &s, &err).code, CGN_INVALID);
		assert_non_null(strstr(err.msg, REDFISH_ROOT));
	}
	for (unsigned r = 0; r < REDFISH_ROLES; r++) { /* Members of any wrong type */
		struct redfish_link any = {.role = (enum redfish_role)r};
		const char *odd =
			"{\"Members\":{},\"Links\":[],\"Chassis\":1,\"PowerControl\":[1,null],\"PowerSupplies\":7,"
			"\"Temperatures\":\"x\",\"Status\":[],\"TemperatureSummaryCelsius\":[],\"Metrics\":null}";
		assert_true(cgn_ok(redfish_read(&any, cgn_str_of(odd), &ops, &s, NULL)));
	}
	assert_string_equal(s.text, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_way_to_the_chassis),
		cmocka_unit_test(test_where_sessions_are_made),
		cmocka_unit_test(test_links_that_lead_away),
		cmocka_unit_test(test_a_chassis_old_and_new),
		cmocka_unit_test(test_power),
		cmocka_unit_test(test_numbers_as_bmcs_write_them),
		cmocka_unit_test(test_supplies),
		cmocka_unit_test(test_temperatures),
		cmocka_unit_test(test_sensors),
		cmocka_unit_test(test_names_are_cut_at_a_character),
		cmocka_unit_test(test_no_documents),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
