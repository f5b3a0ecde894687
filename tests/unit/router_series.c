/* SPDX-License-Identifier: Apache-2.0 */
/* The series of models in one worker, whose loop does not run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gateway_world.h"
#include "router/request/account/account.h"
#include "router/request/account/series_priv.h"

static struct gw_shared shared;
static struct cluster *nodes;
static struct gw_worker *worker;

static struct cluster_view *view_of(const char *model)
{
	struct cluster_view *v = NULL;
	gateway_join(nodes,
		&(struct gateway_node){.id = "n1", .addr = "n1:7080", .kind = "vllm", .model = model});
	nodes->heard = true;
	assert_true(cgn_ok(cluster_view_new(nodes, NULL, NULL, &v, NULL)));
	assert_true(v->settled);
	return v;
}

static int world_open(void **state)
{
	(void)state;
	shared = (struct gw_shared){.instance = 1};
	nodes = cluster_new();
	gateway_shared_open(&shared, nodes);
	struct cluster_view *view = view_of("stays");
	struct gw_rules *rules = gateway_rules("", NULL);
	const struct gw_worker_cfg cfg = {.shared = &shared,
		.http = {.listen = {.addr = "127.0.0.1:0"}},
		.prompt_cache = 1 << 20};
	assert_true(cgn_ok(gw_worker_new(&cfg, view, rules, &worker, NULL)));
	cluster_view_unref(&view);
	gw_rules_unref(&rules);
	return 0;
}

static int world_close(void **state)
{
	(void)state;
	gw_worker_free(&worker);
	gateway_shared_close(&shared);
	cluster_free(&nodes);
	return 0;
}

static void answer_count(const char *model)
{
	metric_add(series_status(shared.telemetry, series_of(worker, cgn_str_of(model)), 200), 1);
}

static bool page_has(const char *text)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf page = {0};
	telemetry_text(shared.telemetry, &page);
	return strstr(cgn_buf_z(&page), text) != NULL;
}

static void models_that_left_lose_their_series(void **state)
{
	(void)state;
	cgn_nsec now = 100 * CGN_SEC;
	answer_count("stays");
	answer_count("left");
	answer_count(""); /* Requests that name no model. */
	gw_series_sweep(worker, now);
	gw_series_sweep(worker, now + 29 * CGN_SEC);
	assert_true(page_has("{model=\"left\",code=\"200\"} 1"));
	gw_series_sweep(worker, now + 30 * CGN_SEC);
	assert_false(page_has("\"left\""));
	assert_true(page_has("{model=\"stays\",code=\"200\"} 1"));
	gw_series_sweep(worker, now + 1000 * CGN_SEC);
	assert_true(page_has("{model=\"\",code=\"200\"} 1"));
}

static void a_model_that_comes_back_goes_on_counting(void **state)
{
	(void)state;
	cgn_nsec now = 100 * CGN_SEC;
	answer_count("back");
	gw_series_sweep(worker, now);
	telemetry_forget(shared.telemetry, "model", "back"); /* Another worker saw it gone for longer. */
	assert_false(page_has("\"back\""));
	struct cluster_view *old = worker->view;
	worker->view = view_of("back");
	gw_series_sweep(worker, now + CGN_SEC);
	answer_count("back");
	assert_true(page_has("{model=\"back\",code=\"200\"} 2"));
	gw_series_sweep(worker, now + 1000 * CGN_SEC);
	assert_true(page_has("{model=\"back\",code=\"200\"} 2"));
	cluster_view_unref(&old);
}

/* The 513th model has no series of its own, and not the first one's knowledge. */
static void models_beyond_the_bound_share_a_series_that_is_nobodys(void **state)
{
	(void)state;
	char name[32];
	for (unsigned i = 0; i < 520; i++) {
		(void)snprintf(name, sizeof name, "m-%u", i);
		answer_count(name);
	}
	series_of(worker, CGN_STR("m-0"))->answer_tokens = 700;
	series_of(worker, CGN_STR("m-519"))->answer_tokens = 9; /* The shared one's. */
	assert_int_equal(gw_series_answer(worker, CGN_STR("m-0")), 700);
	assert_int_equal(gw_series_answer(worker, CGN_STR("m-519")), 0);
	assert_true(page_has("{model=\"other\",code=\"200\"} 8"));
	assert_false(page_has("\"m-519\""));
	/* Models that are gone make room. */
	gw_series_sweep(worker, 100 * CGN_SEC);
	answer_count("m-519");
	assert_true(page_has("{model=\"m-519\",code=\"200\"} 1"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(models_that_left_lose_their_series, world_open, world_close),
		cmocka_unit_test_setup_teardown(a_model_that_comes_back_goes_on_counting, world_open,
			world_close),
		cmocka_unit_test_setup_teardown(models_beyond_the_bound_share_a_series_that_is_nobodys,
			world_open, world_close),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
