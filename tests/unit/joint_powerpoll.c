/* SPDX-License-Identifier: Apache-2.0 */
/* powerpoll: readings as metrics and as JSON; stale, absent and failing sources; settings. */
#include "base/pb/pb_json.h"
#include "joint/power/powerpoll/powerpoll.h"
#include "policy/fleet/settings/settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <uv.h>

struct world {
	struct cgn_loop *l;
	struct telemetry *t;
	struct powerpoll *p;
	struct power_reading made[600];
	size_t n;
	unsigned asked;
	struct cgn_buf text;
	bool closed;
};

static size_t give_readings(void *user, cgn_nsec now, struct power_reading *out, size_t cap)
{
	struct world *w = user;
	w->asked++;
	assert_true(cap >= w->n);
	for (size_t i = 0; i < w->n; i++) {
		out[i] = w->made[i];
		out[i].time = now;
		(void)snprintf(out[i].node, sizeof out[i].node, "n1");
	}
	return w->n;
}

static void put_reading(struct world *w, enum power_component c, enum power_quantity q, const char *part,
	double v)
{
	struct power_reading *r = &w->made[w->n++];
	*r = (struct power_reading){.component = c,
		.quantity = q,
		.source = POWER_FROM_RAPL,
		.value = v,
		.max_age = 60 * CGN_SEC};
	(void)snprintf(r->part, sizeof r->part, "%s", part);
}

static int world_open(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	assert_non_null(w);
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	w->t = telemetry_new(NULL, 0);
	w->p = powerpoll_new(w->l, w->t);
	*state = w;
	return 0;
}

static void note_closed(void *arg)
{
	((struct world *)arg)->closed = true;
}

static void turns_until(struct world *w, const bool *done)
{
	alarm(60);
	while (!*done)
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
	alarm(0);
}

static int world_close(void **state)
{
	struct world *w = *state;
	powerpoll_close(&w->p, note_closed, w);
	turns_until(w, &w->closed);
	telemetry_free(&w->t);
	cgn_loop_free(&w->l);
	cgn_buf_fini(&w->text);
	free(w);
	return 0;
}

/* Wait for the next tick and return the metrics. */
static const char *tick_text(struct world *w)
{
	unsigned before = w->asked;
	alarm(60);
	while (w->asked == before)
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
	alarm(0);
	w->text.n = 0;
	telemetry_text(w->t, &w->text);
	return cgn_buf_z(&w->text);
}

#define expect_line(text, line)                                  \
	do {                                                     \
		if (strstr((text), "\n" line "\n") == NULL)      \
			fail_msg("no %s in:\n%s", line, (text)); \
	} while (0)

static void test_metrics(void **state)
{
	struct world *w = *state;
	put_reading(w, POWER_CPU, POWER_WATTS, "0", 100);
	put_reading(w, POWER_CPU, POWER_WATTS, "1", 50);
	put_reading(w, POWER_CPU, POWER_JOULES, "0", 1000);
	put_reading(w, POWER_CPU, POWER_CELSIUS, "0", 45);
	put_reading(w, POWER_PSU, POWER_FLAG, "0", 1);
	(void)snprintf(w->made[4].kind, sizeof w->made[4].kind, "redundant");
	put_reading(w, POWER_PSU, POWER_WATTS, "0", 140);
	(void)snprintf(w->made[5].kind, sizeof w->made[5].kind, "output");
	put_reading(w, POWER_GPU, POWER_WATTS, "0", 7);
	w->made[6].state = POWER_FAILING;
	assert_true(cgn_ok(powerpoll_add_reader(w->p, "n1", "host", give_readings, w, NULL)));
	const char *text = tick_text(w);
	expect_line(text, "cgn_power_watts{node=\"n1\",component=\"cpu\",part=\"0\",source=\"rapl\"} 100");
	expect_line(text, "cgn_power_watts{node=\"n1\",component=\"cpu\",part=\"1\",source=\"rapl\"} 50");
	expect_line(text,
		"cgn_temperature_celsius{node=\"n1\",component=\"cpu\",part=\"0\",source=\"rapl\"} 45");
	expect_line(text, "cgn_power_redundant{node=\"n1\",part=\"0\"} 1");
	expect_line(text, "cgn_node_power_watts{node=\"n1\",by=\"other\",source=\"rapl\"} 150");
	expect_line(text, "cgn_power_source_up{node=\"n1\",source=\"host\"} 1");
	expect_line(text, "cgn_power_readings{node=\"n1\",source=\"host\",state=\"fresh\"} 6");
	expect_line(text, "cgn_power_readings{node=\"n1\",source=\"host\",state=\"failing\"} 1");
	/* The counter before the first reading is not ours. */
	expect_line(text,
		"cgn_energy_joules_total{node=\"n1\",component=\"cpu\",part=\"0\",source=\"rapl\"} 0");
	assert_null(
		strstr(text, "psu\",part=\"0\",source")); /* A supply's output would be added to its input */
	assert_null(strstr(text, "component=\"gpu\""));
	w->made[2].value = 1250.5;
	text = tick_text(w);
	expect_line(text,
		"cgn_energy_joules_total{node=\"n1\",component=\"cpu\",part=\"0\",source=\"rapl\"} 250");
	w->made[2].value = 3; /* Was reset */
	(void)tick_text(w);
	w->made[2].value = 13.6;
	text = tick_text(w);
	expect_line(text,
		"cgn_energy_joules_total{node=\"n1\",component=\"cpu\",part=\"0\",source=\"rapl\"} 261");
}

static void test_what_is_stale_is_not_shown_as_power(void **state)
{
	struct world *w = *state;
	put_reading(w, POWER_CPU, POWER_WATTS, "0", 100);
	put_reading(w, POWER_CHASSIS, POWER_WATTS, "1U", 400);
	assert_true(cgn_ok(powerpoll_add_reader(w->p, "n1", "host", give_readings, w, NULL)));
	const char *text = tick_text(w);
	expect_line(text, "cgn_node_power_watts{node=\"n1\",by=\"chassis\",source=\"rapl\"} 400");
	w->made[1].max_age = 0;
	text = tick_text(w);
	assert_null(strstr(text, "component=\"chassis\""));
	expect_line(text, "cgn_power_watts{node=\"n1\",component=\"cpu\",part=\"0\",source=\"rapl\"} 100");
	expect_line(text, "cgn_node_power_watts{node=\"n1\",by=\"other\",source=\"rapl\"} 100");
	expect_line(text, "cgn_power_readings{node=\"n1\",source=\"host\",state=\"stale\"} 1");
	w->n = 0;
	text = tick_text(w);
	assert_null(strstr(text, "cgn_power_watts{"));
	assert_null(strstr(text, "cgn_node_power_watts{"));
	expect_line(text, "cgn_power_source_up{node=\"n1\",source=\"host\"} 0");
}

/* Write the power as /power does. */
static void report_put(struct powerpoll *p, struct json_out *o)
{
	static const char *const select[] = {
#define DOCUMENT(fill, path, action, Type, type, select, help) select,
#include "metrics/documents.def"
#undef DOCUMENT
	};
	struct pb_tree t;
	pb_tree_init(&t, (size_t)1 << 20);
	Cognitora__V1__Power *power = PB_NEW(&t, power);
	powerpoll_fill(p, &t, power);
	assert_false(t.bad);
	pb_json_select(o, power, select[0]); /* The first document is /power. */
	pb_tree_fini(&t);
}

static void test_the_report(void **state)
{
	struct world *w = *state;
	struct json_out o = json_out_to(&w->text);
	put_reading(w, POWER_CPU, POWER_WATTS, "0", 100);
	put_reading(w, POWER_GPU, POWER_WATTS, "1", 0);
	w->made[1].state = POWER_ABSENT;
	(void)snprintf(w->made[1].why, sizeof w->made[1].why, "not installed");
	assert_true(cgn_ok(powerpoll_add_reader(w->p, "n1", "host", give_readings, w, NULL)));
	report_put(w->p, &o);
	assert_string_equal(cgn_buf_z(&w->text),
		"{\"nodes\":[{\"node\":\"n1\",\"watts\":100,\"by\":\"other\",\"source\":\"rapl\",\"whole\":false,\"readings\":1,"
		"\"age_seconds\":0}],\"sources\":[{\"node\":\"n1\",\"source\":\"host\",\"up\":true,\"why\":\"\",\"age_seconds\":0,"
		"\"readings\":[{\"component\":\"cpu\",\"part\":\"0\",\"quantity\":\"watts\",\"source\":\"rapl\",\"state\":\"fresh\","
		"\"value\":100,\"age_seconds\":0},{\"component\":\"gpu\",\"part\":\"1\",\"quantity\":\"watts\",\"source\":\"rapl\","
		"\"state\":\"absent\",\"why\":\"not installed\",\"age_seconds\":0}]}]}");
}

static void test_many_series_of_energy_are_bounded(void **state)
{
	struct world *w = *state;
	char part[16];
	for (unsigned i = 0; i < 500; i++) {
		(void)snprintf(part, sizeof part, "%u", i);
		put_reading(w, POWER_GPU, POWER_JOULES, part, 1);
	}
	assert_true(cgn_ok(powerpoll_add_reader(w->p, "n1", "host", give_readings, w, NULL)));
	const char *text = tick_text(w);
	unsigned n = 0;
	for (const char *at = text; (at = strstr(at, "\ncgn_energy_joules_total{")) != NULL; at++)
		n++;
	assert_int_equal(n, 64);
}

/* ---- settings ---- */

static struct config *config_of(const char *toml)
{
	struct config *cfg = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(settings_load("t.toml", cgn_str_of(toml), NULL, NULL, 0, &cfg, &err)))
		fail_msg("%s", err.msg);
	return cfg;
}

static void test_settings(void **state)
{
	static const struct {
		const char *toml, *why;
	} rows[] = {
		{"", NULL},
		{"[metrics]\nredfish_url = \"https://bmc\"\nredfish_user = \"cgn\"\nredfish_password_file = \"/p\"",
			NULL},
		{"[bmcs.\"n1\"]\nurl = \"https://bmc1\"\n[bmcs.\"n2\"]\nipmi_host = \"bmc2:6230\"\nipmi_password_file = \"/p\"",
			NULL},
		{"[bmcs.\"n1\"]\nipmi_host = \"fe80::1\"\nipmi_password_file = \"/p\"", NULL},
		{"[bmcs.\"n1\"]\nipmi_host = \"[fe80::1]:6230\"\nipmi_password_file = \"/p\"", NULL},
		{"[bmcs.\"n1\"]\nuser = \"cgn\"", "bmcs.\"n1\": a node's power needs url"},
		{"[bmcs.\"n1\"]\nurl = \"bmc1\"", "bmcs.\"n1\": "},
		{"[bmcs.\"n1\"]\nurl = \"https://bmc1\"\nuser = \"cgn\"", "needs a password file"},
		{"[bmcs.\"n1\"]\nurl = \"https://bmc1\"\nfingerprint = \"zz\"", "fingerprint"},
		{"[bmcs.\"n1\"]\nipmi_host = \"bmc:x\"\nipmi_password_file = \"/p\"", "HOST:PORT"},
		{"[bmcs.\"n1\"]\nipmi_host = \"-bmc\"\nipmi_password_file = \"/p\"", "HOST:PORT"},
		{"[bmcs.\"n1\"]\nipmi_host = \"bmc\"", "needs a password file"},
		{"[metrics]\nipmi = \"lanplus\"", "needs metrics.ipmi_host"},
		{"[metrics]\nredfish_url = \"ftp://bmc\"", "metrics: "},
		{"[bmcs.\"n1\"]\nmetrics_url = \"http://n1:9400/metrics\"", NULL},
		{"[bmcs.\"n1\"]\nmetrics_url = \"n1:9400\"", "bmcs.\"n1\": "},
		{"[bmcs.\"n1\"]\nmetrics_url = \"https://n1\"\nmetrics_fingerprint = \"zz\"", "fingerprint"},
		{"[metrics]\ndcgm_url = \"http://n1:9400\"\ndcgm_ca_file = \"/ca\"",
			"no certificate to check"},
	};
	struct world *w = *state;
	(void)w;
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		struct svc_problems p = {.n = 0};
		struct config *cfg = config_of(rows[i].toml);
		powerpoll_check(cfg, &p);
		assert_int_equal(p.n, rows[i].why != NULL);
		if (rows[i].why != NULL && strstr(cgn_buf_z(&p.text), rows[i].why) == NULL)
			fail_msg("%s: %s", rows[i].toml, cgn_buf_z(&p.text));
		cgn_buf_fini(&p.text);
		config_free(&cfg);
	}
}

static void test_sources_of_the_settings(void **state)
{
	struct world *w = *state;
	struct config *cfg =
		config_of("[metrics]\nipmi = \"local\"\nipmitool = \"/nonexistent/ipmitool\"\nnode = \"n0\"\n"
			  "[bmcs.\"n1\"]\nurl = \"http://127.0.0.1:1\"\n");
	assert_true(cgn_ok(powerpoll_configure(w->p, cfg, NULL)));
	assert_true(cgn_ok(powerpoll_add_reader(w->p, "n1", "host", give_readings, w, NULL)));
	const char *text = "";
	alarm(60);
	do {
		struct json_out o = json_out_to(&w->text);
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
		w->text.n = 0;
		report_put(w->p, &o);
		text = cgn_buf_z(&w->text);
	} while (strstr(text, "/nonexistent/ipmitool") == NULL || strstr(text, "127.0.0.1:1") == NULL);
	alarm(0);
	assert_non_null(strstr(text, "{\"node\":\"n0\",\"watts\":null}"));
	text = tick_text(w);
	expect_line(text, "cgn_power_source_up{node=\"n0\",source=\"ipmi\"} 0");
	expect_line(text, "cgn_power_source_up{node=\"n1\",source=\"redfish\"} 0");
	config_free(&cfg);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_metrics, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_what_is_stale_is_not_shown_as_power, world_open,
			world_close),
		cmocka_unit_test_setup_teardown(test_the_report, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_many_series_of_energy_are_bounded, world_open,
			world_close),
		cmocka_unit_test_setup_teardown(test_settings, world_open, world_close),
		cmocka_unit_test_setup_teardown(test_sources_of_the_settings, world_open, world_close),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
